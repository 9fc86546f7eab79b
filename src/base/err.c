#include "base/err.h"
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static const char ellipsis[] = "\xe2\x80\xa6"; /* U+2026 */

static bool is_continuation(char c)
{
    return ((unsigned char)c & 0xc0) == 0x80;
}

/* Ends a message that did not fit. Never cuts a UTF-8 sequence in two. */
static void mark_truncated(char *msg)
{
    size_t cut = ERR_MSG_MAX - sizeof(ellipsis);

    while (cut > 0 && is_continuation(msg[cut]))
        cut--;
    memcpy(msg + cut, ellipsis, sizeof(ellipsis));
}

/* Appends at *len; *len grows beyond ERR_MSG_MAX when the text does not fit. */
static void append_v(char *msg, size_t *len, const char *fmt, va_list ap)
{
    size_t room = *len < ERR_MSG_MAX ? ERR_MSG_MAX - *len : 0;
    int n = vsnprintf(room ? msg + *len : NULL, room, fmt, ap);

    if (n > 0)
        *len += (size_t)n;
}

__attribute__((format(printf, 3, 4))) static void append(char *msg, size_t *len, const char *fmt,
                                                         ...)
{
    va_list ap;

    va_start(ap, fmt);
    append_v(msg, len, fmt, ap);
    va_end(ap);
}

int err_set(struct err *err, enum err_code code, const char *fmt, ...)
{
    /* Built aside: the arguments may point into err->msg. */
    char msg[ERR_MSG_MAX] = "";
    size_t len = 0;
    va_list ap;

    va_start(ap, fmt);
    append_v(msg, &len, fmt, ap);
    va_end(ap);
    if (len >= ERR_MSG_MAX)
        mark_truncated(msg);
    err->code = code;
    err->sys = 0;
    memcpy(err->msg, msg, sizeof(msg));
    return -1;
}

int err_sys(struct err *err, int errnum, const char *fmt, ...)
{
    char msg[ERR_MSG_MAX] = "", reason[64];
    size_t len = 0;
    va_list ap;

    if (errnum < 0) /* leaf code returns -errno; either sign means the same here */
        errnum = -errnum;
    va_start(ap, fmt);
    append_v(msg, &len, fmt, ap);
    va_end(ap);
    append(msg, &len, ": %s", strerror_r(errnum, reason, sizeof(reason)));
    if (len >= ERR_MSG_MAX)
        mark_truncated(msg);
    err->code = err_code_from_errno(errnum);
    err->sys = errnum;
    memcpy(err->msg, msg, sizeof(msg));
    return -1;
}

int err_wrap(struct err *err, const char *fmt, ...)
{
    char msg[ERR_MSG_MAX] = "";
    size_t len = 0;
    va_list ap;

    va_start(ap, fmt);
    append_v(msg, &len, fmt, ap);
    va_end(ap);
    append(msg, &len, ": %s", err->msg);
    if (len >= ERR_MSG_MAX)
        mark_truncated(msg);
    memcpy(err->msg, msg, sizeof(msg));
    return -1;
}

void err_clear(struct err *err)
{
    err->code = ERR_NONE;
    err->sys = 0;
    err->msg[0] = '\0';
}

const char *err_code_name(enum err_code code)
{
    static const char *const names[ERR_COUNT] = {
        [ERR_NONE] = "ok",
        [ERR_CANCELLED] = "cancelled",
        [ERR_UNKNOWN] = "unknown",
        [ERR_INVALID] = "invalid argument",
        [ERR_DEADLINE] = "deadline exceeded",
        [ERR_NOT_FOUND] = "not found",
        [ERR_EXISTS] = "already exists",
        [ERR_PERMISSION] = "permission denied",
        [ERR_EXHAUSTED] = "resource exhausted",
        [ERR_STATE] = "failed precondition",
        [ERR_ABORTED] = "aborted",
        [ERR_RANGE] = "out of range",
        [ERR_UNIMPLEMENTED] = "unimplemented",
        [ERR_INTERNAL] = "internal",
        [ERR_UNAVAILABLE] = "unavailable",
        [ERR_DATA_LOSS] = "data loss",
        [ERR_UNAUTHENTICATED] = "unauthenticated",
    };

    if ((unsigned)code >= ERR_COUNT)
        return "invalid code";
    return names[code];
}

enum err_code err_code_from_errno(int errnum)
{
    switch (errnum < 0 ? -errnum : errnum) {
    case 0:
        return ERR_UNKNOWN; /* an error without a reason is still an error */
    case ENOENT:
    case ESRCH:
        return ERR_NOT_FOUND;
    case EEXIST:
        return ERR_EXISTS;
    case EACCES:
    case EPERM:
        return ERR_PERMISSION;
    case EINVAL:
        return ERR_INVALID;
    case ENOSPC:
    case EDQUOT:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case EFBIG:
        return ERR_EXHAUSTED;
    case ETIMEDOUT:
        return ERR_DEADLINE;
    case EPIPE:
    case ECONNRESET:
    case ECONNREFUSED:
    case ENOTCONN:
    case EIO:
        return ERR_UNAVAILABLE;
    case ENOSYS:
    case EOPNOTSUPP:
        return ERR_UNIMPLEMENTED;
    case EBUSY:
        return ERR_STATE;
    case ECANCELED:
        return ERR_CANCELLED;
    default:
        return ERR_UNKNOWN;
    }
}
