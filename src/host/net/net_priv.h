/* net_priv.h - between net.c and net_read.c: work in a namespace. */
#pragma once
#include "base/err.h"
#include "base/netlink.h"
#include "base/str.h"
#include "host/net/net.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct net_job {
    const char *iface, *tap; /* borrowed, for OFFLOAD */
    uint32_t mtu;
    bool vlans, vhost;
    unsigned queues;
    int (*fn)(struct net_job *j, struct err *err);
    int netns, rtnl; /* the thread's own; the latter opened there */
    int iface_index;
    /* Out. */
    int fd;             /* a listener */
    int hook;           /* what sends connections to it */
    bool queue_is_ours; /* of the interface: removed if fn fails */
    struct net_taps taps;
    struct net_config *config;
    struct net_counters counters;
};
/* Runs fn in a thread that has entered the namespace (borrowed) and opened rtnl. On success the
 * caller takes what fn put into the job; else it is undone. */
int net_run(struct ctx *ctx, struct net_job *j, int netns,
            int (*fn)(struct net_job *j, struct err *err), const char *why, struct err *err);
