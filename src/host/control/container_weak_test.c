/* container_weak_test.c - what the original gets wrong (docs/reference/host.md §24), one test each.
 */
#include "fixture/registry_steps.h"

TEST_VIRTUAL(ws07_a_process_that_ends_at_once_starts_first)
{
    struct fixture r = { .guest_opts.process_ns = 1 };

    fixture_open(&r, ctx);
    fixture_create(&r, ctx, "a");
    fixture_start(&r, ctx, "a", "");
    ASSERT_EQ(fixture_wait(&r, ctx, "a", ""), 0);
    ASSERT_STR(fixture_told(&r, ctx), "create a;start a;exit a 0");
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(ws08_closing_reports_every_exit)
{
    struct fixture r = { .guest_opts.process_ns = 100 * NS_PER_S };
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    fixture_create(&r, ctx, "a");
    fixture_start(&r, ctx, "a", "");
    fixture_exec(&r, ctx, "a", "x");
    fixture_start(&r, ctx, "a", "x");
    ASSERT_OK(registry_close(ctx, r.registry, &err), err);
    ASSERT_STR(fixture_told(&r, ctx),
               "create a;start a;exec-added a/x;exec-started a/x;exit a/x 137;"
               "exit a 137;delete a 137");
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(ws09_unread_events_block_no_other_call)
{
    struct fixture r = { .guest_opts.container_ns = 900 * NS_PER_S };
    struct ctx root = ctx_root(ctx->loop);
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    fixture_create(&r, &root, "a");
    fixture_start(&r, &root, "a", "");
    for (int i = 0; i < 5000; i++) {
        ASSERT_OK(container_freeze(&root, fixture_find(&r, "a"), true, &err), err);
        ASSERT_OK(container_freeze(&root, fixture_find(&r, "a"), false, &err), err);
    }
    ASSERT_OK(fixture_try_kill(&r, &root, "a", "", 9, false, &err), err);
    ASSERT_EQ(fixture_wait(&r, &root, "a", ""), 137);
    ASSERT(events_pending(r.events) < 10000);
    ASSERT_HAS(fixture_told(&r, &root), "create a;start a");
    ASSERT_HAS(r.told.data, "exit a 137");
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(ws10_ws11_a_stuck_create_blocks_no_other_call)
{
    struct fixture r = { .guest_opts.container_ns = 900 * NS_PER_S };
    struct ctx root = ctx_root(ctx->loop);
    struct process_view v;
    struct err err = ERR_INIT;
    struct client stuck;
    uint64_t before;

    fixture_open(&r, ctx);
    fixture_create(&r, &root, "a");
    fixture_start(&r, &root, "a", "");
    r.host.rootfs_ns = 300 * NS_PER_S;
    fixture_write_spec(&r, "b", "");
    go(&stuck, &r, &root, "b", create_main);
    pass(&root, NS_PER_S);
    ASSERT(!stuck.done);

    before = loop_now(r.loop);
    process_view(container_process(fixture_find(&r, "a"), "", &err), &v);
    ASSERT_EQ(v.status, PROCESS_RUNNING);
    fixture_exec(&r, &root, "a", "x");
    fixture_start(&r, &root, "a", "x");
    r.host.rootfs_ns = 0;
    fixture_create(&r, &root, "c");
    ASSERT(loop_now(r.loop) - before < 100 * NS_PER_MS);
    ASSERT(!stuck.done);
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(ws12_a_failed_create_leaves_nothing_and_can_be_repeated)
{
    static const struct refusal steps[] = {
        { BRIDGE_MODIFY_SETTINGS, BRIDGE_RES_MAPPED_VIRTUAL_DISK, -1, 1, FAKE_REFUSE, 0 },
        { BRIDGE_MODIFY_SETTINGS, BRIDGE_RES_MAPPED_DIRECTORY, -1, 1, FAKE_REFUSE, 0 },
        { BRIDGE_MODIFY_SETTINGS, BRIDGE_RES_COMBINED_LAYERS, BRIDGE_ADD, 1, FAKE_REFUSE, 0 },
        { BRIDGE_CREATE, -1, -1, 1, FAKE_REFUSE, 0 },
        { BRIDGE_CREATE, -1, -1, 1, FAKE_DISCONNECT, 0 },
        { BRIDGE_NEGOTIATE_PROTOCOL, -1, -1, 1, FAKE_REFUSE, 0 },
    };

    for (size_t i = 0; i < ARRAY_LEN(steps) + 4; i++) {
        struct ctx root = ctx_root(ctx->loop);
        struct fixture r = { 0 };
        struct err err = ERR_INIT;

        fixture_open(&r, &root);
        refuse(&r, i < ARRAY_LEN(steps) ? steps[i] : (struct refusal){ 0 });
        r.host.rootfs_fails = i == ARRAY_LEN(steps);
        r.host.anchor_fails = i == ARRAY_LEN(steps) + 1;
        r.host.io_fails = i == ARRAY_LEN(steps) + 2;
        r.host.scratch_fails = i == ARRAY_LEN(steps) + 3;
        fixture_write_spec(&r, "a", "");
        ASSERT(fixture_try_create(&r, &root, "a", &err) < 0);
        expect_gone(&r, &root, "a");
        ASSERT_STR(fixture_told(&r, &root), "");
        r.host.rootfs_fails = r.host.anchor_fails = r.host.io_fails = r.host.scratch_fails = false;
        fixture_create(&r, &root, "a");
        ASSERT_STR(fixture_told(&r, &root), "create a");
        fixture_close(&r, &root);
    }
}

TEST_VIRTUAL(ws12_a_create_that_cannot_be_undone_now_is_deleted_later)
{
    struct fixture r = { .guest_opts.decide_request = decide };
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    fixture_create(&r, ctx, "other");
    /* The guest fails behind the layers, and they do not go. */
    fixture_write_spec(&r, "a", "");
    refusal = (struct refusal){
        BRIDGE_MODIFY_SETTINGS, BRIDGE_RES_COMBINED_LAYERS, BRIDGE_REMOVE, 1, FAKE_REFUSE, 0
    };
    second_refusal = (struct refusal){ BRIDGE_CREATE, -1, -1, 1, FAKE_REFUSE, 0 };
    ASSERT_FAIL(fixture_try_create(&r, ctx, "a", &err), err, ERR_UNKNOWN);
    ASSERT_EQ(container_state(fixture_find(&r, "a")), CONTAINER_INVALID);
    ASSERT_EQ(r.guest.layers, 2);
    ASSERT_FAIL(fixture_try_create(&r, ctx, "a", &err), err, ERR_EXISTS);
    ASSERT_EQ(fixture_wait(&r, ctx, "a", ""), 255); /* nobody waits for what will never end, */
    ASSERT_EQ(r.host.ios_closed, 1);                /* nor for its output */
    fixture_delete(&r, ctx, "a", "");
    expect_gone(&r, ctx, "a");
    ASSERT_EQ(r.guest.layers, 1);
    ASSERT_EQ(r.guest.shares, 1);
    ASSERT_STR(fixture_told(&r, ctx), "create other"); /* no event named it */
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(ws13_a_refused_delete_has_touched_nothing)
{
    struct fixture r = { .guest_opts.container_ns = 100 * NS_PER_S };
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    fixture_create(&r, ctx, "a");
    fixture_start(&r, ctx, "a", "");
    ASSERT_FAIL(fixture_try_delete(&r, ctx, "a", "", &err), err, ERR_STATE);
    ASSERT_EQ(r.guest.containers, 1);
    ASSERT_EQ(r.guest.layers, 1);
    ASSERT_STR(fixture_told(&r, ctx), "create a;start a");
    ASSERT_EQ(container_state(fixture_find(&r, "a")), CONTAINER_RUNNING);
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(ws13_a_delete_that_failed_half_way_continues_and_is_published_once)
{
    struct fixture r = { .guest_opts.decide_request = decide };
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    fixture_create(&r, ctx, "other");
    fixture_create(&r, ctx, "a");
    refusal = (struct refusal){ BRIDGE_DELETE_CONTAINER_STATE, -1, -1, 2, FAKE_REFUSE, 0 };
    ASSERT(fixture_try_delete(&r, ctx, "a", "", &err) < 0);
    ASSERT_FAIL(fixture_try_start(&r, ctx, "a", "", &err), err, ERR_STATE);
    ASSERT(fixture_try_delete(&r, ctx, "a", "", &err) < 0);
    fixture_delete(&r, ctx, "a", "");
    ASSERT_STR(fixture_told(&r, ctx), "create other;create a;delete a 137");
    fixture_close(&r, ctx);
}

static void refuse_after(unsigned skip)
{
    refusal = (struct refusal){ .type = BRIDGE_MODIFY_SETTINGS,
                                .resource = BRIDGE_RES_MAPPED_DIRECTORY,
                                .action = BRIDGE_REMOVE,
                                .times = 1,
                                .how = FAKE_REFUSE,
                                .skip = skip };
}

TEST_VIRTUAL(ws33_what_was_released_is_not_released_again)
{
    struct fixture r = { .guest_opts.decide_request = decide };
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    fixture_create(&r, ctx, "other");
    fixture_write_spec(
        &r, "a",
        ",\"mounts\":[{\"destination\":\"/x\",\"type\":\"bind\",\"source\":\"/tmp\"},"
        "{\"destination\":\"/y\",\"type\":\"bind\",\"source\":\"/usr\"}]");
    ASSERT_OK(fixture_try_create(&r, ctx, "a", &err), err);
    ASSERT_EQ(r.guest.shares, 4);
    /* Each time one more goes, and the next does not. */
    for (unsigned left = 4; left > 1; left--) {
        refuse_after(1);
        ASSERT(fixture_try_delete(&r, ctx, "a", "", &err) < 0 || left == 2);
        ASSERT_EQ(r.guest.layers, 1);
        ASSERT_EQ(r.guest.containers, 1);
        ASSERT_EQ(r.guest.shares, left - 1);
    }
    refusal.times = 0;
    ASSERT_EQ(r.guest.shares, 1);
    expect_gone(&r, ctx, "a");
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(ws22_an_exec_without_a_process_is_refused)
{
    struct fixture r = { 0 };
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    fixture_create(&r, ctx, "a");

    struct container *c = fixture_find(&r, "a");
    const struct container_exec none = { .exec_id = "x" };
    const struct container_exec bad = { .exec_id = "x", .process_json = "[]", .process_len = 2 };

    ASSERT_FAIL(container_exec(c, &none, &err), err, ERR_INVALID);
    ASSERT_EQ(err.reason, REASON_INVALID_EXEC);
    ASSERT_FAIL(container_exec(c, &bad, &err), err, ERR_INVALID);
    ASSERT(container_process(c, "x", &err) == NULL);
    fixture_exec(&r, ctx, "a", "x");
    ASSERT_FAIL(fixture_try_exec(&r, ctx, "a", "x", &err), err, ERR_EXISTS);
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(ws22_an_exec_whose_stdio_fails_can_be_deleted_and_made_again)
{
    struct fixture r = { .guest_opts.container_ns = 100 * NS_PER_S };
    struct client waiter;
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    fixture_create(&r, ctx, "a");
    fixture_start(&r, ctx, "a", "");
    fixture_exec(&r, ctx, "a", "x");
    go(&waiter, &r, ctx, "a", wait_main);
    waiter.exec = "x";
    pass(ctx, NS_PER_MS);
    r.host.io_fails = true;
    ASSERT_FAIL(fixture_try_start(&r, ctx, "a", "x", &err), err, ERR_INVALID);
    pass(ctx, NS_PER_MS);
    ASSERT(waiter.done);
    ASSERT_EQ(waiter.ret, 0);
    ASSERT(waiter.view.exit_status != 0);
    fixture_delete(&r, ctx, "a", "x");
    r.host.io_fails = false;
    fixture_exec(&r, ctx, "a", "x");
    fixture_start(&r, ctx, "a", "x");
    ASSERT_STR(fixture_told(&r, ctx),
               "create a;start a;exec-added a/x;exec-added a/x;exec-started a/x");
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(ws23_a_cancelled_wait_is_not_an_exit)
{
    struct fixture r = { .guest_opts.container_ns = 5 * NS_PER_S };
    struct ctx short_ctx = ctx_with_timeout(ctx, NS_PER_S);
    struct process_view v = { .exit_status = 4711 };
    struct err err = ERR_INIT;
    struct client many[8];

    fixture_open(&r, ctx);
    fixture_create(&r, ctx, "a");
    for (size_t i = 0; i < ARRAY_LEN(many); i++)
        go(&many[i], &r, ctx, "a", wait_main);
    fixture_start(&r, ctx, "a", "");
    ASSERT_FAIL(fixture_try_wait(&r, &short_ctx, "a", "", &v, &err), err, ERR_DEADLINE);
    ASSERT_EQ(v.exit_status, 4711);
    process_view(container_process(fixture_find(&r, "a"), "", &err), &v);
    ASSERT_EQ(v.exited_wall_ns, 0);
    ASSERT_EQ(v.status, PROCESS_RUNNING);
    ASSERT_EQ(fixture_wait(&r, ctx, "a", ""), 0);
    pass(ctx, NS_PER_MS);
    for (size_t i = 0; i < ARRAY_LEN(many); i++) {
        ASSERT(many[i].done);
        ASSERT_EQ(many[i].ret, 0);
        ASSERT(many[i].view.exited_wall_ns > 0);
    }
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(ws32_a_signal_reaches_its_target_only)
{
    struct fixture r = { .guest_opts.process_ns = 100 * NS_PER_S };
    struct err err = ERR_INIT;
    uint32_t init;

    fixture_open(&r, ctx);
    fixture_create(&r, ctx, "a");
    fixture_start(&r, ctx, "a", "");
    fixture_exec(&r, ctx, "a", "x");
    fixture_start(&r, ctx, "a", "x");
    init = process_guest_pid(container_process(fixture_find(&r, "a"), "", &err));
    ASSERT_OK(fixture_try_kill(&r, ctx, "a", "", 10, false, &err), err);
    ASSERT_EQ(r.guest.signals, 1);
    ASSERT_EQ(r.guest.last_signal_pid, init);
    ASSERT_OK(fixture_try_kill(&r, ctx, "a", "x", 10, false, &err), err);
    ASSERT_EQ(r.guest.signals, 2);
    ASSERT(r.guest.last_signal_pid != init);
    ASSERT_OK(fixture_try_kill(&r, ctx, "a", "", 10, true, &err), err);
    ASSERT_EQ(r.guest.signals, 4); /* all: both */
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(ws36_a_bad_signal_is_an_invalid_argument)
{
    static const uint32_t bad[] = { 0, 65, 99, UINT32_MAX };
    struct fixture r = { .guest_opts.process_ns = 100 * NS_PER_S };
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    fixture_create(&r, ctx, "a");
    fixture_start(&r, ctx, "a", "");
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        ASSERT_FAIL(fixture_try_kill(&r, ctx, "a", "", bad[i], false, &err), err, ERR_INVALID);
    ASSERT_EQ(r.guest.signals, 0);

    struct container *c = fixture_find(&r, "a");

    ASSERT_FAIL(container_update(ctx, c, "nonsense", 8, &err), err, ERR_INVALID);
    ASSERT_FAIL(container_update(ctx, c, "[1]", 3, &err), err, ERR_INVALID);
    ASSERT_FAIL(container_update(ctx, c, NULL, 0, &err), err, ERR_INVALID);
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(ws43_a_container_does_not_depend_on_the_calls_that_made_it)
{
    struct fixture r = { .guest_opts.container_ns = 60 * NS_PER_S,
                         .guest_opts.output_bytes = 100000 };
    struct ctx root = ctx_root(ctx->loop);
    struct ctx one = ctx_with_timeout(&root, 5 * NS_PER_S);

    fixture_open(&r, ctx);
    fixture_create(&r, &one, "a");
    fixture_start(&r, &one, "a", "");
    pass(&root, 30 * NS_PER_S); /* the calls' time is long over */
    ASSERT_EQ(fixture_wait(&r, &root, "a", ""), 0);
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(ws44_killing_a_created_container_ends_it_and_reports_its_exit)
{
    struct fixture r = { 0 };
    struct client waiter;
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    fixture_create(&r, ctx, "a");
    fixture_create(&r, ctx, "b");
    go(&waiter, &r, ctx, "a", wait_main);
    pass(ctx, NS_PER_MS);
    ASSERT_OK(fixture_try_kill(&r, ctx, "a", "", 9, false, &err), err);
    pass(ctx, NS_PER_MS);
    ASSERT(waiter.done);
    ASSERT_EQ(waiter.view.exit_status, 137);
    ASSERT_FAIL(fixture_try_start(&r, ctx, "a", "", &err), err, ERR_STATE);
    ASSERT_FAIL(fixture_try_kill(&r, ctx, "a", "", 9, false, &err), err, ERR_NOT_FOUND);
    ASSERT_OK(fixture_try_kill(&r, ctx, "a", "", 9, true, &err), err);
    ASSERT_OK(fixture_try_kill(&r, ctx, "b", "", 15, true, &err), err);
    fixture_delete(&r, ctx, "a", "");
    fixture_delete(&r, ctx, "b", "");
    ASSERT_STR(fixture_told(&r, ctx),
               "create a;create b;exit a 137;exit b 143;delete a 137;delete b 143");
    fixture_close(&r, ctx);
}
