#include "host/device/network.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/str.h"
#include "host/bridge/guest.h"
#include "host/device/network_priv.h"
#include "host/ledger/ledger.h"
#include "host/vmm/vmm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUEST_LIMIT (5 * NS_PER_S) /* to give an interface back; the host's part needs its time */
#define QUEUES 1
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
    network_forward_init(n);
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

int network_enter(const struct network *n, const char *what, struct err *err)
{
    return n->o.enter ? n->o.enter(n->o.arg, what, err) : 0;
}

void network_leave(const struct network *n)
{
    if (n->o.leave)
        n->o.leave(n->o.arg);
}

/* Each step of an interface is noted before it is asked for and struck out when it is undone. */

/* --- one interface, forwards --- */

static int plug(struct ctx *ctx, struct network *n, struct network_nic *c, int *ret_tap,
                struct err *err)
{
    const struct net_plug p = {
        .netns = n->netns_fd, .iface = c->iface->name, .tap = c->tap, .mtu = c->iface->mtu
    };
    AUTO_FREE char *queue = ledger_link_name(n->netns, n->inode, c->iface->name);
    AUTO_FREE char *link = ledger_link_name(n->netns, n->inode, c->tap);

    if (ledger_note(n->o.ledger, LEDGER_LINK, link, &c->link_note, err) < 0 ||
        ledger_note(n->o.ledger, LEDGER_INGRESS, queue, &c->queue_note, err) < 0)
        return -1;
    return net_plug(ctx, &p, ret_tap, err);
}

static int add_to_vm(struct ctx *ctx, struct network *n, struct network_nic *c, int tap,
                     struct err *err)
{
    struct vmm *v = n->o.vmm;
    struct vmm_nic nic = {
        .id = c->id, .tap_fd = tap, .mtu = (uint16_t)c->iface->mtu, .queues = QUEUES
    };

    if (!v->ops->nic_add)
        return vmm_unsupported("nic_add", err);
    memcpy(nic.mac, c->iface->mac, sizeof(nic.mac));
    if (network_enter(n, "add a NIC", err) < 0)
        return -1;
    c->in_vm = true;
    int r = v->ops->nic_add(ctx, v, &nic, err);
    network_leave(n);
    return r;
}

static char *join(const char *const *list)
{
    struct sbuf b = { 0 };

    for (; list && *list; list++)
        sbuf_addf(&b, "%s%s", b.len ? "," : "", *list);
    return sbuf_take(&b);
}

static struct guest_route *guest_routes(const struct net_iface *f)
{
    struct guest_route *routes = mem_zalloc((f->n_routes + 1) * sizeof(*routes));

    for (size_t i = 0; i < f->n_routes; i++) {
        const struct net_route *r = &f->routes[i];

        routes[i] = (struct guest_route){ .destination = r->destination,
                                          .next_hop = r->next_hop,
                                          .source = r->source,
                                          .metric = r->metric,
                                          .mtu = r->mtu,
                                          .on_link = r->on_link,
                                          .link_scope = r->link_scope };
    }
    return routes;
}

static int add_to_guest(struct ctx *ctx, struct network *n, struct network_nic *c,
                        const struct network_dns *dns, struct err *err)
{
    const struct net_iface *f = c->iface;
    AUTO_FREE struct guest_ip *ips = mem_zalloc((f->n_addresses + 1) * sizeof(*ips));
    AUTO_FREE struct guest_neighbour *neighbours =
        mem_zalloc((f->n_neighbours + 1) * sizeof(*neighbours));
    AUTO_FREE struct guest_route *routes = guest_routes(f);
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
                             .n_routes = f->n_routes,
                             .n_neighbours = f->n_neighbours,
                             .dns_servers = servers,
                             .dns_search = search };
    memcpy(nic.mac, f->mac, sizeof(nic.mac));
    if (network_enter(n, "configure a NIC", err) < 0)
        return -1;
    c->in_guest = true;
    int r = n->o.guest->ops->add_nic(ctx, n->o.guest, &nic, err);
    network_leave(n);
    return r;
}

static int attach_nic(struct ctx *ctx, struct network *n, struct network_nic *c,
                      const struct network_dns *dns, struct err *err)
{
    AUTO_FD int tap = -1; /* QEMU has its own; the tap goes with the last */

    if (plug(ctx, n, c, &tap, err) < 0 || add_to_vm(ctx, n, c, tap, err) < 0 ||
        add_to_guest(ctx, n, c, dns, err) < 0)
        return err_wrap(err, "interface %s", c->iface->name);
    log_info(ctx, "interface attached", F_STR("interface", c->iface->name), F_STR("nic", c->id),
             F_U("mtu", c->iface->mtu), F_U("addresses", c->iface->n_addresses),
             F_U("routes", c->iface->n_routes));
    return 0;
}

/* --- one interface, backwards --- */

static int remove_from_guest(struct ctx *ctx, struct network *n, struct network_nic *c,
                             struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, GUEST_LIMIT);

    if (!c->in_guest)
        return 0;
    int r = network_enter(n, "take a NIC from the guest", err);
    if (r == 0) {
        r = n->o.guest->ops->remove_nic(&limited, n->o.guest, n->guest_ns, c->id, err);
        network_leave(n);
    }
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
    int r = network_enter(n, "remove a NIC", err);
    if (r == 0) {
        r = n->o.vmm->ops->nic_remove(ctx, n->o.vmm, c->id, err);
        network_leave(n);
    }
    if (vmm_gone_is_done(r, ctx, err) < 0)
        return -1;
    c->in_vm = false;
    return 0;
}

static int unplug(struct ctx *ctx, struct network *n, struct network_nic *c, struct err *err)
{
    /* Also after a plug that failed: its thread may have been given up. */
    if (c->link_note && net_unplug(ctx, n->netns_fd, c->iface->name, c->tap, err) < 0)
        return -1;
    if (c->queue_note && ledger_forget(n->o.ledger, c->queue_note, err) < 0)
        return -1;
    c->queue_note = 0;
    if (c->link_note && ledger_forget(n->o.ledger, c->link_note, err) < 0)
        return -1;
    c->link_note = 0;
    return 0;
}

/* A guest that does not answer does not keep the host from taking back what is its own. */
static int detach_nic(struct ctx *ctx, struct network *n, struct network_nic *c, struct err *err)
{
    struct err guest = ERR_INIT;
    int r = remove_from_guest(ctx, n, c, &guest);

    if (remove_from_vm(ctx, n, c, err) < 0 || unplug(ctx, n, c, err) < 0)
        return err_wrap(err, "interface %s", c->iface->name);
    if (r < 0) {
        log_warn(ctx, "the guest did not give an interface back; its NIC is gone, going on",
                 F_STR("interface", c->iface->name), F_ERR(&guest));
        c->in_guest = false;
    }
    return 0;
}

/* --- the whole --- */

static int detach_all(struct ctx *ctx, struct network *n, struct err *err)
{
    size_t failed = 0;

    if (network_forward_stop(ctx, n, err) < 0)
        failed++;
    for (size_t i = n->n_nics; i-- > 0;) {
        struct err one = ERR_INIT;

        if (detach_nic(ctx, n, &n->nics[i], &one) == 0)
            continue;
        if (failed++ == 0)
            *err = one;
        else
            log_warn(ctx, "an interface could not be taken back", F_ERR(&one));
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
    if (n->config->skipped_routes > 0)
        log_warn(ctx, "routes with several next hops are not handed on",
                 F_U("routes", n->config->skipped_routes));
    make_nics(n);
    for (size_t i = 0; i < n->n_nics; i++)
        if (attach_nic(ctx, n, &n->nics[i], dns, err) < 0)
            return -1;
    network_forward_start(ctx, n);
    return 0;
}

static void undo(struct ctx *ctx, struct network *n)
{
    struct ctx limited = ctx_limited(n->o.loop, UNDO_LIMIT);
    struct err err = ERR_INIT;

    if (detach_all(&limited, n, &err) < 0)
        log_warn(ctx, "a network that failed is not taken back yet; its detach does", F_ERR(&err));
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
    return err_wrap(err, "network of the pod");
}

int network_detach(struct ctx *ctx, struct network *n, struct err *err)
{
    AUTO(gate_leave) struct gate *held = gate_enter(&n->gate, ctx, "network.detach", err);

    if (!held)
        return -1;
    if (n->state == NETWORK_NONE || n->state == NETWORK_DETACHED)
        return 0;
    return detach_all(ctx, n, err) < 0 ? err_wrap(err, "network of the pod") : 0;
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
