#include "base/clock.h"
#include "base/ctx.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/offload.h"
#include "base/stream.h"
#include "base/waits.h"
#include "host/jail/jail.h"
#include "host/vmm/qemu/qlink_priv.h"
#include "proto/link.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_tun.h>
#include <linux/vhost.h>
#include <linux/vm_sockets.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <netinet/ether.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#define TAP_NAME "link0"
#define BACKLOG 128
#define VSOCK_BACKLOG 4096 /* beyond it a vsock connection is refused, not repeated */
#define CID_FIRST 3        /* those below have a meaning */
#define CID_TRIES 1000
#define DRAIN_NS NS_PER_S
#define DRAIN_LOOK_NS (10 * NS_PER_MS)

struct dialled {
    struct qlink *link;
    struct stream *stream;
};

/* --- connections that were given away --- */

static bool cookie_of(int fd, uint64_t *ret)
{
    socklen_t len = sizeof(*ret);

    return getsockopt(fd, SOL_SOCKET, SO_COOKIE, ret, &len) == 0;
}

static bool is_same(const struct qlink_given *g)
{
    uint64_t cookie;

    return cookie_of(g->fd, &cookie) && cookie == g->cookie;
}

static void remember(struct qlink *l, int fd)
{
    uint64_t cookie;

    if (!cookie_of(fd, &cookie))
        return;
    if (l->n_given == l->cap_given) { /* forget those that are over before growing */
        size_t n = 0;
        for (size_t i = 0; i < l->n_given; i++)
            if (is_same(&l->given[i]))
                l->given[n++] = l->given[i];
        l->n_given = n;
    }
    l->given = mem_grow(l->given, l->n_given, &l->cap_given, sizeof(*l->given));
    l->given[l->n_given++] = (struct qlink_given){ fd, cookie };
}

static bool has_data(int fd)
{
    char byte;

    return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

/* The other end is gone and has closed nothing: no packet will ever wake the readers. What has
 * arrived stays readable; over vsock a shutdown would throw it away, so those with data stay for
 * now. */
static void end_given(struct qlink *l, bool all)
{
    size_t n = 0;

    for (size_t i = 0; i < l->n_given; i++) {
        if (!is_same(&l->given[i]))
            continue;
        if (!all && has_data(l->given[i].fd))
            l->given[n++] = l->given[i];
        else
            (void)shutdown(l->given[i].fd, SHUT_RDWR); /* not connected any more: fine */
    }
    l->n_given = n;
}

/* The last close frees all memory of the VM, since vhost holds the address space of a QEMU that has
 * exited: not here. Any VM may have the CID afterwards. */
static void close_device(struct qlink *l)
{
    fd_close_later(TAKE_FD(l->device));
    l->cid = 0;
}

/* The device stays open meanwhile: without it the kernel resets the connections itself. */
static void drain(void *arg)
{
    struct qlink *l = arg;
    struct ctx ctx = ctx_limited(l->ctx.loop, DRAIN_NS);
    struct err ignored = ERR_INIT;

    while (l->n_given > 0 && fiber_sleep(&ctx, DRAIN_LOOK_NS, &ignored) == 0)
        end_given(l, false);
    end_given(l, true);
    close_device(l);
}

/* --- who may connect --- */

static void refuse(struct qlink *l, struct stream *s, const char *why, uint32_t port)
{
    if (!l->closed && log_rate_ok(&l->rate, loop_now(l->ctx.loop)))
        log_warn(&l->ctx, "connection from the guest refused", F_STR("why", why),
                 F_U("port", port));
    stream_free(s);
}

static struct vmm_listener *find(struct qlink *l, uint32_t port)
{
    LIST_FOR (struct vmm_listener, v, &l->listeners, node)
        if (v->port == port)
            return v;
    return NULL;
}

static void admit(struct qlink *l, struct stream *s, const struct link_preface *p)
{
    struct vmm_listener *v = find(l, p->port);
    const char *why = l->closed
                          ? l->why /* since its last byte: too late to be ended with the others */
                      : !link_token_equal(p->token, l->token) ? "wrong token"
                      : !v                                    ? "port is not open"
                      : v->stream                             ? "port is taken"
                                                              : NULL;

    if (why) {
        refuse(l, s, why, p->port);
        return;
    }
    v->stream = s;
    remember(l, s->fd);
    waitq_wake_all(&v->q);
    if (l->o.on_dial)
        l->o.on_dial(l->o.arg, p->port);
}

static void hear_preface(void *arg)
{
    struct dialled *d = arg;
    struct qlink *l = d->link;
    struct stream *s = d->stream;
    struct ctx ctx =
        ctx_with_timeout(&l->ctx, l->o.preface_ns ? l->o.preface_ns : QLINK_PREFACE_NS);
    struct err err = ERR_INIT;
    struct link_preface p;
    uint8_t raw[LINK_PREFACE_BYTES];

    free(d);
    int r = stream_read_full(&ctx, s, raw, sizeof(raw), &err);
    if (r < 0)
        refuse(l, s, err.code == ERR_DEADLINE ? "no preface in time" : "ended in its preface", 0);
    else if (link_preface_decode(raw, &p) < 0)
        refuse(l, s, "no preface of ours", 0);
    else
        admit(l, s, &p);
    l->unsaid--;
    waitq_wake_one(&l->room);
}

static void hear(struct qlink *l, struct stream *s)
{
    struct dialled *d = mem_new(struct dialled);

    *d = (struct dialled){ l, s };
    l->unsaid++;
    fibers_go(&l->fibers, l->ctx.loop, hear_preface, d, "link preface");
}

/* 0: wait for the next; -1: the listener is of no use any more. */
static int accept_one(struct qlink *l, struct err *err)
{
    struct sockaddr_vm from = { 0 };
    socklen_t len = sizeof(from);
    int fd = -1;

    if (loop_io(&l->ctx, WAIT_LINK, err) < 0)
        return -1;
    errno = ENOMEM;
    if (fiber_admit(l->ctx.loop, err) == 0)
        fd = accept4(l->listener, (struct sockaddr *)&from, &len, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
        struct stream *s = stream_from_fd(l->ctx.loop, fd);
        if (l->o.vsock && from.svm_cid != l->cid) {
            refuse(l, s, "from another CID", 0); /* our own guest does not wait for its sake */
            return 0;
        }
        hear(l, s);
        uint64_t pause = bucket_take(&l->dials, 1, loop_now(l->ctx.loop));
        return pause > 0 ? fiber_sleep(&l->ctx, pause, err) : 0;
    }
    if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED || errno == EPROTO)
        return 0;
    err_sys(err, errno, "accept on the link");
    if (err->sys != EMFILE && err->sys != ENFILE && err->sys != ENOBUFS && err->sys != ENOMEM)
        return -1;
    /* The connection stays in the queue: without a pause this would spin. */
    if (log_rate_ok(&l->rate, loop_now(l->ctx.loop)))
        log_warn(&l->ctx, "link: cannot accept a connection; retrying", F_ERR(err));
    return fiber_sleep(&l->ctx, 100 * NS_PER_MS, err);
}

static void accept_loop(void *arg)
{
    struct qlink *l = arg;
    struct err err = ERR_INIT;

    for (;;) {
        if (l->unsaid >= QLINK_UNSAID_MAX) {
            if (waitq_wait(&l->ctx, &l->room, "link: prefaces", &err) < 0)
                break;
            continue;
        }
        if (loop_wait_fd(&l->ctx, l->listener, POLLIN, WAIT_LINK, &err) < 0 ||
            accept_one(l, &err) < 0)
            break;
    }
    if (!l->closed)
        log_error(&l->ctx, "link: no longer accepting connections", F_ERR(&err));
}

/* --- ports --- */

/* True if it was, and no longer. */
static bool take_left_open(struct qlink *l, uint32_t port)
{
    for (size_t i = 0; i < l->n_left_open; i++) {
        if (l->left_open[i] != port)
            continue;
        l->left_open[i] = l->left_open[--l->n_left_open];
        return true;
    }
    return false;
}

static int use_port(struct qlink *l, uint32_t port, struct err *err)
{
    struct qlink_range *before = NULL;

    for (size_t i = 0; i < l->n_used; i++) {
        struct qlink_range *r = &l->used[i];
        if (port >= r->first && port <= r->last)
            return err_set(err, ERR_EXISTS, "guest port %u was opened before", port);
        if (port > 0 && r->last == port - 1)
            before = r;
    }
    if (before) {
        before->last = port;
        return 0;
    }
    l->used = mem_grow(l->used, l->n_used, &l->cap_used, sizeof(*l->used));
    l->used[l->n_used++] = (struct qlink_range){ port, port };
    return 0;
}

int qlink_listen(struct qlink *l, uint32_t port, struct vmm_listener **ret, struct err *err)
{
    if (l->closed)
        return err_set(err, ERR_UNAVAILABLE, "guest port %u: %s", port, l->why);
    if (!take_left_open(l, port) && use_port(l, port, err) < 0)
        return -1;
    struct vmm_listener *v = mem_new(struct vmm_listener);
    v->link = l;
    v->port = port;
    waitq_init(&v->q);
    list_append(&l->listeners, &v->node);
    *ret = v;
    return 0;
}

void qlink_unlisten(struct vmm_listener *v)
{
    if (!v)
        return;
    list_remove(&v->node);
    stream_free(v->stream);
    free(v);
}

int qlink_accept(struct ctx *ctx, struct vmm_listener *v, struct stream **ret, struct err *err)
{
    int r = 0;

    while (r == 0 && !v->stream && v->link && !v->link->closed)
        r = waitq_wait(ctx, &v->q, WAIT_GUEST_DIAL, err);
    if (v->stream) {
        *ret = TAKE_PTR(v->stream);
        r = 0;
    } else if (r == 0) {
        r = err_set(err, ERR_UNAVAILABLE, "guest port %u: %s", v->port,
                    v->link ? v->link->why : "the VM is gone");
    } else {
        err_wrap(err, "guest port %u", v->port);
    }
    qlink_unlisten(v);
    return r;
}

/* --- the network namespace --- */

/* In the new namespace; best effort, since the link works without them. */
static const struct {
    const char *path, *value;
} settings[] = {
    /* A VM stopped for long must find its connections again. */
    { "/proc/sys/net/ipv4/tcp_retries2", "255" },
    /* Inherited from the host; nothing is to be forwarded here. */
    { "/proc/sys/net/ipv4/ip_forward", "0" },
    /* No address but the one that is set. */
    { "/proc/sys/net/ipv6/conf/all/disable_ipv6", "1" },
    { "/proc/sys/net/ipv6/conf/default/disable_ipv6", "1" },
};

static void set_address(struct sockaddr *sa, const char *text, uint16_t port)
{
    struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = htons(port) };

    inet_pton(AF_INET, text, &in.sin_addr); /* a constant of ours */
    memcpy(sa, &in, sizeof(in));
}

static int make_tap(int *ret, struct err *err)
{
    struct ifreq ifr = { .ifr_name = TAP_NAME, .ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR };
    AUTO_FD int tap = -1;

    if (jail_tun(&tap, err) < 0)
        return -1;
    if (ioctl(tap, TUNSETIFF, &ifr) < 0)
        return err_sys(err, errno, "make the link's tap");
    /* The tap then ends with its namespace, for which the shim does not wait. Otherwise QEMU's exit
     * takes it down, which is 20 ms of the 30 that a killed QEMU needs to be gone. */
    if (ioctl(tap, TUNSETPERSIST, 1) < 0)
        return err_sys(err, errno, "let the link's tap stay without QEMU");
    *ret = TAKE_FD(tap);
    return 0;
}

static int configure_tap(struct err *err)
{
    AUTO_FD int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct ifreq mac = { .ifr_name = TAP_NAME, .ifr_hwaddr.sa_family = ARPHRD_ETHER },
                 addr = { .ifr_name = TAP_NAME }, mask = { .ifr_name = TAP_NAME },
                 up = { .ifr_name = TAP_NAME, .ifr_flags = IFF_UP };
    struct arpreq guest = { .arp_flags = ATF_PERM | ATF_COM, .arp_dev = TAP_NAME };

    if (fd < 0)
        return err_sys(err, errno, "socket");
    ether_aton_r(LINK_HOST_MAC, (struct ether_addr *)mac.ifr_hwaddr.sa_data);
    set_address(&addr.ifr_addr, LINK_HOST_ADDR, 0);
    set_address(&mask.ifr_netmask, "255.255.255.252", 0);
    set_address(&guest.arp_pa, LINK_GUEST_ADDR, 0);
    guest.arp_ha.sa_family = ARPHRD_ETHER;
    ether_aton_r(LINK_GUEST_MAC, (struct ether_addr *)guest.arp_ha.sa_data);
    if (ioctl(fd, SIOCSIFHWADDR, &mac) < 0 || ioctl(fd, SIOCSIFADDR, &addr) < 0 ||
        ioctl(fd, SIOCSIFNETMASK, &mask) < 0 || ioctl(fd, SIOCSIFFLAGS, &up) < 0)
        return err_sys(err, errno, "set the address of the link's tap");
    /* Known beforehand: the first packet need not ask, and the guest cannot answer wrongly. */
    if (ioctl(fd, SIOCSARP, &guest) < 0)
        return err_sys(err, errno, "set the guest's hardware address on the link");
    return 0;
}

static int make_listener(int *ret, struct err *err)
{
    AUTO_FD int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct sockaddr sa;
    int on = 1;

    if (fd < 0)
        return err_sys(err, errno, "socket");
    set_address(&sa, LINK_HOST_ADDR, LINK_TCP_PORT);
    /* Accepted connections inherit it. */
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) < 0)
        return err_sys(err, errno, "TCP_NODELAY");
    if (bind(fd, &sa, sizeof(struct sockaddr_in)) < 0 || listen(fd, BACKLOG) < 0)
        return err_sys(err, errno, "listen on the link");
    *ret = TAKE_FD(fd);
    return 0;
}

struct net {
    int device, listener; /* the listener does not block */
    uint32_t cid, port;
};

/* The thread ends with this job, and with it its hold on the namespace. */
static int make_net(void *job, struct err *err)
{
    struct net *net = job;

    if (unshare(CLONE_NEWNET) < 0)
        return err_sys(err, errno, "make a network namespace for the link");
    for (size_t i = 0; i < ARRAY_LEN(settings); i++)
        (void)file_put(settings[i].path, settings[i].value);
    if (make_tap(&net->device, err) < 0 || configure_tap(err) < 0)
        return -1;
    return make_listener(&net->listener, err);
}

/* The kernel assigns the CID to this device. It refuses a CID that any VM of this host has, also
 * VMs of other programs. QEMU sets the same CID again. */
static int claim_cid(int device, uint32_t first, uint32_t *ret, struct err *err)
{
    for (uint32_t i = 0; i < CID_TRIES; i++) {
        uint64_t cid = CID_FIRST + (first + i) % (VMADDR_CID_ANY - CID_FIRST);

        if (ioctl(device, VHOST_VSOCK_SET_GUEST_CID, &cid) == 0) {
            *ret = (uint32_t)cid;
            return 0;
        }
        if (errno != EADDRINUSE)
            break;
    }
    return err_sys(err, errno, "take a vsock CID");
}

static int open_vsock(void *job, struct err *err)
{
    struct net *net = job;

    if (jail_vsock(&net->device, err) < 0)
        return err_wrap(err, "link = vsock");
    return claim_cid(net->device, net->cid, &net->cid, err);
}

/* One port for each VM, whichever is free: those of the guest protocol would be the same for all
 * VMs of the host. */
static int listen_vsock(struct net *net, struct err *err)
{
    struct sockaddr_vm at = { .svm_family = AF_VSOCK,
                              .svm_cid = VMADDR_CID_ANY,
                              .svm_port = VMADDR_PORT_ANY };
    socklen_t len = sizeof(at);
    AUTO_FD int fd = socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return err_sys(err, errno, "link = vsock: the kernel has no vsock sockets");
    if (bind(fd, (struct sockaddr *)&at, len) < 0 || listen(fd, VSOCK_BACKLOG) < 0 ||
        getsockname(fd, (struct sockaddr *)&at, &len) < 0)
        return err_sys(err, errno, "listen on vsock");
    net->port = at.svm_port;
    net->listener = TAKE_FD(fd);
    return 0;
}

static void net_close(void *job)
{
    struct net *net = job;

    fd_close(net->device);
    fd_close(net->listener);
}

/* --- life --- */

struct qlink *qlink_make(const struct qlink_opts *opts)
{
    struct qlink *l = mem_new(struct qlink);

    *l = (struct qlink){ .ctx = ctx_with_cancel(opts->life, &l->cancel),
                         .o = *opts,
                         .device = -1,
                         .listener = -1,
                         .rate.burst = 5,
                         .dials = { .burst = QLINK_DIALS_BURST, .per_s = QLINK_DIALS_PER_S } };
    cancel_init(&l->cancel, NULL);
    fibers_init(&l->fibers);
    waitq_init(&l->room);
    list_init(&l->listeners);
    return l;
}

void qlink_run(struct qlink *l)
{
    fibers_go(&l->fibers, l->ctx.loop, accept_loop, l, FIBER_LINK);
}

int qlink_new(struct ctx *ctx, const struct qlink_opts *opts, struct qlink **ret, struct err *err)
{
    struct net net = { .device = -1, .listener = -1 };

    if ((opts->vsock ? listen_vsock(&net, err)
                     : OFFLOAD(ctx, make_net, &net, 0, net_close, "make the link", err)) < 0)
        return -1;
    struct qlink *l = qlink_make(opts);
    l->device = net.device;
    l->listener = net.listener;
    l->port = net.port;
    memcpy(l->token, opts->token, sizeof(l->token));
    qlink_run(l);
    *ret = l;
    return 0;
}

int qlink_arm(struct ctx *ctx, struct qlink *l, struct err *err)
{
    struct net net = { .device = -1, .listener = -1 };

    if (!l->o.vsock)
        return 0;
    close_device(l);
    loop_rand(ctx->loop, &net.cid, sizeof(net.cid)); /* where the search begins */
    if (OFFLOAD(ctx, open_vsock, &net, 0, net_close, "open the vsock device", err) < 0)
        return -1;
    l->device = net.device;
    l->cid = net.cid;
    return 0;
}

int qlink_device(const struct qlink *l)
{
    return l->device;
}

void qlink_started(struct qlink *l)
{
    if (!l->o.vsock)
        fd_close(TAKE_FD(l->device));
}

uint32_t qlink_cid(const struct qlink *l)
{
    return l->cid;
}

uint32_t qlink_port(const struct qlink *l)
{
    return l->port;
}

void qlink_close(struct qlink *l, const char *why)
{
    if (!l || l->closed)
        return;
    l->closed = true;
    l->why = why;
    cancel_fire(&l->cancel, ERR_UNAVAILABLE, why);
    LIST_EACH (&l->listeners, n)
        waitq_wake_all(&LIST_ENTRY(n, struct vmm_listener, node)->q);
    end_given(l, !l->o.vsock);
    if (l->o.vsock)
        fibers_go(&l->fibers, l->ctx.loop, drain, l, "link drain");
}

int qlink_join(struct ctx *ctx, struct qlink *l, struct err *err)
{
    return fibers_wait(ctx, &l->fibers, "the link's fibers", err);
}

void qlink_free(struct qlink *l)
{
    if (!l)
        return;
    LIST_FOR (struct vmm_listener, v, &l->listeners, node) {
        v->link = NULL;
        list_remove(&v->node);
    }
    cancel_release(&l->cancel);
    close_device(l);
    fd_close(l->listener);
    mem_wipe(l->token, sizeof(l->token));
    free(l->used);
    free(l->left_open);
    free(l->given);
    free(l);
}
