/* nets_priv.h - for nets*.c: work in a namespace. */
#pragma once
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/gate.h"
#include "base/list.h"
#include "base/netlink.h"
#include "base/str.h"
#include "guest/net/nets.h"
#include "proto/bridge.h"
#include "proto/rtnl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct nic_route {
    struct rtnl_route r;
    char dev[RTNL_NAME_BYTES]; /* of a next hop; "": the NIC's own */
    uint32_t hops; /* of several next hops, this one the first; 0: one, or not the first */
};

/* A NIC, and all that configuring it needs. The thread uses nothing else. */
struct nic {
    struct list node;
    char *id, *dns_search, *dns_servers;
    uint8_t mac[6];
    char name[RTNL_NAME_BYTES]; /* in the namespace, once it is there */
    bool exact;                 /* only the routes that are named */
    uint32_t mtu;
    uint16_t encap_overhead;
    struct rtnl_address *addresses;
    struct nic_route *routes;
    struct rtnl_neighbour *neighbours;
    struct rtnl_rule *rules;
    size_t n_addresses, n_routes, n_neighbours, n_rules;
    struct strv sysctls; /* "ipv4.conf.rp_filter=2" */
};
/* Reads the texts. ERR_INVALID names what is wrong. */
int nic_parse(const struct bridge_network *in, struct nic **ret, struct err *err);
void nic_free(struct nic *n);
/* Of "ipv4.conf.rp_filter=2" for an interface: the file, and where its value begins. Caller frees.
 * NULL: not one of an interface's. */
char *nic_sysctl_path(const char *text, const char *iface, const char **ret_value);
AUTO_DEFINE(struct nic *, nic_free);

/* Waits until a device with this MAC is in our own namespace. *ret: its index and name. */
int nic_await(struct ctx *ctx, const uint8_t mac[6], struct rtnl_iface *ret, struct err *err);
/* Moves the device there and configures it. *nic is the thread's meanwhile, and NULL if this fails.
 * Waits. */
int nic_move(struct ctx *ctx, struct nic **nic, const struct rtnl_iface *device, int netns,
             struct err *err);
/* Takes it down. Success if it is gone. Waits. */
int nic_lower(struct ctx *ctx, const char *name, int netns, struct err *err);

/* A new namespace, or if from is not -1 that one, with loopback up. Waits. Caller closes. */
int netns_make(struct ctx *ctx, int from, int *ret, struct err *err);
/* A TCP socket that belongs to it. Waits. Caller closes. */
int netns_socket(struct ctx *ctx, int netns, int family, int *ret, struct err *err);

struct netns {
    struct list node;
    struct nets *nets;
    unsigned refs;    /* calls that work on it: it is not freed under them */
    unsigned holders; /* containers */
    char *id;
    int fd; /* -1 until it is made */
    struct gate gate;
    struct list nics;
    size_t n_nics;
};

struct nets {
    struct list all;
    size_t n;
    int spare;            /* a namespace that no pod uses yet; -1: none */
    uint64_t spare_bytes; /* memory of the machine when it was made */
};
