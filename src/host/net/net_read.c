/* net_read.c - what CNI put into the pod's namespace. */
#include "host/net/net_priv.h"

#include "base/fd.h"
#include "proto/rtnl.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/if_link.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#define DUMP_TRIES 5 /* of a table that others are changing */
#define MTU_MIN 68   /* RFC 791; the device refuses less */
#define MTU_MAX 65535
#define SYSCTL_BYTES 256
#define STOPPED (-ECANCELED) /* the reason is in reading.err */

struct reading {
    struct net_config *config;
    struct err *err;
    struct rtnl_iface links[NET_MAX_IFACES]; /* of the config's interfaces */
    unsigned kernels_rules[2];               /* seen; of IPv6 the second */
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

/* what: with its name. */
__attribute__((format(printf, 3, 4))) static int refuse(struct reading *r, const char *why,
                                                        const char *what, ...)
{
    va_list ap;

    va_start(ap, what);
    AUTO_FREE char *text = str_vformat(what, ap);
    va_end(ap);
    err_because(r->err, REASON_INTERFACE_UNSUPPORTED, ERR_STATE,
                "%s in the pod's network namespace cannot be given to a VM: %s", text, why);
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
    if (l.type != ARPHRD_ETHER || !l.has_mac || l.mtu < MTU_MIN || l.mtu > MTU_MAX)
        return refuse(r, "it is not an Ethernet device", "interface %s (%s)", l.name,
                      l.kind[0] ? l.kind : "device");
    if (l.mode != IPVLAN_MODE_L2)
        return refuse(r, "only ipvlan's mode l2 passes whole frames; set \"mode\": \"l2\"",
                      "interface %s (ipvlan, mode l3 or l3s)", l.name);
    if (r->config->n == NET_MAX_IFACES)
        return too_many(r, "interfaces", NET_MAX_IFACES, "");
    r->links[r->config->n] = l;
    struct net_iface *i = &r->config->ifaces[r->config->n++];
    snprintf(i->name, sizeof(i->name), "%s", l.name);
    i->index = l.index;
    memcpy(i->mac, l.mac, sizeof(i->mac));
    i->mtu = l.mtu;
    return 0;
}

/* All frames of an interface go to the VM, but those of VLANs on top of it; whatever else is on top
 * of it would get none. */
static int check_stacks(struct reading *r)
{
    for (size_t i = 0; i < r->config->n; i++) {
        const struct rtnl_iface *l = &r->links[i];
        struct net_iface *below = find(r->config, l->link);

        if (!below || l->link == l->index || str_eq(l->kind, "veth"))
            continue;
        if (!str_eq(l->kind, "vlan"))
            return refuse(r, "only a VLAN may be on top of another interface of the pod",
                          "interface %s (%s on top of %s)", l->name, l->kind, below->name);
        below->vlans = true;
    }
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

static const char *keep(struct net_config *c, const char *text)
{
    if (!text[0])
        return "";
    strv_add(&c->texts, text);
    return c->texts.v[c->texts.n - 1];
}

/* "" for none. */
static const char *keep_ip(struct net_config *c, const struct rtnl_ip *ip)
{
    char text[RTNL_IP_TEXT];

    rtnl_ip_text(ip, text);
    return keep(c, text);
}

static const char *keep_prefix(struct net_config *c, const struct rtnl_ip *ip, unsigned prefix)
{
    char text[RTNL_IP_TEXT], both[RTNL_IP_TEXT + 4];

    rtnl_ip_text(ip, text);
    snprintf(both, sizeof(both), "%s/%u", text, prefix);
    return text[0] ? keep(c, both) : "";
}

/* Routes that the kernel made itself are handed on as well: the guest makes none, because CNI
 * plugins (ptp) take some of them away. */
static bool route_wanted(const struct reading *r, const struct rtnl_route *t)
{
    static const uint8_t multicast = 0xff;

    if ((t->family != AF_INET && t->family != AF_INET6) || t->table == RT_TABLE_LOCAL ||
        (t->flags & RTM_F_CLONED))
        return false;
    if (t->protocol == RTPROT_KERNEL && (t->type != RTN_UNICAST || !find(r->config, t->oif)))
        return false; /* of an interface that is not handed on */
    return t->family == AF_INET || t->prefix < 8 || t->destination.bytes[0] != multicast;
}

/* At the end; one without a next hop before those that have one. */
static void put_route(struct net_config *c, const struct rtnl_route *t, struct guest_route *list,
                      size_t *n)
{
    size_t at = (*n)++;

    for (; !t->multipath && !t->gateway.family && at > 0 && list[at - 1].next_hop[0]; at--)
        list[at] = list[at - 1];
    list[at] =
        (struct guest_route){ .destination = keep_prefix(c, &t->destination, t->prefix),
                              .next_hop = keep_ip(c, &t->gateway),
                              .source = keep_ip(c, &t->source),
                              .metric = t->metric,
                              .mtu = t->mtu,
                              .on_link = t->flags & RTNH_F_ONLINK,
                              .link_scope = t->family == AF_INET && t->scope == RT_SCOPE_LINK,
                              .table = t->table == RT_TABLE_MAIN ? 0 : t->table,
                              .dev = "" };
}

/* Of a route with several next hops, all of them. NULL, or why not. */
static const char *put_hops(struct net_config *c, struct rtnl_route *t)
{
    size_t first = c->n_routes;

    while (rtnl_next_hop(t)) {
        const struct net_iface *i = find(c, t->oif);

        if (t->odd || !i)
            return t->odd ? t->odd : "one of its next hops is on an interface that the VM lacks";
        if (c->n_routes == NET_MAX_ROUTES || c->n_routes - first == NET_MAX_HOPS)
            return "it, or all such routes together, has too many next hops";
        put_route(c, t, c->routes, &c->n_routes);
        c->routes[c->n_routes - 1].dev = i->name;
        c->routes[c->n_routes - 1].weight = t->weight;
    }
    if (c->n_routes == first)
        return "it has no next hop";
    c->routes[first].hops = (uint32_t)(c->n_routes - first);
    return NULL;
}

static int on_route(void *arg, uint16_t type, const uint8_t *body, size_t len)
{
    struct reading *r = arg;
    struct rtnl_route t;

    if (type != RTM_NEWROUTE)
        return 0;
    int n = rtnl_read_route(body, len, &t);
    if (n < 0 || !route_wanted(r, &t))
        return n;
    struct net_iface *i = find(r->config, t.oif);
    const char *why = t.odd                   ? t.odd
                      : t.type != RTN_UNICAST ? "its type is not unicast"
                      : t.multipath           ? put_hops(r->config, &t)
                      : i                     ? NULL
                                              : "the VM lacks its interface";
    if (why)
        return refuse(r, why, "route to %s (table %u)",
                      keep_prefix(r->config, &t.destination, t.prefix), t.table);
    if (t.multipath)
        return 0;
    if (i->n_routes == NET_MAX_ROUTES)
        return too_many(r, "routes", NET_MAX_ROUTES, i->name);
    put_route(r->config, &t, i->routes, &i->n_routes);
    return 0;
}

static int on_rule(void *arg, uint16_t type, const uint8_t *body, size_t len)
{
    struct reading *r = arg;
    struct net_config *c = r->config;
    struct rtnl_rule u;

    if (type != RTM_NEWRULE)
        return 0;
    int n = rtnl_read_rule(body, len, &u);
    if (n < 0 || (u.family != AF_INET && u.family != AF_INET6))
        return n;
    if (u.kernels) {
        r->kernels_rules[u.family == AF_INET6]++;
        return 0;
    }
    if (u.odd)
        return refuse(r, "only source, destination, interfaces, mark and table are handed on",
                      "policy rule %u (IPv%c)", u.priority, u.family == AF_INET ? '4' : '6');
    if (c->n_rules == NET_MAX_RULES)
        return too_many(r, "policy rules", NET_MAX_RULES, "");
    c->rules[c->n_rules++] = (struct guest_rule){ .source = keep_prefix(c, &u.from, u.from_prefix),
                                                  .destination = keep_prefix(c, &u.to, u.to_prefix),
                                                  .iif = keep(c, u.iif),
                                                  .oif = keep(c, u.oif),
                                                  .priority = u.priority,
                                                  .table = u.table,
                                                  .mark = u.mark,
                                                  .mask = u.mask,
                                                  .ipv6 = u.family == AF_INET6,
                                                  .invert = u.invert };
    return 0;
}

/* The guest begins with them: a pod that has deleted one would route in another way there. */
static int check_rules(struct reading *r)
{
    if (r->kernels_rules[0] >= 3 && r->kernels_rules[1] != 1)
        return 0;
    return refuse(r, "a rule of the kernel (local, main or default) is missing",
                  "the set of policy rules");
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

/* --- sysctls of an interface --- */

/* Read-only, handed on otherwise, only of use to make addresses (which are handed on), or another
 * name for the one in ms or bytes. */
static bool sysctl_wanted(const char *name)
{
    static const char *const others[] = { "mtu",           "mc_forwarding", "stable_secret",
                                          "addr_gen_mode", "retrans_time",  "base_reachable_time",
                                          "unres_qlen" };

    for (size_t i = 0; i < ARRAY_LEN(others); i++)
        if (str_eq(name, others[i]))
            return false;
    return name[0] != '.';
}

/* There are some hundred of them: by name in its directory, at once. "": it cannot be read (a
 * secret that was never set), or is gone. */
static void read_value(int dir, const char *name, char ret[SYSCTL_BYTES])
{
    AUTO_FD int fd = openat(dir, name, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, ret, SYSCTL_BYTES - 1);

    ret[n > 0 ? n : 0] = '\0';
    ret[strcspn(ret, "\n")] = '\0';
}

static int read_sysctl(struct reading *r, struct net_iface *f, int own, int usual, const char *kind,
                       const char *name)
{
    char value[SYSCTL_BYTES], normal[SYSCTL_BYTES] = "0";

    read_value(own, name, value);
    /* Switched off for all interfaces, that is the default as well, but not the guest's. */
    if (!str_eq(name, "disable_ipv6"))
        read_value(usual, name, normal);
    if (!value[0] || !normal[0] || str_eq(value, normal))
        return 0;
    if (f->sysctls.n == NET_MAX_SYSCTLS)
        return too_many(r, "sysctls", NET_MAX_SYSCTLS, f->name);
    strv_addf(&f->sysctls, "%.4s.%s.%s=%s", kind, kind + strlen("ipv4/"), name, value);
    return 0;
}

static int read_sysctls(struct reading *r, struct net_iface *f)
{
    static const char *const kinds[] = { "ipv4/conf", "ipv4/neigh", "ipv6/conf", "ipv6/neigh" };
    int n = 0;

    for (size_t i = 0; i < ARRAY_LEN(kinds) && n == 0; i++) {
        /* The defaults of neighbours are not to be seen there, but loopback has them. */
        AUTO_FREE char *own = str_format("/proc/sys/net/%s/%s", kinds[i], f->name),
                       *usual = str_format("/proc/sys/net/%s/%s", kinds[i],
                                           i % 2 == 0 ? "default" : "lo");
        AUTO(closedir) DIR *d = opendir(own); /* a kernel without IPv6 has no such directory */
        AUTO_FD int normal = open(usual, O_PATH | O_DIRECTORY | O_CLOEXEC);

        for (const struct dirent *e; n == 0 && d && (e = readdir(d));)
            if (sysctl_wanted(e->d_name))
                n = read_sysctl(r, f, dirfd(d), normal, kinds[i], e->d_name);
    }
    return n;
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
    { rtnl_get_rules, on_rule, "policy rules" },
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

static int finish(struct reading *r)
{
    int n = 0;

    for (size_t i = 0; i < r->config->n && n == 0; i++) {
        struct net_iface *f = &r->config->ifaces[i];

        f->addresses = mem_realloc(f->addresses, (f->n_addresses + 1) * sizeof(*f->addresses));
        f->routes = mem_realloc(f->routes, (f->n_routes + 1) * sizeof(*f->routes));
        f->neighbours = mem_realloc(f->neighbours, (f->n_neighbours + 1) * sizeof(*f->neighbours));
        n = read_sysctls(r, f);
    }
    return n;
}

static int read_once(struct net_job *j, struct err *err)
{
    struct reading r = { .err = err };
    int n = 0;

    net_config_free(j->config);
    j->config = r.config = mem_new(struct net_config);
    for (size_t i = 0; i < ARRAY_LEN(dumps) && n == 0; i++) {
        struct nl_msg m;

        dumps[i].ask(&m);
        n = nl_ask(j->rtnl, &m, dumps[i].fn, &r);
        if (n == -EOPNOTSUPP && dumps[i].fn == on_rule) /* a kernel without policy rules */
            return finish(&r);
        if (n < 0 && n != STOPPED && n != -EAGAIN) {
            err_sys(err, -n, "read the %s of the pod's network namespace", dumps[i].what);
            return STOPPED;
        }
        if (i == 0 && n == 0) {
            make_room(j->config);
            n = check_stacks(&r);
        }
    }
    n = n == 0 ? check_rules(&r) : n;
    return n == 0 ? finish(&r) : n;
}

static int read_in_thread(struct net_job *j, struct err *err)
{
    int r = -EAGAIN;

    for (int i = 0; i < DUMP_TRIES && r == -EAGAIN; i++)
        r = read_once(j, err);
    if (r == -EAGAIN)
        return err_set(err, ERR_UNAVAILABLE,
                       "the pod's network namespace keeps changing; retry when CNI has finished");
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
        strv_release(&c->ifaces[i].sysctls);
    }
    strv_release(&c->texts);
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
    if (r < 0 && r != -EAGAIN) /* -EAGAIN: the dump was interrupted, but may contain ours */
        return err_sys(err, -r, "read the counters of %s", j->iface);
    return j->iface_index ? 0
                          : err_because(err, REASON_INTERFACE_MISSING, ERR_NOT_FOUND,
                                        "no interface %s", j->iface);
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
