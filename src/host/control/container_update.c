/* container_update.c - new limits for a container that runs: its own in the guest, and what the VM
 * and QEMU's cgroup on the host need for them.
 *
 * A VM may be shared: it is as large as all limits in it together, never as large as the last one
 * that came (weak spot 24). It grows before the guest has the new limits, and shrinks afterwards. A
 * pod's update that the VM cannot follow fails; with a container's own, which holds in the guest,
 * only growing must succeed. */
#include "base/json.h"
#include "base/log.h"
#include "host/bridge/guest.h"
#include "host/config/sizing.h"
#include "host/control/container_priv.h"
#include "host/jail/cgroup.h"
#include <stdlib.h>

/* --- what all of them need --- */

/* With these limits for one of them. A pod counts while one of its containers lives. */
static void need(struct container *one, const struct spec_limits *changed, struct sizing_all *ret)
{
    struct registry *r = one->r;
    AUTO_FREE struct sizing_pod *pods = mem_zalloc((r->n_containers + 1) * sizeof(*pods));
    size_t n = 0;

    for (size_t i = 0; i < r->n_containers; i++) {
        const struct container *c = r->containers[i];

        if (c == c->p.pod->members[0] && (!container_has_ended(c) || pod_other(c->p.pod, c, true)))
            pod_size(c->p.pod, one, changed, &pods[n++]);
    }
    const struct annotations *w = &vm_parts(r->vm)->wishes;

    sizing_of_pods(r->o.config, &(struct sizing){ w->memory_mib, w->cpus }, pods, n, ret);
}

/* --- the VM --- */

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static int grow(struct ctx *ctx, struct container *c, const struct spec_limits *wanted,
                struct sizing_all *all, struct err *err)
{
    const struct vm_parts *vm = vm_parts(c->p.pod->vm);
    const struct sizing *now = &vm->size;
    bool fixed = vm->wishes.backed || vm->wishes.committed; /* it has all of its memory already */
    uint32_t most = fixed ? now->memory_mib : c->r->o.config->max_memory_mib;

    if (all->memory_mib > most && wanted->memory_bytes > c->p.limits.memory_bytes)
        return err_because(err, REASON_VM_MEMORY_LIMIT, ERR_RANGE,
                           "the VM would need %llu MiB, and %s%u%s",
                           (unsigned long long)all->memory_mib,
                           fixed ? "an annotation fixed its memory at " : "max_memory_mib = ", most,
                           fixed ? " MiB; start the pod again" : "; raise that key");
    if (vm->wishes.numa_host[0] || vm->wishes.node_cpus) /* their CPUs are counted */
        all->cpus = now->cpus;
    if (all->memory_mib > most)
        all->memory_mib = larger(most, now->memory_mib); /* as when it was made */

    const struct sizing to = { larger((uint32_t)all->memory_mib, now->memory_mib),
                               larger(all->cpus, now->cpus) };

    return vm_resize(ctx, c->p.pod->vm, &to, false, err);
}

static int shrink(struct ctx *ctx, struct container *c, const struct sizing_all *all,
                  struct err *err)
{
    const struct sizing to = { (uint32_t)all->memory_mib, all->cpus };
    struct err why = ERR_INIT;

    if (vm_resize(ctx, c->p.pod->vm, &to, true, &why) == 0)
        return 0;
    if (c->kind == SPEC_SANDBOX) {
        *err = why;
        return -1;
    }
    log_warn(ctx, "the VM stays larger than its containers' limits", F_ERR(&why));
    return 0;
}

/* --- the update --- */

static int tell_guest(struct ctx *ctx, struct container *c, json_t *resources, struct err *err)
{
    AUTO(vm_leave) const struct vm_parts *in = vm_enter(c->p.pod->vm, "update a container", err);

    return in ? in->guest->ops->update_container(ctx, in->guest, c->p.guest_id, resources, err)
              : -1;
}

/* QEMU's cgroup is the pod's: a container's own limits hold in the guest only. With an annotation
 * for the VM's limit that follows the number of CPUs. */
static int limit_qemu(struct ctx *ctx, struct container *c, const struct sizing_all *all,
                      struct err *err)
{
    if (c->kind == SPEC_WORKLOAD && !vm_parts(c->p.pod->vm)->wishes.cpu_limit)
        return 0;
    return vm_limit_cpu(ctx, c->p.pod->vm, all->cpu_quota, all->cpu_shares, err);
}

static int apply(struct ctx *ctx, struct container *c, json_t *resources, struct err *err)
{
    struct spec_limits wanted = c->p.limits;
    struct sizing_all all;

    if (spec_limits_update(resources, &wanted, err) < 0)
        return -1;

    AUTO(gate_leave)
    struct gate *held = gate_enter(&vm_parts(c->p.pod->vm)->size_gate, ctx, "vm.size", err);

    if (!held)
        return -1;
    need(c, &wanted, &all);
    if (grow(ctx, c, &wanted, &all, err) < 0 || tell_guest(ctx, c, resources, err) < 0)
        return -1;
    c->p.limits = wanted;
    if (limit_qemu(ctx, c, &all, err) < 0 || shrink(ctx, c, &all, err) < 0)
        return -1;
    /* The annotation's limit is a part of the CPUs that the VM has now. */
    return vm_parts(c->p.pod->vm)->wishes.cpu_limit ? limit_qemu(ctx, c, &all, err) : 0;
}

int container_update(struct ctx *ctx, struct container *given, const char *resources_json,
                     size_t len, struct err *err)
{
    AUTO(container_unref) struct container *c = container_ref(given);
    AUTO(json_decref) json_t *resources = NULL;
    AUTO(gate_leave) struct gate *held = NULL;

    if (!resources_json || js_parse(resources_json, len, SPEC_MAX_BYTES, &resources, err) < 0 ||
        !json_is_object(resources))
        return err_because(err, REASON_UPDATE_FAILED, ERR_INVALID,
                           "update of container %s: no Linux resources in JSON", c->p.id);
    held = gate_enter(&c->gate, ctx, "container.update", err);
    if (!held)
        return -1;
    if (!c->p.listed)
        return err_because(err, REASON_NOT_FOUND, ERR_NOT_FOUND, "no container %s", c->p.id);
    if (c->p.state != CONTAINER_CREATED && c->p.state != CONTAINER_RUNNING &&
        c->p.state != CONTAINER_PAUSED)
        return err_because(err, REASON_WRONG_STATE, ERR_STATE, "container %s is %s, cannot update",
                           c->p.id, fsm_state_name(&container_fsm, c->p.state));
    return apply(ctx, c, resources, err) < 0
               ? err_wrap_because(err, REASON_UPDATE_FAILED, "update container %s", c->p.id)
               : 0;
}
