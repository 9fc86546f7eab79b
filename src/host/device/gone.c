#include "host/device/gone.h"
#include "base/ctx.h"
#include "base/err.h"

int gone_is_done(int r, const struct ctx *ctx, struct err *err)
{
    struct err ended = ERR_INIT;

    if (r == 0 || err->code != ERR_UNAVAILABLE || ctx_check(ctx, &ended) < 0)
        return r;
    err_clear(err);
    return 0;
}
