/* nic.c - what the host says of a NIC, read and checked. */
#include "guest/net/nets_priv.h"
#include "proto/link.h"

#include <ctype.h>
#include <linux/if_addr.h>
#include <linux/rtnetlink.h>
#include <stdio.h>
#include <sys/socket.h>

#define PER_NIC_MAX 256
#define MTU_MAX 65535
#define DNS_MAX 4096

static int parse_mac(const char *text, uint8_t mac[6], struct err *err)
{
    const char *at = text;

    for (int i = 0; i < 6; i++, at += 3) {
        if (!isxdigit((unsigned char)at[0]) || !isxdigit((unsigned char)at[1]) ||
            (i < 5 ? at[2] != ':' && at[2] != '-' : at[2] != '\0'))
            return err_set(err, ERR_INVALID, "\"%.32s\" is not a MAC", text);
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
        const struct bridge_ip *from = &in->ips[i];

        if (rtnl_ip_parse(from->address, &a->ip) < 0 || !a->ip.family ||
            from->prefix > (a->ip.family == AF_INET ? 32 : 128))
            return err_set(err, ERR_INVALID, "\"%.64s/%u\" is no address", from->address,
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

static int parse_route(const struct bridge_route *from, struct rtnl_route *to, struct err *err)
{
    if (rtnl_prefix_parse(from->destination, &to->destination, &to->prefix) < 0)
        return err_set(err, ERR_INVALID, "route to \"%.64s\": no prefix", from->destination);
    if (rtnl_ip_parse(from->next_hop, &to->gateway) < 0 ||
        rtnl_ip_parse(from->source, &to->source) < 0 ||
        (to->source.family && to->source.family != to->destination.family))
        return err_set(err, ERR_INVALID, "route to %.64s: \"%.64s\" or \"%.64s\" is no address",
                       from->destination, from->next_hop, from->source);
    if (is_zero(&to->gateway))
        to->gateway = (struct rtnl_ip){ 0 };
    to->family = to->destination.family;
    to->metric = from->metric;
    to->mtu = from->mtu;
    to->flags = from->on_link ? RTNH_F_ONLINK : 0;
    to->scope = from->link_scope ? RT_SCOPE_LINK : RT_SCOPE_UNIVERSE;
    return 0;
}

/* As the original: a default route that leads nowhere is none. */
static int parse_routes(const struct bridge_network *in, struct nic *n, struct err *err)
{
    n->routes = mem_zalloc((in->n_routes + 1) * sizeof(*n->routes));
    for (size_t i = 0; i < in->n_routes; i++) {
        struct rtnl_route *r = &n->routes[n->n_routes];

        *r = (struct rtnl_route){ 0 };
        if (parse_route(&in->routes[i], r, err) < 0)
            return -1;
        if (n->exact || r->prefix > 0 || r->gateway.family)
            n->n_routes++;
    }
    return 0;
}

static int parse_neighbours(const struct bridge_network *in, struct nic *n, struct err *err)
{
    n->neighbours = mem_zalloc((in->n_neighbours + 1) * sizeof(*n->neighbours));
    for (size_t i = 0; i < in->n_neighbours; i++) {
        struct rtnl_neighbour *b = &n->neighbours[i];

        if (rtnl_ip_parse(in->neighbours[i].address, &b->ip) < 0 || !b->ip.family)
            return err_set(err, ERR_INVALID, "\"%.64s\" is no address", in->neighbours[i].address);
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
        return err_set(err, ERR_INVALID, "%s is the link to the host", in->mac);
    if (!in->id[0] || strlen(in->id) > 128 || !name_ok(in->name) || in->mtu > MTU_MAX)
        return err_set(err, ERR_INVALID, "NIC \"%.64s\": id, name or MTU is none", in->id);
    if (in->n_ips > PER_NIC_MAX || in->n_routes > PER_NIC_MAX || in->n_neighbours > PER_NIC_MAX ||
        strlen(in->dns_search) > DNS_MAX || strlen(in->dns_servers) > DNS_MAX)
        return err_set(err, ERR_EXHAUSTED, "NIC %s: more than %d of a kind", in->id, PER_NIC_MAX);
    if (!in->name[0] && in->n_ips == 0)
        return err_set(err, ERR_UNIMPLEMENTED, "NIC %s has no address, and there is no DHCP here",
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
        parse_neighbours(in, n, err) < 0)
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
    free(n);
}
