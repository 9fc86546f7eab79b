/* qmp_client.h - speaking QMP with one QEMU over a stream. Many commands may be in flight,
 * distinguished by their ids; a reader and a writer fiber move the bytes. QEMU may be hostile:
 * silence ends with the caller's deadline; rubbish, a huge message or the end of the stream fail
 * every call, present and later, with ERR_UNAVAILABLE.
 *
 * Life: new -> connect -> call … -> close -> join -> free. close never waits. */
#pragma once
#include "base/json.h"
#include "base/mem.h"
#include <stdint.h>

struct ctx;
struct err;
struct qmp_client;
struct qmp_message;
struct saved;
struct stream;

struct qmp_client_opts {
    const struct ctx *life; /* outlives the client: its fibers wait and log with it */
    struct stream *stream;  /* taken */
    /* Each event, on the reader's fiber; may not wait. The message is borrowed. May be NULL. */
    void (*on_event)(void *arg, const struct qmp_message *event);
    void *arg;
};

struct qmp_client *qmp_client_new(const struct qmp_client_opts *opts);
/* Waits for the greeting, then leaves the negotiation mode. ret: QEMU's version, "10.0.1". */
int qmp_client_connect(struct ctx *ctx, struct qmp_client *c, char ret[64], struct err *err);
/* Waits for the answer. args: an object, taken in any case; NULL: the command has none. An error
 * that QEMU answers is reported in its words. ret (may be NULL) is released by the caller. */
int qmp_client_call(struct ctx *ctx, struct qmp_client *c, const char *name, json_t *args,
                    struct qmp_message *ret, struct err *err);
/* The same with a file descriptor (borrowed; -1: none) in front of the command, for add-fd and
 * getfd. QEMU keeps only the last one that came, so such calls go one after the other: this waits
 * until the one before was answered, even if its caller does not wait for the answer any more. */
int qmp_client_call_fd(struct ctx *ctx, struct qmp_client *c, const char *name, int fd,
                       json_t *args, struct qmp_message *ret, struct err *err);
/* For saved.h: one that has connected, and no call is under way. Of opts, which are those of new,
 * the stream is not looked at. */
void qmp_client_saved(struct saved *s, uint32_t field, const struct qmp_client_opts *opts,
                      struct qmp_client **c);
/* why: static text. Repeatable; the first reason stays. */
void qmp_client_close(struct qmp_client *c, const char *why);
/* Until the stream has ended and all that came was handled. Does not close by itself. */
int qmp_client_join(struct ctx *ctx, struct qmp_client *c, struct err *err);
/* Only after join. */
void qmp_client_free(struct qmp_client *c);
AUTO_DEFINE(struct qmp_client *, qmp_client_free);
