/* reg.c - a seed's schedule: what goes wrong, who calls, how it ends. */
#include "reg.h"
#include "base/loop.h"
#include "reg_priv.h"

#define END_LIMIT (900 * NS_PER_S)
#define DEATH_LIMIT (100 * NS_PER_MS)

const char *const reg_fault_names[] = {
    "none",          "boot", "death",   "refusing-guest", "silent-guest", "late-guest",
    "hostile-guest", "host", "devices", "reader",         "cancelled",    "everything",
};
_Static_assert(ARRAY_LEN(reg_fault_names) == REG_FAULT_COUNT, "a name for each fault");

static const unsigned faults[REG_FAULT_COUNT] = {
    [REG_BOOT] = WORLD_BOOT,
    [REG_DEATH] = WORLD_DEATH,
    [REG_REFUSING_GUEST] = WORLD_REFUSING,
    [REG_SILENT_GUEST] = WORLD_SILENT,
    [REG_LATE_GUEST] = WORLD_LATE,
    [REG_HOSTILE_GUEST] = WORLD_HOSTILE,
    [REG_HOST] = WORLD_HOST,
    [REG_DEVICES] = WORLD_DEVICES,
    [REG_READER] = WORLD_READER,
    [REG_EVERYTHING] =
        WORLD_BOOT | WORLD_DEATH | WORLD_GUEST_FAULTS | WORLD_HOST | WORLD_DEVICES | WORLD_READER,
};

/* --- watching --- */

static void ear_main(void *arg)
{
    struct reg *s = arg;
    struct ctx root = ctx_root(s->w.loop), ctx = ctx_with_cancel(&root, &s->ear.stop);
    const struct event *event;
    struct err err = ERR_INIT;

    while (events_next(&ctx, s->events, &event, &err) == 0) {
        world_say(&s->w, "event %d %s/%s %u", event->kind, event->container_id, event->exec_id,
                  event->exit_status);
        reg_laws_told(s, event);
        events_done(s->events);
    }
    s->ear.done = true;
}

void reg_begin(struct reg *s)
{
    s->events = events_new();
    events_filter(s->events, reg_laws_pushed, s);
    s->registry = world_registry(&s->w, s->events);
    fiber_go(s->w.loop, ear_main, s, "publisher");
}

struct death {
    struct reg *s;
    struct cancel stop;
    bool done;
};

/* A VM that dies ends what ran in it at once. */
static void death_main(void *arg)
{
    struct death *e = arg;
    struct reg *s = e->s;
    struct ctx root = ctx_root(s->w.loop), ctx = ctx_with_cancel(&root, &e->stop);
    struct err err = ERR_INIT;
    struct fake_facts facts = { 0 };

    while (fiber_sleep(&ctx, 10 * NS_PER_MS, &err) == 0) {
        if (!s->w.vmm)
            continue;
        fake_vmm_facts(s->w.vmm, &facts);
        if (!facts.gone || loop_now(s->w.loop) < facts.gone_ns + DEATH_LIMIT)
            continue;
        for (size_t i = 0; i < s->registry->n_containers; i++) {
            struct container *c = s->registry->containers[i];
            bool lives = c->p.state == CONTAINER_CREATED && !process_is_starting(c->p.init);

            if (lives || (c->p.init && process_state(c->p.init) == PROCESS_ST_RUNNING))
                world_broken(
                    &s->w, "container %s lives, but its VM is gone since %llu ms", c->p.id,
                    (unsigned long long)((loop_now(s->w.loop) - facts.gone_ns) / NS_PER_MS));
        }
    }
    e->done = true;
}

/* --- the whole --- */

static void close_all(struct reg *s)
{
    struct ctx root = ctx_root(s->w.loop), ctx = ctx_with_timeout(&root, END_LIMIT);
    struct err err = ERR_INIT;

    if (fibers_wait(&ctx, &s->clients, "clients", &err) < 0)
        world_broken(&s->w, "clients do not come back: %s", err.msg);
    world_calm(&s->w);
    for (int i = 0; i < 3; i++) { /* what was refused before may go now */
        err_clear(&err);
        if (registry_close(&ctx, s->registry, &err) == 0)
            break;
    }
    if (err.code != ERR_NONE)
        world_broken(&s->w, "the registry cannot be closed: %s", err.msg);
    if (s->registry->n_containers > 0)
        world_broken(&s->w, "%zu containers are left", s->registry->n_containers);
}

static void cancel_some(struct reg *s)
{
    struct ctx root = ctx_root(s->w.loop);
    struct err err = ERR_INIT;

    for (unsigned i = 0;
         (s->fault == REG_CANCELLED || s->fault == REG_EVERYTHING) && i < s->n_clients; i++) {
        (void)fiber_sleep(&root, world_some_ns(&s->w, 5 * NS_PER_S), &err);
        if (world_chance(&s->w, 700))
            cancel_fire(&s->cancels[i], ERR_CANCELLED, "its client is gone");
    }
}

static void main_fiber(void *arg)
{
    struct reg *s = arg;
    struct death death = { .s = s };

    cancel_init(&death.stop, NULL);
    fiber_go(s->w.loop, death_main, &death, "sim.death");
    s->n_clients = 1 + (unsigned)rng_below(&s->w.rng, REG_CLIENTS_MAX);
    for (unsigned i = 0; i < s->n_clients; i++) {
        struct reg_client *c = mem_new(struct reg_client);

        *c = (struct reg_client){ s, i };
        fibers_go(&s->clients, s->w.loop, reg_client_main, c, "sim.client %u", i);
    }
    if (cli_upgrades())
        fibers_go(&s->clients, s->w.loop, reg_upgrade_main, s, "sim.upgrades");
    cancel_some(s);
    close_all(s);
    while (events_pending(s->events) > 0)
        fiber_yield(s->w.loop);
    cancel_fire(&s->ear.stop, ERR_CANCELLED, "the end");
    cancel_fire(&death.stop, ERR_CANCELLED, "the end");
    while (!s->ear.done || !death.done)
        fiber_yield(s->w.loop);
    cancel_release(&death.stop);
    if (!s->w.result->broken[0])
        reg_laws_end(s);
}

void reg_run(uint64_t seed, const char *dir, struct cli_result *ret)
{
    struct reg s = { .fault = (enum reg_fault)(seed % REG_FAULT_COUNT),
                     .pods = seed / REG_FAULT_COUNT % 2 };

    world_open(&s.w, seed, dir, ret);
    world_plan(&s.w, faults[s.fault], s.fault == REG_EVERYTHING);
    if (s.pods && seed / (2 * REG_FAULT_COUNT) % 4) /* what ends was ended */
        s.w.guest_opts.container_ns = 3600 * NS_PER_S;
    s.laws = reg_laws_new();
    rng_seed(&s.upgrade_rng, ~seed);
    waitq_init(&s.released);
    cancel_init(&s.ear.stop, NULL);
    fibers_init(&s.clients);
    for (unsigned i = 0; i < REG_CLIENTS_MAX; i++)
        cancel_init(&s.cancels[i], NULL);
    reg_begin(&s);
    fiber_go(s.w.loop, main_fiber, &s, "sim.main");
    if (world_run(&s.w)) {
        registry_free(s.registry);
        world_check(&s.w);
    }
    ret->figures[REG_FIG_VMS] = s.w.vms;
    events_free(s.events);
    cancel_release(&s.ear.stop);
    reg_laws_free(s.laws);
    world_close(&s.w);
}
