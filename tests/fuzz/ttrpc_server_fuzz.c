/* Whatever bytes a client sends: the server answers or ignores, nothing leaks, nothing hangs. First
 * byte: how the bytes are cut into writes; then the bytes. What comes back must be frames. */
#include "api/streaming.pb-c.h"
#include "api/task.pb-c.h"
#include "base/ctx.h"
#include "base/log.h"
#include "base/stream.h"
#include "fixture/kept_spans.h"
#include "fixture/stream_pair.h"
#include "fuzz/on_fiber.h"
#include "host/rpc/rpc_server.h"
#include "proto/ttrpc.h"
#include <sys/socket.h>

#define PIPE_BYTES 4096
#define LIMIT (5 * NS_PER_S) /* virtual */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int on_state(struct ctx *ctx, void *self, const StateRequest *req, StateResponse *resp,
                    struct err *err)
{
    (void)ctx, (void)self, (void)err;
    pb_set_str(&resp->id, req->id);
    pb_set_str(&resp->exec_id, req->exec_id);
    return 0;
}

static int on_create(struct ctx *ctx, void *self, const CreateTaskRequest *req,
                     CreateTaskResponse *resp, struct err *err)
{
    (void)ctx, (void)self;
    resp->pid = (uint32_t)req->n_rootfs;
    return req->options ? 0 : err_set(err, ERR_INVALID, "no options for %s", req->id);
}

/* Until the client has gone, or its time is up. */
static int on_wait(struct ctx *ctx, void *self, const WaitRequest *req, WaitResponse *resp,
                   struct err *err)
{
    (void)self, (void)req, (void)resp;
    return fiber_sleep(ctx, 3600 * NS_PER_S, err);
}

static const struct rpc_method task_methods[] = {
    RPC_METHOD("State", on_state, void, StateRequest, StateResponse, .minor = true),
    RPC_METHOD("Create", on_create, void, CreateTaskRequest, CreateTaskResponse),
    RPC_METHOD("Wait", on_wait, void, WaitRequest, WaitResponse, .patient = true),
};
static const struct rpc_service task = { &task__descriptor, task_methods, 3, .id_key = "cid" };

/* Sends back what comes. */
static int on_stream(struct ctx *ctx, void *self, struct rpc_stream *st, struct err *err)
{
    for (;;) {
        AUTO(pb_free) void *msg = NULL;
        int r = rpc_stream_recv(ctx, st, &msg, err);

        (void)self;
        if (r <= 0)
            return r;
        if (rpc_stream_send(ctx, st, msg, err) < 0)
            return -1;
    }
}

static const struct rpc_method streaming_methods[] = {
    { .name = "Stream",
      .stream = on_stream,
      .req_size = sizeof(Any),
      .resp_size = sizeof(Any),
      .patient = true },
};
static const struct rpc_service streaming = { &streaming__descriptor, streaming_methods, 1, NULL };

struct reader {
    struct ctx *ctx;
    struct stream *peer;
    struct latch done;
};

/* Everything the server sends is a frame that a client may get. */
static void read_answers(void *arg)
{
    struct reader *r = arg;
    uint8_t bytes[TTRPC_HEADER_BYTES];
    struct ttrpc_header h;
    struct err err = ERR_INIT;

    while (stream_read_full(r->ctx, r->peer, bytes, sizeof(bytes), &err) == 0) {
        ttrpc_header_decode(bytes, &h);
        if (h.len > TTRPC_BODY_MAX || (h.type != TTRPC_RESPONSE && h.type != TTRPC_DATA))
            abort();

        AUTO_FREE uint8_t *body = mem_alloc(h.len);

        if (stream_read_full(r->ctx, r->peer, body, h.len, &err) < 0)
            break;

        struct ttrpc_response resp;

        if (h.type == TTRPC_RESPONSE &&
            ttrpc_response_decode((struct pb_slice){ body, h.len }, &resp) < 0)
            abort();
    }
    latch_set(&r->done);
}

static void write_input(struct ctx *ctx, struct stream *peer, const struct fuzz_input *in)
{
    size_t step = 1 + (size_t)in->data[0] * 16;
    struct err err = ERR_INIT;

    for (size_t at = 1, n; at < in->size; at += n) {
        n = in->size - at < step ? in->size - at : step;
        if (stream_write_full(ctx, peer, in->data + at, n, &err) < 0)
            return;
        fiber_yield(ctx->loop);
    }
    (void)fiber_sleep(ctx, NS_PER_S, &err); /* let it answer */
}

static void fuzz(void *arg)
{
    const struct fuzz_input *in = arg;
    struct loop *loop = in->loop;
    struct ctx root = ctx_root(loop), ctx = ctx_with_timeout(&root, LIMIT), now;
    struct rpc_server *s = rpc_server_new(loop);
    struct stream *theirs;
    struct reader reader = { .ctx = &ctx };
    struct kept spans = kept_with(loop);
    struct err err = ERR_INIT;

    log_init(2, LOG_OFF, LOG_LOGFMT);
    rpc_server_trace(s, &spans.sink);
    rpc_server_add(s, "containerd.task.v2.Task", &task, NULL);
    rpc_server_add(s, "containerd.task.v3.Task", &task, NULL);
    rpc_server_add(s, "containerd.services.streaming.v1.Streaming", &streaming, NULL);
    stream_pair(loop, PIPE_BYTES, &reader.peer, &theirs);
    rpc_server_serve(s, theirs);
    latch_init(&reader.done);
    fiber_go(loop, read_answers, &reader, "answers");
    write_input(&ctx, reader.peer, in);
    (void)stream_shutdown(reader.peer, SHUT_WR);
    if (latch_wait(&ctx, &reader.done, "end", &err) < 0)
        abort(); /* the end of what we send is the end of the connection */
    now = ctx_with_timeout(&root, 0);
    if (rpc_server_shutdown(&now, s, &err) < 0 || rpc_server_stats(s).mem != 0)
        abort();
    rpc_server_free(s);
    stream_free(reader.peer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return size == 0 ? 0 : fuzz_on_fiber(fuzz, data, size);
}
