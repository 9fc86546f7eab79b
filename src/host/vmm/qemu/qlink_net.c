#include "host/vmm/qemu/qlink_net.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/offload.h"
#include "host/jail/jail.h"
#include "proto/link.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define TAP_NAME "link0"
#define BACKLOG 128

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

static void parse_mac(const char *text, void *out)
{
    unsigned b[6] = { 0 };

    sscanf(text, "%x:%x:%x:%x:%x:%x", &b[0], &b[1], &b[2], &b[3], &b[4], &b[5]);
    for (int i = 0; i < 6; i++)
        ((uint8_t *)out)[i] = (uint8_t)b[i];
}

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
    /* It ends with its namespace, for which nobody waits. Else QEMU's last breath is to take it
     * down: 20 ms of the 30 that a killed one needs to be gone. */
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
    parse_mac(LINK_HOST_MAC, mac.ifr_hwaddr.sa_data);
    set_address(&addr.ifr_addr, LINK_HOST_ADDR, 0);
    set_address(&mask.ifr_netmask, "255.255.255.252", 0);
    set_address(&guest.arp_pa, LINK_GUEST_ADDR, 0);
    guest.arp_ha.sa_family = ARPHRD_ETHER;
    parse_mac(LINK_GUEST_MAC, guest.arp_ha.sa_data);
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

/* The thread ends with this job, and with it its hold on the namespace. */
static int make_in_thread(void *arg, struct err *err)
{
    struct qlink_net *net = arg;

    if (unshare(CLONE_NEWNET) < 0)
        return err_sys(err, errno, "make a network namespace for the link");
    for (size_t i = 0; i < ARRAY_LEN(settings); i++)
        (void)file_write(settings[i].path, settings[i].value, strlen(settings[i].value), 0);
    if (make_tap(&net->tap, err) < 0 || configure_tap(err) < 0 ||
        make_listener(&net->listener, err) < 0)
        return -1;
    return 0;
}

static void net_free(void *arg)
{
    struct qlink_net *net = arg;

    fd_close(net->tap);
    fd_close(net->listener);
    free(net);
}

int qlink_net_make(struct ctx *ctx, struct qlink_net *ret, struct err *err)
{
    struct qlink_net *net = mem_new(struct qlink_net);
    void *arg = net;

    net->tap = net->listener = -1;
    int r = offload_run(ctx, make_in_thread, &arg, net_free, "make the link", err);
    if (!arg)
        return -1;
    if (r < 0) {
        net_free(net);
        return -1;
    }
    *ret = *net;
    free(net);
    return 0;
}
