/* container_test.c - containers from create to delete: states, answers, events. */
#include "fixture/registry_fixture.h"
#include "harness/fsm_table.h"
#include "host/control/container_priv.h"
#include "host/control/inspect.h"
#include "host/device/scsi.h"

#include <sys/mman.h>

TEST(tables_of_states_are_complete)
{
    fsm_table_check(&container_fsm);
    fsm_table_check(&process_fsm);
}

TEST_VIRTUAL(a_container_runs_and_ends_with_its_status)
{
    struct fixture r = { .guest_opts.exit_code = 7, .guest_opts.output_bytes = 5000 };

    fixture_open(&r, ctx);
    fixture_create(&r, ctx, "a");
    fixture_start(&r, ctx, "a", "");
    ASSERT_EQ(fixture_wait(&r, ctx, "a", ""), 7);
    fixture_delete(&r, ctx, "a", "");
    ASSERT_STR(fixture_told(&r, ctx), "create a;start a;exit a 7;delete a 7");
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(the_vm_goes_with_the_last_container_and_comes_again)
{
    struct fixture r = { 0 };

    fixture_open(&r, ctx);
    fixture_create(&r, ctx, "a");
    fixture_create(&r, ctx, "b");
    ASSERT_EQ(r.vms, 1);
    fixture_delete(&r, ctx, "a", "");
    ASSERT_EQ(r.guest.containers, 1);
    fixture_delete(&r, ctx, "b", "");
    fixture_create(&r, ctx, "c");
    ASSERT_EQ(r.vms, 2);
    fixture_close(&r, ctx);
}

/* What docs/reference/containerd-contract.md §3.3 says of each state. */
enum call { START, KILL, DELETE, EXEC, PAUSE, RESUME, UPDATE, STATS, RESIZE, CLOSE_IO, CALLS };

static enum err_code do_call(struct fixture *r, struct ctx *ctx, enum call call)
{
    static const char resources[] = "{\"memory\":{\"limit\":1048576}}";
    struct container *c = fixture_find(r, "a");
    AUTO(json_decref) json_t *json = NULL;
    struct err err = ERR_INIT;
    uint32_t pid;

    switch (call) {
    case START:
        (void)container_start(ctx, c, "", &pid, &err);
        break;
    case KILL:
        (void)container_kill(ctx, c, "", 9, false, &err);
        break;
    case DELETE:
        (void)fixture_try_delete(r, ctx, "a", "", &err);
        break;
    case EXEC:
        (void)fixture_try_exec(r, ctx, "a", "x", &err);
        break;
    case PAUSE:
        (void)container_freeze(ctx, c, true, &err);
        break;
    case RESUME:
        (void)container_freeze(ctx, c, false, &err);
        break;
    case UPDATE:
        (void)container_update(ctx, c, resources, sizeof(resources) - 1, &err);
        break;
    case STATS:
        (void)container_stats(ctx, c, &json, &err);
        break;
    case RESIZE:
        (void)process_resize(ctx, container_process(c, "", &err), 24, 80, &err);
        break;
    case CLOSE_IO:
        process_close_stdin(container_process(c, "", &err));
        break;
    case CALLS:
        break;
    }
    return err.code;
}

static void reach(struct fixture *r, struct ctx *ctx, enum container_state state)
{
    struct err err = ERR_INIT;

    fixture_create(r, ctx, "a");
    if (state == CONTAINER_CREATED)
        return;
    fixture_start(r, ctx, "a", "");
    if (state == CONTAINER_PAUSED)
        ASSERT_OK(container_freeze(ctx, fixture_find(r, "a"), true, &err), err);
    if (state == CONTAINER_STOPPED) {
        ASSERT_OK(fixture_try_kill(r, ctx, "a", "", 9, false, &err), err);
        ASSERT_EQ(fixture_wait(r, ctx, "a", ""), 137);
    }
}

TEST_VIRTUAL(each_state_answers_as_the_contract_says)
{
    static const enum err_code want[CONTAINER_STATE_COUNT][CALLS] = {
        [CONTAINER_CREATED] = { [PAUSE] = ERR_STATE, [RESUME] = ERR_STATE },
        [CONTAINER_RUNNING] = { [START] = ERR_STATE, [DELETE] = ERR_STATE, [RESUME] = ERR_STATE },
        [CONTAINER_PAUSED] = { [START] = ERR_STATE,
                               [DELETE] = ERR_STATE,
                               [EXEC] = ERR_STATE,
                               [PAUSE] = ERR_STATE },
        [CONTAINER_STOPPED] = { [START] = ERR_STATE,
                                [KILL] = ERR_NOT_FOUND,
                                [EXEC] = ERR_STATE,
                                [PAUSE] = ERR_STATE,
                                [RESUME] = ERR_STATE,
                                [UPDATE] = ERR_STATE },
    };

    for (unsigned s = CONTAINER_CREATED; s <= CONTAINER_STOPPED; s++) {
        for (unsigned call = 0; call < CALLS; call++) {
            struct ctx root = ctx_root(ctx->loop);
            struct fixture r = { .guest_opts.container_ns = 1000 * NS_PER_S };

            fixture_open(&r, &root);
            reach(&r, &root, s);
            ASSERT_EQ(container_state(fixture_find(&r, "a")), s);

            enum err_code code = do_call(&r, &root, call);

            if (code != want[s][call])
                tap_fail(__FILE__, __LINE__, "state %u, call %u: %s, expected %s", s, call,
                         err_code_name(code), err_code_name(want[s][call]));
            fixture_close(&r, &root);
        }
    }
}

TEST_VIRTUAL(an_unknown_id_is_not_found)
{
    struct fixture r = { 0 };
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    ASSERT_FAIL(fixture_try_delete(&r, ctx, "nobody", "", &err), err, ERR_NOT_FOUND);
    ASSERT_EQ(err.reason, REASON_NOT_FOUND);
    ASSERT(registry_find(r.registry, "nobody", &err) == NULL);
    fixture_create(&r, ctx, "a");
    ASSERT_FAIL(fixture_try_delete(&r, ctx, "a", "nobody", &err), err, ERR_NOT_FOUND);
    ASSERT_FAIL(fixture_try_start(&r, ctx, "a", "nobody", &err), err, ERR_NOT_FOUND);
    ASSERT_FAIL(fixture_try_kill(&r, ctx, "a", "nobody", 9, false, &err), err, ERR_NOT_FOUND);
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(bad_ids_are_refused)
{
    static const char *const bad[] = { "", "..", "a/b", "a b", "-a", "a-", "a..b", "\xc3\xa4" };
    struct fixture r = { 0 };
    struct err err = ERR_INIT;
    static char huge[65536]; /* no room on a stack of a fiber */

    memset(huge, 'x', sizeof(huge) - 1);
    huge[sizeof(huge) - 1] = '\0';
    fixture_open(&r, ctx);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        ASSERT_FAIL(fixture_try_create(&r, ctx, bad[i], &err), err, ERR_INVALID);
    ASSERT_FAIL(fixture_try_create(&r, ctx, huge, &err), err, ERR_INVALID);
    ASSERT_EQ(r.registry->n_containers, 0);
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(execs_run_beside_init_and_end_before_it)
{
    struct fixture r = { .guest_opts.process_ns = 600 * NS_PER_S, .guest_opts.exit_code = 3 };
    struct ctx root = ctx_root(ctx->loop);

    fixture_open(&r, ctx);
    r.guest_opts.container_ns = 2 * NS_PER_S; /* shorter than the exec's life */
    fixture_create(&r, ctx, "a");
    fixture_start(&r, ctx, "a", "");
    fixture_exec(&r, ctx, "a", "x");
    fixture_start(&r, ctx, "a", "x");
    ASSERT_EQ(fixture_wait(&r, &root, "a", ""), 3);
    ASSERT_EQ(fixture_wait(&r, &root, "a", "x"), 137);
    fixture_delete(&r, &root, "a", "x");
    fixture_delete(&r, &root, "a", "");
    ASSERT_STR(fixture_told(&r, ctx), "create a;start a;exec-added a/x;exec-started a/x;"
                                      "exit a/x 137;exit a 3;delete a 3");
    fixture_close(&r, ctx);
}

static void count_running(void *arg, const struct process_view *v)
{
    *(unsigned *)arg += v->status == PROCESS_RUNNING;
}

TEST_VIRTUAL(sixty_four_execs_start_at_once)
{
    struct fixture r = { .guest_opts.container_ns = 100 * NS_PER_S };
    char id[8];

    fixture_open(&r, ctx);
    fixture_create(&r, ctx, "a");
    fixture_start(&r, ctx, "a", "");
    for (int i = 0; i < 64; i++) {
        snprintf(id, sizeof(id), "x%d", i);
        fixture_exec(&r, ctx, "a", id);
        fixture_start(&r, ctx, "a", id);
    }

    unsigned running = 0;

    container_each(fixture_find(&r, "a"), count_running, &running);
    ASSERT_EQ(running, 65);
    for (int i = 0; i < 64; i++) {
        snprintf(id, sizeof(id), "x%d", i);
        ASSERT_EQ(fixture_wait(&r, ctx, "a", id), 0);
        fixture_delete(&r, ctx, "a", id);
    }
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(oom_is_published_before_the_exit)
{
    struct fixture r = { .guest_opts.oom_ns = NS_PER_S, .guest_opts.container_ns = 2 * NS_PER_S };

    fixture_open(&r, ctx);
    fixture_create(&r, ctx, "a");
    fixture_start(&r, ctx, "a", "");
    ASSERT_EQ(fixture_wait(&r, ctx, "a", ""), 0);
    ASSERT_STR(fixture_told(&r, ctx), "create a;start a;oom a;exit a 0");
    fixture_close(&r, ctx);
}

/* Ten a second would be 600. */
TEST_VIRTUAL(a_container_that_stays_out_of_memory_does_not_flood_containerd)
{
    struct fixture r = { .guest_opts.oom_ns = NS_PER_S,
                         .guest_opts.oom_again = true,
                         .guest_opts.container_ns = 60 * NS_PER_S };
    struct ctx root = ctx_root(ctx->loop);
    unsigned n = 0;

    fixture_open(&r, ctx);
    fixture_create(&r, ctx, "a");
    fixture_start(&r, ctx, "a", "");
    ASSERT_EQ(fixture_wait(&r, &root, "a", ""), 0);

    const char *told = fixture_told(&r, ctx);

    for (const char *p = told; (p = strstr(p, "oom a")); p++)
        n++;
    ASSERT(n >= 5 + 5 && n <= 5 + 6);
    ASSERT(str_ends(told, ";exit a 0"));
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(pause_and_resume_are_published_and_visible)
{
    struct fixture r = { .guest_opts.container_ns = 100 * NS_PER_S };
    struct process_view v;
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    fixture_create(&r, ctx, "a");
    fixture_start(&r, ctx, "a", "");
    ASSERT_OK(container_freeze(ctx, fixture_find(&r, "a"), true, &err), err);
    process_view(container_process(fixture_find(&r, "a"), "", &err), &v);
    ASSERT_EQ(v.status, PROCESS_PAUSED);
    ASSERT_EQ(r.guest.frozen, 1);
    ASSERT_OK(container_freeze(ctx, fixture_find(&r, "a"), false, &err), err);
    ASSERT_EQ(r.guest.frozen, 0);
    ASSERT_STR(fixture_told(&r, ctx), "create a;start a;paused a;resumed a");
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(metrics_stay_known_after_the_vm_has_gone)
{
    struct fixture r = { .guest_opts.container_ns = 100 * NS_PER_S };
    struct ctx root = ctx_root(ctx->loop);
    AUTO(json_decref) json_t *before = NULL, *after = NULL;
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    fixture_create(&r, ctx, "a");
    ASSERT_OK(container_stats(ctx, fixture_find(&r, "a"), &before, &err), err);
    fixture_start(&r, ctx, "a", "");
    fake_vmm_die(r.vmm, FAKE_KILLED);
    ASSERT_EQ(fixture_wait(&r, &root, "a", ""), 137);
    ASSERT_OK(container_stats(ctx, fixture_find(&r, "a"), &after, &err), err);
    ASSERT(json_equal(after, before));
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(a_killed_anchor_kills_its_container)
{
    struct fixture r = { .guest_opts.container_ns = 100 * NS_PER_S };

    fixture_open(&r, ctx);
    fixture_create(&r, ctx, "a");
    fixture_start(&r, ctx, "a", "");
    fake_anchor_kill(r.host.last_anchor);
    ASSERT_EQ(fixture_wait(&r, ctx, "a", ""), 137);
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(a_second_create_of_an_id_is_refused)
{
    struct fixture r = { 0 };
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    fixture_create(&r, ctx, "a");
    ASSERT_FAIL(fixture_try_create(&r, ctx, "a", &err), err, ERR_EXISTS);
    ASSERT_EQ(err.reason, REASON_ALREADY_EXISTS);
    ASSERT_STR(fixture_told(&r, ctx), "create a");
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(mounts_of_the_host_are_shared_and_released)
{
    struct fixture r = { 0 };
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    fixture_create(&r, ctx, "other"); /* so that the VM stays */
    fixture_write_spec(
        &r, "a",
        ",\"mounts\":[{\"destination\":\"/proc\",\"type\":\"proc\",\"source\":\"proc\"},"
        "{\"destination\":\"/x\",\"type\":\"bind\",\"source\":\"/tmp\","
        "\"options\":[\"rbind\",\"ro\"]},"
        "{\"destination\":\"/y\",\"type\":\"bind\",\"source\":\"/usr\"}]");
    ASSERT_OK(fixture_try_create(&r, ctx, "a", &err), err);
    ASSERT_EQ(r.guest.shares, 4);
    ASSERT_EQ(r.guest.layers, 2);
    fixture_delete(&r, ctx, "a", "");
    ASSERT_EQ(r.guest.shares, 1);
    ASSERT_EQ(r.guest.layers, 1);

    fixture_write_spec(
        &r, "b",
        ",\"mounts\":[{\"destination\":\"/x\",\"type\":\"bind\",\"source\":\"/tmp\"},"
        "{\"destination\":\"/z\",\"type\":\"nfs\",\"source\":\"h:/e\"}]");
    ASSERT_FAIL(fixture_try_create(&r, ctx, "b", &err), err, ERR_INVALID);
    ASSERT_HAS(err.msg, "nfs");
    ASSERT_EQ(r.guest.shares, 1);
    ASSERT_EQ(r.guest.layers, 1);
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(a_step_of_the_hosts_clock_reaches_the_guest)
{
    struct fixture r = { 0 };
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    fixture_create(&r, ctx, "a");
    for (unsigned i = 1; i <= 3; i++) {
        waitq_wake_all(&r.host.clock_q);
        ASSERT_OK(fiber_sleep(ctx, NS_PER_MS, &err), err);
        ASSERT_EQ(r.guest.clocks, i);
    }
    fixture_close(&r, ctx);
}

#define POD(type)                                                                                  \
    ",\"annotations\":{\"io.kubernetes.cri.container-type\":\"" type                               \
    "\",\"io.kubernetes.cri.sandbox-id\":\"pod\"}"

TEST_VIRTUAL(a_pod_is_there_before_and_behind_its_containers)
{
    struct fixture r = { .guest_opts.container_ns = 100 * NS_PER_S };
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    fixture_write_spec(&r, "w", POD("container"));
    ASSERT_FAIL(fixture_try_create(&r, ctx, "w", &err), err, ERR_NOT_FOUND);
    fixture_write_spec(&r, "pod", POD("sandbox"));
    ASSERT_OK(fixture_try_create(&r, ctx, "pod", &err), err);
    ASSERT_FAIL(fixture_try_create(&r, ctx, "w", &err), err, ERR_STATE);
    fixture_start(&r, ctx, "pod", "");
    err_clear(&err);
    ASSERT_OK(fixture_try_create(&r, ctx, "w", &err), err);
    ASSERT_STR(container_pod(fixture_find(&r, "w"))->id, "pod");
    fixture_start(&r, ctx, "w", "");
    ASSERT_OK(fixture_try_kill(&r, ctx, "pod", "", 9, false, &err), err);
    ASSERT_EQ(fixture_wait(&r, ctx, "pod", ""), 137);
    ASSERT_FAIL(fixture_try_delete(&r, ctx, "pod", "", &err), err, ERR_STATE);
    ASSERT_EQ(r.guest.containers, 2);
    ASSERT_OK(fixture_try_kill(&r, ctx, "w", "", 9, true, &err), err);
    ASSERT_EQ(fixture_wait(&r, ctx, "w", ""), 137);
    fixture_delete(&r, ctx, "w", "");
    fixture_delete(&r, ctx, "pod", "");
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(closing_ends_a_pod_with_its_containers)
{
    struct fixture r = { .guest_opts.container_ns = 100 * NS_PER_S };
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    fixture_write_spec(&r, "pod", POD("sandbox"));
    ASSERT_OK(fixture_try_create(&r, ctx, "pod", &err), err);
    fixture_start(&r, ctx, "pod", "");
    fixture_write_spec(&r, "w", POD("container"));
    ASSERT_OK(fixture_try_create(&r, ctx, "w", &err), err);
    fixture_start(&r, ctx, "w", "");
    ASSERT_OK(registry_close(ctx, r.registry, &err), err);
    ASSERT_HAS(fixture_told(&r, ctx), "delete w 137;delete pod 137");
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(a_spec_that_cannot_be_used_is_named)
{
    struct fixture r = { 0 };
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    ASSERT_FAIL(fixture_try_create(&r, ctx, "a", &err), err, ERR_NOT_FOUND); /* no bundle */
    ASSERT_HAS(err.msg, "config.json");
    fixture_write_spec(&r, "a", ",");
    ASSERT_FAIL(fixture_try_create(&r, ctx, "a", &err), err, ERR_INVALID);
    fixture_write_spec(&r, "a", ",\"annotations\":{\"io.lcow.cpus\":\"many\"}");
    ASSERT_FAIL(fixture_try_create(&r, ctx, "a", &err), err, ERR_INVALID);
    fixture_write_spec(&r, "a", ",\"annotations\":{\"io.kubernetes.cri.container-type\":\"x\"}");
    ASSERT_FAIL(fixture_try_create(&r, ctx, "a", &err), err, ERR_INVALID);
    ASSERT_EQ(r.vms, 0); /* no VM was made for nothing */
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(a_shared_root_needs_no_scratch)
{
    struct fixture r = { 0 };
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    fixture_write_spec(&r, "a", ",\"annotations\":{\"io.lcow.rootfs\":\"shared\"}");
    ASSERT_OK(fixture_try_create(&r, ctx, "a", &err), err);
    ASSERT_EQ(r.guest.layers, 0);
    ASSERT_EQ(r.guest.shares, 1);
    fixture_start(&r, ctx, "a", "");
    ASSERT_EQ(fixture_wait(&r, ctx, "a", ""), 0);
    fixture_delete(&r, ctx, "a", "");
    fixture_close(&r, ctx);
}

/* "kept", "discarded" … as lcow inspect shows it. */
static void assert_writes(struct fixture *r, const char *word)
{
    AUTO_FREE char *text = registry_inspect(r->registry);
    AUTO_FREE char *pair = str_format("\"rootfs\":\"%s\"", word);

    ASSERT_HAS(text, pair);
}

TEST_VIRTUAL(writes_are_kept_but_for_containers_that_are_thrown_away)
{
    static const struct {
        const char *more, *writes;
        unsigned layers;
    } cases[] = {
        { "", "kept", 0 },
        { ",\"annotations\":{\"io.kubernetes.cri.container-type\":\"sandbox\","
          "\"io.kubernetes.cri.sandbox-id\":\"a\"}",
          "discarded", 1 },
        { ",\"annotations\":{\"io.lcow.rootfs\":\"scratch\"}", "discarded", 1 },
        { ",\"annotations\":{\"io.microsoft.virtualmachine.fileshares.disablewritable\":\"true\"}",
          "discarded", 1 },
        { ",\"annotations\":{\"io.microsoft.virtualmachine.storage.scratch.encrypted\":\"true\"}",
          "discarded", 1 },
        { ",\"root\":{\"path\":\"rootfs\",\"readonly\":true}", "read-only", 1 },
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct fixture r = { .rootfs_auto = true };
        struct err err = ERR_INIT;

        fixture_open(&r, ctx);
        fixture_write_spec(&r, "a", cases[i].more);
        ASSERT_OK(fixture_try_create(&r, ctx, "a", &err), err);
        ASSERT_EQ(r.guest.layers, cases[i].layers);
        assert_writes(&r, cases[i].writes);
        fixture_start(&r, ctx, "a", "");
        ASSERT_EQ(fixture_wait(&r, ctx, "a", ""), 0);
        fixture_delete(&r, ctx, "a", "");
        fixture_close(&r, ctx);
    }
}

static int create_of_disks(struct fixture *r, struct ctx *ctx, const char *id, const char *type,
                           struct err *err)
{
    AUTO_FREE char *bundle = str_format("%s/%s", r->dir, id);
    AUTO_FREE char *a = str_format("%s/a.img", r->dir), *b = str_format("%s/b.img", r->dir);
    const struct event_mount mounts[] = { { .type = type, .source = a },
                                          { .type = type, .source = b } };
    const struct container_create cc = { .id = id,
                                         .bundle = bundle,
                                         .stdio.out = "/fifo/out",
                                         .rootfs = mounts,
                                         .n_rootfs = str_eq(type, "ext4") ? 1 : 2 };
    AUTO(container_unref) struct container *c = NULL;

    fixture_write_spec(r, id, "");
    ASSERT_EQ(file_write(a, "a", 1, 0600), 0);
    ASSERT_EQ(file_write(b, "b", 1, 0600), 0);
    return container_create(ctx, r->registry, &cc, &c, err);
}

TEST_VIRTUAL(layers_are_disks_that_containers_of_a_vm_share)
{
    struct fixture r = { 0 };
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    ASSERT_OK(create_of_disks(&r, ctx, "one", "erofs", &err), err);
    ASSERT_EQ(r.guest.disks, 3); /* scratch and two layers */
    ASSERT_EQ(r.guest.shares, 0);
    ASSERT_EQ(r.guest.layers, 1);
    ASSERT_OK(create_of_disks(&r, ctx, "two", "erofs", &err), err);
    ASSERT_EQ(r.guest.disks, 3);
    ASSERT_EQ(r.guest.layers, 2);
    fixture_delete(&r, ctx, "one", "");
    ASSERT_EQ(r.guest.disks, 3);
    ASSERT_EQ(r.guest.layers, 1);
    /* The same file for writing is refused, and nothing of the attempt stays. */
    ASSERT_FAIL(create_of_disks(&r, ctx, "three", "ext4", &err), err, ERR_STATE);
    ASSERT_HAS(err.msg, "a.img");
    ASSERT_HAS(err.msg, "read-only");
    fixture_create(&r, ctx, "other");
    fixture_delete(&r, ctx, "two", "");
    ASSERT_EQ(r.guest.disks, 1);
    fixture_close(&r, ctx);
}

/* --- damaged layer images --- */

struct refusal {
    enum bridge_resource what;
    unsigned from, to; /* which of the requests to add it */
    unsigned seen;
    struct fixture *dies; /* the VM does, instead of an answer */
};

static struct fake_answer refuse(void *arg, const struct bridge_request *r)
{
    struct refusal *f = arg;

    if (r->type != BRIDGE_MODIFY_SETTINGS || r->modify.resource != f->what ||
        r->modify.action != BRIDGE_ADD || ++f->seen < f->from || f->seen > f->to)
        return (struct fake_answer){ 0 };
    if (f->dies)
        fake_vmm_die(f->dies->vmm, FAKE_KILLED);
    return (struct fake_answer){ .how = FAKE_REFUSE, .hr = 0x80004005 };
}

TEST_VIRTUAL(layer_images_that_the_guest_cannot_use_are_shared_and_discarded)
{
    struct {
        struct refusal f;
        const char *discarded;
        int ret;
        bool not_images;
    } cases[] = {
        /* The scratch disk is the first, then two layers. */
        { { BRIDGE_RES_MAPPED_VIRTUAL_DISK, 3, 3 }, "b", 0 },
        { { BRIDGE_RES_MAPPED_VIRTUAL_DISK, 2, 2 }, "a", 0 },
        { { BRIDGE_RES_COMBINED_LAYERS, 1, 1 }, "ab", 0 },
        /* It is not their fault, or they are not ours. */
        { { BRIDGE_RES_COMBINED_LAYERS, 1, 9 }, "", -1 },
        { { BRIDGE_RES_COMBINED_LAYERS, 1, 1 }, "", -1, true },
        { { BRIDGE_RES_MAPPED_VIRTUAL_DISK, 3, 3 }, "", -1, true },
        { { BRIDGE_RES_MAPPED_VIRTUAL_DISK, 3, 3, .dies = &(struct fixture){ 0 } }, "", -1 },
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        AUTO(sbuf_release) struct sbuf discarded = { 0 }, wanted = { 0 };
        struct fixture r = { .guest_opts = { .decide_request = refuse,
                                             .decide_arg = &cases[i].f } };
        struct err err = ERR_INIT;

        if (cases[i].f.dies)
            cases[i].f.dies = &r;
        fixture_open(&r, ctx);
        r.host.discarded = cases[i].not_images ? NULL : &discarded;
        ASSERT_EQ(create_of_disks(&r, ctx, "one", "erofs", &err), cases[i].ret);
        for (const char *k = cases[i].discarded; *k; k++)
            sbuf_addf(&wanted, "%s/%c.img;", r.dir, *k);
        ASSERT_STR(discarded.data ? discarded.data : "", wanted.data ? wanted.data : "");
        if (cases[i].ret == 0) {
            ASSERT_EQ(r.guest.shares, 1);
            ASSERT_EQ(r.guest.layers, 1);
            fixture_start(&r, ctx, "one", "");
            ASSERT_EQ(fixture_wait(&r, ctx, "one", ""), 0);
            fixture_delete(&r, ctx, "one", "");
        }
        fixture_close(&r, ctx);
    }
}

TEST_VIRTUAL(a_vm_whose_log_cannot_be_listened_for_runs_containers_and_says_so)
{
    for (unsigned at = 0; at <= 3; at += 3) {
        struct fixture r = { .vmm_opts = { .listen_fails_at = at } };

        fixture_open(&r, ctx);
        fixture_create(&r, ctx, "a");
        fixture_start(&r, ctx, "a", "");
        AUTO_FREE char *doc = registry_inspect(r.registry);
        ASSERT_HAS(doc, at == 3 ? "\"log_lost\":true" : "\"log_lost\":false");
        ASSERT_EQ(fixture_wait(&r, ctx, "a", ""), 0);
        fixture_delete(&r, ctx, "a", "");
        fixture_close(&r, ctx);
    }
}

TEST_VIRTUAL(a_log_drivers_arguments_are_not_in_the_document)
{
    struct fixture r = { 0 };
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    fixture_write_spec(&r, "a", "");

    AUTO_FREE char *bundle = str_format("%s/a", r.dir);
    const struct container_create cc = { .id = "a",
                                         .bundle = bundle,
                                         .stdio.out = "binary:///bin/drain?token=hush" };
    AUTO(container_unref) struct container *c = NULL;

    ASSERT_OK(container_create(ctx, r.registry, &cc, &c, &err), err);

    AUTO_FREE char *doc = registry_inspect(r.registry);

    ASSERT_HAS(doc, "\"stdout\":\"binary:///bin/drain\"");
    ASSERT(!strstr(doc, "hush"));
    fixture_delete(&r, ctx, "a", "");
    fixture_close(&r, ctx);
}

static int late_scratch(void *arg, struct ctx *ctx, const char *op, struct err *err)
{
    return str_eq(op, "scratch") ? fiber_sleep(ctx, 5 * NS_PER_S, err) : 0;
}

/* A clone's guest knows a disk in that place already, and would take another one for it. */
TEST_VIRTUAL(the_scratch_disk_has_the_first_slot_even_if_it_comes_last)
{
    struct fixture r = { .host.step = late_scratch };
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    ASSERT_OK(create_of_disks(&r, ctx, "one", "ext4", &err), err);
    ASSERT_STR(fixture_find(&r, "one")->root_path, "/run/mounts/scsi/0_1_0");
    ASSERT_STR(vm_parts(r.registry->vm)->scratch_path, "/run/mounts/scsi/0_0_0");
    fixture_close(&r, ctx);
}

/* All slots of a VM but this many. */
static void fill_slots(struct ctx *ctx, struct scsi *scsi, size_t free_slots, uint64_t *ids,
                       bool give_back)
{
    struct err err = ERR_INIT;

    for (size_t i = 0; i < SCSI_DISKS_MAX - 1 - free_slots; i++) {
        AUTO_FD int fd = memfd_create("filler", MFD_CLOEXEC);
        const struct scsi_disk disk = { .host_path = "/filler", .fd = fd, .read_only = true };
        const struct guest_disk mount = { .read_only = true };

        if (give_back)
            ASSERT_OK(scsi_unmap(ctx, scsi, ids[i], &err), err);
        else
            ASSERT_OK(scsi_reserve(ctx, scsi, &disk, &mount, &ids[i], &err), err);
    }
}

TEST_VIRTUAL(layers_for_which_a_vm_has_no_slots_are_shared_as_one_tree)
{
    struct fixture r = { 0 };
    struct err err = ERR_INIT;
    static uint64_t ids[SCSI_DISKS_MAX];

    fixture_open(&r, ctx);
    fixture_create(&r, ctx, "other");
    unsigned shares = r.guest.shares;
    fill_slots(ctx, vm_parts(r.registry->vm)->scsi, 1, ids, false);
    ASSERT_OK(create_of_disks(&r, ctx, "one", "erofs", &err), err);
    ASSERT_EQ(r.guest.disks, 1); /* scratch; the layer that had a slot has given it back */
    ASSERT_EQ(r.guest.shares, shares + 1);
    ASSERT_EQ(r.guest.layers, 2);
    fixture_delete(&r, ctx, "one", "");
    ASSERT_EQ(r.guest.shares, shares);
    fill_slots(ctx, vm_parts(r.registry->vm)->scsi, 1, ids, true);
    /* One that is written to has no such way out. */
    fill_slots(ctx, vm_parts(r.registry->vm)->scsi, 0, ids, false);
    ASSERT_FAIL(create_of_disks(&r, ctx, "two", "ext4", &err), err, ERR_EXHAUSTED);
    ASSERT_EQ(err.reason, REASON_DISK_NO_SLOT);
    fill_slots(ctx, vm_parts(r.registry->vm)->scsi, 0, ids, true);
    fixture_close(&r, ctx);
}

TEST_VIRTUAL(a_writable_disk_is_the_root_itself_and_flushed_before_the_vm_ends)
{
    struct fixture r = { 0 };
    struct err err = ERR_INIT;

    fixture_open(&r, ctx);
    ASSERT_OK(create_of_disks(&r, ctx, "one", "ext4", &err), err);
    ASSERT_EQ(r.guest.disks, 2);
    ASSERT_EQ(r.guest.layers, 0);
    ASSERT_STR(fixture_find(&r, "one")->root_path, "/run/mounts/scsi/0_1_0");
    fixture_start(&r, ctx, "one", "");
    ASSERT_EQ(fixture_wait(&r, ctx, "one", ""), 0);
    fixture_delete(&r, ctx, "one", "");
    ASSERT_EQ(r.guest.disks, 1); /* unmounted by the guest, before its VM was killed */
    fixture_close(&r, ctx);
}
