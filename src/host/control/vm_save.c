/* vm_save.c - a pod's VM that runs. Not saved: its timeline, which is of the boot; its shape, which
 * only a boot reads; its turn to start, which is given back; calls under way, since there are none.
 * The fibers that see its end, the loss of its guest and a step of the host's clock are started
 * again. */
#include "base/saved.h"
#include "host/bridge/guest.h"
#include "host/control/vm_priv.h"
#include "host/device/plan9.h"
#include "host/device/scsi.h"
#include "host/device/vpci.h"
#include "host/files/scratch.h"
#include "host/jail/cgroup.h"
#include "host/ledger/ledger.h"

static void wishes_saved(struct saved *s, struct annotations *w)
{
    saved_u32(s, 1, &w->memory_mib);
    saved_u32(s, 2, &w->cpus);
    saved_u32(s, 3, &w->scratch_quota_mib);
    SAVED_ENUM(s, 4, w->rootfs, CONFIG_ROOTFS_SHARED + 1);
    saved_bool(s, 5, &w->shared_empty_dirs);
    saved_bool(s, 6, &w->said_empty_dirs);
    saved_bool(s, 7, &w->encrypted_scratch);
    saved_bool(s, 8, &w->privileged);
    saved_bool(s, 9, &w->no_writable_shares);
    saved_bool(s, 10, &w->said_shares);
    saved_u32(s, 11, &w->cpu_limit);
    saved_u32(s, 12, &w->cpu_weight);
    saved_u32(s, 13, &w->disk_iops);
    saved_u32(s, 14, &w->disk_bytes_per_s);
    saved_u32(s, 15, &w->low_mmio_mib);
    saved_u32(s, 16, &w->high_mmio_mib);
    saved_u32(s, 17, &w->node_cpus);
    saved_u32(s, 18, &w->node_mib);
    saved_bool(s, 19, &w->committed);
    saved_bool(s, 20, &w->backed);
    saved_bool(s, 21, &w->deferred);
    saved_bool(s, 22, &w->no_timesync);
    saved_text(s, 23, w->cpu_group, sizeof(w->cpu_group));
    saved_text(s, 24, w->kernel_args, sizeof(w->kernel_args));
    saved_text(s, 25, w->numa_host, sizeof(w->numa_host));
    saved_text(s, 26, w->numa_cpus, sizeof(w->numa_cpus));
    saved_text(s, 27, w->numa_mib, sizeof(w->numa_mib));
    saved_text(s, 28, w->numa_prefer, sizeof(w->numa_prefer));
}

static void fields(struct saved *s, struct vm *vm)
{
    struct vm_parts *p = &vm->p;

    saved_str(s, 1, &vm->id);
    saved_str(s, 2, &p->cgroup_path);
    saved_str(s, 3, &p->scratch_path);
    saved_str(s, 4, &p->kernel);
    saved_u32(s, 5, &p->size.memory_mib);
    saved_u32(s, 6, &p->size.cpus);
    saved_str(s, 7, &p->cpu_group);
    saved_text(s, 8, p->uuid, sizeof(p->uuid));
    SAVED_ENUM(s, 9, p->stage, VM_STAGE_COUNT);
    saved_u64(s, 10, &p->started_wall_ns);
    saved_bool(s, 11, &vm->o.set_oom_score_adj);
    saved_int(s, 12, &vm->o.oom_score_adj);
    saved_bool(s, 13, &vm->memory_unsure);
    saved_bool(s, 14, &vm->cpus_unsure);
    saved_bool(s, 15, &vm->clock_checked);
    saved_bool(s, 16, &vm->clock_checking);
    SAVED_ENUM(s, 17, vm->clock.verdict, VM_CLOCK_OFF + 1);
    saved_i64(s, 18, &vm->clock.low_ppm);
    saved_i64(s, 19, &vm->clock.high_ppm);
    saved_bool(s, 20, &vm->first_start.set);
    SAVED_ENUM(s, 22, vm->state, VM_STATE_COUNT);
    if (saved_open(s, 21)) {
        wishes_saved(s, &p->wishes);
        saved_close(s);
    }
}

/* What is behind its own seams. */
static void below(struct saved *s, struct vm *vm)
{
    struct vm_parts *p = &vm->p;

    ledger_saved(s, 30, &p->ledger);
    cgroup_saved(s, 31, p->ledger, &p->cgroup);
    scratch_saved(s, 32, p->ledger, &vm->scratch);
    if (saved_open(s, 33)) {
        p->vmm->ops->saved(p->vmm, s, p->ledger);
        saved_close(s);
    }
    if (saved_open(s, 34)) {
        p->guest->ops->saved(p->guest, s);
        saved_close(s);
    }
}

static void devices(struct saved *s, struct vm *vm)
{
    struct vm_parts *p = &vm->p;

    if (saved_reads(s)) {
        p->scsi = scsi_new(p->vmm, p->guest, SCSI_CONTROLLERS_MAX);
        p->plan9 = plan9_new(p->vmm, p->guest);
        p->vpci = vpci_new(p->vmm, p->guest);
    }
    if (saved_open(s, 35)) {
        scsi_saved(s, p->scsi);
        saved_close(s);
    }
    if (saved_open(s, 36)) {
        plan9_saved(s, p->plan9);
        saved_close(s);
    }
    if (saved_open(s, 37)) {
        vpci_saved(s, p->vpci);
        saved_close(s);
    }
}

static void check(struct saved *s, const struct vm *vm)
{
    if (vm->state != VM_RUNNING || vm->end != VM_END_NONE || vm->p.life.fired || vm->op)
        saved_fail(s, "the VM is %s", vm->end != VM_END_NONE ? "ending" : vm_state_name(vm->state));
    else if (!vm->ready.set || !vm->clock_set.set || !vm->reaping)
        saved_fail(s, "the VM is not ready");
    if (!vm->p.vmm->ops->saved || !vm->p.guest->ops->saved)
        saved_fail(s, "a VM of this kind cannot be saved");
}

static void resume(struct vm *vm)
{
    latch_set(&vm->ready);
    latch_set(&vm->clock_set);
    latch_set(&vm->scratch_made);
    vm_reap(vm);
    vm_watch_guest(vm);
    if (!vm->p.wishes.no_timesync)
        vm_follow_clock(vm);
    if (vm->clock_checking)
        vm_clock_begin(vm);
}

void vm_saved(struct saved *s, const struct vm_opts *o, struct vm **vm)
{
    struct err ignored = ERR_INIT;

    if (saved_reads(s))
        *vm = vm_of(o);
    else
        check(s, *vm);
    if (saved_check(s, &ignored) < 0)
        return;
    fields(s, *vm);
    below(s, *vm);
    devices(s, *vm);
    if ((*vm)->state != VM_RUNNING || !(*vm)->id || !(*vm)->p.ledger || !(*vm)->p.kernel)
        saved_fail(s, "the VM is incomplete");
    if (saved_reads(s) && saved_check(s, &ignored) == 0)
        resume(*vm);
}
