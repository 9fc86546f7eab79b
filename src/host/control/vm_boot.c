/* vm_boot.c - how a VM begins. That of a pod is booted by one fiber, another makes the scratch disk
 * meanwhile; containers prepare what they need on the host at the same time, and wait only for what
 * they are about to use:
 *
 *     ledger, cgroup ─┬─ VMM … kernel … agent ─┬─ scratch attached ── ready
 *                     ├─ scratch file ─────────┘
 *                     └─ containers: anchor, stdio, root file system ── shares ── layers …
 */
#include "base/fd.h"
#include "base/json.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/str.h"
#include "base/waits.h"
#include "host/bridge/guest.h"
#include "host/config/config.h"
#include "host/control/vm_priv.h"
#include "host/device/plan9.h"
#include "host/device/scsi.h"
#include "host/device/vpci.h"
#include "host/files/scratch.h"
#include "host/jail/cgroup.h"
#include "host/jail/jail.h"
#include "host/jail/slots.h"
#include "host/ledger/ledger.h"
#include <stdio.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#define MANIFEST_MAX_BYTES (1u << 20)
#define BOOT_CONTROLLERS 1 /* others come when they are needed */

/* --- to the negotiated bridge --- */

static int create(struct ctx *ctx, struct vm *vm, const struct vm_doc *doc, struct err *err)
{
    SPAN(step, ctx, vm_timeline(vm), TRACK_HOST, "create", err);

    return vm->p.vmm->ops->create(step.ctx, vm->p.vmm, doc, err) < 0
               ? err_wrap_because(err, REASON_BOOT_PREPARE, "create the VM")
               : 0;
}

static int start_vmm(struct ctx *ctx, struct vm *vm, struct err *err)
{
    if (vm->p.guest->ops->prepare(ctx, vm->p.guest, err) < 0)
        return err_wrap(err, "open the guest's ports");

    SPAN(step, ctx, vm_timeline(vm), TRACK_HOST, "start VMM", err);

    if (vm->p.vmm->ops->start(step.ctx, vm->p.vmm, err) < 0)
        return err_wrap_because(err, REASON_QEMU_FAILED, "start the VMM");
    vm->p.started_wall_ns = loop_wall(vm->o.loop);
    vm_reap(vm);
    vm->p.vmm->on_stage(vm, VM_STAGE_SPAWNED);
    return 0;
}

static int connect_agent(struct ctx *ctx, struct vm *vm, struct err *err)
{
    SPAN(step, ctx, vm_timeline(vm), TRACK_HOST, "wait for agent", err);

    if (vm->p.guest->ops->connect(step.ctx, vm->p.guest, err) < 0)
        return err_wrap(err, "connect to the agent");
    vm_set_clock(vm);
    return 0;
}

/* The link to the guest breaks when the VMM ends, and that is noticed first. */
static void await_reason(struct vm *vm, const struct err *err)
{
    struct ctx own = vm_own_ctx(vm), limited = ctx_with_timeout(&own, VM_WHY_LIMIT);
    struct err ignored = ERR_INIT;
    bool killed;

    if (err->code == ERR_UNAVAILABLE && !vm->p.life.fired && vm->reaping)
        (void)vm_wait_ended(&limited, vm, &killed, &ignored);
}

static int start_failed(struct vm *vm, struct err *err)
{
    static const enum reason reasons[VM_STAGE_COUNT] = {
        [VM_STAGE_NONE] = REASON_BOOT_PREPARE,   [VM_STAGE_SPAWNED] = REASON_BOOT_FIRMWARE,
        [VM_STAGE_KERNEL] = REASON_BOOT_KERNEL,  [VM_STAGE_INIT] = REASON_BOOT_AGENT,
        [VM_STAGE_AGENT] = REASON_BOOT_PROTOCOL, [VM_STAGE_NEGOTIATED] = REASON_BOOT_PROTOCOL,
    };

    await_reason(vm, err);
    if (vm->state == VM_ENDED && vm->vmm_exit.why[0])
        err_because(err, vm->vmm_exit.reason, ERR_UNAVAILABLE, "the VMM ended: %s",
                    vm->vmm_exit.why);
    else if (vm->end > VM_END_FAILED)
        err_because(err, REASON_VM_ENDED, ERR_UNAVAILABLE, "the VM was terminated");
    if (vm->p.stage == VM_STAGE_NONE)
        err_wrap(err, "boot stopped before the VMM ran");
    else
        err_wrap(err, "boot stopped at stage '%s'", vm_stage_name(vm->p.stage));
    err_blame(err, reasons[vm->p.stage]);
    vm_set_failure(vm, err);
    return -1;
}

int vm_start(struct ctx *ctx, struct vm *vm, const struct vm_doc *doc, struct err *err)
{
    AUTO(gate_leave) struct gate *held = gate_enter(&vm->gate, ctx, "vm.start", err);
    struct cancel cancel;
    int r;

    if (!held)
        return -1;
    if (vm->state == VM_RUNNING)
        return 0;
    if (vm->state > VM_RUNNING)
        return err_because(err, REASON_VM_ENDED, ERR_UNAVAILABLE, "start the VM: it is %s",
                           vm_state_name(vm->state));
    if (vm->state == VM_NEW) /* with nothing but what the backend makes */
        fsm_step(&vm_fsm, &vm->state, VM_EV_PREPARED);
    fsm_step(&vm_fsm, &vm->state, VM_EV_BOOT);
    vm->id = str_dup(doc->id);
    if (!vm->p.size.memory_mib) /* not opened for a pod */
        vm->p.size = (struct sizing){ .memory_mib = doc->memory_mib, .cpus = doc->cpus };
    cancel_init(&cancel, ctx->cancel);
    vm->op = &cancel;

    struct ctx limited = ctx_with_timeout(ctx, VM_START_LIMIT),
               inner = ctx_with_cancel(&limited, &cancel);

    r = create(&inner, vm, doc, err) < 0 || start_vmm(&inner, vm, err) < 0 ||
                connect_agent(&inner, vm, err) < 0
            ? -1
            : 0;
    if (r == 0 && vm->p.life.fired)
        r = err_because(err, REASON_VM_ENDED, ERR_UNAVAILABLE,
                        "the VM ended while its agent connected");
    if (r < 0)
        r = start_failed(vm, err);
    vm->op = NULL;
    cancel_release(&cancel);
    if (r < 0) {
        vm_kill(vm, VM_END_FAILED, "its start failed");
        return -1;
    }
    fsm_step(&vm_fsm, &vm->state, VM_EV_UP);
    log_info(ctx, "vm started", F_STR(LK_UVM_ID, vm->id));
    return 0;
}

/* --- the scratch disk --- */

static void scratch_main(void *arg)
{
    struct vm *vm = arg;
    const struct config *c = vm->o.config;
    const struct scratch_opts opts = { .dir = c->scratch_dir,
                                       .ns = vm->o.ns,
                                       .id = vm->o.id,
                                       .size_mib = c->scratch_mib,
                                       .free_mib = c->scratch_free_mib,
                                       .ledger = vm->p.ledger };
    struct ctx own = vm_own_ctx(vm), ctx = ctx_with_cancel(&own, &vm->p.life);
    struct ctx limited = ctx_with_timeout(&ctx, c->boot_timeout_s * NS_PER_S);
    SPAN(step, &limited, vm_timeline(vm), TRACK_HOST, "make scratch", &vm->scratch_err);

    if (scratch_make(step.ctx, &opts, &vm->scratch, &vm->scratch_err) < 0)
        err_wrap_because(&vm->scratch_err, REASON_SCRATCH_FAILED, "scratch disk of the VM");
    latch_set(&vm->scratch_made);
}

static int attach_scratch(struct ctx *ctx, struct vm *vm, struct err *err)
{
    /* With a key of the guest's own what the host has formatted means nothing. */
    const struct guest_disk mount = { .filesystem = "ext4",
                                      .encrypted = vm->p.wishes.encrypted_scratch,
                                      .ensure_filesystem = vm->p.wishes.encrypted_scratch };
    uint64_t id;

    if (latch_wait(ctx, &vm->scratch_made, "the scratch disk to be made", err) < 0)
        return -1;
    if (vm->scratch_err.code != ERR_NONE) {
        *err = vm->scratch_err;
        return -1;
    }

    const struct scsi_disk disk = { .host_path = "(scratch)",
                                    .fd = scratch_fd(vm->scratch),
                                    .first = true };
    AUTO(vm_leave) const struct vm_parts *in = vm_enter(vm, "attach the scratch disk", err);
    SPAN(step, ctx, vm_timeline(vm), TRACK_HOST, "attach scratch", err);

    if (!in || scsi_reserve(step.ctx, in->scsi, &disk, &mount, &id, err) < 0 ||
        scsi_map(step.ctx, in->scsi, id, &vm->p.scratch_path, err) < 0)
        return err_wrap_because(err, REASON_SCRATCH_FAILED, "attach the scratch disk");
    return 0;
}

/* --- turns --- */

/* If twenty VMs boot at once on two CPUs, all exceed their time limit; in turns none does. A shim
 * that gets no turn starts its VM anyway: a shim that hangs may hold the turn. */
static int take_turn(struct ctx *ctx, struct vm *vm, struct err *err)
{
    const struct config *c = vm->o.config;
    AUTO_FREE char *path = str_format("%s/starts", c->run_root);
    unsigned n = c->parallel_starts ? c->parallel_starts : 2 * (unsigned)get_nprocs();
    struct ctx life = ctx_with_cancel(ctx, &vm->p.life),
               limited = ctx_with_timeout(&life, VM_TURN_LIMIT);
    uint64_t began = loop_now(ctx->loop);
    int r = turn_take(&limited, path, n, &vm->turn, err);

    if (loop_now(ctx->loop) - began > VM_TURN_WORTH)
        span_add(vm_timeline(vm), TRACK_HOST, "wait for a turn", began, loop_now(ctx->loop));
    if (r < 0 && ctx_check(&life, err) == 0) {
        log_warn(ctx, "no start slot became free in time; starting without one", F_ERR(err));
        err_clear(err);
        r = 0;
    }
    return r;
}

/* The turn is kept after the VM is Running: the first container costs as much CPU time as the boot
 * did. If the next VM started now, their first containers would compete for the CPUs. */
static void turn_main(void *arg)
{
    struct vm *vm = arg;
    struct ctx own = vm_own_ctx(vm), life = ctx_with_cancel(&own, &vm->p.life),
               ctx = ctx_with_timeout(&life, VM_TURN_HOLD);
    struct err ignored = ERR_INIT;

    (void)latch_wait(&ctx, &vm->first_start, "a container to start", &ignored);
    turn_give(TAKE_PTR(vm->turn));
}

/* --- a pod's VM --- */

static int join_cgroup(void *arg, int pid, struct err *err)
{
    struct vm *vm = arg;
    struct ctx ctx = vm_own_ctx(vm);

    if (vm->p.cgroup && cgroup_join(vm->p.cgroup, pid, err) < 0)
        return -1;
    return vm->o.set_oom_score_adj ? jail_oom_score(&ctx, pid, vm->o.oom_score_adj, err) : 0;
}

/* A guest that is lost between calls: its containers cannot be reached any more. */
static void lost_main(void *arg)
{
    struct vm *vm = arg;
    struct ctx ctx = vm_own_ctx(vm);
    struct err err = ERR_INIT;

    (void)vm->p.guest->ops->wait_closed(&ctx, vm->p.guest, &err); /* without a limit: no failure */
    /* In any other state the VM is stopping or has ended, which closed the connection. */
    if (vm->state == VM_RUNNING)
        (void)vm_lost(vm);
}

void vm_watch_guest(struct vm *vm)
{
    fibers_go(&vm->fibers, vm->o.loop, lost_main, vm, FIBER_VM_LOST "%s", vm->o.id);
}

static void log_start(struct ctx *ctx, struct vm *vm)
{
    struct vmm_info info;

    vm_info(vm, &info);
    if (info.cold_why[0])
        log_info(ctx, "starting cold: no usable template", F_STR("why", info.cold_why));
    if (info.want_template)
        vm->o.want_template(vm->o.arg, vm->p.size.memory_mib);
}

static int boot_document(struct ctx *ctx, struct vm *vm, const char *run_dir, struct err *err)
{
    const struct config *c = vm->o.config;
    const struct sizing *size = &vm->p.size;
    AUTO_FREE char *id = str_format("%s@vm", vm->o.guest_id);
    AUTO_FREE char *kernel = str_format("%s/vmlinux", c->image_dir);
    AUTO_FREE char *initrd = str_format("%s/initrd.cpio", c->image_dir);
    bool fixed = vm->o.shape.backed; /* room to grow would be memory that is not taken */
    const struct vm_doc doc = {
        .id = id,
        .uuid = vm->p.uuid,
        .run_dir = run_dir,
        .vmm_path = c->qemu,
        .kernel = kernel,
        .initrd = initrd,
        .memory_mib = size->memory_mib,
        .cpus = size->cpus,
        .max_memory_mib = fixed ? 0 : c->max_memory_mib,
        .max_cpus = !vm->o.shape.n_numa && c->max_cpus > size->cpus ? c->max_cpus : size->cpus,
        .shape = vm->o.shape,
        .accel = VM_ACCEL_AUTO,
        .allow_emulation = c->allow_emulation,
        .vsock = c->vsock_link,
        .nested = c->nested_virtualization,
        .code_cache_mib = c->emulation_cache_mib,
        .uid_base = c->vm_uid_base,
        .uid_count = c->vm_uid_count,
        .scsi_controllers = BOOT_CONTROLLERS,
        .pci_ports = config_pci_ports(c),
        .disk_mib = c->scratch_mib, /* in the scratch disk's place */
        .agent_log_level = log_level_name(c->log_level),
        .template_dir = c->use_template ? c->template_dir : NULL,
        .ledger = vm->p.ledger,
        .on_pid = join_cgroup,
        .on_pid_arg = vm,
    };

    return vm_start(ctx, vm, &doc, err);
}

static void changed(struct vm *vm)
{
    waitq_wake_all(&vm->changed);
    vm->o.on_change(vm->o.arg);
}

/* From here on time is limited. */
static int boot_in_time(struct ctx *ctx, struct vm *vm, const char *run_dir, struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, vm->o.config->boot_timeout_s * NS_PER_S);
    struct vm_parts *p = &vm->p;

    if (boot_document(&limited, vm, run_dir, err) < 0)
        return -1;
    log_start(&limited, vm);
    p->scsi = scsi_new(p->vmm, p->guest, SCSI_CONTROLLERS_MAX);
    scsi_keep_first(p->scsi); /* a container's images may be there before the scratch disk is */
    p->plan9 = plan9_new(p->vmm, p->guest);
    p->vpci = vpci_new(p->vmm, p->guest);
    vm_watch_guest(vm);
    if (!p->wishes.no_timesync)
        vm_follow_clock(vm);
    changed(vm);
    return attach_scratch(&limited, vm, err);
}

static int boot(struct ctx *ctx, struct vm *vm, struct err *err)
{
    AUTO_FREE char *run_dir = str_format("%s/%s/%s", vm->o.config->run_root, vm->o.ns, vm->o.id);
    struct vm_parts *p = &vm->p;
    struct ctx life = ctx_with_cancel(ctx, &vm->p.life);

    if (ledger_create(run_dir, &p->ledger, err) < 0 ||
        vm->o.on_ledger(vm->o.arg, p->ledger, err) < 0)
        return -1;
    if (cgroup_make(&life, p->cgroup_path, p->ledger, &p->cgroup, err) < 0)
        return err_wrap_because(err, REASON_CGROUP_FAILED, "cgroup of the VM");
    if ((p->wishes.cpu_limit || p->wishes.cpu_weight) && vm_limit_cpu(&life, vm, 0, 0, err) < 0)
        return err_wrap(err,
                        "annotation io.microsoft.virtualmachine.computetopology.processor.limit is "
                        "\"%u\", .weight \"%u\"",
                        p->wishes.cpu_limit, p->wishes.cpu_weight);
    if (*p->wishes.cpu_group && vm_set_cpu_group(&life, vm, p->wishes.cpu_group, err) < 0)
        return err_wrap_because(err, REASON_INVALID_ANNOTATION, "annotation %s is \"%s\"",
                                annotations_cpu_group, p->wishes.cpu_group);
    if (vm->o.home && p->cgroup && cgroup_join(p->cgroup, getpid(), err) < 0)
        return err_wrap_because(err, REASON_CGROUP_FAILED, "shim_cgroup = pod");
    if (vm->state != VM_NEW)
        return err_because(err, REASON_VM_ENDED, ERR_UNAVAILABLE,
                           "the VM was ended before its boot");
    fsm_step(&vm_fsm, &vm->state, VM_EV_PREPARED);
    changed(vm);
    fibers_go(&vm->fibers, vm->o.loop, scratch_main, vm, "vm.scratch %s", vm->o.id);
    return take_turn(ctx, vm, err) < 0 ? -1 : boot_in_time(ctx, vm, run_dir, err);
}

static void boot_main(void *arg)
{
    struct vm *vm = arg;
    struct ctx ctx = vm_own_ctx(vm);
    struct err err = ERR_INIT;

    if (boot(&ctx, vm, &err) == 0 && vm->state == VM_RUNNING) {
        latch_set(&vm->ready);
        fibers_go(&vm->fibers, vm->o.loop, turn_main, vm, "vm.turn %s", vm->o.id);
    } else {
        if (err.code == ERR_NONE)
            err_because(&err, REASON_VM_ENDED, ERR_UNAVAILABLE, "the VM was ended during its boot");
        vm->boot_err = err; /* only now: the boot may go on after an error, as a cold start */
        vm_set_failure(vm, &err);
        turn_give(TAKE_PTR(vm->turn));
        vm_kill(vm, VM_END_FAILED, "the VM did not boot");
    }
    cgroup_settle(vm->p.cgroup); /* QEMU is in it, or it is to go */
    timeline_follow(vm_timeline(vm), NULL);
    changed(vm);
}

/* The administrator's file, as the kernel itself. */
static char *kernel_of(const char *image_dir)
{
    AUTO_FREE char *path = str_format("%s/manifest.json", image_dir), *text = NULL;
    AUTO(json_decref) json_t *root = NULL;
    struct err ignored = ERR_INIT;
    const char *release = "";
    size_t len;

    if (file_read_all(path, MANIFEST_MAX_BYTES, &text, &len) == 0 &&
        js_parse(text, len, MANIFEST_MAX_BYTES, &root, &ignored) == 0)
        (void)js_str(root, "kernel_release", &release, &ignored);
    return str_dup(release);
}

/* Of version 4: random. */
static void make_uuid(struct vm *vm)
{
    uint8_t b[16];
    char *at = vm->p.uuid;

    loop_rand(vm->o.loop, b, sizeof(b));
    b[6] = (b[6] & 0x0f) | 0x40;
    b[8] = (b[8] & 0x3f) | 0x80;
    for (int i = 0; i < 16; i++)
        at += sprintf(at, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", b[i]);
}

struct vm *vm_of(const struct vm_opts *o)
{
    struct vm *vm = vm_new(o->loop, o->vmm, o->guest);

    vm->o = *o;
    if (!o->vmm->timeline)
        o->vmm->timeline = &vm->timeline;
    return vm;
}

struct vm *vm_open(const struct vm_opts *o)
{
    struct vm *vm = vm_of(o);

    vm->p.size = o->size;
    vm->p.wishes = o->wishes;
    if (o->shape.kernel_args)
        vm->o.shape.kernel_args = vm->p.wishes.kernel_args; /* o's is the caller's */
    make_uuid(vm);
    vm->p.cgroup_path = str_dup(o->cgroup_path);
    vm->p.kernel = kernel_of(o->config->image_dir);
    fibers_go(&vm->fibers, o->loop, boot_main, vm, "vm.boot %s", o->id);
    return vm;
}

/* --- waiting for the VM --- */

/* A VM that is killed while it boots fails when its boot has: that error says why. */
static int await(struct ctx *ctx, struct vm *given, enum vm_state need, bool ready, struct err *err)
{
    AUTO(vm_unref) struct vm *vm = vm_ref(given);

    if (!vm)
        return err_because(err, REASON_VM_ENDED, ERR_UNAVAILABLE, "there is no VM");
    while (!vm->ready.set && vm->boot_err.code == ERR_NONE &&
           (ready || vm->state < need || vm->state > VM_RUNNING))
        if (waitq_wait(ctx, &vm->changed, "the VM to boot", err) < 0)
            return -1;
    if (vm->boot_err.code != ERR_NONE) {
        *err = vm->boot_err;
        return err_wrap_because(err, REASON_BOOT_PREPARE, "boot the VM");
    }
    if (vm->ready.set && vm->state != VM_RUNNING)
        return err_because(err, REASON_VM_ENDED, ERR_UNAVAILABLE,
                           "the VM of sandbox %s has ended: delete its containers first", vm->o.id);
    return 0;
}

int vm_need_prepared(struct ctx *ctx, struct vm *vm, struct err *err)
{
    return await(ctx, vm, VM_PREPARED, false, err);
}

int vm_need_running(struct ctx *ctx, struct vm *vm, struct err *err)
{
    return await(ctx, vm, VM_RUNNING, false, err);
}

int vm_need_ready(struct ctx *ctx, struct vm *vm, struct err *err)
{
    return await(ctx, vm, VM_RUNNING, true, err);
}
