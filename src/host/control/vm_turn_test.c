/* vm_turn_test.c - a VM waits for its turn to start, and what ends that wait. */
#include "fixture/registry_steps.h"
#include "host/control/vm_priv.h"

static void open_fixture(struct fixture *r, struct ctx *ctx, uint64_t wait_ns)
{
    r->host.turns = true;
    r->host.turn_ns = wait_ns;
    fixture_open(r, ctx);
}

static const struct timeline_span *wait_of(const struct fixture *r)
{
    for (unsigned i = 0; i < r->timeline.n; i++)
        if (str_eq(r->timeline.spans[i].name, "wait for a turn"))
            return &r->timeline.spans[i];
    return NULL;
}

TEST_VIRTUAL(the_time_of_waiting_is_shown_and_is_none_of_the_boots)
{
    struct fixture r = { .guest_opts.agent_ns = 30 * NS_PER_S };
    struct ctx root = ctx_root(ctx->loop);

    open_fixture(&r, ctx, 90 * NS_PER_S);
    r.config.boot_timeout_s = 60;
    r.config.parallel_starts = 7;
    fixture_create(&r, &root, "a");
    ASSERT_EQ(r.host.turns_at_once, 7);
    ASSERT_EQ(r.host.turns_held, 1);
    fixture_start(&r, &root, "a", "");
    pass(&root, NS_PER_MS);
    ASSERT_EQ(r.host.turns_held, 0);
    ASSERT_EQ(r.host.turns_most, 1);
    ASSERT(wait_of(&r) && wait_of(&r)->end - wait_of(&r)->start == 90 * NS_PER_S);
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(a_turn_that_is_free_is_not_worth_a_word)
{
    struct fixture r = { 0 };
    struct ctx root = ctx_root(ctx->loop);

    open_fixture(&r, ctx, 0);
    fixture_create(&r, ctx, "a");
    ASSERT(r.host.turns_at_once >= 2);
    ASSERT_EQ(r.host.turns_most, 1);
    ASSERT(!wait_of(&r));
    pass(&root, VM_TURN_HOLD + NS_PER_S); /* nobody starts it: others need not wait for that */
    ASSERT_EQ(r.host.turns_held, 0);
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(a_turn_that_does_not_come_is_done_without)
{
    struct fixture r = { 0 };
    struct ctx root = ctx_root(ctx->loop);
    uint64_t before = loop_now(ctx->loop);

    open_fixture(&r, ctx, 10000 * NS_PER_S);
    fixture_create(&r, &root, "a");
    ASSERT(loop_now(ctx->loop) - before >= VM_TURN_LIMIT);
    ASSERT_EQ(r.host.turns_most, 0);
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(a_boot_that_fails_gives_its_turn_back)
{
    struct fixture r = { .guest_opts.agent_ns = 1000 * NS_PER_S };
    struct err err = ERR_INIT;

    open_fixture(&r, ctx, 0);
    r.config.boot_timeout_s = 5;
    fixture_write_spec(&r, "a", "");
    ASSERT_FAIL(fixture_try_create(&r, ctx, "a", &err), err, ERR_DEADLINE);
    ASSERT_EQ(r.host.turns_most, 1);
    ASSERT_EQ(r.host.turns_held, 0);
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(a_client_that_goes_away_ends_the_wait)
{
    struct fixture r = { 0 };
    struct ctx root = ctx_root(ctx->loop), little = ctx_with_timeout(&root, NS_PER_S);
    struct err err = ERR_INIT;

    open_fixture(&r, &root, 100 * NS_PER_S);
    fixture_write_spec(&r, "a", "");
    ASSERT_FAIL(fixture_try_create(&r, &little, "a", &err), err, ERR_DEADLINE);
    pass(&root, NS_PER_S);
    ASSERT(!r.registry->vm);
    ASSERT_EQ(r.host.turns_most, 0);
    fixture_close(&r, &root);
}

static void close_main(void *arg)
{
    struct fixture *r = arg;
    struct ctx root = ctx_root(r->loop);
    struct err err = ERR_INIT;

    ASSERT_OK(fiber_sleep(&root, NS_PER_S, &err), err);
    vm_kill(r->registry->vm, VM_END_KILL, "the VM was terminated");
    ASSERT_OK(vm_wait(&root, r->registry->vm, NULL, &err), err);
}

TEST_VIRTUAL(a_vm_that_is_stopped_does_not_wait_any_longer)
{
    struct fixture r = { 0 };
    struct err err = ERR_INIT;
    uint64_t before = loop_now(ctx->loop);

    open_fixture(&r, ctx, 100 * NS_PER_S);
    fixture_write_spec(&r, "a", "");
    fibers_go(&r.clients, ctx->loop, close_main, &r, "stop");
    ASSERT_FAIL(fixture_try_create(&r, ctx, "a", &err), err, ERR_UNAVAILABLE);
    ASSERT(loop_now(ctx->loop) - before < 2 * NS_PER_S);
    fixture_close(&r, ctx);
}
