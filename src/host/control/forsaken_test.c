/* forsaken_test.c - containers that containerd has given up, as the files of `delete` say.
 */
#include "fixture/registry_fixture.h"
#include "harness/tap.h"
#include "host/control/forsaken.h"
#include "host/control/run_file.h"

#define LONG                                                                                       \
    {                                                                                              \
        .address = "unix:///s", .guest_opts.container_ns = 1000 * NS_PER_S                         \
    }

static char *run_dir(const struct fixture *r)
{
    return str_format("%s/test/box", r->config.run_root);
}

/* What `delete` does, and the signal that follows. */
static void give_up(struct fixture *r, const char *id, const char *anchor)
{
    AUTO_FREE char *dir = run_dir(r);
    struct err err = ERR_INIT;

    ASSERT_OK(run_forsake(dir, id, anchor, &err), err);
    forsaken_obey(r->registry);
}

static bool is_noted(const struct fixture *r, const char *id)
{
    AUTO_FREE char *dir = run_dir(r), *path = str_format("%s/forsaken.%s", dir, id);

    return access(path, F_OK) == 0;
}

static void sleep_ns(struct ctx *ctx, uint64_t ns)
{
    struct ctx root = ctx_root(ctx->loop);
    struct err err = ERR_INIT;

    ASSERT_OK(fiber_sleep(&root, ns, &err), err);
}

/* As in the shim. */
static bool tell(void *arg, const struct event *e)
{
    return !forsaken_is(((struct fixture *)arg)->registry, e->container_id);
}

static void open_two(struct fixture *r, struct ctx *ctx)
{
    fixture_open(r, ctx);
    events_filter(r->events, tell, r);
    for (const char *const *id = (const char *const[]){ "a", "b", NULL }; *id; id++) {
        fixture_create(r, ctx, *id);
        fixture_start(r, ctx, *id, "");
    }
    ASSERT_STR(fixture_told(r, ctx), "create a;start a;create b;start b");
    sbuf_release(&r->told);
}

TEST_VIRTUAL(a_forsaken_container_is_killed_and_deleted_without_events)
{
    struct ctx root = ctx_root(ctx->loop);
    struct fixture r = LONG;

    open_two(&r, ctx);
    give_up(&r, "a", "");
    sleep_ns(ctx, 5 * NS_PER_S);
    ASSERT_EQ(r.registry->n_containers, 1);
    ASSERT(fixture_find(&r, "b"));
    ASSERT(!forsaken_all(r.registry));
    ASSERT(!is_noted(&r, "a"));
    ASSERT_STR(fixture_told(&r, ctx), "");
    give_up(&r, "b", "");
    sleep_ns(ctx, 5 * NS_PER_S);
    ASSERT(forsaken_all(r.registry));
    ASSERT(registry_idle(r.registry));
    fixture_create(&r, &root, "c");
    ASSERT(!forsaken_all(r.registry)); /* containerd is back */
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(a_note_for_an_earlier_container_of_that_name_is_not_meant_for_the_next)
{
    struct fixture r = LONG;

    open_two(&r, ctx);
    give_up(&r, "a", "1 2 another-boot");
    give_up(&r, "unknown", "");
    sleep_ns(ctx, 5 * NS_PER_S);
    ASSERT_EQ(r.registry->n_containers, 2);
    ASSERT(!is_noted(&r, "a") && !is_noted(&r, "unknown"));
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(a_killed_anchor_makes_the_shim_look_for_a_note)
{
    struct fixture r = LONG;

    open_two(&r, ctx);

    AUTO_FREE char *dir = run_dir(&r);
    struct err err = ERR_INIT;

    ASSERT_OK(run_forsake(dir, "b", "", &err), err);
    fake_anchor_kill(r.host.last_anchor); /* by `delete` */
    sleep_ns(ctx, 5 * NS_PER_S);
    ASSERT_EQ(r.registry->n_containers, 1);
    ASSERT_STR(fixture_told(&r, ctx), "");
    fixture_close(&r, ctx);
}

#define IN_POD(kind)                                                                               \
    ",\"annotations\":{\"io.kubernetes.cri.sandbox-id\":\"p\","                                    \
    "\"io.kubernetes.cri.container-type\":\"" kind "\"}"

TEST_VIRTUAL(a_pods_first_container_that_is_given_up_waits_for_the_others)
{
    struct ctx root = ctx_root(ctx->loop);
    struct fixture r = LONG;
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    events_filter(r.events, tell, &r);
    fixture_write_spec(&r, "p", IN_POD("sandbox"));
    ASSERT_OK(fixture_try_create(&r, ctx, "p", &err), err);
    fixture_start(&r, ctx, "p", "");
    fixture_write_spec(&r, "c", IN_POD("container"));
    ASSERT_OK(fixture_try_create(&r, ctx, "c", &err), err);
    fixture_start(&r, ctx, "c", "");
    give_up(&r, "p", "");
    sleep_ns(ctx, 30 * NS_PER_S);
    ASSERT_EQ(r.registry->n_containers, 2);
    ASSERT_OK(container_kill(&root, fixture_find(&r, "c"), "", 9, true, &err), err);
    ASSERT_EQ(fixture_wait(&r, &root, "c", ""), 137);
    sleep_ns(ctx, 30 * NS_PER_S);
    ASSERT_EQ(r.registry->n_containers, 2); /* ended, but containerd still asks for it */
    fixture_delete(&r, &root, "c", "");
    sleep_ns(ctx, 5 * NS_PER_S);
    ASSERT(forsaken_all(r.registry) && registry_idle(r.registry));
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(a_container_whose_anchor_was_killed_during_its_creation_is_not_created)
{
    struct fixture r = LONG;
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    fixture_create(&r, ctx, "other");
    r.host.anchor_dies = true;
    fixture_write_spec(&r, "a", "");
    ASSERT_FAIL(fixture_try_create(&r, ctx, "a", &err), err, ERR_UNAVAILABLE);
    ASSERT_MSG_HAS(err.msg, "was killed");
    ASSERT_EQ(r.registry->n_containers, 1);
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(the_run_file_lists_the_containers_and_which_are_forsaken)
{
    struct fixture r = LONG;
    AUTO(run_file_release) struct run_file n = { 0 }, later = { 0 };
    struct err err = ERR_INIT;
    bool given_up = true;

    open_two(&r, ctx);

    AUTO_FREE char *dir = run_dir(&r);

    ASSERT_OK(run_file_read(dir, &n, &err), err);
    ASSERT_STR(n.address, "unix:///s");
    ASSERT_EQ(n.pid, getpid());
    ASSERT_EQ(n.n, 2);
    ASSERT(run_file_find(&n, "a") && run_file_find(&n, "b") && !run_file_find(&n, "c"));
    ASSERT_OK(run_forsake(dir, "a", "", &err), err);
    ASSERT_OK(run_given_up(ctx, dir, &n, &given_up, &err), err);
    ASSERT(!given_up);
    ASSERT_OK(run_forsake(dir, "b", "", &err), err);
    ASSERT_OK(run_given_up(ctx, dir, &n, &given_up, &err), err);
    ASSERT(given_up);
    run_unforsake(dir, "b");

    AUTO_FREE char *bundle = str_dup(run_file_find(&n, "b")->bundle);

    ASSERT_EQ(dir_remove(bundle), 0); /* a bundle that is gone says the same */
    given_up = false;
    ASSERT_OK(run_given_up(ctx, dir, &n, &given_up, &err), err);
    ASSERT(given_up);
    forsaken_obey(r.registry);
    sleep_ns(ctx, 5 * NS_PER_S);
    ASSERT_OK(run_file_read(dir, &later, &err), err);
    ASSERT_EQ(later.n, 1);
    fixture_close(&r, ctx);
}
