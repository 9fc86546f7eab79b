/* stream.c - what all streams share. */
#include "base/stream.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/fiber.h"
#include "base/stream_priv.h"
#include <stdlib.h>

#define COPY_BUFFER_BYTES (32 * 1024)
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

/* The buffer lives only between "there is something" and "it is written": an idle relay has
 * none. */
static int copy_by_buffer(struct ctx *ctx, struct stream *from, struct stream *to, uint64_t *bytes,
                          char *side, struct err *err)
{
    uint64_t turn = 0;

    for (size_t n;;) {
        *side = 'r';
        if (from->ops->ready(ctx, from, err) < 0)
            return -1;

        AUTO_FREE char *buf = mem_alloc(COPY_BUFFER_BYTES);

        if (stream_read(ctx, from, buf, COPY_BUFFER_BYTES, &n, err) < 0)
            return -1;
        if (n == 0)
            return 0;
        *side = 'w';
        if (stream_write_full(ctx, to, buf, n, err) < 0)
            return -1;
        *bytes += n;
        if (stream_take_turns(ctx, &turn, n, err) < 0)
            return -1;
    }
}

int stream_copy(struct ctx *ctx, struct stream *from, struct stream *to, uint64_t *ret_bytes,
                char *ret_side, struct err *err)
{
    uint64_t unused, *bytes = ret_bytes ? ret_bytes : &unused;
    char side = 'r';
    int r = 1;

    *bytes = 0;
    if (from->fd >= 0 && to->fd >= 0)
        r = stream_splice(ctx, from, to, bytes, &side, err);
    if (r > 0) /* not to be spliced */
        r = copy_by_buffer(ctx, from, to, bytes, &side, err);
    if (ret_side)
        *ret_side = side;
    return r;
}
