/* span.h - where the time went: named parts of requests and boots, with begin, end and outcome.
 * Two places take them. A VM's timeline is a fixed table, always on, without allocation; full
 * means that the newest are counted as lost, because the start of things is what is looked at. A
 * sink gets those of traced requests (W3C trace context), to export them. Host and guest stamps
 * share one axis, loop_now()'s. Never waits. */
#pragma once
#include "base/ctx.h"
#include "base/mem.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum span_track {
    TRACK_HOST,   /* shim or tool */
    TRACK_VMM,    /* QEMU process */
    TRACK_KERNEL, /* guest kernel */
    TRACK_GUEST,  /* gcs */
    TRACK_COUNT
};
const char *span_track_name(enum span_track track);

/* As OTLP numbers them. */
enum span_kind { SPAN_INTERNAL = 1, SPAN_SERVER, SPAN_CLIENT };

struct span;
struct span_sink {
    struct loop *loop;
    /* A span has ended. Copies what it needs; may not wait. */
    void (*put)(struct span_sink *sink, const struct span *span);
    bool ignore_parent;  /* decide by share, whatever the caller decided */
    double share;        /* of traces that begin here, 0 to 1 */
    uint64_t sent, lost; /* spans */
};

/* A span's place in a trace. {0}: not traced. */
struct trace {
    struct span_sink *sink; /* borrows */
    uint8_t trace_id[16], span_id[8];
    const char *tracestate; /* W3C, borrowed; NULL: none */
};
/* "00-<32 hex>-<16 hex>-01" and back. False if it is not one; *sampled: the caller traces it. */
#define TRACE_PARENT_SIZE 56
#define TRACE_STATE_MAX 512
bool trace_parse(const char *text, size_t len, struct trace *ret, bool *sampled);
void trace_format(const struct trace *t, char buf[TRACE_PARENT_SIZE]);

#define TIMELINE_SPANS 96
#define TIMELINE_NAME 28
struct timeline_span {
    uint64_t start, end; /* equal: a mark; end 0: still open */
    char name[TIMELINE_NAME];
    uint8_t track;
};
struct timeline {
    struct timeline_span spans[TIMELINE_SPANS];
    unsigned n, lost;
    struct trace root; /* the parent of spans whose ctx has none: of the boot's */
};
/* Makes spans without a trace of their own children of ctx's; NULL: of none any more. */
void timeline_follow(struct timeline *t, const struct ctx *ctx);
/* For a span that was recorded elsewhere. Its index, or -1 when full. */
int timeline_add(struct timeline *t, enum span_track track, const char *name, uint64_t start,
                 uint64_t end);

#define SPAN_ATTRS 3
struct span {
    struct ctx *ctx; /* for calls inside it */
    struct ctx own;
    const struct ctx *ids; /* whose identifiers are its attributes, besides attrs; or NULL */
    struct timeline *timeline;
    int slot;
    struct trace trace;
    uint8_t parent_id[8]; /* 0: a trace begins here */
    uint64_t start, end;
    const char *name;
    const struct err *err; /* what failed, if it has a code at the end; may be NULL */
    enum span_track track;
    enum span_kind kind;
    unsigned n_attrs;
    struct {
        const char *key, *value;
    } attrs[SPAN_ATTRS];
};

/* Begins a step in t (may be NULL) and in the trace of ctx, else of t. Borrows everything until
 * span_end. Without a timeline and a trace it does nothing. */
void span_begin(struct span *s, struct ctx *ctx, struct timeline *t, enum span_track track,
                const char *name, const struct err *err);
/* A variable for a step that ends with its scope: SPAN(step, ctx, timeline, TRACK_HOST, "x", err),
 * then calls with step.ctx. */
#define SPAN(var, ...)                                                                             \
    AUTO(span_end) struct span var = { 0 };                                                        \
    span_begin(&(var), __VA_ARGS__)
/* Begins a request, whose parent is in from ({0}: none), and puts it into ctx. False if the request
 * is not traced. */
bool span_begin_request(struct span *s, struct ctx *ctx, struct span_sink *sink,
                        const struct trace *from, bool sampled, const char *name);
void span_end(struct span *s); /* repeatable */
AUTO_VALUE(struct span, span_end);
/* Adds an attribute to the step or request of ctx, if it is traced. Borrows both. Empty: none. */
void span_attr(struct ctx *ctx, const char *key, const char *value);
/* Adds a finished span or a mark to t and to t's trace. */
void span_add(struct timeline *t, enum span_track track, const char *name, uint64_t start,
              uint64_t end);
/* Adds a finished span as a child of `parent` in its trace. *ret, if not NULL, gets its place. */
void span_add_child(const struct trace *parent, enum span_track track, const char *name,
                    uint64_t start, uint64_t end, const struct ctx *ids, const struct err *err,
                    struct trace *ret);
