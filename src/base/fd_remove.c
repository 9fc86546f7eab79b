/* dir_remove. Walks down and up with one open directory at a time, so that neither the depth of a
 * tree nor its width costs stack or descriptors. A level costs one inode number on the heap, far
 * less than the directory itself costs its file system: there is no limit of depth. */
#include "base/fd.h"
#include "base/str.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define REMOVE_BUFFER 16384

struct remove {
    int fd;        /* of the innermost level */
    ino_t *levels; /* from the top to the innermost */
    size_t n, cap;
    dev_t dev; /* of the top: nothing on another one is touched */
    char *entries;
    bool marked; /* remove what is marked immutable or append-only, too */
};

/* -EBUSY if fd is the root of a mount (also a bind mount of the same file system). */
static int check_same_mount(int fd, const struct stat *st, dev_t dev)
{
    struct statx sx;

    if (st->st_dev != dev)
        return -EBUSY;
    if (statx(fd, "", AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW, STATX_TYPE, &sx) < 0)
        return -errno;
    if (sx.stx_attributes & sx.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT)
        return -EBUSY;
    return 0;
}

/* Looks at what was really opened, so that a mount made meanwhile is seen too. */
static int enter(struct remove *w, const char *name)
{
    AUTO_FD int fd = openat(w->fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat st;
    int r;

    if (fd < 0)
        return -errno;
    if (fstat(fd, &st) < 0)
        return -errno;
    r = check_same_mount(fd, &st, w->n ? w->dev : st.st_dev);
    if (r < 0)
        return r;
    if (w->n == 0)
        w->dev = st.st_dev;
    w->levels = mem_grow(w->levels, w->n, &w->cap, sizeof(*w->levels));
    w->levels[w->n++] = st.st_ino;
    if (w->fd != AT_FDCWD)
        fd_close(w->fd);
    w->fd = TAKE_FD(fd);
    return 0;
}

/* Returns to the parent directory, if it is still the same one. Its next pass removes the empty
 * child. */
static int leave(struct remove *w)
{
    AUTO_FD int up = openat(w->fd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct stat st;

    if (up < 0 || fstat(up, &st) < 0)
        return -errno;
    if (st.st_dev != w->dev || st.st_ino != w->levels[w->n - 2])
        return -ESTALE; /* the directory was moved meanwhile */
    w->n--;
    fd_close(w->fd);
    w->fd = TAKE_FD(up);
    return 0;
}

/* True if the file had one of the marks of chattr +i and +a, and has none any more. */
static bool unmark(int fd)
{
    const int marks = FS_IMMUTABLE_FL | FS_APPEND_FL;
    int flags = 0;

    if (ioctl(fd, FS_IOC_GETFLAGS, &flags) < 0 || !(flags & marks))
        return false;
    flags &= ~marks;
    return ioctl(fd, FS_IOC_SETFLAGS, &flags) == 0;
}

/* A mark on an entry protects it, one on a directory all its entries. Only files and directories
 * can be marked; anything else is not opened. */
static bool unmark_entry(const struct remove *w, const struct dirent64 *e)
{
    bool above = unmark(w->fd);

    if (e->d_type != DT_REG && e->d_type != DT_DIR)
        return above;
    AUTO_FD int fd = openat(w->fd, e->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    return (fd >= 0 && unmark(fd)) || above;
}

/* 1: went into a directory; 0: the entry is gone. */
static int try_entry(struct remove *w, const struct dirent64 *e)
{
    if (e->d_type == DT_DIR || e->d_type == DT_UNKNOWN) {
        if (unlinkat(w->fd, e->d_name, AT_REMOVEDIR) == 0 || errno == ENOENT)
            return 0;
        if (errno == ENOTEMPTY || errno == EEXIST) {
            int r = enter(w, e->d_name);

            return r == 0 ? 1 : r == -ENOENT ? 0 : r;
        }
        if (errno != ENOTDIR)
            return -errno;
    }
    if (unlinkat(w->fd, e->d_name, 0) < 0 && errno != ENOENT)
        return -errno;
    return 0;
}

static int remove_entry(struct remove *w, const struct dirent64 *e)
{
    int r = try_entry(w, e);

    return r == -EPERM && w->marked && unmark_entry(w, e) ? try_entry(w, e) : r;
}

/* One pass over the innermost directory. 1: there may be more to do, here or in the directory
 * that was entered; 0: it is empty. */
static int remove_pass(struct remove *w)
{
    bool found = false;

    if (lseek(w->fd, 0, SEEK_SET) < 0)
        return -errno;
    for (;;) {
        ssize_t n = getdents64(w->fd, w->entries, REMOVE_BUFFER);
        const struct dirent64 *e;

        if (n < 0)
            return -errno;
        if (n == 0)
            return found;
        for (ssize_t at = 0; at < n; at += e->d_reclen) {
            int r;

            e = (const struct dirent64 *)(w->entries + at);
            if (str_eq(e->d_name, ".") || str_eq(e->d_name, ".."))
                continue;
            found = true;
            r = remove_entry(w, e);
            if (r != 0)
                return r;
        }
    }
}

static int remove_content(struct remove *w)
{
    for (;;) {
        int r = remove_pass(w);

        if (r == 0) {
            if (w->n == 1)
                return 0;
            r = leave(w);
        }
        if (r < 0)
            return r;
    }
}

static int remove_tree(const char *path, bool marked)
{
    struct remove w = { .fd = AT_FDCWD, .marked = marked };
    int r = enter(&w, path);

    if (r == 0) {
        if (marked)
            (void)unmark(w.fd); /* on failure the removal fails and reports it */
        w.entries = mem_alloc(REMOVE_BUFFER);
        r = remove_content(&w);
    }
    if (w.fd != AT_FDCWD)
        fd_close(w.fd);
    free(w.levels);
    free(w.entries);
    return r;
}

static int remove_path(const char *path, bool marked)
{
    AUTO_FREE char *copy = str_dup(path);
    size_t len = strlen(copy);
    const char *last;
    int r;

    /* A slash at the end would follow a symlink. */
    while (len > 1 && copy[len - 1] == '/')
        copy[--len] = '\0';
    last = strrchr(copy, '/');
    last = last ? last + 1 : copy;
    if (!*last || str_eq(last, ".") || str_eq(last, ".."))
        return -EINVAL;
    r = remove_tree(copy, marked);
    if (r == -ENOTDIR || r == -ELOOP) /* a plain file, or a symlink (O_NOFOLLOW) */
        return unlink(copy) == 0 || errno == ENOENT ? 0 : errno == EISDIR ? r : -errno;
    if (r < 0 && r != -ENOENT)
        return r;
    return rmdir(copy) == 0 || errno == ENOENT ? 0 : -errno;
}

int dir_remove(const char *path)
{
    return remove_path(path, false);
}

int dir_remove_marked(const char *path)
{
    return remove_path(path, true);
}
