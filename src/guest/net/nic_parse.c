/* nic_parse.c - what the host says of a NIC, read and checked. */
#include "guest/net/nets_priv.h"
#include "proto/link.h"

#include <ctype.h>
#include <linux/rtnetlink.h>
#include <stdio.h>
#include <sys/socket.h>

#define PER_NIC_MAX 256
#define HOPS_MAX 32 /* of a route: the kernel's message has room for that */
#define MTU_MAX 65535
#define DNS_MAX 4096

static int parse_mac(const char *text, uint8_t mac[6], struct err *err)
{
    const char *at = text;

    for (int i = 0; i < 6; i++, at += 3) {
        if (!isxdigit((unsigned char)at[0]) || !isxdigit((unsigned char)at[1]) ||
            (i < 5 ? at[2] != ':' && at[2] != '-' : at[2] != '\0'))
            return err_set(err, ERR_INVALID, "invalid MAC \"%.32s\"", text);
        mac[i] = (uint8_t)strtoul(at, NULL, 16);
    }
    return 0;
}

static bool name_ok(const char *name)
{
    if (strlen(name) >= RTNL_NAME_BYTES || strcmp(name, ".") == 0 || strcmp(name, "..") == 0 ||
        strcmp(name, "lo") == 0)
        return false;
    for (const char *c = name; *c; c++)
        if (*c <= ' ' || *c == '/' || *c == ':' || *c == '%' || *c == 0x7f)
            return false;
    return true;
}

static int parse_addresses(const struct bridge_network *in, struct nic *n, struct err *err)
{
    n->addresses = mem_zalloc((in->n_ips + 1) * sizeof(*n->addresses));
    for (size_t i = 0; i < in->n_ips; i++) {
        struct rtnl_address *a = &n->addresses[n->n_addresses];
        const struct guest_ip *from = &in->ips[i];

        if (rtnl_ip_parse(from->address, &a->ip) < 0 || !a->ip.family ||
            from->prefix > (a->ip.family == AF_INET ? 32 : 128))
            return err_set(err, ERR_INVALID, "invalid address \"%.64s/%u\"", from->address,
                           from->prefix);
        a->prefix = from->prefix;
        a->flags =
            (n->exact ? IFA_F_NOPREFIXROUTE : 0) | (a->ip.family == AF_INET6 ? IFA_F_NODAD : 0);
        n->n_addresses++;
    }
    return 0;
}

static bool is_zero(const struct rtnl_ip *ip)
{
    static const uint8_t zero[16];

    return ip->family && memcmp(ip->bytes, zero, sizeof(zero)) == 0;
}

static int parse_route(const struct guest_route *from, struct nic_route *ret, struct err *err)
{
    struct rtnl_route *to = &ret->r;

    if (rtnl_prefix_parse(from->destination, &to->destination, &to->prefix) < 0)
        return err_set(err, ERR_INVALID, "invalid route to \"%.64s\": no prefix length",
                       from->destination);
    if (rtnl_ip_parse(from->next_hop, &to->gateway) < 0 ||
        rtnl_ip_parse(from->source, &to->source) < 0 ||
        (to->source.family && to->source.family != to->destination.family))
        return err_set(err, ERR_INVALID,
                       "invalid route to %.64s: invalid address \"%.64s\" or \"%.64s\"",
                       from->destination, from->next_hop, from->source);
    if (from->weight > 256 || from->hops > HOPS_MAX || (from->weight && !name_ok(from->dev)))
        return err_set(err, ERR_INVALID, "invalid route to %.64s: invalid next hop",
                       from->destination);
    if (is_zero(&to->gateway))
        to->gateway = (struct rtnl_ip){ 0 };
    to->family = to->destination.family;
    to->metric = from->metric;
    to->mtu = from->mtu;
    to->table = from->table;
    to->flags = from->on_link ? RTNH_F_ONLINK : 0;
    to->scope = from->link_scope ? RT_SCOPE_LINK : RT_SCOPE_UNIVERSE;
    to->weight = from->weight;
    ret->hops = from->hops;
    if (from->weight)
        snprintf(ret->dev, sizeof(ret->dev), "%s", from->dev);
    return 0;
}

/* Next hops of one route follow each other; the first gives their number. */
static int check_hops(const struct nic *n, struct err *err)
{
    size_t due = 0;

    for (size_t i = 0; i < n->n_routes; i++) {
        const struct nic_route *t = &n->routes[i];

        if ((due > 0) != (t->r.weight > 0 && !t->hops) || (t->hops && !t->r.weight))
            return err_set(err, ERR_INVALID, "invalid route: its next hops are incomplete");
        due = t->hops ? t->hops - 1 : due > 0 ? due - 1 : 0;
    }
    return due ? err_set(err, ERR_INVALID, "invalid route: its next hops are incomplete") : 0;
}

/* Like the original: a default route without a next hop is ignored. */
static int parse_routes(const struct bridge_network *in, struct nic *n, struct err *err)
{
    n->routes = mem_zalloc((in->n_routes + 1) * sizeof(*n->routes));
    for (size_t i = 0; i < in->n_routes; i++) {
        struct nic_route *r = &n->routes[n->n_routes];

        *r = (struct nic_route){ 0 };
        if (parse_route(&in->routes[i], r, err) < 0)
            return -1;
        if (n->exact || r->r.prefix > 0 || r->r.gateway.family)
            n->n_routes++;
    }
    return check_hops(n, err);
}

static int parse_side(const char *text, const struct rtnl_rule *rule, struct rtnl_ip *ret,
                      uint8_t *ret_prefix)
{
    if (!text[0])
        return 0;
    if (rtnl_prefix_parse(text, ret, ret_prefix) < 0 || ret->family != rule->family)
        return -EINVAL;
    return 0;
}

static int parse_rules(const struct bridge_network *in, struct nic *n, struct err *err)
{
    n->rules = mem_zalloc((in->n_rules + 1) * sizeof(*n->rules));
    for (size_t i = 0; i < in->n_rules; i++) {
        const struct guest_rule *from = &in->rules[i];
        struct rtnl_rule *to = &n->rules[n->n_rules++];

        *to = (struct rtnl_rule){ .family = from->ipv6 ? AF_INET6 : AF_INET,
                                  .priority = from->priority,
                                  .table = from->table,
                                  .mark = from->mark,
                                  .mask = from->mask,
                                  .invert = from->invert };
        if (parse_side(from->source, to, &to->from, &to->from_prefix) < 0 ||
            parse_side(from->destination, to, &to->to, &to->to_prefix) < 0 ||
            strlen(from->iif) >= sizeof(to->iif) || strlen(from->oif) >= sizeof(to->oif))
            return err_set(err, ERR_INVALID, "invalid policy rule %u: invalid address or interface",
                           from->priority);
        snprintf(to->iif, sizeof(to->iif), "%s", from->iif);
        snprintf(to->oif, sizeof(to->oif), "%s", from->oif);
    }
    return 0;
}

char *nic_sysctl_path(const char *text, const char *iface, const char **ret_value)
{
    char family[2], kind[6], key[64];
    int at = 0;

    if (sscanf(text, "ipv%1[46].%5[a-z].%63[a-z0-9_]=%n", family, kind, key, &at) != 3 || !at ||
        (!str_eq(kind, "conf") && !str_eq(kind, "neigh")))
        return NULL;
    *ret_value = text + at;
    return str_format("/proc/sys/net/ipv%s/%s/%s/%s", family, kind, iface, key);
}

static int parse_sysctls(const struct bridge_network *in, struct nic *n, struct err *err)
{
    for (const char *const *s = in->sysctls; s && *s; s++) {
        const char *value;
        AUTO_FREE char *path = nic_sysctl_path(*s, "eth0", &value);

        if (!path || n->sysctls.n == PER_NIC_MAX)
            return err_set(err, ERR_INVALID, "invalid or too many sysctls: \"%.64s\"", *s);
        strv_add(&n->sysctls, *s);
    }
    return 0;
}

static int parse_neighbours(const struct bridge_network *in, struct nic *n, struct err *err)
{
    n->neighbours = mem_zalloc((in->n_neighbours + 1) * sizeof(*n->neighbours));
    for (size_t i = 0; i < in->n_neighbours; i++) {
        struct rtnl_neighbour *b = &n->neighbours[i];

        if (rtnl_ip_parse(in->neighbours[i].address, &b->ip) < 0 || !b->ip.family)
            return err_set(err, ERR_INVALID, "invalid address \"%.64s\" of a neighbour",
                           in->neighbours[i].address);
        if (parse_mac(in->neighbours[i].mac, b->mac, err) < 0)
            return -1;
        n->n_neighbours++;
    }
    return 0;
}

static int check(const struct bridge_network *in, struct nic *n, struct err *err)
{
    uint8_t ours[6];

    if (parse_mac(in->mac, n->mac, err) < 0)
        return -1;
    if (parse_mac(LINK_GUEST_MAC, ours, err) == 0 && memcmp(ours, n->mac, sizeof(ours)) == 0)
        return err_set(err, ERR_INVALID, "invalid NIC: %s is the link to the host", in->mac);
    if (!in->id[0] || strlen(in->id) > 128 || !name_ok(in->name) || in->mtu > MTU_MAX)
        return err_set(err, ERR_INVALID, "invalid NIC \"%.64s\": invalid id, name or MTU", in->id);
    if (in->n_ips > PER_NIC_MAX || in->n_routes > PER_NIC_MAX || in->n_neighbours > PER_NIC_MAX ||
        in->n_rules > PER_NIC_MAX || strlen(in->dns_search) > DNS_MAX ||
        strlen(in->dns_servers) > DNS_MAX)
        return err_set(err, ERR_EXHAUSTED,
                       "invalid NIC %s: too long DNS lists, or more than %d addresses, routes, "
                       "rules or neighbours",
                       in->id, PER_NIC_MAX);
    if (!in->name[0] && in->n_ips == 0)
        return err_set(err, ERR_UNIMPLEMENTED,
                       "invalid NIC %s: it has no address, and the guest does not support DHCP",
                       in->id);
    return 0;
}

int nic_parse(const struct bridge_network *in, struct nic **ret, struct err *err)
{
    AUTO(nic_free) struct nic *n = mem_new(struct nic);

    if (check(in, n, err) < 0)
        return -1;
    n->id = str_dup(in->id);
    n->dns_search = str_dup(in->dns_search);
    n->dns_servers = str_dup(in->dns_servers);
    snprintf(n->name, sizeof(n->name), "%s", in->name);
    n->exact = in->name[0] != '\0';
    n->mtu = in->mtu;
    n->encap_overhead = in->encap_overhead;
    if (parse_addresses(in, n, err) < 0 || parse_routes(in, n, err) < 0 ||
        parse_neighbours(in, n, err) < 0 || parse_rules(in, n, err) < 0 ||
        parse_sysctls(in, n, err) < 0)
        return -1;
    *ret = TAKE_PTR(n);
    return 0;
}

void nic_free(struct nic *n)
{
    if (!n)
        return;
    free(n->id);
    free(n->dns_search);
    free(n->dns_servers);
    free(n->addresses);
    free(n->routes);
    free(n->neighbours);
    free(n->rules);
    strv_release(&n->sysctls);
    free(n);
}
