/* Connections that are lost and come again; what the server says and does unasked. */
#include "base/json.h"
#include "base/str.h"
#include "fixture/server_fixture.h"
#include <errno.h>

TEST_FIBER(a_new_connection_must_negotiate_again)
{
    struct fixture w;

    fixture_init(&w, ctx, 0);
    fixture_reconnect(&w, ctx);
    peer_send(ctx, w.s, BRIDGE_START, 1, BASE);
    ASSERT_EQ(peer_expect(ctx, w.s, BRIDGE_START, 1), BRIDGE_HR_NOT_IMPLEMENTED);
    peer_negotiate(ctx, w.s);
    fixture_release(&w, ctx);
}

TEST_FIBER(an_answer_without_a_connection_is_dropped)
{
    struct fixture w;
    struct err err = ERR_INIT;

    fixture_init(&w, ctx, 0);
    peer_send(ctx, w.s, BRIDGE_WAIT_FOR_PROCESS, 1, "{}");
    fixture_await_requests(&w, ctx, 2);
    dial_pair_refuse(w.host, ECONNREFUSED, -1);
    stream_free(TAKE_PTR(w.s));
    ASSERT_OK(fiber_sleep(ctx, 5 * NS_PER_MS, &err), err);
    fixture_let_go(&w, 1);
    while (fixture_stats(&w).dropped == 0)
        ASSERT_OK(fiber_sleep(ctx, NS_PER_MS, &err), err);
    dial_pair_refuse(w.host, 0, 0);
    w.s = peer_accept(ctx, w.host);
    peer_negotiate(ctx, w.s);
    fixture_release(&w, ctx);
}

TEST_FIBER(an_old_request_answers_on_the_new_connection_with_its_old_id)
{
    struct fixture w;

    fixture_init(&w, ctx, 0);
    peer_send(ctx, w.s, BRIDGE_WAIT_FOR_PROCESS, 77, "{}");
    fixture_await_requests(&w, ctx, 2);
    fixture_reconnect(&w, ctx);
    peer_negotiate(ctx, w.s);
    fixture_let_go(&w, 1);
    ASSERT_EQ(peer_expect(ctx, w.s, BRIDGE_WAIT_FOR_PROCESS, 77), 0);
    fixture_release(&w, ctx);
}

TEST_FIBER(a_host_that_reads_no_answers_is_held_back_and_harms_nothing)
{
    struct fixture w;
    struct err err = ERR_INIT;
    struct ctx brief = ctx_with_timeout(ctx, 200 * NS_PER_MS);
    AUTO(sbuf_release) struct sbuf frames = { 0 };

    fixture_init(&w, ctx, 8);
    for (int i = 0; i < 50000; i++) {
        uint8_t raw[BRIDGE_HEADER_BYTES];
        bridge_header_encode(&(struct bridge_header){ BRIDGE_CREATE, BRIDGE_HEADER_BYTES, 1 }, raw);
        sbuf_add(&frames, raw, sizeof(raw));
    }
    ASSERT_FAIL(stream_write_full(&brief, w.s, frames.data, frames.len, &err), err, ERR_DEADLINE);
    ASSERT(fixture_stats(&w).in_flight <= 8);
    fixture_reconnect(&w, ctx);
    peer_negotiate(ctx, w.s);
    ASSERT_EQ(fixture_stats(&w).in_flight, 0);
    fixture_release(&w, ctx);
}

TEST_VIRTUAL(the_server_reconnects_ten_times_a_second_without_limit)
{
    struct fixture w;
    struct err err = ERR_INIT;

    fixture_start(&w, ctx, 0);
    dial_pair_refuse(w.host, ECONNREFUSED, -1);
    ASSERT_OK(fiber_sleep(ctx, 5 * NS_PER_S, &err), err);
    ASSERT(dial_pair_count(w.host) >= 49 && dial_pair_count(w.host) <= 51);
    ASSERT_EQ(w.unreachable, 1); /* reported once */
    fixture_release(&w, ctx);
}

static void ask_and_await_trim(struct fixture *w, struct ctx *ctx, uint64_t id)
{
    struct err err = ERR_INIT;
    unsigned before = fixture_stats(w).trims;

    peer_send(ctx, w->s, BRIDGE_START, id, BASE);
    ASSERT_EQ(peer_expect(ctx, w->s, BRIDGE_START, id), 0);
    while (fixture_stats(w).trims == before)
        ASSERT_OK(fiber_sleep(ctx, 5 * NS_PER_MS, &err), err);
}

TEST_FIBER(memory_goes_back_once_after_requests_and_not_again_before_the_next)
{
    struct err err = ERR_INIT;
    struct fixture w;

    fixture_init(&w, ctx, 0);
    peer_send(ctx, w.s, BRIDGE_DELETE_CONTAINER_STATE, 1, BASE); /* one that waits does not count */
    ask_and_await_trim(&w, ctx, 2);
    ASSERT_OK(fiber_sleep(ctx, 10 * FIXTURE_TRIM_NS, &err), err);
    unsigned n = fixture_stats(&w).trims;
    ASSERT_OK(fiber_sleep(ctx, 10 * FIXTURE_TRIM_NS, &err), err);
    ASSERT_EQ(fixture_stats(&w).trims, n);
    ask_and_await_trim(&w, ctx, 3);
    fixture_let_go(&w, 1);
    ASSERT_EQ(peer_expect(ctx, w.s, BRIDGE_DELETE_CONTAINER_STATE, 1), 0);
    fixture_release(&w, ctx); /* before its time is over, perhaps */
}

/* --- notifications --- */

static void notify(struct fixture *w, const char *id)
{
    struct err err = ERR_INIT;

    ASSERT_OK(server_notify(w->server,
                            &(struct bridge_notification){ .container_id = id,
                                                           .type = BRIDGE_NOTIFY_FORCED_EXIT },
                            &err),
              err);
}

static void expect_notification(struct fixture *w, struct ctx *ctx, const char *id)
{
    AUTO(json_decref) json_t *n = peer_expect_json(ctx, w->s, BRIDGE_CONTAINER_NOTIFICATION, 0);

    ASSERT_STR(json_string_value(js_get(n, "ContainerId")), id);
}

TEST_FIBER(a_notification_goes_out_at_once_when_connected)
{
    struct fixture w;

    fixture_init(&w, ctx, 0);
    notify(&w, "a");
    notify(&w, "b");
    expect_notification(&w, ctx, "a");
    expect_notification(&w, ctx, "b");
    ASSERT_EQ(fixture_stats(&w).notifications, 0);
    fixture_release(&w, ctx);
}

TEST_FIBER(notifications_wait_for_a_connection_and_come_before_negotiation)
{
    struct fixture w;

    fixture_start(&w, ctx, 0);
    dial_pair_refuse(w.host, ECONNREFUSED, 2);
    notify(&w, "a");
    notify(&w, "b");
    w.s = peer_accept(ctx, w.host);
    expect_notification(&w, ctx, "a");
    expect_notification(&w, ctx, "b");
    peer_negotiate(ctx, w.s);
    fixture_release(&w, ctx);
}

TEST_FIBER(notifications_are_bounded)
{
    struct fixture w;
    struct err err = ERR_INIT;
    const struct bridge_notification notification = { .container_id = "x",
                                                      .type = BRIDGE_NOTIFY_UNEXPECTED_EXIT };

    fixture_start(&w, ctx, 0);
    dial_pair_refuse(w.host, ECONNREFUSED, -1);
    for (int i = 0; i < SERVER_NOTIFICATIONS; i++)
        ASSERT_OK(server_notify(w.server, &notification, &err), err);
    ASSERT_FAIL(server_notify(w.server, &notification, &err), err, ERR_EXHAUSTED);
    fixture_release(&w, ctx);
}
