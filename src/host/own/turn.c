#include "host/own/turn.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/offload.h"
#include "base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#define QUEUE_BYTE (INT64_C(1) << 30) /* behind all turns */

struct turn {
    int fd; /* holds the locks */
    char *path;
    unsigned n;
};

void turn_give(struct turn *t)
{
    if (!t)
        return;
    fd_close(t->fd);
    free(t->path);
    free(t);
}

static void give_any(void *arg)
{
    turn_give(arg);
}

/* The open file owns the lock, not the process. false: somebody has it, or err is set. */
static bool lock(struct turn *t, int64_t byte, bool wait, struct err *err)
{
    struct flock want = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1 };
    int r;

    do
        r = fcntl(t->fd, wait ? F_OFD_SETLKW : F_OFD_SETLK, &want);
    while (r < 0 && errno == EINTR);
    if (r < 0 && (wait || (errno != EAGAIN && errno != EACCES)))
        err_sys(err, errno, "lock byte %lld of %s", (long long)byte, t->path);
    return r == 0;
}

static void leave_queue(struct turn *t)
{
    struct flock none = { .l_type = F_UNLCK, .l_start = QUEUE_BYTE, .l_len = 1 };

    (void)fcntl(t->fd, F_OFD_SETLK, &none); /* giving back cannot fail */
}

/* Whoever is first in the queue takes a free turn or waits for the oldest: turns are given in a
 * circle, so that is the next one. The file says which was the last. */
static bool take_turn(struct turn *t, bool wait, struct err *err)
{
    uint32_t last = 0;
    unsigned next, i = 0;

    if (pread(t->fd, &last, sizeof(last), 0) != sizeof(last))
        last = 0; /* a new file is empty; any start will do */
    next = (last % t->n + 1) % t->n;
    while (i < t->n && err->code == ERR_NONE && !lock(t, (next + i) % t->n, false, err))
        i++;
    if (err->code != ERR_NONE || (i == t->n && !(wait && lock(t, next, true, err))))
        return false;
    last = (next + i) % t->n;

    ssize_t written = pwrite(t->fd, &last, sizeof(last), 0);

    (void)written; /* if it was not, the queue is less fair: no more */
    return true;
}

static bool take(struct turn *t, bool wait, struct err *err)
{
    bool taken = lock(t, QUEUE_BYTE, wait, err) && take_turn(t, wait, err);

    leave_queue(t);
    return taken;
}

static int take_waiting(void *arg, struct err *err)
{
    return take(arg, true, err) ? 0 : -1;
}

int turn_take(struct ctx *ctx, const char *path, unsigned n, struct turn **ret, struct err *err)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    void *arg;
    int r = 0;

    if (fd < 0)
        return err_sys(err, errno, "open %s", path);

    struct turn *t = mem_new(struct turn);

    *t = (struct turn){ .fd = fd, .path = str_dup(path), .n = n ? n : 1 };
    arg = t;
    if (!take(t, false, err))
        r = err->code != ERR_NONE
                ? -1
                : offload_run(ctx, take_waiting, &arg, give_any, "a turn to start", err);
    if (r < 0) {
        turn_give(arg);
        return err_wrap(err, "wait for one of %u turns to start a VM", n);
    }
    *ret = arg;
    return 0;
}
