/* reg.c - a seed's schedule: what goes wrong, who calls, how it ends. */
#include "reg.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/loop.h"
#include "host/bridge/bridge.h"
#include "host/bridge/guest.h"
#include "host/control/registry_fake.h"
#include "host/control/vm.h"
#include "proto/bridge.h"
#include "reg_priv.h"
#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define END_LIMIT (900 * NS_PER_S)
#define DEATH_LIMIT (100 * NS_PER_MS)

static const char *const fault_names[] = {
    "none",          "boot", "death",   "refusing-guest", "silent-guest", "late-guest",
    "hostile-guest", "host", "devices", "reader",         "cancelled",    "everything",
};
_Static_assert(ARRAY_LEN(fault_names) == REG_FAULT_COUNT, "a name for each fault");

const char *reg_fault_name(enum reg_fault f)
{
    return fault_names[f];
}

void reg_say(struct reg *s, const char *fmt, ...)
{
    va_list ap;

    if (!s->trace)
        return;
    va_start(ap, fmt);
    AUTO_FREE char *text = str_vformat(fmt, ap);
    va_end(ap);
    printf("# %10.3f ms  %s\n", (double)loop_now(s->loop) / 1e6, text);
}

void reg_broken(struct reg *s, const char *fmt, ...)
{
    va_list ap;

    if (s->result->broken[0])
        return;
    va_start(ap, fmt);
    vsnprintf(s->result->broken, sizeof(s->result->broken), fmt, ap);
    va_end(ap);
    reg_say(s, "BROKEN: %s", s->result->broken);
}

bool reg_chance(struct reg *s, unsigned of_thousand)
{
    return rng_below(&s->rng, 1000) < of_thousand;
}

uint64_t reg_some_ns(struct reg *s, uint64_t max)
{
    uint64_t pick = rng_below(&s->rng, 10);

    if (pick < 2)
        return 0;
    return rng_below(&s->rng, pick < 7 ? max / 50 + 1 : max + 1);
}

/* --- guest, VMM, host --- */

static struct fake_answer decide(void *arg, const struct bridge_request *q)
{
    struct reg *s = arg;
    struct fake_answer a = { FAKE_ANSWER, reg_some_ns(s, s->answer_ns), BRIDGE_HR_FAIL };

    /* Boots have a simulation of their own. */
    if (s->calm || q->type == BRIDGE_NEGOTIATE_PROTOCOL)
        return (struct fake_answer){ FAKE_ANSWER };
    if (reg_chance(s, s->refused))
        a.how = FAKE_REFUSE;
    else if (reg_chance(s, s->silent))
        a.how = FAKE_SILENT;
    else if (reg_chance(s, s->poisoned))
        a.how =
            FAKE_FIRST_HOSTILE + (int)rng_below(&s->rng, FAKE_ANSWER_COUNT - FAKE_FIRST_HOSTILE);
    if (reg_chance(s, s->late))
        a.delay_ns = rng_below(&s->rng, 30 * NS_PER_S);
    return a;
}

static int host_step(void *arg, struct ctx *ctx, const char *op, struct err *err)
{
    struct reg *s = arg;

    if (s->calm || s->host_fails == 0)
        return 0;
    if (fiber_sleep(ctx, reg_some_ns(s, 3 * NS_PER_S), err) < 0)
        return -1;
    return reg_chance(s, s->host_fails) ? err_set(err, ERR_EXHAUSTED, "%s fails by the dice", op)
                                        : 0;
}

static int dial(void *arg, uint32_t port, struct stream **ret)
{
    return fake_vmm_dial(arg, port, ret);
}

static void power_off(void *arg)
{
    fake_vmm_die(arg, FAKE_POWERED_OFF);
}

static void on_power(void *arg, struct vmm *v, struct cancel *power)
{
    struct reg *s = arg;

    s->guest_opts.loop = s->loop;
    s->guest_opts.dial = dial;
    s->guest_opts.dial_arg = v;
    s->guest_opts.power = power;
    s->guest_opts.power_off = power_off;
    s->guest_opts.power_off_arg = v;
    s->guest_opts.decide_request = decide;
    s->guest_opts.decide_arg = s;
    fake_guest_boot(&s->guest_opts);
}

/* The seam's rules are looked at when a VM goes. */
static struct reg *current;
static struct vmm_ops watched;
static void (*real_free)(struct vmm *v);

static void watched_free(struct vmm *v)
{
    struct fake_facts facts;

    fake_vmm_facts(v, &facts);
    if (facts.violation[0])
        reg_broken(current, "VMM: %s", facts.violation);
    if (facts.created && !facts.released)
        reg_broken(current, "a VM was freed and not released");
    if (current->vmm == v)
        current->vmm = NULL;
    real_free(v);
}

static struct vmm *make_vmm(void *arg)
{
    struct reg *s = arg;

    s->vmm = fake_vmm_new(&s->vmm_opts);
    s->vmm->timeline = &s->timeline;
    watched = *s->vmm->ops;
    real_free = watched.free;
    watched.free = watched_free;
    s->vmm->ops = &watched;
    s->result->vms++;
    return s->vmm;
}

static struct guest *make_guest(void *arg, struct vmm *vmm)
{
    struct reg *s = arg;

    return bridge_new(s->loop, vmm, &s->timeline);
}

/* --- the plan --- */

static bool has(const struct reg *s, enum reg_fault f)
{
    return s->fault == f || s->fault == REG_EVERYTHING;
}

static struct fake_step maybe_fail(struct reg *s, unsigned of_thousand)
{
    return (struct fake_step){ reg_chance(s, of_thousand) ? FAKE_FAIL : FAKE_OK,
                               reg_some_ns(s, NS_PER_S) };
}

static void plan(struct reg *s)
{
    bool rare = s->fault == REG_EVERYTHING;

    s->answer_ns = reg_chance(s, 500) ? 0 : 200 * NS_PER_MS;
    s->vmm_opts.loop = s->loop;
    s->vmm_opts.on_power = on_power;
    s->vmm_opts.on_power_arg = s;
    s->vmm_opts.kill_ns = reg_some_ns(s, 50 * NS_PER_MS);
    s->guest_opts.process_ns = reg_some_ns(s, 5 * NS_PER_S) + 1;
    s->guest_opts.container_ns = reg_some_ns(s, 20 * NS_PER_S) + 1;
    s->guest_opts.exit_code = REG_CODE;
    s->guest_opts.output_bytes = rng_below(&s->rng, 3000);
    s->guest_opts.oom_ns = reg_chance(s, 200) ? reg_some_ns(s, 10 * NS_PER_S) + 1 : 0;
    if (has(s, REG_BOOT)) {
        s->vmm_opts.start = maybe_fail(s, rare ? 50 : 400);
        s->guest_opts.agent_hangs = reg_chance(s, rare ? 20 : 200);
        s->guest_opts.agent_ns = reg_some_ns(s, 10 * NS_PER_S);
    }
    if (has(s, REG_DEATH)) {
        s->vmm_opts.dies_after_ns = reg_some_ns(s, 20 * NS_PER_S) + 1;
        s->vmm_opts.death = (enum fake_death)rng_below(&s->rng, 4);
    }
    s->refused = has(s, REG_REFUSING_GUEST) ? (rare ? 20 : 100) : 0;
    s->silent = has(s, REG_SILENT_GUEST) ? (rare ? 5 : 30) : 0;
    s->late = has(s, REG_LATE_GUEST) ? (rare ? 20 : 150) : 0;
    s->poisoned = has(s, REG_HOSTILE_GUEST) ? (rare ? 5 : 30) : 0;
    s->host_fails = has(s, REG_HOST) ? (rare ? 20 : 100) : 0;
    if (has(s, REG_DEVICES)) {
        s->vmm_opts.scsi_add = maybe_fail(s, rare ? 50 : 200);
        s->vmm_opts.share_add = maybe_fail(s, rare ? 50 : 300);
        s->vmm_opts.share_remove = maybe_fail(s, rare ? 50 : 300);
    }
    s->host->io_stuck = has(s, REG_READER) && reg_chance(s, rare ? 100 : 700);
}

/* --- watching --- */

struct ear {
    struct reg *s;
    struct cancel stop;
    bool done;
};

static void ear_main(void *arg)
{
    struct ear *e = arg;
    struct reg *s = e->s;
    struct ctx root = ctx_root(s->loop), ctx = ctx_with_cancel(&root, &e->stop);
    const struct event *event;
    struct err err = ERR_INIT;

    while (events_next(&ctx, s->events, &event, &err) == 0) {
        reg_say(s, "event %d %s/%s %u", event->kind, event->container_id, event->exec_id,
                event->exit_status);
        reg_laws_told(s, event);
        events_done(s->events);
    }
    e->done = true;
}

/* A VM that dies ends what ran in it at once. */
static void death_main(void *arg)
{
    struct ear *e = arg;
    struct reg *s = e->s;
    struct ctx root = ctx_root(s->loop), ctx = ctx_with_cancel(&root, &e->stop);
    struct err err = ERR_INIT;
    struct fake_facts facts = { 0 };

    while (fiber_sleep(&ctx, 10 * NS_PER_MS, &err) == 0) {
        if (!s->vmm)
            continue;
        fake_vmm_facts(s->vmm, &facts);
        if (!facts.gone || loop_now(s->loop) < facts.gone_ns + DEATH_LIMIT)
            continue;
        LIST_EACH (&s->registry->containers, pos) {
            struct container *c = LIST_ENTRY(pos, struct container, node);

            bool lives = c->state == CONTAINER_CREATED && !c->init->starting;

            if (lives || (c->init && c->init->state == PROCESS_ST_RUNNING))
                reg_broken(s, "container %s lives, but its VM is gone since %llu ms", c->id,
                           (unsigned long long)((loop_now(s->loop) - facts.gone_ns) / NS_PER_MS));
        }
    }
    e->done = true;
}

/* --- the whole --- */

static void calm_down(struct reg *s)
{
    s->calm = true;
    if (s->vmm) {
        struct fake_vmm_opts *o = fake_vmm_tune(s->vmm);

        o->scsi_remove = o->share_remove = (struct fake_step){ 0 };
    }
}

static void close_all(struct reg *s)
{
    struct ctx root = ctx_root(s->loop), ctx = ctx_with_timeout(&root, END_LIMIT);
    struct err err = ERR_INIT;

    if (group_wait(&ctx, &s->clients, "clients", &err) < 0)
        reg_broken(s, "clients do not come back: %s", err.msg);
    calm_down(s);
    for (int i = 0; i < 3; i++) { /* what was refused before may go now */
        err_clear(&err);
        if (registry_close(&ctx, s->registry, &err) == 0)
            break;
    }
    if (err.code != ERR_NONE)
        reg_broken(s, "the registry cannot be closed: %s", err.msg);
    if (registry_containers(s->registry) > 0)
        reg_broken(s, "%zu containers are left", registry_containers(s->registry));
}

static void cancel_some(struct reg *s)
{
    struct ctx root = ctx_root(s->loop);
    struct err err = ERR_INIT;

    for (unsigned i = 0; has(s, REG_CANCELLED) && i < s->n_clients; i++) {
        (void)fiber_sleep(&root, reg_some_ns(s, 5 * NS_PER_S), &err);
        if (reg_chance(s, 700))
            cancel_fire(&s->cancels[i], ERR_CANCELLED, "its client is gone");
    }
}

static void check_host(struct reg *s)
{
    AUTO_FREE char *run = str_format("%s/run/sim", s->dir);
    DIR *d = opendir(run);

    if (s->host->anchors || s->host->ios || s->host->scratches)
        reg_broken(s, "left: %u anchors, %u stdios, %u scratch disks", s->host->anchors,
                   s->host->ios, s->host->scratches);
    if (s->host->violation)
        reg_broken(s, "host: %s", s->host->violation);
    if (d) {
        reg_broken(s, "left: %s", run);
        closedir(d);
        (void)dir_remove(run);
    }
}

static void main_fiber(void *arg)
{
    struct reg *s = arg;
    struct ear ear = { .s = s }, death = { .s = s };

    cancel_init(&ear.stop, NULL);
    cancel_init(&death.stop, NULL);
    fiber_go(s->loop, ear_main, &ear, "ear");
    fiber_go(s->loop, death_main, &death, "death");
    s->n_clients = 1 + (unsigned)rng_below(&s->rng, REG_CLIENTS_MAX);
    for (unsigned i = 0; i < s->n_clients; i++) {
        struct reg_client *c = mem_new(struct reg_client);

        *c = (struct reg_client){ s, i };
        group_go(&s->clients, s->loop, reg_client_main, c, "client %u", i);
    }
    cancel_some(s);
    close_all(s);
    while (events_pending(s->events) > 0)
        fiber_yield(s->loop);
    cancel_fire(&ear.stop, ERR_CANCELLED, "the end");
    cancel_fire(&death.stop, ERR_CANCELLED, "the end");
    while (!ear.done || !death.done)
        fiber_yield(s->loop);
    cancel_release(&ear.stop);
    cancel_release(&death.stop);
    if (!s->result->broken[0])
        reg_laws_end(s);
}

static void config_make(struct reg *s)
{
    config_init(&s->config);
    free(s->config.run_root);
    s->config.run_root = str_format("%s/run", s->dir);
}

void reg_run(uint64_t seed, const char *dir, bool trace, struct reg_result *ret)
{
    struct fake_host host = { 0 };
    struct reg s = { .fault = (enum reg_fault)(seed % REG_FAULT_COUNT), .trace = trace };
    size_t left;

    *ret = (struct reg_result){ 0 };
    s.result = ret;
    s.host = &host;
    current = &s;
    rng_seed(&s.rng, seed);
    snprintf(s.dir, sizeof(s.dir), "%s", dir);
    s.loop = loop_new(&(struct loop_opts){ .virtual_time = true, .seed = seed });
    fake_host_init(&host, s.loop);
    host.step = host_step;
    host.step_arg = &s;
    config_make(&s);
    plan(&s);
    s.events = events_new();
    s.laws = reg_laws_new();
    group_init(&s.clients);
    for (unsigned i = 0; i < REG_CLIENTS_MAX; i++)
        cancel_init(&s.cancels[i], NULL);
    s.registry = registry_new(&(struct registry_opts){ .loop = s.loop,
                                                       .ns = "sim",
                                                       .id = "box",
                                                       .config = &s.config,
                                                       .events = s.events,
                                                       .make_vmm = make_vmm,
                                                       .make_guest = make_guest,
                                                       .arg = &s,
                                                       .host = &fake_host_ops });
    fiber_go(s.loop, main_fiber, &s, "main");
    left = loop_run(s.loop);
    if (left > 0) {
        AUTO(sbuf_release) struct sbuf dump = { 0 };

        loop_dump(s.loop, &dump);
        reg_broken(&s, "%zu fibers hang:\n%.300s", left, dump.data);
    } else {
        registry_free(s.registry);
        check_host(&s);
    }
    events_free(s.events);
    reg_laws_free(s.laws);
    config_release(&s.config);
    loop_free(s.loop);
}
