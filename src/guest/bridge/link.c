#include "guest/bridge/link.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/str.h"
#include "guest/bridge/seed.h"
#include "proto/link.h"
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/vm_sockets.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <netinet/ether.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

/* Used by a template only; a clone waits at most this long. */
#define TOKEN_PAUSE_NS (5 * NS_PER_MS)
#define READ_TRIES 8
#define CID_PAUSE_NS NS_PER_MS
#define CONNECT_NS (20 * NS_PER_S) /* the host may be busy */
#define INTERFACE_NS (5 * NS_PER_S)
#define LOOK_NS (20 * NS_PER_MS)
#define SYSFS_MAX 4096 /* the size that sysfs reports for each of its files */

/* True with its name if an interface has the link's MAC. */
static bool find_interface(char ret_name[IFNAMSIZ])
{
    AUTO(closedir) DIR *dir = opendir("/sys/class/net");
    bool found = false;

    for (struct dirent *e; dir && !found && (e = readdir(dir));) {
        AUTO_FREE char *text = file_text(SYSFS_MAX, "/sys/class/net/%s/address", e->d_name);

        found = str_eq(text, LINK_GUEST_MAC "\n") && strlen(e->d_name) < IFNAMSIZ;
        if (found)
            strcpy(ret_name, e->d_name);
    }
    return found;
}

static int await_interface(struct ctx *ctx, char ret_name[IFNAMSIZ], struct err *err)
{
    struct ctx bounded = ctx_with_timeout(ctx, INTERFACE_NS);

    while (!find_interface(ret_name))
        if (fiber_sleep(&bounded, LOOK_NS, err) < 0)
            return err_set(err, ERR_NOT_FOUND, "no network interface with MAC %s", LINK_GUEST_MAC);
    return 0;
}

static void set_addr(struct sockaddr *to, in_addr_t addr)
{
    struct sockaddr_in in = { .sin_family = AF_INET, .sin_addr.s_addr = addr };

    memcpy(to, &in, sizeof(in));
}

static int configure(int fd, const char *name, struct err *err)
{
    struct ifreq req = { 0 };

    strcpy(req.ifr_name, name);
    set_addr(&req.ifr_addr, inet_addr(LINK_GUEST_ADDR));
    if (ioctl(fd, SIOCSIFADDR, &req) < 0)
        return err_sys(err, errno, "set address " LINK_GUEST_ADDR " of %s", name);
    set_addr(&req.ifr_netmask, htonl(~UINT32_C(0) << (32 - LINK_PREFIX_LEN)));
    if (ioctl(fd, SIOCSIFNETMASK, &req) < 0)
        return err_sys(err, errno, "set netmask of %s", name);
    memset(&req.ifr_ifru, 0, sizeof(req.ifr_ifru));
    if (ioctl(fd, SIOCGIFFLAGS, &req) < 0)
        return err_sys(err, errno, "read flags of %s", name);
    req.ifr_flags |= IFF_UP;
    if (ioctl(fd, SIOCSIFFLAGS, &req) < 0)
        return err_sys(err, errno, "bring up %s", name);
    return 0;
}

/* Asking for the host's MAC would cost the first connection 20 to 85 ms. */
static int fix_neighbour(int fd, const char *name, struct err *err)
{
    struct arpreq req = { .arp_flags = ATF_COM | ATF_PERM };
    struct ether_addr mac;

    if (!ether_aton_r(LINK_HOST_MAC, &mac))
        return err_set(err, ERR_INTERNAL, "invalid MAC %s", LINK_HOST_MAC);
    set_addr(&req.arp_pa, inet_addr(LINK_HOST_ADDR));
    req.arp_ha.sa_family = ARPHRD_ETHER;
    memcpy(req.arp_ha.sa_data, &mac, sizeof(mac));
    snprintf(req.arp_dev, sizeof(req.arp_dev), "%s", name);
    if (ioctl(fd, SIOCSARP, &req) < 0)
        return err_sys(err, errno, "set neighbour " LINK_HOST_ADDR " on %s", name);
    return 0;
}

int link_up(struct ctx *ctx, struct err *err)
{
    AUTO_FD int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    char name[IFNAMSIZ] = "";

    if (fd < 0)
        return err_sys(err, errno, "socket");
    if (await_interface(ctx, name, err) < 0)
        return -1;
    /* Nothing on the link speaks IPv6; without it no router is asked for either. */
    AUTO_FREE char *v6 = str_format("/proc/sys/net/ipv6/conf/%s/disable_ipv6", name);
    (void)file_write(v6, "1", 1, 0644);
    if (configure(fd, name, err) < 0)
        return -1;
    return fix_neighbour(fd, name, err);
}

struct link {
    struct dialer dialer;
    struct link_opts opts;
    uint8_t token[LINK_TOKEN_BYTES];
    bool have_token;
    bool looked; /* has seen a boot block: the VM is a clone if another one comes */
    uint32_t cid, vsock_port;
};

static const struct dialer_ops link_ops;

struct link *link_new(const struct link_opts *opts)
{
    struct link *l = mem_new(struct link);

    l->dialer.ops = &link_ops;
    l->opts = *opts;
    return l;
}

void link_free(struct link *l)
{
    if (!l)
        return;
    mem_wipe(l->token, sizeof(l->token));
    free(l);
}

struct dialer *link_dialer(struct link *l)
{
    return &l->dialer;
}

/* --- the boot block --- */

/* The block holds the host's time when the VM was spawned. At a cold boot, the guest's uptime has
 * passed since then. A clone's uptime is mostly its template's, and it cannot know how long its
 * restore took: the host sets the clock again when the bridge is up. */
static void apply(const struct link_boot *boot, bool clone)
{
    struct err err = ERR_INIT;

    /* Each step is tried even if another fails: a VM with a wrong clock is better than no VM. */
    if (seed_entropy(boot->seed, sizeof(boot->seed), &err) < 0 || seed_reseed(&err) < 0)
        log_warn(NULL, "cannot seed the random generator; continuing with the kernel's own entropy",
                 F_ERR(&err));
    if (seed_clock(boot->wall_ns + (clone ? 0 : seed_uptime()), &err) < 0)
        log_warn(NULL, "cannot set the clock; continuing until the host sets it", F_ERR(&err));
    if (seed_identity(&err) < 0)
        log_warn(NULL, "cannot set host name and machine id; continuing with those of the image",
                 F_ERR(&err));
}

static bool all_zero(const uint8_t *data, size_t len)
{
    uint8_t any = 0;

    for (size_t i = 0; i < len; i++)
        any |= data[i];
    return any == 0;
}

/* A template may be saved in the middle of a read. Its clone would then read the second half from
 * another block, so a block counts only if two reads agree. */
static int read_whole(struct link *l, uint8_t raw[LINK_BOOT_BYTES], struct err *err)
{
    uint8_t again[LINK_BOOT_BYTES];
    int r = l->opts.read_boot(l->opts.arg, raw, LINK_BOOT_BYTES, err);

    for (int i = 0; r == 0 && i < READ_TRIES; i++) {
        r = l->opts.read_boot(l->opts.arg, again, sizeof(again), err);
        if (r == 0 && memcmp(again, raw, sizeof(again)) == 0)
            break;
        memcpy(raw, again, sizeof(again));
        if (i == READ_TRIES - 1)
            r = err_set(err, ERR_INVALID, "%s changed between reads, %d times", LINK_BOOT_FILE,
                        READ_TRIES);
    }
    mem_wipe(again, sizeof(again));
    return r;
}

/* A new token means that this VM is a clone that has just started. */
static int refresh(struct link *l, struct err *err)
{
    uint8_t raw[LINK_BOOT_BYTES];
    struct link_boot boot;
    int r = read_whole(l, raw, err);

    if (r == 0 && link_boot_decode(raw, &boot) < 0)
        r = err_set(err, ERR_INVALID, "%s is damaged", LINK_BOOT_FILE);
    mem_wipe(raw, sizeof(raw));
    if (r < 0)
        return err_wrap(err, "boot block");
    if (all_zero(boot.token, sizeof(boot.token))) {
        l->have_token = false;
        r = err_set(err, ERR_UNAVAILABLE, "the boot block has no token yet");
    } else if (!l->have_token || !link_token_equal(l->token, boot.token)) {
        memcpy(l->token, boot.token, sizeof(l->token));
        l->cid = boot.cid;
        l->vsock_port = boot.vsock_port;
        l->have_token = true;
        if (l->looked && !boot.repeat && l->opts.on_clone)
            l->opts.on_clone(l->opts.arg);
        if (!l->opts.no_seed)
            apply(&boot, l->looked);
        if (l->opts.on_level && boot.log_level > 0)
            l->opts.on_level(l->opts.arg, boot.log_level - 1);
    }
    l->looked = true;
    mem_wipe(&boot, sizeof(boot));
    return r;
}

bool link_is_foreign(const struct link *l)
{
    return l->opts.transport == LINK_VSOCK && !l->looked;
}

int link_await_token(struct ctx *ctx, struct link *l, struct err *err)
{
    bool told = false;

    while (refresh(l, err) < 0) {
        if (link_is_foreign(l)) {
            err_clear(err);
            return 0;
        }
        if (err->code != ERR_UNAVAILABLE)
            return -1;
        if (!told && l->opts.on_waiting)
            l->opts.on_waiting(l->opts.arg);
        told = true;
        if (fiber_sleep(ctx, TOKEN_PAUSE_NS, err) < 0)
            return -1;
    }
    return 0;
}

/* --- connecting --- */

static int socket_connect(struct ctx *ctx, int fd, const struct sockaddr *addr, socklen_t len,
                          struct err *err)
{
    struct ctx bounded = ctx_with_timeout(ctx, CONNECT_NS);
    int r, failure = 0;
    socklen_t size = sizeof(failure);

    do
        r = connect(fd, addr, len);
    while (r < 0 && errno == EINTR);
    if (r == 0)
        return 0;
    if (errno != EINPROGRESS)
        return err_sys(err, errno, "connect");
    if (loop_wait_fd(&bounded, fd, POLLOUT, "host to accept", err) < 0)
        return err->code == ERR_DEADLINE ? err_sys(err, ETIMEDOUT, "connect") : -1;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &failure, &size) < 0)
        return err_sys(err, errno, "SO_ERROR");
    return failure ? err_sys(err, failure, "connect") : 0;
}

static int set_blocking(int fd, struct err *err)
{
    int flags = fcntl(fd, F_GETFL);

    if (flags < 0 || fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) < 0)
        return err_sys(err, errno, "make a socket blocking");
    return 0;
}

static int send_preface(const struct link *l, uint32_t port, int fd, struct err *err)
{
    struct link_preface preface = { .port = port };
    uint8_t raw[LINK_PREFACE_BYTES];

    memcpy(preface.token, l->token, sizeof(preface.token));
    link_preface_encode(&preface, raw);
    /* Always fits into the buffer of a fresh connection. */
    ssize_t n = send(fd, raw, sizeof(raw), MSG_NOSIGNAL);
    int sent_errno = errno;
    mem_wipe(raw, sizeof(raw));
    mem_wipe(&preface, sizeof(preface));
    if (n < 0)
        return err_sys(err, sent_errno, "send the preface");
    return n == sizeof(raw) ? 0
                            : err_set(err, ERR_INTERNAL,
                                      "cannot send the preface: only %zd bytes were accepted", n);
}

static int dial_tcp(struct ctx *ctx, struct link *l, int fd, struct err *err)
{
    struct sockaddr_in to = {
        .sin_family = AF_INET,
        .sin_port = htons(l->opts.host_port ? l->opts.host_port : LINK_TCP_PORT),
        .sin_addr.s_addr = l->opts.host_addr ? htonl(l->opts.host_addr) : inet_addr(LINK_HOST_ADDR),
    };
    int on = 1;

    if (socket_connect(ctx, fd, (struct sockaddr *)&to, sizeof(to), err) < 0)
        return -1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)); /* only slower without */
    return 0;
}

/* A clone has its template's CID until the kernel has handled the device's event; what it sends
 * until then the host drops. */
static int await_cid(struct ctx *ctx, uint32_t cid, struct err *err)
{
    struct ctx bounded = ctx_with_timeout(ctx, CONNECT_NS);
    AUTO_FD int fd = open("/dev/vsock", O_RDONLY | O_CLOEXEC);
    uint32_t now = 0;

    if (fd < 0)
        return err_sys(err, errno, "open /dev/vsock");
    while (ioctl(fd, IOCTL_VM_SOCKETS_GET_LOCAL_CID, &now) == 0 && now != cid)
        if (fiber_sleep(&bounded, CID_PAUSE_NS, err) < 0)
            return err_wrap(err, "the VM has vsock CID %u, not %u", now, cid);
    return 0;
}

static int dial_vsock(struct ctx *ctx, struct link *l, uint32_t port, int fd, struct err *err)
{
    const struct sockaddr_vm to = {
        .svm_family = AF_VSOCK,
        .svm_port = l->vsock_port ? l->vsock_port : port,
        .svm_cid = l->opts.host_addr ? l->opts.host_addr : VMADDR_CID_HOST,
    };
    const struct timeval patience = { .tv_sec = CONNECT_NS / NS_PER_S }; /* 2 s without */

    if (l->cid && await_cid(ctx, l->cid, err) < 0)
        return -1;
    (void)setsockopt(fd, AF_VSOCK, SO_VM_SOCKETS_CONNECT_TIMEOUT, &patience, sizeof(patience));
    return socket_connect(ctx, fd, (const struct sockaddr *)&to, sizeof(to), err);
}

static int link_dial(struct ctx *ctx, struct dialer *d, uint32_t port, int *ret_fd, struct err *err)
{
    struct link *l = CONTAINER_OF(d, struct link, dialer);
    bool tcp = l->opts.transport == LINK_TCP;

    if (refresh(l, err) < 0) {
        if (!link_is_foreign(l))
            return -1;
        err_clear(err);
    }
    AUTO_FD int fd =
        socket(tcp ? AF_INET : AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return err_sys(err, errno, "socket");
    if ((tcp ? dial_tcp(ctx, l, fd, err) : dial_vsock(ctx, l, port, fd, err)) < 0 ||
        (!link_is_foreign(l) && send_preface(l, port, fd, err) < 0) || set_blocking(fd, err) < 0)
        return -1;
    *ret_fd = TAKE_FD(fd);
    return 0;
}

static const struct dialer_ops link_ops = { .dial = link_dial };
