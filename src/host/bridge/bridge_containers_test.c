/* bridge_containers_test.c - what is sent for each call on containers and files, and what is made
 * of the answers. */
#include "fixture/bridge_fixture.h"

struct asking {
    struct bench *bench;
    int (*call)(struct ctx *ctx, struct guest *g, struct err *err);
    int r;
    struct err err;
    bool done;
};

static void ask_main(void *arg)
{
    struct asking *a = arg;

    a->r = a->call(a->bench->ctx, a->bench->g, &a->err);
    a->done = true;
}

static int do_create(struct ctx *ctx, struct guest *g, struct err *err)
{
    AUTO(json_decref) json_t *spec = json_pack("{si}", "k", 1);
    const struct guest_container c = {
        .id = "c1", .bundle_path = "/b", .scratch_path = "/s", .spec = spec, .privileged = true
    };

    return g->ops->create_container(ctx, g, &c, err);
}

static int do_start(struct ctx *ctx, struct guest *g, struct err *err)
{
    return g->ops->start_container(ctx, g, "c1", err);
}

static int do_delete(struct ctx *ctx, struct guest *g, struct err *err)
{
    return g->ops->delete_container(ctx, g, "c1", err);
}

static int do_update(struct ctx *ctx, struct guest *g, struct err *err)
{
    AUTO(json_decref) json_t *resources = json_pack("{s{si}}", "memory", "limit", 5);

    return g->ops->update_container(ctx, g, "c1", resources, err);
}

static int do_freeze(struct ctx *ctx, struct guest *g, struct err *err)
{
    return g->ops->freeze_container(ctx, g, "c1", true, err);
}

static int do_clock(struct ctx *ctx, struct guest *g, struct err *err)
{
    return g->ops->set_clock(ctx, g, UINT64_MAX, err);
}

static int do_mount_disk(struct ctx *ctx, struct guest *g, struct err *err)
{
    const struct guest_disk d = { .controller = 1,
                                  .lun = 2,
                                  .partition = 3,
                                  .mount_path = "/m",
                                  .filesystem = "ext4",
                                  .read_only = true };

    return g->ops->mount_disk(ctx, g, &d, err);
}

static int do_unmount_disk(struct ctx *ctx, struct guest *g, struct err *err)
{
    return g->ops->unmount_disk(ctx, g, &(struct guest_disk){ .lun = 2, .mount_path = "/m" }, err);
}

static int do_eject(struct ctx *ctx, struct guest *g, struct err *err)
{
    return g->ops->eject_disk(ctx, g, 1, 2, err);
}

static const struct guest_share share = { .name = "7", .mount_path = "/p", .read_only = true };

static int do_mount_share(struct ctx *ctx, struct guest *g, struct err *err)
{
    return g->ops->mount_share(ctx, g, &share, err);
}

static int do_unmount_share(struct ctx *ctx, struct guest *g, struct err *err)
{
    return g->ops->unmount_share(ctx, g, &share, err);
}

static const char *const two[] = { "/top", "/bottom", NULL };
static const struct guest_layers layers = { .container = "c1",
                                            .root_path = "/r",
                                            .scratch_path = "/s",
                                            .scratch_quota = 7,
                                            .layers = two,
                                            .uid_map = "0:1:2",
                                            .gid_map = "0:3:4",
                                            .map_layers = true };

static int do_combine(struct ctx *ctx, struct guest *g, struct err *err)
{
    return g->ops->combine_layers(ctx, g, &layers, err);
}

static int do_uncombine(struct ctx *ctx, struct guest *g, struct err *err)
{
    return g->ops->uncombine_layers(ctx, g, &layers, err);
}

static const struct {
    int (*call)(struct ctx *ctx, struct guest *g, struct err *err);
    uint32_t type;
    const char *parts[7]; /* of what is sent */
    bool removes;
} calls[] = {
    { do_create,
      BRIDGE_CREATE,
      { "\"ContainerId\":\"c1\"", "OciBundlePath\\\":\\\"/b", "ScratchDirPath\\\":\\\"/s",
        "\\\"k\\\":1", "\\\"Privileged\\\":true" },
      false },
    { do_start, BRIDGE_START, { "\"ContainerId\":\"c1\"" }, false },
    { do_delete, BRIDGE_DELETE_CONTAINER_STATE, { "\"ContainerId\":\"c1\"" }, true },
    { do_update,
      BRIDGE_MODIFY_SETTINGS,
      { "\"ContainerId\":\"c1\"", "ContainerConstraints", "Update", "\"limit\":5" },
      false },
    { do_freeze,
      BRIDGE_MODIFY_SETTINGS,
      { "\"ContainerId\":\"c1\"", "ContainerFreezer", "\"Frozen\":true" },
      false },
    { do_clock,
      BRIDGE_MODIFY_SETTINGS,
      { GUEST_NULL_ID, "\"Clock\"", "18446744073709551615" },
      false },
    { do_mount_disk,
      BRIDGE_MODIFY_SETTINGS,
      { GUEST_NULL_ID, "MappedVirtualDisk", "Add", "\"/m\"", "\"ReadOnly\":true" },
      false },
    { do_unmount_disk,
      BRIDGE_MODIFY_SETTINGS,
      { GUEST_NULL_ID, "MappedVirtualDisk", "Remove", "\"/m\"" },
      true },
    { do_eject, BRIDGE_MODIFY_SETTINGS, { GUEST_NULL_ID, "SCSIDevice", "Remove" }, true },
    { do_mount_share,
      BRIDGE_MODIFY_SETTINGS,
      { GUEST_NULL_ID, "MappedDirectory", "Add", "\"7\"", "\"ReadOnly\":true" },
      false },
    { do_unmount_share,
      BRIDGE_MODIFY_SETTINGS,
      { GUEST_NULL_ID, "MappedDirectory", "Remove", "\"/p\"" },
      true },
    { do_combine,
      BRIDGE_MODIFY_SETTINGS,
      { GUEST_NULL_ID, "CombinedLayers", "Add", "\"/top\"", "\"/bottom\"",
        "\"ScratchQuotaBytes\":7", "\"UidMap\":\"0:1:2\",\"GidMap\":\"0:3:4\",\"MapLayers\":true" },
      false },
    { do_uncombine,
      BRIDGE_MODIFY_SETTINGS,
      { GUEST_NULL_ID, "CombinedLayers", "Remove", "\"/r\"" },
      true },
};

static void begin(struct bench *t, struct asking *a,
                  int (*call)(struct ctx *ctx, struct guest *g, struct err *err))
{
    *a = (struct asking){ .bench = t, .call = call };
    fibers_go(&t->fibers, t->ctx->loop, ask_main, a, "ask");
}

TEST_VIRTUAL(each_call_says_what_it_means)
{
    struct bench t = { 0 };

    bench_connect(&t, ctx);
    for (size_t i = 0; i < ARRAY_LEN(calls); i++) {
        struct asking a;
        struct frame f;

        begin(&t, &a, calls[i].call);
        expect(&t, calls[i].type, &f);
        for (size_t k = 0; k < ARRAY_LEN(calls[i].parts) && calls[i].parts[k]; k++)
            ASSERT_HAS(f.body, calls[i].parts[k]);
        reply(&t, &f, OK_BODY);
        free(f.body);
        settle(&t);
        ASSERT_OK(a.r, a.err);
    }
    bench_close(&t);
}

TEST_VIRTUAL(a_refusal_quotes_the_guest)
{
    struct bench t = { 0 };

    bench_connect(&t, ctx);
    for (size_t i = 0; i < ARRAY_LEN(calls); i++) {
        struct asking a;

        begin(&t, &a, calls[i].call);
        expect_reply(&t, calls[i].type,
                     "{\"Result\":-2147467259,\"ErrorMessage\":\"no such luck\"}");
        settle(&t);
        ASSERT(a.r < 0);
        ASSERT_HAS(a.err.msg, "no such luck");
    }
    bench_close(&t);
}

TEST_VIRTUAL(removing_what_is_gone_is_success)
{
    struct bench t = { 0 };

    bench_connect(&t, ctx);
    for (size_t i = 0; i < ARRAY_LEN(calls); i++) {
        struct asking a;

        begin(&t, &a, calls[i].call);
        expect_reply(&t, calls[i].type, "{\"Result\":-1070137074}"); /* no such container */
        settle(&t);
        ASSERT_EQ(a.r, calls[i].removes ? 0 : -1);
        ASSERT_EQ(a.err.code, calls[i].removes ? ERR_NONE : ERR_NOT_FOUND);
    }
    bench_close(&t);
}

static bool oom;

static int do_wait_oom(struct ctx *ctx, struct guest *g, struct err *err)
{
    uint64_t wait_id = 0;

    return g->ops->wait_oom(ctx, g, "c1", &oom, &wait_id, err);
}

TEST_VIRTUAL(the_wait_for_oom_has_no_limit_and_does_not_count)
{
    struct ctx root = ctx_root(ctx->loop);
    struct bench t = { 0 };
    struct asking a;
    struct err err = ERR_INIT;
    struct frame f;

    bench_connect(&t, &root);
    begin(&t, &a, do_wait_oom);
    expect(&t, BRIDGE_GET_PROPERTIES, &f);
    ASSERT_HAS(f.body, "OutOfMemory");
    ASSERT_OK(fiber_sleep(&root, 10 * BRIDGE_CALL_LIMIT, &err), err);
    ASSERT(!a.done);
    ASSERT_EQ(t.g->ops->oldest_call(t.g), 0);
    reply(&t, &f, "{\"Result\":0,\"Properties\":\"{\\\"OutOfMemory\\\":true}\"}");
    free(f.body);
    settle(&t);
    ASSERT_OK(a.r, a.err);
    ASSERT(oom);

    begin(&t, &a, do_wait_oom);
    expect_reply(&t, BRIDGE_GET_PROPERTIES, "{\"Result\":0,\"Properties\":\"{}\"}");
    settle(&t);
    ASSERT_OK(a.r, a.err);
    ASSERT(!oom);

    begin(&t, &a, do_wait_oom);
    expect_reply(&t, BRIDGE_GET_PROPERTIES, "{\"Result\":0,\"Properties\":\"[[[\"}");
    settle(&t);
    ASSERT(a.r < 0);
    bench_close(&t);
}

static uint64_t told_ns;

static int do_read_clock(struct ctx *ctx, struct guest *g, struct err *err)
{
    return g->ops->read_clock(ctx, g, &told_ns, err);
}

TEST_VIRTUAL(the_guests_clock_is_read_and_a_guest_without_one_says_so)
{
    struct bench t = { 0 };
    struct asking a;
    struct frame f;

    bench_connect(&t, ctx);
    begin(&t, &a, do_read_clock);
    expect(&t, BRIDGE_GET_PROPERTIES, &f);
    ASSERT_HAS(f.body, "Clock");
    reply(&t, &f, "{\"Result\":0,\"Properties\":\"{\\\"MonotonicNs\\\":12345678901234567}\"}");
    free(f.body);
    settle(&t);
    ASSERT_OK(a.r, a.err);
    ASSERT_EQ(told_ns, 12345678901234567);

    begin(&t, &a, do_read_clock); /* the original guest */
    expect_reply(&t, BRIDGE_GET_PROPERTIES, "{\"Result\":0,\"Properties\":\"{}\"}");
    settle(&t);
    ASSERT_EQ(a.err.code, ERR_UNIMPLEMENTED);
    bench_close(&t);
}

TEST_VIRTUAL(without_a_guest_every_call_says_so)
{
    struct bench t = { 0 };

    bench_connect(&t, ctx);
    t.g->ops->close(t.g, "the test wants it");
    for (size_t i = 0; i < ARRAY_LEN(calls); i++) {
        struct asking a;

        begin(&t, &a, calls[i].call);
        settle(&t);
        ASSERT_EQ(a.err.code, ERR_UNAVAILABLE);
    }
    bench_close(&t);
}
