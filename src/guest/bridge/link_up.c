/* link_up.c - the link's network interface, by ioctl: there is one, its addresses are fixed. */
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/str.h"
#include "guest/bridge/link.h"
#include "proto/link.h"
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <netinet/ether.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#define INTERFACE_NS (5 * NS_PER_S)
#define LOOK_NS (20 * NS_PER_MS)
#define SYSFS_MAX 4096 /* what sysfs says is the size of each of its files */

/* True with its name if an interface has the link's MAC. */
static bool find_interface(char ret_name[IFNAMSIZ])
{
    AUTO(closedir) DIR *dir = opendir("/sys/class/net");
    bool found = false;

    for (struct dirent *e; dir && !found && (e = readdir(dir));) {
        AUTO_FREE char *text = file_text(SYSFS_MAX, "/sys/class/net/%s/address", e->d_name);

        found = str_eq(text, LINK_GUEST_MAC "\n") && strlen(e->d_name) < IFNAMSIZ;
        if (found)
            strcpy(ret_name, e->d_name);
    }
    return found;
}

static int await_interface(struct ctx *ctx, char ret_name[IFNAMSIZ], struct err *err)
{
    struct ctx bounded = ctx_with_timeout(ctx, INTERFACE_NS);

    while (!find_interface(ret_name))
        if (fiber_sleep(&bounded, LOOK_NS, err) < 0)
            return err_set(err, ERR_NOT_FOUND, "no network interface with MAC %s", LINK_GUEST_MAC);
    return 0;
}

static void set_addr(struct sockaddr *to, in_addr_t addr)
{
    struct sockaddr_in in = { .sin_family = AF_INET, .sin_addr.s_addr = addr };

    memcpy(to, &in, sizeof(in));
}

static int configure(int fd, const char *name, struct err *err)
{
    struct ifreq req = { 0 };

    strcpy(req.ifr_name, name);
    set_addr(&req.ifr_addr, inet_addr(LINK_GUEST_ADDR));
    if (ioctl(fd, SIOCSIFADDR, &req) < 0)
        return err_sys(err, errno, "set address " LINK_GUEST_ADDR " of %s", name);
    set_addr(&req.ifr_netmask, htonl(~UINT32_C(0) << (32 - LINK_PREFIX_LEN)));
    if (ioctl(fd, SIOCSIFNETMASK, &req) < 0)
        return err_sys(err, errno, "set netmask of %s", name);
    memset(&req.ifr_ifru, 0, sizeof(req.ifr_ifru));
    if (ioctl(fd, SIOCGIFFLAGS, &req) < 0)
        return err_sys(err, errno, "read flags of %s", name);
    req.ifr_flags |= IFF_UP;
    if (ioctl(fd, SIOCSIFFLAGS, &req) < 0)
        return err_sys(err, errno, "bring up %s", name);
    return 0;
}

/* Asking for the host's MAC would cost the first connection 20 to 85 ms. */
static int fix_neighbour(int fd, const char *name, struct err *err)
{
    struct arpreq req = { .arp_flags = ATF_COM | ATF_PERM };
    struct ether_addr mac;

    if (!ether_aton_r(LINK_HOST_MAC, &mac))
        return err_set(err, ERR_INTERNAL, "bad MAC %s", LINK_HOST_MAC);
    set_addr(&req.arp_pa, inet_addr(LINK_HOST_ADDR));
    req.arp_ha.sa_family = ARPHRD_ETHER;
    memcpy(req.arp_ha.sa_data, &mac, sizeof(mac));
    snprintf(req.arp_dev, sizeof(req.arp_dev), "%s", name);
    if (ioctl(fd, SIOCSARP, &req) < 0)
        return err_sys(err, errno, "set neighbour " LINK_HOST_ADDR " on %s", name);
    return 0;
}

int link_up(struct ctx *ctx, struct err *err)
{
    AUTO_FD int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    char name[IFNAMSIZ] = "";

    if (fd < 0)
        return err_sys(err, errno, "socket");
    if (await_interface(ctx, name, err) < 0)
        return -1;
    /* Nothing on the link speaks IPv6; without it no router is asked for either. */
    AUTO_FREE char *v6 = str_format("/proc/sys/net/ipv6/conf/%s/disable_ipv6", name);
    (void)file_write(v6, "1", 1, 0644);
    if (configure(fd, name, err) < 0)
        return -1;
    return fix_neighbour(fd, name, err);
}
