#include "proto/rtnl.h"
#include "base/str.h"
#include <arpa/inet.h>
#include <errno.h>
#include <linux/fib_rules.h>
#include <linux/if_addr.h>
#include <linux/if_ether.h>
#include <linux/if_link.h>
#include <linux/neighbour.h>
#include <linux/pkt_cls.h>
#include <linux/pkt_sched.h>
#include <linux/rtnetlink.h>
#include <linux/tc_act/tc_mirred.h>
#include <net/if.h>
#include <string.h>
#include <sys/socket.h>

#define FRESH (NLM_F_CREATE | NLM_F_EXCL)
#define INGRESS_HANDLE TC_H_MAKE(TC_H_INGRESS, 0) /* ffff: */
enum { STAY_8021Q = 1, STAY_8021AD, REDIRECT };   /* priorities: one protocol each */

static void ingress(struct nl_msg *m, uint16_t type, uint16_t flags, int index)
{
    const struct tcmsg tc = { .tcm_family = AF_UNSPEC,
                              .tcm_ifindex = index,
                              .tcm_handle = INGRESS_HANDLE,
                              .tcm_parent = TC_H_INGRESS };

    nl_begin(m, type, flags, &tc, sizeof(tc));
    nl_put_str(m, TCA_KIND, "ingress");
}

void rtnl_add_ingress(struct nl_msg *m, int index)
{
    ingress(m, RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL, index);
}

void rtnl_delete_ingress(struct nl_msg *m, int index)
{
    ingress(m, RTM_DELQDISC, 0, index);
}

static void put_mirred(struct nl_msg *m, int to)
{
    const struct tc_mirred parms = { .action = TC_ACT_STOLEN,
                                     .eaction = TCA_EGRESS_REDIR,
                                     .ifindex = (uint32_t)to };
    size_t actions = nl_nest(m, TCA_U32_ACT), first = nl_nest(m, 1);

    nl_put_str(m, TCA_ACT_KIND, "mirred");
    size_t options = nl_nest(m, TCA_ACT_OPTIONS);
    nl_put(m, TCA_MIRRED_PARMS, &parms, sizeof(parms));
    nl_nest_end(m, options);
    nl_nest_end(m, first);
    nl_nest_end(m, actions);
}

/* A u32 filter with an empty mask matches every packet; not every kernel has matchall. Without an
 * action (to is 0) the packet continues up the stack. */
static void put_filter(struct nl_msg *m, int index, uint32_t priority, uint16_t protocol, int to)
{
    const struct tcmsg tc = { .tcm_family = AF_UNSPEC,
                              .tcm_ifindex = index,
                              .tcm_parent = INGRESS_HANDLE,
                              .tcm_info = TC_H_MAKE(priority << 16, htons(protocol)) };
    union {
        struct tc_u32_sel sel;
        uint8_t bytes[sizeof(struct tc_u32_sel) + sizeof(struct tc_u32_key)];
    } match;

    memset(&match, 0, sizeof(match));
    match.sel.flags = TC_U32_TERMINAL;
    match.sel.nkeys = 1;
    nl_begin(m, RTM_NEWTFILTER, NLM_F_CREATE | NLM_F_EXCL, &tc, sizeof(tc));
    nl_put_str(m, TCA_KIND, "u32");
    size_t options = nl_nest(m, TCA_OPTIONS);
    nl_put(m, TCA_U32_SEL, &match, sizeof(match));
    if (to > 0)
        put_mirred(m, to);
    nl_nest_end(m, options);
}

void rtnl_redirect(struct nl_msg *m, int index, int to)
{
    put_filter(m, index, REDIRECT, ETH_P_ALL, to);
}

void rtnl_leave_vlan(struct nl_msg *m, int index, uint16_t protocol)
{
    put_filter(m, index, protocol == ETH_P_8021Q ? STAY_8021Q : STAY_8021AD, protocol, 0);
}

/* --- addresses as such --- */

static size_t ip_len(uint8_t family)
{
    return family == AF_INET ? 4 : family == AF_INET6 ? 16 : 0;
}

void rtnl_ip_text(const struct rtnl_ip *ip, char ret[RTNL_IP_TEXT])
{
    ret[0] = '\0';
    if (ip_len(ip->family) > 0)
        (void)inet_ntop(ip->family, ip->bytes, ret, RTNL_IP_TEXT); /* there is room for all */
}

int rtnl_ip_parse(const char *text, struct rtnl_ip *ret)
{
    *ret = (struct rtnl_ip){ 0 };
    if (text[0] == '\0')
        return 0;
    uint8_t family = strchr(text, ':') ? AF_INET6 : AF_INET;
    if (inet_pton(family, text, ret->bytes) != 1)
        return -EINVAL;
    ret->family = family;
    return 0;
}

int rtnl_prefix_parse(const char *text, struct rtnl_ip *ret, uint8_t *ret_prefix)
{
    const char *slash = strchr(text, '/');
    AUTO_FREE char *address = slash ? str_ndup(text, (size_t)(slash - text)) : NULL;
    uint64_t prefix;

    if (!slash || !address[0] || rtnl_ip_parse(address, ret) < 0 ||
        str_to_u64(slash + 1, ip_len(ret->family) * 8, &prefix) < 0)
        return -EINVAL;
    *ret_prefix = (uint8_t)prefix;
    return 0;
}

static void read_ip(const struct nl_attr *a, uint8_t family, struct rtnl_ip *ret)
{
    if (ip_len(family) == 0 || a->len != ip_len(family))
        return;
    *ret = (struct rtnl_ip){ .family = family }; /* clears an earlier, longer value */
    memcpy(ret->bytes, a->data, a->len);
}

static bool read_mac(const struct nl_attr *a, uint8_t mac[6])
{
    if (a->len != 6)
        return false;
    memcpy(mac, a->data, 6);
    return true;
}

static void put_ip(struct nl_msg *m, uint16_t type, const struct rtnl_ip *ip)
{
    if (ip_len(ip->family) > 0)
        nl_put(m, type, ip->bytes, ip_len(ip->family));
}

/* The fixed part, and the attributes behind it. */
static int split(const uint8_t *body, size_t len, void *fixed, size_t size, struct nl_iter *ret)
{
    size_t skip = NLMSG_ALIGN(size);

    if (len < size)
        return -EBADMSG;
    memcpy(fixed, body, size);
    *ret = (struct nl_iter){ .data = body + (skip < len ? skip : len),
                             .len = len > skip ? len - skip : 0 };
    return 0;
}

/* --- interfaces --- */

void rtnl_get_ifaces(struct nl_msg *m)
{
    const struct ifinfomsg all = { .ifi_family = AF_UNSPEC };

    nl_begin(m, RTM_GETLINK, NLM_F_DUMP, &all, sizeof(all));
}

static void read_ipvlan(const struct nl_attr *data, struct rtnl_iface *ret)
{
    struct nl_iter it = { data->data, data->len };
    struct nl_attr a;

    while (nl_next(&it, &a))
        if (a.type == IFLA_IPVLAN_MODE && a.len == sizeof(ret->mode))
            memcpy(&ret->mode, a.data, sizeof(ret->mode));
}

static void read_kind(const struct nl_attr *info, struct rtnl_iface *ret)
{
    struct nl_iter it = { info->data, info->len };
    struct nl_attr a;

    while (nl_next(&it, &a)) {
        if (a.type == IFLA_INFO_KIND && !nl_text(&a, ret->kind, sizeof(ret->kind)))
            strcpy(ret->kind, "?");
        if (a.type == IFLA_INFO_DATA && strcmp(ret->kind, "ipvlan") == 0)
            read_ipvlan(&a, ret);
    }
}

static void read_counters(const struct nl_attr *a, struct rtnl_counters *ret)
{
    /* The first eight members of struct rtnl_link_stats64, in their order. */
    if (a->len >= sizeof(*ret))
        memcpy(ret, a->data, sizeof(*ret));
}

int rtnl_read_iface(const uint8_t *body, size_t len, struct rtnl_iface *ret)
{
    struct ifinfomsg info;
    struct nl_iter it;
    struct nl_attr a;
    bool elsewhere = false;

    *ret = (struct rtnl_iface){ 0 };
    if (split(body, len, &info, sizeof(info), &it) < 0 || info.ifi_index <= 0)
        return -EBADMSG;
    ret->index = info.ifi_index;
    ret->type = info.ifi_type;
    ret->flags = info.ifi_flags;
    while (nl_next(&it, &a)) {
        if (a.type == IFLA_IFNAME && !nl_text(&a, ret->name, sizeof(ret->name)))
            return -EBADMSG;
        if (a.type == IFLA_ADDRESS)
            ret->has_mac = read_mac(&a, ret->mac);
        if (a.type == IFLA_MTU)
            ret->mtu = nl_u32(&a);
        if (a.type == IFLA_MASTER)
            ret->master = (int)nl_u32(&a);
        if (a.type == IFLA_LINK)
            ret->link = (int)nl_u32(&a);
        if (a.type == IFLA_LINK_NETNSID)
            elsewhere = true;
        if (a.type == IFLA_LINKINFO)
            read_kind(&a, ret);
        if (a.type == IFLA_QDISC)
            (void)nl_text(&a, ret->qdisc, sizeof(ret->qdisc));
        if (a.type == IFLA_STATS64)
            read_counters(&a, &ret->counters);
    }
    if (elsewhere)
        ret->link = 0;
    return ret->name[0] ? 0 : -EBADMSG;
}

void rtnl_set_iface(struct nl_msg *m, const struct rtnl_iface_change *c)
{
    const struct ifinfomsg info = { .ifi_family = AF_UNSPEC,
                                    .ifi_index = c->index,
                                    .ifi_flags = c->up ? IFF_UP : 0,
                                    .ifi_change = c->up || c->down ? IFF_UP : 0 };

    nl_begin(m, RTM_NEWLINK, 0, &info, sizeof(info));
    if (c->netns >= 0)
        nl_put_u32(m, IFLA_NET_NS_FD, (uint32_t)c->netns);
    if (c->name)
        nl_put_str(m, IFLA_IFNAME, c->name);
    if (c->mtu)
        nl_put_u32(m, IFLA_MTU, c->mtu);
}

/* --- addresses of interfaces --- */

void rtnl_get_addresses(struct nl_msg *m)
{
    const struct ifaddrmsg all = { .ifa_family = AF_UNSPEC };

    nl_begin(m, RTM_GETADDR, NLM_F_DUMP, &all, sizeof(all));
}

int rtnl_read_address(const uint8_t *body, size_t len, struct rtnl_address *ret)
{
    struct ifaddrmsg info;
    struct rtnl_ip local = { 0 };
    struct nl_iter it;
    struct nl_attr a;

    *ret = (struct rtnl_address){ 0 };
    if (split(body, len, &info, sizeof(info), &it) < 0 ||
        info.ifa_prefixlen > ip_len(info.ifa_family) * 8)
        return -EBADMSG;
    ret->index = (int)info.ifa_index;
    ret->prefix = info.ifa_prefixlen;
    ret->flags = info.ifa_flags;
    while (nl_next(&it, &a)) {
        if (a.type == IFA_ADDRESS)
            read_ip(&a, info.ifa_family, &ret->ip);
        if (a.type == IFA_LOCAL)
            read_ip(&a, info.ifa_family, &local);
        if (a.type == IFA_FLAGS)
            ret->flags = nl_u32(&a);
    }
    if (local.family) /* then the other one is the peer's */
        ret->ip = local;
    return ret->ip.family ? 0 : -EBADMSG;
}

static void put_broadcast(struct nl_msg *m, const struct rtnl_address *a)
{
    uint32_t all;

    if (a->ip.family != AF_INET || a->prefix > 30)
        return;
    memcpy(&all, a->ip.bytes, sizeof(all));
    all |= htonl((uint32_t)(UINT64_C(0xffffffff) >> a->prefix));
    nl_put(m, IFA_BROADCAST, &all, sizeof(all));
}

void rtnl_add_address(struct nl_msg *m, const struct rtnl_address *a)
{
    const struct ifaddrmsg info = { .ifa_family = a->ip.family,
                                    .ifa_prefixlen = a->prefix,
                                    .ifa_index = (uint32_t)a->index };

    nl_begin(m, RTM_NEWADDR, FRESH, &info, sizeof(info));
    put_ip(m, IFA_LOCAL, &a->ip);
    put_ip(m, IFA_ADDRESS, &a->ip);
    put_broadcast(m, a);
    nl_put_u32(m, IFA_FLAGS, a->flags);
}

/* --- routes --- */

void rtnl_get_routes(struct nl_msg *m)
{
    const struct rtmsg all = { .rtm_family = AF_UNSPEC };

    nl_begin(m, RTM_GETROUTE, NLM_F_DUMP, &all, sizeof(all));
}

/* The next hop is of the other family. */
static void read_via(const struct nl_attr *a, struct rtnl_ip *ret)
{
    uint16_t family;
    struct nl_attr address = { .data = a->data + sizeof(family) };

    if (a->len < sizeof(family))
        return;
    memcpy(&family, a->data, sizeof(family));
    address.len = a->len - sizeof(family);
    if (family == AF_INET || family == AF_INET6)
        read_ip(&address, (uint8_t)family, ret);
}

static void read_metrics(const struct nl_attr *metrics, struct rtnl_route *ret)
{
    struct nl_iter it = { metrics->data, metrics->len };
    struct nl_attr a;

    while (nl_next(&it, &a))
        if (a.type == RTAX_MTU)
            ret->mtu = nl_u32(&a);
}

static void read_route_attr(const struct nl_attr *a, struct rtnl_route *ret)
{
    switch (a->type) {
    case RTA_DST:
        read_ip(a, ret->family, &ret->destination);
        break;
    case RTA_GATEWAY:
        read_ip(a, ret->family, &ret->gateway);
        break;
    case RTA_VIA:
        read_via(a, &ret->gateway);
        break;
    case RTA_PREFSRC:
        read_ip(a, ret->family, &ret->source);
        break;
    case RTA_OIF:
        ret->oif = (int)nl_u32(a);
        break;
    case RTA_PRIORITY:
        ret->metric = nl_u32(a);
        break;
    case RTA_TABLE:
        ret->table = nl_u32(a);
        break;
    case RTA_METRICS:
        read_metrics(a, ret);
        break;
    case RTA_MULTIPATH:
        ret->multipath = true;
        ret->hops = (struct nl_iter){ a->data, a->len };
        break;
    case RTA_ENCAP_TYPE:
        ret->odd = "a tunnel's encapsulation";
        break;
    default:
        break;
    }
}

int rtnl_read_route(const uint8_t *body, size_t len, struct rtnl_route *ret)
{
    struct rtmsg info;
    struct nl_iter it;
    struct nl_attr a;

    *ret = (struct rtnl_route){ 0 };
    if (split(body, len, &info, sizeof(info), &it) < 0)
        return -EBADMSG;
    ret->family = info.rtm_family;
    ret->prefix = info.rtm_dst_len;
    ret->type = info.rtm_type;
    ret->protocol = info.rtm_protocol;
    ret->scope = info.rtm_scope;
    ret->table = info.rtm_table;
    ret->flags = info.rtm_flags;
    ret->odd = info.rtm_src_len ? "a source prefix" : info.rtm_tos ? "a type of service" : NULL;
    while (nl_next(&it, &a))
        read_route_attr(&a, ret);
    if (!ret->odd && ret->type == RTN_UNICAST && !ret->oif && !ret->multipath)
        ret->odd = "a next-hop object"; /* only with net.ipv4.nexthop_compat_mode=0 */
    /* Other families (multicast routing …) have addresses that cannot be read here. */
    if (ip_len(ret->family) > 0 && ret->prefix > ip_len(ret->family) * 8)
        return -EBADMSG;
    if (ip_len(ret->family) > 0 && !ret->destination.family) /* the default route has none */
        ret->destination.family = ret->family;
    return 0;
}

bool rtnl_next_hop(struct rtnl_route *r)
{
    struct rtnexthop hop;
    struct nl_attr a;

    if (r->hops.len < sizeof(hop))
        return false;
    memcpy(&hop, r->hops.data, sizeof(hop));
    if (hop.rtnh_len < sizeof(hop) || hop.rtnh_len > r->hops.len)
        return false;
    struct nl_iter it = { r->hops.data + sizeof(hop), hop.rtnh_len - sizeof(hop) };
    size_t step = RTNH_ALIGN(hop.rtnh_len);

    r->hops.data += step < r->hops.len ? step : r->hops.len;
    r->hops.len -= step < r->hops.len ? step : r->hops.len;
    r->gateway = (struct rtnl_ip){ 0 };
    while (nl_next(&it, &a))
        if (a.type == RTA_GATEWAY || a.type == RTA_VIA || a.type == RTA_ENCAP_TYPE)
            read_route_attr(&a, r);
    r->oif = hop.rtnh_ifindex;
    r->flags = hop.rtnh_flags;
    r->weight = hop.rtnh_hops + 1u;
    return true;
}

static void put_gateway(struct nl_msg *m, const struct rtnl_route *r)
{
    uint8_t via[2 + 16];
    uint16_t family = r->gateway.family;

    if (family == r->destination.family || family == 0) {
        put_ip(m, RTA_GATEWAY, &r->gateway);
        return;
    }
    memcpy(via, &family, sizeof(family));
    memcpy(via + 2, r->gateway.bytes, ip_len(r->gateway.family));
    nl_put(m, RTA_VIA, via, 2 + ip_len(r->gateway.family));
}

void rtnl_add_route(struct nl_msg *m, const struct rtnl_route *r)
{
    const struct rtmsg info = { .rtm_family = r->destination.family,
                                .rtm_dst_len = r->prefix,
                                .rtm_protocol = RTPROT_STATIC,
                                .rtm_scope = r->scope,
                                .rtm_type = RTN_UNICAST,
                                .rtm_flags = r->flags & RTNH_F_ONLINK };

    /* Appended: one with the same destination behind another interface may be there. */
    nl_begin(m, RTM_NEWROUTE, NLM_F_CREATE | NLM_F_APPEND, &info, sizeof(info));
    nl_put_u32(m, RTA_TABLE, r->table ? r->table : RT_TABLE_MAIN);
    if (r->prefix > 0)
        put_ip(m, RTA_DST, &r->destination);
    put_gateway(m, r);
    put_ip(m, RTA_PREFSRC, &r->source);
    if (r->oif)
        nl_put_u32(m, RTA_OIF, (uint32_t)r->oif);
    if (r->metric)
        nl_put_u32(m, RTA_PRIORITY, r->metric);
    if (r->mtu) {
        size_t nest = nl_nest(m, RTA_METRICS);

        nl_put_u32(m, RTAX_MTU, r->mtu);
        nl_nest_end(m, nest);
    }
}

void rtnl_put_hop(struct nl_msg *m, const struct rtnl_route *hop)
{
    const struct rtnexthop head = { .rtnh_flags = hop->flags & RTNH_F_ONLINK,
                                    .rtnh_hops = (uint8_t)(hop->weight - 1),
                                    .rtnh_ifindex = hop->oif };
    size_t at = nl_put_raw(m, &head, sizeof(head));

    put_gateway(m, hop);
    nl_nest_end(m, at); /* starts with its length, like an attribute */
}

/* --- policy rules --- */

void rtnl_get_rules(struct nl_msg *m)
{
    const struct fib_rule_hdr all = { .family = AF_UNSPEC };

    nl_begin(m, RTM_GETRULE, NLM_F_DUMP, &all, sizeof(all));
}

static void read_rule_attr(const struct nl_attr *a, struct rtnl_rule *ret)
{
    switch (a->type) {
    case FRA_SRC:
        read_ip(a, ret->family, &ret->from);
        break;
    case FRA_DST:
        read_ip(a, ret->family, &ret->to);
        break;
    case FRA_IIFNAME:
        ret->odd = ret->odd || !nl_text(a, ret->iif, sizeof(ret->iif));
        break;
    case FRA_OIFNAME:
        ret->odd = ret->odd || !nl_text(a, ret->oif, sizeof(ret->oif));
        break;
    case FRA_PRIORITY:
        ret->priority = nl_u32(a);
        break;
    case FRA_TABLE:
        ret->table = nl_u32(a);
        break;
    case FRA_FWMARK:
        ret->mark = nl_u32(a);
        break;
    case FRA_FWMASK:
        ret->mask = nl_u32(a);
        break;
    case FRA_SUPPRESS_PREFIXLEN: /* the kernel always sends it */
        ret->odd = ret->odd || nl_u32(a) != UINT32_MAX;
        break;
    case FRA_PROTOCOL: /* RTPROT_…: its origin */
    case FRA_PAD:
        break;
    default:
        ret->odd = true;
    }
}

static bool is_kernels(const struct rtnl_rule *r)
{
    return !r->odd && !r->invert && !r->from.family && !r->to.family && !r->iif[0] && !r->oif[0] &&
           !r->mark && !r->mask &&
           ((r->priority == 0 && r->table == RT_TABLE_LOCAL) ||
            (r->priority == 32766 && r->table == RT_TABLE_MAIN) ||
            (r->priority == 32767 && r->table == RT_TABLE_DEFAULT));
}

int rtnl_read_rule(const uint8_t *body, size_t len, struct rtnl_rule *ret)
{
    struct fib_rule_hdr info;
    struct nl_iter it;
    struct nl_attr a;

    *ret = (struct rtnl_rule){ 0 };
    if (split(body, len, &info, sizeof(info), &it) < 0)
        return -EBADMSG;
    ret->family = info.family;
    ret->from_prefix = info.src_len;
    ret->to_prefix = info.dst_len;
    ret->table = info.table;
    ret->invert = info.flags & FIB_RULE_INVERT;
    ret->odd = info.action != FR_ACT_TO_TBL || info.tos;
    while (nl_next(&it, &a))
        read_rule_attr(&a, ret);
    if (ip_len(ret->family) > 0 &&
        (info.src_len > (ret->from.family ? ip_len(ret->family) * 8 : 0) ||
         info.dst_len > (ret->to.family ? ip_len(ret->family) * 8 : 0)))
        return -EBADMSG;
    ret->kernels = is_kernels(ret);
    return 0;
}

void rtnl_add_rule(struct nl_msg *m, const struct rtnl_rule *r)
{
    const struct fib_rule_hdr info = { .family = r->family,
                                       .src_len = r->from_prefix,
                                       .dst_len = r->to_prefix,
                                       .action = FR_ACT_TO_TBL,
                                       .flags = r->invert ? FIB_RULE_INVERT : 0 };

    nl_begin(m, RTM_NEWRULE, FRESH, &info, sizeof(info));
    put_ip(m, FRA_SRC, &r->from);
    put_ip(m, FRA_DST, &r->to);
    if (r->iif[0])
        nl_put_str(m, FRA_IIFNAME, r->iif);
    if (r->oif[0])
        nl_put_str(m, FRA_OIFNAME, r->oif);
    nl_put_u32(m, FRA_PRIORITY, r->priority);
    nl_put_u32(m, FRA_TABLE, r->table);
    if (r->mark || r->mask) {
        nl_put_u32(m, FRA_FWMARK, r->mark);
        nl_put_u32(m, FRA_FWMASK, r->mask);
    }
}

/* --- neighbours --- */

void rtnl_get_neighbours(struct nl_msg *m)
{
    const struct ndmsg all = { .ndm_family = AF_UNSPEC };

    nl_begin(m, RTM_GETNEIGH, NLM_F_DUMP, &all, sizeof(all));
}

int rtnl_read_neighbour(const uint8_t *body, size_t len, struct rtnl_neighbour *ret)
{
    struct ndmsg info;
    struct nl_iter it;
    struct nl_attr a;

    *ret = (struct rtnl_neighbour){ 0 };
    if (split(body, len, &info, sizeof(info), &it) < 0)
        return -EBADMSG;
    ret->index = info.ndm_ifindex;
    ret->nud = info.ndm_state;
    ret->flags = info.ndm_flags;
    while (nl_next(&it, &a)) {
        if (a.type == NDA_DST)
            read_ip(&a, info.ndm_family, &ret->ip);
        if (a.type == NDA_LLADDR)
            ret->has_mac = read_mac(&a, ret->mac);
    }
    return 0;
}

void rtnl_set_neighbour(struct nl_msg *m, const struct rtnl_neighbour *n)
{
    const struct ndmsg info = { .ndm_family = n->ip.family,
                                .ndm_ifindex = n->index,
                                .ndm_state = NUD_PERMANENT };

    nl_begin(m, RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, &info, sizeof(info));
    put_ip(m, NDA_DST, &n->ip);
    nl_put(m, NDA_LLADDR, n->mac, sizeof(n->mac));
}
