/* container_start_test.c - the way to a container: what is done at the same time, what is refused
 * on the way, and who notices when the VM is lost meanwhile. */
#include "fixture/registry_steps.h"
#include "host/control/container_priv.h"

/* --- at the same time --- */

static struct {
    struct fixture *r;
    uint64_t vm_started, vm_up, scratch, rootfs, anchor, io; /* begun */
    uint64_t scratch_ns, rootfs_ns;
} seen;

static int see_step(void *arg, struct ctx *ctx, const char *op, struct err *err)
{
    uint64_t now = loop_now(ctx->loop);

    if (str_eq(op, "anchor"))
        seen.anchor = now;
    if (str_eq(op, "io"))
        seen.io = now;
    if (str_eq(op, "rootfs")) {
        seen.rootfs = now;
        return fiber_sleep(ctx, seen.rootfs_ns, err);
    }
    if (str_eq(op, "scratch")) {
        seen.scratch = now;
        return fiber_sleep(ctx, seen.scratch_ns, err);
    }
    return 0;
}

static void see_vm(void *arg, const char *what)
{
    if (!seen.vm_started && strstr(what, "start"))
        seen.vm_started = loop_now(seen.r->loop);
}

static uint64_t create_takes(struct fixture *r, struct ctx *ctx)
{
    uint64_t before = loop_now(ctx->loop);

    memset(&seen.vm_started, 0, 6 * sizeof(uint64_t));
    seen.r = r;
    fixture_open(r, ctx);
    r->host.step = see_step;
    r->vmm_opts.trace = see_vm;
    fixture_create(r, ctx, "a");
    return loop_now(ctx->loop) - before;
}

TEST_VIRTUAL(nothing_on_the_host_waits_for_the_vm)
{
    struct fixture r = { .guest_opts.agent_ns = 2 * NS_PER_S };
    uint64_t took;

    seen.scratch_ns = seen.rootfs_ns = 900 * NS_PER_MS;
    took = create_takes(&r, ctx);
    /* All of it while the guest boots. */
    ASSERT(seen.vm_started && seen.scratch && seen.rootfs && seen.anchor && seen.io);
    ASSERT(seen.vm_started <= seen.rootfs);
    ASSERT(took >= 2 * NS_PER_S && took < 2 * NS_PER_S + 50 * NS_PER_MS);
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(the_vm_waits_for_nothing_on_the_host)
{
    struct fixture r = { .guest_opts.agent_ns = 100 * NS_PER_MS };
    uint64_t took, began = loop_now(ctx->loop);

    seen.scratch_ns = 2 * NS_PER_S;
    seen.rootfs_ns = 2 * NS_PER_S;
    took = create_takes(&r, ctx);
    ASSERT(seen.vm_started - began < 10 * NS_PER_MS);
    ASSERT(took >= 2 * NS_PER_S && took < 2 * NS_PER_S + 50 * NS_PER_MS);
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(a_scratch_disk_that_hangs_does_not_hold_up_the_end)
{
    struct fixture r = { .guest_opts.agent_ns = NS_PER_MS };
    struct ctx root = ctx_root(ctx->loop), little = ctx_with_timeout(&root, NS_PER_S);
    struct err err = ERR_INIT;
    uint64_t before;

    seen.scratch_ns = 10000 * NS_PER_S;
    seen.rootfs_ns = 0;
    fixture_open(&r, &root);
    r.host.step = see_step;
    fixture_write_spec(&r, "a", "");
    ASSERT_FAIL(fixture_try_create(&r, &little, "a", &err), err, ERR_DEADLINE);
    before = loop_now(ctx->loop);
    fixture_close(&r, &root);
    ASSERT(loop_now(ctx->loop) - before < NS_PER_S);
    seen.scratch_ns = 0;
}

static const struct timeline_span *span_of(const struct fixture *r, const char *name)
{
    for (unsigned i = 0; i < r->timeline.n; i++)
        if (str_eq(r->timeline.spans[i].name, name))
            return &r->timeline.spans[i];
    return NULL;
}

TEST_VIRTUAL(the_timeline_shows_the_overlaps)
{
    static const char *const names[] = { "make scratch",     "anchor and stdio", "open files",
                                         "attach scratch",   "share rootfs",     "combine layers",
                                         "create container", "start container" };
    struct fixture r = { .guest_opts.agent_ns = NS_PER_S };
    const struct timeline_span *wait;

    seen.scratch_ns = seen.rootfs_ns = 100 * NS_PER_MS;
    (void)create_takes(&r, ctx);
    fixture_start(&r, ctx, "a", "");
    wait = span_of(&r, "wait for agent");
    ASSERT(wait != NULL);
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        const struct timeline_span *s = span_of(&r, names[i]);

        ASSERT(s && s->end >= s->start);
        if (i < 3)
            ASSERT(s->start < wait->end && s->end < wait->end);
        else
            ASSERT(s->start >= wait->end);
    }
    fixture_close(&r, ctx);
}

/* --- what the guest is asked --- */

static struct {
    struct sbuf all;
    uint64_t clock_ns; /* how long the first setting of the clock takes */
    uint64_t start_at;
    size_t holder, mounts; /* of the container that is created */
} asked;

static const char *name_of(const struct bridge_request *q)
{
    if (q->type != BRIDGE_MODIFY_SETTINGS)
        return bridge_message_name(q->type);
    return q->modify.resource == BRIDGE_RES_CLOCK                 ? "clock"
           : q->modify.resource == BRIDGE_RES_MAPPED_VIRTUAL_DISK ? "disk"
           : q->modify.resource == BRIDGE_RES_MAPPED_DIRECTORY    ? "share"
           : q->modify.resource == BRIDGE_RES_COMBINED_LAYERS     ? "layers"
                                                                  : "other";
}

static struct fake_answer note_question(void *arg, const struct bridge_request *q)
{
    struct fixture *r = arg;
    bool clock = q->type == BRIDGE_MODIFY_SETTINGS && q->modify.resource == BRIDGE_RES_CLOCK;

    sbuf_addf(&asked.all, "%s%s", asked.all.len ? " " : "", name_of(q));
    if (q->type == BRIDGE_START)
        asked.start_at = loop_now(r->loop);
    if (q->type == BRIDGE_CREATE) {
        asked.holder += q->create.holder;
        asked.mounts = json_array_size(json_object_get(q->create.spec, "mounts"));
    }

    struct fake_answer a = { .how = FAKE_ANSWER, .delay_ns = clock ? asked.clock_ns : 0 };

    if (clock)
        asked.clock_ns = 0;
    return a;
}

/* Each costs a guest that is emulated its time. One more must be worth it. */
TEST_VIRTUAL(a_start_asks_the_guest_for_these_things_and_no_more)
{
    struct fixture r = { .guest_opts = { .decide_request = note_question,
                                         .process_ns = NS_PER_S } };

    asked.clock_ns = 0;
    r.guest_opts.decide_arg = &r;
    fixture_open(&r, ctx);
    fixture_create(&r, ctx, "a");
    fixture_start(&r, ctx, "a", "");
    ASSERT_EQ(fixture_wait(&r, ctx, "a", ""), 0);
    fixture_delete(&r, ctx, "a", ""); /* the VM goes with it: the guest is not asked */
    ASSERT_STR(asked.all.data, "NegotiateProtocol disk share layers Create Start "
                               "ExecuteProcess GetProperties WaitForProcess");
    sbuf_release(&asked.all);
    fixture_close(&r, ctx);
}

/* Without a root file system, unless its agent is of before that. */
static void check_pause(struct ctx *ctx, bool old, const char *asks)
{
    static const char spec[] =
        "{\"process\":{\"args\":[\"/pause\"],\"cwd\":\"/\"},\"root\":{\"path\":\"rootfs\"},"
        "\"annotations\":{\"io.kubernetes.cri.container-type\":\"sandbox\","
        "\"io.kubernetes.cri.sandbox-id\":\"p\"},\"mounts\":[{\"destination\":\"/proc\","
        "\"type\":\"proc\",\"source\":\"proc\"},{\"destination\":\"/dev/shm\",\"type\":\"bind\","
        "\"source\":\"/run/sandboxes/p/shm\"},{\"destination\":\"/etc/resolv.conf\",\"type\":"
        "\"bind\",\"source\":\"/etc/hostname\",\"options\":[\"ro\"]}],"
        "\"linux\":{\"namespaces\":[{\"type\":\"pid\"},{\"type\":\"ipc\"},{\"type\":\"uts\"},"
        "{\"type\":\"mount\"},{\"type\":\"network\"}]}}";
    struct fixture r = {
        .guest_opts = { .decide_request = note_question, .process_ns = NS_PER_S, .no_holder = old }
    };
    AUTO_FREE char *dir = NULL, *path = NULL;
    struct err err = ERR_INIT;

    asked.clock_ns = 0;
    asked.holder = asked.mounts = 0;
    r.guest_opts.decide_arg = &r;
    fixture_open(&r, ctx);
    dir = str_format("%s/p", r.dir);
    path = str_format("%s/config.json", dir);
    ASSERT_EQ(dir_make(dir, 0700), 0);
    ASSERT_EQ(file_write(path, spec, strlen(spec), 0600), 0);
    ASSERT_OK(fixture_try_create(&r, ctx, "p", &err), err);
    ASSERT_EQ(r.guest.shares, old ? 2 : 0);
    ASSERT_EQ(r.guest.layers, 1);
    fixture_start(&r, ctx, "p", "");
    ASSERT_EQ(asked.holder, !old);
    ASSERT_EQ(asked.mounts, old ? 3 : 1);
    ASSERT_EQ(fixture_wait(&r, ctx, "p", ""), 0);
    fixture_delete(&r, ctx, "p", "");
    ASSERT_STR(asked.all.data, asks);
    sbuf_release(&asked.all);
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(a_pause_container_has_no_root_and_no_share)
{
    check_pause(ctx, false,
                "NegotiateProtocol disk layers Create Start ExecuteProcess GetProperties "
                "WaitForProcess");
}

TEST_VIRTUAL(an_older_agent_gets_a_pause_container_as_any_other)
{
    check_pause(ctx, true,
                "NegotiateProtocol disk share share layers Create Start ExecuteProcess "
                "GetProperties WaitForProcess");
}

TEST_VIRTUAL(a_clones_clock_is_set_beside_its_start_and_before_it_runs_anything)
{
    struct fixture r = { .guest_opts = { .decide_request = note_question },
                         .vmm_opts.clone = true };
    uint64_t began = loop_now(ctx->loop);

    asked.clock_ns = 3 * NS_PER_S;
    r.guest_opts.decide_arg = &r;
    fixture_open(&r, ctx);
    fixture_create(&r, ctx, "a");
    ASSERT(loop_now(ctx->loop) - began < NS_PER_S);
    fixture_start(&r, ctx, "a", "");
    ASSERT(asked.start_at - began >= 3 * NS_PER_S);
    ASSERT_HAS(asked.all.data, "clock share layers Create"); /* under way since the bridge is */
    ASSERT_HAS(asked.all.data, "Create clock Start");        /* that took too long: once more */
    sbuf_release(&asked.all);
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(a_scratch_disk_that_fails_late_ends_the_vm)
{
    struct fixture r = { .host.scratch_fails = true };
    struct err err = ERR_INIT;

    seen.scratch_ns = 3 * NS_PER_S;
    seen.rootfs_ns = 0;
    seen.r = &r;
    fixture_open(&r, ctx);
    r.host.step = see_step;
    fixture_write_spec(&r, "a", "");
    ASSERT_FAIL(fixture_try_create(&r, ctx, "a", &err), err, ERR_EXHAUSTED);
    ASSERT_MSG_HAS(err.msg, "scratch disk");
    expect_gone(&r, ctx, "a");
    r.host.scratch_fails = false;
    fixture_create(&r, ctx, "a");
    ASSERT_EQ(r.vms, 2);
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(a_container_of_a_running_vm_is_refused_while_scratch_has_no_room)
{
    struct fixture r = { 0 };
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    fixture_create(&r, ctx, "a");
    fixture_start(&r, ctx, "a", "");
    r.host.scratch_fails = true;
    fixture_write_spec(&r, "b", "");
    ASSERT_FAIL(fixture_try_create(&r, ctx, "b", &err), err, ERR_EXHAUSTED);
    ASSERT_MSG_HAS(err.msg, "is full");
    ASSERT_EQ(r.vms, 1);
    r.host.scratch_fails = false;
    fixture_create(&r, ctx, "b");
    ASSERT_EQ(r.vms, 1);
    fixture_close(&r, ctx);
}

/* A root file system that fails does not leave a VM that boots for nobody. */
TEST_VIRTUAL(a_create_that_fails_on_the_host_ends_the_boot)
{
    struct fixture r = { .guest_opts.agent_ns = 20 * NS_PER_S, .host.rootfs_fails = true };
    struct err err = ERR_INIT;
    uint64_t before;

    fixture_open(&r, ctx);
    fixture_write_spec(&r, "a", "");
    before = loop_now(ctx->loop);
    ASSERT_FAIL(fixture_try_create(&r, ctx, "a", &err), err, ERR_NOT_FOUND);
    ASSERT(loop_now(ctx->loop) - before < NS_PER_S);
    r.host.rootfs_fails = false;
    r.guest_opts.agent_ns = 0;
    fixture_create(&r, ctx, "a"); /* waits for the end of the first VM, and has one of its own */
    ASSERT_EQ(r.vms, 2);
    fixture_close(&r, ctx);
}

/* --- what is lost --- */

/* Nobody calls the guest: only created containers are there. */
TEST_VIRTUAL(a_lost_bridge_is_noticed_without_a_call)
{
    struct fixture r = { .guest_opts.decide_request = decide };
    struct ctx root = ctx_root(ctx->loop);
    struct process_view v;
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    fixture_create(&r, ctx, "a");
    pass(&root, 10 * NS_PER_S);
    process_view(container_process(fixture_find(&r, "a"), "", &err), &v);
    ASSERT_EQ(v.status, PROCESS_CREATED);
    /* An answer that ends the bridge, to a call that has nothing to do with the container. */
    refusal = (struct refusal){ BRIDGE_DUMP_STACKS, -1, -1, 1, FAKE_DISCONNECT, 0 };
    AUTO_FREE char *text = NULL;
    (void)vm_dump_stacks(&root, r.registry->vm, &text, &err);
    pass(&root, 200 * NS_PER_MS);
    process_view(container_process(fixture_find(&r, "a"), "", &err), &v);
    ASSERT_EQ(v.status, PROCESS_STOPPED);
    ASSERT(v.exit_status != 0);
    fixture_delete(&r, &root, "a", "");
    fixture_close(&r, ctx);
}

/* An init whose start failed has ended. The exit of an exec in its container is published before
 * the delete event. */
TEST_VIRTUAL(no_exit_of_an_exec_comes_behind_the_delete)
{
    struct fixture r = { .guest_opts.process_ns = 900 * NS_PER_S,
                         .guest_opts.decide_request = decide };
    struct err err = ERR_INIT;
    const char *told;

    fixture_open(&r, ctx);
    fixture_create(&r, ctx, "other");
    fixture_create(&r, ctx, "a");
    fixture_exec(&r, ctx, "a", "x");
    fixture_start(&r, ctx, "a", "x");
    refusal = (struct refusal){ BRIDGE_START, -1, -1, 1, FAKE_REFUSE, 0 };
    ASSERT_FAIL(fixture_try_start(&r, ctx, "a", "", &err), err, ERR_UNKNOWN);
    fixture_delete(&r, ctx, "a", "");
    pass(ctx, NS_PER_S);
    told = fixture_told(&r, ctx);
    ASSERT_HAS(told, "exit a/x 137;delete a 1");
    ASSERT(!strstr(strstr(told, "delete a"), "exit a"));
    fixture_close(&r, ctx);
}

/* --- bad bundles --- */

static void write_config(struct fixture *r, const char *id, const char *text, size_t len)
{
    AUTO_FREE char *dir = str_format("%s/%s", r->dir, id);
    AUTO_FREE char *path = str_format("%s/config.json", dir);

    ASSERT_EQ(dir_make(dir, 0700), 0);
    ASSERT_EQ(file_write(path, text, len, 0600), 0);
}

TEST_VIRTUAL(a_bad_bundle_is_refused_by_its_name_and_starts_no_vm)
{
    static const char *const bad[] = { "",
                                       "{",
                                       "[]",
                                       "\"x\"",
                                       "{\"linux\":{}}",
                                       "{\"linux\":{},\"process\":{\"args\":[]},\"root\":{}}" };
    struct fixture r = { 0 };
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    ASSERT_FAIL(fixture_try_create(&r, ctx, "none", &err), err, ERR_NOT_FOUND);
    ASSERT_HAS(err.msg, "none/config.json");
    ASSERT_EQ(err.reason, REASON_INVALID_BUNDLE);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        write_config(&r, "bad", bad[i], strlen(bad[i]));
        err_clear(&err);
        ASSERT_FAIL(fixture_try_create(&r, ctx, "bad", &err), err, ERR_INVALID);
        ASSERT_MSG_HAS(err.msg, "bad/config.json");
    }
    ASSERT_EQ(r.vms, 0);
    fixture_close(&r, ctx);
}

static void write_mounts(struct fixture *r, const char *id, unsigned n, unsigned blanks)
{
    struct sbuf more = { 0 };

    sbuf_addf(&more, ",\"mounts\":[");
    for (unsigned i = 0; i < n; i++)
        sbuf_addf(&more, "%s{\"destination\":\"/m%u\",\"type\":\"tmpfs\",\"source\":\"tmpfs\"%*s}",
                  i ? "," : "", i, (int)blanks, "");
    sbuf_addf(&more, "]");
    fixture_write_spec(r, id, more.data);
    sbuf_release(&more);
}

TEST_VIRTUAL(a_hundred_thousand_mounts_are_refused_naming_the_limit)
{
    struct fixture r = { 0 };
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    write_mounts(&r, "a", 100000, 0);
    ASSERT_FAIL(fixture_try_create(&r, ctx, "a", &err), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "at most 131072");
    write_mounts(&r, "a", 5000, 0);
    ASSERT_FAIL(fixture_try_create(&r, ctx, "a", &err), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "5000 mounts, at most 4096");
    ASSERT_EQ(err.reason, REASON_INVALID_SPEC);
    write_mounts(&r, "b", 100000, 100);
    ASSERT_FAIL(fixture_try_create(&r, ctx, "b", &err), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "b/config.json is larger than 8 MiB");
    ASSERT_EQ(r.vms, 0);
    fixture_close(&r, ctx);
}

/* --- a reader that never reads --- */

TEST_VIRTUAL(a_reader_that_never_reads_does_not_keep_kill_and_delete)
{
    struct fixture r = { .guest_opts.process_ns = 900 * NS_PER_S,
                         .guest_opts.output_bytes = 4096,
                         .host.io_stuck = true };
    struct ctx root = ctx_root(ctx->loop);
    struct err err = ERR_INIT;
    uint64_t before;

    fixture_open(&r, ctx);
    fixture_create(&r, &root, "other");
    fixture_create(&r, &root, "a");
    fixture_start(&r, &root, "a", "");
    fixture_exec(&r, &root, "a", "x");
    fixture_start(&r, &root, "a", "x");
    before = loop_now(ctx->loop);
    ASSERT_OK(fixture_try_kill(&r, &root, "a", "", 9, true, &err), err);
    ASSERT_EQ(fixture_wait(&r, &root, "a", ""), 137);
    ASSERT(loop_now(ctx->loop) - before <=
           2 * PROCESS_DRAIN_LIMIT + CONTAINER_EXECS_LIMIT + NS_PER_S);
    fixture_delete(&r, &root, "a", "");
    expect_gone(&r, &root, "a");
    fixture_close(&r, ctx);
}

/* --- the shim's own cgroup --- */

/* Where the shim is moved to while a VM comes and goes, and when the pod's cgroup is removed. */
static char *moves_of(struct ctx *ctx, struct cgroup *at)
{
    struct sbuf moves = { 0 };
    struct fixture r = { .home = at, .host.cgroup_moves = &moves };

    fixture_open(&r, ctx);
    fixture_create(&r, ctx, "a");
    fixture_close(&r, ctx);
    return sbuf_take(&moves);
}

TEST_VIRTUAL(the_shim_leaves_its_pods_cgroup_before_that_is_removed)
{
    char home;
    AUTO_FREE char *pod = moves_of(ctx, (struct cgroup *)&home);
    AUTO_FREE char *none = moves_of(ctx, NULL);

    ASSERT_STR(pod, "pod;home;removed;");
    ASSERT_STR(none, "removed;");
}
