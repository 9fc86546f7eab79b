#include "host/device/network.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/fsm.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/str.h"
#include "base/stream.h"
#include "base/waits.h"
#include "host/bridge/guest.h"
#include "host/device/network_priv.h"
#include "host/ledger/ledger.h"
#include "host/vmm/vmm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define GUEST_LIMIT (5 * NS_PER_S) /* to give an interface back; the host's part needs its time */
#define CONNECTIONS_MAX 128        /* of a pod at a time; the next waits in the kernel's queue */
#define CONNECT_LIMIT (15 * NS_PER_S)
#define STOP_LIMIT (5 * NS_PER_S)
#define ACCEPT_PAUSE NS_PER_S
#define UNDO_LIMIT (60 * NS_PER_S)

static const char *const state_names[] = { "NotConfigured", "Configured", "Invalid", "TornDown" };
static const char *const event_names[] = { "be set up", "fail to be set up", "be torn down",
                                           "fail to be torn down" };

static const struct fsm_edge edges[] = {
    { NETWORK_NONE, NETWORK_EV_ATTACHED, NETWORK_ATTACHED },
    { NETWORK_NONE, NETWORK_EV_ATTACH_FAILED, NETWORK_INVALID },
    { NETWORK_ATTACHED, NETWORK_EV_DETACHED, NETWORK_DETACHED },
    { NETWORK_ATTACHED, NETWORK_EV_DETACH_FAILED, NETWORK_INVALID },
    { NETWORK_INVALID, NETWORK_EV_DETACHED, NETWORK_DETACHED },
    { NETWORK_INVALID, NETWORK_EV_DETACH_FAILED, NETWORK_INVALID },
};
FSM_DEFINE(network_fsm, "network", state_names, NETWORK_STATE_COUNT, event_names, NETWORK_EV_COUNT,
           edges);

/* --- life --- */

struct network *network_new(const struct network_opts *o)
{
    struct network *n = mem_new(struct network);

    n->o = *o;
    n->guest_ns = str_dup(o->guest_ns);
    n->netns_fd = -1;
    gate_init(&n->gate, "network");
    n->forward.listener = n->forward.hook = -1;
    fibers_init(&n->forward.fibers);
    list_init(&n->forward.all);
    waitq_init(&n->forward.changed);
    return n;
}

static void drop_nics(struct network *n)
{
    for (size_t i = 0; i < n->n_nics; i++)
        free(n->nics[i].id);
    free(TAKE_PTR(n->nics));
    n->n_nics = 0;
    net_config_free(TAKE_PTR(n->config));
    fd_close(TAKE_FD(n->netns_fd));
}

void network_free(struct network *n)
{
    if (!n)
        return;
    drop_nics(n);
    free(n->guest_ns);
    free(n->netns);
    free(n);
}

/* --- the VM, which must not end meanwhile --- */

/* NULL with err: it is not there any more. */
static struct network *enter_vm(struct network *n, const char *op, struct err *err)
{
    return n->o.enter(n->o.arg, op, err) < 0 ? NULL : n;
}

static void leave_vm(struct network *entered)
{
    entered->o.leave(entered->o.arg);
}
AUTO_DEFINE(struct network *, leave_vm);

/* --- one interface, forwards --- */

static int plug(struct ctx *ctx, struct network *n, struct network_nic *c, struct net_taps *ret,
                struct err *err)
{
    const struct net_plug p = { .netns = n->netns_fd,
                                .iface = c->iface->name,
                                .tap = c->tap,
                                .mtu = c->iface->mtu,
                                .vlans = c->iface->vlans,
                                .queues = n->o.queues,
                                .vhost = n->o.vhost };
    AUTO_FREE char *queue = ledger_interface_name(n->netns, n->inode, c->iface->name);
    AUTO_FREE char *iface = ledger_interface_name(n->netns, n->inode, c->tap);

    if (ledger_add(n->o.ledger, LEDGER_INTERFACE, iface, &c->iface_record, err) < 0 ||
        ledger_add(n->o.ledger, LEDGER_INGRESS, queue, &c->queue_record, err) < 0)
        return -1;
    if (net_plug(ctx, &p, ret, err) == 0)
        return 0;
    /* Refused: an ingress qdisc that is there belongs to another program. */
    struct err ignored = ERR_INIT;
    if (err->code == ERR_STATE && ledger_forget(n->o.ledger, c->queue_record, &ignored) == 0)
        c->queue_record = 0;
    return -1;
}

static int add_to_vm(struct ctx *ctx, struct network *n, struct network_nic *c,
                     const struct net_taps *t, struct err *err)
{
    struct vmm *v = n->o.vmm;
    struct vmm_nic nic = { .id = c->id,
                           .taps = t->tap,
                           .vhost = t->has_vhost ? t->vhost : NULL,
                           .queues = t->queues,
                           .mtu = (uint16_t)c->iface->mtu };

    if (!v->ops->nic_add)
        return vmm_unsupported("nic_add", err);
    memcpy(nic.mac, c->iface->mac, sizeof(nic.mac));
    AUTO(leave_vm) struct network *entered = enter_vm(n, "add a NIC", err);
    if (!entered)
        return -1;
    c->in_vm = true;
    return v->ops->nic_add(ctx, v, &nic, err);
}

/* The VMM has its own descriptors when this returns. While the shim held one of vhost-net, a VMM
 * that is killed would not end: Linux 6.4 to 6.9. */
static int add_nic(struct ctx *ctx, struct network *n, struct network_nic *c, struct err *err)
{
    AUTO(net_taps_close) struct net_taps t = { 0 };

    if (plug(ctx, n, c, &t, err) < 0)
        return -1;
    if (n->o.vhost && !t.has_vhost)
        log_warn(ctx, "no vhost-net for an interface; the VM's process moves its packets",
                 F_STR("interface", c->iface->name), F_ERR(&t.no_vhost));
    c->queues = t.queues;
    c->vhost = t.has_vhost;
    return add_to_vm(ctx, n, c, &t, err);
}

static char *join(const char *const *list)
{
    struct sbuf b = { 0 };

    for (; list && *list; list++)
        sbuf_addf(&b, "%s%s", b.len ? "," : "", *list);
    return sbuf_take(&b);
}

/* With the last NIC those of the pod as a whole come, too. */
static struct guest_route *guest_routes(const struct net_iface *f, const struct net_config *last,
                                        size_t *ret_n)
{
    *ret_n = f->n_routes + (last ? last->n_routes : 0);
    struct guest_route *routes = mem_zalloc((*ret_n + 1) * sizeof(*routes));

    if (f->n_routes)
        memcpy(routes, f->routes, f->n_routes * sizeof(*routes));
    if (last)
        memcpy(routes + f->n_routes, last->routes, last->n_routes * sizeof(*routes));
    return routes;
}

static int add_to_guest(struct ctx *ctx, struct network *n, struct network_nic *c,
                        const struct network_dns *dns, struct err *err)
{
    const struct net_iface *f = c->iface;
    AUTO_FREE struct guest_ip *ips = mem_zalloc((f->n_addresses + 1) * sizeof(*ips));
    AUTO_FREE struct guest_neighbour *neighbours =
        mem_zalloc((f->n_neighbours + 1) * sizeof(*neighbours));
    const struct net_config *last = c == &n->nics[n->n_nics - 1] ? n->config : NULL;
    size_t n_routes;
    AUTO_FREE struct guest_route *routes = guest_routes(f, last, &n_routes);
    AUTO_FREE char *servers = join(dns ? dns->servers : NULL);
    AUTO_FREE char *search = join(dns ? dns->search : NULL);

    for (size_t i = 0; i < f->n_addresses; i++)
        ips[i] = (struct guest_ip){ f->addresses[i].text, f->addresses[i].prefix };
    for (size_t i = 0; i < f->n_neighbours; i++) {
        neighbours[i].address = f->neighbours[i].text;
        memcpy(neighbours[i].mac, f->neighbours[i].mac, sizeof(neighbours[i].mac));
    }
    struct guest_nic nic = { .ns = n->guest_ns,
                             .id = c->id,
                             .name = f->name,
                             .mtu = f->mtu,
                             .ips = ips,
                             .routes = routes,
                             .neighbours = neighbours,
                             .n_ips = f->n_addresses,
                             .n_routes = n_routes,
                             .n_neighbours = f->n_neighbours,
                             .rules = last ? last->rules : NULL,
                             .n_rules = last ? last->n_rules : 0,
                             .sysctls = (const char *const *)f->sysctls.v,
                             .dns_servers = servers,
                             .dns_search = search };
    memcpy(nic.mac, f->mac, sizeof(nic.mac));
    AUTO(leave_vm) struct network *entered = enter_vm(n, "configure a NIC", err);
    if (!entered)
        return -1;
    c->in_guest = true;
    return n->o.guest->ops->add_nic(ctx, n->o.guest, &nic, err);
}

static int attach_nic(struct ctx *ctx, struct network *n, struct network_nic *c,
                      const struct network_dns *dns, struct err *err)
{
    if (add_nic(ctx, n, c, err) < 0 || add_to_guest(ctx, n, c, dns, err) < 0)
        return err_wrap_because(err, REASON_NETWORK_FAILED, "interface %s", c->iface->name);
    log_info(ctx, "interface attached", F_STR("interface", c->iface->name), F_STR("nic", c->id),
             F_U("mtu", c->iface->mtu), F_U("queues", c->queues), F_BOOL("vhost", c->vhost),
             F_U("addresses", c->iface->n_addresses), F_U("routes", c->iface->n_routes),
             F_U("sysctls", c->iface->sysctls.n));
    return 0;
}

/* --- one interface, backwards --- */

static int remove_from_guest(struct ctx *ctx, struct network *n, struct network_nic *c,
                             struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, GUEST_LIMIT);

    if (!c->in_guest)
        return 0;
    AUTO(leave_vm) struct network *entered = enter_vm(n, "take a NIC from the guest", err);
    int r = -1;
    if (entered)
        r = n->o.guest->ops->remove_nic(&limited, n->o.guest, n->guest_ns, c->id, err);
    if (vmm_gone_is_done(r, ctx, err) < 0)
        return -1;
    c->in_guest = false;
    return 0;
}

static int remove_from_vm(struct ctx *ctx, struct network *n, struct network_nic *c,
                          struct err *err)
{
    if (!c->in_vm)
        return 0;
    AUTO(leave_vm) struct network *entered = enter_vm(n, "remove a NIC", err);
    int r = entered ? n->o.vmm->ops->nic_remove(ctx, n->o.vmm, c->id, err) : -1;

    if (vmm_gone_is_done(r, ctx, err) < 0)
        return -1;
    c->in_vm = false;
    return 0;
}

static int unplug(struct ctx *ctx, struct network *n, struct network_nic *c, struct err *err)
{
    /* Also after a plug that failed: its thread may have been given up. */
    const char *iface = c->queue_record ? c->iface->name : ""; /* "": its qdisc is not ours */
    if (c->iface_record && net_unplug(ctx, n->netns_fd, iface, c->tap, err) < 0)
        return -1;
    if (c->queue_record && ledger_forget(n->o.ledger, c->queue_record, err) < 0)
        return -1;
    c->queue_record = 0;
    if (c->iface_record && ledger_forget(n->o.ledger, c->iface_record, err) < 0)
        return -1;
    c->iface_record = 0;
    return 0;
}

/* The host's side is released even if the guest does not answer. */
static int detach_nic(struct ctx *ctx, struct network *n, struct network_nic *c, struct err *err)
{
    struct err guest = ERR_INIT;
    int r = remove_from_guest(ctx, n, c, &guest);

    if (remove_from_vm(ctx, n, c, err) < 0 || unplug(ctx, n, c, err) < 0)
        return err_wrap_because(err, REASON_NETWORK_FAILED, "interface %s", c->iface->name);
    if (r < 0) {
        log_warn(ctx, "the guest did not release an interface; its NIC is removed, continuing",
                 F_STR("interface", c->iface->name), F_ERR(&guest));
        c->in_guest = false;
    }
    return 0;
}

/* --- ports: a connection that is made in the pod's network namespace on the host (containerd's
 * port-forward dials 127.0.0.1 there) reaches the same port in the guest. One listener for each
 * pod, and three fibers for each connection --- */

/* One direction to its end, which is passed on. An error, or the end of the pod, ends both. */
static void copy_main(void *arg)
{
    struct way *w = arg;
    struct connection *c = w->c;
    struct ctx ctx = ctx_until(c->n->o.loop, &c->n->forward.stop);
    struct err err = ERR_INIT;
    char side = 0;

    if (stream_relay(&ctx, w->from, w->to, &w->pending, &side, &err) == 0) {
        (void)stream_shutdown(w->to, SHUT_WR); /* gone already: the other way ends by itself */
    } else {
        (void)stream_shutdown(c->client, SHUT_RDWR);
        (void)stream_shutdown(c->guest, SHUT_RDWR);
    }
    w->ended = true;
}

static void join_ways(struct connection *c)
{
    struct ctx root = ctx_root(c->n->o.loop);
    struct err err = ERR_INIT;

    c->in.c = c->out.c = c;
    c->in.from = c->out.to = c->client;
    c->in.to = c->out.from = c->guest;
    fibers_init(&c->ways);
    if (!c->in.ended)
        fibers_go(&c->ways, c->n->o.loop, copy_main, &c->in, FIBER_PORT "%u in", c->port);
    if (!c->out.ended)
        fibers_go(&c->ways, c->n->o.loop, copy_main, &c->out, FIBER_PORT "%u out", c->port);
    (void)fibers_wait(&root, &c->ways, WAIT_BOTH_WAYS, &err); /* without a limit */
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

    AUTO(leave_vm) struct network *entered = enter_vm(n, "forward a port", err);
    if (!entered)
        return -1;
    if (n->o.guest->ops->connect_port(&ctx, n->o.guest, n->guest_ns, c->ipv6, c->port, &c->guest,
                                      err) < 0)
        return -1;
    c->client = stream_from_fd(n->o.loop, TAKE_FD(c->fd));
    return 0;
}

static void connection_main(void *arg)
{
    struct connection *c = arg;
    struct network *n = c->n;
    struct ctx ctx = ctx_root(n->o.loop);
    struct err err = ERR_INIT;

    if (!c->client && connect_guest(c, &err) < 0) {
        log_debug(&ctx, "a connection to a port of the pod is not forwarded",
                  F_STR("namespace", n->guest_ns), F_U("port", c->port), F_ERR(&err));
        refuse(c->fd);
    } else {
        join_ways(c);
        sbuf_release(&c->in.pending);
        sbuf_release(&c->out.pending);
        stream_free(c->client);
        stream_free(c->guest);
    }
    list_remove(&c->node);
    free(c);
    n->forward.connections--;
    waitq_wake_all(&n->forward.changed);
}

void network_serve(struct connection *c)
{
    struct network *n = c->n;

    n->forward.connections++;
    list_append(&n->forward.all, &c->node);
    fibers_go(&n->forward.fibers, n->o.loop, connection_main, c, FIBER_PORT "%u", c->port);
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
            goes_on = waitq_wait(&ctx, &n->forward.changed, WAIT_PORT_END, &err) == 0;
        if (!goes_on || fiber_admit(n->o.loop, &err) < 0 ||
            net_forward_accept(&ctx, n->forward.listener, &c->fd, &c->ipv6, &c->port, &err) < 0) {
            free(c);
            goes_on = goes_on && try_again(&ctx, &err);
            continue;
        }
        network_serve(c);
    }
}

void network_listen(struct network *n)
{
    cancel_init(&n->forward.stop, NULL);
    n->forward.on = true;
    fibers_go(&n->forward.fibers, n->o.loop, listen_main, n, FIBER_PORTS "%s", n->guest_ns);
}

/* On a host that cannot forward ports the pod runs without; that is logged. */
static void start_forwarding(struct ctx *ctx, struct network *n)
{
    struct err err = ERR_INIT;

    if (!n->config->loopback || !n->o.guest->ops->connect_port)
        return;
    if (net_forward_open(ctx, n->netns_fd, &n->forward.listener, &n->forward.hook, &err) < 0) {
        log_warn(ctx, "cannot forward the pod's ports; continuing without", F_ERR(&err));
        return;
    }
    network_listen(n);
}

/* Waits until its connections have ended; they are ended. Repeatable. */
static int stop_forwarding(struct ctx *ctx, struct network *n, struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, STOP_LIMIT);

    if (!n->forward.on)
        return 0;
    cancel_fire(&n->forward.stop, ERR_CANCELLED, "the pod's network ends");
    if (fibers_wait(&limited, &n->forward.fibers, "connections to the pod's ports", err) < 0)
        return -1;
    fd_close(TAKE_FD(n->forward.hook));
    fd_close(TAKE_FD(n->forward.listener));
    cancel_release(&n->forward.stop);
    n->forward.on = false;
    return 0;
}

/* --- the whole --- */

static int detach_all(struct ctx *ctx, struct network *n, struct err *err)
{
    size_t failed = 0;

    if (stop_forwarding(ctx, n, err) < 0)
        failed++;
    for (size_t i = n->n_nics; i-- > 0;) {
        struct err one = ERR_INIT;

        if (detach_nic(ctx, n, &n->nics[i], &one) == 0)
            continue;
        if (failed++ == 0)
            *err = one;
        else
            log_warn(ctx, "cannot remove an interface", F_ERR(&one));
    }
    if (failed > 0) {
        fsm_step(&network_fsm, &n->state, NETWORK_EV_DETACH_FAILED);
        return -1;
    }
    fsm_step(&network_fsm, &n->state, NETWORK_EV_DETACHED);
    drop_nics(n);
    return 0;
}

/* One that is called …eth0 first, as the original has it. */
static void make_nics(struct network *n)
{
    struct net_config *c = n->config;
    uint64_t name;

    loop_rand(n->o.loop, &name, sizeof(name));
    n->nics = mem_zalloc((c->n + 1) * sizeof(*n->nics));
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < c->n; i++) {
            struct network_nic *nic = &n->nics[n->n_nics];

            if (str_ends(c->ifaces[i].name, "eth0") != (pass == 0))
                continue;
            nic->iface = &c->ifaces[i];
            nic->id = str_format("p%016llx-%zu", (unsigned long long)name, n->n_nics);
            snprintf(nic->tap, sizeof(nic->tap), "lcow%zu", n->n_nics);
            n->n_nics++;
        }
    }
}

static int attach_all(struct ctx *ctx, struct network *n, const struct network_dns *dns,
                      struct err *err)
{
    if (net_open(ctx, n->netns, &n->netns_fd, &n->inode, err) < 0 ||
        net_read(ctx, n->netns_fd, &n->config, err) < 0)
        return -1;
    make_nics(n);
    for (size_t i = 0; i < n->n_nics; i++)
        if (attach_nic(ctx, n, &n->nics[i], dns, err) < 0)
            return -1;
    start_forwarding(ctx, n);
    return 0;
}

static void undo(struct ctx *ctx, struct network *n)
{
    struct ctx limited = ctx_limited(n->o.loop, UNDO_LIMIT);
    struct err err = ERR_INIT;

    if (detach_all(&limited, n, &err) < 0)
        log_warn(ctx, "rolling back a failed network is incomplete; its detach will continue it",
                 F_ERR(&err));
}

int network_attach(struct ctx *ctx, struct network *n, const char *netns,
                   const struct network_dns *dns, struct err *err)
{
    AUTO(gate_leave) struct gate *held = gate_enter(&n->gate, ctx, "network.attach", err);

    if (!held)
        return -1;
    if (n->state == NETWORK_ATTACHED)
        return 0;
    if (fsm_check(&network_fsm, n->state, NETWORK_EV_ATTACHED, err) < 0)
        return -1;
    if (!netns || !netns[0]) {
        fsm_step(&network_fsm, &n->state, NETWORK_EV_ATTACHED);
        return 0;
    }
    free(n->netns);
    n->netns = str_dup(netns);
    if (attach_all(ctx, n, dns, err) == 0) {
        fsm_step(&network_fsm, &n->state, NETWORK_EV_ATTACHED);
        return 0;
    }
    fsm_step(&network_fsm, &n->state, NETWORK_EV_ATTACH_FAILED);
    undo(ctx, n);
    return err_wrap_because(err, REASON_NETWORK_FAILED, "network of the pod");
}

int network_detach(struct ctx *ctx, struct network *n, struct err *err)
{
    AUTO(gate_leave) struct gate *held = gate_enter(&n->gate, ctx, "network.detach", err);

    if (!held)
        return -1;
    if (n->state == NETWORK_NONE || n->state == NETWORK_DETACHED)
        return 0;
    return detach_all(ctx, n, err) < 0
               ? err_wrap_because(err, REASON_NETWORK_FAILED, "network of the pod")
               : 0;
}

/* --- queries --- */

enum network_state network_state(const struct network *n)
{
    return (enum network_state)n->state;
}

size_t network_count(const struct network *n)
{
    return n->n_nics;
}

const struct net_iface *network_iface(const struct network *n, size_t i)
{
    return n->nics[i].iface;
}

int network_stats(struct ctx *ctx, struct network *n, size_t i, struct net_counters *ret,
                  struct err *err)
{
    if (i >= n->n_nics)
        return err_set(err, ERR_NOT_FOUND, "the pod has no interface %zu", i);
    return net_count(ctx, n->netns_fd, n->nics[i].iface->name, ret, err);
}
