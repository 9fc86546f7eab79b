#include "host/files/emptydir.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/offload.h"
#include "base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>

struct job {
    const char *dir, *path;
    struct emptydir found;
};

static void drop(void *arg)
{
    emptydir_release(&((struct job *)arg)->found);
}

/* --- in the thread --- */

static void add(struct emptydir *e, const char *path, const struct stat *st)
{
    e->dirs = mem_grow(e->dirs, e->n, &e->cap, sizeof(*e->dirs));
    e->dirs[e->n++] = (struct emptydir_dir){ .path = str_dup(path),
                                             .mode = st->st_mode & 07777,
                                             .uid = st->st_uid,
                                             .gid = st->st_gid,
                                             .dev = st->st_dev,
                                             .ino = st->st_ino };
}

/* Takes fd. What goes away meanwhile was not there. */
static void walk(struct emptydir *e, int fd, const char *path, unsigned depth)
{
    AUTO(closedir) DIR *d = fdopendir(fd);

    if (!d)
        fd_close(fd);
    for (struct dirent *entry; d && (entry = readdir(d));) {
        struct stat st;

        if (str_eq(entry->d_name, ".") || str_eq(entry->d_name, ".."))
            continue;
        AUTO_FD int child =
            openat(dirfd(d), entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (child < 0 && errno == ENOENT)
            continue;
        if (child < 0 || fstat(child, &st) < 0 || e->n >= EMPTYDIR_DIRS_MAX ||
            depth >= EMPTYDIR_DEPTH_MAX) {
            e->has_files = true;
            return;
        }
        AUTO_FREE char *below = str_format("%s%s%s", path, path[0] ? "/" : "", entry->d_name);
        add(e, below, &st);
        walk(e, TAKE_FD(child), below, depth + 1);
    }
}

/* What the kubelet mounted on it, if anything. */
static int look_at_mount(struct emptydir *e, int fd, const struct stat *st, struct err *err)
{
    struct stat above;
    struct statfs fs;

    e->kind = EMPTYDIR_PLAIN;
    if (fstatat(fd, "..", &above, 0) < 0 || fstatfs(fd, &fs) < 0)
        return err_sys(err, errno, "look at an emptyDir");
    if (above.st_dev == st->st_dev)
        return 0;
    if (fs.f_type == TMPFS_MAGIC) {
        e->kind = EMPTYDIR_MEMORY;
        e->bytes = (uint64_t)fs.f_blocks * (uint64_t)fs.f_bsize;
    } else if (fs.f_type == HUGETLBFS_MAGIC) {
        e->kind = EMPTYDIR_HUGE;
        e->page_size = (uint64_t)fs.f_bsize;
    }
    return 0;
}

static int look_in_thread(void *arg, struct err *err)
{
    struct job *j = arg;
    struct emptydir *e = &j->found;
    struct stat st, asked;
    AUTO_FD int fd = open(j->dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR || errno == ELOOP))
        return 0;
    if (fd < 0 || fstat(fd, &st) < 0)
        return err_sys(err, errno, "open %s", j->dir);
    if (stat(j->path, &asked) < 0)
        return err_sys(err, errno, "look at %s", j->path);
    if (look_at_mount(e, fd, &st, err) < 0)
        return err_wrap(err, "%s", j->dir);
    add(e, "", &st);
    walk(e, TAKE_FD(fd), "", 0);
    for (size_t i = 0; i < e->n; i++)
        if (e->dirs[i].ino == asked.st_ino && e->dirs[i].dev == asked.st_dev) {
            e->at = i;
            return 0;
        }
    e->has_files = e->elsewhere = true;
    return 0;
}

int emptydir_look(struct ctx *ctx, const char *dir, const char *path, struct emptydir *ret,
                  struct err *err)
{
    struct job j = { .dir = dir, .path = path };
    AUTO_FREE char *why = str_format("look at %s", path);

    if (OFFLOAD(ctx, look_in_thread, &j, 2, drop, why, err) < 0)
        return -1;
    *ret = j.found;
    return 0;
}
