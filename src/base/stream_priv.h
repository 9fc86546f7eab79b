/* stream_priv.h - between stream.c and stream_fd.c. */
#pragma once
#include "base/stream.h"

/* As stream_copy for two fds, inside the kernel. 1: these two cannot be spliced (what was moved
 * so far is in *bytes and complete). */
int stream_splice(struct ctx *ctx, struct stream *from, struct stream *to, uint64_t *bytes,
                  char *side, struct err *err);
