/* container_end.c - how containers end: out of memory, exit, deletion (gcs-protocol.md §5.3,
 * §5.4). */
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/str.h"
#include "guest/runtime/cgroup.h"
#include "guest/runtime/container_priv.h"
#include "guest/runtime/crun.h"
#include "guest/storage/path.h"
#include "guest/storage/storage.h"
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OOM_ANSWER_NS (2 * NS_PER_S)
#define KILLED_MS 30000

/* --- out of memory --- */

/* Wakes the waiters whenever the kernel has killed, until the container has exited. */
static void watch_oom(void *arg)
{
    struct container *c = arg;
    struct ctx ctx = ctx_until(c->table->opts.loop, &c->oom_stop);
    struct err err = ERR_INIT;
    uint64_t seen = cgroup_oom_kills(c->cgroup);

    waitq_wake_all(&c->oom);
    while (cgroup_wait_memory_event(&ctx, c->cgroup, seen, &err) == 0) {
        seen = cgroup_oom_kills(c->cgroup);
        waitq_wake_all(&c->oom);
    }
    container_unref(c);
}

static void need_oom_watch(struct container *c)
{
    if (c->oom_watched || process_exited(c->init))
        return;
    c->oom_watched = true;
    fiber_go(c->table->opts.loop, watch_oom, container_ref(c), "oom %s", c->id);
}

int container_wait_oom(struct ctx *ctx, struct container *c, bool *ret_oom, struct err *err)
{
    uint64_t kills;

    need_oom_watch(c);
    c->oom_waits++;
    while ((kills = cgroup_oom_kills(c->cgroup)) <= c->oom_told && !process_exited(c->init)) {
        if (waitq_wait(ctx, &c->oom, "memory to run out", err) < 0) {
            c->oom_waits--;
            return -1;
        }
    }
    *ret_oom = kills > c->oom_told;
    if (*ret_oom)
        c->oom_told = kills;
    return 0;
}

void container_oom_answered(void *container, bool sent)
{
    struct container *c = container;

    c->oom_waits--;
    waitq_wake_all(&c->oom);
    container_unref(c);
}

/* Who asked about memory is answered before the exit is told. */
static void settle_oom(struct container *c)
{
    struct ctx ctx = ctx_limited(c->table->opts.loop, OOM_ANSWER_NS);
    struct err ignored = ERR_INIT;

    cancel_fire(&c->oom_stop, ERR_CANCELLED, "container has exited");
    waitq_wake_all(&c->oom);
    while (c->oom_waits > 0)
        if (waitq_wait(&ctx, &c->oom, "answers about memory", &ignored) < 0)
            return;
}

/* --- exit --- */

/* Init has been reaped. What it leaves in a pid namespace that is not its own goes with it. */
void container_on_exit(void *arg)
{
    struct container *c = arg;

    if (!c->own_pid_ns) {
        int r = cgroup_kill(c->cgroup);
        if (r < 0 && r != -ENOENT)
            log_warn(NULL, "processes of a container outlive it", F_STR("cid", c->id),
                     F_STR("error", strerror(-r)));
    }
    settle_oom(c);
}

void container_on_done(void *arg)
{
    struct container *c = arg;
    uint32_t code = 0;

    /* While it is being created, create does this step itself. */
    if (c->state != CONTAINER_CREATING && c->state != CONTAINER_GONE)
        fsm_step(&container_fsm, &c->state, CONTAINER_EV_EXITED);
    (void)process_done(c->init, &code);
    log_info(NULL, "container exited", F_STR("cid", c->id), F_U("code", code));
    waitq_wake_all(&c->table->changed);
    container_unref(c);
}

/* --- deletion --- */

/* One that was created and never started is ended first. */
static int end_init(struct ctx *ctx, struct container *c, struct err *err)
{
    uint32_t code;

    process_kill(c->init);
    if (process_wait(ctx, c->init, KILLED_MS, &code, err) < 0)
        return err_wrap(err, "container %s does not end", c->id);
    return 0;
}

/* Each step may be repeated, so that a delete can be. */
static int take_down(struct ctx *ctx, struct container *c, struct err *err)
{
    processes_each(&c->execs, process_drop_output);
    if (c->crun_made && crun_delete(ctx, c->table->crun, c->id, false, err) < 0)
        return -1;
    c->crun_made = false;
    container_leave_network(c);
    int r = cgroup_remove(c->cgroup);
    if (r < 0)
        return err_sys(err, -r, "remove cgroup %s", c->cgroup);
    if (c->sandbox_made && sandbox_remove(ctx, c->bundle, c->kind == SPEC_SANDBOX, err) < 0)
        return -1;
    c->sandbox_made = false;
    /* The bundle is a directory of the scratch disk, bound (storage_combine), unless the disk
     * itself is mounted there. */
    if (c->scratch[0] && !path_is_below(c->scratch, c->bundle) &&
        storage_unmount(ctx, c->bundle, err) < 0)
        return -1;
    if (storage_remove_tree(ctx, c->scratch, err) < 0)
        return -1;
    return storage_remove_tree(ctx, c->bundle, err);
}

/* One that is being created is waited for: whoever asked for it may have gone, and undoes it. */
static struct container *get_when_made(struct ctx *ctx, struct containers *cs, const char *id,
                                       struct err *err)
{
    struct container *c;

    while ((c = containers_find(cs, id, err)) && c->state == CONTAINER_CREATING)
        if (waitq_wait(ctx, &cs->changed, "the container to be created", err) < 0)
            return NULL;
    return c ? container_ref(c) : NULL;
}

int container_delete(struct ctx *ctx, struct containers *cs, const char *id, struct err *err)
{
    AUTO(container_unref) struct container *c = get_when_made(ctx, cs, id, err);

    if (!c)
        return -1;
    AUTO(gate_leave) struct gate *held = gate_enter(&c->gate, ctx, "container.delete", err);
    if (!held)
        return -1;
    if (list_empty(&c->in_table)) /* by another while we waited */
        return err_set(err, ERR_NOT_FOUND, "no container %s", id);
    if (c->state == CONTAINER_CREATED && end_init(ctx, c, err) < 0)
        return -1;
    if (fsm_check(&container_fsm, c->state, CONTAINER_EV_DELETED, err) < 0)
        return err_wrap(err, "container %s is not stopped", id);
    if (take_down(ctx, c, err) < 0)
        return err_wrap(err, "delete container %s", id);

    AUTO_FREE char *parent = path_parent(c->bundle);
    if (str_starts(parent, "/run/gcs/pods/"))
        (void)rmdir(parent); /* the pod's, once it is empty */
    fsm_step(&container_fsm, &c->state, CONTAINER_EV_DELETED);
    container_forget(c);
    log_info(ctx, "container deleted", F_STR("cid", id));
    return 0;
}
