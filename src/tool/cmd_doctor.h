/* cmd_doctor.h - `lcow doctor`: a table of checks, each with what it found and what fixes it. */
#pragma once
#include "base/str.h"
#include "tool/tool.h"

struct ctx;

enum doctor_status { DOCTOR_OK, DOCTOR_WARNING, DOCTOR_FAILED };

struct doctor_finding {
    enum doctor_status status;
    char *text;      /* what was found; owned */
    const char *fix; /* a command, or what to do; NULL if ok. Static */
};

struct doctor {
    struct tool *tool;
    struct doctor_finding now; /* of the check that runs */
    char *qemu;                /* path, when found; owned */
    bool retest;               /* forget what is known of KVM and try now */
};

struct doctor_check {
    const char *name;
    /* Waits. Says exactly one thing, and returns what doctor_say() does. */
    enum doctor_status (*run)(struct ctx *ctx, struct doctor *d);
};
extern const struct doctor_check doctor_host_checks[], doctor_vm_checks[]; /* end: name NULL */

/* What was found. fix NULL: nothing to do. Returns status. */
enum doctor_status doctor_say(struct doctor *d, enum doctor_status status, const char *fix,
                              const char *fmt, ...) __attribute__((format(printf, 4, 5)));

void doctor_release(struct doctor *d);
/* The path, or the nearest parent that is there; NULL with errno if that cannot be found out.
 * Caller frees. */
char *doctor_nearest(const char *path);

/* ---- what the checks parse, for them and the test */
struct doctor_version {
    unsigned major, minor;
};
/* The first number with a dot in "QEMU emulator version 10.0.2 (Debian …)" and the like. */
bool doctor_parse_version(const char *text, struct doctor_version *ret);
/* `-device help`: is there a line that names this device? */
bool doctor_has_device(const char *help, const char *device);
/* MemAvailable of /proc/meminfo in MiB. */
bool doctor_parse_available(const char *meminfo, uint64_t *ret_mib);
/* /proc/cgroups (version 1): is the controller enabled? */
bool doctor_cgroup_v1_has(const char *cgroups, const char *controller);
/* A word in cgroup.controllers (version 2). */
bool doctor_has_word(const char *text, const char *word);
