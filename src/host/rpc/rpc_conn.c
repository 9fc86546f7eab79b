/* rpc_conn.c - one connection: reads frames, checks them, starts a fiber for each request, answers.
 * An invalid frame gets an error as its answer, and the next frame is read. */
#include "base/loop.h"
#include "base/span.h"
#include "base/stream.h"
#include "base/waits.h"
#include "host/rpc/rpc_priv.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_MAX_SHOWN 256                /* bytes of an unknown service or method in a message */
#define ID_MAX_SHOWN 128                  /* in log lines */
#define FRAMES_AT_ONCE 16                 /* then other fibers run, however fast this client is */
#define MESSAGE_MAX (TTRPC_BODY_MAX - 16) /* leaves room for the response around the message */

static void conn_unref(struct rpc_conn *c)
{
    if (--c->refs > 0)
        return;
    rpc_wire_release(&c->wire);
    sbuf_release(&c->unread);
    cancel_release(&c->cancel);
    free(c);
}

/* --- out --- */

/* Closes the connection of a client that does not read its answers. */
static void respond(struct rpc_conn *c, uint32_t id, const struct ttrpc_response *r)
{
    struct sbuf frame = { 0 };

    rpc_frame_begin(&frame);
    ttrpc_put_response(&frame, r);
    if (rpc_wire_put(&c->wire, &frame, id, TTRPC_RESPONSE, 0) == -ENOBUFS) {
        log_warn(&c->ctx, "connection closed: the client does not read its answers",
                 F_U("bytes", c->wire.out_bytes));
        rpc_wire_cut(&c->wire);
    }
    c->answered_ns = loop_now(c->server->loop);
}

static void writer_main(void *arg)
{
    struct rpc_conn *c = arg;
    struct rpc_server *s = c->server;
    struct err err = ERR_INIT;

    (void)rpc_wire_drain(&c->ctx, &c->wire, &err); /* on failure the reader fails too and reports */
    conn_unref(c);
    rpc_server_unref(s);
}

/* Answers a frame that did not become a call. Never waits: a separate fiber writes. */
__attribute__((format(printf, 4, 5))) static void refuse(struct rpc_conn *c, uint32_t id,
                                                         enum err_code code, const char *fmt, ...)
{
    struct rpc_server *s = c->server;
    AUTO_FREE char *text = NULL;
    va_list ap;

    va_start(ap, fmt);
    text = str_vformat(fmt, ap);
    va_end(ap);
    if (log_rate_ok(&s->refused_log, loop_now(s->loop)))
        log_warn(&c->ctx, "request refused", F_STR(LK_ERROR, text), F_U("stream", id));
    respond(c, id, &(struct ttrpc_response){ code, pb_slice_of(text), { 0 }, { 0 } });
    if (c->wire.writing || c->wire.broken)
        return;
    c->wire.writing = true;
    c->refs++;
    s->refs++;
    fiber_go(s->loop, writer_main, c, "rpc writer");
}

/* --- the watchdog: reports each request that takes too long, once. It has no timer while only
 * requests without a limit (Wait) are in flight. --- */

/* Called for every request: only the first and the last one wake the watchdog. */
static void watched(const struct rpc_call *call, int change)
{
    struct rpc_server *s = call->conn->server;

    if (call->method->patient)
        return;
    s->watched += (unsigned)change;
    if (s->watched == (change > 0))
        waitq_wake_all(&s->watch_q);
}

/* Reports overdue requests; returns the time at which the next one becomes overdue. */
static uint64_t report_slow(struct rpc_server *s, uint64_t now)
{
    uint64_t next = now + s->slow_ns;

    LIST_EACH (&s->conns, at) {
        LIST_FOR (struct rpc_call, call, &LIST_ENTRY(at, struct rpc_conn, node)->calls, node) {
            uint64_t due = call->since_ns + s->slow_ns;

            if (call->method->patient || call->told_slow)
                continue;
            if (due > now) {
                next = due < next ? due : next;
                continue;
            }
            call->told_slow = true;
            log_warn(&call->named, "request not answered yet", F_NS("age", now - call->since_ns),
                     F_U("requests", s->n_calls), F_REASON(REASON_SLOW_REQUEST));
        }
    }
    return next;
}

static void watch_main(void *arg)
{
    struct rpc_server *s = arg;
    struct err err = ERR_INIT;

    while (!s->life.fired) {
        struct ctx until = ctx_until(s->loop, &s->life);

        if (s->watched > 0)
            until.deadline = report_slow(s, loop_now(s->loop));
        (void)waitq_wait(&until, &s->watch_q, WAIT_REQUESTS, &err); /* then check again */
    }
    rpc_server_unref(s);
}

void rpc_server_watch(struct rpc_server *s, uint64_t limit_ns)
{
    s->slow_ns = limit_ns;
    s->refs++;
    fiber_go(s->loop, watch_main, s, FIBER_RPC_WATCHDOG);
}

/* --- calls --- */

static int decode(struct rpc_call *call, const ProtobufCMessageDescriptor *type, struct err *err)
{
    struct rpc_server *s = call->conn->server;
    size_t left = RPC_MEM_MAX - s->mem, bytes = 0;
    int r =
        pb_unpack(type, call->payload, left < PB_MEM_MAX ? left : PB_MEM_MAX, &call->req, &bytes);

    if (r == -E2BIG)
        return err_set(err, ERR_EXHAUSTED, "a %s of %zu bytes needs too much memory",
                       type->short_name, call->payload.len);
    if (r < 0)
        return err_set(err, ERR_INVALID, "the payload is not a %s", type->name);
    s->mem += bytes;
    call->mem += bytes;
    return 0;
}

static void name(struct rpc_call *call, const ProtobufCMessageDescriptor *type)
{
    const char *key = call->entry->service->id_key;
    const char *id = key ? *(char **)((char *)call->req + type->fields->offset) : "";

    if (*id && strlen(id) <= ID_MAX_SHOWN)
        call->named = ctx_with_id(&call->ctx, key, id);
}

static const ProtobufCMethodDescriptor *types_of(const struct rpc_entry *entry,
                                                 const struct rpc_method *m)
{
    return protobuf_c_service_descriptor_get_method_by_name(entry->service->descriptor, m->name);
}

static int run(struct rpc_call *call, struct sbuf *payload, struct err *err)
{
    const struct rpc_method *m = call->method;
    const ProtobufCMethodDescriptor *types = types_of(call->entry, m);
    AUTO(pb_free) void *resp = NULL;

    if (call->stream) {
        if (m->stream(&call->named, call->entry->self, call->stream, err) < 0)
            return err->code
                       ? -1
                       : err_set(err, ERR_INTERNAL, "%s failed without an error message", m->name);
        err_clear(err);
        return 0;
    }
    if (decode(call, types->input, err) < 0)
        return -1;
    name(call, types->input);
    resp = pb_new(types->output);
    if (m->handler(&call->named, call->entry->self, call->req, resp, err) < 0)
        return err->code
                   ? -1
                   : err_set(err, ERR_INTERNAL, "%s failed without an error message", m->name);
    if (pb_pack(resp, payload) < 0)
        return err_set(err, ERR_INTERNAL, "a string in %s is not UTF-8", types->output->name);
    if (payload->len > MESSAGE_MAX)
        return err_set(err, ERR_EXHAUSTED, "a %s of %zu bytes exceeds the maximum message size",
                       types->output->short_name, payload->len);
    err_clear(err); /* a handler may have ignored an error */
    return 0;
}

/* --- tracing --- */

/* Continues the client's trace, which is in the request's metadata, or begins one. */
static void trace_begin(struct rpc_call *call, struct pb_slice request)
{
    struct pb_slice parent = ttrpc_metadata(request, "traceparent"),
                    state = ttrpc_metadata(request, "tracestate");
    struct span *span = mem_new(struct span);
    struct trace from = { 0 };
    bool sampled = false;

    if (trace_parse((const char *)parent.data, parent.len, &from, &sampled) && state.len > 0 &&
        state.len <= TRACE_STATE_MAX && pb_text_ok(state))
        from.tracestate = call->trace_state = str_ndup((const char *)state.data, state.len);
    if (span_begin_request(span, &call->ctx, call->conn->server->spans, &from, sampled,
                           call->method->name))
        call->span = span;
    else
        free(span);
}

/* Adds the request's ids to the span. They do not include environment or arguments. */
static void trace_end(struct rpc_call *call, const struct err *err)
{
    static const struct {
        const char *field, *key;
    } told[] = { { "exec_id", "eid" },
                 { "bundle", "bundle" },
                 { "bundle_path", "bundle" },
                 { "netns_path", "netns" } };
    const ProtobufCMessage *req = call->req;

    for (size_t i = 0; req && i < ARRAY_LEN(told); i++) {
        const ProtobufCFieldDescriptor *f =
            protobuf_c_message_descriptor_get_field_by_name(req->descriptor, told[i].field);

        if (f && f->type == PROTOBUF_C_TYPE_STRING && f->label != PROTOBUF_C_LABEL_REPEATED)
            span_attr(&call->ctx, told[i].key, *(char **)((char *)call->req + f->offset));
    }
    call->span->ids = &call->named;
    call->span->err = err;
    span_end(call->span);
    free(call->span);
}

static enum log_level failure_level(const struct rpc_call *call, uint64_t now)
{
    uint64_t *next = &call->entry->next_warning[call->method - call->entry->service->methods];

    if (!call->method->minor)
        return LOG_ERROR;
    if (now < *next)
        return LOG_DEBUG;
    *next = now + RPC_MINOR_PAUSE;
    return LOG_WARN;
}

static void tell(const struct rpc_call *call, const struct err *err)
{
    const struct ctx *ctx = &call->named;
    uint64_t now = loop_now(ctx->loop), duration = now - call->since_ns;

    if (err->code == ERR_NONE) {
        log_debug(ctx, "request done", F_NS(LK_DURATION, duration));
    } else if (call->conn->cancel.fired && !call->method->limit_ns) {
        log_debug(ctx, "request cancelled", F_NS(LK_DURATION, duration), F_ERR(err));
    } else if (err->code == ERR_NOT_FOUND && call->method->may_be_gone) {
        log_debug(ctx, "request for something that no longer exists", F_NS(LK_DURATION, duration),
                  F_ERR(err));
    } else {
        enum log_level level = failure_level(call, now);

        LOG_AT(ctx, level, "request failed", F_NS(LK_DURATION, duration),
               F_STR("code", err_code_name(err->code)), F_ERR(err));
    }
}

/* Closes a connection that was used for streams only and whose streams have ended. */
static bool is_spent(const struct rpc_conn *c)
{
    return !c->unary && list_empty(&c->calls) && c->wire.out_bytes == 0;
}

static void call_main(void *arg)
{
    struct rpc_call *call = arg;
    struct rpc_conn *c = call->conn;
    struct rpc_server *s = c->server;
    struct sbuf payload = { 0 };
    struct err err = ERR_INIT;

    if (run(call, &payload, &err) < 0)
        payload.len = 0;

    enum reason reason = err_reason(&err);
    const struct ttrpc_response answer = { err.code,
                                           pb_slice_of(err.msg),
                                           { (const uint8_t *)payload.data, payload.len },
                                           pb_slice_of(reason ? reason_name(reason) : "") };

    list_remove(&call->node);
    watched(call, -1);
    tell(call, &err);
    if (call->span)
        trace_end(call, &err);
    if (call->stream && err.code == ERR_NONE)
        (void)rpc_stream_finish(call->stream, &err); /* fails if the client is gone */
    else
        respond(c, call->id, &answer);

    bool over = call->stream && rpc_stream_free(call->stream);

    s->mem -= call->mem;
    pb_free(call->req);
    free(call->trace_state);
    free(call->body);
    free(call);
    sbuf_release(&payload);
    err_clear(&err);
    (void)rpc_wire_flush(&c->ctx, &c->wire, &err); /* on failure the reader fails too and reports */
    if (over && is_spent(c))
        rpc_wire_cut(&c->wire);
    c->n_calls--;
    s->n_calls--;
    conn_unref(c);
    rpc_server_unref(s);
}

/* Starts the fiber. Takes body, whose length is accounted for already. */
static struct rpc_call *call_start(struct rpc_conn *c, const struct rpc_entry *entry,
                                   const struct rpc_method *method, const struct ttrpc_header *h,
                                   uint8_t *body, const struct ttrpc_request *r)
{
    struct rpc_server *s = c->server;
    struct rpc_call *call = mem_new(struct rpc_call);
    int64_t timeout = method->limit_ns ? (int64_t)method->limit_ns : r->timeout_nano;

    *call = (struct rpc_call){ .conn = c,
                               .id = h->stream,
                               .entry = entry,
                               .method = method,
                               .ctx = ctx_with_id(&c->ctx, LK_OPERATION, method->name),
                               .since_ns = loop_now(s->loop),
                               .body = body,
                               .body_len = h->len,
                               .payload = r->payload,
                               .mem = h->len };
    if (method->limit_ns)
        call->ctx.cancel = NULL; /* it continues even if its client disconnects */
    if (method->stream) {
        call->stream = rpc_stream_new(c, h->stream, types_of(entry, method)->input);
        call->ctx.cancel = rpc_stream_cancel(call->stream);
        c->last_stream = h->stream;
    } else {
        c->unary = true;
    }
    if (timeout)
        call->ctx.deadline =
            ctx_with_timeout(&c->ctx, timeout > 0 ? (uint64_t)timeout : 0).deadline;
    if (s->spans)
        trace_begin(call, (struct pb_slice){ body, h->len });
    call->named = call->ctx;
    list_append(&c->calls, &call->node);
    c->refs++;
    c->n_calls++;
    s->n_calls++;
    s->refs++;
    s->used += !method->uncounted;
    watched(call, 1);
    fiber_go(s->loop, call_main, call, FIBER_RPC_CALL "%s", method->name);
    return call;
}

/* --- in --- */

static const struct rpc_entry *find_entry(struct rpc_server *s, struct pb_slice name)
{
    LIST_FOR (struct rpc_entry, e, &s->entries, node)
        if (pb_slice_is(name, e->name))
            return e;
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

/* Takes body. The messages of ERR_UNIMPLEMENTED are those of the reference implementation. */
static void dispatch(struct rpc_conn *c, const struct ttrpc_header *h, uint8_t *body)
{
    struct rpc_server *s = c->server;
    struct ttrpc_request r;
    const struct rpc_entry *entry = NULL;
    const struct rpc_method *method = NULL;
    struct err full = ERR_INIT;

    c->last_id = h->stream;
    if (ttrpc_request_decode((struct pb_slice){ body, h->len }, &r) < 0)
        refuse(c, h->stream, ERR_INVALID, "the request is not a ttrpc.Request");
    else if (!(entry = find_entry(s, r.service)))
        refuse(c, h->stream, ERR_UNIMPLEMENTED, "service %.*s", shown(r.service),
               (const char *)r.service.data);
    else if (!(method = find_method(entry->service, r.method)))
        refuse(c, h->stream, ERR_UNIMPLEMENTED, "method %.*s", shown(r.method),
               (const char *)r.method.data);
    else if (s->stopping) /* a service's objects are freed before its server */
        refuse(c, h->stream, method->may_be_gone ? ERR_NOT_FOUND : ERR_UNAVAILABLE,
               "the shim is shutting down");
    else if (!(h->flags & TTRPC_OPEN) != !method->stream)
        refuse(c, h->stream, ERR_UNIMPLEMENTED, "method %.*s is %s stream", shown(r.method),
               (const char *)r.method.data, method->stream ? "a" : "not a");
    else if (c->n_calls >= RPC_CALLS_PER_CONN || s->n_calls >= RPC_CALLS_MAX)
        refuse(c, h->stream, ERR_EXHAUSTED, "too many requests in flight: %u", c->n_calls);
    else if (fiber_admit(s->loop, &full) < 0)
        refuse(c, h->stream, full.code, "%s", full.msg);
    else {
        (void)call_start(c, entry, method, h, body, &r);
        return;
    }
    s->mem -= h->len;
    free(body);
}

int rpc_conn_again(struct rpc_conn *c, uint32_t id, uint8_t *body, size_t len, uint64_t since_ns,
                   uint64_t deadline)
{
    const struct ttrpc_header h = { (uint32_t)len, id, TTRPC_REQUEST, 0 };
    const struct rpc_entry *entry = NULL;
    const struct rpc_method *method = NULL;
    struct ttrpc_request r;

    if (ttrpc_request_decode((struct pb_slice){ body, len }, &r) == 0 &&
        (entry = find_entry(c->server, r.service)))
        method = find_method(entry->service, r.method);
    if (!method || !method->resumable) {
        free(body);
        return -1;
    }
    c->server->mem += len;

    struct rpc_call *call = call_start(c, entry, method, &h, body, &r);

    call->since_ns = since_ns;
    call->ctx.deadline = call->named.deadline = deadline;
    return 0;
}

/* True if the frame's body must be read and handled. */
static bool acceptable(struct rpc_conn *c, const struct ttrpc_header *h)
{
    if (h->len > TTRPC_BODY_MAX)
        refuse(c, h->stream, ERR_EXHAUSTED,
               "message length %u exceeds the maximum message size of %u", h->len, TTRPC_BODY_MAX);
    else if (h->type != TTRPC_REQUEST && h->type != TTRPC_DATA)
        return false; /* a later version of the protocol: ignored */
    else if (h->stream % 2 == 0)
        refuse(c, h->stream, ERR_INVALID, "invalid stream id %u: a client's stream ids must be odd",
               h->stream);
    else if (h->type == TTRPC_DATA && h->stream > c->last_stream)
        refuse(c, h->stream, ERR_INVALID, "stream %u is not open", h->stream);
    else if (h->type == TTRPC_DATA) /* the stream has ended: only the client's end matters */
        return rpc_stream_has_room(c, h) || ((h->flags & TTRPC_CLOSED) && h->len == 0);
    else if (h->stream <= c->last_id)
        refuse(c, h->stream, ERR_INVALID, "invalid stream id %u: must be greater than %u",
               h->stream, c->last_id);
    else if (h->len > RPC_MEM_MAX - c->server->mem)
        refuse(c, h->stream, ERR_EXHAUSTED, "requests in flight use too much memory");
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

    c->server->mem += h->len;
    if (rpc_in_read(&c->ctx, in, body, h->len, err) == 0) {
        if (h->type == TTRPC_REQUEST)
            dispatch(c, h, body);
        else if (rpc_stream_put(c, h, body) && is_spent(c))
            rpc_wire_cut(&c->wire);
        return 0;
    }
    free(body);
    c->server->mem -= h->len;
    return -1;
}

/* 1: continue, 0: end of the connection, -1: error. Starts no requests for a client that does not
 * read its answers. */
static int next_frame(struct rpc_conn *c, struct rpc_in *in, struct err *err)
{
    struct ttrpc_header h;
    int r;

    while (c->wire.out_bytes > RPC_OUT_SOFT && !c->wire.broken)
        if (waitq_wait(&c->ctx, &c->wire.room, "client reads", err) < 0)
            return -1;
    r = rpc_in_wait(&c->ctx, in, err);
    while (r > 0 && c->server->held)
        if (waitq_wait(&c->ctx, &c->server->released, WAIT_UPGRADE_END, err) < 0)
            return -1;
    if (r > 0)
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

    if (c->unread.len > 0)
        memcpy(in.buf, c->unread.data, c->unread.len);
    in.end = (unsigned)c->unread.len;
    sbuf_release(&c->unread);
    c->in = &in;
    for (unsigned n = 1; (r = next_frame(c, &in, &c->why)) > 0; n++)
        if (n % FRAMES_AT_ONCE == 0)
            fiber_yield(s->loop);
    if (r < 0)
        log_debug(&c->ctx, "connection closed", F_ERR(&c->why));
    cancel_fire(&c->cancel, ERR_CANCELLED, "the client closed the connection");
    rpc_streams_client_gone(c);
    rpc_wire_cut(&c->wire);
    list_remove(&c->node);
    if (--s->n_conns == 0 && s->on_alone)
        s->on_alone(s->on_alone_arg);
    conn_unref(c);
    rpc_server_unref(s);
}

struct rpc_conn *rpc_conn_new(struct rpc_server *s, struct stream *stream)
{
    struct rpc_conn *c = mem_new(struct rpc_conn);

    c->server = s;
    c->refs = 1;
    rpc_wire_init(&c->wire, stream);
    cancel_init(&c->cancel, &s->life);
    c->ctx = (struct ctx){ .loop = s->loop, .cancel = &c->cancel };
    list_init(&c->calls);
    list_init(&c->streams);
    list_append(&s->conns, &c->node);
    s->n_conns++;
    s->refs++;
    fiber_go(s->loop, conn_main, c, FIBER_RPC_CONNECTION);
    return c;
}

void rpc_server_serve(struct rpc_server *s, struct stream *stream)
{
    (void)rpc_conn_new(s, stream);
}
