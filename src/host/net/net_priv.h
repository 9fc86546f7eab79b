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

/* A copy of all that the thread sees; it may outlive its caller. */
struct net_job {
    int netns, rtnl; /* the latter opened there */
    char iface[NET_NAME_BYTES], tap[NET_NAME_BYTES];
    uint32_t mtu;
    int iface_index;
    /* Out. */
    int fd;             /* the tap, or a listener */
    int hook;           /* what sends connections to it */
    bool queue_is_ours; /* of the interface: to be undone unless it is given away */
    struct net_config *config;
    struct net_counters counters;
};
/* Runs fn(job) in the namespace. Takes nothing: the job is the caller's again in *ret, unless ctx
 * ended first; then NULL, and net_job_free works behind its back. */
int net_run(struct ctx *ctx, struct net_job **job, int (*fn)(void *arg, struct err *err),
            const char *why, struct err *err);
/* netns is borrowed; the job has a copy. */
struct net_job *net_job_new(int netns);
/* Undoes what was made and not given away. */
void net_job_free(void *job);
static inline void net_job_free_auto(struct net_job **j)
{
    net_job_free(*j);
}
/* In the thread: enters the namespace and opens rtnl. */
int net_job_enter(struct net_job *j, struct err *err);
/* Index of an interface in the thread's namespace, or -ENODEV. */
int net_index(const char *name);
/* The ingress queue of an interface; gone already is success. 0 or -errno. */
int net_drop_queue(int rtnl, int index);
