#include "host/shim/publisher.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/fiber.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/str.h"
#include "host/control/events.h"
#include "host/rpc/rpc_client.h"
#include "host/shim/event_wire.h"
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
    struct group fibers;
    struct cancel life;
    struct rpc_client *client;
    uint64_t delivered, lost;
};

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

/* containerd does not take it, now or ever. */
static bool is_senseless(const struct err *err)
{
    return err->code == ERR_INVALID;
}

/* Until it is delivered or given up; -1 only if we are stopped. */
static int publish(struct ctx *ctx, struct publisher *p, const struct event *e)
{
    AUTO(pb_free) ForwardRequest *req = event_wire(e, p->ns);
    uint64_t since = loop_now(ctx->loop), pause = RETRY_FIRST;
    struct err err = ERR_INIT;

    while (req && p->address[0]) {
        if (try_once(ctx, p, req, &err) == 0) {
            p->delivered++;
            return 0;
        }
        if (p->life.fired)
            return -1;
        if (is_senseless(&err) || loop_now(ctx->loop) - since >= GIVE_UP_AFTER)
            break;
        if (fiber_sleep(ctx, pause, &err) < 0)
            return -1;
        pause = pause * 2 < RETRY_MAX ? pause * 2 : RETRY_MAX;
    }
    p->lost++;
    log_warn(ctx, "event not delivered", F_STR("cid", e->container_id),
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
        if (publish(&ctx, p, e) < 0)
            break;
        events_done(p->opts.events);
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
    group_init(&p->fibers);
    group_go(&p->fibers, o->loop, publisher_run, p, "publisher");
    return p;
}

int publisher_stop(struct ctx *ctx, struct publisher *p, struct err *err)
{
    cancel_fire(&p->life, ERR_CANCELLED, "the shim ends");
    return group_wait(ctx, &p->fibers, "publisher", err);
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

uint64_t publisher_delivered(const struct publisher *p)
{
    return p->delivered;
}

uint64_t publisher_lost(const struct publisher *p)
{
    return p->lost;
}
