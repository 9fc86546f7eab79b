/* sandbox_end.c - how a sandbox ends: by itself, by stop, by shutdown. */
#include "base/exit_code.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/waits.h"
#include "host/control/container.h"
#include "host/control/registry.h"
#include "host/control/sandbox_priv.h"
#include <signal.h>

void sandbox_ended(struct sandbox *s, uint32_t status)
{
    s->exit_status = s->asked ? 0 : status ? status : EXIT_LOST;
    s->exited_wall_ns = loop_wall(s->r->o.loop);
    fsm_step(&sandbox_fsm, &s->state, SANDBOX_EV_STOPPED);
    latch_set(&s->ended);
}

static bool runs(const struct container *c)
{
    return container_state(c) == CONTAINER_RUNNING || container_state(c) == CONTAINER_PAUSED;
}

static struct container *find_running(const struct registry *r)
{
    for (size_t i = 0; i < r->n_containers; i++)
        if (runs(r->containers[i]))
            return r->containers[i];
    return NULL;
}

int sandbox_release(struct ctx *ctx, struct sandbox *s, struct err *err)
{
    struct registry *r = s->r;
    struct container *c;

    if (!s->holder)
        return 0;
    vm_kill(r->vm, VM_END_KILL, "the sandbox has ended");
    if (vm_wait(ctx, r->vm, NULL, err) < 0)
        return -1;
    while ((c = find_running(r))) /* they end with their VM: this is a moment */
        if (container_wait_end(ctx, c, err) < 0)
            return -1;
    if (container_dismiss(ctx, s->holder, err) < 0)
        return -1;
    container_unref(TAKE_PTR(s->holder));
    while (r->n_containers == 0 && r->vm)
        if (waitq_wait(ctx, &r->changed, "the VM to be cleaned up", err) < 0)
            return -1;
    return 0;
}

static int release_rest(struct ctx *ctx, struct sandbox *s, struct err *err)
{
    AUTO(gate_leave) struct gate *held = NULL;

    if (!s->holder)
        return 0;
    held = gate_enter(&s->gate, ctx, "sandbox.stop", err);
    return held ? sandbox_release(ctx, s, err) : -1;
}

static void watch_main(void *arg)
{
    struct sandbox *s = arg;
    struct ctx ctx = ctx_background(s->r->o.loop, LK_SANDBOX_ID, s->id);
    struct process_view v = { .exit_status = EXIT_LOST };
    struct err err = ERR_INIT;
    struct process *init = container_process(s->holder, "", &err);

    (void)process_wait(&ctx, init, &v, &err); /* without a limit it cannot fail */
    if (!s->asked) {                          /* at once: what is left is released behind it */
        log_error(&ctx, "the sandbox's VM exited without a request",
                  F_U(LK_EXIT_STATUS, v.exit_status), F_REASON(REASON_VM_ENDED));
        sandbox_ended(s, v.exit_status);
    }

    struct ctx limited = ctx_with_timeout(&ctx, SANDBOX_STOP_LIMIT);

    err_clear(&err);
    if (release_rest(&limited, s, &err) < 0)
        log_error(&ctx, "releasing the sandbox is incomplete; StopSandbox will continue it",
                  F_ERR(&err));
    if (!s->ended.set)
        sandbox_ended(s, v.exit_status);
}

void sandbox_watch(struct sandbox *s)
{
    fibers_go(&s->r->fibers, s->r->o.loop, watch_main, s, FIBER_SANDBOX_WATCH "%s", s->id);
}

/* --- stop --- */

/* Those that run get a SIGTERM, and time to act on it. */
static void ask_containers(struct ctx *ctx, struct sandbox *s)
{
    struct ctx hurried = ctx_with_cancel(ctx, &s->hurry);
    struct ctx grace = ctx_with_timeout(&hurried, s->grace_ns);
    AUTO(registry_release_all) struct container **all = registry_all(s->r);
    struct err err = ERR_INIT;

    for (struct container **c = all; *c; c++)
        if (runs(*c) && !container_parts(*c)->hidden)
            (void)container_kill(&grace, *c, "", SIGTERM, false, &err); /* it may end just then */
    for (struct container **c = all; *c; c++)
        if (runs(*c) && !container_parts(*c)->hidden && container_wait_end(&grace, *c, &err) < 0)
            return;
}

static bool writes_host(const struct registry *r)
{
    bool found = false;

    for (size_t i = 0; i < r->n_containers; i++)
        found = found || container_parts(r->containers[i])->writes_host;
    return found;
}

/* In a fiber of its own: when the client disconnects, the containers keep their grace period. */
static void stop_main(void *arg)
{
    struct sandbox *s = arg;
    struct ctx ctx = ctx_background(s->r->o.loop, LK_SANDBOX_ID, s->id);
    struct err err = ERR_INIT;

    if (s->grace_ns && s->state == SANDBOX_READY)
        ask_containers(&ctx, s);

    struct ctx limited = ctx_with_timeout(&ctx, SANDBOX_STOP_LIMIT);

    /* What a guest holds back of shares that can be written must reach the host. */
    if (!writes_host(s->r))
        vm_kill(s->r->vm, VM_END_KILL, "the sandbox is being stopped");
    if (vm_stop(&limited, s->r->vm, VM_GRACE, &err) < 0)
        log_error(&ctx, "the sandbox's VM did not exit", F_ERR(&err));
    s->stopping = false;
}

/* A start that is under way, or is being cleaned up after it failed, ends the sandbox itself. */
static void end_unstarted(struct sandbox *s)
{
    if (s->state != SANDBOX_CREATED || s->starting)
        return;
    s->asked = true;
    sandbox_ended(s, 0);
}

int sandbox_stop(struct ctx *ctx, struct registry *r, const char *id, uint64_t grace_ns,
                 struct err *err)
{
    struct sandbox *s = sandbox_find(r, id, err);

    if (!s)
        return -1;
    end_unstarted(s);
    if (s->stopping && grace_ns == 0) /* who comes now does not wait for their time */
        cancel_fire(&s->hurry, ERR_CANCELLED, "the sandbox is to stop now");
    if (!s->ended.set && !s->stopping) {
        s->asked = s->stopping = true;
        s->grace_ns = grace_ns;
        fibers_go(&r->fibers, r->o.loop, stop_main, s, "sandbox.stop %s", s->id);
    }
    if (latch_wait(ctx, &s->ended, "the sandbox to stop", err) < 0 || release_rest(ctx, s, err) < 0)
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
    while (r->n_containers > 0)
        if (container_discard(ctx, r->containers[r->n_containers - 1], err) < 0)
            return err_wrap(err, "shut sandbox %s down", id);
    if (s->state == SANDBOX_STOPPED)
        fsm_step(&sandbox_fsm, &s->state, SANDBOX_EV_SHUT);
    return 0;
}

int sandbox_close(struct ctx *ctx, struct registry *r, struct err *err)
{
    struct sandbox *s = r->sandbox;

    if (!s)
        return 0;
    end_unstarted(s);
    if (latch_wait(ctx, &s->ended, WAIT_SANDBOX_END, err) < 0 || release_rest(ctx, s, err) < 0)
        return -1;
    if (s->state == SANDBOX_STOPPED)
        fsm_step(&sandbox_fsm, &s->state, SANDBOX_EV_SHUT);
    return 0;
}
