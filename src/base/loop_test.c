/* loop_test.c - fds, signals, and that idle is silent. */
#include "base/clock.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/loop.h"
#include "base/str.h"
#include "harness/tap.h"
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

TEST_FIBER(an_fd_wakes_its_waiter)
{
    int p[2];
    struct err err = ERR_INIT;
    struct ctx soon = ctx_with_timeout(ctx, 10 * NS_PER_MS);

    ASSERT_EQ(pipe2(p, O_CLOEXEC), 0);
    ASSERT_FAIL(loop_wait_fd(&soon, p[0], POLLIN, "empty pipe", &err), err, ERR_DEADLINE);
    ASSERT_EQ(write(p[1], "x", 1), 1);
    ASSERT_OK(loop_wait_fd(ctx, p[0], POLLIN, "full pipe", &err), err);
    close(p[0]);
    close(p[1]);
}

TEST_FIBER(a_plain_file_is_always_ready)
{
    AUTO_FD int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    struct err err = ERR_INIT;

    ASSERT_OK(loop_wait_fd(ctx, fd, POLLIN, "file", &err), err);
}

struct two {
    struct ctx *ctx;
    int fd, done;
};

static void wait_fd(void *arg)
{
    struct two *t = arg;
    struct err err = ERR_INIT;

    if (loop_wait_fd(t->ctx, t->fd, POLLIN, "shared fd", &err) == 0)
        t->done++;
}

TEST_FIBER(two_fibers_may_wait_on_one_fd)
{
    int p[2];
    struct err err = ERR_INIT;

    ASSERT_EQ(pipe2(p, O_CLOEXEC), 0);

    struct two t = { .ctx = ctx, .fd = p[0] };
    struct fibers g;

    fibers_init(&g);
    fibers_go(&g, ctx->loop, wait_fd, &t, "a");
    fibers_go(&g, ctx->loop, wait_fd, &t, "b");
    fiber_yield(ctx->loop);
    ASSERT_EQ(write(p[1], "x", 1), 1);
    ASSERT_OK(fibers_wait(ctx, &g, "both", &err), err);
    ASSERT_EQ(t.done, 2);
    close(p[0]);
    close(p[1]);
}

static void on_signal(void *arg, const struct signalfd_siginfo *info)
{
    struct latch *l = arg;

    if (info->ssi_signo == SIGUSR2)
        latch_set(l);
}

TEST_FIBER(a_signal_reaches_its_handler)
{
    struct latch l;
    struct err err = ERR_INIT;

    latch_init(&l);
    ASSERT_EQ(loop_on_signal(ctx->loop, SIGUSR2, on_signal, &l), 0);
    ASSERT_EQ(loop_on_signal(ctx->loop, SIGWINCH, on_signal, &l), 0);
    kill(getpid(), SIGUSR2);
    ASSERT_OK(latch_wait(ctx, &l, "signal", &err), err);
}

static void wait_a_little(void *arg)
{
    struct ctx ctx = ctx_root(arg);
    struct err err = ERR_INIT;

    (void)fiber_sleep(&ctx, 30 * NS_PER_MS, &err); /* only a fiber that was there before */
}

/* The switch between fibers brings back the signal mask of each. */
TEST_FIBER(a_signal_stays_blocked_when_other_fibers_have_run)
{
    struct latch l;
    struct err err = ERR_INIT;
    sigset_t now;

    latch_init(&l);
    fiber_go(ctx->loop, wait_a_little, ctx->loop, "older");
    fiber_yield(ctx->loop);
    ASSERT_EQ(loop_on_signal(ctx->loop, SIGUSR2, on_signal, &l), 0);
    ASSERT_OK(fiber_sleep(ctx, 60 * NS_PER_MS, &err), err);
    sigprocmask(SIG_BLOCK, NULL, &now);
    ASSERT(sigismember(&now, SIGUSR2));
    kill(getpid(), SIGUSR2); /* would end us if it were not blocked while the loop waits */
    ASSERT_OK(latch_wait(ctx, &l, "signal", &err), err);
}

TEST_FIBER(a_signal_that_comes_while_all_wait_is_handled)
{
    struct latch l;
    struct err err = ERR_INIT;
    timer_t timer;
    struct sigevent ev = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR2 };
    struct itimerspec in = { .it_value.tv_nsec = 20000000 };

    latch_init(&l);
    ASSERT_EQ(loop_on_signal(ctx->loop, SIGUSR2, on_signal, &l), 0);
    ASSERT_EQ(timer_create(CLOCK_MONOTONIC, &ev, &timer), 0);
    ASSERT_EQ(timer_settime(timer, 0, &in, NULL), 0);
    ASSERT_OK(latch_wait(ctx, &l, "signal", &err), err);
    timer_delete(timer);
}

TEST_FIBER(while_a_program_may_go_back_no_signal_is_taken)
{
    struct latch l;
    struct err err = ERR_INIT;

    latch_init(&l);
    ASSERT_EQ(loop_on_signal(ctx->loop, SIGUSR2, on_signal, &l), 0);
    loop_hold_io(ctx->loop, true);
    kill(getpid(), SIGUSR2);
    ASSERT_OK(fiber_sleep(ctx, 20 * NS_PER_MS, &err), err);
    ASSERT(!l.set);
    loop_hold_io(ctx->loop, false);
    ASSERT_OK(latch_wait(ctx, &l, "signal", &err), err);
}

TEST(an_impossible_signal_is_refused)
{
    struct loop *loop = loop_new(NULL);

    ASSERT(loop_on_signal(loop, 0, on_signal, NULL) < 0);
    ASSERT(loop_on_signal(loop, 1000, on_signal, NULL) < 0);
    loop_free(loop);
}

static uint64_t switches(void)
{
    AUTO_FREE char *text = NULL;
    size_t len;
    unsigned long long n = 0;

    if (file_read_all("/proc/self/status", 64 * 1024, &text, &len) == 0) {
        const char *line = strstr(text, "\nvoluntary_ctxt_switches:");

        if (line)
            sscanf(line, "\nvoluntary_ctxt_switches: %llu", &n);
    }
    return n;
}

TEST_FIBER(idle_means_no_wake_up)
{
    struct err err = ERR_INIT;
    uint64_t fewest = UINT64_MAX;

    /* More than once: the kernel makes us wait for memory, too. */
    for (int i = 0; i < 10 && fewest > 3; i++) {
        uint64_t before = switches();

        ASSERT_OK(fiber_sleep(ctx, 200 * NS_PER_MS, &err), err);
        if (switches() - before < fewest)
            fewest = switches() - before;
    }
    ASSERT(fewest <= 3); /* to sleep and back */
}

TEST_FIBER(virtual_and_real_clocks_agree_on_what_they_are)
{
    ASSERT(!loop_is_virtual(ctx->loop));
    ASSERT(loop_wall(ctx->loop) > UINT64_C(1600000000) * NS_PER_S);
}
