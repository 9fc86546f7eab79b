/* rpc_conn.c - one connection: reads frames, checks them, starts calls. What a client can do wrong
 * with a frame is answered here, and the next one is read. */
#include "base/loop.h"
#include "base/stream.h"
#include "host/rpc/rpc_priv.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define NAME_MAX_SHOWN 256 /* of a service or method that is not there */
#define FRAMES_AT_ONCE 16  /* then others get a turn, however fast this client is */

void rpc_conn_unref(struct rpc_conn *c)
{
    if (--c->refs > 0)
        return;
    rpc_wire_release(&c->wire);
    cancel_release(&c->cancel);
    free(c);
}

/* --- out --- */

static void writer_main(void *arg)
{
    struct rpc_conn *c = arg;
    struct rpc_server *s = c->server;
    struct err err = ERR_INIT;

    (void)rpc_wire_drain(&c->ctx, &c->wire, &err); /* the reader ends with it and tells */
    rpc_conn_unref(c);
    rpc_fiber_end(s);
}

void rpc_conn_kick(struct rpc_conn *c)
{
    if (c->wire.writing || c->wire.broken)
        return;
    c->wire.writing = true;
    c->refs++;
    rpc_fiber_begin(c->server);
    fiber_go(c->server->loop, writer_main, c, "rpc writer");
}

int rpc_conn_put(struct rpc_conn *c, struct sbuf *frame, uint32_t id, uint8_t type, uint8_t flags)
{
    int r = rpc_wire_put(&c->wire, frame, id, type, flags);

    if (r == -ENOBUFS) {
        log_warn(&c->ctx, "connection closed: the client does not read its answers",
                 F_U("bytes", c->wire.out_bytes));
        rpc_wire_cut(&c->wire);
    }
    c->answered_ns = loop_now(c->server->loop);
    return r;
}

void rpc_conn_refuse(struct rpc_conn *c, uint32_t id, enum err_code code, const char *fmt, ...)
{
    struct rpc_server *s = c->server;
    struct sbuf frame = { 0 };
    AUTO_FREE char *text = NULL;
    va_list ap;

    va_start(ap, fmt);
    text = str_vformat(fmt, ap);
    va_end(ap);
    s->refused++;
    if (log_rate_ok(&s->refused_log, loop_now(s->loop)))
        log_warn(&c->ctx, "request refused", F_STR("error", text), F_U("stream", id));
    rpc_frame_begin(&frame);
    ttrpc_put_response(&frame, &(struct ttrpc_response){ code, pb_slice_of(text), { 0 } });
    (void)rpc_conn_put(c, &frame, id, TTRPC_RESPONSE, 0); /* it cuts off who does not read */
    rpc_conn_kick(c);
}

/* --- in --- */

static const struct rpc_entry *find_entry(struct rpc_server *s, struct pb_slice name)
{
    LIST_EACH (&s->entries, pos) {
        struct rpc_entry *e = LIST_ENTRY(pos, struct rpc_entry, node);

        if (pb_slice_is(name, e->name))
            return e;
    }
    return NULL;
}

static const struct rpc_method *find_method(const struct rpc_service *service, struct pb_slice name)
{
    for (size_t i = 0; i < service->n_methods; i++)
        if (pb_slice_is(name, service->methods[i].name))
            return &service->methods[i];
    return NULL;
}

static int shown(struct pb_slice name)
{
    return name.len < NAME_MAX_SHOWN ? (int)name.len : NAME_MAX_SHOWN;
}

/* Takes body. The texts of the two that are unimplemented are the reference's. */
static void dispatch(struct rpc_conn *c, const struct ttrpc_header *h, uint8_t *body)
{
    struct rpc_server *s = c->server;
    struct ttrpc_request r;
    const struct rpc_entry *entry = NULL;
    const struct rpc_method *method = NULL;
    struct err full = ERR_INIT;

    c->last_id = h->stream;
    if (ttrpc_request_decode((struct pb_slice){ body, h->len }, &r) < 0)
        rpc_conn_refuse(c, h->stream, ERR_INVALID, "the request is no ttrpc.Request");
    else if (s->stopping)
        rpc_conn_refuse(c, h->stream, ERR_UNAVAILABLE, "the shim is shutting down");
    else if (!(entry = find_entry(s, r.service)))
        rpc_conn_refuse(c, h->stream, ERR_UNIMPLEMENTED, "service %.*s", shown(r.service),
                        (const char *)r.service.data);
    else if (!(method = find_method(entry->service, r.method)))
        rpc_conn_refuse(c, h->stream, ERR_UNIMPLEMENTED, "method %.*s", shown(r.method),
                        (const char *)r.method.data);
    else if (c->n_calls >= RPC_CALLS_PER_CONN || s->n_calls >= RPC_CALLS_MAX)
        rpc_conn_refuse(c, h->stream, ERR_EXHAUSTED, "too many requests in flight: %u", c->n_calls);
    else if (fiber_admit(s->loop, &full) < 0)
        rpc_conn_refuse(c, h->stream, full.code, "%s", full.msg);
    else {
        rpc_call_start(c, entry, method, h, body, &r);
        return;
    }
    rpc_mem_give(s, h->len);
    free(body);
}

/* True if the frame's body is to be read and looked at. */
static bool acceptable(struct rpc_conn *c, const struct ttrpc_header *h)
{
    if (h->len > TTRPC_BODY_MAX)
        rpc_conn_refuse(c, h->stream, ERR_EXHAUSTED,
                        "message length %u exceeds the maximum message size of %u", h->len,
                        TTRPC_BODY_MAX);
    else if (h->type != TTRPC_REQUEST && h->type != TTRPC_DATA)
        return false; /* of a later version of the protocol: ignored */
    else if (h->stream % 2 == 0)
        rpc_conn_refuse(c, h->stream, ERR_INVALID, "a client's stream ids are odd: %u", h->stream);
    else if (h->type == TTRPC_REQUEST && h->stream <= c->last_id)
        rpc_conn_refuse(c, h->stream, ERR_INVALID,
                        "stream ids must increase and are not used again: %u after %u", h->stream,
                        c->last_id);
    else if (h->type == TTRPC_DATA && !rpc_call_find_stream(c, h->stream))
        rpc_conn_refuse(c, h->stream, ERR_INVALID, "stream %u is not open", h->stream);
    else if (!rpc_mem_take(c->server, h->len))
        rpc_conn_refuse(c, h->stream, ERR_EXHAUSTED, "requests in flight hold too much memory");
    else
        return true;
    return false;
}

static int read_frame(struct rpc_conn *c, struct rpc_in *in, const struct ttrpc_header *h,
                      struct err *err)
{
    if (!acceptable(c, h))
        return h->len > 0 ? rpc_in_skip(&c->ctx, in, h->len, err) : 0;

    uint8_t *body = mem_alloc(h->len);

    if (rpc_in_read(&c->ctx, in, body, h->len, err) < 0) {
        free(body);
        rpc_mem_give(c->server, h->len);
        return -1;
    }
    if (h->type == TTRPC_REQUEST) {
        dispatch(c, h, body);
        return 0;
    }

    /* Its handler may have ended while the body came. */
    struct rpc_call *call = rpc_call_find_stream(c, h->stream);

    if (call) {
        rpc_call_data(call, h, body);
        return 0;
    }
    free(body);
    rpc_mem_give(c->server, h->len);
    rpc_conn_refuse(c, h->stream, ERR_INVALID, "stream %u is not open", h->stream);
    return 0;
}

/* 1 to go on, 0 at the end, -1. Does not begin anything new for a client that does not read. */
static int next_frame(struct rpc_conn *c, struct rpc_in *in, struct err *err)
{
    struct ttrpc_header h;
    int r;

    while (c->wire.out_bytes > RPC_OUT_SOFT && !c->wire.broken)
        if (waitq_wait(&c->ctx, &c->wire.room, "client reads", err) < 0)
            return -1;
    r = rpc_in_header(&c->ctx, in, &h, err);
    if (r <= 0)
        return r;
    return read_frame(c, in, &h, err) < 0 ? -1 : 1;
}

static void conn_main(void *arg)
{
    struct rpc_conn *c = arg;
    struct rpc_server *s = c->server;
    struct rpc_in in = { .stream = c->wire.stream };
    int r;

    for (unsigned n = 1; (r = next_frame(c, &in, &c->why)) > 0; n++)
        if (n % FRAMES_AT_ONCE == 0)
            fiber_yield(s->loop);
    if (r < 0)
        log_debug(&c->ctx, "connection ended", F_ERR(&c->why));
    cancel_fire(&c->cancel, ERR_CANCELLED, "the client has gone");
    rpc_wire_cut(&c->wire);
    list_remove(&c->node);
    if (--s->n_conns == 0 && s->on_alone)
        s->on_alone(s->on_alone_arg);
    rpc_conn_unref(c);
    rpc_fiber_end(s);
}

void rpc_server_serve(struct rpc_server *s, struct stream *stream)
{
    struct rpc_conn *c = mem_new(struct rpc_conn);

    c->server = s;
    c->refs = 1;
    rpc_wire_init(&c->wire, stream);
    cancel_init(&c->cancel, &s->life);
    c->ctx = (struct ctx){ .loop = s->loop, .cancel = &c->cancel };
    list_init(&c->calls);
    list_append(&s->conns, &c->node);
    s->n_conns++;
    rpc_fiber_begin(s);
    fiber_go(s->loop, conn_main, c, "rpc connection");
}
