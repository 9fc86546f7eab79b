/* reg_laws.c - what must hold of the events, whatever happens. */
#include "fixture/ids_fixture.h"
#include "reg_priv.h"
#include <stdlib.h>
#include <string.h>

/* One process, or a container's init: what was reported of it in this life. */
struct told {
    bool added, started, exited;
    uint32_t status;
};

struct life {
    bool exists;
    struct told init, execs[REG_EXECS];
};

struct reg_law {
    struct life lives[REG_CONTAINERS];
    /* Of init, at the moment itself: */
    bool runs[REG_CONTAINERS], wanted[REG_CONTAINERS]; /* somebody ends it */
};

struct reg_law *reg_laws_new(void)
{
    return mem_new(struct reg_law);
}

void reg_laws_free(struct reg_law *l)
{
    free(l);
}

static void ended(struct reg *s, const struct event *e, struct life *l, struct told *t, bool init)
{
    if (t->exited)
        world_broken(&s->w, "exit of %s/%s is reported twice", e->container_id, e->exec_id);
    if (!init && !t->started)
        world_broken(&s->w, "exit of %s/%s is reported before its start", e->container_id,
                     e->exec_id);
    if (e->exited_wall_ns == 0)
        world_broken(&s->w, "exit of %s/%s has no time", e->container_id, e->exec_id);
    t->exited = true;
    t->status = e->exit_status;
    reg_laws_status(s, "an event", e->exit_status);
    s->w.result->figures[REG_FIG_EXITS]++;
    for (int i = 0; init && i < REG_EXECS; i++) {
        if (l->execs[i].started && !l->execs[i].exited)
            world_broken(&s->w, "exit of %s is reported before that of its exec x%d",
                         e->container_id, i);
    }
    if (!init && l->init.exited)
        world_broken(&s->w, "exit of exec %s/%s is reported after its container's", e->container_id,
                     e->exec_id);
}

static void deleted(struct reg *s, const struct event *e, struct life *l)
{
    if (l->init.started && !l->init.exited)
        world_broken(&s->w, "%s is deleted, but its exit was not reported", e->container_id);
    if (l->init.exited && l->init.status != e->exit_status)
        world_broken(&s->w, "%s exited with %u and was deleted with %u", e->container_id,
                     l->init.status, e->exit_status);
    for (char id = 'a'; s->pods && id < 'a' + REG_CONTAINERS; id++) {
        const struct told *t = &s->laws->lives[id - 'a'].init;

        if (id != e->container_id[0] && reg_holder(&id) == e->container_id[0] && t->started &&
            !t->exited)
            world_broken(&s->w, "pod %s is deleted, but its container %c runs", e->container_id,
                         id);
    }
    *l = (struct life){ 0 };
}

void reg_laws_told(struct reg *s, const struct event *e)
{
    struct life *l = &s->laws->lives[(unsigned)(e->container_id[0] - 'a') % REG_CONTAINERS];
    bool init = e->exec_id[0] == '\0';
    struct told *t = init ? &l->init : &l->execs[(unsigned)(e->exec_id[1] - '0') % REG_EXECS];

    ids_expect("event of", e->container_id, 0);
    if (!l->exists && e->kind != EVENT_CREATE)
        world_broken(&s->w, "event %d of %s, which was not created", e->kind, e->container_id);
    switch (e->kind) {
    case EVENT_CREATE:
        if (l->exists)
            world_broken(&s->w, "%s is created twice", e->container_id);
        *l = (struct life){ .exists = true };
        break;
    case EVENT_EXEC_ADDED:
        *t = (struct told){ .added = true };
        break;
    case EVENT_START:
    case EVENT_EXEC_STARTED:
        if (t->started || t->exited || (!init && !t->added))
            world_broken(&s->w, "start of %s/%s is reported twice or out of order", e->container_id,
                         e->exec_id);
        t->started = true;
        break;
    case EVENT_EXIT:
        ended(s, e, l, t, init);
        break;
    case EVENT_DELETE:
        deleted(s, e, l);
        break;
    case EVENT_PAUSED:
    case EVENT_RESUMED:
    case EVENT_OOM:
        if (!l->init.started || l->init.exited)
            world_broken(&s->w, "event %d of %s, which is not running", e->kind, e->container_id);
        break;
    case EVENT_KIND_COUNT:
        break;
    }
}

/* --- what runs stays until something ends it --- */

void reg_laws_ends(struct reg *s, const char *id, bool all)
{
    for (char c = 'a'; c < 'a' + REG_CONTAINERS; c++)
        if (c == id[0] || (all && s->pods && reg_holder(&c) == id[0]))
            s->laws->wanted[c - 'a'] = true;
}

static bool vm_ends(const struct reg *s)
{
    struct fake_facts facts;

    if (!s->w.vmm)
        return true;
    fake_vmm_facts(s->w.vmm, &facts);
    return facts.gone || facts.terminates > 0 || facts.quits > 0;
}

/* Members of a pod run on when only its first container was killed or has exited: a container ends
 * by itself, by a call or the host that means it or its pod, or with the VM. */
bool reg_laws_pushed(void *arg, const struct event *e)
{
    struct reg *s = arg;
    unsigned i = (unsigned)(e->container_id[0] - 'a') % REG_CONTAINERS;
    struct reg_law *l = s->laws;

    if (e->exec_id[0])
        return true;
    if (e->kind == EVENT_EXIT && l->runs[i] && !l->wanted[i] && e->exit_status != WORLD_CODE &&
        !vm_ends(s))
        world_broken(&s->w, "%s exits with %u, but no client has ended it or its pod",
                     e->container_id, e->exit_status);
    if (e->kind == EVENT_START || e->kind == EVENT_EXIT)
        l->runs[i] = e->kind == EVENT_START;
    if (e->kind == EVENT_DELETE)
        l->wanted[i] = false;
    return true;
}

void reg_laws_status(struct reg *s, const char *what, uint32_t status)
{
    if (!world_status_ok(status))
        world_broken(&s->w, "%s has status %u, but no process exited with that", what, status);
}

void reg_laws_end(struct reg *s)
{
    for (unsigned i = 0; i < REG_CONTAINERS; i++) {
        if (s->laws->lives[i].exists)
            world_broken(&s->w, "container %c is gone, but its delete was not reported",
                         'a' + (int)i);
    }
}
