#include "host/shim/publisher.h"
#include "api/events.pb-c.h"
#include "api/types.pb-c.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/fiber.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/str.h"
#include "base/waits.h"
#include "host/control/events.h"
#include "host/rpc/rpc_client.h"
#include <stdlib.h>

#define EVENTS_SERVICE "containerd.services.events.ttrpc.v1.Events"
#define NAMESPACE_KEY "containerd-namespace-ttrpc"
#define TRY_LIMIT (5 * NS_PER_S)
#define GIVE_UP_AFTER (60 * NS_PER_S)
#define RETRY_FIRST (50 * NS_PER_MS)
#define RETRY_MAX (2 * NS_PER_S)

struct publisher {
    struct publisher_opts opts;
    char *ns, *address;
    struct fibers fibers;
    struct cancel life;
    struct rpc_client *client;
};

/* --- events as messages --- */

static int wire_create(const struct event *e, Any **ret)
{
    AUTO(pb_free) TaskCreate *m = pb_new(&task_create__descriptor);

    pb_set_str(&m->container_id, e->container_id);
    pb_set_str(&m->bundle, e->bundle);
    m->pid = e->pid;
    m->io = pb_new(&task_io__descriptor);
    pb_set_str(&m->io->stdin, e->in);
    pb_set_str(&m->io->stdout, e->out);
    pb_set_str(&m->io->stderr, e->err);
    m->io->terminal = e->terminal;
    for (size_t i = 0; i < e->n_rootfs; i++) {
        Mount *mount = pb_new(&mount__descriptor);
        const char *const *o = e->rootfs[i].options;

        pb_set_str(&mount->type, e->rootfs[i].type);
        pb_set_str(&mount->source, e->rootfs[i].source);
        pb_set_str(&mount->target, e->rootfs[i].target);
        for (; o && *o; o++) {
            const char *option = NULL;

            pb_set_str(&option, *o);
            pb_add(mount->options, mount->n_options, option);
        }
        pb_add(m->rootfs, m->n_rootfs, mount);
    }
    return pb_set_any(ret, m);
}

/* The other kinds of events. */
static int wire_plain(const struct event *e, Any **ret)
{
    TaskStart start = TASK_START__INIT;
    TaskExecAdded added = TASK_EXEC_ADDED__INIT;
    TaskExecStarted started = TASK_EXEC_STARTED__INIT;
    TaskOOM oom = TASK_OOM__INIT;
    TaskPaused paused = TASK_PAUSED__INIT;
    TaskResumed resumed = TASK_RESUMED__INIT;
    TaskExit exited = TASK_EXIT__INIT;
    TaskDelete deleted = TASK_DELETE__INIT;
    Timestamp at = pb_time_of(e->exited_wall_ns);

    start.container_id = added.container_id = started.container_id = e->container_id;
    oom.container_id = paused.container_id = resumed.container_id = e->container_id;
    exited.container_id = deleted.container_id = e->container_id;
    added.exec_id = started.exec_id = deleted.id = e->exec_id;
    exited.id = e->exec_id[0] ? e->exec_id : e->container_id;
    start.pid = started.pid = exited.pid = deleted.pid = e->pid;
    exited.exit_status = deleted.exit_status = e->exit_status;
    exited.exited_at = deleted.exited_at = &at;

    const void *by_kind[EVENT_KIND_COUNT] = {
        [EVENT_START] = &start, [EVENT_EXEC_ADDED] = &added, [EVENT_EXEC_STARTED] = &started,
        [EVENT_OOM] = &oom,     [EVENT_PAUSED] = &paused,    [EVENT_RESUMED] = &resumed,
        [EVENT_EXIT] = &exited, [EVENT_DELETE] = &deleted,
    };

    return pb_set_any(ret, by_kind[e->kind]);
}

ForwardRequest *publisher_wire(const struct event *e, const char *ns)
{
    AUTO_FREE char *topic = str_format("/tasks/%s", event_name(e->kind));
    AUTO(pb_free) ForwardRequest *req = pb_new(&forward_request__descriptor);
    Envelope *envelope = pb_new(&envelope__descriptor);
    int r;

    req->envelope = envelope;
    pb_set_time(&envelope->timestamp, e->wall_ns);
    pb_set_str(&envelope->namespace_, ns);
    pb_set_str(&envelope->topic, topic);
    r = e->kind == EVENT_CREATE ? wire_create(e, &envelope->event)
                                : wire_plain(e, &envelope->event);
    return r < 0 ? NULL : TAKE_PTR(req);
}

/* --- delivery --- */

static int connect_real(struct ctx *ctx, void *arg, struct rpc_client **ret, struct err *err)
{
    struct publisher *p = arg;

    return rpc_client_connect(ctx, p->address, ret, err);
}

static int try_once(struct ctx *ctx, struct publisher *p, const ForwardRequest *req,
                    struct err *err)
{
    struct ctx limit = ctx_with_timeout(ctx, TRY_LIMIT);

    if (p->client && rpc_client_closed(p->client)) {
        rpc_client_free(p->client);
        p->client = NULL;
    }
    if (!p->client) {
        if (p->opts.connect(&limit, p->opts.arg, &p->client, err) < 0)
            return -1;
        rpc_client_add_metadata(p->client, NAMESPACE_KEY, p->ns);
    }
    return rpc_client_call(&limit, p->client, EVENTS_SERVICE, "Forward", req, &empty__descriptor,
                           NULL, err);
}

/* 1: delivered. 0: given up. -1: the publisher is stopped. */
static int publish(struct ctx *ctx, struct publisher *p, const struct event *e)
{
    AUTO(pb_free) ForwardRequest *req = publisher_wire(e, p->ns);
    uint64_t since = loop_now(ctx->loop), pause = RETRY_FIRST;
    struct err err = ERR_INIT;

    while (req && p->address[0]) {
        if (try_once(ctx, p, req, &err) == 0)
            return 1;
        if (p->life.fired)
            return -1;
        /* containerd never accepts an event that it considers invalid, so do not retry. */
        if (err.code == ERR_INVALID || loop_now(ctx->loop) - since >= GIVE_UP_AFTER)
            break;
        if (fiber_sleep(ctx, pause, &err) < 0)
            return -1;
        pause = pause * 2 < RETRY_MAX ? pause * 2 : RETRY_MAX;
    }
    log_warn(ctx, "could not publish an event", F_STR(LK_CID, e->container_id),
             F_STR("topic", req ? req->envelope->topic : "?"), F_ERR(&err));
    return 0;
}

static void publisher_run(void *arg)
{
    struct publisher *p = arg;
    struct ctx ctx = ctx_until(p->opts.loop, &p->life);
    struct err err = ERR_INIT;
    const struct event *e;

    while (events_next(&ctx, p->opts.events, &e, &err) == 0) {
        int r = publish(&ctx, p, e);

        if (r < 0)
            break;
        if (r > 0)
            events_done(p->opts.events);
        else
            events_give_up(p->opts.events);
    }
    rpc_client_free(p->client);
    p->client = NULL;
}

struct publisher *publisher_new(const struct publisher_opts *o)
{
    struct publisher *p = mem_new(struct publisher);

    p->opts = *o;
    p->ns = str_dup(o->ns);
    p->address = str_dup(o->address);
    if (!p->opts.connect) {
        p->opts.connect = connect_real;
        p->opts.arg = p;
    }
    cancel_init(&p->life, NULL);
    fibers_init(&p->fibers);
    fibers_go(&p->fibers, o->loop, publisher_run, p, FIBER_PUBLISHER);
    return p;
}

int publisher_stop(struct ctx *ctx, struct publisher *p, struct err *err)
{
    cancel_fire(&p->life, ERR_CANCELLED, "the shim is exiting");
    return fibers_wait(ctx, &p->fibers, "publisher", err);
}

void publisher_free(struct publisher *p)
{
    if (!p)
        return;
    cancel_release(&p->life);
    free(p->ns);
    free(p->address);
    free(p);
}
