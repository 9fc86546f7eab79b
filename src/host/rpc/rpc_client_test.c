/* The client against a server that writes frames by hand, and sockets by their addresses. */
#include "api/events.pb-c.h"
#include "api/forward.pb-c.h"
#include "api/types.pb-c.h"
#include "base/fd.h"
#include "fixture/rpc_fixture.h"
#include "fixture/stream_pair.h"
#include "harness/tempdir.h"
#include "host/rpc/rpc_client.h"
#include "host/rpc/rpc_sock.h"
#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define EVENTS "containerd.services.events.ttrpc.v1.Events"
#define WHEN UINT64_C(1700000000123456789)

struct shot {
    struct ctx *ctx;
    struct rpc_client *client;
    struct err err;
    int result; /* 1: not yet */
    void *resp;
};

static void forward_main(void *arg)
{
    struct shot *shot = arg;
    AUTO(pb_free) Any *event = NULL;
    Timestamp when = pb_time_of(WHEN);
    TaskExit exit = TASK_EXIT__INIT;
    Envelope envelope = ENVELOPE__INIT;
    ForwardRequest req = FORWARD_REQUEST__INIT;

    exit.container_id = exit.id = "c1";
    exit.pid = 4343;
    exit.exit_status = 137;
    exit.exited_at = envelope.timestamp = &when;
    ASSERT_EQ(pb_set_any(&event, &exit), 0);
    envelope.namespace_ = "default";
    envelope.topic = "/tasks/exit";
    envelope.event = event;
    req.envelope = &envelope;
    shot->result =
        rpc_client_call(shot->ctx, shot->client, EVENTS, "Forward", &req, NULL, NULL, &shot->err);
}

static void connect_main(void *arg)
{
    struct shot *shot = arg;
    ConnectRequest req = CONNECT_REQUEST__INIT;

    req.id = "c1";
    shot->result = rpc_client_call(shot->ctx, shot->client, TASK_V2, "Connect", &req,
                                   &connect_response__descriptor, &shot->resp, &shot->err);
}

/* The other end of a client's connection, in memory. */
static struct stream *server_of(struct ctx *ctx, struct shot *shot)
{
    struct stream *ours, *theirs;

    stream_pair(ctx->loop, 65536, &ours, &theirs);
    *shot = (struct shot){ .ctx = ctx, .client = rpc_client_new(ctx->loop, ours), .result = 1 };
    return theirs;
}

TEST_VIRTUAL(a_forwarded_event_is_the_vector)
{
    struct shot shot;
    AUTO(stream_free) struct stream *server = server_of(ctx, &shot);
    struct ctx five = ctx_with_timeout(ctx, 5 * NS_PER_S);

    shot.ctx = &five;
    rpc_client_add_metadata(shot.client, "containerd-namespace-ttrpc", "default");
    fiber_go(ctx->loop, forward_main, &shot, "forward");
    peer_expect_vector(ctx, server, "T7");
    peer_frame(ctx, server, 1, TTRPC_RESPONSE, 0, (struct pb_slice){ 0 });
    EVENTUALLY(ctx, shot.result == 0);
    rpc_client_free(shot.client);
}

TEST_VIRTUAL(a_request_and_its_answer_are_the_vectors)
{
    struct shot shot;
    AUTO(stream_free) struct stream *server = server_of(ctx, &shot);
    struct ctx forever = ctx_root(ctx->loop);

    shot.ctx = &forever; /* no deadline, so no timeout on the wire */
    rpc_client_add_metadata(shot.client, "containerd-namespace-ttrpc", "default");
    fiber_go(ctx->loop, connect_main, &shot, "connect");
    peer_expect_vector(ctx, server, "T1");
    peer_send_vector(ctx, server, "T2");
    EVENTUALLY(ctx, shot.result == 0);

    AUTO(pb_free) ConnectResponse *resp = shot.resp;

    ASSERT_EQ(resp->shim_pid, 4242);
    ASSERT_EQ(resp->task_pid, 4343);
    rpc_client_free(shot.client);
}

/* One call and the server's answer to it. Returns the reason. */
static enum reason answered(struct ctx *ctx, uint32_t stream, uint8_t type, struct pb_slice body,
                            enum err_code code, const char *text)
{
    struct shot shot;
    AUTO(stream_free) struct stream *server = server_of(ctx, &shot);
    AUTO_FREE uint8_t *request = NULL;

    fiber_go(ctx->loop, connect_main, &shot, "connect");
    (void)peer_read(ctx, server, &request);
    peer_frame(ctx, server, stream, type, 0, body);
    EVENTUALLY(ctx, shot.result < 0);
    ASSERT_EQ(shot.err.code, code);
    ASSERT_MSG_HAS(shot.err.msg, text);
    rpc_client_free(shot.client);
    return shot.err.reason;
}

TEST_VIRTUAL(errors_keep_their_code_message_and_reason)
{
    AUTO(sbuf_release) struct sbuf body = { 0 };

    ttrpc_put_response(&body,
                       &(struct ttrpc_response){ ERR_INVALID, pb_slice_of("bad topic"), {}, {} });
    ASSERT_EQ(answered(ctx, 1, TTRPC_RESPONSE, SLICE(body), ERR_INVALID, "bad topic"), REASON_NONE);
    body.len = 0;
    ttrpc_put_response(&body, &(struct ttrpc_response){ .code = ERR_EXHAUSTED,
                                                        .reason = pb_slice_of("DISK_FULL") });
    ASSERT_EQ(answered(ctx, 1, TTRPC_RESPONSE, SLICE(body), ERR_EXHAUSTED, ""), REASON_DISK_FULL);
    body.len = 0;
    ttrpc_put_response(&body, &(struct ttrpc_response){ 4711, pb_slice_of("odd"), {}, {} });
    answered(ctx, 1, TTRPC_RESPONSE, SLICE(body), ERR_UNKNOWN, "odd");
    answered(ctx, 1, TTRPC_RESPONSE, pb_slice_of("\x0a\x7f!"), ERR_INTERNAL,
             "is not a ttrpc.Response");
    answered(ctx, 1, TTRPC_RESPONSE, pb_slice_of("\x12\x01\x07"), ERR_INTERNAL,
             "not a containerd.task.v3.ConnectResponse");
}

TEST_VIRTUAL(an_answer_to_an_unknown_call_is_ignored)
{
    struct shot shot;
    AUTO(stream_free) struct stream *server = server_of(ctx, &shot);
    AUTO_FREE uint8_t *request = NULL;

    fiber_go(ctx->loop, connect_main, &shot, "connect");
    (void)peer_read(ctx, server, &request);
    peer_frame(ctx, server, 3, TTRPC_RESPONSE, 0, pb_slice_of("xxx"));
    peer_frame(ctx, server, 1, TTRPC_DATA, 0, pb_slice_of("xxx"));
    peer_frame(ctx, server, 1, 77, 0, (struct pb_slice){ 0 });
    peer_send_vector(ctx, server, "T2");
    EVENTUALLY(ctx, shot.result == 0);
    pb_free(shot.resp);
    rpc_client_free(shot.client);
}

TEST_VIRTUAL(an_answer_that_is_too_long_fails_its_call_only)
{
    struct shot shot;
    AUTO(stream_free) struct stream *server = server_of(ctx, &shot);
    AUTO_FREE uint8_t *request = NULL, *next = NULL, *zeros = mem_zalloc(TTRPC_BODY_MAX + 1);
    uint8_t header[TTRPC_HEADER_BYTES];

    fiber_go(ctx->loop, connect_main, &shot, "connect");
    (void)peer_read(ctx, server, &request);
    ttrpc_header_encode(&(struct ttrpc_header){ TTRPC_BODY_MAX + 1, 1, TTRPC_RESPONSE, 0 }, header);
    peer_send(ctx, server, header, sizeof(header));
    peer_send(ctx, server, zeros, TTRPC_BODY_MAX + 1);
    EVENTUALLY(ctx, shot.result < 0);
    ASSERT_EQ(shot.err.code, ERR_EXHAUSTED);
    shot.result = 1;
    fiber_go(ctx->loop, connect_main, &shot, "connect");
    ASSERT_EQ(peer_read(ctx, server, &next).stream, 3);
    peer_frame(ctx, server, 3, TTRPC_RESPONSE, 0, (struct pb_slice){ 0 });
    EVENTUALLY(ctx, shot.result == 0);
    pb_free(shot.resp);
    rpc_client_free(shot.client);
}

/* The second call's stack is where the first one's was: a reader that remembered the first would
 * give it the wrong answer. */
TEST_VIRTUAL(a_call_may_give_up_in_the_middle_of_its_answer)
{
    struct shot shot;
    AUTO(stream_free) struct stream *server = server_of(ctx, &shot);
    AUTO_FREE uint8_t *request = NULL, *next = NULL;
    struct vector v = vector_load("T2");
    struct ctx one = ctx_with_timeout(ctx, NS_PER_S);
    struct err err = ERR_INIT;

    shot.ctx = &one;
    fiber_go(ctx->loop, connect_main, &shot, "connect");
    (void)peer_read(ctx, server, &request);
    peer_send(ctx, server, v.bytes, v.len - 1);
    EVENTUALLY(ctx, shot.result < 0);
    ASSERT_EQ(shot.err.code, ERR_DEADLINE);
    shot.ctx = ctx;
    shot.result = 1;
    fiber_go(ctx->loop, connect_main, &shot, "connect");
    ASSERT_EQ(peer_read(ctx, server, &next).stream, 3);
    peer_send(ctx, server, v.bytes + v.len - 1, 1);
    ASSERT_OK(fiber_sleep(ctx, NS_PER_S, &err), err);
    ASSERT_EQ(shot.result, 1);
    v.bytes[7] = 3;
    peer_send(ctx, server, v.bytes, v.len);
    EVENTUALLY(ctx, shot.result == 0);
    ASSERT_EQ(((ConnectResponse *)shot.resp)->task_pid, 4343);
    pb_free(shot.resp);
    rpc_client_free(shot.client);
}

TEST_VIRTUAL(a_call_keeps_its_deadline_if_the_server_does_not_read)
{
    struct stream *ours, *theirs;
    struct shot shot = { .result = 1 };
    struct ctx two = ctx_with_timeout(ctx, 2 * NS_PER_S);
    uint64_t start = loop_now(ctx->loop);

    stream_pair(ctx->loop, 16, &ours, &theirs); /* room for no request */
    shot.ctx = &two;
    shot.client = rpc_client_new(ctx->loop, ours);
    fiber_go(ctx->loop, connect_main, &shot, "connect");
    EVENTUALLY(ctx, shot.result < 0);
    ASSERT_EQ(shot.err.code, ERR_DEADLINE);
    ASSERT(loop_now(ctx->loop) - start < 3 * NS_PER_S);
    rpc_client_free(shot.client);
    stream_free(theirs);
}

/* --- sockets --- */

TEST_FIBER(a_client_reaches_a_listening_server)
{
    struct fake f = { 0 };
    struct rpc_server *s = fake_server(ctx->loop, &f);
    TEMPDIR(p);
    AUTO_FREE char *path = str_format("%s/s", p.dir), *address = str_format("unix://%s", path);
    struct shot shot = { .ctx = ctx, .result = 1 };
    struct err err = ERR_INIT;
    struct stat st;
    int fd;

    ASSERT_OK(rpc_sock_listen(address, &fd, &err), err);
    ASSERT_EQ(stat(path, &st), 0);
    ASSERT_EQ(st.st_mode & 07777, 0600);
    rpc_server_listen(s, fd);
    ASSERT_OK(rpc_client_connect(ctx, path, &shot.client, &err), err);
    connect_main(&shot);
    ASSERT_EQ(shot.result, 0);
    pb_free(shot.resp);
    ASSERT_EQ(rpc_server_stats(s).conns, 1);
    rpc_client_free(shot.client);
    EVENTUALLY(ctx, rpc_server_stats(s).conns == 0);
    end_server(ctx, s);
    /* The file of a dead server: it exists, but nothing listens. */
    ASSERT_FAIL(rpc_client_connect(ctx, path, &shot.client, &err), err, ERR_UNAVAILABLE);
    ASSERT_FAIL(rpc_sock_listen(path, &fd, &err), err, err.code);
    ASSERT_EQ(err.sys, EADDRINUSE);
    ASSERT_FAIL(rpc_client_connect(ctx, path, &shot.client, &err), err, ERR_UNAVAILABLE);
}

TEST_FIBER(abstract_sockets_have_no_file)
{
    AUTO_FREE char *address = str_format("@lcow-rpc-test-%d", (int)getpid());
    AUTO_FD int fd = -1, client = -1;
    struct err err = ERR_INIT;
    int second;

    ASSERT_OK(rpc_sock_listen(address, &fd, &err), err);
    ASSERT_OK(rpc_sock_connect(ctx, address, &client, &err), err);
    ASSERT_FAIL(rpc_sock_listen(address, &second, &err), err, err.code);
    ASSERT_EQ(err.sys, EADDRINUSE);
}

TEST_FIBER(a_connection_of_another_user_is_dropped)
{
    struct fake f = { 0 };
    struct rpc_server *s;
    AUTO_FREE char *address = str_format("@lcow-rpc-user-%d", (int)getpid());
    struct err err = ERR_INIT;
    int listener, fd;

    if (geteuid() != 0)
        tap_skip("only root can change its user");
    s = fake_server(ctx->loop, &f);
    ASSERT_OK(rpc_sock_listen(address, &listener, &err), err);
    rpc_server_listen(s, listener);
    ASSERT_EQ(seteuid(65534), 0);

    int r = rpc_sock_connect(ctx, address, &fd, &err);

    ASSERT_EQ(seteuid(0), 0);
    ASSERT_OK(r, err);

    AUTO(stream_free) struct stream *peer = stream_from_fd(ctx->loop, fd);

    peer_expect_end(ctx, peer);
    end_server(ctx, s);
}

TEST_FIBER(invalid_addresses_are_refused)
{
    AUTO_FREE char *longest = mem_zalloc(RPC_PATH_MAX + 2);
    struct err err = ERR_INIT;
    int fd;

    ASSERT_FAIL(rpc_sock_listen("run/x", &fd, &err), err, ERR_INVALID);
    ASSERT_FAIL(rpc_sock_listen("", &fd, &err), err, ERR_INVALID);
    ASSERT_FAIL(rpc_sock_connect(ctx, "vsock://3:1", &fd, &err), err, ERR_INVALID);
    memset(longest, '/', RPC_PATH_MAX + 1);
    ASSERT_FAIL(rpc_sock_listen(longest, &fd, &err), err, ERR_INVALID);
    ASSERT_FAIL(rpc_sock_listen("/nonexistent/lcow/s", &fd, &err), err, ERR_NOT_FOUND);
}

TEST_FIBER(connecting_to_a_full_queue_waits_until_the_deadline)
{
    AUTO_FREE char *address = str_format("@lcow-rpc-full-%d", (int)getpid());
    AUTO_FD int listener = -1;
    struct ctx soon = ctx_with_timeout(ctx, 100 * NS_PER_MS);
    struct err err = ERR_INIT;
    int fds[RPC_BACKLOG + 8], n = 0;

    ASSERT_OK(rpc_sock_listen(address, &listener, &err), err);
    while (n < (int)ARRAY_LEN(fds) && rpc_sock_connect(&soon, address, &fds[n], &err) == 0)
        n++;
    ASSERT(n > RPC_BACKLOG / 2 && n < (int)ARRAY_LEN(fds));
    ASSERT_EQ(err.code, ERR_DEADLINE);
    ASSERT_HAS(err.msg, address);
    while (n > 0)
        fd_close(fds[--n]);
}
