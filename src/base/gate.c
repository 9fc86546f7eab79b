/* gate.c - one changing operation at a time. The gate is handed over to the first in line, so a
 * newcomer cannot overtake. */
#include "base/gate.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/loop.h"

void gate_init(struct gate *g, const char *name)
{
    *g = (struct gate){ .name = name };
    waitq_init(&g->q);
}

struct gate *gate_enter(struct gate *g, struct ctx *ctx, const char *op, struct err *err)
{
    if (!g->holder) {
        if (ctx_check(ctx, err) < 0) {
            err_wrap(err, "%s", op);
            return NULL;
        }
    } else if (waitq_wait(ctx, &g->q, op, err) < 0) {
        if (err->code == ERR_DEADLINE) {
            char held[CLOCK_HUMAN_SIZE];

            clock_human(loop_now(ctx->loop) - g->since_ns, held);
            err_set(err, ERR_DEADLINE, "%s: %s is busy with %s for %s", op, g->name, g->holder,
                    held);
        }
        return NULL;
    } else if (ctx_check(ctx, err) < 0) {
        gate_leave(g); /* the gate was handed over, but ctx ended at the same moment */
        err_wrap(err, "%s", op);
        return NULL;
    }
    g->holder = op;
    g->since_ns = loop_now(ctx->loop);
    return g;
}

void gate_leave(struct gate *g)
{
    if (list_empty(&g->q.waiters)) {
        g->holder = NULL;
        return;
    }
    g->holder =
        "hand-over"; /* stays taken, so that no other fiber enters before the next in line runs */
    waitq_wake_one(&g->q);
}
