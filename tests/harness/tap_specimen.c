/* tap_specimen.c - tests that pass, fail, are skipped, leave fibers behind or hang, for
 * tap_test.py, which looks at what the harness makes of them. Not a test by itself. */
#include "base/clock.h"
#include "base/fiber.h"
#include "base/loop.h"
#include "harness/tap.h"
#include <stdio.h>
#include <stdlib.h>

static void wait_forever(struct loop *loop)
{
    struct ctx never = ctx_root(loop);
    struct waitq q;
    struct err err;

    waitq_init(&q);
    (void)waitq_wait(&never, &q, "forever", &err);
}

static void forever(void *loop)
{
    wait_forever(loop);
}

static void yields(void *loop)
{
    for (int i = 0; i < 5; i++)
        fiber_yield(loop);
}

static void fails(void *arg)
{
    (void)arg;
    ASSERT_STR("x", "y");
}

static void aborts(void *arg)
{
    fprintf(stderr, "%s\n", (const char *)arg);
    abort();
}

static void lives(void *arg)
{
    (void)arg;
}

TEST(plain_passes)
{
    ASSERT_EQ(1, 1);
}

TEST(plain_fails)
{
    ASSERT_EQ(1, 2);
}

TEST(plain_is_skipped)
{
    tap_skip("no %s here", "luck");
}

TEST(abort_is_seen)
{
    ASSERT_ABORTS(aborts, "last words", "last words");
}

TEST(abort_is_missed)
{
    ASSERT_ABORTS(lives, NULL, "");
}

TEST(error_is_shown)
{
    struct err err;

    ASSERT_OK(err_set(&err, ERR_STATE, "two\nlines"), err);
}

TEST(wrong_code_is_shown)
{
    struct err err;

    ASSERT_FAIL(err_set(&err, ERR_STATE, "reason"), err, ERR_INVALID);
}

TEST_FIBER(fiber_passes)
{
    struct err err;

    ASSERT_OK(fiber_sleep(ctx, NS_PER_MS, &err), err);
}

TEST_FIBER(fiber_fails_after_a_wait)
{
    struct err err;

    ASSERT_OK(fiber_sleep(ctx, NS_PER_MS, &err), err);
    ASSERT(!"reached");
}

TEST_FIBER(fiber_is_skipped)
{
    tap_skip("why");
}

TEST_VIRTUAL(virtual_deadline_is_ten_seconds)
{
    uint64_t start = loop_now(ctx->loop);
    struct err err;

    ASSERT_FAIL(fiber_sleep(ctx, 100 * NS_PER_S, &err), err, ERR_DEADLINE);
    ASSERT_EQ(loop_now(ctx->loop) - start, 10 * NS_PER_S);
}

TEST_VIRTUAL(others_may_finish_a_little_later)
{
    fiber_go(ctx->loop, yields, ctx->loop, "yields");
}

TEST_VIRTUAL(fiber_is_left_behind)
{
    fiber_go(ctx->loop, forever, ctx->loop, "straggler");
}

TEST_VIRTUAL(body_hangs)
{
    wait_forever(ctx->loop);
}

TEST_FIBER(another_fiber_fails)
{
    fiber_go(ctx->loop, fails, NULL, "fails");
    fiber_yield(ctx->loop);
    ASSERT(!"the body continues");
}

TEST_VIRTUAL(failure_with_others_left)
{
    fiber_go(ctx->loop, forever, ctx->loop, "straggler");
    fiber_yield(ctx->loop);
    ASSERT(!"first failure");
}

TEST(passes_after_all_that)
{
    ASSERT_STR("a", "a");
}

TEST_FIBER(zz_hangs_for_real)
{
    if (getenv("TAP_SPECIMEN_HANG"))
        wait_forever(ctx->loop);
}

TEST(zz_fails_on_a_strange_stack)
{
    struct loop *loop = loop_new(NULL);

    if (getenv("TAP_SPECIMEN_STRANGE")) {
        fiber_go(loop, fails, NULL, "strange");
        loop_run(loop);
    }
    loop_free(loop);
}
