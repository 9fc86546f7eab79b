/* vm.h - the VM controller: one utility VM, from its document to its exit, with all that belongs to
 * it.
 *
 *     New ─► Prepared ─► Booting ─► Running ─► Stopping ─► Ended ─► Gone
 *
 * Prepared: ledger and cgroup are there, things can be made for it. Running: it takes calls.
 * Stopping: its end was requested (enum vm_end). Ended: its VMM is no more; from every state, if
 * it ends by itself. Gone: all that the backend owned is cleaned up, and its exit is known.
 *
 * A pod's VM (vm_open) boots in a fiber of its own and lives until vm_close, since containers may
 * outlast it. The others (`lcow boot`, the proof of a template) are vm_new, vm_start, vm_kill,
 * vm_wait, vm_free.
 *
 * Gate: one start at a time. Queries never wait and answer while anything is stuck. vm_kill enters
 * no gate: everyone who waits for the VM or its guest wakes with ERR_UNAVAILABLE. A VM that dies
 * never yields exit 0. */
#pragma once
#include "base/ctx.h"
#include "base/gate.h"
#include "base/mem.h"
#include "host/config/shape.h"
#include "host/vmm/vmm.h"

struct cgroup;
struct config;
struct err;
struct fsm;
struct fibers;
struct guest;
struct ledger;
struct loop;
struct plan9;
struct saved;
struct scsi;
struct stream;
struct timeline;
struct vm;
struct vm_process;
struct vpci;

enum vm_state {
    VM_NEW,
    VM_PREPARED,
    VM_BOOTING,
    VM_RUNNING,
    VM_STOPPING,
    VM_ENDED,
    VM_GONE,
    VM_STATE_COUNT
};
extern const struct fsm vm_fsm;

struct vm_exit {
    bool requested; /* a stop, a kill, or an orderly power-off */
    uint32_t code;  /* 0 only if requested; else 137 for a killed VMM, 255 otherwise */
    uint64_t exited_wall_ns;
    enum vm_stage stage; /* the last one reached */
    char why[512];
    enum reason reason; /* REASON_NONE if requested */
};

/* Who wants it to end, and how. It only rises. */
enum vm_end {
    VM_END_NONE,
    VM_END_FAILED,  /* it is of no use: its boot failed, its guest is lost or unresponsive */
    VM_END_ORDERLY, /* vm_stop */
    VM_END_KILL,    /* a client, or the shim's own end */
    VM_END_UNUSED,  /* vm_close: nothing refers to it any more */
};

/* What belongs to a VM, for others to read. */
struct vm_parts {
    struct vmm *vmm;
    struct guest *guest;
    struct scsi *scsi; /* of a pod's VM, from Running on; as the next two */
    struct plan9 *plan9;
    struct vpci *vpci;
    struct ledger *ledger; /* of a pod's VM, from Prepared on */
    struct cgroup *cgroup; /* the same; NULL: none is wanted */
    char *cgroup_path;
    char *scratch_path;        /* in the guest, once it is ready (vm_need_ready) */
    char *kernel;              /* its release; "" if the image does not say */
    struct sizing size;        /* as it was asked for last */
    struct annotations wishes; /* of its first container */
    char *cpu_group;           /* that it is in now; NULL: none */
    char uuid[37];             /* hcsshim's RuntimeID */
    struct gate size_gate;
    struct cancel life; /* fired when it is killed or has ended */
    enum vm_stage stage;
    uint64_t started_wall_ns; /* 0 if it never ran */
};
struct vm_parts *vm_parts(struct vm *vm);

/* --- life --- */

/* Takes vmm and guest. Caller frees. */
struct vm *vm_new(struct loop *loop, struct vmm *vmm, struct guest *guest);
/* Only when it is Gone, or was never started. */
void vm_free(struct vm *vm);
AUTO_DEFINE(struct vm *, vm_free);

/* Of a pod's VM; strings are borrowed until it is closed. */
struct vm_opts {
    struct loop *loop;
    struct vmm *vmm;     /* taken */
    struct guest *guest; /* taken */
    const struct config *config;
    const char *ns, *id;  /* containerd's namespace, the sandbox */
    const char *guest_id; /* what the VM is named after, which keeps its name (registry_guest_id) */
    struct sizing size;
    struct annotations wishes;
    struct vm_shape shape; /* what they come to */
    const char *cgroup_path;
    bool set_oom_score_adj;
    int oom_score_adj;
    struct cgroup *home;    /* registry_opts.home */
    struct fibers *drivers; /* log drivers, which go before the ledger */
    /* None of these may wait. */
    int (*on_ledger)(void *arg, struct ledger *ledger, struct err *err); /* has been made */
    void (*on_change)(void *arg);                                        /* prepared, up, failed */
    void (*on_ended)(void *arg, bool killed);                            /* the VMM */
    int (*on_close)(void *arg, struct ledger *ledger, struct err *err);  /* is finished now */
    void (*on_closed)(void *arg);                                        /* nothing is left */
    void (*want_template)(void *arg, uint32_t memory_mib);
    void *arg;
};
/* Begins to boot it. Never waits. */
struct vm *vm_open(const struct vm_opts *o);
/* Ends a VM that is no longer needed, in an orderly way, or at once if it still boots; then
 * releases all that belongs to it, calls on_closed, and frees the VM. Repeatable. Never waits. */
void vm_close(struct vm *vm);
bool vm_is_closing(const struct vm *vm);
struct vm *vm_ref(struct vm *vm); /* NULL: NULL */
void vm_unref(struct vm *vm);
AUTO_DEFINE(struct vm *, vm_unref);

/* vm_save.c, in a message that is open: a pod's VM that runs, with its devices. Reading: *vm is
 * made of o, without booting it. */
void vm_saved(struct saved *s, const struct vm_opts *o, struct vm **vm);

/* Waits until the bridge is negotiated; Running already: success at once. After a failure the VM is
 * already being killed; the error names the last stage reached. */
int vm_start(struct ctx *ctx, struct vm *vm, const struct vm_doc *doc, struct err *err);
/* Of a pod's VM: waits until it is Prepared; until it is Running; until its scratch disk is there
 * too. If the boot fails, every waiting call returns its error. vm may be NULL. */
#define VM_TURN_LIMIT (180 * NS_PER_S) /* to wait for a turn to start; then it starts without */
int vm_need_prepared(struct ctx *ctx, struct vm *vm, struct err *err);
int vm_need_running(struct ctx *ctx, struct vm *vm, struct err *err);
int vm_need_ready(struct ctx *ctx, struct vm *vm, struct err *err);

/* --- its end: three calls, all for NULL too --- */

/* Orderly: asks the guest to power off, and kills when grace_ns is over. Waits until it is Gone;
 * if ctx ends first, the stop continues in the background. A VM that does not run is killed. */
int vm_stop(struct ctx *ctx, struct vm *vm, uint64_t grace_ns, struct err *err);
#define VM_GRACE (3 * NS_PER_S) /* of a pod's VM */
/* Without asking the guest; every call that waits for it fails with why. Repeatable: cleaning up
 * that failed is tried again. Never waits. */
void vm_kill(struct vm *vm, enum vm_end who, const char *why);
/* Until it is Gone, or cleaning up has failed. ret may be NULL. New: ERR_STATE. */
int vm_wait(struct ctx *ctx, struct vm *vm, struct vm_exit *ret, struct err *err);

/* Until it is Ended, long before it is Gone; *ret_killed: by a signal, ours or another's. */
int vm_wait_ended(struct ctx *ctx, struct vm *vm, bool *ret_killed, struct err *err);
/* Was it the host's OOM killer? False while it is not known. */
bool vm_ended_by_oom(const struct vm *vm);
/* The guest does not answer any more: how did its VM end? Waits briefly; true: killed. A VM that
 * still runs then is killed: without its guest it is of no use. */
bool vm_lost(struct vm *vm);
/* A call has failed: if its VM did not boot or has ended by itself, err says why. Waits briefly for
 * that to be known. vm may be NULL. Returns -1. */
int vm_explain(struct vm *vm, struct err *err);

/* --- use --- */

/* Around each call that others make to the VM's backend or guest: what the VM owned is cleaned up
 * when all have left. NULL: ERR_STATE before it runs, else ERR_UNAVAILABLE; vm may be NULL. */
const struct vm_parts *vm_enter(struct vm *vm, const char *what, struct err *err);
void vm_leave(const struct vm_parts *in);
AUTO_DEFINE(const struct vm_parts *, vm_leave);

/* Before a program runs in it: a clone's clock is behind until then. Waits until ctx ends; the
 * caller has entered. */
int vm_await_clock(struct ctx *ctx, struct vm *vm, struct err *err);
/* A container has been started, or that failed: another VM may start. Never waits. */
void vm_container_started(struct vm *vm, bool ok);
/* Removes and frees *c, if there is one: busy while its last process is being reaped. Waits. */
int vm_drop_cgroup(struct ctx *ctx, struct cgroup **c, struct err *err);
/* Of a pod's VM. What it is to have; exactly: not only if that was not asked for last, but also if
 * that failed. Inside vm_parts.size_gate. */
int vm_resize(struct ctx *ctx, struct vm *vm, const struct sizing *to, bool exactly,
              struct err *err);
/* Who goes first when the host has no memory left: QEMU is as dispensable as the most dispensable
 * of its containers, not as its pause container. ERR_INVALID if it is not within -1000 and 1000. */
int vm_raise_oom_score(struct ctx *ctx, struct vm *vm, int adj, struct err *err);
/* Of a pod's VM, on the host: what QEMU may use of its processors. quota in 100 ms, in us, and
 * shares: what its pods' limits come to, 0 for none; what annotations say restricts that. */
int vm_limit_cpu(struct ctx *ctx, struct vm *vm, uint64_t quota, uint64_t shares, struct err *err);
/* Moves it to that group of CPUs (cpugroup.h). Reads a file of the administrator's. */
int vm_set_cpu_group(struct ctx *ctx, struct vm *vm, const char *name, struct err *err);
/* For SPAN(). vm may be NULL, and so may the answer. */
struct timeline *vm_timeline(const struct vm *vm);

/* Queries: never wait. */
enum vm_state vm_state(const struct vm *vm);
const char *vm_state_name(enum vm_state s);
void vm_info(struct vm *vm, struct vmm_info *ret);
/* The console's last lines: the end of an error report. */
void vm_console_tail(struct vm *vm, size_t max, struct sbuf *out);

/* Called on every stage reached, from the loop; may not wait. */
void vm_on_stage(struct vm *vm, void (*fn)(void *arg, enum vm_stage stage), void *arg);

/* A process in the VM itself, outside containers. terminal with stderr: ERR_INVALID. */
struct vm_exec {
    const char *const *argv;
    const char *const *env;
    const char *cwd; /* NULL: "/" */
    bool terminal;
    uint16_t rows, cols; /* 0: leave */
    bool want_stdin, want_stdout, want_stderr;
};
int vm_exec(struct ctx *ctx, struct vm *vm, const struct vm_exec *e, struct vm_process **ret,
            struct err *err);
/* Borrowed streams; take gives one away (the caller then frees it, which closes it). */
struct stream *vm_process_take_stream(struct vm_process *p, int fd /* 0, 1, 2 */);
/* 0 … 255, also 128 + signal. A VM that dies first: ERR_UNAVAILABLE, never 0. */
int vm_process_wait(struct ctx *ctx, struct vm_process *p, uint32_t *ret_code, struct err *err);
int vm_process_signal(struct ctx *ctx, struct vm_process *p, int signo, struct err *err);
int vm_process_resize(struct ctx *ctx, struct vm_process *p, uint16_t rows, uint16_t cols,
                      struct err *err);
void vm_process_free(struct vm_process *p);
AUTO_DEFINE(struct vm_process *, vm_process_free);

int vm_dump_stacks(struct ctx *ctx, struct vm *vm, char **ret_text, struct err *err);
int vm_stats(struct ctx *ctx, struct vm *vm, struct vmm_stats *ret, struct err *err);
