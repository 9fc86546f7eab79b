#include "base/log.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/loop.h"
#include "base/str.h"
#include "base/words.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LOG_LINE_MAX 8192
#define LOG_LINE_RESERVE 64 /* for what ends a truncated line */

static struct {
    int fd;
    enum log_level level;
    enum log_format format;
    bool torn; /* the sink holds the beginning of a line that did not fit */
    uint64_t dropped;
} sink = { .fd = STDERR_FILENO, .level = LOG_WARN, .format = LOG_LOGFMT };

static uint64_t failures[REASON_COUNT];

static struct {
    enum log_level level;
    log_tee_fn *fn; /* NULL: none */
    void *arg;
} second = { .level = LOG_OFF };

/* A line under construction. Not on the stack, which is small in fibers; not shared, since
 * log_write never waits and threads have one each. */
struct line {
    size_t len;
    bool json, cut;
    char text[LOG_LINE_MAX];
};
static _Thread_local struct line the_line;

static void force(struct line *l, const char *text, size_t len)
{
    if (len > LOG_LINE_MAX - l->len)
        len = LOG_LINE_MAX - l->len;
    memcpy(l->text + l->len, text, len);
    l->len += len;
}

/* Adds all of the text or nothing; after one failure, nothing more. */
static void put(struct line *l, const char *text, size_t len)
{
    if (l->cut || len > LOG_LINE_MAX - LOG_LINE_RESERVE - l->len)
        l->cut = true;
    else
        force(l, text, len);
}

static void puts_(struct line *l, const char *text)
{
    put(l, text, strlen(text));
}

/* Characters that a terminal or a log reader could interpret: C0, C1, line separators,
 * marks that change the direction of writing, the byte order mark. */
static bool is_unsafe(uint32_t c)
{
    return c < 0x20 || (c >= 0x7f && c <= 0x9f) || (c >= 0x200b && c <= 0x200f) ||
           (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069) || c == 0xfeff;
}

/* One character, escaped as the format wants it. Returns the bytes used. */
static size_t put_char(struct line *l, const char *s, size_t len)
{
    static const char special[] = "\"\\\n\r\t", letters[] = "\"\\nrt";
    char esc[8];
    uint32_t c;
    size_t n = str_utf8(s, len, &c);

    if (n == 0) {
        if (l->json)
            puts_(l, "\\ufffd");
        else
            put(l, esc, (size_t)snprintf(esc, sizeof(esc), "\\x%02x", (unsigned char)*s));
        return 1;
    }
    const char *found = c && c < 0x80 ? strchr(special, (int)c) : NULL;

    if (found)
        put(l, (char[]){ '\\', letters[found - special] }, 2);
    else if (is_unsafe(c))
        put(l, esc, (size_t)snprintf(esc, sizeof(esc), "\\u%04x", c & 0xffffu));
    else
        put(l, s, n);
    return n;
}

static void put_quoted(struct line *l, const char *s)
{
    size_t len = strlen(s), n;

    puts_(l, "\"");
    if (l->cut)
        return;
    while (len > 0 && !l->cut) {
        n = put_char(l, s, len);
        s += n;
        len -= n;
    }
    force(l, "\"", 1);
}

/* The characters that logrus leaves unquoted too. */
static bool is_bare(const char *s)
{
    static const char bare[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                               "0123456789-._/@^+";

    return *s && s[strspn(s, bare)] == '\0';
}

static void put_string(struct line *l, const char *s)
{
    if (!l->json && is_bare(s))
        puts_(l, s);
    else
        put_quoted(l, s);
}

static void put_key(struct line *l, const char *key)
{
    if (l->json) {
        puts_(l, l->len > 1 ? "," : "");
        put_quoted(l, key);
        puts_(l, ":");
    } else {
        puts_(l, l->len ? " " : "");
        put_string(l, key);
        puts_(l, "=");
    }
}

static void put_value(struct line *l, const struct log_field *f)
{
    char text[CLOCK_HUMAN_SIZE];

    switch (f->kind) {
    case LOG_F_STR:
        if (f->str)
            put_string(l, f->str);
        else
            puts_(l, "null");
        break;
    case LOG_F_ERR:
        put_string(l, f->err ? f->err->msg : "");
        break;
    case LOG_F_U:
        put(l, text, (size_t)snprintf(text, sizeof(text), "%" PRIu64, f->u));
        break;
    case LOG_F_I:
        put(l, text, (size_t)snprintf(text, sizeof(text), "%" PRId64, f->i));
        break;
    case LOG_F_BOOL:
        puts_(l, f->u ? "true" : "false");
        break;
    case LOG_F_REASON:
        puts_(l, l->json ? "\"" : "");
        puts_(l, reason_name((enum reason)f->u));
        puts_(l, l->json ? "\"" : "");
        break;
    case LOG_F_NS:
        clock_human(f->u, text);
        put_string(l, text);
        break;
    }
}

static void put_field(struct line *l, const struct log_field *f)
{
    size_t start = l->len;

    if (l->cut)
        return;
    put_key(l, f->key);
    if (l->cut) {
        l->len = start; /* a key without a value would break the line */
        return;
    }
    size_t value = l->len;
    put_value(l, f);
    if (l->cut && l->len == value)
        l->len = start;
}

static void put_str_field(struct line *l, const char *key, const char *value)
{
    put_field(l, &(struct log_field)F_STR(key, value));
}

static void put_with_reason(struct line *l, const struct log_field *f)
{
    enum reason reason = f->kind == LOG_F_ERR && f->err ? err_reason(f->err) : REASON_NONE;

    if (f->kind != LOG_F_REASON || f->u != REASON_NONE)
        put_field(l, f);
    if (reason != REASON_NONE)
        put_str_field(l, LK_REASON, reason_name(reason));
}

static bool has_inner_id(const struct ctx *ctx, const struct ctx *outer)
{
    for (; ctx != outer; ctx = ctx->parent)
        if (ctx->id_key && str_eq(ctx->id_key, outer->id_key))
            return true;
    return false;
}

/* Outermost first; of two with the same key the inner one counts. Chains are short: walking them
 * again for each identifier costs less than a list of them on the stack. */
static void put_ids(struct line *l, const struct ctx *ctx)
{
    const struct ctx *done = NULL;

    while (ctx != done) {
        const struct ctx *c = ctx;

        while (c->parent != done)
            c = c->parent;
        if (c->id_key && !has_inner_id(ctx, c))
            put_str_field(l, c->id_key, c->id_value);
        done = c;
    }
}

static void finish(struct line *l)
{
    if (l->cut) {
        const char *mark = l->json ? ",\"truncated\":true" : " truncated=true";

        force(l, mark, strlen(mark));
    }
    if (l->json)
        force(l, "}", 1);
    force(l, "\n", 1);
}

/* True if a write would not block. Checked each time, because other processes may change the sink's
 * flags. */
static bool has_room(void)
{
    int flags = fcntl(sink.fd, F_GETFL);

    return flags >= 0 && (flags & O_NONBLOCK || fd_ready_now(sink.fd, POLLOUT));
}

/* In pieces that a pipe takes whole once it has room. */
static void emit(const struct line *l)
{
    size_t done = 0;

    while (done < l->len && has_room()) {
        size_t piece = l->len - done < PIPE_BUF ? l->len - done : PIPE_BUF;
        ssize_t n = write(sink.fd, l->text + done, piece);

        if (n <= 0 && errno != EINTR)
            break;
        done += n > 0 ? (size_t)n : 0;
    }
    if (done == l->len) {
        sink.torn = false;
        return;
    }
    sink.dropped++;
    if (done > 0)
        sink.torn = true;
}

static void compose(struct line *l, bool json, const struct ctx *ctx, enum log_level level,
                    const char *msg, const struct log_field *fields)
{
    char time[CLOCK_RFC3339_SIZE];

    l->len = 0;
    l->cut = false;
    l->json = json;
    clock_rfc3339(ctx && ctx->loop ? loop_wall(ctx->loop) : clock_wall(), time);
    if (l->json)
        puts_(l, "{");
    put_str_field(l, "time", time);
    put_str_field(l, "level", log_level_name(level));
    put_str_field(l, "msg", words_of(msg));
    put_ids(l, ctx);
    for (; fields && fields->key; fields++)
        put_with_reason(l, fields);
    finish(l);
}

static void to_sink(struct line *l)
{
    if (sink.torn) {
        /* Ends the broken line, so that this one is readable again. */
        if (l->len == LOG_LINE_MAX)
            l->len--;
        memmove(l->text + 1, l->text, l->len++);
        l->text[0] = '\n';
    }
    emit(l);
}

static bool tee_takes(enum log_level level)
{
    return second.fn && level >= second.level && level < LOG_OFF;
}

static void to_tee(const struct ctx *ctx, enum log_level level, const char *msg,
                   const struct log_field *fields)
{
    struct line *l = &the_line;

    compose(l, true, ctx, level, msg, fields);
    second.fn(second.arg, level, l->text, l->len);
}

static void count_failure(enum log_level level, const struct log_field *f)
{
    for (; f && f->key && level >= LOG_WARN; f++) {
        bool of_err = f->kind == LOG_F_ERR && f->err && level >= LOG_ERROR;

        if (of_err || (f->kind == LOG_F_REASON && f->u < REASON_COUNT)) {
            failures[of_err ? err_reason(f->err) : (enum reason)f->u]++;
            return;
        }
    }
}

void log_write(const struct ctx *ctx, enum log_level level, const char *msg,
               const struct log_field *fields)
{
    int saved = errno;

    count_failure(level, fields);
    if (level >= sink.level && level < LOG_OFF) {
        compose(&the_line, sink.format == LOG_JSON, ctx, level, msg, fields);
        to_sink(&the_line);
    }
    if (tee_takes(level))
        to_tee(ctx, level, msg, fields);
    errno = saved;
}

void log_each_line(const struct ctx *ctx, enum log_level level, const char *msg, char *text)
{
    for (char *rest = text, *line; (line = strsep(&rest, "\n"));)
        if (*line)
            log_write(ctx, level, msg, (const struct log_field[]){ F_STR("state", line), {} });
}

void log_journal(const struct ctx *ctx, const char *msg, const struct log_field *fields)
{
    int saved = errno;

    if (tee_takes(LOG_INFO))
        to_tee(ctx, LOG_INFO, msg, fields);
    errno = saved;
}

void log_aside(int fd, enum log_level level, const char *msg, const struct log_field *fields)
{
    int saved = errno;
    struct line *l = &the_line;

    if (level >= sink.level) {
        compose(l, sink.format == LOG_JSON, NULL, level, msg, fields);
        if (has_room())
            (void)!write(sink.fd, l->text, l->len);
    }
    if (fd >= 0) {
        compose(l, true, NULL, level, msg, fields);
        (void)!write(fd, l->text, l->len);
    }
    errno = saved;
}

void log_tee(enum log_level level, log_tee_fn *fn, void *arg)
{
    second.level = level;
    second.fn = fn;
    second.arg = arg;
}

void log_init(int fd, enum log_level level, enum log_format format)
{
    sink.fd = fd;
    sink.level = level;
    sink.format = format;
    sink.torn = false;
}

bool log_on(enum log_level level)
{
    return (level >= sink.level && level < LOG_OFF) || tee_takes(level);
}

uint64_t log_dropped(void)
{
    return sink.dropped;
}

uint64_t log_failures(enum reason reason)
{
    return (unsigned)reason < REASON_COUNT ? failures[reason] : 0;
}

static const char *const level_names[LOG_LEVEL_COUNT] = {
    [LOG_TRACE] = "trace", [LOG_DEBUG] = "debug", [LOG_INFO] = "info",
    [LOG_WARN] = "warn",   [LOG_ERROR] = "error", [LOG_OFF] = "off",
};

int log_level_parse(const char *name, enum log_level *ret)
{
    if (str_eq(name, "warning")) /* containerd's name for it */
        name = "warn";
    for (int i = 0; i < LOG_LEVEL_COUNT; i++) {
        if (str_eq(name, level_names[i])) {
            *ret = (enum log_level)i;
            return 0;
        }
    }
    return -EINVAL;
}

const char *log_level_name(enum log_level level)
{
    return (unsigned)level < LOG_LEVEL_COUNT ? level_names[level] : "?";
}

bool log_rate_ok(struct log_rate *r, uint64_t now_ns)
{
    /* in_window beyond burst means: the last line was refused. */
    bool refused_before = r->in_window > r->burst;

    if (r->in_window == 0 || now_ns - r->window_start_ns >= NS_PER_S) {
        r->window_start_ns = now_ns;
        r->in_window = 0;
    }
    if (r->in_window < r->burst) {
        if (!refused_before)
            r->lost = 0;
        r->in_window++;
        return true;
    }
    r->lost = refused_before ? r->lost + 1 : 1;
    r->in_window = r->burst + 1;
    return false;
}
