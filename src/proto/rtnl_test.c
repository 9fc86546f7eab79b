/* The kernel's answers are recorded: a namespace with two interfaces, dumped by Linux 6.18. */
#include "base/fd.h"
#include "base/mem.h"
#include "harness/tap.h"
#include "proto/rtnl.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_addr.h>
#include <linux/if_link.h>
#include <linux/neighbour.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- what the kernel says --- */

struct all {
    struct rtnl_iface ifaces[8];
    struct rtnl_address addresses[16];
    struct rtnl_route routes[64];
    struct rtnl_route hops[8]; /* of those that have several */
    struct rtnl_neighbour neighbours[16];
    struct rtnl_rule rules[16];
    size_t n, n_hops;
};

static int on_message(void *arg, uint16_t type, const uint8_t *body, size_t len)
{
    struct all *a = arg;

    ASSERT(a->n < 64);
    if (type == RTM_NEWLINK)
        return a->n < 8 ? rtnl_read_iface(body, len, &a->ifaces[a->n++]) : -ENOSPC;
    if (type == RTM_NEWADDR)
        return a->n < 16 ? rtnl_read_address(body, len, &a->addresses[a->n++]) : -ENOSPC;
    if (type == RTM_NEWROUTE) {
        struct rtnl_route *r = &a->routes[a->n++], hop;
        int n = rtnl_read_route(body, len, r);

        for (hop = *r; n == 0 && rtnl_next_hop(&hop) && a->n_hops < 8;)
            a->hops[a->n_hops++] = hop;
        return n;
    }
    if (type == RTM_NEWRULE)
        return a->n < 16 ? rtnl_read_rule(body, len, &a->rules[a->n++]) : -ENOSPC;
    if (type == RTM_NEWNEIGH)
        return a->n < 16 ? rtnl_read_neighbour(body, len, &a->neighbours[a->n++]) : -ENOSPC;
    return -EBADMSG;
}

static struct all *load(const char *name)
{
    struct all *a = mem_new(struct all);
    struct nl_end end = { 0 };
    char path[512];
    AUTO_FREE char *text = NULL;
    size_t len;

    snprintf(path, sizeof(path), "%s/%s", RTNL_VECTOR_DIR, name);
    ASSERT_EQ(file_read_all(path, 65536, &text, &len), 0);
    /* The end of one datagram and the beginning of the next are the same to the reader. */
    ASSERT_EQ(nl_parse(text, len, 1, on_message, a, &end), 0);
    ASSERT(end.done && !end.disturbed);
    return a;
}

static bool is(const struct rtnl_ip *ip, const char *text)
{
    char buf[RTNL_IP_TEXT];

    rtnl_ip_text(ip, buf);
    return strcmp(buf, text) == 0;
}

TEST(links_are_read)
{
    AUTO_FREE struct all *a = load("link");
    const struct rtnl_iface *eth0 = NULL, *lo = NULL;

    ASSERT_EQ(a->n, 3);
    for (size_t i = 0; i < a->n; i++) {
        eth0 = strcmp(a->ifaces[i].name, "eth0") == 0 ? &a->ifaces[i] : eth0;
        lo = strcmp(a->ifaces[i].name, "lo") == 0 ? &a->ifaces[i] : lo;
    }
    ASSERT(eth0 && lo);
    ASSERT_EQ(lo->index, 1);
    ASSERT(lo->flags & IFF_LOOPBACK);
    ASSERT_EQ(eth0->type, ARPHRD_ETHER);
    ASSERT(eth0->flags & IFF_UP);
    ASSERT_EQ(eth0->mtu, 1400);
    ASSERT_STR(eth0->kind, "veth");
    ASSERT(eth0->has_mac && memcmp(eth0->mac, "\2\0\0\0\1\2", 6) == 0);
    ASSERT_EQ(eth0->master, 0);
}

TEST(addresses_are_read)
{
    AUTO_FREE struct all *a = load("address");
    unsigned found = 0;

    for (size_t i = 0; i < a->n; i++) {
        const struct rtnl_address *x = &a->addresses[i];

        if (is(&x->ip, "10.1.0.3")) {
            ASSERT_EQ(x->prefix, 24);
            ASSERT(x->flags & IFA_F_SECONDARY);
            found |= 1;
        }
        if (is(&x->ip, "fd00:1::2")) {
            ASSERT_EQ(x->prefix, 64);
            ASSERT(x->flags & IFA_F_PERMANENT);
            found |= 2;
        }
        if (is(&x->ip, "192.0.2.1")) /* ours, not the peer's */
            found |= 4;
        ASSERT(!is(&x->ip, "192.0.2.2"));
    }
    ASSERT_EQ(found, 7);
}

static const struct rtnl_route *route_to(const struct all *a, const char *to, unsigned prefix)
{
    for (size_t i = 0; i < a->n; i++)
        if (a->routes[i].table == RT_TABLE_MAIN && a->routes[i].prefix == prefix &&
            is(&a->routes[i].destination, to))
            return &a->routes[i];
    tap_fail(__FILE__, __LINE__, "no route to %s/%u", to, prefix);
}

TEST(routes_are_read)
{
    AUTO_FREE struct all *a = load("route");
    const struct rtnl_route *r = route_to(a, "0.0.0.0", 0);

    ASSERT(is(&r->gateway, "10.1.0.1"));
    ASSERT_EQ(r->metric, 70);
    r = route_to(a, "172.16.0.0", 12);
    ASSERT(r->flags & RTNH_F_ONLINK);
    ASSERT_EQ(r->mtu, 1300);
    r = route_to(a, "198.51.100.0", 24);
    ASSERT_EQ(r->family, AF_INET);
    ASSERT(is(&r->gateway, "fd00:1::1"));
    r = route_to(a, "192.168.7.1", 32);
    ASSERT_EQ(r->scope, RT_SCOPE_LINK);
    ASSERT(is(&r->source, "10.1.0.2"));
    ASSERT_EQ(r->gateway.family, 0);
    r = route_to(a, "203.0.113.0", 24);
    ASSERT(r->multipath && !r->odd);
    ASSERT_EQ(a->n_hops, 2);
    ASSERT(is(&a->hops[0].gateway, "10.1.0.1") && is(&a->hops[1].gateway, "10.1.0.4"));
    ASSERT(a->hops[0].oif > 0);
    ASSERT_EQ(a->hops[0].weight, 1);
    ASSERT(is(&route_to(a, "::", 0)->gateway, "fd00:1::1"));
    ASSERT_EQ(route_to(a, "10.1.0.0", 24)->protocol, RTPROT_KERNEL);
}

/* As CNI's sbr leaves them, and some more; the last looks at ports. */
TEST(rules_are_read)
{
    AUTO_FREE struct all *a = load("rule");
    unsigned kernels = 0, odd = 0, found = 0;

    for (size_t i = 0; i < a->n; i++) {
        const struct rtnl_rule *r = &a->rules[i];

        kernels += r->kernels && r->family <= AF_INET6; /* multicast routing has one, too */
        odd += r->odd;
        if (is(&r->from, "10.1.0.2")) {
            ASSERT_EQ(r->from_prefix, 32);
            ASSERT_EQ(r->table, 100);
            ASSERT(r->family == AF_INET && !r->odd && !r->invert && !r->iif[0]);
            found |= 1;
        }
        if (r->priority == 500) {
            ASSERT_EQ(r->table, 70000);
            ASSERT_EQ(r->mark, 0x10);
            ASSERT_EQ(r->mask, 0xf0);
            ASSERT(r->invert && is(&r->to, "192.168.0.0") && r->to_prefix == 16);
            ASSERT_STR(r->iif, "eth0");
            found |= 2;
        }
        if (is(&r->from, "fd00:1::2") && r->family == AF_INET6)
            found |= 4;
        ASSERT(!r->odd || r->priority == 600);
    }
    ASSERT_EQ(kernels, 5);
    ASSERT_EQ(odd, 1);
    ASSERT_EQ(found, 7);
}

TEST(neighbours_are_read)
{
    AUTO_FREE struct all *a = load("neighbour");
    bool found = false;

    for (size_t i = 0; i < a->n; i++)
        if (is(&a->neighbours[i].ip, "169.254.1.1")) {
            ASSERT(a->neighbours[i].nud & NUD_PERMANENT);
            ASSERT(a->neighbours[i].has_mac && a->neighbours[i].mac[5] == 9);
            found = true;
        }
    ASSERT(found);
}

/* --- what we say --- */

static const uint8_t *body_of(const struct nl_msg *m, size_t *ret_len)
{
    *ret_len = m->len - sizeof(struct nlmsghdr);
    return m->data + sizeof(struct nlmsghdr);
}

static uint16_t type_of(const struct nl_msg *m)
{
    return ((const struct nlmsghdr *)m->data)->nlmsg_type;
}

TEST(what_is_written_is_read_the_same)
{
    struct rtnl_route r = { .prefix = 24, .oif = 7, .metric = 70000, .mtu = 1300 }, r2;
    struct rtnl_address a = { .index = 3, .prefix = 64, .flags = IFA_F_NODAD }, a2;
    struct rtnl_neighbour b = { .index = 4, .mac = { 1, 2, 3, 4, 5, 6 } }, b2;
    struct nl_msg m;
    size_t len;

    ASSERT_EQ(rtnl_ip_parse("10.9.0.0", &r.destination), 0);
    ASSERT_EQ(rtnl_ip_parse("fd00::1", &r.gateway), 0); /* of the other family */
    ASSERT_EQ(rtnl_ip_parse("10.9.0.7", &r.source), 0);
    r.flags = RTNH_F_ONLINK;
    rtnl_add_route(&m, &r);
    ASSERT_EQ(type_of(&m), RTM_NEWROUTE);
    const uint8_t *body = body_of(&m, &len);
    ASSERT_EQ(rtnl_read_route(body, len, &r2), 0);
    ASSERT(is(&r2.destination, "10.9.0.0") && is(&r2.gateway, "fd00::1"));
    ASSERT(is(&r2.source, "10.9.0.7"));
    ASSERT_EQ(r2.oif, 7);
    ASSERT_EQ(r2.metric, 70000);
    ASSERT_EQ(r2.mtu, 1300);
    ASSERT_EQ(r2.table, RT_TABLE_MAIN);
    ASSERT(r2.flags & RTNH_F_ONLINK);

    ASSERT_EQ(rtnl_ip_parse("fd00::2", &a.ip), 0);
    rtnl_add_address(&m, &a);
    body = body_of(&m, &len);
    ASSERT_EQ(rtnl_read_address(body, len, &a2), 0);
    ASSERT(memcmp(&a, &a2, sizeof(a)) == 0);

    ASSERT_EQ(rtnl_ip_parse("10.0.0.1", &b.ip), 0);
    rtnl_set_neighbour(&m, &b);
    body = body_of(&m, &len);
    ASSERT_EQ(rtnl_read_neighbour(body, len, &b2), 0);
    ASSERT(is(&b2.ip, "10.0.0.1") && b2.has_mac && memcmp(b2.mac, b.mac, 6) == 0);
    ASSERT_EQ(b2.nud, NUD_PERMANENT);
}

/* As `tc filter add dev X parent ffff: protocol all u32 match u32 0 0 action mirred egress redirect
 * dev Y` sends it, but for the order of what has none. */
TEST(the_redirect_says_what_tc_says)
{
    static const uint8_t sel[] = { 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                                   0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 };
    const uint8_t *at = NULL;
    struct nl_msg m;

    rtnl_redirect(&m, 5, 9);
    const struct tcmsg *tc = (const struct tcmsg *)(m.data + sizeof(struct nlmsghdr));
    ASSERT_EQ(tc->tcm_ifindex, 5);
    ASSERT_EQ(tc->tcm_parent, 0xffff0000);
    ASSERT_EQ(tc->tcm_info, 3u << 16 | htons(3));
    ASSERT(!m.full);
    at = memmem(m.data, m.len, "mirred", 7);
    ASSERT(at);
    ASSERT(memmem(m.data, m.len, "u32", 4));
    ASSERT(memmem(m.data, m.len, sel, sizeof(sel)));
    /* tc_mirred: index, capab, action 4 (stolen), refcnt, bindcnt, eaction 1, ifindex */
    static const uint8_t parms[] = { 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0,
                                     0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 9, 0, 0, 0 };
    ASSERT(memmem(at, m.len - (size_t)(at - m.data), parms, sizeof(parms)));
}

TEST(frames_of_vlans_stay_before_all_others_leave)
{
    struct nl_msg m;

    rtnl_leave_vlan(&m, 5, 0x8100);
    const struct tcmsg *tc = (const struct tcmsg *)(m.data + sizeof(struct nlmsghdr));
    ASSERT_EQ(tc->tcm_info, 1u << 16 | htons(0x8100));
    ASSERT(!memmem(m.data, m.len, "mirred", 7)); /* no action */
    rtnl_leave_vlan(&m, 5, 0x88a8);
    ASSERT_EQ(tc->tcm_info, 2u << 16 | htons(0x88a8));
}

TEST(what_an_interface_is_on_top_of_is_read)
{
    const struct ifinfomsg info = { .ifi_index = 5 };
    const uint16_t mode = 2;

    for (int elsewhere = 0; elsewhere < 2; elsewhere++) {
        struct rtnl_iface l;
        struct nl_msg m;
        size_t len;

        nl_begin(&m, RTM_NEWLINK, 0, &info, sizeof(info));
        nl_put_str(&m, IFLA_IFNAME, "eth1");
        if (elsewhere) /* its number is another namespace's */
            nl_put_u32(&m, IFLA_LINK_NETNSID, 0);
        nl_put_u32(&m, IFLA_LINK, 4);
        size_t nest = nl_nest(&m, IFLA_LINKINFO);
        nl_put_str(&m, IFLA_INFO_KIND, "ipvlan");
        size_t data = nl_nest(&m, IFLA_INFO_DATA);
        nl_put(&m, IFLA_IPVLAN_MODE, &mode, sizeof(mode));
        nl_nest_end(&m, data);
        nl_nest_end(&m, nest);
        const uint8_t *body = body_of(&m, &len);
        ASSERT_EQ(rtnl_read_iface(body, len, &l), 0);
        ASSERT_EQ(l.link, elsewhere ? 0 : 4);
        ASSERT_EQ(l.mode, 2);
    }
}

TEST(hops_and_rules_that_are_written_are_read_the_same)
{
    struct rtnl_route r = { .prefix = 8, .table = 70000 }, r2, hop[2];
    struct rtnl_rule u = { .family = AF_INET6,
                           .from_prefix = 64,
                           .oif = "net1",
                           .priority = 7,
                           .table = 1000,
                           .mask = 3,
                           .invert = true },
                     u2;
    struct nl_msg m;
    size_t len;

    ASSERT_EQ(rtnl_ip_parse("10.0.0.0", &r.destination), 0);
    rtnl_add_route(&m, &r);
    size_t nest = nl_nest(&m, RTA_MULTIPATH);
    hop[0] = hop[1] = r;
    hop[0].weight = 256;
    hop[0].oif = 3;
    hop[0].flags = RTNH_F_ONLINK;
    ASSERT_EQ(rtnl_ip_parse("10.1.0.1", &hop[0].gateway), 0);
    hop[1].weight = 1;
    hop[1].oif = 4;
    ASSERT_EQ(rtnl_ip_parse("fd00::1", &hop[1].gateway), 0);
    rtnl_put_hop(&m, &hop[0]);
    rtnl_put_hop(&m, &hop[1]);
    nl_nest_end(&m, nest);
    const uint8_t *body = body_of(&m, &len);
    ASSERT_EQ(rtnl_read_route(body, len, &r2), 0);
    ASSERT_EQ(r2.table, 70000);
    ASSERT(r2.multipath && !r2.odd && r2.oif == 0);
    for (int i = 0; i < 2; i++) {
        ASSERT(rtnl_next_hop(&r2));
        ASSERT(memcmp(&r2.gateway, &hop[i].gateway, sizeof(r2.gateway)) == 0);
        ASSERT_EQ(r2.oif, hop[i].oif);
        ASSERT_EQ(r2.weight, hop[i].weight);
        ASSERT_EQ(r2.flags, hop[i].flags);
    }
    ASSERT(!rtnl_next_hop(&r2));

    ASSERT_EQ(rtnl_ip_parse("fd00::", &u.from), 0);
    rtnl_add_rule(&m, &u);
    ASSERT_EQ(type_of(&m), RTM_NEWRULE);
    body = body_of(&m, &len);
    ASSERT_EQ(rtnl_read_rule(body, len, &u2), 0);
    ASSERT(memcmp(&u, &u2, sizeof(u)) == 0);
}

TEST(invalid_addresses_are_refused)
{
    static const char *const bad[] = { "10.0.0", "10.0.0.256", "x", "::g", "10.0.0.1 ", "1:2" };
    static const char *const worse[] = { "10.0.0.0",    "10.0.0.0/33", "/8",         "::/129",
                                         "10.0.0.0/-1", "10.0.0.0/",   "10.0.0.0/8x" };
    struct rtnl_ip ip;
    uint8_t prefix;

    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        ASSERT_EQ(rtnl_ip_parse(bad[i], &ip), -EINVAL);
    for (size_t i = 0; i < ARRAY_LEN(worse); i++)
        ASSERT_EQ(rtnl_prefix_parse(worse[i], &ip, &prefix), -EINVAL);
    ASSERT_EQ(rtnl_ip_parse("", &ip), 0);
    ASSERT_EQ(ip.family, 0);
    ASSERT_EQ(rtnl_prefix_parse("::/0", &ip, &prefix), 0);
    ASSERT_EQ(prefix, 0);
}
