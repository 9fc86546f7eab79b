/* loop_linux.c - epoll, timers, signals; and the virtual clock of the simulator. */
#include "base/clock.h"
#include "base/fd.h"
#include "base/loop_priv.h"
#include "base/str.h"
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

/* Virtual time begins here, so that 0 stays "no deadline" and wall clocks look like dates. */
#define VIRTUAL_START (NS_PER_S)
#define VIRTUAL_EPOCH (UINT64_C(1700000000) * NS_PER_S)

struct loop *loop_new(const struct loop_opts *opts)
{
    struct loop *loop = mem_new(struct loop);

    loop->epoll = loop->signal_fd = loop->signals.fd = -1;
    list_init(&loop->fibers);
    list_init(&loop->orphans);
    waitq_init(&loop->idle);
    waitq_init(&loop->io_released);
    fiber_fill_reserve(loop);
    if (opts && opts->virtual_time) {
        loop->virtual_time = true;
        loop->virtual_now = VIRTUAL_START;
        loop->seeded = opts->seed != 0;
        loop->by_name = opts->by_name;
        rng_seed(&loop->rng, opts->seed);
        return loop;
    }
    loop->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (loop->epoll < 0) {
        int e = errno;

        loop_free(loop);
        errno = e;
        return NULL;
    }
    return loop;
}

void loop_free(struct loop *loop)
{
    if (!loop)
        return;
    while (!list_empty(&loop->fibers))
        fiber_drop(LIST_ENTRY(loop->fibers.next, struct fiber, in_all));
    fiber_free_spares(loop);
    fiber_free_reserve(loop);
    while (!list_empty(&loop->orphans))
        orphan_free(LIST_FIRST(&loop->orphans, struct orphan, node));
    source_remove(loop, &loop->signals);
    fd_close(loop->signal_fd);
    fd_close(loop->epoll);
    free(loop->ready);
    free(loop->heap);
    free(loop);
}

void loop_trim(struct loop *loop)
{
    fiber_free_spares(loop);
    malloc_trim(0);
}

uint64_t loop_now(const struct loop *loop)
{
    return loop->virtual_time ? loop->virtual_now : clock_mono();
}

uint64_t loop_wall(const struct loop *loop)
{
    return loop->virtual_time ? VIRTUAL_EPOCH + loop->virtual_now + loop->wall_offset
                              : clock_wall();
}

void loop_rand(struct loop *loop, void *data, size_t len)
{
    if (loop->virtual_time)
        rng_fill(&loop->rng, data, len);
    else
        rand_bytes(data, len);
}

bool loop_is_virtual(const struct loop *loop)
{
    return loop->virtual_time;
}

void loop_stop(struct loop *loop)
{
    loop->stopped = true;
}

/* --- timers: a binary heap from index 1 --- */

static void heap_put(struct loop *loop, size_t i, struct timer *t)
{
    loop->heap[i] = t;
    t->index = i;
}

static void heap_up(struct loop *loop, size_t i)
{
    struct timer *t = loop->heap[i];

    for (; i > 1 && loop->heap[i / 2]->at > t->at; i /= 2)
        heap_put(loop, i, loop->heap[i / 2]);
    heap_put(loop, i, t);
}

static void heap_down(struct loop *loop, size_t i)
{
    struct timer *t = loop->heap[i];

    for (size_t child; (child = 2 * i) <= loop->heap_n; i = child) {
        if (child < loop->heap_n && loop->heap[child + 1]->at < loop->heap[child]->at)
            child++;
        if (t->at <= loop->heap[child]->at)
            break;
        heap_put(loop, i, loop->heap[child]);
    }
    heap_put(loop, i, t);
}

void timer_add(struct loop *loop, struct timer *t, uint64_t at, void (*fn)(struct timer *t))
{
    t->at = at;
    t->fn = fn;
    loop->heap = mem_grow(loop->heap, loop->heap_n + 1, &loop->heap_cap, sizeof(*loop->heap));
    loop->heap[++loop->heap_n] = t;
    heap_up(loop, loop->heap_n);
}

void timer_remove(struct loop *loop, struct timer *t)
{
    size_t i = t->index;

    if (i == 0)
        return;
    t->index = 0;

    struct timer *last = loop->heap[loop->heap_n--];

    if (last == t)
        return;
    heap_put(loop, i, last);
    heap_up(loop, i);
    heap_down(loop, last->index);
}

static void fire_timers(struct loop *loop)
{
    uint64_t now = loop_now(loop);

    while (loop->heap_n > 0 && loop->heap[1]->at <= now) {
        struct timer *t = loop->heap[1];

        timer_remove(loop, t);
        t->fn(t);
    }
}

/* --- fds --- */

int source_add(struct loop *loop, struct source *s, int fd, uint32_t events,
               void (*fn)(struct source *s, uint32_t events))
{
    struct epoll_event ev = { .events = events, .data.ptr = s };

    s->fd = -1;
    s->fn = fn;
    if (loop->epoll < 0)
        return -ENOTSUP; /* virtual time has no fds */
    if (epoll_ctl(loop->epoll, EPOLL_CTL_ADD, fd, &ev) < 0)
        return -errno;
    s->fd = fd;
    return 0;
}

void source_remove(struct loop *loop, struct source *s)
{
    if (s->fd < 0)
        return;
    (void)epoll_ctl(loop->epoll, EPOLL_CTL_DEL, s->fd, NULL); /* the fd may be closed already */
    s->fd = -1;
    for (int i = loop->event_next; i < loop->n_events; i++)
        if (loop->events[i].data.ptr == s)
            loop->events[i].data.ptr = NULL;
}

static void pulse_sleeps(struct loop_pulse *p)
{
    uint64_t since = atomic_load_explicit(&p->since, memory_order_relaxed);

    if (atomic_load_explicit(&p->told, memory_order_relaxed) == since)
        loop_pulse_over(p, since);
    atomic_store_explicit(&p->since, 0, memory_order_release);
}

static void pulse_works(struct loop_pulse *p)
{
    atomic_store(&p->since, clock_mono());
    if (atomic_load(&p->watcher) != 0)
        loop_pulse_wake(p);
}

static void handle_events(struct loop *loop)
{
    struct timespec timeout, *limit = NULL;

    if (loop->ready_head < loop->ready_n) {
        timeout = (struct timespec){ 0 };
        limit = &timeout;
    } else if (loop->heap_n > 0) {
        uint64_t now = clock_mono(), at = loop->heap[1]->at, ns = at > now ? at - now : 0;

        timeout = (struct timespec){ .tv_sec = (time_t)(ns / NS_PER_S),
                                     .tv_nsec = (long)(ns % NS_PER_S) };
        limit = &timeout;
    }

    if (loop->pulse)
        pulse_sleeps(loop->pulse);

    int n = epoll_pwait2(loop->epoll, loop->events, LOOP_EVENTS, limit, NULL);

    if (loop->pulse)
        pulse_works(loop->pulse);

    loop->n_events = n < 0 ? 0 : n; /* EINTR: the next round sees it */
    for (loop->event_next = 0; loop->event_next < loop->n_events;) {
        struct epoll_event *ev = &loop->events[loop->event_next++];
        struct source *s = ev->data.ptr;

        if (s)
            s->fn(s, ev->events);
    }
    loop->n_events = 0;
}

/* --- the loop --- */

/* FNV-1a, mixed. */
static uint64_t rank(uint64_t now, const char *name)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325) ^ now;

    for (; *name; name++)
        h = (h ^ (uint8_t)*name) * UINT64_C(0x100000001b3);
    return (h ^ h >> 32) * UINT64_C(0x9e3779b97f4a7c15);
}

/* Which of the ready fibers is next. */
static size_t pick(struct loop *loop)
{
    uint64_t least = UINT64_MAX;
    size_t at = loop->ready_head;

    if (!loop->by_name)
        return at + rng_below(&loop->rng, loop->ready_n - at);
    for (size_t i = at; i < loop->ready_n; i++) {
        uint64_t r = rank(loop->virtual_now, loop->ready[i]->name);

        if (r < least) {
            least = r;
            at = i;
        }
    }
    return at;
}

static void run_ready(struct loop *loop)
{
    /* Runs only the fibers that are ready now; those that become ready meanwhile run after the next
     * check of the fds. */
    for (size_t n = loop->ready_n - loop->ready_head; n > 0 && !loop->stopped; n--) {
        size_t head = loop->ready_head;

        if (loop->seeded) {
            size_t at = pick(loop);
            struct fiber *chosen = loop->ready[at];

            loop->ready[at] = loop->ready[head];
            loop->ready[head] = chosen;
        }
        loop->ready_head++;

        struct fiber *f = loop->ready[head];

        if (loop->ready_head == loop->ready_n)
            loop->ready_head = loop->ready_n = 0;
        loop->switches++;
        fiber_resume(f);
    }
}

size_t loop_run(struct loop *loop)
{
    loop->stopped = false;
    while (!loop->stopped && loop->n_fibers > 0) {
        run_ready(loop);
        if (loop->stopped || loop->n_fibers == 0)
            break;
        if (loop->ready_head == loop->ready_n && loop->n_idle > 0 &&
            loop->switches != loop->idle_seen) {
            loop->idle_seen = loop->switches + loop->n_idle;
            waitq_wake_all(&loop->idle);
        }
        if (loop->virtual_time) {
            if (loop->ready_head < loop->ready_n)
                continue;
            if (loop->heap_n == 0)
                break; /* nothing can wake them any more */
            if (loop->heap[1]->at > loop->virtual_now)
                loop->virtual_now = loop->heap[1]->at;
        } else {
            handle_events(loop);
        }
        fire_timers(loop);
    }
    return loop->n_fibers;
}

/* --- signals --- */

static void signal_ready(struct source *s, uint32_t events)
{
    struct loop *loop = CONTAINER_OF(s, struct loop, signals);
    struct signalfd_siginfo info;

    (void)events;
    if (loop->io_held)
        return; /* the previous program may have to handle it; the signalfd stays ready */
    while (read(loop->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info))
        if (info.ssi_signo < ARRAY_LEN(loop->handlers) && loop->handlers[info.ssi_signo].fn)
            loop->handlers[info.ssi_signo].fn(loop->handlers[info.ssi_signo].arg, &info);
}

/* Each saved context restores its own signal mask, so all saved ones are updated; else the next
 * switch would unblock the signal. */
static void block_everywhere(struct loop *loop, int signo)
{
    sigaddset(&loop->uc.uc_sigmask, signo);
    LIST_EACH (&loop->fibers, pos)
        sigaddset(&LIST_ENTRY(pos, struct fiber, in_all)->uc.uc_sigmask, signo);
}

int loop_on_signal(struct loop *loop, int signo,
                   void (*fn)(void *arg, const struct signalfd_siginfo *info), void *arg)
{
    sigset_t set;

    if (signo <= 0 || (size_t)signo >= ARRAY_LEN(loop->handlers))
        return -EINVAL;
    loop->handlers[signo].fn = fn;
    loop->handlers[signo].arg = arg;
    sigemptyset(&set);
    for (int i = 1; i < (int)ARRAY_LEN(loop->handlers); i++)
        if (loop->handlers[i].fn)
            sigaddset(&set, i);
    if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
        return -errno;
    block_everywhere(loop, signo);

    int fd = signalfd(loop->signal_fd, &set, SFD_CLOEXEC | SFD_NONBLOCK);

    if (fd < 0)
        return -errno;
    if (loop->signal_fd >= 0)
        return 0;
    loop->signal_fd = fd;
    return source_add(loop, &loop->signals, fd, EPOLLIN, signal_ready);
}

/* --- a single wait for an fd --- */

struct fd_wait {
    struct source source;
    struct waitq q;
    bool ready;
};

static void fd_ready(struct source *s, uint32_t events)
{
    struct fd_wait *w = CONTAINER_OF(s, struct fd_wait, source);

    (void)events;
    w->ready = true;
    waitq_wake_all(&w->q);
}

int loop_wait_fd(struct ctx *ctx, int fd, short events, const char *why, struct err *err)
{
    struct fd_wait w = { .source.fd = -1 };
    uint32_t mask = EPOLLONESHOT | (events & POLLIN ? EPOLLIN | EPOLLRDHUP : 0) |
                    (events & POLLOUT ? EPOLLOUT : 0);
    AUTO_FD int copy = -1;
    int r = source_add(ctx->loop, &w.source, fd, mask, fd_ready);

    if (r == -EEXIST) { /* another fiber waits on it too */
        copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
        if (copy < 0)
            return err_sys(err, errno, "%s: dup", why);
        r = source_add(ctx->loop, &w.source, copy, mask, fd_ready);
    }
    if (r == -EPERM)
        return 0;
    if (r < 0)
        return err_sys(err, -r, "%s: epoll", why);
    waitq_init(&w.q);
    while (r == 0 && !w.ready)
        r = waitq_wait(ctx, &w.q, why, err);
    source_remove(ctx->loop, &w.source);
    return r;
}

/* --- changes of an fd --- */

struct loop_changes {
    struct fd_wait wait;
    struct loop *loop;
    int fd;
};

int loop_changes_new(struct loop *loop, int fd, struct loop_changes **ret, struct err *err)
{
    struct loop_changes *c = mem_new(struct loop_changes);

    *c = (struct loop_changes){ .wait.source.fd = -1, .loop = loop, .fd = fd };
    waitq_init(&c->wait.q);
    int r = fd < 0 ? -EBADF : source_add(loop, &c->wait.source, fd, EPOLLPRI | EPOLLET, fd_ready);
    if (r < 0) {
        loop_changes_free(c);
        return err_sys(err, -r, "watch for changes");
    }
    *ret = c;
    return 0;
}

int loop_changes_wait(struct ctx *ctx, struct loop_changes *c, const char *why, struct err *err)
{
    while (!c->wait.ready)
        if (waitq_wait(ctx, &c->wait.q, why, err) < 0)
            return -1;
    c->wait.ready = false;
    return 0;
}

void loop_changes_free(struct loop_changes *c)
{
    if (!c)
        return;
    source_remove(c->loop, &c->wait.source);
    fd_close(c->fd);
    free(c);
}

/* --- looking at it --- */

int loop_wait_idle(struct ctx *ctx, const char *why, struct err *err)
{
    ctx->loop->n_idle++;

    int r = waitq_wait(ctx, &ctx->loop->idle, why, err);

    ctx->loop->n_idle--;
    return r;
}

void loop_hold_io(struct loop *loop, bool held)
{
    loop->io_held = held;
    if (!held)
        waitq_wake_all(&loop->io_released);
}

int loop_io(struct ctx *ctx, const char *why, struct err *err)
{
    while (ctx->loop->io_held && fiber_self(ctx->loop))
        if (waitq_wait(ctx, &ctx->loop->io_released, why, err) < 0)
            return -1;
    return 0;
}

void loop_each_fiber(const struct loop *loop,
                     bool (*fn)(void *arg, const char *name, const char *why), void *arg)
{
    for (const struct list *pos = loop->fibers.next; pos != &loop->fibers; pos = pos->next) {
        const struct fiber *f = LIST_ENTRY(pos, struct fiber, in_all);

        if (f != loop->current && !fn(arg, f->name, f->why))
            return;
    }
}

void loop_dump(const struct loop *loop, struct sbuf *out)
{
    uint64_t now = loop_now(loop);
    size_t n = 0;

    sbuf_addf(out, "%zu fibers\n", loop->n_fibers);
    for (const struct list *pos = loop->fibers.next; pos != &loop->fibers; pos = pos->next) {
        const struct fiber *f = LIST_ENTRY(pos, struct fiber, in_all);
        char age[CLOCK_HUMAN_SIZE], since[CLOCK_HUMAN_SIZE];

        clock_human(now - f->born_ns, age);
        clock_human(now - f->parked_ns, since);
        sbuf_addf(out, "%3zu %-32s age %-8s ", ++n, f->name, age);
        if (f == loop->current)
            sbuf_adds(out, "running\n");
        else if (f->why)
            sbuf_addf(out, "waits %-8s for: %s\n", since, f->why);
        else
            sbuf_adds(out, "ready\n");
    }
}
