/* svc_sandbox.c - a pod made on purpose: the Sandbox service among the calls of a schedule, and
 * what its answers must say. Its containers are those that all other clients play with. */
#include "api/sandbox.pb-c.h"
#include "base/loop.h"
#include "fixture/ttrpc_read.h"
#include "host/control/registry.h"
#include "host/control/sandbox.h"
#include "proto/pb.h"
#include "svc_priv.h"
#include <stdio.h>
#include <stdlib.h>

struct svc_ask svc_sandbox_ask(struct svc *s)
{
    static const enum svc_act often[] = { SVC_SB_STATUS,  SVC_SB_STATUS, SVC_SB_PING,
                                          SVC_SB_PING,    SVC_SB_WAIT,   SVC_SB_PLATFORM,
                                          SVC_SB_METRICS, SVC_SB_START,  SVC_SB_CREATE };
    struct svc_ask a = { .act = often[world_below(&s->w, ARRAY_LEN(often))], .id = "s" };

    if (world_chance(&s->w, 60))
        a.act = SVC_SB_STOP;
    else if (world_chance(&s->w, 20))
        a.act = SVC_SB_SHUTDOWN;
    a.grace_s = world_chance(&s->w, 500) ? world_below(&s->w, 5) : 0;
    if (a.act != SVC_SB_CREATE && a.act != SVC_SB_SHUTDOWN && world_chance(&s->w, 30)) {
        snprintf(a.id, sizeof(a.id), "z");
        a.bad = ERR_NOT_FOUND;
    }
    return a;
}

static int do_one(struct svc *s, enum svc_act act, struct svc_call **ret_call)
{
    const struct svc_ask a = { .act = act, .id = "s" };
    struct svc_conn *c = svc_conn_get(s, 0);
    int r = c ? svc_do(s, c, &a, ret_call) : -1;

    svc_conn_unref(c);
    return r;
}

void svc_sandbox_open(struct svc *s)
{
    (void)do_one(s, SVC_SB_CREATE, NULL);
    (void)do_one(s, SVC_SB_START, NULL);
}

/* Whatever has become of it: it stops, it has ended, and it is not ready. */
void svc_sandbox_close(struct svc *s)
{
    struct svc_call *call = NULL;

    for (unsigned round = 0; round < SVC_CLEAN_ROUNDS && !s->left; round++) {
        if (do_one(s, SVC_SB_STOP, &call) == 0 &&
            (call->code == ERR_NONE || call->code == ERR_NOT_FOUND))
            break;
        call = NULL;
    }
    if (s->left || s->leaving)
        return;
    if (!call)
        world_broken(&s->w, "the sandbox cannot be stopped");
    else if (call->code == ERR_NONE && do_one(s, SVC_SB_WAIT, NULL) < 0 && !s->leaving)
        world_broken(&s->w, "the sandbox was stopped, but its end is not reported");
    (void)do_one(s, SVC_SB_STATUS, NULL);
}

/* --- answers --- */

static void check_started(struct svc *s, struct svc_call *call)
{
    AUTO(pb_free)
    StartSandboxResponse *r = svc_call_answer(call, &start_sandbox_response__descriptor);

    if (!r)
        return;
    if (r->pid == 0 || pb_time(r->created_at) == 0 || (s->sandbox_pid && s->sandbox_pid != r->pid))
        world_broken(&s->w, "StartSandbox gives pid %u, before that %u", r->pid, s->sandbox_pid);
    s->sandbox_pid = r->pid;
}

static void check_ended(struct svc *s, struct svc_call *call)
{
    AUTO(pb_free)
    WaitSandboxResponse *r = svc_call_answer(call, &wait_sandbox_response__descriptor);

    if (!r)
        return;
    if (pb_time(r->exited_at) == 0)
        world_broken(&s->w, "WaitSandbox gives no time");
    if (r->exit_status == 0 && s->stops == 0)
        world_broken(&s->w, "the sandbox ended with 0, but no client stopped it");
    if (s->sandbox_ended && s->sandbox_status != r->exit_status)
        world_broken(&s->w, "the sandbox ended with %u, then with %u", s->sandbox_status,
                     r->exit_status);
    s->sandbox_ended = true;
    s->sandbox_status = r->exit_status;
}

static void check_status(struct svc *s, struct svc_call *call)
{
    AUTO(pb_free)
    SandboxStatusResponse *r = svc_call_answer(call, &sandbox_status_response__descriptor);
    bool ready = r && str_eq(r->state, "SANDBOX_READY");

    if (!r)
        return;
    if (!ready && !str_eq(r->state, "SANDBOX_NOTREADY"))
        world_broken(&s->w, "the sandbox is %s", r->state);
    if (ready != (r->pid != 0))
        world_broken(&s->w, "the sandbox is %s with pid %u", r->state, r->pid);
    /* Answers cross each other; but what has ended and was reported stays ended. */
    if (ready && s->sandbox_ended && call->sent_ns > s->sandbox_ended_ns)
        world_broken(&s->w, "the sandbox is ready after its end");
}

void svc_sandbox_answer(struct svc *s, struct svc_call *call)
{
    bool ended = s->sandbox_ended;

    if (call->ask.act == SVC_SB_START)
        check_started(s, call);
    else if (call->ask.act == SVC_SB_WAIT)
        check_ended(s, call);
    else if (call->ask.act == SVC_SB_STATUS)
        check_status(s, call);
    if (s->sandbox_ended && !ended)
        s->sandbox_ended_ns = loop_now(s->w.loop);
}
