/* diag_test.c - what diag asks of a VM does not keep the VM, and outlasts it unharmed. */
#include "fixture/registry_steps.h"
#include "host/control/diag.h"

#define LONG (900 * NS_PER_S)

/* The client's path is on a file system that does not answer, for so long. */
static uint64_t path_ns;

static int slow_tree(void *arg, struct ctx *ctx, const char *op, struct err *err)
{
    (void)arg;
    return str_eq(op, "tree") ? fiber_sleep(ctx, path_ns, err) : 0;
}

struct share {
    struct fixture *r;
    struct ctx *ctx;
    char *path;
    int ret;
    struct err err;
};

static void share_main(void *arg)
{
    struct share *s = arg;

    s->ret = diag_share(s->ctx, s->r->registry, "/tmp", "", true, &s->path, &s->err);
}

static void begin(struct fixture *r, struct share *s, struct ctx *ctx, uint64_t ns)
{
    fixture_open(r, ctx);
    fixture_create(r, ctx, "a");
    fixture_start(r, ctx, "a", "");
    path_ns = ns;
    r->host.step = slow_tree;
    *s = (struct share){ .r = r, .ctx = ctx };
    fibers_go(&r->clients, r->loop, share_main, s, "share");
    pass(ctx, NS_PER_S);
}

TEST_VIRTUAL(a_path_that_hangs_does_not_keep_the_vm)
{
    struct fixture r = { .guest_opts.process_ns = LONG };
    struct ctx root = ctx_root(ctx->loop);
    struct err err = ERR_INIT;
    struct share s;

    begin(&r, &s, &root, 20 * NS_PER_S);
    fake_vmm_die(r.vmm, FAKE_KILLED);
    (void)fixture_wait(&r, &root, "a", "");
    fixture_delete(&r, &root, "a", "");
    pass(&root, 5 * NS_PER_S);
    ASSERT(r.registry->vm == NULL); /* cleaned up, though the share is still being opened */
    ASSERT_OK(fibers_wait(&root, &r.clients, "the share", &err), err);
    ASSERT_FAIL(s.ret, s.err, ERR_STATE);
    ASSERT_MSG_HAS(s.err.msg, "sandbox box has no running VM");
    ASSERT_EQ(s.err.reason, REASON_VM_ENDED);
    fixture_close(&r, &root);
}

TEST_VIRTUAL(a_share_is_made_in_the_vm_that_runs_when_its_path_is_open)
{
    struct fixture r = { .guest_opts.process_ns = LONG };
    struct ctx root = ctx_root(ctx->loop);
    struct err err = ERR_INIT;
    struct share s;

    begin(&r, &s, &root, 20 * NS_PER_S);
    fake_vmm_die(r.vmm, FAKE_KILLED);
    (void)fixture_wait(&r, &root, "a", "");
    fixture_delete(&r, &root, "a", "");
    pass(&root, NS_PER_S);
    r.host.step = NULL;
    fixture_create(&r, &root, "b"); /* in another VM */
    unsigned before = r.guest.shares;

    ASSERT_OK(fibers_wait(&root, &r.clients, "the share", &err), err);
    ASSERT_OK(s.ret, s.err);
    ASSERT_EQ(r.guest.shares, before + 1);
    free(s.path);
    r.guest.shares--; /* it ends with its VM */
    fixture_close(&r, &root);
}

TEST_VIRTUAL(a_path_that_never_opens_is_given_up)
{
    struct fixture r = { .guest_opts.process_ns = LONG };
    struct ctx root = ctx_root(ctx->loop);
    struct err err = ERR_INIT;
    struct share s;
    uint64_t before = loop_now(ctx->loop);

    begin(&r, &s, &root, 10000 * NS_PER_S);
    ASSERT_OK(fibers_wait(&root, &r.clients, "the share", &err), err);
    ASSERT_FAIL(s.ret, s.err, ERR_DEADLINE);
    ASSERT_EQ(s.err.reason, REASON_SHARE_FAILED);
    ASSERT(loop_now(ctx->loop) - before < 60 * NS_PER_S);
    fixture_close(&r, &root);
}
