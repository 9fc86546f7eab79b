/* svc_laws.c - what events report to containerd, and answers to its clients: each legal
 * by itself, and both the same story. */
#include "api/events.pb-c.h"
#include "base/loop.h"
#include "fixture/ids_fixture.h"
#include "fixture/ttrpc_read.h"
#include "host/control/events.h"
#include "proto/pb.h"
#include "svc_priv.h"
#include <stdio.h>
#include <stdlib.h>

#define DEATH_LIMIT (100 * NS_PER_MS)

/* One process, or a container's init: what was reported of it in this life. */
struct told {
    bool added, started, exited;
    uint32_t status;
};

struct life {
    bool exists;
    uint32_t pid;
    struct told init, execs[SVC_EXECS];
};

/* Somebody says that a process has ended so. */
struct ending {
    char id[8], exec[8];
    uint32_t pid, status;
    uint64_t at_ns;
};

struct endings {
    struct ending *v;
    size_t n, cap;
};

enum { DONE_EXECS = 1 + SVC_EXECS }; /* init, then the execs */

struct svc_laws {
    struct life lives[SVC_CONTAINERS];
    struct endings by_answer, by_event;
    /* How often a success was answered, and how often an event said so. */
    unsigned answered[EVENT_KIND_COUNT][SVC_CONTAINERS][DONE_EXECS];
    unsigned told[EVENT_KIND_COUNT][SVC_CONTAINERS][DONE_EXECS];
    unsigned creates[SVC_CONTAINERS]; /* asked for */
};

struct svc_laws *svc_laws_new(void)
{
    return mem_new(struct svc_laws);
}

void svc_laws_free(struct svc_laws *l)
{
    free(l->by_answer.v);
    free(l->by_event.v);
    free(l);
}

static unsigned container_number(const char *id)
{
    return (unsigned)(id[0] - 'a') % SVC_CONTAINERS;
}

static unsigned exec_number(const char *exec)
{
    return exec[0] ? 1 + (unsigned)(exec[1] - '0') % SVC_EXECS : 0;
}

static void add_ending(struct endings *e, const char *id, const char *exec, uint32_t pid,
                       uint32_t status, uint64_t at_ns)
{
    struct ending *n;

    e->v = mem_grow(e->v, e->n, &e->cap, sizeof(*e->v));
    n = &e->v[e->n++];
    *n = (struct ending){ .pid = pid, .status = status, .at_ns = at_ns };
    snprintf(n->id, sizeof(n->id), "%s", id);
    snprintf(n->exec, sizeof(n->exec), "%s", exec);
}

/* --- events --- */

struct heard {
    enum event_kind kind;
    const char *id, *exec;
    uint32_t pid, status;
    uint64_t at_ns;
};

static void ended(struct svc *s, const struct heard *h, struct life *l, struct told *t)
{
    struct fake_facts facts = { 0 };
    bool init = h->exec[0] == '\0';

    if (t->exited)
        world_broken(&s->w, "exit of %s/%s is reported twice", h->id, h->exec);
    if (!init && !t->started)
        world_broken(&s->w, "exit of %s/%s is reported before its start", h->id, h->exec);
    if (h->at_ns == 0 || h->pid == 0)
        world_broken(&s->w, "exit of %s/%s has no time or pid", h->id, h->exec);
    if (!world_status_ok(h->status))
        world_broken(&s->w, "exit of %s/%s with %u, but no process exited with that", h->id,
                     h->exec, h->status);
    t->exited = true;
    t->status = h->status;
    for (int i = 0; init && i < SVC_EXECS; i++) {
        if (l->execs[i].started && !l->execs[i].exited)
            world_broken(&s->w, "exit of %s is reported before that of its exec x%d", h->id, i);
    }
    if (!init && l->init.exited)
        world_broken(&s->w, "exit of exec %s/%s is reported after its container's", h->id, h->exec);
    if (s->w.vmm)
        fake_vmm_facts(s->w.vmm, &facts);
    if (s->fault == SVC_DEATH && facts.gone && loop_now(s->w.loop) > facts.gone_ns + DEATH_LIMIT)
        world_broken(&s->w, "exit of %s/%s is reported %llu ms after the end of its VM", h->id,
                     h->exec,
                     (unsigned long long)((loop_now(s->w.loop) - facts.gone_ns) / NS_PER_MS));
    add_ending(&s->laws->by_event, h->id, h->exec, h->pid, h->status, h->at_ns);
}

static void deleted(struct svc *s, const struct heard *h, struct life *l)
{
    if (l->init.started && !l->init.exited)
        world_broken(&s->w, "%s is deleted, but its exit was not reported", h->id);
    if (l->init.exited && l->init.status != h->status)
        world_broken(&s->w, "%s exited with %u and was deleted with %u", h->id, l->init.status,
                     h->status);
    add_ending(&s->laws->by_event, h->id, h->exec, h->pid, h->status, h->at_ns);
    *l = (struct life){ 0 };
}

static void follow(struct svc *s, const struct heard *h)
{
    struct life *l = &s->laws->lives[container_number(h->id)];
    unsigned exec = exec_number(h->exec);
    struct told *t = exec ? &l->execs[exec - 1] : &l->init;

    if (!l->exists && h->kind != EVENT_CREATE)
        world_broken(&s->w, "event %d of %s, which was not created", h->kind, h->id);
    if (h->pid && h->kind != EVENT_CREATE && h->pid != l->pid)
        world_broken(&s->w, "event %d of %s with pid %u, it is %u", h->kind, h->id, h->pid, l->pid);
    switch (h->kind) {
    case EVENT_CREATE:
        if (l->exists || h->pid == 0)
            world_broken(&s->w, "%s is created twice, or without a pid", h->id);
        *l = (struct life){ .exists = true, .pid = h->pid };
        break;
    case EVENT_EXEC_ADDED:
        *t = (struct told){ .added = true };
        break;
    case EVENT_START:
    case EVENT_EXEC_STARTED:
        if (t->started || t->exited || (exec && !t->added))
            world_broken(&s->w, "start of %s/%s is reported twice or out of order", h->id, h->exec);
        t->started = true;
        break;
    case EVENT_EXIT:
        ended(s, h, l, t);
        break;
    case EVENT_DELETE:
        deleted(s, h, l);
        break;
    case EVENT_PAUSED:
    case EVENT_RESUMED:
    case EVENT_OOM:
        if (!l->init.started || l->init.exited)
            world_broken(&s->w, "event %d of %s, which is not running", h->kind, h->id);
        break;
    case EVENT_KIND_COUNT:
        break;
    }
}

static const struct {
    const char *topic;
    const ProtobufCMessageDescriptor *type;
} wire[EVENT_KIND_COUNT] = {
    [EVENT_CREATE] = { "/tasks/create", &task_create__descriptor },
    [EVENT_START] = { "/tasks/start", &task_start__descriptor },
    [EVENT_EXEC_ADDED] = { "/tasks/exec-added", &task_exec_added__descriptor },
    [EVENT_EXEC_STARTED] = { "/tasks/exec-started", &task_exec_started__descriptor },
    [EVENT_OOM] = { "/tasks/oom", &task_oom__descriptor },
    [EVENT_EXIT] = { "/tasks/exit", &task_exit__descriptor },
    [EVENT_DELETE] = { "/tasks/delete", &task_delete__descriptor },
    [EVENT_PAUSED] = { "/tasks/paused", &task_paused__descriptor },
    [EVENT_RESUMED] = { "/tasks/resumed", &task_resumed__descriptor },
};

/* The fields that several of them have. */
static void hear(struct heard *h, const void *msg)
{
    const TaskExit *exit = msg;
    const TaskDelete *delete_ = msg;

    h->exec = "";
    h->id = ((const TaskOOM *)msg)->container_id; /* the first of each */
    ids_expect("event of", h->id, 0);
    if (h->kind == EVENT_CREATE)
        h->pid = ((const TaskCreate *)msg)->pid;
    else if (h->kind == EVENT_START)
        h->pid = ((const TaskStart *)msg)->pid;
    else if (h->kind == EVENT_EXEC_ADDED)
        h->exec = ((const TaskExecAdded *)msg)->exec_id;
    else if (h->kind == EVENT_EXEC_STARTED) {
        h->exec = ((const TaskExecStarted *)msg)->exec_id;
        h->pid = ((const TaskExecStarted *)msg)->pid;
    } else if (h->kind == EVENT_EXIT) {
        h->exec = str_eq(exit->id, exit->container_id) ? "" : exit->id;
        h->pid = exit->pid;
        h->status = exit->exit_status;
        h->at_ns = pb_time(exit->exited_at);
    } else if (h->kind == EVENT_DELETE) {
        h->pid = delete_->pid;
        h->status = delete_->exit_status;
        h->at_ns = pb_time(delete_->exited_at);
    }
}

void svc_laws_event(struct svc *s, const char *topic, const Any *any)
{
    for (int kind = 0; kind < EVENT_KIND_COUNT; kind++) {
        AUTO(pb_free) void *msg = NULL;
        struct heard h = { .kind = (enum event_kind)kind };

        if (!str_eq(topic, wire[kind].topic))
            continue;
        if (pb_any_unpack(any, wire[kind].type, &msg) < 0) {
            world_broken(&s->w, "event %s is no %s", topic, wire[kind].type->name);
            return;
        }
        hear(&h, msg);
        s->laws->told[kind][container_number(h.id)][exec_number(h.exec)]++;
        if (!s->loses_events) /* else there is no telling what came before */
            follow(s, &h);
        return;
    }
    world_broken(&s->w, "an event of topic %s", topic);
}

/* --- answers --- */

void svc_laws_asked(struct svc *s, const struct svc_ask *a)
{
    if (a->act == SVC_CREATE)
        s->laws->creates[container_number(a->id)]++;
}

/* No event reports a container whose Create failed. If that could not be undone at once, it is
 * there to be deleted, ended with 255. */
static unsigned failed_creates(const struct svc_laws *l, unsigned c)
{
    return l->creates[c] - l->told[EVENT_CREATE][c][0];
}

void svc_laws_done(struct svc *s, const struct svc_ask *a, uint32_t pid)
{
    static const int kinds[SVC_ACT_COUNT] = {
        [SVC_CREATE] = 1 + EVENT_CREATE,   [SVC_START] = 1 + EVENT_START,
        [SVC_EXEC] = 1 + EVENT_EXEC_ADDED, [SVC_DELETE] = 1 + EVENT_DELETE,
        [SVC_PAUSE] = 1 + EVENT_PAUSED,    [SVC_RESUME] = 1 + EVENT_RESUMED
    };
    int kind = kinds[a->act] - 1;
    unsigned exec = exec_number(a->exec);

    (void)pid;
    if (kind == EVENT_START && exec)
        kind = EVENT_EXEC_STARTED;
    if (kind < 0 || (kind == EVENT_DELETE && exec)) /* no event reports that */
        return;
    s->laws->answered[kind][container_number(a->id)][exec]++;
}

void svc_laws_ended(struct svc *s, const char *id, const char *exec, uint32_t pid, uint32_t status,
                    uint64_t at_ns)
{
    add_ending(&s->laws->by_answer, id, exec, pid, status, at_ns);
}

static bool is_told(const struct endings *told, const struct ending *e)
{
    for (size_t i = 0; i < told->n; i++) {
        const struct ending *t = &told->v[i];

        if (str_eq(t->id, e->id) && str_eq(t->exec, e->exec) && t->status == e->status &&
            t->at_ns == e->at_ns && (e->pid == 0 || t->pid == e->pid))
            return true;
    }
    return false;
}

static void compare(struct svc *s)
{
    const struct svc_laws *l = s->laws;

    for (size_t i = 0; i < l->by_answer.n; i++) {
        const struct ending *e = &l->by_answer.v[i];

        bool never_was =
            !e->exec[0] && e->status == 255 && failed_creates(l, container_number(e->id)) > 0;

        /* An exec that never ran ends without an event. */
        if (!(e->exec[0] && e->status <= 1) && !never_was && !is_told(&l->by_event, e))
            world_broken(&s->w, "%s/%s ended with %u in an answer, but no event says so", e->id,
                         e->exec, e->status);
    }
    for (int k = 0; k < EVENT_KIND_COUNT; k++)
        for (unsigned c = 0; c < SVC_CONTAINERS; c++)
            for (int x = 0; x < DONE_EXECS; x++)
                if (l->answered[k][c][x] >
                    l->told[k][c][x] + (k == EVENT_DELETE ? failed_creates(l, c) : 0))
                    world_broken(&s->w, "%s of %c was answered %u times and told %u times",
                                 wire[k].topic, 'a' + (int)c, l->answered[k][c][x],
                                 l->told[k][c][x]);
}

void svc_laws_end(struct svc *s)
{
    if (s->loses_events)
        return;

    /* Those that the publisher is done with. An answer that was lost makes one come again. */
    uint64_t done = s->pushed - events_pending(s->events) - events_dropped(s->events);

    if (done < s->peer.n_events || done > s->peer.n_events + s->peer.n_again)
        world_broken(&s->w, "%u events came, %llu are taken for delivered", s->peer.n_events,
                     (unsigned long long)done);
    for (unsigned i = 0; i < SVC_CONTAINERS; i++) {
        if (s->laws->lives[i].exists)
            world_broken(&s->w, "container %c is gone, but its delete was not reported",
                         'a' + (int)i);
    }
    compare(s);
}
