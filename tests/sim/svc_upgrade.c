/* svc_upgrade.c - the shim saves itself and another program continues, now and then. */
#include "base/loop.h"
#include "base/saved.h"
#include "cli.h"
#include "host/control/inspect.h"
#include "host/rpc/rpc_server.h"
#include "host/shim/serve_priv.h"
#include "svc_priv.h"

#define FIRST_STEPS 200 /* of each fiber of the next program, until all are where they were */

uint64_t svc_held(const struct svc *s)
{
    return s->held_ns + (s->held_since ? loop_now(s->w.loop) - s->held_since : 0);
}

static void hold(struct svc *s, bool held)
{
    s->held_ns = svc_held(s);
    s->held_since = held ? loop_now(s->w.loop) : 0;
    rpc_server_hold(s->server, held);
}

static void parts(struct saved *sv, struct svc *s)
{
    struct shim all = { .events = s->events,
                        .registry = s->registry,
                        .service = s->service,
                        .watch = s->watch,
                        .server = s->server };

    shim_saved_body(sv, &all);
}

static void keep(struct svc *s)
{
    world_keep(s->events);
    world_keep(s->registry);
    world_keep(s->service);
    world_keep(s->publisher);
    world_keep(s->watch);
    world_keep(s->server);
}

void svc_upgrade(struct svc *s, uint64_t limit_ns)
{
    AUTO(saved_free) struct saved *writer = saved_writer(), *reader = NULL;
    bool dry_run = rng_below(&s->upgrade_rng, 10) == 0;

    AUTO_FREE char *before = NULL;

    hold(s, true);
    if (world_settle(&s->w, limit_ns) == 0 && !s->leaving) {
        parts(writer, s);
        before = registry_inspect(s->registry);
        if (!dry_run && !cli_is_twin() && world_exec(&s->w, writer, &reader) == 0) {
            keep(s);
            svc_peer_lose(s);
            svc_begin(s);
            parts(reader, s);
            world_resumed(&s->w, reader, before, s->registry);
            s->w.result->figures[SVC_FIG_UPGRADES]++;
        }
        for (int i = 0; cli_has_twin() && i < FIRST_STEPS && world_settle(&s->w, 0) < 0; i++)
            fiber_yield(s->w.loop);
    }
    hold(s, false);
}

void svc_upgrade_main(void *arg)
{
    static const uint64_t pauses[] = { 20 * NS_PER_MS, NS_PER_S, NS_PER_S, 4 * NS_PER_S };
    static const uint64_t limits[] = { 0, NS_PER_S, 30 * NS_PER_S };
    struct svc *s = arg;
    struct rng *rng = &s->upgrade_rng;

    while (svc_pause(s, 1 + rng_below(rng, pauses[rng_below(rng, ARRAY_LEN(pauses))])) &&
           !s->leaving)
        svc_upgrade(s, limits[rng_below(rng, ARRAY_LEN(limits))]);
}
