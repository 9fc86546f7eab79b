/* vm_end_test.c - how a VM ends, and the weak spots of the original (docs/reference/host.md §24)
 * that the VM controller must not have: 4, 5, 6, 14, 15, 38. */
#include "fixture/vm_fixture.h"
#include "proto/bridge.h"
#include <stdlib.h>
#include <string.h>

static const char *const argv_true[] = { "/bin/true", NULL };

static struct fake_answer silent_stacks(void *arg, uint32_t type)
{
    (void)arg;
    return (struct fake_answer){ type == BRIDGE_DUMP_STACKS ? FAKE_SILENT : FAKE_ANSWER };
}

static struct fake_answer silent_but_negotiates(void *arg, uint32_t type)
{
    (void)arg;
    return (struct fake_answer){ type == BRIDGE_NEGOTIATE_PROTOCOL ? FAKE_ANSWER : FAKE_SILENT };
}

struct stacks_client {
    struct fixture *fixture;
    struct ctx *ctx;
    int r;
    struct err err;
    uint64_t ended_ns;
};

static void stacks_main(void *arg)
{
    struct stacks_client *c = arg;
    char *text = NULL;

    c->r = vm_dump_stacks(c->ctx, c->fixture->vm, &text, &c->err);
    c->ended_ns = loop_now(c->fixture->loop);
    free(text);
}

/* --- weak spot 4: the lock held for the whole boot --- */

TEST_VIRTUAL(ws04_state_answers_while_a_boot_hangs)
{
    struct fixture r = { .guest_opts = { .agent_hangs = true } };
    struct fixture_client c;
    struct vmm_info info;
    struct err err = ERR_INIT;

    fixture_build(&r, ctx);
    fixture_client_go(&r, &c, ctx, fixture_start_main, "start");
    ASSERT_OK(fiber_sleep(ctx, NS_PER_S, &err), err);

    uint64_t before = loop_now(ctx->loop);

    ASSERT_EQ(vm_state(r.vm), VM_BOOTING);
    ASSERT_EQ(vm_parts(r.vm)->stage, VM_STAGE_INIT);
    vm_info(r.vm, &info);
    ASSERT_EQ(info.pid, 4242);
    ASSERT_EQ(loop_now(ctx->loop), before);
    ASSERT(!c.done);
    fixture_finish(&r, ctx);
}

TEST_VIRTUAL(ws04_a_stuck_boot_can_be_terminated)
{
    struct fixture r = { .guest_opts = { .agent_hangs = true } };
    struct fixture_client c;
    struct err err = ERR_INIT;

    fixture_build(&r, ctx);
    fixture_client_go(&r, &c, ctx, fixture_start_main, "start");
    ASSERT_OK(fiber_sleep(ctx, NS_PER_S, &err), err);

    uint64_t before = loop_now(ctx->loop);

    ASSERT_OK(fixture_kill(&r, ctx, &err), err);
    ASSERT(loop_now(ctx->loop) - before < 100 * NS_PER_MS);
    ASSERT_FAIL(c.r, c.err, ERR_UNAVAILABLE);
    ASSERT_EQ(c.ended_ns, before);
    ASSERT_EQ(vm_state(r.vm), VM_GONE);
    fixture_finish(&r, ctx);
    ASSERT_EQ(r.exit.code, 0);
}

TEST_VIRTUAL(ws04_a_stuck_vmm_start_can_be_terminated)
{
    struct fixture r = { .vmm_opts = { .start = { FAKE_HANG, 0 } } };
    struct fixture_client c;
    struct err err = ERR_INIT;

    fixture_build(&r, ctx);
    fixture_client_go(&r, &c, ctx, fixture_start_main, "start");
    ASSERT_OK(fiber_sleep(ctx, NS_PER_S, &err), err);
    ASSERT_OK(fixture_kill(&r, ctx, &err), err);
    ASSERT_FAIL(c.r, c.err, ERR_UNAVAILABLE);
    fixture_finish(&r, ctx);
}

/* --- weak spot 5: waits that hang, return too early, or tell a clean end as a failure --- */

TEST_VIRTUAL(ws05_wait_ends_when_a_vm_is_killed_before_its_vmm_starts)
{
    struct fixture r = { .vmm_opts = { .create = { FAKE_HANG, 0 } } };
    struct fixture_client start, c;
    struct err err = ERR_INIT;

    fixture_build(&r, ctx);
    fixture_client_go(&r, &start, ctx, fixture_start_main, "start");
    fiber_yield(ctx->loop);
    fixture_client_go(&r, &c, ctx, fixture_wait_main, "wait");
    fiber_yield(ctx->loop);
    ASSERT_OK(fixture_kill(&r, ctx, &err), err);
    ASSERT_OK(fibers_wait(ctx, &r.clients, "the wait", &err), err);
    ASSERT_OK(c.r, c.err);
    ASSERT(c.exit.requested);
    ASSERT_EQ(c.exit.code, 0);
    ASSERT_STR(c.exit.why, "");
    ASSERT_EQ(vm_parts(r.vm)->started_wall_ns, 0);
    fixture_finish(&r, ctx);
}

TEST_VIRTUAL(ws05_wait_ends_when_a_start_fails_before_the_log_is_open)
{
    struct fixture r = { .vmm_opts = { .listen_fails_at = 2 } };
    struct fixture_client c;
    struct err err = ERR_INIT;

    fixture_build(&r, ctx);
    ASSERT_FAIL(fixture_try_start(&r, ctx, &err), err, ERR_EXHAUSTED);
    fixture_client_go(&r, &c, ctx, fixture_wait_main, "wait");
    ASSERT_OK(fibers_wait(ctx, &r.clients, "the wait", &err), err);
    ASSERT_OK(c.r, c.err);
    ASSERT(!c.exit.requested);
    ASSERT_EQ(c.exit.code, 255);
    fixture_finish(&r, ctx);
}

TEST_VIRTUAL(a_vm_that_is_killed_slowly_counts_as_killed)
{
    struct fixture r = { .vmm_opts = { .kill_ns = NS_PER_S } };

    fixture_start(&r, ctx);
    vm_kill(r.vm, VM_END_FAILED, "the guest did not act on SIGKILL");
    ASSERT(vm_lost(r.vm));
    ASSERT_EQ(vm_state(r.vm), VM_STOPPING); /* it is not over */
    fixture_finish(&r, ctx);
}

TEST_VIRTUAL(ws05_wait_returns_only_when_the_vm_is_terminated)
{
    struct fixture r = { .vmm_opts = { .dies_after_ns = NS_PER_S, .release_failures = 2 } };
    struct fake_facts facts;
    struct vm_exit x;
    struct err err = ERR_INIT;

    fixture_start(&r, ctx);
    ASSERT_OK(vm_wait(ctx, r.vm, &x, &err), err);
    ASSERT_EQ(vm_state(r.vm), VM_GONE);
    fake_vmm_facts(r.vmm, &facts);
    ASSERT_EQ(facts.things, 0);
    fixture_finish(&r, ctx);
}

TEST_VIRTUAL(ws05_wait_ends_even_if_nothing_can_be_released)
{
    struct fixture r = { .vmm_opts = { .release_failures = VM_RELEASE_TRIES } };
    struct vm_exit x;
    struct ctx root = ctx_root(ctx->loop);
    struct fixture_client c;
    struct err err = ERR_INIT;

    fixture_start(&r, ctx);
    fixture_client_go(&r, &c, &root, fixture_wait_main, "wait");
    fiber_yield(ctx->loop);
    ASSERT_FAIL(fixture_kill(&r, &root, &err), err, ERR_INTERNAL);
    ASSERT_MSG_HAS(err.msg, "clean up what the VM owned");
    ASSERT_EQ(err.reason, REASON_CLEANUP_FAILED);
    ASSERT_EQ(vm_state(r.vm), VM_ENDED);
    ASSERT_FAIL(vm_wait(&root, r.vm, &x, &err), err, ERR_INTERNAL);
    ASSERT_OK(fixture_kill(&r, &root, &err), err); /* continues at the step that failed */
    ASSERT_EQ(vm_state(r.vm), VM_GONE);
    fixture_finish(&r, ctx);
    ASSERT_FAIL(c.r, c.err, ERR_INTERNAL);
}

static void terminate_again_main(void *arg)
{
    struct fixture_client *c = arg;

    while (fixture_kill(c->fixture, c->ctx, &c->err) < 0)
        err_clear(&c->err); /* at once again, each time */
}

TEST_VIRTUAL(ws05_a_wait_is_not_kept_by_others_who_try_again)
{
    struct fixture r = { .vmm_opts = { .kill_ns = 10 * VM_KILL_LIMIT } };
    struct ctx root = ctx_root(ctx->loop);
    struct fixture_client c;
    struct vm_exit x;
    struct err err = ERR_INIT;
    uint64_t before;

    fixture_start(&r, ctx);
    before = loop_now(ctx->loop);
    fixture_client_go(&r, &c, &root, terminate_again_main, "terminate");
    fiber_yield(ctx->loop); /* it is first in line, so it runs before us when a round has failed */
    ASSERT_FAIL(vm_wait(&root, r.vm, &x, &err), err, ERR_DEADLINE);
    ASSERT_EQ(loop_now(ctx->loop) - before, VM_KILL_LIMIT);
    ASSERT_OK(fibers_wait(&root, &r.clients, "the terminate", &err), err);
    fixture_finish(&r, ctx);
}

/* --- weak spot 6: one lock across every round trip --- */

TEST_VIRTUAL(ws06_a_hung_guest_call_blocks_no_other)
{
    struct fixture r = { .guest_opts = { .decide = silent_stacks, .exit_code = 3 } };
    struct stacks_client s = { .fixture = &r, .ctx = ctx };
    struct vm_exec e = { .argv = argv_true };
    AUTO(vm_process_free) struct vm_process *p = NULL;
    struct err err = ERR_INIT;
    uint32_t code = 0;
    uint64_t before;

    fixture_start(&r, ctx);
    fibers_go(&r.clients, ctx->loop, stacks_main, &s, "stacks");
    fiber_yield(ctx->loop);
    before = loop_now(ctx->loop);
    ASSERT_OK(vm_exec(ctx, r.vm, &e, &p, &err), err);
    ASSERT_OK(vm_process_wait(ctx, p, &code, &err), err);
    ASSERT_EQ(code, 3);
    ASSERT_EQ(loop_now(ctx->loop), before);
    ASSERT_EQ(s.ended_ns, 0);
    fixture_finish(&r, ctx);
    ASSERT_FAIL(s.r, s.err, ERR_UNAVAILABLE);
}

TEST_VIRTUAL(ws06_terminate_does_not_wait_for_a_hung_guest)
{
    struct fixture r = { .guest_opts = { .decide = silent_but_negotiates } };
    struct stacks_client s = { .fixture = &r, .ctx = ctx };
    struct fake_facts facts;
    struct err err = ERR_INIT;
    uint64_t before;

    fixture_start(&r, ctx);
    fibers_go(&r.clients, ctx->loop, stacks_main, &s, "stacks");
    ASSERT_OK(fiber_sleep(ctx, NS_PER_MS, &err), err);
    before = loop_now(ctx->loop);
    ASSERT_OK(fixture_kill(&r, ctx, &err), err);
    fake_vmm_facts(r.vmm, &facts);
    ASSERT_EQ(facts.terminated_ns, before);
    ASSERT_OK(fibers_wait(ctx, &r.clients, "stacks", &err), err);
    ASSERT_FAIL(s.r, s.err, ERR_UNAVAILABLE);
    ASSERT_EQ(s.ended_ns, before);
    fixture_finish(&r, ctx);
}

/* --- weak spot 14: calls on a bridge that is not there --- */

TEST_VIRTUAL(ws14_calls_without_a_bridge_are_unavailable)
{
    struct fake_vmm_opts opts = { .loop = ctx->loop };
    struct vmm *vmm = fake_vmm_new(&opts);
    struct guest *g = bridge_new(ctx->loop, vmm, NULL);
    struct guest_exec e = { .argv = argv_true };
    struct guest_process p;
    struct err err = ERR_INIT;
    uint32_t code;
    char *text = NULL;
    json_t *metrics = NULL;
    uint64_t scratch, wait_id = 0;

    for (int closed = 0; closed < 2; closed++) {
        ASSERT_FAIL(g->ops->exec(ctx, g, &e, &p, &err), err, ERR_UNAVAILABLE);
        ASSERT_FAIL(g->ops->wait_process(ctx, g, NULL, 1, 10, &code, &wait_id, &err), err,
                    ERR_UNAVAILABLE);
        ASSERT_FAIL(g->ops->signal_process(ctx, g, NULL, 1, 9, &err), err, ERR_UNAVAILABLE);
        ASSERT_FAIL(g->ops->resize_console(ctx, g, NULL, 1, 1, 1, &err), err, ERR_UNAVAILABLE);
        ASSERT_FAIL(g->ops->read_stats(ctx, g, "c", &metrics, &scratch, &err), err,
                    ERR_UNAVAILABLE);
        ASSERT_FAIL(g->ops->dump_stacks(ctx, g, &text, &err), err, ERR_UNAVAILABLE);
        ASSERT_FAIL(g->ops->shutdown(ctx, g, NULL, false, &err), err, ERR_UNAVAILABLE);
        ASSERT(!g->ops->connected(g));
        g->ops->close(g, "a test");
        g->ops->close(g, "a test");
    }
    ASSERT_HAS(err.msg, "a test");
    g->ops->free(g);
    vmm->ops->free(vmm);
}

TEST_VIRTUAL(ws14_calls_on_a_vm_that_just_died_are_unavailable)
{
    struct fixture r = { .vmm_opts = { .release = { FAKE_OK, NS_PER_S } } };
    struct vm_exec e = { .argv = argv_true };
    struct vm_process *p = NULL;
    char *text = NULL;
    struct err err = ERR_INIT;

    fixture_start(&r, ctx);
    fake_vmm_die(r.vmm, FAKE_KILLED);
    ASSERT(vm_exec(ctx, r.vm, &e, &p, &err) < 0);
    ASSERT_EQ(err.code, ERR_UNAVAILABLE);
    ASSERT_OK(fiber_sleep(ctx, NS_PER_MS, &err), err);
    ASSERT_EQ(vm_state(r.vm), VM_ENDED); /* not cleaned up yet */
    ASSERT_FAIL(vm_exec(ctx, r.vm, &e, &p, &err), err, ERR_UNAVAILABLE);
    ASSERT_FAIL(vm_dump_stacks(ctx, r.vm, &text, &err), err, ERR_UNAVAILABLE);
    fixture_finish(&r, ctx);
    ASSERT_EQ(r.exit.code, 137);
}

/* --- weak spot 38: a VM that ends by itself keeps its handles --- */

TEST_VIRTUAL(ws38_a_vm_that_exits_by_itself_is_released)
{
    struct fixture r = { .vmm_opts = { .dies_after_ns = NS_PER_S, .death = FAKE_CRASHED } };
    struct fake_facts facts;
    struct err err = ERR_INIT;

    fixture_start(&r, ctx);
    ASSERT_OK(fiber_sleep(ctx, 2 * NS_PER_S, &err), err);
    ASSERT_EQ(vm_state(r.vm), VM_GONE); /* though nobody waited or asked */
    fake_vmm_facts(r.vmm, &facts);
    ASSERT_EQ(facts.things, 0);
    ASSERT_EQ(facts.releases, 1);
    fixture_finish(&r, ctx);
    ASSERT(!r.exit.requested);
    ASSERT_EQ(r.exit.code, 255);
    ASSERT_STR(r.exit.why, "exit status 1");
}

/* --- terminate, shutdown --- */

TEST_VIRTUAL(terminate_continues_after_its_client_left)
{
    struct fixture r = { .vmm_opts = { .kill_ns = NS_PER_S } };
    struct vm_exit x;
    struct err err = ERR_INIT;

    fixture_start(&r, ctx);

    struct ctx soon = ctx_with_timeout(ctx, NS_PER_MS);

    ASSERT_FAIL(fixture_kill(&r, &soon, &err), err, ERR_DEADLINE);
    ASSERT_OK(vm_wait(ctx, r.vm, &x, &err), err);
    ASSERT_EQ(x.code, 0);
    fixture_finish(&r, ctx);
}

TEST_VIRTUAL(a_kill_while_the_backend_creates_makes_the_start_unavailable)
{
    struct fixture r = { .vmm_opts = { .create = { FAKE_HANG, 0 } } };
    struct fixture_client c;
    struct err err = ERR_INIT;

    fixture_build(&r, ctx);
    fixture_client_go(&r, &c, ctx, fixture_start_main, "start");
    ASSERT_OK(fiber_sleep(ctx, NS_PER_MS, &err), err);
    ASSERT_OK(fixture_kill(&r, ctx, &err), err);
    ASSERT(c.done);
    ASSERT_FAIL(c.r, c.err, ERR_UNAVAILABLE);
    ASSERT_EQ(vm_state(r.vm), VM_GONE);
    ASSERT_FAIL(fixture_try_start(&r, ctx, &err), err, ERR_UNAVAILABLE);
    fixture_finish(&r, ctx);
}

TEST_VIRTUAL(a_vmm_that_survives_its_kill_is_reported_and_kill_can_be_repeated)
{
    struct fixture r = { .vmm_opts = { .kill_ns = VM_KILL_LIMIT + NS_PER_S } };
    struct ctx root = ctx_root(ctx->loop);
    struct err err = ERR_INIT;

    fixture_start(&r, ctx);
    ASSERT_FAIL(fixture_kill(&r, &root, &err), err, ERR_DEADLINE);
    ASSERT_MSG_HAS(err.msg, "did not exit");
    ASSERT_EQ(vm_state(r.vm), VM_STOPPING);
    ASSERT_OK(fixture_kill(&r, &root, &err), err);
    ASSERT_EQ(vm_state(r.vm), VM_GONE);
    fixture_finish(&r, ctx);
}

TEST_VIRTUAL(shutdown_lets_the_guest_power_off)
{
    struct fixture r = { .guest_opts = { .power_off = fixture_power_off } };
    struct fake_facts facts;
    struct err err = ERR_INIT;

    fixture_start(&r, ctx);
    ASSERT_OK(vm_stop(ctx, r.vm, NS_PER_S, &err), err);
    fake_vmm_facts(r.vmm, &facts);
    ASSERT(facts.powered_off);
    ASSERT_EQ(facts.quits, 0);
    ASSERT_EQ(facts.terminated_ns, 0);
    fixture_finish(&r, ctx);
    ASSERT_EQ(r.exit.code, 0);
    ASSERT(r.exit.requested);
}

TEST_VIRTUAL(shutdown_of_a_silent_guest_quits_the_vmm_after_the_grace)
{
    struct fixture r = { .guest_opts = { .decide = silent_but_negotiates } };
    struct fake_facts facts;
    struct err err = ERR_INIT;
    uint64_t before;

    fixture_start(&r, ctx);
    before = loop_now(ctx->loop);
    ASSERT_OK(vm_stop(ctx, r.vm, NS_PER_S, &err), err);
    fake_vmm_facts(r.vmm, &facts);
    ASSERT_EQ(facts.quits, 1);
    ASSERT_EQ(facts.terminated_ns, 0);
    ASSERT_EQ(facts.gone_ns - before, NS_PER_S);
    fixture_finish(&r, ctx);
    ASSERT_EQ(r.exit.code, 0);
}

TEST_VIRTUAL(shutdown_kills_when_even_quit_hangs)
{
    struct fixture r = { .vmm_opts = { .quit = { FAKE_HANG, 0 } },
                         .guest_opts = { .decide = silent_but_negotiates } };
    struct ctx root = ctx_root(ctx->loop);
    struct err err = ERR_INIT;
    struct fake_facts facts;
    uint64_t before;

    fixture_start(&r, ctx);
    before = loop_now(ctx->loop);
    ASSERT_OK(vm_stop(&root, r.vm, NS_PER_S, &err), err);
    fake_vmm_facts(r.vmm, &facts);
    ASSERT_EQ(facts.terminated_ns - before, NS_PER_S + VM_QUIT_LIMIT);
    fixture_finish(&r, ctx);
    ASSERT_EQ(r.exit.code, 0);
}

TEST_VIRTUAL(shutdown_continues_after_its_client_left)
{
    struct fixture r = { .guest_opts = { .decide = silent_but_negotiates } };
    struct vm_exit x;
    struct err err = ERR_INIT;

    fixture_start(&r, ctx);

    struct ctx soon = ctx_with_timeout(ctx, NS_PER_MS);

    ASSERT_FAIL(vm_stop(&soon, r.vm, NS_PER_S, &err), err, ERR_DEADLINE);
    ASSERT_OK(vm_wait(ctx, r.vm, &x, &err), err);
    ASSERT_EQ(x.code, 0);
    fixture_finish(&r, ctx);
}

TEST_VIRTUAL(a_guest_that_powers_off_during_boot_is_not_a_clean_end)
{
    struct fixture r = { .vmm_opts = { .dies_after_ns = NS_PER_MS, .death = FAKE_POWERED_OFF },
                         .guest_opts = { .agent_hangs = true } };
    struct err err = ERR_INIT;

    fixture_build(&r, ctx);
    ASSERT_FAIL(fixture_try_start(&r, ctx, &err), err, ERR_UNAVAILABLE);
    fixture_finish(&r, ctx);
    ASSERT_EQ(r.exit.code, 255);
}

TEST_VIRTUAL(a_log_that_never_ends_does_not_keep_the_vm)
{
    struct fixture r = { .guest_opts = { .log_lingers = true } };
    struct ctx root = ctx_root(ctx->loop);
    struct err err = ERR_INIT;
    uint64_t before;

    fixture_start(&r, ctx);
    before = loop_now(ctx->loop);
    ASSERT_OK(fixture_kill(&r, &root, &err), err);
    ASSERT(loop_now(ctx->loop) - before <= VM_DRAIN_LIMIT + 100 * NS_PER_MS);
    fixture_finish(&r, ctx);
    ASSERT_OK(fiber_sleep(&root, 120 * NS_PER_S, &err), err); /* the fake's own end */
}
