/* vm_boot_test.c - the VM controller: states, create, start, exec, queries. */
#include "base/fsm.h"
#include "fixture/fsm_verify.h"
#include "fixture/vm_fixture.h"
#include "proto/bridge.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static const char *const argv_true[] = { "/bin/true", NULL };

TEST(state_table_is_complete_and_reachable)
{
    struct err err = ERR_INIT;

    ASSERT_OK(fsm_verify(&vm_fsm, &err), err);
    ASSERT_EQ(vm_fsm.n_states, VM_STATE_COUNT);
    ASSERT_EQ(vm_fsm.n_events, VM_EV_COUNT);
}

TEST(every_state_and_event_steps_as_listed_or_is_refused)
{
    enum { X = VM_STATE_COUNT };
    static const uint8_t want[VM_STATE_COUNT][VM_EV_COUNT] = {
        /*                prepared     boot        up          stop         ended     released
                          release failed */
        [VM_NEW] = { VM_PREPARED, X, X, VM_STOPPING, X, X, X },
        [VM_PREPARED] = { X, VM_BOOTING, X, VM_STOPPING, X, X, X },
        [VM_BOOTING] = { X, X, VM_RUNNING, VM_STOPPING, VM_ENDED, X, X },
        [VM_RUNNING] = { X, X, X, VM_STOPPING, VM_ENDED, X, X },
        [VM_STOPPING] = { X, X, X, X, VM_ENDED, X, VM_STOPPING },
        [VM_ENDED] = { X, X, X, X, X, VM_GONE, VM_ENDED },
        [VM_GONE] = { X, X, X, X, X, X, X },
    };

    for (unsigned s = 0; s < VM_STATE_COUNT; s++) {
        for (unsigned e = 0; e < VM_EV_COUNT; e++) {
            struct err err = ERR_INIT;

            if (want[s][e] == X) {
                ASSERT_FAIL(fsm_check(&vm_fsm, s, e, &err), err, ERR_STATE);
            } else {
                ASSERT_OK(fsm_check(&vm_fsm, s, e, &err), err);
                ASSERT_EQ(fsm_next(&vm_fsm, s, e), want[s][e]);
            }
        }
    }
}

TEST_VIRTUAL(a_vm_boots_runs_a_process_and_ends_clean)
{
    struct fixture r = { .vmm_opts = { .start.delay_ns = NS_PER_MS },
                         .guest_opts = { .init_ns = 300 * NS_PER_MS,
                                         .agent_ns = 100 * NS_PER_MS,
                                         .process_ns = 50 * NS_PER_MS,
                                         .exit_code = 7,
                                         .output_bytes = 3 } };
    struct vm_exec e = { .argv = argv_true, .want_stdin = true, .want_stdout = true };
    AUTO(vm_process_free) struct vm_process *p = NULL;
    AUTO(stream_free) struct stream *out = NULL;
    struct vmm_stats stats;
    struct err err = ERR_INIT;
    uint32_t code = 0;
    char buf[16];
    size_t n = 0;

    fixture_start(&r, ctx);
    ASSERT_EQ(vm_state(r.vm), VM_RUNNING);
    ASSERT_EQ(vm_parts(r.vm)->stage, VM_STAGE_NEGOTIATED);
    ASSERT(vm_parts(r.vm)->started_wall_ns > 0);
    ASSERT_OK(fixture_try_start(&r, ctx, &err), err); /* again: success at once */
    ASSERT_OK(vm_exec(ctx, r.vm, &e, &p, &err), err);
    out = vm_process_take_stream(p, 1);
    ASSERT(out && vm_process_take_stream(p, 1) == NULL && vm_process_take_stream(p, 2) == NULL);
    ASSERT_OK(stream_read(ctx, out, buf, sizeof(buf), &n, &err), err);
    ASSERT_EQ(n, 3);
    ASSERT_OK(stream_read(ctx, out, buf, sizeof(buf), &n, &err), err);
    ASSERT_EQ(n, 0);
    stream_free(TAKE_PTR(out));
    ASSERT_OK(vm_process_wait(ctx, p, &code, &err), err);
    ASSERT_EQ(code, 7);
    ASSERT_OK(vm_process_wait(ctx, p, &code, &err), err); /* the code is kept */
    ASSERT_FAIL(vm_process_signal(ctx, p, SIGTERM, &err), err, ERR_NOT_FOUND);
    ASSERT_OK(vm_stats(ctx, r.vm, &stats, &err), err);
    fixture_finish(&r, ctx);
    ASSERT(r.exit.requested);
    ASSERT_EQ(r.exit.code, 0);
}

TEST_VIRTUAL(a_failed_create_leaves_nothing)
{
    struct fixture r = { .vmm_opts = { .create = { FAKE_FAIL, NS_PER_MS },
                                       .release_failures = 2 } };
    struct fake_facts facts;
    struct vm_exit x;
    struct err err = ERR_INIT;

    fixture_build(&r, ctx);
    ASSERT_FAIL(vm_wait(ctx, r.vm, &x, &err), err, ERR_STATE);
    ASSERT_FAIL(fixture_try_start(&r, ctx, &err), err, ERR_INTERNAL);
    ASSERT_MSG_HAS(err.msg, "boot stopped before the VMM ran: create the VM");
    ASSERT_EQ(err.reason, REASON_BOOT_PREPARE);
    ASSERT_OK(vm_wait(ctx, r.vm, &x, &err), err);
    ASSERT(!x.requested);
    fake_vmm_facts(r.vmm, &facts);
    ASSERT_EQ(facts.things, 0);
    ASSERT_EQ(vm_state(r.vm), VM_GONE);
    ASSERT_FAIL(fixture_try_start(&r, ctx, &err), err, ERR_UNAVAILABLE);
    fixture_finish(&r, ctx);
}

TEST_VIRTUAL(a_cancelled_create_leaves_nothing)
{
    struct fixture r = { .vmm_opts = { .create = { FAKE_HANG, 0 } } };
    struct ctx soon = ctx_with_timeout(ctx, NS_PER_MS);
    struct err err = ERR_INIT;

    fixture_build(&r, ctx);
    ASSERT_FAIL(fixture_try_start(&r, &soon, &err), err, ERR_DEADLINE);
    fixture_finish(&r, ctx);
}

TEST_VIRTUAL(a_vm_that_was_never_started_can_be_killed)
{
    struct fixture r = { 0 };

    fixture_build(&r, ctx);
    fixture_finish(&r, ctx);
    ASSERT(r.exit.requested);
}

TEST_VIRTUAL(a_failed_start_names_the_last_stage_and_kills_the_vm)
{
    struct fixture r = { .guest_opts = { .init_ns = NS_PER_MS, .agent_hangs = true } };
    struct ctx soon = ctx_with_timeout(ctx, NS_PER_S);
    struct fake_facts facts;
    struct err err = ERR_INIT;

    fixture_build(&r, ctx);
    ASSERT_FAIL(fixture_try_start(&r, &soon, &err), err, ERR_DEADLINE);
    ASSERT_MSG_HAS(err.msg, "boot stopped at stage 'init'");
    ASSERT_EQ(err.reason, REASON_BOOT_AGENT);
    ASSERT_EQ(vm_state(r.vm), VM_STOPPING);
    fake_vmm_facts(r.vmm, &facts);
    ASSERT(facts.terminated_ns > 0);
    ASSERT_FAIL(fixture_try_start(&r, ctx, &err), err, ERR_UNAVAILABLE);
    fixture_finish(&r, ctx);
    ASSERT_EQ(r.exit.code, 255); /* unrequested */
    ASSERT_MSG_HAS(r.exit.why, "boot stopped at stage 'init'");
}

TEST_VIRTUAL(a_vmm_that_dies_during_boot_is_named_with_its_cause)
{
    struct fixture r = { .vmm_opts = { .dies_after_ns = 20 * NS_PER_MS },
                         .guest_opts = { .agent_hangs = true } };
    struct vm_exit x;
    struct err err = ERR_INIT;
    uint64_t began = loop_now(ctx->loop);

    fixture_build(&r, ctx);
    ASSERT_FAIL(fixture_try_start(&r, ctx, &err), err, ERR_UNAVAILABLE);
    ASSERT_HAS(err.msg, "killed by signal 9");
    ASSERT(loop_now(ctx->loop) - began < 100 * NS_PER_MS);
    ASSERT_OK(vm_wait(ctx, r.vm, &x, &err), err);
    ASSERT_EQ(x.code, 137);
    fixture_finish(&r, ctx);
}

TEST_VIRTUAL(a_start_has_a_deadline_of_its_own)
{
    struct fixture r = { .guest_opts = { .agent_hangs = true } };
    struct ctx root = ctx_root(ctx->loop);
    struct err err = ERR_INIT;
    uint64_t began;

    fixture_build(&r, ctx);
    began = loop_now(ctx->loop);
    ASSERT_FAIL(fixture_try_start(&r, &root, &err), err, ERR_DEADLINE);
    ASSERT_EQ(loop_now(ctx->loop) - began, VM_START_LIMIT);
    fixture_finish(&r, ctx);
}

TEST_VIRTUAL(a_boot_that_stops_before_pid_1_names_the_kernel_or_the_firmware)
{
    struct fixture r = { .guest_opts = { .init_ns = 3600 * NS_PER_S, .agent_hangs = true } };
    struct ctx soon = ctx_with_timeout(ctx, NS_PER_S);
    struct err err = ERR_INIT;

    fixture_build(&r, ctx);
    ASSERT_FAIL(fixture_try_start(&r, &soon, &err), err, ERR_DEADLINE);
    ASSERT_EQ(err.reason,
              vm_parts(r.vm)->stage == VM_STAGE_KERNEL ? REASON_BOOT_KERNEL : REASON_BOOT_FIRMWARE);
    fixture_finish(&r, ctx);
}

static struct fake_answer refuse_protocol(void *arg, uint32_t type)
{
    return (struct fake_answer){ .how = type == BRIDGE_NEGOTIATE_PROTOCOL ? FAKE_REFUSE : 0 };
}

TEST_VIRTUAL(an_agent_that_refuses_the_protocol_fails_the_start)
{
    struct fixture r = { .guest_opts = { .decide = refuse_protocol } };
    struct err err = ERR_INIT;

    fixture_build(&r, ctx);
    ASSERT(fixture_try_start(&r, ctx, &err) < 0);
    ASSERT_EQ(err.reason, REASON_BOOT_PROTOCOL);
    fixture_finish(&r, ctx);
}

TEST_VIRTUAL(an_agent_of_another_version_fails_the_start_and_names_both)
{
    struct fixture r = { .guest_opts = { .version = 3 } };
    struct err err = ERR_INIT;

    fixture_build(&r, ctx);
    ASSERT_FAIL(fixture_try_start(&r, ctx, &err), err, ERR_UNIMPLEMENTED);
    ASSERT_MSG_HAS(err.msg, "version 3");
    ASSERT_EQ(err.reason, REASON_VERSION_MISMATCH);
    ASSERT_MSG_HAS(err.msg, "version 4");
    ASSERT_MSG_HAS(err.msg, "stage 'agent'");
    fixture_finish(&r, ctx);
}

TEST_VIRTUAL(two_starts_at_once_boot_one_vm)
{
    struct fixture r = { .guest_opts = { .init_ns = 100 * NS_PER_MS } };
    struct fixture_client a, b;
    struct err err = ERR_INIT;

    fixture_build(&r, ctx);
    fixture_client_go(&r, &a, ctx, fixture_start_main, "start a");
    fixture_client_go(&r, &b, ctx, fixture_start_main, "start b");
    ASSERT_OK(fibers_wait(ctx, &r.clients, "starts", &err), err);
    ASSERT_OK(a.r, a.err);
    ASSERT_OK(b.r, b.err);
    fixture_finish(&r, ctx);
}

TEST_VIRTUAL(a_terminal_with_stderr_is_refused)
{
    struct fixture r = { 0 };
    struct vm_exec e = { .argv = argv_true, .terminal = true, .want_stderr = true };
    struct vm_process *p = NULL;
    struct err err = ERR_INIT;

    fixture_start(&r, ctx);
    ASSERT_FAIL(vm_exec(ctx, r.vm, &e, &p, &err), err, ERR_INVALID);
    e = (struct vm_exec){ 0 };
    ASSERT_FAIL(vm_exec(ctx, r.vm, &e, &p, &err), err, ERR_INVALID);
    fixture_finish(&r, ctx);
}

TEST_VIRTUAL(an_abandoned_wait_does_not_lose_the_exit_code)
{
    struct fixture r = { .guest_opts = { .process_ns = NS_PER_S, .exit_code = 9 } };
    struct vm_exec e = { .argv = argv_true };
    AUTO(vm_process_free) struct vm_process *p = NULL;
    struct err err = ERR_INIT;
    uint32_t code = 0;

    fixture_start(&r, ctx);
    ASSERT_OK(vm_exec(ctx, r.vm, &e, &p, &err), err);

    struct ctx soon = ctx_with_timeout(ctx, NS_PER_MS);

    ASSERT_FAIL(vm_process_wait(&soon, p, &code, &err), err, ERR_DEADLINE);
    ASSERT_OK(fiber_sleep(ctx, 2 * NS_PER_S, &err), err);
    ASSERT_OK(vm_process_wait(ctx, p, &code, &err), err);
    ASSERT_EQ(code, 9);
    fixture_finish(&r, ctx);
}

TEST_VIRTUAL(a_signalled_process_reports_128_plus_the_signal)
{
    struct fixture r = { .guest_opts = { .process_ns = 100 * NS_PER_S } };
    struct vm_exec e = { .argv = argv_true, .terminal = true, .rows = 24, .cols = 80 };
    AUTO(vm_process_free) struct vm_process *p = NULL;
    struct err err = ERR_INIT;
    uint32_t code = 0;

    fixture_start(&r, ctx);
    ASSERT_OK(vm_exec(ctx, r.vm, &e, &p, &err), err);
    ASSERT_OK(vm_process_resize(ctx, p, 50, 100, &err), err);
    ASSERT_OK(vm_process_signal(ctx, p, SIGTERM, &err), err);
    ASSERT_OK(vm_process_wait(ctx, p, &code, &err), err);
    ASSERT_EQ(code, 128 + SIGTERM);
    fixture_finish(&r, ctx);
}

/* --- a resize that outlasts its process --- */

static struct fake_answer refuse_resize_late(void *arg, uint32_t type)
{
    (void)arg;
    return type == BRIDGE_RESIZE_CONSOLE
               ? (struct fake_answer){ FAKE_REFUSE, 2 * NS_PER_S, BRIDGE_HR_FAIL }
               : (struct fake_answer){ FAKE_ANSWER };
}

struct resize {
    struct ctx *ctx;
    struct vm_process *p;
    int r;
    struct err err;
};

static void resize_main(void *arg)
{
    struct resize *c = arg;

    c->r = vm_process_resize(c->ctx, c->p, 50, 100, &c->err);
}

/* A use of freed memory shows without ASan, too: what was freed last is given out first. */
static void overwrite_freed(void)
{
    for (size_t size = 16; size <= 1024; size += 16) {
        void *block = mem_alloc(size);

        mem_wipe(block, size); /* unlike memset, not removed by the optimiser */
        free(block);
    }
}

TEST_VIRTUAL(a_process_may_be_freed_while_its_terminal_is_resized)
{
    struct fixture r = { .guest_opts = { .process_ns = NS_PER_S, .decide = refuse_resize_late } };
    struct vm_exec e = { .argv = argv_true, .terminal = true };
    struct resize c = { .ctx = ctx };
    struct err err = ERR_INIT;
    uint32_t code = 1;

    fixture_start(&r, ctx);
    ASSERT_OK(vm_exec(ctx, r.vm, &e, &c.p, &err), err);
    fibers_go(&r.clients, r.loop, resize_main, &c, "resize");
    ASSERT_OK(vm_process_wait(ctx, c.p, &code, &err), err);
    vm_process_free(TAKE_PTR(c.p));
    overwrite_freed();
    ASSERT_OK(fibers_wait(ctx, &r.clients, "the resize", &err), err);
    ASSERT(c.r < 0);
    ASSERT_MSG_HAS(c.err.msg, "resize the terminal of process 300: "); /* the guest's first */
    fixture_finish(&r, ctx);
}

TEST_VIRTUAL(a_process_of_a_vm_that_dies_is_unavailable_never_zero)
{
    struct fixture r = { .vmm_opts = { .dies_after_ns = NS_PER_S },
                         .guest_opts = { .process_ns = 100 * NS_PER_S } };
    struct vm_exec e = { .argv = argv_true };
    AUTO(vm_process_free) struct vm_process *p = NULL;
    struct err err = ERR_INIT;
    uint32_t code = 77;

    fixture_start(&r, ctx);
    ASSERT_OK(vm_exec(ctx, r.vm, &e, &p, &err), err);
    ASSERT_FAIL(vm_process_wait(ctx, p, &code, &err), err, ERR_UNAVAILABLE);
    ASSERT_EQ(code, 77);
    fixture_finish(&r, ctx);
    ASSERT_EQ(r.exit.code, 137);
}

struct stages {
    enum vm_stage seen[VM_STAGE_COUNT];
    unsigned n;
};

static void note_stage(void *arg, enum vm_stage stage)
{
    struct stages *s = arg;

    if (s->n < VM_STAGE_COUNT)
        s->seen[s->n++] = stage;
}

TEST_VIRTUAL(stages_are_reported_once_and_in_order)
{
    struct fixture r = { .guest_opts = { .init_ns = NS_PER_MS } };
    struct stages s = { 0 };
    struct err err = ERR_INIT;

    fixture_build(&r, ctx);
    vm_on_stage(r.vm, note_stage, &s);
    ASSERT_OK(fixture_try_start(&r, ctx, &err), err);
    ASSERT(s.n >= 4);
    for (unsigned i = 1; i < s.n; i++)
        ASSERT(s.seen[i] > s.seen[i - 1]);
    ASSERT_EQ(s.seen[s.n - 1], VM_STAGE_NEGOTIATED);
    fixture_finish(&r, ctx);
}
