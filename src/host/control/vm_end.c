/* vm_end.c - how a VM ends: stop, kill, wait, and the reaper. A kill enters no gate and does
 * not wait; the reaper, one fiber of its own, then cleans up in this order: VMM ended, guest
 * closed, log drained, every caller out, backend released, Gone. What else belongs to a pod's VM
 * (scratch disk, cgroup, ledger) goes with vm_close. */
#include "base/exit_code.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/str.h"
#include "base/waits.h"
#include "host/bridge/guest.h"
#include "host/control/vm_priv.h"
#include "host/files/scratch.h"
#include "host/jail/cgroup.h"
#include "host/ledger/ledger.h"
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void want(struct vm *vm, enum vm_end end)
{
    if (vm->end < end)
        vm->end = end;
}

void vm_kill(struct vm *vm, enum vm_end who, const char *why)
{
    if (!vm)
        return;
    if (who == VM_END_FAILED && vm->end == VM_END_NONE) {
        snprintf(vm->failure, sizeof(vm->failure), "%s", why);
        vm->failure_reason = REASON_GUEST_LOST;
    }
    want(vm, who);
    if (vm->state == VM_GONE)
        return;
    if (vm->state < VM_STOPPING)
        fsm_step(&vm_fsm, &vm->state, VM_EV_STOP);
    cancel_fire(&vm->p.life, ERR_UNAVAILABLE, "the VM is being terminated");
    if (vm->op)
        cancel_fire(vm->op, ERR_UNAVAILABLE, "the VM is being terminated");
    vm->p.vmm->ops->terminate(vm->p.vmm);
    vm->p.guest->ops->close(vm->p.guest, why);
    if (!vm->op)
        vm_reap(vm); /* else the start under way fails, and comes here */
}

void vm_set_failure(struct vm *vm, const struct err *err)
{
    if (vm->end != VM_END_NONE)
        return;
    want(vm, VM_END_FAILED);
    snprintf(vm->failure, sizeof(vm->failure), "%.255s", err->msg);
    vm->failure_reason = err_reason(err);
}

/* --- the reaper --- */

static void cleanup_failed(const struct ctx *ctx, const char *msg, struct err *err)
{
    err_blame(err, REASON_CLEANUP_FAILED);
    log_error(ctx, msg, F_ERR(err));
}

static int release(struct ctx *ctx, struct vm *vm, struct err *err)
{
    uint64_t pause = VM_RELEASE_PAUSE;

    for (unsigned n = 1;; n++, pause *= 2) {
        struct ctx limited = ctx_with_timeout(ctx, VM_RELEASE_LIMIT);

        err_clear(err);
        if (vm->p.vmm->ops->release(&limited, vm->p.vmm, err) == 0)
            return 0;
        if (n == VM_RELEASE_TRIES)
            return err_wrap_because(err, REASON_CLEANUP_FAILED,
                                    "clean up what the VM owned (%u tries)", n);
        log_warn(ctx, "cleaning up the VM failed; retrying", F_U("try", n), F_ERR(err));

        struct err ignored = ERR_INIT;

        (void)fiber_sleep(ctx, pause, &ignored); /* ends early only with ctx; then the try fails */
    }
}

/* Waits until the VMM has ended: without limit, until its end is requested. */
static int await_vmm(struct ctx *ctx, struct vm *vm, struct err *err)
{
    struct ctx watching = ctx_with_cancel(ctx, &vm->p.life);
    struct vmm *vmm = vm->p.vmm;

    if (vmm->ops->wait(&watching, vmm, &vm->vmm_exit, err) == 0)
        return 0;
    if (!vm->p.life.fired && err->code != ERR_STATE) {
        err_wrap(err, "watch the VMM");
        vm_set_failure(vm, err);
        vm_kill(vm, VM_END_FAILED, "its VMM cannot be watched");
    }
    if (err->code != ERR_STATE) {
        struct ctx limited = ctx_with_timeout(ctx, VM_KILL_LIMIT);

        err_clear(err);
        if (vmm->ops->wait(&limited, vmm, &vm->vmm_exit, err) == 0)
            return 0;
    }
    if (err->code != ERR_STATE)
        return err_wrap_because(err, REASON_CLEANUP_FAILED, "the VMM was killed but did not exit");
    vm->vmm_exit.requested = true; /* the backend knows of no process */
    err_clear(err);
    return 0;
}

/* Waits for the fibers that were woken: none may be inside the backend when it is released. */
static int await_quiet(struct ctx *ctx, struct vm *vm, struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, VM_QUIET_LIMIT);

    while (vm->calls > 0)
        if (waitq_wait(&limited, &vm->changed, "calls into the VM to end", err) < 0)
            return -1;
    return 0;
}

static void fill_exit(struct vm *vm)
{
    const struct vmm_exit *x = &vm->vmm_exit;
    struct vm_exit *e = &vm->exit;

    *e = (struct vm_exit){ .exited_wall_ns = x->at_wall_ns ? x->at_wall_ns : loop_wall(vm->o.loop),
                           .stage = vm->p.stage };
    /* Our own killing after a failure is not what a client asked for. */
    e->requested = !vm->failure[0] && (x->requested || x->powered_off);
    if (e->requested)
        return;
    e->code = WIFSIGNALED(x->status) && !x->requested ? EXIT_KILLED : EXIT_LOST;
    if (x->why[0] && !x->requested)
        snprintf(e->why, sizeof(e->why), "%s", x->why);
    else
        snprintf(e->why, sizeof(e->why), "%s", vm->failure[0] ? vm->failure : "the VMM ended");
    e->reason = x->reason && !x->requested ? x->reason : vm->failure_reason;
    if (e->reason == REASON_NONE)
        e->reason = REASON_VM_ENDED;
}

/* A panic of the guest's kernel is reported there and nowhere else. */
static void log_console(struct vm *vm, const struct ctx *ctx)
{
    AUTO(sbuf_release) struct sbuf out = { 0 };

    vm->p.vmm->ops->console_tail(vm->p.vmm, VM_CONSOLE_TAIL, &out);
    if (out.len > 0)
        log_warn(ctx, "the VM's last console output", F_STR("console", out.data));
}

/* What each of us was waiting for when it happened; the guest cannot be asked any more. */
static void log_fibers(struct vm *vm, const struct ctx *ctx)
{
    struct ctx named = ctx_with_id(ctx, LK_SANDBOX_ID, vm->o.id);
    AUTO(sbuf_release) struct sbuf out = { 0 };

    loop_dump(vm->o.loop, &out);
    log_each_line(&named, LOG_WARN, "fiber", out.data);
}

static bool was_killed(const struct vm *vm)
{
    return WIFSIGNALED(vm->vmm_exit.status) || vm->vmm_exit.requested;
}

static void ended(struct ctx *ctx, struct vm *vm)
{
    if (vm->state == VM_ENDED)
        return; /* an earlier round came as far */
    fsm_step(&vm_fsm, &vm->state, VM_EV_ENDED);
    if (vm->vmm_exit.panicked)
        log_fibers(vm, ctx);
    cancel_fire(&vm->p.life, ERR_UNAVAILABLE, "the VM has ended");
    waitq_wake_all(&vm->changed);
    if (vm->o.on_ended)
        vm->o.on_ended(vm->o.arg, was_killed(vm));
}

static int clean_up(struct ctx *ctx, struct vm *vm, struct err *err)
{
    struct err lost = ERR_INIT;

    if (await_vmm(ctx, vm, err) < 0)
        return -1;
    ended(ctx, vm);

    /* The limits count from here: it may have run for days. */
    struct ctx drain = ctx_with_timeout(ctx, VM_DRAIN_LIMIT);

    vm->p.guest->ops->close(vm->p.guest, "the VM has ended");
    if (vm->p.guest->ops->drain_log(&drain, vm->p.guest, &lost) < 0)
        log_debug(ctx, "the guest's log was not read to its end", F_ERR(&lost));

    /* A start that is under way fails by what has just been closed, and leaves the gate. */
    struct ctx quiet = ctx_with_timeout(ctx, VM_QUIET_LIMIT);
    AUTO(gate_leave) struct gate *held = gate_enter(&vm->gate, &quiet, "vm.release", err);

    if (!held || await_quiet(ctx, vm, err) < 0)
        return -1;
    return release(ctx, vm, err);
}

static void reaped(struct vm *vm, const struct ctx *ctx)
{
    fill_exit(vm);
    fsm_step(&vm_fsm, &vm->state, VM_EV_RELEASED);
    LOG_AT(ctx, vm->exit.requested ? LOG_INFO : LOG_ERROR, "vm exited", F_U("code", vm->exit.code),
           F_BOOL("requested", vm->exit.requested), F_STR("stage", vm_stage_name(vm->exit.stage)),
           F_STR("why", vm->exit.why), F_REASON(vm->exit.reason));
    if (!vm->exit.requested)
        log_console(vm, ctx);
}

static void reap_main(void *arg)
{
    struct vm *vm = arg;
    struct ctx ctx = vm_own_ctx(vm);
    struct err err = ERR_INIT;

    if (clean_up(&ctx, vm, &err) == 0) {
        reaped(vm, &ctx);
    } else {
        cleanup_failed(&ctx, "the VM could not be cleaned up", &err);
        fsm_step(&vm_fsm, &vm->state, VM_EV_RELEASE_FAILED);
        vm->reap_err = err;
        vm->reap_failures++;
    }
    vm->reaping = false;
    waitq_wake_all(&vm->changed);
    vm_unref(vm);
}

void vm_reap(struct vm *vm)
{
    if (vm->reaping)
        return;
    vm->reaping = true;
    fiber_go(vm->o.loop, reap_main, vm_ref(vm), FIBER_VM_REAP "%s", vm->id ? vm->id : "");
}

/* --- three ways --- */

/* Until the end of the round that is under way, however it ends. Another client may begin the
 * next one before we run: reap_failures shows that. */
int vm_wait(struct ctx *ctx, struct vm *given, struct vm_exit *ret, struct err *err)
{
    AUTO(vm_unref) struct vm *vm = vm_ref(given);

    if (!vm)
        return 0;
    if (vm->state == VM_NEW)
        return err_set(err, ERR_STATE, "the VM was never started");

    unsigned failures = vm->reap_failures;

    while (vm->state != VM_GONE && vm->reap_failures == failures && (vm->reaping || failures == 0))
        if (waitq_wait(ctx, &vm->changed, "the VM to end", err) < 0)
            return err_wrap(err, "wait for the VM");
    if (vm->state != VM_GONE) {
        *err = vm->reap_err;
        return err_wrap(err, "wait for the VM");
    }
    if (ret)
        *ret = vm->exit;
    return 0;
}

static bool ended_within(struct ctx *ctx, struct vm *vm)
{
    struct err ignored = ERR_INIT;
    bool killed;

    return vm_wait_ended(ctx, vm, &killed, &ignored) == 0;
}

/* In a fiber of its own: a client that goes away does not shorten the guest's grace. */
static void stop_main(void *arg)
{
    struct vm *vm = arg;
    struct ctx own = vm_own_ctx(vm);
    struct ctx grace = ctx_with_timeout(&own, vm->grace_ns);
    struct err err = ERR_INIT;
    bool asked = vm->p.guest->ops->shutdown(&grace, vm->p.guest, NULL, false, &err) == 0;

    if (!asked)
        log_warn(&own, "the guest did not act on the shutdown request; quitting the VMM",
                 F_ERR(&err));
    if (!vm->p.life.fired && !(asked && ended_within(&grace, vm))) {
        struct ctx quit = ctx_with_timeout(&own, VM_QUIT_LIMIT);

        err_clear(&err);
        if (vm->p.vmm->ops->quit(&quit, vm->p.vmm, &err) < 0 || !ended_within(&quit, vm)) {
            log_warn(&own, "the VMM did not quit; killing it", F_ERR(&err));
            vm_kill(vm, vm->end, "the VM did not shut down in time");
        }
    }
    vm_drop(vm);
}

int vm_stop(struct ctx *ctx, struct vm *vm, uint64_t grace_ns, struct err *err)
{
    if (vm && vm->state == VM_RUNNING) {
        want(vm, VM_END_ORDERLY);
        fsm_step(&vm_fsm, &vm->state, VM_EV_STOP);
        vm->grace_ns = grace_ns;
        vm_hold(vm);
        fiber_go(vm->o.loop, stop_main, vm, "vm.stop %s", vm->id);
    } else if (vm && (vm->state != VM_STOPPING || vm->p.life.fired)) { /* no stop is under way */
        vm_kill(vm, VM_END_KILL, "stop requested while the VM was not running");
    }
    return vm_wait(ctx, vm, NULL, err);
}

/* --- what others learn of it --- */

int vm_wait_ended(struct ctx *ctx, struct vm *vm, bool *ret_killed, struct err *err)
{
    while (vm->state < VM_ENDED)
        if (waitq_wait(ctx, &vm->changed, "the VMM to end", err) < 0)
            return -1;
    *ret_killed = was_killed(vm);
    return 0;
}

bool vm_ended_by_oom(const struct vm *vm)
{
    return vm->state >= VM_ENDED && vm->vmm_exit.oom;
}

bool vm_lost(struct vm *given)
{
    AUTO(vm_unref) struct vm *vm = vm_ref(given);
    struct ctx ctx = vm_own_ctx(vm), limited = ctx_with_timeout(&ctx, VM_LOST_LIMIT);
    struct err err = ERR_INIT;
    bool killed = false;

    if (vm->end == VM_END_ORDERLY) /* a guest that leaves is not lost */
        return true;
    if (vm_wait_ended(&limited, vm, &killed, &err) == 0)
        return killed; /* by whom does not matter */
    if (vm->end != VM_END_NONE)
        return true; /* it is being killed, which takes longer than that on a busy host */
    log_error(&ctx, "the connection to the guest was lost; killing its VM",
              F_REASON(REASON_GUEST_LOST));
    vm_kill(vm, VM_END_FAILED, "the guest is lost");
    return false;
}

int vm_explain(struct vm *given, struct err *err)
{
    AUTO(vm_unref) struct vm *vm = vm_ref(given);
    struct err ignored = ERR_INIT;
    bool killed;

    if (!vm || err->code != ERR_UNAVAILABLE)
        return -1;
    /* The failed boot ended the guest that the caller was using. */
    if (vm->boot_err.code != ERR_NONE) {
        *err = vm->boot_err;
        return err_wrap_because(err, REASON_BOOT_PREPARE, "boot the VM");
    }
    if (vm->end != VM_END_NONE)
        return -1;

    struct ctx ctx = vm_own_ctx(vm), limited = ctx_with_timeout(&ctx, VM_WHY_LIMIT);
    const char *why = vm->vmm_exit.why;

    /* Unless the error is the VMM's end itself. */
    if (vm_wait_ended(&limited, vm, &killed, &ignored) == 0 && why[0] &&
        err->reason != vm->vmm_exit.reason) {
        err_wrap(err, "the VM has ended (%s)", why);
        err->reason = vm->vmm_exit.reason;
    }
    return -1;
}

/* --- a pod's VM that is not needed --- */

int vm_drop_cgroup(struct ctx *ctx, struct cgroup **c, struct err *err)
{
    uint64_t pause = VM_CGROUP_PAUSE;

    for (unsigned n = 1; *c; n++, pause *= 2) { /* busy while a process of it is being reaped */
        struct err ignored = ERR_INIT;

        err_clear(err);
        if (cgroup_remove(*c, err) == 0)
            cgroup_free(TAKE_PTR(*c));
        else if (n == VM_CGROUP_TRIES || fiber_sleep(ctx, pause, &ignored) < 0)
            return -1;
    }
    return 0;
}

static int drop_cgroup(struct ctx *ctx, struct vm *vm, struct err *err)
{
    /* With us in it, it is not empty. Also after a join that failed half way. */
    if (vm->p.cgroup && vm->o.home && cgroup_join(vm->o.home, getpid(), err) < 0)
        return err_wrap(err, "leave the pod's cgroup");
    return vm_drop_cgroup(ctx, &vm->p.cgroup, err);
}

static void drop_ledger(struct ctx *ctx, struct vm *vm)
{
    struct ctx limited = ctx_with_timeout(ctx, VM_DRIVERS_LIMIT);
    struct vm_parts *p = &vm->p;
    struct err err = ERR_INIT;

    if (!p->ledger)
        return;
    if (fibers_wait(&limited, vm->o.drivers, "log drivers", &err) < 0 ||
        (vm->scratch && scratch_remove(ctx, vm->scratch, &err) < 0) ||
        drop_cgroup(ctx, vm, &err) < 0 || vm->o.on_close(vm->o.arg, p->ledger, &err) < 0 ||
        ledger_finish(p->ledger, &err) < 0)
        cleanup_failed(ctx, "not everything was cleaned up; run `lcow gc`", &err);
    scratch_free(TAKE_PTR(vm->scratch));
    cgroup_free(TAKE_PTR(p->cgroup));
    ledger_close(TAKE_PTR(p->ledger));
}

static void close_main(void *arg)
{
    struct vm *vm = arg;
    struct ctx ctx = vm_own_ctx(vm), limited = ctx_with_timeout(&ctx, VM_CLOSE_LIMIT);
    struct err err = ERR_INIT;
    bool gone = vm_stop(&limited, vm, VM_GRACE, &err) == 0 &&
                fibers_wait(&limited, &vm->fibers, "fibers of the VM", &err) == 0;

    if (gone) {
        struct ctx rest = ctx_with_timeout(&ctx, VM_CLOSE_LIMIT);

        drop_ledger(&rest, vm);
    } else { /* something still works on it; its memory and its records stay */
        cleanup_failed(&ctx, "the VM could not be cleaned up; run `lcow gc`", &err);
    }
    vm->o.on_closed(vm->o.arg);
    if (gone)
        vm_unref(vm);
}

void vm_close(struct vm *vm)
{
    if (vm_is_closing(vm))
        return;
    want(vm, VM_END_UNUSED);
    /* Without grace, which would wait for the boot, and that for a scratch disk that may hang. */
    if (!vm->ready.set)
        vm_kill(vm, VM_END_UNUSED, "the VM is not needed any more");
    fiber_go(vm->o.loop, close_main, vm, "vm.close %s", vm->o.id);
}

bool vm_is_closing(const struct vm *vm)
{
    return vm->end == VM_END_UNUSED;
}
