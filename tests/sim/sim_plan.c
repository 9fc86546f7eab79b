/* sim_plan.c - from a seed to a plan. */
#include "sim_plan.h"
#include "base/clock.h"
#include "base/mem.h"

const char *const sim_fault_names[] = {
    "none",           "create",        "start",     "listen",       "boot-hangs",
    "boot-death",     "version",       "death",     "silent-guest", "late-guest",
    "refusing-guest", "hostile-guest", "no-stdio",  "release",      "stubborn-vmm",
    "quit",           "log",           "cancelled", "everything",
};
_Static_assert(ARRAY_LEN(sim_fault_names) == SIM_FAULT_COUNT, "a name for each fault");

static const char *const action_names[] = { "start",     "exec",     "exec+signal", "wait",
                                            "terminate", "shutdown", "stacks",      "stats" };
_Static_assert(ARRAY_LEN(action_names) == ACT_COUNT, "a name for each action");

const char *sim_action_name(enum sim_action a)
{
    return action_names[a];
}

static bool chance(struct rng *r, unsigned of_hundred)
{
    return rng_below(r, 100) < of_hundred;
}

/* Mostly short, sometimes exactly 0, so that things fall together. */
static uint64_t some_ns(struct rng *r, uint64_t max)
{
    uint64_t pick = rng_below(r, 10);

    if (pick < 2)
        return 0;
    if (pick < 7)
        return rng_below(r, max / 50 + 1);
    return rng_below(r, max + 1);
}

static enum fake_how fail_or_hang(struct rng *r)
{
    return chance(r, 50) ? FAKE_FAIL : FAKE_HANG;
}

static void add_step(struct sim_client *c, struct rng *r, enum sim_action a)
{
    if (c->n_steps == SIM_STEPS_MAX)
        return;
    c->steps[c->n_steps++] =
        (struct sim_step){ .action = a,
                           .pause_ns = some_ns(r, 3 * NS_PER_S),
                           .limit_ns = chance(r, 25) ? 1 + some_ns(r, 20 * NS_PER_S) : 0,
                           .grace_ns = some_ns(r, 10 * NS_PER_S) };
}

/* The client that starts the VM. */
static void plan_owner(struct sim_client *c, struct rng *r)
{
    add_step(c, r, ACT_START);
    if (chance(r, 70))
        add_step(c, r, ACT_EXEC);
    if (chance(r, 30))
        add_step(c, r, chance(r, 50) ? ACT_STACKS : ACT_EXEC_SIGNAL);
    if (chance(r, 60))
        add_step(c, r, chance(r, 50) ? ACT_TERMINATE : ACT_SHUTDOWN);
    if (chance(r, 80))
        c->steps[0].limit_ns = 0;
}

static void plan_other(struct sim_client *c, struct rng *r)
{
    static const enum sim_action often[] = { ACT_EXEC,   ACT_EXEC,  ACT_WAIT,       ACT_WAIT,
                                             ACT_STACKS, ACT_STATS, ACT_EXEC_SIGNAL };
    unsigned n = 1 + (unsigned)rng_below(r, 4);

    for (unsigned i = 0; i < n; i++) {
        if (chance(r, 5))
            add_step(c, r, ACT_TERMINATE);
        else if (chance(r, 6))
            add_step(c, r, chance(r, 50) ? ACT_SHUTDOWN : ACT_START);
        else
            add_step(c, r, often[rng_below(r, ARRAY_LEN(often))]);
    }
}

/* When the agent will have dialled, if nothing is wrong. */
static uint64_t up_ns(const struct sim_plan *p)
{
    const struct sim_client *owner = &p->clients[0];

    return owner->steps[0].pause_ns + p->vmm.create.delay_ns + p->vmm.start.delay_ns +
           p->guest.init_ns + p->guest.agent_ns;
}

/* What the VMM does wrong. */
static void plan_vmm_fault(struct sim_plan *p, struct rng *r, enum sim_fault fault)
{
    switch (fault) {
    case SIM_CREATE:
        p->vmm.create.how = fail_or_hang(r);
        break;
    case SIM_START:
        p->vmm.start.how = fail_or_hang(r);
        p->vmm.start_fails_early = chance(r, 50);
        break;
    case SIM_LISTEN:
        p->vmm.listen_fails_at = 1 + (unsigned)rng_below(r, 8);
        break;
    case SIM_BOOT_DEATH:
        p->vmm.dies_after_ns = 1 + rng_below(r, p->guest.init_ns + p->guest.agent_ns + NS_PER_MS);
        p->vmm.death = (enum fake_death)rng_below(r, FAKE_OOM + 1);
        break;
    case SIM_DEATH:
        p->vmm.dies_after_ns = 1 + some_ns(r, 15 * NS_PER_S);
        if (chance(r, 60))
            p->vmm.dies_after_ns += p->guest.init_ns + p->guest.agent_ns;
        p->can_power_off = chance(r, 50); /* else it dies in the middle of a shutdown */
        p->vmm.death = (enum fake_death)rng_below(r, FAKE_OOM + 1);
        break;
    case SIM_RELEASE:
        p->vmm.release.how = fail_or_hang(r);
        p->vmm.release_failures = (unsigned)rng_below(r, 9);
        break;
    case SIM_STUBBORN_VMM:
        p->vmm.kill_ns = some_ns(r, 100 * NS_PER_S);
        break;
    case SIM_QUIT:
        p->vmm.quit.how = fail_or_hang(r);
        p->can_power_off = false;
        p->silent = 100;
        break;
    default:
        break;
    }
}

/* What the guest does wrong. */
static void plan_guest_fault(struct sim_plan *p, struct rng *r, enum sim_fault fault)
{
    switch (fault) {
    case SIM_BOOT_HANGS:
        p->guest.agent_hangs = true;
        p->guest.skip_entropy = chance(r, 50);
        p->guest.skip_log = chance(r, 50);
        break;
    case SIM_VERSION:
        p->guest.version = chance(r, 70) ? 3 + 2 * (uint32_t)rng_below(r, 2) : 0;
        p->guest.os = chance(r, 50) ? "Windows" : NULL;
        p->honest = false;
        break;
    case SIM_SILENT_GUEST:
        p->silent = 300;
        break;
    case SIM_LATE_GUEST:
        p->late = 400;
        break;
    case SIM_REFUSING_GUEST:
        p->refused = 400;
        break;
    case SIM_HOSTILE_GUEST:
        p->poisoned = 250;
        p->guest.no_stdio = chance(r, 30);
        p->honest = false;
        break;
    case SIM_NO_STDIO:
        p->guest.no_stdio = true;
        break;
    case SIM_LOG:
        p->guest.log_lingers = chance(r, 60);
        p->rubbish_log = chance(r, 60);
        break;
    default:
        break;
    }
}

static void plan_fault(struct sim_plan *p, struct rng *r, enum sim_fault fault)
{
    plan_vmm_fault(p, r, fault);
    plan_guest_fault(p, r, fault);
    if (fault == SIM_CANCELLED) {
        for (unsigned i = 0; i < p->n_clients; i++)
            if (chance(r, 60))
                p->clients[i].cancel_ns = 1 + some_ns(r, 10 * NS_PER_S);
    } else if (fault == SIM_EVERYTHING) {
        for (unsigned n = 2 + (unsigned)rng_below(r, 3); n > 0; n--)
            plan_fault(p, r, (enum sim_fault)(1 + rng_below(r, SIM_EVERYTHING - 1)));
    }
}

void sim_plan_make(struct sim_plan *p, struct rng *r, enum sim_fault fault)
{
    *p = (struct sim_plan){ .fault = fault, .honest = true };
    p->vmm.create.delay_ns = some_ns(r, NS_PER_S);
    p->vmm.start.delay_ns = some_ns(r, NS_PER_S);
    p->vmm.quit.delay_ns = some_ns(r, NS_PER_S);
    p->vmm.stats.delay_ns = some_ns(r, NS_PER_S);
    p->vmm.release.delay_ns = some_ns(r, NS_PER_S);
    p->vmm.kill_ns = some_ns(r, 50 * NS_PER_MS);
    p->vmm.deaf = chance(r, 30);
    p->vmm.stream_bytes = chance(r, 30) ? 1 + rng_below(r, 100) : 0;
    p->guest.init_ns = some_ns(r, 2 * NS_PER_S);
    p->guest.agent_ns = some_ns(r, 2 * NS_PER_S);
    p->guest.process_ns = some_ns(r, 5 * NS_PER_S);
    p->guest.exit_code = (uint32_t)rng_below(r, 256);
    p->guest.output_bytes = rng_below(r, 2000);
    p->can_power_off = true;
    p->answer_ns = some_ns(r, NS_PER_S);
    p->n_clients = 2 + (unsigned)rng_below(r, SIM_CLIENTS_MAX - 1);
    plan_owner(&p->clients[0], r);
    for (unsigned i = 1; i < p->n_clients; i++) {
        plan_other(&p->clients[i], r);
        if (chance(r, 75)) /* most come when it is up, some when it is not */
            p->clients[i].steps[0].pause_ns += up_ns(p);
    }
    p->end_ns = some_ns(r, 60 * NS_PER_S) + (chance(r, 85) ? up_ns(p) + 3 * NS_PER_S : 0);
    plan_fault(p, r, fault);
}
