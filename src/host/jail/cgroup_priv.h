/* cgroup_priv.h - between cgroup*.c and their tests. */
#pragma once
#include "base/str.h"
#include "host/jail/cgroup.h"

/* Where mountinfo and cgroup tell about the host, and what exists if systemd is PID 1 (as
 * sd_booted(3) asks); a test has files of its own. */
#define CGROUP_PROC "/proc/self"
#define CGROUP_SYSTEMD "/run/systemd/system"
struct cgroup_host {
    const char *proc, *systemd;
};

#define CGROUP_HIERARCHIES_MAX 32

struct scope;

/* What we made. */
struct cgroup_made {
    char *path;
    bool leaf;
    uint64_t record; /* 0: none */
};

struct cgroup {
    struct ledger *ledger;
    struct cgroup_made *made;
    size_t n_made, made_cap;
    char *procs[CGROUP_HIERARCHIES_MAX]; /* paths of cgroup.procs */
    size_t n_procs;
    char *cpu_dir, *cpuset_dir; /* NULL: there is no such controller */
    bool v2;
    struct scope *scope; /* NULL: systemd was not asked */
};

struct cgroup_hierarchy {
    char *mount_point, *device;
    char *own;         /* our own cgroup in it, seen from the mount point: "/", "/a/b" */
    char *controllers; /* "cpu,cpuacct", "name=systemd"; "" in v2 */
    bool v2;
};
struct cgroup_hierarchies {
    struct cgroup_hierarchy v[CGROUP_HIERARCHIES_MAX];
    size_t n;
};
/* Adds those that a cgroup of ours consists of: in hybrid mode only v1's. For AUTO(), also after a
 * failure. */
int cgroup_find(const char *proc, struct cgroup_hierarchies *ret, struct err *err);
void cgroup_hierarchies_release_auto(struct cgroup_hierarchies *h);
bool cgroup_has_controller(const struct cgroup_hierarchy *h, const char *name);

/* The path in plain words: "/a/b" absolute, "a/b" below our own; systemd's form expanded. Caller
 * frees. */
int cgroup_path_expand(const char *path, char **ret, struct err *err);
bool cgroup_path_is_systemd(const char *path);
/* Of "slice:prefix:name", which it has to be. Caller frees both, also after a failure. */
int cgroup_unit_of(const char *path, char **ret_slice, char **ret_unit, struct err *err);

int cgroup_current_on(const char *proc, struct cgroup **ret, struct err *err);
int cgroup_make_on(struct ctx *ctx, const struct cgroup_host *host, const char *path,
                   struct ledger *ledger, struct cgroup **ret, struct err *err);
