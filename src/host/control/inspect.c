#include "host/control/inspect.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/span.h"
#include "host/bridge/guest.h"
#include "host/control/container.h"
#include "host/control/events.h"
#include "host/control/registry.h"
#include "host/control/vm.h"
#include "host/control/vm_clock.h"
#include "host/device/plan9.h"
#include "host/device/scsi.h"
#include "host/device/vpci.h"
#include <unistd.h>

#define MEASURE_LIMIT (5 * NS_PER_S) /* less than lcow(1) waits */

static void put_boot(struct jsw *w, const struct timeline *t)
{
    uint64_t first = UINT64_MAX;

    for (unsigned i = 0; t && i < t->n; i++)
        first = t->spans[i].start < first ? t->spans[i].start : first;
    jsw_arr(w, "boot");
    for (unsigned i = 0; t && i < t->n; i++) {
        const struct timeline_span *s = &t->spans[i];

        jsw_obj(w, NULL);
        jsw_str(w, "track", span_track_name(s->track));
        jsw_str(w, "name", s->name);
        jsw_u64(w, "start_ns", s->start - first);
        if (s->end)
            jsw_u64(w, "end_ns", s->end - first);
        jsw_end_obj(w);
    }
    jsw_end_arr(w);
}

/* The guest's, against ours: too fast by so much at least and at most. */
static void put_clock(struct jsw *w, const struct vm *vm)
{
    const struct vm_clock c = vm_clock(vm);

    jsw_obj(w, "clock");
    jsw_str(w, "state", vm_clock_verdict_name(c.verdict));
    jsw_i64(w, "low_ppm", c.low_ppm);
    jsw_i64(w, "high_ppm", c.high_ppm);
    jsw_end_obj(w);
}

static void put_vm(struct jsw *w, struct vm *vm)
{
    const struct vm_parts *p = vm_parts(vm);
    struct vmm_info info = { 0 };

    jsw_obj(w, "vm");
    jsw_str(w, "state", vm_state_name(vm_state(vm)));
    jsw_str(w, "stage", vm_stage_name(vm_parts(vm)->stage));
    jsw_str(w, "runtime_id", p->uuid);
    vm_info(vm, &info);
    jsw_str(w, "backend", info.backend);
    jsw_str(w, "vmm_version", info.version);
    jsw_str(w, "kernel", p->kernel);
    jsw_bool(w, "emulated", info.emulated);
    jsw_bool(w, "clone", info.clone);
    put_clock(w, vm);
    jsw_i64(w, "pid", info.pid);
    jsw_u64(w, "memory_mib", p->size.memory_mib);
    jsw_u64(w, "cpus", p->size.cpus);
    jsw_str(w, "cpu_group", p->cpu_group ? p->cpu_group : "");
    jsw_u64(w, "cpu_limit", p->wishes.cpu_limit);
    jsw_u64(w, "cpu_weight", p->wishes.cpu_weight);
    jsw_u64(w, "disk_iops", p->wishes.disk_iops);
    jsw_u64(w, "disk_bytes_per_s", p->wishes.disk_bytes_per_s);
    jsw_u64(w, "started_ns", vm_parts(vm)->started_wall_ns);
    jsw_u64(w, "oldest_call_ns", p->guest->ops->oldest_call(p->guest));
    jsw_bool(w, "log_lost", p->guest->ops->log_lost(p->guest));
    put_boot(w, p->vmm->timeline);
    jsw_arr(w, "disks");
    if (p->scsi)
        scsi_describe(p->scsi, w);
    jsw_end_arr(w);
    jsw_arr(w, "shares");
    if (p->plan9)
        plan9_describe(p->plan9, w);
    jsw_end_arr(w);
    jsw_arr(w, "devices");
    if (p->vpci)
        vpci_describe(p->vpci, w);
    jsw_end_arr(w);
    jsw_end_obj(w);
}

static void put_counters(struct jsw *w, const struct registry *r)
{
    jsw_obj(w, "counters");
    jsw_u64(w, "stdio_lost_bytes", r->lost_bytes);
    jsw_u64(w, "log_lines_dropped", log_dropped());
    jsw_u64(w, "events_pending", events_pending(r->o.events));
    jsw_u64(w, "events_dropped", events_dropped(r->o.events));
    if (r->o.spans) {
        jsw_u64(w, "spans_sent", r->o.spans->sent);
        jsw_u64(w, "spans_lost", r->o.spans->lost);
    }
    jsw_end_obj(w);
    jsw_obj(w, "failures");
    for (int i = 0; i < REASON_COUNT; i++)
        if (log_failures((enum reason)i) > 0)
            jsw_u64(w, reason_name((enum reason)i), log_failures((enum reason)i));
    jsw_end_obj(w);
}

void registry_measure(struct ctx *ctx, struct registry *r)
{
    struct ctx limited = ctx_with_timeout(ctx, MEASURE_LIMIT);
    AUTO(registry_release_all) struct container **all = registry_all(r);

    for (struct container **c = all; *c; c++)
        container_measure(&limited, *c);
}

char *registry_inspect(struct registry *r)
{
    struct jsw w;
    size_t len;

    jsw_init(&w, JSW_PLAIN);
    jsw_obj(&w, NULL);
    jsw_str(&w, "version", LCOW_VERSION);
    jsw_str(&w, "namespace", r->ns);
    jsw_str(&w, "sandbox", r->id);
    jsw_i64(&w, "pid", getpid());
    jsw_u64(&w, "now_ns", loop_wall(r->o.loop));
    if (r->vm)
        put_vm(&w, r->vm);
    else
        jsw_null(&w, "vm");
    put_counters(&w, r);
    jsw_arr(&w, "containers");
    for (size_t i = 0; i < r->n_containers; i++)
        container_describe(r->containers[i], &w);
    jsw_end_arr(&w);
    jsw_end_obj(&w);
    return jsw_take(&w, &len);
}
