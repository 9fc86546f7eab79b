/* vm.c - the VM controller: states, life, queries. How it boots is in vm_boot.c, how it ends in
 * vm_end.c, processes in vm_exec.c. */
#include "host/control/vm.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/str.h"
#include "host/bridge/guest.h"
#include "host/control/vm_priv.h"
#include "host/device/plan9.h"
#include "host/device/scsi.h"
#include "host/device/vpci.h"
#include "host/jail/cgroup.h"
#include "host/jail/jail.h"
#include <stdio.h>
#include <stdlib.h>

#define CPU_PERIOD_US 100000
#define CPU_QUOTA_MIN_US 1000 /* the kernel refuses less */

static const char *const states[] = { "New",      "Prepared", "Booting", "Running",
                                      "Stopping", "Ended",    "Gone" };
static const char *const events[] = {
    "be prepared", "boot", "come up", "stop", "end", "be released", "fail to be released"
};
static const struct fsm_edge edges[] = {
    { VM_NEW, VM_EV_PREPARED, VM_PREPARED },
    { VM_PREPARED, VM_EV_BOOT, VM_BOOTING },
    { VM_BOOTING, VM_EV_UP, VM_RUNNING },
    { VM_NEW, VM_EV_STOP, VM_STOPPING }, /* before its fiber has run, or it was never started */
    { VM_PREPARED, VM_EV_STOP, VM_STOPPING },
    { VM_BOOTING, VM_EV_STOP, VM_STOPPING },
    { VM_RUNNING, VM_EV_STOP, VM_STOPPING },
    { VM_BOOTING, VM_EV_ENDED, VM_ENDED }, /* by itself */
    { VM_RUNNING, VM_EV_ENDED, VM_ENDED },
    { VM_STOPPING, VM_EV_ENDED, VM_ENDED },
    { VM_STOPPING, VM_EV_RELEASE_FAILED, VM_STOPPING }, /* it does not even end */
    { VM_ENDED, VM_EV_RELEASE_FAILED, VM_ENDED },
    { VM_ENDED, VM_EV_RELEASED, VM_GONE },
};

FSM_DEFINE(vm_fsm, "vm", states, VM_STATE_COUNT, events, VM_EV_COUNT, edges);

static void stage_reached(void *arg, enum vm_stage stage)
{
    struct vm *vm = arg;

    if (stage <= vm->p.stage || stage >= VM_STAGE_COUNT)
        return; /* it only ever rises */
    vm->p.stage = stage;
    uint64_t now = loop_now(vm->o.loop);

    span_add(vm->p.vmm->timeline, TRACK_HOST, vm_stage_name(stage), now, now);
    if (vm->on_stage)
        vm->on_stage(vm->on_stage_arg, stage);
}

struct vm *vm_new(struct loop *loop, struct vmm *vmm, struct guest *guest)
{
    struct vm *vm = mem_new(struct vm);

    vm->o.loop = loop;
    vm->p.vmm = vmm;
    vm->p.guest = guest;
    vm->refs = 1;
    gate_init(&vm->gate, "vm");
    gate_init(&vm->p.size_gate, "vm.size");
    waitq_init(&vm->changed);
    cancel_init(&vm->p.life, NULL);
    latch_init(&vm->clock_set);
    latch_init(&vm->ready);
    latch_init(&vm->scratch_made);
    latch_init(&vm->first_start);
    fibers_init(&vm->fibers);
    vmm->on_stage = stage_reached;
    vmm->on_stage_arg = vm;
    return vm;
}

struct vm *vm_ref(struct vm *vm)
{
    if (vm)
        vm->refs++;
    return vm;
}

void vm_unref(struct vm *vm)
{
    if (--vm->refs > 0)
        return;
    scsi_free(vm->p.scsi);
    plan9_free(vm->p.plan9);
    vpci_free(vm->p.vpci);
    vm->p.vmm->on_stage = NULL;
    vm->p.guest->ops->free(vm->p.guest);
    vm->p.vmm->ops->free(vm->p.vmm);
    cancel_release(&vm->p.life);
    free(vm->p.cgroup_path);
    free(vm->p.scratch_path);
    free(vm->p.kernel);
    free(vm->p.cpu_group);
    free(vm->id);
    free(vm);
}

void vm_free(struct vm *vm)
{
    if (!vm)
        return;
    if (vm->reaping || vm->op || vm->calls > 0) {
        fprintf(stderr, "vm: %s freed while it is in use\n", vm->id ? vm->id : "(no id)");
        abort();
    }
    vm_unref(vm);
}

struct ctx vm_own_ctx(const struct vm *vm)
{
    return vm->o.id ? ctx_background(vm->o.loop, LK_SANDBOX_ID, vm->o.id)
                    : ctx_background(vm->o.loop, LK_UVM_ID, vm->id ? vm->id : "");
}

/* --- use --- */

struct vm_parts *vm_parts(struct vm *vm)
{
    return &vm->p;
}

void vm_hold(struct vm *vm)
{
    vm->calls++;
}

void vm_drop(struct vm *vm)
{
    if (--vm->calls == 0)
        waitq_wake_all(&vm->changed);
}

const struct vm_parts *vm_enter(struct vm *vm, const char *what, struct err *err)
{
    if (!vm)
        err_because(err, REASON_VM_ENDED, ERR_UNAVAILABLE, "%s: there is no VM", what);
    else if (vm->state < VM_RUNNING)
        err_because(err, REASON_WRONG_STATE, ERR_STATE, "the VM is %s, cannot %s",
                    vm_state_name(vm->state), what);
    else if (vm->state > VM_STOPPING || vm->p.life.fired)
        err_because(err, REASON_VM_ENDED, ERR_UNAVAILABLE, "%s: the VM is stopping", what);
    else {
        vm_hold(vm);
        return &vm->p;
    }
    return NULL;
}

void vm_leave(const struct vm_parts *in)
{
    vm_drop((struct vm *)in);
}

void vm_container_started(struct vm *vm, bool ok)
{
    latch_set(&vm->first_start);
    if (ok)
        vm_clock_check(vm);
}

struct timeline *vm_timeline(const struct vm *vm)
{
    return vm ? vm->p.vmm->timeline : NULL;
}

/* --- its size --- */

static int set_memory(struct ctx *ctx, struct vm *vm, uint32_t mib, struct err *err)
{
    const struct vm_parts *p = &vm->p;
    bool grows = mib > p->size.memory_mib;
    struct err ignored = ERR_INIT;
    int r;

    if (!p->vmm->ops->set_memory)
        return vmm_unsupported("set_memory", err);
    r = p->vmm->ops->set_memory(ctx, p->vmm, mib, err);
    if (r < 0 && err->code == ERR_RANGE)
        return -1; /* nothing has changed */
    vm->memory_unsure = r < 0;
    /* If the VM could not grow, the next update asks again. If it could not shrink, its size
     * counts as shrunk: the guest may return the memory at any time. */
    if (r == 0 || !grows)
        vm->p.size.memory_mib = mib;
    if (p->guest->ops->limit_pods(ctx, p->guest, &ignored) < 0)
        log_warn(ctx, "cannot adapt the pods' memory limit in the guest to the VM's memory",
                 F_ERR(&ignored));
    return r;
}

static int set_cpus(struct ctx *ctx, struct vm *vm, uint32_t cpus, struct err *err)
{
    struct vmm *vmm = vm->p.vmm;

    if (!vmm->ops->set_cpus)
        return vmm_unsupported("set_cpus", err);

    int r = vmm->ops->set_cpus(ctx, vmm, cpus, err);

    vm->cpus_unsure = r < 0 && err->code != ERR_RANGE;
    if (r == 0)
        vm->p.size.cpus = cpus;
    return r;
}

int vm_resize(struct ctx *ctx, struct vm *vm, const struct sizing *to, bool exactly,
              struct err *err)
{
    bool memory = to->memory_mib != vm->p.size.memory_mib || (exactly && vm->memory_unsure);
    bool cpus = to->cpus != vm->p.size.cpus || (exactly && vm->cpus_unsure);

    if (!memory && !cpus)
        return 0;

    AUTO(vm_leave) const struct vm_parts *in = vm_enter(vm, "resize the VM", err);
    struct err second = ERR_INIT;
    int r = !in || (memory && set_memory(ctx, vm, to->memory_mib, err) < 0) ? -1 : 0;

    /* A guest may keep memory that it cannot move; it gives vCPUs back all the same. */
    if (in && cpus && (r == 0 || exactly) &&
        set_cpus(ctx, vm, to->cpus, r == 0 ? err : &second) < 0)
        r = -1;
    return r < 0 ? err_wrap(err, "resize the VM") : 0;
}

/* --- processors of the host --- */

int vm_limit_cpu(struct ctx *ctx, struct vm *vm, uint64_t quota, uint64_t shares, struct err *err)
{
    const struct annotations *w = &vm->p.wishes;
    uint64_t most = (uint64_t)w->cpu_limit * vm->p.size.cpus; /* 100000 us is one CPU's period */
    struct cgroup_cpu cpu = { .quota = quota,
                              .period = CPU_PERIOD_US,
                              .shares = shares,
                              .weight = w->cpu_weight,
                              .must = w->cpu_limit || w->cpu_weight };

    if (most && most < CPU_QUOTA_MIN_US)
        most = CPU_QUOTA_MIN_US;
    if (most && (!quota || quota > most))
        cpu.quota = most;
    if (cgroup_set_cpu(ctx, vm->p.cgroup, &cpu, err) < 0)
        return err_wrap(err, "limit the VM's processor time on the host");
    return 0;
}

int vm_set_cpu_group(struct ctx *ctx, struct vm *given, const char *name, struct err *err)
{
    AUTO(vm_unref) struct vm *vm = vm_ref(given);
    AUTO_FREE char *cpus = NULL;

    if (!vm->o.config) /* of `lcow boot` */
        return err_because(err, REASON_CGROUP_FAILED, ERR_STATE, "the VM has no cgroup of its own");
    if (cpugroup_read(vm->o.config->cpu_group_dir, name, &cpus, err) < 0)
        return -1;
    if (cgroup_set_cpuset(ctx, vm->p.cgroup, cpus, err) < 0)
        return err_wrap_because(err, REASON_CGROUP_FAILED, "CPU group %s", name);
    free(vm->p.cpu_group);
    vm->p.cpu_group = str_dup(name);
    return 0;
}

int vm_raise_oom_score(struct ctx *ctx, struct vm *vm, int adj, struct err *err)
{
    struct vmm_info info;

    if (adj < -JAIL_OOM_SCORE_MAX || adj > JAIL_OOM_SCORE_MAX)
        return err_set(err, ERR_INVALID, "invalid oom_score_adj %d: must be -%d–%d", adj,
                       JAIL_OOM_SCORE_MAX, JAIL_OOM_SCORE_MAX);
    if (vm->o.set_oom_score_adj && adj <= vm->o.oom_score_adj)
        return 0;
    vm_info(vm, &info);
    if (info.pid && jail_oom_score(ctx, info.pid, adj, err) < 0)
        return err_wrap(err, "the VM's process on the host");
    vm->o.set_oom_score_adj = true; /* also for a QEMU that starts later */
    vm->o.oom_score_adj = adj;
    return 0;
}

/* --- queries --- */

enum vm_state vm_state(const struct vm *vm)
{
    return vm->state;
}

const char *vm_state_name(enum vm_state s)
{
    return fsm_state_name(&vm_fsm, s);
}

void vm_info(struct vm *vm, struct vmm_info *ret)
{
    *ret = (struct vmm_info){ 0 };
    vm->p.vmm->ops->info(vm->p.vmm, ret);
}

void vm_console_tail(struct vm *vm, size_t max, struct sbuf *out)
{
    vm->p.vmm->ops->console_tail(vm->p.vmm, max, out);
}

void vm_on_stage(struct vm *vm, void (*fn)(void *arg, enum vm_stage stage), void *arg)
{
    vm->on_stage = fn;
    vm->on_stage_arg = arg;
}
