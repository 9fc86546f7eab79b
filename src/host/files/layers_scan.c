/* layers_scan.c - looks at all of a layer's directory, without reading files: counts it, takes a
 * hash of names, kinds, sizes and times, and finds what an image cannot hold. The tree is never
 * left, and symbolic links are not followed. */
#include "base/err.h"
#include "base/fd.h"
#include "base/sha256.h"
#include "host/files/layers_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#define NAMES_MAX 65536 /* of one file's attributes: the kernel's limit */

struct scan {
    struct layers_scan *out;
    struct sha256 hash;
    char *names; /* NAMES_MAX bytes */
    struct err *err;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The guest's overlay refuses a file that has its data in another layer (metacopy). */
static int check_attributes(struct scan *s, const char *path, const char *name)
{
    ssize_t n = llistxattr(path, s->names, NAMES_MAX);

    if (n < 0)
        return errno == ENOTSUP ? 0 : err_sys(s->err, errno, "list attributes of %s", name);
    for (const char *at = s->names; at < s->names + n; at += strlen(at) + 1) {
        if (str_eq(at, "trusted.overlay.metacopy"))
            return err_set(s->err, ERR_UNIMPLEMENTED, "%s has its data in another layer (metacopy)",
                           name);
        if (lgetxattr(path, at, NULL, 0) > LAYERS_XATTR_MAX)
            return err_set(s->err, ERR_UNIMPLEMENTED, "attribute %s of %s has more than %d bytes",
                           at, name, LAYERS_XATTR_MAX);
    }
    return 0;
}

static int look(struct scan *s, int dir, const char *name, struct stat *st)
{
    AUTO_FREE char *path = str_format("/proc/thread-self/fd/%d/%s", dir, name);

    if (fstatat(dir, name, st, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT) < 0)
        return err_sys(s->err, errno, "look at %s", name);
    /* Each of a file's names counts its part. */
    if (S_ISREG(st->st_mode) && st->st_nlink > 0 &&
        __builtin_add_overflow(s->out->bytes,
                               ((uint64_t)st->st_size + st->st_nlink - 1) / st->st_nlink,
                               &s->out->bytes))
        return err_set(s->err, ERR_UNIMPLEMENTED, "its files are too large");
    AUTO_FREE char *line = str_format(
        "%o %u %u %llu %lld %lld.%09ld %llu %llu %llu\n", st->st_mode, st->st_uid, st->st_gid,
        (unsigned long long)st->st_ino, (long long)st->st_size, (long long)st->st_ctim.tv_sec,
        st->st_ctim.tv_nsec, (unsigned long long)st->st_rdev, (unsigned long long)st->st_nlink,
        (unsigned long long)st->st_blocks);
    sha256_add(&s->hash, name, strlen(name) + 1);
    sha256_add(&s->hash, line, strlen(line));
    return check_attributes(s, path, name);
}

/* Counts them, so that memory is bounded before they are looked at. */
static int read_names(struct scan *s, int fd, struct strv *ret)
{
    int again = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    AUTO(closedir) DIR *d = again < 0 ? NULL : fdopendir(again);

    if (!d) {
        fd_close(again);
        return err_sys(s->err, errno, "read a directory");
    }
    rewinddir(d);
    errno = 0;
    for (struct dirent *e; (e = readdir(d));) {
        if (str_eq(e->d_name, ".") || str_eq(e->d_name, ".."))
            continue;
        if (++s->out->entries > LAYERS_ENTRIES_MAX)
            return err_set(s->err, ERR_UNIMPLEMENTED, "it has more than %d files",
                           LAYERS_ENTRIES_MAX);
        strv_add(ret, e->d_name);
    }
    if (errno)
        return err_sys(s->err, errno, "read a directory");
    if (ret->n)
        qsort(ret->v, ret->n, sizeof(*ret->v), by_name);
    return 0;
}

static int walk(struct scan *s, int dir, unsigned depth)
{
    AUTO(strv_release) struct strv names = { 0 };

    if (depth > LAYERS_DEPTH_MAX)
        return err_set(s->err, ERR_UNIMPLEMENTED, "its directories are more than %d deep",
                       LAYERS_DEPTH_MAX);
    if (read_names(s, dir, &names) < 0)
        return -1;
    for (size_t i = 0; i < names.n; i++) {
        struct stat st;

        if (look(s, dir, names.v[i], &st) < 0)
            return -1;
        if (!S_ISDIR(st.st_mode))
            continue;
        AUTO_FD int below =
            openat(dir, names.v[i], O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NOATIME | O_CLOEXEC);
        if (below < 0)
            return err_sys(s->err, errno, "open %s", names.v[i]);
        if (walk(s, below, depth + 1) < 0)
            return err_wrap(s->err, "%s", names.v[i]);
        sha256_add(&s->hash, "/", 2);
    }
    return 0;
}

int layers_scan(int dir_fd, struct layers_scan *ret, struct err *err)
{
    struct layers_scan out = { .entries = 1 }; /* itself */
    AUTO_FREE char *names = mem_alloc(NAMES_MAX);
    struct scan s = { .out = &out, .names = names, .err = err };
    struct stat st;

    sha256_init(&s.hash);
    if (look(&s, dir_fd, ".", &st) < 0 || walk(&s, dir_fd, 0) < 0)
        return -1;
    sha256_hex(&s.hash, out.stamp);
    *ret = out;
    return 0;
}
