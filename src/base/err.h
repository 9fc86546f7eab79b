/* err.h - an error as a value: code, errno, a message for people and a reason for programs.
 * Owned by the outermost caller, never NULL, no heap, nothing to free. Functions with a
 * `struct err *` as last argument return 0, or -1 with *err set. The codes are those of gRPC
 * and ttrpc, number for number. Messages are lower case, without full stop, name the object. */
#pragma once
#include "base/reason.h"

enum err_code {
    ERR_NONE = 0,
    ERR_CANCELLED = 1,
    ERR_UNKNOWN = 2,
    ERR_INVALID = 3,  /* InvalidArgument */
    ERR_DEADLINE = 4, /* DeadlineExceeded */
    ERR_NOT_FOUND = 5,
    ERR_EXISTS = 6, /* AlreadyExists */
    ERR_PERMISSION = 7,
    ERR_EXHAUSTED = 8, /* ResourceExhausted */
    ERR_STATE = 9,     /* FailedPrecondition */
    ERR_ABORTED = 10,
    ERR_RANGE = 11, /* OutOfRange */
    ERR_UNIMPLEMENTED = 12,
    ERR_INTERNAL = 13,
    ERR_UNAVAILABLE = 14,
    ERR_DATA_LOSS = 15,
    ERR_UNAUTHENTICATED = 16,
    ERR_COUNT
};

#define ERR_MSG_MAX 448 /* keeps struct err below 512 bytes on a fiber's stack */

struct err {
    enum err_code code;
    int sys; /* errno, 0 if none */
    char msg[ERR_MSG_MAX];
    enum reason reason; /* see err_reason() */
};

#define ERR_INIT                                                                                   \
    {                                                                                              \
        ERR_NONE, 0, "", REASON_NONE                                                               \
    }

/* All return -1, so that `return err_set(…)` reads well. A message that is too long keeps its
 * beginning and ends with "…". */
int err_set(struct err *err, enum err_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The same with the reason, for a failure that the operator may have to act on. */
int err_because(struct err *err, enum reason reason, enum err_code code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* "what: strerror(errnum)"; code and reason follow from errnum (ENOENT: not found, …). */
int err_sys(struct err *err, int errnum, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Puts what *we* were doing in front: "what: old message". Keeps code, errno and reason. */
int err_wrap(struct err *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The reason of an error that has none yet: the innermost one, nearest to the cause, stays. */
int err_blame(struct err *err, enum reason reason);
/* Both: err_blame, then err_wrap. */
int err_wrap_because(struct err *err, enum reason reason, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The reason, or the one that the code alone implies (a deadline: TIMED_OUT). */
enum reason err_reason(const struct err *err);

void err_clear(struct err *err);
/* "not found", "deadline exceeded", …; never NULL. */
const char *err_code_name(enum err_code code);
enum err_code err_code_from_errno(int errnum);
