/* svc_alone.c - one client, a willing VM, processes that end only when they are killed: every
 * answer is known beforehand, from containerd's own table (docs/reference/containerd-contract.md
 * §3.3). Answers get lost and their requests are repeated; then the table says what the repetition
 * must be answered. */
#include "api/task.pb-c.h"
#include "base/loop.h"
#include "proto/pb.h"
#include "svc_priv.h"
#include <stdio.h>

#define STEPS 40
#define SHORT (50 * (int64_t)NS_PER_MS)

enum life { GONE, CREATED, RUNNING, PAUSED, STOPPED };
enum exec { NONE, ADDED, ALIVE, ENDED };

struct model {
    enum life life;
    uint32_t status;
    struct {
        enum exec state;
        uint32_t status;
    } execs[SVC_EXECS];
};

struct alone {
    struct svc *s;
    struct model models[SVC_CONTAINERS];
};

static struct model *model_of(struct alone *t, const struct svc_ask *a)
{
    return &t->models[a->id[0] - 'a'];
}

/* The code that this must be answered with. */
static uint32_t expect_exec(const struct model *m, const struct svc_ask *a)
{
    enum exec e = m->execs[a->exec[1] - '0'].state;

    if (m->life == GONE)
        return ERR_NOT_FOUND;
    if (a->act == SVC_EXEC)
        return e != NONE                                 ? ERR_EXISTS
               : m->life == PAUSED || m->life == STOPPED ? ERR_STATE
                                                         : ERR_NONE;
    if (e == NONE)
        return ERR_NOT_FOUND;
    switch (a->act) {
    case SVC_START:
        return m->life != RUNNING || e != ADDED ? ERR_STATE : ERR_NONE;
    case SVC_KILL:
        return e == ADDED ? ERR_STATE : e == ENDED ? ERR_NOT_FOUND : ERR_NONE;
    case SVC_DELETE:
        return e == ALIVE ? ERR_STATE : ERR_NONE;
    case SVC_WAIT:
        return e == ENDED ? ERR_NONE : ERR_DEADLINE;
    default:
        return ERR_NONE;
    }
}

static uint32_t expect(struct alone *t, const struct svc_ask *a)
{
    const struct model *m = model_of(t, a);
    enum life l = m->life;

    if (a->act == SVC_CONNECT || a->act == SVC_SHUTDOWN)
        return ERR_NONE;
    if (a->exec[0])
        return expect_exec(m, a);
    if (a->act == SVC_CREATE)
        return l == GONE ? ERR_NONE : ERR_EXISTS;
    if (l == GONE)
        return ERR_NOT_FOUND;
    switch (a->act) {
    case SVC_START:
        return l == CREATED ? ERR_NONE : ERR_STATE;
    case SVC_KILL:
        return l == STOPPED && !a->all ? ERR_NOT_FOUND : ERR_NONE;
    case SVC_DELETE:
        return l == CREATED || l == STOPPED ? ERR_NONE : ERR_STATE;
    case SVC_PAUSE:
        return l == RUNNING ? ERR_NONE : ERR_STATE;
    case SVC_RESUME:
        return l == PAUSED ? ERR_NONE : ERR_STATE;
    case SVC_UPDATE:
        return l == STOPPED ? ERR_STATE : ERR_NONE;
    case SVC_WAIT:
        return l == STOPPED ? ERR_NONE : ERR_DEADLINE;
    case SVC_CHECKPOINT:
        return ERR_UNIMPLEMENTED;
    default:
        return ERR_NONE;
    }
}

/* The rest dies with the first, of SIGKILL; unless all got the signal. */
static void stop(struct model *m, const struct svc_ask *a)
{
    m->life = STOPPED;
    m->status = 128 + a->signo;
    for (int i = 0; i < SVC_EXECS; i++) {
        if (m->execs[i].state == ALIVE) {
            m->execs[i].state = ENDED;
            m->execs[i].status = a->all ? 128 + a->signo : 137;
        }
    }
}

/* It was done. */
static void apply(struct alone *t, const struct svc_ask *a)
{
    struct model *m = model_of(t, a);
    unsigned x = a->exec[0] ? (unsigned)(a->exec[1] - '0') : 0;

    switch (a->act) {
    case SVC_CREATE:
        *m = (struct model){ .life = CREATED };
        break;
    case SVC_START:
        if (a->exec[0])
            m->execs[x].state = ALIVE;
        else
            m->life = RUNNING;
        break;
    case SVC_EXEC:
        m->execs[x].state = ADDED;
        break;
    case SVC_KILL:
        if (a->exec[0]) {
            m->execs[x].state = ENDED;
            m->execs[x].status = 128 + a->signo;
        } else if (m->life != STOPPED) {
            stop(m, a);
        }
        break;
    case SVC_DELETE:
        if (a->exec[0])
            m->execs[x].state = NONE;
        else
            *m = (struct model){ 0 };
        break;
    case SVC_PAUSE:
        m->life = PAUSED;
        break;
    case SVC_RESUME:
        m->life = RUNNING;
        break;
    default:
        break;
    }
}

/* --- looking --- */

static int status_of(const struct model *m, const struct svc_ask *a)
{
    static const int of_life[] = { [CREATED] = STATUS__CREATED,
                                   [RUNNING] = STATUS__RUNNING,
                                   [PAUSED] = STATUS__PAUSED,
                                   [STOPPED] = STATUS__STOPPED };
    static const int of_exec[] = {
        [ADDED] = STATUS__CREATED, [ALIVE] = STATUS__RUNNING, [ENDED] = STATUS__STOPPED
    };

    if (!a->exec[0])
        return of_life[m->life];
    return m->life == PAUSED && m->execs[a->exec[1] - '0'].state == ALIVE
               ? STATUS__PAUSED
               : of_exec[m->execs[a->exec[1] - '0'].state];
}

static void check_said(struct alone *t, struct svc_call *call)
{
    const struct svc_ask *a = &call->ask;
    const struct model *m = model_of(t, a);
    uint32_t status = a->exec[0] ? m->execs[a->exec[1] - '0'].status : m->status, said = status;

    if (a->act == SVC_STATE) {
        AUTO(pb_free) StateResponse *r = svc_call_answer(call, &state_response__descriptor);

        if (r && (int)r->status != status_of(m, a))
            world_broken(&t->s->w, "State of %s/%s is %d, not %d", a->id, a->exec, r->status,
                         status_of(m, a));
        said = r && r->status == STATUS__STOPPED ? r->exit_status : status;
    } else if (a->act == SVC_WAIT) {
        AUTO(pb_free) WaitResponse *r = svc_call_answer(call, &wait_response__descriptor);

        said = r ? r->exit_status : status;
    } else if (a->act == SVC_DELETE) {
        AUTO(pb_free) DeleteResponse *r = svc_call_answer(call, &delete_response__descriptor);

        if (m->life == CREATED && !a->exec[0])
            status = 137; /* never started: as if killed */
        said = r ? r->exit_status : status;
    }
    if (said != status)
        world_broken(&t->s->w, "%s %s/%s says status %u, not %u", svc_method(a->act), a->id,
                     a->exec, said, status);
}

/* --- steps --- */

static struct svc_ask make_ask(struct alone *t)
{
    static const enum svc_act often[] = { SVC_CREATE, SVC_START, SVC_EXEC,   SVC_START,
                                          SVC_KILL,   SVC_WAIT,  SVC_DELETE, SVC_STATE };
    struct world *w = &t->s->w;
    struct svc_ask a = { .signo = world_chance(w, 600) ? 9 : 15 };

    a.act = world_chance(w, 600) ? often[world_below(w, ARRAY_LEN(often))]
                                 : (enum svc_act)world_below(w, SVC_SHUTDOWN);
    snprintf(a.id, sizeof(a.id), "%c", 'a' + (int)world_below(w, SVC_CONTAINERS));
    if (a.act == SVC_EXEC || ((a.act == SVC_START || a.act == SVC_KILL || a.act == SVC_WAIT ||
                               a.act == SVC_DELETE || a.act == SVC_STATE) &&
                              world_chance(w, 400)))
        snprintf(a.exec, sizeof(a.exec), "x%u", world_below(w, SVC_EXECS));
    a.all = !a.exec[0] && world_chance(w, 400);
    if (a.act == SVC_WAIT)
        a.timeout_ns = SHORT; /* else it would wait without end */
    return a;
}

/* What was killed has ended before the next step. */
static void await_end(struct alone *t, struct svc_conn *c, const struct svc_ask *killed)
{
    struct svc_ask wait = *killed;

    wait.act = SVC_WAIT;
    wait.timeout_ns = 60 * (int64_t)NS_PER_S;
    (void)svc_do(t->s, c, &wait, NULL);
}

/* Once; true if it was answered. */
static bool ask_once(struct alone *t, const struct svc_ask *a, bool lose)
{
    uint32_t want = expect(t, a);
    struct svc_conn *c = svc_conn_get(t->s, 0);
    struct svc_call *call;
    bool answered = c && svc_do(t->s, c, a, &call) == 0;

    if (answered && call->code != want)
        world_broken(&t->s->w, "%s %s/%s is answered with code %u, not %u: %s", svc_method(a->act),
                     a->id, a->exec, call->code, want, call->text);
    else if (answered && want == ERR_NONE && a->act != SVC_CREATE) {
        check_said(t, call);
    }
    if (answered && want == ERR_NONE) {
        apply(t, a);
        if (a->act == SVC_KILL)
            await_end(t, c, a);
    }
    if (c && lose) /* the client never saw it */
        svc_conn_hang_up(c);
    svc_conn_unref(c);
    return answered;
}

void svc_alone_main(void *arg)
{
    struct alone t = { .s = arg };
    struct ctx root = ctx_root(t.s->w.loop);
    struct err err = ERR_INIT;

    for (int i = 0; i < STEPS && !t.s->w.result->broken[0]; i++) {
        struct svc_ask a = make_ask(&t);
        bool lose = world_chance(&t.s->w, 150);

        /* An exec in a container that was not started: the guest decides. */
        if (a.exec[0] && a.act == SVC_START && model_of(&t, &a)->life == CREATED)
            continue;
        if (!ask_once(&t, &a, lose))
            return;
        (void)fiber_sleep(&root, world_some_ns(&t.s->w, NS_PER_S), &err);
        if (lose && !ask_once(&t, &a, false))
            return;
    }
}
