/* stream_priv.h - between stream.c and stream_fd.c. */
#pragma once
#include "base/stream.h"

/* As stream_copy for two fds, inside the kernel. STREAM_UNSPLICED: these two cannot be spliced;
 * STREAM_PACK: copy up to *ret_pack bytes, which fit, by a buffer, then call it again
 * (stream_pack). What was moved so far is in *bytes and complete. */
enum { STREAM_UNSPLICED = 1, STREAM_PACK };
int stream_splice(struct ctx *ctx, struct stream *from, struct stream *to, uint64_t *bytes,
                  size_t *ret_pack, char *side, struct err *err);

/* A copy between two sides that are always ready never waits: after each STREAM_TURN_BYTES the
 * others get their turn, and ctx is looked at. *turn counts the bytes since. */
#define STREAM_TURN_BYTES (1024 * 1024)
int stream_take_turns(struct ctx *ctx, uint64_t *turn, uint64_t n, struct err *err);
