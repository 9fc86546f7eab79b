/* nic_linux.c - NICs of pods: waiting for the device, moving it to its namespace and configuring it
 * there. */
#include "base/clock.h"
#include "base/loop.h"
#include "base/offload.h"
#include "guest/net/nets_priv.h"

#include <fcntl.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <sys/socket.h>

#define APPEAR_NS (30 * NS_PER_S) /* from the host's hot-plug; usually a fifth of a second */
#define LOOPBACK 1                /* its index in every namespace */

/* --- waiting --- */

struct wanted {
    const uint8_t *mac;
    struct rtnl_iface *device;
    bool found;
};

static int look(void *arg, uint16_t type, const uint8_t *body, size_t len)
{
    struct wanted *w = arg;
    struct rtnl_iface l;

    if (type == RTM_NEWLINK && rtnl_read_iface(body, len, &l) == 0 && l.has_mac &&
        memcmp(l.mac, w->mac, sizeof(l.mac)) == 0) {
        *w->device = l;
        w->found = true;
    }
    return 0;
}

static int find_device(struct wanted *w, struct err *err)
{
    AUTO_FD int fd = nl_open(NETLINK_ROUTE, 0);
    struct nl_msg m;
    int r = fd;

    if (r >= 0) {
        rtnl_get_ifaces(&m);
        r = nl_ask(fd, &m, look, w);
    }
    /* Interrupted by a new device: its event wakes this fiber again. */
    return r < 0 && r != -EAGAIN ? err_sys(err, -r, "list network devices") : 0;
}

/* Discards the events: they only trigger another look at all devices. */
static void drain(int fd)
{
    char some[512];

    while (recv(fd, some, sizeof(some), MSG_DONTWAIT | MSG_TRUNC) >= 0 || errno == ENOBUFS)
        ;
}

int nic_await(struct ctx *ctx, const uint8_t mac[6], struct rtnl_iface *ret, struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, APPEAR_NS);
    struct wanted w = { .mac = mac, .device = ret };
    AUTO_FD int news = nl_open(NETLINK_ROUTE, RTMGRP_LINK); /* before the first look */

    if (news < 0)
        return err_sys(err, -news, "listen for network devices");
    for (;;) {
        if (find_device(&w, err) < 0)
            return -1;
        if (w.found)
            return 0;
        if (loop_wait_fd(&limited, news, POLLIN, "network device to appear", err) < 0)
            return err_wrap_because(err, REASON_INTERFACE_MISSING, "no such network device");
        drain(news);
    }
}

/* --- in the namespace, in a thread that ends with the work --- */

struct job {
    const char *name; /* of the device there */
    struct nic *nic;
    struct rtnl_iface device;
    int netns, fd, family;
};

static void job_drop(void *arg)
{
    struct job *j = arg;

    nic_free(j->nic);
    fd_close(j->netns);
    fd_close(j->fd);
}

/* With a copy of netns. What fn has made in j is the caller's if this succeeds. */
static int run(struct ctx *ctx, struct job *j, int netns, int (*fn)(void *arg, struct err *err),
               const char *why, struct err *err)
{
    j->netns = netns < 0 ? -1 : fcntl(netns, F_DUPFD_CLOEXEC, 0);
    j->fd = -1;
    if (OFFLOAD(ctx, fn, j, 1, job_drop, why, err) < 0)
        return -1;
    fd_close(j->netns);
    return 0;
}

static int enter(struct job *j, int *ret_rtnl, struct err *err)
{
    if (setns(j->netns, CLONE_NEWNET) < 0)
        return err_sys(err, errno, "enter a pod's network namespace");
    *ret_rtnl = nl_open(NETLINK_ROUTE, 0);
    return *ret_rtnl < 0 ? err_sys(err, -*ret_rtnl, "open netlink") : 0;
}

static int change_device(int rtnl, const struct rtnl_iface_change *c)
{
    struct nl_msg m;

    rtnl_set_iface(&m, c);
    return nl_ask(rtnl, &m, NULL, NULL);
}

/* Before the thread enters the namespace: the device is still in ours. */
static int move(struct job *j, struct err *err)
{
    const struct rtnl_iface_change c = { .index = j->device.index,
                                         .name = j->nic->name,
                                         .netns = j->netns };
    AUTO_FD int rtnl = nl_open(NETLINK_ROUTE, 0);
    int r = rtnl < 0 ? rtnl : change_device(rtnl, &c);

    return r < 0 ? err_sys(err, -r, "move %s to the pod as %s", j->device.name, j->nic->name) : 0;
}

/* The host's kernel has done duplicate address detection and made the link-local address. */
static void set_ipv6(const struct nic *n)
{
    static const char *const zero[] = { "accept_dad", "dad_transmits", "accept_ra" };

    for (size_t i = 0; i < ARRAY_LEN(zero); i++) {
        AUTO_FREE char *path = str_format("/proc/sys/net/ipv6/conf/%s/%s", n->name, zero[i]);
        (void)file_put(path, "0"); /* a kernel without IPv6 has no such file */
    }
    for (size_t i = 0; i < n->n_addresses; i++) {
        const struct rtnl_ip *ip = &n->addresses[i].ip;
        AUTO_FREE char *path = str_format("/proc/sys/net/ipv6/conf/%s/addr_gen_mode", n->name);

        if (ip->family == AF_INET6 && ip->bytes[0] == 0xfe && (ip->bytes[1] & 0xc0) == 0x80)
            (void)file_put(path, "1"); /* none; the same */
    }
}

static int set_sysctls(const struct nic *n, struct err *err)
{
    for (size_t i = 0; i < n->sysctls.n; i++) {
        const char *value = NULL;
        AUTO_FREE char *path = nic_sysctl_path(n->sysctls.v[i], n->name, &value);
        int r = file_put(path, value);

        if (r < 0)
            return err_sys(err, -r, "set sysctl %s of %s in the guest", n->sysctls.v[i], n->name);
    }
    return 0;
}

static int raise_device(struct job *j, int rtnl, int index, struct err *err)
{
    const struct nic *n = j->nic;
    uint32_t mtu = n->mtu ? n->mtu : j->device.mtu;

    if (n->encap_overhead >= mtu)
        return err_set(err, ERR_INVALID,
                       "invalid overhead of %u bytes: must be less than the MTU of %u bytes",
                       n->encap_overhead, mtu);
    const struct rtnl_iface_change c = {
        .index = index, .up = true, .mtu = mtu - n->encap_overhead, .netns = -1
    };
    int r = change_device(rtnl, &c);
    return r < 0 ? err_sys(err, -r, "bring up %s with an MTU of %u bytes", n->name, c.mtu) : 0;
}

static int add_addresses(const struct nic *n, int rtnl, int index, struct err *err)
{
    for (size_t i = 0; i < n->n_addresses; i++) {
        struct rtnl_address a = n->addresses[i];
        char text[RTNL_IP_TEXT];
        struct nl_msg m;

        a.index = index;
        rtnl_add_address(&m, &a);
        int r = nl_ask(rtnl, &m, NULL, NULL);
        rtnl_ip_text(&a.ip, text);
        if (r < 0 && r != -EEXIST) /* the kernel has made the link-local one itself */
            return err_sys(err, -r, "add address %s/%u to %s", text, a.prefix, n->name);
    }
    return 0;
}

/* Like the original: a next hop in no known subnet is taken to be on the link. */
static int ask_route(struct rtnl_route t, int rtnl)
{
    struct nl_msg m;

    rtnl_add_route(&m, &t);
    int r = nl_ask(rtnl, &m, NULL, NULL);
    if ((r != -ENETUNREACH && r != -EHOSTUNREACH) || !t.gateway.family)
        return r;
    t.flags |= RTNH_F_ONLINK;
    rtnl_add_route(&m, &t);
    return nl_ask(rtnl, &m, NULL, NULL);
}

static int ask_hops(const struct nic_route *first, int rtnl)
{
    struct rtnl_route t = first->r;
    struct nl_msg m;

    t.gateway = (struct rtnl_ip){ 0 };
    rtnl_add_route(&m, &t);
    size_t nest = nl_nest(&m, RTA_MULTIPATH);
    for (uint32_t i = 0; i < first->hops; i++) {
        t = first[i].r;
        t.oif = (int)if_nametoindex(first[i].dev);
        if (t.oif == 0)
            return -ENODEV;
        rtnl_put_hop(&m, &t);
    }
    nl_nest_end(&m, nest);
    return nl_ask(rtnl, &m, NULL, NULL);
}

static int add_routes(const struct nic *n, int rtnl, int index, struct err *err)
{
    for (size_t i = 0; i < n->n_routes; i += n->routes[i].hops ? n->routes[i].hops : 1) {
        struct rtnl_route t = n->routes[i].r;
        char to[RTNL_IP_TEXT], via[RTNL_IP_TEXT];

        t.oif = index;
        int r = n->routes[i].hops ? ask_hops(&n->routes[i], rtnl) : ask_route(t, rtnl);
        rtnl_ip_text(&t.destination, to);
        rtnl_ip_text(&t.gateway, via);
        if (r < 0 && r != -EEXIST)
            return err_sys(err, -r, "add route to %s/%u via %s on %s", to, t.prefix,
                           via[0] ? via : "the link", n->name);
    }
    return 0;
}

static int add_rules(const struct nic *n, int rtnl, struct err *err)
{
    for (size_t i = 0; i < n->n_rules; i++) {
        struct nl_msg m;

        rtnl_add_rule(&m, &n->rules[i]);
        int r = nl_ask(rtnl, &m, NULL, NULL);
        if (r < 0 && r != -EEXIST)
            return err_sys(err, -r, "add policy rule %u", n->rules[i].priority);
    }
    return 0;
}

static int add_neighbours(const struct nic *n, int rtnl, int index, struct err *err)
{
    for (size_t i = 0; i < n->n_neighbours; i++) {
        struct rtnl_neighbour b = n->neighbours[i];
        struct nl_msg m;

        b.index = index;
        rtnl_set_neighbour(&m, &b);
        int r = nl_ask(rtnl, &m, NULL, NULL);
        if (r < 0)
            return err_sys(err, -r, "add a neighbour on %s", n->name);
    }
    return 0;
}

static int move_in_thread(void *arg, struct err *err)
{
    struct job *j = arg;
    AUTO_FD int rtnl = -1;

    if (move(j, err) < 0 || enter(j, &rtnl, err) < 0)
        return -1;
    int index = (int)if_nametoindex(j->nic->name);
    if (index == 0)
        return err_because(err, REASON_INTERFACE_MISSING, ERR_UNAVAILABLE,
                           "NIC %s did not appear in the pod's network namespace", j->nic->name);
    set_ipv6(j->nic);
    if (set_sysctls(j->nic, err) < 0 || raise_device(j, rtnl, index, err) < 0 ||
        add_addresses(j->nic, rtnl, index, err) < 0 || add_routes(j->nic, rtnl, index, err) < 0 ||
        add_neighbours(j->nic, rtnl, index, err) < 0)
        return -1;
    return add_rules(j->nic, rtnl, err);
}

int nic_move(struct ctx *ctx, struct nic **nic, const struct rtnl_iface *device, int netns,
             struct err *err)
{
    struct job j = { .nic = TAKE_PTR(*nic), .device = *device };

    if (run(ctx, &j, netns, move_in_thread, "configure a NIC", err) < 0)
        return -1;
    *nic = j.nic;
    return 0;
}

static int lower_in_thread(void *arg, struct err *err)
{
    struct job *j = arg;
    AUTO_FD int rtnl = -1;

    if (enter(j, &rtnl, err) < 0)
        return -1;
    const struct rtnl_iface_change c = { .index = (int)if_nametoindex(j->name),
                                         .down = true,
                                         .netns = -1 };
    int r = c.index ? change_device(rtnl, &c) : 0;
    return r < 0 && r != -ENODEV ? err_sys(err, -r, "take %s down", j->name) : 0;
}

int nic_lower(struct ctx *ctx, const char *name, int netns, struct err *err)
{
    struct job j = { .name = name };

    return run(ctx, &j, netns, lower_in_thread, "take a NIC down", err);
}

/* --- namespaces --- */

static int make_in_thread(void *arg, struct err *err)
{
    const struct rtnl_iface_change up = { .index = LOOPBACK, .up = true, .netns = -1 };
    struct job *j = arg;

    if ((j->netns < 0 ? unshare(CLONE_NEWNET) : setns(j->netns, CLONE_NEWNET)) < 0)
        return err_sys(err, errno, "make a network namespace");
    AUTO_FD int rtnl = nl_open(NETLINK_ROUTE, 0);
    int r = rtnl < 0 ? rtnl : change_device(rtnl, &up);
    if (r < 0)
        return err_sys(err, -r, "bring up loopback");
    j->fd = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    return j->fd < 0 ? err_sys(err, errno, "open a network namespace") : 0;
}

int netns_make(struct ctx *ctx, int from, int *ret, struct err *err)
{
    struct job j = { 0 };

    if (run(ctx, &j, from, make_in_thread, "make a network namespace", err) < 0)
        return -1;
    *ret = j.fd;
    return 0;
}

static int socket_in_thread(void *arg, struct err *err)
{
    struct job *j = arg;

    if (setns(j->netns, CLONE_NEWNET) < 0)
        return err_sys(err, errno, "enter a pod's network namespace");
    j->fd = socket(j->family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    return j->fd < 0 ? err_sys(err, errno, "socket") : 0;
}

int netns_socket(struct ctx *ctx, int netns, int family, int *ret, struct err *err)
{
    struct job j = { .family = family };

    if (run(ctx, &j, netns, socket_in_thread, "socket in a pod", err) < 0)
        return -1;
    *ret = j.fd;
    return 0;
}
