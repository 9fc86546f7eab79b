/* offload_test.c - blocking work beside the loop, and what is left behind. */
#include "base/clock.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/loop.h"
#include "base/offload.h"
#include "harness/tap.h"
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

struct work {
    const char *path;
    int fd;      /* blocks until something is written */
    int dropped; /* written to by drop */
    int result;
};

static int double_it(void *job, struct err *err)
{
    struct work *w = job;

    (void)err;
    w->result *= 2;
    return 0;
}

static int fails(void *job, struct err *err)
{
    struct work *w = job;

    w->result = 7;
    return err_sys(err, ENOENT, "open %s", w->path);
}

/* Afterwards writes what its string says by then. */
static int blocks(void *job, struct err *err)
{
    struct work *w = job;
    char c;

    (void)err;
    (void)!read(w->fd, &c, 1);
    (void)!write(w->dropped, w->path, strlen(w->path));
    return 0;
}

static void tell_dropped(void *job)
{
    struct work *w = job;

    (void)!write(w->dropped, ".", 1);
}

TEST_FIBER(a_result_comes_back_and_the_strings_stay_the_callers)
{
    const char *path = "/somewhere";
    struct work w = { .path = path, .result = 21 };
    struct err err = ERR_INIT;

    ASSERT_OK(OFFLOAD(ctx, double_it, &w, 1, NULL, "double", &err), err);
    ASSERT_EQ(w.result, 42);
    ASSERT(w.path == path);
}

TEST_FIBER(an_error_comes_back_and_the_job_is_dropped)
{
    struct err err = ERR_INIT;
    int told[2];
    char c = 0;

    ASSERT_EQ(pipe2(told, O_CLOEXEC), 0);

    struct work w = { .path = "/nowhere", .dropped = told[1] };

    ASSERT_FAIL(OFFLOAD(ctx, fails, &w, 1, tell_dropped, "fail", &err), err, ERR_NOT_FOUND);
    ASSERT_HAS(err.msg, "/nowhere");
    ASSERT_EQ(w.result, 7);
    ASSERT_EQ(read(told[0], &c, 1), 1);
    ASSERT_EQ(c, '.');
    close(told[0]), close(told[1]);
}

TEST_FIBER(a_job_that_never_returns_is_abandoned_with_its_own_strings_and_dropped_at_its_end)
{
    int block[2], told[2];
    struct err err = ERR_INIT;
    struct ctx soon = ctx_with_timeout(ctx, 20 * NS_PER_MS);
    char path[] = "first", said[8] = "";

    ASSERT_EQ(pipe2(block, O_CLOEXEC), 0);
    ASSERT_EQ(pipe2(told, O_CLOEXEC), 0);

    struct work w = { .path = path, .fd = block[0], .dropped = told[1] };

    ASSERT_FAIL(OFFLOAD(&soon, blocks, &w, 1, tell_dropped, "dead nfs", &err), err, ERR_DEADLINE);
    ASSERT_HAS(err.msg, "dead nfs");
    memcpy(path, "other", sizeof(path));
    w = (struct work){ .fd = -1, .dropped = -1 };
    ASSERT_EQ(offload_abandoned(), 1);
    ASSERT_EQ(write(block[1], "x", 1), 1);
    for (size_t n = 0; n < 6; n++)
        ASSERT_EQ(read(told[0], said + n, 1), 1);
    ASSERT_STR(said, "first.");
    for (uint64_t until = clock_mono() + 10 * NS_PER_S; offload_abandoned() > 0;) {
        ASSERT(clock_mono() < until);
        sched_yield();
    }
    close(block[0]), close(block[1]), close(told[0]), close(told[1]);
}

static void tick(void *arg)
{
    ++*(int *)arg;
}

static int where(void *job, struct err *err)
{
    *(void **)job = __builtin_frame_address(0);
    return 0;
}

/* Each more would be kept by the C library. */
TEST_FIBER(jobs_in_a_row_share_one_stack)
{
    void *first = NULL;
    unsigned others = 0; /* of a thread that was not quite gone when the next began */

    for (int i = 0; i < 300; i++) {
        struct err err = ERR_INIT;
        void *at = NULL;

        ASSERT_OK(OFFLOAD(ctx, where, &at, 0, NULL, "test", &err), err);
        if (!first)
            first = at;
        others += at != first;
    }
    ASSERT(others < 150);
}

TEST_FIBER(other_fibers_run_meanwhile)
{
    int block[2], ticks = 0;
    struct err err = ERR_INIT;
    struct ctx soon = ctx_with_timeout(ctx, 20 * NS_PER_MS);

    ASSERT_EQ(pipe2(block, O_CLOEXEC), 0);

    struct work w = { .path = "", .fd = block[0], .dropped = block[1] };

    fiber_go(ctx->loop, tick, &ticks, "tick");
    ASSERT_FAIL(OFFLOAD(&soon, blocks, &w, 1, NULL, "block", &err), err, ERR_DEADLINE);
    ASSERT_EQ(ticks, 1);
    close(block[1]); /* lets the thread end */
    close(block[0]);
}

TEST_VIRTUAL(in_virtual_time_it_runs_inline)
{
    struct work w = { .result = 1 };
    struct err err = ERR_INIT;

    ASSERT_OK(OFFLOAD(ctx, double_it, &w, 1, NULL, "double", &err), err);
    ASSERT_EQ(w.result, 2);
}

static _Thread_local sigjmp_buf after_crash;

static void on_crash(int signo)
{
    siglongjmp(after_crash, signo);
}

static int crashes(void *job, struct err *err)
{
    int *signo = job;

    *signo = sigsetjmp(after_crash, 1);
    if (*signo == 0)
        (void)raise(SIGBUS);
    return 0;
}

/* Of a thread, too: `lcow explain` shows it, and an upgrade that crashes goes back. */
TEST_FIBER(a_crash_of_a_thread_has_its_handler)
{
    struct sigaction action = { .sa_handler = on_crash }, old;
    struct err err = ERR_INIT;
    int signo = 0;

    ASSERT_EQ(sigaction(SIGBUS, &action, &old), 0);
    ASSERT_OK(OFFLOAD(ctx, crashes, &signo, 0, NULL, "crash", &err), err);
    ASSERT_EQ(signo, SIGBUS);
    sigaction(SIGBUS, &old, NULL);
}
