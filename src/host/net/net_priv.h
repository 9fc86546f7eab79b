/* net_priv.h - for net*.c: work in a namespace. */
#pragma once
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/netlink.h"
#include "base/str.h"
#include "host/net/net.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NET_NS_LIMIT (UINT64_C(20) * 1000 * 1000 * 1000) /* nothing here takes long */
#define NET_DUMP_TRIES 5                                 /* of a table that others are changing */

struct net_job {
    const char *iface, *tap; /* borrowed, for OFFLOAD */
    uint32_t mtu;
    int (*fn)(struct net_job *j, struct err *err);
    int netns, rtnl; /* the thread's own; the latter opened there */
    int iface_index;
    /* Out. */
    int fd;             /* the tap, or a listener */
    int hook;           /* what sends connections to it */
    bool queue_is_ours; /* of the interface: removed if fn fails */
    struct net_config *config;
    struct net_counters counters;
};
/* Runs fn in a thread that has entered the namespace (borrowed) and opened rtnl. On success the
 * caller takes what fn put into the job; else it is undone. */
int net_run(struct ctx *ctx, struct net_job *j, int netns,
            int (*fn)(struct net_job *j, struct err *err), const char *why, struct err *err);
/* Index of an interface in the thread's namespace, or -ENODEV. */
int net_index(const char *name);
/* The ingress queue of an interface; gone already is success. 0 or -errno. */
int net_drop_queue(int rtnl, int index);
