/* qemu_share.c - shares: a detached mount is moved into QEMU's mount namespace, below the
 * directory that its 9p device shows (docs/design.md §2). A thread of its own enters that
 * namespace; what it does there touches only the jail's tmpfs and the mount table, so it cannot
 * hang on a file system of a client. The jail's root is mounted read-only and QEMU can write
 * nowhere in it; the directory to mount on is made through a detached, writable clone that no other
 * process sees. */
#include "base/child.h"
#include "base/offload.h"
#include "host/jail/mountinfo.h"
#include "host/vmm/qemu/qemu_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sched.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NAME_MAX_BYTES 64
#define JOB_NS (10 * NS_PER_S)
/* The guest releases files shortly after it has unmounted (9p clunks come late), and QEMU does not
 * report when it has closed the last one. */
#define BUSY_TRIES 10
#define BUSY_NS (20 * NS_PER_MS)

struct job {
    const char *name, *below; /* below: the place of a followed mount in it, or NULL */
    const char *point;        /* of that mount, on the host */
    const char *uid, *gid;    /* its ids (struct idmap), or NULL */
    uint64_t mount;           /* its id */
    uint64_t until;           /* too late then, by clock_mono(): the caller has given it up */
    int tree;                 /* the caller's; what the thread gets is a copy */
    bool read_only;
    bool force;      /* detach what is busy */
    bool was_busy;   /* out: the guest still used it */
    int dir;         /* out: for qemu_jail_dir; -1 if there is none */
    int pidfd, proc; /* proc: our /proc, there is none in the jail */
};

static void job_close(void *job)
{
    struct job *j = job;

    fd_close(j->pidfd);
    fd_close(j->dir);
    fd_close_later(j->tree);
    fd_close(j->proc);
}

/* --- in the thread --- */

static int enter(const struct job *j, struct err *err)
{
    if (unshare(CLONE_FS) < 0)
        return err_sys(err, errno, "unshare");
    if (setns(j->pidfd, CLONE_NEWNS) < 0)
        return err_sys(err, errno, "enter qemu's mount namespace");
    return 0;
}

/* A directory of the jail, writable for us alone. */
static int open_writable(const char *path, struct err *err)
{
    struct mount_attr attr = { .attr_clr = MOUNT_ATTR_RDONLY };
    AUTO_FD int fd =
        open_tree(AT_FDCWD, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_SYMLINK_NOFOLLOW);

    if (fd < 0 || mount_setattr(fd, "", AT_EMPTY_PATH, &attr, sizeof(attr)) < 0)
        return err_sys(err, errno, "open %s of the jail", path);
    return TAKE_FD(fd);
}

static int restrict_tree(const struct job *j, struct err *err)
{
    /* QEMU runs nothing and follows nothing from there; device nodes are only names. */
    struct mount_attr attr = { .attr_set = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV |
                                           MOUNT_ATTR_NOEXEC | MOUNT_ATTR_NOSYMFOLLOW,
                               .propagation = MS_PRIVATE };

    if (j->read_only)
        attr.attr_set |= MOUNT_ATTR_RDONLY;
    if (mount_setattr(j->tree, "", AT_EMPTY_PATH | AT_RECURSIVE, &attr, sizeof(attr)) < 0)
        return err_sys(err, errno, "restrict the mount%s", j->read_only ? " to reading" : "");
    return 0;
}

static int add_in_jail(void *arg, struct err *err)
{
    struct job *j = arg;

    /* In there the kernel refuses to change a mount of the host, should it be one by mistake. */
    if (enter(j, err) < 0 || restrict_tree(j, err) < 0)
        return -1;
    AUTO_FD int writable = open_writable(QEMU_JAIL_SHARES, err);
    if (writable < 0)
        return -1;
    if (mkdirat(writable, j->name, 0555) < 0)
        return err_sys(err, errno, "make a directory to mount on");
    AUTO_FREE char *path = str_format(QEMU_JAIL_SHARES "/%s", j->name);
    if (move_mount(j->tree, "", AT_FDCWD, path, MOVE_MOUNT_F_EMPTY_PATH) < 0) {
        int e = errno;
        (void)unlinkat(writable, j->name, AT_REMOVEDIR); /* an empty directory is left */
        return err_sys(err, e, "mount into qemu's namespace");
    }
    return 0;
}

static int unmount(struct job *j, const char *path, struct err *err)
{
    if (umount2(path, UMOUNT_NOFOLLOW) == 0 || errno == EINVAL || errno == ENOENT)
        return 0;
    if (errno != EBUSY)
        return err_sys(err, errno, "unmount %s", path);
    j->was_busy = true;
    if (!j->force)
        return err_sys(err, EBUSY, "unmount %s", path);
    if (umount2(path, UMOUNT_NOFOLLOW | MNT_DETACH) < 0)
        return err_sys(err, errno, "detach %s", path);
    return 0;
}

static int remove_in_jail(void *arg, struct err *err)
{
    struct job *j = arg;
    AUTO_FREE char *path = str_format(QEMU_JAIL_SHARES "/%s", j->name);
    AUTO(mountinfo_list_release) struct mountinfo_list all = { 0 };

    if (enter(j, err) < 0)
        return -1;
    int r = mountinfo_below(openat(j->proc, "thread-self/mountinfo", O_RDONLY | O_CLOEXEC), path, 0,
                            &all);
    if (r < 0)
        return err_sys(err, -r, "read the mounts of the jail");
    for (size_t i = all.n; i > 0; i--) /* the last that was made comes first */
        if (unmount(j, all.v[i - 1].point, err) < 0)
            return -1;
    AUTO_FD int writable = open_writable(QEMU_JAIL_SHARES, err);
    if (writable < 0)
        return -1;
    if (unlinkat(writable, j->name, AT_REMOVEDIR) < 0 && errno != ENOENT)
        return err_sys(err, errno, "remove the directory of share %s", j->name);
    return 0;
}

static int dir_in_jail(void *arg, struct err *err)
{
    struct job *j = arg;

    j->dir = enter(j, err) < 0 ? -1 : open_writable(j->name, err);
    return j->dir < 0 ? -1 : 0;
}

/* --- in the thread, for what is mounted below a share later --- */

/* A copy of exactly this mount. Who can rename a directory on the way, as a guest can in a writable
 * share, could lead us elsewhere: only the mount's id decides. ERR_NOT_FOUND: the path does not
 * lead to it (any more, or because another mount lies on it). */
static int open_mount(struct job *j, struct err *err)
{
    const struct open_how how = { .flags = O_PATH | O_CLOEXEC | O_NOFOLLOW,
                                  .resolve = RESOLVE_NO_SYMLINKS };
    AUTO_FD int fd = (int)syscall(SYS_openat2, AT_FDCWD, j->point, &how, sizeof(how));
    struct statx x;

    if (fd < 0 || statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_MNT_ID, &x) < 0 ||
        x.stx_mnt_id != j->mount || !(x.stx_attributes & STATX_ATTR_MOUNT_ROOT))
        return err_set(err, ERR_NOT_FOUND, "%s does not lead to the mount", j->point);
    j->tree = open_tree(fd, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);
    if (j->tree < 0)
        return err_sys(err, errno, "copy the mount on %s", j->point);
    fd_close(TAKE_FD(fd)); /* it would hold the host's own mount */
    const struct idmap ids = { (char *)j->uid, (char *)j->gid };
    AUTO_FD int userns = ids.uid ? idmap_userns(&ids, err) : -1;
    if (!ids.uid)
        return 0;
    return userns < 0 ? -1 : idmap_mount(j->tree, userns, false, j->point, err);
}

static int show_in_jail(void *arg, struct err *err)
{
    struct job *j = arg;
    AUTO_FREE char *path = str_format(QEMU_JAIL_SHARES "/%s%s", j->name, j->below);

    if (open_mount(j, err) < 0 || enter(j, err) < 0 || restrict_tree(j, err) < 0)
        return -1;
    if (clock_mono() >= j->until)
        return err_because(err, REASON_FILESYSTEM_DEAD, ERR_DEADLINE,
                           "%s: its file system answered too late", j->point);
    /* No link leads out: those of a share are not followed, and this namespace is the jail's. */
    if (move_mount(j->tree, "", AT_FDCWD, path, MOVE_MOUNT_F_EMPTY_PATH) < 0)
        return err_sys(err, errno, "mount on %s in qemu's namespace", path);
    return 0;
}

static int hide_in_jail(void *arg, struct err *err)
{
    struct job *j = arg;
    AUTO_FREE char *path = str_format(QEMU_JAIL_SHARES "/%s%s", j->name, j->below);

    if (enter(j, err) < 0)
        return -1;
    /* What the guest has open there stays open. */
    if (umount2(path, UMOUNT_NOFOLLOW | MNT_DETACH) < 0 && errno != EINVAL && errno != ENOENT)
        return err_sys(err, errno, "detach %s", path);
    return 0;
}

/* --- outside --- */

static int run(struct qemu *q, const struct ctx *ctx, struct job *what,
               int (*fn)(void *job, struct err *err), struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, JOB_NS);
    struct job j = *what;
    int r;

    j.was_busy = false;
    j.dir = -1;
    j.until = limited.deadline;
    j.pidfd = fcntl(child_pidfd(q->proc->child), F_DUPFD_CLOEXEC, 3);
    j.proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (what->tree >= 0)
        j.tree = fcntl(what->tree, F_DUPFD_CLOEXEC, 3);
    if (j.pidfd < 0 || j.proc < 0 || (what->tree >= 0 && j.tree < 0)) {
        r = err_sys(err, errno, "prepare");
        job_close(&j);
        return r;
    }
    AUTO(qemu_op_end) struct qemu_op op = { .q = q };
    cancel_init(&op.cancel, NULL);
    list_append(&q->ops, &op.node); /* release waits for us; terminate does not stop us */
    r = OFFLOAD(&limited, fn, &j, 5, job_close, "qemu: mount namespace", err);
    if (r < 0 && err->sys == ESRCH) {
        /* A killed process loses its namespaces before it can be reaped. The callers ask
         * qemu_is_gone() next, so its end must be known by then. */
        struct err late = ERR_INIT;
        (void)latch_wait(&limited, &q->proc->gone, "the end of QEMU", &late);
    }
    what->was_busy = j.was_busy;
    if (r == 0) {
        what->dir = TAKE_FD(j.dir);
        job_close(&j);
    }
    return r;
}

int qemu_share_add(struct ctx *ctx, struct vmm *v, const char *name, int tree_fd, bool read_only,
                   struct err *err)
{
    struct qemu *q = qemu_of(v);

    if (qemu_check_name("share", name, NAME_MAX_BYTES, err) < 0 ||
        qemu_check_runs(q, "share", err) < 0 || ctx_check(ctx, err) < 0)
        return -1;
    /* The caller's end is not ours: a half-made share is worse than a moment's wait. */
    if (run(q, &q->root, &(struct job){ .name = name, .tree = tree_fd, .read_only = read_only },
            add_in_jail, err) == 0)
        return 0;
    if (qemu_is_gone(q)) /* its namespace went first */
        return err_because(err, REASON_VM_ENDED, ERR_UNAVAILABLE, "share %s: the VM is gone", name);
    return err_wrap_because(err, REASON_SHARE_FAILED, "share %s", name);
}

int qemu_jail_dir(struct qemu *q, const char *path, int *ret_fd, struct err *err)
{
    struct job j = { .name = path, .tree = -1 };

    if (run(q, &q->root, &j, dir_in_jail, err) < 0)
        return -1;
    *ret_fd = j.dir;
    return 0;
}

static int remove_share(struct ctx *ctx, struct qemu *q, const char *name, struct err *err)
{
    struct job j = { .name = name, .tree = -1 };

    for (unsigned i = 0; !qemu_is_gone(q); i++) {
        j.force = i == BUSY_TRIES;
        if (run(q, &q->root, &j, remove_in_jail, err) == 0)
            break;
        if (!j.was_busy || j.force || fiber_sleep(ctx, BUSY_NS, err) < 0)
            return -1;
    }
    if (j.was_busy)
        log_warn(ctx, "the guest still used a share when it was removed; open files stay open",
                 F_STR("share", name));
    return 0;
}

int qemu_share_remove(struct ctx *ctx, struct vmm *v, const char *name, struct err *err)
{
    struct qemu *q = qemu_of(v);

    if (qemu_check_name("share", name, NAME_MAX_BYTES, err) < 0)
        return -1;
    if (qemu_is_gone(q) ||
        (qemu_follow_end(ctx, q, name, err) == 0 && remove_share(ctx, q, name, err) == 0) ||
        qemu_is_gone(q))
        return 0;
    return err_wrap_because(err, REASON_SHARE_FAILED, "remove share %s", name);
}

int qemu_share_show(struct ctx *ctx, struct qemu *q, const char *name, const char *below,
                    const char *point, uint64_t mount, const struct idmap *ids, bool read_only,
                    struct err *err)
{
    struct job j = { name,     below,          point,      ids->uid,
                     ids->gid, .mount = mount, .tree = -1, .read_only = read_only };

    return run(q, ctx, &j, show_in_jail, err);
}

int qemu_share_hide(struct ctx *ctx, struct qemu *q, const char *name, const char *below,
                    struct err *err)
{
    struct job j = { .name = name, .below = below, .tree = -1 };

    return run(q, ctx, &j, hide_in_jail, err);
}
