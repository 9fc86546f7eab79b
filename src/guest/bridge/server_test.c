#include "base/json.h"
#include "fixture/server_fixture.h"
#include <string.h>

/* --- negotiation --- */

TEST_FIBER(negotiation_answers_as_the_real_guest_and_with_what_it_lacks)
{
    static const char want[] =
        "{\"Result\":0,\"ActivityId\":\"00000000-0000-0000-0000-000000000000\",\"Version\":4,"
        "\"Capabilities\":{\"SupportedSchemaVersions\":[{\"Major\":2,\"Minor\":1}],"
        "\"RuntimeOsType\":\"Linux\",\"GuestDefinedCapabilities\":{"
        "\"NamespaceAddRequestSupported\":true,\"SignalProcessSupported\":true,"
        "\"DumpStacksSupported\":true,\"DeleteContainerStateSupported\":true,\"HolderSupported\":"
        "true}}}";
    AUTO_FREE char *text = NULL;
    struct fixture w;

    fixture_start(&w, ctx, 0);
    w.s = peer_accept(ctx, w.host);
    peer_send(ctx, w.s, BRIDGE_NEGOTIATE_PROTOCOL, 3,
              "{\"ContainerId\":\"\",\"ActivityId\":\"00000000-0000-0000-0000-000000000000\","
              "\"MinimumVersion\":4,\"MaximumVersion\":4}\n");
    struct bridge_header h = peer_recv(ctx, w.s, &text);
    ASSERT_EQ(h.type, 0x20100b01);
    ASSERT_EQ(h.id, 3);
    ASSERT_STR(text, want);
    ASSERT_EQ(w.negotiated, 1);
    fixture_release(&w, ctx);
}

static uint32_t negotiate(struct fixture *w, struct ctx *ctx, unsigned min, unsigned max)
{
    AUTO_FREE char *text = str_format("{\"MinimumVersion\":%u,\"MaximumVersion\":%u}", min, max);

    peer_send(ctx, w->s, BRIDGE_NEGOTIATE_PROTOCOL, 1, text);
    return peer_expect(ctx, w->s, BRIDGE_NEGOTIATE_PROTOCOL, 1);
}

TEST_FIBER(versions_that_do_not_meet_are_refused_and_may_be_tried_again)
{
    struct fixture w;

    fixture_start(&w, ctx, 0);
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
    fixture_release(&w, ctx);
}

TEST_FIBER(a_second_negotiation_is_refused)
{
    struct fixture w;

    fixture_init(&w, ctx, 0);
    ASSERT_EQ(negotiate(&w, ctx, 4, 4), BRIDGE_HR_NOT_IMPLEMENTED);
    peer_send(ctx, w.s, BRIDGE_START, 2, BASE);
    ASSERT_EQ(peer_expect(ctx, w.s, BRIDGE_START, 2), 0);
    fixture_release(&w, ctx);
}

TEST_FIBER(before_negotiation_other_requests_are_refused)
{
    struct fixture w;

    fixture_start(&w, ctx, 0);
    w.s = peer_accept(ctx, w.host);
    peer_send(ctx, w.s, BRIDGE_START, 1, BASE);
    ASSERT_EQ(peer_expect(ctx, w.s, BRIDGE_START, 1), BRIDGE_HR_NOT_IMPLEMENTED);
    peer_send(ctx, w.s, BRIDGE_WAIT_FOR_PROCESS, 2, "not even JSON");
    ASSERT_EQ(peer_expect(ctx, w.s, BRIDGE_WAIT_FOR_PROCESS, 2), BRIDGE_HR_NOT_IMPLEMENTED);
    ASSERT_EQ(w.served, 0);
    peer_negotiate(ctx, w.s);
    fixture_release(&w, ctx);
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
    struct fixture w;

    fixture_init(&w, ctx, 0);
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        peer_send(ctx, w.s, types[i], 100 + i, BASE);
        AUTO(json_decref) json_t *r = peer_expect_json(ctx, w.s, types[i], 100 + i);
        ASSERT_EQ((uint32_t)json_integer_value(js_get(r, "Result")), BRIDGE_HR_NOT_IMPLEMENTED);
        ASSERT_STR(json_string_value(js_get(r, "ActivityId")), BRIDGE_NULL_ID);
        ASSERT_STR(json_string_value(js_get(r, "ErrorMessage")), "HRESULT: 0x80004001");
    }
    fixture_release(&w, ctx);
}

TEST_FIBER(a_refusal_has_the_shape_of_the_real_guest)
{
    AUTO_FREE char *text = NULL;
    struct fixture w;

    fixture_init(&w, ctx, 0);
    peer_send(ctx, w.s, BRIDGE_SIGNAL_PROCESS, 24, BASE);
    peer_recv(ctx, w.s, &text);
    ASSERT_STR(text, "{\"Result\":-1070137074,\"ActivityId\":\"" BRIDGE_NULL_ID "\","
                     "\"ErrorMessage\":\"no container x\",\"ErrorRecords\":[{\"Result\":"
                     "-1070137074,\"Message\":\"no container x\",\"ModuleName\":\"gcs\","
                     "\"FileName\":\"\",\"Line\":4294967295}]}");
    fixture_release(&w, ctx);
}

TEST_FIBER(the_answer_to_a_traced_request_carries_its_steps)
{
    static const char base[] =
        "{\"ContainerId\":\"x\",\"otsc\":{\"traceparent\":\"00-4bf92f3577b34da6a3ce929d0e0e4736-"
        "00f067aa0ba902b7-%s\"}}";
    AUTO_FREE char *traced = str_format(base, "01"), *untraced = str_format(base, "00");
    struct fixture w;

    fixture_init(&w, ctx, 0);
    peer_send(ctx, w.s, BRIDGE_SIGNAL_PROCESS, 1, traced);
    AUTO(json_decref) json_t *r = peer_expect_json(ctx, w.s, BRIDGE_SIGNAL_PROCESS, 1);
    json_t *step = json_array_get(js_get(r, "Spans"), 0);
    ASSERT_STR(json_string_value(js_get(step, "Name")), "SignalProcess");
    ASSERT(json_is_true(js_get(step, "Failed")));
    peer_send(ctx, w.s, BRIDGE_SIGNAL_PROCESS, 2, untraced);
    AUTO(json_decref) json_t *other = peer_expect_json(ctx, w.s, BRIDGE_SIGNAL_PROCESS, 2);
    ASSERT(!json_object_get(other, "Spans"));
    fixture_release(&w, ctx);
}

TEST_FIBER(undecodable_requests_are_answered)
{
    static const char *const bad[] = { "", "x", "[]", "{\"ContainerId\":5}", "{", "null" };
    struct fixture w;

    fixture_init(&w, ctx, 0);
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
    fixture_release(&w, ctx);
}

TEST_FIBER(a_silent_request_gets_no_answer)
{
    struct fixture w;

    fixture_init(&w, ctx, 0);
    peer_send(ctx, w.s, BRIDGE_SHUTDOWN_FORCED, 1, BASE);
    peer_send(ctx, w.s, BRIDGE_START, 2, BASE);
    ASSERT_EQ(peer_expect(ctx, w.s, BRIDGE_START, 2), 0);
    fixture_release(&w, ctx);
}

TEST_FIBER(answers_come_in_the_order_they_are_ready)
{
    struct fixture w;

    fixture_init(&w, ctx, 0);
    peer_send(ctx, w.s, BRIDGE_DELETE_CONTAINER_STATE, 1, BASE);
    peer_send(ctx, w.s, BRIDGE_START, 2, BASE);
    ASSERT_EQ(peer_expect(ctx, w.s, BRIDGE_START, 2), 0);
    fixture_let_go(&w, 1);
    ASSERT_EQ(peer_expect(ctx, w.s, BRIDGE_DELETE_CONTAINER_STATE, 1), 0);
    fixture_release(&w, ctx);
}

TEST_FIBER(a_thousand_requests_are_in_flight_at_once)
{
    enum { N = 1000 };
    AUTO_FREE char *seen = mem_zalloc(N), *text = NULL;
    struct err err = ERR_INIT;
    struct fixture w;

    fixture_init(&w, ctx, 0);
    for (uint64_t i = 0; i < N; i++)
        peer_send(ctx, w.s, BRIDGE_DELETE_CONTAINER_STATE, i, BASE);
    fixture_await_requests(&w, ctx, N + 1);
    while (w.started < N) /* read, but their fibers have not all had their turn */
        ASSERT_OK(fiber_sleep(ctx, NS_PER_MS, &err), err);
    ASSERT_EQ(fixture_stats(&w).in_flight, N);
    fixture_let_go(&w, N);
    for (int i = 0; i < N; i++) {
        struct bridge_header h = peer_recv(ctx, w.s, &text);
        free(TAKE_PTR(text));
        ASSERT(h.id < N && !seen[h.id]);
        seen[h.id] = 1;
    }
    fixture_release(&w, ctx);
}

TEST_FIBER(too_many_requests_are_not_read_until_there_is_room)
{
    struct fixture w;
    struct err err = ERR_INIT;

    fixture_init(&w, ctx, 4);
    for (uint64_t i = 0; i < 10; i++)
        peer_send(ctx, w.s, BRIDGE_DELETE_CONTAINER_STATE, i, BASE);
    fixture_await_requests(&w, ctx, 5);
    ASSERT_OK(fiber_sleep(ctx, 10 * NS_PER_MS, &err), err);
    ASSERT_EQ(w.started, 4);
    ASSERT_EQ(fixture_stats(&w).requests, 5); /* the negotiation and four */
    fixture_let_go(&w, 1);
    ASSERT_EQ(peer_expect(ctx, w.s, BRIDGE_DELETE_CONTAINER_STATE, 0), 0);
    fixture_await_requests(&w, ctx, 6);
    ASSERT_EQ(fixture_stats(&w).requests, 6);
    fixture_let_go(&w, 9);
    unsigned seen = 0;
    for (int i = 1; i < 10; i++) {
        AUTO_FREE char *text = NULL;
        seen |= 1u << peer_recv(ctx, w.s, &text).id;
    }
    ASSERT_EQ(seen, 0x3fe);
    fixture_release(&w, ctx);
}

TEST_FIBER(waits_for_processes_do_not_keep_others_out)
{
    struct fixture w;

    fixture_init(&w, ctx, 2);
    for (uint64_t i = 0; i < 300; i++)
        peer_send(ctx, w.s, BRIDGE_WAIT_FOR_PROCESS, i, "{\"ActivityId\":\"" BRIDGE_NULL_ID "\"}");
    peer_send(ctx, w.s, BRIDGE_START, 999, BASE);
    ASSERT_EQ(peer_expect(ctx, w.s, BRIDGE_START, 999), 0);
    ASSERT_EQ(fixture_stats(&w).parked, 300);
    fixture_let_go(&w, 300);
    for (uint64_t i = 0; i < 300; i++) {
        AUTO(json_decref) json_t *r = peer_expect_json(ctx, w.s, BRIDGE_WAIT_FOR_PROCESS, i);
        ASSERT_EQ(json_integer_value(js_get(r, "ExitCode")), 5);
        ASSERT_STR(json_string_value(js_get(r, "ActivityId")), BRIDGE_NULL_ID);
    }
    fixture_release(&w, ctx);
}

TEST_FIBER(too_many_waits_are_refused_not_stored)
{
    struct fixture w;

    fixture_init(&w, ctx, 0);
    for (uint64_t i = 0; i < SERVER_PARKED + 1; i++)
        peer_send(ctx, w.s, BRIDGE_WAIT_FOR_PROCESS, i, "{}");
    ASSERT_EQ(peer_expect(ctx, w.s, BRIDGE_WAIT_FOR_PROCESS, SERVER_PARKED), BRIDGE_HR_FAIL);
    ASSERT_EQ(fixture_stats(&w).parked, SERVER_PARKED);
    fixture_release(&w, ctx);
    ASSERT_EQ(w.cancelled, SERVER_PARKED);
}

/* --- bad frames --- */

TEST_FIBER(a_frame_of_impossible_size_drops_the_connection_and_it_is_dialled_again)
{
    static const uint32_t sizes[] = { 0, 15, BRIDGE_MAX_REQUEST + 1, UINT32_MAX };
    struct fixture w;

    fixture_init(&w, ctx, 0);
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        uint8_t raw[BRIDGE_HEADER_BYTES];
        bridge_header_encode(&(struct bridge_header){ BRIDGE_START, sizes[i], 1 }, raw);
        peer_send_raw(ctx, w.s, raw, sizeof(raw));
        peer_expect_end(ctx, w.s);
        fixture_reconnect(&w, ctx);
        peer_negotiate(ctx, w.s);
    }
    ASSERT_EQ(fixture_stats(&w).connections, 5);
    fixture_release(&w, ctx);
}

TEST_FIBER(a_truncated_frame_is_dropped_with_its_connection)
{
    uint8_t raw[BRIDGE_HEADER_BYTES];
    struct fixture w;

    fixture_init(&w, ctx, 0);
    bridge_header_encode(&(struct bridge_header){ BRIDGE_START, 1000, 1 }, raw);
    peer_send_raw(ctx, w.s, raw, sizeof(raw));
    peer_send_raw(ctx, w.s, "{\"Con", 6);
    fixture_reconnect(&w, ctx);
    peer_send_raw(ctx, w.s, raw, 7);
    fixture_reconnect(&w, ctx);
    peer_negotiate(ctx, w.s);
    ASSERT_EQ(w.served, 0);
    fixture_release(&w, ctx);
}
