/* vm_end.c - how a VM ends: terminate, shutdown, wait, and the reaper. Terminate enters no gate
 * and asks nobody; the reaper, one fiber of its own, then takes everything back in this order:
 * VMM gone, guest closed, log drained, everybody out, release, Terminated, told. */
#include "base/fsm.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/str.h"
#include "host/bridge/guest.h"
#include "host/control/vm_priv.h"
#include <stdio.h>
#include <sys/wait.h>

void vm_kill(struct vm *vm, const char *why)
{
    vm->killed = true;
    cancel_fire(&vm->kill, ERR_UNAVAILABLE, "the VM is being terminated");
    if (vm->op)
        cancel_fire(vm->op, ERR_UNAVAILABLE, "the VM is being terminated");
    vm->vmm->ops->terminate(vm->vmm);
    vm->guest->ops->close(vm->guest, why);
}

int vm_release(struct ctx *ctx, struct vm *vm, struct err *err)
{
    uint64_t pause = VM_RELEASE_PAUSE;

    for (unsigned n = 1;; n++, pause *= 2) {
        struct ctx limited = ctx_with_timeout(ctx, VM_RELEASE_LIMIT);

        err_clear(err);
        if (vm->vmm->ops->release(&limited, vm->vmm, err) == 0)
            return 0;
        if (n == VM_RELEASE_TRIES)
            return err_wrap(err, "take back what the VM owned (%u tries)", n);
        log_warn(ctx, "release failed, trying again", F_U("try", n), F_ERR(err));

        struct err ignored = ERR_INIT;

        (void)fiber_sleep(ctx, pause, &ignored); /* ends early only with ctx; then the try fails */
    }
}

/* Until the VMM is gone. As long as nobody wants its end there is no limit; then there is. */
static int await_vmm(struct ctx *ctx, struct vm *vm, struct err *err)
{
    struct ctx watching = ctx_with_cancel(ctx, &vm->kill);
    const struct vmm_ops *ops = vm->vmm->ops;

    if (!vm->started || ops->wait(&watching, vm->vmm, &vm->vmm_exit, err) == 0)
        return 0;
    if (!vm->killed && err->code != ERR_STATE) {
        err_wrap(err, "watch the VMM");
        vm_note_failure(vm, err);
        vm_kill(vm, "its VMM cannot be watched");
    }
    if (err->code != ERR_STATE) {
        struct ctx limited = ctx_with_timeout(ctx, VM_KILL_LIMIT);

        err_clear(err);
        if (ops->wait(&limited, vm->vmm, &vm->vmm_exit, err) == 0)
            return 0;
    }
    if (err->code != ERR_STATE)
        return err_wrap(err, "the VMM was killed but does not go away");
    vm->started = false; /* the backend knows of no process */
    err_clear(err);
    return 0;
}

/* Those who were woken run now; nobody may be inside the backend when it is released. */
static int await_quiet(struct ctx *ctx, struct vm *vm, struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, VM_QUIET_LIMIT);

    while (vm->calls > 0)
        if (waitq_wait(&limited, &vm->calls_q, "calls into the VM to end", err) < 0)
            return -1;
    return 0;
}

static void fill_exit(struct vm *vm)
{
    const struct vmm_exit *x = &vm->vmm_exit;
    struct vm_exit *e = &vm->exit;

    *e = (struct vm_exit){ .started_wall_ns = vm->started_wall_ns,
                           .exited_wall_ns = x->at_wall_ns,
                           .oom = x->oom,
                           .stage = vm->stage };
    if (e->exited_wall_ns == 0)
        e->exited_wall_ns = loop_wall(vm->loop);
    /* Our own killing after a failure is not what a client asked for. */
    if (!vm->failed)
        e->requested = !vm->started || x->requested || (x->powered_off && vm->ran);
    if (e->requested)
        return;
    e->code = WIFSIGNALED(x->status) && !x->requested ? 137 : 255;
    if (x->why[0] && !x->requested)
        snprintf(e->why, sizeof(e->why), "%s", x->why);
    else
        snprintf(e->why, sizeof(e->why), "%s", vm->failed ? vm->failure : "the VMM ended");
}

/* A panic is told there and nowhere else. */
static void tell_last_words(struct vm *vm, const struct ctx *ctx)
{
    AUTO(sbuf_release) struct sbuf out = { 0 };

    vm->vmm->ops->console_tail(vm->vmm, VM_LAST_WORDS, &out);
    if (out.len > 0)
        log_warn(ctx, "the VM's last words", F_STR("console", out.data));
}

/* What each of us was waiting for when it happened; the guest cannot be asked any more. */
static void tell_fibers(struct vm *vm, const struct ctx *ctx)
{
    AUTO(sbuf_release) struct sbuf out = { 0 };

    loop_dump(vm->loop, &out);
    log_each_line(ctx, LOG_WARN, "fiber", out.data);
}

static void reaped(struct vm *vm, const struct ctx *ctx)
{
    fill_exit(vm);
    fsm_step(&vm_fsm, &vm->state, VM_EV_RELEASED);
    LOG_AT(ctx, vm->exit.requested ? LOG_INFO : LOG_ERROR, "vm exited", F_U("code", vm->exit.code),
           F_BOOL("requested", vm->exit.requested), F_STR("stage", vm_stage_name(vm->exit.stage)),
           F_STR("why", vm->exit.why));
    if (!vm->exit.requested)
        tell_last_words(vm, ctx);
    if (vm->on_exit)
        vm->on_exit(vm->on_exit_arg, &vm->exit);
    vm->reap = REAP_DONE;
    waitq_wake_all(&vm->reap_q); /* from here on vm may be freed */
}

static void reap_failed(struct vm *vm, const struct ctx *ctx, const struct err *err)
{
    log_error(ctx, "vm could not be taken back", F_ERR(err));
    fsm_step(&vm_fsm, &vm->state, VM_EV_RELEASE_FAILED);
    vm->reap_err = *err;
    vm->reap_failures++;
    vm->reap = REAP_FAILED;
    waitq_wake_all(&vm->reap_q);
}

static int take_back(struct ctx *ctx, struct vm *vm, struct err *err)
{
    struct err lost = ERR_INIT;

    if (await_vmm(ctx, vm, err) < 0)
        return -1;
    if (vm->vmm_exit.panicked)
        tell_fibers(vm, ctx);
    vm->gone = true;
    waitq_wake_all(&vm->gone_q);

    /* The limits count from here: it may have run for days. */
    struct ctx drain = ctx_with_timeout(ctx, VM_DRAIN_LIMIT);

    vm->guest->ops->close(vm->guest, "the VM has ended");
    if (vm->guest->ops->drain_log(&drain, vm->guest, &lost) < 0)
        log_debug(ctx, "the guest's log was not read to its end", F_ERR(&lost));

    /* A start that is under way fails by what has just been closed, and leaves the gate. */
    struct ctx quiet = ctx_with_timeout(ctx, VM_QUIET_LIMIT);
    AUTO(gate_leave) struct gate *held = gate_enter(&vm->gate, &quiet, "vm.release", err);

    if (!held || await_quiet(ctx, vm, err) < 0)
        return -1;
    return vm_release(ctx, vm, err);
}

static void reap_main(void *arg)
{
    struct vm *vm = arg;
    struct ctx root, ctx = vm_own_ctx(vm, &root);
    struct err err = ERR_INIT;

    if (take_back(&ctx, vm, &err) < 0)
        reap_failed(vm, &ctx, &err);
    else
        reaped(vm, &ctx);
}

void vm_reap(struct vm *vm)
{
    if (vm->reap == REAP_WATCHING || vm->reap == REAP_DONE)
        return;
    vm->reap = REAP_WATCHING;
    fiber_go(vm->loop, reap_main, vm, "vm.reap %s", vm->id ? vm->id : "");
}

/* Until the end of the round that is under way, however it ends. Another client may begin the
 * next one before we run: the count tells. */
static int await_reaped(struct ctx *ctx, struct vm *vm, struct err *err)
{
    unsigned failures = vm->reap_failures;

    while (vm->reap != REAP_DONE && vm->reap != REAP_FAILED && vm->reap_failures == failures)
        if (waitq_wait(ctx, &vm->reap_q, "the VM to end", err) < 0)
            return -1;
    if (vm->reap == REAP_DONE)
        return 0;
    *err = vm->reap_err;
    return -1;
}

int vm_wait(struct ctx *ctx, struct vm *vm, struct vm_exit *ret, struct err *err)
{
    if (vm->state == VM_NOT_CREATED)
        return err_set(err, ERR_STATE, "vm is NotCreated, there is nothing to wait for");
    if (await_reaped(ctx, vm, err) < 0)
        return err_wrap(err, "wait for the VM");
    *ret = vm->exit;
    return 0;
}

int vm_wait_gone(struct ctx *ctx, struct vm *vm, bool *ret_killed, struct err *err)
{
    while (!vm->gone && vm->state != VM_TERMINATED)
        if (waitq_wait(ctx, &vm->gone_q, "the VMM to end", err) < 0)
            return -1;
    *ret_killed = WIFSIGNALED(vm->vmm_exit.status) || vm->killed;
    return 0;
}

const char *vm_gone_why(const struct vm *vm)
{
    return vm->gone && !vm->vmm_exit.requested ? vm->vmm_exit.why : "";
}

bool vm_gone_by_oom(const struct vm *vm)
{
    return vm->gone && vm->vmm_exit.oom;
}

static void ask_for_end(struct vm *vm)
{
    if (!vm->failed && !vm->gone)
        vm->asked = true;
}

int vm_terminate(struct ctx *ctx, struct vm *vm, struct err *err)
{
    if (vm->state == VM_TERMINATED)
        return 0;
    if (vm->state == VM_NOT_CREATED && !vm->op && vm->reap == REAP_IDLE)
        return 0;
    ask_for_end(vm);
    vm_kill(vm, "the VM was terminated");
    if (!vm->op)
        vm_reap(vm); /* else the operation under way fails and does it */
    if (await_reaped(ctx, vm, err) < 0)
        return err_wrap(err, "terminate the VM");
    return 0;
}

/* True once the VMM is gone. */
static bool gone_within(struct ctx *ctx, struct vm *vm)
{
    struct err ignored = ERR_INIT;

    while (!vm->gone)
        if (waitq_wait(ctx, &vm->gone_q, "the VMM to end", &ignored) < 0)
            return false;
    return true;
}

/* In a fiber of its own: a client that goes away does not shorten the guest's grace. */
static void shutdown_main(void *arg)
{
    struct vm *vm = arg;
    struct ctx root, own = vm_own_ctx(vm, &root);
    struct ctx grace = ctx_with_timeout(&own, vm->grace_ns);
    struct err err = ERR_INIT;
    bool asked = vm->guest->ops->shutdown(&grace, vm->guest, NULL, false, &err) == 0;

    if (!asked)
        log_warn(&own, "the guest did not take the shutdown, quitting the VMM", F_ERR(&err));
    if (!vm->gone && !vm->killed && !(asked && gone_within(&grace, vm))) {
        struct ctx quit = ctx_with_timeout(&own, VM_QUIT_LIMIT);

        err_clear(&err);
        if (vm->vmm->ops->quit(&quit, vm->vmm, &err) < 0 || !gone_within(&quit, vm)) {
            log_warn(&own, "the VMM did not quit, killing it", F_ERR(&err));
            vm_kill(vm, "the VM did not shut down in time");
        }
    }
    vm_call_end(vm);
}

int vm_shutdown(struct ctx *ctx, struct vm *vm, uint64_t grace_ns, struct err *err)
{
    struct err busy = ERR_INIT;

    if (!vm->shutting_down) {
        if (vm_call_begin(vm, "shut down", &busy) < 0)
            return vm_terminate(ctx, vm, err);
        ask_for_end(vm);
        vm->shutting_down = true;
        vm->grace_ns = grace_ns;
        fiber_go(vm->loop, shutdown_main, vm, "vm.shutdown %s", vm->id);
    }
    if (await_reaped(ctx, vm, err) < 0)
        return err_wrap(err, "shut the VM down");
    return 0;
}
