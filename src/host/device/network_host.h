/* network_host.h - what a pod's network needs from the machine: one ops table, so that tests and
 * the simulation have a machine without an OS. The entries mean what the functions of the same name
 * in host/net say (net_open …). */
#pragma once
#include "host/net/net.h"

struct network_host {
    int (*open)(struct ctx *ctx, const char *path, int *ret_fd, uint64_t *ret_inode,
                struct err *err);
    int (*read)(struct ctx *ctx, int netns, struct net_config **ret, struct err *err);
    int (*plug)(struct ctx *ctx, const struct net_plug *p, int *ret_fd, struct err *err);
    int (*unplug)(struct ctx *ctx, int netns, const char *iface, const char *tap, struct err *err);
    int (*count)(struct ctx *ctx, int netns, const char *iface, struct net_counters *ret,
                 struct err *err);
    /* net_forward_open, net_forward_accept; NULL: ports are not forwarded. */
    int (*forward_open)(struct ctx *ctx, int netns, int *ret_listener, int *ret_hook,
                        struct err *err);
    int (*forward_accept)(struct ctx *ctx, int listener, int *ret_fd, bool *ret_ipv6,
                          uint16_t *ret_port, struct err *err);
};
extern const struct network_host network_host_linux;
