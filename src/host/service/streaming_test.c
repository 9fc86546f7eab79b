/* The Streaming service: a client that speaks frames by hand, and stdio with socket pairs for the
 * guest. */
#include "api/streaming.pb-c.h"
#include "api/transfer.pb-c.h"
#include "fixture/io_fixture.h"
#include "fixture/rpc_fixture.h"
#include "host/control/registry.h"
#include "host/io/io_hub.h"
#include "host/service/service_priv.h"
#include "proto/pb.h"

#define URI(id) "ttrpc+unix:///run/containerd/s/abc?streaming_id=" id
#define WINDOW 65536

struct world {
    struct fixture io;
    struct registry registry;
    struct service *service;
    struct rpc_server *server;
};

static void world_init(struct world *w, struct ctx *ctx, const char *in, const char *out)
{
    memset(w, 0, sizeof(*w));
    fixture_init(&w->io, ctx);
    w->registry.hub = io_hub_new(ctx->loop, "unix:///run/containerd/s/abc");
    w->service = service_new(&(struct service_opts){ .loop = ctx->loop, .registry = &w->registry });
    w->server = rpc_server_new(ctx->loop);
    service_add_streaming(w->service, w->server);
    w->io.spec.in = in;
    w->io.spec.out = out;
    w->io.spec.hub = w->registry.hub;
}

static void world_release_auto(struct world *w)
{
    io_free(TAKE_PTR(w->io.io));
    end_server(w->io.ctx, w->server);
    service_free(w->service);
    fixture_release_auto(&w->io);
    io_hub_free(w->registry.hub);
}
#define WORLD(w, in, out)                                                                          \
    AUTO(world_release) struct world w;                                                            \
    world_init(&w, ctx, in, out)

/* --- the client --- */

static void put(struct world *w, struct stream *s, const void *msg)
{
    AUTO(pb_free) Any *any = NULL;
    AUTO(sbuf_release) struct sbuf body = { 0 };

    ASSERT_EQ(pb_set_any(&any, msg), 0);
    ASSERT_EQ(pb_pack(any, &body), 0);
    peer_frame(w->io.ctx, s, 1, TTRPC_DATA, 0, SLICE(body));
}

static void put_window(struct world *w, struct stream *s, int32_t n)
{
    Transfer__WindowUpdate update = TRANSFER__WINDOW_UPDATE__INIT;

    update.update = n;
    put(w, s, &update);
}

static void put_data(struct world *w, struct stream *s, const void *bytes, size_t len)
{
    Transfer__Data data = TRANSFER__DATA__INIT;

    data.data.data = (uint8_t *)bytes;
    data.data.len = len;
    put(w, s, &data);
}

static void put_end(struct world *w, struct stream *s)
{
    peer_frame(w->io.ctx, s, 1, TTRPC_DATA, TTRPC_CLOSED | TTRPC_NO_DATA, (struct pb_slice){ 0 });
}

/* The next message, of this type. Caller frees. */
static void *get(struct world *w, struct stream *s, const ProtobufCMessageDescriptor *type)
{
    AUTO_FREE uint8_t *body = NULL;
    struct ttrpc_header h = peer_read(w->io.ctx, s, &body);
    AUTO(pb_free) void *any = NULL;
    void *msg = NULL;

    ASSERT_EQ(h.type, TTRPC_DATA);
    ASSERT_EQ(h.flags, 0);
    ASSERT_EQ(pb_unpack(&any__descriptor, (struct pb_slice){ body, h.len }, PB_MEM_MAX, &any, NULL),
              0);
    ASSERT_EQ(pb_any_unpack(any, type, &msg), 0);
    return msg;
}

static size_t get_data(struct world *w, struct stream *s, char *buf, size_t room)
{
    AUTO(pb_free) Transfer__Data *d = get(w, s, &transfer__data__descriptor);

    ASSERT(d->data.len <= room && d->data.len > 0);
    memcpy(buf, d->data.data, d->data.len);
    return d->data.len;
}

static void get_text(struct world *w, struct stream *s, const char *text)
{
    char buf[256];

    for (size_t done = 0; done < strlen(text);) {
        size_t n = get_data(w, s, buf, sizeof(buf));

        ASSERT(done + n <= strlen(text) && memcmp(buf, text + done, n) == 0);
        done += n;
    }
}

static void get_window(struct world *w, struct stream *s, int32_t n)
{
    AUTO(pb_free) Transfer__WindowUpdate *u = get(w, s, &transfer__window_update__descriptor);

    ASSERT_EQ(u->update, n);
}

static void get_end(struct world *w, struct stream *s)
{
    peer_expect_vector(w->io.ctx, s, "T13");
}

static struct stream *join(struct world *w, const char *id)
{
    StreamInit init = STREAM_INIT__INIT;
    struct stream *s = peer_of(w->io.ctx, w->server);

    init.id = id;
    peer_send_vector(w->io.ctx, s, "T8");
    put(w, s, &init);
    peer_expect_vector(w->io.ctx, s, "T10");
    return s;
}

static void start(struct world *w)
{
    fixture_open(&w->io);
    fixture_attach(&w->io);
}

static int drain(struct world *w, uint64_t ns, struct err *err)
{
    struct ctx limited = ctx_with_timeout(w->io.ctx, ns);

    return io_drain(&limited, w->io.io, err);
}

/* --- output --- */

TEST_FIBER(output_flows_as_far_as_the_client_grants_it_and_then_ends)
{
    WORLD(w, NULL, URI("c1-stdout"));
    AUTO(stream_free) struct stream *s = join(&w, "c1-stdout"); /* before there is a process */
    struct err err = ERR_INIT;

    start(&w);
    fixture_put(&w.io, w.io.guest[1], "hello world");
    fixture_get_nothing(&w.io, s); /* nothing was granted */
    put_window(&w, s, 5);
    get_text(&w, s, "hello");
    fixture_get_nothing(&w.io, s);
    put_window(&w, s, 3);
    put_window(&w, s, 100);
    get_text(&w, s, " world");
    stream_shutdown(w.io.guest[1], SHUT_WR);
    get_end(&w, s);

    /* The client has not ended its stream, so it may not have read all. */
    ASSERT_FAIL(drain(&w, 30 * NS_PER_MS, &err), err, ERR_DEADLINE);
    ASSERT_MSG_HAS(err.msg, "the client has not read all of stream c1-stdout");
    err_clear(&err);
    put_end(&w, s);
    ASSERT_OK(drain(&w, 30 * NS_PER_S, &err), err);
    peer_expect_end(ctx, s); /* containerd 2.1 would never close the connection */
}

TEST_FIBER(ten_megabytes_arrive_and_a_slow_client_blocks_the_process)
{
    WORLD(w, NULL, URI("c1-stdout"));
    AUTO(stream_free) struct stream *s = join(&w, "c1-stdout");
    const uint64_t bytes = 10 << 20;
    AUTO_FREE char *got = mem_alloc(WINDOW), *want = mem_alloc(WINDOW);
    struct fixture_writer writer;

    start(&w);
    fixture_write(&w.io, &writer, &w.io.guest[1], bytes);
    fixture_await_stuck(&w.io, &writer);
    for (uint64_t at = 0, granted = 0; at < bytes;) {
        if (granted < WINDOW) {
            put_window(&w, s, WINDOW);
            granted += WINDOW;
        }

        size_t n = get_data(&w, s, got, WINDOW);

        fixture_fill(want, n, at);
        ASSERT(memcmp(got, want, n) == 0 && n <= granted);
        granted -= n;
        at += n;
    }
    get_end(&w, s);
    put_end(&w, s);
    EVENTUALLY(ctx, writer.done);
}

/* containerd restarts: its connections end, later it opens the same streams again. */
TEST_FIBER(a_client_that_reconnects_gets_the_output_written_in_between)
{
    WORLD(w, NULL, URI("c1-stdout"));
    struct stream *first = join(&w, "c1-stdout");
    struct err err = ERR_INIT;

    start(&w);
    put_window(&w, first, WINDOW);
    fixture_put(&w.io, w.io.guest[1], "one");
    get_text(&w, first, "one");
    stream_free(first);
    EVENTUALLY(ctx, rpc_server_stats(w.server).conns == 0);
    fixture_put(&w.io, w.io.guest[1], "two");
    stream_shutdown(w.io.guest[1], SHUT_WR);
    ASSERT_OK(drain(&w, 30 * NS_PER_S, &err), err); /* without a client, the drain does not wait */

    AUTO(stream_free) struct stream *second = join(&w, "c1-stdout");

    put_window(&w, second, WINDOW);
    get_text(&w, second, "two");
    get_end(&w, second);
}

TEST_FIBER(a_later_client_replaces_an_earlier_one)
{
    WORLD(w, NULL, URI("c1-stdout"));
    AUTO(stream_free) struct stream *first = join(&w, "c1-stdout");

    start(&w);
    put_window(&w, first, WINDOW);

    AUTO(stream_free) struct stream *second = join(&w, "c1-stdout");

    get_end(&w, first);
    fixture_get_nothing(&w.io, first); /* no error follows */
    fixture_put(&w.io, w.io.guest[1], "news");
    put_window(&w, second, WINDOW);
    get_text(&w, second, "news");
}

TEST_FIBER(the_rest_reaches_a_slow_client_even_after_its_process_was_deleted)
{
    WORLD(w, NULL, URI("c1-stdout"));
    AUTO(stream_free) struct stream *s = join(&w, "c1-stdout");

    start(&w);
    fixture_put(&w.io, w.io.guest[1], "late");
    stream_shutdown(w.io.guest[1], SHUT_WR);
    fixture_get_end(&w.io, w.io.guest[1]); /* it is in the pipe */
    io_free(TAKE_PTR(w.io.io));
    put_window(&w, s, WINDOW);
    get_text(&w, s, "late");
    get_end(&w, s);
}

/* --- input --- */

TEST_FIBER(input_ends_when_it_was_closed_and_the_client_has_left)
{
    WORLD(w, URI("e1-stdin"), NULL);
    AUTO(stream_free) struct stream *s = join(&w, "e1-stdin");

    fixture_get_nothing(&w.io, s); /* nothing is granted before there is a process */
    start(&w);
    get_window(&w, s, WINDOW);
    put_data(&w, s, "first", 5);
    fixture_get(&w.io, w.io.guest[0], "first");
    io_close_stdin(w.io.io); /* overtakes what is on its way */
    fixture_get_nothing(&w.io, w.io.guest[0]);
    put_data(&w, s, "last", 4);
    put_end(&w, s);
    fixture_get(&w.io, w.io.guest[0], "last");
    fixture_get_end(&w.io, w.io.guest[0]);
    get_end(&w, s);
    peer_expect_end(ctx, s);
}

TEST_FIBER(input_stays_open_for_the_next_client)
{
    WORLD(w, URI("c1-stdin"), NULL);
    struct stream *first;

    start(&w);
    first = join(&w, "c1-stdin");
    get_window(&w, first, WINDOW);
    put_data(&w, first, "one", 3);
    stream_free(first);
    fixture_get(&w.io, w.io.guest[0], "one");
    fixture_get_nothing(&w.io, w.io.guest[0]);

    AUTO(stream_free) struct stream *second = join(&w, "c1-stdin");

    get_window(&w, second, WINDOW);
    put_data(&w, second, "two", 3);
    fixture_get(&w.io, w.io.guest[0], "two");
    io_close_stdin(w.io.io);
    stream_free(TAKE_PTR(second));
    fixture_get_end(&w.io, w.io.guest[0]);

    AUTO(stream_free) struct stream *third = join(&w, "c1-stdin");

    get_end(&w, third);
}

TEST_FIBER(input_is_delivered_after_its_client_has_disconnected)
{
    WORLD(w, URI("c1-stdin"), NULL);
    struct stream *s;
    AUTO_FREE char *bytes = mem_alloc(WINDOW);
    uint64_t sent = 0;

    start(&w);
    s = join(&w, "c1-stdin");
    fixture_fill(bytes, WINDOW, 0);
    get_window(&w, s, WINDOW);
    for (bool full = false; !full;) { /* until pipe and socket are full: no more is granted */
        struct ctx brief = ctx_with_timeout(ctx, 100 * NS_PER_MS);
        struct err err = ERR_INIT;

        put_data(&w, s, bytes, WINDOW);
        sent++;
        full = s->ops->ready(&brief, s, &err) < 0;
        if (!full)
            get_window(&w, s, WINDOW);
    }
    stream_free(s);
    EVENTUALLY(ctx, rpc_server_stats(w.server).conns == 0);
    for (uint64_t i = 0; i < sent; i++)
        fixture_expect(&w.io, w.io.guest[0], 0, WINDOW);
    fixture_get_nothing(&w.io, w.io.guest[0]);
}

/* containerd disconnects after the last of its input. The grant for it then fails. */
TEST_FIBER(a_client_may_send_and_disconnect_at_once)
{
    WORLD(w, URI("c1-stdin"), NULL);
    struct stream *s;
    char part[1024];

    start(&w);
    s = join(&w, "c1-stdin");
    get_window(&w, s, WINDOW);
    for (uint64_t at = 0; at < WINDOW; at += sizeof(part)) {
        fixture_fill(part, sizeof(part), at);
        put_data(&w, s, part, sizeof(part));
    }
    put_end(&w, s);
    stream_free(s);
    io_close_stdin(w.io.io);
    fixture_expect(&w.io, w.io.guest[0], 0, WINDOW);
    fixture_get_end(&w.io, w.io.guest[0]);
}

TEST_FIBER(a_process_that_closes_its_input_ends_the_stream)
{
    WORLD(w, URI("c1-stdin"), NULL);
    AUTO(stream_free) struct stream *s = join(&w, "c1-stdin");

    start(&w);
    get_window(&w, s, WINDOW);
    stream_free(TAKE_PTR(w.io.guest[0]));
    for (bool ended = false; !ended;) { /* what is written finds out */
        struct ctx brief = ctx_with_timeout(ctx, 10 * NS_PER_MS);
        struct err err = ERR_INIT;

        put_data(&w, s, "a", 1);
        ended = s->ops->ready(&brief, s, &err) == 0;
    }
    get_end(&w, s);
}

/* --- bad clients --- */

TEST_FIBER(invalid_messages_on_a_stream_are_refused_by_name)
{
    WORLD(w, URI("c1-stdin"), URI("c1-stdout"));
    AUTO(stream_free)
    struct stream *s = peer_of(ctx, w.server), *in = join(&w, "c1-stdin"),
                  *out = join(&w, "c1-stdout");
    AUTO_FREE char *much = mem_zalloc(WINDOW + 1);

    peer_send_vector(ctx, s, "T8");
    peer_send_vector(ctx, s, "T11");
    peer_expect(ctx, s, 1, ERR_INVALID, "the first message of a stream must be a StreamInit");
    put_data(&w, out, "", 0); /* there is no process yet, so nothing that takes it */
    peer_expect(ctx, out, 1, ERR_INVALID, "data on a stream without input");
    start(&w);
    get_window(&w, in, WINDOW);
    put_data(&w, in, much, WINDOW + 1);
    peer_expect(ctx, in, 1, ERR_INVALID, "more data than was granted");
    stream_free(out);
    out = join(&w, "c1-stdout");
    put_data(&w, out, "", 0);
    peer_expect(ctx, out, 1, ERR_INVALID, "data on a stream without input");
    stream_free(out);
    out = join(&w, "c1-stdout");
    put_window(&w, out, -1);
    peer_expect(ctx, out, 1, ERR_INVALID, "invalid window of -1 bytes");
}

TEST_FIBER(a_stream_of_another_server_or_process_is_refused_by_name)
{
    WORLD(w, NULL, "ttrpc+unix:///run/other?streaming_id=c1-stdout");
    struct io *second = NULL;
    struct err err = ERR_INIT;

    ASSERT_FAIL(io_open(ctx, ctx->loop, &w.io.spec, &second, &err), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg,
                   "stdout: /run/other is not the socket of this shim, /run/containerd/s/abc");
    err_clear(&err);
    w.io.spec.out = URI("c1-stdout");
    start(&w);
    ASSERT_FAIL(io_open(ctx, ctx->loop, &w.io.spec, &second, &err), err, ERR_EXISTS);
    ASSERT_MSG_HAS(err.msg, "stdout: stream c1-stdout is in use");
}
