#include "guest/bridge/hotplug.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/str.h"
#include "guest/runtime/cgroup.h"
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <linux/netlink.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/sysinfo.h>

#define CPU_ROOT "/sys/devices/system/cpu"
#define EVENT_MAX 4096
#define SYSFS_MAX 4096
#define GROUP_KERNEL 1
#define SYSCTL_MAX 4096
#define STACK_BYTES (16 * 1024)
#define THREAD_BYTES (8 * STACK_BYTES) /* kernel/fork.c: an eighth of the memory for stacks */
#define TCP_BYTES (16 * 4096)          /* net/ipv4/tcp.c: a page for so much; udp.c: two */

/* Up to three numbers, as the kernel's own formulas have them (Linux 6.1) but for epoll: total /
 * per * times, at most max (0: no maximum). */
static const struct limit {
    const char *path;
    unsigned n;
    struct {
        uint64_t per, times, max;
    } v[3];
} limits[] = {
    { "kernel/threads-max", 1, { { THREAD_BYTES, 1, 0 } } },
    /* fs/file_table.c: a tenth of the memory, 1 KiB a file. */
    { "fs/file-max", 1, { { 10 * 1024, 1, 0 } } },
    /* fs/notify/inotify: 1 % of the memory, about 1 KiB a watch. */
    { "fs/inotify/max_user_watches", 1, { { 100 * 1024, 1, 1048576 } } },
    /* fs/eventpoll.c: 128 bytes a watch, counted per user. Root of all containers and the agent
       share one count. A container reaches its memory limit before this one. */
    { "fs/epoll/max_user_watches", 1, { { 128, 1, 0 } } },
    { "net/ipv4/tcp_mem",
      3,
      { { 4 * TCP_BYTES, 3, 0 }, { TCP_BYTES, 1, 0 }, { 4 * TCP_BYTES, 6, 0 } } },
    { "net/ipv4/udp_mem",
      3,
      { { 4 * TCP_BYTES, 6, 0 }, { TCP_BYTES, 2, 0 }, { 4 * TCP_BYTES, 12, 0 } } },
    { "net/ipv4/tcp_rmem", 3, { { 1, 1, 4096 }, { 1, 1, 131072 }, { 128, 1, 6 << 20 } } },
    { "net/ipv4/tcp_wmem", 3, { { 1, 1, 4096 }, { 1, 1, 16384 }, { 128, 1, 4 << 20 } } },
};

static uint64_t value(const struct limit *l, unsigned i, uint64_t total)
{
    uint64_t n = total / l->v[i].per * l->v[i].times;

    return l->v[i].max && n > l->v[i].max ? l->v[i].max : n;
}

static void raise_one(const char *root, const struct limit *l, uint64_t total)
{
    AUTO_FREE char *path = str_format("%s/%s", root, l->path), *have = NULL;
    AUTO(sbuf_release) struct sbuf text = { 0 };
    bool more = false;
    size_t len;

    if (file_read_all(path, SYSCTL_MAX, &have, &len) < 0) /* a kernel without it */
        return;
    char *at = have;
    for (unsigned i = 0; i < l->n; i++) {
        uint64_t old = strtoull(at, &at, 10), new = value(l, i, total);

        more = more || new > old;
        sbuf_addf(&text, "%s%" PRIu64, i ? " " : "", new > old ? new : old);
    }
    int r = more ? file_write(path, text.data, text.len, 0644) : 0;
    if (r < 0)
        log_warn(NULL, "cannot raise a kernel limit; it stays as it is", F_STR("path", path),
                 F_STR(LK_ERROR, strerror(-r)));
}

void limits_raise(const char *root, uint64_t total)
{
    struct rlimit have;

    for (size_t i = 0; i < ARRAY_LEN(limits); i++)
        raise_one(root, &limits[i], total);
    /* For processes that the agent starts from now on; kernel/fork.c again. */
    rlim_t want = (rlim_t)(total / THREAD_BYTES / 2);
    if (getrlimit(RLIMIT_NPROC, &have) == 0 && have.rlim_max < want) {
        const struct rlimit nproc = { want, want };
        (void)setrlimit(RLIMIT_NPROC, &nproc); /* root has none anyway */
    }
}

struct hotplug {
    struct loop *loop;
    int fd;
};

enum hotplug_news hotplug_read(const char *text)
{
    const char *path = strchr(text, '@');

    if (!path++)
        return HOTPLUG_NOTHING;
    if (str_starts(text, "add@") && str_starts(path, "/devices/system/cpu/cpu"))
        return HOTPLUG_CPU;
    if (str_starts(path, "/devices/system/memory/memory"))
        return HOTPLUG_MEMORY;
    return HOTPLUG_NOTHING;
}

unsigned hotplug_online(const char *root)
{
    AUTO(closedir) DIR *dir = opendir(root);
    unsigned n = 0;

    for (struct dirent *e; dir && (e = readdir(dir));) {
        if (!str_starts(e->d_name, "cpu") || !isdigit((unsigned char)e->d_name[3]))
            continue;
        AUTO_FREE char *path = str_format("%s/%s/online", root, e->d_name), *text = NULL;
        size_t len;

        /* cpu0 may have no such file: it cannot be taken offline. */
        if (file_read_all(path, SYSFS_MAX, &text, &len) < 0 || text[0] != '0')
            continue;
        int r = file_write(path, "1", 1, 0644);
        if (r < 0)
            log_warn(NULL, "cannot bring a vCPU online", F_STR("cpu", e->d_name),
                     F_STR(LK_ERROR, strerror(-r)));
        else
            n++;
    }
    return n;
}

bool hotplug_has_memory(const char *root)
{
    AUTO(closedir) DIR *dir = opendir(root);
    bool found = false;

    for (struct dirent *e; dir && !found && (e = readdir(dir));) {
        AUTO_FREE char *text = file_text(SYSFS_MAX, "%s/%s/device", root, e->d_name);

        found = text && str_starts(text, "0x0018");
    }
    return found;
}

static void raise_limit(void)
{
    struct sysinfo si = { 0 };
    struct err err = ERR_INIT;

    (void)sysinfo(&si); /* cannot fail */
    uint64_t total = (uint64_t)si.totalram * si.mem_unit;
    if (cgroup_limit_pods(CGROUP_ROOT, total, &err) < 0)
        log_warn(NULL, "cannot raise the pods' memory limit; it stays as it was", F_ERR(&err));
    limits_raise("/proc/sys", total);
}

static void act(unsigned news)
{
    if (news & HOTPLUG_CPU) {
        unsigned n = hotplug_online(CPU_ROOT);
        if (n > 0)
            log_info(NULL, "vCPUs added", F_U("number", n));
    }
    if (news & HOTPLUG_MEMORY)
        raise_limit();
}

/* Reads all pending events. A lost event may have been of either kind. */
static int drain(int fd, unsigned *news)
{
    char buf[EVENT_MAX + 1];

    for (;;) {
        ssize_t n = recv(fd, buf, EVENT_MAX, MSG_DONTWAIT);
        if (n >= 0) {
            buf[n] = '\0';
            *news |= hotplug_read(buf);
        } else if (errno == ENOBUFS) {
            *news |= HOTPLUG_CPU | HOTPLUG_MEMORY;
        } else if (errno != EINTR) {
            return errno == EAGAIN ? 0 : -errno;
        }
    }
}

static void listen_main(void *arg)
{
    struct hotplug *h = arg;
    struct ctx ctx = ctx_root(h->loop);
    struct err err = ERR_INIT;
    int r = 0;

    while (r == 0 && loop_wait_fd(&ctx, h->fd, POLLIN, "something to be plugged", &err) == 0) {
        unsigned news = 0;

        r = drain(h->fd, &news);
        act(news);
    }
    log_error(&ctx, "hot-plug events are no longer received", F_I("errno", r));
    fd_close(h->fd);
    free(h);
}

int hotplug_start(struct loop *loop, struct err *err)
{
    struct sockaddr_nl sa = { .nl_family = AF_NETLINK, .nl_groups = GROUP_KERNEL };
    AUTO_FD int fd =
        socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_KOBJECT_UEVENT);

    if (fd < 0 || bind(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0)
        return err_sys(err, errno, "listen to the kernel's events");
    struct hotplug *h = mem_new(struct hotplug);
    h->loop = loop;
    h->fd = TAKE_FD(fd);
    fiber_go(loop, listen_main, h, "hotplug");
    /* Handles what was added before the agent listened. */
    act(HOTPLUG_CPU | HOTPLUG_MEMORY);
    return 0;
}
