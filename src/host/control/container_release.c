/* container_release.c - Delete: releases what container_create made, in reverse order. Each step
 * clears its field when it is done, so that a repeated Delete continues at the step that failed.
 * Steps in a guest or VM that has ended are skipped: its end released everything in it. */
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

/* 0 also if the guest or the VM that had it is gone. */
static int unless_gone(const struct container *c, int r, struct err *err)
{
    const struct guest *guest = c->p.pod->vm ? vm_parts(c->p.pod->vm)->guest : NULL;

    if (r == 0 || err->code != ERR_UNAVAILABLE)
        return r;
    if (guest && vm_state(c->p.pod->vm) == VM_RUNNING && guest->ops->connected(guest))
        return r;
    err_clear(err);
    return 0;
}

static int uncombine(struct ctx *ctx, struct container *c, struct err *err)
{
    const struct guest_layers l = { .container = c->p.guest_id,
                                    .root_path = c->root_path,
                                    .scratch_path = c->scratch_path,
                                    .layers = (const char *const *)c->layers.v };

    if (!c->combined)
        return 0;

    AUTO(vm_leave)
    const struct vm_parts *in = vm_enter(c->p.pod->vm, "release a root file system", err);
    int r = in ? in->guest->ops->uncombine_layers(ctx, in->guest, &l, err) : -1;

    if (unless_gone(c, r, err) < 0)
        return err_wrap(err, "release the root file system");
    c->combined = false;
    return 0;
}

static int delete_in_guest(struct ctx *ctx, struct container *c, struct err *err)
{
    struct err none = ERR_INIT;

    if (!c->p.in_guest)
        return 0;

    AUTO(vm_leave) const struct vm_parts *in = vm_enter(c->p.pod->vm, "delete a container", err);
    int r = in ? in->guest->ops->delete_container(ctx, in->guest, c->p.guest_id, err) : -1;

    if (in && r < 0 && err->code == ERR_STATE) {
        /* It runs, though the guest said that its start failed. */
        (void)in->guest->ops->shutdown(ctx, in->guest, c->p.guest_id, true, &none);
        err_clear(err);
        r = in->guest->ops->delete_container(ctx, in->guest, c->p.guest_id, err);
    }
    if (unless_gone(c, r, err) < 0)
        return err_wrap(err, "delete the container in the guest");
    c->p.in_guest = false;
    return 0;
}

/* --- what it holds of the VM ---
 *
 * Calls into the VM are counted one by one, and never while a path of a client is opened: that may
 * hang, and what a dead VM owned is cleaned up only when all have left. */

/* Recorded before the call that creates it: if that call's answer is lost, release must still undo
 * it. */
static void hold(struct container *c, int kind, uint64_t id)
{
    c->holdings = mem_grow(c->holdings, c->n_holdings, &c->holdings_cap, sizeof(*c->holdings));
    c->holdings[c->n_holdings++] = (struct holding){ kind, id };
}

int container_share(struct ctx *ctx, struct container *c, const struct plan9_share *share,
                    char **ret_path, struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, CONTAINER_SHARE_LIMIT);
    AUTO(vm_leave) const struct vm_parts *in = vm_enter(c->p.pod->vm, "add a share", err);
    uint64_t id;

    if (!in || plan9_reserve(&limited, in->plan9, share, &id, err) < 0)
        return -1;
    hold(c, HOLD_SHARE, id);
    c->p.writes_host = c->p.writes_host || !share->read_only;
    return plan9_map(&limited, in->plan9, id, ret_path, err);
}

int container_attach(struct ctx *ctx, struct container *c, const struct scsi_disk *disk,
                     const struct guest_disk *mount, uint64_t *ret_id, struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, CONTAINER_SHARE_LIMIT);
    AUTO(vm_leave) const struct vm_parts *in = vm_enter(c->p.pod->vm, "attach a disk", err);

    if (!in || scsi_reserve(&limited, in->scsi, disk, mount, ret_id, err) < 0)
        return -1;
    hold(c, HOLD_DISK, *ret_id);
    c->p.writes_host = c->p.writes_host || !disk->read_only;
    return scsi_attach(&limited, in->scsi, *ret_id, err);
}

int container_mount(struct ctx *ctx, struct container *c, uint64_t disk, char **ret_path,
                    struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, CONTAINER_SHARE_LIMIT);
    AUTO(vm_leave) const struct vm_parts *in = vm_enter(c->p.pod->vm, "mount a disk", err);

    return in ? scsi_map(&limited, in->scsi, disk, ret_path, err) : -1;
}

int container_add_device(struct ctx *ctx, struct container *c, const char *address, char **ret_path,
                         struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, CONTAINER_DEVICE_LIMIT);
    AUTO(vm_leave) const struct vm_parts *in = vm_enter(c->p.pod->vm, "add a PCI device", err);
    uint64_t id;

    if (!in || vpci_reserve(&limited, in->vpci, address, &id, err) < 0)
        return -1;
    hold(c, HOLD_DEVICE, id);
    return vpci_add(&limited, in->vpci, id, ret_path, err);
}

int container_release_holdings(struct ctx *ctx, struct container *c, struct err *err)
{
    static const char *const names[] = { "share", "disk", "PCI device" };

    for (; c->n_holdings > 0; c->n_holdings--) {
        const struct holding h = c->holdings[c->n_holdings - 1];
        const struct vm_parts *vm = vm_parts(c->p.pod->vm);
        struct err gone = ERR_INIT;
        AUTO(vm_leave) const struct vm_parts *in = vm_enter(c->p.pod->vm, "release", &gone);

        (void)in; /* NULL: it is only forgotten */

        int r = h.kind == HOLD_SHARE  ? plan9_unmap(ctx, vm->plan9, h.id, err)
                : h.kind == HOLD_DISK ? scsi_unmap(ctx, vm->scsi, h.id, err)
                                      : vpci_remove(ctx, vm->vpci, h.id, err);

        if (unless_gone(c, r, err) < 0)
            return err_wrap(err, "release a %s", names[h.kind]);
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
    bool found = c->p.init && process_is_starting(c->p.init);

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
        container_release_holdings(ctx, c, err) < 0 ||
        (c == c->p.pod->holder && pod_detach_network(ctx, c->p.pod, err) < 0) ||
        drop_anchor(ctx, c, err) < 0 || vm_drop_cgroup(ctx, &c->cgroup, err) < 0) {
        /* To a client "not found" means the container, which it would then forget. */
        if (err->code == ERR_NOT_FOUND)
            err->code = ERR_INTERNAL;
        return -1;
    }
    container_run_poststop_hooks(ctx, c);
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
    if (p == c->p.init)
        c->p.init = NULL;
    else if (i < c->n_execs)
        memmove(&c->execs[i], &c->execs[i + 1], (--c->n_execs - i) * sizeof(struct process *));
    process_forget(p);
    waitq_wake_all(&c->changed);
}

void container_forget(struct container *c)
{
    c->p.listed = false;
    pod_leave(c->p.pod, c);
    while (c->n_execs > 0)
        forget(c, c->execs[0]);
    if (c->p.init)
        forget(c, c->p.init);
}

static int delete_exec(struct container *c, const char *exec_id, struct container_deleted *ret,
                       struct err *err)
{
    struct process *p = container_process(c, exec_id, err);

    if (!p)
        return -1;
    if (process_is_alive(p))
        return err_because(err, REASON_WRONG_STATE, ERR_STATE,
                           "exec %s of container %s runs: kill it first", exec_id, c->p.id);
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

        if (other->p.writes_host || other->p.state == CONTAINER_INVALID ||
            (other != c && (c != c->p.pod->holder || other->p.pod != c->p.pod)))
            return false;
    }
    return true;
}

/* Containers of a pod that have ended and were not deleted: that failed, and the client has
 * forgotten them. They must not keep the pod. */
static int delete_members(struct ctx *ctx, struct container *holder, struct err *err)
{
    struct container *c;

    while (holder == holder->p.pod->holder && (c = pod_other(holder->p.pod, holder, false))) {
        log_warn(ctx, "deleting an exited container with its pod", F_STR(LK_CID, c->p.id));
        if (container_discard(ctx, c, err) < 0)
            return -1;
    }
    return 0;
}

static int refuse_running(const struct container *c, struct err *err)
{
    if (c->p.state == CONTAINER_RUNNING || c->p.state == CONTAINER_PAUSED)
        return err_because(err, REASON_WRONG_STATE, ERR_STATE, "container %s runs: kill it first",
                           c->p.id);
    return 0;
}

static int delete_container(struct ctx *ctx, struct container *c, struct container_deleted *ret,
                            struct err *err)
{
    const struct container *alive = c == c->p.pod->holder ? pod_other(c->p.pod, c, true) : NULL;

    if (refuse_running(c, err) < 0)
        return -1;
    if (c->p.state == CONTAINER_CREATED && container_has_running_execs(c))
        return err_because(err, REASON_WRONG_STATE, ERR_STATE,
                           "an exec of container %s runs: kill it first", c->p.id);
    if (alive)
        return err_because(err, REASON_WRONG_STATE, ERR_STATE, "pod %s still has container %s",
                           c->p.id, alive->p.id);
    /* From here on it can only go. Never started: killed. */
    if (c->p.state == CONTAINER_CREATED)
        process_end(c->p.init, EXIT_KILLED, false);

    bool all = all_goes(c);

    if (all)
        vm_kill(c->p.pod->vm, VM_END_KILL, "its last container is being deleted");
    if ((all && vm_wait(ctx, c->p.pod->vm, NULL, err) < 0) || delete_members(ctx, c, err) < 0 ||
        container_release(ctx, c, err) < 0)
        return err_wrap(err, "delete container %s", c->p.id);
    /* A start that failed stops the container, whatever an exec in it still does. */
    container_settle_execs(ctx, c);
    *ret = (struct container_deleted){ 0 };
    if (c->p.init)
        fill_deleted(c->p.init, ret);
    if (c->p.state != CONTAINER_INVALID) /* else its creation was never published */
        events_push(c->r->o.events, &(struct event){ .kind = EVENT_DELETE,
                                                     .wall_ns = loop_wall(c->r->o.loop),
                                                     .container_id = c->p.id,
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
    struct ctx own = ctx_with_id(ctx, LK_CID, c->p.id);

    if (exec_id && exec_id[0])
        return delete_exec(c, exec_id, ret, err);
    /* Before the gate too: it need not wait to be refused. */
    if (refuse_running(c, err) < 0)
        return -1;

    AUTO(gate_leave) struct gate *held = gate_enter(&c->gate, &own, "container.delete", err);

    if (!held)
        return -1;
    if (!c->p.listed)
        return err_because(err, REASON_NOT_FOUND, ERR_NOT_FOUND, "no container %s", c->p.id);
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
