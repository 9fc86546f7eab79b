/* pod_test.c - pods: several in one VM, Kill for all of one, the death of a pod's holder. */
#include "fixture/registry_steps.h"

#define OF_POD                                                                                     \
    ",\"annotations\":{\"io.kubernetes.cri.container-type\":\"%s\","                               \
    "\"io.kubernetes.cri.sandbox-id\":\"%s\"}"

static void add(struct fixture *r, struct ctx *ctx, const char *id, const char *kind,
                const char *pod)
{
    AUTO_FREE char *more = kind ? str_format(OF_POD, kind, pod) : str_dup("");
    struct err err = ERR_INIT;

    fixture_write_spec(r, id, more);
    ASSERT_OK(fixture_try_create(r, ctx, id, &err), err);
    fixture_start(r, ctx, id, "");
}

static struct anchor *anchor_of_p;

/* Pods p and q with a container each, and x, which is a pod of its own. */
static void open_pods(struct fixture *r, struct ctx *ctx)
{
    r->guest_opts.process_ns = 900 * NS_PER_S;
    fixture_open(r, ctx);
    add(r, ctx, "p", "sandbox", "p");
    anchor_of_p = r->host.last_anchor;
    add(r, ctx, "q", "sandbox", "q");
    add(r, ctx, "p1", "container", "p");
    add(r, ctx, "q1", "container", "q");
    add(r, ctx, "x", NULL, NULL);
    ASSERT_EQ(r->vms, 1);
}

static void kill_all(struct fixture *r, struct ctx *ctx, const char *id, uint32_t signo)
{
    struct err err = ERR_INIT;

    ASSERT_OK(fixture_try_kill(r, ctx, id, "", signo, true, &err), err);
}

#define EXPECT_RUNNING(...) expect_running(&r, (const char *const[]){ __VA_ARGS__, NULL })

static void expect_running(struct fixture *r, const char *const *ids)
{
    for (; *ids; ids++)
        ASSERT_EQ(container_state(fixture_find(r, *ids)), CONTAINER_RUNNING);
}

TEST_VIRTUAL(containers_of_a_pod_share_it_and_each_plain_one_has_its_own)
{
    struct fixture r = { 0 };
    struct ctx root = ctx_root(ctx->loop);

    open_pods(&r, &root);
    ASSERT(container_pod(fixture_find(&r, "p")) == container_pod(fixture_find(&r, "p1")));
    ASSERT(container_pod(fixture_find(&r, "p")) != container_pod(fixture_find(&r, "q")));
    ASSERT(container_pod(fixture_find(&r, "x"))->holder == fixture_find(&r, "x"));
    ASSERT(container_pod(fixture_find(&r, "p1"))->holder == fixture_find(&r, "p"));
    ASSERT(container_pod(fixture_find(&r, "q"))->vm == container_pod(fixture_find(&r, "p"))->vm);
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(kill_all_on_a_pause_container_ends_its_pod_and_no_other)
{
    struct fixture r = { 0 };
    struct ctx root = ctx_root(ctx->loop);

    open_pods(&r, &root);
    kill_all(&r, &root, "p", 9);
    ASSERT_EQ(fixture_wait(&r, &root, "p", ""), 137);
    ASSERT_EQ(fixture_wait(&r, &root, "p1", ""), 137);
    EXPECT_RUNNING("q", "q1", "x");
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(kill_all_on_another_container_of_a_pod_or_a_plain_one_ends_that_one)
{
    struct fixture r = { 0 };
    struct ctx root = ctx_root(ctx->loop);

    open_pods(&r, &root);
    kill_all(&r, &root, "p1", 9);
    kill_all(&r, &root, "x", 9);
    ASSERT_EQ(fixture_wait(&r, &root, "p1", ""), 137);
    ASSERT_EQ(fixture_wait(&r, &root, "x", ""), 137);
    EXPECT_RUNNING("p", "q", "q1");
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(kill_all_takes_any_signal_to_every_container_of_the_pod)
{
    struct fixture r = { 0 };
    struct ctx root = ctx_root(ctx->loop);

    open_pods(&r, &root);
    kill_all(&r, &root, "q", 10);
    ASSERT_EQ(r.guest.signals, 2);
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(a_pods_first_container_dies_and_kill_all_still_reaches_the_others)
{
    struct fixture r = { 0 };
    struct ctx root = ctx_root(ctx->loop);
    struct err err = ERR_INIT;

    open_pods(&r, &root);
    ASSERT_OK(fixture_try_kill(&r, &root, "p", "", 9, false, &err), err);
    ASSERT_EQ(fixture_wait(&r, &root, "p", ""), 137);
    EXPECT_RUNNING("p1", "q");
    ASSERT_FAIL(fixture_try_delete(&r, &root, "p", "", &err), err, ERR_STATE);
    kill_all(&r, &root, "p", 9);
    ASSERT_EQ(fixture_wait(&r, &root, "p1", ""), 137);
    fixture_delete(&r, &root, "p", ""); /* with what has ended in it */
    ASSERT(!registry_find(r.registry, "p1", &err));
    EXPECT_RUNNING("q", "q1", "x");
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(a_holders_process_on_the_host_is_killed_and_its_pod_with_it)
{
    struct fixture r = { 0 };
    struct ctx root = ctx_root(ctx->loop);

    open_pods(&r, &root);
    fake_anchor_kill(anchor_of_p);
    ASSERT_EQ(fixture_wait(&r, &root, "p1", ""), 137);
    ASSERT_EQ(fixture_wait(&r, &root, "p", ""), 137);
    EXPECT_RUNNING("q", "q1", "x");
    fixture_close(&r, ctx);
}

/* All at once: the bound of one Kill is that of all. */
TEST_VIRTUAL(kill_all_with_a_guest_that_hangs_takes_no_longer_than_one_kill)
{
    struct fixture r = { 0 };
    struct ctx root = ctx_root(ctx->loop);

    open_pods(&r, &root);
    refuse(&r, (struct refusal){ BRIDGE_SIGNAL_PROCESS, -1, -1, 9, FAKE_SILENT });

    uint64_t before = loop_now(r.loop);

    kill_all(&r, &root, "p", 9);
    ASSERT(loop_now(r.loop) - before <= PROCESS_KILL_LIMIT);
    ASSERT_EQ(fixture_wait(&r, &root, "p1", ""), 137); /* with its VM, which is killed */
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(a_pod_keeps_its_vm_when_the_shim_has_the_next_one)
{
    struct fixture r = { 0 };
    struct ctx root = ctx_root(ctx->loop);

    r.guest_opts.process_ns = 900 * NS_PER_S;
    fixture_open(&r, &root);
    add(&r, &root, "x", NULL, NULL);

    struct pod *old = pod_ref(container_pod(fixture_find(&r, "x")));

    kill_all(&r, &root, "x", 9);
    ASSERT_EQ(fixture_wait(&r, &root, "x", ""), 137);
    fixture_delete(&r, &root, "x", "");
    add(&r, &root, "x", NULL, NULL);
    ASSERT_EQ(r.vms, 2);
    ASSERT(old->vm != r.registry->vm);
    ASSERT(container_pod(fixture_find(&r, "x"))->vm == r.registry->vm);
    ASSERT(!old->holder);
    pod_unref(old);
    fixture_close(&r, ctx);
}
