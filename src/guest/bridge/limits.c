#include "guest/bridge/limits.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define SYSCTL_MAX 4096
#define STACK_BYTES (16 * 1024)
#define THREAD_BYTES (8 * STACK_BYTES) /* kernel/fork.c: an eighth of the memory for stacks */
#define TCP_BYTES (16 * 4096)          /* net/ipv4/tcp.c: a page for so much; udp.c: two */

/* Up to three numbers, as the kernel's own formulas have them (Linux 6.1): total / per * times, at
 * most max (0: no maximum). */
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
        log_warn(NULL, "a limit of the kernel stays low", F_STR("path", path),
                 F_STR("error", strerror(-r)));
}

void limits_raise(const char *root, uint64_t total)
{
    struct rlimit have;

    for (size_t i = 0; i < ARRAY_LEN(limits); i++)
        raise_one(root, &limits[i], total);
    /* For what we start from now on; kernel/fork.c again. */
    rlim_t want = (rlim_t)(total / THREAD_BYTES / 2);
    if (getrlimit(RLIMIT_NPROC, &have) == 0 && have.rlim_max < want) {
        const struct rlimit nproc = { want, want };
        (void)setrlimit(RLIMIT_NPROC, &nproc); /* root has none anyway */
    }
}
