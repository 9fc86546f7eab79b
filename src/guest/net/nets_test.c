/* With veths for devices, in network namespaces of the test's own. */
#include "base/clock.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/str.h"
#include "guest/net/nets_priv.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include "proto/link.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAC "02:00:00:00:01:02"

/* A "root" namespace of the VM: with nothing in it. */
static void begin(void)
{
    if (geteuid() != 0)
        tap_skip("network namespaces need root");
    ASSERT(unshare(CLONE_NEWNET) == 0);
}

static void device(const char *mac)
{
    AUTO_FREE char *cmd = str_format("ip link add eth1 type veth peer name far1 && "
                                     "ip link set eth1 address %s && ip link set far1 up",
                                     mac);

    ASSERT(system(cmd) == 0);
}

__attribute__((format(printf, 2, 3))) static char *in_ns(const char *path, const char *fmt, ...)
{
    struct sbuf b = { 0 };
    char part[4096];
    va_list ap;

    va_start(ap, fmt);
    AUTO_FREE char *line = str_vformat(fmt, ap);
    va_end(ap);
    AUTO_FREE char *cmd = str_format("nsenter --net=%s sh -c '%s' 2>&1", path, line);
    FILE *f = popen(cmd, "r");
    ASSERT(f);
    for (size_t n; (n = fread(part, 1, sizeof(part), f)) > 0;)
        sbuf_add(&b, part, n);
    pclose(f);
    return sbuf_take(&b);
}

static struct guest_ip addresses[] = { { "10.1.0.2", 24 }, { "fd00:1::2", 64 } };
static struct guest_route routes[] = {
    { .destination = "10.1.0.1/32", .next_hop = "", .source = "10.1.0.2", .link_scope = true },
    { .destination = "10.1.0.0/24", .next_hop = "10.1.0.1", .source = "" },
    { .destination = "0.0.0.0/0", .next_hop = "10.1.0.1", .source = "", .metric = 7 },
    { .destination = "192.0.2.0/24", .next_hop = "169.254.1.1", .source = "", .on_link = true },
    { .destination = "198.51.100.0/24", .next_hop = "203.0.113.1", .source = "" }, /* unheard of */
    { .destination = "fd00:1::/64", .next_hop = "", .source = "", .metric = 256 },
    { .destination = "::/0", .next_hop = "fd00:1::1", .source = "", .mtu = 1300 },
};
static struct bridge_neighbour neighbours[] = { { "169.254.1.1", "02-00-00-00-00-09" } };

static struct bridge_network nic(void)
{
    return (struct bridge_network){ .namespace_id = "pod1",
                                    .id = "n1",
                                    .mac = "02-00-00-00-01-02",
                                    .name = "eth0",
                                    .mtu = 1400,
                                    .ips = addresses,
                                    .n_ips = ARRAY_LEN(addresses),
                                    .routes = routes,
                                    .n_routes = ARRAY_LEN(routes),
                                    .neighbours = neighbours,
                                    .n_neighbours = 1,
                                    .dns_search = "a.example,b.example",
                                    .dns_servers = "10.0.0.10" };
}

TEST_FIBER(a_device_is_moved_and_configured_and_goes)
{
    struct err err = ERR_INIT;
    struct bridge_network n = nic();
    AUTO_FREE char *path = NULL, *search = NULL, *servers = NULL;

    begin();
    device(MAC);
    AUTO(nets_free) struct nets *nets = nets_new();
    ASSERT_OK(nets_hold(ctx, nets, "pod1", &path, &err), err); /* a container came first */
    ASSERT_OK(nets_add(ctx, nets, &n, &err), err);
    AUTO_FREE char *addr = in_ns(path, "ip addr");
    ASSERT_HAS(addr, "lo: <LOOPBACK,UP");
    ASSERT_HAS(addr, "eth0@");
    ASSERT_HAS(addr, "mtu 1400");
    ASSERT_HAS(addr, MAC);
    ASSERT_HAS(addr, "inet 10.1.0.2/24 brd 10.1.0.255");
    ASSERT_HAS(addr, "inet6 fd00:1::2/64");
    ASSERT(!strstr(addr, "tentative"));
    AUTO_FREE char *route = in_ns(path, "ip route; ip -6 route; ip neigh");
    ASSERT_HAS(route, "10.1.0.1 dev eth0 proto static scope link src 10.1.0.2");
    ASSERT_HAS(route, "10.1.0.0/24 via 10.1.0.1 dev eth0");
    ASSERT_HAS(route, "default via 10.1.0.1 dev eth0 proto static metric 7");
    ASSERT_HAS(route, "192.0.2.0/24 via 169.254.1.1 dev eth0 proto static onlink");
    ASSERT_HAS(route, "198.51.100.0/24 via 203.0.113.1 dev eth0 proto static onlink");
    ASSERT_HAS(route, "default via fd00:1::1 dev eth0 proto static metric 1024 mtu 1300");
    ASSERT_HAS(route, "169.254.1.1 dev eth0 lladdr 02:00:00:00:00:09 PERMANENT");
    ASSERT(!strstr(route, "proto kernel scope link"));
    nets_dns(nets, "POD1", &search, &servers);
    ASSERT_STR(search, "a.example,b.example");
    ASSERT_STR(servers, "10.0.0.10");
    ASSERT_FAIL(nets_add(ctx, nets, &n, &err), err, ERR_EXISTS);
    ASSERT_OK(nets_remove(ctx, nets, "pod1", "n1", &err), err);
    AUTO_FREE char *after = in_ns(path, "ip link show eth0");
    ASSERT_HAS(after, "state DOWN");
    ASSERT_OK(nets_remove(ctx, nets, "pod1", "n1", &err), err); /* removing it again succeeds */
    ASSERT_OK(nets_remove(ctx, nets, "nobody", "n1", &err), err);
    nets_release(nets, "pod1");
    AUTO_FREE char *gone = in_ns(path, "ip link");
    ASSERT_HAS(gone, "cannot open");
}

static struct guest_route hops[] = {
    { .destination = "10.1.0.0/24", .next_hop = "", .source = "", .link_scope = true },
    { .destination = "0.0.0.0/0", .next_hop = "10.1.0.9", .source = "", .table = 100 },
    { .destination = "198.51.100.0/24",
      .next_hop = "10.1.0.7",
      .source = "",
      .metric = 5,
      .dev = "eth0",
      .weight = 3,
      .hops = 2 },
    { .destination = "198.51.100.0/24",
      .next_hop = "203.0.113.1",
      .source = "",
      .metric = 5,
      .dev = "eth0",
      .weight = 1,
      .on_link = true },
    { .destination = "fd00:7::/64",
      .next_hop = "fd00:1::7",
      .source = "",
      .on_link = true,
      .dev = "eth0",
      .weight = 1,
      .hops = 2 },
    { .destination = "fd00:7::/64",
      .next_hop = "fd00:1::8",
      .source = "",
      .on_link = true,
      .dev = "eth0",
      .weight = 1 },
};
static struct guest_rule rules[] = {
    { .priority = 50,
      .source = "10.1.0.2/32",
      .destination = "",
      .iif = "",
      .oif = "",
      .table = 100 },
    { .priority = 60,
      .ipv6 = true,
      .invert = true,
      .source = "",
      .destination = "fd00:9::/48",
      .iif = "",
      .oif = "eth0",
      .mark = 1,
      .mask = 15,
      .table = 70000 },
};
static const char *const sysctls[] = { "ipv4.conf.rp_filter=2", "ipv6.conf.accept_ra=2",
                                       "ipv4.neigh.gc_stale_time=77", NULL };

TEST_FIBER(tables_next_hops_rules_and_sysctls_are_made)
{
    static struct guest_ip linked[] = { { "10.1.0.2", 24 }, { "fe80::99", 64 } };
    static const char *const bad[] = { "ipv4.conf.all/x=1", "core.x.y=1", "ipv4.route.x=1",
                                       "ipv4.conf.rp_filter" };
    struct err err = ERR_INIT;
    struct bridge_network n = nic();
    AUTO_FREE char *path = NULL;

    begin();
    device(MAC);
    AUTO(nets_free) struct nets *nets = nets_new();
    ASSERT_OK(nets_hold(ctx, nets, "pod1", &path, &err), err);
    n.routes = hops;
    n.n_routes = ARRAY_LEN(hops);
    n.ips = linked;
    n.rules = rules;
    n.n_rules = ARRAY_LEN(rules);
    n.n_neighbours = 0;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        n.sysctls = (const char *const[]){ bad[i], NULL };
        ASSERT_FAIL(nets_add(ctx, nets, &n, &err), err, ERR_INVALID);
    }
    n.sysctls = sysctls;
    n.n_routes--; /* one hop is missing */
    ASSERT_FAIL(nets_add(ctx, nets, &n, &err), err, ERR_INVALID);
    n.n_routes++;
    rules[0].source = "fd00::1/128"; /* of the other family */
    ASSERT_FAIL(nets_add(ctx, nets, &n, &err), err, ERR_INVALID);
    rules[0].source = "10.1.0.2/32";
    ASSERT_OK(nets_add(ctx, nets, &n, &err), err);
    AUTO_FREE char *out = in_ns(path, "ip route; ip -6 route; ip route show table 100; ip rule; "
                                      "ip -6 rule; cd /proc/sys/net; grep . "
                                      "ipv4/conf/eth0/rp_filter ipv6/conf/eth0/accept_ra "
                                      "ipv4/neigh/eth0/gc_stale_time");
    ASSERT_HAS(out, "198.51.100.0/24 proto static metric 5 \n"
                    "\tnexthop via 10.1.0.7 dev eth0 weight 3 \n"
                    "\tnexthop via 203.0.113.1 dev eth0 weight 1 onlink");
    ASSERT_HAS(out, "\tnexthop via fd00:1::8 dev eth0 weight 1");
    ASSERT_HAS(out, "\ndefault via 10.1.0.9 dev eth0 proto static");
    ASSERT_HAS(out, "50:\tfrom 10.1.0.2 lookup 100");
    ASSERT_HAS(out, "60:\tnot from all to fd00:9::/48 fwmark 0x1/0xf oif eth0 lookup 70000");
    ASSERT_HAS(out, "rp_filter:2");
    ASSERT_HAS(out, "accept_ra:2");
    ASSERT_HAS(out, "gc_stale_time:77");
    AUTO_FREE char *own = in_ns(path, "ip -6 -o addr show dev eth0");
    ASSERT_HAS(own, "inet6 fe80::99/64"); /* and no other that the kernel made of the MAC */
    ASSERT(strchr(own, '\n') == strrchr(own, '\n'));
    nets_release(nets, "pod1");
}

TEST_FIBER(a_sysctl_that_the_kernel_lacks_is_named)
{
    static const char *const unknown[] = { "ipv4.conf.no_such=1", NULL };
    struct err err = ERR_INIT;
    struct bridge_network n = nic();

    begin();
    device(MAC);
    AUTO(nets_free) struct nets *nets = nets_new();
    n.sysctls = unknown;
    ASSERT(nets_add(ctx, nets, &n, &err) < 0);
    ASSERT_MSG_HAS(err.msg, "set sysctl ipv4.conf.no_such=1 of eth0 in the guest");
}

static ino_t inode_of(const char *path)
{
    struct stat st;

    ASSERT_EQ(stat(path, &st), 0);
    return st.st_ino;
}

static ino_t spare_inode(const struct nets *nets)
{
    AUTO_FREE char *path = str_format("/proc/self/fd/%d", nets->spare);

    ASSERT(nets->spare >= 0);
    return inode_of(path);
}

TEST_FIBER(a_namespace_made_ahead_is_the_first_pods)
{
    AUTO_FREE char *first = NULL, *second = NULL, *third = NULL;
    struct err err = ERR_INIT;

    begin();
    AUTO(nets_free) struct nets *nets = nets_new();
    ASSERT_OK(nets_prepare(ctx, nets, &err), err);
    ino_t ahead = spare_inode(nets);
    ASSERT_OK(nets_prepare(ctx, nets, &err), err); /* one is enough */
    ASSERT_EQ(spare_inode(nets), ahead);
    ASSERT_OK(nets_hold(ctx, nets, "pod1", &first, &err), err);
    ASSERT_EQ(inode_of(first), ahead);
    AUTO_FREE char *addr = in_ns(first, "ip addr");
    ASSERT_HAS(addr, "lo: <LOOPBACK,UP");
    ASSERT_OK(nets_hold(ctx, nets, "pod2", &second, &err), err); /* namespaces are not shared */
    ASSERT(inode_of(second) != ahead);
    /* The VM has grown: new namespaces get larger buffers than this one. */
    ASSERT_OK(nets_prepare(ctx, nets, &err), err);
    ahead = spare_inode(nets);
    AUTO_FD int kept = dup(nets->spare); /* or its number may be the next one's */
    ASSERT(kept >= 0);
    nets->spare_bytes--;
    ASSERT_OK(nets_hold(ctx, nets, "pod3", &third, &err), err);
    ASSERT(inode_of(third) != ahead);
    ASSERT_EQ(nets->spare, -1);
}

/* No names, no routes of its own: the kernel makes those to the addresses' nets. */
TEST_FIBER(the_originals_host_is_understood)
{
    static struct guest_route one[] = {
        { .destination = "0.0.0.0/0", .next_hop = "10.1.0.1", .source = "" },
        { .destination = "::/0", .next_hop = "::", .source = "" }, /* leads nowhere: none */
    };
    struct bridge_network n = nic();
    struct err err = ERR_INIT;
    AUTO_FREE char *path = NULL;

    begin();
    device(MAC);
    AUTO(nets_free) struct nets *nets = nets_new();
    n.name = "";
    n.mtu = 0;
    n.encap_overhead = 50;
    n.routes = one;
    n.n_routes = 2;
    n.n_neighbours = 0;
    ASSERT_OK(nets_add(ctx, nets, &n, &err), err); /* before any container */
    ASSERT_OK(nets_hold(ctx, nets, "pod1", &path, &err), err);
    AUTO_FREE char *out = in_ns(path, "ip addr; ip route; ip -6 route");
    ASSERT_HAS(out, "eth1@");
    ASSERT_HAS(out, "mtu 1450");
    ASSERT_HAS(out, "10.1.0.0/24 dev eth1 proto kernel scope link");
    ASSERT_HAS(out, "default via 10.1.0.1");
    ASSERT(!strstr(out, "default via ::"));
    n.id = "n2";
    n.n_ips = 0;
    ASSERT_FAIL(nets_add(ctx, nets, &n, &err), err, ERR_UNIMPLEMENTED);
    nets_release(nets, "pod1");
}

static void plug_later(void *arg)
{
    (void)arg;
    device(MAC);
}

TEST_FIBER(a_device_that_comes_late_is_waited_for)
{
    struct bridge_network n = nic();
    struct err err = ERR_INIT;
    struct fibers g;

    begin();
    AUTO(nets_free) struct nets *nets = nets_new();
    fibers_init(&g);
    fibers_go(&g, ctx->loop, plug_later, NULL, "plug");
    ASSERT_OK(nets_add(ctx, nets, &n, &err), err);
    ASSERT_OK(fibers_wait(ctx, &g, "plug", &err), err);
}

TEST_FIBER(a_device_that_never_appears_is_reported)
{
    struct bridge_network n = nic();
    struct err err = ERR_INIT;

    begin();
    AUTO(nets_free) struct nets *nets = nets_new();
    struct ctx limited = ctx_with_timeout(ctx, 3 * NS_PER_S); /* its namespace is made before */
    ASSERT_FAIL(nets_add(&limited, nets, &n, &err), err, ERR_DEADLINE);
    ASSERT_EQ(err.reason, REASON_INTERFACE_MISSING);
    ASSERT_MSG_HAS(err.msg, "no such network device");
}

TEST_FIBER(invalid_nics_are_refused_and_leave_nothing)
{
    static struct guest_ip bad_ip = { "10.1.0.2", 33 };
    static struct guest_route bad_route = { .destination = "10.0.0.0",
                                            .next_hop = "",
                                            .source = "" },
                              lost = { .destination = "192.0.2.0/24",
                                       .next_hop = "",
                                       .source = "203.0.113.9" };
    static struct bridge_neighbour bad_mac = { "10.0.0.1", "02:00" };
    struct bridge_network n;
    struct err err = ERR_INIT;
    AUTO_FREE char *path = NULL;

    begin();
    device(MAC);
    AUTO(nets_free) struct nets *nets = nets_new();
    n = nic();
    n.mac = "02-00-00-00-01";
    ASSERT_FAIL(nets_add(ctx, nets, &n, &err), err, ERR_INVALID);
    n.mac = LINK_GUEST_MAC; /* the link to the host belongs to no pod */
    ASSERT_FAIL(nets_add(ctx, nets, &n, &err), err, ERR_INVALID);
    n = nic();
    n.name = "a/b";
    ASSERT_FAIL(nets_add(ctx, nets, &n, &err), err, ERR_INVALID);
    n = nic();
    n.namespace_id = "../x";
    ASSERT_FAIL(nets_add(ctx, nets, &n, &err), err, ERR_INVALID);
    n = nic();
    n.ips = &bad_ip;
    n.n_ips = 1;
    ASSERT_FAIL(nets_add(ctx, nets, &n, &err), err, ERR_INVALID);
    n = nic();
    n.routes = &bad_route;
    n.n_routes = 1;
    ASSERT_FAIL(nets_add(ctx, nets, &n, &err), err, ERR_INVALID);
    n = nic();
    n.neighbours = &bad_mac;
    ASSERT_FAIL(nets_add(ctx, nets, &n, &err), err, ERR_INVALID);
    n = nic();
    n.n_routes = 1;
    n.routes = &lost; /* from an address that is not ours: the kernel says no */
    ASSERT_OK(nets_hold(ctx, nets, "pod1", &path, &err), err);
    ASSERT(nets_add(ctx, nets, &n, &err) < 0);
    ASSERT_HAS(err.msg, "192.0.2.0/24");
    AUTO_FREE char *out = in_ns(path, "ip link show eth0");
    ASSERT_HAS(out, "state DOWN");
    nets_release(nets, "pod1");
}

TEST_FIBER(a_port_is_reached_on_loopback_and_on_the_address)
{
    struct bridge_network n = nic();
    struct err err = ERR_INIT;
    AUTO_FREE char *path = NULL;
    int fd = -1;

    begin();
    device(MAC);
    AUTO(nets_free) struct nets *nets = nets_new();
    ASSERT_OK(nets_hold(ctx, nets, "pod1", &path, &err), err);
    ASSERT_OK(nets_add(ctx, nets, &n, &err), err);
    TEMPDIR(p);
    const char *ready = tempdir_path(&p, "ready");
    AUTO_FREE char *serve = str_format(
        "nsenter --net=%s timeout 20 python3 -c 'import socket\n"
        "a = [socket.create_server(x) for x in ((\"127.0.0.1\", 70), (\"10.1.0.2\", 71))]\n"
        "a.append(socket.create_server((\"::1\", 72), family=socket.AF_INET6))\n"
        "open(\"%s\", \"w\")\n"
        "for s in a: s.accept()' &",
        path, ready);
    ASSERT(system(serve) == 0);
    while (access(ready, F_OK) < 0)
        ASSERT_OK(fiber_sleep(ctx, 10 * NS_PER_MS, &err), err);
    for (int port = 70; port <= 72; port++) {
        ASSERT_OK(nets_connect(ctx, nets, "pod1", port == 72, (uint16_t)port, &fd, &err), err);
        fd_close(fd);
    }
    ASSERT_FAIL(nets_connect(ctx, nets, "pod1", false, 79, &fd, &err), err, ERR_UNAVAILABLE);
    ASSERT_HAS(err.msg, "refused");
    ASSERT_FAIL(nets_connect(ctx, nets, "nobody", false, 79, &fd, &err), err, ERR_NOT_FOUND);
    nets_release(nets, "pod1");
}
