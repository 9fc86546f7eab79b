#include "host/device/plan9.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "host/bridge/guest.h"
#include "host/device/plan9_priv.h"
#include "host/vmm/vmm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

/* --- one share --- */

static struct share *share_of(struct reserved *t)
{
    return t ? CONTAINER_OF(t, struct share, held) : NULL;
}

static void share_free(struct reserved *t)
{
    struct share *s = share_of(t);

    list_remove(&s->node);
    fd_close_later(s->tree_fd);
    free(s->name);
    free(s->host_path);
    free((char *)s->follow.source);
    idmap_release(&s->follow.ids);
    free(s->path);
    free(s);
}

static int share_add(struct ctx *ctx, struct share *s, struct vmm *vmm, struct err *err)
{
    if (s->state == PART_ADDED)
        return 0;
    if (fsm_check(&part_fsm, s->state, PART_EV_ADDED, err) < 0)
        return err_wrap(err, "%s", s->host_path);
    int r = vmm->ops->share_add
                ? vmm->ops->share_add(ctx, vmm, s->name, s->tree_fd, s->read_only, err)
                : vmm_unsupported("share_add", err);
    fd_close_later(TAKE_FD(s->tree_fd)); /* moved into the VMM's namespace, or of no more use */
    if (r == 0 && s->follow.source)
        r = vmm->ops->share_follow
                ? vmm->ops->share_follow(ctx, vmm, s->name, &s->follow, s->read_only, err)
                : vmm_unsupported("share_follow", err);
    fsm_step(&part_fsm, &s->state, r < 0 ? PART_EV_ADD_FAILED : PART_EV_ADDED);
    if (r < 0)
        return err_wrap_because(err, REASON_SHARE_FAILED, "share %s with the VM", s->host_path);
    log_info(ctx, "directory shared", F_STR(LK_HOST_PATH, s->host_path), F_STR("share", s->name),
             F_BOOL("read-only", s->read_only));
    return 0;
}

static int share_mount(struct ctx *ctx, struct share *s, struct guest *guest, struct err *err)
{
    const struct guest_share g = { s->name, s->path, s->read_only };

    if (s->mount == PART_ADDED)
        return 0;
    if (fsm_check(&part_fsm, s->mount, PART_EV_ADDED, err) < 0)
        return err_wrap(err, "%s", s->host_path);
    int r = guest->ops->mount_share(ctx, guest, &g, err);
    fsm_step(&part_fsm, &s->mount, r < 0 ? PART_EV_ADD_FAILED : PART_EV_ADDED);
    return r < 0 ? err_wrap_because(err, REASON_SHARE_FAILED, "mount share %s (%s) in the guest",
                                    s->name, s->host_path)
                 : 0;
}

static int share_unmount(struct ctx *ctx, struct share *s, struct guest *guest, struct err *err)
{
    const struct guest_share g = { s->name, s->path, s->read_only };

    if (s->mount == PART_RESERVED)
        fsm_step(&part_fsm, &s->mount, PART_EV_DROPPED);
    if (s->mount == PART_REMOVED)
        return 0;
    /* After a failed mount too: its answer may have been lost. Not mounted is success. */
    if (vmm_gone_is_done(guest->ops->unmount_share(ctx, guest, &g, err), ctx, err) < 0)
        return err_wrap_because(err, REASON_SHARE_FAILED, "unmount share %s (%s) in the guest",
                                s->name, s->host_path);
    fsm_step(&part_fsm, &s->mount, PART_EV_REMOVED);
    return 0;
}

static int share_remove(struct ctx *ctx, struct share *s, struct vmm *vmm, struct err *err)
{
    if (s->state == PART_RESERVED)
        fsm_step(&part_fsm, &s->state, PART_EV_DROPPED);
    if (s->state == PART_REMOVED)
        return 0;
    int r = vmm->ops->share_remove ? vmm->ops->share_remove(ctx, vmm, s->name, err) : 0;
    if (vmm_gone_is_done(r, ctx, err) < 0)
        return err_wrap(err, "remove share %s (%s) from the VM", s->name, s->host_path);
    fsm_step(&part_fsm, &s->state, PART_EV_REMOVED);
    log_info(ctx, "directory no longer shared", F_STR(LK_HOST_PATH, s->host_path),
             F_STR("share", s->name));
    return 0;
}

/* --- the controller --- */

struct plan9 *plan9_new(struct vmm *vmm, struct guest *guest)
{
    struct plan9 *c = mem_new(struct plan9);

    c->vmm = vmm;
    c->guest = guest;
    gate_init(&c->gate, "plan9");
    list_init(&c->shares);
    reservations_init(&c->reservations, "share", share_free);
    return c;
}

void plan9_free(struct plan9 *c)
{
    if (!c)
        return;
    reservations_release(&c->reservations);
    free(c);
}

/* Only what can still be used. */
static struct share *find_share(struct plan9 *c, const struct plan9_share *o, const struct statx *x)
{
    LIST_FOR (struct share, s, &c->shares, node)
        if (!s->unique && !s->held.leaving &&
            s->dev == makedev(x->stx_dev_major, x->stx_dev_minor) && s->ino == x->stx_ino &&
            s->read_only == o->read_only && str_eq(s->host_path, o->host_path) &&
            s->state != PART_INVALID && s->mount != PART_INVALID)
            return s;
    return NULL;
}

static struct share *new_share(struct plan9 *c, const struct plan9_share *o, const struct statx *x,
                               struct err *err)
{
    int fd = fcntl(o->tree_fd, F_DUPFD_CLOEXEC, 3);

    if (fd < 0) {
        err_sys(err, errno, "copy the descriptor of %s", o->host_path);
        return NULL;
    }
    struct share *s = mem_new(struct share);
    *s = (struct share){ .name = str_format("%llu", (unsigned long long)c->next_name),
                         .path =
                             str_format("/run/mounts/plan9/%llu", (unsigned long long)c->next_name),
                         .host_path = str_dup(o->host_path),
                         .tree_fd = fd,
                         .dev = makedev(x->stx_dev_major, x->stx_dev_minor),
                         .ino = x->stx_ino,
                         .read_only = o->read_only,
                         .follow = o->follow,
                         .unique = o->unique };
    s->follow.source = str_dup(o->follow.source);
    s->follow.ids = idmap_copy(&o->follow.ids);
    c->next_name++;
    list_append(&c->shares, &s->node);
    return s;
}

int plan9_reserve(struct ctx *ctx, struct plan9 *c, const struct plan9_share *share,
                  uint64_t *ret_id, struct err *err)
{
    AUTO(gate_leave) struct gate *held = gate_enter(&c->gate, ctx, "plan9.reserve", err);
    struct statx x;

    if (!held)
        return -1;
    /* Its number alone, which does not change: a file system that does not answer is not asked. */
    if (statx(share->tree_fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_INO, &x) < 0)
        return err_sys(err, errno, "look at %s", share->host_path);
    struct share *s = share->unique ? NULL : find_share(c, share, &x);
    if (!s)
        s = new_share(c, share, &x, err);
    if (!s)
        return -1;
    *ret_id = reservations_take(&c->reservations, &s->held);
    return 0;
}

int plan9_map(struct ctx *ctx, struct plan9 *c, uint64_t id, char **ret_path, struct err *err)
{
    AUTO(gate_leave) struct gate *held = gate_enter(&c->gate, ctx, "plan9.map", err);
    struct share *s = held ? share_of(reservations_use(&c->reservations, id, err)) : NULL;

    if (!s || share_add(ctx, s, c->vmm, err) < 0 || share_mount(ctx, s, c->guest, err) < 0)
        return -1;
    *ret_path = str_dup(s->path);
    return 0;
}

int plan9_unmap(struct ctx *ctx, struct plan9 *c, uint64_t id, struct err *err)
{
    AUTO(gate_leave) struct gate *held = gate_enter(&c->gate, ctx, "plan9.unmap", err);
    struct share *s = held ? share_of(reservations_find(&c->reservations, id, err)) : NULL;

    if (!s)
        return -1;
    if (s->held.refs == 1) {
        s->held.leaving = true;
        if (share_unmount(ctx, s, c->guest, err) < 0 || share_remove(ctx, s, c->vmm, err) < 0)
            return -1;
    }
    reservations_drop(&c->reservations, id);
    return 0;
}

const char *plan9_name(const struct plan9 *c, uint64_t id)
{
    struct err unknown = ERR_INIT;
    const struct share *s = share_of(reservations_find(&c->reservations, id, &unknown));

    return s ? s->name : "";
}

void plan9_describe(const struct plan9 *c, struct jsw *w)
{
    LIST_FOR (const struct share, s, &c->shares, node) {
        jsw_obj(w, NULL);
        jsw_str(w, "name", s->name);
        jsw_str(w, "host_path", s->host_path);
        jsw_str(w, "path", s->path);
        jsw_bool(w, "read_only", s->read_only);
        jsw_str(w, "state", fsm_state_name(&part_fsm, s->state));
        jsw_u64(w, "holders", s->held.refs);
        jsw_end_obj(w);
    }
}
