/* log.h - structured logs: a constant message, data in fields, identifiers from ctx.
 *     log_info(ctx, "disk attached", F_STR(LK_HOST_PATH, p), F_U(LK_LUN, n));
 * logfmt or JSON lines (time, level, msg, fields), one write(2) each (two beyond 4 KiB) to one fd.
 * ctx may be NULL.
 * A full or broken sink drops the line and counts it; it never waits. */
#pragma once
#include "base/log_keys.h"
#include "base/reason.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ctx;
struct err;

enum log_level { LOG_TRACE, LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR, LOG_OFF, LOG_LEVEL_COUNT };
enum log_format { LOG_LOGFMT, LOG_JSON };

struct log_field {
    const char *key; /* NULL ends the list */
    enum { LOG_F_STR, LOG_F_U, LOG_F_I, LOG_F_BOOL, LOG_F_ERR, LOG_F_NS, LOG_F_REASON } kind;
    union {
        const char *str;
        uint64_t u;
        int64_t i;
        const struct err *err;
    };
};

#define LOG_FIELD(k, kind_, member, v)                                                             \
    {                                                                                              \
        .key = (k), .kind = (kind_), .member = (v)                                                 \
    }
#define F_STR(k, v) LOG_FIELD(k, LOG_F_STR, str, v)
#define F_U(k, v) LOG_FIELD(k, LOG_F_U, u, v)
#define F_I(k, v) LOG_FIELD(k, LOG_F_I, i, v)
#define F_BOOL(k, v) LOG_FIELD(k, LOG_F_BOOL, u, v)
#define F_ERR(e) LOG_FIELD(LK_ERROR, LOG_F_ERR, err, e)      /* and "reason", if it has one */
#define F_REASON(r) LOG_FIELD(LK_REASON, LOG_F_REASON, u, r) /* of a failure without an err */
#define F_NS(k, v) LOG_FIELD(k, LOG_F_NS, u, v)              /* a duration */

#define LOG_AT(ctx, level, msg, ...)                                                               \
    do {                                                                                           \
        if (log_on(level))                                                                         \
            log_write((ctx), (level), (msg),                                                       \
                      (const struct log_field[]){ __VA_ARGS__ __VA_OPT__(, ){ .key = NULL } });    \
    } while (0)
#define log_trace(ctx, msg, ...) LOG_AT(ctx, LOG_TRACE, msg __VA_OPT__(, ) __VA_ARGS__)
#define log_debug(ctx, msg, ...) LOG_AT(ctx, LOG_DEBUG, msg __VA_OPT__(, ) __VA_ARGS__)
#define log_info(ctx, msg, ...) LOG_AT(ctx, LOG_INFO, msg __VA_OPT__(, ) __VA_ARGS__)
#define log_warn(ctx, msg, ...) LOG_AT(ctx, LOG_WARN, msg __VA_OPT__(, ) __VA_ARGS__)
#define log_error(ctx, msg, ...) LOG_AT(ctx, LOG_ERROR, msg __VA_OPT__(, ) __VA_ARGS__)

/* Before log_init: logfmt on stderr at LOG_WARN. Borrows fd. */
void log_init(int fd, enum log_level level, enum log_format format);
bool log_on(enum log_level level);
void log_write(const struct ctx *ctx, enum log_level level, const char *msg,
               const struct log_field *fields);
/* Logs each line of a text, in the field "state". Modifies the text. */
void log_each_line(const struct ctx *ctx, enum log_level level, const char *msg, char *text);
uint64_t log_dropped(void);
/* Failures so far: lines at LOG_ERROR with an error, and from LOG_WARN on with an F_REASON. Each is
 * logged once, where no caller can act on it any more. REASON_NONE counts those without a reason.
 */
uint64_t log_failures(enum reason reason);

/* A second reader: gets every line at `level` or above, as JSON with its newline, whatever the
 * sink's level is. fn may neither wait nor log. NULL ends it. */
typedef void log_tee_fn(void *arg, enum log_level level, const char *line, size_t len);
void log_tee(enum log_level level, log_tee_fn *fn, void *arg);
/* For that reader alone, at LOG_INFO: what the sink need not have, such as events. */
void log_journal(const struct ctx *ctx, const char *msg, const struct log_field *fields);
/* For another thread than the loop's, and for signal handlers: one line to the sink and, as JSON,
 * to fd (-1: nowhere). Takes neither memory nor locks. */
void log_aside(int fd, enum log_level level, const char *msg, const struct log_field *fields);
/* "trace" … "error", "off". 0 or -EINVAL. */
int log_level_parse(const char *name, enum log_level *ret);
const char *log_level_name(enum log_level level);

/* At most `burst` lines per second and source; the next allowed line reports how many were lost. */
struct log_rate {
    unsigned burst;
    uint64_t window_start_ns;
    unsigned in_window;
    uint64_t lost; /* since the last allowed line */
};
bool log_rate_ok(struct log_rate *r, uint64_t now_ns);
