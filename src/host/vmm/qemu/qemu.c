/* qemu.c - the ops table, the start and the end. */
#include "host/vmm/qemu/qemu.h"
#include "base/child.h"
#include "base/waits.h"
#include "host/ledger/ledger.h"
#include "host/vmm/qemu/qemu_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

static const char *const states[] = { "New", "Created", "Starting", "Running", "Ended" };
static const char *const events[] = { "be created", "start", "run", "end" };

static const struct fsm_edge edges[] = {
    { QEMU_NEW, QEMU_EV_CREATED, QEMU_CREATED },
    { QEMU_CREATED, QEMU_EV_START, QEMU_STARTING },
    { QEMU_STARTING, QEMU_EV_STARTED, QEMU_RUNNING },
    { QEMU_STARTING, QEMU_EV_ENDED, QEMU_ENDED },
    { QEMU_RUNNING, QEMU_EV_ENDED, QEMU_ENDED },
};
FSM_DEFINE(qemu_fsm, "VM in QEMU", states, QEMU_STATE_COUNT, events, QEMU_EV_COUNT, edges);

struct ctx qemu_op_begin(struct ctx *ctx, struct qemu *q, struct qemu_op *op)
{
    op->q = q;
    cancel_init(&op->cancel, ctx->cancel);
    if (q->dying)
        cancel_fire(&op->cancel, ERR_UNAVAILABLE, "the VM was terminated");
    list_append(&q->ops, &op->node);
    return ctx_with_cancel(ctx, &op->cancel);
}

void qemu_op_end_auto(struct qemu_op *op)
{
    list_remove(&op->node);
    cancel_release(&op->cancel);
    waitq_wake_all(&op->q->ops_q);
}

void qemu_raise_stage(struct qemu *q, enum vm_stage stage)
{
    if (stage <= q->stage)
        return;
    q->stage = stage;
    if (stage == VM_STAGE_KERNEL && q->greeted_at)
        span_add(q->vmm.timeline, TRACK_VMM, "firmware", q->greeted_at, loop_now(q->loop));
    waitq_wake_all(&q->stage_q);
    if (q->vmm.on_stage)
        q->vmm.on_stage(q->vmm.on_stage_arg, stage);
}

bool qemu_is_gone(const struct qemu *q)
{
    return q->dying || q->ended.set || !q->proc || child_done(q->proc->child, NULL);
}

int qemu_check_name(const char *what, const char *name, size_t max, struct err *err)
{
    size_t n = strspn(name, "0123456789abcdefghijklmnopqrstuvwxyz-_");

    if (n > 0 && n <= max && !name[n])
        return 0;
    return err_set(err, ERR_INVALID, "invalid %s name \"%.64s\": must be 1–%zu of a-z 0-9 - _",
                   what, name, max);
}

int qemu_check_runs(const struct qemu *q, const char *what, struct err *err)
{
    if (q->dying || q->ended.set)
        return err_set(err, ERR_UNAVAILABLE, "%s: the VM is gone", what);
    if (q->state != QEMU_RUNNING || !q->proc)
        return err_because(err, REASON_VM_ENDED, ERR_STATE, "%s: the VM is not running", what);
    return 0;
}

/* --- from a created VM to a running QEMU: spawn, greeting, and the proof of KVM --- */

static int drop_proc(struct ctx *ctx, struct qemu *q, struct err *err)
{
    if (q->proc && qemu_proc_drop(ctx, q->proc, err) < 0)
        return -1;
    q->proc = NULL;
    return 0;
}

static void publish(struct qemu *q, const struct vmm_exit *exit)
{
    if (q->ended.set)
        return;
    q->exit = *exit;
    fsm_step(&qemu_fsm, &q->state, QEMU_EV_ENDED);
    qlink_close(q->link, "the VM has ended");
    latch_set(&q->ended);
}

void qemu_proc_ended(struct qemu *q, struct qemu_proc *p)
{
    qemu_clone_ended(q, p);
    if (q->proc == p && !q->proving)
        publish(q, &p->exit);
    waitq_wake_all(&q->stage_q);
}

/* It ended instead of greeting: its own words are the best error, unless it is just too old to
 * understand us. */
static void explain_early_end(struct ctx *ctx, struct qemu *q, struct err *err)
{
    struct qemu_proc *p = q->proc;
    struct ctx limited = ctx_with_timeout(ctx, 2 * NS_PER_S);
    struct err version = ERR_INIT, ignored = ERR_INIT;
    char text[64];

    if (q->dying || err->code != ERR_UNAVAILABLE)
        return;
    if (latch_wait(&limited, &p->gone, WAIT_VMM_END, &ignored) < 0)
        return;
    err_because(err, p->exit.reason, ERR_UNAVAILABLE, "%s", p->exit.why);
    if (WIFEXITED(p->exit.status) && WEXITSTATUS(p->exit.status) == 1 &&
        qemu_version(ctx, q->program, text, &version) < 0 && version.code == ERR_STATE)
        *err = version;
}

static int greet(struct ctx *ctx, struct qemu *q, struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, QEMU_GREETING_NS);
    SPAN(step, &limited, q->vmm.timeline, TRACK_VMM, "QMP greeting", err);

    if (qmp_client_connect(step.ctx, q->proc->qmp, q->version, err) < 0) {
        explain_early_end(ctx, q, err);
        return -1;
    }
    q->greeted_at = loop_now(q->loop);
    return qemu_check_version(q->program, q->version, err);
}

static int start_once(struct ctx *ctx, struct qemu *q, struct err *err)
{
    if (qemu_proc_spawn(ctx, q, &q->proc, err) < 0)
        return -1;
    qemu_raise_stage(q, VM_STAGE_SPAWNED);
    return greet(ctx, q, err);
}

/* "CPU 0/KVM" is what QEMU calls the thread (debug-threads=on). */
static uint64_t vcpu_time(pid_t pid)
{
    AUTO_FREE char *dir = str_format("/proc/%d/task", pid);
    AUTO(closedir) DIR *tasks = opendir(dir);
    uint64_t sum = 0, ns, pages;

    for (struct dirent *d; tasks && (d = readdir(tasks));) {
        AUTO_FREE char *text = file_text(4096, "%s/%s/stat", dir, d->d_name);

        if (text && strstr(text, "(CPU ") && qemu_read_stat(text, &ns, &pages) == 0)
            sum += ns;
    }
    return sum;
}

/* Whether the boot so far proves that KVM does not work. Anything else may be the fault of the
 * host's load or memory, or of the configuration, and is tried again by the next VM. */
static bool kvm_failed(struct qemu *q, struct accel_failure *ret)
{
    uint64_t enough =
        q->test_env && q->test_env->proof_cpu_ns ? q->test_env->proof_cpu_ns : QEMU_PROOF_CPU_NS;

    ret->at_s = loop_wall(q->loop) / NS_PER_S;
    if (q->proc->words.kvm_error[0]) {
        snprintf(ret->reason, sizeof(ret->reason), "%.159s", q->proc->words.kvm_error);
        return true;
    }
    if (q->proc->gone.set || q->console.total > 0 || vcpu_time(child_pid(q->proc->child)) < enough)
        return false;
    snprintf(ret->reason, sizeof(ret->reason),
             "the guest executed nothing: no output after %llu s of vCPU time",
             (unsigned long long)(enough / NS_PER_S));
    return true;
}

/* KVM counts only when a kernel has said something under it. Looks once a second: there is no event
 * for CPU time. */
static int prove(struct ctx *ctx, struct qemu *q, struct accel_failure *failure, struct err *err)
{
    while (q->stage < VM_STAGE_KERNEL) {
        struct ctx second = ctx_with_timeout(ctx, NS_PER_S);

        if (q->proc->gone.set)
            return err_because(err, q->proc->exit.reason, ERR_UNAVAILABLE, "%s", q->proc->exit.why);
        if (waitq_wait(&second, &q->stage_q, "the first boot with KVM", err) == 0)
            continue;
        if (ctx_check(ctx, err) < 0)
            return err_wrap(err, "the guest kernel has printed nothing yet");
        err_clear(err);
        if (kvm_failed(q, failure))
            return err_because(err, REASON_KVM_FAILED, ERR_UNAVAILABLE, "KVM failed: %s",
                               failure->reason);
    }
    return 0;
}

/* No time or no memory is left for another. */
static bool is_hopeless(struct ctx *ctx, const struct qemu *q)
{
    struct err over = ERR_INIT;

    return ctx_check(ctx, &over) < 0 || (q->proc && q->proc->gone.set && q->proc->exit.oom);
}

/* Ends the process that failed and starts another in its place: the VM has not ended. */
static int start_again(struct ctx *ctx, struct qemu *q, struct err *err)
{
    if (q->proc)
        qemu_proc_kill(q->proc);
    if (drop_proc(ctx, q, err) < 0)
        return -1;
    err_clear(err);
    q->proving = false;
    q->form = QEMU_COLD; /* not before: a clone's end counts against its template */
    q->cpu_ids = 0;
    q->grown_bytes = 0;
    return start_once(ctx, q, err);
}

static int start_proving(struct ctx *ctx, struct qemu *q, struct err *err)
{
    struct accel_failure failure = { 0 };
    int r = start_once(ctx, q, err);

    if (r == 0)
        r = prove(ctx, q, &failure, err);
    bool failed = r < 0 && q->proc && kvm_failed(q, &failure);

    if (r == 0)
        accel_remember_works(&q->accel_env);
    else if (failed)
        accel_remember_failure(&q->accel_env, &failure);
    if (r == 0 || is_hopeless(ctx, q))
        return r;
    if (q->doc.accel == VM_ACCEL_KVM || !q->doc.allow_emulation)
        return err_wrap_because(err, REASON_KVM_FAILED,
                                failed ? "first boot with KVM (set 'allow_emulation = true' in "
                                         "/etc/lcow/lcow.conf or give --allow-emulation to "
                                         "continue without KVM)"
                                       : "first boot with KVM");
    log_warn(&q->life, "the first boot with KVM failed; continuing with emulation", F_ERR(err));
    q->accel = (struct accel_choice){ .emulated = true };
    return start_again(ctx, q, err);
}

/* Anything that goes wrong with a clone is answered by a cold start, once; but not where there is
 * no time left, or no memory. */
static int start_clone(struct ctx *ctx, struct qemu *q, struct err *err)
{
    int r;

    q->form = QEMU_CLONE;
    q->proving = true; /* its end is not yet the VM's */
    r = start_once(ctx, q, err);
    if (r == 0)
        r = qemu_clone_restore(ctx, q, err);
    if (r == 0 || q->doc.template_draft || is_hopeless(ctx, q))
        return r;
    snprintf(q->cold_why, sizeof(q->cold_why), "%.159s", err->msg);
    log_warn(&q->life, "the clone failed; starting cold", F_STR(LK_OPERATION, "cold-start"),
             F_ERR(err));
    return start_again(ctx, q, err);
}

/* Ends what is left of a start that failed; wait() returns why it failed. */
static void start_failed(struct qemu *q, const struct err *err)
{
    struct vmm_exit exit = { .requested = q->dying,
                             .status = 127 << 8,
                             .at_wall_ns = loop_wall(q->loop) };

    snprintf(exit.why, sizeof(exit.why), "%.255s", err->msg);
    exit.reason = err_reason(err);
    if (q->proc && !q->proc->gone.set) {
        if (!q->dying) {
            memcpy(q->proc->given_up, exit.why, sizeof(exit.why));
            q->proc->given_up_reason = exit.reason;
        }
        qemu_proc_kill(q->proc); /* the watcher publishes */
    } else {
        publish(q, q->proc ? &q->proc->exit : &exit);
    }
}

static int start(struct ctx *ctx, struct vmm *v, struct err *err)
{
    struct qemu *q = qemu_of(v);

    if (fsm_check(&qemu_fsm, q->state, QEMU_EV_START, err) < 0)
        return -1;
    fsm_step(&qemu_fsm, &q->state, QEMU_EV_START);
    q->proving = q->accel.prove;
    AUTO(qemu_op_end) struct qemu_op op;
    struct ctx inner = qemu_op_begin(ctx, q, &op);
    int r = ctx_check(&inner, err);
    if (r == 0)
        r = q->proving           ? start_proving(&inner, q, err)
            : q->tpl.ram_fd >= 0 ? start_clone(&inner, q, err)
                                 : start_once(&inner, q, err);
    q->proving = false;
    if (r == 0 && q->proc->gone.set)
        r = err_because(err, q->proc->exit.reason, ERR_UNAVAILABLE, "%s", q->proc->exit.why);
    if (r < 0) {
        start_failed(q, err);
    } else {
        fsm_step(&qemu_fsm, &q->state, QEMU_EV_STARTED);
        qlink_started(q->link);
    }
    return r;
}

/* --- the end --- */

static void terminate(struct vmm *v)
{
    struct qemu *q = qemu_of(v);

    q->dying = true;
    LIST_EACH (&q->ops, n)
        cancel_fire(&LIST_ENTRY(n, struct qemu_op, node)->cancel, ERR_UNAVAILABLE,
                    "the VM was terminated");
    if (q->link)
        qlink_close(q->link, "the VM was terminated");
    if (q->proc)
        qemu_proc_kill(q->proc);
}

static int quit(struct ctx *ctx, struct vmm *v, struct err *err)
{
    struct qemu *q = qemu_of(v);

    if (q->ended.set)
        return 0;
    q->quitting = true;
    if (q->state != QEMU_RUNNING || !q->proc)
        return err_because(err, REASON_VM_ENDED, ERR_STATE, "quit: the VM is not running");
    AUTO(qemu_op_end) struct qemu_op op;
    struct ctx inner = qemu_op_begin(ctx, q, &op);
    int r = qmp_client_call(&inner, q->proc->qmp, "quit", NULL, NULL, err);
    /* It may be gone before its answer is read. */
    return q->ended.set || (q->proc && child_done(q->proc->child, NULL)) ? 0 : r;
}

static int wait_ended(struct ctx *ctx, struct vmm *v, struct vmm_exit *ret, struct err *err)
{
    struct qemu *q = qemu_of(v);

    if (q->state == QEMU_NEW || q->state == QEMU_CREATED)
        return err_set(err, ERR_STATE, "the VM was never started");
    if (latch_wait(ctx, &q->ended, WAIT_VMM_END, err) < 0)
        return -1;
    *ret = q->exit;
    return 0;
}

static int release(struct ctx *ctx, struct vmm *v, struct err *err)
{
    struct qemu *q = qemu_of(v);

    if (q->proc && !q->ended.set)
        return err_set(err, ERR_STATE, "release: qemu still runs as process %d",
                       child_pid(q->proc->child));
    while (!list_empty(&q->ops))
        if (waitq_wait(ctx, &q->ops_q, "calls into the VM", err) < 0)
            return err_wrap(err, "release");
    if (drop_proc(ctx, q, err) < 0)
        return err_wrap(err, "release");
    qemu_plugs_forget(q);
    return qemu_uncreate(ctx, q, err) < 0 ? err_wrap(err, "release") : 0;
}

/* Only after release; what a failed release left stays in the ledger for gc. */
static void qemu_free(struct vmm *v)
{
    struct qemu *q = qemu_of(v);

    if (q->proc || q->link || !list_empty(&q->ops)) {
        /* Fibers still use it: to keep it is a leak, to free it would be a crash. */
        terminate(v);
        log_error(&q->life, "qemu: freed before it was released");
        return;
    }
    ledger_close(q->ledger);
    cancel_release(&q->life_cancel);
    qemu_forget_doc(q);
    strv_release(&q->texts);
    free(q);
}

/* --- the link --- */

static int listen_port(struct vmm *v, uint32_t port, struct vmm_listener **ret, struct err *err)
{
    struct qemu *q = qemu_of(v);

    if (!q->link)
        return err_set(err, ERR_STATE, "guest port %u: the VM is not created", port);
    return qlink_listen(q->link, port, ret, err);
}

/* --- looking --- */

static void info(struct vmm *v, struct vmm_info *ret)
{
    struct qemu *q = qemu_of(v);

    *ret = (struct vmm_info){ .emulated = q->accel.emulated, .backend = "qemu" };
    if (q->proc && !child_done(q->proc->child, NULL))
        ret->pid = child_pid(q->proc->child);
    snprintf(ret->version, sizeof(ret->version), "%s", q->version);
    ret->clone = q->form == QEMU_CLONE;
    ret->want_template = q->want_template && q->version[0] && qemu_has_templates(q);
    snprintf(ret->cold_why, sizeof(ret->cold_why), "%s", q->cold_why);
    snprintf(ret->trouble, sizeof(ret->trouble), "%s", q->console.trouble);
}

static void tail(struct vmm *v, size_t max, struct sbuf *out)
{
    console_tail(&qemu_of(v)->console, max, out);
}

static const struct vmm_ops qemu_ops = {
    .create = qemu_create,
    .start = start,
    .terminate = terminate,
    .quit = quit,
    .wait = wait_ended,
    .release = release,
    .free = qemu_free,
    .saved = qemu_saved,
    .listen = listen_port,
    .accept = qlink_accept,
    .unlisten = qlink_unlisten,
    .stats = qemu_stats,
    .info = info,
    .console_tail = tail,
    .scsi_add = qemu_scsi_add,
    .scsi_remove = qemu_scsi_remove,
    .scsi_resize = qemu_scsi_resize,
    .share_add = qemu_share_add,
    .share_follow = qemu_share_follow,
    .share_remove = qemu_share_remove,
    .nic_add = qemu_nic_add,
    .nic_remove = qemu_nic_remove,
    .pci_add = qemu_pci_add,
    .pci_remove = qemu_pci_remove,
    .judge = qemu_judge,
    .set_memory = qemu_set_memory,
    .set_cpus = qemu_set_cpus,
};

struct vmm *qemu_vmm_new(struct loop *loop)
{
    struct qemu *q = mem_new(struct qemu);

    q->vmm.ops = &qemu_ops;
    q->loop = loop;
    q->kernel_fd = q->initrd_fd = q->uid.fd = q->tpl.ram_fd = q->tpl.state_fd = -1;
    q->root = q->life = ctx_root(loop);
    cancel_init(&q->life_cancel, NULL);
    waitq_init(&q->stage_q);
    list_init(&q->ops);
    list_init(&q->plugs);
    gate_init(&q->controllers, "controllers");
    waitq_init(&q->ops_q);
    latch_init(&q->ended);
    return &q->vmm;
}
