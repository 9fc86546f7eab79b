#include "base/err.h"
#include "base/words.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "what" or "what: why". Built aside: the arguments may point into err->msg. A text that does not
 * fit ends with an ellipsis, which never cuts a UTF-8 sequence in two. */
__attribute__((format(printf, 3, 0))) static void compose(struct err *err, const char *why,
                                                          const char *fmt, va_list ap)
{
    static const char ellipsis[] = "\xe2\x80\xa6"; /* U+2026 */
    char msg[ERR_MSG_MAX] = "";
    int n = vsnprintf(msg, sizeof(msg), words_of(fmt), ap);
    size_t len = n > 0 ? (size_t)n : 0, cut = sizeof(msg) - sizeof(ellipsis);

    if (why && len < sizeof(msg))
        len += (size_t)snprintf(msg + len, sizeof(msg) - len, ": %s", why);
    if (len >= sizeof(msg)) {
        while (cut > 0 && ((unsigned char)msg[cut] & 0xc0) == 0x80)
            cut--;
        memcpy(msg + cut, ellipsis, sizeof(ellipsis));
    }
    memcpy(err->msg, msg, sizeof(msg));
}

int err_set(struct err *err, enum err_code code, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    compose(err, NULL, fmt, ap);
    va_end(ap);
    err->code = code;
    err->sys = 0;
    err->reason = REASON_NONE;
    return -1;
}

int err_because(struct err *err, enum reason reason, enum err_code code, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    compose(err, NULL, fmt, ap);
    va_end(ap);
    err->code = code;
    err->sys = 0;
    err->reason = reason;
    return -1;
}

int err_sys(struct err *err, int errnum, const char *fmt, ...)
{
    char text[64];
    va_list ap;

    errnum = abs(errnum); /* leaf code returns -errno; either sign means the same here */
    va_start(ap, fmt);
    compose(err, strerror_r(errnum, text, sizeof(text)), fmt, ap);
    va_end(ap);
    err->code = err_code_from_errno(errnum);
    err->sys = errnum;
    err->reason = reason_from_errno(errnum);
    return -1;
}

int err_wrap(struct err *err, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    compose(err, err->msg, fmt, ap);
    va_end(ap);
    return -1;
}

int err_blame(struct err *err, enum reason reason)
{
    if (err->reason == REASON_NONE)
        err->reason = reason;
    return -1;
}

int err_wrap_because(struct err *err, enum reason reason, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    compose(err, err->msg, fmt, ap);
    va_end(ap);
    return err_blame(err, reason);
}

enum reason err_reason(const struct err *err)
{
    static const enum reason by_code[ERR_COUNT] = {
        [ERR_DEADLINE] = REASON_TIMED_OUT,
        [ERR_CANCELLED] = REASON_CANCELLED,
        [ERR_UNAVAILABLE] = REASON_UNAVAILABLE,
    };

    if (err->reason == REASON_NONE && (unsigned)err->code < ERR_COUNT)
        return by_code[err->code];
    return err->reason;
}

void err_clear(struct err *err)
{
    *err = (struct err)ERR_INIT;
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
    static const struct {
        int errnum;
        enum err_code code;
    } codes[] = { { ENOENT, ERR_NOT_FOUND },
                  { ESRCH, ERR_NOT_FOUND },
                  { EEXIST, ERR_EXISTS },
                  { EACCES, ERR_PERMISSION },
                  { EPERM, ERR_PERMISSION },
                  { EINVAL, ERR_INVALID },
                  { ENOSPC, ERR_EXHAUSTED },
                  { EDQUOT, ERR_EXHAUSTED },
                  { EMFILE, ERR_EXHAUSTED },
                  { ENFILE, ERR_EXHAUSTED },
                  { ENOMEM, ERR_EXHAUSTED },
                  { EFBIG, ERR_EXHAUSTED },
                  { ETIMEDOUT, ERR_DEADLINE },
                  { EPIPE, ERR_UNAVAILABLE },
                  { ECONNRESET, ERR_UNAVAILABLE },
                  { ECONNREFUSED, ERR_UNAVAILABLE },
                  { ENOTCONN, ERR_UNAVAILABLE },
                  { EIO, ERR_UNAVAILABLE },
                  { ENOSYS, ERR_UNIMPLEMENTED },
                  { EOPNOTSUPP, ERR_UNIMPLEMENTED },
                  { EBUSY, ERR_STATE },
                  { ECANCELED, ERR_CANCELLED } };

    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++)
        if (codes[i].errnum == abs(errnum))
            return codes[i].code;
    return ERR_UNKNOWN; /* also for 0: an error without a reason is still an error */
}
