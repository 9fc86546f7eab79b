/* nets_connect.c - connections to the ports of pods, for whoever forwards them. */
#include "base/loop.h"
#include "guest/net/nets_priv.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>

static int connect_to(struct ctx *ctx, int netns, const struct rtnl_ip *to, uint16_t port,
                      int *ret_fd, struct err *err)
{
    struct sockaddr_in v4 = { .sin_family = AF_INET, .sin_port = htons(port) };
    struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
    AUTO_FD int fd = -1;
    int why = 0;

    memcpy(&v4.sin_addr, to->bytes, sizeof(v4.sin_addr));
    memcpy(&v6.sin6_addr, to->bytes, sizeof(v6.sin6_addr));
    if (netns_socket(ctx, netns, to->family, &fd, err) < 0)
        return -1;
    int r = to->family == AF_INET ? connect(fd, (struct sockaddr *)&v4, sizeof(v4))
                                  : connect(fd, (struct sockaddr *)&v6, sizeof(v6));
    if (r < 0 && errno != EINPROGRESS)
        return err_set(err, ERR_UNAVAILABLE, "%s", strerrordesc_np(errno));
    if (loop_wait_fd(ctx, fd, POLLOUT, "connect to a pod's port", err) < 0)
        return -1;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &(socklen_t){ sizeof(why) }) < 0)
        why = errno;
    if (why)
        return err_set(err, ERR_UNAVAILABLE, "%s", strerrordesc_np(why));
    *ret_fd = TAKE_FD(fd);
    return 0;
}

/* Loopback first, then whatever addresses the pod has. */
static size_t targets(const struct netns *s, int family, struct rtnl_ip *ret, size_t room)
{
    size_t n = 1;

    ret[0] = (struct rtnl_ip){ .family = (uint8_t)family };
    (void)rtnl_ip_parse(family == AF_INET ? "127.0.0.1" : "::1", &ret[0]);
    LIST_EACH (&s->nics, pos) {
        const struct nic *nic = LIST_ENTRY(pos, struct nic, node);
        for (size_t i = 0; i < nic->n_addresses && n < room; i++)
            if (nic->addresses[i].ip.family == family)
                ret[n++] = nic->addresses[i].ip;
    }
    return n;
}

int nets_connect(struct ctx *ctx, struct nets *n, const char *ns, bool ipv6, uint16_t port,
                 int *ret_fd, struct err *err)
{
    struct netns *s = nets_find(n, ns);
    struct rtnl_ip to[8];

    if (!s || s->fd < 0)
        return err_set(err, ERR_NOT_FOUND, "no network namespace %.64s", ns);
    size_t n_to = targets(s, ipv6 ? AF_INET6 : AF_INET, to, ARRAY_LEN(to));
    int r = -1;

    s->refs++;
    for (size_t i = 0; i < n_to && r < 0; i++) {
        err_clear(err);
        r = connect_to(ctx, s->fd, &to[i], port, ret_fd, err);
        if (r < 0 && err->code != ERR_UNAVAILABLE)
            break;
    }
    nets_unref(n, s);
    return r < 0 ? err_wrap(err, "port %u of the pod", port) : 0;
}
