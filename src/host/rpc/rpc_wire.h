/* rpc_wire.h - ttrpc frames over a stream, shared by server and client. One fiber reads, through a
 * small buffer on its stack. Outgoing frames wait in a queue and are written completely and in
 * order, by the first fiber that flushes: a connection has no writer fiber, and an idle one holds
 * no buffers. Only for this room. */
#pragma once
#include "base/fiber.h"
#include "base/str.h"
#include "proto/ttrpc.h"

struct ctx;
struct err;
struct stream;

#define RPC_OUT_SOFT (1u << 20) /* bytes in the queue; above this, no new request is started */
#define RPC_OUT_MAX (16u << 20) /* above this, the connection is closed */
#define RPC_IN_BYTES 256        /* most requests fit, so that one read(2) gets one */

struct rpc_wire {
    struct stream *stream; /* owns */
    struct list out;       /* struct rpc_frame */
    size_t out_bytes;
    bool writing;      /* a fiber writes, or is about to */
    bool broken;       /* nothing more can be written */
    bool reads_on;     /* after a failed write, still read what the peer sent before it closed */
    struct waitq room; /* out_bytes fell, or broken */
};
/* Takes stream. */
void rpc_wire_init(struct rpc_wire *w, struct stream *stream);
/* No fiber may be reading or writing. */
void rpc_wire_release(struct rpc_wire *w);
/* Ends all reading and writing. Repeatable; never waits. */
void rpc_wire_cut(struct rpc_wire *w);

/* A buffer that becomes a frame: room for the header is kept at its beginning. */
void rpc_frame_begin(struct sbuf *b);
/* Takes the content of b. 0, or -EMSGSIZE, -ENOBUFS (the queue is full), -EPIPE (broken); b is
 * empty in all cases. Never waits: call flush, or drain in a fiber. */
int rpc_wire_put(struct rpc_wire *w, struct sbuf *b, uint32_t stream, uint8_t type, uint8_t flags);
/* Writes until the queue is empty, unless another fiber does already. ctx must be the connection's,
 * not a request's, since a frame must be written completely. An error breaks the wire. */
int rpc_wire_flush(struct ctx *ctx, struct rpc_wire *w, struct err *err);
/* The same for a caller that has set `writing`. */
int rpc_wire_drain(struct ctx *ctx, struct rpc_wire *w, struct err *err);

/* The reader's side. */
struct rpc_in {
    struct stream *stream; /* borrows */
    unsigned start, end;
    bool between; /* waits for the first byte of a frame, or has not begun to decode it */
    uint8_t buf[RPC_IN_BYTES];
};
/* Until there is a byte of the next frame: 1; 0 if the stream has ended, -1. */
int rpc_in_wait(struct ctx *ctx, struct rpc_in *in, struct err *err);
/* 1 and a header, 0 if the stream ended between two frames, -1. */
int rpc_in_header(struct ctx *ctx, struct rpc_in *in, struct ttrpc_header *ret, struct err *err);
int rpc_in_read(struct ctx *ctx, struct rpc_in *in, void *data, size_t len, struct err *err);
/* Reads len bytes and drops them; other fibers run in between. */
int rpc_in_skip(struct ctx *ctx, struct rpc_in *in, size_t len, struct err *err);
