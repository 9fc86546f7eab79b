/* registry_priv.h - the inside of the registry, its containers and processes, for registry*.c,
 * container*.c, process*.c and their tests.
 *
 * Who holds what: the registry its VM and the containers; a container its processes. All are
 * counted, since fibers that wait outlive a delete. The VM is there at least as long as a container
 * is in the list. */
#pragma once
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fiber.h"
#include "base/fsm.h"
#include "base/gate.h"
#include "base/list.h"
#include "base/str.h"
#include "base/timeline.h"
#include "host/config/config.h"
#include "host/config/sizing.h"
#include "host/control/container.h"
#include "host/control/events.h"
#include "host/control/registry.h"
#include "host/control/vm.h"
#include "host/files/blockimage.h"
#include "host/files/emptydir.h"
#include "host/files/rootfs.h"
#include "host/files/scratch.h"
#include "host/files/tree.h"
#include "host/io/io.h"
#include "host/jail/anchor.h"
#include "host/jail/cgroup.h"
#include "oci/spec.h"

struct network;
struct plan9;
struct scsi;
struct scsi_disk;
struct guest_disk;
struct vpci;

/* Every wait that no caller bounds has its limit here. */
#define PROCESS_DRAIN_LIMIT (10 * NS_PER_S)       /* output, after the guest told the exit */
#define PROCESS_EXECS_LIMIT (15 * NS_PER_S)       /* execs, after their container's init */
#define PROCESS_OOM_LIMIT NS_PER_S                /* the guest's word on OOM, after the exit */
#define PROCESS_KILL_LIMIT (20 * NS_PER_S)        /* for the guest to take a SIGKILL */
#define PROCESS_LOST_LIMIT (50 * NS_PER_MS)       /* execs, after their VM */
#define PROCESS_LOST_DRAIN_LIMIT (20 * NS_PER_MS) /* what is in our sockets already */
#define CONTAINER_OOM_PAUSE (100 * NS_PER_MS)     /* at least, between two of the guest's words */
#define CONTAINER_OOM_BURST 5                     /* events at once; then */
#define CONTAINER_OOM_EVERY_S 10                  /* one, and the others are counted */
#define CONTAINER_SHARE_LIMIT (60 * NS_PER_S)     /* for VM and guest to take one share */
#define CONTAINER_DEVICE_LIMIT (90 * NS_PER_S)    /* the same for one PCI device and its driver */
#define CONTAINER_UNDO_LIMIT (60 * NS_PER_S)      /* taking back a failed create */
/* For a create, or a sandbox's start, with the wait for a turn. Whatever hangs: a path of the
 * client's, the boot, QEMU, the guest. containerd sets no limit. */
#define REGISTRY_CREATE_LIMIT (300 * NS_PER_S + VM_TURN_LIMIT)
#define REGISTRY_ID_MAX 128
#define CONTAINER_EXEC_ID_MAX 79
#define CONTAINER_EXECS_MAX 1024

/* --- process --- */

enum process_state {
    PROCESS_ST_NOT_CREATED,
    PROCESS_ST_CREATED,
    PROCESS_ST_RUNNING,
    PROCESS_ST_TERMINATED,
    PROCESS_ST_COUNT
};
enum process_event {
    PROCESS_EV_CREATED,
    PROCESS_EV_STARTED,
    PROCESS_EV_ENDED, /* exit, failed start, kill before start, delete before start */
    PROCESS_EV_COUNT
};

struct process {
    struct list node; /* in its container's execs; init is in none */
    unsigned refs;
    struct container *c; /* NULL once it was deleted */
    struct registry *r;
    char *container_id, *bundle, *exec_id, *in, *out, *err;
    json_t *oci_process; /* of an exec */
    bool terminal;
    bool hidden; /* as its container */
    enum process_state state;
    bool starting;
    bool ending;              /* never started, and its execs go first */
    bool draining;            /* its io is in use */
    uint64_t pending_signals; /* bit n-1; sent when the start is through */
    bool stdin_closed;
    uint16_t rows, cols; /* asked for before the start */
    uint32_t guest_pid, pid;
    uint32_t exit_status;
    uint64_t exited_wall_ns;
    struct io *io;
    struct latch exited;
    unsigned kill_round; /* of its container; the last in which it got the signal */
    bool killed;         /* by a SIGKILL that the guest took: its end is awaited */
    bool gone;           /* deleted: waiters have nothing to wait for */
};

struct process *process_new(struct container *c, const char *exec_id, const char *in,
                            const char *out, const char *err, bool terminal);
void process_unref(struct process *p);
AUTO_DEFINE(struct process *, process_unref);
/* From its container; closes its stdio, wakes its waiters. */
void process_forget(struct process *p);
bool process_is_init(const struct process *p);
int process_open_io(struct ctx *ctx, struct process *p, struct err *err);
/* Asks the guest; Running afterwards, told, watched. A failure ends it. */
int process_start(struct ctx *ctx, struct process *p, struct err *err);
/* The end, from whatever knowledge: once. Publishes exit if tell. */
void process_end(struct process *p, uint32_t status, bool tell);
/* Of an init that was never started, which nobody watches: behind its execs, and told. ask: they
 * run on in the guest unless it is told. Never waits. */
void process_end_created(struct process *p, uint32_t status, bool ask);
/* What still runs of a container that is being deleted has a moment to end by itself; then its end
 * is told, so that no exit comes behind the delete. */
void process_settle_execs(struct ctx *ctx, struct container *c);
int process_signal(struct ctx *ctx, struct process *p, uint32_t signo, struct err *err);

/* --- container --- */

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
    struct list node; /* in the registry */
    unsigned refs;
    struct registry *r;
    char *id, *pod_id, *bundle;
    char *log_name,
        *log_dir;  /* as the CRI calls it; where it keeps its pod's output; NULL: no CRI */
    char *log_uri; /* its stdout, without what a log driver is told: that may be a secret */
    enum spec_kind kind;
    struct gate gate;
    enum container_state state;
    bool listed;
    bool hidden;             /* a sandbox's own: clients do not see it, nothing of it is told */
    bool asked_to_end;       /* by a sandbox that is being stopped */
    bool shares_empty_dirs;  /* they are the host's, not the VM's; of a pod: of all in it */
    bool no_writable_shares; /* an annotation says so */
    bool privileged;         /* document_opts.privileged */
    struct spec_limits limits;
    bool own_pids;        /* a pid namespace of its own: its end ends them all */
    struct process *init; /* NULL until create got that far */
    struct list execs;
    size_t n_execs;
    unsigned kill_round;
    size_t starting; /* execs inside process_start */
    struct waitq changed;
    uint32_t pid;
    json_t *last_stats;
    uint64_t scratch_bytes; /* on the scratch disk, when last asked; 0: not known */
    uint32_t scratch_quota_mib;

    /* What is to be taken back, in reverse order. */
    bool writes_host; /* a share or disk of it is: what the guest holds back must be written */
    bool root_shared;
    enum { ROOT_DISCARDED, ROOT_KEPT, ROOT_READ_ONLY } root_writes; /* from Create on */
    uint64_t root_share;
    uint64_t *shares;
    size_t n_shares, shares_cap;
    uint64_t *disks; /* of its root file system, then of its mounts and devices */
    size_t n_disks, disks_cap;
    uint64_t *devices; /* reservations of PCI devices */
    size_t n_devices;
    char *bundle_path, *root_path, *scratch_path; /* in the guest */
    struct strv layers;                           /* in the guest, topmost first */
    bool combined, in_guest;
    char *netns; /* of the pod on the host; NULL: none, or another container's business */
    struct network *network; /* of the pod, from its start on */
    struct cgroup *cgroup;
    struct anchor *anchor;
    char *anchor_name;                /* ledger_process_name(); NULL: not noted for anybody */
    bool anchor_watched, oom_watched; /* by a fiber */
    bool anchor_lost;                 /* killed by somebody else */
    bool forsaken;                    /* containerd has given it up: nothing of it is told */
};

struct container *container_new(struct registry *r, const char *id, const char *bundle);
struct container *container_ref(struct container *c);
void container_unref(struct container *c);
AUTO_DEFINE(struct container *, container_unref);
/* Inside the gate. Leaves what it made for container_release. given: changed; NULL: the bundle's.
 */
int container_create(struct ctx *ctx, struct container *c, const struct registry_create *rc,
                     struct spec *given, struct err *err);
/* What of the host a container is to see: opened before its VM is there, shared when it is. The
 * root file system (container_rootfs.c): */
struct root {
    struct rootfs fs;
    const struct registry_create *rc; /* borrowed */
    bool shared;                      /* it is the root itself: nothing is combined with it */

    /* of the fiber that combines: */
    struct ctx *ctx;
    struct container *c;
    struct group fibers;
    int ret;
    struct err err;
};
int root_open(struct ctx *ctx, struct container *c, const struct spec *spec,
              const struct registry_create *rc, enum config_rootfs writes, struct root *f,
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
        struct tree tree; /* of a share */
        int disk;         /* else */
    } * v;
    size_t n, cap;
};
int mounts_open(struct ctx *ctx, struct container *c, struct spec *spec, struct mounts *m,
                struct err *err);
int mounts_share(struct ctx *ctx, struct container *c, struct mounts *m, struct err *err);
/* A disk of the VM that is the container's until container_release; the VM has been entered
 * (vm_enter). Caller frees *ret_path. */
int mounts_attach(struct ctx *ctx, struct container *c, const struct scsi_disk *disk,
                  const struct guest_disk *mount, char **ret_path, struct err *err);
void mounts_release(struct mounts *m);
/* container_volumes.c. *ret_local: it lives in the VM, and the mount says so now. */
int volumes_take(struct ctx *ctx, struct container *c, const char *source, json_t *mount,
                 bool *ret_local, struct err *err);

/* All of it (container_files.c): */
struct files {
    struct root root;
    struct mounts mounts;
};
int files_open(struct ctx *ctx, struct container *c, struct spec *spec,
               const struct registry_create *rc, enum config_rootfs writes, struct files *f,
               struct err *err);
/* Waits for what it needs of the VM; the container's notes say what is to be taken back. */
int files_share(struct ctx *ctx, struct container *c, struct files *f, struct err *err);
void files_release(struct files *f);
/* A pod's first container, also one that clients do not see; NULL. */
struct container *container_find_sandbox(struct registry *r, const char *pod);
/* Takes back what there is; goes on where it stopped. */
int container_release(struct ctx *ctx, struct container *c, struct err *err);
/* container_devices.c: those it asks for, checked; into the VM, with how the guest names them; the
 * last one out again. */
int container_read_devices(struct container *c, const struct spec *spec, struct strv *ret,
                           struct err *err);
int container_add_devices(struct ctx *ctx, struct container *c, const struct strv *addresses,
                          struct strv *ret_places, struct err *err);
int container_remove_device(struct ctx *ctx, struct container *c, struct err *err);
/* When its anchor is there. */
void container_note_netns(struct container *c, const struct spec *spec);
/* Both do nothing for a pod's other containers. */
int container_attach_network(struct ctx *ctx, struct container *c, struct err *err);
int container_detach_network(struct ctx *ctx, struct container *c, struct err *err);
/* The VM is gone. Ends what nobody watches. */
void container_vm_died(struct container *c, bool killed);
bool container_has_running_execs(const struct container *c);
void container_watch_oom(struct container *c);
void container_tell_oom(struct container *c); /* if it still runs */
/* Waits until those that container_watch_oom started know that it is over. */
void container_settle_oom(struct container *c);

/* --- registry --- */

struct registry {
    struct registry_opts o;
    char *ns, *id;
    struct list containers;
    size_t n_containers;
    struct vm *vm;           /* NULL before the first create, and after the last delete */
    struct waitq changed;    /* woken with its containers and its VM */
    uint64_t note;           /* in the VM's ledger, of the file that names our address; 0: none */
    struct list volumes;     /* of its pods (container_volumes.c) */
    struct sandbox *sandbox; /* made on purpose; NULL if none was */
    struct group fibers;
    struct group drivers;
    uint64_t lost_bytes; /* of output, over all processes that are gone */
    bool closing;
    bool forsook; /* containerd has given up a container, and has not come with a new one */
};

/* registry_vm.c. Opens a VM if there is none, and waits until things can be made for it; it boots
 * meanwhile. spec: whose limits size it. */
int registry_need_vm(struct ctx *ctx, struct registry *r, const struct spec *spec,
                     const struct annotations *options, struct err *err);
/* Closes it if nobody needs it any more. Never waits. */
void registry_drop_vm(struct registry *r);
/* The list of containers has changed. Never waits. */
void registry_update_note(struct registry *r);
void volumes_release(struct registry *r);
void container_note_anchor(struct container *c); /* forsaken.c */
int registry_check_id(const char *what, const char *id, size_t max, struct err *err);
/* A new one, in the list. Caller unrefs. */
struct container *registry_add(struct registry *r, const char *id, const char *bundle);
/* Of a create that failed, inside its gate: everything is taken back, whether the client is still
 * there or not; what cannot be stays listed. */
void registry_undo(struct registry *r, struct container *c, struct err *err);
/* Out of the list; the VM ends if it was the last. */
void registry_drop(struct registry *r, struct container *c);
