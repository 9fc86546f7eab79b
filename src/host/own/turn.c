#include "host/own/turn.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/offload.h"
#include "base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#define QUEUE_BYTE (INT64_C(1) << 30) /* behind all turns */
#define LOOK_NS (20 * NS_PER_MS)      /* of the first in the queue: nobody else looks */

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

static bool take_free(struct turn *t, struct err *err)
{
    for (unsigned i = 0; i < t->n && err->code == ERR_NONE; i++)
        if (lock(t, i, false, err))
            return true;
    return false;
}

static int enter_queue(void *arg, struct err *err)
{
    return lock(arg, QUEUE_BYTE, true, err) ? 0 : -1;
}

/* Only one lock can be waited for, and its holder may hang for ever while the others come and go:
 * so whoever is first in the queue looks at all of them, again and again. */
static int wait_turn(struct ctx *ctx, void **arg, struct err *err)
{
    if (offload_run(ctx, enter_queue, arg, give_any, "the queue of those who start", err) < 0)
        return -1;
    while (!take_free(*arg, err))
        if (err->code != ERR_NONE || fiber_sleep(ctx, LOOK_NS, err) < 0)
            return -1;
    return 0;
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
    if (!lock(t, QUEUE_BYTE, false, err) || !take_free(t, err))
        r = err->code != ERR_NONE ? -1 : wait_turn(ctx, &arg, err);
    if (r == 0)
        leave_queue(arg);
    if (r < 0) {
        turn_give(arg);
        return err_wrap(err, "wait for one of %u turns to start a VM", n);
    }
    *ret = arg;
    return 0;
}
