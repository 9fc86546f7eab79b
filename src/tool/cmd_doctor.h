/* cmd_doctor.h - `lcow doctor`: a table of checks, each with its finding and a fix. */
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
    bool retest;               /* forget the result of KVM's last test and test now */
};

struct doctor_check {
    const char *name;
    /* Waits. Calls doctor_say() exactly once, and returns its result. */
    enum doctor_status (*run)(struct ctx *ctx, struct doctor *d);
};
extern const struct doctor_check doctor_host_checks[], doctor_vm_checks[]; /* end: name NULL */

/* Sets the finding. fix NULL: nothing to do. Returns status. */
enum doctor_status doctor_say(struct doctor *d, enum doctor_status status, const char *fix,
                              const char *fmt, ...) __attribute__((format(printf, 4, 5)));

void doctor_release(struct doctor *d);
/* The path, or its nearest existing parent; NULL and errno on failure. Caller frees. */
char *doctor_nearest(const char *path);

/* ---- parsers, for the checks and the test */
struct doctor_version {
    unsigned major, minor;
};
/* The first number with a dot in "QEMU emulator version 10.0.2 (Debian …)" and the like. */
bool doctor_parse_version(const char *text, struct doctor_version *ret);
/* True if a line of `-device help` names this device. */
bool doctor_has_device(const char *help, const char *device);
/* MemAvailable of /proc/meminfo in MiB. */
bool doctor_parse_available(const char *meminfo, uint64_t *ret_mib);
/* True if /proc/cgroups (version 1) lists the controller as enabled. */
bool doctor_cgroup_v1_has(const char *cgroups, const char *controller);
/* True if cgroup.controllers (version 2) contains the word. */
bool doctor_has_word(const char *text, const char *word);
