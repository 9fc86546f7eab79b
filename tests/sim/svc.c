/* svc.c - a seed's schedule: the shim as serve.c puts it together, who calls, what goes wrong
 * around it, how it ends. */
#include "svc.h"
#include "base/loop.h"
#include "host/control/events.h"
#include "host/control/registry.h"
#include "host/rpc/rpc_server.h"
#include "host/service/service.h"
#include "host/shim/publisher.h"
#include "host/shim/watch.h"
#include "svc_priv.h"
#include <stdio.h>
#include <stdlib.h>

#define CLIENTS_LIMIT (4 * 3600 * NS_PER_S)
#define TIME_BOUND (5 * 3600 * NS_PER_S)
#define LEAVE_LIMIT (5 * NS_PER_S)   /* from Shutdown with nothing left to the decision */
#define FINISH_LIMIT (70 * NS_PER_S) /* for work that continues without its client */
/* As in serve.c. */
#define CLOSE_LIMIT (20 * NS_PER_S)
#define FLUSH_LIMIT (5 * NS_PER_S)
#define ANSWER_LIMIT (2 * NS_PER_S)
#define STOP_LIMIT (1 * NS_PER_S)

const char *const svc_fault_names[] = {
    "none",        "alone",         "boot",   "death",      "refusing-guest", "silent-guest",
    "late-guest",  "hostile-guest", "host",   "devices",    "reader",         "disk",
    "clock",       "gone",          "frames", "deadline",   "events-slow",    "events-away",
    "events-lost", "restart",       "term",   "everything",
};
_Static_assert(ARRAY_LEN(svc_fault_names) == SVC_FAULT_COUNT, "a name for each fault");

static const unsigned faults[SVC_FAULT_COUNT] = {
    [SVC_BOOT] = WORLD_BOOT,
    [SVC_DEATH] = WORLD_DEATH,
    [SVC_REFUSING_GUEST] = WORLD_REFUSING,
    [SVC_SILENT_GUEST] = WORLD_SILENT,
    [SVC_LATE_GUEST] = WORLD_LATE,
    [SVC_HOSTILE_GUEST] = WORLD_HOSTILE,
    [SVC_HOST] = WORLD_HOST,
    [SVC_DEVICES] = WORLD_DEVICES,
    [SVC_READER] = WORLD_READER,
    [SVC_DISK] = WORLD_DISK,
    [SVC_CLOCK] = WORLD_CLOCK,
    [SVC_EVERYTHING] = WORLD_BOOT | WORLD_DEATH | WORLD_GUEST_FAULTS | WORLD_HOST | WORLD_DEVICES |
                       WORLD_READER | WORLD_DISK | WORLD_CLOCK,
};

static bool has(const struct svc *s, enum svc_fault f)
{
    return s->fault == f || s->fault == SVC_EVERYTHING;
}

/* --- the shim --- */

static void leave(struct svc *s, const char *why, bool signalled)
{
    world_say(&s->w, "the shim leaves: %s", why);
    if (!s->leave.set)
        s->signalled = signalled;
    s->leaving = true;
    service_refuse(s->service);
    latch_set(&s->leave);
}

static void on_leave(void *arg, enum watch_end why)
{
    leave(arg, watch_end_text(why), false);
}

static void on_change(void *arg)
{
    watch_poke(((struct svc *)arg)->watch);
}

static unsigned clients(void *arg)
{
    return rpc_server_stats(((struct svc *)arg)->server).conns;
}

static bool bundles_gone(struct ctx *ctx, void *arg)
{
    (void)ctx, (void)arg;
    return false;
}

static bool count_event(void *arg, const struct event *e)
{
    struct svc *s = arg;

    s->pushed++;
    return true;
}

void svc_begin(struct svc *s)
{
    s->events = events_new();
    events_filter(s->events, count_event, s);
    s->registry = world_registry(&s->w, s->events);
    s->service = service_new(&(struct service_opts){ .loop = s->w.loop,
                                                     .registry = s->registry,
                                                     .stats_v2 = s->stats_v2,
                                                     .on_change = on_change,
                                                     .arg = s });
    s->publisher = publisher_new(&(struct publisher_opts){ .loop = s->w.loop,
                                                           .events = s->events,
                                                           .ns = "sim",
                                                           .address = "/containerd",
                                                           .connect = svc_peer_connect,
                                                           .arg = s });
    s->server = rpc_server_new(s->w.loop);
    service_add_to(s->service, s->server);
    s->watch = watch_new(&(struct watch_opts){ .loop = s->w.loop,
                                               .service = s->service,
                                               .leave = on_leave,
                                               .clients = clients,
                                               .bundles_gone = bundles_gone,
                                               .arg = s });
    rpc_server_on_alone(s->server, on_change, s);
}

static void check_leaving(struct svc *s)
{
    if (s->terminates && s->signalled)
        return;
    if (!service_idle(s->service))
        world_broken(&s->w, "the shim leaves, but there is something to serve");
    if (s->shutdowns == 0)
        world_broken(&s->w, "the shim exits, but no client called Shutdown");
}

/* In the order of serve.c, with its limits. */
static void end(struct ctx *ctx, struct svc *s)
{
    struct ctx closing = ctx_with_timeout(ctx, CLOSE_LIMIT);
    struct err err = ERR_INIT;

    service_refuse(s->service);
    if (registry_close(&closing, s->registry, &err) < 0)
        world_broken(&s->w, "the registry cannot be closed: %s", err.msg);

    struct ctx flushing = ctx_with_timeout(ctx, FLUSH_LIMIT);
    bool troubled = s->peer.away || s->peer.sloppy || s->peer.deaf || s->peer.stalled;

    err_clear(&err);
    if (events_flush(&flushing, s->events, &err) < 0) {
        if (!troubled)
            world_broken(&s->w, "%zu events are left", events_pending(s->events));
        s->loses_events = true;
    }

    struct ctx answering = ctx_with_timeout(ctx, ANSWER_LIMIT);

    if (rpc_server_shutdown(&answering, s->server, &err) < 0)
        world_broken(&s->w, "the server cannot be shut down: %s", err.msg);

    struct rpc_stats stats = rpc_server_stats(s->server);

    if (stats.calls || stats.conns || stats.mem)
        world_broken(&s->w, "left: %u calls, %u connections, %zu bytes of requests", stats.calls,
                     stats.conns, stats.mem);

    struct ctx stopping = ctx_with_timeout(ctx, STOP_LIMIT);

    if (publisher_stop(&stopping, s->publisher, &err) < 0 ||
        watch_stop(&stopping, s->watch, &err) < 0)
        world_broken(&s->w, "the shim does not stop: %s", err.msg);
}

static void shim_main(void *arg)
{
    struct svc *s = arg;
    struct ctx root = ctx_root(s->w.loop);
    struct err err = ERR_INIT;

    (void)latch_wait(&root, &s->leave, "something to serve", &err);
    s->leave_ns = loop_now(s->w.loop);
    check_leaving(s);
    end(&root, s);
    s->left = true;
    waitq_wake_all(&s->back);
}

/* --- what goes wrong around it --- */

bool svc_pause(struct svc *s, uint64_t ns)
{
    struct ctx root = ctx_root(s->w.loop), ctx = ctx_with_cancel(&root, &s->helpers_end);
    struct err err = ERR_INIT;

    return fiber_sleep(&ctx, ns, &err) == 0;
}

static void set_away(struct svc *s, bool away)
{
    world_say(&s->w, "containerd's events: %s", away ? "away" : "there");
    s->peer.away = away;
    if (away)
        svc_peer_hang_up(s);
}

/* Each away is short enough for no event to be given up, with time between two to catch up. */
static void events_main(void *arg)
{
    struct svc *s = arg;
    bool lost = s->fault == SVC_EVENTS_LOST;
    bool deaf = has(s, SVC_EVENTS_SLOW) && world_chance(&s->w, 300);

    s->peer.sloppy = s->slow_events;
    while (svc_pause(s, world_some_ns(&s->w, 15 * NS_PER_S))) {
        if (deaf)
            s->peer.deaf = true;
        else
            set_away(s, true);
        (void)svc_pause(s, lost ? rng_below(&s->w.rng, 200 * NS_PER_S)
                                : world_some_ns(&s->w, 40 * NS_PER_S));
        s->peer.deaf = false;
        waitq_wake_all(&s->back);
        set_away(s, false);
        if (!svc_pause(s, 15 * NS_PER_S))
            break;
    }
    s->peer.deaf = s->peer.sloppy = false;
    waitq_wake_all(&s->back);
    set_away(s, false);
}

static void restart_main(void *arg)
{
    struct svc *s = arg;

    while (svc_pause(s, world_some_ns(&s->w, 10 * NS_PER_S))) {
        world_say(&s->w, "containerd ends");
        s->down = true;
        set_away(s, true);
        for (int i = 0; i < SVC_CONNS; i++)
            if (s->conns[i])
                svc_conn_hang_up(s->conns[i]);
        (void)svc_pause(s, world_some_ns(&s->w, 30 * NS_PER_S));
        world_say(&s->w, "containerd is back");
        set_away(s, false);
        s->down = false;
        waitq_wake_all(&s->back);
        if (!svc_pause(s, 15 * NS_PER_S))
            break;
    }
}

static void disk_main(void *arg)
{
    struct svc *s = arg;

    while (svc_pause(s, rng_below(&s->w.rng, 3 * NS_PER_S))) {
        bool more;

        world_say(&s->w, "the disk is full");
        world_fill_disk(&s->w, true);
        more = svc_pause(s, rng_below(&s->w.rng, 4 * NS_PER_S));
        world_say(&s->w, "the disk has room");
        world_fill_disk(&s->w, false);
        if (!more)
            break;
    }
}

/* The clock of a guest that is not updated is wrong by as much. */
static void clock_main(void *arg)
{
    struct svc *s = arg;
    struct world *w = &s->w;

    while (svc_pause(s, 1 + world_some_ns(w, 10 * NS_PER_S))) {
        int64_t by = (int64_t)rng_below(&w->rng, 7200 * NS_PER_S) - 3600 * (int64_t)NS_PER_S;
        unsigned before = w->guest.clocks;
        unsigned vms = w->vms;
        bool due = w->guest.containers > 0 && s->fault == SVC_CLOCK;

        world_say(w, "the clock is set by %lld ms", (long long)(by / (int64_t)NS_PER_MS));
        s->clock_was_set = true;
        world_set_clock(w, by);
        if (!svc_pause(s, NS_PER_S))
            break;
        if (due && w->vms == vms && w->guest.containers > 0 && w->guest.clocks == before)
            world_broken(w, "the guest's clock was not updated after the host's was set");
    }
}

static void term_main(void *arg)
{
    struct svc *s = arg;

    if (svc_pause(s, world_some_ns(&s->w, 20 * NS_PER_S)))
        leave(s, "SIGTERM", true);
}

static void go_helpers(struct svc *s)
{
    const struct {
        bool wanted;
        void (*fn)(void *arg);
        const char *name;
    } all[] = {
        { s->slow_events || s->fault == SVC_EVENTS_AWAY || s->loses_events, events_main, "events" },
        { s->restarts, restart_main, "restarts" },
        { s->w.faults & WORLD_DISK, disk_main, "disk" },
        { s->w.faults & WORLD_CLOCK, clock_main, "clock" },
        { s->terminates, term_main, "term" },
        { cli_upgrades(), svc_upgrade_main, "upgrades" },
    };

    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        if (all[i].wanted)
            fibers_go(&s->clients, s->w.loop, all[i].fn, s, "sim.%s", all[i].name);
}

/* --- the schedule --- */

static void plan(struct svc *s)
{
    bool all = s->fault == SVC_EVERYTHING;

    world_plan(&s->w, faults[s->fault], all);
    s->hangs_up = has(s, SVC_GONE);
    s->bad_frames = has(s, SVC_FRAMES);
    s->deadlines = has(s, SVC_DEADLINE);
    /* Not both: together they may be away for longer than an event is kept. */
    s->restarts = s->fault == SVC_RESTART || (all && world_chance(&s->w, 300));
    s->slow_events = has(s, SVC_EVENTS_SLOW) && !s->restarts;
    s->loses_events = s->fault == SVC_EVENTS_LOST;
    s->terminates = s->fault == SVC_TERM;
    s->stats_v2 = world_chance(&s->w, 500);
    s->pods = s->fault != SVC_ALONE && world_chance(&s->w, 350);
    snprintf(s->bundle, sizeof(s->bundle), "%s%s", s->w.dir, s->pods ? "/pod" : "");
    if (s->fault == SVC_ALONE) { /* nothing ends by itself */
        s->w.guest_opts.process_ns = s->w.guest_opts.container_ns = TIME_BOUND;
        s->w.guest_opts.oom_ns = 0;
    }
}

/* What a client asked for that has gone is given up, or finished; not waited for any more. */
static void check_forgotten(struct svc *s)
{
    struct ctx root = ctx_root(s->w.loop);
    unsigned asked = 0;
    struct err err = ERR_INIT;

    if (s->fault != SVC_GONE && s->fault != SVC_RESTART)
        return;
    (void)fiber_sleep(&root, FINISH_LIMIT, &err);
    for (int i = 0; i < SVC_CONNS; i++)
        asked += s->conns[i] && !s->conns[i]->hung_up ? svc_conn_open_calls(s->conns[i]) : 0;
    if (!s->leaving && rpc_server_stats(s->server).calls != asked)
        world_broken(&s->w, "%u calls are at work, and %u clients wait",
                     rpc_server_stats(s->server).calls, asked);
}

/* By requests alone; then Shutdown, and the shim leaves. */
static void close_all(struct svc *s)
{
    struct ctx root = ctx_root(s->w.loop);
    struct svc_ask bye = { .act = SVC_SHUTDOWN, .id = "a" };
    struct err err = ERR_INIT;

    if (s->pods)
        bye = (struct svc_ask){ .act = SVC_SB_SHUTDOWN, .id = "s" };
    check_forgotten(s);
    if (cli_upgrades())
        svc_upgrade(s, NS_PER_S);
    if (!s->leaving)
        svc_clean_up(s);
    if (!s->leaving && s->pods)
        svc_sandbox_close(s);
    if (s->leaving)
        return;

    struct ctx flushing = ctx_with_timeout(&root, 20 * NS_PER_S);

    if (events_flush(&flushing, s->events, &err) < 0 && !s->leaving)
        world_broken(&s->w, "containerd is there, but %zu events are not published",
                     events_pending(s->events));

    struct svc_conn *c = svc_conn_get(s, 0);

    if (c)
        (void)svc_do(s, c, &bye, NULL);
    svc_conn_unref(c);
    err_clear(&err);

    struct ctx limited = ctx_with_timeout(&root, LEAVE_LIMIT);

    if (latch_wait(&limited, &s->leave, "the shim to leave", &err) < 0) {
        world_broken(&s->w, "Shutdown was called and nothing is left, but the shim stays");
        leave(s, "SIGTERM, by the simulation", true);
    }
}

/* All that was asked must have been answered; but for a signal, which leaves no time for it. */
static void release_conns(struct svc *s)
{
    for (int i = 0; i < SVC_CONNS; i++) {
        if (s->conns[i] && !s->terminates)
            svc_conn_check(s->conns[i]);
        svc_conn_unref(s->conns[i]);
        s->conns[i] = NULL;
    }
}

static void main_fiber(void *arg)
{
    struct svc *s = arg;
    struct ctx root = ctx_root(s->w.loop), limited = ctx_with_timeout(&root, CLIENTS_LIMIT);
    struct fibers callers;
    struct err err = ERR_INIT;

    fibers_init(&callers);
    if (s->pods)
        svc_sandbox_open(s);
    if (s->fault == SVC_ALONE)
        fibers_go(&callers, s->w.loop, svc_alone_main, s, "sim.alone");
    for (unsigned i = 1 + world_below(&s->w, SVC_CLIENTS_MAX); i > 0 && s->fault != SVC_ALONE;
         i--) {
        struct svc_client *c = mem_new(struct svc_client);

        *c = (struct svc_client){ s, i };
        fibers_go(&callers, s->w.loop, svc_client_main, c, "sim.client %u", i);
    }
    go_helpers(s);
    if (fibers_wait(&limited, &callers, "clients", &err) < 0)
        world_broken(&s->w, "clients do not come back: %s", err.msg);
    s->closing = true;
    cancel_fire(&s->helpers_end, ERR_CANCELLED, "the end");
    (void)fibers_wait(&root, &s->clients, "helpers", &err);
    world_calm(&s->w);
    close_all(s);
    while (!s->left)
        (void)waitq_wait(&root, &s->back, "the shim to end", &err);
    svc_peer_hang_up(s);
    (void)fibers_wait(&root, &s->helpers, "readers", &err); /* the server has hung up */
    release_conns(s);
    if (!s->w.result->broken[0])
        svc_laws_end(s);
}

static void release(struct svc *s)
{
    rpc_server_free(s->server);
    watch_free(s->watch);
    service_free(s->service);
    publisher_free(s->publisher);
    registry_free(s->registry);
    events_free(s->events);
}

void svc_run(uint64_t seed, const char *dir, struct cli_result *ret)
{
    struct svc *s = mem_new(struct svc);

    s->fault = (enum svc_fault)(seed % SVC_FAULT_COUNT);
    world_open(&s->w, seed, dir, ret);
    plan(s);
    latch_init(&s->leave);
    waitq_init(&s->back);
    fibers_init(&s->clients);
    fibers_init(&s->helpers);
    cancel_init(&s->helpers_end, NULL);
    svc_peer_init(s);
    rng_seed(&s->upgrade_rng, ~seed); /* of its own: else upgrades would change the schedule */
    s->laws = svc_laws_new();
    svc_begin(s);
    fiber_go(s->w.loop, shim_main, s, "sim.shim");
    fiber_go(s->w.loop, main_fiber, s, "sim.main");
    if (world_run(&s->w)) {
        release(s);
        world_check(&s->w);
    }
    if (loop_now(s->w.loop) > TIME_BOUND)
        world_broken(&s->w, "it took %llu s of virtual time",
                     (unsigned long long)(loop_now(s->w.loop) / NS_PER_S));
    ret->figures[SVC_FIG_VMS] = s->w.vms;
    ret->figures[SVC_FIG_EVENTS] = s->peer.n_events;
    svc_laws_free(s->laws);
    svc_peer_release(s);
    cancel_release(&s->helpers_end);
    world_close(&s->w);
    free(s);
}
