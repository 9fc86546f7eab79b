/* io_path.c - the paths are a client's: a thread opens them, with a deadline, and looks before it
 * opens, for opening a device may do something. */
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/offload.h"
#include "host/io/io_priv.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define OPEN_NS (10 * NS_PER_S)

struct job {
    const char *path[3]; /* NULL: nothing to open. The thread has copies (OFFLOAD) */
    enum io_kind kind[3];
    struct io_opened opened[3];
    bool same; /* both outputs name the same path */
};

static const char *const names[] = { "stdin", "stdout", "stderr" };

static void drop(void *job)
{
    struct job *j = job;

    for (int i = 0; i < 3; i++) {
        fd_close_later(j->opened[i].fd);
        fd_close_later(j->opened[i].held);
    }
}

/* A path that leads nowhere is the client's mistake. Not ERR_NOT_FOUND: containerd would take that
 * for a task that is not there. */
static int bad_path(struct err *err, int errnum, const char *path)
{
    err_sys(err, errnum, "open %.*s", IO_NAME_SHOWN, path);
    if (errnum == ENOENT || errnum == ENOTDIR || errnum == ELOOP || errnum == ENAMETOOLONG ||
        errnum == EISDIR || errnum == ENXIO)
        err->code = ERR_INVALID;
    return -1;
}

/* Opens what an O_PATH descriptor stands for. */
static int reopen(int fd, int flags)
{
    char path[40];

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    fd = open(path, flags | O_CLOEXEC | O_NOCTTY);
    return fd < 0 ? -errno : fd;
}

/* The end that we do not use stays open in our hands: the other side may come and go. The reading
 * end comes first, since without one the writing end cannot be opened. */
static int open_fifo(int which, int seen, const char *path, struct io_opened *o, struct err *err)
{
    AUTO_FD int reader = reopen(seen, O_RDONLY | O_NONBLOCK);

    if (reader < 0)
        return bad_path(err, -TAKE_FD(reader), path);

    int writer = reopen(seen, O_WRONLY | O_NONBLOCK);

    if (writer < 0)
        return bad_path(err, -writer, path);
    o->fd = which == 0 ? TAKE_FD(reader) : writer;
    o->held = which == 0 ? writer : TAKE_FD(reader);
    return 0;
}

static int open_file(int which, int seen, const char *path, struct io_opened *o, struct err *err)
{
    int fd = reopen(seen, which == 0 ? O_RDONLY : O_WRONLY | O_APPEND);

    if (fd < 0)
        return bad_path(err, -fd, path);
    o->fd = fd;
    return 0;
}

/* file:// for output: with its directories. An O_PATH descriptor, or -1. */
static int make_file(const char *path, struct err *err)
{
    const char *slash = strrchr(path, '/');
    AUTO_FREE char *dir = str_ndup(path, (size_t)(slash - path));
    int r = *dir ? dir_make(dir, 0755) : 0;

    if (r < 0)
        return bad_path(err, -r, dir);

    /* O_NONBLOCK: what is there by now might be a FIFO. */
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0644);

    if (fd < 0)
        return bad_path(err, errno, path);
    return fd;
}

static int open_one(int which, enum io_kind kind, const char *path, struct io_opened *o,
                    struct err *err)
{
    AUTO_FD int seen = open(path, O_PATH | O_CLOEXEC);
    struct stat st;

    if (seen < 0 && errno == ENOENT && kind == IO_FILE && which != 0) {
        seen = make_file(path, err);
        if (seen < 0)
            return -1;
    }
    if (seen < 0 || fstat(seen, &st) < 0)
        return bad_path(err, errno, path);
    if (S_ISFIFO(st.st_mode) && kind != IO_FILE)
        return open_fifo(which, seen, path, o, err);
    if (S_ISREG(st.st_mode) && kind != IO_FIFO)
        return open_file(which, seen, path, o, err);
    return err_set(err, ERR_INVALID, "%.*s is no %s", IO_NAME_SHOWN, path,
                   kind == IO_FIFO   ? "FIFO"
                   : kind == IO_FILE ? "plain file"
                                     : "FIFO and no plain file");
}

static int open_all(void *job, struct err *err)
{
    struct job *j = job;

    for (int i = 0; i < 3; i++) {
        /* Both outputs into one file: opened once. Two opens of one FIFO do no harm. */
        if (i == 2 && j->same && j->opened[1].held < 0)
            j->opened[2].shared = true;
        else if (j->path[i] && open_one(i, j->kind[i], j->path[i], &j->opened[i], err) < 0)
            return err_wrap(err, "%s", names[i]);
    }
    return 0;
}

int io_paths_open(struct ctx *ctx, const struct io_form forms[3], struct io_opened ret[3],
                  struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, OPEN_NS);
    struct job j = { 0 };
    bool any = false;

    for (int i = 0; i < 3; i++) {
        j.opened[i] = (struct io_opened){ .fd = -1, .held = -1 };
        j.kind[i] = forms[i].kind;
        if (forms[i].kind != IO_NONE && !io_form_is_driver(&forms[i]))
            j.path[i] = forms[i].path;
        any = any || j.path[i];
    }
    j.same = j.path[1] && j.kind[1] == j.kind[2] && str_eq(j.path[1], j.path[2]);
    if (any && OFFLOAD(&limited, open_all, &j, 3, drop, "opening of stdio", err) < 0)
        return -1;
    memcpy(ret, j.opened, sizeof(j.opened));
    return 0;
}
