#include "host/device/network.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/str.h"
#include "host/device/network_priv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNDO_LIMIT (60 * NS_PER_S)

const struct network_host network_host_linux = {
    .open = net_open,
    .read = net_read,
    .plug = net_plug,
    .unplug = net_unplug,
    .count = net_count,
    .forward_open = net_forward_open,
    .forward_accept = net_forward_accept,
};

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
    if (!n->o.host)
        n->o.host = &network_host_linux;
    n->guest_ns = str_dup(o->guest_ns);
    n->netns_fd = -1;
    gate_init(&n->gate, "network");
    network_forward_init(n);
    return n;
}

static void drop_nics(struct network *n)
{
    for (size_t i = 0; i < n->n_nics; i++) {
        for (char **a = n->nics[i].addresses; a && *a; a++)
            free(*a);
        free(n->nics[i].addresses);
        free(n->nics[i].id);
    }
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

/* --- the whole --- */

static int detach_all(struct ctx *ctx, struct network *n, struct err *err)
{
    size_t failed = 0;

    if (network_forward_stop(ctx, n, err) < 0)
        failed++;
    for (size_t i = n->n_nics; i-- > 0;) {
        struct err one = ERR_INIT;

        if (network_nic_detach(ctx, n, &n->nics[i], &one) == 0)
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

static char **address_texts(const struct net_iface *f)
{
    char **list = mem_zalloc((f->n_addresses + 1) * sizeof(*list));

    for (size_t i = 0; i < f->n_addresses; i++)
        list[i] = str_format("%s/%u", f->addresses[i].text, f->addresses[i].prefix);
    return list;
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
            nic->addresses = address_texts(nic->iface);
            n->n_nics++;
        }
    }
}

static int attach_all(struct ctx *ctx, struct network *n, const struct network_dns *dns,
                      struct err *err)
{
    if (n->o.host->open(ctx, n->netns, &n->netns_fd, &n->inode, err) < 0 ||
        n->o.host->read(ctx, n->netns_fd, &n->config, err) < 0)
        return -1;
    if (n->config->skipped_routes > 0)
        log_warn(ctx, "routes with several next hops are not handed on",
                 F_U("routes", n->config->skipped_routes));
    make_nics(n);
    for (size_t i = 0; i < n->n_nics; i++)
        if (network_nic_attach(ctx, n, &n->nics[i], dns, err) < 0)
            return -1;
    network_forward_start(ctx, n);
    return 0;
}

static void undo(struct ctx *ctx, struct network *n)
{
    struct ctx root = ctx_root(n->o.loop), limited = ctx_with_timeout(&root, UNDO_LIMIT);
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

void network_iface(const struct network *n, size_t i, struct network_iface *ret)
{
    const struct network_nic *c = &n->nics[i];

    *ret = (struct network_iface){ .name = c->iface->name,
                                   .mtu = c->iface->mtu,
                                   .addresses = (const char *const *)c->addresses };
    memcpy(ret->mac, c->iface->mac, sizeof(ret->mac));
}

int network_stats(struct ctx *ctx, struct network *n, size_t i, struct network_stats *ret,
                  struct err *err)
{
    struct net_counters c;

    if (i >= n->n_nics)
        return err_set(err, ERR_NOT_FOUND, "the pod has no interface %zu", i);
    if (n->o.host->count(ctx, n->netns_fd, n->nics[i].iface->name, &c, err) < 0)
        return -1;
    *ret = (struct network_stats){ c.rx_bytes, c.rx_packets, c.rx_errors, c.rx_dropped,
                                   c.tx_bytes, c.tx_packets, c.tx_errors, c.tx_dropped };
    return 0;
}
