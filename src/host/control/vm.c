/* vm.c - the VM controller: create, start, queries. The end is in vm_end.c, processes in
 * vm_exec.c. */
#include "host/control/vm.h"
#include "base/fsm.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/str.h"
#include "host/bridge/guest.h"
#include "host/control/vm_priv.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void stage_told(void *arg, enum vm_stage stage)
{
    struct vm *vm = arg;

    if (stage <= vm->stage || stage >= VM_STAGE_COUNT)
        return; /* it only ever rises */
    vm->stage = stage;
    timeline_mark(vm->vmm->timeline, TRACK_HOST, vm_stage_name(stage), loop_now(vm->loop));
    if (vm->on_stage)
        vm->on_stage(vm->on_stage_arg, stage);
}

struct vm *vm_new(struct loop *loop, struct vmm *vmm, struct guest *guest)
{
    struct vm *vm = mem_new(struct vm);

    vm->loop = loop;
    vm->vmm = vmm;
    vm->guest = guest;
    gate_init(&vm->gate, "vm");
    cancel_init(&vm->kill, NULL);
    waitq_init(&vm->gone_q);
    waitq_init(&vm->reap_q);
    waitq_init(&vm->calls_q);
    latch_init(&vm->clock_set);
    vmm->on_stage = stage_told;
    vmm->on_stage_arg = vm;
    return vm;
}

void vm_free(struct vm *vm)
{
    if (!vm)
        return;
    if (vm->reap == REAP_WATCHING || vm->op || vm->calls > 0) {
        fprintf(stderr, "vm: %s freed while it is in use\n", vm->id ? vm->id : "(no id)");
        abort();
    }
    vm->vmm->on_stage = NULL;
    vm->guest->ops->free(vm->guest);
    vm->vmm->ops->free(vm->vmm);
    cancel_release(&vm->kill);
    free(vm->id);
    free(vm);
}

struct ctx vm_own_ctx(const struct vm *vm, struct ctx *root)
{
    *root = ctx_root(vm->loop);
    return ctx_with_id(root, "uvm-id", vm->id ? vm->id : "");
}

void vm_note_failure(struct vm *vm, const struct err *err)
{
    if (vm->asked || vm->failed)
        return;
    vm->failed = true;
    snprintf(vm->failure, sizeof(vm->failure), "%.255s", err->msg);
}

/* A changing operation: begun inside the gate, ended by a terminate or by its client. */
static struct ctx op_begin(struct ctx *ctx, struct vm *vm, struct cancel *cancel)
{
    cancel_init(cancel, ctx->cancel);
    vm->op = cancel;
    return ctx_with_cancel(ctx, cancel);
}

static void op_end(struct vm *vm, struct cancel *cancel)
{
    vm->op = NULL;
    cancel_release(cancel);
}

static int create_failed(struct vm *vm, struct err *err)
{
    struct ctx root, own = vm_own_ctx(vm, &root);
    struct err release = ERR_INIT;
    int r = vm_release(&own, vm, &release); /* the client may be gone; this is not its business */

    err_wrap(err, "create the VM");
    if (r == 0 && !vm->killed) {
        fsm_step(&vm_fsm, &vm->state, VM_EV_CREATE_FAILED);
        free(TAKE_PTR(vm->id));
        return -1;
    }
    vm_note_failure(vm, err);
    vm_kill(vm, "its creation failed");
    vm_reap(vm);
    if (r < 0)
        err_wrap(err, "%s; and then", release.msg);
    return -1;
}

int vm_create(struct ctx *ctx, struct vm *vm, const struct vm_doc *doc, struct err *err)
{
    AUTO(gate_leave) struct gate *held = gate_enter(&vm->gate, ctx, "vm.create", err);
    struct cancel cancel;
    int r;

    if (!held)
        return -1;
    if (vm->killed)
        return err_set(err, ERR_UNAVAILABLE, "create the VM: it is being terminated");
    if (fsm_check(&vm_fsm, vm->state, VM_EV_CREATED, err) < 0)
        return -1;
    vm->id = str_dup(doc->id);

    struct ctx inner = op_begin(ctx, vm, &cancel);
    int span = timeline_begin(vm->vmm->timeline, TRACK_HOST, "create", loop_now(vm->loop));

    r = vm->vmm->ops->create(&inner, vm->vmm, doc, err);
    timeline_end(vm->vmm->timeline, span, loop_now(vm->loop));
    if (r == 0 && vm->killed)
        r = err_set(err, ERR_UNAVAILABLE, "it was terminated meanwhile");
    if (r < 0)
        r = create_failed(vm, err);
    else
        fsm_step(&vm_fsm, &vm->state, VM_EV_CREATED);
    op_end(vm, &cancel);
    return r;
}

/* A clone knows when its VMM was started, not how long its restore took. What is set is late by
 * the way there: on a machine that is busy just then it is set again. */
static void clock_main(void *arg)
{
    struct vm *vm = arg;
    struct ctx root, own = vm_own_ctx(vm, &root), limited = ctx_with_timeout(&own, VM_CLOCK_LIMIT);
    int span = timeline_begin(vm->vmm->timeline, TRACK_HOST, "set clock", loop_now(vm->loop));
    struct err err = ERR_INIT;
    uint64_t took = UINT64_MAX;

    for (int i = 0; took > VM_CLOCK_GOOD && i < VM_CLOCK_TRIES; i++) {
        uint64_t began = loop_now(vm->loop);

        if (vm->guest->ops->set_clock(&limited, vm->guest, loop_wall(vm->loop), &err) < 0) {
            if (!vm->killed && !vm->gone)
                log_warn(&own, "the clone's clock may be behind", F_ERR(&err));
            break;
        }
        took = loop_now(vm->loop) - began;
    }
    timeline_end(vm->vmm->timeline, span, loop_now(vm->loop));
    latch_set(&vm->clock_set);
    vm_call_end(vm);
}

/* Beside everything else: only a program that runs can see it, and vm_await_clock holds it back. */
static void set_clock(struct vm *vm)
{
    struct vmm_info info = { 0 };

    vm->vmm->ops->info(vm->vmm, &info);
    if (!info.clone) {
        latch_set(&vm->clock_set);
        return;
    }
    vm->calls++;
    fiber_go(vm->loop, clock_main, vm, "vm.set-clock %s", vm->id);
}

int vm_await_clock(struct ctx *ctx, struct vm *vm, struct err *err)
{
    return latch_wait(ctx, &vm->clock_set, "the guest's clock to be set", err);
}

/* The way up. Everything after start is also watched by the reaper. */
static int boot(struct ctx *ctx, struct vm *vm, struct err *err)
{
    struct timeline *t = vm->vmm->timeline;
    int span, r;

    if (vm->guest->ops->prepare(ctx, vm->guest, err) < 0)
        return err_wrap(err, "open the guest's ports");
    span = timeline_begin(t, TRACK_HOST, "start VMM", loop_now(vm->loop));
    vm->started = true;
    r = vm->vmm->ops->start(ctx, vm->vmm, err);
    timeline_end(t, span, loop_now(vm->loop));
    if (r < 0)
        return err_wrap(err, "start the VMM");
    vm->started_wall_ns = loop_wall(vm->loop);
    vm_reap(vm);
    stage_told(vm, VM_STAGE_SPAWNED);
    span = timeline_begin(t, TRACK_HOST, "wait for agent", loop_now(vm->loop));
    r = vm->guest->ops->connect(ctx, vm->guest, err);
    timeline_end(t, span, loop_now(vm->loop));
    if (r < 0)
        return err_wrap(err, "connect to the agent");
    set_clock(vm);
    if (vm->killed || vm->gone)
        return err_set(err, ERR_UNAVAILABLE, "the VM ended just then");
    return 0;
}

/* The link to the guest breaks when the VMM ends, and that is noticed first. */
static void await_reason(struct vm *vm, const struct err *err)
{
    struct ctx root, own = vm_own_ctx(vm, &root), limited = ctx_with_timeout(&own, VM_WHY_LIMIT);
    struct err ignored = ERR_INIT;
    bool killed;

    if (err->code == ERR_UNAVAILABLE && !vm->killed && vm->reap == REAP_WATCHING)
        (void)vm_wait_gone(&limited, vm, &killed, &ignored);
}

static int start_failed(struct vm *vm, struct err *err)
{
    const char *why = vm->vmm_exit.why;

    await_reason(vm, err);
    if (vm->gone && !vm->killed && why[0])
        err_set(err, ERR_UNAVAILABLE, "the VMM ended: %s", why);
    else if (vm->asked)
        err_set(err, ERR_UNAVAILABLE, "the VM was terminated");
    if (vm->stage == VM_STAGE_NONE)
        err_wrap(err, "boot stopped before the VMM ran");
    else
        err_wrap(err, "boot stopped at stage '%s'", vm_stage_name(vm->stage));
    vm_note_failure(vm, err);
    /* The reaper may have been quicker, if the VMM ended by itself. */
    if (vm->state == VM_CREATED)
        fsm_step(&vm_fsm, &vm->state, VM_EV_START_FAILED);
    vm_kill(vm, "its start failed");
    vm_reap(vm);
    return -1;
}

int vm_start(struct ctx *ctx, struct vm *vm, struct err *err)
{
    AUTO(gate_leave) struct gate *held = gate_enter(&vm->gate, ctx, "vm.start", err);
    struct cancel cancel;
    int r;

    if (!held)
        return -1;
    if (vm->state != VM_TERMINATED && vm->state != VM_INVALID && (vm->killed || vm->gone))
        return err_set(err, ERR_UNAVAILABLE, "start the VM: it is going away");
    if (vm->state == VM_RUNNING)
        return 0;
    if (fsm_check(&vm_fsm, vm->state, VM_EV_STARTED, err) < 0)
        return -1;

    struct ctx limited = ctx_with_timeout(ctx, VM_START_LIMIT);
    struct ctx inner = op_begin(&limited, vm, &cancel);

    r = boot(&inner, vm, err);
    if (r < 0) {
        r = start_failed(vm, err);
    } else {
        fsm_step(&vm_fsm, &vm->state, VM_EV_STARTED);
        vm->ran = true;
        log_info(ctx, "vm started", F_STR("uvm-id", vm->id));
    }
    op_end(vm, &cancel);
    return r;
}

int vm_call_begin(struct vm *vm, const char *what, struct err *err)
{
    if (vm->state != VM_RUNNING)
        return err_set(err, ERR_STATE, "vm is %s, cannot %s", vm_state_name(vm->state), what);
    if (vm->killed || vm->gone)
        return err_set(err, ERR_UNAVAILABLE, "%s: the VM is going away", what);
    vm->calls++;
    return 0;
}

void vm_call_end(struct vm *vm)
{
    if (--vm->calls == 0)
        waitq_wake_all(&vm->calls_q);
}

enum vm_state vm_state(const struct vm *vm)
{
    return vm->state;
}

const char *vm_state_name(enum vm_state s)
{
    return fsm_state_name(&vm_fsm, s);
}

enum vm_stage vm_stage(const struct vm *vm)
{
    return vm->stage;
}

int vm_exit_status(const struct vm *vm, struct vm_exit *ret, struct err *err)
{
    if (vm->state != VM_TERMINATED)
        return err_set(err, ERR_STATE, "vm is %s and has no exit status yet",
                       vm_state_name(vm->state));
    *ret = vm->exit;
    return 0;
}

uint64_t vm_started_at(const struct vm *vm)
{
    return vm->started_wall_ns;
}

struct timeline *vm_timeline(struct vm *vm)
{
    return vm->vmm->timeline;
}

void vm_info(struct vm *vm, struct vmm_info *ret)
{
    *ret = (struct vmm_info){ 0 };
    vm->vmm->ops->info(vm->vmm, ret);
}

void vm_console_tail(struct vm *vm, size_t max, struct sbuf *out)
{
    vm->vmm->ops->console_tail(vm->vmm, max, out);
}

void vm_on_stage(struct vm *vm, void (*fn)(void *arg, enum vm_stage stage), void *arg)
{
    vm->on_stage = fn;
    vm->on_stage_arg = arg;
}

void vm_on_exit(struct vm *vm, void (*fn)(void *arg, const struct vm_exit *e), void *arg)
{
    vm->on_exit = fn;
    vm->on_exit_arg = arg;
}
