/* sandbox_end.c - how a sandbox ends: by itself, by stop, by shutdown. */
#include "base/log.h"
#include "base/loop.h"
#include "host/control/registry_priv.h"
#include "host/control/sandbox_priv.h"
#include "host/control/vm.h"
#include <signal.h>

#define EXIT_LOST 255u

void sandbox_ended(struct sandbox *s, uint32_t status)
{
    s->exit_status = s->asked ? 0 : status ? status : EXIT_LOST;
    s->exited_wall_ns = loop_wall(s->r->o.loop);
    fsm_step(&sandbox_fsm, &s->state, SANDBOX_EV_STOPPED);
    latch_set(&s->ended);
}

int sandbox_kill_vm(struct ctx *ctx, struct sandbox *s, struct err *err)
{
    vm_kill(s->r->vm);
    return vm_wait(ctx, s->r->vm, NULL, err);
}

/* One that still runs, besides the pod itself. Whoever waits for it looks again. */
static struct container *find_running(const struct sandbox *s, bool unasked)
{
    LIST_EACH (&s->r->containers, pos) {
        struct container *c = LIST_ENTRY(pos, struct container, node);

        if (!c->hidden && c->init && c->init->state == PROCESS_ST_RUNNING &&
            !(unasked && c->asked_to_end))
            return c;
    }
    return NULL;
}

int sandbox_take_back(struct ctx *ctx, struct sandbox *s, struct err *err)
{
    struct registry *r = s->r;
    struct process_view ignored;
    struct container *c;

    if (!s->pod)
        return 0;
    if (sandbox_kill_vm(ctx, s, err) < 0)
        return -1;
    while ((c = find_running(s, false))) /* they end with their VM: this is a moment */
        if (process_wait(ctx, c->init, &ignored, err) < 0 && err->code != ERR_NOT_FOUND)
            return -1;

    AUTO(container_unref) struct container *pod = container_ref(s->pod); /* outlives its gate */
    AUTO(gate_leave) struct gate *held = gate_enter(&pod->gate, ctx, "sandbox.release", err);

    if (!held || container_release(ctx, s->pod, err) < 0)
        return -1;
    registry_drop(r, s->pod);
    container_unref(TAKE_PTR(s->pod));
    while (r->n_containers == 0 && r->vm)
        if (waitq_wait(ctx, &r->changed, "the VM to be taken back", err) < 0)
            return -1;
    return 0;
}

static int take_back_rest(struct ctx *ctx, struct sandbox *s, struct err *err)
{
    AUTO(gate_leave) struct gate *held = NULL;

    if (!s->pod)
        return 0;
    held = gate_enter(&s->gate, ctx, "sandbox.stop", err);
    return held ? sandbox_take_back(ctx, s, err) : -1;
}

static void watch_main(void *arg)
{
    struct sandbox *s = arg;
    struct ctx root, ctx = sandbox_ctx(s, &root);
    struct process_view v = { .exit_status = EXIT_LOST };
    struct err err = ERR_INIT;

    (void)process_wait(&ctx, s->pod->init, &v, &err); /* without a limit it cannot fail */
    if (!s->asked) {                                  /* whoever waits hears of it at once */
        log_error(&ctx, "the sandbox has ended by itself", F_U("status", v.exit_status));
        sandbox_ended(s, v.exit_status);
    }

    struct ctx limited = ctx_with_timeout(&ctx, SANDBOX_STOP_LIMIT);

    err_clear(&err);
    if (take_back_rest(&limited, s, &err) < 0)
        log_error(&ctx, "the sandbox is not taken back; stop goes on with it", F_ERR(&err));
    if (!s->ended.set)
        sandbox_ended(s, v.exit_status);
}

void sandbox_watch(struct sandbox *s)
{
    group_go(&s->r->fibers, s->r->o.loop, watch_main, s, "sandbox.watch %s", s->id);
}

/* --- stop --- */

/* Those that run get a SIGTERM, and time to take it. */
static void ask_containers(struct ctx *ctx, struct sandbox *s)
{
    struct ctx hurried = ctx_with_cancel(ctx, &s->hurry);
    struct ctx grace = ctx_with_timeout(&hurried, s->grace_ns);
    struct process_view ignored;
    struct err err = ERR_INIT;
    struct container *c;

    while ((c = find_running(s, true))) {
        c->asked_to_end = true;
        (void)container_kill(&grace, c, "", SIGTERM, false, &err); /* it may end just then */
    }
    while ((c = find_running(s, false)))
        if (process_wait(&grace, c->init, &ignored, &err) < 0 && err.code != ERR_NOT_FOUND)
            return;
}

static bool writes_host(const struct registry *r)
{
    LIST_EACH (&r->containers, pos) {
        if (LIST_ENTRY(pos, struct container, node)->writes_host)
            return true;
    }
    return false;
}

/* In a fiber of its own: a client that goes away shortens nobody's grace. */
static void stop_main(void *arg)
{
    struct sandbox *s = arg;
    struct ctx root, ctx = sandbox_ctx(s, &root);
    struct err err = ERR_INIT;

    if (s->grace_ns && s->state == SANDBOX_READY)
        ask_containers(&ctx, s);

    struct ctx limited = ctx_with_timeout(&ctx, SANDBOX_STOP_LIMIT);

    /* What a guest holds back of shares that can be written must reach the host. */
    if ((writes_host(s->r) ? vm_stop(&limited, s->r->vm, VM_GRACE, &err)
                           : sandbox_kill_vm(&limited, s, &err)) < 0)
        log_error(&ctx, "the sandbox's VM does not end", F_ERR(&err));
    s->stopping = false;
}

int sandbox_stop(struct ctx *ctx, struct registry *r, const char *id, uint64_t grace_ns,
                 struct err *err)
{
    struct sandbox *s = sandbox_find(r, id, err);

    if (!s)
        return -1;
    if (s->state == SANDBOX_CREATED && !s->starting) {
        s->asked = true;
        sandbox_ended(s, 0);
    }
    if (s->stopping && grace_ns == 0) /* who comes now does not wait for their time */
        cancel_fire(&s->hurry, ERR_CANCELLED, "the sandbox is to stop now");
    if (!s->ended.set && !s->stopping) {
        s->asked = s->stopping = true;
        s->grace_ns = grace_ns;
        group_go(&r->fibers, r->o.loop, stop_main, s, "sandbox.stop %s", s->id);
    }
    if (latch_wait(ctx, &s->ended, "the sandbox to stop", err) < 0 ||
        take_back_rest(ctx, s, err) < 0)
        return err_wrap(err, "stop sandbox %s", id);
    return 0;
}

int sandbox_shutdown(struct ctx *ctx, struct registry *r, const char *id, struct err *err)
{
    struct sandbox *s = sandbox_find(r, id, err);
    AUTO(gate_leave) struct gate *held = NULL;

    if (!s || sandbox_stop(ctx, r, id, 0, err) < 0)
        return -1;
    held = gate_enter(&s->gate, ctx, "sandbox.shutdown", err);
    if (!held)
        return -1;
    while (!list_empty(&r->containers)) {
        AUTO(container_unref)
        struct container *c = container_ref(LIST_ENTRY(r->containers.prev, struct container, node));
        struct registry_deleted deleted;

        if (registry_delete(ctx, r, c->id, "", &deleted, err) < 0 && err->code != ERR_NOT_FOUND)
            return err_wrap(err, "shut sandbox %s down", id);
        err_clear(err);
    }
    if (s->state == SANDBOX_STOPPED)
        fsm_step(&sandbox_fsm, &s->state, SANDBOX_EV_SHUT);
    return 0;
}

int sandbox_close(struct ctx *ctx, struct registry *r, struct err *err)
{
    struct sandbox *s = r->sandbox;

    if (!s)
        return 0;
    if (s->state == SANDBOX_CREATED && !s->starting) {
        s->asked = true;
        sandbox_ended(s, 0);
    }
    if (latch_wait(ctx, &s->ended, "the sandbox to end", err) < 0 ||
        take_back_rest(ctx, s, err) < 0)
        return -1;
    if (s->state == SANDBOX_STOPPED)
        fsm_step(&sandbox_fsm, &s->state, SANDBOX_EV_SHUT);
    return 0;
}
