/* shim_priv.h - the actions behind shim_main, each a fiber on a loop of its own. */
#pragma once
#include "base/str.h"
#include "host/shim/shim.h"
#include "host/shim/shim_args.h"

struct cgroup;
struct ctx;
struct err;

/* Descriptors that `start` gives to the daemon. */
#define SHIM_FD_LISTENER 3
#define SHIM_FD_READY 4
#define SHIM_READY "ok"

/* What is to be printed on stdout goes to out. Wait. */
int start_run(struct ctx *ctx, const struct shim_args *a, struct sbuf *out, struct err *err);
int delete_run(struct ctx *ctx, const struct shim_args *a, struct sbuf *out, struct err *err);
/* Returns when the shim has ended; 0 if it ended in order. */
int serve_run(struct ctx *ctx, const struct shim_args *a, const struct shim_backend *backend,
              struct err *err);

/* template.c: builds the template of the configuration for VMs of the size that asked
 * for it; and a process of its own that does. home: where that process is to be, if the shim is in
 * its pod's cgroup; borrows. */
int template_run(struct ctx *ctx, const struct shim_backend *backend, struct err *err);
void template_spawn(struct loop *loop, uint32_t memory_mib, struct cgroup *home);

/* All of stdin, at most BOOTSTRAP_MAX_BYTES; empty if it is closed or /dev/null. Waits. */
int shim_read_stdin(struct ctx *ctx, struct sbuf *ret, struct err *err);

struct info {
    const char *version, *revision;
    const char *features; /* JSON, or NULL */
    const void *options;  /* packed Any, echoed */
    size_t options_len;
    const char *allow_mounts; /* or NULL */
};
void info_encode(const struct info *i, struct sbuf *out);
extern const char info_features[];
