#include "host/files/tree.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/idmap.h"
#include "base/offload.h"
#include "base/str.h"
#include "host/files/tree_priv.h"
#include "host/jail/anchor.h"
#include "host/jail/mountinfo.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

struct job {
    const char *path, *uid, *gid; /* uid, gid: of opts.ids */
    struct tree_opts opts;
    struct tree tree;
};

static void drop(void *arg)
{
    struct job *j = arg;

    fd_close_later(j->tree.fd);
    free(j->tree.followed);
}

/* --- in the thread --- */

int tree_enter_private(struct err *err)
{
    if (unshare(CLONE_FS | CLONE_NEWNS) < 0)
        return err_sys(err, errno, "make a mount namespace");
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        return err_sys(err, errno, "make mounts private");
    return 0;
}

/* A tmpfs in a mount namespace of this thread. The fd, or -1. */
static int mount_tmpfs(const char *name, unsigned long flags, const char *options, struct err *err)
{
    if (tree_enter_private(err) < 0)
        return -1;
    if (mount(name, TREE_SPOT, "tmpfs", MS_NOSUID | MS_NODEV | flags, options) < 0)
        return err_sys(err, errno, "mount a tmpfs");
    int fd = open(TREE_SPOT, O_PATH | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? err_sys(err, errno, "open the tmpfs") : fd;
}

int tree_open_path(const char *path, bool must_be_dir, struct err *err)
{
    if (path[0] != '/')
        return err_because(err, REASON_MOUNT_SOURCE_INVALID, ERR_INVALID,
                           "\"%s\" is not an absolute path", path);
    int fd = open(path, O_PATH | O_CLOEXEC | (must_be_dir ? O_DIRECTORY : 0));
    if (fd < 0)
        return err_sys(err, errno, "open %s", path);
    return fd;
}

int tree_clone(int fd, bool recursive, const char *what, struct err *err)
{
    AUTO_FD int tree = open_tree(fd, "",
                                 OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH |
                                     (recursive ? AT_RECURSIVE : 0));

    if (tree < 0)
        return err_sys(err, errno, "make a mount of %s", what);
    return TAKE_FD(tree);
}

int tree_set_read_only(int tree_fd, bool recursive, const char *what, struct err *err)
{
    struct mount_attr attr = { .attr_set = MOUNT_ATTR_RDONLY };

    if (mount_setattr(tree_fd, "", AT_EMPTY_PATH | (recursive ? AT_RECURSIVE : 0), &attr,
                      sizeof(attr)) < 0)
        return err_sys(err, errno, "make the mount of %s read-only", what);
    return 0;
}

static int take_name(struct job *j, struct err *err)
{
    const char *slash = strrchr(j->path, '/');
    size_t n = strlen(slash + 1);

    if (n == 0 || n >= sizeof(j->tree.name) || str_eq(slash + 1, ".") || str_eq(slash + 1, ".."))
        return err_set(err, ERR_INVALID, "%s does not end with the name of a file", j->path);
    memcpy(j->tree.name, slash + 1, n + 1);
    return 0;
}

/* A tmpfs with one name in it, and the file mounted on that name. A mount inside a detached tree
 * is not possible on all kernels: it is put together in a namespace, then cloned out of it. */
static int wrap_file(struct job *j, int file, struct err *err)
{
    if (take_name(j, err) < 0)
        return -1;
    AUTO_FD int dir = mount_tmpfs("lcow-file", MS_NOEXEC, "mode=0555,size=4k,nr_inodes=4", err);
    if (dir < 0)
        return -1;
    AUTO_FD int spot = openat(dir, j->tree.name, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0);
    if (spot < 0)
        return err_sys(err, errno, "make %s to mount on", j->tree.name);
    if (move_mount(file, "", dir, j->tree.name, MOVE_MOUNT_F_EMPTY_PATH) < 0)
        return err_sys(err, errno, "mount %s", j->path);
    j->tree.fd = tree_clone(dir, true, j->path, err);
    if (j->tree.fd < 0)
        return -1;
    /* The directory always; the file if asked for. */
    return tree_set_read_only(j->tree.fd, j->opts.read_only, j->path, err);
}

static int map(const struct job *j, int fd, struct err *err)
{
    const struct idmap ids = { (char *)j->uid, (char *)j->gid };

    if (!ids.uid)
        return 0;
    AUTO_FD int userns = idmap_userns(&ids, err);
    return userns < 0 ? -1 : idmap_mount(fd, userns, true, j->path, err);
}

/* Where fd really is. Caller frees. */
static int real_path(int fd, char **ret, struct err *err)
{
    AUTO_FREE char *link = str_format("/proc/thread-self/fd/%d", fd);
    char path[PATH_MAX];
    ssize_t n = readlink(link, path, sizeof(path));

    if (n < 0 || n == sizeof(path))
        return err_sys(err, n < 0 ? errno : ENAMETOOLONG, "find the path of a directory");
    *ret = str_ndup(path, (size_t)n);
    return 0;
}

static int has_mounts(int fd, bool *ret, struct err *err)
{
    AUTO(mountinfo_list_release) struct mountinfo_list all = { 0 };
    AUTO_FREE char *path = NULL;

    if (real_path(fd, &path, err) < 0)
        return -1;
    int r =
        mountinfo_below(open("/proc/thread-self/mountinfo", O_RDONLY | O_CLOEXEC), path, 0, &all);
    if (r < 0)
        return err_sys(err, -r, "read the table of mounts");
    for (size_t i = 0; i < all.n; i++)
        *ret = *ret || !str_eq(all.v[i].point, path);
    return 0;
}

static int follow(struct job *j, int fd, struct err *err)
{
    struct statx x;

    if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_MNT_ID, &x) < 0)
        return err_sys(err, errno, "look at %s", j->path);
    j->tree.mount = x.stx_mnt_id;
    return real_path(fd, &j->tree.followed, err);
}

static int open_dir(struct job *j, int fd, struct err *err)
{
    const struct tree_opts *o = &j->opts;

    if (o->read_only && o->recursive && o->top_only && !o->follow &&
        has_mounts(fd, &j->tree.writable, err) < 0)
        return -1;
    if (o->follow && follow(j, fd, err) < 0)
        return -1;
    j->tree.fd = tree_clone(fd, o->recursive && !o->follow, j->path, err);
    if (j->tree.fd < 0 || map(j, j->tree.fd, err) < 0)
        return -1;
    return o->read_only ? tree_set_read_only(j->tree.fd, !j->tree.writable, j->path, err) : 0;
}

static int open_in_thread(void *arg, struct err *err)
{
    struct job *j = arg;
    struct stat st;
    AUTO_FD int fd = tree_open_path(j->path, false, err);

    if (fd < 0)
        return -1;
    if (fstat(fd, &st) < 0)
        return err_sys(err, errno, "look at %s", j->path);
    if (!S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode))
        return err_because(err, REASON_MOUNT_SOURCE_INVALID, ERR_UNIMPLEMENTED,
                           "%s is not a directory or a regular file: sockets, FIFOs and devices "
                           "cannot be shared with a VM",
                           j->path);
    if (S_ISDIR(st.st_mode))
        return open_dir(j, fd, err);
    AUTO_FD int tree = tree_clone(fd, false, j->path, err);
    return tree < 0 || map(j, tree, err) < 0 ? -1 : wrap_file(j, tree, err);
}

int tree_open(struct ctx *ctx, const char *path, const struct tree_opts *opts, struct tree *ret,
              struct err *err)
{
    static const struct idmap none;
    const struct idmap *ids = opts->ids ? opts->ids : &none;
    struct job j = {
        .path = path, .uid = ids->uid, .gid = ids->gid, .opts = *opts, .tree = { .fd = -1 }
    };
    AUTO_FREE char *why = str_format("open %s", path);

    j.opts.ids = NULL; /* the caller's */
    if (OFFLOAD(ctx, open_in_thread, &j, 3, drop, why, err) < 0)
        return -1;
    *ret = j.tree;
    return 0;
}

static int map_in_thread(void *arg, struct err *err)
{
    const struct job *j = arg;

    return map(j, j->tree.fd, err);
}

int tree_map(struct ctx *ctx, int tree_fd, const struct idmap *ids, const char *what,
             struct err *err)
{
    struct job j = { .path = what, .uid = ids->uid, .gid = ids->gid };

    j.tree.fd = fcntl(tree_fd, F_DUPFD_CLOEXEC, 3);
    if (j.tree.fd < 0)
        return err_sys(err, errno, "copy the descriptor of %s", what);
    if (OFFLOAD(ctx, map_in_thread, &j, 3, drop, "map the ids of a tree", err) < 0)
        return -1;
    fd_close_later(j.tree.fd);
    return 0;
}

/* --- a pod's root --- */

/* The same program as a container's anchor on the host. */
static int write_program(int dir, struct err *err)
{
    AUTO_FD int fd = openat(dir, TREE_PAUSE_NAME, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0555);
    int r = fd < 0 ? -errno : fd_write_full(fd, anchor_blob, anchor_blob_len);

    if (r == 0 && fchmod(fd, 0555) < 0) /* whatever our umask says */
        r = -errno;
    return r < 0 ? err_sys(err, -r, "write the pod's program") : 0;
}

static int pause_in_thread(void *arg, struct err *err)
{
    struct job *j = arg;
    AUTO_FD int dir = mount_tmpfs("lcow-pause", 0, "mode=0755,size=64k,nr_inodes=4", err);

    if (dir < 0 || write_program(dir, err) < 0)
        return -1;
    j->tree.fd = tree_clone(dir, false, "the pod's root", err);
    return j->tree.fd < 0 ? -1 : tree_set_read_only(j->tree.fd, false, "the pod's root", err);
}

int tree_open_pause(struct ctx *ctx, int *ret_fd, struct err *err)
{
    struct job j = { .tree = { .fd = -1 } };

    if (OFFLOAD(ctx, pause_in_thread, &j, 1, drop, "the pod's root", err) < 0)
        return err_wrap(err, "root file system of the pod");
    *ret_fd = j.tree.fd;
    return 0;
}
