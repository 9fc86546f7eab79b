/* net.h - the host's end of a pod's network: reading what CNI put into its network namespace, and
 * joining each interface there with a tap for the VM. All calls wait: a thread enters the
 * namespace, since it is a property of threads, and since a client's path may be dead. What the
 * kernel reports is bounded in number. */
#pragma once
#include "base/err.h"
#include "base/str.h"
#include "proto/settings.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ctx;

#define NET_NAME_BYTES 16    /* IFNAMSIZ */
#define NET_TEXT_BYTES 46    /* an address as text */
#define NET_MAX_IFACES 16    /* of a pod */
#define NET_MAX_ADDRESSES 64 /* of an interface */
#define NET_MAX_ROUTES 128   /* and of next hops of those that have several */
#define NET_MAX_HOPS 32      /* of one of them */
#define NET_MAX_NEIGHBOURS 128
#define NET_MAX_RULES 64   /* of a pod */
#define NET_MAX_SYSCTLS 64 /* of an interface */
#define NET_MAX_QUEUES 8   /* of a tap */

struct net_address {
    char text[NET_TEXT_BYTES];
    uint8_t prefix;
};
struct net_neighbour {
    char text[NET_TEXT_BYTES];
    uint8_t mac[6];
};
struct net_iface {
    char name[NET_NAME_BYTES];
    int index;
    uint8_t mac[6];
    uint32_t mtu;
    bool vlans; /* others of the pod are VLANs on top of it */
    struct net_address *addresses;
    struct guest_route *routes; /* those without a next hop first; texts are the config's */
    struct net_neighbour *neighbours;
    size_t n_addresses, n_routes, n_neighbours;
    struct strv sysctls; /* "ipv4.conf.rp_filter=2": those that are not the namespace's default */
};
/* Every interface that is up, but loopback, in the kernel's order. */
struct net_config {
    struct net_iface ifaces[NET_MAX_IFACES];
    size_t n;
    bool loopback; /* is up: clients can connect to 127.0.0.1 there */
    /* What needs all of them: routes with several next hops, policy rules. */
    struct guest_route routes[NET_MAX_ROUTES];
    struct guest_rule rules[NET_MAX_RULES];
    size_t n_routes, n_rules;
    struct strv texts; /* of all routes and rules */
};
void net_config_free(struct net_config *c);
AUTO_DEFINE(struct net_config *, net_config_free);

/* Opens the namespace; caller closes. *ret_inode names it as long as it lives. ERR_INVALID: none;
 * ERR_NOT_FOUND: nothing there; ERR_STATE: it is our own, the host's. */
int net_open(struct ctx *ctx, const char *path, int *ret_fd, uint64_t *ret_inode, struct err *err);
/* Caller frees. ERR_STATE names an interface, route or rule that a VM cannot have, ERR_EXHAUSTED a
 * limit. */
int net_read(struct ctx *ctx, int netns, struct net_config **ret, struct err *err);

/* The descriptors of a tap: one for each queue. The tap goes with the last one. */
struct net_taps {
    unsigned queues;
    int tap[NET_MAX_QUEUES];
    /* As many devices of vhost-net, for the VMM. Closed as soon as the VMM has them: a kernel
     * thread that belongs to a VMM process ends with the last descriptor (docs/decisions/0038). */
    bool has_vhost;
    int vhost[NET_MAX_QUEUES];
    struct err no_vhost; /* why not, if it was asked for */
};
void net_taps_close(struct net_taps *t); /* zeroed or filled; repeatable */
AUTO_VALUE(struct net_taps, net_taps_close);

/* Makes the tap `tap` in the namespace and redirects both ways. All or nothing, also when ctx ends
 * first. Caller closes *ret. ERR_STATE: the interface has an ingress queue that lcow did not make,
 * or the kernel lacks a part. */
struct net_plug {
    int netns; /* borrowed */
    const char *iface, *tap;
    uint32_t mtu;
    bool vlans;      /* frames with a VLAN tag are left to interfaces on top of it */
    unsigned queues; /* at most NET_MAX_QUEUES are made; 0: one */
    bool vhost;      /* with vhost-net, where the host has it */
};
int net_plug(struct ctx *ctx, const struct net_plug *p, struct net_taps *ret, struct err *err);
/* Undoes net_plug; what is gone already counts as done. A tap with an open descriptor is silenced:
 * down, joined to nothing. */
int net_unplug(struct ctx *ctx, int netns, const char *iface, const char *tap, struct err *err);

/* One listener for all TCP ports of all addresses that the namespace has itself: it accepts every
 * connection to 127.0.0.1 there, on any port. It ends when *ret_hook is closed; caller closes both.
 * A kernel before 5.9 cannot: its error is returned. */
int net_forward_open(struct ctx *ctx, int netns, int *ret_listener, int *ret_hook, struct err *err);
/* *ret_port, *ret_ipv6: what the client dialled. Caller closes *ret_fd, which does not block. */
int net_forward_accept(struct ctx *ctx, int listener, int *ret_fd, bool *ret_ipv6,
                       uint16_t *ret_port, struct err *err);

struct net_counters {
    uint64_t rx_bytes, rx_packets, rx_errors, rx_dropped;
    uint64_t tx_bytes, tx_packets, tx_errors, tx_dropped;
};
/* ERR_NOT_FOUND: no such interface any more. */
int net_count(struct ctx *ctx, int netns, const char *iface, struct net_counters *ret,
              struct err *err);
