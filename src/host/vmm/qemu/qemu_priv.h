/* qemu_priv.h - shared by qemu*.c. One struct qemu is a VM, one struct qemu_proc a QEMU process of
 * it: there are two, one after the other, when a first try with KVM fails and emulation is
 * allowed. */
#pragma once
#include "base/clock.h"
#include "base/ctx.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/fsm.h"
#include "base/gate.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/str.h"
#include "host/jail/cgroup_oom.h"
#include "host/jail/slots.h"
#include "host/template/template.h"
#include "host/vmm/qemu/accel.h"
#include "host/vmm/qemu/cmdline.h"
#include "host/vmm/qemu/console.h"
#include "host/vmm/qemu/qlink.h"
#include "host/vmm/qemu/qmp_client.h"
#include "host/vmm/vmm.h"
#include "proto/link.h"

#include <sys/types.h>

struct child;
struct ledger;
struct qemu;
struct saved;
struct stream;

#define QEMU_WORDS_KEEP 200
#define QEMU_WORDS_BETWEEN " / "
#define QEMU_WORDS_LINE 160
#define QEMU_GREETING_NS (UINT64_C(30) * 1000 * 1000 * 1000)
/* vCPUs that ran for so long without a byte on the console: KVM executes nothing. It is CPU time,
 * not time that passes: a busy host is slow, not broken. Where the host is a VM itself, time that
 * was stolen from it counts too; so this is a hundred times what a kernel needs. */
#define QEMU_PROOF_CPU_NS (UINT64_C(30) * 1000 * 1000 * 1000)
#define QEMU_DRAIN_NS (UINT64_C(200) * 1000 * 1000) /* after its end, for its last words */

/* What QEMU writes to its stderr: the last lines that may tell why it ended. Warnings do not, nor
 * do the registers that it prints after KVM has failed. */
struct qemu_words {
    char tail[QEMU_WORDS_KEEP + 1]; /* on one line */
    char line[QEMU_WORDS_LINE + 1]; /* not yet at its end */
    size_t line_len;
    char kvm_error[QEMU_WORDS_LINE + 1]; /* the first line that says that KVM failed; or "" */
};
void qemu_words_feed(const struct ctx *ctx, struct qemu_words *w, const char *data, size_t len);
/* On one line, without control characters. Takes an unfinished line in. Borrows. */
const char *qemu_words_last(const struct ctx *ctx, struct qemu_words *w);

struct qemu_proc {
    struct qemu *vm; /* borrows */
    struct child *child;
    struct qmp_client *qmp;
    struct stream *console, *errors;
    struct qemu_words words;
    struct cancel cancel; /* ends the readers */
    struct ctx ctx;
    struct fibers readers, watcher;
    struct list followers; /* qemu_follow.c */
    struct oom_watch oom;
    char shutdown_why[48]; /* "reason" of the last SHUTDOWN event */
    bool panicked;
    bool looking;            /* why it stopped */
    unsigned stops, resumed; /* how often */
    char stopped[24];   /* QEMU's status after a stop that lcow did not request; "": no such stop */
    char migration[24]; /* of the last MIGRATION event; "" before the first */
    struct log_rate io_errors;
    char given_up[256]; /* why we killed it ourselves; "" if we did not */
    enum reason given_up_reason;
    struct latch gone;
    struct vmm_exit exit; /* valid when gone */
};

/* For tests: other places to look for acceleration and devices than the host's own. */
struct qemu_test_env {
    const char *cpuinfo, *kvm;
    const char *pci_sys, *pci_dev; /* for PCI devices; NULL: the host's */
    uint64_t proof_cpu_ns;         /* vCPU time without output that condemns KVM; 0: as usual */
};

enum qemu_state {
    QEMU_NEW, /* a create that failed can be repeated */
    QEMU_CREATED,
    QEMU_STARTING,
    QEMU_RUNNING,
    QEMU_ENDED,
    QEMU_STATE_COUNT
};
enum qemu_event { QEMU_EV_CREATED, QEMU_EV_START, QEMU_EV_STARTED, QEMU_EV_ENDED, QEMU_EV_COUNT };

struct qemu {
    struct vmm vmm;
    struct loop *loop;
    struct ctx root, life; /* life has the VM's id, for what outlives a call */
    struct cancel life_cancel;
    const struct qemu_test_env *test_env; /* borrowed; NULL: the host's own */

    unsigned state; /* enum qemu_state */
    enum vm_stage stage;
    struct waitq stage_q;
    bool dying, quitting;
    struct list ops; /* calls that terminate must wake: struct qemu_op */
    struct waitq ops_q;
    struct list plugs; /* struct plug */
    struct gate controllers;
    unsigned n_controllers; /* of SCSI, that the process has */
    bool has_spare;         /* the disk of boot is there, and empty */
    bool has_iommu;         /* QEMU has the object that vfio devices share: iommufd */
    bool has_throttle;      /* … and that of disks with a limit */

    /* From create on. */
    struct vm_doc doc; /* strings owned by texts */
    struct strv texts;
    const char *program, *jail_dir, *uid_dir; /* of texts */
    struct accel_env accel_env;
    struct tsc_env tsc_env;
    struct accel_choice accel;
    int kernel_fd, initrd_fd;
    struct ledger *ledger;
    uint64_t jail_record, proc_record; /* 0: none */
    struct uid_slot uid;
    struct link_boot boot;
    struct qlink *link;
    struct template tpl;   /* to clone from; ram_fd is -1 if there is none */
    struct vm_doc tpl_doc; /* of template and clones; strings are doc's or constant */
    char tpl_key[TEMPLATE_KEY_SIZE];
    bool want_template;
    uint64_t restored_at; /* loop_now() when the restore of a clone was requested; 0: not yet */
    char cold_why[160];

    /* From start on. */
    enum qemu_form form;
    const struct template_draft *draft; /* of a template that is being built; borrowed */
    bool dialled;                       /* the guest has sent its token */
    uint64_t grown_bytes;               /* by virtio-mem, by QEMU's last event */
    bool ready;                         /* a template's agent waits for its token */
    uint64_t cpu_ids;                   /* bit N: the vCPU "cpu-N" was added and is there */
    bool proving;
    struct qemu_proc *proc;
    struct console console;
    char version[64];
    uint64_t greeted_at; /* loop_now(); 0: not yet */
    struct latch ended;
    struct vmm_exit exit;
};

/* A call that may wait: ends with its own ctx or with terminate. */
struct qemu_op {
    struct list node;
    struct cancel cancel;
    struct qemu *q;
};
struct ctx qemu_op_begin(struct ctx *ctx, struct qemu *q, struct qemu_op *op);
void qemu_op_end_auto(struct qemu_op *op);

/* qemu.c */
void qemu_raise_stage(struct qemu *q, enum vm_stage stage);

/* qemu_create.c */
int qemu_create(struct ctx *ctx, struct vmm *v, const struct vm_doc *doc, struct err *err);
/* Rolls back create; repeatable. No process of QEMU may run any more. */
int qemu_uncreate(struct ctx *ctx, struct qemu *q, struct err *err);
/* A copy that lasts as long as the document. */
const char *qemu_keep(struct qemu *q, const char *text);
/* What follows from its run_dir and id. */
int qemu_places(struct qemu *q, struct err *err);
struct qlink_opts qemu_link_opts(struct qemu *q);
/* What it had opened. Repeatable. */
void qemu_forget_doc(struct qemu *q);
/* Takes a record out of the ledger; 0: there is none. */
int qemu_forget(struct qemu *q, uint64_t *record, struct err *err);

/* qemu_proc.c */
int qemu_proc_spawn(struct ctx *ctx, struct qemu *q, struct qemu_proc **ret, struct err *err);
/* For qemu_save.c: one without child and streams; its monitor's options, without the stream; starts
 * its fibers. */
struct qemu_proc *qemu_proc_new(struct qemu *q);
struct qmp_client_opts qemu_qmp_opts(struct qemu_proc *p);
void qemu_proc_watch(struct qemu_proc *p);
/* Waits until its fibers are gone, then frees it; it must be gone or killed. */
int qemu_proc_drop(struct ctx *ctx, struct qemu_proc *p, struct err *err);
void qemu_proc_kill(struct qemu_proc *p);

/* version: "10.0.1". check: whether it can run VMs. */
bool qemu_version_is(const char *version, unsigned major, unsigned minor); /* or later */
int qemu_check_version(const char *program, const char *version, struct err *err);

/* qemu.c */
/* The process has ended; decides whether the VM has. */
void qemu_proc_ended(struct qemu *q, struct qemu_proc *p);

/* qemu_template.c - the way from a template to a VM. look: whether there is one, at create; never
 * fails, cold_why says why. */
/* What it can grow to, on this host. */
void qemu_cap_doc(struct vm_doc *doc);
void qemu_template_look(struct qemu *q);
int qemu_draft_open(struct qemu *q, struct err *err); /* the document's */
/* A clone's QEMU has ended, or was killed because it stopped by itself. If the template may be the
 * cause, that is recorded with the template. */
void qemu_clone_ended(struct qemu *q, struct qemu_proc *p);
void qemu_judge(struct vmm *v, const char *why);
int qemu_clone_restore(struct ctx *ctx, struct qemu *q, struct err *err);
struct qemu_host qemu_host_of(const struct qemu *q);
/* The lines of the key. Caller frees. */
char *qemu_template_identity(struct qemu *q);
bool qemu_has_templates(const struct qemu *q); /* its version is known */
/* qemu_size.c */
int qemu_set_memory(struct ctx *ctx, struct vmm *v, uint32_t mib, struct err *err);
/* DEVICE_DELETED came. */
void qemu_cpu_deleted(struct qemu *q, const char *device);
int qemu_set_cpus(struct ctx *ctx, struct vmm *v, uint32_t cpus, struct err *err);
/* What virtio-mem has to give for so much memory in all. */
uint64_t qemu_grow_bytes(const struct qemu *q, uint32_t mib);
/* The same for a start that is under way. */
int qemu_resize(struct ctx *ctx, struct qemu *q, struct err *err);

/* qemu_exit.c - fills p->exit from what is known. */
void qemu_exit_fill(struct qemu_proc *p, int status);

/* STOP or SUSPEND came: finds out why, and kills QEMU if lcow did not request it. Never waits. */
void qemu_stopped(struct qemu_proc *p);

/* From the text of /proc/PID/stat, or a thread's: the CPU time, and the process's memory in pages.
 */
int qemu_read_stat(const char *text, uint64_t *ret_ns, uint64_t *ret_pages);
int qemu_stats(struct ctx *ctx, struct vmm *v, struct vmm_stats *ret, struct err *err);

/* qemu_devices.c, qemu_share.c: as in vmm.h. */
int qemu_scsi_add(struct ctx *ctx, struct vmm *v, struct scsi_slot slot, int image_fd,
                  bool read_only, struct err *err);
int qemu_scsi_remove(struct ctx *ctx, struct vmm *v, struct scsi_slot slot, struct err *err);
int qemu_scsi_resize(struct ctx *ctx, struct vmm *v, struct scsi_slot slot, uint64_t bytes,
                     struct err *err);
int qemu_share_add(struct ctx *ctx, struct vmm *v, const char *name, int tree_fd, bool read_only,
                   struct err *err);
int qemu_share_remove(struct ctx *ctx, struct vmm *v, const char *name, struct err *err);
/* A directory of the jail that QEMU can only read, writable by this descriptor. Caller closes.
 * Waits. */
int qemu_jail_dir(struct qemu *q, const char *path, int *ret_fd, struct err *err);
/* qemu_share.c, for qemu_follow.c: the mount of the host with this id, which is at point, also
 * shows below a share, restricted as that is. ERR_NOT_FOUND: nothing leads there now. Both wait. */
int qemu_share_show(struct ctx *ctx, struct qemu *q, const char *name, const char *below,
                    const char *point, uint64_t mount, const struct idmap *ids, bool read_only,
                    struct err *err);
int qemu_share_hide(struct ctx *ctx, struct qemu *q, const char *name, const char *below,
                    struct err *err);
/* qemu_follow.c: as in vmm.h; end, before the share is removed; all are freed after they ended. */
int qemu_share_follow(struct ctx *ctx, struct vmm *v, const char *name,
                      const struct vmm_follow *what, bool read_only, struct err *err);
int qemu_follow_end(struct ctx *ctx, struct qemu *q, const char *name, struct err *err);
int qemu_follow_drop(struct ctx *ctx, struct qemu_proc *p, struct err *err);
/* For saved.h: all of them. What was mounted or unmounted meanwhile shows soon after they run
 * again.
 */
void qemu_followers_saved(struct saved *s, uint32_t field, struct qemu_proc *p);
/* qemu_save.c: as in vmm.h. */
void qemu_saved(struct vmm *v, struct saved *s, struct ledger *ledger);
int qemu_nic_add(struct ctx *ctx, struct vmm *v, const struct vmm_nic *nic, struct err *err);
int qemu_nic_remove(struct ctx *ctx, struct vmm *v, const char *id, struct err *err);
int qemu_pci_add(struct ctx *ctx, struct vmm *v, const char *address, const char *id,
                 char **ret_place, struct err *err);
int qemu_pci_remove(struct ctx *ctx, struct vmm *v, const char *id, struct err *err);
/* qemu_plug.c - a hot-plugged device and the parts of it that QEMU has. They are made one after the
 * other and removed in reverse order. A part is marked before QEMU is asked for it, so an answer
 * that was never read does not lose it. Undoing and removing are the same walk backwards, which can
 * stop anywhere and be repeated. Calls with ctx wait. */

/* In the order in which they are made. */
enum plug_part {
    PLUG_FD,    /* a descriptor by name; what is made next takes it */
    PLUG_FDSET, /* a descriptor by number */
    PLUG_FILE,  /* a block node that stands on the descriptor alone */
    PLUG_NODE,
    PLUG_NETDEV,
    PLUG_DEVICE,
    PLUG_PART_COUNT
};

struct plug;
struct plug_kind {
    const char *what;                   /* for people */
    const char *names[PLUG_PART_COUNT]; /* QEMU's name of a part is this and the plug's id */
    unsigned fdset_base;                /* a set's number is this and the plug's number */
    bool many_fds; /* PLUG_FD is several; the plug's number is how many QEMU was given */
    uint64_t undo_ns;
    /* The guest has so long to release the device; then QEMU is asked again, so many times.
     * 0: until ctx ends. */
    uint64_t release_ns;
    unsigned release_tries;
    /* For the log if the guest keeps the device, and what to do then (may be NULL). */
    const char *kept;
    int (*on_kept)(struct ctx *ctx, struct qemu *q, struct plug *p, struct err *err);
};

/* In qemu_devices.c. Their order is that of saved state: new ones come last. */
#define PLUG_KINDS 3
extern const struct plug_kind *const plug_kinds[PLUG_KINDS];

struct plug {
    struct list node; /* of qemu.plugs */
    const struct plug_kind *kind;
    const char *id, *label; /* owned: in QEMU's names; for people */
    unsigned number; /* of a disk its slot, of a PCI device its port, of a NIC its descriptors */
    unsigned parts;  /* bit N: QEMU has part N, or may have it */
    bool inside;     /* an add or a remove works on it */
    bool attached;   /* all of it is there */
    bool deserted;   /* the guest keeps the device */
    bool deleted;    /* DEVICE_DELETED came */
    struct waitq deleted_q;
};

/* NULL: there is none. */
struct plug *plug_find(struct qemu *q, const struct plug_kind *kind, const char *id);
/* Makes the device with `make`; if that fails, removes what was made. Copies id and label. */
int plug_add(struct ctx *ctx, struct qemu *q, const struct plug *what,
             int (*make)(struct ctx *ctx, struct qemu *q, struct plug *p, const void *arg,
                         struct err *err),
             const void *arg, struct err *err);
/* Unknown, or kept by the guest: 0. ERR_STATE: another call works on it. */
int plug_remove(struct ctx *ctx, struct qemu *q, const struct plug_kind *kind, const char *id,
                struct err *err);
/* Removes what guests have released since they were given up. What fails is tried again with the
 * next call. */
void plug_sweep(struct ctx *ctx, struct qemu *q);

/* For `make`: one part, with these arguments beside its name (taken; may be NULL) and this
 * descriptor (borrowed; -1: none). */
int plug_make(struct ctx *ctx, struct qemu *q, struct plug *p, enum plug_part part, int fd,
              json_t *args, struct err *err);
/* Removes all parts; the plug stays. */
int plug_unmake(struct ctx *ctx, struct qemu *q, struct plug *p, struct err *err);
/* QEMU's name of PLUG_FD, where it is several of number n. Caller frees. */
char *plug_fd_name(const struct plug *p, unsigned n);
/* QEMU's path of PLUG_FDSET. Caller frees. */
char *plug_fdset(const struct plug *p);
/* DEVICE_DELETED came; the process is gone, and all devices with it. */
void qemu_plug_deleted(struct qemu *q, const char *device);
void qemu_plugs_forget(struct qemu *q);
/* qemu.c */
bool qemu_is_gone(const struct qemu *q);
/* A name of ours that becomes a part of QEMU's names: ERR_INVALID names it and says what may be in
 * one. */
int qemu_check_name(const char *what, const char *name, size_t max, struct err *err);
/* ERR_UNAVAILABLE when it is gone, ERR_STATE when it never ran. */
int qemu_check_runs(const struct qemu *q, const char *what, struct err *err);

/* What QEMU was started with. */
static inline const struct vm_doc *qemu_base_doc(const struct qemu *q)
{
    return q->form == QEMU_COLD ? &q->doc : &q->tpl_doc;
}

static inline struct qemu *qemu_of(struct vmm *v)
{
    return CONTAINER_OF(v, struct qemu, vmm);
}
