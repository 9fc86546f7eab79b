#include "host/jail/turn.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/log.h"
#include "base/offload.h"
#include "base/str.h"
#include "host/jail/turn_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#define LOOK_NS (20 * NS_PER_MS) /* of the first in a queue: nobody else looks at the turns */

struct turn {
    int fd; /* holds the locks */
    char *path;
    unsigned n, queue;
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

static int64_t queue_byte(const struct turn *t)
{
    return TURN_QUEUE_BYTE + t->queue;
}

static void leave_queue(struct turn *t)
{
    struct flock none = { .l_type = F_UNLCK, .l_start = queue_byte(t), .l_len = 1 };

    (void)fcntl(t->fd, F_OFD_SETLK, &none); /* giving back cannot fail */
}

static bool take_free(struct turn *t, struct err *err)
{
    for (unsigned i = 0; i < t->n && err->code == ERR_NONE; i++)
        if (lock(t, i, false, err))
            return true;
    return false;
}

/* --- the first of a queue shows that it lives --- */

/* In the file, one for each queue. */
struct beat {
    uint64_t count, pid;
};

static struct beat read_beat(int fd, unsigned queue)
{
    struct beat b = { 0 };

    (void)!pread(fd, &b, sizeof(b), (off_t)(queue * sizeof(b))); /* nothing yet is zeros, too */
    return b;
}

static void beat(const struct turn *t)
{
    struct beat b = { read_beat(t->fd, t->queue).count + 1, (uint64_t)getpid() };

    /* If it is lost (no memory for the file), one of the others overtakes us: no harm. */
    (void)!pwrite(t->fd, &b, sizeof(b), (off_t)(t->queue * sizeof(b)));
}

struct watch {
    struct ctx ctx;
    struct cancel cancel; /* ends the wait for the queue, and the watch */
    int fd;
    unsigned queue;
    bool stuck;
    uint64_t pid;
};

static void watch_main(void *arg)
{
    struct watch *w = arg;
    struct beat last = read_beat(w->fd, w->queue);
    struct err ended = ERR_INIT;

    for (unsigned same = 0; same < TURN_WATCH_LOOKS;) {
        if (fiber_sleep(&w->ctx, TURN_WATCH_NS, &ended) < 0)
            return;

        struct beat now = read_beat(w->fd, w->queue);

        same = now.count == last.count ? same + 1 : 0;
        last = now;
    }
    w->stuck = true;
    w->pid = last.pid;
    cancel_fire(&w->cancel, ERR_CANCELLED, "the first in the queue does nothing");
}

/* --- waiting --- */

static int enter_queue(void *arg, struct err *err)
{
    struct turn *t = arg;

    return lock(t, queue_byte(t), true, err) ? 0 : -1;
}

/* -1 with *t NULL: a thread has it, and gives it back when it can. *ret_stuck: the first in the
 * queue is stopped or hangs. */
static int wait_queue(struct ctx *ctx, struct turn **t, bool *ret_stuck, struct err *err)
{
    struct watch w = { .queue = (*t)->queue };
    struct ctx root = ctx_root(ctx->loop); /* the watch ends at once */
    struct group watching;
    struct err ignored = ERR_INIT;
    void *arg = *t;
    int r;

    w.fd = open((*t)->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW); /* *t is the thread's now */
    if (w.fd < 0)
        return err_sys(err, errno, "open %s", (*t)->path);
    cancel_init(&w.cancel, ctx->cancel);
    w.ctx = ctx_with_cancel(ctx, &w.cancel);
    group_init(&watching);
    if (w.queue + 1 < TURN_QUEUES)
        group_go(&watching, ctx->loop, watch_main, &w, "turn.watch");
    r = offload_run(&w.ctx, enter_queue, &arg, give_any, "the queue of those who start", err);
    *t = arg;
    cancel_fire(&w.cancel, ERR_CANCELLED, "the queue is entered");
    (void)group_wait(&root, &watching, "the watch", &ignored);
    cancel_release(&w.cancel);
    fd_close(w.fd);
    *ret_stuck = r < 0 && w.stuck;
    if (*ret_stuck)
        log_warn(ctx,
                 "the first of those who wait to start a VM does nothing, and is overtaken; is it "
                 "stopped? kill -CONT lets it go on",
                 F_U("pid", w.pid));
    return r;
}

/* Only one lock can be waited for, and its holder may hang for ever while the others come and go:
 * so whoever is first in the queue looks at all of them, again and again. */
static int wait_turn(struct ctx *ctx, struct turn **t, bool *ret_stuck, struct err *err)
{
    if (!lock(*t, queue_byte(*t), false, err) &&
        (err->code != ERR_NONE || wait_queue(ctx, t, ret_stuck, err) < 0))
        return -1;
    while (!take_free(*t, err)) {
        if (err->code != ERR_NONE)
            return -1;
        beat(*t);
        if (fiber_sleep(ctx, LOOK_NS, err) < 0)
            return -1;
    }
    leave_queue(*t);
    return 0;
}

static struct turn *open_turn(const char *path, unsigned n, unsigned queue, struct err *err)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    struct turn *t;

    if (fd < 0) {
        err_sys(err, errno, "open %s", path);
        return NULL;
    }
    t = mem_new(struct turn);
    *t = (struct turn){ .fd = fd, .path = str_dup(path), .n = n ? n : 1, .queue = queue };
    return t;
}

int turn_take(struct ctx *ctx, const char *path, unsigned n, struct turn **ret, struct err *err)
{
    bool stuck = true;

    for (unsigned queue = 0; stuck && queue < TURN_QUEUES; queue++) {
        struct turn *t = open_turn(path, n, queue, err);

        stuck = false;
        if (!t)
            return -1;
        if (wait_turn(ctx, &t, &stuck, err) == 0) {
            *ret = t;
            return 0;
        }
        turn_give(t);
        if (stuck)
            err_clear(err);
    }
    return err_wrap(err, "wait for one of %u turns to start a VM", n);
}
