#include "host/ledger/journal.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DIR_NAME ".journal"
#define OLDER "@1"
#define STATE "@state"
#define STATE_NEW "@state.new"

struct journal {
    char *path, *older;
    int fd;
    uint64_t bytes;
};

/* '@' separates the parts: neither a namespace nor an id can contain it. */
char *journal_path(const char *run_root, const char *ns, const char *id)
{
    return str_format("%s/" DIR_NAME "/%s@%s", run_root, ns, id);
}

char *journal_state_path(const char *path)
{
    return str_format("%s" STATE, path);
}

/* --- journals of exited shims --- */

struct old {
    char *path;
    uint64_t changed;
};
struct olds {
    struct old *v;
    size_t n, cap;
};

static int gather(void *arg, const struct journal_entry *e)
{
    struct olds *o = arg;

    if (e->alive)
        return 0;
    o->v = mem_grow(o->v, o->n, &o->cap, sizeof(*o->v));
    o->v[o->n++] = (struct old){ str_dup(e->path), e->changed_wall_ns };
    return 0;
}

static int newest_first(const void *a, const void *b)
{
    uint64_t x = ((const struct old *)a)->changed, y = ((const struct old *)b)->changed;

    return x < y ? 1 : -(x > y);
}

static void remove_all(const char *path)
{
    static const char *const parts[] = { "", OLDER, STATE, STATE_NEW };

    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        AUTO_FREE char *part = str_format("%s%s", path, parts[i]);

        (void)unlink(part);
    }
}

static void prune(const char *run_root)
{
    struct olds o = { 0 };
    struct err ignored = ERR_INIT; /* the next shim retries */

    (void)journal_each(run_root, gather, &o, &ignored);
    if (o.n > 0)
        qsort(o.v, o.n, sizeof(*o.v), newest_first);
    for (size_t i = 0; i < o.n; i++) {
        if (i >= JOURNAL_KEEP)
            remove_all(o.v[i].path);
        free(o.v[i].path);
    }
    free(o.v);
}

/* --- writing --- */

static int open_file(const char *path, struct err *err)
{
    AUTO_FD int fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);

    if (fd < 0)
        return err_sys(err, errno, "open %s", path);

    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };

    if (fcntl(fd, F_OFD_SETLK, &lock) < 0) /* readers see by the lock that the shim is running */
        return err_sys(err, errno, "lock %s", path);
    return TAKE_FD(fd);
}

int journal_open(const char *run_root, const char *ns, const char *id, struct journal **ret,
                 struct err *err)
{
    AUTO_FREE char *dir = str_format("%s/" DIR_NAME, run_root),
                   *path = journal_path(run_root, ns, id);
    struct stat st;
    int r = dir_make(dir, 0700);

    if (r < 0)
        return err_sys(err, -r, "create %s", dir);
    prune(run_root);

    int fd = open_file(path, err);

    if (fd < 0)
        return -1;

    struct journal *j = mem_new(struct journal);

    j->fd = fd;
    j->bytes = fstat(fd, &st) == 0 ? (uint64_t)st.st_size : 0;
    j->older = str_format("%s" OLDER, path);
    j->path = TAKE_PTR(path);
    *ret = j;
    return 0;
}

static void turn_over(struct journal *j)
{
    struct err ignored = ERR_INIT;

    if (rename(j->path, j->older) < 0)
        return; /* on failure the file keeps growing */

    int fd = open_file(j->path, &ignored);

    if (fd < 0) {
        (void)rename(j->older, j->path);
        return;
    }
    (void)dup3(fd, j->fd, O_CLOEXEC); /* keeps the descriptor's number: see journal_fd() */
    fd_close(fd);
    j->bytes = 0;
}

void journal_add(struct journal *j, const char *line, size_t len)
{
    ssize_t n;

    if (j->bytes + len > JOURNAL_MAX_BYTES && j->bytes > 0)
        turn_over(j);
    if (j->bytes + len > 2 * (uint64_t)JOURNAL_MAX_BYTES)
        return;
    n = write(j->fd, line, len);
    if (n > 0)
        j->bytes += (uint64_t)n;
}

void journal_state(struct journal *j, const char *text)
{
    AUTO_FREE char *path = j ? str_format("%s" STATE, j->path) : NULL,
                   *new = j ? str_format("%s" STATE_NEW, j->path) : NULL;
    AUTO_FD int fd =
        j && text ? open(new, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600) : -1;

    if (path && !text)
        (void)unlink(path);
    if (fd < 0)
        return;
    if (fd_write_full(fd, text, strlen(text)) < 0 || rename(new, path) < 0)
        (void)unlink(new);
}

int journal_fd(const struct journal *j)
{
    return j ? j->fd : -1;
}

void journal_close(struct journal *j, bool keep)
{
    if (!j)
        return;
    if (!keep)
        remove_all(j->path);
    fd_close(j->fd);
    free(j->path);
    free(j->older);
    free(j);
}

/* --- reading --- */

static int no_older(const struct dirent *d)
{
    const char *at = strchr(d->d_name, '@');

    return d->d_name[0] != '.' && at && !strchr(at + 1, '@');
}

static bool is_locked(const char *path)
{
    AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    struct flock lock = { .l_type = F_RDLCK, .l_whence = SEEK_SET }; /* only tested, not taken */

    return fd >= 0 && fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

static int tell(const char *dir, const char *name,
                int (*fn)(void *arg, const struct journal_entry *e), void *arg)
{
    AUTO_FREE char *path = str_format("%s/%s", dir, name), *ns = str_dup(name);
    char *at = strchr(ns, '@');
    struct stat st;

    if (lstat(path, &st) < 0 || !S_ISREG(st.st_mode))
        return 0;
    *at = '\0';

    const struct journal_entry e = { .ns = ns,
                                     .id = at + 1,
                                     .path = path,
                                     .alive = is_locked(path),
                                     .changed_wall_ns = (uint64_t)st.st_mtim.tv_sec * NS_PER_S +
                                                        (uint64_t)st.st_mtim.tv_nsec };

    return fn(arg, &e);
}

int journal_each(const char *run_root, int (*fn)(void *arg, const struct journal_entry *e),
                 void *arg, struct err *err)
{
    AUTO_FREE char *dir = str_format("%s/" DIR_NAME, run_root);
    struct dirent **names;
    int n = scandir(dir, &names, no_older, alphasort), r = 0;

    if (n < 0)
        return errno == ENOENT ? 0 : err_sys(err, errno, "read %s", dir);
    for (int i = 0; i < n; i++) {
        if (r == 0)
            r = tell(dir, names[i]->d_name, fn, arg);
        free(names[i]);
    }
    free(names);
    return r;
}
