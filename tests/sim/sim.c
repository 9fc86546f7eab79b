/* sim.c - runs a schedule and checks the laws. */
#include "sim.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/str.h"
#include "base/stream.h"
#include "host/bridge/bridge.h"
#include "host/bridge/guest.h"
#include "host/control/vm_priv.h"
#include "proto/bridge.h"
#include "sim_priv.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SIM_PROBES 10
#define SIM_CLOSE_ROUNDS 12
#define SIM_CLIENT_LIMIT (120 * NS_PER_S) /* for clients to notice that it is over */
/* No schedule lasts longer than this: twelve rounds of the worst end, one boot, the plan. */
#define SIM_TIME_BOUND                                                                             \
    (SIM_CLOSE_ROUNDS * (VM_END_LIMIT + SIM_CLIENT_LIMIT) + VM_START_LIMIT + 600 * NS_PER_S)

void sim_say(struct sim *s, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    cli_trace(loop_now(s->loop), fmt, ap);
    va_end(ap);
}

void sim_broken(struct sim *s, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    cli_broken(s->result, loop_now(s->loop), fmt, ap);
    va_end(ap);
}

/* --- the laws that hold at every moment --- */

static bool may_follow(enum vm_state before, enum vm_state now)
{
    return before <= now; /* it never goes back */
}

static void look_at_things(struct sim *s)
{
    AUTO(sbuf_release) struct sbuf text = { 0 };

    if (fake_vmm_audit(s->dir, &text) > 0)
        sim_broken(s, "a crash now would leak: %s", text.data);
}

static bool wrong_agent(const struct sim *s)
{
    const struct fake_guest_opts *g = &s->plan.guest;

    return (g->version && g->version != BRIDGE_VERSION) || g->os;
}

void sim_look(struct sim *s)
{
    uint64_t before = loop_now(s->loop);
    struct fake_facts facts;
    struct vmm_info info;

    if (!s->vm)
        return;

    enum vm_state now = vm_state(s->vm);

    if (!may_follow(s->state, now))
        sim_broken(s, "state went from %s to %s", vm_state_name(s->state), vm_state_name(now));
    if (now != s->state)
        sim_say(s, "state %s", vm_state_name(now));
    s->state = now;
    vm_info(s->vm, &info);
    fake_vmm_facts(s->vmm, &facts);
    if (facts.violation[0])
        sim_broken(s, "the VMM was misused: %s", facts.violation);
    if (now == VM_GONE && !facts.released)
        sim_broken(s, "Gone, but not everything is cleaned up");
    if (now == VM_RUNNING)
        s->result->figures[SIM_RAN] = 1;
    if (now >= VM_ENDED && facts.started && !facts.gone)
        sim_broken(s, "%s, but the VMM runs", vm_state_name(now));
    if (now == VM_RUNNING && wrong_agent(s))
        sim_broken(s, "Running with an agent of another kind");
    if (s->connected && !s->guest->ops->connected(s->guest))
        s->lost_ns = before;
    s->connected = s->guest->ops->connected(s->guest);
    if (s->connected && facts.terminated_ns)
        sim_broken(s, "the bridge is open, but the VM was killed");
    if (loop_now(s->loop) != before)
        sim_broken(s, "a query took time");
    look_at_things(s);
}

/* --- the laws for calls --- */

static bool is_prompt(enum sim_action a)
{
    return a == ACT_TERMINATE || a == ACT_SHUTDOWN;
}

void sim_call_begin(struct sim_call *c)
{
    struct fake_facts facts;

    fake_vmm_facts(c->sim->vmm, &facts);
    c->began_ns = loop_now(c->sim->loop);
    c->state = vm_state(c->sim->vm);
    c->doomed = facts.terminated_ns != 0 || facts.gone;
    c->sim->ended_by_client |= is_prompt(c->action);
    c->sim->result->figures[SIM_CALLS]++;
    if (c->action == ACT_SHUTDOWN && c->state == VM_RUNNING && !c->doomed &&
        !c->sim->shutdown_by_ns)
        c->sim->shutdown_by_ns = c->began_ns + c->grace_ns + VM_QUIT_LIMIT;
    sim_say(c->sim, "client %u: %s", c->client, c->name);
}

static void check_time(struct sim_call *c, const struct fake_facts *facts, uint64_t now)
{
    struct sim *s = c->sim;

    if (s->exited && c->began_ns < s->exit_ns && now > s->exit_ns)
        sim_broken(s, "client %u's %s outlived the VM", c->client, c->name);
    if (c->guest && facts->terminated_ns && c->began_ns < facts->terminated_ns &&
        now > facts->terminated_ns)
        sim_broken(s, "client %u's %s was not woken by terminate", c->client, c->name);
    if (c->guest && s->lost_ns && c->began_ns < s->lost_ns && now > s->lost_ns)
        sim_broken(s, "client %u's %s outlived the bridge", c->client, c->name);
    if (c->action == ACT_TERMINATE && now - c->began_ns > VM_END_LIMIT)
        sim_broken(s, "client %u's terminate took longer than allowed", c->client);
    if (c->action == ACT_TERMINATE && !c->doomed && c->state >= VM_BOOTING &&
        c->state <= VM_RUNNING && facts->terminated_ns != c->began_ns)
        sim_broken(s, "client %u's terminate did not kill at once", c->client);
}

static void check_outcome(struct sim_call *c, const struct fake_facts *facts, int r,
                          const struct err *err)
{
    struct sim *s = c->sim;
    bool dying = facts->terminated_ns || facts->gone;

    if (r == 0 && c->action == ACT_START && vm_state(s->vm) != VM_RUNNING)
        sim_broken(s, "client %u's start succeeded in state %s", c->client,
                   vm_state_name(vm_state(s->vm)));
    if (r == 0 && c->action == ACT_START && facts->terminated_ns)
        sim_broken(s, "client %u's start succeeded for a VM that is being killed", c->client);
    if (r < 0 && c->action == ACT_START && c->state < VM_STOPPING && !s->shutdown_by_ns &&
        vm_state(s->vm) >= VM_STOPPING && facts->started && !dying)
        sim_broken(s, "client %u's start failed, but the VM keeps running", c->client);
    if (r < 0 && err->code == ERR_NONE)
        sim_broken(s, "client %u's %s failed without an error", c->client, c->name);
    if (r < 0 && c->guest && err->code == ERR_UNAVAILABLE && s->plan.honest && !dying)
        sim_broken(s, "client %u's %s lost the bridge of an honest guest: %s", c->client, c->name,
                   err->msg);
    if (r < 0 && s->plan.fault == SIM_NONE && !c->limited && !dying && !s->ended_by_client &&
        (c->state == VM_RUNNING || c->action == ACT_START))
        sim_broken(s, "client %u's %s failed though nothing is wrong: %s", c->client, c->name,
                   err->msg);
    if (r < 0 && c->action == ACT_TERMINATE && !c->limited && s->plan.vmm.release.how == FAKE_OK &&
        s->plan.vmm.release_failures == 0 && s->plan.vmm.kill_ns < VM_KILL_LIMIT)
        sim_broken(s, "client %u's terminate failed though it could not: %s", c->client, err->msg);
    if (r == 0 && c->action == ACT_TERMINATE && !facts->released)
        sim_broken(s, "client %u's terminate succeeded before everything was cleaned up",
                   c->client);
}

void sim_call_end(struct sim_call *c, int r, const struct err *err)
{
    struct sim *s = c->sim;
    struct fake_facts facts;

    sim_say(s, "client %u: %s %s%s", c->client, c->name, r < 0 ? "failed: " : "done",
            r < 0 ? err->msg : "");
    s->result->figures[SIM_FAILED] += r < 0;
    fake_vmm_facts(s->vmm, &facts);
    sim_look(s);
    check_time(c, &facts, loop_now(s->loop));
    check_outcome(c, &facts, r, err);
}

/* --- the other inhabitants --- */

/* From the end of the VMM to the news of it, and from the first wish to the end. */
static void check_promptness(struct sim *s, const struct fake_facts *facts)
{
    const struct fake_vmm_opts *v = &s->plan.vmm;
    uint64_t after = loop_now(s->loop) - facts->gone_ns;

    if (!facts->gone || v->kill_ns >= VM_KILL_LIMIT)
        return;
    /* A release may be disturbed once, by a terminate that comes in between. */
    if (v->release.how == FAKE_OK && v->release_failures == 0 &&
        after > VM_DRAIN_LIMIT + 2 * v->release.delay_ns + VM_RELEASE_PAUSE)
        sim_broken(s, "the exit of the VMM was reported after %llu ms",
                   (unsigned long long)(after / NS_PER_MS));
    if (s->shutdown_by_ns && facts->gone_ns > s->shutdown_by_ns + v->kill_ns)
        sim_broken(s, "a shutdown took longer than its steps are allowed to");
}

static void exited(struct sim *s, const struct vm_exit *e)
{
    struct fake_facts facts;

    sim_say(s, "exit: code %u%s %s", e->code, e->requested ? ", requested" : "", e->why);
    s->exited = true;
    s->exit = *e;
    s->exit_ns = loop_now(s->loop);
    fake_vmm_facts(s->vmm, &facts);
    if (facts.died && e->code == 0)
        sim_broken(s, "the VM died, but its exit code is 0");
    if (e->code == 0 && !e->requested)
        sim_broken(s, "exit code 0 without a request");
    if (e->code != 0 && !e->why[0])
        sim_broken(s, "exit code %u without a reason", e->code);
    if (!s->ended_by_client && !facts.powered_off && facts.started && e->code == 0)
        sim_broken(s, "exit code 0, but no client requested the end");
    check_promptness(s, &facts);
    sim_look(s);
}

/* In the moment in which it is Gone. */
static void exit_main(void *arg)
{
    struct sim *s = arg;
    AUTO(vm_unref) struct vm *vm = vm_ref(s->vm);
    struct ctx ctx = ctx_root(s->loop);
    struct vm_exit x;
    struct err err = ERR_INIT;

    while (vm_state(vm) != VM_GONE)
        (void)waitq_wait(&ctx, &vm->changed, "the VM's exit", &err); /* without a limit */
    if (vm_wait(&ctx, vm, &x, &err) == 0)
        exited(s, &x);
    else
        sim_broken(s, "it is Gone, and a wait fails: %s", err.msg);
}

static void on_stage_told(void *arg, enum vm_stage stage)
{
    struct sim *s = arg;

    sim_say(s, "stage %s", vm_stage_name(stage));
    if (stage <= s->stage)
        sim_broken(s, "stage fell from %s to %s", vm_stage_name(s->stage), vm_stage_name(stage));
    s->stage = stage;
}

static struct fake_answer decide(void *arg, uint32_t type)
{
    struct sim *s = arg;
    const struct sim_plan *p = &s->plan;
    struct fake_answer a = { FAKE_ANSWER };
    unsigned dice = (unsigned)rng_below(&s->rng, 1000);

    if (p->answer_ns && rng_below(&s->rng, 2))
        a.delay_ns = rng_below(&s->rng, p->answer_ns);
    if (dice < p->poisoned)
        a.how =
            type == BRIDGE_EXECUTE_PROCESS && rng_below(&s->rng, 2)
                ? FAKE_TWICE
                : FAKE_FIRST_HOSTILE + rng_below(&s->rng, FAKE_ANSWER_COUNT - FAKE_FIRST_HOSTILE);
    else if ((dice -= p->poisoned) < p->silent && type != BRIDGE_NEGOTIATE_PROTOCOL)
        a.how = FAKE_SILENT;
    else if ((dice -= p->silent) < p->late)
        a.delay_ns = rng_below(&s->rng, 90 * NS_PER_S);
    else if ((dice -= p->late) < p->refused) {
        a.how = FAKE_REFUSE;
        a.hr = rng_below(&s->rng, 2) ? BRIDGE_HR_NOT_FOUND : BRIDGE_HR_FAIL;
    }
    sim_say(s, "guest: %s, answer %d after %llu us", bridge_message_name(type), a.how,
            (unsigned long long)(a.delay_ns / NS_PER_US));
    return a;
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
    struct sim *s = arg;
    struct fake_guest_opts *g = &s->plan.guest;

    g->loop = s->loop;
    g->dial = dial;
    g->dial_arg = v;
    g->power = power;
    g->decide = decide;
    g->decide_arg = s;
    g->power_off = s->plan.can_power_off ? power_off : NULL;
    g->power_off_arg = v;
    g->log_text = s->log;
    g->log_len = strlen(s->log);
    fake_guest_boot(g);
}

static void vmm_trace(void *arg, const char *what)
{
    sim_say(arg, "vmm: %s", what);
    look_at_things(arg);
}

static void prober_main(void *arg)
{
    struct sim *s = arg;
    struct ctx ctx = ctx_root(s->loop);
    struct err err = ERR_INIT;

    for (unsigned i = 0; i < SIM_PROBES && s->vm; i++) {
        sim_look(s);
        (void)fiber_sleep(&ctx, rng_below(&s->rng, 4 * NS_PER_S), &err);
    }
}

/* Ends it all: nobody may be left, nothing may be left. */
static void closer_main(void *arg)
{
    struct sim *s = arg;
    struct ctx root = ctx_root(s->loop);
    struct err err = ERR_INIT;
    bool over = false;

    (void)fiber_sleep(&root, s->plan.end_ns, &err);
    for (unsigned i = 0; i < SIM_CLOSE_ROUNDS && !over; i++) {
        struct sim_call c = { s, 99, ACT_TERMINATE, "terminate" };
        struct ctx limited = ctx_with_timeout(&root, VM_END_LIMIT + NS_PER_S);
        int r;

        err_clear(&err);
        sim_call_begin(&c);
        vm_kill(s->vm, VM_END_KILL, "the VM was terminated");
        r = vm_wait(&limited, s->vm, NULL, &err);
        sim_call_end(&c, r, &err);
        limited = ctx_with_timeout(&root, SIM_CLIENT_LIMIT);
        over = r == 0 && fibers_wait(&limited, &s->clients, "clients", &err) == 0 &&
               vm_state(s->vm) == VM_GONE;
    }
    if (!over) {
        AUTO(sbuf_release) struct sbuf text = { 0 };

        loop_dump(s->loop, &text);
        sim_broken(s, "it does not end: %s\n%s", err.msg, text.data);
        loop_stop(s->loop);
        return;
    }
    sim_look(s);
    vm_free(TAKE_PTR(s->vm));
}

/* --- a schedule --- */

static void make_log(struct sim *s)
{
    static const char *const lines[] = {
        "{\"level\":\"info\",\"msg\":\"hello\",\"time\":\"now\"}\n",
        "{\"msg\":\"boot stage\",\"stage\":\"modules\",\"start_ns\":1000,\"end_ns\":2000,"
        "\"boottime_ns\":3000}\n",
        "{\"msg\":\"boot stage\",\"stage\":\"x\",\"start_ns\":18446744073709551615,\"end_ns\":1,"
        "\"boottime_ns\":9223372036854775808}\n",
    };
    size_t n = 0;

    for (unsigned i = (unsigned)rng_below(&s->rng, 4); i > 0; i--) {
        const char *line = lines[rng_below(&s->rng, ARRAY_LEN(lines))];

        memcpy(s->log + n, line, strlen(line));
        n += strlen(line);
    }
    while (s->plan.rubbish_log && n + 1 < sizeof(s->log) && rng_below(&s->rng, 100))
        s->log[n++] = (char)(1 + rng_below(&s->rng, 255));
    s->log[n] = '\0';
}

static void build(struct sim *s)
{
    struct fake_vmm_opts *v = &s->plan.vmm;

    v->loop = s->loop;
    v->dir = s->dir;
    v->on_power = on_power;
    v->on_power_arg = s;
    v->trace = vmm_trace;
    v->trace_arg = s;
    s->vmm = fake_vmm_new(v);
    s->vmm->timeline = &s->timeline;
    s->guest = bridge_new(s->loop, s->vmm, &s->timeline);
    s->vm = vm_new(s->loop, s->vmm, s->guest);
    vm_on_stage(s->vm, on_stage_told, s);
    fiber_go(s->loop, exit_main, s, "exit");
    fibers_init(&s->clients);
    for (unsigned i = 0; i < s->plan.n_clients; i++)
        cancel_init(&s->cancels[i], NULL);
}

static void check_end(struct sim *s, size_t parked)
{
    if (parked > 0 && !s->result->broken[0]) {
        AUTO(sbuf_release) struct sbuf text = { 0 };

        loop_dump(s->loop, &text);
        sim_broken(s, "fibers that nothing can wake: %s", text.data);
    }
    if (access(s->dir, F_OK) == 0) {
        sim_broken(s, "things are left in %s", s->dir);
        (void)dir_remove(s->dir);
    }
    if (loop_now(s->loop) > SIM_TIME_BOUND)
        sim_broken(s, "it took %llu s of virtual time",
                   (unsigned long long)(loop_now(s->loop) / NS_PER_S));
}

void sim_run(uint64_t seed, const char *dir, struct cli_result *ret)
{
    struct loop_opts opts = { .virtual_time = true, .seed = seed };
    struct sim *s = mem_new(struct sim);
    struct sim_fiber fibers[SIM_CLIENTS_MAX];

    s->result = ret;
    rng_seed(&s->rng, seed);
    sim_plan_make(&s->plan, &s->rng, (enum sim_fault)(seed % SIM_FAULT_COUNT));
    snprintf(s->dir, sizeof(s->dir), "%s/%llu", dir, (unsigned long long)seed);
    make_log(s);
    s->loop = loop_new(&opts);
    build(s);
    for (unsigned i = 0; i < s->plan.n_clients; i++) {
        fibers[i] = (struct sim_fiber){ s, i };
        fibers_go(&s->clients, s->loop, sim_client_main, &fibers[i], "client %u", i);
        if (s->plan.clients[i].cancel_ns)
            fibers_go(&s->clients, s->loop, sim_canceller_main, &fibers[i], "canceller %u", i);
    }
    fibers_go(&s->clients, s->loop, prober_main, s, "prober");
    fiber_go(s->loop, closer_main, s, "closer");
    check_end(s, loop_run(s->loop));
    loop_free(s->loop);
    free(s);
}
