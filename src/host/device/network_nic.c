/* network_nic.c - one interface of a pod: tap and filters, NIC of the VM, configuration in the
 * guest. Each step is noted before it is asked for and struck out when it is undone. */
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "host/bridge/guest.h"
#include "host/device/network_priv.h"
#include "host/ledger/ledger.h"
#include "host/vmm/vmm.h"

#include <stdlib.h>
#include <string.h>

#define GUEST_LIMIT (5 * NS_PER_S) /* to give an interface back; the host's part needs its time */
#define QUEUES 1

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
    if (n->o.host->plug(ctx, &p, ret_tap, err) < 0)
        return -1;
    c->plugged = true;
    return 0;
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

/* Copies of what the guest's message borrows. */
struct message {
    struct guest_ip *ips;
    struct guest_route *routes;
    struct guest_neighbour *neighbours;
    char *servers, *search;
};

static void message_release(struct message *m)
{
    free(m->ips);
    free(m->routes);
    free(m->neighbours);
    free(m->servers);
    free(m->search);
}
static void message_release_auto(struct message *m)
{
    message_release(m);
}

static void message_fill(struct message *m, const struct net_iface *f,
                         const struct network_dns *dns)
{
    m->ips = mem_zalloc((f->n_addresses + 1) * sizeof(*m->ips));
    for (size_t i = 0; i < f->n_addresses; i++)
        m->ips[i] = (struct guest_ip){ f->addresses[i].text, f->addresses[i].prefix };
    m->routes = mem_zalloc((f->n_routes + 1) * sizeof(*m->routes));
    for (size_t i = 0; i < f->n_routes; i++) {
        const struct net_route *r = &f->routes[i];

        m->routes[i] = (struct guest_route){ .destination = r->destination,
                                             .next_hop = r->next_hop,
                                             .source = r->source,
                                             .metric = r->metric,
                                             .mtu = r->mtu,
                                             .on_link = r->on_link,
                                             .link_scope = r->link_scope };
    }
    m->neighbours = mem_zalloc((f->n_neighbours + 1) * sizeof(*m->neighbours));
    for (size_t i = 0; i < f->n_neighbours; i++) {
        m->neighbours[i].address = f->neighbours[i].text;
        memcpy(m->neighbours[i].mac, f->neighbours[i].mac, sizeof(m->neighbours[i].mac));
    }
    m->servers = join(dns ? dns->servers : NULL);
    m->search = join(dns ? dns->search : NULL);
}

static int add_to_guest(struct ctx *ctx, struct network *n, struct network_nic *c,
                        const struct network_dns *dns, struct err *err)
{
    AUTO(message_release) struct message m = { 0 };
    const struct net_iface *f = c->iface;

    message_fill(&m, f, dns);
    struct guest_nic nic = { .ns = n->guest_ns,
                             .id = c->id,
                             .name = f->name,
                             .mtu = f->mtu,
                             .ips = m.ips,
                             .routes = m.routes,
                             .neighbours = m.neighbours,
                             .n_ips = f->n_addresses,
                             .n_routes = f->n_routes,
                             .n_neighbours = f->n_neighbours,
                             .dns_servers = m.servers,
                             .dns_search = m.search };
    memcpy(nic.mac, f->mac, sizeof(nic.mac));
    if (network_enter(n, "configure a NIC", err) < 0)
        return -1;
    c->in_guest = true;
    int r = n->o.guest->ops->add_nic(ctx, n->o.guest, &nic, err);
    network_leave(n);
    return r;
}

int network_nic_attach(struct ctx *ctx, struct network *n, struct network_nic *c,
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
    if (c->link_note && n->o.host->unplug(ctx, n->netns_fd, c->iface->name, c->tap, err) < 0)
        return -1;
    c->plugged = false;
    if (c->queue_note && ledger_forget(n->o.ledger, c->queue_note, err) < 0)
        return -1;
    c->queue_note = 0;
    if (c->link_note && ledger_forget(n->o.ledger, c->link_note, err) < 0)
        return -1;
    c->link_note = 0;
    return 0;
}

/* A guest that does not answer does not keep the host from taking back what is its own. */
int network_nic_detach(struct ctx *ctx, struct network *n, struct network_nic *c, struct err *err)
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
