/* vmm.h - THE BACKEND SEAM: one VM, whatever runs it. struct vm_doc describes it in neutral words;
 * a backend (qemu, fake, later hcs) makes it real behind one ops table.
 *
 * Life: new (backend's own) -> create -> start -> … exit … -> release -> free. Calls with ctx may
 * wait until it ends; the others never wait. terminate works at any moment, from any fiber, also
 * while create or start is under way, which then fails with ERR_UNAVAILABLE. release cleans up
 * everything that the VM owned; repeated after a failure, it continues at the step that failed. */
#pragma once
#include "base/idmap.h"
#include "base/span.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ctx;
struct err;
struct ledger;
struct saved;
struct sbuf;
struct stream;
struct vmm;
struct vmm_listener;

enum vm_accel { VM_ACCEL_AUTO, VM_ACCEL_KVM, VM_ACCEL_TCG };

/* What a pod may choose of its VM beyond its size; 0 or empty: nothing. */
#define VM_NUMA_MAX 16
#define VM_NUMA_ANY 255 /* host_node: wherever there is room */
struct vm_shape {
    /* A VM with one of these starts cold: no template has it. */
    bool backed; /* its memory is taken from the host at the start, and it does not grow */
    uint32_t low_mmio_mib, high_mmio_mib; /* for PCI devices, below and above 4 GiB */
    const char *kernel_args;              /* after our own */
    uint64_t host_nodes;                  /* bit N: memory is preferably on NUMA node N */
    unsigned n_numa;                      /* nodes of the guest */
    struct vm_numa {
        uint32_t cpus, memory_mib, host_node;
    } numa[VM_NUMA_MAX];
    uint32_t disk_iops, disk_bytes_per_s; /* of all disks together */
};

/* What the VM is to be. Strings are borrowed for the duration of create, which copies. */
struct vm_doc {
    const char *id;       /* "<sandbox>@vm" */
    const char *uuid;     /* for people and tools; NULL: none */
    const char *run_dir;  /* exists, ours alone; holds the ledger */
    const char *vmm_path; /* qemu-system-x86_64; NULL: found in PATH */
    const char *kernel;   /* ELF vmlinux */
    const char *initrd;
    uint32_t memory_mib;
    uint32_t max_memory_mib; /* it can grow to this while it runs; 0: it cannot */
    uint32_t cpus, max_cpus; /* max_cpus >= cpus */
    enum vm_accel accel;
    bool allow_emulation;         /* AUTO may fall back to TCG */
    bool vsock;                   /* the agent's link is kernel vsock, not TCP on a tap */
    bool nested;                  /* the guest may run VMs itself: it sees svm or vmx */
    uint32_t code_cache_mib;      /* of translated code, then; 0: as much as a start needs */
    uint32_t uid_base, uid_count; /* the VM's own uid is taken from this range */
    uint32_t scsi_controllers;    /* present at boot, 0 … 4 */
    uint32_t pci_ports;           /* for pci_add; present at boot */
    /* An empty disk of this size is in slot 0:0 from the beginning, and the first scsi_add of an
     * image of that size to that slot only fills it: the guest, or the template it is a clone of,
     * has found the disk already. Until then nothing written to it is kept. 0: none. */
    uint32_t disk_mib;
    struct vm_shape shape;
    const char *agent_log_level; /* for gcs; NULL: info */
    /* Where saved VMs are kept. One that fits is cloned: what comes up is the same VM, sooner.
     * NULL: never. */
    const char *template_dir;
    /* To prove a template before it is published: the VM is a clone of this draft or does not
     * start, and its agent repeats what the template has logged. NULL: as above. */
    const char *template_draft;
    /* Where all is written down that the VM owns; borrows until release. NULL: one of its own in
     * run_dir, which goes with the VM. */
    struct ledger *ledger;
    /* The VMM's process exists and has not yet run: the place to move it into a cgroup. A failure
     * ends it. May be NULL; on_pid_arg is borrowed until release. */
    int (*on_pid)(void *arg, int pid, struct err *err);
    void *on_pid_arg;
};

/* How far a boot has come. The order is the order of a boot. */
enum vm_stage {
    VM_STAGE_NONE,
    VM_STAGE_SPAWNED,    /* the VMM process runs */
    VM_STAGE_KERNEL,     /* the guest kernel printed its first line */
    VM_STAGE_INIT,       /* PID 1 runs */
    VM_STAGE_AGENT,      /* the agent dialled the bridge */
    VM_STAGE_NEGOTIATED, /* and speaks our protocol */
    VM_STAGE_COUNT
};
const char *vm_stage_name(enum vm_stage s); /* "spawned", … */

/* How it ended, from host knowledge alone. */
struct vmm_exit {
    bool requested;   /* we asked for it: quit, terminate */
    bool powered_off; /* the guest shut down in an orderly way */
    bool oom;         /* the host's OOM killer */
    bool panicked;    /* the guest's kernel */
    int status;       /* as from waitpid() */
    uint64_t at_wall_ns;
    char why[512]; /* for people; "" if requested */
    enum reason reason;
};

struct vmm_stats {
    uint64_t cpu_ns;
    uint64_t rss_bytes;    /* of the VMM process */
    uint64_t memory_bytes; /* what the guest was given */
};

struct vmm_info {
    bool emulated;
    int pid;             /* 0 if not running */
    const char *backend; /* "qemu" */
    char version[64];    /* of the VMM */
    bool clone;          /* of a template */
    bool want_template;  /* there was none that fits: one should be built */
    char cold_why[160];  /* why it was not cloned; "" if it was, or was not wanted */
    char trouble[164];   /* the guest's kernel on an unstable clock or a stuck CPU; "": nothing */
};

/* How a template is built. prove is called when it is complete, with the draft that a VM can be
 * cloned from (vm_doc.template_draft); if it fails, there is no template. */
struct vmm_template_opts {
    bool wait;  /* for another builder, else ERR_EXISTS */
    bool again; /* also if there is a good one */
    int (*prove)(struct ctx *ctx, void *arg, const char *draft, struct err *err);
    void *arg;
};

struct scsi_slot {
    uint8_t controller, lun;
};
struct vmm_nic {
    const char *id; /* ours; names the device for nic_remove */
    /* Of each queue, borrowed: the tap, and a device of vhost-net. vhost NULL: the VMM itself moves
     * the packets. */
    const int *taps, *vhost;
    unsigned queues; /* at least 1 */
    uint8_t mac[6];
    uint16_t mtu;
};

/* A directory of the host whose mounts below it are to show in a share as they come and go. */
struct vmm_follow {
    const char *source; /* its real path */
    uint64_t mount;     /* the id of the mount that it is in */
    bool late;          /* not those that are there already */
    struct idmap ids;   /* as which their files are seen; empty: as they are */
};

struct vmm_ops {
    int (*create)(struct ctx *ctx, struct vmm *v, const struct vm_doc *doc, struct err *err);
    /* Returns when the VM runs; its guest may still be far from ready. */
    int (*start)(struct ctx *ctx, struct vmm *v, struct err *err);
    /* Kills at once; repeatable; before create too. */
    void (*terminate)(struct vmm *v);
    /* Asks the VMM itself to end (QMP quit) and returns when it was asked. */
    int (*quit)(struct ctx *ctx, struct vmm *v, struct err *err);
    /* Until the VMM is gone. Never started: ERR_STATE. Many fibers may wait. */
    int (*wait)(struct ctx *ctx, struct vmm *v, struct vmm_exit *ret, struct err *err);
    int (*release)(struct ctx *ctx, struct vmm *v, struct err *err);
    void (*free)(struct vmm *v);

    /* A VM that runs and on which no call works, for saved.h. Reading: into a new object, instead
     * of create and start; ledger as in vm_doc. NULL: it cannot be saved. */
    void (*saved)(struct vmm *v, struct saved *s, struct ledger *ledger);

    /* Guest-dialled ports: open before the guest may dial; accept exactly one connection each.
     * A port is never opened twice in a VM's life (ERR_EXISTS). listen needs create. */
    int (*listen)(struct vmm *v, uint32_t port, struct vmm_listener **ret, struct err *err);
    /* Takes the listener in every case. Caller frees *ret. VM gone: ERR_UNAVAILABLE. */
    int (*accept)(struct ctx *ctx, struct vmm_listener *l, struct stream **ret, struct err *err);
    void (*unlisten)(struct vmm_listener *l);

    int (*stats)(struct ctx *ctx, struct vmm *v, struct vmm_stats *ret, struct err *err);
    void (*info)(struct vmm *v, struct vmm_info *ret);
    /* The console's last lines, made printable, at most max bytes. */
    void (*console_tail)(struct vmm *v, size_t max, struct sbuf *out);

    /* Devices. NULL entries answer ERR_UNIMPLEMENTED (vmm_unsupported). */
    int (*scsi_add)(struct ctx *ctx, struct vmm *v, struct scsi_slot slot, int image_fd,
                    bool read_only, struct err *err);
    int (*scsi_remove)(struct ctx *ctx, struct vmm *v, struct scsi_slot slot, struct err *err);
    /* The image has so many bytes now: the guest sees them when it looks again. */
    int (*scsi_resize)(struct ctx *ctx, struct vmm *v, struct scsi_slot slot, uint64_t bytes,
                       struct err *err);
    int (*nic_add)(struct ctx *ctx, struct vmm *v, const struct vmm_nic *nic, struct err *err);
    int (*nic_remove)(struct ctx *ctx, struct vmm *v, const char *id, struct err *err);
    /* A PCI function of the host ("0000:03:00.0"), or one that the VMM emulates, for tests
     * ("test:edu", "test:nvme"). id is ours, never used twice. *ret_place: how the guest finds it;
     * caller frees. If the guest does not release a device, that is logged, and the device stays in
     * the VM until the VM ends. */
    int (*pci_add)(struct ctx *ctx, struct vmm *v, const char *address, const char *id,
                   char **ret_place, struct err *err);
    int (*pci_remove)(struct ctx *ctx, struct vmm *v, const char *id, struct err *err);
    int (*share_add)(struct ctx *ctx, struct vmm *v, const char *name, int tree_fd, bool read_only,
                     struct err *err);
    /* What is mounted below the directory now shows in the share when this returns, later mounts
     * soon after they are made. read_only holds for all of them. Ends with share_remove. */
    int (*share_follow)(struct ctx *ctx, struct vmm *v, const char *name,
                        const struct vmm_follow *what, bool read_only, struct err *err);
    int (*share_remove)(struct ctx *ctx, struct vmm *v, const char *name, struct err *err);
    /* The guest's clock was compared with ours. why: it runs wrong, so what the VM was started from
     * must not be used again. NULL: it is right. May be NULL. */
    void (*judge)(struct vmm *v, const char *why);
    int (*set_memory)(struct ctx *ctx, struct vmm *v, uint32_t mib, struct err *err);
    int (*set_cpus)(struct ctx *ctx, struct vmm *v, uint32_t cpus, struct err *err);
};

/* What a NULL entry of the ops table answers: -1 with ERR_UNIMPLEMENTED naming op. */
int vmm_unsupported(const char *op, struct err *err);
/* A VM that is gone, or its guest, has nothing left to undo: r, what the call to it returned,
 * becomes 0 and *err is cleared if it says ERR_UNAVAILABLE, unless it is ctx that has ended. */
int vmm_gone_is_done(int r, const struct ctx *ctx, struct err *err);

struct vmm {
    const struct vmm_ops *ops;
    struct timeline *timeline; /* borrows; may be NULL */
    /* Called at each new boot stage of the guest; the stage only rises. */
    void (*on_stage)(void *arg, enum vm_stage stage);
    void *on_stage_arg;
};
