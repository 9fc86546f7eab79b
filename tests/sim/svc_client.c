/* svc_client.c - what containerd does to a shim, by the dice. */
#include "base/loop.h"
#include "host/control/container.h"
#include "host/control/registry.h"
#include "svc_priv.h"
#include <stdio.h>
#include <stdlib.h>

#define CLEAN_WAIT (150 * NS_PER_S)

struct svc_conn *svc_conn_get(struct svc *s, unsigned number)
{
    struct svc_conn **slot = &s->conns[number % SVC_CONNS];
    struct ctx root = ctx_root(s->w.loop);
    struct err err = ERR_INIT;

    while (s->down && !s->left)
        (void)waitq_wait(&root, &s->back, "containerd to be back", &err);
    if (s->left)
        return NULL;
    if (*slot && ((*slot)->ended || (*slot)->hung_up)) {
        svc_conn_unref(*slot);
        *slot = NULL;
    }
    if (!*slot)
        *slot = svc_conn_new(s);
    (*slot)->refs++;
    return *slot;
}

int svc_do(struct svc *s, struct svc_conn *c, const struct svc_ask *ask, struct svc_call **ret_call)
{
    uint64_t bound = svc_bound(s, ask);
    struct ctx root = ctx_root(s->w.loop);
    /* A client that reads slowly has itself to blame. */
    struct ctx limited =
        ctx_with_timeout(&root, bound < UINT64_MAX / 2 ? bound + 60 * NS_PER_S : 0);
    struct err err = ERR_INIT;
    struct svc_call *call;

    world_say(&s->w, "%s %s/%s", svc_method(ask->act), ask->id, ask->exec);
    s->w.result->figures[SVC_FIG_CALLS]++;
    call = svc_conn_send(&root, c, ask);
    if (!call ||
        (svc_call_wait(bound == UINT64_MAX ? &root : &limited, call, &err) == 0 && call->lost)) {
        s->w.result->figures[SVC_FIG_LOST]++;
        return -1;
    }
    if (!call->answered) {
        world_broken(&s->w, "%s %s/%s is not answered", svc_method(ask->act), ask->id, ask->exec);
        return -1;
    }
    if (ret_call)
        *ret_call = call;
    return 0;
}

/* --- a step --- */

/* What leads on from where the container is. */
static enum svc_act sensible(struct svc *s, const char *id)
{
    static const enum svc_act running[] = { SVC_EXEC, SVC_EXEC, SVC_START, SVC_START, SVC_START,
                                            SVC_KILL, SVC_WAIT, SVC_PAUSE, SVC_DELETE };
    struct err none = ERR_INIT;
    struct container *c = registry_find(s->registry, id, &none);

    if (!c)
        return SVC_CREATE;
    switch (container_state(c)) {
    case CONTAINER_CREATED:
        return world_chance(&s->w, 700) ? SVC_START : SVC_EXEC;
    case CONTAINER_RUNNING:
        return running[world_below(&s->w, ARRAY_LEN(running))];
    case CONTAINER_PAUSED:
        return world_chance(&s->w, 600) ? SVC_RESUME : SVC_KILL;
    case CONTAINER_STOPPED:
    case CONTAINER_INVALID:
        return SVC_DELETE;
    default:
        return SVC_STATE;
    }
}

static enum svc_act choose(struct svc *s, const char *id)
{
    if (world_chance(&s->w, 600))
        return sensible(s, id);
    if (world_chance(&s->w, 980))
        return (enum svc_act)world_below(&s->w, SVC_SHUTDOWN);
    return SVC_SHUTDOWN;
}

static bool has_exec(enum svc_act a)
{
    return a == SVC_START || a == SVC_KILL || a == SVC_WAIT || a == SVC_DELETE || a == SVC_STATE ||
           a == SVC_CLOSE_IO || a == SVC_RESIZE;
}

static int64_t choose_timeout(struct svc *s)
{
    if (!s->deadlines || !world_chance(&s->w, 400))
        return 0;
    switch (world_below(&s->w, 4)) {
    case 0:
        return -1;
    case 1:
        return 1;
    default:
        return 1 + (int64_t)world_some_ns(&s->w, 5 * NS_PER_S);
    }
}

static void spoil(struct svc *s, struct svc_ask *a)
{
    switch (a->act) {
    case SVC_EXEC: /* without a process; if the container is known */
        break;
    case SVC_CREATE:
        a->bad = ERR_INVALID;
        break;
    case SVC_STATE:
    case SVC_WAIT:
    case SVC_DELETE:
    case SVC_PIDS:
    case SVC_PAUSE:
        if (world_chance(&s->w, 500)) {
            snprintf(a->id, sizeof(a->id), "z");
            a->bad = ERR_NOT_FOUND;
        } else {
            snprintf(a->id, sizeof(a->id), "../a");
            a->bad = ERR_INVALID;
        }
        break;
    default:
        break;
    }
}

/* Those that may be meant for an exec, if there is one. */
static bool exec_meant(struct svc *s, const struct svc_ask *a)
{
    struct err none = ERR_INIT;
    struct container *c = registry_find(s->registry, a->id, &none);

    if (a->act == SVC_EXEC)
        return true;
    if (!has_exec(a->act))
        return false;
    /* Most starts in a container that runs are those of execs. */
    if (a->act == SVC_START && c && container_state(c) == CONTAINER_RUNNING)
        return world_chance(&s->w, 900);
    return world_chance(&s->w, 300);
}

static struct svc_ask make_ask(struct svc *s)
{
    static const uint32_t signals[] = { 9, 9, 15, 10 };
    struct svc_ask a = { .timeout_ns = choose_timeout(s) };
    unsigned exec = world_below(&s->w, SVC_EXECS);

    snprintf(a.id, sizeof(a.id), "%c", 'a' + (int)world_below(&s->w, SVC_CONTAINERS));
    a.act = choose(s, a.id);
    if (exec_meant(s, &a))
        snprintf(a.exec, sizeof(a.exec), "x%u", exec);
    a.signo = signals[world_below(&s->w, ARRAY_LEN(signals))];
    if (a.signo == 10 && !a.exec[0])
        a.signo = 9; /* a container that was not started would end with a status nobody knows */
    a.all = !a.exec[0] && world_chance(&s->w, 500);
    if (world_chance(&s->w, 30))
        spoil(s, &a);
    return a;
}

static bool is_wait(const struct svc_ask *a)
{
    return a->act == SVC_WAIT || a->act == SVC_SB_WAIT;
}

/* Nobody knows when it will be answered; it stays asked. */
static void wait_for_a_while(struct svc *s, struct svc_conn *c, const struct svc_ask *ask)
{
    struct ctx root = ctx_root(s->w.loop);
    struct ctx limited = ctx_with_timeout(&root, world_some_ns(&s->w, 20 * NS_PER_S));
    struct svc_call *call;
    struct err err = ERR_INIT;

    world_say(&s->w, "%s %s/%s", svc_method(ask->act), ask->id, ask->exec);
    s->w.result->figures[SVC_FIG_CALLS]++;
    call = svc_conn_send(&root, c, ask);
    if (call)
        (void)svc_call_wait(&limited, call, &err);
}

/* Asks, and is gone before the answer; then perhaps asks again. */
static void ask_and_hang_up(struct svc *s, unsigned number, struct svc_conn *c,
                            const struct svc_ask *ask)
{
    struct ctx root = ctx_root(s->w.loop);
    struct err err = ERR_INIT;

    world_say(&s->w, "%s %s/%s, and hangs up", svc_method(ask->act), ask->id, ask->exec);
    s->w.result->figures[SVC_FIG_CALLS]++;
    s->w.result->figures[SVC_FIG_LOST]++;
    (void)svc_conn_send(&root, c, ask);
    (void)fiber_sleep(&root, world_some_ns(&s->w, 3 * NS_PER_S), &err);
    svc_conn_hang_up(c);
    if (!world_chance(&s->w, 600))
        return;

    struct svc_conn *again = svc_conn_get(s, number);

    if (again && is_wait(ask) && ask->timeout_ns == 0)
        wait_for_a_while(s, again, ask);
    else if (again)
        (void)svc_do(s, again, ask, NULL);
    svc_conn_unref(again);
}

/* As containerd does when it has found us again. */
static void reload(struct svc *s, struct svc_conn *c)
{
    struct ctx root = ctx_root(s->w.loop);

    for (int i = 0; i < SVC_CONTAINERS; i++) {
        struct svc_ask a = { .act = SVC_CONNECT };

        snprintf(a.id, sizeof(a.id), "%c", 'a' + i);
        (void)svc_do(s, c, &a, NULL);
        a.act = SVC_STATE;
        (void)svc_do(s, c, &a, NULL);
        a.act = SVC_WAIT;
        (void)svc_conn_send(&root, c, &a);
    }
}

static void do_step(struct svc_client *me, struct svc_conn *c)
{
    struct svc *s = me->s;
    struct ctx root = ctx_root(s->w.loop);
    struct svc_ask ask = s->pods && world_chance(&s->w, 250) ? svc_sandbox_ask(s) : make_ask(s);

    if (c->vandal && world_chance(&s->w, 300) && !svc_conn_vandalise(&root, c)) {
        svc_conn_hang_up(c);
        return;
    }
    if (s->hangs_up && world_chance(&s->w, 200)) {
        ask_and_hang_up(s, me->number, c, &ask);
    } else if (is_wait(&ask) && ask.timeout_ns == 0) {
        wait_for_a_while(s, c, &ask);
    } else {
        (void)svc_do(s, c, &ask, NULL);
    }
}

void svc_client_main(void *arg)
{
    struct svc_client *me = arg;
    struct svc *s = me->s;
    struct ctx root = ctx_root(s->w.loop);
    unsigned steps = 1 + world_below(&s->w, SVC_STEPS_MAX);
    struct err err = ERR_INIT;

    for (unsigned n = 0; n < steps && !s->closing; n++) {
        bool fresh = s->restarts && s->down;
        struct svc_conn *c;

        (void)fiber_sleep(&root, world_some_ns(&s->w, 2 * NS_PER_S), &err);
        fresh |= s->restarts && s->down;
        c = svc_conn_get(s, me->number);
        if (!c)
            break;
        if (fresh)
            reload(s, c);
        do_step(me, c);
        svc_conn_unref(c);
    }
    free(me);
}

/* --- the end --- */

/* 0: it is gone. */
static int delete_one(struct svc *s, struct svc_conn *c, const char *id)
{
    struct svc_ask a = { .act = SVC_DELETE, .signo = 9, .all = true };
    struct ctx root = ctx_root(s->w.loop), limited = ctx_with_timeout(&root, CLEAN_WAIT);
    struct err err = ERR_INIT;
    struct svc_call *call;

    snprintf(a.id, sizeof(a.id), "%s", id);
    if (svc_do(s, c, &a, &call) < 0)
        return -1;
    if (call->code == ERR_NONE || call->code == ERR_NOT_FOUND)
        return 0;
    if (call->code != ERR_STATE)
        return fiber_sleep(&root, NS_PER_S, &err) - 1;
    a.act = SVC_KILL;
    if (svc_do(s, c, &a, NULL) < 0)
        return -1;
    a.act = SVC_WAIT;
    call = svc_conn_send(&root, c, &a);
    if (call && svc_call_wait(&limited, call, &err) < 0)
        world_broken(&s->w, "container %s was killed and does not end", id);
    return -1;
}

void svc_clean_up(struct svc *s)
{
    for (int i = 0; i < SVC_CONTAINERS; i++) {
        const char id[] = { (char)('a' + i), '\0' };
        unsigned round = 0;
        bool gone = false;

        for (; round < SVC_CLEAN_ROUNDS && !gone && !s->left && !s->w.result->broken[0]; round++) {
            struct svc_conn *c = svc_conn_get(s, 0);

            gone = c && delete_one(s, c, id) == 0;
            svc_conn_unref(c);
        }
        if (!gone && !s->left)
            world_broken(&s->w, "container %s cannot be deleted", id);
    }
}
