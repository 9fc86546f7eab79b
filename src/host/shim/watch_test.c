/* watch_test.c - when the shim exits, and when it does not. */
#include "api/lcow.pb-c.h"
#include "fixture/saved_fixture.h"
#include "fixture/task_fixture.h"
#include "harness/tap.h"
#include "host/shim/watch.h"

struct scene {
    struct desk d;
    struct watch *watch;
    enum watch_end why;
    uint64_t at;
    bool bundle_gone;
    unsigned clients, looked;
};

static void on_leave(void *arg, enum watch_end why)
{
    struct scene *s = arg;

    ASSERT(!s->why);
    s->why = why;
    s->at = loop_now(s->d.fixture.loop);
}

static bool are_bundles_gone(struct ctx *ctx, void *arg)
{
    struct scene *s = arg;

    (void)ctx;
    s->looked++;
    return s->bundle_gone;
}

static unsigned clients(void *arg)
{
    return ((struct scene *)arg)->clients;
}

static struct watch *new_watch(struct scene *s)
{
    return watch_new(&(struct watch_opts){ .loop = s->d.fixture.loop,
                                           .service = s->d.service,
                                           .leave = on_leave,
                                           .clients = clients,
                                           .bundles_gone = are_bundles_gone,
                                           .arg = s });
}

static void scene_open(struct scene *s, struct ctx *ctx)
{
    desk_open(&s->d, ctx);
    s->clients = 1;
    s->watch = new_watch(s);
}

static void scene_close(struct scene *s, struct ctx *ctx)
{
    struct err err = ERR_INIT;

    ASSERT_OK(watch_stop(ctx, s->watch, &err), err);
    watch_free(s->watch);
    desk_close(&s->d, ctx);
}

/* Like the daemon on each change. */
static void poke(struct scene *s, struct ctx *ctx, uint64_t ns)
{
    struct err err = ERR_INIT;

    watch_poke(s->watch);
    ASSERT_OK(fiber_sleep(ctx, ns, &err), err);
}

static void ask(struct scene *s, struct ctx *ctx)
{
    struct err err = ERR_INIT;

    (void)desk_code(&s->d, ctx, "Shutdown", &shutdown_request__descriptor, "c1", "", &err);
    ASSERT_STR(err.msg, "");
}

/* Like `lcow metrics`. */
static void look_at(struct scene *s, struct ctx *ctx, uint64_t ns)
{
    Lcow__InspectRequest inspect = LCOW__INSPECT_REQUEST__INIT;
    struct err err = ERR_INIT;

    ASSERT_OK(rpc_client_call(ctx, s->d.client, SERVICE_LCOW, "Inspect", &inspect,
                              &lcow__inspect_response__descriptor, NULL, &err),
              err);
    (void)desk_code(&s->d, ctx, "Stats", &stats_request__descriptor, "c1", "", &err);
    ASSERT_STR(err.msg, "");
    poke(s, ctx, ns);
}

#define LONG_CTX                                                                                   \
    struct ctx longer_ = ctx_limited(ctx->loop, 3600 * NS_PER_S);                                  \
    ctx = &longer_

TEST_VIRTUAL(a_shim_without_calls_exits_after_a_minute)
{
    struct scene s = { 0 };

    LONG_CTX;
    scene_open(&s, ctx);

    uint64_t began = loop_now(ctx->loop);

    poke(&s, ctx, 59 * NS_PER_S);
    ASSERT(!s.why);
    poke(&s, ctx, 61 * NS_PER_S);
    ASSERT_EQ(s.why, WATCH_NEVER_CALLED);
    ASSERT(s.at - began <= 121 * NS_PER_S);
    scene_close(&s, ctx);
}

TEST_VIRTUAL(shutdown_without_containers_is_obeyed_at_once)
{
    struct scene s = { 0 };

    scene_open(&s, ctx);
    ask(&s, ctx);
    poke(&s, ctx, 1);
    ASSERT_EQ(s.why, WATCH_SHUTDOWN);
    scene_close(&s, ctx);
}

TEST_VIRTUAL(shutdown_with_containers_waits_for_the_next_one)
{
    struct scene s = { 0 };

    LONG_CTX;
    scene_open(&s, ctx);
    desk_create(&s.d, ctx, "c1");
    ask(&s, ctx);
    poke(&s, ctx, 600 * NS_PER_S);
    ASSERT(!s.why);
    desk_delete(&s.d, ctx, "c1", "");
    poke(&s, ctx, NS_PER_S);
    ASSERT(!s.why); /* containerd asks again, most versions do */
    ask(&s, ctx);
    poke(&s, ctx, 1);
    ASSERT_EQ(s.why, WATCH_SHUTDOWN);
    scene_close(&s, ctx);
}

TEST_VIRTUAL(after_a_shutdown_that_came_too_early_the_last_delete_is_enough)
{
    struct scene s = { 0 };

    LONG_CTX;
    scene_open(&s, ctx);
    desk_create(&s.d, ctx, "c1");
    ask(&s, ctx);
    poke(&s, ctx, 1);
    desk_delete(&s.d, ctx, "c1", "");
    poke(&s, ctx, 4 * NS_PER_S);
    ASSERT_EQ(s.why, WATCH_EARLY_SHUTDOWN);
    scene_close(&s, ctx);
}

TEST_VIRTUAL(a_create_cancels_an_earlier_shutdown)
{
    struct scene s = { 0 };

    LONG_CTX;
    scene_open(&s, ctx);
    desk_create(&s.d, ctx, "c1");
    ask(&s, ctx);
    poke(&s, ctx, 1);
    desk_create(&s.d, ctx, "c2");
    desk_delete(&s.d, ctx, "c1", "");
    desk_delete(&s.d, ctx, "c2", "");
    poke(&s, ctx, 30 * NS_PER_S);
    ASSERT(!s.why);
    scene_close(&s, ctx);
}

static void expect(struct scene *s, struct ctx *ctx)
{
    Lcow__ExpectRequest req = LCOW__EXPECT_REQUEST__INIT;
    struct err err = ERR_INIT;

    ASSERT_OK(rpc_client_call(ctx, s->d.client, SERVICE_LCOW, "Expect", &req,
                              &lcow__expect_response__descriptor, NULL, &err),
              err);
}

TEST_VIRTUAL(the_shim_waits_for_a_create_that_start_has_announced)
{
    struct scene s = { 0 };

    LONG_CTX;
    scene_open(&s, ctx);
    desk_create(&s.d, ctx, "c1");
    expect(&s, ctx);
    expect(&s, ctx);
    desk_delete(&s.d, ctx, "c1", "");
    ask(&s, ctx);
    poke(&s, ctx, 5 * NS_PER_S);
    ASSERT(!s.why);
    desk_create(&s.d, ctx, "c2");
    poke(&s, ctx, 1);
    desk_delete(&s.d, ctx, "c2", "");
    ask(&s, ctx);
    poke(&s, ctx, 4 * NS_PER_S);
    ASSERT(!s.why); /* one of two has come */
    desk_create(&s.d, ctx, "c3");
    poke(&s, ctx, 1);
    desk_delete(&s.d, ctx, "c3", "");
    ask(&s, ctx);
    poke(&s, ctx, 1);
    ASSERT_EQ(s.why, WATCH_SHUTDOWN);
    scene_close(&s, ctx);
}

TEST_VIRTUAL(the_shim_stops_waiting_for_a_create_that_does_not_arrive)
{
    struct scene s = { 0 };

    LONG_CTX;
    scene_open(&s, ctx);
    expect(&s, ctx);
    ask(&s, ctx);
    poke(&s, ctx, 29 * NS_PER_S);
    ASSERT(!s.why);
    poke(&s, ctx, 2 * NS_PER_S);
    ASSERT_EQ(s.why, WATCH_EARLY_SHUTDOWN);
    scene_close(&s, ctx);
}

TEST_VIRTUAL(the_shim_exits_without_its_bundle_and_without_calls)
{
    struct scene s = { 0 };

    LONG_CTX;
    scene_open(&s, ctx);
    desk_create(&s.d, ctx, "c1");
    desk_delete(&s.d, ctx, "c1", "");
    poke(&s, ctx, 600 * NS_PER_S);
    ASSERT(!s.why); /* the bundle is there: containerd may come back */
    s.bundle_gone = true;
    poke(&s, ctx, 130 * NS_PER_S);
    ASSERT_EQ(s.why, WATCH_BUNDLE_GONE);
    scene_close(&s, ctx);
}

TEST_VIRTUAL(a_shim_with_containers_and_a_client_stays)
{
    struct scene s = { .bundle_gone = true };

    LONG_CTX;
    scene_open(&s, ctx);
    desk_create(&s.d, ctx, "c1");
    poke(&s, ctx, 1800 * NS_PER_S);
    ASSERT(!s.why);
    ASSERT_EQ(s.looked, 0); /* it slept all the time */
    scene_close(&s, ctx);
}

TEST_VIRTUAL(the_shim_exits_with_containers_if_all_bundles_and_clients_are_gone)
{
    struct scene s = { .bundle_gone = true };

    LONG_CTX;
    scene_open(&s, ctx);
    desk_create(&s.d, ctx, "c1");
    s.clients = 0;
    poke(&s, ctx, 59 * NS_PER_S);
    ASSERT(!s.why);
    poke(&s, ctx, 2 * NS_PER_S);
    ASSERT_EQ(s.why, WATCH_BUNDLES_GONE);
    scene_close(&s, ctx);
}

TEST_VIRTUAL(containers_with_bundles_survive_a_stopped_containerd)
{
    struct scene s = { 0 };

    LONG_CTX;
    scene_open(&s, ctx);
    desk_create(&s.d, ctx, "c1");
    s.clients = 0;
    poke(&s, ctx, 1800 * NS_PER_S + NS_PER_S);
    ASSERT(!s.why);
    ASSERT_EQ(s.looked, 30); /* once a minute, while nobody is there */
    s.bundle_gone = true;
    ASSERT_OK(fiber_sleep(ctx, 61 * NS_PER_S, &(struct err)ERR_INIT), (struct err)ERR_INIT);
    ASSERT_EQ(s.why, WATCH_BUNDLES_GONE);
    scene_close(&s, ctx);
}

TEST_VIRTUAL(a_counted_call_restarts_the_minute_and_monitoring_does_not)
{
    struct scene s = { .bundle_gone = true };

    LONG_CTX;
    scene_open(&s, ctx);
    desk_create(&s.d, ctx, "c1");
    s.clients = 0;
    poke(&s, ctx, 50 * NS_PER_S);
    ask(&s, ctx); /* a client came, called and went */
    for (int i = 0; i < 5; i++)
        look_at(&s, ctx, 11 * NS_PER_S); /* monitoring connects and calls nothing that counts */
    ASSERT(!s.why);
    poke(&s, ctx, 6 * NS_PER_S);
    ASSERT_EQ(s.why, WATCH_BUNDLES_GONE);
    scene_close(&s, ctx);
}

TEST_VIRTUAL(the_shim_waits_for_an_announced_create_even_without_bundles)
{
    struct scene s = { .bundle_gone = true };

    LONG_CTX;
    scene_open(&s, ctx);
    desk_create(&s.d, ctx, "c1");
    s.clients = 0;
    poke(&s, ctx, 45 * NS_PER_S);
    expect(&s, ctx);
    poke(&s, ctx, 29 * NS_PER_S);
    ASSERT(!s.why);
    scene_close(&s, ctx);
}

TEST(each_way_to_exit_has_a_text_of_its_own)
{
    for (int a = WATCH_STAYS + 1; a < WATCH_END_COUNT; a++) {
        ASSERT(strcmp(watch_end_text(a), watch_end_text(WATCH_STAYS)) != 0);
        for (int b = WATCH_STAYS + 1; b < a; b++)
            ASSERT(strcmp(watch_end_text(a), watch_end_text(b)) != 0);
    }
}

/* --- upgrades --- */

static void upgrade(struct scene *s, struct ctx *ctx)
{
    struct watch *from = s->watch;
    struct err err = ERR_INIT;

    SAVED_PASS_ON(w, watch_saved(w, from), ASSERT_OK(watch_stop(ctx, from, &err), err), r,
                  watch_saved(r, s->watch = new_watch(s)), again, watch_saved(again, s->watch));
    watch_free(from);
}

static void pass(struct ctx *ctx, uint64_t ns)
{
    struct err err = ERR_INIT;

    ASSERT_OK(fiber_sleep(ctx, ns, &err), err);
}

TEST_VIRTUAL(after_an_upgrade_a_shutdown_that_was_seen_before_is_not_a_new_one)
{
    struct scene s = { 0 };

    LONG_CTX;
    scene_open(&s, ctx);
    desk_create(&s.d, ctx, "c1");
    ask(&s, ctx);
    poke(&s, ctx, 1);
    desk_delete(&s.d, ctx, "c1", "");
    poke(&s, ctx, NS_PER_S);
    upgrade(&s, ctx);
    pass(ctx, NS_PER_S);
    ASSERT(!s.why); /* the second Shutdown may still come */
    pass(ctx, 3 * NS_PER_S);
    ASSERT_EQ(s.why, WATCH_EARLY_SHUTDOWN);
    scene_close(&s, ctx);
}

TEST_VIRTUAL(after_an_upgrade_calls_of_before_do_not_keep_the_shim)
{
    struct scene s = { .bundle_gone = true };

    LONG_CTX;
    scene_open(&s, ctx);
    desk_create(&s.d, ctx, "c1");
    desk_delete(&s.d, ctx, "c1", "");
    poke(&s, ctx, 70 * NS_PER_S);
    ASSERT(!s.why); /* there were calls in this minute */
    upgrade(&s, ctx);
    pass(ctx, 61 * NS_PER_S);
    ASSERT_EQ(s.why, WATCH_BUNDLE_GONE);
    scene_close(&s, ctx);
}

TEST_VIRTUAL(an_upgrade_does_not_restart_the_minute_without_clients)
{
    struct scene s = { .bundle_gone = true };

    LONG_CTX;
    scene_open(&s, ctx);
    pass(ctx, 50 * NS_PER_S);
    desk_create(&s.d, ctx, "c1");
    poke(&s, ctx, 100 * NS_PER_S);
    s.clients = 0;
    poke(&s, ctx, 40 * NS_PER_S);
    upgrade(&s, ctx);
    pass(ctx, 19 * NS_PER_S);
    ASSERT(!s.why);
    pass(ctx, 2 * NS_PER_S);
    ASSERT_EQ(s.why, WATCH_BUNDLES_GONE);
    scene_close(&s, ctx);
}
