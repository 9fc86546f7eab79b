/* rpc_stream.c - streams: calls with any number of messages in both directions
 * (docs/reference/containerd-contract.md §1.8). The connection's reader queues the client's
 * messages. ttrpc has no flow control, so the stream of a client that fills the queue is ended. */
#include "base/stream.h"
#include "host/rpc/rpc_priv.h"
#include <stdlib.h>

/* Memory of a message including its heap blocks: an empty one needs memory as well. */
#define MESSAGE_COST(len) ((len) + sizeof(struct message) + 32)
/* The client may send 64 KiB, in the worst case each byte as one message (60 bytes with its type).
 */
#define QUEUE_MAX (12u << 20)
#define OUT_MAX (64u << 10) /* of the connection's queue: then a sender waits */

struct message {
    struct list node;
    uint8_t *body;
    size_t len;
};

struct rpc_stream {
    struct list node;
    struct rpc_conn *conn;
    uint32_t id;
    const ProtobufCMessageDescriptor *type; /* of what the client sends */
    struct list in;                         /* struct message */
    size_t in_bytes;
    bool client_done, finished;
    struct waitq arrived;
    struct cancel cancel;
};

struct rpc_stream *rpc_stream_new(struct rpc_conn *c, uint32_t id,
                                  const ProtobufCMessageDescriptor *type)
{
    struct rpc_stream *st = mem_new(struct rpc_stream);

    st->conn = c;
    st->id = id;
    st->type = type;
    list_init(&st->in);
    waitq_init(&st->arrived);
    /* Not the connection's ctx: messages that arrived before its end are still delivered. */
    cancel_init(&st->cancel, &c->server->life);
    list_append(&c->streams, &st->node);
    c->wire.reads_on = true;
    return st;
}

struct cancel *rpc_stream_cancel(struct rpc_stream *st)
{
    return &st->cancel;
}

static struct rpc_stream *find(struct rpc_conn *c, uint32_t id)
{
    LIST_FOR (struct rpc_stream, st, &c->streams, node)
        if (st->id == id)
            return st;
    return NULL;
}

static struct message *take(struct rpc_stream *st)
{
    struct message *m = LIST_FIRST(&st->in, struct message, node);

    if (m) {
        list_remove(&m->node);
        st->in_bytes -= MESSAGE_COST(m->len);
        st->conn->server->mem -= MESSAGE_COST(m->len);
    }
    return m;
}

static void message_free(struct message *m)
{
    if (m)
        free(m->body);
    free(m);
}
AUTO_DEFINE(struct message *, message_free);

bool rpc_stream_free(struct rpc_stream *st)
{
    bool client_done = st->client_done;

    while (!list_empty(&st->in))
        message_free(take(st));
    list_remove(&st->node);
    cancel_release(&st->cancel);
    free(st);
    return client_done;
}

/* --- in --- */

bool rpc_stream_has_room(struct rpc_conn *c, const struct ttrpc_header *h)
{
    struct rpc_stream *st = find(c, h->stream);

    size_t cost = MESSAGE_COST(h->len);

    if (st && (st->in_bytes + cost > QUEUE_MAX || cost > RPC_MEM_MAX - c->server->mem))
        cancel_fire(&st->cancel, ERR_EXHAUSTED, "the client exceeded the limit of queued messages");
    return st && !st->cancel.fired && !st->client_done;
}

bool rpc_stream_put(struct rpc_conn *c, const struct ttrpc_header *h, uint8_t *body)
{
    struct rpc_stream *st =
        find(c, h->stream); /* the stream may have ended while the body was read */
    AUTO(message_free) struct message *m = mem_new(struct message);

    *m = (struct message){ .body = body, .len = h->len };
    if (!st || (h->flags & TTRPC_NO_DATA) || st->client_done || st->cancel.fired) {
        c->server->mem -= h->len;
    } else {
        st->in_bytes += MESSAGE_COST(m->len);
        c->server->mem += MESSAGE_COST(m->len) - m->len;
        list_append(&st->in, &m->node);
        m = NULL;
    }
    if (!st)
        return h->flags & TTRPC_CLOSED;
    st->client_done = st->client_done || (h->flags & TTRPC_CLOSED);
    waitq_wake_all(&st->arrived);
    return false;
}

void rpc_streams_client_gone(struct rpc_conn *c)
{
    LIST_FOR (struct rpc_stream, st, &c->streams, node) {
        st->client_done = true;
        waitq_wake_all(&st->arrived);
    }
}

void rpc_streams_stop(struct rpc_conn *c)
{
    LIST_FOR (struct rpc_stream, st, &c->streams, node)
        cancel_fire(&st->cancel, ERR_UNAVAILABLE, "the server is shutting down");
}

int rpc_stream_recv(struct ctx *ctx, struct rpc_stream *st, void **ret_msg, struct err *err)
{
    while (list_empty(&st->in)) {
        if (st->client_done)
            return 0;
        if (waitq_wait(ctx, &st->arrived, "messages of a stream", err) < 0)
            return -1;
    }

    AUTO(message_free) struct message *m = take(st);

    if (pb_unpack(st->type, (struct pb_slice){ m->body, m->len }, PB_MEM_MAX, ret_msg, NULL) < 0)
        return err_set(err, ERR_INVALID, "a message of the stream is not a %s", st->type->name);
    return 1;
}

/* --- out --- */

static int put(struct rpc_stream *st, struct sbuf *frame, uint8_t flags, struct err *err)
{
    struct rpc_conn *c = st->conn;

    if (rpc_wire_put(&c->wire, frame, st->id, TTRPC_DATA, flags) < 0)
        return err_set(err, ERR_UNAVAILABLE, "the client closed the connection");
    return rpc_wire_flush(&c->ctx, &c->wire, err);
}

int rpc_stream_send(struct ctx *ctx, struct rpc_stream *st, const void *msg, struct err *err)
{
    struct rpc_wire *w = &st->conn->wire;
    struct sbuf frame = { 0 };

    while (w->out_bytes > OUT_MAX && !w->broken)
        if (waitq_wait(ctx, &w->room, "client reads", err) < 0)
            return -1;
    rpc_frame_begin(&frame);
    if (pb_pack(msg, &frame) < 0) {
        sbuf_release(&frame);
        return err_set(err, ERR_INTERNAL, "a string in a message of the stream is not UTF-8");
    }
    return put(st, &frame, 0, err);
}

int rpc_stream_finish(struct rpc_stream *st, struct err *err)
{
    struct sbuf frame = { 0 };

    if (st->finished)
        return 0;
    st->finished = true;
    rpc_frame_begin(&frame);
    return put(st, &frame, TTRPC_CLOSED | TTRPC_NO_DATA, err);
}
