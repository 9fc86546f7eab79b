/* container_release.c - Delete: releases what container_create made, in reverse order. Each step
 * clears its note when it is done, so that a repetition goes on where it stopped. What was in a
 * guest or VM that is gone went with it. */
#include "base/exit_code.h"
#include "base/log.h"
#include "base/loop.h"
#include "host/bridge/guest.h"
#include "host/control/container_priv.h"
#include "host/control/events.h"
#include "host/device/plan9.h"
#include "host/device/scsi.h"
#include "host/device/vpci.h"
#include "host/jail/anchor.h"
#include <string.h>

/* 0 also if there is nobody any more who could have it. */
static int unless_gone(const struct container *c, int r, struct err *err)
{
    const struct guest *guest = c->pod->vm ? vm_parts(c->pod->vm)->guest : NULL;

    if (r == 0 || err->code != ERR_UNAVAILABLE)
        return r;
    if (guest && vm_state(c->pod->vm) == VM_RUNNING && guest->ops->connected(guest))
        return r;
    err_clear(err);
    return 0;
}

static int uncombine(struct ctx *ctx, struct container *c, struct err *err)
{
    const struct guest_layers l = { .container = c->guest_id,
                                    .root_path = c->root_path,
                                    .scratch_path = c->scratch_path,
                                    .layers = (const char *const *)c->layers.v };

    if (!c->combined)
        return 0;

    AUTO(vm_leave)
    const struct vm_parts *in = vm_enter(c->pod->vm, "release a root file system", err);
    int r = in ? in->guest->ops->uncombine_layers(ctx, in->guest, &l, err) : -1;

    if (unless_gone(c, r, err) < 0)
        return err_wrap(err, "release the root file system");
    c->combined = false;
    return 0;
}

static int delete_in_guest(struct ctx *ctx, struct container *c, struct err *err)
{
    struct err none = ERR_INIT;

    if (!c->in_guest)
        return 0;

    AUTO(vm_leave) const struct vm_parts *in = vm_enter(c->pod->vm, "delete a container", err);
    int r = in ? in->guest->ops->delete_container(ctx, in->guest, c->guest_id, err) : -1;

    if (in && r < 0 && err->code == ERR_STATE) {
        /* It runs, though the guest said that its start failed. */
        (void)in->guest->ops->shutdown(ctx, in->guest, c->guest_id, true, &none);
        err_clear(err);
        r = in->guest->ops->delete_container(ctx, in->guest, c->guest_id, err);
    }
    if (unless_gone(c, r, err) < 0)
        return err_wrap(err, "delete it in the guest");
    c->in_guest = false;
    return 0;
}

static int detach_disks(struct ctx *ctx, struct container *c, struct err *err)
{
    while (c->n_disks > 0) {
        struct err gone = ERR_INIT;
        AUTO(vm_leave) const struct vm_parts *in = vm_enter(c->pod->vm, "release a disk", &gone);

        (void)in; /* NULL: it is only forgotten */

        int r = scsi_unmap(ctx, vm_parts(c->pod->vm)->scsi, c->disks[c->n_disks - 1], err);

        if (unless_gone(c, r, err) < 0)
            return err_wrap(err, "release a disk");
        c->n_disks--;
    }
    return 0;
}

static int unshare(struct ctx *ctx, struct container *c, uint64_t id, struct err *err)
{
    struct err gone = ERR_INIT;
    AUTO(vm_leave) const struct vm_parts *in = vm_enter(c->pod->vm, "release a share", &gone);

    (void)in; /* NULL: it is only forgotten */
    return unless_gone(c, plan9_unmap(ctx, vm_parts(c->pod->vm)->plan9, id, err), err);
}

static int unshare_all(struct ctx *ctx, struct container *c, struct err *err)
{
    while (c->n_shares > 0) {
        if (unshare(ctx, c, c->shares[c->n_shares - 1], err) < 0)
            return err_wrap(err, "release a mount");
        c->n_shares--;
    }
    if (c->root_shared) {
        if (unshare(ctx, c, c->root_share, err) < 0)
            return err_wrap(err, "release the share of the root file system");
        c->root_shared = false;
    }
    return 0;
}

static int remove_devices(struct ctx *ctx, struct container *c, struct err *err)
{
    for (; c->n_devices > 0; c->n_devices--) {
        struct err gone = ERR_INIT;
        AUTO(vm_leave) const struct vm_parts *in = vm_enter(c->pod->vm, "remove a device", &gone);

        (void)in; /* NULL: it is only forgotten */

        int r = vpci_remove(ctx, vm_parts(c->pod->vm)->vpci, c->devices[c->n_devices - 1], err);

        if (unless_gone(c, r, err) < 0)
            return err_wrap(err, "release a PCI device");
    }
    return 0;
}

static int drop_anchor(struct ctx *ctx, struct container *c, struct err *err)
{
    if (!c->anchor)
        return 0;
    anchor_end(c->anchor);
    while (c->anchor_watched)
        if (waitq_wait(ctx, &c->changed, "the container's process on the host to end", err) < 0)
            return -1;
    anchor_free(TAKE_PTR(c->anchor));
    return 0;
}

static bool is_starting(const struct container *c)
{
    bool found = c->init && process_is_starting(c->init);

    for (size_t i = 0; i < c->n_execs; i++)
        found = found || process_is_starting(c->execs[i]);
    return found;
}

int container_release(struct ctx *ctx, struct container *c, struct err *err)
{
    while (is_starting(c))
        if (waitq_wait(ctx, &c->changed, "processes that are being started", err) < 0)
            return -1;
    if (uncombine(ctx, c, err) < 0 || delete_in_guest(ctx, c, err) < 0 ||
        remove_devices(ctx, c, err) < 0 || detach_disks(ctx, c, err) < 0 ||
        unshare_all(ctx, c, err) < 0 ||
        (c == c->pod->holder && pod_detach_network(ctx, c->pod, err) < 0) ||
        drop_anchor(ctx, c, err) < 0 || vm_drop_cgroup(ctx, &c->cgroup, err) < 0) {
        /* To a client "not found" means the container, which it would then forget. */
        if (err->code == ERR_NOT_FOUND)
            err->code = ERR_INTERNAL;
        return -1;
    }
    return 0;
}

/* --- delete --- */

static void fill_deleted(const struct process *p, struct container_deleted *ret)
{
    struct process_view v;

    process_view(p, &v);
    *ret = (struct container_deleted){ v.pid, v.exit_status, v.exited_wall_ns };
}

static void forget(struct container *c, struct process *p)
{
    size_t i = 0;

    while (i < c->n_execs && c->execs[i] != p)
        i++;
    if (p == c->init)
        c->init = NULL;
    else if (i < c->n_execs)
        memmove(&c->execs[i], &c->execs[i + 1], (--c->n_execs - i) * sizeof(struct process *));
    process_forget(p);
    waitq_wake_all(&c->changed);
}

void container_forget(struct container *c)
{
    c->listed = false;
    pod_leave(c->pod, c);
    while (c->n_execs > 0)
        forget(c, c->execs[0]);
    if (c->init)
        forget(c, c->init);
}

static int delete_exec(struct container *c, const char *exec_id, struct container_deleted *ret,
                       struct err *err)
{
    struct process *p = container_process(c, exec_id, err);

    if (!p)
        return -1;
    if (process_is_alive(p))
        return err_set(err, ERR_STATE, "exec %s of container %s runs: kill it first", exec_id,
                       c->id);
    process_end(p, 0, false); /* never started */
    fill_deleted(p, ret);
    forget(c, p);
    return 0;
}

/* With the last pod its VM goes: nothing in there needs to be undone one by one, unless the guest
 * may still hold back what belongs on the host. */
static bool all_goes(const struct container *c)
{
    for (size_t i = 0; i < c->r->n_containers; i++) {
        const struct container *other = c->r->containers[i];

        if (other->writes_host || other->state == CONTAINER_INVALID ||
            (other != c && (c != c->pod->holder || other->pod != c->pod)))
            return false;
    }
    return true;
}

/* Containers of a pod that have ended and were not deleted: that failed, and the client has
 * forgotten them. They must not keep the pod. */
static int delete_members(struct ctx *ctx, struct container *holder, struct err *err)
{
    struct container *c;

    while (holder == holder->pod->holder && (c = pod_other(holder->pod, holder, false))) {
        log_warn(ctx, "deleting an ended container with its pod", F_STR("cid", c->id));
        if (container_discard(ctx, c, err) < 0)
            return -1;
    }
    return 0;
}

static int refuse_running(const struct container *c, struct err *err)
{
    if (c->state == CONTAINER_RUNNING || c->state == CONTAINER_PAUSED)
        return err_set(err, ERR_STATE, "container %s runs: kill it first", c->id);
    return 0;
}

static int delete_container(struct ctx *ctx, struct container *c, struct container_deleted *ret,
                            struct err *err)
{
    const struct container *alive = c == c->pod->holder ? pod_other(c->pod, c, true) : NULL;

    if (refuse_running(c, err) < 0)
        return -1;
    if (c->state == CONTAINER_CREATED && container_has_running_execs(c))
        return err_set(err, ERR_STATE, "an exec of container %s runs: kill it first", c->id);
    if (alive)
        return err_set(err, ERR_STATE, "pod %s still has container %s", c->id, alive->id);
    /* From here on it can only go. Never started: killed. */
    if (c->state == CONTAINER_CREATED)
        process_end(c->init, EXIT_KILLED, false);

    bool all = all_goes(c);

    if (all)
        vm_kill(c->pod->vm);
    if ((all && vm_wait(ctx, c->pod->vm, NULL, err) < 0) || delete_members(ctx, c, err) < 0 ||
        container_release(ctx, c, err) < 0)
        return err_wrap(err, "delete container %s", c->id);
    /* A start that failed stops the container, whatever an exec in it still does. */
    container_settle_execs(ctx, c);
    *ret = (struct container_deleted){ 0 };
    if (c->init)
        fill_deleted(c->init, ret);
    if (c->state != CONTAINER_INVALID) /* else its creation was never published */
        events_push(c->r->o.events, &(struct event){ .kind = EVENT_DELETE,
                                                     .wall_ns = loop_wall(c->r->o.loop),
                                                     .container_id = c->id,
                                                     .exec_id = "",
                                                     .pid = ret->pid,
                                                     .exit_status = ret->exit_status,
                                                     .exited_wall_ns = ret->exited_wall_ns });
    log_info(ctx, "container deleted");
    registry_drop(c->r, c);
    return 0;
}

int container_delete(struct ctx *ctx, struct container *given, const char *exec_id,
                     struct container_deleted *ret, struct err *err)
{
    AUTO(container_unref) struct container *c = container_ref(given);
    struct ctx own = ctx_with_id(ctx, "cid", c->id);

    if (exec_id && exec_id[0])
        return delete_exec(c, exec_id, ret, err);
    /* Before the gate too: it need not wait to be refused. */
    if (refuse_running(c, err) < 0)
        return -1;

    AUTO(gate_leave) struct gate *held = gate_enter(&c->gate, &own, "container.delete", err);

    if (!held)
        return -1;
    if (!c->listed)
        return err_set(err, ERR_NOT_FOUND, "no container %s", c->id);
    return delete_container(&own, c, ret, err);
}

int container_dismiss(struct ctx *ctx, struct container *given, struct err *err)
{
    AUTO(container_unref) struct container *c = container_ref(given); /* outlives its gate */
    AUTO(gate_leave) struct gate *held = gate_enter(&c->gate, ctx, "sandbox.release", err);

    if (!held || container_release(ctx, c, err) < 0)
        return -1;
    registry_drop(c->r, c);
    return 0;
}

int container_discard(struct ctx *ctx, struct container *given, struct err *err)
{
    AUTO(container_unref) struct container *c = container_ref(given);
    struct container_deleted ignored;

    if (container_wait_end(ctx, c, err) == 0 && container_delete(ctx, c, "", &ignored, err) == 0)
        return 0;
    if (err->code != ERR_NOT_FOUND)
        return -1;
    err_clear(err);
    return 0;
}
