/* stream.c - what all streams share. */
#include "base/stream.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/fiber.h"
#include "base/str.h"
#include "base/stream_priv.h"
#include <stdlib.h>

#define COPY_BYTES (32 * 1024 - 1)   /* and the buffer's final NUL */
#define PAUSE_LEAST (10 * NS_PER_MS) /* shorter ones would only be more of them */

void stream_free(struct stream *s)
{
    if (s)
        s->ops->free(s);
}

int stream_read(struct ctx *ctx, struct stream *s, void *buf, size_t len, size_t *ret_n,
                struct err *err)
{
    return s->ops->read(ctx, s, buf, len, ret_n, err);
}

int stream_read_full(struct ctx *ctx, struct stream *s, void *buf, size_t len, struct err *err)
{
    for (size_t done = 0, n; done < len; done += n) {
        if (s->ops->read(ctx, s, (char *)buf + done, len - done, &n, err) < 0)
            return -1;
        if (n == 0)
            return err_set(err, ERR_UNAVAILABLE, "stream ended after %zu of %zu bytes", done, len);
    }
    return 0;
}

int stream_pause(struct ctx *ctx, struct stream *s, uint64_t ns, struct err *err)
{
    if (s->ops->quiet)
        s->ops->quiet(s);
    return fiber_sleep(ctx, ns > PAUSE_LEAST ? ns : PAUSE_LEAST, err);
}

int stream_write(struct ctx *ctx, struct stream *s, const void *buf, size_t len, size_t *ret_n,
                 struct err *err)
{
    return s->ops->write(ctx, s, buf, len, ret_n, err);
}

int stream_write_full(struct ctx *ctx, struct stream *s, const void *buf, size_t len,
                      struct err *err)
{
    for (size_t done = 0, n; done < len; done += n)
        if (s->ops->write(ctx, s, (const char *)buf + done, len - done, &n, err) < 0)
            return -1;
    return 0;
}

int stream_shutdown(struct stream *s, int how)
{
    return s->ops->shutdown(s, how);
}

int stream_take_turns(struct ctx *ctx, uint64_t *turn, uint64_t n, struct err *err)
{
    *turn += n;
    if (*turn < STREAM_TURN_BYTES)
        return 0;
    *turn = 0;
    fiber_yield(ctx->loop);
    return ctx_check(ctx, err);
}

static int flush(struct ctx *ctx, struct stream *to, struct sbuf *pending, uint64_t *bytes,
                 struct err *err)
{
    for (size_t n; pending->len > 0; *bytes += n) {
        if (stream_write(ctx, to, pending->data, pending->len, &n, err) < 0)
            return -1;
        sbuf_consume(pending, n);
    }
    sbuf_release(pending);
    return 0;
}

int stream_flush(struct ctx *ctx, struct stream *to, struct sbuf *pending, struct err *err)
{
    return flush(ctx, to, pending, &(uint64_t){ 0 }, err);
}

/* Up to most bytes (at most COPY_BYTES), as soon as there are any. 1: the end. The buffer lives
 * only between "there is something" and "it is written": an idle relay has none. */
static int copy_some(struct ctx *ctx, struct stream *from, struct stream *to, size_t most,
                     struct sbuf *pending, uint64_t *bytes, uint64_t *turn, char *side,
                     struct err *err)
{
    size_t n;

    *side = 'r';
    if (from->ops->ready(ctx, from, err) < 0 ||
        stream_read(ctx, from, sbuf_room(pending, COPY_BYTES), most, &n, err) < 0)
        return -1;
    if (n == 0)
        return 1;
    pending->len = n;
    *side = 'w';
    return flush(ctx, to, pending, bytes, err) < 0 ? -1 : stream_take_turns(ctx, turn, n, err);
}

/* 0: the end; else as stream_splice(). */
static int splice_and_pack(struct ctx *ctx, struct stream *from, struct stream *to,
                           struct sbuf *pending, uint64_t *bytes, char *side, struct err *err)
{
    uint64_t turn = 0;

    for (;;) {
        size_t most = 0;
        int r = stream_splice(ctx, from, to, bytes, &most, side, err);

        if (r != STREAM_PACK)
            return r;
        r = copy_some(ctx, from, to, most < COPY_BYTES ? most : COPY_BYTES, pending, bytes, &turn,
                      side, err);
        if (r != 0)
            return r < 0 ? -1 : 0;
    }
}

static int copy_by_buffer(struct ctx *ctx, struct stream *from, struct stream *to,
                          struct sbuf *pending, uint64_t *bytes, char *side, struct err *err)
{
    uint64_t turn = 0;
    int r;

    do
        r = copy_some(ctx, from, to, COPY_BYTES, pending, bytes, &turn, side, err);
    while (r == 0);
    return r < 0 ? -1 : 0;
}

static int copy(struct ctx *ctx, struct stream *from, struct stream *to, struct sbuf *pending,
                uint64_t *bytes, char *ret_side, struct err *err)
{
    char side = 'w';
    int r = flush(ctx, to, pending, bytes, err);

    if (r == 0)
        r = from->fd >= 0 && to->fd >= 0
                ? splice_and_pack(ctx, from, to, pending, bytes, &side, err)
                : STREAM_UNSPLICED;
    if (r == STREAM_UNSPLICED)
        r = copy_by_buffer(ctx, from, to, pending, bytes, &side, err);
    if (ret_side)
        *ret_side = side;
    if (pending->len == 0)
        sbuf_release(pending);
    return r;
}

int stream_copy(struct ctx *ctx, struct stream *from, struct stream *to, uint64_t *ret_bytes,
                char *ret_side, struct err *err)
{
    AUTO(sbuf_release) struct sbuf pending = { 0 };
    uint64_t unused;

    *(ret_bytes ? ret_bytes : &unused) = 0;
    return copy(ctx, from, to, &pending, ret_bytes ? ret_bytes : &unused, ret_side, err);
}

int stream_relay(struct ctx *ctx, struct stream *from, struct stream *to, struct sbuf *pending,
                 char *ret_side, struct err *err)
{
    return copy(ctx, from, to, pending, &(uint64_t){ 0 }, ret_side, err);
}
