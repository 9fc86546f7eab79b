/* Streams against a peer that writes frames by hand. service/streaming_test.c tests their use. */
#include "api/streaming.pb-c.h"
#include "fixture/rpc_fixture.h"
#include "proto/pb.h"

struct echo {
    struct latch hold; /* set: it receives */
    unsigned running, last;
    bool fails;
};

/* Sends back what comes. */
static int on_stream(struct ctx *ctx, void *self, struct rpc_stream *st, struct err *err)
{
    struct echo *e = self;
    int r = 1;

    e->running++;
    if (latch_wait(ctx, &e->hold, "hold", err) < 0)
        r = -1;
    while (r > 0) {
        AUTO(pb_free) void *msg = NULL;

        r = rpc_stream_recv(ctx, st, &msg, err);
        if (r > 0 && rpc_stream_send(ctx, st, msg, err) < 0)
            r = -1;
    }
    e->running--;
    e->last = r < 0 ? err->code : ERR_NONE;
    return e->fails ? err_set(err, ERR_STATE, "as asked") : r;
}

static const struct rpc_method methods[] = {
    { .name = "Stream",
      .stream = on_stream,
      .req_size = sizeof(Any),
      .resp_size = sizeof(Any),
      .patient = true },
};
static const struct rpc_service echo_service = { &streaming__descriptor, methods, 1, NULL };

static struct rpc_server *echo_server(struct ctx *ctx, struct echo *e, struct fake *f)
{
    struct rpc_server *s = fake_server(ctx->loop, f);

    latch_init(&e->hold);
    latch_set(&e->hold);
    rpc_server_add(s, STREAMING, &echo_service, e);
    return s;
}

static void peer_end(struct ctx *ctx, struct stream *peer)
{
    peer_frame(ctx, peer, 1, TTRPC_DATA, TTRPC_CLOSED | TTRPC_NO_DATA, (struct pb_slice){ 0 });
}

TEST_FIBER(messages_match_the_vectors_and_a_connection_with_only_streams_is_closed)
{
    struct echo e = { 0 };
    struct fake f = { 0 };
    struct rpc_server *s = echo_server(ctx, &e, &f);
    AUTO(stream_free) struct stream *peer = peer_of(ctx, s);

    peer_send_vector(ctx, peer, "T8");
    peer_send_vector(ctx, peer, "T9");
    peer_expect_vector(ctx, peer, "T9");
    peer_send_vector(ctx, peer, "T10"); /* an empty message is one */
    peer_expect_vector(ctx, peer, "T10");
    peer_end(ctx, peer);
    peer_expect_vector(ctx, peer, "T13");
    peer_expect_end(ctx, peer);
    end_server(ctx, s);
}

TEST_FIBER(a_connection_with_other_calls_stays_open_and_late_messages_are_ignored)
{
    struct echo e = { .fails = true };
    struct fake f = { 0 };
    struct rpc_server *s = echo_server(ctx, &e, &f);
    AUTO(stream_free) struct stream *peer = peer_of(ctx, s);

    peer_send_vector(ctx, peer, "T8");
    peer_end(ctx, peer);
    peer_expect(ctx, peer, 1, ERR_STATE, "as asked");
    peer_expect_end(ctx, peer);

    AUTO(stream_free) struct stream *other = peer_of(ctx, s);

    peer_send_vector(ctx, other, "T8");
    peer_request(ctx, other, 3, TASK_V2, "Kill", "c1", 0);
    peer_expect(ctx, other, 3, 0, "");
    peer_end(ctx, other);
    peer_expect(ctx, other, 1, ERR_STATE, "as asked");
    peer_send_vector(ctx, other, "T11");
    peer_end(ctx, other);
    peer_request(ctx, other, 5, TASK_V2, "Kill", "c1", 0);
    peer_expect(ctx, other, 5, 0, "");
    peer_frame(ctx, other, 7, TTRPC_DATA, 0, (struct pb_slice){ 0 });
    peer_expect(ctx, other, 7, ERR_INVALID, "stream 7 is not open");
    end_server(ctx, s);
}

TEST_FIBER(only_the_stream_of_a_flooding_client_is_ended)
{
    struct echo e = { 0 };
    struct fake f = { 0 };
    struct rpc_server *s = echo_server(ctx, &e, &f);
    AUTO(stream_free) struct stream *peer = peer_of(ctx, s);
    AUTO_FREE uint8_t *much = mem_zalloc(1 << 20);

    latch_init(&e.hold); /* not received */
    peer_send_vector(ctx, peer, "T8");
    peer_request(ctx, peer, 3, TASK_V2, "Kill", "c1", 0);
    peer_expect(ctx, peer, 3, 0, "");
    for (int i = 0; i < 12; i++)
        peer_frame(ctx, peer, 1, TTRPC_DATA, 0, (struct pb_slice){ much, 1 << 20 });
    peer_expect(ctx, peer, 1, ERR_EXHAUSTED, "");
    peer_request(ctx, peer, 5, TASK_V2, "Kill", "c1", 0);
    peer_expect(ctx, peer, 5, 0, "");
    ASSERT_EQ(rpc_server_stats(s).mem, 0);
    end_server(ctx, s);
}

TEST_FIBER(messages_that_arrived_before_the_client_disconnected_are_received)
{
    struct echo e = { 0 };
    struct fake f = { 0 };
    struct rpc_server *s = echo_server(ctx, &e, &f);
    struct stream *peer = peer_of(ctx, s);

    latch_init(&e.hold);
    peer_send_vector(ctx, peer, "T8");
    peer_send_vector(ctx, peer, "T9");
    EVENTUALLY(ctx, rpc_server_stats(s).mem > 0 && e.running == 1);
    stream_free(peer);
    EVENTUALLY(ctx, rpc_server_stats(s).conns == 0);
    ASSERT_EQ(e.running, 1);
    latch_set(&e.hold);
    EVENTUALLY(ctx, e.running == 0);
    ASSERT_EQ(e.last, ERR_UNAVAILABLE); /* of sending it back */
    end_server(ctx, s);
}

TEST_FIBER(streams_end_with_the_server)
{
    struct echo e = { 0 };
    struct fake f = { 0 };
    struct rpc_server *s = echo_server(ctx, &e, &f);
    AUTO(stream_free) struct stream *peer = peer_of(ctx, s);
    struct ctx limited = ctx_with_timeout(ctx, 60 * NS_PER_S);
    struct err err = ERR_INIT;

    peer_send_vector(ctx, peer, "T8");
    EVENTUALLY(ctx, e.running == 1);
    ASSERT_OK(rpc_server_shutdown(&limited, s, &err), err);
    ASSERT(ctx_left(&limited) > 30 * NS_PER_S);
    ASSERT_EQ(e.last, ERR_UNAVAILABLE);
    rpc_server_free(s);
}
