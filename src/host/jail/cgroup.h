/* cgroup.h - the host cgroup that a spec names, in v1 (one directory per mounted controller) and
 * v2: made if missing, joined by pid, removed when we made it. */
#pragma once
#include "base/mem.h"
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct cgroup;
struct ctx;
struct err;
struct saved;
struct ledger;

/* Of this host, from /proc/self/mountinfo; v1 with v2 beside it counts as v1. */
int cgroup_host_is_v2(bool *ret, struct err *err);

/* path: "/a/b", "a/b" (below our own), or systemd's "slice:prefix:name". "" gives NULL: stay where
 * we are. "." and ".." are refused. What is made is in the ledger (NULL: it is not recorded). In
 * hybrid mode v2 is left alone. Caller frees; removal by cgroup_remove. Waits: on v2, if systemd is
 * PID 1, "slice:prefix:name" is a scope that systemd starts (docs/decisions/0032). */
int cgroup_make(struct ctx *ctx, const char *path, struct ledger *ledger, struct cgroup **ret,
                struct err *err);
/* A process that stays has joined. Until this call a small process keeps a scope alive, since
 * systemd ends and removes an empty one. NULL is fine. */
void cgroup_settle(struct cgroup *c);
/* Where this process is now, to come back to by cgroup_join(). Nothing is made or removed. */
int cgroup_current(struct cgroup **ret, struct err *err);
/* Moves a process into all its controllers. cgroup_join_self is for a child about to exec: system
 * calls only, and it needs the host's file system. */
int cgroup_join(struct cgroup *c, pid_t pid, struct err *err);
int cgroup_join_self(struct cgroup *c, struct err *err);
/* What its processes may use of the host's CPUs. must: ERR_STATE if this host cannot; else NULL, or
 * a host without that controller, is as good as done. */
struct cgroup_cpu {
    uint64_t quota, period; /* microseconds; quota 0 removes the limit */
    uint64_t shares;        /* as in v1 (2 … 262144); 0 leaves them */
    uint32_t weight;        /* as in v2 (1 … 10000, by default 100), instead of shares; 0: none */
    bool must;
};
int cgroup_set_cpu(struct ctx *ctx, struct cgroup *c, const struct cgroup_cpu *cpu,
                   struct err *err);
/* Which CPUs of the host: "0-3,8". ERR_STATE if this host cannot. */
int cgroup_set_cpuset(struct ctx *ctx, struct cgroup *c, const char *cpus, struct err *err);
/* Removes what we made, if it is empty; retried by the caller (ERR_STATE while a process ends),
 * continues at the step that failed. Parent directories that others use by now are kept. */
int cgroup_remove(struct cgroup *c, struct err *err);
void cgroup_free(struct cgroup *c);
AUTO_DEFINE(struct cgroup *, cgroup_free);

/* For saved.h. NULL: none. ledger: that of cgroup_make. */
void cgroup_saved(struct saved *s, uint32_t field, struct ledger *ledger, struct cgroup **c);
