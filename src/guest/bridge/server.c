#include "guest/bridge/server.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fiber.h"
#include "base/gate.h"
#include "base/list.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/span.h"
#include "base/stream.h"
#include "guest/stdio/dial.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define REDIAL_NS (100 * NS_PER_MS)
/* The original's host gives up on a call after this time and closes the bridge. */
#define CALL_NS (300 * NS_PER_S)
#define TRIM_NS (2 * NS_PER_S)
#define REFUSALS_PER_S 20 /* log lines */
#define CONNECTS_PER_S 2

struct conn {
    struct stream *stream;
    struct cancel lost;
    struct gate writing;
    bool negotiated;
    unsigned users; /* fibers that may be using stream */
    struct waitq unused;
};

struct notification {
    struct list in_queue;
    struct sbuf frame;
};

struct server {
    struct server_opts opts;
    struct loop *loop;  /* while running */
    struct cancel stop; /* ends all calls */
    struct conn *conn;  /* NULL: none */
    struct fibers calls;
    struct waitq room; /* for the reader */
    size_t bytes;      /* of requests being worked on */
    struct list notifications;
    bool flushing;
    struct log_rate refusals,
        connects; /* limits log lines, because a faulty host may send any number of requests */
    bool trimming;
    uint64_t last_ns; /* a request was done */
    struct server_stats stats;
};

/* The steps of a request that the host traces; the answer carries them. */
struct traced {
    struct span_sink sink;
    struct span span;
    struct bridge_span steps[BRIDGE_SPANS_MAX];
    size_t n;
};

/* A request on its way through. */
struct work {
    struct server *server;
    const struct server_entry *entry; /* NULL: not implemented, or not allowed now */
    struct bridge_header header;
    uint8_t *payload;
    struct server_call call;
    char *activity_id;     /* owned, after the request was freed */
    const char *crowded;   /* refuse it: why; NULL: do not */
    struct traced *traced; /* NULL: it is not */
};

struct server *server_new(const struct server_opts *opts)
{
    struct server *s = mem_new(struct server);

    s->opts = *opts;
    if (s->opts.max_in_flight == 0)
        s->opts.max_in_flight = SERVER_IN_FLIGHT;
    if (s->opts.trim_ns == 0)
        s->opts.trim_ns = TRIM_NS;
    fibers_init(&s->calls);
    waitq_init(&s->room);
    list_init(&s->notifications);
    s->refusals.burst = REFUSALS_PER_S;
    s->connects.burst = CONNECTS_PER_S;
    return s;
}

static void notification_free(struct notification *n)
{
    list_remove(&n->in_queue);
    sbuf_release(&n->frame);
    free(n);
}

void server_free(struct server *s)
{
    if (!s)
        return;
    LIST_EACH (&s->notifications, pos)
        notification_free(LIST_ENTRY(pos, struct notification, in_queue));
    free(s);
}

void server_get_stats(const struct server *s, struct server_stats *ret)
{
    *ret = s->stats;
}

/* --- sending --- */

/* 0 when all of it was handed to the kernel. */
static int conn_write(struct conn *c, struct loop *loop, const struct sbuf *frame, struct err *err)
{
    struct ctx ctx = ctx_until(loop, &c->lost);
    int r = -1;

    c->users++;
    struct gate *held = gate_enter(&c->writing, &ctx, "bridge.write", err);
    if (held) {
        r = stream_write_full(&ctx, c->stream, frame->data, frame->len, err);
        gate_leave(held);
    }
    if (r < 0)
        cancel_fire(&c->lost, ERR_UNAVAILABLE, "the bridge is lost");
    if (--c->users == 0)
        waitq_wake_all(&c->unused);
    return r;
}

static bool send_answer(struct server *s, const struct work *w)
{
    AUTO(sbuf_release) struct sbuf frame = { 0 };
    struct err err = ERR_INIT;

    bridge_response_encode(&w->call.resp, w->header.id, BRIDGE_MAX_RESPONSE, &frame);
    if (s->conn && !s->conn->lost.fired && conn_write(s->conn, s->loop, &frame, &err) == 0)
        return true;
    s->stats.dropped++;
    log_warn(NULL, "answer dropped: the bridge is not connected",
             F_STR(LK_OPERATION, bridge_message_name(w->header.type)), F_U("id", w->header.id));
    return false;
}

/* Sends the queue in order; a notification leaves it only once it is written. */
static void flush_notifications(struct server *s)
{
    struct err err = ERR_INIT;

    s->flushing = true;
    while (!list_empty(&s->notifications) && s->conn && !s->conn->lost.fired) {
        struct notification *n = LIST_FIRST(&s->notifications, struct notification, in_queue);
        if (conn_write(s->conn, s->loop, &n->frame, &err) < 0)
            break;
        notification_free(n);
        s->stats.notifications--;
    }
    s->flushing = false;
}

static void flush_fiber(void *arg)
{
    flush_notifications(arg);
}

int server_notify(struct server *s, const struct bridge_notification *n, struct err *err)
{
    AUTO(sbuf_release) struct sbuf frame = { 0 };

    if (s->stats.notifications >= SERVER_NOTIFICATIONS)
        return err_set(err, ERR_EXHAUSTED, "too many notifications wait for the host: at most %d",
                       SERVER_NOTIFICATIONS);
    if (bridge_notification_encode(n, &frame, err) < 0)
        return -1;
    struct notification *queued = mem_new(struct notification);
    queued->frame = frame;
    frame = (struct sbuf){ 0 };
    list_append(&s->notifications, &queued->in_queue);
    s->stats.notifications++;
    if (s->conn && !s->flushing) {
        s->flushing = true;
        fibers_go(&s->calls, s->loop, flush_fiber, s, "bridge notifications");
    }
    return 0;
}

/* --- one request --- */

static const struct server_entry *find_entry(const struct server *s, uint32_t type)
{
    for (size_t i = 0; i < s->opts.n_entries; i++)
        if (s->opts.table[i].type == type)
            return s->opts.table[i].handle ? &s->opts.table[i] : NULL;
    return NULL;
}

static int not_implemented(struct err *err)
{
    char text[BRIDGE_HR_TEXT_SIZE];

    bridge_hr_text(BRIDGE_HR_NOT_IMPLEMENTED, text);
    return bridge_err(err, BRIDGE_HR_NOT_IMPLEMENTED, "%s", text);
}

void server_call_forget_request(struct server_call *call)
{
    struct work *w = CONTAINER_OF(call, struct work, call);
    uint32_t type = call->req.type;

    if (!w->activity_id)
        w->activity_id = str_dup(call->resp.activity_id);
    call->resp.activity_id = w->activity_id;
    bridge_request_release(&call->req);
    call->req = (struct bridge_request){ .type = type };
    w->server->bytes -= w->header.size;
    w->header.size = 0;
    waitq_wake_all(&w->server->room);
}

/* The last slot is for the whole request, which ends last. */
static void put_step(struct span_sink *sink, const struct span *s)
{
    struct traced *t = CONTAINER_OF(sink, struct traced, sink);

    if (t->n + (s != &t->span) < BRIDGE_SPANS_MAX)
        t->steps[t->n++] =
            (struct bridge_span){ s->name, s->start - t->span.start, s->end - t->span.start,
                                  s->err && s->err->code != ERR_NONE };
}

static void trace_begin(struct ctx *ctx, struct work *w)
{
    static const char key[] = "traceparent=";
    const char *name = bridge_message_name(w->header.type);
    struct trace from = { 0 };
    bool sampled = false;

    for (const char *const *pair = w->call.req.trace; pair && *pair; pair++)
        if (str_starts(*pair, key))
            (void)trace_parse(*pair + strlen(key), strlen(*pair + strlen(key)), &from, &sampled);
    if (!sampled)
        return;
    w->traced = mem_new(struct traced);
    w->traced->sink = (struct span_sink){ .loop = w->server->loop, .put = put_step };
    (void)span_begin_request(&w->traced->span, ctx, &w->traced->sink, &from, sampled, name);
}

static void trace_end(struct work *w, const struct err *err)
{
    if (!w->traced)
        return;
    w->traced->span.err = err;
    span_end(&w->traced->span);
    w->call.resp.spans = w->traced->steps;
    w->call.resp.n_spans = w->traced->n;
}

/* Frees the payload as soon as it is decoded. As handlers: 0, -1, SERVER_SILENT. */
static int work_run(struct ctx *ctx, struct work *w, struct err *err)
{
    struct server_call *call = &w->call;
    int r = bridge_request_decode(w->header.type, w->payload, w->header.size - BRIDGE_HEADER_BYTES,
                                  &call->req, err);

    free(TAKE_PTR(w->payload));
    call->resp = bridge_response_for(&call->req);
    if (!w->entry && !w->crowded)
        return not_implemented(err);
    if (r < 0)
        return -1;
    if (w->crowded)
        return bridge_err(err, BRIDGE_HR_FAIL, "%s", w->crowded);
    trace_begin(ctx, w);
    return w->entry->handle(ctx, w->server->opts.arg, call, err);
}

/* Gives freed memory back to the VM once no request has come for a while. */
static void trim_fiber(void *arg)
{
    struct server *s = arg;
    struct ctx ctx = ctx_until(s->loop, &s->stop);
    struct err ignored = ERR_INIT;
    uint64_t now;

    /* The requests under way call this again when they are done. */
    while ((now = loop_now(s->loop)) < s->last_ns + s->opts.trim_ns)
        if (fiber_sleep(&ctx, s->last_ns + s->opts.trim_ns - now, &ignored) < 0)
            return;
    s->trimming = false;
    s->stats.trims++;
    if (s->opts.on_idle)
        s->opts.on_idle(s->opts.arg);
    loop_trim(s->loop);
    mem_drop_program();
}

static void trim_later(struct server *s)
{
    s->last_ns = loop_now(s->loop);
    if (s->trimming)
        return;
    s->trimming = true;
    fibers_go(&s->calls, s->loop, trim_fiber, s, "trim when idle");
}

static void work_free(struct work *w)
{
    struct server *s = w->server;

    s->bytes -= w->header.size;
    if (w->entry && w->entry->parks && !w->crowded)
        s->stats.parked--;
    else
        s->stats.in_flight--;
    waitq_wake_all(&s->room);
    bridge_request_release(&w->call.req);
    free(w->call.text);
    free(w->activity_id);
    free(w->traced);
    free(w->payload);
    free(w);
    trim_later(s);
}

static void work_fiber(void *arg)
{
    struct work *w = arg;
    struct server *s = w->server;
    struct ctx stoppable = ctx_until(s->loop, &s->stop);
    struct ctx ctx =
        w->entry && w->entry->parks ? stoppable : ctx_with_timeout(&stoppable, CALL_NS);
    const char *name = bridge_message_name(w->header.type);
    struct err err = ERR_INIT;
    uint64_t began = loop_now(s->loop);
    int r = work_run(&ctx, w, &err);

    trace_end(w, &err);
    if (r < 0) {
        bridge_response_fail(&w->call.resp, &err);
        if (log_rate_ok(&s->refusals, loop_now(s->loop)))
            log_warn(&ctx, "request refused", F_U("untold", s->refusals.lost),
                     F_STR(LK_OPERATION, name), F_U("id", w->header.id), F_ERR(&err));
    } else {
        log_debug(&ctx, "request done", F_STR(LK_OPERATION, name), F_U("id", w->header.id),
                  F_NS(LK_DURATION, loop_now(s->loop) - began));
    }
    bool sent = r != SERVER_SILENT && send_answer(s, w);
    if (w->call.after)
        w->call.after(w->call.after_arg, sent);
    work_free(w);
}

/* --- negotiation --- */

static int negotiate(struct server *s, struct work *w, struct err *err)
{
    struct server_call *call = &w->call;
    int r = bridge_request_decode(w->header.type, w->payload, w->header.size - BRIDGE_HEADER_BYTES,
                                  &call->req, err);

    call->resp = bridge_response_for(&call->req);
    if (r < 0)
        return -1;
    if (call->req.negotiate.maximum < BRIDGE_VERSION ||
        call->req.negotiate.minimum > BRIDGE_VERSION)
        return bridge_err(
            err, BRIDGE_HR_UNSUPPORTED_VERSION,
            "unsupported protocol: the host supports versions %u–%u, the guest supports %u",
            call->req.negotiate.minimum, call->req.negotiate.maximum, BRIDGE_VERSION);
    call->resp.negotiate.version = BRIDGE_VERSION;
    call->resp.negotiate.caps = (struct bridge_caps){
        .os = "Linux",
        .namespace_add = true,
        .signal_process = true,
        .dump_stacks = true,
        .delete_container_state = true,
        .holder = true,
    };
    return 0;
}

/* Runs in the reader, because the next request must find the connection negotiated. */
static void negotiate_now(struct server *s, struct conn *c, struct work *w)
{
    struct err err = ERR_INIT;

    if (negotiate(s, w, &err) < 0) {
        bridge_response_fail(&w->call.resp, &err);
        log_warn(NULL, "negotiation refused", F_ERR(&err));
    } else {
        c->negotiated = true;
    }
    (void)send_answer(s, w); /* lost: the reader notices */
    work_free(w);
    if (c->negotiated && s->opts.on_negotiated)
        s->opts.on_negotiated(s->opts.arg);
}

/* --- reading --- */

static bool has_room(const struct server *s, uint32_t size)
{
    return s->stats.in_flight < s->opts.max_in_flight &&
           (s->bytes == 0 || s->bytes + size <= SERVER_BYTES);
}

/* Waits for room first, which holds back a host that sends without reading answers. */
static int read_request(struct ctx *ctx, struct server *s, struct conn *c, struct work **ret,
                        struct err *err)
{
    uint8_t raw[BRIDGE_HEADER_BYTES];
    struct bridge_header h;

    if (stream_read_full(ctx, c->stream, raw, sizeof(raw), err) < 0 ||
        bridge_header_decode(raw, BRIDGE_SIDE_GUEST, BRIDGE_MAX_REQUEST, &h, err) < 0)
        return -1;
    while (!has_room(s, h.size))
        if (waitq_wait(ctx, &s->room, "room for a request", err) < 0)
            return -1;

    AUTO_FREE uint8_t *payload = mem_alloc(h.size - BRIDGE_HEADER_BYTES + 1);
    if (stream_read_full(ctx, c->stream, payload, h.size - BRIDGE_HEADER_BYTES, err) < 0)
        return -1;
    struct work *w = mem_new(struct work);
    w->server = s;
    w->header = h;
    w->payload = TAKE_PTR(payload);
    s->bytes += h.size;
    s->stats.requests++;
    *ret = w;
    return 0;
}

static void dispatch(struct server *s, struct conn *c, struct work *w)
{
    bool negotiating = w->header.type == BRIDGE_NEGOTIATE_PROTOCOL && !c->negotiated;
    struct err full = ERR_INIT;

    if (c->negotiated)
        w->entry = find_entry(s, w->header.type);
    bool room = negotiating || fiber_admit(s->loop, &full) == 0;
    if (w->entry && w->entry->parks && s->stats.parked >= SERVER_PARKED)
        w->crowded = "too many requests wait for processes";
    if (!room)
        w->crowded = full.msg;
    if (w->entry && w->entry->parks && !w->crowded)
        s->stats.parked++;
    else
        s->stats.in_flight++;
    if (negotiating)
        negotiate_now(s, c, w);
    else if (!room)
        work_fiber(w); /* in the reader: it only answers */
    else
        fibers_go(&s->calls, s->loop, work_fiber, w, "%s #%" PRIu64,
                  bridge_message_name(w->header.type), w->header.id);
}

static void serve_conn(struct ctx *ctx, struct server *s, int fd, struct err *err)
{
    struct conn c = { .stream = stream_from_fd(s->loop, fd) };
    struct ctx reading = ctx_with_cancel(ctx, &c.lost), root = ctx_root(s->loop);
    struct err ignored = ERR_INIT;
    struct work *w;

    cancel_init(&c.lost, ctx->cancel);
    gate_init(&c.writing, "bridge");
    waitq_init(&c.unused);
    s->conn = &c;
    s->stats.connections++;
    if (s->opts.on_connected)
        s->opts.on_connected(s->opts.arg);
    if (!s->flushing) /* else the fiber of the last connection continues with this one */
        flush_notifications(s);
    while (read_request(&reading, s, &c, &w, err) == 0)
        dispatch(s, &c, w);

    s->conn = NULL;
    cancel_fire(&c.lost, ERR_UNAVAILABLE, "the bridge is lost");
    while (c.users > 0)
        (void)waitq_wait(&root, &c.unused, "writers to leave", &ignored);
    cancel_release(&c.lost);
    stream_free(c.stream);
}

/* Handles one connection, or one failure to connect. *told: a failure to connect was logged; the
 * next ones are not. */
static void dial_and_serve(struct ctx *ctx, struct server *s, bool *told)
{
    struct err why = ERR_INIT;
    int fd;

    if (dialer_dial(ctx, s->opts.dialer, s->opts.port, &fd, &why) < 0) {
        if (*told || ctx_check(ctx, &(struct err)ERR_INIT) < 0)
            return;
        *told = true;
        log_warn(ctx, "cannot connect to the host; retrying", F_ERR(&why));
        if (s->opts.on_unreachable)
            s->opts.on_unreachable(s->opts.arg, &why);
        return;
    }
    *told = false;
    /* A host that accepts and closes at once (a wrong token) must not fill the log. */
    bool say = log_rate_ok(&s->connects, loop_now(s->loop));
    if (say)
        log_info(ctx, "bridge connected");
    serve_conn(ctx, s, fd, &why);
    if (say)
        log_warn(ctx, "bridge lost; reconnecting", F_ERR(&why));
}

int server_run(struct ctx *ctx, struct server *s, struct err *err)
{
    struct ctx root = ctx_root(ctx->loop);
    struct err ignored = ERR_INIT;
    bool told = false;

    s->loop = ctx->loop;
    cancel_init(&s->stop, ctx->cancel);
    while (ctx_check(ctx, err) == 0) {
        dial_and_serve(ctx, s, &told);
        (void)fiber_sleep(ctx, REDIAL_NS, &ignored); /* ctx is looked at above */
    }
    cancel_fire(&s->stop, err->code, "the agent is stopping");
    (void)fibers_wait(&root, &s->calls, "requests to end", &ignored);
    cancel_release(&s->stop);
    return -1;
}
