#include "host/ledger/netlink.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/netlink.h"
#include "base/offload.h"
#include "base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/pkt_sched.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct job {
    enum netlink_thing thing;
    bool dry_run;
    char *netns, *ifname;
    uint64_t inode; /* 0: any */
    int found;
};

static void job_free(void *p)
{
    struct job *j = p;

    if (!j)
        return;
    free(j->netns);
    free(j->ifname);
    free(j);
}

char *netlink_place(const char *netns_path, uint64_t inode, const char *ifname)
{
    return str_format("%s#%llu %s", netns_path, (unsigned long long)inode, ifname);
}

/* NULL: not understood. */
static struct job *parse(const char *place)
{
    const char *blank = strrchr(place, ' ');
    size_t len = blank ? strlen(blank + 1) : 0;

    if (len == 0 || len >= IFNAMSIZ)
        return NULL;
    struct job *j = mem_new(struct job);
    j->ifname = str_dup(blank + 1);
    j->netns = str_ndup(place, (size_t)(blank - place));
    char *hash = strrchr(j->netns, '#');
    if (hash && str_to_u64(hash + 1, UINT64_MAX, &j->inode) == 0)
        *hash = '\0';
    return j;
}

/* --- in the namespace; 0 or -errno as the kernel answers --- */

static int drop_link(int rtnl, int index)
{
    const struct ifinfomsg info = { .ifi_family = AF_UNSPEC, .ifi_index = index };
    struct nl_msg m;

    nl_begin(&m, RTM_DELLINK, 0, &info, sizeof(info));
    return nl_ask(rtnl, &m, NULL, NULL);
}

static int drop_ingress(int rtnl, int index)
{
    const struct tcmsg tc = { .tcm_family = AF_UNSPEC,
                              .tcm_ifindex = index,
                              .tcm_handle = TC_H_MAKE(TC_H_INGRESS, 0),
                              .tcm_parent = TC_H_INGRESS };
    struct nl_msg m;

    nl_begin(&m, RTM_DELQDISC, 0, &tc, sizeof(tc));
    nl_put_str(&m, TCA_KIND, "ingress");
    int r = nl_ask(rtnl, &m, NULL, NULL);
    return r == -EINVAL || r == -ENOENT ? -ENODEV : r; /* none there, as kernels differ */
}

/* Is the namespace the one that was meant? The thread ends with this job; nobody else sees where it
 * goes. */
static int enter(const struct job *j, bool *ret_there, struct err *err)
{
    AUTO_FD int fd = open(j->netns, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;

    *ret_there = false;
    if (fd < 0)
        return errno == ENOENT ? 0 : err_sys(err, errno, "open %s", j->netns);
    if (fstat(fd, &st) < 0 || (j->inode && st.st_ino != j->inode))
        return 0;
    /* EINVAL: the file is there but no namespace is mounted on it any more. */
    if (setns(fd, CLONE_NEWNET) < 0)
        return errno == EINVAL ? 0 : err_sys(err, errno, "enter network namespace %s", j->netns);
    *ret_there = true;
    return 0;
}

static int take_in_thread(void *p, struct err *err)
{
    struct job *j = p;
    bool there;

    if (enter(j, &there, err) < 0)
        return -1;
    int index = there ? (int)if_nametoindex(j->ifname) : 0;
    j->found = index > 0;
    if (index == 0 || j->dry_run)
        return 0;
    AUTO_FD int rtnl = nl_open(NETLINK_ROUTE, 0);
    int r = rtnl;
    if (r >= 0)
        r = j->thing == NETLINK_LINK ? drop_link(rtnl, index) : drop_ingress(rtnl, index);
    if (r < 0 && r != -ENODEV)
        return err_sys(err, -r, "delete %s %s in %s",
                       j->thing == NETLINK_LINK ? "interface" : "the ingress qdisc of", j->ifname,
                       j->netns);
    j->found = r == 0;
    return 0;
}

int netlink_take_back(struct ctx *ctx, enum netlink_thing thing, const char *place, bool dry_run,
                      struct err *err)
{
    struct job *j = parse(place);
    void *arg = j;

    if (!j)
        return err_set(err, ERR_DATA_LOSS, "\"%.256s\" names no interface in a namespace", place);
    j->thing = thing;
    j->dry_run = dry_run;
    int r = offload_run(ctx, take_in_thread, &arg, job_free, "take back a part of a network", err);
    if (!arg)
        return -1;
    int found = j->found;
    job_free(j);
    return r < 0 ? -1 : found;
}
