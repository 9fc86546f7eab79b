/* shim_priv.h - the actions of shim_main, each a fiber on its own loop. */
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
 * first word that is not a flag is the action. */
struct shim_args {
    const char *ns, *id, *address, *bundle, *socket; /* or "" */
    bool debug, info, version;
    const char *action;      /* "" if none */
    const char *const *rest; /* the words behind it */
};

/* Borrows argv. ERR_INVALID names the flag. */
int shim_args_parse(char **argv, struct shim_args *ret, struct err *err);
/* Checks what start, serve and delete need: a valid namespace and id. */
int shim_args_check(const struct shim_args *a, struct err *err);

/* Descriptors that `start` passes to the daemon. */
#define SHIM_FD_LISTENER 3
#define SHIM_FD_READY 4
#define SHIM_READY "ok"

/* In the annotations of -info: which documents of a saved shim this program reads, "1-3". */
#define SHIM_SAVED_KEY "io.lcow.saved-state"

/* They write their stdout to out. They wait. */
int start_run(struct ctx *ctx, const struct shim_args *a, struct sbuf *out, struct err *err);
int delete_run(struct ctx *ctx, const struct shim_args *a, struct sbuf *out, struct err *err);
/* Returns when the shim has shut down; 0 if that was orderly. For `resume`, continues a shim that
 * another program has saved. */
int serve_run(struct ctx *ctx, const struct shim_args *a, const struct shim_backend *backend,
              struct err *err);

/* builder.c: a process of its own that runs an action of the shim. */
struct builder {
    const char *what, *action; /* what: for the log */
    const struct shim_args *args;
    struct cgroup *home; /* its cgroup, if the shim is in its pod's cgroup; may be NULL */
    const char *env;     /* "NAME=VALUE", or NULL */
    int list_fd;         /* becomes SHIM_FD_LIST; -1: none */
    bool urgent;         /* a client waits for it: not with low priority */
};
#define SHIM_FD_LIST 5
/* Waits until it exits, or ctx ends; it then continues. Its last words are in the error. */
int builder_run(struct ctx *ctx, const struct builder *b, struct err *err);

/* layers.c: builds images of the layers that SHIM_FD_LIST names, each path with its NUL; and starts
 * a process that does so, and waits for it unless ctx is NULL. */
int layers_run(struct ctx *ctx, const struct shim_args *a, struct err *err);
void layers_spawn(struct loop *loop, struct ctx *ctx, const struct shim_args *a,
                  const struct strv *dirs, struct cgroup *home);

/* template.c: builds the template for VMs of the given size; and starts a process that does so.
 * home: the cgroup of that process, if the shim is in its pod's cgroup. Borrows both until the loop
 * ends. */
int template_run(struct ctx *ctx, const struct shim_args *a, const struct shim_backend *backend,
                 struct err *err);
void template_spawn(struct loop *loop, const struct shim_args *a, uint32_t memory_mib,
                    struct cgroup *home);

/* upgrade.c: the first call of every program. For `resume`, a crash, an exit, or a resume that
 * takes more than 10 s from now on leads to the previous program. Borrows argv. */
void upgrade_guard(char **argv);
/* Executes the previous program, which logs why. Returns if nothing leads back. */
void upgrade_go_back(const char *why);

/* All of stdin, at most BOOTSTRAP_MAX_BYTES; empty if it is closed or /dev/null. Waits. */
int shim_read_stdin(struct ctx *ctx, struct sbuf *ret, struct err *err);
/* Reads the configuration from the file and the options on stdin. c is initialised. Waits. */
int shim_load_config(struct ctx *ctx, const struct shim_args *a, struct config *c,
                     struct bootstrap *ret, struct err *err);

/* `-info`: the runtime's name, version and features, with containerd's options (an Any). */
void shim_info(struct pb_slice options, struct sbuf *out);
