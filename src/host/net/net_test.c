#include "base/clock.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/netlink.h"
#include "fixture/net_fixture.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include "host/ledger/ledger.h"
#include "host/net/net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/virtio_net.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>

static void make_veth(const struct fixture_pod *p)
{
    fixture_sh("ip link add host0 type veth peer name eth0 netns %d", POD(p));
    fixture_sh("ip link set host0 up mtu 1400 && ip addr add 10.1.0.1/24 dev host0");
    fixture_sh(IN_POD "ip link set eth0 mtu 1400 address 02:00:00:00:01:02", POD(p));
    fixture_sh(IN_POD "sh -c 'echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_dad'", POD(p));
    fixture_sh(IN_POD "ip link set eth0 up", POD(p));
    fixture_settle(p, "eth0");
}

static void make_macvlan(const struct fixture_pod *p)
{
    fixture_sh("ip link add parent0 type veth peer name parent1 && ip link set parent0 up && "
               "ip link set parent1 up");
    if (system("ip link add link parent0 name mv0 type macvlan mode bridge 2>/dev/null") != 0)
        tap_skip("this kernel has no macvlan");
    fixture_sh("ip link set mv0 netns %d", POD(p));
}

static int open_pod(struct ctx *ctx, const struct fixture_pod *p)
{
    struct err err = ERR_INIT;
    uint64_t inode;
    int fd;

    ASSERT_OK(net_open(ctx, p->path, &fd, &inode, &err), err);
    ASSERT(inode > 0);
    return fd;
}

static struct net_config *read_pod(struct ctx *ctx, int netns)
{
    struct net_config *c;
    struct err err = ERR_INIT;

    ASSERT_OK(net_read(ctx, netns, &c, &err), err);
    return c;
}

static const struct guest_route *find_route(const struct net_iface *i, const char *destination)
{
    for (size_t k = 0; k < i->n_routes; k++)
        if (strcmp(i->routes[k].destination, destination) == 0)
            return &i->routes[k];
    tap_fail(__FILE__, __LINE__, "no route to %s", destination);
}

static bool has_address(const struct net_iface *i, const char *text, unsigned prefix)
{
    for (size_t k = 0; k < i->n_addresses; k++)
        if (strcmp(i->addresses[k].text, text) == 0 && i->addresses[k].prefix == prefix)
            return true;
    return false;
}

TEST_FIBER(all_of_an_interface_is_read)
{
    fixture_host();
    AUTO(fixture_pod_end) struct fixture_pod p = fixture_pod(ctx);
    make_veth(&p);
    fixture_sh(IN_POD "ip addr add 10.1.0.2/24 dev eth0", POD(&p));
    fixture_sh(IN_POD "ip addr add fd00:1::2/64 dev eth0 nodad", POD(&p));
    fixture_sh(IN_POD "ip route add default via 10.1.0.1 metric 70", POD(&p));
    fixture_sh(IN_POD "ip route add 192.168.7.1/32 dev eth0 scope link src 10.1.0.2", POD(&p));
    fixture_sh(IN_POD "ip route add 172.16.0.0/12 via 169.254.1.1 dev eth0 onlink mtu 1300",
               POD(&p));
    fixture_sh(IN_POD "ip route add 198.51.100.0/24 via inet6 fd00:1::1 dev eth0", POD(&p));
    fixture_sh(IN_POD "ip -6 route add default via fd00:1::1 dev eth0", POD(&p));
    fixture_sh(IN_POD "ip neigh add 169.254.1.1 lladdr 02:00:00:00:00:09 nud permanent dev eth0",
               POD(&p));
    AUTO_FD int netns = open_pod(ctx, &p);
    AUTO(net_config_free) struct net_config *c = read_pod(ctx, netns);

    ASSERT_EQ(c->n, 1);
    ASSERT_EQ(c->n_routes + c->n_rules, 0);
    const struct net_iface *i = &c->ifaces[0];
    ASSERT_STR(i->name, "eth0");
    ASSERT_EQ(i->mtu, 1400);
    ASSERT(memcmp(i->mac, "\2\0\0\0\1\2", 6) == 0);
    ASSERT(has_address(i, "10.1.0.2", 24));
    ASSERT(has_address(i, "fd00:1::2", 64));
    ASSERT(has_address(i, "fe80::ff:fe00:102", 64));
    ASSERT_EQ(i->n_addresses, 3);
    ASSERT_STR(find_route(i, "0.0.0.0/0")->next_hop, "10.1.0.1");
    ASSERT_EQ(find_route(i, "0.0.0.0/0")->metric, 70);
    ASSERT(!find_route(i, "0.0.0.0/0")->on_link);
    ASSERT(find_route(i, "192.168.7.1/32")->link_scope);
    ASSERT_STR(find_route(i, "192.168.7.1/32")->source, "10.1.0.2");
    ASSERT(find_route(i, "172.16.0.0/12")->on_link);
    ASSERT_EQ(find_route(i, "172.16.0.0/12")->mtu, 1300);
    ASSERT_STR(find_route(i, "198.51.100.0/24")->next_hop, "fd00:1::1");
    ASSERT_STR(find_route(i, "::/0")->next_hop, "fd00:1::1");
    ASSERT(find_route(i, "10.1.0.0/24")->link_scope); /* the kernel's own */
    ASSERT_EQ(i->n_neighbours, 1);
    ASSERT_STR(i->neighbours[0].text, "169.254.1.1");
    ASSERT(memcmp(i->neighbours[0].mac, "\2\0\0\0\0\11", 6) == 0);
    for (size_t k = 1; k < i->n_routes; k++) /* those without a next hop first */
        ASSERT(!i->routes[k - 1].next_hop[0] || i->routes[k].next_hop[0]);
}

TEST_FIBER(a_route_that_cni_took_away_is_not_read)
{
    fixture_host();
    AUTO(fixture_pod_end) struct fixture_pod p = fixture_pod(ctx);
    make_veth(&p);
    /* As the ptp plugin leaves it. */
    fixture_sh(IN_POD "ip addr add 10.1.0.2/24 dev eth0", POD(&p));
    fixture_sh(IN_POD "ip route del 10.1.0.0/24 dev eth0", POD(&p));
    fixture_sh(IN_POD "ip route add 10.1.0.1/32 dev eth0 scope link src 10.1.0.2", POD(&p));
    fixture_sh(IN_POD "ip route add 10.1.0.0/24 via 10.1.0.1 src 10.1.0.2", POD(&p));
    AUTO_FD int netns = open_pod(ctx, &p);
    AUTO(net_config_free) struct net_config *c = read_pod(ctx, netns);

    ASSERT_STR(find_route(&c->ifaces[0], "10.1.0.0/24")->next_hop, "10.1.0.1");
    ASSERT_STR(find_route(&c->ifaces[0], "10.1.0.1/32")->next_hop, "");
}

TEST_FIBER(several_interfaces_of_several_kinds_are_read)
{
    fixture_host();
    AUTO(fixture_pod_end) struct fixture_pod p = fixture_pod(ctx);
    make_veth(&p);
    make_macvlan(&p);
    fixture_sh(IN_POD "ip link set mv0 name net1 up", POD(&p));
    fixture_sh(IN_POD "ip link add down0 type veth peer name down1", POD(&p)); /* stay down */
    fixture_sh(IN_POD "ip link set lo up", POD(&p));
    AUTO_FD int netns = open_pod(ctx, &p);
    AUTO(net_config_free) struct net_config *c = read_pod(ctx, netns);

    ASSERT_EQ(c->n, 2);
    ASSERT(c->loopback);
    ASSERT(strcmp(c->ifaces[0].name, "eth0") == 0 || strcmp(c->ifaces[1].name, "eth0") == 0);
    ASSERT(strcmp(c->ifaces[0].name, "net1") == 0 || strcmp(c->ifaces[1].name, "net1") == 0);
}

static bool has_sysctl(const struct net_iface *i, const char *text)
{
    for (size_t k = 0; k < i->sysctls.n; k++)
        if (strcmp(i->sysctls.v[k], text) == 0)
            return true;
    return false;
}

/* As sbr and tuning leave it, and a route over both interfaces. */
TEST_FIBER(tables_rules_next_hops_and_sysctls_are_read)
{
    fixture_host();
    AUTO(fixture_pod_end) struct fixture_pod p = fixture_pod(ctx);
    make_veth(&p);
    fixture_sh("ip link add host1 type veth peer name net1 netns %d", POD(&p));
    fixture_sh(IN_POD "ip link set net1 up && ip link set host1 up", POD(&p));
    fixture_sh(IN_POD "ip addr add 10.1.0.2/24 dev eth0", POD(&p));
    fixture_sh(IN_POD "ip addr add 10.2.0.2/24 dev net1", POD(&p));
    fixture_sh(IN_POD "ip route add default via 10.2.0.1 table 100", POD(&p));
    fixture_sh(IN_POD "ip rule add from 10.2.0.2/32 table 100", POD(&p));
    fixture_sh(IN_POD "ip -6 rule add pref 9 not fwmark 3 oif net1 table 7000", POD(&p));
    fixture_sh(IN_POD "ip route add 203.0.113.0/24 nexthop via 10.1.0.1 weight 3 "
                      "nexthop via 10.2.0.9 dev net1 onlink",
               POD(&p));
    fixture_sh(IN_POD "sysctl -qw net.ipv4.conf.net1.arp_ignore=3 net.ipv6.conf.all.disable_ipv6=1 "
                      "net.ipv4.neigh.net1.gc_stale_time=77",
               POD(&p));
    AUTO_FD int netns = open_pod(ctx, &p);
    AUTO(net_config_free) struct net_config *c = read_pod(ctx, netns);

    ASSERT_EQ(c->n, 2);
    const struct net_iface *net1 = &c->ifaces[strcmp(c->ifaces[0].name, "eth0") == 0],
                           *eth0 = &c->ifaces[net1 == &c->ifaces[0]];
    ASSERT_STR(find_route(net1, "0.0.0.0/0")->next_hop, "10.2.0.1");
    ASSERT_EQ(find_route(net1, "0.0.0.0/0")->table, 100);
    ASSERT_EQ(find_route(net1, "10.2.0.0/24")->table, 0);
    ASSERT_EQ(c->n_routes, 2);
    ASSERT_EQ(c->routes[0].hops, 2);
    ASSERT_EQ(c->routes[0].weight, 3);
    ASSERT_STR(c->routes[0].dev, "eth0");
    ASSERT_STR(c->routes[0].destination, "203.0.113.0/24");
    ASSERT_STR(c->routes[1].next_hop, "10.2.0.9");
    ASSERT_STR(c->routes[1].dev, "net1");
    ASSERT(c->routes[1].on_link && c->routes[1].weight == 1 && c->routes[1].hops == 0);
    ASSERT_EQ(c->n_rules, 2);
    ASSERT_STR(c->rules[0].source, "10.2.0.2/32");
    ASSERT_EQ(c->rules[0].table, 100);
    ASSERT(c->rules[1].ipv6 && c->rules[1].invert && c->rules[1].mark == 3);
    ASSERT_STR(c->rules[1].oif, "net1");
    ASSERT_EQ(net1->sysctls.n, 3);
    ASSERT(has_sysctl(net1, "ipv4.conf.arp_ignore=3"));
    ASSERT(has_sysctl(net1, "ipv4.neigh.gc_stale_time=77"));
    ASSERT(has_sysctl(net1, "ipv6.conf.disable_ipv6=1"));
    ASSERT(!has_sysctl(eth0, "ipv4.conf.arp_ignore=3"));
}

TEST_FIBER(what_cannot_be_handed_on_is_refused_by_name)
{
    static const struct {
        const char *make, *undo, *says;
    } cases[] = {
        { "ip route add blackhole 10.9.0.0/16 table 7", "ip route flush table 7",
          "route to 10.9.0.0/16 (table 7) in the pod's network namespace cannot be given to a VM: "
          "its type is not unicast" },
        { "ip route add 10.9.0.0/16 dev lo", "ip route del 10.9.0.0/16",
          "route to 10.9.0.0/16 (table 254) in the pod's network namespace cannot be given to a "
          "VM: the VM lacks its interface" },
        { "ip route add 10.9.0.0/16 tos 4 dev eth0", "ip route del 10.9.0.0/16 tos 4",
          "a type of service" },
        { "ip route add 10.9.0.0/16 nexthop dev eth0 nexthop dev lo", "ip route del 10.9.0.0/16",
          "one of its next hops is on an interface that the VM lacks" },
        { "ip rule add pref 70 ipproto tcp table 7", "ip rule del pref 70",
          "policy rule 70 (IPv4) in the pod's network namespace cannot be given to a VM" },
        { "ip rule add pref 70 from 10.0.0.0/8 blackhole", "ip rule del pref 70", "rule 70" },
        { "ip rule del pref 32766", "ip rule add pref 32766 table main",
          "a rule of the kernel (local, main or default) is missing" },
        { "sh -c 'for i in $(seq 65); do echo rule add pref $i table 7; done | ip -batch -'", "",
          "more than 64 policy rules" },
    };
    fixture_host();
    AUTO(fixture_pod_end) struct fixture_pod p = fixture_pod(ctx);
    make_veth(&p);
    fixture_sh(IN_POD "ip link set lo up", POD(&p));
    AUTO_FD int netns = open_pod(ctx, &p);

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct net_config *c;
        struct err err = ERR_INIT;

        fixture_sh(IN_POD "%s", POD(&p), cases[i].make);
        ASSERT_FAIL(net_read(ctx, netns, &c, &err), err,
                    i + 1 < ARRAY_LEN(cases) ? ERR_STATE : ERR_EXHAUSTED);
        ASSERT_MSG_HAS(err.msg, cases[i].says);
        if (i + 1 < ARRAY_LEN(cases))
            fixture_sh(IN_POD "%s", POD(&p), cases[i].undo);
    }
}

TEST_FIBER(a_macvlan_on_top_of_a_pods_interface_is_refused)
{
    fixture_host();
    AUTO(fixture_pod_end) struct fixture_pod p = fixture_pod(ctx);
    struct net_config *c;
    struct err err = ERR_INIT;

    make_veth(&p);
    fixture_sh(IN_POD "ip link add link eth0 name top0 type macvlan", POD(&p));
    fixture_sh(IN_POD "ip link set top0 up", POD(&p));
    AUTO_FD int netns = open_pod(ctx, &p);
    ASSERT_FAIL(net_read(ctx, netns, &c, &err), err, ERR_STATE);
    ASSERT_HAS(err.msg, "interface top0 (macvlan on top of eth0)");
    ASSERT_EQ(err.reason, REASON_INTERFACE_UNSUPPORTED);
}

TEST_FIBER(an_empty_namespace_is_not_an_error)
{
    fixture_host();
    AUTO(fixture_pod_end) struct fixture_pod p = fixture_pod(ctx);
    AUTO_FD int netns = open_pod(ctx, &p);
    AUTO(net_config_free) struct net_config *c = read_pod(ctx, netns);

    ASSERT_EQ(c->n, 0);
    ASSERT(!c->loopback);
}

TEST_FIBER(an_interface_that_is_not_ethernet_is_refused_by_name)
{
    fixture_host();
    AUTO(fixture_pod_end) struct fixture_pod p = fixture_pod(ctx);
    struct net_config *c;
    struct err err = ERR_INIT;

    fixture_sh(IN_POD "ip tuntap add tun7 mode tun && nsenter -t %d -n ip link set tun7 up",
               POD(&p), POD(&p));
    AUTO_FD int netns = open_pod(ctx, &p);
    ASSERT_FAIL(net_read(ctx, netns, &c, &err), err, ERR_STATE);
    ASSERT_HAS(err.msg, "tun7");
}

TEST_FIBER(limits_are_kept)
{
    fixture_host();
    AUTO(fixture_pod_end) struct fixture_pod p = fixture_pod(ctx);
    struct net_config *c;
    struct err err = ERR_INIT;

    make_veth(&p);
    fixture_sh(IN_POD
               "sh -c 'for i in $(seq 1 130); do echo route add 10.9.$i.0/24 dev eth0; done | "
               "ip -batch -'",
               POD(&p));
    AUTO_FD int netns = open_pod(ctx, &p);
    ASSERT_FAIL(net_read(ctx, netns, &c, &err), err, ERR_EXHAUSTED);
    ASSERT_MSG_HAS(err.msg, "more than 128 routes of eth0");
}

TEST_FIBER(a_path_that_is_not_a_pods_namespace_is_refused)
{
    struct err err = ERR_INIT;
    uint64_t inode;
    int fd;

    fixture_host();
    ASSERT_FAIL(net_open(ctx, "/nonexistent/netns", &fd, &inode, &err), err, ERR_NOT_FOUND);
    ASSERT_FAIL(net_open(ctx, "/proc/self/ns/mnt", &fd, &inode, &err), err, ERR_INVALID);
    ASSERT_FAIL(net_open(ctx, "/dev/zero", &fd, &inode, &err), err, ERR_INVALID);
    ASSERT_FAIL(net_open(ctx, "/proc/self/ns/net", &fd, &inode, &err), err, ERR_STATE);
    ASSERT_MSG_HAS(err.msg, "hostNetwork");
    ASSERT_EQ(err.reason, REASON_HOST_NAMESPACE);
}

/* --- plugging --- */

static int plug(struct ctx *ctx, int netns, const char *iface, const char *tap)
{
    const struct net_plug o = { .netns = netns, .iface = iface, .tap = tap, .mtu = 1400 };
    struct err err = ERR_INIT;
    struct net_taps t;

    ASSERT_OK(net_plug(ctx, &o, &t, &err), err);
    ASSERT(t.queues == 1 && !t.has_vhost);
    return t.tap[0];
}

#define HEAD sizeof(struct virtio_net_hdr)
static const uint8_t pod_ip[] = { 10, 1, 0, 2 };

/* The next frame for which ok says yes, behind its header; nothing else comes for long. */
static void await_frame(int tap, uint8_t frame[2048], bool (*ok)(const uint8_t *frame, size_t len))
{
    for (int i = 0; i < 50; i++) {
        struct pollfd pf = { .fd = tap, .events = POLLIN };
        ASSERT(poll(&pf, 1, 30000) == 1);
        ssize_t n = read(tap, frame, 2048);
        ASSERT(n > (ssize_t)HEAD);
        memmove(frame, frame + HEAD, (size_t)n - HEAD);
        if (ok(frame, (size_t)n - HEAD))
            return;
    }
    tap_fail(__FILE__, __LINE__, "the frame did not come");
}

/* For 10.1.0.2, as the host's kernel sends it. */
static bool is_question(const uint8_t *frame, size_t len)
{
    return len >= 42 && frame[12] == 8 && frame[13] == 6 && memcmp(frame + 38, pod_ip, 4) == 0;
}

static bool is_datagram(const uint8_t *frame, size_t len)
{
    return len >= 43 && frame[12] == 8 && frame[13] == 0 && frame[23] == IPPROTO_UDP &&
           memcmp(frame + 30, pod_ip, 4) == 0 && frame[42] == 'x';
}

/* The host sends a datagram to 10.1.0.2, for which it asks first; we answer as a guest would. */
static void exchange(int tap, const uint8_t mac[6])
{
    AUTO_FD int udp = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(9) };
    uint8_t frame[2048], answer[HEAD + 60] = { 0 }, *a = answer + HEAD;

    memcpy(&to.sin_addr, pod_ip, 4);
    ASSERT(sendto(udp, "x", 1, 0, (struct sockaddr *)&to, sizeof(to)) == 1);
    await_frame(tap, frame, is_question);
    memcpy(a, frame + 6, 6);
    memcpy(a + 6, mac, 6);
    memcpy(a + 12, "\x08\x06\0\1\x08\0\6\4\0\2", 10);
    memcpy(a + 22, mac, 6);
    memcpy(a + 28, pod_ip, 4);
    memcpy(a + 32, frame + 22, 10); /* the asker's MAC and address */
    ASSERT(write(tap, answer, sizeof(answer)) == sizeof(answer));
    await_frame(tap, frame, is_datagram);
    ASSERT(memcmp(frame, mac, 6) == 0);
}

static const struct net_iface *named(const struct net_config *c, const char *name)
{
    for (size_t i = 0; i < c->n; i++)
        if (strcmp(c->ifaces[i].name, name) == 0)
            return &c->ifaces[i];
    tap_fail(__FILE__, __LINE__, "no interface %s", name);
}

/* A veth, host0 and parent0, and below that (in the host's namespace) eth0 of this kind; NULL: eth0
 * is the veth's other end. To be called before anything is there that a skipped test would leave.
 */
static void make_eth0(const char *kind)
{
    char cmd[256];

    fixture_host();
    fixture_sh("ip link add host0 type veth peer name parent0 && ip link set host0 up && "
               "ip addr add 10.1.0.1/24 dev host0");
    snprintf(cmd, sizeof(cmd), "ip link set parent0 up; ip link add link parent0 name eth0 type %s",
             kind ? kind : "");
    if (kind && system(cmd) != 0)
        tap_skip("this kernel has no %s", kind);
    if (!kind)
        fixture_sh("ip link set parent0 name eth0");
}

static void exchange_on(struct ctx *ctx, const char *kind)
{
    make_eth0(kind);
    AUTO(fixture_pod_end) struct fixture_pod p = fixture_pod(ctx);
    fixture_sh("ip link set eth0 netns %d", POD(&p));
    fixture_sh(IN_POD "ip addr add 10.1.0.2/24 dev eth0", POD(&p));
    fixture_sh(IN_POD "ip link set eth0 up mtu 1400", POD(&p));
    AUTO_FD int netns = open_pod(ctx, &p);
    AUTO(net_config_free) struct net_config *c = read_pod(ctx, netns);
    AUTO_FD int tap = plug(ctx, netns, "eth0", "lcow0");
    AUTO_FREE char *mtu = fixture_out(IN_POD "ip -o link show lcow0", POD(&p));
    ASSERT_HAS(mtu, "mtu 1400");
    exchange(tap, named(c, "eth0")->mac);
}

TEST_FIBER(traffic_of_a_veth_goes_both_ways_through_the_tap)
{
    exchange_on(ctx, NULL);
}

TEST_FIBER(traffic_of_a_macvlan_goes_both_ways_through_the_tap)
{
    exchange_on(ctx, "macvlan mode bridge");
}

TEST_FIBER(traffic_of_an_ipvlan_goes_both_ways_through_the_tap)
{
    exchange_on(ctx, "ipvlan mode l2");
}

TEST_FIBER(ipvlan_above_ethernet_is_refused)
{
    static const char *const kinds[] = { "ipvlan mode l3", "ipvlan mode l3s" };

    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        struct err err = ERR_INIT;
        struct net_config *c;

        make_eth0(kinds[i]);
        AUTO(fixture_pod_end) struct fixture_pod p = fixture_pod(ctx);
        fixture_sh("ip link set eth0 netns %d", POD(&p));
        fixture_sh(IN_POD "ip link set eth0 up", POD(&p));
        AUTO_FD int netns = open_pod(ctx, &p);
        ASSERT_FAIL(net_read(ctx, netns, &c, &err), err, ERR_STATE);
        ASSERT_HAS(err.msg, "interface eth0 (ipvlan, mode l3 or l3s)");
    }
}

static bool is_ours(const uint8_t *frame, size_t len)
{
    return len >= 14 && frame[12] == 0x88 && frame[13] == 0xb5;
}

static bool is_ours_or_tagged(const uint8_t *frame, size_t len)
{
    return is_ours(frame, len) || (len >= 18 && frame[12] == 0x81 && frame[13] == 0);
}

TEST_FIBER(frames_with_a_tag_are_left_to_vlans_on_top)
{
    for (int vlans = 0; vlans < 2; vlans++) {
        fixture_host();
        AUTO(fixture_pod_end) struct fixture_pod p = fixture_pod(ctx);
        struct err err = ERR_INIT;
        uint8_t frame[2048] = "\xff\xff\xff\xff\xff\xff\2\0\0\0\1\2\x81\0\0\7\x88\xb5";
        struct net_taps t;

        make_veth(&p);
        AUTO_FD int netns = open_pod(ctx, &p);
        const struct net_plug o = {
            .netns = netns, .iface = "eth0", .tap = "lcow0", .mtu = 1400, .vlans = vlans
        };
        ASSERT_OK(net_plug(ctx, &o, &t, &err), err);
        AUTO_FD int tap = t.tap[0];
        AUTO_FD int raw = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
        struct sockaddr_ll on = { .sll_family = AF_PACKET,
                                  .sll_ifindex = (int)if_nametoindex("host0") };
        ASSERT(raw >= 0 && bind(raw, (struct sockaddr *)&on, sizeof(on)) == 0);
        ASSERT_EQ(send(raw, frame, 64, 0), 64);
        memmove(frame + 12, frame + 16, 48); /* the same without its tag */
        ASSERT_EQ(send(raw, frame, 60, 0), 60);
        await_frame(tap, frame, is_ours_or_tagged);
        ASSERT_EQ(is_ours(frame, 60), vlans);
    }
}

/* Both ends tag: each of the two interfaces has its own tap, and gets its own frames. */
TEST_FIBER(a_vlan_on_top_has_a_tap_of_its_own)
{
    struct err err = ERR_INIT;
    struct net_taps t;

    make_eth0(NULL);
    if (system("ip link add link host0 name host0.7 type vlan id 7") != 0)
        tap_skip("this kernel has no VLANs");
    AUTO(fixture_pod_end) struct fixture_pod p = fixture_pod(ctx);
    fixture_sh("ip link set eth0 netns %d && ip addr flush dev host0", POD(&p));
    fixture_sh("ip link set host0.7 up && ip addr add 10.1.0.1/24 dev host0.7");
    fixture_sh(IN_POD "ip link set eth0 up", POD(&p));
    fixture_sh(IN_POD "ip link add link eth0 name eth0.7 type vlan id 7", POD(&p));
    fixture_sh(IN_POD "ip link set eth0.7 up", POD(&p));
    AUTO_FD int netns = open_pod(ctx, &p);
    AUTO(net_config_free) struct net_config *c = read_pod(ctx, netns);
    ASSERT(named(c, "eth0")->vlans && !named(c, "eth0.7")->vlans);
    const struct net_plug o = {
        .netns = netns, .iface = "eth0", .tap = "lcow0", .mtu = 1500, .vlans = true
    };
    ASSERT_OK(net_plug(ctx, &o, &t, &err), err);
    AUTO_FD int below = t.tap[0];
    AUTO_FD int top = plug(ctx, netns, "eth0.7", "lcow1");
    ASSERT(below >= 0);
    exchange(top, named(c, "eth0.7")->mac);
}

static unsigned queues_of(const struct fixture_pod *p, const char *tap)
{
    AUTO_FREE char *n = fixture_out("nsenter -t %d -n ip -d link show %s | "
                                    "sed -n 's/.*numtxqueues \\([0-9]*\\).*/\\1/p'",
                                    POD(p), tap);

    return (unsigned)atoi(n);
}

/* Every queue receives: the kernel chooses one for each flow. */
TEST_FIBER(a_tap_has_as_many_queues_as_asked_for)
{
    static const unsigned asked[] = { 2, 99 };

    for (size_t i = 0; i < ARRAY_LEN(asked); i++) {
        fixture_host();
        AUTO(fixture_pod_end) struct fixture_pod p = fixture_pod(ctx);
        AUTO(net_taps_close) struct net_taps t = { 0 };
        struct err err = ERR_INIT;

        make_veth(&p);
        fixture_sh("ip neigh add 10.1.0.2 lladdr 02:00:00:00:01:02 nud permanent dev host0");
        AUTO_FD int netns = open_pod(ctx, &p);
        const struct net_plug o = {
            .netns = netns, .iface = "eth0", .tap = "lcow0", .mtu = 1400, .queues = asked[i]
        };
        ASSERT_OK(net_plug(ctx, &o, &t, &err), err);
        ASSERT_EQ(t.queues, i == 0 ? 2 : NET_MAX_QUEUES);
        ASSERT(queues_of(&p, "lcow0") >= t.queues);
        unsigned heard = 0;
        for (uint16_t port = 1000; port < 1400; port++) {
            AUTO_FD int udp = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
            struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(port) };
            uint8_t frame[2048];

            inet_pton(AF_INET, "10.1.0.2", &to.sin_addr);
            ASSERT(sendto(udp, "x", 1, 0, (struct sockaddr *)&to, sizeof(to)) == 1);
            for (unsigned q = 0; q < t.queues; q++) {
                struct pollfd pf = { .fd = t.tap[q], .events = POLLIN };
                while (poll(&pf, 1, 0) == 1 && read(t.tap[q], frame, sizeof(frame)) > 0)
                    heard |= 1u << q;
            }
        }
        ASSERT_EQ(heard, (1u << t.queues) - 1);
    }
}

TEST_FIBER(vhost_net_is_opened_for_each_queue_or_the_reason_is_given)
{
    fixture_host();
    AUTO(fixture_pod_end) struct fixture_pod p = fixture_pod(ctx);
    AUTO(net_taps_close) struct net_taps t = { 0 };
    struct err err = ERR_INIT;

    make_veth(&p);
    AUTO_FD int netns = open_pod(ctx, &p);
    const struct net_plug o = {
        .netns = netns, .iface = "eth0", .tap = "lcow0", .mtu = 1400, .queues = 2, .vhost = true
    };
    ASSERT_OK(net_plug(ctx, &o, &t, &err), err);
    ASSERT_EQ(t.has_vhost, access("/dev/vhost-net", R_OK | W_OK) == 0);
    for (unsigned i = 0; i < t.queues && t.has_vhost; i++)
        ASSERT(fcntl(t.vhost[i], F_GETFD) == FD_CLOEXEC);
    if (!t.has_vhost)
        ASSERT_MSG_HAS(t.no_vhost.msg, "modprobe vhost_net");
}

TEST_FIBER(after_unplug_all_is_as_before)
{
    fixture_host();
    AUTO(fixture_pod_end) struct fixture_pod p = fixture_pod(ctx);
    struct err err = ERR_INIT;

    make_veth(&p);
    fixture_sh(IN_POD "ip addr add 10.1.0.2/24 dev eth0", POD(&p));
    AUTO_FD int netns = open_pod(ctx, &p);
    AUTO_FREE char *before = fixture_look(&p);
    int tap = plug(ctx, netns, "eth0", "lcow0");
    AUTO_FREE char *plugged = fixture_look(&p);
    ASSERT_HAS(plugged, "mirred (Egress Redirect to device lcow0)");
    ASSERT_HAS(plugged, "mirred (Egress Redirect to device eth0)");
    fd_close(tap);
    ASSERT_OK(net_unplug(ctx, netns, "eth0", "lcow0", &err), err);
    AUTO_FREE char *after = fixture_look(&p);
    ASSERT_STR(after, before);
    /* Again, with the descriptor still open this time; and once more, when there is nothing. */
    AUTO_FD int held = plug(ctx, netns, "eth0", "lcow0");
    ASSERT_OK(net_unplug(ctx, netns, "eth0", "lcow0", &err), err);
    AUTO_FREE char *silent = fixture_look(&p);
    ASSERT(!strstr(silent, "mirred") && !strstr(silent, "ingress"));
    fd_close(TAKE_FD(held));
    ASSERT_OK(net_unplug(ctx, netns, "eth0", "lcow0", &err), err);
    AUTO_FREE char *again = fixture_look(&p);
    ASSERT_STR(again, before);
    fixture_sh("ip link del host0");
    ASSERT_OK(net_unplug(ctx, netns, "eth0", "lcow0", &err), err);
}

/* A socket that hears of every change in the pod's namespace. */
static int listen_in(int netns)
{
    AUTO_FD int own = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);

    ASSERT(own >= 0 && setns(netns, CLONE_NEWNET) == 0);
    int fd = nl_open(NETLINK_ROUTE, RTMGRP_LINK | RTMGRP_TC);
    ASSERT(setns(own, CLONE_NEWNET) == 0 && fd >= 0);
    return fd;
}

/* "d": an interface went down; "q": a qdisc was deleted. */
static void hear(int fd, struct sbuf *out)
{
    _Alignas(8) char buf[16384];

    for (ssize_t n; (n = recv(fd, buf, sizeof(buf), MSG_DONTWAIT)) > 0;)
        for (const struct nlmsghdr *h = (void *)buf; NLMSG_OK(h, n); h = NLMSG_NEXT(h, n)) {
            const struct ifinfomsg *iface = NLMSG_DATA(h);

            if (h->nlmsg_type == RTM_DELQDISC)
                sbuf_addc(out, 'q');
            else if (h->nlmsg_type == RTM_NEWLINK && !(iface->ifi_flags & IFF_UP))
                sbuf_addc(out, 'd');
        }
}

TEST_FIBER(unplugging_silences_the_tap_before_its_qdisc_goes)
{
    fixture_host();
    AUTO(fixture_pod_end) struct fixture_pod p = fixture_pod(ctx);
    AUTO(sbuf_release) struct sbuf heard = { 0 };
    struct err err = ERR_INIT;

    make_veth(&p);
    AUTO_FD int netns = open_pod(ctx, &p);
    AUTO_FD int held = plug(ctx, netns, "eth0", "lcow0"); /* as QEMU has it */
    AUTO_FD int news = listen_in(netns);
    ASSERT_OK(net_unplug(ctx, netns, "eth0", "lcow0", &err), err);
    hear(news, &heard);
    ASSERT(heard.data && strchr(heard.data, 'd') && strchr(heard.data, 'q'));
    ASSERT_EQ(heard.data[0], 'd');
    ASSERT(held >= 0);
}

TEST_FIBER(macvlan_can_be_plugged)
{
    fixture_host();
    AUTO(fixture_pod_end) struct fixture_pod p = fixture_pod(ctx);
    struct err err = ERR_INIT;

    make_macvlan(&p);
    fixture_sh(IN_POD "ip link set mv0 up", POD(&p));
    fixture_settle(&p, "mv0");
    AUTO_FREE char *before = fixture_look(&p);
    AUTO_FD int netns = open_pod(ctx, &p);
    int tap = plug(ctx, netns, "mv0", "lcow0");
    fd_close(tap);
    ASSERT_OK(net_unplug(ctx, netns, "mv0", "lcow0", &err), err);
    AUTO_FREE char *after = fixture_look(&p);
    ASSERT_STR(after, before);
}

TEST_FIBER(a_failed_plug_leaves_nothing)
{
    fixture_host();
    AUTO(fixture_pod_end) struct fixture_pod p = fixture_pod(ctx);
    const char *ifaces[] = { "eth0", "gone0" };
    struct err err = ERR_INIT;
    struct net_taps t;

    make_veth(&p);
    fixture_sh(IN_POD "tc qdisc add dev eth0 ingress", POD(&p)); /* not made by lcow */
    AUTO_FREE char *before = fixture_look(&p);
    AUTO_FD int netns = open_pod(ctx, &p);
    for (size_t i = 0; i < ARRAY_LEN(ifaces); i++) {
        const struct net_plug o = {
            .netns = netns, .iface = ifaces[i], .tap = "lcow0", .mtu = 1400
        };
        ASSERT_FAIL(net_plug(ctx, &o, &t, &err), err, i == 0 ? ERR_STATE : ERR_UNAVAILABLE);
        ASSERT_EQ(err.reason, i == 0 ? REASON_INTERFACE_IN_USE : REASON_INTERFACE_MISSING);
        ASSERT_HAS(err.msg, ifaces[i]);
        AUTO_FREE char *after = fixture_look(&p);
        ASSERT_STR(after, before);
    }
}

TEST_FIBER(a_plug_whose_caller_gave_up_rolls_itself_back)
{
    fixture_host();
    AUTO(fixture_pod_end) struct fixture_pod p = fixture_pod(ctx);
    struct err err = ERR_INIT;

    make_veth(&p);
    AUTO_FREE char *before = fixture_look(&p);
    AUTO_FD int netns = open_pod(ctx, &p);
    const struct net_plug o = { .netns = netns, .iface = "eth0", .tap = "lcow0", .mtu = 1400 };
    struct ctx short_ctx = ctx_with_timeout(ctx, 1);
    struct net_taps t;

    if (net_plug(&short_ctx, &o, &t, &err) == 0) { /* it was faster than the clock */
        net_taps_close(&t);
        ASSERT_OK(net_unplug(ctx, netns, "eth0", "lcow0", &err), err);
    }
    for (int i = 0; i < 3000; i++) {
        AUTO_FREE char *after = fixture_look(&p);
        if (strcmp(after, before) == 0)
            break;
        ASSERT(i < 2999);
        ASSERT_OK(fiber_sleep(ctx, 10 * NS_PER_MS, &err), err);
    }
}

TEST_FIBER(counters_are_the_pods)
{
    fixture_host();
    AUTO(fixture_pod_end) struct fixture_pod p = fixture_pod(ctx);
    struct net_counters c;
    struct err err = ERR_INIT;

    make_veth(&p);
    AUTO_FD int netns = open_pod(ctx, &p);
    AUTO_FD int udp = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(9) };
    fixture_sh("ip neigh add 10.1.0.2 lladdr 02:00:00:00:01:02 nud permanent dev host0");
    inet_pton(AF_INET, "10.1.0.2", &to.sin_addr);
    ASSERT(sendto(udp, "x", 1, 0, (struct sockaddr *)&to, sizeof(to)) == 1);
    for (int i = 0; i < 3000; i++) {
        ASSERT_OK(net_count(ctx, netns, "eth0", &c, &err), err);
        if (c.rx_bytes >= 29)
            break;
        ASSERT_OK(fiber_sleep(ctx, 10 * NS_PER_MS, &err), err);
    }
    ASSERT(c.rx_packets >= 1 && c.rx_bytes >= 29);
    ASSERT_FAIL(net_count(ctx, netns, "eth7", &c, &err), err, ERR_NOT_FOUND);
}

/* --- what a dead owner leaves --- */

static void add_record(struct ledger *l, enum ledger_kind kind, const char *path, uint64_t inode,
                       const char *iface)
{
    AUTO_FREE char *what = ledger_interface_name(path, inode, iface);
    struct err err = ERR_INIT;
    uint64_t id;

    ASSERT_OK(ledger_add(l, kind, what, &id, &err), err);
}

TEST_FIBER(the_plug_of_a_dead_shim_is_cleaned_up_by_its_ledger)
{
    struct err err = ERR_INIT;
    uint64_t inode;
    int netns;

    fixture_host();
    TEMPDIR(temp);
    AUTO(fixture_pod_end) struct fixture_pod p = fixture_pod(ctx);
    AUTO_FREE char *dir = str_dup(tempdir_path(&temp, "ns/pod"));
    struct ledger *l;
    make_veth(&p);
    AUTO_FREE char *before = fixture_look(&p);
    ASSERT_OK(net_open(ctx, p.path, &netns, &inode, &err), err);
    ASSERT_OK(ledger_create(dir, &l, &err), err);
    add_record(l, LEDGER_INTERFACE, p.path, inode, "lcow0");
    add_record(l, LEDGER_INGRESS, p.path, inode, "eth0");
    /* Of another namespace that had this path once; and of one that is gone. */
    add_record(l, LEDGER_INGRESS, p.path, inode + 1, "eth0");
    add_record(l, LEDGER_INTERFACE, "/run/netns/gone", inode, "lcow0");
    AUTO_FD int tap = plug(ctx, netns, "eth0", "lcow0"); /* still open: a QEMU that outlives us */
    ASSERT(tap >= 0);
    fd_close(netns);
    ledger_close(l);
    ASSERT_OK(ledger_reclaim(ctx, dir, true, NULL, NULL, &err), err);
    AUTO_FREE char *untouched = fixture_look(&p);
    ASSERT_HAS(untouched, "mirred");
    ASSERT_OK(ledger_reclaim(ctx, dir, false, NULL, NULL, &err), err);
    AUTO_FREE char *after = fixture_look(&p);
    ASSERT_STR(after, before);
}

TEST_FIBER(a_namespace_that_took_the_others_path_is_left_alone)
{
    struct err err = ERR_INIT;
    uint64_t inode;
    int netns;

    fixture_host();
    TEMPDIR(temp);
    AUTO(fixture_pod_end) struct fixture_pod p = fixture_pod(ctx);
    AUTO_FREE char *dir = str_dup(tempdir_path(&temp, "ns/pod"));
    struct ledger *l;
    make_veth(&p);
    ASSERT_OK(net_open(ctx, p.path, &netns, &inode, &err), err);
    AUTO_FD int tap = plug(ctx, netns, "eth0", "lcow0");
    ASSERT(tap >= 0);
    AUTO_FREE char *before = fixture_look(&p);
    ASSERT_OK(ledger_create(dir, &l, &err), err);
    add_record(l, LEDGER_INTERFACE, p.path, inode + 1, "lcow0");
    add_record(l, LEDGER_INGRESS, p.path, inode + 1, "eth0");
    ledger_close(l);
    ASSERT_OK(ledger_reclaim(ctx, dir, false, NULL, NULL, &err), err);
    AUTO_FREE char *after = fixture_look(&p);
    ASSERT_STR(after, before);
    ASSERT_OK(net_unplug(ctx, netns, "eth0", "lcow0", &err), err);
    fd_close(netns);
}

/* --- ports --- */

TEST_FIBER(every_port_of_a_pod_leads_to_one_listener)
{
    static const struct {
        const char *address;
        unsigned port;
        bool ipv6;
    } dials[] = { { "127.0.0.1", 80, false },
                  { "127.0.0.5", 65535, false },
                  { "::1", 8080, true },
                  { "10.1.0.2", 1, false } };
    struct err err = ERR_INIT;

    fixture_host();
    AUTO(fixture_pod_end) struct fixture_pod p = fixture_pod(ctx);
    make_veth(&p);
    fixture_sh(IN_POD "ip link set lo up", POD(&p));
    fixture_sh(IN_POD "ip addr add 10.1.0.2/24 dev eth0", POD(&p));
    AUTO_FREE char *before = fixture_look(&p);
    AUTO_FD int netns = open_pod(ctx, &p);
    AUTO_FD int listener = -1, hook = -1;
    ASSERT_OK(net_forward_open(ctx, netns, &listener, &hook, &err), err);
    for (size_t i = 0; i < ARRAY_LEN(dials); i++) {
        AUTO_FREE char *code = str_format(
            "import socket; s = socket.create_connection((\"%s\", %u), 5); s.sendall(b\"hi\"); "
            "s.recv(1)",
            dials[i].address, dials[i].port);
        uint16_t port = 0;
        bool ipv6 = false;
        char buf[2];

        fixture_sh("nsenter -t %d -n timeout 10 python3 -c '%s' &", POD(&p), code);
        AUTO_FD int fd = -1;
        ASSERT_OK(net_forward_accept(ctx, listener, &fd, &ipv6, &port, &err), err);
        ASSERT_EQ(port, dials[i].port);
        ASSERT_EQ(ipv6, dials[i].ipv6);
        struct pollfd pf = { .fd = fd, .events = POLLIN };
        ASSERT(poll(&pf, 1, 30000) == 1);
        ASSERT_EQ(read(fd, buf, 2), 2);
        ASSERT(memcmp(buf, "hi", 2) == 0);
    }
    /* It ends with its descriptors, and nothing of it stays. */
    fd_close(TAKE_FD(hook));
    fd_close(TAKE_FD(listener));
    AUTO_FREE char *refused =
        fixture_out("nsenter -t %d -n python3 -c 'import socket; s = socket.socket(); "
                    "print(s.connect_ex((\"127.0.0.1\", 80)))'",
                    POD(&p));
    ASSERT_EQ(atoi(refused), ECONNREFUSED);
    AUTO_FREE char *after = fixture_look(&p);
    ASSERT_STR(after, before);
}
