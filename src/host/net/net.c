/* net.c - a pod's network namespace: opening it, working in it, a tap beside its interface, and one
 * listener for all its ports. */
#include "host/net/net_priv.h"

#include "base/clock.h"
#include "base/ctx.h"
#include "base/fd.h"
#include "base/loop.h"
#include "base/offload.h"
#include "base/waits.h"
#include "host/jail/jail.h"
#include "proto/rtnl.h"

#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_tun.h>
#include <linux/netlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LIMIT_NS (20 * NS_PER_S) /* nothing here takes long */
#define BACKLOG 64

/* --- opening --- */

int net_open(struct ctx *ctx, const char *path, int *ret_fd, uint64_t *ret_inode, struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, LIMIT_NS);
    AUTO_FD int fd = -1;
    struct stat st, own;

    if (jail_netns(&limited, path, &fd, err) < 0)
        return -1;
    if (fstat(fd, &st) < 0)
        return err_because(err, REASON_NETNS_MISSING, ERR_INVALID,
                           "%.256s is not a network namespace", path);
    if (stat("/proc/self/ns/net", &own) == 0 && own.st_ino == st.st_ino && own.st_dev == st.st_dev)
        return err_because(
            err, REASON_HOST_NAMESPACE, ERR_STATE,
            "%.256s is the host's network namespace, which a VM cannot share; give the "
            "pod one of its own (no hostNetwork, no --net-host)",
            path);
    *ret_fd = TAKE_FD(fd);
    *ret_inode = st.st_ino;
    return 0;
}

/* --- jobs --- */

/* The ingress queue of an interface; gone already is success. 0 or -errno. */
static int drop_queue(int rtnl, int index)
{
    struct nl_msg m;

    rtnl_delete_ingress(&m, index);
    int r = nl_ask(rtnl, &m, NULL, NULL);
    /* Of a queue that is not there the kernel says one of the first two, by its version. */
    return r == -EINVAL || r == -ENOENT || r == -ENODEV ? 0 : r;
}

/* Undoes what was made. */
static void drop(void *job)
{
    struct net_job *j = job;

    if (j->queue_is_ours)
        (void)drop_queue(j->rtnl, j->iface_index); /* it is on record as well */
    net_taps_close(&j->taps);
    fd_close(j->fd);
    fd_close(j->hook);
    fd_close(j->rtnl);
    fd_close(j->netns);
    net_config_free(j->config);
}

/* The thread ends with the job; no other thread is in its namespace. */
static int run_in_thread(void *job, struct err *err)
{
    struct net_job *j = job;

    if (setns(j->netns, CLONE_NEWNET) < 0)
        return err_sys(err, errno, "enter the pod's network namespace");
    j->rtnl = nl_open(NETLINK_ROUTE, 0);
    return j->rtnl < 0 ? err_sys(err, -j->rtnl, "open netlink") : j->fn(j, err);
}

int net_run(struct ctx *ctx, struct net_job *j, int netns,
            int (*fn)(struct net_job *j, struct err *err), const char *why, struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, LIMIT_NS);

    j->fn = fn;
    j->netns = fcntl(netns, F_DUPFD_CLOEXEC, 0);
    j->rtnl = j->fd = j->hook = -1;
    if (OFFLOAD(&limited, run_in_thread, j, 2, drop, why, err) < 0)
        return -1;
    fd_close(j->netns);
    fd_close(j->rtnl);
    return 0;
}

/* --- plugging: a tap beside the pod's interface, and all traffic of one to the other --- */

static void close_vhost(struct net_taps *t)
{
    for (unsigned i = 0; t->has_vhost && i < t->queues; i++)
        fd_close_later(t->vhost[i]); /* the last close frees a dead VM's memory */
    t->has_vhost = false;
}

void net_taps_close(struct net_taps *t)
{
    close_vhost(t);
    for (; t->queues > 0; t->queues--)
        fd_close(t->tap[t->queues - 1]);
}

/* Opened here, in the namespace: that is where the tap will be. A header before each frame lets the
 * VMM switch on what the guest can do itself: checksums, and segments that are joined. */
static int make_tap(struct net_job *j, struct err *err)
{
    unsigned n = j->queues == 0 ? 1 : j->queues > NET_MAX_QUEUES ? NET_MAX_QUEUES : j->queues;
    struct ifreq ifr = { .ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR };
    struct net_taps *t = &j->taps;

    if (n > 1)
        ifr.ifr_flags |= IFF_MULTI_QUEUE;
    snprintf(ifr.ifr_name, sizeof(ifr.ifr_name), "%s", j->tap);
    for (; t->queues < n; t->queues++) {
        AUTO_FD int fd = -1;

        if (jail_tun(&fd, err) < 0)
            return -1;
        if (ioctl(fd, TUNSETIFF, &ifr) < 0)
            return err_sys(err, errno, "make tap %s", j->tap);
        t->tap[t->queues] = TAKE_FD(fd);
    }
    return 0;
}

/* Without it the VMM passes the packets on itself. */
static void open_vhost(struct net_taps *t)
{
    for (unsigned i = 0; i < t->queues; i++)
        t->vhost[i] = -1;
    t->has_vhost = true;
    for (unsigned i = 0; i < t->queues && t->has_vhost; i++)
        if (jail_vhost_net(&t->vhost[i], &t->no_vhost) < 0)
            close_vhost(t);
}

/* The tap has no address of its own, of no family: it only passes on. */
static int raise_tap(struct net_job *j, int tap, struct err *err)
{
    const struct rtnl_iface_change c = { .index = tap, .up = true, .mtu = j->mtu, .netns = -1 };
    AUTO_FREE char *path = str_format("/proc/sys/net/ipv6/conf/%s/disable_ipv6", j->tap);
    struct nl_msg m;

    (void)file_write(path, "1", 1, 0); /* a kernel without IPv6 has no such file */
    rtnl_set_iface(&m, &c);
    int r = nl_ask(j->rtnl, &m, NULL, NULL);
    return r < 0 ? err_sys(err, -r, "bring up tap %s", j->tap) : 0;
}

static int add_queue(struct net_job *j, int index, const char *name, struct err *err)
{
    struct nl_msg m;

    rtnl_add_ingress(&m, index);
    int r = nl_ask(j->rtnl, &m, NULL, NULL);
    if (r == -EEXIST)
        return err_because(
            err, REASON_INTERFACE_IN_USE, ERR_STATE,
            "interface %s in the pod's network namespace has an ingress qdisc already", name);
    if (r == -ENOENT || r == -EOPNOTSUPP)
        return err_because(err, REASON_MODULE_MISSING, ERR_STATE,
                           "the kernel lacks tc's ingress qdisc: modprobe sch_ingress");
    return r < 0 ? err_sys(err, -r, "add an ingress qdisc to %s", name) : 0;
}

static int redirect(struct net_job *j, int from, int to, struct err *err)
{
    struct nl_msg m;
    int r = 0;

    for (int i = 0; i < 2 && from == j->iface_index && j->vlans; i++) {
        rtnl_leave_vlan(&m, from, i == 0 ? ETH_P_8021Q : ETH_P_8021AD);
        r = r < 0 ? r : nl_ask(j->rtnl, &m, NULL, NULL);
    }
    rtnl_redirect(&m, from, to);
    r = r < 0 ? r : nl_ask(j->rtnl, &m, NULL, NULL);
    if (r == -ENOENT || r == -EOPNOTSUPP)
        return err_because(err, REASON_MODULE_MISSING, ERR_STATE,
                           "the kernel lacks tc's u32 filter or mirred action: modprobe cls_u32 "
                           "act_mirred");
    return r < 0 ? err_sys(err, -r, "redirect traffic of %s", j->iface) : 0;
}

static int plug_in_thread(struct net_job *j, struct err *err)
{
    j->iface_index = (int)if_nametoindex(j->iface);
    if (j->iface_index == 0)
        return err_because(err, REASON_INTERFACE_MISSING, ERR_UNAVAILABLE,
                           "interface %s has left the pod's network namespace", j->iface);
    if (make_tap(j, err) < 0)
        return -1;
    if (j->vhost)
        open_vhost(&j->taps);
    int tap = (int)if_nametoindex(j->tap);
    if (tap == 0)
        return err_sys(err, errno, "find tap %s", j->tap);
    if (raise_tap(j, tap, err) < 0 || add_queue(j, tap, j->tap, err) < 0 ||
        add_queue(j, j->iface_index, j->iface, err) < 0)
        return -1;
    j->queue_is_ours = true;
    /* Towards the pod last: what comes before the VM listens would only be lost. */
    if (redirect(j, tap, j->iface_index, err) < 0)
        return -1;
    return redirect(j, j->iface_index, tap, err);
}

int net_plug(struct ctx *ctx, const struct net_plug *p, struct net_taps *ret, struct err *err)
{
    struct net_job j = { .iface = p->iface,
                         .tap = p->tap,
                         .mtu = p->mtu,
                         .vlans = p->vlans,
                         .vhost = p->vhost,
                         .queues = p->queues };

    if (net_run(ctx, &j, p->netns, plug_in_thread, "join the pod's interface with a tap", err) < 0)
        return -1;
    *ret = j.taps;
    return 0;
}

/* A tap that still exists has an open descriptor and ends with the last one. Deleting it under QEMU
 * would end the whole VM when the guest resets its NIC (tried), so it is only silenced. That is the
 * first step: without the qdiscs, the guest's packets would reach the pod's own IP stack. */
static int unplug_in_thread(struct net_job *j, struct err *err)
{
    int index = (int)if_nametoindex(j->iface), tap = (int)if_nametoindex(j->tap), r = 0;
    struct nl_msg m;

    if (tap > 0) {
        const struct rtnl_iface_change down = { .index = tap, .down = true, .netns = -1 };
        rtnl_set_iface(&m, &down);
        r = nl_ask(j->rtnl, &m, NULL, NULL);
    }
    if (r < 0 && r != -ENODEV)
        return err_sys(err, -r, "take tap %s down", j->tap);
    r = index == 0 ? 0 : drop_queue(j->rtnl, index);
    if (r < 0)
        return err_sys(err, -r, "remove the ingress qdisc of %s", j->iface);
    r = tap == 0 ? 0 : drop_queue(j->rtnl, tap);
    return r < 0 ? err_sys(err, -r, "remove the ingress qdisc of tap %s", j->tap) : 0;
}

int net_unplug(struct ctx *ctx, int netns, const char *iface, const char *tap, struct err *err)
{
    struct net_job j = { .iface = iface, .tap = tap };

    return net_run(ctx, &j, netns, unplug_in_thread, "take the pod's tap away", err);
}

/* --- forwarding: one listener for every TCP port of a namespace (docs/decisions/0012) ---
 *
 * A BPF program of type sk_lookup is asked by the kernel which socket a connection is for that
 * comes to an address of the namespace; it answers "this one", whatever the port. Program, map and
 * attachment live by a descriptor of ours: nothing is on record, and nothing can stay. */

static int bpf(enum bpf_cmd cmd, union bpf_attr *attr)
{
    int fd = (int)syscall(SYS_bpf, cmd, attr, sizeof(*attr)); /* CLOEXEC from birth */

    return fd < 0 ? -errno : fd;
}

/* A map with the one socket in it. fd or -errno. */
static int make_map(int listener)
{
    union bpf_attr make = {
        .map_type = BPF_MAP_TYPE_SOCKMAP, .key_size = 4, .value_size = 8, .max_entries = 1
    };
    AUTO_FD int map = bpf(BPF_MAP_CREATE, &make);
    uint32_t key = 0;
    uint64_t value = (uint64_t)listener;
    union bpf_attr put = { .map_fd = (uint32_t)map,
                           .key = (uint64_t)(uintptr_t)&key,
                           .value = (uint64_t)(uintptr_t)&value };

    if (map < 0)
        return map;
    int r = bpf(BPF_MAP_UPDATE_ELEM, &put);
    return r < 0 ? r : TAKE_FD(map);
}

#define INSN(c, d, s, o, i)                                                                        \
    {                                                                                              \
        .code = (c), .dst_reg = (d), .src_reg = (s), .off = (o), .imm = (i)                        \
    }
#define PASS_AT 17 /* the instruction "return SK_PASS" */

/* fd or -errno. */
static int make_program(int map)
{
    const struct bpf_insn code[] = {
        /* 0 */ INSN(BPF_ALU64 | BPF_MOV | BPF_X, 6, 1, 0, 0),
        /* 1: of TCP only */
        INSN(BPF_LDX | BPF_MEM | BPF_W, 2, 6, offsetof(struct bpf_sk_lookup, protocol), 0),
        /* 2 */ INSN(BPF_JMP | BPF_JNE | BPF_K, 2, 0, PASS_AT - 3, IPPROTO_TCP),
        /* 3: the socket at place 0 of the map */
        INSN(BPF_ST | BPF_MEM | BPF_W, 10, 0, -4, 0),
        /* 4, 5 */ INSN(BPF_LD | BPF_IMM | BPF_DW, 1, BPF_PSEUDO_MAP_FD, 0, map),
        INSN(0, 0, 0, 0, 0),
        /* 6 */ INSN(BPF_ALU64 | BPF_MOV | BPF_X, 2, 10, 0, 0),
        /* 7 */ INSN(BPF_ALU64 | BPF_ADD | BPF_K, 2, 0, 0, -4),
        /* 8 */ INSN(BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_map_lookup_elem),
        /* 9 */ INSN(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, PASS_AT - 10, 0),
        /* 10: is the one */ INSN(BPF_ALU64 | BPF_MOV | BPF_X, 7, 0, 0, 0),
        /* 11 */ INSN(BPF_ALU64 | BPF_MOV | BPF_X, 1, 6, 0, 0),
        /* 12 */ INSN(BPF_ALU64 | BPF_MOV | BPF_X, 2, 7, 0, 0),
        /* 13 */ INSN(BPF_ALU64 | BPF_MOV | BPF_K, 3, 0, 0, 0),
        /* 14 */ INSN(BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_sk_assign),
        /* 15 */ INSN(BPF_ALU64 | BPF_MOV | BPF_X, 1, 7, 0, 0),
        INSN(BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_sk_release),
        /* 17: let it come */ INSN(BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, SK_PASS),
        INSN(BPF_JMP | BPF_EXIT, 0, 0, 0, 0),
    };
    union bpf_attr load = { .prog_type = BPF_PROG_TYPE_SK_LOOKUP,
                            .expected_attach_type = BPF_SK_LOOKUP,
                            .insn_cnt = ARRAY_LEN(code),
                            .insns = (uint64_t)(uintptr_t)code,
                            .license = (uint64_t)(uintptr_t) "Apache-2.0" };

    return bpf(BPF_PROG_LOAD, &load);
}

/* For connections of both families, where there are two. fd or -errno. */
static int make_listener(void)
{
    const struct sockaddr_in6 v6 = { .sin6_family = AF_INET6 };
    const struct sockaddr_in v4 = { .sin_family = AF_INET };
    AUTO_FD int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool six = fd >= 0;
    int off = 0;

    if (!six)
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || (six && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off)) < 0))
        return -errno;
    if (bind(fd, six ? (const struct sockaddr *)&v6 : (const struct sockaddr *)&v4,
             six ? sizeof(v6) : sizeof(v4)) < 0 ||
        listen(fd, BACKLOG) < 0)
        return -errno;
    return TAKE_FD(fd);
}

static int forward_in_thread(struct net_job *j, struct err *err)
{
    j->fd = make_listener();
    if (j->fd < 0)
        return err_sys(err, -j->fd, "listen in the pod's network namespace");
    AUTO_FD int map = make_map(j->fd), program = map < 0 ? map : make_program(map);
    union bpf_attr attach = { .link_create = { .prog_fd = (uint32_t)program,
                                               .target_fd = (uint32_t)j->netns,
                                               .attach_type = BPF_SK_LOOKUP } };

    j->hook = program < 0 ? program : bpf(BPF_LINK_CREATE, &attach);
    if (j->hook < 0)
        return err_sys(err, -j->hook, "attach a BPF program (sk_lookup, Linux 5.9)");
    return 0;
}

int net_forward_open(struct ctx *ctx, int netns, int *ret_listener, int *ret_hook, struct err *err)
{
    struct net_job j = { 0 };

    if (net_run(ctx, &j, netns, forward_in_thread, "listen for the pod's ports", err) < 0)
        return -1;
    *ret_listener = j.fd;
    *ret_hook = j.hook;
    return 0;
}

/* What the client dialled is this end's own address. */
static int dialled(int fd, bool *ret_ipv6, uint16_t *ret_port)
{
    struct sockaddr_storage ss = { 0 };
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&ss;

    if (getsockname(fd, (struct sockaddr *)&ss, &(socklen_t){ sizeof(ss) }) < 0)
        return -errno;
    *ret_ipv6 = ss.ss_family == AF_INET6 && !IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr);
    *ret_port = ntohs(v6->sin6_port); /* at the same place in both */
    return 0;
}

int net_forward_accept(struct ctx *ctx, int listener, int *ret_fd, bool *ret_ipv6,
                       uint16_t *ret_port, struct err *err)
{
    if (loop_io(ctx, WAIT_PORTS, err) < 0)
        return -1;
    for (;;) {
        AUTO_FD int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (fd >= 0 && dialled(fd, ret_ipv6, ret_port) == 0) {
            *ret_fd = TAKE_FD(fd);
            return 0;
        }
        if (fd < 0 && errno != EAGAIN && errno != ECONNABORTED && errno != EINTR)
            return err_sys(err, errno, "accept a connection to the pod's ports");
        if (fd < 0 && errno == EAGAIN && loop_wait_fd(ctx, listener, POLLIN, WAIT_PORTS, err) < 0)
            return -1;
    }
}
