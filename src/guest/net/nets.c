#include "guest/net/nets.h"
#include "base/log.h"
#include "base/loop.h"
#include "guest/net/nets_priv.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#define NAME_MAX_LEN 128

struct nets *nets_new(void)
{
    struct nets *n = mem_new(struct nets);

    n->spare = -1;
    list_init(&n->all);
    return n;
}

/* --- namespaces --- */

static void netns_free(struct netns *s)
{
    list_remove(&s->node);
    LIST_FOR (struct nic, nic, &s->nics, node)
        nic_free(nic);
    fd_close(s->fd);
    free(s->id);
    s->nets->n--;
    free(s);
}

void nets_free(struct nets *n)
{
    if (!n)
        return;
    LIST_FOR (struct netns, s, &n->all, node)
        netns_free(s);
    fd_close(n->spare);
    free(n);
}

/* Names are compared as the original does: it lower-cases its GUIDs. */
static struct netns *find(const struct nets *n, const char *id)
{
    LIST_FOR (struct netns, s, &n->all, node)
        if (strcasecmp(s->id, id) == 0)
            return s;
    return NULL;
}

static bool name_ok(const char *id)
{
    size_t len = strspn(id, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-._");

    return len > 0 && len <= NAME_MAX_LEN && !id[len];
}

static struct netns *netns_ref(struct netns *s)
{
    if (s)
        s->refs++;
    return s;
}

/* This may free the record. */
static void netns_unref(struct netns *s)
{
    if (--s->refs == 0 && s->holders == 0 && s->n_nics == 0)
        netns_free(s);
}
AUTO_DEFINE(struct netns *, netns_unref);

/* Finds or makes the record; the caller unrefs. */
static struct netns *need(struct nets *n, const char *id, struct err *err)
{
    struct netns *s = netns_ref(find(n, id));

    if (s)
        return s;
    if (!name_ok(id)) {
        err_set(err, ERR_INVALID, "invalid network namespace name \"%.64s\"", id);
        return NULL;
    }
    if (n->n == NETS_MAX) {
        err_set(err, ERR_EXHAUSTED, "too many network namespaces: at most %d", NETS_MAX);
        return NULL;
    }
    s = mem_new(struct netns);
    *s = (struct netns){ .nets = n, .refs = 1, .id = str_dup(id), .fd = -1 };
    gate_init(&s->gate, "network namespace");
    list_init(&s->nics);
    list_append(&n->all, &s->node);
    n->n++;
    return s;
}

static uint64_t memory_bytes(void)
{
    struct sysinfo si = { 0 };

    (void)sysinfo(&si); /* cannot fail */
    return (uint64_t)si.totalram * si.mem_unit;
}

int nets_prepare(struct ctx *ctx, struct nets *n, struct err *err)
{
    if (n->spare >= 0)
        return 0;
    n->spare_bytes = memory_bytes();
    return netns_make(ctx, -1, &n->spare, err);
}

/* The kernel sizes a namespace's socket buffers by the memory at the time it is made. If the VM has
 * grown since, the spare one is not used. */
static int take_spare(struct nets *n)
{
    if (n->spare >= 0 && n->spare_bytes != memory_bytes())
        fd_close(TAKE_FD(n->spare));
    return TAKE_FD(n->spare);
}

/* With the gate held. */
static int make(struct ctx *ctx, struct netns *s, struct err *err)
{
    if (s->fd < 0)
        s->fd = take_spare(s->nets);
    if (s->fd >= 0)
        return 0;
    return netns_make(ctx, -1, &s->fd, err) < 0 ? err_wrap(err, "network namespace %s", s->id) : 0;
}

int nets_hold(struct ctx *ctx, struct nets *n, const char *ns, char **ret_path, struct err *err)
{
    AUTO(netns_unref) struct netns *s = need(n, ns, err);
    AUTO(gate_leave) struct gate *held = s ? gate_enter(&s->gate, ctx, "nets.hold", err) : NULL;

    if (!held || make(ctx, s, err) < 0)
        return -1;
    s->holders++;
    *ret_path = str_format("/proc/%d/fd/%d", getpid(), s->fd);
    return 0;
}

int nets_adopt(struct ctx *ctx, struct nets *n, const char *ns, uint32_t pid, struct err *err)
{
    AUTO(netns_unref) struct netns *s = need(n, ns, err);
    AUTO(gate_leave) struct gate *held = s ? gate_enter(&s->gate, ctx, "nets.adopt", err) : NULL;
    AUTO_FREE char *path = str_format("/proc/%u/ns/net", pid);
    AUTO_FD int fd = held ? open(path, O_RDONLY | O_CLOEXEC) : -1;

    if (!held)
        return -1;
    if (fd < 0)
        return err_sys(err, errno, "network namespace %s: open %s", s->id, path);
    if (s->fd >= 0)
        return err_set(err, ERR_STATE,
                       "network namespace %s already exists outside of the pod's user namespace",
                       s->id);
    if (netns_make(ctx, fd, &s->fd, err) < 0)
        return err_wrap(err, "network namespace %s", s->id);
    s->holders++;
    return 0;
}

void nets_release(struct nets *n, const char *ns)
{
    AUTO(netns_unref) struct netns *s = netns_ref(find(n, ns));

    if (s && s->holders > 0)
        s->holders--;
}

/* --- NICs --- */

static struct nic *find_nic(const struct netns *s, const char *id)
{
    LIST_FOR (struct nic, nic, &s->nics, node)
        if (strcasecmp(nic->id, id) == 0)
            return nic;
    return NULL;
}

static int plug(struct ctx *ctx, struct netns *s, struct nic **nic, struct err *err)
{
    struct rtnl_iface device;
    char name[RTNL_NAME_BYTES];
    struct err ignored = ERR_INIT;

    if (make(ctx, s, err) < 0 || nic_await(ctx, (*nic)->mac, &device, err) < 0)
        return -1;
    if (!(*nic)->name[0])
        snprintf((*nic)->name, sizeof((*nic)->name), "%s", device.name);
    memcpy(name, (*nic)->name, sizeof(name));
    if (nic_move(ctx, nic, &device, s->fd, err) == 0)
        return 0;
    (void)nic_lower(ctx, name, s->fd, &ignored); /* the host removes the device next */
    return -1;
}

static int add(struct ctx *ctx, struct nets *n, const struct bridge_network *in, struct err *err)
{
    AUTO(netns_unref) struct netns *s = need(n, in->namespace_id, err);
    AUTO(gate_leave) struct gate *held = s ? gate_enter(&s->gate, ctx, "nets.add", err) : NULL;
    AUTO(nic_free) struct nic *nic = NULL;

    if (!held || nic_parse(in, &nic, err) < 0)
        return -1;
    if (find_nic(s, in->id))
        return err_set(err, ERR_EXISTS, "NIC %.64s already exists in namespace %s", in->id, s->id);
    if (s->n_nics == NETS_NICS_MAX)
        return err_set(err, ERR_EXHAUSTED, "too many NICs: at most %d in namespace %s",
                       NETS_NICS_MAX, s->id);
    if (plug(ctx, s, &nic, err) < 0)
        return -1;
    list_append(&s->nics, &nic->node);
    s->n_nics++;
    log_info(ctx, "NIC configured", F_STR("namespace", s->id), F_STR("interface", nic->name),
             F_U("addresses", nic->n_addresses), F_U("routes", nic->n_routes));
    nic = NULL;
    return 0;
}

int nets_add(struct ctx *ctx, struct nets *n, const struct bridge_network *nic, struct err *err)
{
    int r = add(ctx, n, nic, err);

    return r < 0 ? err_wrap_because(err, REASON_NETWORK_FAILED, "NIC %.64s (%.17s)", nic->id,
                                    nic->mac)
                 : 0;
}

int nets_remove(struct ctx *ctx, struct nets *n, const char *ns, const char *id, struct err *err)
{
    AUTO(netns_unref) struct netns *s = netns_ref(find(n, ns));
    AUTO(gate_leave) struct gate *held = s ? gate_enter(&s->gate, ctx, "nets.remove", err) : NULL;
    struct nic *nic = held ? find_nic(s, id) : NULL;

    if (!s || (held && !nic))
        return 0;
    if (!held || nic_lower(ctx, nic->name, s->fd, err) < 0)
        return err_wrap(err, "remove NIC %.64s", id);
    list_remove(&nic->node);
    s->n_nics--;
    nic_free(nic);
    return 0;
}

static void append(struct sbuf *b, const char *list)
{
    if (list[0])
        sbuf_addf(b, "%s%s", b->len ? "," : "", list);
}

void nets_dns(const struct nets *n, const char *ns, char **ret_search, char **ret_servers)
{
    struct sbuf search = { 0 }, servers = { 0 };
    const struct netns *s = find(n, ns);

    if (s) {
        LIST_FOR (const struct nic, nic, &s->nics, node) {
            append(&search, nic->dns_search);
            append(&servers, nic->dns_servers);
        }
    }
    *ret_search = sbuf_take(&search);
    *ret_servers = sbuf_take(&servers);
}

/* --- connections to the ports of pods --- */

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
    LIST_FOR (const struct nic, nic, &s->nics, node)
        for (size_t i = 0; i < nic->n_addresses && n < room; i++)
            if (nic->addresses[i].ip.family == family)
                ret[n++] = nic->addresses[i].ip;
    return n;
}

int nets_connect(struct ctx *ctx, struct nets *n, const char *ns, bool ipv6, uint16_t port,
                 int *ret_fd, struct err *err)
{
    AUTO(netns_unref) struct netns *s = netns_ref(find(n, ns));
    struct rtnl_ip to[8];

    if (!s || s->fd < 0)
        return err_set(err, ERR_NOT_FOUND, "no network namespace %.64s", ns);
    size_t n_to = targets(s, ipv6 ? AF_INET6 : AF_INET, to, ARRAY_LEN(to));
    int r = -1;

    for (size_t i = 0; i < n_to && r < 0; i++) {
        err_clear(err);
        r = connect_to(ctx, s->fd, &to[i], port, ret_fd, err);
        if (r < 0 && err->code != ERR_UNAVAILABLE)
            break;
    }
    return r < 0 ? err_wrap(err, "port %u of the pod", port) : 0;
}
