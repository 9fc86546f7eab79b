/* guestlog.c - the guest's log lines become ours. */
#include "host/bridge/guestlog.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fiber.h"
#include "base/json.h"
#include "base/loop.h"
#include "base/span.h"
#include "base/str.h"
#include "base/stream.h"
#include <string.h>

#define STAGE_LONGEST (24 * 3600 * NS_PER_S) /* beyond this a clock is nonsense */
#define READ_BYTES 2048

/* Length of the harmless character at s (1 … 4), 0 if it must be escaped. */
static size_t harmless_char(const char *s, size_t len)
{
    uint32_t c = 0;
    size_t n = str_utf8(s, len, &c);

    return n > 0 && str_is_harmless(c) ? n : 0;
}

void guestlog_escape(struct sbuf *out, const char *s, size_t len, size_t max)
{
    size_t end = out->len + max;

    for (size_t i = 0; i < len;) {
        size_t n = harmless_char(s + i, len - i);

        if (out->len + (n ? n : 6) + sizeof("…") > end) {
            sbuf_adds(out, "…");
            return;
        }
        if (n > 0)
            sbuf_add(out, s + i, n);
        else if (s[i] == '\n')
            sbuf_adds(out, "\\n");
        else if (s[i] == '\t')
            sbuf_adds(out, "\\t");
        else
            sbuf_addf(out, "\\x%02x", (unsigned char)s[i]);
        i += n ? n : 1;
    }
}

void guestlog_init(struct guestlog *l, struct timeline *timeline, uint64_t now_ns)
{
    *l = (struct guestlog){
        .timeline = timeline,
        .floor_ns = now_ns,
        .rate.burst = GUESTLOG_BURST,
        .slow = { .burst = GUESTLOG_SLOW_BURST, .per_s = GUESTLOG_SLOW_PER_S },
        .parsed = { .burst = GUESTLOG_PARSED_BURST, .per_s = GUESTLOG_PARSED_PER_S },
        .read = { .burst = GUESTLOG_READ_BURST, .per_s = GUESTLOG_READ_PER_S },
    };
}

void guestlog_release(struct guestlog *l)
{
    sbuf_release(&l->line);
    l->skipping = l->last_words = false;
}

static uint64_t to_host(const struct guestlog *l, uint64_t guest_ns, uint64_t now_ns)
{
    int64_t at = l->have_offset ? (int64_t)guest_ns + l->offset : (int64_t)now_ns;

    if (at < (int64_t)l->floor_ns)
        return l->floor_ns;
    return at > (int64_t)now_ns ? now_ns : (uint64_t)at;
}

static void add_stage(struct guestlog *l, const struct guestlog_stage *s, uint64_t now_ns)
{
    enum span_track track = str_starts(s->name, "kernel") ? TRACK_KERNEL : TRACK_GUEST;

    span_add(l->timeline, track, s->name, to_host(l, s->start_ns, now_ns),
             to_host(l, s->end_ns, now_ns));
}

void guestlog_flush(struct guestlog *l, uint64_t now_ns)
{
    for (unsigned i = 0; i < l->n_stages; i++)
        add_stage(l, &l->stages[i], now_ns);
    l->n_stages = 0;
    l->flushed = true;
}

/* Of a line with the fields of a boot stage. */
static void stage_line(struct guestlog *l, const json_t *line, uint64_t now_ns)
{
    struct err ignored = ERR_INIT; /* a stage we cannot read is one we do not show */
    struct guestlog_stage s = { 0 };
    const char *name = NULL;
    uint64_t boottime = 0;
    size_t n = 0;

    if (js_str(line, "stage", &name, &ignored) < 0 ||
        js_u64(line, "start_ns", &s.start_ns, &ignored) < 0 ||
        js_u64(line, "end_ns", &s.end_ns, &ignored) < 0 ||
        js_u64(line, "boottime_ns", &boottime, &ignored) < 0)
        return;
    if (!name || !name[0] || boottime > STAGE_LONGEST || s.end_ns > boottime ||
        s.start_ns > s.end_ns)
        return;
    for (; *name && n + 1 < sizeof(s.name); name++)
        s.name[n++] = *name >= ' ' && *name < 0x7f ? *name : '?';

    int64_t offset = (int64_t)now_ns - (int64_t)boottime;

    if (!l->have_offset || offset < l->offset)
        l->offset = offset;
    l->have_offset = true;
    if (l->flushed)
        add_stage(l, &s, now_ns);
    else if (l->n_stages < GUESTLOG_STAGES)
        l->stages[l->n_stages++] = s;
}

/* logrus' names. The guest does not decide what an operator is woken by: error is the highest. */
static enum log_level level_of(const char *name)
{
    static const struct {
        const char *name;
        enum log_level level;
    } levels[] = { { "trace", LOG_TRACE },  { "debug", LOG_DEBUG }, { "info", LOG_INFO },
                   { "warning", LOG_WARN }, { "warn", LOG_WARN },   { "error", LOG_ERROR },
                   { "fatal", LOG_ERROR },  { "panic", LOG_ERROR } };

    for (size_t i = 0; name && i < ARRAY_LEN(levels); i++)
        if (str_eq(name, levels[i].name))
            return levels[i].level;
    return LOG_INFO;
}

/* What else the line carries, as one bounded text. */
static void other_fields(const json_t *line, struct sbuf *out)
{
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)line, key, value)
    {
        if (str_eq(key, "msg") || str_eq(key, "level") || str_eq(key, "time") ||
            str_eq(key, "reason"))
            continue;
        if (out->len >= GUESTLOG_TEXT_MAX)
            return;

        AUTO_FREE char *text = js_text(value, 0);
        size_t room = GUESTLOG_TEXT_MAX - out->len;

        if (out->len > 0)
            sbuf_addc(out, ' ');
        guestlog_escape(out, key, strlen(key), room);
        sbuf_addc(out, '=');
        guestlog_escape(out, text, strlen(text), room);
    }
}

/* One line of ours. */
struct said {
    enum log_level level;
    const char *msg, *source, *text;
    const char *more; /* or NULL */
    enum reason reason;
    uint64_t at_ns; /* when it happened, if that was long before; else 0 */
};

static void emit(struct guestlog *l, const struct ctx *ctx, const struct said *s, uint64_t now_ns)
{
    char at[CLOCK_RFC3339_SIZE];

    if (!log_on(s->level))
        return;
    if (!log_rate_ok(&l->rate, now_ns) || !bucket_try(&l->slow, 1, now_ns)) {
        l->lost++;
        return;
    }

    struct log_field fields[] = {
        F_STR("source", s->source), F_STR("text", s->text), {}, {}, {}, {}, {}
    };
    size_t n = 2;

    if (s->more && s->more[0])
        fields[n++] = (struct log_field)F_STR("fields", s->more);
    if (s->at_ns && ctx && ctx->loop) {
        clock_rfc3339(loop_wall(ctx->loop) - (now_ns - s->at_ns), at);
        fields[n++] = (struct log_field)F_STR("at", at);
    }
    if (s->reason != REASON_NONE)
        fields[n++] = (struct log_field)F_REASON(s->reason);
    if (l->lost > 0)
        fields[n++] = (struct log_field)F_U("lost", l->lost);
    l->lost = 0;
    log_write(ctx, s->level, s->msg, fields);
}

/* The kernel's own words, which the agent reads for us, often long after they were said: known by
 * the fields that only such a line has. */
static bool kernel_line(struct guestlog *l, const json_t *line, const char **ret_text,
                        uint64_t now_ns, uint64_t *ret_at)
{
    struct err ignored = ERR_INIT;
    const char *text = NULL;
    uint64_t us = 0;

    if (!js_get(line, "timesincebootmicro") || js_str(line, "message", &text, &ignored) < 0 ||
        !text)
        return false;
    *ret_text = text;
    if (l->have_offset && js_u64(line, "timesincebootmicro", &us, &ignored) == 0 && us > 0 &&
        us < STAGE_LONGEST / NS_PER_US)
        *ret_at = to_host(l, us * NS_PER_US, now_ns);
    return true;
}

/* What the kernel has no other way to tell us. */
static enum reason kernel_reason(const char *text)
{
    static const struct {
        const char *words;
        enum reason reason;
    } known[] = {
        { "Memory cgroup out of memory", REASON_CONTAINER_OOM },
        { "Out of memory: Killed process", REASON_GUEST_OOM },
        { "Kernel panic", REASON_GUEST_PANIC },
    };

    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (strstr(text, known[i].words))
            return known[i].reason;
    return REASON_NONE;
}

/* The agent removes a disk before the host unplugs it, and virtio_scsi then looks for it in vain.
 */
static bool is_expected(const char *text)
{
    const char *disk = strstr(text, "virtio_scsi: SCSI device ");

    return disk && strstr(disk, " not found");
}

bool guestlog_line(struct guestlog *l, const struct ctx *ctx, const char *line, size_t len,
                   uint64_t now_ns)
{
    AUTO(json_decref) json_t *root = NULL;
    AUTO(sbuf_release) struct sbuf text = { 0 }, more = { 0 };
    struct said said = { .msg = "guest", .source = "guest" };
    struct err err = ERR_INIT;
    const char *msg = NULL, *level = NULL, *reason = NULL;

    while (len > 0 && (line[len - 1] == '\r' || line[len - 1] == ' '))
        len--;
    if (len == 0)
        return true;
    if (!bucket_try(&l->parsed, len, now_ns)) {
        l->lost++; /* whatever it is */
        return true;
    }
    if (js_parse(line, len, GUESTLOG_LINE_MAX, &root, &err) < 0 || !json_is_object(root))
        return false;
    (void)js_str(root, "msg", &msg, &err); /* of another type: shown among the other fields */
    (void)js_str(root, "level", &level, &err);
    stage_line(l, root, now_ns);
    said.level = level_of(level);
    if (!log_on(said.level))
        return true;
    if (kernel_line(l, root, &msg, now_ns, &said.at_ns)) {
        said.source = "kernel";
        said.reason = kernel_reason(msg);
        if (is_expected(msg))
            said.level = LOG_DEBUG;
    } else {
        (void)js_str(root, "reason", &reason, &err);
        said.reason = reason_parse(reason);
        other_fields(root, &more);
    }
    if (msg)
        guestlog_escape(&text, msg, strlen(msg), GUESTLOG_TEXT_MAX);
    said.text = text.data ? text.data : "";
    said.more = more.data;
    emit(l, ctx, &said, now_ns);
    return true;
}

/* --- the stream --- */

static void take_bytes(struct guestlog *l, const struct ctx *ctx, const char *data, size_t len,
                       uint64_t now_ns)
{
    while (len > 0 && !l->last_words) {
        const char *nl = memchr(data, '\n', len);
        size_t part = nl ? (size_t)(nl - data) : len;

        if (!l->skipping && l->line.len + part > GUESTLOG_LINE_MAX) {
            l->skipping = true;
            l->line.len = 0;
            emit(l, ctx,
                 &(struct said){ .level = LOG_WARN,
                                 .msg = "guest",
                                 .source = "guest",
                                 .text = "(a line longer than 16 KiB was left out)" },
                 now_ns);
        }
        if (!l->skipping)
            sbuf_add(&l->line, data, part);
        data += part + (nl != NULL);
        len -= part + (nl != NULL);
        if (!nl)
            return;
        if (!l->skipping && !guestlog_line(l, ctx, l->line.data, l->line.len, now_ns)) {
            l->last_words = true;
            sbuf_addc(&l->line, '\n');
            break;
        }
        l->skipping = false;
        l->line.len = 0;
    }
    if (l->last_words && l->line.len < GUESTLOG_LAST_WORDS_MAX) {
        size_t room = GUESTLOG_LAST_WORDS_MAX - l->line.len;

        sbuf_add(&l->line, data, len < room ? len : room);
    }
}

static void finish(struct guestlog *l, const struct ctx *ctx, uint64_t now_ns)
{
    AUTO(sbuf_release) struct sbuf text = { 0 };

    if (l->line.len == 0 || l->skipping)
        return;
    if (!l->last_words && guestlog_line(l, ctx, l->line.data, l->line.len, now_ns))
        return;
    guestlog_escape(&text, l->line.data, l->line.len, GUESTLOG_LAST_WORDS_MAX);
    /* One for each VM, and why it ended: it needs no leave. */
    log_write(
        ctx, LOG_ERROR, "gcs terminated",
        (const struct log_field[]){
            F_STR("source", "guest"), F_STR("text", text.data), F_REASON(REASON_AGENT_DIED), {} });
}

/* A guest that floods and is gone: no line comes that could tell. */
static void tell_lost(struct guestlog *l, const struct ctx *ctx)
{
    if (l->lost > 0)
        log_warn(ctx, "log lines of the guest were left out", F_U("lost", l->lost));
    l->lost = 0;
}

/* Reads no faster than it may: the guest waits, not we. */
static int slow_down(struct ctx *ctx, struct guestlog *l, struct stream *s, size_t n,
                     struct err *err)
{
    uint64_t pause = bucket_take(&l->read, n, loop_now(ctx->loop));

    if (pause > 0)
        return stream_pause(ctx, s, pause, err);
    fiber_yield(ctx->loop); /* a guest that never stops talking is not alone here */
    return 0;
}

int guestlog_read(struct ctx *ctx, struct guestlog *l, struct stream *s, struct err *err)
{
    char buf[READ_BYTES];
    size_t n = 0;
    int ret;

    while ((ret = stream_read(ctx, s, buf, sizeof(buf), &n, err)) == 0 && n > 0) {
        take_bytes(l, ctx, buf, n, loop_now(ctx->loop));
        ret = slow_down(ctx, l, s, n, err);
        if (ret < 0)
            break;
    }
    finish(l, ctx, loop_now(ctx->loop));
    tell_lost(l, ctx);
    guestlog_release(l);
    return ret;
}
