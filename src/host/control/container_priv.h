/* container_priv.h - the inside of a container, for container*.c and its tests. */
#pragma once
#include "base/bucket.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fiber.h"
#include "base/fsm.h"
#include "base/gate.h"
#include "base/str.h"
#include "host/config/config.h"
#include "host/control/container.h"
#include "host/control/pod.h"
#include "host/control/registry.h"
#include "host/control/vm.h"
#include "host/files/rootfs.h"
#include "host/files/tree.h"
#include "oci/spec.h"

struct anchor;
struct cgroup;
struct guest_disk;
struct guest_listed;
struct hooks;
struct plan9_share;
struct scsi_disk;

/* Every wait of this controller that no caller bounds has its limit here. */
#define CONTAINER_EXECS_LIMIT (15 * NS_PER_S)       /* execs, after their init */
#define CONTAINER_EXECS_KILL_LIMIT (5 * NS_PER_S)   /* for the guest to signal them */
#define CONTAINER_LOST_LIMIT (50 * NS_PER_MS)       /* execs, after their VM */
#define CONTAINER_LOST_EXECS_LIMIT (20 * NS_PER_MS) /* the same, after output was drained */
#define CONTAINER_OOM_LIMIT NS_PER_S                /* the guest's report of OOM, after the exit */
#define CONTAINER_OOM_PAUSE (100 * NS_PER_MS)       /* at least, between two of them */
#define CONTAINER_OOM_BURST 5                       /* events at once; then */
#define CONTAINER_OOM_EVERY_S 10                    /* one, and the others are counted */
#define CONTAINER_SHARE_LIMIT (60 * NS_PER_S)       /* for VM and guest to add one share */
#define CONTAINER_DEVICE_LIMIT (90 * NS_PER_S)      /* the same for one PCI device and driver */
#define CONTAINER_HOOK_LIMIT (30 * NS_PER_S)        /* for a hook without a timeout of its own */
#define CONTAINER_LAYERS_LIMIT (120 * NS_PER_S) /* images of its layers: layer_images = always */
#define CONTAINER_UNDO_LIMIT (60 * NS_PER_S)    /* rolling back a failed create */
/* For a create, or a sandbox's start, with the wait for a turn. Whatever hangs: a path of the
 * client's, the boot, QEMU, the guest. containerd sets no limit. */
#define CONTAINER_CREATE_LIMIT (300 * NS_PER_S + VM_TURN_LIMIT)
#define CONTAINER_EXEC_ID_MAX 79
#define CONTAINER_EXECS_MAX 1024

enum container_event {
    CONTAINER_EV_CREATED,
    CONTAINER_EV_CREATE_FAILED,
    CONTAINER_EV_STARTED,
    CONTAINER_EV_PAUSED,
    CONTAINER_EV_RESUMED,
    CONTAINER_EV_EXITED,
    CONTAINER_EV_COUNT
};

struct container {
    struct container_parts p;
    unsigned refs;
    struct registry *r;       /* borrows */
    char *log_name, *log_dir; /* as the CRI calls it, where it keeps its output; NULL: no CRI */
    char *log_uri; /* its stdout, without what a log driver is given: that may be a secret */
    enum spec_kind kind;
    struct gate gate;
    bool no_writable_shares; /* an annotation says so */
    bool privileged;         /* document_opts.privileged */
    bool own_pids;           /* a pid namespace of its own: its end ends them all */
    /* Never started, and its execs end first: with this status, and the guest is asked to. */
    bool ending, end_ask;
    uint32_t end_status;
    struct process **execs; /* oldest first */
    size_t n_execs, execs_cap;
    struct waitq changed;
    char *last_stats; /* as text: the tree of a hostile guest takes 30 times as much */
    struct guest_listed *last_list; /* its processes, as the guest last reported them; or NULL */
    size_t n_last_list;
    bool list_failed;       /* since then; logged */
    uint64_t scratch_bytes; /* on the scratch disk, when last asked; 0: not known */
    uint32_t scratch_quota_mib;

    /* What is to be released, in reverse order. */
    enum { ROOT_DISCARDED, ROOT_KEPT, ROOT_READ_ONLY } root_writes; /* from Create on */
    struct holding {
        enum { HOLD_SHARE, HOLD_DISK, HOLD_DEVICE } kind;
        uint64_t id; /* the reservation */
    } * holdings;    /* of its root file system, then of its mounts, then PCI devices */
    size_t n_holdings, holdings_cap;
    char *bundle_path, *root_path, *scratch_path; /* in the guest */
    struct strv layers;                           /* in the guest, topmost first */
    bool combined;
    struct strv unbuilt; /* layers that are to become images once it runs */
    struct cgroup *cgroup;
    struct anchor *anchor;
    bool anchor_watched, oom_watched; /* by a fiber */
    uint64_t oom_wait_id;             /* guest.h */
    struct bucket oom_rate;           /* of events */
    uint64_t oom_untold;              /* beyond that rate */
    bool anchor_lost;                 /* killed from outside */
    struct hooks *hooks;              /* of its spec; NULL: none */
    bool hooks_begun;                 /* and those of poststop have not */
};

/* Without ids and pod yet. */
struct container *container_new(struct registry *r);
/* Inside the gate: releases what the container holds. Repeated, it continues at the step that
 * failed. */
int container_release(struct ctx *ctx, struct container *c, struct err *err);
bool container_has_running_execs(const struct container *c);
void container_push(struct container *c, unsigned event_kind); /* unless it is hidden */

/* container_release.c: what it holds of the VM until container_release. Each waits for VM and
 * guest, bounded; the caller frees *ret_path, its path or name in the guest. */
int container_share(struct ctx *ctx, struct container *c, const struct plan9_share *share,
                    char **ret_path, struct err *err);
/* A disk, in two steps: the guest looks for one while the next is attached. */
int container_attach(struct ctx *ctx, struct container *c, const struct scsi_disk *disk,
                     const struct guest_disk *mount, uint64_t *ret_id, struct err *err);
int container_mount(struct ctx *ctx, struct container *c, uint64_t disk, char **ret_path,
                    struct err *err);
int container_add_device(struct ctx *ctx, struct container *c, const char *address, char **ret_path,
                         struct err *err);
int container_release_holdings(struct ctx *ctx, struct container *c, struct err *err);
/* ids, and those under which the VMM makes files before it gives them away: unmapped it cannot.
 * Caller releases *ret. */
int container_share_ids(const struct container *c, const struct idmap *ids, struct idmap *ret,
                        struct err *err);

/* What of the host a container is to see: opened before its VM is there, shared when it is. The
 * root file system (container_rootfs.c): */
struct root {
    struct rootfs fs;
    const struct container_create *cc; /* borrowed */
    bool shared;                       /* it is the root itself: nothing is combined with it */
    bool none;                         /* it has no files: its process only holds the pod */

    /* of the fiber that combines: */
    struct ctx *ctx;
    struct container *c;
    struct fibers fibers;
    int ret;
    struct err err;
};
int root_open(struct ctx *ctx, struct container *c, const struct spec *spec,
              const struct container_create *cc, enum config_rootfs writes, struct root *f,
              struct err *err);
/* Its layers are combined meanwhile; after success root_wait must be called before release. */
int root_share(struct ctx *ctx, struct container *c, struct root *f, struct err *err);
int root_wait(struct container *c, struct root *f, struct err *err);
void root_release(struct root *f);

/* Its mounts and devices (container_mounts.c): */
struct mounts {
    struct mount_entry {
        enum { MOUNT_SHARE, MOUNT_DISK, MOUNT_DEVICE } kind;
        json_t *json; /* of the spec: an entry of mounts, or of linux.devices; borrows */
        char *source;
        bool read_only, recursive;
        bool raw;         /* a disk: not mounted */
        struct idmap ids; /* of a share, if other than on the host */
        struct tree tree; /* of a share */
        int disk;         /* else */
        /* Of a volume (pod_take_disk): borrows from the pod; and which part of it, owned. */
        const struct volumes_record *volume;
        char *below;
    } * v;
    size_t n, cap;
};
int mounts_open(struct ctx *ctx, struct container *c, struct spec *spec, struct mounts *m,
                struct err *err);
int mounts_share(struct ctx *ctx, struct container *c, struct mounts *m, struct err *err);
void mounts_release(struct mounts *m);

/* container_hooks.c: each waits for the hooks of the client, bounded. Those of poststop run once,
 * and only if those of create began. */
int container_run_create_hooks(struct ctx *ctx, struct container *c, struct err *err);
void container_run_poststart_hooks(struct ctx *ctx, struct container *c);
void container_run_poststop_hooks(struct ctx *ctx, struct container *c);

/* container_create.c: the fiber that awaits the end of its anchor. */
void container_watch_anchor(struct container *c);

/* container_end.c */
/* The fiber that awaits what the guest says of OOM. */
void container_watch_oom(struct container *c);
/* Ends a container whose init was never started and so has no watcher: its execs first, and the
 * exit is published. ask: also asks the guest to end the execs; else they run on. Never waits. */
void container_end_created(struct container *c, uint32_t status, bool ask);
/* What still runs of a container that is being deleted has a moment to end by itself; then its end
 * is published, so that no exit comes after the delete. */
void container_settle_execs(struct ctx *ctx, struct container *c);
