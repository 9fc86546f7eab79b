/* gone.h - taking back from a VM or a guest that may have ended meanwhile. */
#pragma once

struct ctx;
struct err;

/* A peer that is gone has nothing left to undo: r, what the call to it returned, becomes 0 and *err
 * is cleared if it says ERR_UNAVAILABLE, unless it is ctx that has ended. */
int gone_is_done(int r, const struct ctx *ctx, struct err *err);
