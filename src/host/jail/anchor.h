/* anchor.h - a few KiB of process that stands for a container on the host: its pid is what
 * containerd, CNI and Docker see. It sits in the pod's network namespace and the container's host
 * cgroup and sleeps. If it is killed, the shim kills its container with signal 9. It ends with the
 * shim. */
#pragma once
#include "base/mem.h"
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Its program as bytes, made at build time from anchor_main.c. */
extern const unsigned char anchor_blob[];
extern const unsigned long anchor_blob_len;

struct anchor;
struct cgroup;
struct ctx;
struct err;
struct loop;
struct saved;
struct ledger;

struct anchor_opts {
    const char *id;    /* shown beside its name, "lcow-anchor" */
    const char *netns; /* path to join; "" or NULL: a new one if own_netns, else ours */
    bool own_netns;
    bool apart; /* mount, UTS and IPC namespaces of its own, with no file in them; else ours */
    struct cgroup *cgroup; /* borrows; joined before it runs; may be NULL */
    struct ledger *ledger; /* borrows */
};
/* Waits. ERR_INVALID: netns is not a network namespace. Caller frees with anchor_free(), which ends
 * it; no fiber may be in anchor_wait then. */
int anchor_spawn(struct ctx *ctx, const struct anchor_opts *o, struct anchor **ret,
                 struct err *err);
pid_t anchor_pid(const struct anchor *a);
/* Until it ends: by our anchor_end (*ret_by_us) or because another process killed it. */
int anchor_wait(struct ctx *ctx, struct anchor *a, bool *ret_by_us, struct err *err);
void anchor_end(struct anchor *a);
void anchor_free(struct anchor *a);
AUTO_DEFINE(struct anchor *, anchor_free);

/* One that runs, for saved.h. NULL: none. */
void anchor_saved(struct saved *s, uint32_t field, struct loop *loop, struct ledger *ledger,
                  struct anchor **a);
