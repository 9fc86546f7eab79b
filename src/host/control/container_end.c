/* container_end.c - how a container's processes end: execs before init, OOM before both; also
 * without a guest to report it. */
#include "base/exit_code.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/waits.h"
#include "host/bridge/guest.h"
#include "host/control/container_priv.h"
#include "host/control/events.h"
#include "host/jail/anchor.h"
#include <stdlib.h>

bool container_has_running_execs(const struct container *c)
{
    for (size_t i = 0; i < c->n_execs; i++)
        if (process_is_alive(c->execs[i]))
            return true;
    return false;
}

/* --- out of memory --- */

static void publish_oom(struct container *c)
{
    if (!container_has_ended(c)) /* else it comes too late */
        container_push(c, EVENT_OOM);
}

static void watch_oom(struct ctx *ctx, struct container *c)
{
    struct err err = ERR_INIT;
    bool oom = true;

    AUTO(vm_leave) const struct vm_parts *in = vm_enter(c->p.pod->vm, "watch for OOM", &err);

    while (in && oom &&
           in->guest->ops->wait_oom(ctx, in->guest, c->p.guest_id, &oom, &c->oom_wait_id, &err) ==
               0) {
        if (oom) {
            if (bucket_try(&c->oom_rate, CONTAINER_OOM_EVERY_S, loop_now(ctx->loop)))
                publish_oom(c);
            else
                c->oom_untold++;
            (void)fiber_sleep(ctx, CONTAINER_OOM_PAUSE, &err); /* whatever the guest says */
        }
    }
    if (c->oom_untold > 0)
        log_warn(ctx, "some OOM events of the container were not published",
                 F_U("more", c->oom_untold));
}

static void oom_main(void *arg)
{
    AUTO(container_unref) struct container *c = arg;
    struct ctx ctx = ctx_background(c->r->o.loop, LK_CID, c->p.id);

    watch_oom(&ctx, c);
    c->oom_watched = false;
    waitq_wake_all(&c->changed);
}

void container_watch_oom(struct container *c)
{
    /* Each event is worth the seconds after which there may be another. */
    c->oom_rate.burst = CONTAINER_OOM_BURST * CONTAINER_OOM_EVERY_S;
    c->oom_rate.per_s = 1;
    c->oom_watched = true;
    fibers_go(&c->r->fibers, c->r->o.loop, oom_main, container_ref(c), FIBER_OOM "%s", c->p.id);
}

/* --- execs first --- */

static void await_execs(struct ctx *ctx, struct container *c, uint64_t limit, uint32_t status)
{
    struct ctx limited = ctx_with_timeout(ctx, limit);
    struct err err = ERR_INIT;

    while (container_has_running_execs(c) &&
           waitq_wait(&limited, &c->changed, "execs to end", &err) == 0)
        ;
    for (size_t i = 0; i < c->n_execs; i++)
        if (process_state(c->execs[i]) == PROCESS_ST_RUNNING) {
            log_warn(ctx,
                     "the guest reported no exit of an exec, although its container has exited",
                     F_STR(LK_EID, process_exec_id(c->execs[i])));
            process_end(c->execs[i], status, true);
        }
}

void container_settle_execs(struct ctx *ctx, struct container *c)
{
    await_execs(ctx, c, CONTAINER_LOST_EXECS_LIMIT, EXIT_KILLED);
}

void container_process_exits(struct ctx *ctx, struct container *c, struct process *p,
                             uint32_t status, bool lost)
{
    struct ctx limited = ctx_with_timeout(ctx, CONTAINER_OOM_LIMIT);
    struct err err = ERR_INIT;

    if (!process_is_init(p))
        return;
    if (lost && vm_ended_by_oom(c->p.pod->vm))
        publish_oom(c);
    /* The fiber that watches for OOM has the guest's last word on it. */
    while (!lost && c->oom_watched &&
           waitq_wait(&limited, &c->changed, "the guest's report of OOM", &err) == 0)
        ;
    await_execs(ctx, c, lost ? CONTAINER_LOST_EXECS_LIMIT : CONTAINER_EXECS_LIMIT,
                lost ? status : EXIT_KILLED);
}

void container_process_changed(struct container *c, struct process *p)
{
    enum process_state state = process_state(p);

    waitq_wake_all(&c->changed);
    if (p != c->p.init)
        return;
    if (state == PROCESS_ST_RUNNING) {
        fsm_step(&container_fsm, &c->p.state, CONTAINER_EV_STARTED);
        container_watch_oom(c);
    } else if (state == PROCESS_ST_TERMINATED) {
        if (fsm_check(&container_fsm, c->p.state, CONTAINER_EV_EXITED, &(struct err)ERR_INIT) == 0)
            fsm_step(&container_fsm, &c->p.state, CONTAINER_EV_EXITED);
        if (c->anchor)
            anchor_end(c->anchor);
    }
}

/* --- never started --- */

static void end_created(struct container *c)
{
    if (!c->p.init) /* deleted meanwhile */
        return;
    process_close_io(c->p.init);
    process_end(c->p.init, c->end_status, true);
}

static void end_created_main(void *arg)
{
    AUTO(container_unref) struct container *c = arg;
    struct ctx ctx = ctx_background(c->r->o.loop, LK_CID, c->p.id);
    struct err err = ERR_INIT;

    if (c->end_ask) {
        AUTO(vm_leave)
        const struct vm_parts *in = vm_enter(c->p.pod->vm, "kill a container", &err);
        struct ctx limited = ctx_with_timeout(&ctx, CONTAINER_EXECS_LIMIT);

        /* With the first process of its pid namespace all the others end. */
        if (in)
            (void)in->guest->ops->shutdown(&limited, in->guest, c->p.guest_id, true, &err);
    }
    await_execs(&ctx, c, c->end_ask ? CONTAINER_EXECS_LIMIT : CONTAINER_LOST_LIMIT, c->end_status);
    end_created(c);
}

void container_end_created(struct container *c, uint32_t status, bool ask)
{
    if (c->ending)
        return;
    c->end_status = status;
    c->end_ask = ask;
    c->ending = container_has_running_execs(c);
    if (c->ending)
        fibers_go(&c->r->fibers, c->r->o.loop, end_created_main, container_ref(c), "end %s",
                  c->p.id);
    else
        end_created(c);
}

void container_vm_died(struct container *c, bool killed)
{
    if (c->p.state == CONTAINER_CREATED && !process_is_starting(c->p.init))
        container_end_created(c, killed ? EXIT_KILLED : EXIT_LOST, false);
}

int container_wait_end(struct ctx *ctx, struct container *c, struct err *err)
{
    struct process_view ignored;

    if (!c->p.init ||
        !(process_state(c->p.init) == PROCESS_ST_RUNNING || container_has_running_execs(c)) ||
        process_wait(ctx, c->p.init, &ignored, err) == 0)
        return 0;
    if (err->code != ERR_NOT_FOUND)
        return -1;
    err_clear(err); /* deleted meanwhile */
    return 0;
}
