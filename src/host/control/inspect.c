#include "host/control/inspect.h"
#include "base/json.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/timeline.h"
#include "host/bridge/guest.h"
#include "host/control/registry_priv.h"
#include "host/control/vm.h"
#include "host/control/vm_clock.h"
#include "host/device/network.h"
#include "host/device/plan9.h"
#include "host/device/scsi.h"
#include "host/device/vpci.h"
#include "host/net/net.h"
#include <stdio.h>
#include <unistd.h>

#define MEASURE_LIMIT (5 * NS_PER_S) /* less than lcow(1) waits */

static const char *status_name(enum process_status status)
{
    static const char *const names[] = { "unknown", "created", "running", "stopped", "paused" };

    return names[status];
}

/* What init and execs have in common. */
static void put_process(struct jsw *w, const struct process *p)
{
    struct process_view v;

    process_view(p, &v);
    jsw_str(w, "state", status_name(v.status));
    jsw_u64(w, "guest_pid", p->guest_pid);
    if (v.exited_wall_ns) {
        jsw_u64(w, "exit_status", v.exit_status);
        jsw_u64(w, "exited_ns", v.exited_wall_ns);
    }
}

/* Of a pod, which hang on its first container. */
static void put_interfaces(struct jsw *w, const struct network *n)
{
    jsw_arr(w, "interfaces");
    for (size_t i = 0; i < network_count(n); i++) {
        const struct net_iface *f = network_iface(n, i);
        char mac[18];

        snprintf(mac, sizeof(mac), "%02x:%02x:%02x:%02x:%02x:%02x", f->mac[0], f->mac[1], f->mac[2],
                 f->mac[3], f->mac[4], f->mac[5]);
        jsw_obj(w, NULL);
        jsw_str(w, "name", f->name);
        jsw_str(w, "mac", mac);
        jsw_u64(w, "mtu", f->mtu);
        jsw_arr(w, "addresses");
        for (size_t k = 0; k < f->n_addresses; k++) {
            AUTO_FREE char *text =
                str_format("%s/%u", f->addresses[k].text, f->addresses[k].prefix);
            jsw_str(w, NULL, text);
        }
        jsw_end_arr(w);
        jsw_end_obj(w);
    }
    jsw_end_arr(w);
}

/* What it holds of the VM: shares by their names, devices by their addresses. */
static void put_holdings(struct jsw *w, const struct container *c)
{
    const struct vm_parts *vm = c->r->vm ? vm_parts(c->r->vm) : NULL;

    jsw_arr(w, "shares");
    for (size_t i = 0; vm && vm->plan9 && i < c->n_shares; i++)
        jsw_str(w, NULL, plan9_name(vm->plan9, c->shares[i]));
    jsw_end_arr(w);
    jsw_arr(w, "devices");
    for (size_t i = 0; vm && vm->vpci && i < c->n_devices; i++)
        jsw_str(w, NULL, vpci_address(vm->vpci, c->devices[i]));
    jsw_end_arr(w);
}

static void put_container(struct jsw *w, const struct container *c)
{
    static const char *const writes[] = {
        [ROOT_DISCARDED] = "discarded", [ROOT_KEPT] = "kept", [ROOT_READ_ONLY] = "read-only"
    };

    jsw_obj(w, NULL);
    jsw_str(w, "id", c->id);
    jsw_str(w, "pod", c->pod_id);
    jsw_str(w, "bundle", c->bundle);
    jsw_str(w, "name", c->log_name);
    jsw_str(w, "log_directory", c->log_dir);
    jsw_str(w, "stdout", c->log_uri);
    jsw_u64(w, "pid", c->pid);
    if (c->network && network_state(c->network) == NETWORK_ATTACHED)
        put_interfaces(w, c->network);
    if (c->init)
        put_process(w, c->init);
    else
        jsw_str(w, "state", "creating");
    jsw_arr(w, "execs");
    LIST_EACH (&c->execs, at) {
        const struct process *p = LIST_ENTRY(at, struct process, node);

        jsw_obj(w, NULL);
        jsw_str(w, "id", p->exec_id);
        put_process(w, p);
        jsw_end_obj(w);
    }
    jsw_end_arr(w);
    put_holdings(w, c);
    jsw_str(w, "rootfs", c->init ? writes[c->root_writes] : NULL);
    if (c->scratch_bytes)
        jsw_u64(w, "scratch_bytes", c->scratch_bytes);
    else
        jsw_null(w, "scratch_bytes");
    jsw_end_obj(w);
}

static void put_boot(struct jsw *w, const struct timeline *t)
{
    uint64_t first = UINT64_MAX;

    for (unsigned i = 0; t && i < t->n; i++)
        first = t->spans[i].start < first ? t->spans[i].start : first;
    jsw_arr(w, "boot");
    for (unsigned i = 0; t && i < t->n; i++) {
        const struct timeline_span *s = &t->spans[i];

        jsw_obj(w, NULL);
        jsw_str(w, "track", timeline_track_name(s->track));
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
    jsw_str(w, "stage", vm_stage_name(vm_stage(vm)));
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
    jsw_u64(w, "started_ns", vm_started_at(vm));
    jsw_u64(w, "oldest_call_ns", p->guest->ops->oldest_call(p->guest));
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
    jsw_end_obj(w);
}

void registry_measure(struct ctx *ctx, struct registry *r)
{
    struct ctx limited = ctx_with_timeout(ctx, MEASURE_LIMIT);
    AUTO_FREE struct container **all = NULL;
    size_t n = 0, cap = 0;

    LIST_EACH (&r->containers, at) { /* others come and go while we wait */
        all = mem_grow(all, n, &cap, sizeof(struct container *));
        all[n++] = container_ref(LIST_ENTRY(at, struct container, node));
    }
    for (size_t i = 0; i < n; i++) {
        AUTO(json_decref) json_t *ignored = NULL;
        struct err none = ERR_INIT; /* it stays as it was known */

        (void)container_stats(&limited, all[i], &ignored, &none);
        container_unref(all[i]);
    }
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
    LIST_EACH (&r->containers, at)
        put_container(&w, LIST_ENTRY(at, struct container, node));
    jsw_end_arr(&w);
    jsw_end_obj(&w);
    return jsw_take(&w, &len);
}
