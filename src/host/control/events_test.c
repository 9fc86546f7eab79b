/* events_test.c - order is kept, nothing that matters is lost, nobody waits to push. */
#include "base/clock.h"
#include "base/fiber.h"
#include "base/loop.h"
#include "base/mem.h"
#include "harness/tap.h"
#include "host/control/events.h"
#include <stdio.h>

static void push(struct events *q, enum event_kind kind, const char *id)
{
    events_push(q, &(struct event){ .kind = kind, .container_id = id });
}

TEST_VIRTUAL(events_come_in_order_and_stay_until_done)
{
    struct events *q = events_new();
    struct err err = ERR_INIT;
    const struct event *e;
    char id[] = "c1";

    push(q, EVENT_CREATE, id);
    push(q, EVENT_START, id);
    id[0] = 'x'; /* push has copied */
    ASSERT_OK(events_next(ctx, q, &e, &err), err);
    ASSERT_EQ(e->kind, EVENT_CREATE);
    ASSERT_STR(e->container_id, "c1");
    ASSERT_STR(e->exec_id, "");
    ASSERT_OK(events_next(ctx, q, &e, &err), err);
    ASSERT_EQ(e->kind, EVENT_CREATE); /* a failed delivery is tried again */
    events_done(q);
    ASSERT_OK(events_next(ctx, q, &e, &err), err);
    ASSERT_EQ(e->kind, EVENT_START);
    events_done(q);
    ASSERT_EQ(events_pending(q), 0);
    events_free(q);
}

TEST_VIRTUAL(the_mounts_of_a_create_are_copied_deeply)
{
    struct events *q = events_new();
    struct err err = ERR_INIT;
    const struct event *e;
    const char *options[] = { "ro", "lowerdir=/a:/b", NULL };
    struct event_mount m = { "overlay", "overlay", "", options };

    events_push(q, &(struct event){ .kind = EVENT_CREATE, .rootfs = &m, .n_rootfs = 1 });
    options[1] = NULL;
    ASSERT_OK(events_next(ctx, q, &e, &err), err);
    ASSERT_EQ(e->n_rootfs, 1);
    ASSERT_STR(e->rootfs[0].options[1], "lowerdir=/a:/b");
    ASSERT(!e->rootfs[0].options[2]);
    events_free(q);
}

TEST_VIRTUAL(a_flood_of_pauses_loses_pauses_and_nothing_else)
{
    struct events *q = events_new();
    struct err err = ERR_INIT;
    const struct event *e;
    unsigned exits = 0;

    push(q, EVENT_CREATE, "c1");
    for (int i = 0; i < 5000; i++)
        push(q, i % 2 ? EVENT_RESUMED : EVENT_PAUSED, "c1");
    for (int i = 0; i < 3000; i++)
        push(q, EVENT_EXIT, "c1");
    ASSERT(events_dropped(q) > 0);
    ASSERT(events_pending(q) <= 3001);
    ASSERT_OK(events_next(ctx, q, &e, &err), err);
    ASSERT_EQ(e->kind, EVENT_CREATE);
    while (events_pending(q) > 0) {
        ASSERT_OK(events_next(ctx, q, &e, &err), err);
        exits += e->kind == EVENT_EXIT;
        events_done(q);
    }
    ASSERT_EQ(exits, 3000);
    events_free(q);
}

static bool no_exits(void *arg, const struct event *e)
{
    ++*(unsigned *)arg;
    return e->kind != EVENT_EXIT;
}

TEST_VIRTUAL(a_filter_sees_all_and_decides_what_is_queued)
{
    struct events *q = events_new();
    unsigned seen = 0;

    events_filter(q, no_exits, &seen);
    push(q, EVENT_CREATE, "c1");
    push(q, EVENT_EXIT, "c1");
    ASSERT_EQ(seen, 2);
    ASSERT_EQ(events_pending(q), 1);
    events_free(q);
}

static void reader(void *arg)
{
    struct events *q = ((void **)arg)[0];
    struct ctx *ctx = ((void **)arg)[1];
    const struct event *e;
    struct err err = ERR_INIT;

    for (int i = 0; i < 3; i++)
        if (events_next(ctx, q, &e, &err) == 0 && fiber_sleep(ctx, NS_PER_MS, &err) == 0)
            events_done(q);
}

TEST_VIRTUAL(flush_waits_for_the_reader)
{
    struct events *q = events_new();
    struct err err = ERR_INIT;
    void *arg[] = { q, ctx };
    struct ctx soon = ctx_with_timeout(ctx, NS_PER_MS);

    for (int i = 0; i < 3; i++)
        push(q, EVENT_EXIT, "c1");
    fiber_go(ctx->loop, reader, arg, "reader");
    ASSERT_FAIL(events_flush(&soon, q, &err), err, ERR_DEADLINE);
    ASSERT_OK(events_flush(ctx, q, &err), err);
    ASSERT_EQ(events_pending(q), 0);
    events_free(q);
}
