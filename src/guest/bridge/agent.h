/* agent.h - the serving role: brings up the link, feeds entropy, connects the log, then serves the
 * bridge for the life of the VM (docs/reference/gcs-protocol.md §1.2). */
#pragma once
#include "base/log.h"
#include "guest/bridge/link.h"
#include <stddef.h>
#include <stdint.h>

struct ctx;
struct err;
struct sbuf;

/* When each part of the boot began and ended, for the host's timeline. Nanoseconds of
 * the guest's CLOCK_MONOTONIC. The agent sends each to the host as one line of the log:
 *     {"time":…,"level":"info","msg":"boot stage","stage":"mounts","start_ns":…,"end_ns":…,
 *      "boottime_ns":<now>}
 * whatever the log level is, since it is data. Never waits. */
#define STAGES_MAX 16
#define STAGES_NAME 16

struct stages {
    struct {
        char name[STAGES_NAME];
        uint64_t start_ns, end_ns;
    } v[STAGES_MAX];
    size_t n;
};

/* Those beyond STAGES_MAX are left out. */
void stages_add(struct stages *s, const char *name, uint64_t start_ns, uint64_t end_ns);
/* "init=10-20,mounts=12-15", as PID 1 hands it over. ERR_INVALID leaves *s as it was. */
int stages_parse(struct stages *s, const char *text, struct err *err);
/* Appends the line of stage i. */
void stages_line(const struct stages *s, size_t i, uint64_t wall_ns, uint64_t now_ns,
                 struct sbuf *out);

/* The agent's words on the kernel command line: lcow.host=tcp|vsock (tcp) and
 * lcow.loglevel=LEVEL (info). Words behind " -- " are PID 1's arguments and do not count. */
struct bootargs {
    enum link_transport transport;
    enum log_level level;
};

/* Ignores words that are not the agent's. An invalid value is ERR_INVALID, which names it. */
int bootargs_parse(const char *cmdline, struct bootargs *ret, struct err *err);
/* From /proc/cmdline. */
int bootargs_load(struct bootargs *ret, struct err *err);

struct agent_opts {
    struct bootargs boot;
    const char *stages;  /* PID 1's, see above; NULL: none */
    uint64_t started_ns; /* of this process, clock_mono() */
    int (*load_module)(const char *name, struct err *err);
    int (*power_off)(struct err *err); /* returns only on failure */
};

/* Waits for the life of the VM. Returns only when the boot failed (-1), because an agent without a
 * link cannot work. */
int agent_run(struct ctx *ctx, const struct agent_opts *opts, struct err *err);
