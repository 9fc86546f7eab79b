/* bridge_network.c - the calls for the networks of pods. */
#include "base/ctx.h"
#include "base/err.h"
#include "base/str.h"
#include "base/stream.h"
#include "host/bridge/bridge_priv.h"
#include "host/vmm/vmm.h"
#include <stdlib.h>

#define MAC_TEXT 18
#define PER_NIC_MAX 256 /* of each kind: the message has room for that */

static void mac_text(const uint8_t mac[6], char ret[MAC_TEXT])
{
    static const char digits[] = "0123456789ABCDEF";

    for (int i = 0; i < 6; i++) {
        ret[3 * i] = digits[mac[i] >> 4];
        ret[3 * i + 1] = digits[mac[i] & 15];
        ret[3 * i + 2] = i < 5 ? '-' : '\0';
    }
}

/* Lists in the wire's own form. */
struct lists {
    struct bridge_ip *ips;
    struct bridge_route *routes;
    struct bridge_neighbour *neighbours;
    char (*macs)[MAC_TEXT];
};

static void lists_release(struct lists *l)
{
    free(l->ips);
    free(l->routes);
    free(l->neighbours);
    free(l->macs);
}
static void lists_release_auto(struct lists *l)
{
    lists_release(l);
}

static void lists_fill(struct lists *l, const struct guest_nic *n)
{
    l->ips = mem_zalloc((n->n_ips + 1) * sizeof(*l->ips));
    for (size_t i = 0; i < n->n_ips; i++)
        l->ips[i] = (struct bridge_ip){ n->ips[i].address, n->ips[i].prefix };
    l->routes = mem_zalloc((n->n_routes + 1) * sizeof(*l->routes));
    for (size_t i = 0; i < n->n_routes; i++) {
        const struct guest_route *r = &n->routes[i];

        l->routes[i] = (struct bridge_route){ .next_hop = r->next_hop,
                                              .destination = r->destination,
                                              .metric = r->metric,
                                              .source = r->source,
                                              .mtu = r->mtu,
                                              .on_link = r->on_link,
                                              .link_scope = r->link_scope };
    }
    l->neighbours = mem_zalloc((n->n_neighbours + 1) * sizeof(*l->neighbours));
    l->macs = mem_zalloc((n->n_neighbours + 1) * sizeof(*l->macs));
    for (size_t i = 0; i < n->n_neighbours; i++) {
        mac_text(n->neighbours[i].mac, l->macs[i]);
        l->neighbours[i] = (struct bridge_neighbour){ n->neighbours[i].address, l->macs[i] };
    }
}

int bridge_add_nic(struct ctx *ctx, struct guest *g, const struct guest_nic *n, struct err *err)
{
    AUTO(lists_release) struct lists l = { 0 };
    struct bridge *b = bridge_of(g);
    char mac[MAC_TEXT];

    if (bridge_need_capability(b, b->caps.namespace_add, "NamespaceAddRequestSupported", err) < 0)
        return err_wrap(err, "add interface %s", n->name);
    if (n->n_ips > PER_NIC_MAX || n->n_routes > PER_NIC_MAX || n->n_neighbours > PER_NIC_MAX)
        return err_set(err, ERR_EXHAUSTED,
                       "interface %s: more than %d addresses, routes or "
                       "neighbours",
                       n->name, PER_NIC_MAX);
    lists_fill(&l, n);
    mac_text(n->mac, mac);

    const struct bridge_request r = {
        .type = BRIDGE_MODIFY_SETTINGS,
        .container_id = BRIDGE_NULL_ID,
        .modify = { .action = BRIDGE_ADD,
                    .resource = BRIDGE_RES_NETWORK,
                    .network = { .namespace_id = n->ns,
                                 .id = n->id,
                                 .mac = mac,
                                 .dns_search = n->dns_search,
                                 .dns_servers = n->dns_servers,
                                 .ips = l.ips,
                                 .n_ips = n->n_ips,
                                 .routes = l.routes,
                                 .n_routes = n->n_routes,
                                 .name = n->name,
                                 .mtu = n->mtu,
                                 .neighbours = l.neighbours,
                                 .n_neighbours = n->n_neighbours } },
    };

    return bridge_plain_call(ctx, b, &r, err);
}

int bridge_remove_nic(struct ctx *ctx, struct guest *g, const char *ns, const char *id,
                      struct err *err)
{
    const struct bridge_request r = {
        .type = BRIDGE_MODIFY_SETTINGS,
        .container_id = BRIDGE_NULL_ID,
        .modify = { .action = BRIDGE_REMOVE,
                    .resource = BRIDGE_RES_NETWORK,
                    .network = { .namespace_id = ns, .id = id } },
    };

    if (bridge_plain_call(ctx, bridge_of(g), &r, err) == 0)
        return 0;
    if (err->code != ERR_NOT_FOUND)
        return -1;
    err_clear(err);
    return 0;
}

static int accept_port(struct ctx *ctx, struct bridge *b, struct vmm_listener *l,
                       struct stream **ret, struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, BRIDGE_STDIO_LIMIT);
    struct bridge_user user;
    struct ctx inner = bridge_enter(&limited, b, &user);
    int r = b->vmm->ops->accept(&inner, l, ret, err);

    bridge_leave(&user);
    if (r < 0 && b->closed)
        return err_set(err, ERR_UNAVAILABLE, "the guest is gone: %s", b->why);
    return r;
}

/* Listening first: the guest dials before it answers. */
int bridge_connect_port(struct ctx *ctx, struct guest *g, const char *ns, bool ipv6, uint16_t port,
                        struct stream **ret, struct err *err)
{
    struct bridge *b = bridge_of(g);
    struct vmm_listener *l = NULL;
    const struct bridge_request r = {
        .type = BRIDGE_MODIFY_SETTINGS,
        .container_id = BRIDGE_NULL_ID,
        .modify = { .action = BRIDGE_ADD,
                    .resource = BRIDGE_RES_PORT_FORWARD,
                    .forward = { .namespace_id = ns,
                                 .ipv6 = ipv6,
                                 .port = port,
                                 .host_port = b->next_port } },
    };

    if (bridge_need_connection(b, r.type, err) < 0)
        return -1;
    b->next_port++;
    if (b->vmm->ops->listen(b->vmm, r.modify.forward.host_port, &l, err) < 0)
        return err_wrap(err, "listen for port %u of a pod", port);
    if (bridge_plain_call(ctx, b, &r, err) < 0) {
        b->vmm->ops->unlisten(l);
        return -1;
    }
    return accept_port(ctx, b, l, ret, err);
}
