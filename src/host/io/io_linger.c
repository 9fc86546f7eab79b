/* io_linger.c - what is in a FIFO when its writer has finished. The kernel drops it when the last
 * descriptor is closed; a reader that is away (containerd restarts) would never see it. So we keep
 * the FIFO open, in one of two ways:
 *   somebody reads: we hold a reading end only. The reader gets the bytes, then the end. Should it
 *     leave before (killed in between), the bytes are still there;
 *   nobody reads:   we hold a writing end only, so that the next reader's open succeeds. When it
 *     came, we change over.
 * inotify tells of readers that come and go. */
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/loop.h"
#include "host/io/io_priv.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <unistd.h>

struct linger {
    struct io *io;
    int read_end, write_end; /* one of them, -1 the other */
    int watch;
};

static void path_of(int fd, char path[40])
{
    snprintf(path, 40, "/proc/self/fd/%d", fd);
}

static int unread(int fd)
{
    int n = 0;

    return ioctl(fd, FIONREAD, &n) < 0 ? 0 : n;
}

/* Tells of these from now on; what was told before is not known any more. */
static int watch(struct linger *l, uint32_t mask, struct err *err)
{
    char path[40];

    path_of(l->write_end < 0 ? l->read_end : l->write_end, path);
    if (l->watch < 0)
        l->watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (l->watch < 0 || inotify_add_watch(l->watch, path, mask) < 0)
        return err_sys(err, errno, "watch a FIFO (fs.inotify.max_user_instances too low?)");
    return 0;
}

static void swallow_events(struct linger *l)
{
    char buf[1024];

    while (read(l->watch, buf, sizeof(buf)) > 0)
        ;
}

/* With our own reading end closed, the kernel reports an error on the writing end exactly if
 * nobody reads. Leaves us with the end that fits, and with events of others only: ours come before
 * they are swallowed, or are not asked for. */
static int look(struct linger *l, struct err *err)
{
    char path[40];

    if (l->write_end < 0) {
        path_of(l->read_end, path);
        l->write_end = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
        if (l->write_end < 0)
            return err_sys(err, errno, "hold a FIFO");
        fd_close(TAKE_FD(l->read_end));
    }
    if (watch(l, IN_OPEN | IN_CLOSE_NOWRITE, err) < 0)
        return -1;
    swallow_events(l);
    if (fd_ready_now(l->write_end, 0) & POLLERR)
        return 0;
    if (watch(l, IN_CLOSE_NOWRITE, err) < 0)
        return -1;
    path_of(l->write_end, path);
    l->read_end = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (l->read_end < 0)
        return err_sys(err, errno, "hold a FIFO");
    fd_close(TAKE_FD(l->write_end));
    return 0;
}

static int linger(struct linger *l, struct err *err)
{
    while (unread(l->write_end < 0 ? l->read_end : l->write_end) > 0)
        if (look(l, err) < 0 ||
            loop_wait_fd(&l->io->rest, l->watch, POLLIN, "a reader of what is left", err) < 0)
            return -1;
    return 0;
}

/* Until the first look there may be a reader. */
uint64_t io_linger_unread(const struct io *io)
{
    uint64_t n = 0;

    for (size_t i = 0; i < ARRAY_LEN(io->lingers); i++)
        if (io->lingers[i] && io->lingers[i]->read_end >= 0)
            n += (uint64_t)unread(io->lingers[i]->read_end);
    return n;
}

/* Each of the two outputs has one at most. */
static void exchange(struct io *io, const struct linger *old, struct linger *new)
{
    io->lingers[io->lingers[0] == old ? 0 : 1] = new;
}

static void linger_fiber(void *arg)
{
    struct linger *l = arg;
    struct err err = ERR_INIT;

    if (linger(l, &err) < 0 && l->write_end >= 0 &&
        (fd_ready_now(l->write_end, 0) & POLLERR)) { /* a reader that is there has it all */
        uint64_t lost = (uint64_t)unread(l->write_end);

        l->io->lost += lost;
        log_warn(&l->io->rest, "output was never read", F_U("lost-bytes", lost), F_ERR(&err));
    }
    fd_close(l->read_end);
    fd_close(l->write_end);
    fd_close(l->watch);
    exchange(l->io, l, NULL);
    io_unref(l->io);
    free(l);
}

void io_linger(struct io *io, int read_end)
{
    if (io->gone.fired || unread(read_end) == 0) {
        fd_close(read_end);
        return;
    }

    struct linger *l = mem_new(struct linger);

    *l = (struct linger){ .io = io_ref(io), .read_end = read_end, .write_end = -1, .watch = -1 };
    exchange(io, NULL, l);
    fiber_go(io->loop, linger_fiber, l, "io fifo %s", io->id);
}
