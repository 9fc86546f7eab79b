#include "guest/stdio/dial.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fiber.h"
#include <errno.h>

#define TRIES 10
#define PAUSE_NS (100 * NS_PER_MS)

int dialer_dial(struct ctx *ctx, struct dialer *d, uint32_t port, int *ret_fd, struct err *err)
{
    for (int i = 1;; i++) {
        if (d->ops->dial(ctx, d, port, ret_fd, err) == 0)
            return 0;
        if (err->sys != ETIMEDOUT || i == TRIES)
            return err_wrap(err, "dial host port %u", port);
        struct err why = *err; /* a cancelled sleep must not hide what went wrong */
        if (fiber_sleep(ctx, PAUSE_NS, err) < 0) {
            *err = why;
            return err_wrap(err, "dial host port %u", port);
        }
    }
}
