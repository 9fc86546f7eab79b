/* hook.h - a program of the client's that runs on the host, in the shim's own namespaces and with
 * its rights, as OCI hooks do. It ends with us. */
#pragma once
#include <stdint.h>

struct ctx;
struct err;
struct ledger;

struct hook_opts {
    const char *path, *cwd;
    const char *const *argv;
    const char *const *env; /* NULL: only PATH */
    const char *input;      /* its stdin */
    uint64_t limit_ns;      /* then it is killed */
    struct ledger *ledger;  /* borrows */
};
/* Waits until it has ended, at most until ctx ends. Another status than 0: ERR_STATE, with what it
 * wrote. */
int hook_run(struct ctx *ctx, const struct hook_opts *o, struct err *err);
