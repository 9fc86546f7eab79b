/* handlers_network.c - NICs of pods, and connections to their ports. */
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/log.h"
#include "base/stream.h"
#include "guest/bridge/handlers_priv.h"
#include "guest/net/nets.h"
#include "guest/stdio/dial.h"
#include <stdlib.h>
#include <sys/socket.h>

#define CONNECT_NS (5 * NS_PER_S) /* it is all in one kernel */

int handlers_network(struct ctx *ctx, struct handlers *h, const struct bridge_modify *m,
                     struct err *err)
{
    const struct bridge_network *b = &m->network;

    if (!h->nets)
        return err_set(err, ERR_UNIMPLEMENTED, "no networks in this guest");
    if (m->action == BRIDGE_REMOVE)
        return nets_remove(ctx, h->nets, b->namespace_id, b->id, err);
    /* Better than routes that are not what was asked for. */
    if (b->policy_routing || b->low_metric || b->vpci_assigned)
        return err_set(err, ERR_UNIMPLEMENTED,
                       "NIC %.64s: policy based routing and assigned devices are not supported",
                       b->id);
    return nets_add(ctx, h->nets, b, err);
}

/* --- ports --- */

struct forward {
    struct handlers *h;
    struct loop *loop;
    struct stream *pod, *host;
    unsigned running; /* directions */
};

struct direction {
    struct forward *f;
    struct stream *from, *to;
};

static void forward_free(struct forward *f)
{
    f->h->n_forwards--;
    stream_free(f->pod);
    stream_free(f->host);
    free(f);
}

/* One way until its end, which is passed on; an error ends the other way too. */
static void copy_main(void *arg)
{
    struct direction *d = arg;
    struct forward *f = d->f;
    struct ctx ctx = ctx_root(f->loop);
    struct err err = ERR_INIT;
    char side = 0;

    if (stream_copy(&ctx, d->from, d->to, NULL, &side, &err) == 0) {
        (void)stream_shutdown(d->to, SHUT_WR); /* it may be gone: then the other way ends */
    } else {
        (void)stream_shutdown(f->pod, SHUT_RDWR);
        (void)stream_shutdown(f->host, SHUT_RDWR);
    }
    free(d);
    if (--f->running == 0)
        forward_free(f);
}

static void go(struct forward *f, struct stream *from, struct stream *to, const char *name)
{
    struct direction *d = mem_new(struct direction);

    *d = (struct direction){ f, from, to };
    f->running++;
    fiber_go(f->loop, copy_main, d, "forward %s", name);
}

int handlers_forward(struct ctx *ctx, struct handlers *h, const struct bridge_forward *b,
                     struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, CONNECT_NS);
    AUTO_FD int pod = -1, host = -1;

    if (!h->nets || !h->dialer)
        return err_set(err, ERR_UNIMPLEMENTED, "no networks in this guest");
    if (h->n_forwards >= NETS_FORWARDS_MAX)
        return err_set(err, ERR_EXHAUSTED, "%d connections are forwarded already",
                       NETS_FORWARDS_MAX);
    h->n_forwards++;
    if (nets_connect(&limited, h->nets, b->namespace_id, b->ipv6, b->port, &pod, err) < 0 ||
        dialer_dial(ctx, h->dialer, b->host_port, &host, err) < 0) {
        h->n_forwards--;
        return -1;
    }

    struct forward *f = mem_new(struct forward);

    *f = (struct forward){ .h = h,
                           .loop = ctx->loop,
                           .pod = stream_from_fd(ctx->loop, TAKE_FD(pod)),
                           .host = stream_from_fd(ctx->loop, TAKE_FD(host)) };
    go(f, f->host, f->pod, "in");
    go(f, f->pod, f->host, "out");
    return 0;
}
