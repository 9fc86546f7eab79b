/* rpc_call.c - one request: its fiber, its handler, its answer; and the streams among them. */
#include "base/loop.h"
#include "host/rpc/rpc_priv.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A ctx with this key is a call's, or a copy of it: its value is in the call. Compared by
 * address. */
static const char operation_key[] = "operation";

#define MESSAGE_MAX (TTRPC_BODY_MAX - 16) /* a response around it takes a few bytes too */
#define SLICE(b) ((struct pb_slice){ (const uint8_t *)(b).data, (b).len })

int rpc_metadata(const struct ctx *ctx, const char *key, char *buf, size_t size)
{
    const struct rpc_call *call;
    struct pb_slice value;

    while (ctx && ctx->id_key != operation_key)
        ctx = ctx->parent;
    if (!ctx)
        return -ENOENT;
    call = CONTAINER_OF(ctx->id_value, struct rpc_call, operation);
    if (!ttrpc_metadata_get(&call->request, key, &value))
        return -ENOENT;
    if (!pb_text_ok(value))
        return -EBADMSG;
    if (value.len >= size)
        return -ENOBUFS;
    if (value.len > 0)
        memcpy(buf, value.data, value.len);
    buf[value.len] = '\0';
    return (int)value.len;
}

/* --- messages --- */

static int decode(struct rpc_call *call, struct pb_slice data, void **ret_msg, struct err *err)
{
    struct rpc_server *s = call->conn->server;
    size_t left = RPC_MEM_MAX - s->mem, bytes = 0;
    int r =
        pb_unpack(call->types->input, data, left < PB_MEM_MAX ? left : PB_MEM_MAX, ret_msg, &bytes);

    if (r == -E2BIG)
        return err_set(err, ERR_EXHAUSTED, "a %s of %zu bytes takes too much memory",
                       call->types->input->short_name, data.len);
    if (r < 0)
        return err_set(err, ERR_INVALID, "the payload is no %s", call->types->input->name);
    /* Until the call ends; a stream's message is its handler's. */
    if (!call->method->stream && rpc_mem_take(s, bytes))
        call->mem += bytes;
    return 0;
}

static int encode(const void *msg, struct sbuf *b, struct err *err)
{
    const ProtobufCMessage *m = msg;
    size_t before = b->len;

    if (pb_pack(msg, b) < 0)
        return err_set(err, ERR_INTERNAL, "a string in %s is no UTF-8 text", m->descriptor->name);
    if (b->len - before > MESSAGE_MAX)
        return err_set(err, ERR_EXHAUSTED, "a %s of %zu bytes is too long to be sent",
                       m->descriptor->short_name, b->len - before);
    return 0;
}

/* --- handlers --- */

static int run_unary(struct rpc_call *call, struct sbuf *payload, struct err *err)
{
    AUTO(pb_free) void *req = NULL, *resp = NULL;

    if (decode(call, call->request.payload, &req, err) < 0)
        return -1;
    resp = pb_new(call->types->output);
    if (call->method->unary(&call->ctx, call->self, req, resp, err) < 0)
        return -1;
    return encode(resp, payload, err);
}

static int run_stream(struct rpc_call *call, struct sbuf *payload, struct err *err)
{
    if (call->method->stream(&call->ctx, call->self, &call->stream, err) < 0)
        return -1;
    *payload = call->stream.answer;
    call->stream.answer = (struct sbuf){ 0 };
    return 0;
}

/* The last frame of a call. A stream of the server's ends with an empty data frame, everything
 * else, and every error, with a response. */
static void answer(struct rpc_call *call, struct pb_slice payload, const struct err *err)
{
    struct sbuf frame = { 0 };
    bool data = err->code == ERR_NONE && call->method->streams & RPC_SERVER_STREAMS;

    rpc_frame_begin(&frame);
    if (!data)
        ttrpc_put_response(
            &frame, &(struct ttrpc_response){ err->code, pb_slice_of(err->msg),
                                              err->code ? (struct pb_slice){ 0 } : payload });
    (void)rpc_conn_put(call->conn, &frame, call->id, data ? TTRPC_DATA : TTRPC_RESPONSE,
                       data ? TTRPC_CLOSED | TTRPC_NO_DATA : 0); /* else the client has gone */
}

static void tell(struct rpc_call *call, const struct err *err)
{
    uint64_t duration = loop_now(call->ctx.loop) - call->since_ns;

    if (err->code == ERR_NONE)
        log_debug(&call->ctx, "request done", F_NS("duration", duration));
    else if (call->conn->cancel.fired)
        log_debug(&call->ctx, "request given up", F_NS("duration", duration), F_ERR(err));
    else if (err->code == ERR_NOT_FOUND && call->method->may_be_gone)
        log_debug(&call->ctx, "request for what is gone", F_NS("duration", duration), F_ERR(err));
    else
        log_error(&call->ctx, "request failed", F_NS("duration", duration),
                  F_STR("code", err_code_name(err->code)), F_ERR(err));
}

static void drop_messages(struct rpc_call *call)
{
    while (!list_empty(&call->stream.inbox)) {
        struct rpc_message *m = LIST_FIRST(&call->stream.inbox, struct rpc_message, node);

        list_remove(&m->node);
        rpc_mem_give(call->conn->server, m->len);
        free(m->body);
        free(m);
    }
}

static void call_free(struct rpc_call *call)
{
    drop_messages(call);
    sbuf_release(&call->stream.answer);
    rpc_mem_give(call->conn->server, call->mem);
    cancel_release(&call->cancel);
    free(call->body);
    free(call);
}

static void call_main(void *arg)
{
    struct rpc_call *call = arg;
    struct rpc_conn *c = call->conn;
    struct rpc_server *s = c->server;
    AUTO(sbuf_release) struct sbuf payload = { 0 };
    struct err err = ERR_INIT;
    int r =
        call->method->stream ? run_stream(call, &payload, &err) : run_unary(call, &payload, &err);

    if (r < 0 && err.code == ERR_NONE)
        (void)err_set(&err, ERR_INTERNAL, "%s failed without saying why", call->method->name);
    if (r == 0)
        err_clear(&err); /* a handler may have tried something that failed */
    list_remove(&call->node);
    rpc_watch_end(s, call);
    answer(call, SLICE(payload), &err);
    tell(call, &err);
    call_free(call);
    sbuf_release(&payload);
    err_clear(&err);
    (void)rpc_wire_flush(&c->ctx, &c->wire, &err); /* the reader ends with it and tells */
    c->n_calls--;
    s->n_calls--;
    rpc_conn_unref(c);
    rpc_fiber_end(s);
}

static uint64_t deadline(struct loop *loop, int64_t timeout_nano)
{
    uint64_t now = loop_now(loop), ns = timeout_nano > 0 ? (uint64_t)timeout_nano : 0;

    if (timeout_nano == 0)
        return 0;
    return ns > UINT64_MAX - now ? UINT64_MAX : now + ns;
}

void rpc_call_start(struct rpc_conn *c, const struct rpc_entry *entry,
                    const struct rpc_method *method, const struct ttrpc_header *h, uint8_t *body,
                    const struct ttrpc_request *request)
{
    struct rpc_server *s = c->server;
    struct rpc_call *call = mem_new(struct rpc_call);

    call->conn = c;
    call->id = h->stream;
    call->method = method;
    call->types =
        protobuf_c_service_descriptor_get_method_by_name(entry->service->descriptor, method->name);
    call->self = entry->self;
    cancel_init(&call->cancel, &c->cancel);
    snprintf(call->operation, sizeof(call->operation), "%s", method->name);
    call->ctx = ctx_with_id(&c->ctx, operation_key, call->operation);
    call->ctx.cancel = &call->cancel;
    call->ctx.deadline = deadline(s->loop, request->timeout_nano);
    call->since_ns = loop_now(s->loop);
    call->body = body;
    call->request = *request;
    call->mem = h->len;
    list_init(&call->stream.inbox);
    waitq_init(&call->stream.q);
    call->stream.peer_done = !(h->flags & TTRPC_OPEN) || !(method->streams & RPC_CLIENT_STREAMS);
    list_append(&c->calls, &call->node);
    c->refs++;
    c->n_calls++;
    s->n_calls++;
    rpc_watch_begin(s, call);
    rpc_fiber_begin(s);
    fiber_go(s->loop, call_main, call, "rpc %s", method->name);
}

/* --- streams --- */

struct rpc_call *rpc_call_find_stream(struct rpc_conn *c, uint32_t id)
{
    LIST_EACH (&c->calls, pos) {
        struct rpc_call *call = LIST_ENTRY(pos, struct rpc_call, node);

        if (call->id == id && call->method->stream)
            return call;
    }
    return NULL;
}

static void fail_stream(struct rpc_call *call, enum err_code code, const char *why)
{
    call->stream.peer_done = true;
    cancel_fire(&call->cancel, code, why);
}

void rpc_call_data(struct rpc_call *call, const struct ttrpc_header *h, uint8_t *body)
{
    struct rpc_stream *st = &call->stream;
    bool message = !(h->flags & TTRPC_NO_DATA), closes = h->flags & TTRPC_CLOSED;
    bool full = st->inbox_n >= RPC_INBOX_MESSAGES || st->inbox_bytes + h->len > RPC_INBOX_MAX;

    if (message && !st->peer_done && !(closes && h->len > 0) && !(full && st->inbox_n > 0)) {
        struct rpc_message *m = mem_new(struct rpc_message);

        m->body = body;
        m->len = h->len;
        list_append(&st->inbox, &m->node);
        st->inbox_n++;
        st->inbox_bytes += h->len;
        st->peer_done = closes;
        waitq_wake_all(&st->q);
        return;
    }
    if (message && st->peer_done)
        rpc_conn_refuse(call->conn, call->id, ERR_INVALID, "stream %u was closed", call->id);
    else if (h->len > 0 && closes)
        fail_stream(call, ERR_INVALID, "the frame that closes a stream has data");
    else if (message)
        fail_stream(call, ERR_EXHAUSTED, "messages come faster than they are taken");
    st->peer_done |= closes;
    waitq_wake_all(&st->q);
    rpc_mem_give(call->conn->server, h->len);
    free(body);
}

static struct rpc_call *call_of(struct rpc_stream *st)
{
    return CONTAINER_OF(st, struct rpc_call, stream);
}

/* The payload of the request itself is the first message if there is one, or if it is the only
 * one, because the client does not stream. */
static bool take_first(struct rpc_call *call)
{
    bool taken = call->stream.first_taken, streams = call->method->streams & RPC_CLIENT_STREAMS;

    call->stream.first_taken = true;
    return !taken && (!streams || call->request.payload.len > 0);
}

int rpc_stream_recv(struct ctx *ctx, struct rpc_stream *st, void **ret_msg, struct err *err)
{
    struct rpc_call *call = call_of(st);
    struct rpc_server *s = call->conn->server;

    *ret_msg = NULL;
    if (take_first(call))
        return decode(call, call->request.payload, ret_msg, err);
    while (list_empty(&st->inbox)) {
        if (ctx_check(ctx, err) < 0)
            return -1;
        if (st->peer_done)
            return 0;
        if (waitq_wait(ctx, &st->q, "stream message", err) < 0)
            return -1;
    }

    struct rpc_message *m = LIST_FIRST(&st->inbox, struct rpc_message, node);
    int r = decode(call, (struct pb_slice){ m->body, m->len }, ret_msg, err);

    list_remove(&m->node);
    st->inbox_n--;
    st->inbox_bytes -= m->len;
    rpc_mem_give(s, m->len);
    free(m->body);
    free(m);
    return r;
}

int rpc_stream_send(struct ctx *ctx, struct rpc_stream *st, const void *msg, struct err *err)
{
    struct rpc_call *call = call_of(st);
    struct rpc_conn *c = call->conn;
    struct sbuf frame = { 0 };

    if (!(call->method->streams & RPC_SERVER_STREAMS)) {
        if (st->answered)
            return err_set(err, ERR_INTERNAL, "%s answers twice", call->method->name);
        st->answered = true;
        return encode(msg, &st->answer, err);
    }
    while (c->wire.out_bytes > RPC_OUT_SOFT && !c->wire.broken)
        if (waitq_wait(ctx, &c->wire.room, "client reads", err) < 0)
            return -1;
    if (ctx_check(ctx, err) < 0)
        return -1;
    rpc_frame_begin(&frame);
    if (encode(msg, &frame, err) < 0) {
        sbuf_release(&frame);
        return -1;
    }
    if (rpc_conn_put(c, &frame, call->id, TTRPC_DATA, 0) < 0)
        return err_set(err, ERR_CANCELLED, "the client has gone");
    rpc_conn_kick(c);
    return 0;
}
