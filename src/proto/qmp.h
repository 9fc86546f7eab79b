/* qmp.h - QEMU's machine protocol: JSON objects out of a byte stream, and commands into one. Pure
 * codec; the client with its fibers is host/vmm/qemu. QEMU is not trusted: sizes and depth are
 * bounded, anything unexpected is an error, never a crash. Never waits.
 *
 *     struct qmp_reader r; qmp_reader_init(&r, QMP_MAX_MESSAGE);
 *     loop: bytes come in -> qmp_reader_feed(); then qmp_reader_next() until nothing is left. */
#pragma once
#include "base/err.h"
#include "base/json.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define QMP_MAX_MESSAGE (1u << 20)

/* Splits at the end of each outermost object; line ends and blanks between objects are skipped.
 * An error (invalid bytes between objects, too long, too deep, not JSON, not QMP) is final: every
 * later call repeats it. */
struct qmp_reader { /* private */
    struct sbuf buf;
    size_t max;                /* of one message */
    size_t scanned;            /* bytes of buf looked at */
    unsigned depth;            /* open brackets there */
    bool in_string, in_escape; /* of the scan */
    bool complete;             /* scanned ends behind a message */
    bool broken;
    struct err why; /* it is broken */
};

enum qmp_kind { QMP_GREETING, QMP_RETURN, QMP_ERROR, QMP_EVENT, QMP_KIND_COUNT };

struct qmp_message {
    enum qmp_kind kind;
    /* RETURN, ERROR: absent if QEMU could not read our command. */
    bool has_id;
    uint64_t id;
    /* RETURN: the value, any JSON. EVENT: "data", an object, or NULL. GREETING: "QMP". Borrowed
     * from root. */
    const json_t *data;
    const char *error_class, *error_desc; /* ERROR */
    const char *event;                    /* EVENT: "SHUTDOWN" … */
    uint32_t major, minor, micro;         /* GREETING: QEMU's version */
    json_t *root;                         /* owned */
};
void qmp_message_release(struct qmp_message *m);
AUTO_VALUE(struct qmp_message, qmp_message_release);

void qmp_reader_init(struct qmp_reader *r, size_t max);
void qmp_reader_release(struct qmp_reader *r);
AUTO_VALUE(struct qmp_reader, qmp_reader_release);
/* Copies data. ERR_INVALID or ERR_EXHAUSTED at once when the bytes cannot become a message. */
int qmp_reader_feed(struct qmp_reader *r, const void *data, size_t len, struct err *err);
/* *ret_have: whether *ret is a message, which the caller releases; else more bytes are needed. */
int qmp_reader_next(struct qmp_reader *r, bool *ret_have, struct qmp_message *ret, struct err *err);
/* Whether the stream may end here: no half message is buffered. */
bool qmp_reader_at_boundary(const struct qmp_reader *r);

/* Appends {"execute":name,"arguments":args,"id":id} and a line end. args: an object, or NULL. */
void qmp_command(const char *name, const json_t *args, uint64_t id, struct sbuf *out);
/* -1: an ERROR as err: "NAME: desc"; DeviceNotFound is ERR_NOT_FOUND, CommandNotFound
 * ERR_UNIMPLEMENTED, everything else ERR_UNKNOWN. 0 for other kinds. */
int qmp_message_check(const struct qmp_message *m, const char *name, struct err *err);
