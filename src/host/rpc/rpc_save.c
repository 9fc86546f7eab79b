/* rpc_save.c - the server's connections and the calls that wait on them. Not saved: what is being
 * received or written (the server is not settled then), streams (their state is with the process
 * that they belong to), limits of log lines. */
#include "base/loop.h"
#include "base/saved.h"
#include "base/stream.h"
#include "host/rpc/rpc_priv.h"
#include <stdlib.h>

void rpc_server_hold(struct rpc_server *s, bool held)
{
    s->held = held;
    if (!held)
        waitq_wake_all(&s->released);
}

bool rpc_server_receiving(const struct rpc_server *s)
{
    LIST_EACH (&s->conns, pos) {
        const struct rpc_in *in = LIST_ENTRY(pos, struct rpc_conn, node)->in;

        if (in && !in->between)
            return true;
    }
    return false;
}

static void call_save(struct saved *sv, struct rpc_call *call)
{
    struct sbuf body = { (char *)call->body, call->body_len, 0 };

    if (!call->method->resumable)
        saved_fail(sv, "a request is not answered yet: %s", call->method->name);
    saved_u32(sv, 1, &call->id);
    saved_sbuf(sv, 2, &body);
    saved_u64(sv, 3, &call->since_ns);
    saved_u64(sv, 4, &call->ctx.deadline);
}

static void call_resume(struct saved *sv, struct rpc_conn *c)
{
    struct sbuf body = { 0 };
    uint64_t since_ns = 0, deadline = 0;
    uint32_t id = 0;
    struct err err = ERR_INIT;

    saved_u32(sv, 1, &id);
    saved_sbuf(sv, 2, &body);
    saved_u64(sv, 3, &since_ns);
    saved_u64(sv, 4, &deadline);
    if (saved_check(sv, &err) < 0 || !body.data)
        sbuf_release(&body);
    else if (rpc_conn_again(c, id, (uint8_t *)body.data, body.len, since_ns, deadline) < 0)
        saved_fail(sv, "a request that cannot be repeated");
}

/* Bytes that were read, and of which no frame was begun. */
static void take_unread(struct saved *sv, struct rpc_conn *c, struct sbuf *ret)
{
    if (c->in && !c->in->between)
        saved_fail(sv, "a request is being received");
    else if (c->in)
        sbuf_add(ret, c->in->buf + c->in->start, c->in->end - c->in->start);
    else
        sbuf_add(ret, c->unread.data, c->unread.len);
    if (c->wire.out_bytes > 0 || c->wire.writing)
        saved_fail(sv, "a client does not read its answer");
    if (!list_empty(&c->streams))
        saved_fail(sv, "a client has stdio as a stream");
}

static void fields(struct saved *sv, struct rpc_conn *c, struct sbuf *unread)
{
    saved_sbuf(sv, 2, unread);
    saved_u32(sv, 3, &c->last_id);
    saved_u32(sv, 4, &c->last_stream);
    saved_bool(sv, 5, &c->unary);
    saved_u64(sv, 6, &c->answered_ns);
    saved_bool(sv, 7, &c->wire.reads_on);
}

static void conn_save(struct saved *sv, struct rpc_conn *c)
{
    AUTO(sbuf_release) struct sbuf unread = { 0 };

    take_unread(sv, c, &unread);
    saved_stream(sv, 1, "a connection", c->server->loop, &c->wire.stream);
    fields(sv, c, &unread);
    LIST_FOR (struct rpc_call, call, &c->calls, node) {
        if (!saved_open(sv, 8))
            return;
        call_save(sv, call);
        saved_close(sv);
    }
}

static void conn_resume(struct saved *sv, struct rpc_server *s)
{
    struct stream *stream = NULL;
    struct err err = ERR_INIT;

    saved_stream(sv, 1, "a connection", s->loop, &stream);
    if (!stream) {
        if (saved_check(sv, &err) == 0)
            saved_fail(sv, "a connection without a descriptor");
        return;
    }

    struct rpc_conn *c = rpc_conn_new(s, stream);

    fields(sv, c, &c->unread);
    if (c->unread.len > RPC_IN_BYTES)
        saved_fail(sv, "%zu unread bytes are more than %d", c->unread.len, RPC_IN_BYTES);
    while (saved_open(sv, 8)) {
        call_resume(sv, c);
        saved_close(sv);
    }
}

void rpc_server_saved(struct saved *sv, struct rpc_server *s)
{
    int listener = s->listener;

    saved_fd(sv, 3, "the listening socket", &listener);
    if (saved_reads(sv) && listener >= 0)
        rpc_server_listen(s, listener);
    if (saved_reads(sv)) {
        while (saved_open(sv, 1)) {
            conn_resume(sv, s);
            saved_close(sv);
        }
    } else {
        LIST_FOR (struct rpc_conn, c, &s->conns, node) {
            if (!saved_open(sv, 1))
                return;
            conn_save(sv, c);
            saved_close(sv);
        }
    }
    saved_u64(sv, 2, &s->used); /* last: calls that begin again were counted before */
}
