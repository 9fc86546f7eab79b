#include "tool/lib/cost.h"
#include "api/cgroups_v1.pb-c.h"
#include "api/cgroups_v2.pb-c.h"
#include "api/task.pb-c.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/loop.h"
#include "host/rpc/rpc_client.h"
#include "proto/pb.h"
#include "tool/lib/shims.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TASK_SERVICE "containerd.task.v2.Task"
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
    const json_t *vm = s->doc ? json_object_get(s->doc, "vm") : NULL;
    const json_t *list = s->doc ? json_object_get(s->doc, "containers") : NULL;
    int64_t vmm = json_integer_value(json_object_get(vm, "pid"));

    c->shim_pss = pss_of(s->pid);
    c->vmm_pss = pss_of(vmm);
    c->host_cpu_ns = cpu_of(s->pid) + cpu_of(vmm);
    for (size_t i = 0; i < json_array_size(list); i++) {
        int64_t pid = json_integer_value(json_object_get(json_array_get(list, i), "pid"));
        uint64_t pss = pss_of(pid);

        c->anchors += pss > 0;
        c->anchors_pss += pss;
    }
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
    const json_t *list = s->doc ? json_object_get(s->doc, "containers") : NULL;
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
        if (!req.id || rpc_client_call(ctx, client, TASK_SERVICE, "Stats", &req,
                                       &stats_response__descriptor, (void **)&resp, err) < 0)
            return -1;
        add_stats(resp->stats, c);
        c->containers++;
    }
    c->guest = true;
    return 0;
}

void cost_measure(struct ctx *ctx, const struct shim *shim, struct cost *ret)
{
    struct ctx limited = ctx_with_timeout(ctx, STATS_LIMIT);
    struct err ignored = ERR_INIT; /* then there are no figures */

    *ret = (struct cost){ 0 };
    host_side(shim, ret);
    (void)guest_side(&limited, shim, ret, &ignored);
    ret->at = loop_now(ctx->loop);
}

struct measuring {
    struct ctx *ctx;
    const struct shim *shim;
    struct cost *ret;
};

static void measure_main(void *arg)
{
    struct measuring *m = arg;

    cost_measure(m->ctx, m->shim, m->ret);
}

void cost_measure_all(struct ctx *ctx, const struct shims *shims, struct cost *ret)
{
    AUTO_FREE struct measuring *m = mem_zalloc((shims->n + 1) * sizeof(*m));
    struct ctx root = ctx_root(ctx->loop); /* each has its limit; they use what is on our stack */
    struct err ignored = ERR_INIT;
    struct group group;

    group_init(&group);
    for (size_t i = 0; i < shims->n; i++) {
        const struct shim *s = &shims->v[i];

        m[i] = (struct measuring){ ctx, s, &ret[i] };
        group_go(&group, ctx->loop, measure_main, &m[i], "measure %s/%s", s->ns, s->id);
    }
    (void)group_wait(&root, &group, "the sandboxes' figures", &ignored);
}
