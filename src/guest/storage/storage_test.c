/* Calls on one path wait for each other. */
#include "base/clock.h"
#include "base/ctx.h"
#include "base/fiber.h"
#include "guest/storage/storage_priv.h"
#include "harness/tap.h"
#include <stdlib.h>

struct caller {
    struct ctx *ctx;
    struct storage *s;
    const char *path;
    struct storage_hold *held;
    struct err err;
    bool done;
};

static void caller_main(void *arg)
{
    struct caller *c = arg;

    c->held = storage_hold(c->ctx, c->s, c->path, &c->err);
    c->done = true;
}

TEST_VIRTUAL(the_contrary_of_what_is_being_done_waits_and_others_do_not)
{
    AUTO(storage_free) struct storage *s = storage_new(NULL);
    struct err err = ERR_INIT;
    struct storage_hold *first = storage_hold(ctx, s, "/run/a", &err);
    struct caller second = { .ctx = ctx, .s = s, .path = "/run/a" }, third = second,
                  other = { .ctx = ctx, .s = s, .path = "/run/b" };
    struct fibers g;

    ASSERT(first != NULL);
    fibers_init(&g);
    fibers_go(&g, ctx->loop, caller_main, &second, "second");
    fibers_go(&g, ctx->loop, caller_main, &third, "third");
    fibers_go(&g, ctx->loop, caller_main, &other, "other");
    ASSERT_OK(fiber_sleep(ctx, NS_PER_S, &err), err);
    ASSERT(other.held && !second.done && !third.done);
    storage_let_go(first);
    ASSERT_OK(fiber_sleep(ctx, NS_PER_MS, &err), err);
    ASSERT(second.held && !third.done);
    storage_let_go(second.held);
    ASSERT_OK(fibers_wait(ctx, &g, "all", &err), err);
    ASSERT(third.held != NULL);
    storage_let_go(third.held);
    storage_let_go(other.held);
}

TEST_VIRTUAL(a_call_that_cannot_wait_leaves_the_queue)
{
    AUTO(storage_free) struct storage *s = storage_new(NULL);
    struct err err = ERR_INIT;
    struct ctx little = ctx_with_timeout(ctx, NS_PER_MS);
    struct storage_hold *first = storage_hold(ctx, s, "/run/a", &err), *next;

    ASSERT(!storage_hold(&little, s, "/run/a", &err));
    ASSERT_EQ(err.code, ERR_DEADLINE);
    ASSERT_HAS(err.msg, "/run/a");
    err_clear(&err);
    storage_let_go(first);
    next = storage_hold(ctx, s, "/run/a", &err);
    ASSERT(next != NULL);
    storage_let_go(next);
}
