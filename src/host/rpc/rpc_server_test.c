/* The server against a peer that writes frames by hand. */
#include "base/fd.h"
#include "base/loop.h"
#include "fixture/kept_spans.h"
#include "fixture/rpc_fixture.h"
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

TEST_FIBER(answers_match_the_vectors_byte_for_byte)
{
    struct fake f = { 0 };
    struct rpc_server *s = fake_server(ctx->loop, &f);
    AUTO(stream_free) struct stream *peer = peer_of(ctx, s);

    peer_send_vector(ctx, peer, "T1");
    peer_expect_vector(ctx, peer, "T2");
    peer_send_vector(ctx, peer, "T3");
    peer_expect_vector(ctx, peer, "T4");
    peer_request(ctx, peer, 5, TASK_V2, "Kill", "gone", 0);
    peer_expect_vector(ctx, peer, "T5");
    peer_request(ctx, peer, 7, "containerd.task.v9.Task", "Kill", "c1", 0);
    peer_expect_vector(ctx, peer, "T6");
    end_server(ctx, s);
    peer_expect_end(ctx, peer);
}

/* This server has no streaming method: T8 opens a stream, T9 and T11 are its data. */
TEST_FIBER(opening_a_stream_is_refused_and_the_connection_stays_open)
{
    struct fake f = { 0 };
    struct rpc_server *s = fake_server(ctx->loop, &f);
    AUTO(stream_free) struct stream *peer = peer_of(ctx, s);
    AUTO(sbuf_release) struct sbuf body = { 0 };

    peer_send_vector(ctx, peer, "T8");
    peer_expect(ctx, peer, 1, ERR_UNIMPLEMENTED, "service " STREAMING);
    peer_send_vector(ctx, peer, "T9");
    peer_expect(ctx, peer, 1, ERR_INVALID, "stream 1 is not open");
    peer_send_vector(ctx, peer, "T11");
    peer_expect(ctx, peer, 1, ERR_INVALID, "stream 1 is not open");

    ttrpc_put_request(&body, &(struct ttrpc_request){ .service = pb_slice_of(TASK_V3),
                                                      .method = pb_slice_of("Connect") });
    peer_frame(ctx, peer, 3, TTRPC_REQUEST, TTRPC_OPEN | TTRPC_NO_DATA, SLICE(body));
    peer_expect(ctx, peer, 3, ERR_UNIMPLEMENTED, "method Connect is not a stream");
    peer_frame(ctx, peer, 3, TTRPC_DATA, TTRPC_CLOSED | TTRPC_NO_DATA, (struct pb_slice){ 0 });
    peer_expect(ctx, peer, 3, ERR_INVALID, "stream 3 is not open");
    ASSERT_EQ(f.calls, 0);
    /* Every unary request has the flag for "no more data". */
    peer_frame(ctx, peer, 5, TTRPC_REQUEST, TTRPC_CLOSED, SLICE(body));
    peer_expect(ctx, peer, 5, 0, "");
    ASSERT_EQ(f.calls, 1);
    end_server(ctx, s);
}

static void send_traced(struct ctx *ctx, struct stream *peer, uint32_t stream, const char *parent,
                        const char *state)
{
    AUTO(sbuf_release) struct sbuf body = { 0 }, metadata = { 0 }, payload = { 0 };
    KillRequest kill = KILL_REQUEST__INIT;

    kill.id = "gone";
    kill.exec_id = "e1";
    ASSERT_EQ(pb_pack(&kill, &payload), 0);
    ttrpc_put_metadata(&metadata, "containerd-namespace-ttrpc", "k8s.io");
    ttrpc_put_metadata(&metadata, "traceparent", parent);
    ttrpc_put_metadata(&metadata, "tracestate", state);
    ttrpc_put_request(&body, &(struct ttrpc_request){ .service = pb_slice_of(TASK_V3),
                                                      .method = pb_slice_of("Kill"),
                                                      .payload = SLICE(payload),
                                                      .metadata = SLICE(metadata) });
    peer_frame(ctx, peer, stream, TTRPC_REQUEST, TTRPC_CLOSED, SLICE(body));
    peer_expect(ctx, peer, stream, ERR_NOT_FOUND, "process already finished: not found");
}

TEST_FIBER(a_request_is_a_span_of_the_clients_trace_unless_that_is_not_sampled)
{
    struct fake f = { 0 };
    struct rpc_server *s = fake_server(ctx->loop, &f);
    AUTO(stream_free) struct stream *peer = peer_of(ctx, s);
    struct kept k = kept_with(ctx->loop);
    char long_state[TRACE_STATE_MAX + 2];
    struct trace client;
    bool sampled;

    memset(long_state, 'x', sizeof(long_state) - 1);
    long_state[sizeof(long_state) - 1] = '\0';
    rpc_server_trace(s, &k.sink);
    send_traced(ctx, peer, 1, KEPT_PARENT, "a=b");
    ASSERT_EQ(k.n, 1);
    ASSERT(trace_parse(KEPT_PARENT, strlen(KEPT_PARENT), &client, &sampled));
    ASSERT(kept_is_child(&k.spans[0], &client));
    ASSERT_STR(k.names[0], "Kill");
    ASSERT_EQ(k.spans[0].kind, SPAN_SERVER);
    ASSERT(k.spans[0].err && k.spans[0].trace.tracestate);
    ASSERT_EQ(k.spans[0].n_attrs, 1);
    ASSERT_STR(k.spans[0].attrs[0].key, "eid");
    send_traced(ctx, peer, 3, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00", "a=b");
    ASSERT_EQ(k.n, 1);
    send_traced(ctx, peer, 5, "rubbish", "a=b"); /* then a trace begins here */
    ASSERT_EQ(k.n, 2);
    ASSERT(!k.spans[1].trace.tracestate);
    ASSERT_EQ(k.spans[1].parent_id[0], 0);
    send_traced(ctx, peer, 7, KEPT_PARENT, long_state);
    ASSERT(!k.spans[2].trace.tracestate);
    end_server(ctx, s);
}

/* A restarting containerd closes its connection. */
TEST_VIRTUAL(a_method_with_a_limit_continues_after_its_client_disconnects)
{
    struct fake f = { 0 };
    struct rpc_server *s = fake_server(ctx->loop, &f);
    struct stream *peer = peer_of(ctx, s);
    uint64_t began = loop_now(ctx->loop);

    peer_request(ctx, peer, 1, TASK_V2, "Start", "c1", 1); /* a timeout of 1 ns */
    peer_request(ctx, peer, 3, TASK_V2, "Wait", "c1", 0);
    EVENTUALLY(ctx, f.waiting == 2);
    stream_free(peer);
    EVENTUALLY(ctx, f.waiting == 1); /* Wait ends with its client */
    ASSERT_EQ(f.wait_code, ERR_CANCELLED);
    EVENTUALLY(ctx, f.waiting == 0);
    ASSERT_EQ(f.wait_code, ERR_DEADLINE);
    ASSERT(loop_now(ctx->loop) - began >= FAKE_LIMIT);
    end_server(ctx, s);
}

TEST_FIBER(frames_may_arrive_byte_by_byte_or_several_at_once)
{
    struct fake f = { 0 };
    struct rpc_server *s = fake_server(ctx->loop, &f);
    AUTO(stream_free) struct stream *peer = peer_of(ctx, s);
    struct vector one = vector_load("T1"), two = vector_load("T3");
    uint8_t both[sizeof(one.bytes) + sizeof(two.bytes)];

    for (size_t i = 0; i < one.len; i++) {
        peer_send(ctx, peer, one.bytes + i, 1);
        fiber_yield(ctx->loop);
    }
    peer_expect_vector(ctx, peer, "T2");
    one.bytes[7] = 3; /* the same request on the next stream */
    two.bytes[7] = 5;
    memcpy(both, one.bytes, one.len);
    memcpy(both + one.len, two.bytes, two.len);
    peer_send(ctx, peer, both, one.len + two.len);
    peer_expect(ctx, peer, 3, 0, "");
    peer_expect(ctx, peer, 5, 0, "");
    end_server(ctx, s);
}

TEST_FIBER(unknown_services_and_methods_are_unimplemented)
{
    struct fake f = { 0 };
    struct rpc_server *s = fake_server(ctx->loop, &f);
    AUTO(stream_free) struct stream *peer = peer_of(ctx, s);
    AUTO(sbuf_release) struct sbuf name = { 0 };

    peer_request(ctx, peer, 1, TASK_V3, "Nope", "c1", 0);
    peer_expect(ctx, peer, 1, ERR_UNIMPLEMENTED, "method Nope");
    peer_frame(ctx, peer, 3, TTRPC_REQUEST, 0, (struct pb_slice){ 0 });
    peer_expect(ctx, peer, 3, ERR_UNIMPLEMENTED, "service ");
    /* In the .proto, but without a handler. */
    peer_request(ctx, peer, 5, TASK_V3, "Checkpoint", "c1", 0);
    peer_expect(ctx, peer, 5, ERR_UNIMPLEMENTED, "method Checkpoint");
    for (int i = 0; i < 100000; i++)
        sbuf_addc(&name, 'x');
    peer_request(ctx, peer, 7, name.data, "Kill", "c1", 0);
    peer_expect(ctx, peer, 7, ERR_UNIMPLEMENTED, "service xxx");
    ASSERT_EQ(f.calls, 0);
    end_server(ctx, s);
}

TEST_FIBER(invalid_stream_ids_get_an_error_and_the_connection_stays_open)
{
    struct fake f = { 0 };
    struct rpc_server *s = fake_server(ctx->loop, &f);
    AUTO(stream_free) struct stream *peer = peer_of(ctx, s);

    peer_request(ctx, peer, 2, TASK_V2, "Connect", "c1", 0);
    peer_expect(ctx, peer, 2, ERR_INVALID, "invalid stream id");
    peer_request(ctx, peer, 0, TASK_V2, "Connect", "c1", 0);
    peer_expect(ctx, peer, 0, ERR_INVALID, "invalid stream id");
    peer_request(ctx, peer, 9, TASK_V2, "Connect", "c1", 0);
    peer_expect(ctx, peer, 9, 0, "");
    peer_request(ctx, peer, 9, TASK_V2, "Connect", "c1", 0);
    peer_expect(ctx, peer, 9, ERR_INVALID, "invalid stream id");
    peer_request(ctx, peer, 7, TASK_V2, "Connect", "c1", 0);
    peer_expect(ctx, peer, 7, ERR_INVALID, "invalid stream id");
    peer_frame(ctx, peer, 11, TTRPC_DATA, 0, pb_slice_of("xyz"));
    peer_expect(ctx, peer, 11, ERR_INVALID, "stream 11 is not open");
    peer_request(ctx, peer, UINT32_MAX, TASK_V2, "Connect", "c1", 0);
    peer_expect(ctx, peer, UINT32_MAX, 0, "");
    ASSERT_EQ(f.calls, 2);
    end_server(ctx, s);
}

TEST_FIBER(unknown_frame_types_are_ignored)
{
    struct fake f = { 0 };
    struct rpc_server *s = fake_server(ctx->loop, &f);
    AUTO(stream_free) struct stream *peer = peer_of(ctx, s);

    peer_frame(ctx, peer, 1, 9, 0xff, pb_slice_of("later"));
    peer_frame(ctx, peer, 2, 0, 0, (struct pb_slice){ 0 });
    peer_frame(ctx, peer, 1, TTRPC_RESPONSE, 0, pb_slice_of("x"));
    peer_send_vector(ctx, peer, "T1");
    peer_expect_vector(ctx, peer, "T2");
    end_server(ctx, s);
}

static void send_zeros(struct ctx *ctx, struct stream *s, size_t len)
{
    static const uint8_t zeros[65536];

    for (size_t n; len > 0; len -= n) {
        n = len < sizeof(zeros) ? len : sizeof(zeros);
        peer_send(ctx, s, zeros, n);
    }
}

TEST_FIBER(a_frame_that_is_too_long_is_refused_and_the_next_one_answered)
{
    struct fake f = { 0 };
    struct rpc_server *s = fake_server(ctx->loop, &f);
    AUTO(stream_free) struct stream *peer = peer_of(ctx, s);
    uint8_t header[TTRPC_HEADER_BYTES];

    ttrpc_header_encode(&(struct ttrpc_header){ TTRPC_BODY_MAX + 1, 1, TTRPC_REQUEST, 0 }, header);
    peer_send(ctx, peer, header, sizeof(header));
    send_zeros(ctx, peer, TTRPC_BODY_MAX + 1);
    peer_expect(ctx, peer, 1, ERR_EXHAUSTED, "message length 4194305 exceeds");
    /* A body of the maximum length is read, and is not a request. */
    ttrpc_header_encode(&(struct ttrpc_header){ TTRPC_BODY_MAX, 1, TTRPC_REQUEST, 0 }, header);
    peer_send(ctx, peer, header, sizeof(header));
    send_zeros(ctx, peer, TTRPC_BODY_MAX);
    peer_expect(ctx, peer, 1, ERR_INVALID, "the request is not a ttrpc.Request");
    peer_request(ctx, peer, 3, TASK_V2, "Connect", "c1", 0);
    peer_expect(ctx, peer, 3, 0, "");
    end_server(ctx, s);
}

TEST_FIBER(garbage_is_refused_as_an_invalid_message)
{
    struct fake f = { 0 };
    struct rpc_server *s = fake_server(ctx->loop, &f);
    AUTO(stream_free) struct stream *peer = peer_of(ctx, s);
    AUTO(sbuf_release) struct sbuf body = { 0 };

    peer_frame(ctx, peer, 1, TTRPC_REQUEST, 0, pb_slice_of("\x0a\x7f garbage"));
    peer_expect(ctx, peer, 1, ERR_INVALID, "the request is not a ttrpc.Request");
    ttrpc_put_request(&body, &(struct ttrpc_request){ .service = pb_slice_of(TASK_V2),
                                                      .method = pb_slice_of("Kill"),
                                                      .payload = pb_slice_of("\x0a\x7f garbage") });
    peer_frame(ctx, peer, 3, TTRPC_REQUEST, 0, SLICE(body));
    peer_expect(ctx, peer, 3, ERR_INVALID, "the payload is not a containerd.task.v3.KillRequest");
    peer_request(ctx, peer, 5, TASK_V2, "Kill", "\xc3\x28", 0);
    peer_expect(ctx, peer, 5, ERR_INVALID, "the payload is not a containerd.task.v3.KillRequest");
    ASSERT_EQ(f.calls, 0);
    end_server(ctx, s);
}

TEST_FIBER(a_handlers_result_is_sent_as_the_answer)
{
    struct fake f = { 0 };
    struct rpc_server *s = fake_server(ctx->loop, &f);
    AUTO(stream_free) struct stream *peer = peer_of(ctx, s);

    peer_request(ctx, peer, 1, TASK_V2, "State", "silent", 0);
    peer_expect(ctx, peer, 1, ERR_INTERNAL, "State failed without an error message");
    peer_request(ctx, peer, 3, TASK_V2, "State", "tried", 0);
    peer_expect(ctx, peer, 3, 0, "");
    peer_request(ctx, peer, 5, TASK_V2, "State", "bad", 0);
    peer_expect(ctx, peer, 5, ERR_INTERNAL, "a string in containerd.task.v3.StateResponse");
    /* Longer than a frame may be: the answer is an error, and the connection stays open. */
    peer_request(ctx, peer, 7, TASK_V2, "Pids", "1100000", 0);
    peer_expect(ctx, peer, 7, ERR_EXHAUSTED, "a PidsResponse of 4400000 bytes exceeds");
    peer_request(ctx, peer, 9, TASK_V2, "Pids", "1000000", 0);
    peer_expect(ctx, peer, 9, 0, "");
    end_server(ctx, s);
}

TEST_FIBER(a_thousand_waits_do_not_block_other_requests)
{
    struct fake f = { 0 };
    struct rpc_server *s = fake_server(ctx->loop, &f);
    AUTO(stream_free) struct stream *peer = peer_of(ctx, s);
    uint32_t id = 1;

    for (int i = 0; i < 1000; i++, id += 2)
        peer_request(ctx, peer, id, TASK_V2, "Wait", "c1", 0);
    peer_request(ctx, peer, id, TASK_V2, "Connect", "c1", 0);
    peer_expect(ctx, peer, id, 0, "");
    ASSERT_EQ(f.waiting, 1000);
    latch_set(&f.exited);
    for (uint32_t n = 1; n < id; n += 2)
        peer_expect(ctx, peer, n, 0, "");
    ASSERT_EQ(f.wait_code, ERR_NONE);
    end_server(ctx, s);
}

TEST_FIBER(too_many_requests_in_flight_are_refused)
{
    struct fake f = { 0 };
    struct rpc_server *s = fake_server(ctx->loop, &f);
    AUTO(stream_free) struct stream *peer = peer_of(ctx, s);
    uint32_t id = 1;

    for (unsigned i = 0; i < RPC_CALLS_PER_CONN; i++, id += 2)
        peer_request(ctx, peer, id, TASK_V2, "Wait", "c1", 0);
    peer_request(ctx, peer, id, TASK_V2, "Connect", "c1", 0);
    peer_expect(ctx, peer, id, ERR_EXHAUSTED, "too many requests in flight");
    ASSERT_EQ(rpc_server_stats(s).calls, RPC_CALLS_PER_CONN);
    /* Other clients are not affected. */
    AUTO(stream_free) struct stream *other = peer_of(ctx, s);

    peer_send_vector(ctx, other, "T1");
    peer_expect_vector(ctx, other, "T2");
    end_server(ctx, s);
}

TEST_FIBER(a_request_without_memory_for_its_stack_is_refused_and_the_next_one_answered)
{
#ifdef __SANITIZE_ADDRESS__
    tap_skip("ASan itself needs memory");
#endif
    struct fake f = { 0 };
    struct rpc_server *s = fake_server(ctx->loop, &f);
    AUTO(stream_free) struct stream *peer = peer_of(ctx, s);
    struct rlimit before, none;
    struct err err = ERR_INIT;

    peer_request(ctx, peer, 1, TASK_V2, "Connect", "c1", 0); /* all have what they need now */
    peer_expect(ctx, peer, 1, 0, "");
    ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
    none = (struct rlimit){ 0, before.rlim_max };
    loop_trim(ctx->loop);
    ASSERT_EQ(setrlimit(RLIMIT_AS, &none), 0);
    ASSERT_FAIL(fiber_admit(ctx->loop, &err), err, ERR_EXHAUSTED);
    ASSERT_EQ(err.reason, REASON_NO_MEMORY);
    peer_request(ctx, peer, 3, TASK_V2, "Connect", "c1", 0);
    peer_expect(ctx, peer, 3, ERR_EXHAUSTED, "no memory for another fiber's stack");
    ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
    peer_request(ctx, peer, 5, TASK_V2, "Connect", "c1", 0);
    peer_expect(ctx, peer, 5, 0, "");
    end_server(ctx, s);
}

TEST_FIBER(memory_of_requests_in_flight_is_bounded)
{
    struct fake f = { 0 };
    struct rpc_server *s = fake_server(ctx->loop, &f);
    AUTO(stream_free) struct stream *peer = peer_of(ctx, s);
    AUTO(sbuf_release) struct sbuf id = { 0 };
    AUTO_FREE uint8_t *body = NULL;
    struct ttrpc_response r;
    struct ttrpc_header h;

    for (int i = 0; i < 4000000; i++)
        sbuf_addc(&id, 'i');
    for (uint32_t n = 1; n < 40; n += 2)
        peer_request(ctx, peer, n, TASK_V2, "Wait", id.data, 0);
    h = peer_read(ctx, peer, &body); /* as it came and decoded: 16 of 8 MB fit */
    ASSERT(h.stream >= 33);          /* the next one may be refused before this one is decoded */
    ASSERT_EQ(ttrpc_response_decode((struct pb_slice){ body, h.len }, &r), 0);
    ASSERT_EQ(r.code, ERR_EXHAUSTED);
    ASSERT_EQ(f.waiting, 16);
    ASSERT(rpc_server_stats(s).mem <= RPC_MEM_MAX);
    end_server(ctx, s);
}

TEST_FIBER(a_client_that_disconnects_cancels_only_its_own_requests)
{
    struct fake f = { 0 };
    struct rpc_server *s = fake_server(ctx->loop, &f);
    struct stream *gone = peer_of(ctx, s);
    AUTO(stream_free) struct stream *peer = peer_of(ctx, s);

    peer_request(ctx, gone, 1, TASK_V2, "Wait", "c1", 0);
    peer_request(ctx, gone, 3, TASK_V2, "Wait", "c1", 0);
    peer_request(ctx, peer, 1, TASK_V2, "Wait", "c1", 0);
    EVENTUALLY(ctx, f.waiting == 3);
    stream_free(gone);
    EVENTUALLY(ctx, f.waiting == 1);
    ASSERT_EQ(f.wait_code, ERR_CANCELLED);
    ASSERT_EQ(rpc_server_stats(s).conns, 1);
    latch_set(&f.exited);
    peer_expect(ctx, peer, 1, 0, "");
    end_server(ctx, s);
}

TEST_FIBER(a_connection_may_close_at_any_byte)
{
    struct fake f = { 0 };
    struct rpc_server *s = fake_server(ctx->loop, &f);
    struct vector v = vector_load("T1");

    for (size_t n = 0; n < v.len; n++) {
        struct stream *peer = peer_of(ctx, s);

        peer_send(ctx, peer, v.bytes, n);
        stream_free(peer);
    }
    EVENTUALLY(ctx, rpc_server_stats(s).conns == 0);
    ASSERT_EQ(f.calls, 0);
    end_server(ctx, s);
}

TEST_FIBER(a_half_open_connection_uses_no_requests)
{
    struct fake f = { 0 };
    struct rpc_server *s = fake_server(ctx->loop, &f);
    AUTO(stream_free) struct stream *half = peer_of(ctx, s), *peer = peer_of(ctx, s);
    uint8_t header[TTRPC_HEADER_BYTES];

    ttrpc_header_encode(&(struct ttrpc_header){ 1000, 1, TTRPC_REQUEST, 0 }, header);
    peer_send(ctx, half, header, sizeof(header));
    peer_send_vector(ctx, peer, "T1");
    peer_expect_vector(ctx, peer, "T2");
    end_server(ctx, s);
}

/* The client requests much data and reads nothing. First its new requests are not started, then,
 * when the started ones are answered, it is disconnected. */
TEST_FIBER(a_client_that_does_not_read_is_disconnected)
{
    struct fake f = { 0 };
    struct rpc_server *s = fake_server(ctx->loop, &f);
    AUTO(stream_free) struct stream *slow = peer_of(ctx, s), *peer = peer_of(ctx, s);

    for (uint32_t id = 1; id < 80; id += 2)
        peer_request(ctx, slow, id, TASK_V2, "Pids", "400000", 0); /* 1.6 MB each */
    EVENTUALLY(ctx, rpc_server_stats(s).conns == 1);
    ASSERT(f.calls < 40);
    peer_send_vector(ctx, peer, "T1");
    peer_expect_vector(ctx, peer, "T2");
    end_server(ctx, s);
}

TEST_FIBER(a_slow_reader_gets_all_answers)
{
    struct fake f = { 0 };
    struct rpc_server *s = fake_server(ctx->loop, &f);
    AUTO(stream_free) struct stream *slow = peer_of(ctx, s);
    struct err err = ERR_INIT;

    for (uint32_t id = 1; id < 80; id += 2) {
        peer_request(ctx, slow, id, TASK_V2, "Pids", "200000", 0); /* 800 kB each */
        ASSERT_OK(fiber_sleep(ctx, NS_PER_MS, &err), err);
    }
    ASSERT(f.calls < 10); /* the others are not begun */
    for (uint32_t id = 1; id < 80; id += 2)
        peer_expect(ctx, slow, id, 0, "");
    end_server(ctx, s);
}

TEST_FIBER(many_connections_work)
{
    struct fake f = { 0 };
    struct rpc_server *s = fake_server(ctx->loop, &f);
    struct stream *peers[200];

    for (size_t i = 0; i < ARRAY_LEN(peers); i++)
        peers[i] = peer_of(ctx, s);
    for (size_t i = 0; i < ARRAY_LEN(peers); i++)
        peer_send_vector(ctx, peers[i], "T1");
    for (size_t i = 0; i < ARRAY_LEN(peers); i++) {
        peer_expect_vector(ctx, peers[i], "T2");
        stream_free(peers[i]);
    }
    EVENTUALLY(ctx, rpc_server_stats(s).conns == 0);
    end_server(ctx, s);
}

TEST_FIBER(a_failed_request_is_logged_once_and_a_good_one_is_not)
{
    struct fake f = { 0 };
    struct rpc_server *s = fake_server(ctx->loop, &f);
    AUTO(stream_free) struct stream *peer = peer_of(ctx, s);
    AUTO_FD int fd = memfd_create("log", MFD_CLOEXEC);
    char text[1024] = "";

    log_init(fd, LOG_INFO, LOG_LOGFMT);
    peer_request(ctx, peer, 1, TASK_V2, "Connect", "c1", 0);
    peer_expect(ctx, peer, 1, 0, "");
    peer_request(ctx, peer, 3, TASK_V2, "Kill", "gone", 0);
    peer_expect(ctx, peer, 3, ERR_NOT_FOUND, "process");
    log_init(2, LOG_OFF, LOG_LOGFMT);
    ASSERT(pread(fd, text, sizeof(text) - 1, 0) > 0);
    ASSERT_MSG_HAS(text, "msg=\"request failed\"");
    ASSERT_HAS(text, " operation=Kill cid=gone duration=");
    ASSERT_HAS(text, "code=\"not found\" error=");
    ASSERT(strchr(text, '\n') == strrchr(text, '\n'));
    end_server(ctx, s);
}

/* containerd kills each exec again after its exit. */
TEST_FIBER(an_expected_not_found_is_not_logged_as_an_error)
{
    struct fake f = { 0 };
    struct rpc_server *s = fake_server(ctx->loop, &f);
    AUTO(stream_free) struct stream *peer = peer_of(ctx, s);
    AUTO_FD int fd = memfd_create("log", MFD_CLOEXEC);
    char text[1024] = "";

    log_init(fd, LOG_DEBUG, LOG_LOGFMT);
    peer_request(ctx, peer, 1, TASK_V2, "State", "gone", 0);
    peer_expect(ctx, peer, 1, ERR_NOT_FOUND, "no such process");
    peer_request(ctx, peer, 3, TASK_V2, "State", "silent", 0); /* any other failure is one */
    peer_expect(ctx, peer, 3, ERR_INTERNAL, "State failed");
    log_init(2, LOG_OFF, LOG_LOGFMT);
    ASSERT(pread(fd, text, sizeof(text) - 1, 0) > 0);
    ASSERT_MSG_HAS(text, "msg=\"request for something that no longer exists\"");
    ASSERT_HAS(text, " operation=State");

    const char *failed = strstr(text, "level=warn");

    ASSERT(failed && !strstr(failed + 1, "level=warn"));
    ASSERT_MSG_HAS(failed, "msg=\"request failed\" operation=State cid=silent");
    ASSERT_MSG_HAS(failed, "State failed without an error message");
    end_server(ctx, s);
}

/* Its client gets no answer, so only the log shows the failure. */
TEST_VIRTUAL(a_request_that_fails_after_its_client_disconnected_is_logged)
{
    struct fake f = { 0 };
    struct rpc_server *s = fake_server(ctx->loop, &f);
    struct stream *peer = peer_of(ctx, s);
    AUTO_FD int fd = memfd_create("log", MFD_CLOEXEC);
    char text[1024] = "";

    log_init(fd, LOG_INFO, LOG_LOGFMT);
    peer_request(ctx, peer, 1, TASK_V2, "Start", "c1", 0);
    peer_request(ctx, peer, 3, TASK_V2, "Wait", "c1", 0); /* ends with its client, untold */
    EVENTUALLY(ctx, f.waiting == 2);
    stream_free(peer);
    EVENTUALLY(ctx, rpc_server_stats(s).calls == 0);
    log_init(2, LOG_OFF, LOG_LOGFMT);
    ASSERT(pread(fd, text, sizeof(text) - 1, 0) > 0);
    ASSERT_HAS(text, "level=error ");
    ASSERT_HAS(text, " operation=Start cid=c1 duration=");
    ASSERT(strchr(text, '\n') == strrchr(text, '\n'));
    end_server(ctx, s);
}

static unsigned lines_with(int fd, const char *words)
{
    AUTO_FREE char *text = mem_zalloc(1 << 20);
    unsigned n = 0;

    ASSERT(pread(fd, text, (1 << 20) - 1, 0) > 0);
    for (const char *at = text; (at = strstr(at, words)); at++)
        n++;
    return n;
}

/* The kubelet calls every 10 s as long as the pod exists. */
TEST_VIRTUAL(a_minor_request_that_keeps_failing_is_a_warning_every_ten_minutes)
{
    struct fake f = { 0 };
    struct rpc_server *s = fake_server(ctx->loop, &f);
    AUTO(stream_free) struct stream *peer = peer_of(ctx, s);
    AUTO_FD int fd = memfd_create("log", MFD_CLOEXEC);
    struct ctx hour = ctx_root(ctx->loop);
    struct err err = ERR_INIT;
    uint32_t id = 1;

    log_init(fd, LOG_DEBUG, LOG_LOGFMT);
    for (int i = 0; i < 360; i++, id += 2) {
        peer_request(&hour, peer, id, TASK_V2, "State", "silent", 0);
        peer_expect(&hour, peer, id, ERR_INTERNAL, "State failed");
        ASSERT_OK(fiber_sleep(&hour, 10 * NS_PER_S, &err), err);
    }
    ASSERT_EQ(lines_with(fd, "level=warn "), 6);
    ASSERT_EQ(lines_with(fd, "level=debug "), 354);
    for (int i = 0; i < 2; i++, id += 2) {
        peer_request(&hour, peer, id, TASK_V2, "Kill", "c2", 0);
        peer_expect(&hour, peer, id, ERR_NOT_FOUND, "process");
    }
    log_init(2, LOG_OFF, LOG_LOGFMT);
    ASSERT_EQ(lines_with(fd, "operation=Kill cid=c2"), 2);
    end_server(ctx, s);
}

static int other_request(struct ctx *ctx, struct fake *f, const ConnectRequest *req, Empty *resp,
                         struct err *err)
{
    (void)ctx, (void)f, (void)req, (void)resp;
    return err_set(err, ERR_INTERNAL, "never called");
}

static int other_response(struct ctx *ctx, struct fake *f, const KillRequest *req,
                          ConnectResponse *resp, struct err *err)
{
    (void)ctx, (void)f, (void)req, (void)resp;
    return err_set(err, ERR_INTERNAL, "never called");
}

static void add_wrong_table(void *arg)
{
    struct rpc_service wrong = { &task__descriptor, arg, 1 };
    struct rpc_server *s = rpc_server_new(NULL);

    rpc_server_add(s, TASK_V2, &wrong, NULL);
}

TEST(a_table_that_does_not_match_its_proto_aborts)
{
    static struct rpc_method wrong[] = {
        RPC_METHOD("Kill", other_request, struct fake, ConnectRequest, Empty),
        RPC_METHOD("Kill", other_response, struct fake, KillRequest, ConnectResponse),
        RPC_METHOD("Murder", fake_kill, struct fake, KillRequest, Empty),
        { .name = "Kill" },
    };

    for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
        ASSERT_ABORTS(add_wrong_table, &wrong[i], "does not match its .proto at");
}
