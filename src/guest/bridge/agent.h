/* agent.h - the serving role: brings up the link, feeds entropy, connects the log, then serves the
 * bridge for the life of the VM (gcs-protocol.md §1.2). */
#pragma once
#include "guest/bridge/bootargs.h"

struct ctx;
struct err;

struct agent_opts {
    struct bootargs boot;
    const char *stages;  /* PID 1's, see stages.h; NULL: none */
    uint64_t started_ns; /* of this process, clock_mono() */
    int (*load_module)(const char *name, struct err *err);
    int (*power_off)(struct err *err); /* returns only on failure */
};

/* Waits for the life of the VM. Returns only when the boot failed (-1): without a link there is
 * nothing left to do. */
int agent_run(struct ctx *ctx, const struct agent_opts *opts, struct err *err);
