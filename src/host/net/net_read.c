/* net_read.c - what CNI put into the pod's namespace. */
#include "host/net/net_priv.h"
#include "proto/rtnl.h"

#include <linux/rtnetlink.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <stdio.h>
#include <sys/socket.h>

#define DUMP_TRIES 5 /* of a table that others are changing */
#define MTU_MIN 68   /* RFC 791; the device refuses less */
#define MTU_MAX 65535
#define STOPPED (-ECANCELED) /* the reason is in reading.err */

struct reading {
    struct net_config *config;
    struct err *err;
};

static struct net_iface *find(struct net_config *c, int index)
{
    for (size_t i = 0; i < c->n; i++)
        if (c->ifaces[i].index == index)
            return &c->ifaces[i];
    return NULL;
}

static int too_many(struct reading *r, const char *what, int most, const char *of)
{
    err_set(r->err, ERR_EXHAUSTED, "more than %d %s%s%s in the pod's network namespace", most, what,
            of[0] ? " of " : "", of);
    return STOPPED;
}

/* --- interfaces --- */

/* What every new namespace has by itself (tunl0, sit0 …) is down; ports of a bridge or bond in the
 * pod are its master's business. */
static bool wanted(const struct rtnl_iface *l)
{
    return (l->flags & IFF_UP) && !(l->flags & IFF_LOOPBACK) && l->master == 0;
}

static int on_iface(void *arg, uint16_t type, const uint8_t *body, size_t len)
{
    struct reading *r = arg;
    struct rtnl_iface l;

    if (type != RTM_NEWLINK)
        return 0;
    int n = rtnl_read_iface(body, len, &l);
    if (n == 0 && (l.flags & IFF_LOOPBACK) && (l.flags & IFF_UP))
        r->config->loopback = true;
    if (n < 0 || !wanted(&l))
        return n;
    if (l.type != ARPHRD_ETHER || !l.has_mac || l.mtu < MTU_MIN || l.mtu > MTU_MAX) {
        err_set(r->err, ERR_STATE,
                "interface %s (%s) in the pod's network namespace cannot be given to a VM: it is "
                "no Ethernet",
                l.name, l.kind[0] ? l.kind : "device");
        return STOPPED;
    }
    if (r->config->n == NET_MAX_IFACES)
        return too_many(r, "interfaces", NET_MAX_IFACES, "");
    struct net_iface *i = &r->config->ifaces[r->config->n++];
    snprintf(i->name, sizeof(i->name), "%s", l.name);
    i->index = l.index;
    memcpy(i->mac, l.mac, sizeof(i->mac));
    i->mtu = l.mtu;
    return 0;
}

/* --- what belongs to them --- */

static int on_address(void *arg, uint16_t type, const uint8_t *body, size_t len)
{
    struct reading *r = arg;
    struct rtnl_address a;

    if (type != RTM_NEWADDR)
        return 0;
    int n = rtnl_read_address(body, len, &a);
    struct net_iface *i = n < 0 ? NULL : find(r->config, a.index);
    /* The same bit means "secondary" with IPv4. */
    if (!i || (a.ip.family == AF_INET6 && (a.flags & IFA_F_TEMPORARY)))
        return n;
    if (i->n_addresses == NET_MAX_ADDRESSES)
        return too_many(r, "addresses", NET_MAX_ADDRESSES, i->name);
    struct net_address *to = &i->addresses[i->n_addresses++];
    rtnl_ip_text(&a.ip, to->text);
    to->prefix = a.prefix;
    return 0;
}

/* Routes that the kernel made itself are handed on as well: the guest makes none, because CNI
 * plugins (ptp) take some of them away. */
static bool route_wanted(const struct rtnl_route *t)
{
    static const uint8_t multicast = 0xff;

    if ((t->family != AF_INET && t->family != AF_INET6) || t->table != RT_TABLE_MAIN ||
        t->type != RTN_UNICAST || (t->flags & RTM_F_CLONED))
        return false;
    return t->family == AF_INET || t->prefix < 8 || t->destination.bytes[0] != multicast;
}

static int on_route(void *arg, uint16_t type, const uint8_t *body, size_t len)
{
    struct reading *r = arg;
    struct rtnl_route t;
    char text[RTNL_IP_TEXT];

    if (type != RTM_NEWROUTE)
        return 0;
    int n = rtnl_read_route(body, len, &t);
    if (n < 0 || !route_wanted(&t))
        return n;
    struct net_iface *i = t.multipath ? NULL : find(r->config, t.oif);
    if (!i) {
        r->config->skipped_routes += t.multipath;
        return 0;
    }
    if (i->n_routes == NET_MAX_ROUTES)
        return too_many(r, "routes", NET_MAX_ROUTES, i->name);
    size_t at = i->n_routes++;
    for (; !t.gateway.family && at > 0 && i->routes[at - 1].next_hop[0]; at--)
        i->routes[at] = i->routes[at - 1]; /* those without a next hop come first */
    struct net_route *to = &i->routes[at];
    rtnl_ip_text(&t.destination, text);
    snprintf(to->destination, sizeof(to->destination), "%s/%u", text, t.prefix);
    rtnl_ip_text(&t.gateway, to->next_hop);
    rtnl_ip_text(&t.source, to->source);
    to->metric = t.metric;
    to->mtu = t.mtu;
    to->on_link = t.flags & RTNH_F_ONLINK;
    to->link_scope = t.family == AF_INET && t.scope == RT_SCOPE_LINK;
    return 0;
}

static int on_neighbour(void *arg, uint16_t type, const uint8_t *body, size_t len)
{
    struct reading *r = arg;
    struct rtnl_neighbour b;

    if (type != RTM_NEWNEIGH)
        return 0;
    int n = rtnl_read_neighbour(body, len, &b);
    struct net_iface *i = n < 0 ? NULL : find(r->config, b.index);
    if (!i || !b.ip.family || !b.has_mac || !(b.nud & NUD_PERMANENT) || (b.flags & NTF_PROXY))
        return n;
    if (i->n_neighbours == NET_MAX_NEIGHBOURS)
        return too_many(r, "neighbours", NET_MAX_NEIGHBOURS, i->name);
    struct net_neighbour *to = &i->neighbours[i->n_neighbours++];
    rtnl_ip_text(&b.ip, to->text);
    memcpy(to->mac, b.mac, sizeof(to->mac));
    return 0;
}

/* --- all of it --- */

static const struct {
    void (*ask)(struct nl_msg *m);
    nl_fn *fn;
    const char *what;
} dumps[] = {
    { rtnl_get_ifaces, on_iface, "interfaces" },
    { rtnl_get_addresses, on_address, "addresses" },
    { rtnl_get_routes, on_route, "routes" },
    { rtnl_get_neighbours, on_neighbour, "neighbours" },
};

/* Room for the most there may be, so that what it takes is known; given back in finish. */
static void make_room(struct net_config *c)
{
    for (size_t i = 0; i < c->n; i++) {
        struct net_iface *f = &c->ifaces[i];

        f->addresses = mem_zalloc(NET_MAX_ADDRESSES * sizeof(*f->addresses));
        f->routes = mem_zalloc(NET_MAX_ROUTES * sizeof(*f->routes));
        f->neighbours = mem_zalloc(NET_MAX_NEIGHBOURS * sizeof(*f->neighbours));
    }
}

static void finish(struct net_config *c)
{
    for (size_t i = 0; i < c->n; i++) {
        struct net_iface *f = &c->ifaces[i];

        f->addresses = mem_realloc(f->addresses, (f->n_addresses + 1) * sizeof(*f->addresses));
        f->routes = mem_realloc(f->routes, (f->n_routes + 1) * sizeof(*f->routes));
        f->neighbours = mem_realloc(f->neighbours, (f->n_neighbours + 1) * sizeof(*f->neighbours));
    }
}

static int read_once(struct net_job *j, struct err *err)
{
    struct reading r = { .err = err };

    net_config_free(j->config);
    j->config = r.config = mem_new(struct net_config);
    for (size_t i = 0; i < ARRAY_LEN(dumps); i++) {
        struct nl_msg m;

        dumps[i].ask(&m);
        int n = nl_ask(j->rtnl, &m, dumps[i].fn, &r);
        if (n == STOPPED || n == -EAGAIN)
            return n;
        if (n < 0) {
            err_sys(err, -n, "read the %s of the pod's network namespace", dumps[i].what);
            return STOPPED;
        }
        if (i == 0)
            make_room(j->config);
    }
    finish(j->config);
    return 0;
}

static int read_in_thread(struct net_job *j, struct err *err)
{
    int r = -EAGAIN;

    for (int i = 0; i < DUMP_TRIES && r == -EAGAIN; i++)
        r = read_once(j, err);
    if (r == -EAGAIN)
        return err_set(err, ERR_UNAVAILABLE,
                       "the pod's network namespace is being changed all the time");
    return r < 0 ? -1 : 0;
}

int net_read(struct ctx *ctx, int netns, struct net_config **ret, struct err *err)
{
    struct net_job j = { 0 };

    if (net_run(ctx, &j, netns, read_in_thread, "read the pod's network", err) < 0)
        return -1;
    *ret = j.config;
    return 0;
}

void net_config_free(struct net_config *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < c->n; i++) {
        free(c->ifaces[i].addresses);
        free(c->ifaces[i].routes);
        free(c->ifaces[i].neighbours);
    }
    free(c);
}

/* --- counters --- */

static int on_counters(void *arg, uint16_t type, const uint8_t *body, size_t len)
{
    struct net_job *j = arg;
    struct rtnl_iface l;

    if (type != RTM_NEWLINK || rtnl_read_iface(body, len, &l) < 0 || !str_eq(l.name, j->iface))
        return 0;
    j->iface_index = l.index;
    j->counters = (struct net_counters){
        .rx_bytes = l.counters.rx_bytes,
        .rx_packets = l.counters.rx_packets,
        .rx_errors = l.counters.rx_errors,
        .rx_dropped = l.counters.rx_dropped,
        .tx_bytes = l.counters.tx_bytes,
        .tx_packets = l.counters.tx_packets,
        .tx_errors = l.counters.tx_errors,
        .tx_dropped = l.counters.tx_dropped,
    };
    return 0;
}

static int count_in_thread(struct net_job *j, struct err *err)
{
    struct nl_msg m;

    rtnl_get_ifaces(&m);
    int r = nl_ask(j->rtnl, &m, on_counters, j);
    if (r < 0 && r != -EAGAIN) /* ours was told all the same */
        return err_sys(err, -r, "read the counters of %s", j->iface);
    return j->iface_index ? 0 : err_set(err, ERR_NOT_FOUND, "no interface %s", j->iface);
}

int net_count(struct ctx *ctx, int netns, const char *iface, struct net_counters *ret,
              struct err *err)
{
    struct net_job j = { .iface = iface };

    if (net_run(ctx, &j, netns, count_in_thread, "count the pod's traffic", err) < 0)
        return -1;
    *ret = j.counters;
    return 0;
}
