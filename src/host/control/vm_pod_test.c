/* vm_pod_test.c - a pod's VM: the errors of calls that wait for its boot, the report of an
 * unrequested end, and that cleaning up ends in bounded time. */
#include "fixture/registry_steps.h"
#include "host/control/vm_priv.h"
#include <signal.h>

#define LONG (900 * NS_PER_S)

/* The boot is under way: begun by a create in a fiber of its own, which waits for it too. */
static struct vm *begin_boot(struct fixture *r, struct client *c, struct ctx *ctx)
{
    fixture_write_spec(r, "a", "");
    go(c, r, ctx, "a", create_main);
    pass(ctx, 10 * NS_PER_MS);
    ASSERT(r->registry->vm != NULL);
    return r->registry->vm;
}

struct need {
    struct ctx *ctx;
    struct vm *vm;
    bool ready, done;
    int ret;
    struct err err;
};

static void need_main(void *arg)
{
    struct need *n = arg;

    n->ret =
        n->ready ? vm_need_ready(n->ctx, n->vm, &n->err) : vm_need_running(n->ctx, n->vm, &n->err);
    n->done = true;
}

/* --- the boot's error --- */

TEST_VIRTUAL(a_clone_that_fails_is_not_the_failure_of_the_boot)
{
    struct fixture r = { .vmm_opts.clone_fails_ns = NS_PER_S, .guest_opts.process_ns = LONG };
    struct ctx root = ctx_root(ctx->loop);
    struct err err = ERR_INIT, lost = ERR_INIT;
    struct client c;

    fixture_open(&r, &root);
    struct vm *vm = begin_boot(&r, &c, &root);
    struct need ready = { .ctx = &root, .vm = vm, .ready = true };

    /* The clone has failed by now, and the cold start has not begun. */
    fibers_go(&r.clients, r.loop, need_main, &ready, "ready");
    (void)err_set(&lost, ERR_UNAVAILABLE, "the guest is not connected");
    ASSERT(vm_explain(vm, &lost) < 0);
    ASSERT_MSG(lost.msg, "the guest is not connected");
    ASSERT_OK(vm_need_running(&root, vm, &err), err);
    ASSERT_OK(fibers_wait(&root, &r.clients, "clients", &err), err);
    ASSERT_OK(c.ret, c.err);
    ASSERT_OK(ready.ret, ready.err);
    fixture_close(&r, &root);
}

/* The connection breaks first; how QEMU ended is known a moment later. */
TEST_VIRTUAL(a_boot_whose_vmm_dies_fails_for_all_with_how_it_ended)
{
    struct fixture r = { .vmm_opts.dies_after_ns = 100 * NS_PER_MS,
                         .guest_opts.agent_ns = 50 * NS_PER_MS };
    struct ctx root = ctx_root(ctx->loop);
    struct err lost = ERR_INIT, err = ERR_INIT;
    struct client c;

    fixture_open(&r, &root);
    refuse(&r, (struct refusal){ BRIDGE_NEGOTIATE_PROTOCOL, -1, -1, 1, FAKE_DISCONNECT, 0 });
    struct vm *vm = vm_ref(begin_boot(&r, &c, &root));
    struct need before[] = { { .ctx = &root, .vm = vm },
                             { .ctx = &root, .vm = vm, .ready = true } };
    struct need between = { .ctx = &root, .vm = vm };

    fibers_go(&r.clients, r.loop, need_main, &before[0], "running");
    fibers_go(&r.clients, r.loop, need_main, &before[1], "ready");
    pass(&root, 60 * NS_PER_MS); /* the connection is lost, the VMM is not */
    ASSERT(vm_parts(vm)->stage == VM_STAGE_AGENT && vm_state(vm) == VM_BOOTING);
    fibers_go(&r.clients, r.loop, need_main, &between, "running");
    fiber_yield(r.loop);
    ASSERT(!before[0].done && !before[1].done && !between.done && !c.done);
    ASSERT_OK(fibers_wait(&root, &r.clients, "clients", &err), err);
    (void)err_set(&lost, ERR_UNAVAILABLE, "the guest is not connected");
    ASSERT(vm_explain(vm, &lost) < 0);
    const struct err *all[] = { &before[0].err, &before[1].err, &between.err, &c.err, &lost };
    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        ASSERT_EQ(all[i]->code, ERR_UNAVAILABLE);
        ASSERT_MSG_HAS(all[i]->msg,
                       "boot stopped at stage 'agent': the VMM ended: killed by signal 9");
    }
    vm_unref(vm);
    fixture_close(&r, &root);
}

/* --- an unrequested end --- */

static void expect_failed(struct ctx *ctx, struct vm *vm, const char *why)
{
    struct vm_exit x;
    struct err err = ERR_INIT;

    ASSERT_OK(vm_wait(ctx, vm, &x, &err), err);
    ASSERT(!x.requested);
    ASSERT_EQ(x.code, 255);
    ASSERT_MSG_HAS(x.why, why);
    vm_unref(vm);
}

TEST_VIRTUAL(a_vm_whose_guest_is_lost_did_not_end_on_request)
{
    struct fixture r = { .guest_opts.process_ns = LONG };
    struct ctx root = ctx_root(ctx->loop);
    struct err err = ERR_INIT;

    fixture_open(&r, &root);
    refuse(&r, (struct refusal){ BRIDGE_SIGNAL_PROCESS, -1, -1, 1, FAKE_DISCONNECT, 0 });
    fixture_create(&r, &root, "a");
    fixture_start(&r, &root, "a", "");
    struct vm *vm = vm_ref(r.registry->vm);

    (void)fixture_try_kill(&r, &root, "a", "", SIGTERM, false, &err);
    ASSERT_EQ(fixture_wait(&r, &root, "a", ""), 255);
    expect_failed(&root, vm, "the guest is lost");
    fixture_close(&r, &root);
}

TEST_VIRTUAL(a_vm_whose_guest_ignores_sigkill_did_not_end_on_request)
{
    struct fixture r = { .guest_opts.process_ns = LONG };
    struct ctx root = ctx_root(ctx->loop);
    struct err err = ERR_INIT;

    fixture_open(&r, &root);
    refuse(&r, (struct refusal){ BRIDGE_SIGNAL_PROCESS, -1, -1, 10, FAKE_SILENT, 0 });
    fixture_create(&r, &root, "a");
    fixture_start(&r, &root, "a", "");
    struct vm *vm = vm_ref(r.registry->vm);

    ASSERT_OK(fixture_try_kill(&r, &root, "a", "", SIGKILL, false, &err), err);
    (void)fixture_wait(&r, &root, "a", "");
    expect_failed(&root, vm, "the guest did not act on SIGKILL");
    fixture_close(&r, &root);
}

/* The guest is connected when this boot fails. */
TEST_VIRTUAL(a_vm_that_gets_no_scratch_disk_did_not_end_on_request)
{
    struct fixture r = { .guest_opts.process_ns = LONG };
    struct ctx root = ctx_root(ctx->loop);
    struct client c;

    fixture_open(&r, &root);
    refuse(&r, (struct refusal){ BRIDGE_MODIFY_SETTINGS, BRIDGE_RES_MAPPED_VIRTUAL_DISK, -1, 1,
                                 FAKE_REFUSE, 100 * NS_PER_MS });
    struct vm *vm = vm_ref(begin_boot(&r, &c, &root));

    expect_failed(&root, vm, "attach the scratch disk");
    fixture_close(&r, &root);
    ASSERT(c.ret < 0);
}

/* --- cleaning up --- */

TEST_VIRTUAL(a_scratch_disk_that_cannot_be_removed_does_not_keep_the_shim)
{
    struct fixture r = { .guest_opts.process_ns = NS_PER_MS };
    struct ctx root = ctx_root(ctx->loop);

    fixture_open(&r, &root);
    AUTO_FREE char *run = str_format("%s/run/test", r.dir);

    r.host.scratch_stuck = true;
    fixture_create(&r, &root, "a");
    fixture_start(&r, &root, "a", "");
    (void)fixture_wait(&r, &root, "a", "");
    fixture_delete(&r, &root, "a", "");
    pass(&root, 100 * NS_PER_S);
    ASSERT(r.registry->vm != NULL); /* it hangs */
    pass(&root, VM_CLOSE_LIMIT);
    ASSERT(r.registry->vm == NULL);
    ASSERT_EQ(fixture_entries(run), 1); /* the ledger stays for `lcow gc` */
    ASSERT_EQ(dir_remove(run), 0);
    fixture_close(&r, &root);
}
