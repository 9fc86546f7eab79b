/* gate.h - admits one changing operation at a time. Named, first in first out, bounded by
 * the deadline in ctx. Queries never take a gate.
 *     AUTO(gate_leave) struct gate *held = gate_enter(&c->gate, ctx, "scsi.map", err);
 *     if (!held) return -1; */
#pragma once
#include "base/fiber.h"
#include "base/mem.h"

struct gate {
    const char *name;   /* static text */
    const char *holder; /* the operation inside, NULL if free */
    uint64_t since_ns;
    struct waitq q;
};

void gate_init(struct gate *g, const char *name);
/* Waits. NULL with err: ERR_DEADLINE (names the operation that holds it), or ctx's cancel. op:
 * static text. */
struct gate *gate_enter(struct gate *g, struct ctx *ctx, const char *op, struct err *err);
void gate_leave(struct gate *g);
AUTO_DEFINE(struct gate *, gate_leave);
