#include "base/child.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"
#include "host/vmm/qemu/qemu_priv.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Fields 14 and 15 of /proc/PID/stat; the name in field 2 may hold anything. */
int qemu_read_cpu(const char *stat, uint64_t *ret_ns)
{
    const char *p = strrchr(stat, ')');
    uint64_t user, system, hz = (uint64_t)sysconf(_SC_CLK_TCK);

    if (!p || sscanf(p + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %" SCNu64 " %" SCNu64,
                     &user, &system) != 2)
        return -1;
    *ret_ns = (user + system) * (NS_PER_S / hz);
    return 0;
}

static uint64_t kib_behind(const char *text, const char *key)
{
    const char *at = strstr(text, key);

    return at ? strtoull(at + strlen(key), NULL, 10) * 1024 : 0;
}

int qemu_stats(struct ctx *ctx, struct vmm *v, struct vmm_stats *ret, struct err *err)
{
    struct qemu *q = qemu_of(v);
    AUTO_FREE char *path = NULL, *rollup = NULL, *stat = NULL, *maps = NULL;
    size_t len;

    (void)ctx;
    if (!q->proc || child_done(q->proc->child, NULL))
        return err_set(err, ERR_STATE, "the VM does not run");
    path = str_format("/proc/%d/stat", child_pid(q->proc->child));
    rollup = str_format("/proc/%d/smaps_rollup", child_pid(q->proc->child));
    *ret = (struct vmm_stats){ .memory_bytes = qemu_memory_bytes(q) };
    int r = file_read_all(path, 4096, &stat, &len);
    if (r < 0)
        return err_sys(err, -r, "read %s", path);
    if (qemu_read_cpu(stat, &ret->cpu_ns) < 0)
        return err_set(err, ERR_INTERNAL, "%s is not understood", path);
    r = file_read_all(rollup, 8192, &maps, &len);
    if (r < 0)
        return err_sys(err, -r, "read %s", rollup);
    ret->rss_bytes = kib_behind(maps, "\nRss:");
    ret->pss_bytes = kib_behind(maps, "\nPss:");
    return 0;
}
