/* rpc_save_test.c - connections and waiting calls continue in another process: here a child, which
 * has the same descriptors, as a new program has after an exec. */
#include "base/saved.h"
#include "fixture/loop_fixture.h"
#include "fixture/rpc_fixture.h"
#include "host/rpc/rpc_priv.h"
#include <fcntl.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

struct world {
    struct fake fake;
    struct rpc_server *server;
    struct stream *peer;
};

static void world_init(struct ctx *ctx, struct world *w)
{
    w->server = fake_server(ctx->loop, &w->fake);
    w->peer = peer_of(ctx, w->server);
}

static int save(struct rpc_server *s, struct sbuf *ret, struct err *err)
{
    AUTO(saved_free) struct saved *sv = saved_writer();
    const void *data;
    size_t len;

    rpc_server_saved(sv, s);
    if (saved_finish(sv, &data, &len, err) < 0)
        return -1;
    sbuf_add(ret, data, len);
    return 0;
}

/* In the child: what the shim's next program does. The process ends before Wait can. */
static void end_waits(void *arg)
{
    struct fake *f = arg;

    latch_set(&f->exited);
}

static void continue_as_child(const struct sbuf *doc)
{
    AUTO(saved_free) struct saved *sv = NULL;
    struct loop *loop = loop_new(NULL);
    struct fake fake = { 0 };
    struct rpc_server *s = fake_server(loop, &fake);
    struct err err = ERR_INIT;

    if (saved_reader(doc->data, doc->len, &sv, &err) < 0)
        _exit(3);
    rpc_server_saved(sv, s);
    if (saved_check(sv, &err) < 0 || rpc_server_stats(s).used != 4)
        _exit(4);
    fiber_go(loop, end_waits, &fake, "end");
    (void)loop_run(loop); /* until the parent closes its end */
    _exit(fake.calls == 3 ? 0 : 5);
}

TEST_FIBER(connections_and_waits_continue_and_unread_requests_are_answered)
{
    struct world w = { 0 };
    AUTO(sbuf_release) struct sbuf doc = { 0 };
    struct err err = ERR_INIT;
    int status = -1, flags;

    world_init(ctx, &w);
    peer_request(ctx, w.peer, 1, TASK_V2, "Wait", "c1", 0);
    peer_request(ctx, w.peer, 3, TASK_V3, "Wait", "c2", 100 * NS_PER_S);
    peer_request(ctx, w.peer, 5, TASK_V2, "Connect", "c1", 0);
    peer_expect(ctx, w.peer, 5, 0, "");
    ASSERT_EQ(w.fake.waiting, 2);
    rpc_server_hold(w.server, true);
    peer_request(ctx, w.peer, 7, TASK_V2, "Connect", "c1", 0); /* read, and not begun */
    ASSERT_OK(fiber_sleep(ctx, 10 * NS_PER_MS, &err), err);
    ASSERT_EQ(w.fake.calls, 3);
    w.server->used = 4;
    ASSERT_OK(save(w.server, &doc, &err), err);

    pid_t pid = fork();

    if (pid == 0)
        continue_as_child(&doc);
    flags = fcntl(w.peer->fd, F_GETFL);
    ASSERT_EQ(fcntl(w.peer->fd, F_SETFL, flags & ~O_NONBLOCK), 0);
    for (int i = 0; i < 3; i++) { /* in any order; our own server does not run meanwhile */
        uint8_t bytes[TTRPC_HEADER_BYTES], body[512];
        struct ttrpc_header h;
        struct ttrpc_response r;

        ASSERT_EQ(recv(w.peer->fd, bytes, sizeof(bytes), MSG_WAITALL), TTRPC_HEADER_BYTES);
        ttrpc_header_decode(bytes, &h);
        ASSERT(h.len <= sizeof(body));
        ASSERT_EQ(recv(w.peer->fd, body, h.len, MSG_WAITALL), h.len);
        ASSERT_EQ(ttrpc_response_decode((struct pb_slice){ body, h.len }, &r), 0);
        ASSERT_EQ(r.code, 0);
        ASSERT(h.stream == 1 || h.stream == 3 || h.stream == 7);
    }
    (void)shutdown(w.peer->fd, SHUT_RDWR);
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    ASSERT_EQ(status, 0);
    stream_free(w.peer);
    rpc_server_hold(w.server, false);
    latch_set(&w.fake.exited);
    end_server(ctx, w.server);
}

static struct rpc_conn *first_conn(struct rpc_server *s)
{
    return LIST_FIRST(&s->conns, struct rpc_conn, node);
}

static void compare_as_child(const struct sbuf *doc, const struct rpc_server *from,
                             const struct rpc_conn *a)
{
    AUTO(saved_free) struct saved *sv = NULL;
    struct fake fake = { 0 };
    struct rpc_server *s = fake_server(loop_new(NULL), &fake);
    struct err err = ERR_INIT;

    if (saved_reader(doc->data, doc->len, &sv, &err) < 0)
        _exit(3);
    rpc_server_saved(sv, s);
    if (saved_check(sv, &err) < 0 || s->listener != from->listener)
        _exit(4);

    const struct rpc_conn *b = first_conn(s);

    if (b->last_id != a->last_id || b->last_stream != a->last_stream)
        _exit(5);
    _exit(b->unary == a->unary && b->wire.reads_on == a->wire.reads_on ? 0 : 6);
}

TEST_FIBER(a_connection_s_ids_and_kind_and_the_listener_are_known_to_the_new_program)
{
    struct world w = { 0 };
    AUTO(sbuf_release) struct sbuf doc = { 0 };
    struct sockaddr_un any = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), status = -1;
    struct rpc_conn *c;
    struct err err = ERR_INIT;

    ASSERT(bind(fd, (struct sockaddr *)&any, sizeof(any.sun_family)) == 0 && listen(fd, 1) == 0);
    world_init(ctx, &w);
    rpc_server_listen(w.server, fd);
    peer_request(ctx, w.peer, 7, TASK_V2, "Connect", "c1", 0);
    peer_expect(ctx, w.peer, 7, 0, "");
    c = first_conn(w.server);
    ASSERT(c->last_id == 7 && c->unary);
    c->last_stream = 5;
    c->wire.reads_on = true;
    ASSERT_OK(save(w.server, &doc, &err), err);

    pid_t pid = fork();

    if (pid == 0)
        compare_as_child(&doc, w.server, c);
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    ASSERT_EQ(status, 0);
    stream_free(w.peer);
    end_server(ctx, w.server);
}

TEST_FIBER(a_request_that_is_being_received_or_not_answered_cannot_be_saved)
{
    struct world w = { 0 };
    AUTO(sbuf_release) struct sbuf doc = { 0 };
    struct err err = ERR_INIT;

    world_init(ctx, &w);
    peer_request(ctx, w.peer, 1, TASK_V2, "Pause", "c1", 0);
    EVENTUALLY(ctx, w.fake.calls == 1);
    ASSERT_FAIL(save(w.server, &doc, &err), err, ERR_STATE);
    latch_set(&w.fake.exited);
    peer_expect(ctx, w.peer, 1, 0, "");
    err_clear(&err);
    ASSERT_OK(save(w.server, &doc, &err), err);
    peer_send(ctx, w.peer, "\0\0\0", 3);
    EVENTUALLY(ctx, save(w.server, &doc, &err) < 0);
    ASSERT_EQ(err.code, ERR_STATE);
    stream_free(w.peer);
    end_server(ctx, w.server);
}

TEST_FIBER(a_hold_that_ends_starts_what_has_arrived)
{
    struct world w = { 0 };
    struct err err = ERR_INIT;

    world_init(ctx, &w);
    rpc_server_hold(w.server, true);
    peer_request(ctx, w.peer, 1, TASK_V2, "Connect", "c1", 0);
    ASSERT_OK(fiber_sleep(ctx, 10 * NS_PER_MS, &err), err);
    ASSERT_EQ(w.fake.calls, 0);
    rpc_server_hold(w.server, false);
    peer_expect(ctx, w.peer, 1, 0, "");
    stream_free(w.peer);
    end_server(ctx, w.server);
}
