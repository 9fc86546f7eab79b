/* net_linux.c - finding a network namespace and working in it. */
#include "base/offload.h"
#include "host/jail/jail.h"
#include "host/net/net_priv.h"
#include "proto/rtnl.h"

#include <fcntl.h>
#include <linux/netlink.h>
#include <net/if.h>
#include <sched.h>
#include <sys/stat.h>

/* --- opening --- */

int net_open(struct ctx *ctx, const char *path, int *ret_fd, uint64_t *ret_inode, struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, NET_NS_LIMIT);
    AUTO_FD int fd = -1;
    struct stat st, own;

    if (jail_netns(&limited, path, &fd, err) < 0)
        return -1;
    if (fstat(fd, &st) < 0)
        return err_set(err, ERR_INVALID, "%.256s is no network namespace", path);
    if (stat("/proc/self/ns/net", &own) == 0 && own.st_ino == st.st_ino && own.st_dev == st.st_dev)
        return err_set(err, ERR_STATE,
                       "%.256s is the host's network namespace, which a VM cannot share; give the "
                       "pod one of its own (no hostNetwork, no --net-host)",
                       path);
    *ret_fd = TAKE_FD(fd);
    *ret_inode = st.st_ino;
    return 0;
}

/* --- jobs --- */

/* Undoes what was made. */
static void drop(void *job)
{
    struct net_job *j = job;

    if (j->queue_is_ours)
        (void)net_drop_queue(j->rtnl, j->iface_index); /* it is on record as well */
    fd_close(j->fd);
    fd_close(j->hook);
    fd_close(j->rtnl);
    fd_close(j->netns);
    net_config_free(j->config);
}

/* The thread ends with the job; nobody else sees its namespace. */
static int run_in_thread(void *job, struct err *err)
{
    struct net_job *j = job;

    if (setns(j->netns, CLONE_NEWNET) < 0)
        return err_sys(err, errno, "enter the pod's network namespace");
    j->rtnl = nl_open(NETLINK_ROUTE, 0);
    return j->rtnl < 0 ? err_sys(err, -j->rtnl, "open netlink") : j->fn(j, err);
}

int net_run(struct ctx *ctx, struct net_job *j, int netns,
            int (*fn)(struct net_job *j, struct err *err), const char *why, struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, NET_NS_LIMIT);

    j->fn = fn;
    j->netns = fcntl(netns, F_DUPFD_CLOEXEC, 0);
    j->rtnl = j->fd = j->hook = -1;
    if (OFFLOAD(&limited, run_in_thread, j, 2, drop, why, err) < 0)
        return -1;
    fd_close(j->netns);
    fd_close(j->rtnl);
    return 0;
}

int net_index(const char *name)
{
    unsigned index = if_nametoindex(name);

    return index > 0 ? (int)index : -ENODEV;
}

int net_drop_queue(int rtnl, int index)
{
    struct nl_msg m;

    rtnl_delete_ingress(&m, index);
    int r = nl_ask(rtnl, &m, NULL, NULL);
    /* Of a queue that is not there the kernel says one of the first two, by its version. */
    return r == -EINVAL || r == -ENOENT || r == -ENODEV ? 0 : r;
}
