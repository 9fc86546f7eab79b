/* fiber_test.c - fibers, waits, latches, sets of fibers, cancels, on virtual and real time. */
#include "base/clock.h"
#include "base/fiber.h"
#include "base/loop.h"
#include "base/str.h"
#include "fixture/loop_fixture.h"
#include "harness/tap.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

struct shared {
    struct ctx *ctx;
    struct waitq q;
    struct sbuf trace;
    int woken, failed;
    enum err_code code;
};

static void shared_init(struct shared *s, struct ctx *ctx)
{
    *s = (struct shared){ .ctx = ctx };
    waitq_init(&s->q);
}

static void wait_once(void *arg)
{
    struct shared *s = arg;
    struct err err = ERR_INIT;

    if (waitq_wait(s->ctx, &s->q, "test", &err) == 0) {
        s->woken++;
    } else {
        s->failed++;
        s->code = err.code;
    }
}

TEST_VIRTUAL(wake_one_wakes_the_first_and_wake_all_the_rest)
{
    struct shared s;

    shared_init(&s, ctx);
    for (int i = 0; i < 3; i++)
        fiber_go(ctx->loop, wait_once, &s, "waiter-%d", i);
    fiber_yield(ctx->loop);
    waitq_wake_one(&s.q);
    fiber_yield(ctx->loop);
    ASSERT_EQ(s.woken, 1);
    waitq_wake_all(&s.q);
    fiber_yield(ctx->loop);
    ASSERT_EQ(s.woken, 3);
}

TEST_VIRTUAL(a_deadline_ends_the_wait_exactly_when_due)
{
    struct shared s;
    struct ctx late = ctx_with_timeout(ctx, 5 * NS_PER_MS);
    struct err err = ERR_INIT;
    uint64_t before = loop_now(ctx->loop);

    shared_init(&s, ctx);
    ASSERT_FAIL(waitq_wait(&late, &s.q, "nothing", &err), err, ERR_DEADLINE);
    ASSERT_EQ(loop_now(ctx->loop) - before, 5 * NS_PER_MS);
    ASSERT_HAS(err.msg, "nothing");
    ASSERT(list_empty(&s.q.waiters));
}

TEST_VIRTUAL(a_deadline_that_is_over_fails_without_waiting)
{
    struct shared s;
    struct ctx over = ctx_with_timeout(ctx, 0);
    struct err err = ERR_INIT;

    shared_init(&s, ctx);
    ASSERT_FAIL(waitq_wait(&over, &s.q, "nothing", &err), err, ERR_DEADLINE);
}

TEST_VIRTUAL(a_cancel_wakes_waiters_below_it_with_its_code)
{
    struct shared s;
    struct cancel parent, child;
    struct ctx below;

    cancel_init(&parent, NULL);
    cancel_init(&child, &parent);
    below = ctx_with_cancel(ctx, &child);
    shared_init(&s, &below);
    fiber_go(ctx->loop, wait_once, &s, "waiter");
    fiber_yield(ctx->loop);
    cancel_fire(&parent, ERR_UNAVAILABLE, "vm is gone");
    cancel_fire(&parent, ERR_ABORTED, "the second call changes nothing");
    fiber_yield(ctx->loop);
    ASSERT_EQ(s.failed, 1);
    ASSERT_EQ(s.code, ERR_UNAVAILABLE);
    ASSERT(child.fired);
    cancel_release(&child);
    cancel_release(&parent);
}

TEST_VIRTUAL(a_child_of_a_fired_cancel_is_born_fired)
{
    struct cancel parent, child;
    struct err err = ERR_INIT;

    cancel_init(&parent, NULL);
    cancel_fire(&parent, ERR_CANCELLED, "client went away");
    cancel_init(&child, &parent);

    struct ctx below = ctx_with_cancel(ctx, &child);

    ASSERT_FAIL(ctx_check(&below, &err), err, ERR_CANCELLED);
    ASSERT_EQ(err_reason(&err), REASON_CANCELLED);
    ASSERT_STR(err.msg, "client went away");
}

TEST_VIRTUAL(a_released_child_is_not_touched_by_its_parent)
{
    struct cancel parent, *child = mem_new(struct cancel);

    cancel_init(&parent, NULL);
    cancel_init(child, &parent);
    cancel_release(child);
    free(child);
    cancel_fire(&parent, ERR_CANCELLED, "late");
    ASSERT(parent.fired);
}

TEST_VIRTUAL(sleep_takes_its_time_and_respects_the_deadline)
{
    struct err err = ERR_INIT;
    uint64_t before = loop_now(ctx->loop);
    struct ctx soon = ctx_with_timeout(ctx, NS_PER_S);

    ASSERT_OK(fiber_sleep(&soon, NS_PER_MS, &err), err);
    ASSERT_EQ(loop_now(ctx->loop) - before, NS_PER_MS);
    ASSERT_EQ(err.code, ERR_NONE);
    ASSERT_FAIL(fiber_sleep(&soon, 2 * NS_PER_S, &err), err, ERR_DEADLINE);
    ASSERT_EQ(loop_now(ctx->loop) - before, NS_PER_S);
}

TEST_VIRTUAL(timers_fire_in_order_whatever_the_order_of_their_start)
{
    struct err err = ERR_INIT;
    static const unsigned delays[] = { 7, 3, 9, 1, 4, 8, 2, 6, 5, 3 };
    uint64_t start = loop_now(ctx->loop), last = 0;
    struct waitq q;

    waitq_init(&q);
    for (size_t i = 0; i < ARRAY_LEN(delays); i++) {
        struct ctx c = ctx_with_timeout(ctx, delays[i] * NS_PER_MS);

        if (delays[i] * NS_PER_MS > last - (last ? start : 0)) {
            ASSERT_FAIL(waitq_wait(&c, &q, "tick", &err), err, ERR_DEADLINE);
            ASSERT(loop_now(ctx->loop) >= last);
            last = loop_now(ctx->loop);
        }
    }
    ASSERT(last > start);
}

static void latch_waiter(void *arg)
{
    struct latch *l = ((void **)arg)[0];
    struct ctx *ctx = ((void **)arg)[1];
    int *count = ((void **)arg)[2];
    struct err err = ERR_INIT;

    if (latch_wait(ctx, l, "latch", &err) == 0)
        ++*count;
}

TEST_VIRTUAL(a_latch_lets_early_and_late_waiters_through)
{
    struct latch l;
    int count = 0;
    void *arg[] = { &l, ctx, &count };
    struct err err = ERR_INIT;

    latch_init(&l);
    fiber_go(ctx->loop, latch_waiter, arg, "early");
    fiber_yield(ctx->loop);
    latch_set(&l);
    latch_set(&l);
    ASSERT_OK(latch_wait(ctx, &l, "latch", &err), err);
    fiber_yield(ctx->loop);
    ASSERT_EQ(count, 1);
}

static void sleeper(void *arg)
{
    struct shared *s = arg;
    struct err err = ERR_INIT;

    (void)fiber_sleep(s->ctx, NS_PER_MS * (uint64_t)(1 + s->woken++), &err);
}

TEST_VIRTUAL(a_set_waits_for_all_its_fibers)
{
    struct shared s;
    struct fibers g;
    struct err err = ERR_INIT;

    shared_init(&s, ctx);
    fibers_init(&g);
    for (int i = 0; i < 5; i++)
        fibers_go(&g, ctx->loop, sleeper, &s, "sleeper-%d", i);
    ASSERT_OK(fibers_wait(ctx, &g, "sleepers", &err), err);
    ASSERT_EQ(g.running, 0);
    ASSERT_EQ(s.woken, 5);
}

static void append_name(void *arg)
{
    struct shared *s = arg;

    sbuf_adds(&s->trace, fiber_name(fiber_self(s->ctx->loop)));
}

static char *order_with_seed(uint64_t seed)
{
    struct loop *loop = loop_new(&(struct loop_opts){ .virtual_time = true, .seed = seed });
    struct ctx ctx = ctx_root(loop);
    struct shared s;

    shared_init(&s, &ctx);
    for (int i = 0; i < 8; i++)
        fiber_go(loop, append_name, &s, "%d", i);
    loop_run(loop);
    loop_free(loop);
    return sbuf_take(&s.trace);
}

TEST(a_seed_decides_the_order_and_repeats_it)
{
    AUTO_FREE char *fifo = order_with_seed(0), *a = order_with_seed(7), *again = order_with_seed(7),
                   *b = order_with_seed(8);

    ASSERT_STR(fifo, "01234567");
    ASSERT_STR(a, again);
    ASSERT(strcmp(a, b) != 0);
}

static void hang(void *arg)
{
    wait_once(arg);
}

TEST(virtual_time_returns_at_once_when_nothing_can_wake_a_fiber)
{
    struct loop *loop = loop_new(&(struct loop_opts){ .virtual_time = true });
    struct ctx ctx = ctx_root(loop);
    struct shared s;
    AUTO(sbuf_release) struct sbuf dump = { 0 };

    shared_init(&s, &ctx);
    fiber_go(loop, hang, &s, "the-hanging-one");
    ASSERT_EQ(loop_run(loop), 1);
    loop_dump(loop, &dump);
    ASSERT_HAS(dump.data, "the-hanging-one");
    ASSERT_HAS(dump.data, "for: test");
    loop_free(loop);
}

static long resident_pages(void)
{
    FILE *f = fopen("/proc/self/statm", "re");
    long size = 0, rss = 0;

    if (!f || fscanf(f, "%ld %ld", &size, &rss) != 2)
        rss = -1;
    if (f)
        fclose(f);
    return rss;
}

#if defined(__SANITIZE_ADDRESS__)
#define UNDER_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define UNDER_ASAN 1
#endif
#endif

TEST_FIBER(a_parked_fiber_costs_at_most_6_kib)
{
#ifdef UNDER_ASAN
    tap_skip("shadow memory counts too");
#endif
    enum { N = 2000 };
    struct shared s;

    shared_init(&s, ctx);

    long before = resident_pages();

    for (int i = 0; i < N; i++)
        fiber_go(ctx->loop, wait_once, &s, "parked");
    fiber_yield(ctx->loop);

    long bytes = (resident_pages() - before) * 4096 / N;

    waitq_wake_all(&s.q);
    fiber_yield(ctx->loop);
    ASSERT_EQ(s.woken, N);
    printf("# a parked fiber costs %ld bytes\n", bytes); /* for bench/run, too */
    if (bytes > 6 * 1024)
        tap_fail(__FILE__, __LINE__, "a parked fiber costs %ld bytes", bytes);
}

static __attribute__((noinline)) int too_deep(volatile char *up, int depth)
{
    volatile char frame[1024];

    frame[0] = up ? up[0] : 0;
    return depth == 0 ? frame[0] : too_deep(frame, depth - 1) + 1;
}

static void overflow(void *arg)
{
    *(volatile int *)arg = too_deep(NULL, 1024);
}

TEST(a_stack_overflow_hits_the_guard_page)
{
    pid_t pid = fork();

    if (pid == 0) {
        struct loop *loop = loop_new(NULL);
        int sink;

        (void)!freopen("/dev/null", "w", stderr);
        fiber_go(loop, overflow, &sink, "deep");
        loop_run(loop);
        _exit(0);
    }

    int status;

    ASSERT(waitpid(pid, &status, 0) == pid);
    ASSERT(!WIFEXITED(status) || WEXITSTATUS(status) != 0);
}

#define LARGE_FRAME (24 * 1024)

/* Touched at its lower end only. */
static __attribute__((noinline)) void one_large_frame(void *arg)
{
    volatile char frame[LARGE_FRAME];
    void (*volatile again)(void *) = one_large_frame;
    size_t *left = arg;

    frame[0] = 1;
    if ((*left)-- > 0)
        again(arg);
    frame[0]++;
}

static void idle(void *arg)
{
    struct ctx ctx = ctx_root(arg);
    struct err err = ERR_INIT;

    (void)fiber_sleep(&ctx, NS_PER_S, &err);
}

TEST(a_large_frame_does_not_jump_over_the_guard_into_another_stack)
{
#ifdef UNDER_ASAN
    tap_skip("stacks have another size");
#endif
    pid_t pid = fork();

    if (pid == 0) {
        struct loop *loop = loop_new(NULL);
        /* So many that the last one ends some pages below the stack. */
        size_t more = FIBER_STACK_BYTES / LARGE_FRAME;

        (void)!freopen("/dev/null", "w", stderr);
        fiber_go(loop, one_large_frame, &more, "large");
        for (int i = 0; i < 4; i++)
            fiber_go(loop, idle, loop, "neighbour");
        loop_run(loop);
        _exit(0);
    }

    int status;

    ASSERT(waitpid(pid, &status, 0) == pid);
    ASSERT(!WIFEXITED(status) || WEXITSTATUS(status) != 0);
}

static void ended(void *arg)
{
    ++*(int *)arg;
}

/* In a child, without memory for a stack: new work is refused, admitted work uses the reserve and
 * returns it. */
static void run_without_memory(void *arg)
{
    struct loop *loop = arg;
    struct rlimit none = { 0, 0 };
    struct err err = ERR_INIT;
    int n = 0;

    loop_trim(loop);
    if (setrlimit(RLIMIT_AS, &none) < 0)
        return;
    for (int i = 0; i < 20; i++) {
        if (fiber_admit(loop, &err) == 0 || err.code != ERR_EXHAUSTED)
            return;
        fiber_go(loop, ended, &n, "one");
        fiber_go(loop, ended, &n, "two");
        (void)loop_run(loop);
        loop_trim(loop);
    }
    if (n != 40)
        return;
    fputs("refused, and went on", stderr);
    abort();
}

static void use_up_reserve(void *arg)
{
    struct loop *loop = arg;
    struct rlimit none = { 0, 0 };
    int n = 0;

    loop_trim(loop);
    if (setrlimit(RLIMIT_AS, &none) < 0)
        return;
    for (int i = 0; i < 100; i++)
        fiber_go(loop, ended, &n, "one");
}

TEST(without_memory_for_a_stack_new_work_is_refused_and_admitted_work_continues)
{
    struct loop *loop = loop_new(NULL);
    struct err err = ERR_INIT;

    ASSERT_OK(fiber_admit(loop, &err), err);
    ASSERT_ABORTS(run_without_memory, loop, "refused, and went on");
    ASSERT_ABORTS(use_up_reserve, loop, "the reserve is used up");
    loop_free(loop);
}

static void wait_forever(void *arg)
{
    struct ctx *ctx = arg;
    struct ctx limited = ctx_with_timeout(ctx, 1000);
    struct waitq never;
    struct err err = ERR_INIT;

    waitq_init(&never);
    (void)waitq_wait(&limited, &never, "nothing", &err);
    abort(); /* it is dropped before */
}

static bool is_dropped(void *arg, const char *name)
{
    return strncmp(name, "drop", 4) == 0;
}

TEST_VIRTUAL(a_fiber_that_is_dropped_where_it_waits_never_continues)
{
    struct cancel cancel;
    struct ctx cancelled = *ctx;
    struct err err = ERR_INIT;

    cancel_init(&cancel, NULL);
    cancelled.cancel = &cancel;
    fiber_go(ctx->loop, wait_forever, &cancelled, "drop me");
    ASSERT_OK(fiber_sleep(ctx, 10, &err), err);
    loop_drop_fibers(ctx->loop, is_dropped, NULL);
    cancel_fire(&cancel, ERR_CANCELLED, "");
    ASSERT_OK(fiber_sleep(ctx, 10000, &err), err);
    cancel_release(&cancel);
}
