#include "host/own/netlink.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/offload.h"
#include "base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/if_link.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct job {
    char *netns, *ifname;
    int found;
};

static void job_free(void *p)
{
    struct job *j = p;

    free(j->netns);
    free(j->ifname);
    free(j);
}

struct request {
    struct nlmsghdr head;
    struct ifinfomsg info;
    struct rtattr name;
    char text[IFNAMSIZ];
};

/* 0, or -errno as the kernel answers it. */
static int delete_here(const char *ifname)
{
    struct request req = {
        .head = { .nlmsg_len = sizeof(req),
                  .nlmsg_type = RTM_DELLINK,
                  .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK },
        .info = { .ifi_family = AF_UNSPEC },
        .name = { .rta_len = sizeof(req.name) + sizeof(req.text), .rta_type = IFLA_IFNAME },
    };
    struct {
        struct nlmsghdr head;
        struct nlmsgerr body;
        char rest[512];
    } answer;
    AUTO_FD int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);

    if (fd < 0)
        return -errno;
    strcpy(req.text, ifname); /* its length was checked */
    if (send(fd, &req, sizeof(req), 0) < 0)
        return -errno;
    ssize_t n = recv(fd, &answer, sizeof(answer), 0);
    if (n < 0)
        return -errno;
    if ((size_t)n < sizeof(answer.head) + sizeof(answer.body) ||
        answer.head.nlmsg_type != NLMSG_ERROR)
        return -EBADMSG;
    return answer.body.error;
}

static int delete_in_thread(void *p, struct err *err)
{
    struct job *j = p;
    AUTO_FD int there = open(j->netns, O_RDONLY | O_CLOEXEC);
    int r;

    if (there < 0)
        return errno == ENOENT ? 0 : err_sys(err, errno, "open %s", j->netns);
    /* The thread ends with this job; nobody else sees its namespace. EINVAL: the file is there
     * but no namespace is mounted on it any more. */
    if (setns(there, CLONE_NEWNET) < 0)
        return errno == EINVAL ? 0 : err_sys(err, errno, "enter network namespace %s", j->netns);
    r = delete_here(j->ifname);
    if (r < 0 && r != -ENODEV)
        return err_sys(err, -r, "delete interface %s in %s", j->ifname, j->netns);
    j->found = r == 0;
    return 0;
}

int netlink_delete_link(struct ctx *ctx, const char *netns_path, const char *ifname,
                        struct err *err)
{
    if (strlen(ifname) >= IFNAMSIZ || !*ifname)
        return err_set(err, ERR_INVALID, "\"%s\" is no name of an interface", ifname);

    struct job *j = mem_new(struct job);
    void *arg = j;

    j->netns = str_dup(netns_path);
    j->ifname = str_dup(ifname);
    int r = offload_run(ctx, delete_in_thread, &arg, job_free, "delete an interface", err);
    if (!arg)
        return -1;
    int found = j->found;
    job_free(j);
    return r < 0 ? -1 : found;
}
