/* fake_guest_containers.c - the containers and files of the scripted guest: only that they are
 * there. */
#include "base/clock.h"
#include "base/loop.h"
#include "base/str.h"
#include "host/bridge/fake_guest_priv.h"
#include <stdlib.h>

void fake_guest_tell(struct fake *g)
{
    if (g->opts.facts)
        *g->opts.facts = g->facts;
}

struct fake_container *fake_container_find(struct fake *g, const char *id)
{
    LIST_EACH (&g->containers, pos) {
        struct fake_container *c = LIST_ENTRY(pos, struct fake_container, node);

        if (str_eq(c->id, id))
            return c;
    }
    return NULL;
}

void fake_container_started(struct fake *g, const char *id, uint32_t pid)
{
    struct fake_container *c = fake_container_find(g, id);

    c->started = true;
    c->init_pid = pid;
    c->started_ns = loop_now(g->opts.loop);
}

void fake_container_stopped(struct fake *g, const char *id)
{
    struct fake_container *c = fake_container_find(g, id);

    LIST_EACH (&g->processes, pos) {
        struct process *p = LIST_ENTRY(pos, struct process, node);

        if (!p->init && str_eq(p->container, id) && !p->exited.set) {
            p->exit_code = 137;
            cancel_fire(&p->killed, ERR_CANCELLED, "its container has ended");
        }
    }
    if (!c)
        return;
    c->stopped = true;
    waitq_wake_all(&c->changed);
}

static void drop(struct fake_container *c)
{
    waitq_wake_all(&c->changed); /* those who wait look again, and it is gone */
    list_remove(&c->node);
    free(c->id);
    free(c);
}

void fake_containers_forget(struct fake *g)
{
    g->facts = (struct fake_guest_facts){ .signals = g->facts.signals };
    fake_guest_tell(g);
    while (!list_empty(&g->containers))
        drop(LIST_FIRST(&g->containers, struct fake_container, node));
}

static void count(unsigned *n, enum bridge_action a)
{
    if (a == BRIDGE_ADD)
        (*n)++;
    else if (a == BRIDGE_REMOVE && *n > 0)
        (*n)--;
}

static int modify(struct fake *g, const struct bridge_request *r, struct err *err)
{
    const struct bridge_modify *m = &r->modify;

    switch (m->resource) {
    case BRIDGE_RES_MAPPED_VIRTUAL_DISK:
        count(&g->facts.disks, m->action);
        break;
    case BRIDGE_RES_MAPPED_DIRECTORY:
        count(&g->facts.shares, m->action);
        break;
    case BRIDGE_RES_COMBINED_LAYERS:
        count(&g->facts.layers, m->action);
        break;
    case BRIDGE_RES_NETWORK:
        count(&g->facts.nics, m->action);
        break;
    case BRIDGE_RES_SCSI_DEVICE:
    case BRIDGE_RES_VPCI_DEVICE: /* the host pulls it without a word */
    case BRIDGE_RES_POD_CGROUP_MEMORY_LIMIT:
        break;
    case BRIDGE_RES_CLOCK:
        g->facts.clocks++;
        break;
    case BRIDGE_RES_CONTAINER_CONSTRAINTS:
        g->facts.updates++;
        break;
    case BRIDGE_RES_CONTAINER_FREEZER:
        g->facts.frozen += m->freezer.frozen ? 1 : -1u;
        break;
    default:
        return bridge_err(err, BRIDGE_HR_FAIL, "not here");
    }
    return 0;
}

static int create(struct fake *g, const struct bridge_request *r, struct err *err)
{
    struct fake_container *c;

    if (fake_container_find(g, r->container_id))
        return bridge_err(err, BRIDGE_HR_CONTAINER_EXISTS, "container %s exists", r->container_id);
    c = mem_new(struct fake_container);
    c->id = str_dup(r->container_id);
    waitq_init(&c->changed);
    list_append(&g->containers, &c->node);
    g->facts.containers++;
    return 0;
}

static int delete (struct fake *g, struct fake_container *c, struct err *err)
{
    if (c->started && !c->stopped)
        return bridge_err(err, BRIDGE_HR_INVALID_STATE, "container %s runs", c->id);
    drop(c);
    g->facts.containers--;
    return 0;
}

/* Until it strikes, or the container is gone. */
static int wait_oom(struct ctx *ctx, struct fake *g, const char *id, struct bridge_response *resp)
{
    struct err err = ERR_INIT;

    for (;;) {
        struct fake_container *c = fake_container_find(g, id);
        uint64_t at = c ? c->started_ns + g->opts.oom_ns : 0, now = loop_now(g->opts.loop);
        bool will = c && g->opts.oom_ns && c->started && !c->oom_told;

        if (will && now >= at) {
            c->oom_told = !g->opts.oom_again || c->stopped;
            resp->properties = "{\"OutOfMemory\":true}";
            return 0;
        }
        if (will && c->stopped && g->opts.oom_late) {
            c->oom_told = true;
            (void)fiber_sleep(ctx, 3 * NS_PER_S, &err); /* or the power goes */
            resp->properties = "{\"OutOfMemory\":true}";
            return 0;
        }
        if (!c || c->stopped) {
            resp->properties = "{}";
            return 0;
        }

        struct ctx until = will ? ctx_with_timeout(ctx, at - now) : *ctx;

        if (waitq_wait(&until, &c->changed, "OOM", &err) < 0 && err.code != ERR_DEADLINE)
            return 0; /* the power is gone */
    }
}

int fake_container_answer(struct ctx *ctx, struct fake *g, const struct bridge_request *r,
                          struct bridge_response *resp, struct err *err)
{
    struct fake_container *c = fake_container_find(g, r->container_id);
    int ret = 0;

    if (r->type == BRIDGE_CREATE)
        ret = create(g, r, err);
    else if (!c && !str_eq(r->container_id, BRIDGE_NULL_ID))
        return bridge_err(err, BRIDGE_HR_NO_CONTAINER, "no container %s", r->container_id);
    else if (r->type == BRIDGE_DELETE_CONTAINER_STATE)
        ret = delete (g, c, err);
    else if (r->type == BRIDGE_MODIFY_SETTINGS)
        ret = modify(g, r, err);
    else if (r->type == BRIDGE_GET_PROPERTIES)
        return wait_oom(ctx, g, r->container_id, resp);
    fake_guest_tell(g);
    return ret;
}
