/* span.c - steps and requests, into timelines and traces. */
#include "base/span.h"
#include "base/err.h"
#include "base/loop.h"
#include <string.h>

/* --- W3C trace context --- */

static bool hex_bytes(const char *text, uint8_t *ret, size_t n)
{
    static const char digits[] = "0123456789abcdef";
    uint8_t any = 0;

    for (size_t i = 0; i < n; i++) {
        const char *high = text[2 * i] ? strchr(digits, text[2 * i]) : NULL;
        const char *low = text[2 * i + 1] ? strchr(digits, text[2 * i + 1]) : NULL;

        if (!high || !low)
            return false;
        ret[i] = (uint8_t)((high - digits) << 4 | (low - digits));
        any |= ret[i];
    }
    return any != 0 || n == 1; /* ids of zeros are invalid */
}

bool trace_parse(const char *text, size_t len, struct trace *ret, bool *sampled)
{
    struct trace t = { 0 };
    uint8_t version, flags;

    if (len < TRACE_PARENT_SIZE - 1 || text[2] != '-' || text[35] != '-' || text[52] != '-' ||
        !hex_bytes(text, &version, 1) || version == 0xff ||
        (len > TRACE_PARENT_SIZE - 1 && (version == 0 || text[55] != '-')) ||
        !hex_bytes(text + 3, t.trace_id, 16) || !hex_bytes(text + 36, t.span_id, 8) ||
        !hex_bytes(text + 53, &flags, 1))
        return false;
    *ret = t;
    *sampled = flags & 1;
    return true;
}

static char *put_hex(char *out, const uint8_t *bytes, size_t n, char end)
{
    for (size_t i = 0; i < 2 * n; i++)
        *out++ = "0123456789abcdef"[bytes[i / 2] >> (i % 2 ? 0 : 4) & 15];
    *out++ = end;
    return out;
}

void trace_format(const struct trace *t, char buf[TRACE_PARENT_SIZE])
{
    memcpy(buf, "00-", 3);
    memcpy(put_hex(put_hex(buf + 3, t->trace_id, 16, '-'), t->span_id, 8, '-'), "01", 3);
}

/* --- the timeline --- */

int timeline_add(struct timeline *t, enum span_track track, const char *name, uint64_t start,
                 uint64_t end)
{
    struct timeline_span *s;
    size_t len;

    if (t->n >= TIMELINE_SPANS) {
        t->lost++;
        return -1;
    }
    s = &t->spans[t->n];
    len = strnlen(name, TIMELINE_NAME - 1);
    /* A name that is cut must not end in half a character. */
    if (name[len])
        while (len > 0 && ((unsigned char)name[len] & 0xc0) == 0x80)
            len--;
    memcpy(s->name, name, len);
    memset(s->name + len, 0, TIMELINE_NAME - len);
    s->start = start;
    s->end = end;
    s->track = (uint8_t)track;
    return (int)t->n++;
}

void timeline_follow(struct timeline *t, const struct ctx *ctx)
{
    t->root = ctx && ctx->span ? ctx->span->trace : (struct trace){ 0 };
    t->root.tracestate = NULL; /* it lives as long as its request */
}

const char *span_track_name(enum span_track track)
{
    static const char *const names[TRACK_COUNT] = {
        [TRACK_HOST] = "host",
        [TRACK_VMM] = "vmm",
        [TRACK_KERNEL] = "kernel",
        [TRACK_GUEST] = "guest",
    };

    return (unsigned)track < TRACK_COUNT ? names[track] : "?";
}

/* --- spans --- */

/* A new place below parent, in its trace. */
static void descend(struct span *s, const struct trace *parent)
{
    s->trace = *parent;
    memcpy(s->parent_id, parent->span_id, sizeof(s->parent_id));
    loop_rand(parent->sink->loop, s->trace.span_id, sizeof(s->trace.span_id));
}

void span_begin(struct span *s, struct ctx *ctx, struct timeline *t, enum span_track track,
                const char *name, const struct err *err)
{
    const struct trace *parent = ctx->span ? &ctx->span->trace : t ? &t->root : NULL;

    s->ctx = ctx;
    if (!t && !(parent && parent->sink))
        return;
    s->start = loop_now(ctx->loop);
    s->timeline = t;
    if (t)
        s->slot = timeline_add(t, track, name, s->start, 0);
    if (!parent->sink)
        return;
    s->name = name;
    /* An error that was set before does not belong to this step. */
    s->err = err && err->code == ERR_NONE ? err : NULL;
    s->track = track;
    s->kind = SPAN_INTERNAL;
    descend(s, parent);
    s->own = ctx_with_cancel(ctx, ctx->cancel);
    s->own.span = s;
    s->ids = s->ctx = &s->own;
}

bool span_begin_request(struct span *s, struct ctx *ctx, struct span_sink *sink,
                        const struct trace *from, bool sampled, const char *name)
{
    static const uint8_t none[sizeof(from->span_id)];
    bool has_parent = memcmp(from->span_id, none, sizeof(none)) != 0;
    struct trace root = *from;
    uint64_t dice = 0; /* as other SDKs read it, so that all of a trace is sampled or none */

    if (has_parent && !sink->ignore_parent && !sampled)
        return false;
    *s = (struct span){ .start = loop_now(ctx->loop), .name = name, .kind = SPAN_SERVER };
    root.sink = sink;
    if (!has_parent)
        loop_rand(sink->loop, root.trace_id, sizeof(root.trace_id));
    for (size_t i = 8; i < sizeof(root.trace_id); i++)
        dice = dice << 8 | root.trace_id[i];
    if ((!has_parent || sink->ignore_parent) && (double)(dice >> 11) * 0x1p-53 >= sink->share)
        return false;
    descend(s, &root);
    s->ctx = ctx;
    ctx->span = s;
    return true;
}

void span_end(struct span *s)
{
    struct trace *t = &s->trace;

    if (s->timeline || t->sink)
        s->end = loop_now(s->ctx->loop);
    if (s->timeline && s->slot >= 0)
        s->timeline->spans[s->slot].end = s->end;
    s->timeline = NULL;
    if (t->sink)
        t->sink->put(t->sink, s);
    t->sink = NULL;
}

void span_attr(struct ctx *ctx, const char *key, const char *value)
{
    struct span *s = ctx->span;

    if (!s || !value || !value[0] || s->n_attrs == SPAN_ATTRS)
        return;
    s->attrs[s->n_attrs].key = key;
    s->attrs[s->n_attrs++].value = value;
}

void span_add_child(const struct trace *parent, enum span_track track, const char *name,
                    uint64_t start, uint64_t end, const struct ctx *ids, const struct err *err,
                    struct trace *ret)
{
    struct span s = { .start = start,
                      .end = end,
                      .name = name,
                      .ids = ids,
                      .err = err,
                      .track = track,
                      .kind = SPAN_INTERNAL };

    descend(&s, parent);
    s.trace.sink->put(s.trace.sink, &s);
    if (ret)
        *ret = s.trace;
}

void span_add(struct timeline *t, enum span_track track, const char *name, uint64_t start,
              uint64_t end)
{
    if (!t)
        return;
    if (end < start) /* stamps of the guest are translated to our axis and may be a little off */
        end = start;
    (void)timeline_add(t, track, name, start, end);
    if (t->root.sink)
        span_add_child(&t->root, track, name, start, end, NULL, NULL, NULL);
}
