/* sandbox_test.c - a sandbox made on purpose: its states, its end from every side, pods in it. */
#include "fixture/registry_steps.h"
#include "harness/fsm_table.h"
#include "host/control/sandbox_priv.h"

#define POD                                                                                        \
    ",\"annotations\":{\"io.kubernetes.cri.container-type\":\"%s\","                               \
    "\"io.kubernetes.cri.sandbox-id\":\"%s\"}"

static int try_make(struct fixture *r, struct ctx *ctx, const char *id, const char *spec,
                    struct err *err)
{
    AUTO_FREE char *bundle = str_format("%s/%s", r->dir, id);
    const struct sandbox_create c = { .id = id, .bundle = bundle, .netns = "", .spec = spec };

    return sandbox_create(ctx, r->registry, &c, err);
}

static void make(struct fixture *r, struct ctx *ctx)
{
    struct err err = ERR_INIT;

    ASSERT_OK(try_make(r, ctx, "s", "{}", &err), err);
}

static struct sandbox_view begin(struct fixture *r, struct ctx *ctx)
{
    struct sandbox_view s = { 0 };
    struct err err = ERR_INIT;

    make(r, ctx);
    ASSERT_OK(sandbox_start(ctx, r->registry, "s", &s, &err), err);
    return s;
}

static enum sandbox_state state_of(struct fixture *r)
{
    struct sandbox_view v;
    struct err err = ERR_INIT;

    ASSERT_OK(sandbox_view(r->registry, "s", &v, &err), err);
    return v.state;
}

static void write_member(struct fixture *r, const char *id, const char *type, const char *pod)
{
    AUTO_FREE char *more = str_format(POD, type, pod);

    fixture_write_spec(r, id, more);
}

static void add(struct fixture *r, struct ctx *ctx, const char *id, const char *type,
                const char *pod)
{
    struct err err = ERR_INIT;

    write_member(r, id, type, pod);
    ASSERT_OK(fixture_try_create(r, ctx, id, &err), err);
    fixture_start(r, ctx, id, "");
}

TEST(every_pair_of_state_and_event_is_listed_or_refused)
{
    fsm_table_check(&sandbox_fsm);
}

/* --- life --- */

TEST_VIRTUAL(a_sandbox_lives_without_containers_until_it_is_stopped)
{
    struct fixture r = { .guest_opts.process_ns = 900 * NS_PER_S };
    struct ctx root = ctx_root(ctx->loop);
    struct sandbox_view s, again;
    struct sandbox_view v;
    struct sandbox_view x;
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    make(&r, &root);
    ASSERT_EQ(r.vms, 0); /* nothing is made yet */
    ASSERT_EQ(state_of(&r), SANDBOX_CREATED);
    ASSERT(!registry_idle(r.registry));
    s = begin(&r, &root);
    ASSERT(s.pid > 0 && s.created_wall_ns > 0);
    ASSERT_OK(sandbox_start(&root, r.registry, "s", &again, &err), err);
    ASSERT_EQ(again.pid, s.pid);
    ASSERT_EQ(again.created_wall_ns, s.created_wall_ns);
    pass(&root, 30 * NS_PER_S);
    ASSERT_EQ(state_of(&r), SANDBOX_READY);
    ASSERT_EQ(r.vms, 1);
    ASSERT(registry_find(r.registry, "s", &err) == NULL); /* no task of anybody's */
    ASSERT_OK(sandbox_stop(&root, r.registry, "s", 0, &err), err);
    ASSERT_OK(sandbox_stop(&root, r.registry, "s", 0, &err), err);
    ASSERT_OK(sandbox_wait(&root, r.registry, "s", &x, &err), err);
    ASSERT_EQ(x.exit_status, 0);
    ASSERT(x.exited_wall_ns > s.created_wall_ns);
    ASSERT_OK(sandbox_view(r.registry, "s", &v, &err), err);
    ASSERT_EQ(v.state, SANDBOX_STOPPED);
    ASSERT_EQ(v.pid, 0);
    ASSERT_EQ(r.host.anchors, 0);
    ASSERT(!registry_idle(r.registry)); /* its status is asked for until it is shut down */
    ASSERT_OK(sandbox_shutdown(&root, r.registry, "s", &err), err);
    ASSERT_OK(sandbox_shutdown(&root, r.registry, "s", &err), err);
    ASSERT(registry_idle(r.registry));
    ASSERT_STR(fixture_told(&r, &root), ""); /* a sandbox is not a task */
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(a_second_sandbox_and_an_unknown_one_are_refused)
{
    struct fixture r = { 0 };
    struct sandbox_view s;
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    ASSERT_FAIL(sandbox_start(ctx, r.registry, "s", &s, &err), err, ERR_NOT_FOUND);
    ASSERT_FAIL(sandbox_stop(ctx, r.registry, "s", 0, &err), err, ERR_NOT_FOUND);
    make(&r, ctx);
    make(&r, ctx); /* the same again, its answer was lost */
    ASSERT_FAIL(try_make(&r, ctx, "t", "{}", &err), err, ERR_EXISTS);
    ASSERT_FAIL(try_make(&r, ctx, "a/b", "{}", &err), err, ERR_INVALID);
    ASSERT_FAIL(sandbox_start(ctx, r.registry, "t", &s, &err), err, ERR_NOT_FOUND);
    ASSERT_OK(sandbox_stop(ctx, r.registry, "s", 0, &err), err);
    ASSERT_FAIL(sandbox_start(ctx, r.registry, "s", &s, &err), err, ERR_STATE);
    ASSERT_FAIL(try_make(&r, ctx, "s", "{}", &err), err, ERR_EXISTS);
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(a_spec_comes_from_the_request_or_the_bundle_or_is_not_there)
{
    struct err err = ERR_INIT;

    for (int i = 0; i < 4; i++) {
        struct fixture r = { 0 };
        AUTO_FREE char *bundle = NULL, *path = NULL;

        fixture_open(&r, ctx);
        bundle = str_format("%s/s", r.dir);
        path = str_format("%s/config.json", bundle);
        ASSERT_EQ(dir_make(bundle, 0700), 0);
        if (i == 1)
            ASSERT_EQ(file_write(path, "{\"hostname\":\"x\"}", 16, 0600), 0);
        if (i == 2)
            ASSERT_EQ(file_write(path, "{", 1, 0600), 0);
        if (i == 2) {
            ASSERT_FAIL(try_make(&r, ctx, "s", NULL, &err), err, ERR_INVALID);
            ASSERT_MSG_HAS(err.msg, path);
        } else {
            ASSERT_OK(try_make(&r, ctx, "s", i == 3 ? "{\"hostname\":\"y\"}" : NULL, &err), err);
            ASSERT_STR(json_string_value(js_get(spec_json(r.registry->sandbox->spec), "hostname"))
                           ?: "",
                       i == 1   ? "x"
                       : i == 3 ? "y"
                                : "");
        }
        err_clear(&err);
        fixture_close(&r, ctx);
    }
}

TEST_VIRTUAL(a_pods_spec_says_what_a_pod_is_and_nothing_else)
{
    static const char given[] =
        "{\"hostname\":\"h\",\"hooks\":{},\"mounts\":[{\"destination\":\"/etc\"}],"
        "\"root\":{\"path\":\"/\"},\"process\":{\"args\":[\"sh\"],\"oomScoreAdj\":-5},"
        "\"annotations\":{\"a\":\"b\"},\"linux\":{\"cgroupsPath\":\"/k/p\",\"devices\":[],"
        "\"resources\":{\"memory\":{\"limit\":1048576}},\"sysctl\":{\"net.x\":\"1\"},"
        "\"namespaces\":[{\"type\":\"network\",\"path\":\"/run/netns/n\"}]}}";
    const struct sandbox_create c = { .id = "s", .bundle = "/b" };
    AUTO(spec_free) struct spec *spec = NULL;
    struct err err = ERR_INIT;
    const char *netns = "", *pod;
    enum spec_kind kind;
    bool set;

    (void)ctx;
    ASSERT_OK(sandbox_spec_parse(&c, given, sizeof(given) - 1, &spec, &err), err);
    ASSERT_OK(spec_kind(spec, "s", &kind, &pod, &err), err);
    ASSERT_EQ(kind, SPEC_SANDBOX);
    ASSERT_STR(pod, "s");
    ASSERT_STR(spec_annotation(spec, "a"), "b");
    ASSERT_STR(spec_cgroups_path(spec), "/k/p");
    ASSERT_EQ(spec_oom_score_adj(spec, &set), -5);
    ASSERT(spec_namespace(spec, "network", &netns));
    ASSERT_STR(netns, "/run/netns/n");
    ASSERT(spec_root_readonly(spec));
    ASSERT(js_get(spec_json(spec), "hooks"));
    ASSERT(!js_get(js_get(spec_json(spec), "linux"), "devices"));
    ASSERT(js_get(js_get(spec_json(spec), "linux"), "sysctl"));
    ASSERT_STR(
        json_string_value(json_array_get(js_get(js_get(spec_json(spec), "process"), "args"), 0)),
        "/pause");
}

/* --- containers in it --- */

TEST_VIRTUAL(the_vm_outlives_its_containers)
{
    struct fixture r = { .guest_opts.process_ns = 900 * NS_PER_S };
    struct ctx root = ctx_root(ctx->loop);
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    write_member(&r, "c1", "container", "s");
    make(&r, &root);
    ASSERT_FAIL(fixture_try_create(&r, &root, "c1", &err), err, ERR_STATE); /* not started */
    (void)begin(&r, &root);
    add(&r, &root, "c1", "container", "s");
    ASSERT_FAIL(fixture_try_create(&r, &root, "s", &err), err, ERR_EXISTS);
    ASSERT_OK(fixture_try_kill(&r, &root, "c1", "", 9, false, &err), err);
    ASSERT_EQ(fixture_wait(&r, &root, "c1", ""), 137);
    fixture_delete(&r, &root, "c1", "");
    pass(&root, 10 * NS_PER_S);
    ASSERT_EQ(state_of(&r), SANDBOX_READY);
    add(&r, &root, "c2", "container", "s");
    ASSERT_EQ(r.vms, 1);
    ASSERT_STR(fixture_told(&r, &root), "create c1;start c1;exit c1 137;delete c1 137;"
                                        "create c2;start c2");
    fixture_close(&r, ctx);
}

/* containerd 1.7, sandbox mode: empty directories where the pod's files should be. */
TEST_VIRTUAL(directories_in_place_of_the_pods_files_are_left_out)
{
    struct fixture r = { .guest_opts.process_ns = 900 * NS_PER_S };
    struct ctx root = ctx_root(ctx->loop);
    struct err err = ERR_INIT;
    AUTO_FREE char *more =
        str_format(POD ",\"mounts\":[{\"destination\":\"/etc/hosts\",\"type\":\"bind\","
                       "\"source\":\"/tmp\"},{\"destination\":\"/data\",\"type\":\"bind\","
                       "\"source\":\"/tmp\"}]",
                   "container", "s");

    fixture_open(&r, ctx);
    (void)begin(&r, &root);
    fixture_write_spec(&r, "c1", more);

    unsigned before = r.guest.shares;

    ASSERT_OK(fixture_try_create(&r, &root, "c1", &err), err);
    ASSERT_EQ(r.guest.shares, before + 2); /* its root, /data */
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(several_pods_share_a_vm_and_kill_all_ends_one_of_them)
{
    struct fixture r = { .guest_opts.process_ns = 900 * NS_PER_S };
    struct ctx root = ctx_root(ctx->loop);
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    (void)begin(&r, &root);
    add(&r, &root, "p1", "sandbox", "p1");
    add(&r, &root, "p2", "sandbox", "p2");
    add(&r, &root, "c1", "container", "p1");
    add(&r, &root, "c2", "container", "p2");
    ASSERT_EQ(r.vms, 1);
    ASSERT_OK(fixture_try_kill(&r, &root, "p1", "", 9, true, &err), err);
    ASSERT_EQ(fixture_wait(&r, &root, "p1", ""), 137);
    ASSERT_EQ(fixture_wait(&r, &root, "c1", ""), 137);
    fixture_delete(&r, &root, "c1", "");
    fixture_delete(&r, &root, "p1", "");
    ASSERT_EQ(container_state(fixture_find(&r, "p2")), CONTAINER_RUNNING);
    ASSERT_EQ(container_state(fixture_find(&r, "c2")), CONTAINER_RUNNING);
    ASSERT_EQ(state_of(&r), SANDBOX_READY);
    fixture_close(&r, ctx);
}

/* --- the end --- */

TEST_VIRTUAL(ws20_stop_gives_containers_their_time)
{
    struct fixture r = { .guest_opts.process_ns = 900 * NS_PER_S,
                         .guest_opts.decide_request = decide };
    struct ctx root = ctx_root(ctx->loop);
    struct err err = ERR_INIT;
    uint64_t before;

    fixture_open(&r, ctx);
    (void)begin(&r, &root);
    add(&r, &root, "c1", "container", "s");
    /* One that takes its SIGTERM. */
    before = loop_now(r.loop);
    ASSERT_OK(sandbox_stop(&root, r.registry, "s", 60 * NS_PER_S, &err), err);
    ASSERT(loop_now(r.loop) - before < 10 * NS_PER_S);
    ASSERT_HAS(fixture_told(&r, &root), "exit c1 143");
    ASSERT_EQ(container_state(fixture_find(&r, "c1")), CONTAINER_STOPPED);
    fixture_delete(&r, &root, "c1", "");
    ASSERT_OK(sandbox_shutdown(&root, r.registry, "s", &err), err);
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(ws20_and_no_more_than_that)
{
    struct fixture r = { .guest_opts.process_ns = 900 * NS_PER_S,
                         .guest_opts.decide_request = decide };
    struct ctx root = ctx_root(ctx->loop);
    struct err err = ERR_INIT;
    uint64_t before;

    fixture_open(&r, ctx);
    (void)begin(&r, &root);
    add(&r, &root, "c1", "container", "s");
    refusal = (struct refusal){ BRIDGE_SIGNAL_PROCESS, -1, -1, 1, FAKE_SILENT, 0 };
    before = loop_now(r.loop);
    ASSERT_OK(sandbox_stop(&root, r.registry, "s", 7 * NS_PER_S, &err), err);
    ASSERT(loop_now(r.loop) - before >= 7 * NS_PER_S);
    ASSERT(loop_now(r.loop) - before < 8 * NS_PER_S);
    ASSERT_HAS(fixture_told(&r, &root), "exit c1 137");
    /* What it left is forgotten with the sandbox. */
    ASSERT_OK(sandbox_shutdown(&root, r.registry, "s", &err), err);
    ASSERT_HAS(fixture_told(&r, &root), "delete c1 137");
    ASSERT(registry_idle(r.registry));
    fixture_close(&r, ctx);
}

static struct sandbox_view late;
static struct err late_err;
static int late_ret;

static void long_stop_main(void *arg)
{
    struct fixture *r = arg;
    struct ctx root = ctx_root(r->loop);

    err_clear(&late_err);
    late_ret = sandbox_stop(&root, r->registry, "s", 600 * NS_PER_S, &late_err);
}

TEST_VIRTUAL(a_second_stop_without_grace_ends_that_of_the_first)
{
    struct fixture r = { .guest_opts.process_ns = 900 * NS_PER_S,
                         .guest_opts.decide_request = decide };
    struct ctx root = ctx_root(ctx->loop);
    struct err err = ERR_INIT;
    uint64_t before;

    fixture_open(&r, ctx);
    (void)begin(&r, &root);
    add(&r, &root, "c1", "container", "s");
    refusal = (struct refusal){ BRIDGE_SIGNAL_PROCESS, -1, -1, 1, FAKE_SILENT, 0 };
    fibers_go(&r.clients, r.loop, long_stop_main, &r, "stop");
    pass(&root, 10 * NS_PER_S);
    ASSERT_EQ(state_of(&r), SANDBOX_READY);
    before = loop_now(r.loop);
    ASSERT_OK(sandbox_shutdown(&root, r.registry, "s", &err), err);
    ASSERT(loop_now(r.loop) - before < NS_PER_S);
    ASSERT_OK(fibers_wait(&root, &r.clients, "the first", &err), err);
    ASSERT_OK(late_ret, late_err);
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(ws20_ping_asks_the_guest_and_is_bounded)
{
    struct fixture r = { .guest_opts.process_ns = 900 * NS_PER_S,
                         .guest_opts.decide_request = decide };
    struct ctx root = ctx_root(ctx->loop);
    struct err err = ERR_INIT;
    uint64_t before;

    fixture_open(&r, ctx);
    make(&r, &root);
    ASSERT_FAIL(sandbox_ping(&root, r.registry, "s", &err), err, ERR_STATE);
    (void)begin(&r, &root);
    ASSERT_OK(sandbox_ping(&root, r.registry, "s", &err), err);
    refusal = (struct refusal){ BRIDGE_GET_PROPERTIES, -1, -1, 1, FAKE_SILENT, 0 };
    before = loop_now(r.loop);
    ASSERT_FAIL(sandbox_ping(&root, r.registry, "s", &err), err, ERR_DEADLINE);
    ASSERT(loop_now(r.loop) - before <= SANDBOX_PING_LIMIT);
    fixture_close(&r, ctx);
}

struct waiter {
    struct fixture *r;
    struct ctx *ctx;
    struct sandbox_view exit;
    int ret;
    bool done;
    struct err err;
};

static void sandbox_wait_main(void *arg)
{
    struct waiter *w = arg;

    w->ret = sandbox_wait(w->ctx, w->r->registry, "s", &w->exit, &w->err);
    w->done = true;
}

static void slow_driver(void *arg)
{
    struct err err = ERR_INIT;

    (void)fiber_sleep(arg, 5 * NS_PER_S, &err);
}

static void stop_fiber(void *arg)
{
    struct fixture *r = arg;
    struct ctx root = ctx_root(r->registry->o.loop);
    struct err err = ERR_INIT;

    ASSERT_OK(sandbox_stop(&root, r->registry, "s", 0, &err), err);
}

TEST_VIRTUAL(a_sandbox_whose_vm_is_being_cleaned_up_is_not_asked)
{
    struct fixture r = { .guest_opts.process_ns = 900 * NS_PER_S };
    struct ctx root = ctx_root(ctx->loop);
    struct sandbox_stats stats;
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    begin(&r, &root);
    fibers_go(&r.registry->drivers, ctx->loop, slow_driver, &root, "driver");
    fiber_go(ctx->loop, stop_fiber, &r, "stop");
    pass(&root, NS_PER_S);
    ASSERT(state_of(&r) == SANDBOX_READY && !r.registry->sandbox->holder);
    ASSERT_FAIL(sandbox_ping(&root, r.registry, "s", &err), err, ERR_STATE);
    ASSERT_FAIL(sandbox_stats(&root, r.registry, "s", &stats, &err), err, ERR_STATE);
    pass(&root, 10 * NS_PER_S);
    ASSERT_EQ(state_of(&r), SANDBOX_STOPPED);
    ASSERT_OK(sandbox_shutdown(&root, r.registry, "s", &err), err);
    fixture_close(&r, ctx);
}

/* Its pod's first container has ended with the VM, which takes its time to be released. */
TEST_VIRTUAL(a_sandbox_that_is_being_stopped_is_not_asked)
{
    struct fixture r = { .guest_opts.process_ns = 900 * NS_PER_S,
                         .vmm_opts.release = { FAKE_OK, 2 * NS_PER_S } };
    struct ctx root = ctx_root(ctx->loop);
    struct sandbox_stats stats;
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    (void)begin(&r, &root);
    fiber_go(ctx->loop, stop_fiber, &r, "stop");
    pass(&root, NS_PER_S);
    ASSERT(state_of(&r) == SANDBOX_READY && r.registry->sandbox->holder);
    ASSERT_FAIL(sandbox_ping(&root, r.registry, "s", &err), err, ERR_STATE);
    ASSERT_MSG_HAS(err.msg, "sandbox s is being stopped");
    ASSERT_FAIL(sandbox_stats(&root, r.registry, "s", &stats, &err), err, ERR_STATE);
    pass(&root, 10 * NS_PER_S);
    ASSERT_EQ(state_of(&r), SANDBOX_STOPPED);
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(a_sandbox_that_is_being_stopped_admits_no_container)
{
    struct fixture r = { .guest_opts.process_ns = 900 * NS_PER_S,
                         .guest_opts.decide_request = decide };
    struct ctx root = ctx_root(ctx->loop);
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    (void)begin(&r, &root);
    add(&r, &root, "c1", "container", "s");
    write_member(&r, "c2", "container", "s");
    refusal = (struct refusal){ BRIDGE_SIGNAL_PROCESS, -1, -1, 1, FAKE_SILENT, 0 };
    fibers_go(&r.clients, r.loop, long_stop_main, &r, "stop");
    pass(&root, 10 * NS_PER_S);
    ASSERT_EQ(state_of(&r), SANDBOX_READY); /* c1 has its time */
    ASSERT_FAIL(fixture_try_create(&r, &root, "c2", &err), err, ERR_STATE);
    ASSERT_MSG_HAS(err.msg, "sandbox s is being stopped: cannot create container c2 in it");
    ASSERT_EQ(err.reason, REASON_WRONG_STATE);
    ASSERT_OK(sandbox_stop(&root, r.registry, "s", 0, &err), err);
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(a_vm_that_dies_ends_the_sandbox_with_a_bad_status)
{
    static const uint32_t statuses[] = {
        [FAKE_KILLED] = 137, [FAKE_CRASHED] = 255, [FAKE_POWERED_OFF] = 255, [FAKE_OOM] = 137
    };

    for (enum fake_death how = FAKE_KILLED; how <= FAKE_OOM; how++) {
        struct fixture r = { .guest_opts.process_ns = 900 * NS_PER_S };
        struct ctx root = ctx_root(ctx->loop);
        struct waiter w = { .r = &r, .ctx = &root };
        struct err err = ERR_INIT;
        uint64_t before;

        fixture_open(&r, &root);
        (void)begin(&r, &root);
        add(&r, &root, "c1", "container", "s");
        fibers_go(&r.clients, r.loop, sandbox_wait_main, &w, "wait");
        pass(&root, NS_PER_S);
        ASSERT(!w.done);
        before = loop_now(r.loop);
        fake_vmm_die(r.vmm, how);
        ASSERT_OK(fibers_wait(&root, &r.clients, "wait", &err), err);
        ASSERT_OK(w.ret, w.err);
        ASSERT_EQ(w.exit.exit_status, statuses[how]);
        ASSERT(loop_now(r.loop) - before < 100 * NS_PER_MS);
        ASSERT_EQ(state_of(&r), SANDBOX_STOPPED);
        ASSERT_OK(sandbox_stop(&root, r.registry, "s", 0, &err), err);
        fixture_delete(&r, &root, "c1", "");
        ASSERT_OK(sandbox_shutdown(&root, r.registry, "s", &err), err);
        fixture_close(&r, &root);
    }
}

TEST_VIRTUAL(killing_the_sandboxs_process_on_the_host_ends_the_pod)
{
    struct fixture r = { .guest_opts.process_ns = 900 * NS_PER_S };
    struct ctx root = ctx_root(ctx->loop);
    struct sandbox_view x;
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    (void)begin(&r, &root);
    fake_anchor_kill(r.host.last_anchor);
    ASSERT_OK(sandbox_wait(&root, r.registry, "s", &x, &err), err);
    ASSERT_EQ(x.exit_status, 137);
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(a_failed_start_is_rolled_back_and_reported)
{
    static const struct refusal steps[] = {
        { BRIDGE_NEGOTIATE_PROTOCOL, -1, -1, 1, FAKE_REFUSE, 0 },
        { BRIDGE_MODIFY_SETTINGS, BRIDGE_RES_MAPPED_VIRTUAL_DISK, -1, 1, FAKE_REFUSE, 0 },
        { BRIDGE_MODIFY_SETTINGS, BRIDGE_RES_COMBINED_LAYERS, BRIDGE_ADD, 1, FAKE_REFUSE, 0 },
        { BRIDGE_CREATE, -1, -1, 1, FAKE_DISCONNECT, 0 },
        { BRIDGE_START, -1, -1, 1, FAKE_REFUSE, 0 },
    };

    for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
        struct fixture r = { .guest_opts.process_ns = 900 * NS_PER_S };
        struct ctx root = ctx_root(ctx->loop);
        struct sandbox_view s;
        struct sandbox_view x;
        struct err err = ERR_INIT;

        fixture_open(&r, &root);
        make(&r, &root);
        refuse(&r, steps[i]);
        ASSERT(sandbox_start(&root, r.registry, "s", &s, &err) < 0);
        err_clear(&err);
        ASSERT_OK(sandbox_wait(&root, r.registry, "s", &x, &err), err);
        ASSERT_EQ(x.exit_status, 255);
        ASSERT_EQ(r.host.anchors, 0);
        ASSERT_OK(sandbox_shutdown(&root, r.registry, "s", &err), err);
        ASSERT(registry_idle(r.registry));
        fixture_close(&r, &root);
    }
}

static void late_start_main(void *arg)
{
    struct fixture *r = arg;
    struct ctx root = ctx_root(r->loop);

    err_clear(&late_err);
    late_ret = sandbox_start(&root, r->registry, "s", &late, &late_err);
}

TEST_VIRTUAL(stop_ends_a_start_that_hangs)
{
    struct fixture r = { .guest_opts.agent_hangs = true };
    struct ctx root = ctx_root(ctx->loop);
    struct err err = ERR_INIT;
    uint64_t before;

    fixture_open(&r, ctx);
    make(&r, &root);
    fibers_go(&r.clients, r.loop, late_start_main, &r, "start");
    pass(&root, NS_PER_S);
    ASSERT_EQ(state_of(&r), SANDBOX_CREATED); /* a query does not wait for it */
    before = loop_now(r.loop);
    ASSERT_OK(sandbox_stop(&root, r.registry, "s", 0, &err), err);
    ASSERT(loop_now(r.loop) - before < NS_PER_S);
    ASSERT_OK(fibers_wait(&root, &r.clients, "start", &err), err);
    ASSERT(late_ret < 0);
    ASSERT_EQ(state_of(&r), SANDBOX_STOPPED);
    fixture_close(&r, ctx);
}

/* --- an end while a failed start is cleaned up --- */

static int end_by_stop(struct ctx *ctx, struct registry *r, struct err *err)
{
    return sandbox_stop(ctx, r, "s", 0, err);
}

static int end_by_shutdown(struct ctx *ctx, struct registry *r, struct err *err)
{
    return sandbox_shutdown(ctx, r, "s", err);
}

TEST_VIRTUAL(a_failed_start_that_is_being_cleaned_up_can_be_ended_from_every_side)
{
    static int (*const ends[])(struct ctx * ctx, struct registry * r,
                               struct err * err) = { end_by_stop, end_by_shutdown, registry_close };

    for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
        struct fixture r = { .guest_opts.process_ns = 900 * NS_PER_S,
                             .vmm_opts.release = { FAKE_OK, 2 * NS_PER_S } };
        struct ctx root = ctx_root(ctx->loop);
        struct err err = ERR_INIT;

        fixture_open(&r, &root);
        make(&r, &root);
        refuse(&r, (struct refusal){ BRIDGE_START, -1, -1, 1, FAKE_REFUSE, 0 });
        fibers_go(&r.clients, r.loop, late_start_main, &r, "start");
        pass(&root, NS_PER_S);
        ASSERT_EQ(state_of(&r), SANDBOX_CREATED);
        ASSERT(vm_state(r.registry->vm) > VM_RUNNING); /* the start has failed */
        ASSERT_OK(ends[i](&root, r.registry, &err), err);
        ASSERT_OK(fibers_wait(&root, &r.clients, "start", &err), err);
        ASSERT(late_ret < 0);
        ASSERT_MSG_HAS(late_err.msg, "start sandbox s");
        ASSERT_EQ(state_of(&r), i == 0 ? SANDBOX_STOPPED : SANDBOX_SHUT);
        fixture_close(&r, &root);
    }
}
