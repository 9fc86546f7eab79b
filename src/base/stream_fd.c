/* stream_fd.c - streams over file descriptors. An fd joins epoll, edge-triggered, at its first
 * EAGAIN and stays there; adding it reports what is ready at that moment, so nothing is missed. */
#include "base/fd.h"
#include "base/loop_priv.h"
#include "base/stream_priv.h"
#include "base/waits.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define SPLICE_BYTES (1024 * 1024)
#define PACK_BYTES (64 * 1024) /* what a pipe holds usually: more would not fit in any case */
#define TURN_CALLS 64          /* reads and writes in a row that found their side ready */

struct fd_stream {
    struct stream base;
    struct loop *loop;
    struct source source;
    struct waitq readable, writable;
    bool in_epoll, can_read, can_write;
    unsigned in_a_row;
    bool ended; /* shut down for reading: reads return the end */
    bool is_socket, is_pipe, is_tty;
    bool packs; /* stream_pack() */
};

static const struct stream_ops fd_stream_ops;

static struct fd_stream *self(struct stream *s)
{
    return CONTAINER_OF(s, struct fd_stream, base);
}

struct stream *stream_from_fd(struct loop *loop, int fd)
{
    struct fd_stream *f = mem_new(struct fd_stream);
    struct stat st = { 0 };

    f->base = (struct stream){ &fd_stream_ops, fd };
    f->loop = loop;
    f->source.fd = -1;
    f->can_read = f->can_write = true;
    waitq_init(&f->readable);
    waitq_init(&f->writable);
    (void)fstat(fd, &st);
    f->is_socket = S_ISSOCK(st.st_mode);
    f->is_pipe = S_ISFIFO(st.st_mode);
    f->is_tty = S_ISCHR(st.st_mode) && isatty(fd);
    (void)fd_nonblock(fd);
    return &f->base;
}

struct stream *stream_reopen(struct loop *loop, int fd, int flags)
{
    struct stat st;
    int copy;

    if (fstat(fd, &st) < 0)
        return NULL;
    if (S_ISFIFO(st.st_mode) || S_ISCHR(st.st_mode)) {
        char path[40];

        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        copy = open(path, flags | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    } else {
        copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    }
    return copy < 0 ? NULL : stream_from_fd(loop, copy);
}

static void fd_event(struct source *s, uint32_t events)
{
    struct fd_stream *f = CONTAINER_OF(s, struct fd_stream, source);

    if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) {
        f->can_read = true;
        waitq_wake_all(&f->readable);
    }
    if (events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) {
        f->can_write = true;
        waitq_wake_all(&f->writable);
    }
}

/* Waits for the next edge. An fd that epoll refuses is always ready. */
static int wait_for(struct ctx *ctx, struct fd_stream *f, bool *flag, struct waitq *q,
                    const char *why, struct err *err)
{
    *flag = false;
    f->in_a_row = 0;
    if (!f->in_epoll) {
        int r = source_add(f->loop, &f->source, f->base.fd,
                           EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, fd_event);

        if (r == -EPERM) {
            *flag = true;
            return 0;
        }
        if (r < 0)
            return err_sys(err, -r, "%s: epoll", why);
        f->in_epoll = true;
    }
    while (!*flag && f->base.fd >= 0)
        if (waitq_wait(ctx, q, why, err) < 0)
            return -1;
    return 0;
}

/* A peer that is always ready (a guest that floods the host) must not starve other fibers or hide
 * that ctx has ended. */
static int take_turn(struct ctx *ctx, struct fd_stream *f, struct err *err)
{
    if (++f->in_a_row < TURN_CALLS || !fiber_self(f->loop))
        return 0;
    f->in_a_row = 0;
    fiber_yield(f->loop);
    return ctx_check(ctx, err);
}

static int fd_read(struct ctx *ctx, struct stream *s, void *buf, size_t len, size_t *ret_n,
                   struct err *err)
{
    struct fd_stream *f = self(s);

    if (loop_io(ctx, WAIT_READ, err) < 0 || take_turn(ctx, f, err) < 0)
        return -1;
    for (;;) {
        if (f->ended || s->fd < 0) {
            *ret_n = 0;
            return 0;
        }

        ssize_t n = read(s->fd, buf, len);

        if (n >= 0) {
            *ret_n = (size_t)n;
            return 0;
        }
        if (errno == EIO && f->is_tty) { /* a terminal whose other side is closed */
            *ret_n = 0;
            return 0;
        }
        if (errno == EAGAIN) {
            if (wait_for(ctx, f, &f->can_read, &f->readable, WAIT_READ, err) < 0)
                return -1;
        } else if (errno != EINTR) {
            return err_sys(err, errno, "read");
        }
    }
}

static int fd_write(struct ctx *ctx, struct stream *s, const void *buf, size_t len, size_t *ret_n,
                    struct err *err)
{
    struct fd_stream *f = self(s);

    if (loop_io(ctx, WAIT_WRITE, err) < 0 || take_turn(ctx, f, err) < 0)
        return -1;
    for (;;) {
        if (s->fd < 0)
            return err_set(err, ERR_UNAVAILABLE, "write: stream is closed");

        ssize_t n = f->is_socket ? send(s->fd, buf, len, MSG_NOSIGNAL) : write(s->fd, buf, len);

        if (n >= 0) {
            *ret_n = (size_t)n;
            return 0;
        }
        if (errno == EAGAIN) {
            if (wait_for(ctx, f, &f->can_write, &f->writable, WAIT_WRITE, err) < 0)
                return -1;
        } else if (errno != EINTR) {
            return err_sys(err, errno, "write");
        }
    }
}

static int fd_readable(struct ctx *ctx, struct stream *s, struct err *err)
{
    struct fd_stream *f = self(s);

    while (!f->ended && s->fd >= 0 && !fd_ready_now(s->fd, POLLIN))
        if (wait_for(ctx, f, &f->can_read, &f->readable, WAIT_READ, err) < 0)
            return -1;
    return 0;
}

/* Edges come with every byte, even if no fiber waits for them. The next wait registers the fd
 * again, which reports what is ready. */
static void fd_quiet(struct stream *s)
{
    struct fd_stream *f = self(s);

    if (!f->in_epoll || !list_empty(&f->writable.waiters))
        return;
    source_remove(f->loop, &f->source);
    f->in_epoll = false;
}

static void fd_close_stream(struct fd_stream *f)
{
    source_remove(f->loop, &f->source);
    fd_close(TAKE_FD(f->base.fd));
    waitq_wake_all(&f->readable);
    waitq_wake_all(&f->writable);
}

static int fd_shutdown(struct stream *s, int how)
{
    struct fd_stream *f = self(s);

    if (s->fd < 0)
        return 0;
    if (!f->is_socket) {
        fd_close_stream(f);
        return 0;
    }
    if (how != SHUT_WR) {
        f->ended = true;
        f->can_read = true;
        waitq_wake_all(&f->readable);
    }
    if (how == SHUT_RDWR) {
        f->can_write = true;
        waitq_wake_all(&f->writable); /* they find EPIPE */
    }
    return shutdown(s->fd, how) < 0 && errno != ENOTCONN ? -errno : 0;
}

static void fd_free(struct stream *s)
{
    struct fd_stream *f = self(s);

    fd_close_stream(f);
    free(f);
}

static const struct stream_ops fd_stream_ops = {
    .read = fd_read,
    .write = fd_write,
    .ready = fd_readable,
    .shutdown = fd_shutdown,
    .quiet = fd_quiet,
    .free = fd_free,
};

/* --- splice --- */

void stream_pack(struct stream *to)
{
    if (to->ops == &fd_stream_ops)
        self(to)->packs = self(to)->is_pipe;
}

/* How much is to be copied at most, since it takes too much of the pipe otherwise; 0: it is to be
 * spliced, or the pipe is full. What has not come yet is copied, too: it may come at any moment. */
static size_t to_pack(const struct fd_stream *from, const struct fd_stream *to)
{
    int ready, unread, size;

    if (!to->packs || !from->is_socket)
        return 0;
    if (ioctl(from->base.fd, FIONREAD, &ready) < 0)
        ready = 0; /* a kind of socket that does not tell */
    if (ready >= PACK_BYTES || ioctl(to->base.fd, FIONREAD, &unread) < 0)
        return 0;
    size = fcntl(to->base.fd, F_GETPIPE_SZ);
    return size > unread ? (size_t)(size - unread) : 0;
}

/* Moves up to SPLICE_BYTES once. Bytes moved, 0 at the end of from, or -errno; waits as needed.
 * *ret_pack: nothing was moved, since so many bytes are to be copied.
 * EAGAIN does not say which side was not ready, so ask both: what came in the meantime makes no
 * new edge, and waiting for one on the wrong side would never end. */
static ssize_t splice_once(struct ctx *ctx, struct fd_stream *from, struct fd_stream *to,
                           size_t *ret_pack, char *side, struct err *err)
{
    *side = 'r';
    if (loop_io(ctx, WAIT_READ, err) < 0)
        return -ECANCELED;
    for (;;) {
        *side = 'r';
        if (from->ended || from->base.fd < 0)
            return 0;
        if (to->base.fd < 0) {
            *side = 'w';
            return -EPIPE;
        }
        *ret_pack = to_pack(from, to);
        if (*ret_pack > 0)
            return 1;

        ssize_t n = splice(from->base.fd, NULL, to->base.fd, NULL, SPLICE_BYTES,
                           SPLICE_F_MOVE | SPLICE_F_NONBLOCK);

        if (n >= 0)
            return n;
        if (errno == EINTR)
            continue;
        /* A pipe that is read does not fail: if a socket is written to, it is the one. */
        if (errno == EPIPE || (to->is_socket && errno != EAGAIN))
            *side = 'w';
        if (errno != EAGAIN)
            return -errno;
        if (!fd_ready_now(from->base.fd, POLLIN)) {
            if (wait_for(ctx, from, &from->can_read, &from->readable, WAIT_READ, err) < 0)
                return -ECANCELED;
        } else if (!fd_ready_now(to->base.fd, POLLOUT)) {
            *side = 'w';
            if (wait_for(ctx, to, &to->can_write, &to->writable, WAIT_WRITE, err) < 0)
                return -ECANCELED;
        }
    }
}

int stream_splice(struct ctx *ctx, struct stream *from, struct stream *to, uint64_t *bytes,
                  size_t *ret_pack, char *side, struct err *err)
{
    struct fd_stream *f = self(from), *t = self(to);

    /* Two sockets would need a pipe in between; a terminal or file gains nothing. */
    if (f->base.ops != &fd_stream_ops || t->base.ops != &fd_stream_ops || f->is_tty || t->is_tty ||
        !(f->is_pipe || t->is_pipe))
        return STREAM_UNSPLICED;
    for (uint64_t turn = 0;;) {
        ssize_t n = splice_once(ctx, f, t, ret_pack, side, err);

        if (*ret_pack > 0) {
            return STREAM_PACK;
        } else if (n > 0) {
            *bytes += (uint64_t)n;
            if (stream_take_turns(ctx, &turn, (uint64_t)n, err) < 0)
                return -1;
        } else if (n == 0) {
            return 0;
        } else if (n == -EINVAL) {
            return STREAM_UNSPLICED;
        } else if (n == -ECANCELED) {
            return -1; /* err is set */
        } else {
            return err_sys(err, (int)-n, "%s", *side == 'w' ? "write" : "read");
        }
    }
}
