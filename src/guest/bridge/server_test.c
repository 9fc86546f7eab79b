#include "base/clock.h"
#include "base/ctx.h"
#include "base/fiber.h"
#include "base/json.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/stream.h"
#include "guest/bridge/peer.h"
#include "guest/bridge/server.h"
#include "guest/stdio/dial_pair.h"
#include "harness/tap.h"
#include "proto/link.h"
#include <errno.h>
#include <string.h>

#define BASE "{\"ContainerId\":\"x\",\"ActivityId\":\"" BRIDGE_NULL_ID "\"}"

#define TRIM_SOON_NS (20 * NS_PER_MS)

struct world {
    struct dial_pair *host;
    struct server *server;
    struct loop *loop;
    struct cancel stop;
    struct group run;
    struct stream *s;
    unsigned started, served, cancelled, negotiated, unreachable;
    struct waitq held;
    unsigned released; /* held requests that may go on */
};

static int at_once(struct ctx *ctx, void *arg, struct server_call *call, struct err *err)
{
    ((struct world *)arg)->served++;
    return 0;
}

static int refuse(struct ctx *ctx, void *arg, struct server_call *call, struct err *err)
{
    return bridge_err(err, BRIDGE_HR_NO_CONTAINER, "no container %s", call->req.container_id);
}

static int silent(struct ctx *ctx, void *arg, struct server_call *call, struct err *err)
{
    return SERVER_SILENT;
}

/* Waits until the test lets it go, in the order of arrival. */
static int hold(struct ctx *ctx, void *arg, struct server_call *call, struct err *err)
{
    struct world *w = arg;

    w->started++;
    while (w->released == 0) {
        if (waitq_wait(ctx, &w->held, "the test", err) < 0) {
            w->cancelled++;
            return -1;
        }
    }
    w->released--;
    w->served++;
    return 0;
}

static int hold_parked(struct ctx *ctx, void *arg, struct server_call *call, struct err *err)
{
    server_call_forget_request(call);
    call->resp.exit_code = 5;
    return hold(ctx, arg, call, err);
}

static const struct server_entry table[] = {
    { .type = BRIDGE_START, .handle = at_once },
    { .type = BRIDGE_SIGNAL_PROCESS, .handle = refuse },
    { .type = BRIDGE_SHUTDOWN_FORCED, .handle = silent },
    { .type = BRIDGE_DELETE_CONTAINER_STATE, .handle = hold },
    { .type = BRIDGE_WAIT_FOR_PROCESS, .handle = hold_parked, .parks = true },
    { .type = BRIDGE_CREATE },
};

static void on_negotiated(void *arg)
{
    ((struct world *)arg)->negotiated++;
}

static void on_unreachable(void *arg, const struct err *why)
{
    ((struct world *)arg)->unreachable++;
}

static void run_fiber(void *arg)
{
    struct world *w = arg;
    struct ctx root = ctx_root(w->loop), ctx = ctx_with_cancel(&root, &w->stop);
    struct err err = ERR_INIT;

    (void)server_run(&ctx, w->server, &err);
}

static void world_start(struct world *w, struct ctx *ctx, unsigned max_in_flight)
{
    log_init(2, LOG_OFF, LOG_LOGFMT); /* refusals are what is tested */
    *w = (struct world){ .host = dial_pair_new(), .loop = ctx->loop };
    cancel_init(&w->stop, NULL);
    group_init(&w->run);
    waitq_init(&w->held);
    w->server = server_new(&(struct server_opts){ .dialer = dial_pair_dialer(w->host),
                                                  .port = PORT_BRIDGE,
                                                  .table = table,
                                                  .n_entries = ARRAY_LEN(table),
                                                  .arg = w,
                                                  .max_in_flight = max_in_flight,
                                                  .trim_ns = TRIM_SOON_NS,
                                                  .on_negotiated = on_negotiated,
                                                  .on_unreachable = on_unreachable });
    group_go(&w->run, ctx->loop, run_fiber, w, "server");
}

/* With a negotiated connection. */
static void world_init(struct world *w, struct ctx *ctx, unsigned max_in_flight)
{
    world_start(w, ctx, max_in_flight);
    w->s = peer_accept(ctx, w->host);
    peer_negotiate(ctx, w->s);
}

static void world_release(struct world *w, struct ctx *ctx)
{
    struct err err = ERR_INIT;

    cancel_fire(&w->stop, ERR_CANCELLED, "test is over");
    ASSERT_OK(group_wait(ctx, &w->run, "server to stop", &err), err);
    stream_free(w->s);
    server_free(w->server);
    dial_pair_free(w->host);
}

static void let_go(struct world *w, unsigned n)
{
    w->released += n;
    waitq_wake_all(&w->held);
}

static void reconnect(struct world *w, struct ctx *ctx)
{
    stream_free(TAKE_PTR(w->s));
    w->s = peer_accept(ctx, w->host);
}

static struct server_stats stats(struct world *w)
{
    struct server_stats st;

    server_get_stats(w->server, &st);
    return st;
}

/* Until so many requests were read. */
static void await_requests(struct world *w, struct ctx *ctx, uint64_t n)
{
    struct err err = ERR_INIT;

    while (stats(w).requests < n)
        ASSERT_OK(fiber_sleep(ctx, NS_PER_MS, &err), err);
}

/* --- negotiation --- */

TEST_FIBER(negotiation_answers_byte_for_byte_as_the_real_guest)
{
    static const char want[] =
        "{\"Result\":0,\"ActivityId\":\"00000000-0000-0000-0000-000000000000\",\"Version\":4,"
        "\"Capabilities\":{\"SupportedSchemaVersions\":[{\"Major\":2,\"Minor\":1}],"
        "\"RuntimeOsType\":\"Linux\",\"GuestDefinedCapabilities\":{"
        "\"NamespaceAddRequestSupported\":true,\"SignalProcessSupported\":true,"
        "\"DumpStacksSupported\":true,\"DeleteContainerStateSupported\":true}}}";
    AUTO_FREE char *text = NULL;
    struct world w;

    world_start(&w, ctx, 0);
    w.s = peer_accept(ctx, w.host);
    peer_send(ctx, w.s, BRIDGE_NEGOTIATE_PROTOCOL, 3,
              "{\"ContainerId\":\"\",\"ActivityId\":\"00000000-0000-0000-0000-000000000000\","
              "\"MinimumVersion\":4,\"MaximumVersion\":4}\n");
    struct bridge_header h = peer_recv(ctx, w.s, &text);
    ASSERT_EQ(h.type, 0x20100b01);
    ASSERT_EQ(h.id, 3);
    ASSERT_STR(text, want);
    ASSERT_EQ(w.negotiated, 1);
    world_release(&w, ctx);
}

static uint32_t negotiate(struct world *w, struct ctx *ctx, unsigned min, unsigned max)
{
    AUTO_FREE char *text = str_format("{\"MinimumVersion\":%u,\"MaximumVersion\":%u}", min, max);

    peer_send(ctx, w->s, BRIDGE_NEGOTIATE_PROTOCOL, 1, text);
    return peer_expect(ctx, w->s, BRIDGE_NEGOTIATE_PROTOCOL, 1);
}

TEST_FIBER(versions_that_do_not_meet_are_refused_and_may_be_tried_again)
{
    struct world w;

    world_start(&w, ctx, 0);
    w.s = peer_accept(ctx, w.host);
    ASSERT_EQ(negotiate(&w, ctx, 1, 3), BRIDGE_HR_UNSUPPORTED_VERSION);
    ASSERT_EQ(negotiate(&w, ctx, 5, 9), BRIDGE_HR_UNSUPPORTED_VERSION);
    peer_send(ctx, w.s, BRIDGE_NEGOTIATE_PROTOCOL, 2, "{\"MinimumVersion\":4.0}");
    ASSERT_EQ(peer_expect(ctx, w.s, BRIDGE_NEGOTIATE_PROTOCOL, 2), BRIDGE_HR_INVALID_JSON);
    peer_send(ctx, w.s, BRIDGE_START, 3, BASE);
    ASSERT_EQ(peer_expect(ctx, w.s, BRIDGE_START, 3), BRIDGE_HR_NOT_IMPLEMENTED);
    ASSERT_EQ(negotiate(&w, ctx, 1, 9), 0);
    peer_send(ctx, w.s, BRIDGE_START, 4, BASE);
    ASSERT_EQ(peer_expect(ctx, w.s, BRIDGE_START, 4), 0);
    world_release(&w, ctx);
}

TEST_FIBER(a_second_negotiation_is_refused)
{
    struct world w;

    world_init(&w, ctx, 0);
    ASSERT_EQ(negotiate(&w, ctx, 4, 4), BRIDGE_HR_NOT_IMPLEMENTED);
    peer_send(ctx, w.s, BRIDGE_START, 2, BASE);
    ASSERT_EQ(peer_expect(ctx, w.s, BRIDGE_START, 2), 0);
    world_release(&w, ctx);
}

TEST_FIBER(before_negotiation_nothing_is_served)
{
    struct world w;

    world_start(&w, ctx, 0);
    w.s = peer_accept(ctx, w.host);
    peer_send(ctx, w.s, BRIDGE_START, 1, BASE);
    ASSERT_EQ(peer_expect(ctx, w.s, BRIDGE_START, 1), BRIDGE_HR_NOT_IMPLEMENTED);
    peer_send(ctx, w.s, BRIDGE_WAIT_FOR_PROCESS, 2, "not even JSON");
    ASSERT_EQ(peer_expect(ctx, w.s, BRIDGE_WAIT_FOR_PROCESS, 2), BRIDGE_HR_NOT_IMPLEMENTED);
    ASSERT_EQ(w.served, 0);
    peer_negotiate(ctx, w.s);
    world_release(&w, ctx);
}

/* --- requests --- */

TEST_FIBER(unknown_messages_are_answered_with_their_type_and_id)
{
    static const uint32_t types[] = { BRIDGE_UPDATE_CONTAINER,
                                      BRIDGE_LIFECYCLE_NOTIFICATION,
                                      BRIDGE_MODIFY_SERVICE_SETTINGS,
                                      BRIDGE_CREATE,
                                      0x1ffffff1,
                                      0x40101001 };
    struct world w;

    world_init(&w, ctx, 0);
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        peer_send(ctx, w.s, types[i], 100 + i, BASE);
        AUTO(json_decref) json_t *r = peer_expect_json(ctx, w.s, types[i], 100 + i);
        ASSERT_EQ((uint32_t)json_integer_value(js_get(r, "Result")), BRIDGE_HR_NOT_IMPLEMENTED);
        ASSERT_STR(json_string_value(js_get(r, "ActivityId")), BRIDGE_NULL_ID);
        ASSERT_STR(json_string_value(js_get(r, "ErrorMessage")), "HRESULT: 0x80004001");
    }
    world_release(&w, ctx);
}

TEST_FIBER(a_refusal_has_the_shape_of_the_real_guest)
{
    AUTO_FREE char *text = NULL;
    struct world w;

    world_init(&w, ctx, 0);
    peer_send(ctx, w.s, BRIDGE_SIGNAL_PROCESS, 24, BASE);
    peer_recv(ctx, w.s, &text);
    ASSERT_STR(text, "{\"Result\":-1070137074,\"ActivityId\":\"" BRIDGE_NULL_ID "\","
                     "\"ErrorMessage\":\"no container x\",\"ErrorRecords\":[{\"Result\":"
                     "-1070137074,\"Message\":\"no container x\",\"ModuleName\":\"gcs\","
                     "\"FileName\":\"\",\"Line\":4294967295}]}");
    world_release(&w, ctx);
}

TEST_FIBER(undecodable_requests_are_answered)
{
    static const char *const bad[] = { "", "x", "[]", "{\"ContainerId\":5}", "{", "null" };
    struct world w;

    world_init(&w, ctx, 0);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        peer_send(ctx, w.s, BRIDGE_SIGNAL_PROCESS, i, bad[i]);
        uint32_t result = peer_expect(ctx, w.s, BRIDGE_SIGNAL_PROCESS, i);
        ASSERT(result == BRIDGE_HR_INVALID_JSON ||
               (i == 5 && result == BRIDGE_HR_NO_CONTAINER)); /* null leaves the defaults */
    }
    AUTO_FREE char *deep = mem_zalloc(100001);
    memset(deep, '[', 100000);
    peer_send(ctx, w.s, BRIDGE_SIGNAL_PROCESS, 50, deep);
    ASSERT_EQ(peer_expect(ctx, w.s, BRIDGE_SIGNAL_PROCESS, 50), BRIDGE_HR_INVALID_JSON);
    world_release(&w, ctx);
}

TEST_FIBER(a_silent_request_gets_no_answer)
{
    struct world w;

    world_init(&w, ctx, 0);
    peer_send(ctx, w.s, BRIDGE_SHUTDOWN_FORCED, 1, BASE);
    peer_send(ctx, w.s, BRIDGE_START, 2, BASE);
    ASSERT_EQ(peer_expect(ctx, w.s, BRIDGE_START, 2), 0);
    world_release(&w, ctx);
}

TEST_FIBER(answers_come_in_the_order_they_are_ready)
{
    struct world w;

    world_init(&w, ctx, 0);
    peer_send(ctx, w.s, BRIDGE_DELETE_CONTAINER_STATE, 1, BASE);
    peer_send(ctx, w.s, BRIDGE_START, 2, BASE);
    ASSERT_EQ(peer_expect(ctx, w.s, BRIDGE_START, 2), 0);
    let_go(&w, 1);
    ASSERT_EQ(peer_expect(ctx, w.s, BRIDGE_DELETE_CONTAINER_STATE, 1), 0);
    world_release(&w, ctx);
}

TEST_FIBER(a_thousand_requests_are_in_flight_at_once)
{
    enum { N = 1000 };
    AUTO_FREE char *seen = mem_zalloc(N), *text = NULL;
    struct err err = ERR_INIT;
    struct world w;

    world_init(&w, ctx, 0);
    for (uint64_t i = 0; i < N; i++)
        peer_send(ctx, w.s, BRIDGE_DELETE_CONTAINER_STATE, i, BASE);
    await_requests(&w, ctx, N + 1);
    while (w.started < N) /* read, but their fibers have not all had their turn */
        ASSERT_OK(fiber_sleep(ctx, NS_PER_MS, &err), err);
    ASSERT_EQ(stats(&w).in_flight, N);
    let_go(&w, N);
    for (int i = 0; i < N; i++) {
        struct bridge_header h = peer_recv(ctx, w.s, &text);
        free(TAKE_PTR(text));
        ASSERT(h.id < N && !seen[h.id]);
        seen[h.id] = 1;
    }
    world_release(&w, ctx);
}

TEST_FIBER(too_many_requests_are_not_read_until_there_is_room)
{
    struct world w;
    struct err err = ERR_INIT;

    world_init(&w, ctx, 4);
    for (uint64_t i = 0; i < 10; i++)
        peer_send(ctx, w.s, BRIDGE_DELETE_CONTAINER_STATE, i, BASE);
    await_requests(&w, ctx, 5);
    ASSERT_OK(fiber_sleep(ctx, 10 * NS_PER_MS, &err), err);
    ASSERT_EQ(w.started, 4);
    ASSERT_EQ(stats(&w).requests, 5); /* the negotiation and four */
    let_go(&w, 1);
    ASSERT_EQ(peer_expect(ctx, w.s, BRIDGE_DELETE_CONTAINER_STATE, 0), 0);
    await_requests(&w, ctx, 6);
    ASSERT_EQ(stats(&w).requests, 6);
    let_go(&w, 9);
    unsigned seen = 0;
    for (int i = 1; i < 10; i++) {
        AUTO_FREE char *text = NULL;
        seen |= 1u << peer_recv(ctx, w.s, &text).id;
    }
    ASSERT_EQ(seen, 0x3fe);
    world_release(&w, ctx);
}

TEST_FIBER(waits_for_processes_do_not_keep_others_out)
{
    struct world w;

    world_init(&w, ctx, 2);
    for (uint64_t i = 0; i < 300; i++)
        peer_send(ctx, w.s, BRIDGE_WAIT_FOR_PROCESS, i, "{\"ActivityId\":\"" BRIDGE_NULL_ID "\"}");
    peer_send(ctx, w.s, BRIDGE_START, 999, BASE);
    ASSERT_EQ(peer_expect(ctx, w.s, BRIDGE_START, 999), 0);
    ASSERT_EQ(stats(&w).parked, 300);
    let_go(&w, 300);
    for (uint64_t i = 0; i < 300; i++) {
        AUTO(json_decref) json_t *r = peer_expect_json(ctx, w.s, BRIDGE_WAIT_FOR_PROCESS, i);
        ASSERT_EQ(json_integer_value(js_get(r, "ExitCode")), 5);
        ASSERT_STR(json_string_value(js_get(r, "ActivityId")), BRIDGE_NULL_ID);
    }
    world_release(&w, ctx);
}

TEST_FIBER(too_many_waits_are_refused_not_stored)
{
    struct world w;

    world_init(&w, ctx, 0);
    for (uint64_t i = 0; i < SERVER_PARKED + 1; i++)
        peer_send(ctx, w.s, BRIDGE_WAIT_FOR_PROCESS, i, "{}");
    ASSERT_EQ(peer_expect(ctx, w.s, BRIDGE_WAIT_FOR_PROCESS, SERVER_PARKED), BRIDGE_HR_FAIL);
    ASSERT_EQ(stats(&w).parked, SERVER_PARKED);
    world_release(&w, ctx);
    ASSERT_EQ(w.cancelled, SERVER_PARKED);
}

/* --- bad frames --- */

TEST_FIBER(a_frame_of_impossible_size_drops_the_connection_and_it_is_dialled_again)
{
    static const uint32_t sizes[] = { 0, 15, BRIDGE_MAX_REQUEST + 1, UINT32_MAX };
    struct world w;

    world_init(&w, ctx, 0);
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        uint8_t raw[BRIDGE_HEADER_BYTES];
        bridge_header_encode(&(struct bridge_header){ BRIDGE_START, sizes[i], 1 }, raw);
        peer_send_raw(ctx, w.s, raw, sizeof(raw));
        peer_expect_end(ctx, w.s);
        reconnect(&w, ctx);
        peer_negotiate(ctx, w.s);
    }
    ASSERT_EQ(stats(&w).connections, 5);
    world_release(&w, ctx);
}

TEST_FIBER(a_truncated_frame_is_dropped_with_its_connection)
{
    uint8_t raw[BRIDGE_HEADER_BYTES];
    struct world w;

    world_init(&w, ctx, 0);
    bridge_header_encode(&(struct bridge_header){ BRIDGE_START, 1000, 1 }, raw);
    peer_send_raw(ctx, w.s, raw, sizeof(raw));
    peer_send_raw(ctx, w.s, "{\"Con", 6);
    reconnect(&w, ctx);
    peer_send_raw(ctx, w.s, raw, 7);
    reconnect(&w, ctx);
    peer_negotiate(ctx, w.s);
    ASSERT_EQ(w.served, 0);
    world_release(&w, ctx);
}

/* --- lost connections --- */

TEST_FIBER(a_new_connection_must_negotiate_again)
{
    struct world w;

    world_init(&w, ctx, 0);
    reconnect(&w, ctx);
    peer_send(ctx, w.s, BRIDGE_START, 1, BASE);
    ASSERT_EQ(peer_expect(ctx, w.s, BRIDGE_START, 1), BRIDGE_HR_NOT_IMPLEMENTED);
    peer_negotiate(ctx, w.s);
    world_release(&w, ctx);
}

TEST_FIBER(an_answer_without_a_connection_is_dropped)
{
    struct world w;
    struct err err = ERR_INIT;

    world_init(&w, ctx, 0);
    peer_send(ctx, w.s, BRIDGE_WAIT_FOR_PROCESS, 1, "{}");
    await_requests(&w, ctx, 2);
    dial_pair_refuse(w.host, ECONNREFUSED, -1);
    stream_free(TAKE_PTR(w.s));
    ASSERT_OK(fiber_sleep(ctx, 5 * NS_PER_MS, &err), err);
    let_go(&w, 1);
    while (stats(&w).dropped == 0)
        ASSERT_OK(fiber_sleep(ctx, NS_PER_MS, &err), err);
    dial_pair_refuse(w.host, 0, 0);
    w.s = peer_accept(ctx, w.host);
    peer_negotiate(ctx, w.s);
    world_release(&w, ctx);
}

TEST_FIBER(an_old_request_answers_on_the_new_connection_with_its_old_id)
{
    struct world w;

    world_init(&w, ctx, 0);
    peer_send(ctx, w.s, BRIDGE_WAIT_FOR_PROCESS, 77, "{}");
    await_requests(&w, ctx, 2);
    reconnect(&w, ctx);
    peer_negotiate(ctx, w.s);
    let_go(&w, 1);
    ASSERT_EQ(peer_expect(ctx, w.s, BRIDGE_WAIT_FOR_PROCESS, 77), 0);
    world_release(&w, ctx);
}

TEST_FIBER(a_host_that_reads_no_answers_is_held_back_and_harms_nothing)
{
    struct world w;
    struct err err = ERR_INIT;
    struct ctx brief = ctx_with_timeout(ctx, 200 * NS_PER_MS);
    AUTO(sbuf_release) struct sbuf frames = { 0 };

    world_init(&w, ctx, 8);
    for (int i = 0; i < 50000; i++) {
        uint8_t raw[BRIDGE_HEADER_BYTES];
        bridge_header_encode(&(struct bridge_header){ BRIDGE_CREATE, BRIDGE_HEADER_BYTES, 1 }, raw);
        sbuf_add(&frames, raw, sizeof(raw));
    }
    ASSERT_FAIL(stream_write_full(&brief, w.s, frames.data, frames.len, &err), err, ERR_DEADLINE);
    ASSERT(stats(&w).in_flight <= 8);
    reconnect(&w, ctx);
    peer_negotiate(ctx, w.s);
    ASSERT_EQ(stats(&w).in_flight, 0);
    world_release(&w, ctx);
}

TEST_VIRTUAL(the_bridge_is_dialled_for_ever_ten_times_a_second)
{
    struct world w;
    struct err err = ERR_INIT;

    world_start(&w, ctx, 0);
    dial_pair_refuse(w.host, ECONNREFUSED, -1);
    ASSERT_OK(fiber_sleep(ctx, 5 * NS_PER_S, &err), err);
    ASSERT(dial_pair_count(w.host) >= 49 && dial_pair_count(w.host) <= 51);
    ASSERT_EQ(w.unreachable, 1); /* told once */
    world_release(&w, ctx);
}

static void ask_and_await_trim(struct world *w, struct ctx *ctx, uint64_t id)
{
    struct err err = ERR_INIT;
    unsigned before = stats(w).trims;

    peer_send(ctx, w->s, BRIDGE_START, id, BASE);
    ASSERT_EQ(peer_expect(ctx, w->s, BRIDGE_START, id), 0);
    while (stats(w).trims == before)
        ASSERT_OK(fiber_sleep(ctx, 5 * NS_PER_MS, &err), err);
}

TEST_FIBER(memory_goes_back_once_after_requests_and_not_again_before_the_next)
{
    struct err err = ERR_INIT;
    struct world w;

    world_init(&w, ctx, 0);
    peer_send(ctx, w.s, BRIDGE_DELETE_CONTAINER_STATE, 1, BASE); /* one that waits does not count */
    ask_and_await_trim(&w, ctx, 2);
    ASSERT_OK(fiber_sleep(ctx, 10 * TRIM_SOON_NS, &err), err);
    unsigned n = stats(&w).trims;
    ASSERT_OK(fiber_sleep(ctx, 10 * TRIM_SOON_NS, &err), err);
    ASSERT_EQ(stats(&w).trims, n);
    ask_and_await_trim(&w, ctx, 3);
    let_go(&w, 1);
    ASSERT_EQ(peer_expect(ctx, w.s, BRIDGE_DELETE_CONTAINER_STATE, 1), 0);
    world_release(&w, ctx); /* before its time is over, perhaps */
}

/* --- notifications --- */

static void notify(struct world *w, const char *id)
{
    struct err err = ERR_INIT;

    ASSERT_OK(server_notify(w->server,
                            &(struct bridge_notification){ .container_id = id,
                                                           .type = BRIDGE_NOTE_FORCED_EXIT },
                            &err),
              err);
}

static void expect_note(struct world *w, struct ctx *ctx, const char *id)
{
    AUTO(json_decref) json_t *n = peer_expect_json(ctx, w->s, BRIDGE_CONTAINER_NOTIFICATION, 0);

    ASSERT_STR(json_string_value(js_get(n, "ContainerId")), id);
}

TEST_FIBER(a_notification_goes_out_at_once_when_connected)
{
    struct world w;

    world_init(&w, ctx, 0);
    notify(&w, "a");
    notify(&w, "b");
    expect_note(&w, ctx, "a");
    expect_note(&w, ctx, "b");
    ASSERT_EQ(stats(&w).notes, 0);
    world_release(&w, ctx);
}

TEST_FIBER(notifications_wait_for_a_connection_and_come_before_negotiation)
{
    struct world w;

    world_start(&w, ctx, 0);
    dial_pair_refuse(w.host, ECONNREFUSED, 2);
    notify(&w, "a");
    notify(&w, "b");
    w.s = peer_accept(ctx, w.host);
    expect_note(&w, ctx, "a");
    expect_note(&w, ctx, "b");
    peer_negotiate(ctx, w.s);
    world_release(&w, ctx);
}

TEST_FIBER(notifications_are_bounded)
{
    struct world w;
    struct err err = ERR_INIT;
    const struct bridge_notification note = { .container_id = "x",
                                              .type = BRIDGE_NOTE_UNEXPECTED_EXIT };

    world_start(&w, ctx, 0);
    dial_pair_refuse(w.host, ECONNREFUSED, -1);
    for (int i = 0; i < SERVER_NOTES; i++)
        ASSERT_OK(server_notify(w.server, &note, &err), err);
    ASSERT_FAIL(server_notify(w.server, &note, &err), err, ERR_EXHAUSTED);
    world_release(&w, ctx);
}
