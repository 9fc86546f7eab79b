/* offload_test.c - blocking work beside the loop, and letting go of it. */
#include "base/clock.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/loop.h"
#include "base/mem.h"
#include "base/offload.h"
#include "harness/tap.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

struct work {
    int fd;    /* blocks until somebody writes */
    int freed; /* told of our end */
    int result;
};

static int double_it(void *arg, struct err *err)
{
    struct work *w = arg;

    (void)err;
    w->result *= 2;
    return 0;
}

static int fails(void *arg, struct err *err)
{
    (void)arg;
    return err_sys(err, ENOENT, "open /nowhere");
}

static int blocks(void *arg, struct err *err)
{
    struct work *w = arg;
    char c;

    (void)err;
    (void)!read(w->fd, &c, 1);
    return 0;
}

static void tell_freed(void *arg)
{
    struct work *w = arg;

    (void)!write(w->freed, "f", 1);
    free(w);
}

TEST_FIBER(a_result_comes_back)
{
    AUTO_FREE void *w = mem_new(struct work);
    struct err err = ERR_INIT;

    ((struct work *)w)->result = 21;
    ASSERT_OK(offload_run(ctx, double_it, &w, free, "double", &err), err);
    ASSERT_EQ(((struct work *)w)->result, 42);
}

TEST_FIBER(an_error_comes_back)
{
    AUTO_FREE void *w = mem_new(struct work);
    struct err err = ERR_INIT;

    ASSERT_FAIL(offload_run(ctx, fails, &w, free, "fail", &err), err, ERR_NOT_FOUND);
    ASSERT_HAS(err.msg, "/nowhere");
    ASSERT(w);
}

TEST_FIBER(who_blocks_for_ever_is_left_behind_and_frees_itself)
{
    int block[2], told[2];
    struct err err = ERR_INIT;
    struct ctx soon = ctx_with_timeout(ctx, 20 * NS_PER_MS);
    struct work *w = mem_new(struct work);
    void *arg = w;
    char c;

    ASSERT_EQ(pipe2(block, O_CLOEXEC), 0);
    ASSERT_EQ(pipe2(told, O_CLOEXEC), 0);
    *w = (struct work){ .fd = block[0], .freed = told[1] };
    ASSERT_FAIL(offload_run(&soon, blocks, &arg, tell_freed, "dead nfs", &err), err, ERR_DEADLINE);
    ASSERT(arg == NULL);
    ASSERT_HAS(err.msg, "dead nfs");
    ASSERT_EQ(write(block[1], "x", 1), 1);
    ASSERT_EQ(read(told[0], &c, 1), 1);
    ASSERT_EQ(c, 'f');
    close(block[0]), close(block[1]), close(told[0]), close(told[1]);
}

static void tick(void *arg)
{
    ++*(int *)arg;
}

static int where(void *arg, struct err *err)
{
    *(void **)arg = __builtin_frame_address(0);
    return 0;
}

/* Each more would be kept by the C library. */
TEST_FIBER(jobs_in_a_row_share_one_stack)
{
    void *first = NULL;
    unsigned others = 0; /* of a thread that was not quite gone when the next began */

    for (int i = 0; i < 300; i++) {
        struct err err = ERR_INIT;
        void *at = NULL, *arg = &at;

        ASSERT_OK(offload_run(ctx, where, &arg, NULL, "test", &err), err);
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
    AUTO_FREE void *arg = mem_new(struct work);
    struct ctx soon = ctx_with_timeout(ctx, 20 * NS_PER_MS);

    ASSERT_EQ(pipe2(block, O_CLOEXEC), 0);
    ((struct work *)arg)->fd = block[0];
    fiber_go(ctx->loop, tick, &ticks, "tick");
    ASSERT_FAIL(offload_run(&soon, blocks, &arg, free, "block", &err), err, ERR_DEADLINE);
    ASSERT_EQ(ticks, 1);
    close(block[1]); /* lets the thread end */
    close(block[0]);
}

TEST_VIRTUAL(in_virtual_time_it_runs_inline)
{
    AUTO_FREE void *w = mem_new(struct work);
    struct err err = ERR_INIT;

    ((struct work *)w)->result = 1;
    ASSERT_OK(offload_run(ctx, double_it, &w, free, "double", &err), err);
    ASSERT_EQ(((struct work *)w)->result, 2);
}
