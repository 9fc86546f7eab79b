/* stream.h - a byte stream that fibers read and write: a socket, pipe, terminal or file by its
 * fd; a pair in memory is tests/fixture/stream_pair.h. Reading and writing wait until ctx ends.
 * One reader and one writer at a time; no fiber may use it when it is freed. */
#pragma once
#include "base/mem.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ctx;
struct err;
struct loop;
struct sbuf;
struct stream;

struct stream_ops {
    int (*read)(struct ctx *ctx, struct stream *s, void *buf, size_t len, size_t *ret_n,
                struct err *err);
    int (*write)(struct ctx *ctx, struct stream *s, const void *buf, size_t len, size_t *ret_n,
                 struct err *err);
    /* Until a read would give something: data, end or error. */
    int (*ready)(struct ctx *ctx, struct stream *s, struct err *err);
    int (*shutdown)(struct stream *s, int how); /* -errno */
    void (*quiet)(struct stream *s);            /* stream_pause; NULL: not needed */
    void (*free)(struct stream *s);
};
struct stream {
    const struct stream_ops *ops;
    int fd; /* -1 in memory */
};

/* Takes fd and makes it non-blocking. Note that O_NONBLOCK belongs to the open file: use
 * stream_reopen for descriptors shared with others (our own stdin). */
struct stream *stream_from_fd(struct loop *loop, int fd);
/* A second open of a borrowed pipe or terminal through /proc/self/fd, so that its flags can be
 * changed; sockets and files are dup()ed. NULL with errno. */
struct stream *stream_reopen(struct loop *loop, int fd, int flags);
void stream_free(struct stream *s);
AUTO_DEFINE(struct stream *, stream_free);

/* At least one byte, or *ret_n = 0 at the end. A reset peer is ERR_UNAVAILABLE. */
int stream_read(struct ctx *ctx, struct stream *s, void *buf, size_t len, size_t *ret_n,
                struct err *err);
/* ERR_UNAVAILABLE if the stream ends before len. */
int stream_read_full(struct ctx *ctx, struct stream *s, void *buf, size_t len, struct err *err);
/* For the reader of a peer that exceeds its rate: sleeps, and data that arrives meanwhile does not
 * wake the loop. At least 10 ms. */
int stream_pause(struct ctx *ctx, struct stream *s, uint64_t ns, struct err *err);
int stream_write(struct ctx *ctx, struct stream *s, const void *buf, size_t len, size_t *ret_n,
                 struct err *err);
int stream_write_full(struct ctx *ctx, struct stream *s, const void *buf, size_t len,
                      struct err *err);
/* SHUT_WR signals the end to the peer; SHUT_RD and SHUT_RDWR also end a local fiber's wait in read,
 * so that the stream can be freed. A pipe's or terminal's end is simply closed. 0 or -errno. Never
 * waits. */
int stream_shutdown(struct stream *s, int how);

/* Copies until from's end (0), an error on from (-1, *ret_side = 'r') or on to ('w'). With two
 * fds the bytes are spliced and never enter our memory; else through one small buffer that
 * exists only while bytes flow. *ret_bytes (may be NULL) counts what was written, meanwhile too. */
int stream_copy(struct ctx *ctx, struct stream *from, struct stream *to, uint64_t *ret_bytes,
                char *ret_side, struct err *err);
/* For a pipe whose reader may come late: what a copy moves into it shares pages, so that it holds
 * as many bytes as if they were written. Of what is spliced, each packet takes a page, however
 * small it is. */
void stream_pack(struct stream *to);
/* The same for a copy that can be stopped at any wait and continued later, by another program too:
 * bytes that were read and are not written yet are in *pending, and are written first. An idle
 * relay has none. After an error, *pending has what was not written; caller releases. */
int stream_relay(struct ctx *ctx, struct stream *from, struct stream *to, struct sbuf *pending,
                 char *ret_side, struct err *err);
/* Writes all of *pending and releases it; after an error it has the rest. */
int stream_flush(struct ctx *ctx, struct stream *to, struct sbuf *pending, struct err *err);
