/* bridge_wire.c - frames out, frames in, and who waits for which. One fiber writes, one reads;
 * they call nothing upwards. Answers are matched by id alone. */
#include "base/err.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/scrub.h"
#include "base/span.h"
#include "base/stream.h"
#include "base/waits.h"
#include "host/bridge/bridge_priv.h"
#include <stdlib.h>
#include <string.h>

static void frame_free(struct bridge_frame *f)
{
    if (!f)
        return;
    list_remove(&f->node);
    sbuf_release(&f->bytes);
    free(f);
}

void bridge_call_free(struct bridge_call *c)
{
    list_remove(&c->node);
    free(c->payload);
    free(c);
}

static void stream_unref(struct bridge *b)
{
    if (--b->stream_users == 0)
        stream_free(TAKE_PTR(b->stream));
}

void bridge_wire_close(struct bridge *b)
{
    while (!list_empty(&b->queue))
        frame_free(LIST_FIRST(&b->queue, struct bridge_frame, node));
    b->queued_bytes = 0;
}

/* --- out --- */

void bridge_writer_main(struct bridge *b)
{
    struct ctx ctx = ctx_until(b->loop, &b->life);
    struct err err = ERR_INIT;

    while (!b->closed) {
        if (list_empty(&b->queue)) {
            if (waitq_wait(&ctx, &b->queue_q, WAIT_FRAME, &err) < 0)
                break;
            continue;
        }

        struct bridge_frame *f = LIST_FIRST(&b->queue, struct bridge_frame, node);

        /* From here on the frame is sent whole, even if its caller gives up: half a frame would end
         * the bridge. */
        list_remove(&f->node);
        b->queued_bytes -= f->bytes.len;
        if (stream_write_full(&ctx, b->stream, f->bytes.data, f->bytes.len, &err) < 0) {
            err_wrap(&err, "send to the guest");
            bridge_close(b, err.msg);
        }
        frame_free(f);
    }
    stream_unref(b);
}

static int encode(const struct bridge_request *r, const struct trace *t, uint64_t id,
                  struct sbuf *out, struct err *err)
{
    AUTO_FREE char *parent = NULL, *state = NULL;
    struct bridge_request traced = *r;
    char text[TRACE_PARENT_SIZE];

    if (!t->sink)
        return bridge_request_encode(r, id, out, err);
    trace_format(t, text);
    parent = str_format("traceparent=%s", text);
    state = t->tracestate ? str_format("tracestate=%s", t->tracestate) : NULL;
    traced.trace = (const char *const[]){ parent, state, NULL };
    return bridge_request_encode(&traced, id, out, err);
}

static void log_message(const struct ctx *ctx, const char *msg, uint32_t type, const char *payload,
                        size_t len)
{
    AUTO_FREE char *text = scrub_json(payload, len);

    log_trace(ctx, msg, F_STR("message", bridge_message_name(type)), F_STR("body", text));
}

static int enqueue(const struct ctx *ctx, struct bridge *b, const struct bridge_request *r,
                   const struct trace *t, uint64_t id, struct err *err)
{
    struct bridge_frame *f = mem_new(struct bridge_frame);

    list_init(&f->node);
    f->id = id;
    if (encode(r, t, id, &f->bytes, err) < 0) {
        frame_free(f);
        return -1;
    }
    if (b->queued_bytes + f->bytes.len > BRIDGE_QUEUE_MAX) {
        frame_free(f);
        return err_set(err, ERR_EXHAUSTED, "the guest does not read: %zu bytes wait to be sent",
                       b->queued_bytes);
    }
    if (log_on(LOG_TRACE))
        log_message(ctx, "message to the guest", r->type, f->bytes.data + BRIDGE_HEADER_BYTES,
                    f->bytes.len - BRIDGE_HEADER_BYTES);
    b->queued_bytes += f->bytes.len;
    list_append(&b->queue, &f->node);
    waitq_wake_all(&b->queue_q);
    return 0;
}

/* The caller has given up. A frame that was not sent is dropped; otherwise an answer may still
 * come. */
static void abandon(struct bridge *b, uint64_t id)
{
    LIST_FOR (struct bridge_frame, f, &b->queue, node) {
        if (f->id != id)
            continue;
        b->queued_bytes -= f->bytes.len;
        frame_free(f);
        return;
    }
    if (b->closed)
        return;
    if (b->n_abandoned >= BRIDGE_ABANDONED_MAX) {
        bridge_condemn(b, "the guest left %u calls unanswered", BRIDGE_ABANDONED_MAX);
        return;
    }
    b->abandoned = mem_grow(b->abandoned, b->n_abandoned, &b->abandoned_cap, sizeof(*b->abandoned));
    b->abandoned[b->n_abandoned++] = id;
}

/* --- in --- */

static bool take_abandoned(struct bridge *b, uint64_t id)
{
    for (size_t i = 0; i < b->n_abandoned; i++) {
        if (b->abandoned[i] != id)
            continue;
        b->abandoned[i] = b->abandoned[--b->n_abandoned];
        return true;
    }
    return false;
}

static struct bridge_call *find_call(struct bridge *b, uint64_t id)
{
    LIST_FOR (struct bridge_call, c, &b->calls, node)
        if (c->id == id && !c->done)
            return c;
    return NULL;
}

/* The call waits, but its frame was not sent yet: an honest guest cannot answer it. */
static bool not_yet_sent(struct bridge *b, uint64_t id)
{
    LIST_EACH (&b->queue, pos) {
        if (LIST_ENTRY(pos, struct bridge_frame, node)->id == id)
            return true;
    }
    return false;
}

static size_t payload_len(const struct bridge_header *h)
{
    return h->size - BRIDGE_HEADER_BYTES;
}

static bool is_awaited(struct bridge *b, uint64_t id)
{
    return find_call(b, id) && !not_yet_sent(b, id);
}

/* The caller may have given up while the answer was read. */
static void take_response(struct bridge *b, const struct bridge_header *h, char **payload)
{
    struct bridge_call *c = find_call(b, h->id);

    if (!c) {
        (void)take_abandoned(b, h->id);
        return;
    }
    c->payload = TAKE_PTR(*payload);
    c->len = payload_len(h);
    c->done = true;
    waitq_wake_all(&c->q);
}

/* What this answer may have. Only a dump of stacks and the properties of many processes are long.
 */
static uint32_t most_bytes(uint32_t type)
{
    return type == bridge_response_type(BRIDGE_DUMP_STACKS) ||
                   type == bridge_response_type(BRIDGE_GET_PROPERTIES)
               ? BRIDGE_MAX_RECEIVE
               : BRIDGE_MAX_RESPONSE;
}

/* Checks all that a header alone can be refused for: a body that is not read costs nothing. False
 * if the frame is refused; the bridge is closed then. */
static bool admit(struct bridge *b, const struct bridge_header *h, bool unasked, bool late)
{
    uint32_t most = unasked ? BRIDGE_UNASKED_MAX : most_bytes(h->type);

    if (!unasked && !late && !is_awaited(b, h->id))
        bridge_condemn(b, "the guest answered a call that was not made (%s, id %llu)",
                       bridge_message_name(h->type), (unsigned long long)h->id);
    else if (h->size > most)
        bridge_condemn(b, "the guest sent %s of %u bytes: at most %u",
                       unasked ? "a notification" : "an answer", h->size, most);
    return !b->closed;
}

/* A guest that sends more than it may is read later. Its own answers wait behind its notifications,
 * and calls to it run into their deadlines; other VMs are not affected. */
static int slow_down(struct ctx *ctx, struct bridge *b, uint32_t bytes, struct err *err)
{
    uint64_t now = loop_now(b->loop), first = bucket_take(&b->unasked, 1, now),
             second = bucket_take(&b->unasked_bytes, bytes, now);
    uint64_t pause = first > second ? first : second;

    return pause > 0 ? stream_pause(ctx, b->stream, pause, err) : 0;
}

/* Until *have is want: what has come is in the object, since the program may be replaced between
 * two reads. buf: NULL if it is not kept. */
static int read_rest(struct ctx *ctx, struct bridge *b, void *buf, size_t *have, size_t want,
                     struct err *err)
{
    char unneeded[4096];

    for (size_t n; *have < want; *have += n) {
        size_t left = want - *have;

        if (!buf && left > sizeof(unneeded))
            left = sizeof(unneeded);
        if (stream_read(ctx, b->stream, buf ? (char *)buf + *have : unneeded, left, &n, err) < 0)
            return -1;
        if (n == 0)
            return err_set(err, ERR_UNAVAILABLE, "stream ended after %zu of %zu bytes", *have,
                           want);
    }
    return 0;
}

static void in_release(struct bridge_in *in)
{
    free(in->body);
    *in = (struct bridge_in){ 0 };
}

/* A late answer and the exit of a container, which WaitForProcess reports, are neither kept nor
 * parsed. False if the frame is refused. */
static bool take_header(struct ctx *ctx, struct bridge *b, const struct bridge_header *h,
                        struct err *err)
{
    bool unasked = bridge_kind(h->type) == BRIDGE_KIND_NOTIFICATION;
    bool late = !unasked && take_abandoned(b, h->id);

    if (!admit(b, h, unasked, late))
        return false;
    b->in.admitted = true;
    b->in.unneeded = unasked || late;
    return !unasked || slow_down(ctx, b, h->size, err) == 0;
}

/* One frame; -1 when the bridge is to be closed for the reason in err. */
static int read_frame(struct ctx *ctx, struct bridge *b, struct err *err)
{
    struct bridge_in *in = &b->in;
    struct bridge_header h;

    if (read_rest(ctx, b, in->raw, &in->n_raw, sizeof(in->raw), err) < 0)
        return err_wrap(err, "read from the guest");
    if (bridge_header_decode(in->raw, BRIDGE_SIDE_HOST, BRIDGE_MAX_RECEIVE, &h, err) < 0) {
        bridge_condemn(b, "the guest sent a bad frame: %s", err->msg);
        return 0;
    }
    if (!in->admitted && !take_header(ctx, b, &h, err))
        return 0; /* closed */
    if (!in->unneeded && !in->body)
        in->body = mem_alloc(payload_len(&h) + 1);
    if (read_rest(ctx, b, in->body, &in->n_body, payload_len(&h), err) < 0)
        return err_wrap(err, "read a frame of %u bytes from the guest", h.size);
    if (in->unneeded) {
        log_debug(ctx, "unneeded frame dropped", F_U("id", h.id),
                  F_STR("message", bridge_message_name(h.type)));
    } else {
        in->body[payload_len(&h)] = '\0';
        if (!b->closed)
            take_response(b, &h, &in->body);
    }
    in_release(in);
    return 0;
}

void bridge_reader_main(struct bridge *b)
{
    struct ctx ctx = ctx_until(b->loop, &b->life);
    struct err err = ERR_INIT;

    while (!b->closed) {
        if (read_frame(&ctx, b, &err) < 0)
            bridge_close(b, err.msg);
        fiber_yield(b->loop); /* a guest that floods us is not alone here */
    }
    log_debug(&ctx, "bridge closed", F_STR("why", b->why));
    stream_unref(b);
}

void bridge_wire_start(struct bridge *b, struct stream *stream)
{
    b->stream = stream;
    b->stream_users = 2;
    bridge_go(b, bridge_writer_main, FIBER_BRIDGE_WRITE);
    bridge_go(b, bridge_reader_main, FIBER_BRIDGE_READ);
}

/* --- a call --- */

static int gone(const struct bridge *b, const char *message, struct err *err)
{
    if (b->closed)
        return err_because(err, REASON_GUEST_LOST, ERR_UNAVAILABLE, "%s: the guest is gone: %s",
                           message, b->why);
    return err_because(err, REASON_GUEST_LOST, ERR_UNAVAILABLE, "%s: the guest is not connected",
                       message);
}

/* The guest's refusal as an error: its own words, quoted, bounded and harmless. */
static int refusal(const struct bridge_response *r, const char *message, struct err *err)
{
    AUTO(sbuf_release) struct sbuf words = { 0 };

    guestlog_escape(&words, r->error_message, strlen(r->error_message), BRIDGE_QUOTE_MAX);
    if (words.len == 0)
        return bridge_err(err, r->result, "%s: refused by the guest with 0x%08x", message,
                          r->result);
    return bridge_err(err, r->result, "%s: the guest says \"%s\" (0x%08x)", message, words.data,
                      r->result);
}

/* The steps of the guest for this call. It says how long each took, not when: its clock is not
 * ours, so the request as a whole is put into the middle of our wait. Nothing lies outside that. */
static void add_steps(const struct span *call, const struct bridge_response *r, uint64_t now)
{
    static const struct err failed = { .code = ERR_UNKNOWN, .msg = "failed in the guest" };
    uint64_t wait = now - call->start, took, began;
    struct trace parent = call->trace;

    if (!call->trace.sink || r->n_spans == 0 || r->n_spans > BRIDGE_SPANS_MAX)
        return;
    took = r->spans[r->n_spans - 1].end;
    took = took < wait ? took : wait;
    began = call->start + (wait - took) / 2;
    for (size_t i = r->n_spans; i-- > 0;) {
        const struct bridge_span *s = &r->spans[i];
        uint64_t end = s->end < took ? s->end : took, start = s->start < end ? s->start : end;
        AUTO(sbuf_release) struct sbuf name = { 0 };

        guestlog_escape(&name, s->name, strlen(s->name), BRIDGE_QUOTE_MAX);
        span_add_child(&parent, TRACK_GUEST, name.data ? name.data : "?", began + start,
                       began + end, call->ids, s->failed ? &failed : NULL,
                       i == r->n_spans - 1 ? &parent : NULL);
    }
}

static int take_answer(struct bridge *b, struct bridge_call *c, const struct bridge_request *r,
                       const struct span *span, struct bridge_response *ret, struct err *err)
{
    const char *message = bridge_message_name(r->type);
    AUTO_FREE char *payload = TAKE_PTR(c->payload);
    struct bridge_response resp = { 0 };

    if (bridge_response_decode(r->type, payload, c->len, &resp, err) < 0) {
        bridge_condemn(b, "the guest's answer to %s is unreadable: %s", message, err->msg);
        bridge_response_release(&resp);
        return gone(b, message, err);
    }
    add_steps(span, &resp, loop_now(b->loop));
    if (resp.result != BRIDGE_HR_OK) {
        refusal(&resp, message, err);
        err_blame(err, reason_parse(resp.reason));
        bridge_response_release(&resp);
        return -1;
    }
    *ret = resp;
    return 0;
}

/* The wait of this id, whose request was sent before the bridge was saved. */
static int adopt(struct bridge *b, uint64_t id, struct bridge_call *c, struct err *err)
{
    LIST_FOR (struct bridge_call, p, &b->calls, node) {
        if (p->id != id || !p->parked)
            continue;
        list_remove(&p->node);
        *c = *p;
        c->parked = false;
        free(p);
        return 0;
    }
    return err_set(err, ERR_STATE, "request %llu is not outstanding", (unsigned long long)id);
}

static int send_call(const struct ctx *ctx, struct bridge *b, const struct bridge_request *r,
                     const struct trace *t, struct bridge_call *c, struct err *err)
{
    c->id = b->next_id;
    if (enqueue(ctx, b, r, t, c->id, err) < 0)
        return -1;
    b->next_id++;
    return 0;
}

/* wait_id: NULL for a call that is not a wait. */
static int run_call(struct ctx *ctx, struct bridge *b, const struct bridge_request *r,
                    uint64_t limit_ns, struct bridge_call c, const char *what, uint64_t *wait_id,
                    struct bridge_response *ret, struct err *err)
{
    const char *message = bridge_message_name(r->type);
    struct bridge_user user;
    int waited = 0;

    if (b->closed || !b->stream)
        return gone(b, message, err);
    if (ctx_check(ctx, err) < 0)
        return err_wrap(err, "%s", message);

    SPAN(span, ctx, NULL, TRACK_HOST, message, err);
    span.kind = SPAN_CLIENT;
    if (r->type == BRIDGE_MODIFY_SETTINGS)
        span_attr(span.ctx, "resource", bridge_resource_name(r->modify.resource));
    if (wait_id && *wait_id ? adopt(b, *wait_id, &c, err) < 0
                            : send_call(ctx, b, r, &span.trace, &c, err) < 0)
        return err_wrap(err, "%s", message);
    if (wait_id)
        *wait_id = c.id;
    waitq_init(&c.q);
    list_append(&b->calls, &c.node);

    struct ctx limited = ctx_with_timeout(ctx, limit_ns ? limit_ns : UINT64_MAX);
    struct ctx inner = bridge_enter(limit_ns ? &limited : ctx, b, &user);

    while (!c.done && waited == 0)
        waited = waitq_wait(&inner, &c.q, what, err);
    bridge_leave(&user);
    list_remove(&c.node);
    if (wait_id)
        *wait_id = 0;
    if (c.done) {
        err_clear(err);
        if (log_on(LOG_TRACE))
            log_message(ctx, "message from the guest", r->type, c.payload, c.len);
        return take_answer(b, &c, r, &span, ret, err);
    }
    abandon(b, c.id);
    return b->closed ? gone(b, message, err) : err_wrap(err, "%s", message);
}

int bridge_call(struct ctx *ctx, struct bridge *b, const struct bridge_request *r,
                uint64_t limit_ns, bool counts, struct bridge_response *ret, struct err *err)
{
    const struct bridge_call c = { .since_ns = loop_now(b->loop), .counts = counts };

    return run_call(ctx, b, r, limit_ns, c, "an answer of the guest", NULL, ret, err);
}

int bridge_wait(struct ctx *ctx, struct bridge *b, const struct bridge_request *r,
                uint64_t limit_ns, const char *what, uint64_t *wait_id, struct bridge_response *ret,
                struct err *err)
{
    const struct bridge_call c = { .since_ns = loop_now(b->loop), .waits = true };

    return run_call(ctx, b, r, limit_ns, c, what, wait_id, ret, err);
}
