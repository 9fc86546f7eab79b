/* ctx.c - deadlines, cancels, identifiers. */
#include "base/ctx.h"
#include "base/loop_priv.h"

void cancel_init(struct cancel *c, struct cancel *parent)
{
    *c = (struct cancel){ .parent = parent };
    list_init(&c->waiters);
    list_init(&c->children);
    list_init(&c->sibling);
    if (!parent)
        return;
    if (parent->fired) {
        c->fired = true;
        c->code = parent->code;
        c->why = parent->why;
    } else {
        list_append(&parent->children, &c->sibling);
    }
}

void cancel_fire(struct cancel *c, enum err_code code, const char *why)
{
    if (c->fired)
        return;
    c->fired = true;
    c->code = code;
    c->why = why;
    while (!list_empty(&c->waiters))
        waiter_fire(LIST_ENTRY(c->waiters.next, struct waiter, in_cancel), WAIT_CANCELLED);
    while (!list_empty(&c->children)) {
        struct cancel *child = LIST_ENTRY(c->children.next, struct cancel, sibling);

        list_remove(&child->sibling);
        cancel_fire(child, code, why);
    }
}

void cancel_release(struct cancel *c)
{
    list_remove(&c->sibling);
    while (!list_empty(&c->children)) {
        struct cancel *child = LIST_ENTRY(c->children.next, struct cancel, sibling);

        list_remove(&child->sibling);
        child->parent = NULL;
    }
}

struct ctx ctx_root(struct loop *loop)
{
    return (struct ctx){ .loop = loop };
}

/* Inherits all but the identifier, which is found through parent. */
static struct ctx child_of(const struct ctx *parent)
{
    struct ctx c = *parent;

    if (parent->id_key)
        c.parent = parent;
    c.id_key = c.id_value = NULL;
    return c;
}

struct ctx ctx_with_timeout(const struct ctx *parent, uint64_t ns)
{
    struct ctx c = child_of(parent);
    uint64_t now = loop_now(parent->loop);
    uint64_t at = ns > UINT64_MAX - now ? UINT64_MAX : now + ns;

    if (c.deadline == 0 || at < c.deadline)
        c.deadline = at;
    return c;
}

struct ctx ctx_with_cancel(const struct ctx *parent, struct cancel *cancel)
{
    struct ctx c = child_of(parent);

    c.cancel = cancel;
    return c;
}

struct ctx ctx_with_id(const struct ctx *parent, const char *key, const char *value)
{
    struct ctx c = child_of(parent);

    c.id_key = key;
    c.id_value = value;
    return c;
}

struct ctx ctx_background(struct loop *loop, const char *key, const char *id)
{
    return (struct ctx){ .loop = loop, .id_key = key, .id_value = id };
}

struct ctx ctx_until(struct loop *loop, struct cancel *cancel)
{
    return (struct ctx){ .loop = loop, .cancel = cancel };
}

struct ctx ctx_limited(struct loop *loop, uint64_t ns)
{
    struct ctx root = ctx_root(loop);

    return ctx_with_timeout(&root, ns);
}

int ctx_check(const struct ctx *ctx, struct err *err)
{
    if (ctx->cancel && ctx->cancel->fired)
        return err_set(err, ctx->cancel->code, "%s", ctx->cancel->why);
    if (ctx_left(ctx) == 0)
        return err_set(err, ERR_DEADLINE, "deadline exceeded");
    return 0;
}

uint64_t ctx_left(const struct ctx *ctx)
{
    if (ctx->deadline == 0)
        return UINT64_MAX;

    uint64_t now = loop_now(ctx->loop);

    return now >= ctx->deadline ? 0 : ctx->deadline - now;
}
