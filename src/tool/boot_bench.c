/* boot_bench.c - how long a call over the bridge takes, there and back. */
#include "base/loop.h"
#include "host/bridge/guest.h"
#include "tool/boot.h"
#include <stdlib.h>

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

int boot_bench_bridge(struct ctx *ctx, struct loop *loop, struct guest *g, uint32_t calls,
                      struct boot_bench *ret, struct err *err)
{
    AUTO_FREE uint64_t *took = mem_alloc(calls * sizeof(*took));

    for (uint32_t i = 0; i < calls; i++) {
        uint64_t before = loop_now(loop);
        AUTO_FREE char *text = NULL;

        /* A refusal by the guest is a round trip, too. */
        if (g->ops->get_properties(ctx, g, NULL, "{}", &text, err) < 0 &&
            (err->code == ERR_UNAVAILABLE || err->code == ERR_DEADLINE ||
             err->code == ERR_CANCELLED))
            return err_wrap(err, "round trip %u of the bridge", i + 1);
        took[i] = loop_now(loop) - before;
    }
    err_clear(err);
    qsort(took, calls, sizeof(*took), by_value);
    *ret = (struct boot_bench){ .calls = calls,
                                .min_us = (double)took[0] / 1e3,
                                .median_us = (double)took[calls / 2] / 1e3,
                                .p99_us = (double)took[(uint64_t)calls * 99 / 100] / 1e3 };
    return 0;
}
