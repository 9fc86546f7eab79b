/* rpc_wire.c - frames in and out. */
#include "host/rpc/rpc_wire.h"
#include "base/ctx.h"
#include "base/stream.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define SKIP_BYTES (64u * 1024)

struct rpc_frame {
    struct list node;
    struct sbuf bytes;
};

void rpc_wire_init(struct rpc_wire *w, struct stream *stream)
{
    *w = (struct rpc_wire){ .stream = stream };
    list_init(&w->out);
    waitq_init(&w->room);
}

static void frame_free(struct rpc_wire *w, struct rpc_frame *f)
{
    list_remove(&f->node);
    w->out_bytes -= f->bytes.len;
    sbuf_release(&f->bytes);
    free(f);
}

void rpc_wire_release(struct rpc_wire *w)
{
    while (!list_empty(&w->out))
        frame_free(w, LIST_FIRST(&w->out, struct rpc_frame, node));
    stream_free(TAKE_PTR(w->stream));
}

void rpc_wire_cut(struct rpc_wire *w)
{
    w->broken = true;
    (void)stream_shutdown(w->stream, SHUT_RDWR); /* fails if the peer closed it first */
    waitq_wake_all(&w->room);
}

/* --- out --- */

void rpc_frame_begin(struct sbuf *b)
{
    static const char header[TTRPC_HEADER_BYTES];

    sbuf_add(b, header, sizeof(header));
}

int rpc_wire_put(struct rpc_wire *w, struct sbuf *b, uint32_t stream, uint8_t type, uint8_t flags)
{
    size_t body = b->len - TTRPC_HEADER_BYTES;
    int refused = w->broken                             ? -EPIPE
                  : body > TTRPC_BODY_MAX               ? -EMSGSIZE
                  : w->out_bytes + b->len > RPC_OUT_MAX ? -ENOBUFS
                                                        : 0;

    if (refused) {
        sbuf_release(b);
        return refused;
    }

    struct rpc_frame *f = mem_new(struct rpc_frame);

    ttrpc_header_encode(&(struct ttrpc_header){ (uint32_t)body, stream, type, flags },
                        (uint8_t *)b->data);
    f->bytes = *b;
    *b = (struct sbuf){ 0 };
    list_append(&w->out, &f->node);
    w->out_bytes += f->bytes.len;
    return 0;
}

int rpc_wire_drain(struct ctx *ctx, struct rpc_wire *w, struct err *err)
{
    int r = 0;

    while (r == 0 && !w->broken && !list_empty(&w->out)) {
        struct rpc_frame *f = LIST_FIRST(&w->out, struct rpc_frame, node);

        r = stream_write_full(ctx, w->stream, f->bytes.data, f->bytes.len, err);
        frame_free(w, f);
        waitq_wake_all(&w->room);
    }
    if (r < 0 && w->reads_on)
        w->broken = true;
    else if (r < 0)
        rpc_wire_cut(w);
    w->writing = false;
    return r;
}

int rpc_wire_flush(struct ctx *ctx, struct rpc_wire *w, struct err *err)
{
    if (w->writing)
        return 0;
    w->writing = true;
    return rpc_wire_drain(ctx, w, err);
}

/* --- in --- */

static size_t take(struct rpc_in *in, void *data, size_t len)
{
    size_t n = in->end - in->start;

    if (n > len)
        n = len;
    memcpy(data, in->buf + in->start, n);
    in->start += (unsigned)n;
    return n;
}

static int refill(struct ctx *ctx, struct rpc_in *in, size_t *ret_n, struct err *err)
{
    if (stream_read(ctx, in->stream, in->buf, sizeof(in->buf), ret_n, err) < 0)
        return -1;
    in->start = 0;
    in->end = (unsigned)*ret_n;
    return 0;
}

int rpc_in_read(struct ctx *ctx, struct rpc_in *in, void *data, size_t len, struct err *err)
{
    size_t done = take(in, data, len), n;

    while (done < len) {
        bool direct = len - done >= sizeof(in->buf);
        char *to = (char *)data + done;

        if ((direct ? stream_read(ctx, in->stream, to, len - done, &n, err)
                    : refill(ctx, in, &n, err)) < 0)
            return -1;
        if (n == 0)
            return err_set(err, ERR_UNAVAILABLE, "the connection closed in the middle of a frame");
        done += direct ? n : take(in, to, len - done);
    }
    return 0;
}

int rpc_in_wait(struct ctx *ctx, struct rpc_in *in, struct err *err)
{
    size_t n = 1;

    in->between = true;
    if (in->start == in->end && refill(ctx, in, &n, err) < 0)
        return -1;
    return n > 0;
}

int rpc_in_header(struct ctx *ctx, struct rpc_in *in, struct ttrpc_header *ret, struct err *err)
{
    uint8_t bytes[TTRPC_HEADER_BYTES];

    int r = rpc_in_wait(ctx, in, err);

    in->between = false;
    if (r <= 0)
        return r;
    if (rpc_in_read(ctx, in, bytes, sizeof(bytes), err) < 0)
        return -1;
    ttrpc_header_decode(bytes, ret);
    return 1;
}

int rpc_in_skip(struct ctx *ctx, struct rpc_in *in, size_t len, struct err *err)
{
    AUTO_FREE char *away = mem_alloc(len < SKIP_BYTES ? len : SKIP_BYTES);

    for (size_t n; len > 0; len -= n) {
        n = len < SKIP_BYTES ? len : SKIP_BYTES;
        if (rpc_in_read(ctx, in, away, n, err) < 0)
            return -1;
        fiber_yield(ctx->loop);
    }
    return 0;
}
