#include "guest/bridge/limits.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define PAGE 4096
#define SYSCTL_MAX 4096
#define VALUES_MAX 3

/* Up to three numbers, as the kernel's own formulas have them (Linux 6.1). */
struct limit {
    const char *path;
    unsigned n;
    uint64_t (*value)(uint64_t total, unsigned i);
};

/* kernel/fork.c: an eighth of the memory for stacks of 16 KiB. */
static uint64_t threads(uint64_t total, unsigned i)
{
    return total / (8 * 16 * 1024);
}

/* fs/file_table.c: a tenth of the memory, 1 KiB a file. */
static uint64_t files(uint64_t total, unsigned i)
{
    return total / 1024 / 10;
}

/* fs/notify/inotify: 1 % of the memory, about 1 KiB a watch. */
static uint64_t watches(uint64_t total, unsigned i)
{
    uint64_t n = total / 100 / 1024;

    return n > 1048576 ? 1048576 : n;
}

/* net/ipv4/tcp.c and udp.c: in pages; a sixteenth, an eighth. */
static uint64_t tcp_pages(uint64_t total, unsigned i)
{
    uint64_t limit = total / PAGE / 16;

    return i == 0 ? limit / 4 * 3 : i == 1 ? limit : limit / 4 * 6;
}

static uint64_t udp_pages(uint64_t total, unsigned i)
{
    return 2 * tcp_pages(total, i);
}

static uint64_t tcp_receive(uint64_t total, unsigned i)
{
    static const uint64_t v[] = { 4096, 131072, 6 << 20 };
    uint64_t share = total / 128;

    return i == 2 && share < v[2] ? share : v[i];
}

static uint64_t tcp_send(uint64_t total, unsigned i)
{
    static const uint64_t v[] = { 4096, 16384, 4 << 20 };
    uint64_t share = total / 128;

    return i == 2 && share < v[2] ? share : v[i];
}

static const struct limit limits[] = {
    { "kernel/threads-max", 1, threads },          { "fs/file-max", 1, files },
    { "fs/inotify/max_user_watches", 1, watches }, { "net/ipv4/tcp_mem", 3, tcp_pages },
    { "net/ipv4/udp_mem", 3, udp_pages },          { "net/ipv4/tcp_rmem", 3, tcp_receive },
    { "net/ipv4/tcp_wmem", 3, tcp_send },
};

static unsigned read_values(const char *path, uint64_t v[VALUES_MAX])
{
    AUTO_FREE char *text = NULL;
    size_t len;

    if (file_read_all(path, SYSCTL_MAX, &text, &len) < 0)
        return 0;
    int n = sscanf(text, "%" SCNu64 " %" SCNu64 " %" SCNu64, &v[0], &v[1], &v[2]);
    return n < 0 ? 0 : (unsigned)n;
}

static void raise_one(const char *root, const struct limit *l, uint64_t total)
{
    AUTO_FREE char *path = str_format("%s/%s", root, l->path);
    AUTO(sbuf_release) struct sbuf text = { 0 };
    uint64_t have[VALUES_MAX];
    bool more = false;

    if (read_values(path, have) != l->n) /* a kernel without it */
        return;
    for (unsigned i = 0; i < l->n; i++) {
        uint64_t want = l->value(total, i);

        more = more || want > have[i];
        sbuf_addf(&text, "%s%" PRIu64, i ? " " : "", want > have[i] ? want : have[i]);
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
    rlim_t want = (rlim_t)(threads(total, 0) / 2);
    if (getrlimit(RLIMIT_NPROC, &have) == 0 && have.rlim_max < want) {
        const struct rlimit nproc = { want, want };
        (void)setrlimit(RLIMIT_NPROC, &nproc); /* root has none anyway */
    }
}
