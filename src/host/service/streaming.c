/* streaming.c - containerd's Streaming service: one stream of a process's stdio over ttrpc
 * (docs/reference/containerd-contract.md §5.5). A sender may send as many bytes as the receiver has
 * granted. */
#include "api/streaming.pb-c.h"
#include "api/transfer.pb-c.h"
#include "base/stream.h"
#include "host/io/io_hub.h"
#include "host/rpc/rpc_server.h"
#include "host/service/service_priv.h"
#include "proto/pb.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define STREAM_ID_MAX 256
#define CHUNK_BYTES (32 * 1024)
#define WINDOW (2 * CHUNK_BYTES) /* granted to a client that sends input */

/* Two fibers: the handler receives, another one sends. */
struct pipe {
    struct rpc_stream *st;
    struct io_client client;
    struct ctx ctx;     /* ends when another client takes over, or the shim exits */
    int64_t credit;     /* bytes that we may send */
    int64_t granted;    /* bytes that the client may send */
    struct waitq grown; /* woken when credit grows */
    struct fibers sender;
    bool failed; /* the client made a mistake, which the answer names */
};

static int send_any(struct pipe *p, const void *msg, struct err *err)
{
    AUTO(pb_free) Any *any = NULL;

    (void)pb_set_any(&any, msg); /* cannot fail: the message has no text */
    return rpc_stream_send(&p->ctx, p->st, any, err);
}

static int grant(struct pipe *p, struct err *err)
{
    Transfer__WindowUpdate update = TRANSFER__WINDOW_UPDATE__INIT;

    if (p->granted > WINDOW / 2)
        return 0;
    update.update = (int32_t)(WINDOW - p->granted);
    p->granted = WINDOW;
    return send_any(p, &update, err);
}

/* --- out --- */

/* Sends the pipe's bytes as far as the client has granted, until the pipe's end. */
static int send_output(struct pipe *p, uint8_t *buf, struct err *err)
{
    for (;;) {
        Transfer__Data data = TRANSFER__DATA__INIT;

        while (p->credit <= 0)
            if (waitq_wait(&p->ctx, &p->grown, "the client to grant output", err) < 0)
                return -1;
        data.data.data = buf;
        if (stream_read(&p->ctx, p->client.stream, buf,
                        p->credit < CHUNK_BYTES ? (size_t)p->credit : CHUNK_BYTES, &data.data.len,
                        err) < 0)
            return -1;
        if (data.data.len == 0)
            return 0;
        p->credit -= (int64_t)data.data.len;
        if (send_any(p, &data, err) < 0)
            return -1;
    }
}

static int send_all(struct pipe *p, struct err *err)
{
    struct io_client *c = &p->client;

    while (!c->stream && !c->closed)
        if (waitq_wait(&p->ctx, &c->changed, "a process for this stream", err) < 0)
            return -1;
    if (c->stream && !c->input) {
        AUTO_FREE uint8_t *buf = mem_alloc(CHUNK_BYTES);

        return send_output(p, buf, err);
    }
    if (!c->closed && grant(p, err) < 0)
        return -1;
    while (!c->closed)
        if (waitq_wait(&p->ctx, &c->changed, "the end of input", err) < 0)
            return -1;
    return 0;
}

static void sender_main(void *arg)
{
    struct pipe *p = arg;
    struct err err = ERR_INIT;

    (void)send_all(p, &err); /* fails if the client is gone or was replaced */
    if (!p->failed)
        (void)rpc_stream_finish(p->st, &err);
}

/* --- in --- */

/* -1: the client made a mistake. Input that the process does not read is dropped. */
static int take(struct pipe *p, const Any *any, struct err *err)
{
    AUTO(pb_free) void *msg = NULL;
    struct err ignored = ERR_INIT;

    if (pb_any_unpack(any, &transfer__window_update__descriptor, &msg) == 0) {
        p->credit += ((Transfer__WindowUpdate *)msg)->update;
        if (p->credit > INT32_MAX || p->credit < 0)
            return err_set(err, ERR_INVALID, "invalid window of %lld bytes", (long long)p->credit);
        waitq_wake_all(&p->grown);
        return 0;
    }
    if (pb_any_unpack(any, &transfer__data__descriptor, &msg) < 0)
        return 0; /* a message of a later version: ignored, as containerd does */

    const Transfer__Data *d = msg;

    /* Also refused for empty data, which would otherwise be answered with a grant. */
    if (!p->client.closed && (!p->client.stream || !p->client.input))
        return err_set(err, ERR_INVALID, "data on a stream without input");
    p->granted -= (int64_t)d->data.len;
    if (p->granted < 0)
        return err_set(err, ERR_INVALID, "more data than was granted");
    if (p->client.closed ||
        stream_write_full(&p->ctx, p->client.stream, d->data.data, d->data.len, &ignored) < 0) {
        p->client.closed = true;
        waitq_wake_all(&p->client.changed);
        return 0;
    }
    (void)grant(p, &ignored); /* fails if the client is gone; the next receive reports it */
    return 0;
}

static int receive(struct pipe *p, struct err *err)
{
    for (;;) {
        AUTO(pb_free) void *any = NULL;
        int r = rpc_stream_recv(&p->ctx, p->st, &any, err);

        if (r <= 0)
            return p->client.over.fired && err->code != ERR_EXHAUSTED ? 0 : r;
        if (take(p, any, err) < 0)
            return -1;
    }
}

/* --- the stream --- */

static int read_init(struct ctx *ctx, struct rpc_stream *st, char **ret_id, struct err *err)
{
    AUTO(pb_free) void *any = NULL, *init = NULL;
    int r = rpc_stream_recv(ctx, st, &any, err);

    if (r < 0)
        return -1;
    if (r == 0 || pb_any_unpack(any, &stream_init__descriptor, &init) < 0)
        return err_set(err, ERR_INVALID, "the first message of a stream must be a StreamInit");

    const char *id = ((StreamInit *)init)->id;

    if (!*id || strlen(id) > STREAM_ID_MAX)
        return err_set(err, ERR_INVALID, "invalid stream id: must have 1–%d bytes", STREAM_ID_MAX);
    *ret_id = str_dup(id);
    return 0;
}

static int stream(struct ctx *ctx, struct service *s, struct rpc_stream *st, struct err *err)
{
    AUTO_FREE char *id = NULL;
    struct pipe p = { .st = st };
    Any ready = ANY__INIT;
    int r;

    if (read_init(ctx, st, &id, err) < 0)
        return -1;
    io_hub_join(s->opts.registry->hub, &p.client, id, ctx->cancel);
    p.ctx = ctx_with_cancel(ctx, &p.client.over);
    waitq_init(&p.grown);
    fibers_init(&p.sender);
    r = rpc_stream_send(&p.ctx, st, &ready, err);
    if (r == 0) {
        struct ctx root = ctx_root(ctx->loop);
        struct err ignored = ERR_INIT;

        fibers_go(&p.sender, ctx->loop, sender_main, &p, "stream %s", id);
        r = receive(&p, err);
        p.failed = r < 0;
        cancel_fire(&p.client.over, ERR_CANCELLED, "the client has left");
        (void)fibers_wait(&root, &p.sender, "the sender", &ignored); /* ends with the connection */
    }
    io_client_leave(&p.client);
    return r;
}

void service_add_streaming(struct service *s, struct rpc_server *server)
{
    static const struct rpc_method methods[] = {
        { .name = "Stream",
          .stream = (rpc_stream_handler *)stream,
          .req_size = sizeof(Any),
          .resp_size = sizeof(Any),
          .patient = true,
          .minor = true },
    };
    static const struct rpc_service service = { &streaming__descriptor, methods, 1, NULL };

    rpc_server_add(server, SERVICE_STREAMING, &service, s);
}
