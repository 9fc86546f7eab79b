/* qemu.c - the ops table and the calls that only look or pass on. */
#include "host/vmm/qemu/qemu.h"
#include "base/child.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/str.h"
#include "host/ledger/ledger.h"
#include "host/vmm/qemu/qemu_priv.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

void qemu_op_end(struct qemu_op *op)
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
        timeline_add(q->vmm.timeline, TRACK_VMM, "firmware", q->greeted_at, loop_now(q->loop));
    waitq_wake_all(&q->stage_q);
    if (q->vmm.on_stage)
        q->vmm.on_stage(q->vmm.on_stage_arg, stage);
}

bool qemu_is_gone(const struct qemu *q)
{
    return q->dying || q->ended.set || !q->proc || child_done(q->proc->child, NULL);
}

int qemu_check_runs(const struct qemu *q, const char *what, struct err *err)
{
    if (q->dying || q->ended.set)
        return err_set(err, ERR_UNAVAILABLE, "%s: the VM is gone", what);
    if (q->state != QEMU_RUNNING || !q->proc)
        return err_set(err, ERR_STATE, "%s: the VM does not run", what);
    return 0;
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

static int call_plain(struct ctx *ctx, struct qemu *q, const char *name, struct err *err)
{
    struct qemu_op op;

    if (q->state != QEMU_RUNNING || !q->proc)
        return err_set(err, ERR_STATE, "%s: the VM does not run", name);
    struct ctx inner = qemu_op_begin(ctx, q, &op);
    int r = qmp_client_call(&inner, q->proc->qmp, name, NULL, NULL, err);
    qemu_op_end(&op);
    return r;
}

static int quit(struct ctx *ctx, struct vmm *v, struct err *err)
{
    struct qemu *q = qemu_of(v);

    if (q->ended.set)
        return 0;
    q->quitting = true;
    int r = call_plain(ctx, q, "quit", err);
    /* It may be gone before its answer is read. */
    if (r < 0 && (q->ended.set || (q->proc && child_done(q->proc->child, NULL))))
        return 0;
    return r;
}

static int wait_ended(struct ctx *ctx, struct vmm *v, struct vmm_exit *ret, struct err *err)
{
    struct qemu *q = qemu_of(v);

    if (q->state == QEMU_NEW || q->state == QEMU_CREATED)
        return err_set(err, ERR_STATE, "the VM was never started");
    if (latch_wait(ctx, &q->ended, "qemu's end", err) < 0)
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
    if (q->proc) {
        if (qemu_proc_drop(ctx, q->proc, err) < 0)
            return err_wrap(err, "release");
        q->proc = NULL;
    }
    qemu_plugs_forget(q);
    if (qemu_uncreate(ctx, q, err) < 0)
        return err_wrap(err, "release");
    return 0;
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

static int stop(struct ctx *ctx, struct vmm *v, struct err *err)
{
    struct qemu *q = qemu_of(v);

    if (q->proc)
        q->proc->pause_asked = true; /* before its event comes, RESUME takes it back */
    return call_plain(ctx, q, "stop", err);
}

static int cont(struct ctx *ctx, struct vmm *v, struct err *err)
{
    return call_plain(ctx, qemu_of(v), "cont", err);
}

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
    .start = qemu_start,
    .terminate = terminate,
    .quit = quit,
    .wait = wait_ended,
    .release = release,
    .free = qemu_free,
    .listen = listen_port,
    .accept = qlink_accept,
    .unlisten = qlink_unlisten,
    .pause = stop,
    .resume = cont,
    .stats = qemu_stats,
    .info = info,
    .console_tail = tail,
    .scsi_add = qemu_scsi_add,
    .scsi_remove = qemu_scsi_remove,
    .share_add = qemu_share_add,
    .share_remove = qemu_share_remove,
    .nic_add = qemu_nic_add,
    .nic_remove = qemu_nic_remove,
    .pci_add = qemu_pci_add,
    .pci_remove = qemu_pci_remove,
    .judge = qemu_judge,
    .set_memory = qemu_set_memory,
    .set_cpus = qemu_set_cpus,
};

struct vmm *qemu_vmm_new_for_test(struct loop *loop, const struct qemu_test_env *env)
{
    struct qemu *q = mem_new(struct qemu);

    q->vmm.ops = &qemu_ops;
    q->loop = loop;
    q->test_env = env;
    q->kernel_fd = q->initrd_fd = q->uid.fd = -1;
    q->tpl.ram_fd = q->tpl.state_fd = -1;
    q->root = ctx_root(loop);
    q->life = q->root;
    cancel_init(&q->life_cancel, NULL);
    waitq_init(&q->stage_q);
    list_init(&q->ops);
    list_init(&q->plugs);
    gate_init(&q->controllers, "controllers");
    waitq_init(&q->ops_q);
    latch_init(&q->ended);
    return &q->vmm;
}

struct vmm *qemu_vmm_new(struct loop *loop)
{
    return qemu_vmm_new_for_test(loop, NULL);
}
