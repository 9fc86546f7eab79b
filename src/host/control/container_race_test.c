/* container_race_test.c - many at the same time, and a VM that dies in between. */
#include "fixture/registry_steps.h"
#include "host/control/container_priv.h"

TEST_VIRTUAL(twenty_creates_at_once_share_one_vm)
{
    struct fixture r = { 0 };
    struct client c[20];
    char ids[20][8];

    fixture_open(&r, ctx);
    for (size_t i = 0; i < ARRAY_LEN(c); i++) {
        snprintf(ids[i], sizeof(ids[i]), "c%zu", i);
        fixture_write_spec(&r, ids[i], "");
        go(&c[i], &r, ctx, ids[i], create_main);
    }
    pass(ctx, NS_PER_S);
    for (size_t i = 0; i < ARRAY_LEN(c); i++) {
        ASSERT(c[i].done);
        ASSERT_OK(c[i].ret, c[i].err);
    }
    ASSERT_EQ(r.vms, 1);
    ASSERT_EQ(r.guest.containers, 20);
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(a_failed_boot_fails_all_calls_that_wait_for_it)
{
    struct fixture r = { .vmm_opts.start = { FAKE_FAIL, 100 * NS_PER_MS } };
    struct client c[3];
    char ids[3][8];

    fixture_open(&r, ctx);
    for (size_t i = 0; i < ARRAY_LEN(c); i++) {
        snprintf(ids[i], sizeof(ids[i]), "c%zu", i);
        fixture_write_spec(&r, ids[i], "");
        go(&c[i], &r, ctx, ids[i], create_main);
    }
    pass(ctx, 5 * NS_PER_S);
    for (size_t i = 0; i < ARRAY_LEN(c); i++) {
        ASSERT(c[i].done);
        ASSERT(c[i].ret < 0);
        expect_gone(&r, ctx, ids[i]);
    }
    r.vmm_opts.start = (struct fake_step){ 0 };
    fixture_create(&r, ctx, "a");
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(a_create_given_up_during_the_boot_ends_the_vm)
{
    struct fixture r = { .guest_opts.agent_hangs = true };
    struct ctx root = ctx_root(ctx->loop), little = ctx_with_timeout(&root, NS_PER_S);
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    fixture_write_spec(&r, "a", "");
    ASSERT_FAIL(fixture_try_create(&r, &little, "a", &err), err, ERR_DEADLINE);
    expect_gone(&r, &root, "a");
    pass(&root, NS_PER_S);
    ASSERT(r.registry->vm == NULL); /* long before the boot's own limit */
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(a_delete_during_a_create_waits_for_it)
{
    struct fixture r = { .host.rootfs_ns = NS_PER_S };
    struct client create, remove;

    fixture_open(&r, ctx);
    fixture_write_spec(&r, "a", "");
    go(&create, &r, ctx, "a", create_main);
    pass(ctx, 100 * NS_PER_MS);
    go(&remove, &r, ctx, "a", delete_main);
    pass(ctx, 100 * NS_PER_MS);
    ASSERT(!remove.done);
    pass(ctx, 2 * NS_PER_S);
    ASSERT_OK(create.ret, create.err);
    ASSERT(remove.done);
    ASSERT_OK(remove.ret, remove.err);
    ASSERT_STR(fixture_told(&r, ctx), "create a;delete a 137");

    /* The same with a create that fails: then there is nothing to delete. */
    r.host.rootfs_fails = true;
    go(&create, &r, ctx, "a", create_main);
    pass(ctx, 100 * NS_PER_MS);
    go(&remove, &r, ctx, "a", delete_main);
    pass(ctx, 2 * NS_PER_S);
    ASSERT(create.ret < 0);
    ASSERT(remove.done);
    ASSERT_EQ(remove.err.code, ERR_NOT_FOUND);
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(a_kill_during_a_start_is_delivered_behind_it)
{
    struct fixture r = { .guest_opts.process_ns = 100 * NS_PER_S,
                         .guest_opts.decide_request = decide };
    struct client start;
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    fixture_create(&r, ctx, "a");
    refusal = (struct refusal){ BRIDGE_START, -1, -1, 1, FAKE_ANSWER, NS_PER_S };
    go(&start, &r, ctx, "a", start_main);
    pass(ctx, 100 * NS_PER_MS);
    ASSERT_OK(fixture_try_kill(&r, ctx, "a", "", 9, false, &err), err);
    ASSERT(!start.done);
    ASSERT_EQ(fixture_wait(&r, ctx, "a", ""), 137);
    ASSERT(start.done);
    ASSERT_OK(start.ret, start.err);
    ASSERT_STR(fixture_told(&r, ctx), "create a;start a;exit a 137");
    fixture_close(&r, ctx);
}

static int slow_io(void *arg, struct ctx *ctx, const char *op, struct err *err)
{
    return str_eq(op, "io") ? fiber_sleep(ctx, 60 * NS_PER_S, err) : 0;
}

TEST_VIRTUAL(a_delete_waits_for_an_exec_that_is_being_started)
{
    struct fixture r = { .guest_opts.container_ns = NS_PER_S };
    struct ctx root = ctx_root(ctx->loop);
    struct client start, remove;

    fixture_open(&r, ctx);
    fixture_create(&r, &root, "other");
    fixture_create(&r, &root, "a");
    fixture_start(&r, &root, "a", "");
    fixture_exec(&r, &root, "a", "x");
    r.host.step = slow_io;
    go(&start, &r, &root, "a", start_main);
    start.exec = "x";
    ASSERT_EQ(fixture_wait(&r, &root, "a", ""), 0); /* bounded */
    ASSERT(!start.done);
    go(&remove, &r, &root, "a", delete_main);
    pass(&root, 10 * NS_PER_S);
    ASSERT(!remove.done);
    pass(&root, 60 * NS_PER_S);
    ASSERT(start.done && remove.done);
    ASSERT_EQ(start.err.code, ERR_STATE);
    ASSERT_OK(remove.ret, remove.err);
    ASSERT_STR(fixture_told(&r, &root),
               "create other;create a;start a;exec-added a/x;exit a 0;delete a 0");
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(a_stuck_reader_delays_the_exit_for_a_bounded_time)
{
    struct fixture r = { .guest_opts.process_ns = NS_PER_MS, .host.io_stuck = true };
    struct ctx root = ctx_root(ctx->loop);
    struct err err = ERR_INIT;
    uint64_t before;

    fixture_open(&r, ctx);
    fixture_create(&r, &root, "a");
    fixture_start(&r, &root, "a", "");
    before = loop_now(r.loop);
    pass(&root, NS_PER_S);
    ASSERT_EQ(container_state(fixture_find(&r, "a")), CONTAINER_RUNNING);
    ASSERT_EQ(fixture_wait(&r, &root, "a", ""), 0);
    /* The guest waits for a reader, then we do. */
    ASSERT(loop_now(r.loop) - before < 2 * PROCESS_DRAIN_LIMIT + NS_PER_S);
    ASSERT_OK(fixture_try_delete(&r, &root, "a", "", &err), err);
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(a_vm_that_dies_does_not_wait_for_a_stuck_reader)
{
    struct fixture r = { .guest_opts.process_ns = NS_PER_MS, .host.io_stuck = true };
    struct ctx root = ctx_root(ctx->loop);
    uint64_t before;

    fixture_open(&r, ctx);
    fixture_create(&r, &root, "a");
    fixture_start(&r, &root, "a", "");
    pass(&root, PROCESS_DRAIN_LIMIT + NS_PER_S); /* the guest has told, we wait for the reader */
    ASSERT_EQ(container_state(fixture_find(&r, "a")), CONTAINER_RUNNING);
    before = loop_now(r.loop);
    fake_vmm_die(r.vmm, FAKE_KILLED);
    ASSERT_EQ(fixture_wait(&r, &root, "a", ""), 0); /* that is how it ended */
    ASSERT(loop_now(r.loop) - before < 100 * NS_PER_MS);
    fixture_close(&r, ctx);
}

/* --- the VM dies --- */

TEST_VIRTUAL(a_dead_vm_ends_all_within_100_ms_without_its_guest)
{
    static const struct {
        enum fake_death how;
        uint32_t status;
    } deaths[] = {
        { FAKE_KILLED, 137 }, { FAKE_OOM, 137 }, { FAKE_CRASHED, 255 }, { FAKE_POWERED_OFF, 255 }
    };

    for (size_t i = 0; i < ARRAY_LEN(deaths); i++) {
        struct fixture r = { .guest_opts.process_ns = 500 * NS_PER_S };
        struct ctx root = ctx_root(ctx->loop);
        struct client running, created, exec;

        fixture_open(&r, &root);
        fixture_create(&r, &root, "a");
        fixture_create(&r, &root, "b");
        fixture_start(&r, &root, "a", "");
        fixture_exec(&r, &root, "a", "x");
        fixture_start(&r, &root, "a", "x");
        go(&running, &r, &root, "a", wait_main);
        go(&exec, &r, &root, "a", wait_main);
        exec.exec = "x";
        go(&created, &r, &root, "b", wait_main);
        pass(&root, NS_PER_S);

        uint64_t at = loop_now(r.loop);

        fake_vmm_die(r.vmm, deaths[i].how);
        pass(&root, 100 * NS_PER_MS);
        ASSERT(running.done && created.done && exec.done);
        ASSERT(running.at - at <= 100 * NS_PER_MS);
        ASSERT_EQ(running.view.exit_status, deaths[i].status);
        ASSERT_EQ(created.view.exit_status, deaths[i].status);
        ASSERT_EQ(exec.view.exit_status, deaths[i].status);
        fixture_delete(&r, &root, "a", "");
        fixture_delete(&r, &root, "b", "");

        const char *told = fixture_told(&r, &root);

        ASSERT(strstr(told, "exit a/x") < strstr(told, ";exit a "));
        ASSERT_EQ(strstr(told, "oom a") != NULL, deaths[i].how == FAKE_OOM);
        fixture_close(&r, &root);
    }
}

/* An event in Kubernetes shows this error, and nobody looks any further. */
TEST_VIRTUAL(a_call_that_fails_because_its_vm_ended_says_why_it_did)
{
    static const struct {
        enum fake_death how;
        const char *why;
    } deaths[] = { { FAKE_KILLED, "killed by signal 9" },
                   { FAKE_OOM, "killed by the OOM killer" },
                   { FAKE_CRASHED, "exit status 1" } };

    for (size_t i = 0; i < ARRAY_LEN(deaths); i++) {
        struct fixture r = { .guest_opts.process_ns = 500 * NS_PER_S,
                             .guest_opts.decide_request = decide };
        struct ctx root = ctx_root(ctx->loop);
        struct client create, start, boot;

        fixture_open(&r, &root);
        fixture_create(&r, &root, "a");
        fixture_write_spec(&r, "b", "");
        refusal = (struct refusal){ BRIDGE_START, -1, -1, 1, FAKE_SILENT, 0 };
        go(&start, &r, &root, "a", start_main);
        pass(&root, 100 * NS_PER_MS);
        refusal = (struct refusal){ BRIDGE_CREATE, -1, -1, 1, FAKE_SILENT, 0 };
        go(&create, &r, &root, "b", create_main);
        pass(&root, 100 * NS_PER_MS);
        ASSERT(!create.done && !start.done);
        fake_vmm_die(r.vmm, deaths[i].how);
        pass(&root, 2 * NS_PER_S);
        ASSERT(create.done && start.done);
        ASSERT_FAIL(create.ret, create.err, ERR_UNAVAILABLE);
        ASSERT_HAS(create.err.msg, deaths[i].why);
        ASSERT_FAIL(start.ret, start.err, ERR_UNAVAILABLE);
        ASSERT_HAS(start.err.msg, deaths[i].why);
        go(&create, &r, &root, "b", create_main); /* into a VM that is gone */
        pass(&root, 2 * NS_PER_S);
        ASSERT(create.done);
        ASSERT_HAS(create.err.msg, deaths[i].why);
        fixture_delete(&r, &root, "a", "");
        pass(&root, NS_PER_S);
        r.guest_opts.agent_hangs = true;
        go(&boot, &r, &root, "b", create_main);
        pass(&root, 100 * NS_PER_MS);
        fake_vmm_die(r.vmm, deaths[i].how);
        pass(&root, 2 * NS_PER_S);
        ASSERT(boot.done);
        ASSERT_HAS(boot.err.msg, deaths[i].why);
        fixture_close(&r, &root);
    }
}

TEST_VIRTUAL(a_guest_that_breaks_the_protocol_loses_its_vm)
{
    struct fixture r = { .guest_opts.process_ns = 500 * NS_PER_S,
                         .guest_opts.decide_request = decide };
    struct ctx root = ctx_root(ctx->loop);
    struct err err = ERR_INIT;

    fixture_open(&r, &root);
    fixture_create(&r, &root, "a");
    fixture_start(&r, &root, "a", "");
    refusal = (struct refusal){ BRIDGE_SIGNAL_PROCESS, -1, -1, 1, FAKE_BAD_JSON, 0 };
    ASSERT_FAIL(fixture_try_kill(&r, &root, "a", "", 9, false, &err), err, ERR_NOT_FOUND);
    ASSERT(fixture_wait(&r, &root, "a", "") != 0);
    pass(&root, NS_PER_S);
    ASSERT_EQ(vm_state(r.registry->vm), VM_GONE);
    fixture_write_spec(&r, "b", "");
    ASSERT_FAIL(fixture_try_create(&r, &root, "b", &err), err, ERR_UNAVAILABLE);
    fixture_delete(&r, &root, "a", "");
    fixture_create(&r, &root, "b"); /* in a new one */
    fixture_close(&r, &root);
}

TEST_VIRTUAL(a_guest_that_hangs_cannot_survive_a_sigkill)
{
    struct fixture r = { .guest_opts.process_ns = 5000 * NS_PER_S,
                         .guest_opts.decide_request = decide };
    struct ctx root = ctx_root(ctx->loop);
    struct err err = ERR_INIT;
    uint64_t before;

    fixture_open(&r, &root);
    fixture_create(&r, &root, "a");
    fixture_start(&r, &root, "a", "");
    refusal = (struct refusal){ BRIDGE_SIGNAL_PROCESS, -1, -1, 1000, FAKE_SILENT, 0 };
    before = loop_now(r.loop);

    struct ctx little = ctx_with_timeout(&root, NS_PER_S);

    ASSERT_FAIL(fixture_try_kill(&r, &little, "a", "", 9, false, &err), err, ERR_DEADLINE);
    ASSERT_EQ(container_state(fixture_find(&r, "a")), CONTAINER_RUNNING);
    err_clear(&err);
    ASSERT_OK(fixture_try_kill(&r, &root, "a", "", 9, true, &err), err);
    ASSERT_EQ(fixture_wait(&r, &root, "a", ""), 137);
    ASSERT(loop_now(r.loop) - before < 30 * NS_PER_S);
    fixture_delete(&r, &root, "a", "");
    fixture_close(&r, &root);
}

TEST_VIRTUAL(a_dead_path_does_not_hold_up_the_end_of_the_vm)
{
    struct fixture r = { .guest_opts.process_ns = 5000 * NS_PER_S };
    struct ctx root = ctx_root(ctx->loop);
    struct client stuck;

    fixture_open(&r, &root);
    fixture_create(&r, &root, "a");
    fixture_start(&r, &root, "a", "");
    r.host.rootfs_ns = 200 * NS_PER_S;
    fixture_write_spec(&r, "b", "");
    go(&stuck, &r, &root, "b", create_main);
    pass(&root, NS_PER_S);
    fake_vmm_die(r.vmm, FAKE_KILLED);
    pass(&root, NS_PER_S);
    ASSERT(!stuck.done);
    ASSERT_EQ(vm_state(r.registry->vm), VM_GONE);
    pass(&root, 400 * NS_PER_S);
    ASSERT(stuck.done);
    ASSERT_EQ(stuck.err.code, ERR_UNAVAILABLE);
    fixture_close(&r, &root);
}

TEST_VIRTUAL(a_create_without_a_deadline_waits_a_bounded_time_for_a_path)
{
    struct fixture r = { .host.rootfs_ns = 100000 * NS_PER_S };
    struct ctx root = ctx_root(ctx->loop);
    struct err err = ERR_INIT;

    fixture_open(&r, &root);
    fixture_write_spec(&r, "a", "");
    ASSERT_FAIL(fixture_try_create(&r, &root, "a", &err), err, ERR_DEADLINE);
    ASSERT(loop_now(r.loop) <= CONTAINER_CREATE_LIMIT + CONTAINER_UNDO_LIMIT);
    ASSERT_EQ(r.registry->n_containers, 0);
    fixture_close(&r, &root);
}

TEST_VIRTUAL(a_killed_container_whose_exit_is_never_reported_ends_with_its_vm)
{
    struct fixture r = { .guest_opts.process_ns = 5000 * NS_PER_S,
                         .guest_opts.decide_request = decide };
    struct ctx root = ctx_root(ctx->loop);
    struct err err = ERR_INIT;

    fixture_open(&r, &root);
    fixture_create(&r, &root, "a");
    refusal = (struct refusal){ BRIDGE_WAIT_FOR_PROCESS, -1, -1, 1000, FAKE_SILENT, 0 };
    fixture_start(&r, &root, "a", "");
    ASSERT_OK(fixture_try_kill(&r, &root, "a", "", 9, true, &err), err);
    ASSERT_EQ(fixture_wait(&r, &root, "a", ""), 137);
    ASSERT(loop_now(r.loop) < 70 * NS_PER_S);
    fixture_delete(&r, &root, "a", "");
    fixture_close(&r, &root);
}

TEST_VIRTUAL(a_guest_that_does_not_answer_holds_up_no_signal_for_long)
{
    struct fixture r = { .guest_opts.process_ns = 5000 * NS_PER_S,
                         .guest_opts.decide_request = decide };
    struct ctx root = ctx_root(ctx->loop);
    struct err err = ERR_INIT;
    uint64_t before;

    fixture_open(&r, &root);
    fixture_create(&r, &root, "a");
    fixture_start(&r, &root, "a", "");
    refusal = (struct refusal){ BRIDGE_SIGNAL_PROCESS, -1, -1, 1000, FAKE_SILENT, 0 };
    before = loop_now(r.loop);
    ASSERT_FAIL(fixture_try_kill(&r, &root, "a", "", 15, false, &err), err, ERR_DEADLINE);
    ASSERT(loop_now(r.loop) - before <= PROCESS_KILL_LIMIT);
    ASSERT_EQ(container_state(fixture_find(&r, "a")), CONTAINER_RUNNING);
    fixture_close(&r, &root);
}

static void kill_exec_main(void *arg)
{
    struct client *c = arg;

    c->ret = fixture_try_kill(c->r, c->ctx, c->id, "x", 15, false, &c->err);
    c->done = true;
}

TEST_VIRTUAL(an_exec_may_be_deleted_while_a_signal_to_it_hangs)
{
    struct fixture r = { .guest_opts.process_ns = NS_PER_S,
                         .guest_opts.container_ns = 5000 * NS_PER_S,
                         .guest_opts.decide_request = decide };
    struct ctx root = ctx_root(ctx->loop), little = ctx_with_timeout(&root, 10 * NS_PER_S);
    struct client kill;

    fixture_open(&r, &root);
    fixture_create(&r, &root, "a");
    fixture_start(&r, &root, "a", "");
    fixture_exec(&r, &root, "a", "x");
    fixture_start(&r, &root, "a", "x");
    refusal = (struct refusal){ BRIDGE_SIGNAL_PROCESS, -1, -1, 1000, FAKE_SILENT, 0 };
    go(&kill, &r, &little, "a", kill_exec_main);
    pass(&root, 3 * NS_PER_S);
    fixture_delete(&r, &root, "a", "x");
    ASSERT(!kill.done);
    fake_vmm_die(r.vmm, FAKE_KILLED);
    pass(&root, NS_PER_S);
    ASSERT_FAIL(kill.ret, kill.err, ERR_NOT_FOUND);
    fixture_close(&r, &root);
}

/* A whole life, cut off after n ms, for every n. */
static void life_main(void *arg)
{
    struct client *c = arg;
    struct fixture *r = c->r;
    struct process_view v;
    struct err err = ERR_INIT;

    c->ret = fixture_try_create(r, c->ctx, "a", &err);
    if (c->ret == 0 && fixture_try_start(r, c->ctx, "a", "", &err) == 0) {
        if (fixture_try_exec(r, c->ctx, "a", "x", &err) == 0 &&
            fixture_try_start(r, c->ctx, "a", "x", &err) == 0)
            (void)fixture_try_wait(r, c->ctx, "a", "x", &v, &err);
        ASSERT_OK(fixture_try_wait(r, c->ctx, "a", "", &v, &err), err);
    }
    err_clear(&err);
    if (c->ret == 0)
        ASSERT_OK(fixture_try_delete(r, c->ctx, "a", "", &err), err);
    c->done = true;
}

static struct fake_answer slowly(void *arg, const struct bridge_request *q)
{
    return (struct fake_answer){ FAKE_ANSWER, 2 * NS_PER_MS, 0 };
}

TEST_VIRTUAL(the_vm_may_die_at_any_step)
{
    for (uint64_t ms = 1; ms < 60; ms++) {
        struct fixture r = { .guest_opts = { .process_ns = 10 * NS_PER_MS,
                                             .container_ns = 20 * NS_PER_MS,
                                             .decide_request = slowly },
                             .vmm_opts = { .create = { FAKE_OK, 2 * NS_PER_MS },
                                           .start = { FAKE_OK, 2 * NS_PER_MS },
                                           .scsi_add = { FAKE_OK, 2 * NS_PER_MS },
                                           .share_add = { FAKE_OK, 2 * NS_PER_MS },
                                           .dies_after_ns = ms * NS_PER_MS } };
        struct ctx root = ctx_root(ctx->loop);
        struct client c;

        fixture_open(&r, &root);
        fixture_write_spec(&r, "a", "");
        go(&c, &r, &root, "a", life_main);
        pass(&root, 600 * NS_PER_S);
        ASSERT(c.done);

        const char *told = fixture_told(&r, &root);

        if (strstr(told, "start a"))
            ASSERT(strstr(told, "exit a ") != NULL);
        if (strstr(told, "exec-started a/x"))
            ASSERT(strstr(told, "exit a/x ") != NULL);
        ASSERT_EQ(r.registry->n_containers, 0);
        fixture_close(&r, &root);
    }
}
