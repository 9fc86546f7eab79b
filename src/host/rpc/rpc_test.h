/* rpc_test.h - for the tests of this room: a service to call, and a peer that speaks frames by
 * hand. */
#pragma once
#include "api/streaming.pb-c.h"
#include "api/task.pb-c.h"
#include "api/transfer.pb-c.h"
#include "base/fiber.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/stream.h"
#include "harness/tap.h"
#include "host/rpc/rpc_server.h"
#include "proto/ttrpc.h"
#include "proto/ttrpc_vectors.h"
#include <string.h>
#include <sys/socket.h>

#define TASK_V2 "containerd.task.v2.Task"
#define TASK_V3 "containerd.task.v3.Task"
#define STREAMING "containerd.services.streaming.v1.Streaming"
#define SLICE(b) ((struct pb_slice){ (const uint8_t *)(b).data, (b).len })

/* What these tests provoke is not for the log. */
__attribute__((constructor)) static void quiet(void)
{
    log_init(2, LOG_OFF, LOG_LOGFMT);
}

/* --- the service --- */

struct fake {
    unsigned calls, waiting, wait_code; /* how the last Wait ended */
    struct latch exited;
    unsigned stream_ended; /* code of the last stream's end, plus one */
    bool stuck;            /* Pause does not care whether it was cancelled */
};

static int fake_connect(struct ctx *ctx, struct fake *f, const ConnectRequest *req,
                        ConnectResponse *resp, struct err *err)
{
    (void)ctx, (void)req, (void)err;
    f->calls++;
    resp->shim_pid = 4242;
    resp->task_pid = 4343;
    return 0;
}

static int fake_kill(struct ctx *ctx, struct fake *f, const KillRequest *req, Empty *resp,
                     struct err *err)
{
    (void)ctx, (void)resp;
    f->calls++;
    if (!str_eq(req->id, "c1"))
        return err_set(err, ERR_NOT_FOUND, "process already finished: not found");
    return 0;
}

static int fake_wait(struct ctx *ctx, struct fake *f, const WaitRequest *req, WaitResponse *resp,
                     struct err *err)
{
    (void)req;
    f->calls++;
    f->waiting++;

    int r = latch_wait(ctx, &f->exited, "exit", err);

    f->waiting--;
    f->wait_code = r < 0 ? err->code : ERR_NONE;
    resp->exit_status = 137;
    return r;
}

/* Answers with the request's namespace, or with what the id asks for. */
static int fake_state(struct ctx *ctx, struct fake *f, const StateRequest *req, StateResponse *resp,
                      struct err *err)
{
    struct ctx copy = *ctx, inner = ctx_with_id(&copy, "cid", req->id);
    char ns[32] = "";

    f->calls++;
    if (str_eq(req->id, "silent"))
        return -1;
    if (str_eq(req->id, "gone"))
        return err_set(err, ERR_NOT_FOUND, "no such process");
    if (str_eq(req->id, "tried")) /* an error on the way to success */
        (void)err_set(err, ERR_INTERNAL, "that did not work");
    ASSERT(rpc_metadata(&inner, "containerd-namespace-ttrpc", ns, 2) < 0);
    (void)rpc_metadata(&inner, "Containerd-Namespace-TTRPC", ns, sizeof(ns));
    pb_set_str(&resp->id, str_eq(req->id, "bad") ? "\xff" : req->id);
    pb_set_str(&resp->bundle, ns);
    return 0;
}

/* As many processes as the id says. */
static int fake_pids(struct ctx *ctx, struct fake *f, const PidsRequest *req, PidsResponse *resp,
                     struct err *err)
{
    uint64_t n = 0;

    (void)ctx, (void)err;
    f->calls++;
    (void)str_to_u64(req->id, 10000000, &n);
    resp->processes = mem_alloc(n * sizeof(*resp->processes));
    for (; resp->n_processes < n; resp->n_processes++) {
        resp->processes[resp->n_processes] = pb_new(&process_info__descriptor);
        resp->processes[resp->n_processes]->pid = 1;
    }
    return 0;
}

static int fake_pause(struct ctx *ctx, struct fake *f, const PauseRequest *req, Empty *resp,
                      struct err *err)
{
    struct ctx own = ctx_root(ctx->loop);

    (void)req, (void)resp;
    f->calls++;
    return latch_wait(f->stuck ? &own : ctx, &f->exited, "pause", err);
}

static const struct rpc_method fake_methods[] = {
    RPC_UNARY("Connect", fake_connect, struct fake, ConnectRequest, ConnectResponse),
    RPC_UNARY("Kill", fake_kill, struct fake, KillRequest, Empty),
    RPC_UNARY_PATIENT("Wait", fake_wait, struct fake, WaitRequest, WaitResponse),
    RPC_UNARY_BUT("State", fake_state, struct fake, StateRequest, StateResponse,
                  .may_be_gone = true),
    RPC_UNARY("Pids", fake_pids, struct fake, PidsRequest, PidsResponse),
    RPC_UNARY("Pause", fake_pause, struct fake, PauseRequest, Empty),
};
static const struct rpc_service fake_task = { &task__descriptor, fake_methods,
                                              ARRAY_LEN(fake_methods) };

/* StreamInit -> an empty Any; then "hi\n" for the first window, and the end. */
static int fake_stream(struct ctx *ctx, struct fake *f, struct rpc_stream *st, struct err *err)
{
    AUTO(pb_free) Any *init_any = NULL, *window_any = NULL, *out = NULL;
    AUTO(pb_free) StreamInit *init = NULL;
    AUTO(pb_free) Transfer__WindowUpdate *window = NULL;
    Any ack = ANY__INIT;
    Transfer__Data data = TRANSFER__DATA__INIT;
    int r = -1;

    f->calls++;
    if (rpc_stream_recv(ctx, st, (void **)&init_any, err) < 0)
        goto out;
    if (pb_any_unpack(init_any, &stream_init__descriptor, (void **)&init) < 0) {
        r = err_set(err, ERR_INVALID, "no StreamInit");
        goto out;
    }
    if (rpc_stream_send(ctx, st, &ack, err) < 0 ||
        rpc_stream_recv(ctx, st, (void **)&window_any, err) < 0)
        goto out;
    if (pb_any_unpack(window_any, &transfer__window_update__descriptor, (void **)&window) < 0) {
        r = err_set(err, ERR_INVALID, "no WindowUpdate");
        goto out;
    }
    data.data = (ProtobufCBinaryData){ 3, (uint8_t *)"hi\n" };
    ASSERT_EQ(pb_set_any(&out, &data), 0);
    r = rpc_stream_send(ctx, st, out, err);
out:
    f->stream_ended = 1 + (r < 0 ? err->code : 0);
    return r;
}

static const struct rpc_method fake_stream_methods[] = {
    RPC_STREAM("Stream", fake_stream, struct fake, RPC_CLIENT_STREAMS | RPC_SERVER_STREAMS),
};
static const struct rpc_service fake_streaming = { &streaming__descriptor, fake_stream_methods, 1 };

static inline struct rpc_server *fake_server(struct loop *loop, struct fake *f)
{
    struct rpc_server *s = rpc_server_new(loop);

    latch_init(&f->exited);
    rpc_server_add(s, TASK_V2, &fake_task, f);
    rpc_server_add(s, TASK_V3, &fake_task, f);
    rpc_server_add(s, STREAMING, &fake_streaming, f);
    return s;
}

/* --- the peer --- */

/* A connection whose other end the server has. In virtual time it is in memory. */
static inline struct stream *peer_of(struct ctx *ctx, struct rpc_server *server)
{
    struct stream *ours, *theirs;
    int fds[2];

    if (loop_is_virtual(ctx->loop)) {
        stream_pair(ctx->loop, 64 * 1024, &ours, &theirs);
    } else {
        ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
        ours = stream_from_fd(ctx->loop, fds[0]);
        theirs = stream_from_fd(ctx->loop, fds[1]);
    }
    rpc_server_serve(server, theirs);
    return ours;
}

static inline void peer_send(struct ctx *ctx, struct stream *s, const void *data, size_t len)
{
    struct err err = ERR_INIT;

    ASSERT_OK(stream_write_full(ctx, s, data, len, &err), err);
}

static inline void peer_send_vector(struct ctx *ctx, struct stream *s, const char *name)
{
    struct vector v = vector_load(name);

    peer_send(ctx, s, v.bytes, v.len);
}

static inline void peer_frame(struct ctx *ctx, struct stream *s, uint32_t id, uint8_t type,
                              uint8_t flags, struct pb_slice body)
{
    AUTO_FREE uint8_t *frame = mem_alloc(TTRPC_HEADER_BYTES + body.len);
    struct ttrpc_frame f = { id, type, flags, body };
    ssize_t n = ttrpc_frame_encode(&f, frame, TTRPC_HEADER_BYTES + body.len);

    ASSERT(n > 0);
    peer_send(ctx, s, frame, (size_t)n);
}

/* A request whose message has but an id. */
static inline void peer_request(struct ctx *ctx, struct stream *s, uint32_t stream_id,
                                const char *service, const char *method, const char *id,
                                int64_t timeout)
{
    AUTO(sbuf_release) struct sbuf payload = { 0 }, body = { 0 };

    pb_put_bytes(&payload, 1, pb_slice_of(id));
    ttrpc_put_request(&body, &(struct ttrpc_request){ .service = pb_slice_of(service),
                                                      .method = pb_slice_of(method),
                                                      .payload = SLICE(payload),
                                                      .timeout_nano = timeout });
    peer_frame(ctx, s, stream_id, TTRPC_REQUEST, 0, SLICE(body));
}

static inline void peer_expect_vector(struct ctx *ctx, struct stream *s, const char *name)
{
    struct vector v = vector_load(name);
    uint8_t got[sizeof(v.bytes)];
    struct err err = ERR_INIT;

    ASSERT_OK(stream_read_full(ctx, s, got, v.len, &err), err);
    vector_same(name, got, v.len);
}

/* The next frame. Caller frees *ret_body. */
static inline struct ttrpc_header peer_read(struct ctx *ctx, struct stream *s, uint8_t **ret_body)
{
    uint8_t bytes[TTRPC_HEADER_BYTES];
    struct ttrpc_header h;
    struct err err = ERR_INIT;

    ASSERT_OK(stream_read_full(ctx, s, bytes, sizeof(bytes), &err), err);
    ttrpc_header_decode(bytes, &h);
    ASSERT(h.len <= TTRPC_BODY_MAX);
    *ret_body = mem_alloc(h.len);
    ASSERT_OK(stream_read_full(ctx, s, *ret_body, h.len, &err), err);
    return h;
}

/* The next frame is a response with this code, whose text begins so. */
static inline void peer_expect(struct ctx *ctx, struct stream *s, uint32_t id, unsigned code,
                               const char *text)
{
    AUTO_FREE uint8_t *body = NULL;
    struct ttrpc_header h = peer_read(ctx, s, &body);
    struct ttrpc_response r;
    AUTO_FREE char *message = NULL;

    ASSERT_EQ(h.type, TTRPC_RESPONSE);
    ASSERT_EQ(h.flags, 0);
    ASSERT_EQ(ttrpc_response_decode((struct pb_slice){ body, h.len }, &r), 0);
    message = pb_slice_dup(r.message);
    if (h.stream != id || r.code != code || !str_starts(message, text))
        tap_fail(__FILE__, __LINE__,
                 "stream %u, code %u \"%s\"; expected stream %u, code %u \"%s\"", h.stream, r.code,
                 message, id, code, text);
}

static inline void peer_expect_end(struct ctx *ctx, struct stream *s)
{
    struct err err = ERR_INIT;
    char byte;
    size_t n = 1;

    if (stream_read(ctx, s, &byte, 1, &n, &err) == 0)
        ASSERT_EQ(n, 0);
    else
        ASSERT_EQ(err.code, ERR_UNAVAILABLE); /* reset: it had not read all we sent */
}

/* Waits for others to come so far; fails after 5 s. */
#define EVENTUALLY(ctx, cond)                                                                      \
    do {                                                                                           \
        struct err err_ = ERR_INIT;                                                                \
        for (int n_ = 0; !(cond) && n_ < 1000; n_++)                                               \
            ASSERT_OK(fiber_sleep((ctx), 5 * NS_PER_MS, &err_), err_);                             \
        ASSERT(cond);                                                                              \
    } while (0)

/* The end of a test: everything goes, nothing is left. */
static inline void end_server(struct ctx *ctx, struct rpc_server *s)
{
    struct ctx now = ctx_with_timeout(ctx, 0);
    struct err err = ERR_INIT;

    ASSERT_OK(rpc_server_shutdown(&now, s, &err), err);
    ASSERT_EQ(rpc_server_stats(s).mem, 0);
    ASSERT_EQ(rpc_server_stats(s).calls, 0);
    ASSERT_EQ(rpc_server_stats(s).conns, 0);
    rpc_server_free(s);
}
