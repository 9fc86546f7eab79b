#include "tool/lib/cost.h"
#include "api/cgroups_v1.pb-c.h"
#include "api/cgroups_v2.pb-c.h"
#include "api/task.pb-c.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/fd.h"
#include "base/loop.h"
#include "host/rpc/rpc_client.h"
#include "proto/pb.h"
#include "tool/lib/shims.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STATS_LIMIT (2 * NS_PER_S)
#define PROC_MAX 8192u

/* ---- the host's side */

static uint64_t pss_of(int64_t pid)
{
    AUTO_FREE char *path = str_format("/proc/%" PRId64 "/smaps_rollup", pid), *text = NULL;
    const char *line;
    size_t len;

    if (pid <= 0 || file_read_all(path, PROC_MAX, &text, &len) < 0)
        return 0;
    line = strstr(text, "\nPss:");
    return line ? strtoull(line + strlen("\nPss:"), NULL, 10) * 1024 : 0;
}

/* utime and stime: the 14th and 15th word, the 12th and 13th behind the name in parentheses. */
static uint64_t cpu_of(int64_t pid)
{
    AUTO_FREE char *path = str_format("/proc/%" PRId64 "/stat", pid), *text = NULL;
    char *at;
    size_t len;

    if (pid <= 0 || file_read_all(path, PROC_MAX, &text, &len) < 0 || !(at = strrchr(text, ')')))
        return 0;
    for (int i = 0; at && i < 12; i++)
        at = strchr(at + 1, ' ');
    if (!at)
        return 0;

    uint64_t ticks = strtoull(at, &at, 10);

    ticks += strtoull(at, NULL, 10);
    return ticks * (NS_PER_S / (uint64_t)sysconf(_SC_CLK_TCK));
}

static void host_side(const struct shim *s, struct cost *c)
{
    const json_t *list = json_object_get(s->doc, "containers");
    int64_t vmm = (int64_t)doc_number(json_object_get(s->doc, "vm"), "pid");

    c->shim_pss = pss_of(s->pid);
    c->vmm_pss = pss_of(vmm);
    c->host_cpu_ns = cpu_of(s->pid) + cpu_of(vmm);
    for (size_t i = 0; i < json_array_size(list); i++)
        c->anchors_pss += pss_of((int64_t)doc_number(json_array_get(list, i), "pid"));
}

/* ---- the guest's side */

static void add_stats(const Any *any, struct cost *c)
{
    Cgroups1__Metrics *v1 = NULL;
    Cgroups2__Metrics *v2 = NULL;

    if (pb_any_unpack(any, &cgroups1__metrics__descriptor, (void **)&v1) == 0) {
        if (v1->memory && v1->memory->usage)
            c->guest_memory += v1->memory->usage->usage;
        if (v1->cpu && v1->cpu->usage)
            c->guest_cpu_ns += v1->cpu->usage->total;
    } else if (pb_any_unpack(any, &cgroups2__metrics__descriptor, (void **)&v2) == 0) {
        if (v2->memory)
            c->guest_memory += v2->memory->usage;
        if (v2->cpu)
            c->guest_cpu_ns += v2->cpu->usage_usec * NS_PER_US;
    }
    pb_free(v1);
    pb_free(v2);
}

static int guest_side(struct ctx *ctx, const struct shim *s, struct cost *c, struct err *err)
{
    const json_t *list = json_object_get(s->doc, "containers");
    AUTO(rpc_client_free) struct rpc_client *client = NULL;

    if (!s->doc || shim_connect(ctx, s, &client, err) < 0)
        return -1;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *one = json_array_get(list, i);
        AUTO(pb_free) StatsResponse *resp = NULL;
        StatsRequest req = STATS_REQUEST__INIT;

        if (json_object_get(one, "exited_ns"))
            continue;
        req.id = json_string_value(json_object_get(one, "id"));
        if (!req.id ||
            shim_call(ctx, client, 0, &task__descriptor, "Stats", &req, (void **)&resp, err) < 0)
            return -1;
        add_stats(resp->stats, c);
    }
    c->guest = 1;
    return 0;
}

static void measure(struct ctx *ctx, struct shim *s)
{
    struct ctx limited = ctx_with_timeout(ctx, STATS_LIMIT);
    struct err ignored = ERR_INIT; /* then there are no figures */

    host_side(s, &s->cost);
    (void)guest_side(&limited, s, &s->cost, &ignored);
    s->cost.at = loop_now(ctx->loop);
}

void cost_measure(struct ctx *ctx, struct shims *shims)
{
    shims_each(ctx, shims, measure, "measure");
}
