/* tracer.h - sends spans to a collector: OTLP, protobuf over HTTP. Off unless the configuration or
 * the environment (OTEL_*) names an endpoint. Spans are encoded into a bounded queue when they end;
 * one fiber sends them in batches, and has no timer while there are none. No caller ever waits for
 * it: spans that do not fit, or are not accepted after a few attempts, are counted as lost.
 * Life: new (starts the fiber) -> stop -> free. */
#pragma once
#include "base/span.h"

struct err;
struct saved;
struct stream;
struct tracer;

#define TRACER_QUEUE_SPANS 2048
#define TRACER_QUEUE_BYTES (1u << 20)
#define TRACER_ATTEMPTS 5

struct tracer_opts {
    struct loop *loop;
    const char *endpoint; /* of the configuration; "": the environment's */
    const char *ns, *id;  /* of the sandbox */
    /* For tests; NULL: getenv(), and a connection to the endpoint. */
    const char *(*env)(const char *name);
    int (*connect)(struct ctx *ctx, void *arg, struct stream **ret, struct err *err);
    void *arg;
};
/* *ret is NULL if tracing is off. -1 and err if the settings are invalid. Borrows loop. */
int tracer_new(const struct tracer_opts *o, struct tracer **ret, struct err *err);
struct span_sink *tracer_sink(struct tracer *t); /* NULL for NULL */
/* Ends the fiber and sends the rest, once. Waits. t may be NULL. */
int tracer_stop(struct ctx *ctx, struct tracer *t, struct err *err);
void tracer_free(struct tracer *t); /* after stop */
/* For saved.h: spans that were not sent yet, of a tracer that has no attempt under way. */
void tracer_saved(struct saved *sv, struct tracer *t);
AUTO_DEFINE(struct tracer *, tracer_free);
