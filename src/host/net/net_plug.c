/* net_plug.c - a tap beside the pod's interface, and all traffic of one to the other. */
#include "host/jail/jail.h"
#include "host/net/net_priv.h"
#include "proto/rtnl.h"

#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <stdio.h>
#include <sys/ioctl.h>

/* Opened here, in the namespace: that is where the tap will be. */
static int make_tap(struct net_job *j, struct err *err)
{
    struct ifreq ifr = { .ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR };

    if (jail_tun(&j->fd, err) < 0)
        return -1;
    snprintf(ifr.ifr_name, sizeof(ifr.ifr_name), "%s", j->tap);
    if (ioctl(j->fd, TUNSETIFF, &ifr) < 0)
        return err_sys(err, errno, "make tap %s", j->tap);
    return 0;
}

/* The tap has no address of its own, of no family: it only passes on. */
static int raise_tap(struct net_job *j, int tap, struct err *err)
{
    const struct rtnl_link_change c = { .index = tap, .up = true, .mtu = j->mtu, .netns = -1 };
    AUTO_FREE char *path = str_format("/proc/sys/net/ipv6/conf/%s/disable_ipv6", j->tap);
    struct nl_msg m;

    (void)file_write(path, "1", 1, 0); /* a kernel without IPv6 has no such file */
    rtnl_set_link(&m, &c);
    int r = nl_ask(j->rtnl, &m, NULL, NULL);
    return r < 0 ? err_sys(err, -r, "raise tap %s", j->tap) : 0;
}

static int add_queue(struct net_job *j, int index, const char *name, struct err *err)
{
    struct nl_msg m;

    rtnl_add_ingress(&m, index);
    int r = nl_ask(j->rtnl, &m, NULL, NULL);
    if (r == -EEXIST)
        return err_set(err, ERR_STATE,
                       "interface %s in the pod's network namespace has an ingress qdisc already",
                       name);
    if (r == -ENOENT || r == -EOPNOTSUPP)
        return err_set(err, ERR_STATE, "the kernel lacks tc's ingress qdisc: modprobe sch_ingress");
    return r < 0 ? err_sys(err, -r, "add an ingress qdisc to %s", name) : 0;
}

static int redirect(struct net_job *j, int from, int to, struct err *err)
{
    struct nl_msg m;

    rtnl_redirect(&m, from, to);
    int r = nl_ask(j->rtnl, &m, NULL, NULL);
    if (r == -ENOENT || r == -EOPNOTSUPP)
        return err_set(err, ERR_STATE,
                       "the kernel lacks tc's u32 filter or mirred action: modprobe cls_u32 "
                       "act_mirred");
    return r < 0 ? err_sys(err, -r, "redirect traffic of %s", j->iface) : 0;
}

static int plug_in_thread(struct net_job *j, struct err *err)
{
    int r = net_index(j->iface);

    if (r < 0)
        return err_set(err, ERR_UNAVAILABLE,
                       "interface %s is gone from the pod's network "
                       "namespace",
                       j->iface);
    j->iface_index = r;
    if (make_tap(j, err) < 0)
        return -1;
    int tap = net_index(j->tap);
    if (tap < 0)
        return err_sys(err, -tap, "find tap %s", j->tap);
    if (raise_tap(j, tap, err) < 0 || add_queue(j, tap, j->tap, err) < 0 ||
        add_queue(j, j->iface_index, j->iface, err) < 0)
        return -1;
    j->queue_is_ours = true;
    /* Towards the pod last: what comes before the VM listens would only be lost. */
    if (redirect(j, tap, j->iface_index, err) < 0)
        return -1;
    return redirect(j, j->iface_index, tap, err);
}

int net_plug(struct ctx *ctx, const struct net_plug *p, int *ret_fd, struct err *err)
{
    struct net_job j = { .iface = p->iface, .tap = p->tap, .mtu = p->mtu };

    if (net_run(ctx, &j, p->netns, plug_in_thread, "join the pod's interface with a tap", err) < 0)
        return -1;
    *ret_fd = j.fd;
    return 0;
}

/* A tap that is still there is somebody's: it goes with the last descriptor. Deleted under QEMU it
 * would end the whole VM when the guest resets its NIC (tried), so it is only silenced: first of
 * all, since what the guest sends without the qdiscs would reach the pod's own IP stack. */
static int unplug_in_thread(struct net_job *j, struct err *err)
{
    int index = net_index(j->iface), tap = net_index(j->tap), r = 0;
    struct nl_msg m;

    if (tap >= 0) {
        const struct rtnl_link_change down = { .index = tap, .down = true, .netns = -1 };
        rtnl_set_link(&m, &down);
        r = nl_ask(j->rtnl, &m, NULL, NULL);
    }
    if (r < 0 && r != -ENODEV)
        return err_sys(err, -r, "silence tap %s", j->tap);
    r = index < 0 ? 0 : net_drop_queue(j->rtnl, index);
    if (r < 0)
        return err_sys(err, -r, "remove the ingress qdisc of %s", j->iface);
    r = tap < 0 ? 0 : net_drop_queue(j->rtnl, tap);
    return r < 0 ? err_sys(err, -r, "remove the ingress qdisc of tap %s", j->tap) : 0;
}

int net_unplug(struct ctx *ctx, int netns, const char *iface, const char *tap, struct err *err)
{
    struct net_job j = { .iface = iface, .tap = tap };

    return net_run(ctx, &j, netns, unplug_in_thread, "take the pod's tap away", err);
}
