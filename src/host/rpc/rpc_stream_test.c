/* Streams in all three directions, and what a client can do wrong with them. */
#include "fixture/rpc_fixture.h"

static void open_stream(struct ctx *ctx, struct stream *peer, uint32_t id, uint8_t flags,
                        const char *payload)
{
    AUTO(sbuf_release) struct sbuf body = { 0 };

    ttrpc_put_request(&body, &(struct ttrpc_request){ .service = pb_slice_of(STREAMING),
                                                      .method = pb_slice_of("Stream"),
                                                      .payload = pb_slice_of(payload) });
    peer_frame(ctx, peer, id, TTRPC_REQUEST, flags, SLICE(body));
}

static void send_data(struct ctx *ctx, struct stream *peer, uint32_t id, uint8_t flags,
                      const char *type_url)
{
    AUTO(sbuf_release) struct sbuf body = { 0 };

    pb_put_bytes(&body, 1, pb_slice_of(type_url));
    peer_frame(ctx, peer, id, TTRPC_DATA, flags, SLICE(body));
}

static void expect_data(struct ctx *ctx, struct stream *peer, uint32_t id, uint8_t flags,
                        const char *type_url)
{
    AUTO_FREE uint8_t *got = NULL;
    AUTO(sbuf_release) struct sbuf want = { 0 };
    struct ttrpc_header h = peer_read(ctx, peer, &got);

    pb_put_bytes(&want, 1, pb_slice_of(type_url));
    ASSERT_EQ(h.stream, id);
    ASSERT_EQ(h.type, TTRPC_DATA);
    ASSERT_EQ(h.flags, flags);
    ASSERT_EQ(h.len, want.len);
    ASSERT(want.len == 0 || memcmp(got, want.data, want.len) == 0);
}

/* --- handlers --- */

/* Client streams: counts messages, answers once. */
static int count(struct ctx *ctx, struct fake *f, struct rpc_stream *st, struct err *err)
{
    Any answer = ANY__INIT;

    for (f->calls = 0;; f->calls++) {
        AUTO(pb_free) Any *msg = NULL;

        if (rpc_stream_recv(ctx, st, (void **)&msg, err) < 0)
            return -1;
        if (!msg)
            break;
    }

    AUTO_FREE char *text = str_format("%u", f->calls);

    answer.type_url = text;
    if (rpc_stream_send(ctx, st, &answer, err) < 0)
        return -1;
    if (f->stuck)
        return rpc_stream_send(ctx, st, &answer, err);
    return 0;
}

/* Server streams: gives back the one message three times. */
static int repeat(struct ctx *ctx, struct fake *f, struct rpc_stream *st, struct err *err)
{
    AUTO(pb_free) Any *msg = NULL, *end = NULL;

    f->calls++;
    if (rpc_stream_recv(ctx, st, (void **)&msg, err) < 0 ||
        rpc_stream_recv(ctx, st, (void **)&end, err) < 0)
        return -1;
    ASSERT(msg && !end);
    for (int i = 0; i < 3; i++)
        if (rpc_stream_send(ctx, st, msg, err) < 0)
            return -1;
    return f->stuck ? err_set(err, ERR_ABORTED, "after three") : 0;
}

/* Both: echoes until the client ends. */
static int echo(struct ctx *ctx, struct fake *f, struct rpc_stream *st, struct err *err)
{
    for (;;) {
        AUTO(pb_free) Any *msg = NULL;

        if (rpc_stream_recv(ctx, st, (void **)&msg, err) < 0) {
            f->stream_ended = 1 + err->code;
            return -1;
        }
        if (!msg)
            return 0;
        f->calls++;
        if (rpc_stream_send(ctx, st, msg, err) < 0)
            return -1;
    }
}

/* Takes nothing until it is cancelled. */
static int idle(struct ctx *ctx, struct fake *f, struct rpc_stream *st, struct err *err)
{
    int r = latch_wait(ctx, &f->exited, "idle", err);

    (void)st;
    f->stream_ended = 1 + (r < 0 ? err->code : 0);
    return r;
}

#define SERVICE(name, fn, which)                                                                   \
    static const struct rpc_method name##_methods[] = { RPC_STREAM("Stream", fn, struct fake,      \
                                                                   which) };                       \
    static const struct rpc_service name = { &streaming__descriptor, name##_methods, 1 }
SERVICE(count_service, count, RPC_CLIENT_STREAMS);
SERVICE(repeat_service, repeat, RPC_SERVER_STREAMS);
SERVICE(echo_service, echo, RPC_CLIENT_STREAMS | RPC_SERVER_STREAMS);
SERVICE(idle_service, idle, RPC_CLIENT_STREAMS | RPC_SERVER_STREAMS);

static struct rpc_server *serve(struct loop *loop, const struct rpc_service *service,
                                struct fake *f)
{
    struct rpc_server *s = rpc_server_new(loop);

    latch_init(&f->exited);
    rpc_server_add(s, STREAMING, service, f);
    return s;
}

/* --- tests --- */

TEST_VIRTUAL(a_client_stream_is_answered_with_one_response)
{
    struct fake f = { 0 };
    struct rpc_server *s = serve(ctx->loop, &count_service, &f);
    AUTO(stream_free) struct stream *peer = peer_of(ctx, s);
    AUTO_FREE uint8_t *body = NULL;
    struct ttrpc_response r;
    struct ttrpc_header h;

    open_stream(ctx, peer, 1, TTRPC_OPEN, "");
    send_data(ctx, peer, 1, 0, "a");
    send_data(ctx, peer, 1, 0, ""); /* an empty message is a message */
    send_data(ctx, peer, 1, 0, "c");
    peer_frame(ctx, peer, 1, TTRPC_DATA, TTRPC_CLOSED | TTRPC_NO_DATA, (struct pb_slice){ 0 });
    h = peer_read(ctx, peer, &body);
    ASSERT_EQ(h.type, TTRPC_RESPONSE);
    ASSERT_EQ(ttrpc_response_decode((struct pb_slice){ body, h.len }, &r), 0);
    ASSERT_EQ(r.code, 0);
    ASSERT(pb_slice_is(r.payload, "\x0a\x01"
                                  "3"));
    end_server(ctx, s);
}

TEST_VIRTUAL(a_message_may_come_with_the_request_and_none_may_follow)
{
    struct fake f = { 0 };
    struct rpc_server *s = serve(ctx->loop, &count_service, &f);
    AUTO(stream_free) struct stream *peer = peer_of(ctx, s);

    open_stream(ctx, peer, 1, TTRPC_CLOSED, "\x0a\x01x");
    peer_expect(ctx, peer, 1, 0, "");
    ASSERT_EQ(f.calls, 1);
    open_stream(ctx, peer, 3, TTRPC_CLOSED, "");
    peer_expect(ctx, peer, 3, 0, "");
    ASSERT_EQ(f.calls, 0);
    end_server(ctx, s);
}

TEST_VIRTUAL(one_answer_is_not_two)
{
    struct fake f = { .stuck = true };
    struct rpc_server *s = serve(ctx->loop, &count_service, &f);
    AUTO(stream_free) struct stream *peer = peer_of(ctx, s);

    open_stream(ctx, peer, 1, TTRPC_CLOSED, "");
    peer_expect(ctx, peer, 1, ERR_INTERNAL, "Stream answers twice");
    end_server(ctx, s);
}

TEST_VIRTUAL(a_server_stream_ends_with_an_empty_frame)
{
    struct fake f = { 0 };
    struct rpc_server *s = serve(ctx->loop, &repeat_service, &f);
    AUTO(stream_free) struct stream *peer = peer_of(ctx, s);

    open_stream(ctx, peer, 1, TTRPC_CLOSED, "\x0a\x01x");
    for (int i = 0; i < 3; i++)
        expect_data(ctx, peer, 1, 0, "x");
    expect_data(ctx, peer, 1, TTRPC_CLOSED | TTRPC_NO_DATA, "");
    /* No payload is an empty message if the client does not stream. */
    open_stream(ctx, peer, 3, TTRPC_CLOSED, "");
    for (int i = 0; i < 3; i++)
        expect_data(ctx, peer, 3, 0, "");
    expect_data(ctx, peer, 3, TTRPC_CLOSED | TTRPC_NO_DATA, "");
    end_server(ctx, s);
}

TEST_VIRTUAL(an_error_of_a_server_stream_is_a_response)
{
    struct fake f = { .stuck = true };
    struct rpc_server *s = serve(ctx->loop, &repeat_service, &f);
    AUTO(stream_free) struct stream *peer = peer_of(ctx, s);

    open_stream(ctx, peer, 1, TTRPC_CLOSED, "\x0a\x01x");
    for (int i = 0; i < 3; i++)
        expect_data(ctx, peer, 1, 0, "x");
    peer_expect(ctx, peer, 1, ERR_ABORTED, "after three");
    end_server(ctx, s);
}

TEST_VIRTUAL(streams_on_one_connection_may_interleave)
{
    struct fake f = { 0 };
    struct rpc_server *s = serve(ctx->loop, &echo_service, &f);
    AUTO(stream_free) struct stream *peer = peer_of(ctx, s);

    open_stream(ctx, peer, 1, TTRPC_OPEN, "");
    open_stream(ctx, peer, 3, TTRPC_OPEN, "");
    for (int i = 0; i < 100; i++) {
        send_data(ctx, peer, 3, 0, "three");
        expect_data(ctx, peer, 3, 0, "three");
        send_data(ctx, peer, 1, 0, "one");
        expect_data(ctx, peer, 1, 0, "one");
    }
    peer_frame(ctx, peer, 3, TTRPC_DATA, TTRPC_CLOSED | TTRPC_NO_DATA, (struct pb_slice){ 0 });
    expect_data(ctx, peer, 3, TTRPC_CLOSED | TTRPC_NO_DATA, "");
    send_data(ctx, peer, 1, 0, "one");
    expect_data(ctx, peer, 1, 0, "one");
    end_server(ctx, s);
}

TEST_VIRTUAL(the_last_message_may_close)
{
    struct fake f = { 0 };
    struct rpc_server *s = serve(ctx->loop, &echo_service, &f);
    AUTO(stream_free) struct stream *peer = peer_of(ctx, s);

    /* Without a body and without "no data": one more empty message, then the end. */
    open_stream(ctx, peer, 1, TTRPC_OPEN, "");
    peer_frame(ctx, peer, 1, TTRPC_DATA, TTRPC_CLOSED, (struct pb_slice){ 0 });
    expect_data(ctx, peer, 1, 0, "");
    expect_data(ctx, peer, 1, TTRPC_CLOSED | TTRPC_NO_DATA, "");
    end_server(ctx, s);
}

TEST_VIRTUAL(a_close_with_data_is_refused)
{
    struct fake f = { 0 };
    struct rpc_server *s = serve(ctx->loop, &echo_service, &f);
    AUTO(stream_free) struct stream *peer = peer_of(ctx, s);

    for (uint32_t id = 1; id < 5; id += 2) {
        open_stream(ctx, peer, id, TTRPC_OPEN, "");
        send_data(ctx, peer, id, id == 1 ? TTRPC_CLOSED : TTRPC_CLOSED | TTRPC_NO_DATA, "x");
        peer_expect(ctx, peer, id, ERR_INVALID, "");
    }
    end_server(ctx, s);
}

TEST_VIRTUAL(data_after_the_close_is_refused)
{
    struct fake f = { 0 };
    struct rpc_server *s = serve(ctx->loop, &idle_service, &f);
    AUTO(stream_free) struct stream *peer = peer_of(ctx, s);

    open_stream(ctx, peer, 1, TTRPC_OPEN, "");
    peer_frame(ctx, peer, 1, TTRPC_DATA, TTRPC_CLOSED | TTRPC_NO_DATA, (struct pb_slice){ 0 });
    send_data(ctx, peer, 1, 0, "x");
    peer_expect(ctx, peer, 1, ERR_INVALID, "stream 1 was closed");
    end_server(ctx, s);
    ASSERT_EQ(f.stream_ended, 1 + ERR_UNAVAILABLE);
}

TEST_VIRTUAL(a_stream_may_end_in_the_middle_of_a_frame_for_it)
{
    struct fake f = { 0 };
    struct rpc_server *s = serve(ctx->loop, &idle_service, &f);
    AUTO(stream_free) struct stream *peer = peer_of(ctx, s);
    struct vector v = vector_load("T11");

    open_stream(ctx, peer, 1, TTRPC_OPEN, "");
    peer_send(ctx, peer, v.bytes, v.len - 1);
    latch_set(&f.exited);
    expect_data(ctx, peer, 1, TTRPC_CLOSED | TTRPC_NO_DATA, "");
    peer_send(ctx, peer, v.bytes + v.len - 1, 1);
    peer_expect(ctx, peer, 1, ERR_INVALID, "stream 1 is not open");
    ASSERT_EQ(rpc_server_stats(s).mem, 0);
    end_server(ctx, s);
}

TEST_VIRTUAL(a_stream_message_that_is_garbage_ends_the_stream_only)
{
    struct fake f = { 0 };
    struct rpc_server *s = serve(ctx->loop, &echo_service, &f);
    AUTO(stream_free) struct stream *peer = peer_of(ctx, s);

    open_stream(ctx, peer, 1, TTRPC_OPEN, "");
    peer_frame(ctx, peer, 1, TTRPC_DATA, 0, pb_slice_of("\x0a\x7f!"));
    peer_expect(ctx, peer, 1, ERR_INVALID, "the payload is no google.protobuf.Any");
    open_stream(ctx, peer, 3, TTRPC_OPEN, "");
    send_data(ctx, peer, 3, 0, "x");
    expect_data(ctx, peer, 3, 0, "x");
    end_server(ctx, s);
}

TEST_VIRTUAL(a_handler_that_does_not_take_its_messages_loses_the_stream)
{
    struct fake f = { 0 };
    struct rpc_server *s = serve(ctx->loop, &idle_service, &f);
    AUTO(stream_free) struct stream *peer = peer_of(ctx, s);

    open_stream(ctx, peer, 1, TTRPC_OPEN, "");
    for (unsigned i = 0; i <= RPC_INBOX_MESSAGES; i++)
        send_data(ctx, peer, 1, 0, "x");
    peer_expect(ctx, peer, 1, ERR_EXHAUSTED, "idle: messages come faster");
    ASSERT_EQ(f.stream_ended, 1 + ERR_EXHAUSTED);
    ASSERT_EQ(rpc_server_stats(s).mem, 0);
    end_server(ctx, s);
}

/* 16 MiB through a stream whose client reads now and then: the queue stays small. */
static int pour(struct ctx *ctx, struct fake *f, struct rpc_stream *st, struct err *err)
{
    AUTO_FREE uint8_t *block = mem_zalloc(32768);
    Any msg = ANY__INIT;

    msg.value = (ProtobufCBinaryData){ 32768, block };
    for (; f->calls < 512; f->calls++)
        if (rpc_stream_send(ctx, st, &msg, err) < 0)
            return -1;
    return 0;
}
SERVICE(pour_service, pour, RPC_SERVER_STREAMS);

TEST_VIRTUAL(a_stream_waits_for_its_reader)
{
    struct fake f = { 0 };
    struct rpc_server *s = serve(ctx->loop, &pour_service, &f);
    AUTO(stream_free) struct stream *peer = peer_of(ctx, s);
    struct err err = ERR_INIT;

    open_stream(ctx, peer, 1, TTRPC_CLOSED, "");
    ASSERT_OK(fiber_sleep(ctx, NS_PER_S, &err), err);
    ASSERT(f.calls > 30 && f.calls < 40); /* a mebibyte, and what the socket holds */
    for (unsigned i = 0; i < 512; i++) {
        AUTO_FREE uint8_t *body = NULL;
        struct ttrpc_header h = peer_read(ctx, peer, &body);

        ASSERT(h.len > 32768);
        ASSERT(f.calls < i + 40);
    }
    expect_data(ctx, peer, 1, TTRPC_CLOSED | TTRPC_NO_DATA, "");
    end_server(ctx, s);
}

TEST_VIRTUAL(a_deadline_ends_a_stream_that_cannot_be_written)
{
    struct fake f = { 0 };
    struct rpc_server *s = serve(ctx->loop, &pour_service, &f);
    AUTO(stream_free) struct stream *peer = peer_of(ctx, s);
    AUTO(sbuf_release) struct sbuf body = { 0 };
    uint64_t start = loop_now(ctx->loop);
    uint8_t type;

    ttrpc_put_request(&body, &(struct ttrpc_request){ .service = pb_slice_of(STREAMING),
                                                      .method = pb_slice_of("Stream"),
                                                      .timeout_nano = 2 * NS_PER_S });
    peer_frame(ctx, peer, 1, TTRPC_REQUEST, TTRPC_CLOSED, SLICE(body));
    EVENTUALLY(ctx, rpc_server_stats(s).calls == 1);
    while (loop_now(ctx->loop) < start + 3 * NS_PER_S) {
        struct err err = ERR_INIT;

        ASSERT_OK(fiber_sleep(ctx, NS_PER_S, &err), err);
    }
    do {
        AUTO_FREE uint8_t *data = NULL;
        struct ttrpc_header h = peer_read(ctx, peer, &data);
        struct ttrpc_response r;

        type = h.type;
        if (type == TTRPC_RESPONSE) {
            ASSERT_EQ(ttrpc_response_decode((struct pb_slice){ data, h.len }, &r), 0);
            ASSERT_EQ(r.code, ERR_DEADLINE);
        }
    } while (type == TTRPC_DATA);
    ASSERT(f.calls < 40);
    end_server(ctx, s);
}
