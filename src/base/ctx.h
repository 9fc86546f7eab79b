/* ctx.h - what every function that may wait takes first: the loop it waits on, a deadline, a
 * cancel, and the identifiers for its log lines. A value. ctx_with_* derive a child, which points
 * to the nearest ctx above it that has an identifier and lives no longer than that. {0} is a ctx
 * for code that does not wait. */
#pragma once
#include "base/err.h"
#include "base/list.h"
#include <stdint.h>

struct loop;
struct fiber;
struct span;

/* Cancels every wait below it. Fired once, with a code (ERR_CANCELLED, ERR_UNAVAILABLE …). */
struct cancel {
    bool fired;
    enum err_code code;
    const char *why;       /* static text */
    struct list waiters;   /* private to fiber.c */
    struct cancel *parent; /* fires us too */
    struct list children, sibling;
};
/* parent may be NULL. If parent has fired, so has c. */
void cancel_init(struct cancel *c, struct cancel *parent);
/* Wakes all waiters of c and of its children. Repeatable; the first call wins. Never waits. */
void cancel_fire(struct cancel *c, enum err_code code, const char *why);
/* No fiber may still wait with it. */
void cancel_release(struct cancel *c);

struct ctx {
    struct loop *loop;
    struct cancel *cancel;    /* borrows; may be NULL */
    uint64_t deadline;        /* on loop_now()'s scale; 0 = none */
    const struct ctx *parent; /* borrows; has an identifier, or is NULL */
    const char *id_key, *id_value;
    struct span *span; /* borrows: what is traced now (span.h); NULL: nothing */
};

/* Of work that no request waits for. Each points to no other ctx: without deadline, cancel and
 * identifier; with an identifier (borrowed); until cancel fires; for ns. */
struct ctx ctx_root(struct loop *loop);
struct ctx ctx_background(struct loop *loop, const char *key, const char *id);
struct ctx ctx_until(struct loop *loop, struct cancel *cancel);
struct ctx ctx_limited(struct loop *loop, uint64_t ns);
/* The sooner of the parent's deadline and now + ns. */
struct ctx ctx_with_timeout(const struct ctx *parent, uint64_t ns);
struct ctx ctx_with_cancel(const struct ctx *parent, struct cancel *cancel);
/* Borrows both strings. Keys as in docs/conventions.md §5: "sandbox-id", "cid", "pid" … */
struct ctx ctx_with_id(const struct ctx *parent, const char *key, const char *value);
/* 0, or -1 with ERR_DEADLINE or the cancel's code: for loops that do not wait. */
int ctx_check(const struct ctx *ctx, struct err *err);
/* ns until the deadline; UINT64_MAX if there is none; 0 when over. */
uint64_t ctx_left(const struct ctx *ctx);
