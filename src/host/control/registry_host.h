/* registry_host.h - what the registry needs from the host besides VM and guest: files, processes,
 * cgroups, stdio. One ops table, so that tests and the simulation have a host without an OS. The
 * entries mean what the functions of the same name in host/own and host/io say. */
#pragma once
#include "host/files/blockimage.h"
#include "host/files/emptydir.h"
#include "host/files/pause.h"
#include "host/files/rootfs.h"
#include "host/files/scratch.h"
#include "host/files/tree.h"
#include "host/io/io.h"
#include "host/jail/anchor.h"
#include "host/jail/cgroup.h"
#include "host/jail/oom.h"
#include "host/jail/turn.h"
#include <stdint.h>

struct network_host;
struct pci_function;

struct registry_host {
    const struct network_host *network; /* NULL: pods have loopback only */

    /* base/clock_step.h; NULL: nobody sets this clock. */
    int (*clock_open)(struct err *err);
    int (*clock_wait)(struct ctx *ctx, int fd, struct err *err);

    /* NULL: this host gives none. */
    int (*pci_find)(const char *name, struct pci_function *ret, struct err *err);
    /* NULL: any number of VMs may start at a time. */
    int (*turn_take)(struct ctx *ctx, const char *path, unsigned n, struct turn **ret,
                     struct err *err);
    void (*turn_give)(struct turn *t);

    int (*rootfs_open)(struct ctx *ctx, const struct rootfs_mount *mounts, size_t n,
                       const char *root_path, unsigned how, struct rootfs *ret, struct err *err);
    int (*pause_open)(struct ctx *ctx, int *ret_fd, struct err *err);
    int (*tree_open)(struct ctx *ctx, const char *path, const struct tree_opts *opts,
                     struct tree *ret, struct err *err);
    int (*emptydir_look)(struct ctx *ctx, const char *dir, const char *path, struct emptydir *ret,
                         struct err *err);
    int (*blockimage_open)(struct ctx *ctx, const char *path, enum blockimage_kind kind,
                           bool read_only, int *ret_fd, struct err *err);
    int (*blockimage_open_number)(struct ctx *ctx, uint32_t major, uint32_t minor, bool read_only,
                                  int *ret_fd, struct err *err);
    int (*scratch_make)(struct ctx *ctx, const struct scratch_opts *opts, struct scratch **ret,
                        struct err *err);
    int (*scratch_room)(struct ctx *ctx, const char *dir, uint32_t free_mib, struct err *err);
    int (*scratch_fd)(const struct scratch *s);
    int (*scratch_remove)(struct ctx *ctx, struct scratch *s, struct err *err);
    void (*scratch_free)(struct scratch *s);

    int (*cgroup_make)(const char *path, struct ledger *ledger, struct cgroup **ret,
                       struct err *err);
    int (*cgroup_join)(struct cgroup *c, pid_t pid, struct err *err);
    int (*cgroup_set_cpu)(struct cgroup *c, uint64_t quota, uint64_t period, uint64_t shares,
                          struct err *err);
    int (*cgroup_remove)(struct cgroup *c, struct err *err);
    void (*cgroup_free)(struct cgroup *c);
    int (*oom_score_adj_set)(const struct ctx *ctx, pid_t pid, int adj,
                             struct err *err); /* NULL: left as it is */

    int (*anchor_spawn)(struct ctx *ctx, const struct anchor_opts *o, struct anchor **ret,
                        struct err *err);
    pid_t (*anchor_pid)(const struct anchor *a);
    int (*anchor_wait)(struct ctx *ctx, struct anchor *a, bool *ret_by_us, struct err *err);
    void (*anchor_end)(struct anchor *a);
    void (*anchor_free)(struct anchor *a);

    int (*io_open)(struct ctx *ctx, struct loop *loop, const struct io_spec *spec, struct io **ret,
                   struct err *err);
    void (*io_attach)(struct io *io, struct stream *in, struct stream *out, struct stream *err);
    bool (*io_wants)(const struct io *io, int fd);
    int (*io_drain)(struct ctx *ctx, struct io *io, struct err *err);
    void (*io_close_stdin)(struct io *io);
    void (*io_close)(struct io *io);
    uint64_t (*io_lost_bytes)(const struct io *io); /* NULL: none are */
    void (*io_free)(struct io *io);
};
extern const struct registry_host registry_host_linux;
