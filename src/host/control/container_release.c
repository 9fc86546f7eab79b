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
    const struct box *b = c->r->box;

    if (r == 0 || err->code != ERR_UNAVAILABLE)
        return r;
    if (box_alive(b) && b->guest->ops->connected(b->guest))
        return r;
    err_clear(err);
    return 0;
}

static int uncombine(struct ctx *ctx, struct container *c, struct err *err)
{
    struct box *b = c->r->box;
    const struct guest_layers l = { .container = c->id,
                                    .root_path = c->root_path,
                                    .scratch_path = c->scratch_path,
                                    .layers = (const char *const *)c->layers.v };
    int r;

    if (!c->combined)
        return 0;
    r = box_enter(b, "release a root file system", err);
    if (r == 0) {
        r = b->guest->ops->uncombine_layers(ctx, b->guest, &l, err);
        box_leave(b);
    }
    if (unless_gone(c, r, err) < 0)
        return err_wrap(err, "release the root file system");
    c->combined = false;
    return 0;
}

static int delete_in_guest(struct ctx *ctx, struct container *c, struct err *err)
{
    struct box *b = c->r->box;
    struct err none = ERR_INIT;
    int r;

    if (!c->in_guest)
        return 0;
    r = box_enter(b, "delete a container", err);
    if (r == 0) {
        r = b->guest->ops->delete_container(ctx, b->guest, c->id, err);
        if (r < 0 && err->code == ERR_STATE) {
            /* It runs, though we were told that its start failed. */
            (void)b->guest->ops->shutdown(ctx, b->guest, c->id, true, &none);
            err_clear(err);
            r = b->guest->ops->delete_container(ctx, b->guest, c->id, err);
        }
        box_leave(b);
    }
    if (unless_gone(c, r, err) < 0)
        return err_wrap(err, "delete it in the guest");
    c->in_guest = false;
    return 0;
}

static int detach_disks(struct ctx *ctx, struct container *c, struct err *err)
{
    struct box *b = c->r->box;

    while (c->n_disks > 0) {
        struct err gone = ERR_INIT;
        bool inside = box_enter(b, "release a disk", &gone) == 0;
        int r = scsi_unmap(ctx, b->scsi, c->disks[c->n_disks - 1], err);

        if (inside)
            box_leave(b);
        if (unless_gone(c, r, err) < 0)
            return err_wrap(err, "release a disk");
        c->n_disks--;
    }
    return 0;
}

static int unshare(struct ctx *ctx, struct container *c, uint64_t id, struct err *err)
{
    struct box *b = c->r->box;
    struct err gone = ERR_INIT;
    bool inside = box_enter(b, "release a share", &gone) == 0;
    int r = plan9_unmap(ctx, b->plan9, id, err);

    if (inside)
        box_leave(b);
    return unless_gone(c, r, err);
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

static int drop_cgroup(struct ctx *ctx, struct container *c, struct err *err)
{
    uint64_t pause = BOX_CGROUP_PAUSE;

    if (!c->cgroup)
        return 0;
    for (unsigned n = 1;; n++, pause *= 2) { /* busy while its last process is being reaped */
        err_clear(err);
        if (cgroup_remove(c->cgroup, err) == 0)
            break;

        struct err late = ERR_INIT;

        if (n == BOX_CGROUP_TRIES || fiber_sleep(ctx, pause, &late) < 0)
            return -1;
    }
    cgroup_free(TAKE_PTR(c->cgroup));
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
        drop_anchor(ctx, c, err) < 0 || drop_cgroup(ctx, c, err) < 0) {
        /* To a client "not found" means the container, which it would then forget. */
        if (err->code == ERR_NOT_FOUND)
            err->code = ERR_INTERNAL;
        return -1;
    }
    return 0;
}
