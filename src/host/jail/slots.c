#include "host/jail/slots.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/log.h"
#include "base/offload.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#define LOOK_NS (20 * NS_PER_MS) /* of the first in a queue: only that one looks at the turns */

static int open_slots(const char *path, struct err *err)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);

    return fd < 0 ? err_sys(err, errno, "open %s", path) : fd;
}

/* The open file owns the lock, not the process: a process may hold several. 1, or 0: another
 * process has it. */
static int lock(int fd, int64_t byte, bool wait, const char *path, struct err *err)
{
    struct flock want = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1 };
    int r;

    do
        r = fcntl(fd, wait ? F_OFD_SETLKW : F_OFD_SETLK, &want);
    while (r < 0 && errno == EINTR);
    if (r == 0)
        return 1;
    if (!wait && (errno == EAGAIN || errno == EACCES))
        return 0;
    return err_sys(err, errno, "lock byte %lld of %s", (long long)byte, path);
}

/* The first byte that is free from base on, or count if none is. */
static int lock_one_of(int fd, uint32_t base, uint32_t count, const char *path, uint32_t *ret,
                       struct err *err)
{
    int r = 0;

    for (*ret = 0; *ret < count; ++*ret)
        if ((r = lock(fd, (int64_t)base + *ret, false, path, err)) != 0)
            return r < 0 ? -1 : 0;
    return 0;
}

/* --- user ids --- */

int uid_slot_take(const char *path, uint32_t base, uint32_t count, struct uid_slot *ret,
                  struct err *err)
{
    uint32_t i;

    if (base == 0 || count == 0 || UINT32_MAX - base < count)
        return err_set(
            err, ERR_INVALID,
            "invalid user ids for VMs, %u to %u + %u: must be at least one, and not contain 0",
            base, base, count);

    AUTO_FD int fd = open_slots(path, err);
    if (fd < 0 || lock_one_of(fd, base, count, path, &i, err) < 0)
        return -1;
    if (i == count)
        return err_because(err, REASON_NO_VM_UID, ERR_EXHAUSTED,
                           "all %u user ids for VMs (%u to %u) are taken; raise vm_uid_count in "
                           "/etc/lcow/lcow.conf",
                           count, base, base + count - 1);
    *ret = (struct uid_slot){ TAKE_FD(fd), base + i };
    return 0;
}

void uid_slot_release(struct uid_slot *slot)
{
    if (slot->fd > 0)
        fd_close(slot->fd);
    slot->fd = -1;
}

/* --- turns --- */

struct turn {
    int fd;           /* holds the locks */
    const char *path; /* borrowed, until it is taken */
    unsigned n, queue;
};

void turn_give(struct turn *t)
{
    if (t)
        fd_close(t->fd);
    free(t);
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

struct job {
    const char *path;
    int64_t byte;
    int fd;
};

static void drop(void *arg)
{
    fd_close(((struct job *)arg)->fd);
}

static int enter_queue(void *arg, struct err *err)
{
    struct job *j = arg;

    return lock(j->fd, j->byte, true, j->path, err) < 0 ? -1 : 0;
}

/* *ret_stuck: the first in the queue is stopped or hangs. */
static int wait_queue(struct ctx *ctx, struct turn *t, bool *ret_stuck, struct err *err)
{
    struct watch w = { .queue = t->queue };
    struct ctx root = ctx_root(ctx->loop); /* the watch ends at once */
    struct fibers watching;

    w.fd = open(t->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW); /* t's is the thread's now */
    if (w.fd < 0)
        return err_sys(err, errno, "open %s", t->path);
    cancel_init(&w.cancel, ctx->cancel);
    w.ctx = ctx_with_cancel(ctx, &w.cancel);
    fibers_init(&watching);
    if (w.queue + 1 < TURN_QUEUES)
        fibers_go(&watching, ctx->loop, watch_main, &w, "turn.watch");
    struct job j = { t->path, queue_byte(t), TAKE_FD(t->fd) };
    int r = OFFLOAD(&w.ctx, enter_queue, &j, 1, drop, "the queue of starting VMs", err);
    if (r == 0)
        t->fd = j.fd;
    cancel_fire(&w.cancel, ERR_CANCELLED, "the queue is entered");
    (void)fibers_wait(&root, &watching, "the watch", &(struct err)ERR_INIT);
    cancel_release(&w.cancel);
    fd_close(w.fd);
    *ret_stuck = r < 0 && w.stuck;
    if (*ret_stuck)
        log_warn(ctx,
                 "the first process in the queue to start a VM does not respond and is overtaken; "
                 "if it is stopped, resume it by kill -CONT",
                 F_U(LK_PID, w.pid));
    return r;
}

/* A thread can wait for one lock only, and the holder of that one may hang while other turns become
 * free. So the first shim in the queue polls all turns. */
static int wait_turn(struct ctx *ctx, struct turn *t, bool *ret_stuck, struct err *err)
{
    int first = lock(t->fd, queue_byte(t), false, t->path, err);
    uint32_t i;

    if (first < 0 || (first == 0 && wait_queue(ctx, t, ret_stuck, err) < 0))
        return -1;
    for (;;) {
        if (lock_one_of(t->fd, 0, t->n, t->path, &i, err) < 0)
            return -1;
        if (i < t->n)
            break;
        beat(t);
        if (fiber_sleep(ctx, LOOK_NS, err) < 0)
            return -1;
    }
    leave_queue(t);
    return 0;
}

int turn_take(struct ctx *ctx, const char *path, unsigned n, struct turn **ret, struct err *err)
{
    bool stuck = true;

    for (unsigned queue = 0; stuck && queue < TURN_QUEUES; queue++) {
        struct turn *t = mem_new(struct turn);

        *t = (struct turn){ open_slots(path, err), path, n ? n : 1, queue };
        stuck = false;
        if (t->fd >= 0 && wait_turn(ctx, t, &stuck, err) == 0) {
            *ret = t;
            return 0;
        }
        turn_give(t);
        if (stuck)
            err_clear(err);
    }
    return err_wrap_because(err, REASON_START_QUEUE_FULL, "wait for one of %u turns to start a VM",
                            n);
}
