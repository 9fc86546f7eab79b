/* reg_upgrade.c - the registry is saved and another program continues, now and then. Clients call
 * it directly, so none may be inside. */
#include "base/ctx.h"
#include "base/loop.h"
#include "base/saved.h"
#include "host/control/inspect.h"
#include "host/control/registry.h"
#include "reg_priv.h"

static void parts(struct saved *sv, struct reg *s)
{
    if (saved_open(sv, 20)) {
        events_saved(sv, s->events);
        saved_close(sv);
    }
    if (saved_open(sv, 21)) {
        registry_saved(sv, s->registry);
        saved_close(sv);
    }
}

static void upgrade(struct reg *s)
{
    AUTO(saved_free) struct saved *writer = saved_writer(), *reader = NULL;

    AUTO_FREE char *before = registry_inspect(s->registry);

    parts(writer, s);
    if (world_exec(&s->w, writer, &reader) < 0)
        return;
    world_keep(s->events);
    world_keep(s->registry);
    reg_begin(s);
    parts(reader, s);
    world_resumed(&s->w, reader, before, s->registry);
    s->w.result->figures[REG_FIG_UPGRADES]++;
}

/* Until no client is inside; no other begins a call meanwhile. False: not in that time. */
static bool settle(struct reg *s, uint64_t limit_ns)
{
    uint64_t until = loop_now(s->w.loop) + limit_ns;
    struct ctx root = ctx_root(s->w.loop);
    struct err err = ERR_INIT;

    while (s->inside > 0 && loop_now(s->w.loop) < until)
        (void)fiber_sleep(&root, 10 * NS_PER_MS, &err);
    return s->inside == 0 && world_settle(&s->w, NS_PER_S) == 0 && s->inside == 0;
}

void reg_upgrade_main(void *arg)
{
    struct reg *s = arg;
    struct ctx root = ctx_root(s->w.loop);
    struct err err = ERR_INIT;

    while (s->clients.running > 1) { /* the other one is this */
        (void)fiber_sleep(&root, 1 + rng_below(&s->upgrade_rng, 2 * NS_PER_S), &err);
        s->held = true;
        if (settle(s, rng_below(&s->upgrade_rng, 5 * NS_PER_S)))
            upgrade(s);
        s->held = false;
        waitq_wake_all(&s->released);
    }
}
