/* task_trouble_test.c - the Task service when guest, VM or client fail. */
#include "fixture/task_fixture.h"

#define CODE(method, Type, id, exec) desk_code(&d, ctx, method, &Type##__descriptor, id, exec, &err)

static struct fake_answer refuse_create(void *arg, uint32_t type)
{
    return (struct fake_answer){ *(bool *)arg && type == BRIDGE_CREATE ? FAKE_REFUSE : FAKE_ANSWER,
                                 0, BRIDGE_HR_FAIL };
}

TEST_VIRTUAL(ws12_after_a_failed_create_the_id_is_free_again)
{
    bool refuse = true;
    struct desk d = { .fixture.guest_opts.decide = refuse_create,
                      .fixture.guest_opts.decide_arg = &refuse };
    struct err err = ERR_INIT;

    desk_open(&d, ctx);
    fixture_write_spec(&d.fixture, "c1", "");
    ASSERT(desk_try_create(&d, ctx, "c1", &err) != ERR_NONE);
    ASSERT_MSG_HAS(err.msg, "create container c1");
    ASSERT_EQ(CODE("Delete", delete_request, "c1", ""), ERR_NOT_FOUND); /* what containerd does */
    ASSERT_EQ(CODE("Shutdown", shutdown_request, "c1", ""), ERR_NONE);
    ASSERT(service_idle(d.service));
    ASSERT_EQ(service_asked_to_leave(d.service), 1);
    refuse = false;
    desk_create(&d, ctx, "c1");
    ASSERT_EQ(service_asked_to_leave(d.service), 0); /* a new container cancels it */
    desk_delete(&d, ctx, "c1", "");
    ASSERT_HAS(fixture_told(&d.fixture, ctx), "create c1;delete c1"); /* of the second alone */
    desk_close(&d, ctx);
}

static struct fake_answer silent_create(void *arg, uint32_t type)
{
    return (struct fake_answer){ type == *(uint32_t *)arg ? FAKE_SILENT : FAKE_ANSWER, 0, 0 };
}

struct late {
    struct desk *d;
    enum err_code code;
    bool done;
};

static void late_create(void *arg)
{
    struct late *l = arg;
    struct ctx root = ctx_root(l->d->fixture.loop), ctx = ctx_with_timeout(&root, 20 * NS_PER_S);
    struct err err = ERR_INIT;

    l->code = desk_try_create(l->d, &ctx, "c2", &err);
    l->done = true;
}

TEST_VIRTUAL(ws11_state_answers_at_once_while_a_create_hangs)
{
    uint32_t silent = 0;
    struct desk d = { .fixture.guest_opts.decide = silent_create,
                      .fixture.guest_opts.decide_arg = &silent,
                      .fixture.guest_opts.process_ns = 500 * NS_PER_S };
    struct late l = { .d = &d };
    struct err err = ERR_INIT;
    struct ctx root = ctx_root(ctx->loop), longer = ctx_with_timeout(&root, 900 * NS_PER_S);

    ctx = &longer;
    desk_open(&d, ctx);
    desk_create(&d, ctx, "c1");
    desk_start(&d, ctx, "c1", "");
    silent = BRIDGE_CREATE;
    fixture_write_spec(&d.fixture, "c2", "");
    fibers_go(&d.fixture.clients, d.fixture.loop, late_create, &l, "late create");
    ASSERT_OK(fiber_sleep(ctx, 5 * NS_PER_S, &err), err);
    ASSERT(!l.done);
    ASSERT(!service_idle(d.service));

    uint64_t before = loop_now(d.fixture.loop);

    ASSERT_EQ(desk_status(&d, ctx, "c1", ""), STATUS__RUNNING);
    ASSERT_EQ(CODE("Connect", connect_request, "c2", ""), ERR_NONE);
    ASSERT_EQ(CODE("Pids", pids_request, "c1", ""), ERR_NONE);
    ASSERT_EQ(loop_now(d.fixture.loop), before);
    ASSERT_OK(fibers_wait(ctx, &d.fixture.clients, "late create", &err), err);
    ASSERT_EQ(l.code, ERR_DEADLINE);
    silent = 0;
    ASSERT_EQ(desk_kill(&d, ctx, "c1", "", 9, false, &err), ERR_NONE);
    ASSERT_EQ(desk_wait(&d, ctx, "c1", ""), 137);
    desk_delete(&d, ctx, "c1", "");
    desk_close(&d, ctx);
}

TEST_VIRTUAL(a_killed_vm_ends_its_tasks_with_137_and_they_can_be_deleted)
{
    struct desk d = { .fixture.guest_opts.process_ns = 100 * NS_PER_S };
    struct err err = ERR_INIT;

    desk_open(&d, ctx);
    desk_create(&d, ctx, "c1");
    desk_start(&d, ctx, "c1", "");
    fake_vmm_die(d.fixture.vmm, FAKE_KILLED);
    ASSERT_EQ(desk_wait(&d, ctx, "c1", ""), 137);
    ASSERT_EQ(desk_status(&d, ctx, "c1", ""), STATUS__STOPPED);
    ASSERT_EQ(CODE("Stats", stats_request, "c1", "") == ERR_NONE || err.code == ERR_NOT_FOUND ||
                  err.code == ERR_UNAVAILABLE || err.code == ERR_STATE,
              1);
    desk_delete(&d, ctx, "c1", "");
    ASSERT_STR(fixture_told(&d.fixture, ctx), "create c1;start c1;exit c1 137;delete c1 137");
    desk_close(&d, ctx);
}

/* What containerd does after a Create that failed: Delete, Shutdown. Then the shim closes the
 * registry, whose VM is just about to end by itself. */
TEST_VIRTUAL(ws08_leaving_right_after_a_failed_create_is_orderly)
{
    bool refuse = true;
    struct desk d = { .fixture.guest_opts.decide = refuse_create,
                      .fixture.guest_opts.decide_arg = &refuse };
    struct err err = ERR_INIT;

    desk_open(&d, ctx);
    fixture_write_spec(&d.fixture, "c1", "");
    ASSERT(desk_try_create(&d, ctx, "c1", &err) != ERR_NONE);
    ASSERT_EQ(CODE("Delete", delete_request, "c1", ""), ERR_NOT_FOUND);
    ASSERT_EQ(CODE("Shutdown", shutdown_request, "c1", ""), ERR_NONE);
    ASSERT(service_idle(d.service));
    ASSERT_OK(registry_close(ctx, d.fixture.registry, &err), err);
    ASSERT(!d.fixture.registry->vm);
    ASSERT_STR(fixture_told(&d.fixture, ctx), "");
    desk_close(&d, ctx);
}

static struct fake_answer answer_late(void *arg, uint32_t type)
{
    (void)arg;
    return (struct fake_answer){ FAKE_ANSWER, type == BRIDGE_DELETE_CONTAINER_STATE ? NS_PER_S : 0,
                                 0 };
}

static void hang_up(void *arg)
{
    struct desk *d = arg;
    struct ctx ctx = ctx_root(d->fixture.loop);
    struct err err = ERR_INIT;

    ASSERT_OK(fiber_sleep(&ctx, 100 * NS_PER_MS, &err), err);
    rpc_client_free(TAKE_PTR(d->client));
}

TEST_VIRTUAL(a_delete_continues_when_its_caller_disconnects)
{
    uint64_t delay = 0;
    struct desk d = { .fixture.guest_opts.decide = answer_late,
                      .fixture.guest_opts.decide_arg = &delay };
    DeleteRequest req = DELETE_REQUEST__INIT;
    struct err err = ERR_INIT;

    desk_open(&d, ctx);
    desk_create(&d, ctx,
                "other"); /* so that the guest is called: without it, the VM would just stop */
    desk_create(&d, ctx, "c1");
    req.id = "c1";
    delay = NS_PER_S;
    fiber_go(d.fixture.loop, hang_up, &d, "hang up");
    ASSERT_FAIL(desk_call(&d, ctx, "Delete", &req, &delete_response__descriptor, NULL, &err), err,
                ERR_UNAVAILABLE);
    d.client = desk_connect(&d);
    ASSERT_OK(fiber_sleep(ctx, 5 * NS_PER_S, &err), err);
    delay = 0;
    ASSERT_EQ(CODE("State", state_request, "c1", ""), ERR_NOT_FOUND);
    ASSERT_EQ(CODE("Delete", delete_request, "c1", ""), ERR_NOT_FOUND);
    desk_delete(&d, ctx, "other", "");
    desk_close(&d, ctx);
}

static struct fake_answer change_late(void *arg, uint32_t type)
{
    bool change =
        type == BRIDGE_EXECUTE_PROCESS || type == BRIDGE_START || type == BRIDGE_MODIFY_SETTINGS;

    return (struct fake_answer){ FAKE_ANSWER, change ? *(uint64_t *)arg : 0, 0 };
}

TEST_VIRTUAL(a_start_and_a_pause_continue_when_their_caller_disconnects)
{
    uint64_t delay = 0;
    struct desk d = { .fixture.guest_opts.container_ns = 900 * NS_PER_S,
                      .fixture.guest_opts.decide = change_late,
                      .fixture.guest_opts.decide_arg = &delay };
    StartRequest start = START_REQUEST__INIT;
    PauseRequest pause = PAUSE_REQUEST__INIT;
    struct err err = ERR_INIT;

    desk_open(&d, ctx);
    desk_create(&d, ctx, "c1");
    start.id = pause.id = "c1";
    delay = NS_PER_S;
    fiber_go(d.fixture.loop, hang_up, &d, "hang up");
    ASSERT_FAIL(desk_call(&d, ctx, "Start", &start, &start_response__descriptor, NULL, &err), err,
                ERR_UNAVAILABLE);
    d.client = desk_connect(&d);
    ASSERT_OK(fiber_sleep(ctx, 2 * NS_PER_S, &err), err);
    ASSERT_EQ(desk_status(&d, ctx, "c1", ""), STATUS__RUNNING);
    fiber_go(d.fixture.loop, hang_up, &d, "hang up");
    ASSERT_FAIL(desk_call(&d, ctx, "Pause", &pause, &empty__descriptor, NULL, &err), err,
                ERR_UNAVAILABLE);
    d.client = desk_connect(&d);
    ASSERT_OK(fiber_sleep(ctx, 2 * NS_PER_S, &err), err);
    ASSERT_EQ(desk_status(&d, ctx, "c1", ""), STATUS__PAUSED);
    delay = 0;
    ASSERT_EQ(desk_kill(&d, ctx, "c1", "", 9, false, &err), ERR_NONE);
    ASSERT_EQ(desk_wait(&d, ctx, "c1", ""), 137);
    desk_delete(&d, ctx, "c1", "");
    desk_close(&d, ctx);
}

static struct fake_answer signals_unanswered(void *arg, uint32_t type)
{
    return (struct fake_answer){ type == BRIDGE_SIGNAL_PROCESS ? FAKE_SILENT : FAKE_ANSWER, 0, 0 };
}

/* containerd gives a Kill 10 s, the guest has 20 s: then the VM is killed. */
TEST_VIRTUAL(a_sigkill_to_a_guest_that_hangs_ends_the_vm_although_its_caller_has_given_up)
{
    struct desk d = { .fixture.guest_opts.container_ns = 900 * NS_PER_S,
                      .fixture.guest_opts.decide = signals_unanswered };
    struct ctx root = ctx_root(ctx->loop), brief;
    struct err err = ERR_INIT;

    desk_open(&d, &root);
    desk_create(&d, &root, "c1");
    desk_start(&d, &root, "c1", "");
    brief = ctx_with_timeout(&root, 10 * NS_PER_S);
    ASSERT_EQ(desk_kill(&d, &brief, "c1", "", 9, false, &err), ERR_DEADLINE);
    rpc_client_free(TAKE_PTR(d.client));
    ASSERT_OK(fiber_sleep(&root, 15 * NS_PER_S, &err), err);
    d.client = desk_connect(&d);
    ASSERT_EQ(desk_status(&d, &root, "c1", ""), STATUS__STOPPED);
    ASSERT_EQ(desk_wait(&d, &root, "c1", ""), 137);
    desk_delete(&d, &root, "c1", "");
    desk_close(&d, &root);
}
