/* tracer_test.c - sending spans to a collector that accepts them, is stopped, or refuses them. */
#include "api/otlp.pb-c.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fiber.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/stream.h"
#include "fixture/saved_fixture.h"
#include "fixture/stream_pair.h"
#include "harness/tap.h"
#include "host/control/settled.h"
#include "host/shim/tracer.h"
#include "host/shim/tracer_priv.h"
#include "proto/pb.h"
#include <stdlib.h>
#include <string.h>

/* --- settings --- */

static const char *const *variables; /* "NAME=VALUE" */

static const char *env(const char *name)
{
    for (const char *const *v = variables; v && *v; v++)
        if (str_starts(*v, name) && (*v)[strlen(name)] == '=')
            return *v + strlen(name) + 1;
    return NULL;
}

#define ENV(...) (variables = (const char *const[]){ __VA_ARGS__ __VA_OPT__(, ) NULL })

TEST(endpoints_are_taken_from_the_configuration_first_and_then_from_the_environment)
{
    static const struct {
        const char *config, *variable, *host, *port, *path; /* host NULL: it is off */
    } rows[] = {
        { "", "X=1", NULL, NULL, NULL },
        { "http://10.0.0.1:4318", "X=1", "10.0.0.1", "4318", "/v1/traces" },
        { "http://[::1]:4318/", "X=1", "::1", "4318", "/v1/traces" },
        { "http://a:1/base/", "X=1", "a", "1", "/base/v1/traces" },
        { "http://a", "OTEL_EXPORTER_OTLP_ENDPOINT=http://b:2", "a", "80", "/v1/traces" },
        { "", "OTEL_EXPORTER_OTLP_ENDPOINT=http://b:2", "b", "2", "/v1/traces" },
        { "", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://b:2", "b", "2", "/" },
        { "", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://b:2/x", "b", "2", "/x" },
        { "http://a:1", "OTEL_SDK_DISABLED=true", NULL, NULL, NULL },
    };

    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        AUTO(tracer_settings_release) struct tracer_settings s = { 0 };
        struct err err = ERR_INIT;

        ENV(rows[i].variable);
        ASSERT_OK(tracer_settings(rows[i].config, env, &s, &err), err);
        ASSERT_EQ(s.host == NULL, rows[i].host == NULL);
        if (!s.host)
            continue;
        ASSERT_STR(s.host, rows[i].host);
        ASSERT_STR(s.port, rows[i].port);
        ASSERT_STR(s.path, rows[i].path);
    }
}

TEST(unsupported_settings_are_refused_by_name)
{
    static const struct {
        const char *variables[3], *says;
        enum err_code code;
    } rows[] = {
        { { "OTEL_EXPORTER_OTLP_ENDPOINT=https://a:1" },
          "TLS is not supported",
          ERR_UNIMPLEMENTED },
        { { "OTEL_EXPORTER_OTLP_ENDPOINT=a:1" }, "must be http://HOST:PORT", ERR_INVALID },
        { { "OTEL_EXPORTER_OTLP_ENDPOINT=http://:1" }, "must be http://HOST:PORT", ERR_INVALID },
        { { "OTEL_EXPORTER_OTLP_ENDPOINT=http://u:secret@h:1" },
          "user names are not supported",
          ERR_UNIMPLEMENTED },
        { { "OTEL_EXPORTER_OTLP_ENDPOINT=https://u:secret@h" },
          "user names are not supported",
          ERR_UNIMPLEMENTED },
        { { "OTEL_EXPORTER_OTLP_ENDPOINT=http://h:x" }, "must be http://HOST:PORT", ERR_INVALID },
        { { "OTEL_EXPORTER_OTLP_ENDPOINT=http://h/\r\nX: y" }, "must be http://H", ERR_INVALID },
        { { "OTEL_EXPORTER_OTLP_ENDPOINT=http://a:1", "OTEL_EXPORTER_OTLP_PROTOCOL=grpc" },
          "OTEL_EXPORTER_OTLP_PROTOCOL=grpc is unsupported: must be http/protobuf",
          ERR_UNIMPLEMENTED },
        { { "OTEL_EXPORTER_OTLP_ENDPOINT=http://a:1", "OTEL_TRACES_SAMPLER=jaeger_remote" },
          "OTEL_TRACES_SAMPLER=jaeger_remote: must be",
          ERR_INVALID },
    };

    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        AUTO(tracer_settings_release) struct tracer_settings s = { 0 };
        struct err err = ERR_INIT;

        variables = rows[i].variables;
        ASSERT_FAIL(tracer_settings("", env, &s, &err), err, rows[i].code);
        ASSERT_MSG_HAS(err.msg, rows[i].says);
        ASSERT(!strstr(err.msg, "secret"));
        ASSERT(!s.host);
    }
}

TEST(samplers_headers_and_the_name_are_read)
{
    AUTO(tracer_settings_release) struct tracer_settings s = { 0 }, other = { 0 };
    struct err err = ERR_INIT;

    ENV("OTEL_TRACES_SAMPLER=parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG=0.25",
        "OTEL_SERVICE_NAME=x",
        "OTEL_EXPORTER_OTLP_HEADERS= a = b%20c , evil=x%0d%0ay,=z,d=e,b:d=x");
    ASSERT_OK(tracer_settings("http://h", env, &s, &err), err);
    ASSERT(s.share == 0.25 && !s.ignore_parent);
    ASSERT_STR(s.headers, "a: b c\r\nd: e\r\n");
    ASSERT_STR(s.service, "x");
    ENV("OTEL_TRACES_SAMPLER=always_off", "OTEL_SERVICE_NAME=containerd");
    ASSERT_OK(tracer_settings("http://h", env, &other, &err), err);
    ASSERT(other.share == 0 && other.ignore_parent);
    ASSERT_STR(other.headers, "");
    ASSERT_STR(other.service, "containerd-shim-lcow-v2");
}

/* --- the collector --- */

struct collector {
    struct loop *loop;
    struct tracer *tracer;
    int status; /* what it answers; 0: it is away */
    unsigned asked;
    struct sbuf got; /* of the last request, head and body */
    struct stream *end;
    struct fibers fibers;
};

static void collect(void *arg)
{
    struct collector *c = arg;
    struct ctx ctx = ctx_root(c->loop);
    AUTO_FREE char *answer = str_format("HTTP/1.1 %d x\r\n\r\n", c->status);
    struct err err = ERR_INIT;
    char buf[4096];
    const char *body = NULL, *length;
    size_t n = 1;

    c->got.len = 0;
    while (n > 0 && !(body && c->got.len - (size_t)(body - c->got.data) ==
                                  strtoul(length + strlen("Content-Length: "), NULL, 10))) {
        ASSERT_OK(stream_read(&ctx, c->end, buf, sizeof(buf), &n, &err), err);
        sbuf_add(&c->got, buf, n);
        length = strstr(c->got.data, "Content-Length: ");
        body = strstr(c->got.data, "\r\n\r\n");
        body = body ? body + 4 : NULL;
    }
    ASSERT_OK(stream_write_full(&ctx, c->end, answer, strlen(answer), &err), err);
    stream_free(c->end);
}

static int call(struct ctx *ctx, void *arg, struct stream **ret, struct err *err)
{
    struct collector *c = arg;

    c->asked++;
    if (c->status == 0)
        return err_set(err, ERR_UNAVAILABLE, "no listener");
    stream_pair(c->loop, 1 << 20, ret, &c->end);
    fibers_go(&c->fibers, c->loop, collect, c, "collector");
    return 0;
}

static void collector_start(struct collector *c, struct loop *loop, int status)
{
    struct err err = ERR_INIT;

    *c = (struct collector){ .loop = loop, .status = status };
    fibers_init(&c->fibers);
    ENV("X=1");
    ASSERT_OK(tracer_new(&(struct tracer_opts){ .loop = loop,
                                                .endpoint = "http://h:1",
                                                .ns = "k8s.io",
                                                .id = "pod1",
                                                .env = env,
                                                .connect = call,
                                                .arg = c },
                         &c->tracer, &err),
              err);
    ASSERT(c->tracer);
}

static void collector_stop(struct ctx *ctx, struct collector *c)
{
    struct err err = ERR_INIT;

    ASSERT_OK(tracer_stop(ctx, c->tracer, &err), err);
    ASSERT_OK(fibers_wait(ctx, &c->fibers, "collector", &err), err);
    tracer_free(c->tracer);
    sbuf_release(&c->got);
}

static void emit(struct ctx *ctx, struct collector *c, const struct err *outcome)
{
    struct ctx own = ctx_with_id(ctx, "cid", "c1");
    struct span request;

    ASSERT(span_begin_request(&request, &own, tracer_sink(c->tracer), &(struct trace){ 0 }, false,
                              "Create"));
    request.ids = &own;
    request.err = outcome;
    span_attr(&own, "bundle", "/b");
    span_add_child(&request.trace, TRACK_GUEST, "crun create", 5, 7, &own, NULL, NULL);
    span_end(&request);
}

static const char *value_of(Otlp__KeyValue **list, size_t n, const char *key)
{
    for (size_t i = 0; i < n; i++)
        if (str_eq(list[i]->key, key))
            return list[i]->value->string_value;
    return NULL;
}

TEST_VIRTUAL(spans_arrive_with_parent_outcome_attributes_and_the_side_they_are_of)
{
    struct ctx own = ctx_root(ctx->loop);
    struct err failed = ERR_INIT, err = ERR_INIT;
    AUTO(pb_free) Otlp__ExportTraceServiceRequest *got = NULL;
    struct collector c;

    collector_start(&c, ctx->loop, 200);
    err_set(&failed, ERR_STATE, "no such thing");
    emit(&own, &c, &failed);
    ASSERT_OK(fiber_sleep(&own, 2 * NS_PER_S, &err), err);
    ASSERT_EQ(c.asked, 1);
    ASSERT(str_starts(c.got.data, "POST /v1/traces HTTP/1.1\r\nHost: h:1\r\n"));

    const char *body = strstr(c.got.data, "\r\n\r\n") + 4;
    struct pb_slice bytes = { (const uint8_t *)body, c.got.len - (size_t)(body - c.got.data) };

    ASSERT_EQ(pb_unpack(&otlp__export_trace_service_request__descriptor, bytes, 1 << 20,
                        (void **)&got, NULL),
              0);
    ASSERT_EQ(got->n_resource_spans, 2);

    const Otlp__ResourceSpans *shim = got->resource_spans[0], *agent = got->resource_spans[1];
    const Otlp__Span *a = shim->scope_spans[0]->spans[0], *b = agent->scope_spans[0]->spans[0];

    ASSERT_STR(value_of(shim->resource->attributes, shim->resource->n_attributes, "sandbox-id"),
               "pod1");
    ASSERT_STR(value_of(agent->resource->attributes, agent->resource->n_attributes, "service.name"),
               "gcs");
    ASSERT_STR(a->name, "Create");
    ASSERT_EQ(a->kind, SPAN_SERVER);
    ASSERT_EQ(a->parent_span_id.len, 0);
    ASSERT_STR(value_of(a->attributes, a->n_attributes, "cid"), "c1");
    ASSERT_STR(value_of(a->attributes, a->n_attributes, "bundle"), "/b");
    ASSERT_EQ(a->status->code, 2);
    ASSERT_MSG(a->status->message, "no such thing");
    ASSERT_STR(b->name, "crun create");
    ASSERT_EQ(b->end_time_unix_nano - b->start_time_unix_nano, 2);
    ASSERT(memcmp(b->parent_span_id.data, a->span_id.data, 8) == 0);
    ASSERT(memcmp(b->trace_id.data, a->trace_id.data, 16) == 0);
    ASSERT_EQ(tracer_sink(c.tracer)->sent, 2);
    collector_stop(&own, &c);
}

TEST_VIRTUAL(a_collector_that_is_away_is_asked_five_times_and_then_nothing_moves)
{
    struct ctx own = ctx_root(ctx->loop);
    struct err err = ERR_INIT;
    struct collector c;

    log_init(2, LOG_OFF, LOG_LOGFMT);
    collector_start(&c, ctx->loop, 0);
    emit(&own, &c, NULL);
    ASSERT_OK(fiber_sleep(&own, 3600 * NS_PER_S, &err), err);
    ASSERT_EQ(c.asked, TRACER_ATTEMPTS);
    ASSERT_EQ(tracer_sink(c.tracer)->lost, 2);
    c.status = 200;
    emit(&own, &c, NULL);
    ASSERT_OK(fiber_sleep(&own, 2 * NS_PER_S, &err), err);
    ASSERT_EQ(tracer_sink(c.tracer)->sent, 2);
    collector_stop(&own, &c);
}

TEST_VIRTUAL(spans_that_are_refused_are_lost_at_once)
{
    struct ctx own = ctx_root(ctx->loop);
    struct err err = ERR_INIT;
    struct collector c;

    log_init(2, LOG_OFF, LOG_LOGFMT);
    collector_start(&c, ctx->loop, 400);
    emit(&own, &c, NULL);
    ASSERT_OK(fiber_sleep(&own, 60 * NS_PER_S, &err), err);
    ASSERT_EQ(c.asked, 1);
    ASSERT_EQ(tracer_sink(c.tracer)->lost, 2);
    collector_stop(&own, &c);
}

TEST_VIRTUAL(a_full_queue_counts_what_it_does_not_take_and_the_end_sends_the_rest)
{
    struct ctx own = ctx_root(ctx->loop);
    struct collector c;

    collector_start(&c, ctx->loop, 200);
    for (unsigned i = 0; i < TRACER_QUEUE_SPANS / 2 + 5; i++)
        emit(&own, &c, NULL);
    ASSERT_EQ(tracer_sink(c.tracer)->lost, 10);

    struct span_sink *sink = tracer_sink(c.tracer);
    struct err err = ERR_INIT;

    ASSERT_OK(tracer_stop(&own, c.tracer, &err), err);
    ASSERT_EQ(sink->sent, TRACER_QUEUE_SPANS);
    collector_stop(&own, &c);
}

static unsigned count(const struct sbuf *in, const char *text)
{
    const char *at = in->data, *end = in->data + in->len;
    unsigned n = 0;

    while (at && (at = memmem(at, (size_t)(end - at), text, strlen(text)))) {
        at += strlen(text);
        n++;
    }
    return n;
}

static bool look(void *arg, const char *name, const char *why)
{
    *(bool *)arg &= !str_eq(name, "tracer") || settled_at(name, why);
    return true;
}

TEST_VIRTUAL(spans_that_were_not_sent_are_sent_by_the_next_program)
{
    struct ctx own = ctx_root(ctx->loop);
    struct err err = ERR_INIT;
    struct collector from, to;
    bool settled = true;

    log_init(2, LOG_OFF, LOG_LOGFMT);
    collector_start(&from, ctx->loop, 0);
    emit(&own, &from, NULL);
    ASSERT_OK(fiber_sleep(&own, 1500 * NS_PER_MS, &err), err);
    ASSERT_EQ(from.asked, 1);
    emit(&own, &from, NULL); /* behind those that could not be sent */
    tracer_sink(from.tracer)->sent = 7;
    tracer_sink(from.tracer)->lost = 3;
    loop_each_fiber(ctx->loop, look, &settled);
    ASSERT(settled); /* or no shim could be upgraded while the collector is away */
    collector_start(&to, ctx->loop, 200);
    SAVED_PASS_ON(w, tracer_saved(w, from.tracer), , s, tracer_saved(s, to.tracer), again,
                  tracer_saved(again, to.tracer));
    ASSERT_OK(fiber_sleep(&own, 2 * NS_PER_S, &err), err);
    ASSERT_EQ(to.asked, 1);
    ASSERT_EQ(count(&to.got, "crun create"), 2);
    ASSERT_EQ(count(&to.got, "Create"), 2);
    ASSERT_EQ(tracer_sink(to.tracer)->sent, 7 + 4);
    ASSERT_EQ(tracer_sink(to.tracer)->lost, 3);
    collector_stop(&own, &to);
    collector_stop(&own, &from);
}
