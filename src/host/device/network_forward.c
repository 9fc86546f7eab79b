/* network_forward.c - connections to the pod's ports: what somebody in the pod's network namespace
 * on the host dials (containerd's port-forward dials 127.0.0.1 there) reaches the same port in the
 * guest. One listener a pod, nothing else until somebody comes; then three fibers a connection. */
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/stream.h"
#include "host/bridge/guest.h"
#include "host/device/network_priv.h"

#include <stdlib.h>
#include <sys/socket.h>

#define CONNECTIONS_MAX 128 /* of a pod at a time; the next waits in the kernel's queue */
#define CONNECT_LIMIT (15 * NS_PER_S)
#define STOP_LIMIT (5 * NS_PER_S)
#define ACCEPT_PAUSE NS_PER_S

struct connection {
    struct network *n;
    int fd; /* until it is a stream */
    bool ipv6;
    uint16_t port;
    struct stream *client, *guest;
    struct group ways;
};
struct way {
    struct connection *c;
    struct stream *from, *to;
};

/* One direction to its end, which is passed on. An error, or the end of the pod, ends both. */
static void copy_main(void *arg)
{
    struct way *w = arg;
    struct connection *c = w->c;
    struct ctx ctx = ctx_until(c->n->o.loop, &c->n->forward.stop);
    struct err err = ERR_INIT;
    char side = 0;

    if (stream_copy(&ctx, w->from, w->to, NULL, &side, &err) == 0) {
        (void)stream_shutdown(w->to, SHUT_WR); /* gone already: the other way ends by itself */
        return;
    }
    (void)stream_shutdown(c->client, SHUT_RDWR);
    (void)stream_shutdown(c->guest, SHUT_RDWR);
}

static void join(struct connection *c)
{
    struct ctx root = ctx_root(c->n->o.loop);
    struct way in = { c, c->client, c->guest }, out = { c, c->guest, c->client };
    struct err err = ERR_INIT;

    group_init(&c->ways);
    group_go(&c->ways, c->n->o.loop, copy_main, &in, "port %u in", c->port);
    group_go(&c->ways, c->n->o.loop, copy_main, &out, "port %u out", c->port);
    (void)group_wait(&root, &c->ways, "both ways of a connection", &err); /* without a limit */
}

/* The client is to see a reset, not an orderly end. */
static void refuse(int fd)
{
    const struct linger now = { .l_onoff = 1 };

    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    fd_close(fd);
}

static int connect_guest(struct connection *c, struct err *err)
{
    struct network *n = c->n;
    struct ctx own = ctx_until(n->o.loop, &n->forward.stop),
               ctx = ctx_with_timeout(&own, CONNECT_LIMIT);

    if (network_enter(n, "forward a port", err) < 0)
        return -1;
    int r = n->o.guest->ops->connect_port(&ctx, n->o.guest, n->guest_ns, c->ipv6, c->port,
                                          &c->guest, err);
    network_leave(n);
    return r;
}

static void connection_main(void *arg)
{
    struct connection *c = arg;
    struct network *n = c->n;
    struct ctx ctx = ctx_root(n->o.loop);
    struct err err = ERR_INIT;

    if (connect_guest(c, &err) < 0) {
        log_debug(&ctx, "a port of the pod is not answered", F_STR("namespace", n->guest_ns),
                  F_U("port", c->port), F_ERR(&err));
        refuse(c->fd);
    } else {
        c->client = stream_from_fd(n->o.loop, TAKE_FD(c->fd));
        join(c);
        stream_free(c->client);
        stream_free(c->guest);
    }
    free(c);
    n->forward.connections--;
    waitq_wake_all(&n->forward.changed);
}

/* A machine that is out of descriptors may have some again. */
static bool try_again(struct ctx *ctx, struct err *why)
{
    struct err err = ERR_INIT;

    if (ctx_check(ctx, &err) < 0)
        return false;
    log_warn(ctx, "a connection to the pod's ports is not accepted", F_ERR(why));
    return fiber_sleep(ctx, ACCEPT_PAUSE, &err) == 0;
}

static void listen_main(void *arg)
{
    struct network *n = arg;
    struct ctx ctx = ctx_until(n->o.loop, &n->forward.stop);
    bool goes_on = true;

    while (goes_on) {
        struct connection *c = mem_new(struct connection);
        struct err err = ERR_INIT;

        c->n = n;
        while (goes_on && n->forward.connections >= CONNECTIONS_MAX)
            goes_on = waitq_wait(&ctx, &n->forward.changed, "a connection to end", &err) == 0;
        if (!goes_on || fiber_admit(n->o.loop, &err) < 0 ||
            net_forward_accept(&ctx, n->forward.listener, &c->fd, &c->ipv6, &c->port, &err) < 0) {
            free(c);
            goes_on = goes_on && try_again(&ctx, &err);
            continue;
        }
        n->forward.connections++;
        group_go(&n->forward.fibers, n->o.loop, connection_main, c, "port %u", c->port);
    }
}

void network_forward_init(struct network *n)
{
    n->forward.listener = n->forward.hook = -1;
    group_init(&n->forward.fibers);
    waitq_init(&n->forward.changed);
}

void network_forward_start(struct ctx *ctx, struct network *n)
{
    struct err err = ERR_INIT;

    if (!n->config->loopback || !n->o.guest->ops->connect_port)
        return;
    if (net_forward_open(ctx, n->netns_fd, &n->forward.listener, &n->forward.hook, &err) < 0) {
        log_warn(ctx, "ports of the pod cannot be forwarded, going on", F_ERR(&err));
        return;
    }
    cancel_init(&n->forward.stop, NULL);
    n->forward.on = true;
    group_go(&n->forward.fibers, n->o.loop, listen_main, n, "ports %s", n->guest_ns);
}

int network_forward_stop(struct ctx *ctx, struct network *n, struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, STOP_LIMIT);

    if (!n->forward.on)
        return 0;
    cancel_fire(&n->forward.stop, ERR_CANCELLED, "the pod's network ends");
    if (group_wait(&limited, &n->forward.fibers, "connections to the pod's ports", err) < 0)
        return -1;
    fd_close(TAKE_FD(n->forward.hook));
    fd_close(TAKE_FD(n->forward.listener));
    cancel_release(&n->forward.stop);
    n->forward.on = false;
    return 0;
}
