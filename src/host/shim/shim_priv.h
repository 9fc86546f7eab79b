/* shim_priv.h - the actions behind shim_main, each a fiber on a loop of its own. */
#pragma once
#include "base/str.h"
#include "host/shim/shim.h"
#include "proto/pb.h"

struct bootstrap;
struct cgroup;
struct config;
struct ctx;
struct err;

/* The command line, by the rules of Go's flag package: -x v, -x=v, --x; booleans -x or -x=true; the
 * first word that is no flag is the action. */
struct shim_args {
    const char *ns, *id, *address, *bundle, *socket; /* or "" */
    bool debug, info, version;
    const char *action; /* "" if none */
};

/* Borrows argv. ERR_INVALID names the flag. */
int shim_args_parse(char **argv, struct shim_args *ret, struct err *err);
/* What start, serve and delete need: a namespace and an id that are names. */
int shim_args_check(const struct shim_args *a, struct err *err);

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
 * its pod's cgroup. Borrows both until the loop ends. */
int template_run(struct ctx *ctx, const struct shim_args *a, const struct shim_backend *backend,
                 struct err *err);
void template_spawn(struct loop *loop, const struct shim_args *a, uint32_t memory_mib,
                    struct cgroup *home);

/* All of stdin, at most BOOTSTRAP_MAX_BYTES; empty if it is closed or /dev/null. Waits. */
int shim_read_stdin(struct ctx *ctx, struct sbuf *ret, struct err *err);
/* The configuration as the file and the options on stdin have it. c is initialised. Waits. */
int shim_load_config(struct ctx *ctx, const struct shim_args *a, struct config *c,
                     struct bootstrap *ret, struct err *err);

/* `-info`: what this runtime is and can do, with the options (an Any) as containerd gave them. */
void shim_info(struct pb_slice options, struct sbuf *out);
