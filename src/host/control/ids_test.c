/* ids_test.c - a pod's life with ids in the guest that differ from containerd's. The fixture ends
 * the program when the guest, the VMM, the host or an event gets the other's; this test looks at
 * the other documents that operators read, and calls what few tests call. */
#include "base/json.h"
#include "fixture/registry_steps.h"
#include "host/control/inspect.h"
#include "host/control/run_file.h"

#define POD(type)                                                                                  \
    ",\"annotations\":{\"io.kubernetes.cri.container-type\":\"" type "\","                         \
    "\"io.kubernetes.cri.sandbox-id\":\"p\"},\"mounts\":[{\"destination\":\"/dev/shm\","           \
    "\"type\":\"bind\",\"source\":\"/run/sandboxes/p/shm\",\"options\":[\"rbind\"]}]"

static void check_listed(void *arg, const struct container_listed *l)
{
    ++*(unsigned *)arg;
    ids_expect("list", l->exec_id, 0);
}

static void start(struct fixture *r, struct ctx *ctx, const char *id, const char *more)
{
    struct err err = ERR_INIT;

    fixture_write_spec(r, id, more);
    ASSERT_OK(fixture_try_create(r, ctx, id, &err), err);
    fixture_start(r, ctx, id, "");
}

static void use(struct fixture *r, struct ctx *ctx, struct container *c)
{
    static const char resources[] = "{\"pids\":{\"limit\":9}}";
    AUTO(json_decref) json_t *stats = NULL;
    struct err err = ERR_INIT;
    unsigned listed = 0;

    container_list(ctx, c, check_listed, &listed);
    ASSERT_EQ(listed, 4);
    ASSERT_OK(container_stats(ctx, c, &stats, &err), err);
    ASSERT_OK(container_freeze(ctx, c, true, &err), err);
    ASSERT_OK(container_freeze(ctx, c, false, &err), err);
    ASSERT_OK(container_update(ctx, c, resources, sizeof(resources) - 1, &err), err);
    ASSERT_EQ(r->guest.updates, 1);
    ASSERT_OK(fixture_try_kill(r, ctx, "c", "x", 10, false, &err), err);
    ASSERT_EQ(r->guest.signals, 1);
}

static void resize(struct fixture *r, struct ctx *ctx, struct container *c)
{
    static const char process[] = "{\"args\":[\"/bin/sh\"],\"cwd\":\"/\"}";
    const struct container_exec e = { .exec_id = "t",
                                      .stdio = { .out = "/fifo/out", .terminal = true },
                                      .process_json = process,
                                      .process_len = sizeof(process) - 1 };
    struct err err = ERR_INIT;

    ASSERT_OK(container_exec(c, &e, &err), err);
    fixture_start(r, ctx, "c", "t");
    ASSERT_OK(process_resize(ctx, container_process(c, "t", &err), 24, 80, &err), err);
}

static void check_documents(struct fixture *r)
{
    AUTO_FREE char *inspect = registry_inspect(r->registry), *run = NULL;
    AUTO_FREE char *dir = str_format("%s/run/test/box", r->dir);
    AUTO_FREE char *path = run_file_path(dir);
    size_t len;

    ids_expect("inspect", inspect, 2); /* "guest_id" of the two containers */
    ASSERT_HAS(inspect, "\"id\":\"c\",\"guest_id\":\"" IDS_IN_GUEST "c\",\"pod\":\"p\"");
    ASSERT_EQ(file_read_all(path, 65536, &run, &len), 0);
    ASSERT_HAS(run, "\"c\"");
    ids_expect("run file", run, 0);
}

TEST_VIRTUAL(ids_of_the_guest_and_of_containerd_do_not_mix)
{
    struct fixture r = { .guest_opts = { .process_ns = 900 * NS_PER_S, .oom_ns = NS_PER_S },
                         .host.network = true,
                         .address = "/shim" };
    struct ctx root = ctx_root(ctx->loop);
    struct err err = ERR_INIT;

    refuse(&r, (struct refusal){ 0 });
    fixture_open(&r, ctx);
    start(&r, &root, "p", POD("sandbox"));
    start(&r, &root, "c", POD("container"));
    ASSERT_EQ(r.guest.shares, 2); /* the roots: /dev/shm is the pod's own */
    fixture_exec(&r, &root, "c", "x");
    fixture_start(&r, &root, "c", "x");
    use(&r, &root, fixture_find(&r, "c"));
    resize(&r, &root, fixture_find(&r, "c"));
    check_documents(&r);
    pass(&root, 2 * NS_PER_S); /* the guest reports OOM */
    ASSERT_HAS(fixture_told(&r, &root), "oom c");

    /* What cannot be found is refused in containerd's words. */
    ASSERT(!registry_find(r.registry, IDS_IN_GUEST "c", &err));
    ASSERT_FAIL(fixture_try_create(&r, &root, "c", &err), err, ERR_EXISTS);
    ids_expect_error(err.msg);
    refuse(&r, (struct refusal){ BRIDGE_SIGNAL_PROCESS, -1, -1, 1, FAKE_REFUSE });
    ASSERT_FAIL(fixture_try_kill(&r, &root, "c", "", 9, false, &err), err, ERR_UNKNOWN);
    ids_expect_error(err.msg);

    ASSERT_OK(fixture_try_kill(&r, &root, "p", "", 9, true, &err), err);
    ASSERT_EQ(fixture_wait(&r, &root, "c", ""), 137);
    ASSERT_EQ(fixture_wait(&r, &root, "p", ""), 137);
    fixture_delete(&r, &root, "c", "");
    fixture_delete(&r, &root, "p", "");
    fixture_close(&r, ctx);
}

/* Kill before the start: execs that run are ended with the guest's container. */
TEST_VIRTUAL(a_container_that_is_not_started_ends_under_its_guests_id)
{
    struct fixture r = { .guest_opts.process_ns = 900 * NS_PER_S };
    struct ctx root = ctx_root(ctx->loop);
    struct err err = ERR_INIT;

    refuse(&r, (struct refusal){ 0 });
    fixture_open(&r, ctx);
    fixture_create(&r, &root, "a");
    fixture_exec(&r, &root, "a", "x");
    fixture_start(&r, &root, "a", "x");
    ASSERT_OK(fixture_try_kill(&r, &root, "a", "", 9, false, &err), err);
    ASSERT_EQ(fixture_wait(&r, &root, "a", ""), 137);
    fixture_delete(&r, &root, "a", "");
    fixture_close(&r, ctx);
}

/* The guest says that it still runs: it is ended there first, then deleted again. */
static struct fake_answer runs_on(void *arg, const struct bridge_request *q)
{
    unsigned *deletes = arg;

    if (q->type == BRIDGE_DELETE_CONTAINER_STATE && ++*deletes == 1)
        return (struct fake_answer){ FAKE_REFUSE, 0, BRIDGE_HR_INVALID_STATE };
    return (struct fake_answer){ FAKE_ANSWER };
}

TEST_VIRTUAL(what_still_runs_in_the_guest_is_ended_under_its_guests_id)
{
    unsigned deletes = 0;
    struct fixture r = { .guest_opts = { .decide_request = runs_on, .decide_arg = &deletes } };

    fixture_open(&r, ctx);
    fixture_create(&r, ctx, "a");
    fixture_create(&r, ctx, "b"); /* the last one goes with its VM */
    fixture_delete(&r, ctx, "a", "");
    ASSERT_EQ(deletes, 2);
    fixture_close(&r, ctx);
}
