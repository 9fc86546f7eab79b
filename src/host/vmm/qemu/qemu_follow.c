/* qemu_follow.c - shares that follow the host (HostToContainer): what is mounted below their
 * directory later shows in the share, and what is unmounted leaves it (docs/decisions/0024). A
 * fiber for each waits for changes of the host's mounts; copies that are restricted as the share is
 * come into QEMU's namespace one by one. The host's own mounts are never held: it can always
 * unmount. */
#include "base/list.h"
#include "base/offload.h"
#include "base/saved.h"
#include "base/waits.h"
#include "host/files/follow.h"
#include "host/jail/mountinfo.h"
#include "host/vmm/qemu/qemu_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

#define TABLE "/proc/self/mountinfo"
#define LOOK_NS (10 * NS_PER_S)
#define CHANGE_NS (5 * NS_PER_S) /* a dead file system hangs longer */
#define STUCK_MAX 4              /* each keeps a thread */

struct follower {
    struct list node; /* of qemu_proc.followers */
    struct qemu *q;
    char *name;
    bool read_only;
    struct idmap ids; /* of those mounts */
    struct follow mounts;
    size_t too_many; /* as last logged */
    unsigned stuck;
    bool look_first; /* it was saved: there may have been changes since */
    struct loop_changes *changes;
    struct cancel cancel;
    struct ctx ctx;
    struct fibers fiber;
};

static void follower_free(struct follower *f)
{
    list_remove(&f->node);
    loop_changes_free(f->changes);
    cancel_release(&f->cancel);
    follow_release(&f->mounts);
    idmap_release(&f->ids);
    free(f->name);
    free(f);
}

/* --- a look --- */

struct look {
    const char *source;
    uint64_t mount;
    struct mountinfo_list table;
};

static void look_drop(void *arg)
{
    mountinfo_list_release(&((struct look *)arg)->table);
}

static int look_in_thread(void *arg, struct err *err)
{
    struct look *l = arg;
    int r = mountinfo_below(open(TABLE, O_RDONLY | O_CLOEXEC), l->source, l->mount, &l->table);

    return r < 0 ? err_sys(err, -r, "read " TABLE) : 0;
}

static int look(struct ctx *ctx, struct follower *f, struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, LOOK_NS);
    struct look l = { f->mounts.source, f->mounts.mount, { 0 } };

    if (OFFLOAD(&limited, look_in_thread, &l, 1, look_drop, "the host's mounts", err) < 0)
        return -1;
    follow_look(&f->mounts, &l.table);
    look_drop(&l);
    if (f->mounts.too_many > 0 && f->too_many == 0)
        log_warn(ctx,
                 "too many mounts below a shared directory; the container does not see all of them",
                 F_STR(LK_HOST_PATH, f->mounts.source), F_U("max", FOLLOW_MAX),
                 F_U("missing", f->mounts.too_many));
    f->too_many = f->mounts.too_many;
    return 0;
}

/* Shows a new mount, or hides one that is gone. If neither can be, the container does not see the
 * change, but its share works on. -1: ctx has ended, or QEMU. */
static int change(struct ctx *ctx, struct follower *f, struct follow_mount *m, struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, CHANGE_NS);
    const char *below = follow_below(&f->mounts, m);
    struct err why = ERR_INIT;
    int r = m->there && f->stuck >= STUCK_MAX
                ? err_set(&why, ERR_EXHAUSTED, "too many file systems below it do not answer")
            : m->there ? qemu_share_show(&limited, f->q, f->name, below, m->point, m->id, &f->ids,
                                         f->read_only, &why)
                       : qemu_share_hide(&limited, f->q, f->name, below, &why);

    if (r == 0) {
        m->shown = m->there;
        log_info(ctx, m->there ? "mounted on the host" : "unmounted on the host",
                 F_STR(LK_HOST_PATH, m->point), F_STR("share", f->name));
        return 0;
    }
    if (ctx_check(ctx, err) < 0)
        return -1;
    if (why.sys == ESRCH)
        return err_set(err, ERR_UNAVAILABLE, "the VM is gone");
    if (why.code == ERR_NOT_FOUND) /* until the next change of the table */
        return 0;
    m->left_out = true;
    f->stuck += why.code == ERR_DEADLINE;
    log_warn(ctx, "cannot update a mount below a shared directory in the container",
             F_STR(LK_HOST_PATH, m->point), F_STR("share", f->name), F_ERR(&why));
    return 0;
}

static int update(struct ctx *ctx, struct follower *f, struct err *err)
{
    struct follow *all = &f->mounts;

    if (look(ctx, f, err) < 0)
        return -1;
    for (size_t i = all->n; i > 0; i--) /* the last that came goes first */
        if (!all->v[i - 1].there && all->v[i - 1].shown && change(ctx, f, &all->v[i - 1], err) < 0)
            return -1;
    follow_sweep(all);
    for (size_t i = 0; i < all->n; i++)
        if (!all->v[i].shown && !all->v[i].left_out && change(ctx, f, &all->v[i], err) < 0)
            return -1;
    return 0;
}

static void follow_main(void *arg)
{
    struct follower *f = arg;
    struct err err = ERR_INIT;

    while (f->look_first ? loop_io(&f->ctx, WAIT_HOST_MOUNTS, &err) == 0
                         : loop_changes_wait(&f->ctx, f->changes, WAIT_HOST_MOUNTS, &err) == 0) {
        f->look_first = false;
        if (update(&f->ctx, f, &err) < 0 && !f->cancel.fired && err.code != ERR_UNAVAILABLE)
            log_warn(&f->ctx,
                     "cannot read the host's mounts; the container follows them again at the next "
                     "change",
                     F_STR("share", f->name), F_ERR(&err));
        err_clear(&err);
    }
}

/* --- beginning and end --- */

static struct follower *follower_new(struct qemu_proc *p)
{
    struct follower *f = mem_new(struct follower);

    f->q = p->vm;
    list_append(&p->followers, &f->node);
    fibers_init(&f->fiber);
    cancel_init(&f->cancel, &p->cancel);
    f->ctx = ctx_with_cancel(&p->ctx, &f->cancel);
    return f;
}

int qemu_share_follow(struct ctx *ctx, struct vmm *v, const char *name,
                      const struct vmm_follow *what, bool read_only, struct err *err)
{
    struct qemu *q = qemu_of(v);

    if (qemu_check_runs(q, "share", err) < 0)
        return -1;
    AUTO(qemu_op_end) struct qemu_op op; /* release waits for us */
    struct ctx inner = qemu_op_begin(ctx, q, &op);
    struct follower *f = follower_new(q->proc);
    f->name = str_dup(name);
    f->read_only = read_only;
    f->ids = idmap_copy(&what->ids);
    f->mounts = (struct follow){ .source = str_dup(what->source),
                                 .mount = what->mount,
                                 .late = what->late };
    if (loop_changes_new(q->loop, open(TABLE, O_RDONLY | O_CLOEXEC), &f->changes, err) < 0 ||
        update(&inner, f, err) < 0) {
        follower_free(f);
        return err_wrap(err, "follow the mounts below %s", what->source);
    }
    fibers_go(&f->fiber, q->loop, follow_main, f, FIBER_SHARE " %s", name);
    return 0;
}

int qemu_follow_end(struct ctx *ctx, struct qemu *q, const char *name, struct err *err)
{
    AUTO(qemu_op_end) struct qemu_op op;
    struct ctx inner = qemu_op_begin(ctx, q, &op);

    LIST_FOR (struct follower, f, &q->proc->followers, node) {
        if (!str_eq(f->name, name))
            continue;
        cancel_fire(&f->cancel, ERR_CANCELLED, "the share is removed");
        if (fibers_wait(&inner, &f->fiber, "the last look at the host's mounts", err) < 0)
            return -1;
        follower_free(f);
        break;
    }
    return ctx_check(&inner, err);
}

int qemu_follow_drop(struct ctx *ctx, struct qemu_proc *p, struct err *err)
{
    while (!list_empty(&p->followers)) {
        struct follower *f = LIST_ENTRY(p->followers.next, struct follower, node);

        if (fibers_wait(ctx, &f->fiber, "the last look at the host's mounts", err) < 0)
            return -1;
        follower_free(f);
    }
    return 0;
}

/* --- saved --- */

/* Not saved: there, since each look begins with it. */
static void mount_saved(struct saved *s, struct follow_mount *m)
{
    saved_u64(s, 1, &m->id);
    saved_u64(s, 2, &m->parent);
    saved_str(s, 3, &m->what);
    saved_str(s, 4, &m->point);
    saved_bool(s, 5, &m->shown);
    saved_bool(s, 6, &m->left_out);
    if (saved_reads(s) && (!m->what || !m->point))
        saved_fail(s, "a mount without its place");
}

static void mounts_saved(struct saved *s, struct follow *f)
{
    size_t n = saved_count(s, 9, f->n);

    for (size_t i = 0; i < n && saved_open(s, 9); i++) {
        if (saved_reads(s)) {
            f->v = mem_grow(f->v, f->n, &f->cap, sizeof(*f->v));
            f->v[f->n++] = (struct follow_mount){ 0 };
        }
        mount_saved(s, &f->v[i]);
        saved_close(s);
    }
}

/* Not saved: the threads that are stuck, since a shim that has such is not. */
static void follower_saved(struct saved *s, struct follower *f)
{
    saved_str(s, 1, &f->name);
    saved_bool(s, 2, &f->read_only);
    saved_str(s, 3, &f->ids.uid);
    saved_str(s, 4, &f->ids.gid);
    saved_str(s, 5, &f->mounts.source);
    saved_u64(s, 6, &f->mounts.mount);
    saved_bool(s, 7, &f->mounts.late);
    saved_str(s, 8, &f->mounts.base);
    mounts_saved(s, &f->mounts);
    saved_size(s, 10, &f->too_many);
}

static void follower_resume(struct saved *s, struct follower *f)
{
    struct err err = ERR_INIT;

    if (saved_check(s, &err) < 0)
        return;
    if (!f->name || !f->mounts.source)
        saved_fail(s, "a share that follows the host, without its %s",
                   f->name ? "directory" : "name");
    else if (loop_changes_new(f->q->loop, open(TABLE, O_RDONLY | O_CLOEXEC), &f->changes, &err) < 0)
        saved_fail(s, "share %s: %s", f->name, err.msg);
    else
        fibers_go(&f->fiber, f->q->loop, follow_main, f, FIBER_SHARE " %s", f->name);
    f->look_first = true;
}

void qemu_followers_saved(struct saved *s, uint32_t field, struct qemu_proc *p)
{
    if (saved_reads(s)) {
        while (saved_open(s, field)) {
            struct follower *f = follower_new(p);

            follower_saved(s, f);
            saved_close(s);
            follower_resume(s, f);
        }
        return;
    }
    LIST_FOR (struct follower, f, &p->followers, node) {
        saved_open(s, field);
        follower_saved(s, f);
        saved_close(s);
    }
}
