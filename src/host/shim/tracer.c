/* tracer.c - encodes spans as OTLP and sends them to the collector. */
#include "host/shim/tracer.h"
#include "api/otlp.pb-c.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/offload.h"
#include "base/saved.h"
#include "base/stream.h"
#include "base/waits.h"
#include "host/shim/tracer_priv.h"
#include "proto/pb.h"
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define BATCH_NS NS_PER_S /* from a batch's first span until it is sent */
#define TRY_LIMIT (5 * NS_PER_S)
#define RETRY_FIRST NS_PER_S
#define ATTRS_MAX 12
#define STATUS_ERROR 2

/* The messages that only wrap others, by their numbers in otlp.proto. */
enum { REQUEST_RESOURCE_SPANS = 1 };
enum { RESOURCE_SPANS_RESOURCE = 1, RESOURCE_SPANS_SCOPE_SPANS };
enum { SCOPE_SPANS_SPANS = 2 };

enum { SHIM, AGENT, SIDES }; /* whose span it is */

/* Encoded spans, each with its tag: the inside of a ScopeSpans. */
struct batch {
    struct sbuf side[SIDES];
    unsigned n;
};

struct tracer {
    struct span_sink sink;
    struct tracer_opts opts;
    struct tracer_settings to;
    struct sbuf resource[SIDES]; /* encoded */
    struct batch queue, sending;
    struct waitq filled;
    struct cancel life;
    struct fibers fibers;
    bool failing; /* the failure was logged */
};

/* --- encoding --- */

struct attrs {
    Otlp__KeyValue pairs[ATTRS_MAX], *list[ATTRS_MAX];
    Otlp__AnyValue values[ATTRS_MAX];
    size_t n;
};

/* Of several values of a key the first counts: it is the innermost ctx's. */
static void attr(struct attrs *a, const char *key, const char *value)
{
    for (size_t i = 0; i < a->n; i++)
        if (str_eq(a->pairs[i].key, key))
            return;
    if (a->n == ATTRS_MAX || !value)
        return;
    a->values[a->n] = (Otlp__AnyValue)OTLP__ANY_VALUE__INIT;
    a->values[a->n].value_case = OTLP__ANY_VALUE__VALUE_STRING_VALUE;
    a->values[a->n].string_value = value;
    a->pairs[a->n] = (Otlp__KeyValue)OTLP__KEY_VALUE__INIT;
    a->pairs[a->n].key = key;
    a->pairs[a->n].value = &a->values[a->n];
    a->list[a->n] = &a->pairs[a->n];
    a->n++;
}

static struct pb_slice slice(const struct sbuf *b)
{
    return (struct pb_slice){ (const uint8_t *)b->data, b->len };
}

static void put_span(struct span_sink *sink, const struct span *s)
{
    struct tracer *t = CONTAINER_OF(sink, struct tracer, sink);
    struct sbuf *to = &t->queue.side[s->track >= TRACK_KERNEL ? AGENT : SHIM];
    uint64_t wall = loop_wall(t->opts.loop) - loop_now(t->opts.loop);
    AUTO(sbuf_release) struct sbuf one = { 0 };
    char took[CLOCK_HUMAN_SIZE];
    struct attrs a = { .n = 0 };
    Otlp__Status status = OTLP__STATUS__INIT;
    Otlp__Span m = OTLP__SPAN__INIT;
    static const uint8_t none[sizeof(s->parent_id)];

    for (unsigned i = 0; i < s->n_attrs; i++)
        attr(&a, s->attrs[i].key, s->attrs[i].value);
    for (const struct ctx *c = s->ids; c; c = c->parent)
        if (c->id_key)
            attr(&a, c->id_key, c->id_value);
    clock_human(s->end - s->start, took);
    attr(&a, "duration", took);
    attr(&a, "track", span_track_name(s->track));
    m.trace_id = (ProtobufCBinaryData){ sizeof(s->trace.trace_id), (uint8_t *)s->trace.trace_id };
    m.span_id = (ProtobufCBinaryData){ sizeof(s->trace.span_id), (uint8_t *)s->trace.span_id };
    if (memcmp(s->parent_id, none, sizeof(none)) != 0)
        m.parent_span_id = (ProtobufCBinaryData){ sizeof(s->parent_id), (uint8_t *)s->parent_id };
    if (s->trace.tracestate)
        m.trace_state = s->trace.tracestate;
    m.name = s->name;
    m.kind = s->kind;
    m.start_time_unix_nano = wall + s->start;
    m.end_time_unix_nano = wall + s->end;
    m.attributes = a.list;
    m.n_attributes = a.n;
    if (s->err && s->err->code != ERR_NONE) {
        status.code = STATUS_ERROR;
        status.message = s->err->msg;
        m.status = &status;
    }
    if (t->queue.n >= TRACER_QUEUE_SPANS || pb_pack(&m, &one) < 0 ||
        t->queue.side[SHIM].len + t->queue.side[AGENT].len + one.len > TRACER_QUEUE_BYTES) {
        sink->lost++;
        return;
    }
    pb_put_message(to, SCOPE_SPANS_SPANS, slice(&one));
    if (t->queue.n++ == 0)
        waitq_wake_all(&t->filled);
}

static void describe(struct tracer *t)
{
    for (int i = 0; i < SIDES; i++) {
        Otlp__Resource m = OTLP__RESOURCE__INIT;
        struct attrs a = { .n = 0 };

        attr(&a, "service.name", i == AGENT ? "gcs" : t->to.service);
        attr(&a, "service.version", LCOW_VERSION);
        attr(&a, "sandbox-id", t->opts.id);
        attr(&a, "namespace", t->opts.ns);
        m.attributes = a.list;
        m.n_attributes = a.n;
        (void)pb_pack(&m, &t->resource[i]); /* on invalid UTF-8 the resource stays empty */
    }
}

static void wrap(struct tracer *t, struct sbuf *body)
{
    for (int i = 0; i < SIDES; i++) {
        AUTO(sbuf_release) struct sbuf inner = { 0 };

        if (t->sending.side[i].len == 0)
            continue;
        pb_put_message(&inner, RESOURCE_SPANS_RESOURCE, slice(&t->resource[i]));
        pb_put_message(&inner, RESOURCE_SPANS_SCOPE_SPANS, slice(&t->sending.side[i]));
        pb_put_message(body, REQUEST_RESOURCE_SPANS, slice(&inner));
    }
}

/* --- HTTP --- */

struct dial {
    const char *host, *port;
    int fd;
};

/* Runs in a thread, since the name lookup blocks. */
static int dial(void *job, struct err *err)
{
    const struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
    const struct timeval limit = { .tv_sec = TRY_LIMIT / NS_PER_S };
    struct dial *d = job;
    struct addrinfo *list = NULL;
    int r = getaddrinfo(d->host, d->port, &hints, &list), why = 0;

    d->fd = -1;
    if (r != 0)
        return err_set(err, ERR_UNAVAILABLE, "%s: %s", d->host, gai_strerror(r));
    for (const struct addrinfo *a = list; a && d->fd < 0; a = a->ai_next) {
        AUTO_FD int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

        (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
        if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) == 0)
            d->fd = TAKE_FD(fd);
        else
            why = errno;
    }
    freeaddrinfo(list);
    return d->fd < 0 ? err_sys(err, why, "connect to %s:%s", d->host, d->port) : 0;
}

static void dial_drop(void *job)
{
    fd_close(((struct dial *)job)->fd);
}

static int connect_real(struct ctx *ctx, void *arg, struct stream **ret, struct err *err)
{
    const struct tracer *t = arg;
    struct dial d = { t->to.host, t->to.port, -1 };

    if (OFFLOAD(ctx, dial, &d, 2, dial_drop, "the trace collector", err) < 0)
        return -1;
    *ret = stream_from_fd(ctx->loop, d.fd);
    return 0;
}

/* Reads the status line; the rest is not needed. */
static int read_answer(struct ctx *ctx, struct stream *s, int *ret_status, struct err *err)
{
    char line[64] = "";
    size_t len = 0, n;

    while (len + 1 < sizeof(line) && !strchr(line, '\n')) {
        if (stream_read(ctx, s, line + len, sizeof(line) - 1 - len, &n, err) < 0)
            return -1;
        if (n == 0)
            break;
        len += n;
        line[len] = '\0';
    }
    if (sscanf(line, "HTTP/1.%*1d %3d", ret_status) != 1)
        return err_set(err, ERR_UNAVAILABLE, "the collector's answer is not HTTP");
    return 0;
}

/* ERR_INVALID: the collector refuses these spans; do not retry. */
static int post(struct ctx *ctx, struct tracer *t, struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, TRY_LIMIT);
    AUTO(sbuf_release) struct sbuf body = { 0 }, head = { 0 };
    AUTO(stream_free) struct stream *s = NULL;
    bool v6 = strchr(t->to.host, ':');
    int status = 0;

    wrap(t, &body);
    sbuf_addf(&head,
              "POST %s HTTP/1.1\r\nHost: %s%s%s:%s\r\nContent-Type: application/x-protobuf\r\n"
              "Content-Length: %zu\r\nConnection: close\r\n%s\r\n",
              t->to.path, v6 ? "[" : "", t->to.host, v6 ? "]" : "", t->to.port, body.len,
              t->to.headers);
    if (t->opts.connect(&limited, t->opts.arg, &s, err) < 0 ||
        stream_write_full(&limited, s, head.data, head.len, err) < 0 ||
        stream_write_full(&limited, s, body.data, body.len, err) < 0 ||
        read_answer(&limited, s, &status, err) < 0)
        return -1;
    if (status / 100 == 2)
        return 0;
    return err_set(err, status == 429 || status >= 502 ? ERR_UNAVAILABLE : ERR_INVALID,
                   "the collector answered with status %d", status);
}

/* --- batches --- */

static void batch_release(struct batch *b)
{
    for (int i = 0; i < SIDES; i++)
        sbuf_release(&b->side[i]);
    *b = (struct batch){ 0 };
}

/* One attempt. 0 also if these spans are dropped. */
static int attempt(struct ctx *ctx, struct tracer *t, bool last, struct err *err)
{
    if (t->sending.n == 0) {
        t->sending = t->queue;
        t->queue = (struct batch){ 0 };
    }
    if (post(ctx, t, err) == 0) {
        t->sink.sent += t->sending.n;
        t->failing = false;
    } else if (!last && err->code != ERR_INVALID) {
        return -1;
    } else {
        t->sink.lost += t->sending.n;
        if (!t->failing)
            log_warn(ctx, "spans lost: the trace collector does not accept them",
                     F_U("spans", t->sending.n), F_ERR(err));
        t->failing = true;
    }
    batch_release(&t->sending);
    return 0;
}

static void tracer_run(void *arg)
{
    struct tracer *t = arg;
    struct ctx ctx = ctx_until(t->opts.loop, &t->life);
    struct err err = ERR_INIT;

    while (!t->life.fired) {
        uint64_t pause = BATCH_NS;

        if (t->queue.n == 0) {
            (void)waitq_wait(&ctx, &t->filled, WAIT_SPANS, &err); /* woken by spans or by stop */
            continue;
        }
        for (int i = 1; fiber_sleep(&ctx, pause, &err) == 0; i++) {
            if (attempt(&ctx, t, i == TRACER_ATTEMPTS, &err) == 0)
                break;
            pause = RETRY_FIRST << i;
        }
    }
}

int tracer_new(const struct tracer_opts *o, struct tracer **ret, struct err *err)
{
    const char *(*env)(const char *name) = o->env ? o->env : (const char *(*)(const char *))getenv;
    AUTO(tracer_settings_release) struct tracer_settings to = { 0 };
    struct tracer *t;

    *ret = NULL;
    if (tracer_settings(o->endpoint, env, &to, err) < 0)
        return -1;
    if (!to.host)
        return 0;
    *ret = t = mem_new(struct tracer);
    t->opts = *o;
    t->to = to;
    to = (struct tracer_settings){ 0 };
    if (!t->opts.connect) {
        t->opts.connect = connect_real;
        t->opts.arg = t;
    }
    t->sink = (struct span_sink){
        .loop = o->loop, .put = put_span, .ignore_parent = t->to.ignore_parent, .share = t->to.share
    };
    describe(t);
    waitq_init(&t->filled);
    cancel_init(&t->life, NULL);
    fibers_init(&t->fibers);
    fibers_go(&t->fibers, o->loop, tracer_run, t, FIBER_TRACER);
    return 0;
}

struct span_sink *tracer_sink(struct tracer *t)
{
    return t ? &t->sink : NULL;
}

int tracer_stop(struct ctx *ctx, struct tracer *t, struct err *err)
{
    if (!t)
        return 0;
    cancel_fire(&t->life, ERR_CANCELLED, "the shim is exiting");
    if (fibers_wait(ctx, &t->fibers, "tracer", err) < 0)
        return -1;
    while (t->sending.n + t->queue.n > 0)
        (void)attempt(ctx, t, true, err); /* on failure the spans are counted as lost */
    return 0;
}

void tracer_saved(struct saved *sv, struct tracer *t)
{
    struct batch all = { .n = t->sending.n + t->queue.n };

    for (int i = 0; i < SIDES; i++) {
        sbuf_add(&all.side[i], t->sending.side[i].data, t->sending.side[i].len);
        sbuf_add(&all.side[i], t->queue.side[i].data, t->queue.side[i].len);
    }
    saved_u32(sv, 1, &all.n);
    saved_sbuf(sv, 2, &all.side[SHIM]);
    saved_sbuf(sv, 3, &all.side[AGENT]);
    saved_u64(sv, 4, &t->sink.sent);
    saved_u64(sv, 5, &t->sink.lost);
    if (saved_reads(sv)) {
        batch_release(&t->queue);
        t->queue = all;
    } else {
        batch_release(&all);
    }
}

void tracer_free(struct tracer *t)
{
    if (!t)
        return;
    batch_release(&t->queue);
    batch_release(&t->sending);
    for (int i = 0; i < SIDES; i++)
        sbuf_release(&t->resource[i]);
    tracer_settings_release(&t->to);
    cancel_release(&t->life);
    free(t);
}
