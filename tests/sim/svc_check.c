/* svc_check.c - is this answer right? Its code, its time, what it says. */
#include "api/task.pb-c.h"
#include "base/loop.h"
#include "fixture/ids_fixture.h"
#include "fixture/ttrpc_read.h"
#include "host/bridge/bridge.h"
#include "host/control/container.h"
#include "host/control/registry.h"
#include "proto/pb.h"
#include "svc_priv.h"
#include <stdlib.h>

#define BIT(code) (1u << (code))
#define OK BIT(ERR_NONE)
/* What a VM, guest or host that fails may be reported as. */
#define TROUBLE                                                                                    \
    (BIT(ERR_INTERNAL) | BIT(ERR_UNAVAILABLE) | BIT(ERR_EXHAUSTED) | BIT(ERR_DEADLINE) |           \
     BIT(ERR_NOT_FOUND) | BIT(ERR_STATE))

/* What each call may be answered with when nothing is wrong, but others call too. */
static const struct {
    uint32_t codes;
    bool quick;    /* from memory: in no time, whatever is stuck */
    bool stable;   /* trouble below does not show */
    bool finishes; /* what was begun is finished, whatever time the client gives */
} rules[SVC_ACT_COUNT] = {
    [SVC_CREATE] = { OK | BIT(ERR_EXISTS) | BIT(ERR_UNAVAILABLE) },
    [SVC_START] = { OK | BIT(ERR_NOT_FOUND) | BIT(ERR_STATE), .finishes = true },
    [SVC_EXEC] = { OK | BIT(ERR_NOT_FOUND) | BIT(ERR_EXISTS) | BIT(ERR_STATE), true, true },
    [SVC_KILL] = { OK | BIT(ERR_NOT_FOUND) | BIT(ERR_STATE), .finishes = true },
    [SVC_WAIT] = { OK | BIT(ERR_NOT_FOUND), false, true },
    [SVC_DELETE] = { OK | BIT(ERR_NOT_FOUND) | BIT(ERR_STATE), .finishes = true },
    [SVC_STATE] = { OK | BIT(ERR_NOT_FOUND), true, true },
    [SVC_PIDS] = { OK | BIT(ERR_NOT_FOUND), false, true },
    [SVC_CONNECT] = { OK, true, true },
    [SVC_PAUSE] = { OK | BIT(ERR_NOT_FOUND) | BIT(ERR_STATE), .finishes = true },
    [SVC_RESUME] = { OK | BIT(ERR_NOT_FOUND) | BIT(ERR_STATE), .finishes = true },
    [SVC_STATS] = { OK | BIT(ERR_NOT_FOUND) | BIT(ERR_UNAVAILABLE) },
    [SVC_UPDATE] = { OK | BIT(ERR_NOT_FOUND) | BIT(ERR_STATE) },
    [SVC_CLOSE_IO] = { OK | BIT(ERR_NOT_FOUND), true, true },
    [SVC_RESIZE] = { OK | BIT(ERR_NOT_FOUND) },
    [SVC_CHECKPOINT] = { BIT(ERR_UNIMPLEMENTED) | BIT(ERR_NOT_FOUND), true, true },
    [SVC_SHUTDOWN] = { OK, true, true },
    [SVC_SB_CREATE] = { OK | BIT(ERR_EXISTS) },
    [SVC_SB_START] = { OK | BIT(ERR_STATE) | BIT(ERR_UNAVAILABLE), .finishes = true },
    [SVC_SB_STOP] = { OK, .finishes = true },
    [SVC_SB_WAIT] = { OK, false, true },
    [SVC_SB_STATUS] = { OK, true, true },
    [SVC_SB_PLATFORM] = { OK, true, true },
    [SVC_SB_PING] = { OK | BIT(ERR_STATE) | BIT(ERR_UNAVAILABLE) },
    [SVC_SB_METRICS] = { OK | BIT(ERR_STATE) | BIT(ERR_UNAVAILABLE) },
    [SVC_SB_SHUTDOWN] = { OK, .finishes = true },
};

/* VM, guest and host do what they are asked. */
static bool willing(const struct svc *s)
{
    return (s->w.faults & ~(unsigned)(WORLD_CLOCK | WORLD_DEATH)) == 0;
}

uint64_t svc_bound(const struct svc *s, const struct svc_ask *a)
{
    bool wills = willing(s);
    uint64_t left = a->timeout_ns > 0 ? (uint64_t)a->timeout_ns : a->timeout_ns ? 0 : UINT64_MAX;
    uint64_t most;

    if (rules[a->act].quick)
        return 0;
    if (a->act == SVC_WAIT || a->act == SVC_SB_WAIT)
        return left == UINT64_MAX ? UINT64_MAX : left;
    if (a->act == SVC_PIDS)
        return wills ? NS_PER_S : CONTAINER_LIST_LIMIT;
    if (a->act == SVC_SB_PING && !wills)
        return 6 * NS_PER_S; /* bounded, whatever the guest does */
    if (a->act == SVC_KILL)
        most = wills ? NS_PER_S : 26 * NS_PER_S;
    else if (wills)
        most = 30 * NS_PER_S; /* with all that may be before it at the gate */
    else                      /* a step that hangs, what was before us at the gate, and clean-up */
        most = (left < BRIDGE_CALL_LIMIT ? left : BRIDGE_CALL_LIMIT) + 200 * NS_PER_S;
    return most;
}

static void check_code(struct svc *s, const struct svc_call *call)
{
    const struct svc_ask *a = &call->ask;
    uint32_t legal = rules[a->act].codes;

    if (a->bad)
        legal = BIT(a->bad);
    else if (!rules[a->act].stable && (!willing(s) || s->w.faults & WORLD_DEATH || s->pods))
        legal |= TROUBLE; /* a pod that ends takes its containers along */
    if (s->pods && a->act == SVC_CREATE && !a->bad)
        legal |= BIT(ERR_STATE); /* it is not ready, or not any more */
    /* Not made: its Create was lost on the way, or failed. */
    if (s->pods && a->act >= SVC_SB_CREATE && !a->bad)
        legal |= BIT(ERR_NOT_FOUND);
    if (!a->bad && !rules[a->act].stable && s->w.faults & (WORLD_REFUSING | WORLD_HOSTILE))
        legal |= BIT(ERR_UNKNOWN); /* the guest's own word for it */
    if (a->timeout_ns && !rules[a->act].quick && !rules[a->act].finishes)
        legal |= BIT(ERR_DEADLINE);
    if (s->leaving) /* its VM goes under it, then its server; nothing is there then */
        legal |=
            BIT(ERR_UNAVAILABLE) | BIT(ERR_NOT_FOUND) | (rules[a->act].stable ? 0 : BIT(ERR_STATE));
    if (call->code < 32 && legal & BIT(call->code))
        return;
    world_broken(&s->w, "%s %s/%s is answered with code %u: %s", svc_method(a->act), a->id, a->exec,
                 call->code, call->text);
}

/* A create that failed has left nothing, not even its id, unless the clean-up fails too. A shim
 * that leaves refuses a second Create of an id before it looks whether the first is still rolled
 * back. */
static void check_undone(struct svc *s, const struct svc_ask *a)
{
    struct err none = ERR_INIT;
    struct container *c = registry_find(s->registry, a->id, &none);

    if (c && container_state(c) == CONTAINER_INVALID && willing(s) && !s->leaving)
        world_broken(&s->w, "Create of %s failed and left something", a->id);
}

static void check_time(struct svc *s, const struct svc_call *call)
{
    uint64_t took = call->answered_ns - call->sent_ns, bound = svc_bound(s, &call->ask);
    uint64_t held = svc_held(s) - call->held_ns; /* an upgrade waited */

    if (!call->sent || call->conn->slow || s->leaving)
        return; /* it began before its last byte was sent; or the delay is the client's own */
    if (took > held && took - held > bound)
        world_broken(&s->w, "%s %s/%s took %llu ms", svc_method(call->ask.act), call->ask.id,
                     call->ask.exec, (unsigned long long)(took / NS_PER_MS));
}

/* --- what it says --- */

static void check_status(struct svc *s, const struct svc_ask *a, uint32_t status)
{
    /* An exec that was deleted before its start: 0. */
    if (!world_status_ok(status) && !(a->exec[0] && status == 0))
        world_broken(&s->w, "%s %s/%s has status %u, but no process exited with that",
                     svc_method(a->act), a->id, a->exec, status);
}

static void check_state(struct svc *s, struct svc_call *call)
{
    AUTO(pb_free) StateResponse *r = svc_call_answer(call, &state_response__descriptor);
    const struct svc_ask *a = &call->ask;
    bool stopped = r && r->status == STATUS__STOPPED;

    if (!r)
        return;
    if (!str_eq(r->id, a->id) || !str_eq(r->exec_id, a->exec) || !str_eq(r->bundle, s->bundle) ||
        !str_eq(r->stdout, a->exec[0] ? "/xout" : "/out"))
        world_broken(&s->w, "State of %s/%s is that of another: %s/%s %s %s", a->id, a->exec, r->id,
                     r->exec_id, r->bundle, r->stdout);
    /* A container that is being made has no pid yet. */
    if (stopped != (pb_time(r->exited_at) > 0) || (r->pid == 0 && r->status != STATUS__UNKNOWN))
        world_broken(&s->w, "State of %s/%s: status %d, pid %u, %s exit time", a->id, a->exec,
                     r->status, r->pid, r->exited_at ? "an" : "no");
    if (!stopped)
        return;
    check_status(s, a, r->exit_status);
    svc_laws_ended(s, a->id, a->exec, r->pid, r->exit_status, pb_time(r->exited_at));
}

static void check_wait(struct svc *s, struct svc_call *call)
{
    AUTO(pb_free) WaitResponse *r = svc_call_answer(call, &wait_response__descriptor);
    const struct svc_ask *a = &call->ask;

    if (!r)
        return;
    if (pb_time(r->exited_at) == 0)
        world_broken(&s->w, "Wait for %s/%s gives no time", a->id, a->exec);
    check_status(s, a, r->exit_status);
    svc_laws_ended(s, a->id, a->exec, 0, r->exit_status, pb_time(r->exited_at));
}

static void check_delete(struct svc *s, struct svc_call *call)
{
    AUTO(pb_free) DeleteResponse *r = svc_call_answer(call, &delete_response__descriptor);
    const struct svc_ask *a = &call->ask;
    uint64_t at = r ? pb_time(r->exited_at) : 0;

    if (!r)
        return;
    if (at == 0) { /* what was left of a create that failed */
        if (r->exit_status != 0)
            world_broken(&s->w, "Delete of %s/%s gives a status and no time", a->id, a->exec);
        return;
    }
    check_status(s, a, r->exit_status);
    svc_laws_done(s, a, r->pid);
    svc_laws_ended(s, a->id, a->exec, r->pid, r->exit_status, at);
}

static void check_pid(struct svc *s, struct svc_call *call)
{
    AUTO(pb_free) void *r = NULL;
    uint32_t pid = 0;

    if (call->ask.act == SVC_CREATE &&
        (r = svc_call_answer(call, &create_task_response__descriptor)))
        pid = ((CreateTaskResponse *)r)->pid;
    else if (call->ask.act == SVC_START && (r = svc_call_answer(call, &start_response__descriptor)))
        pid = ((StartResponse *)r)->pid;
    if (!r)
        return;
    if (pid == 0)
        world_broken(&s->w, "%s of %s/%s gives pid 0", svc_method(call->ask.act), call->ask.id,
                     call->ask.exec);
    svc_laws_done(s, &call->ask, pid);
}

static void check_pids(struct svc *s, struct svc_call *call)
{
    AUTO(pb_free) PidsResponse *r = svc_call_answer(call, &pids_response__descriptor);

    if (r && r->n_processes == 0)
        world_broken(&s->w, "container %s has no pids", call->ask.id);
    for (size_t i = 1; r && i < r->n_processes; i++)
        if (r->processes[i]->pid <= CONTAINER_PID_BASE)
            world_broken(&s->w, "container %s lists pid %u, which may be one of the host's",
                         call->ask.id, r->processes[i]->pid);
}

static void check_connect(struct svc *s, struct svc_call *call)
{
    AUTO(pb_free) ConnectResponse *r = svc_call_answer(call, &connect_response__descriptor);

    if (r && r->shim_pid == 0)
        world_broken(&s->w, "Connect gives no pid of the shim");
}

static void check_stats(struct svc *s, struct svc_call *call)
{
    AUTO(pb_free) StatsResponse *r = svc_call_answer(call, &stats_response__descriptor);

    if (r && !r->stats)
        world_broken(&s->w, "Stats of %s gives none", call->ask.id);
}

void svc_check_answer(struct svc *s, struct svc_call *call)
{
    static void (*const checks[SVC_ACT_COUNT])(struct svc *, struct svc_call *) = {
        [SVC_CREATE] = check_pid,    [SVC_START] = check_pid,       [SVC_WAIT] = check_wait,
        [SVC_DELETE] = check_delete, [SVC_STATE] = check_state,     [SVC_PIDS] = check_pids,
        [SVC_STATS] = check_stats,   [SVC_CONNECT] = check_connect,
    };

    world_say(&s->w, "answer to %s %s/%s: %u %s", svc_method(call->ask.act), call->ask.id,
              call->ask.exec, call->code, call->text);
    ids_expect_error(call->text);
    s->w.result->figures[SVC_FIG_FAILED] += call->code != ERR_NONE;
    check_code(s, call);
    check_time(s, call);
    if (call->code != ERR_NONE) {
        if (call->ask.act == SVC_CREATE && call->code != ERR_EXISTS)
            check_undone(s, &call->ask);
        return;
    }
    if (call->ask.act >= SVC_SB_CREATE)
        svc_sandbox_answer(s, call);
    else if (checks[call->ask.act])
        checks[call->ask.act](s, call);
    else
        svc_laws_done(s, &call->ask, 0);
}
