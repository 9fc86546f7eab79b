/* container_release.c - taking back what container_create made, in reverse order. Each step clears
 * its note when it is done, so that a repetition goes on where it stopped. A guest or VM that is
 * gone has taken its part with it. */
#include "base/log.h"
#include "base/str.h"
#include "host/bridge/guest.h"
#include "host/control/registry_priv.h"
#include "host/device/plan9.h"
#include "host/device/scsi.h"
#include <stdlib.h>

/* 0 also if there is nobody any more who could have it. */
static int unless_gone(const struct container *c, int r, struct err *err)
{
    const struct guest *guest = c->r->vm ? vm_parts(c->r->vm)->guest : NULL;

    if (r == 0 || err->code != ERR_UNAVAILABLE)
        return r;
    if (guest && vm_state(c->r->vm) == VM_RUNNING && guest->ops->connected(guest))
        return r;
    err_clear(err);
    return 0;
}

static int uncombine(struct ctx *ctx, struct container *c, struct err *err)
{
    const struct guest_layers l = { .container = c->id,
                                    .root_path = c->root_path,
                                    .scratch_path = c->scratch_path,
                                    .layers = (const char *const *)c->layers.v };

    if (!c->combined)
        return 0;

    AUTO(vm_leave)
    const struct vm_parts *in = vm_enter(c->r->vm, "release a root file system", err);
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

    AUTO(vm_leave) const struct vm_parts *in = vm_enter(c->r->vm, "delete a container", err);
    int r = in ? in->guest->ops->delete_container(ctx, in->guest, c->id, err) : -1;

    if (in && r < 0 && err->code == ERR_STATE) {
        /* It runs, though the guest said that its start failed. */
        (void)in->guest->ops->shutdown(ctx, in->guest, c->id, true, &none);
        err_clear(err);
        r = in->guest->ops->delete_container(ctx, in->guest, c->id, err);
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
        AUTO(vm_leave) const struct vm_parts *in = vm_enter(c->r->vm, "release a disk", &gone);

        (void)in; /* NULL: it is only forgotten */

        int r = scsi_unmap(ctx, vm_parts(c->r->vm)->scsi, c->disks[c->n_disks - 1], err);

        if (unless_gone(c, r, err) < 0)
            return err_wrap(err, "release a disk");
        c->n_disks--;
    }
    return 0;
}

static int unshare(struct ctx *ctx, struct container *c, uint64_t id, struct err *err)
{
    struct err gone = ERR_INIT;
    AUTO(vm_leave) const struct vm_parts *in = vm_enter(c->r->vm, "release a share", &gone);

    (void)in; /* NULL: it is only forgotten */
    return unless_gone(c, plan9_unmap(ctx, vm_parts(c->r->vm)->plan9, id, err), err);
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
    for (; c->n_devices > 0; c->n_devices--)
        if (unless_gone(c, container_remove_device(ctx, c, err), err) < 0)
            return err_wrap(err, "release a PCI device");
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

int container_release(struct ctx *ctx, struct container *c, struct err *err)
{
    while (c->starting > 0)
        if (waitq_wait(ctx, &c->changed, "processes that are being started", err) < 0)
            return -1;
    if (uncombine(ctx, c, err) < 0 || delete_in_guest(ctx, c, err) < 0 ||
        remove_devices(ctx, c, err) < 0 || detach_disks(ctx, c, err) < 0 ||
        unshare_all(ctx, c, err) < 0 || container_detach_network(ctx, c, err) < 0 ||
        drop_anchor(ctx, c, err) < 0 || vm_drop_cgroup(ctx, &c->cgroup, err) < 0) {
        /* To a client "not found" means the container, which it would then forget. */
        if (err->code == ERR_NOT_FOUND)
            err->code = ERR_INTERNAL;
        return -1;
    }
    return 0;
}
