/* registry_box.c - the box: one VM with its ledger, cgroup, device controllers and scratch disk. It
 * is made by the first container that needs it, in a fiber of its own, and ended with the last. */
#include "base/fd.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/str.h"
#include "host/bridge/guest.h"
#include "host/control/config.h"
#include "host/control/plan9.h"
#include "host/control/registry_priv.h"
#include "host/control/scsi.h"
#include "host/control/vm.h"
#include "host/own/ledger.h"
#include <stdlib.h>

#define SCSI_CONTROLLERS 1

static void box_unref(struct box *b)
{
    if (--b->refs > 0)
        return;
    cancel_release(&b->life);
    free(b->cgroup_path);
    free(b->scratch_path);
    free(b);
}

static struct ctx box_ctx(const struct box *b, struct ctx *root)
{
    *root = ctx_root(b->r->o.loop);
    return ctx_with_id(root, "sandbox-id", b->r->id);
}

int box_enter(struct box *b, const char *what, struct err *err)
{
    if (!b || !b->vm)
        return err_set(err, ERR_UNAVAILABLE, "%s: there is no VM", what);
    if (vm_call_begin(b->vm, what, err) == 0)
        return 0;
    if (err->code == ERR_STATE) /* it is not Running: to a container that means gone */
        return err_set(err, ERR_UNAVAILABLE, "%s: the VM is gone", what);
    return -1;
}

void box_leave(struct box *b)
{
    vm_call_end(b->vm);
}

bool box_alive(const struct box *b)
{
    return b && b->state == BOX_UP && vm_state(b->vm) == VM_RUNNING;
}

/* --- the end --- */

static int drop_cgroup(struct ctx *ctx, struct box *b, struct err *err)
{
    const struct registry_host *h = b->r->host;
    uint64_t pause = BOX_CGROUP_PAUSE;

    if (!b->cgroup)
        return 0;
    for (unsigned n = 1;; n++, pause *= 2) { /* busy while a process of it is being reaped */
        struct err ignored = ERR_INIT;

        err_clear(err);
        if (h->cgroup_remove(b->cgroup, err) == 0)
            break;
        if (n == BOX_CGROUP_TRIES || fiber_sleep(ctx, pause, &ignored) < 0)
            return -1;
    }
    h->cgroup_free(TAKE_PTR(b->cgroup));
    return 0;
}

static int drop_scratch(struct ctx *ctx, struct box *b, struct err *err)
{
    return b->scratch ? b->r->host->scratch_remove(ctx, b->scratch, err) : 0;
}

static void drop_ledger(struct ctx *ctx, struct box *b)
{
    struct ctx limited = ctx_with_timeout(ctx, BOX_DRIVERS_LIMIT);
    struct err err = ERR_INIT;

    if (!b->ledger)
        return;
    if (group_wait(&limited, &b->r->drivers, "log drivers", &err) < 0 ||
        drop_scratch(ctx, b, &err) < 0 || drop_cgroup(ctx, b, &err) < 0 ||
        ledger_finish(b->ledger, &err) < 0)
        log_error(ctx, "not all is taken back; `lcow gc` takes the rest", F_ERR(&err));
    if (b->scratch)
        b->r->host->scratch_free(TAKE_PTR(b->scratch));
    if (b->cgroup)
        b->r->host->cgroup_free(TAKE_PTR(b->cgroup));
    ledger_close(TAKE_PTR(b->ledger));
}

/* Whatever has been made of it. */
static void take_back(struct ctx *ctx, struct box *b, bool orderly)
{
    struct ctx limited = ctx_with_timeout(ctx, BOX_END_LIMIT);
    struct err err = ERR_INIT;
    int r = 0;

    cancel_fire(&b->life, ERR_UNAVAILABLE, "the VM ends");
    if (b->vm && orderly && vm_state(b->vm) == VM_RUNNING)
        r = vm_shutdown(&limited, b->vm, BOX_GRACE, &err);
    else if (b->vm)
        r = vm_terminate(&limited, b->vm, &err);
    if (r == 0)
        r = group_wait(&limited, &b->fibers, "fibers of the VM", &err);
    if (r < 0) {
        /* Something still works on it; its memory and its records stay. */
        log_error(ctx, "the VM could not be taken back; `lcow gc` takes the rest", F_ERR(&err));
        return;
    }
    scsi_free(TAKE_PTR(b->scsi));
    plan9_free(TAKE_PTR(b->plan9));
    vm_free(TAKE_PTR(b->vm));
    drop_ledger(ctx, b);
}

static void gone(struct box *b)
{
    struct registry *r = b->r;

    b->state = BOX_GONE;
    if (r->box == b)
        r->box = NULL;
    waitq_wake_all(&r->box_q);
    box_unref(b);
}

static void end_main(void *arg)
{
    struct box *b = arg;
    struct ctx root, ctx = box_ctx(b, &root);

    take_back(&ctx, b, !b->r->closing);
    gone(b);
}

static void end(struct box *b)
{
    b->state = BOX_ENDING;
    group_go(&b->r->fibers, b->r->o.loop, end_main, b, "vm.end %s", b->r->id);
}

static void kill_main(void *arg)
{
    struct box *b = arg;
    struct ctx root, ctx = box_ctx(b, &root), limited = ctx_with_timeout(&ctx, BOX_END_LIMIT);
    struct err err = ERR_INIT;

    if (vm_terminate(&limited, b->vm, &err) < 0)
        log_error(&ctx, "a VM without a guest could not be ended", F_ERR(&err));
}

static void kill_vm(struct box *b)
{
    if (b->ending_asked || !b->vm)
        return;
    b->ending_asked = true;
    group_go(&b->fibers, b->r->o.loop, kill_main, b, "vm.kill %s", b->r->id);
}

void box_drop_unused(struct registry *r)
{
    struct box *b = r->box;

    if (!b || r->n_containers > 0)
        return;
    if (b->state == BOX_UP || b->state == BOX_DEAD)
        end(b);
    if (b->state != BOX_BOOTING)
        return;
    b->unwanted = true; /* the boot's own fiber ends it */
    kill_vm(b);
}

void box_give_up(struct box *b)
{
    struct ctx root, ctx = box_ctx(b, &root);

    if (!b->ending_asked)
        log_error(&ctx, "the guest does not take a SIGKILL; its VM is ended now");
    kill_vm(b);
}

int box_kill(struct ctx *ctx, struct box *b, struct err *err)
{
    int r;

    if (!b || !b->vm)
        return 0;
    /* Counted among those that use the VM: whoever takes it back at the same time frees it only
     * when we have let go. */
    b->refs++;
    b->fibers.running++;
    r = vm_terminate(ctx, b->vm, err);
    if (--b->fibers.running == 0)
        waitq_wake_all(&b->fibers.q);
    box_unref(b);
    return r;
}

bool box_lost(struct box *b)
{
    struct ctx root, ctx = box_ctx(b, &root), limited = ctx_with_timeout(&ctx, PROCESS_LOST_LIMIT);
    struct err err = ERR_INIT;
    bool killed = false;

    if (vm_wait_gone(&limited, b->vm, &killed, &err) == 0)
        return killed || b->r->closing; /* by whom does not matter */
    if (!b->ending_asked)
        log_error(&ctx, "the guest is lost but its VM runs; it is ended now");
    kill_vm(b);
    return b->r->closing;
}

/* Containers that nobody watches yet end here; the others' watchers know by themselves. */
static void watch_main(void *arg)
{
    struct box *b = arg;
    struct ctx root, ctx = box_ctx(b, &root);
    struct err err = ERR_INIT;
    bool killed = false;

    (void)vm_wait_gone(&ctx, b->vm, &killed, &err); /* without a limit it cannot fail */
    if (b->state == BOX_UP)
        b->state = BOX_DEAD;
    LIST_EACH (&b->r->containers, pos)
        container_vm_died(LIST_ENTRY(pos, struct container, node), killed || b->r->closing);
}

/* The guest's clock goes on by itself; what it cannot know is that ours was set. */
static void clock_main(void *arg)
{
    struct box *b = arg;
    const struct registry_host *h = b->r->host;
    struct ctx root, own = box_ctx(b, &root), ctx = ctx_with_cancel(&own, &b->life);
    struct err err = ERR_INIT;
    AUTO_FD int fd = h->clock_open(&err);

    while (fd >= 0 && h->clock_wait(&ctx, fd, &err) == 0) {
        struct ctx limited = ctx_with_timeout(&ctx, BOX_CLOCK_LIMIT);

        if (box_enter(b, "set the clock", &err) < 0)
            return;

        int r = b->guest->ops->set_clock(&limited, b->guest, loop_wall(b->r->o.loop), &err);

        box_leave(b);
        if (r < 0)
            log_warn(&ctx, "the guest's clock could not be set", F_ERR(&err));
        err_clear(&err);
    }
}

/* --- the beginning --- */

static int join_cgroup(void *arg, int pid, struct err *err)
{
    struct box *b = arg;
    const struct registry_host *h = b->r->host;
    struct ctx root, ctx = box_ctx(b, &root);

    if (b->cgroup && h->cgroup_join(b->cgroup, pid, err) < 0)
        return -1;
    return b->set_oom_score_adj && h->oom_score_adj_set
               ? h->oom_score_adj_set(&ctx, pid, b->oom_score_adj, err)
               : 0;
}

static int boot_vm(struct ctx *ctx, struct box *b, const char *run_dir, struct err *err)
{
    struct registry *r = b->r;
    const struct config *c = r->o.config;
    AUTO_FREE char *id = str_format("%s@vm", r->id);
    AUTO_FREE char *kernel = str_format("%s/vmlinux", c->image_dir);
    AUTO_FREE char *initrd = str_format("%s/initrd.cpio", c->image_dir);
    const struct vm_doc doc = {
        .id = id,
        .run_dir = run_dir,
        .vmm_path = c->qemu,
        .kernel = kernel,
        .initrd = initrd,
        .memory_mib = b->size.memory_mib,
        .cpus = b->size.cpus,
        .max_cpus = b->size.cpus,
        .accel = VM_ACCEL_AUTO,
        .allow_emulation = c->allow_emulation,
        .uid_base = c->vm_uid_base,
        .uid_count = c->vm_uid_count,
        .scsi_controllers = SCSI_CONTROLLERS,
        .agent_log_level = log_level_name(c->log_level),
        .ledger = b->ledger,
        .on_pid = join_cgroup,
        .on_pid_arg = b,
    };

    b->vmm = r->o.make_vmm(r->o.arg);
    b->guest = r->o.make_guest(r->o.arg, b->vmm);
    b->vm = vm_new(r->o.loop, b->vmm, b->guest);
    waitq_wake_all(&r->box_q);
    if (vm_create(ctx, b->vm, &doc, err) < 0)
        return -1;
    return vm_start(ctx, b->vm, err);
}

static int attach_scratch(struct ctx *ctx, struct box *b, struct err *err)
{
    const struct scsi_disk disk = { .host_path = "(scratch)",
                                    .fd = b->r->host->scratch_fd(b->scratch) };
    const struct scsi_mount mount = { .filesystem = "ext4" };
    uint64_t id;

    if (box_enter(b, "attach the scratch disk", err) < 0)
        return -1;

    int r = scsi_reserve(ctx, b->scsi, &disk, &mount, &id, err);

    if (r == 0)
        r = scsi_map(ctx, b->scsi, id, &b->scratch_path, err);
    box_leave(b);
    return r < 0 ? err_wrap(err, "attach the scratch disk") : 0;
}

static int boot(struct ctx *ctx, struct box *b, struct err *err)
{
    struct registry *r = b->r;
    const struct config *c = r->o.config;
    AUTO_FREE char *run_dir = str_format("%s/%s/%s", c->run_root, r->ns, r->id);

    if (ledger_create(run_dir, &b->ledger, err) < 0)
        return -1;

    const struct scratch_opts scratch = { .dir = c->scratch_dir,
                                          .ns = r->ns,
                                          .id = r->id,
                                          .size_mib = c->scratch_mib,
                                          .ledger = b->ledger };

    if (r->host->cgroup_make(b->cgroup_path, b->ledger, &b->cgroup, err) < 0)
        return err_wrap(err, "cgroup of the VM");
    if (r->host->scratch_make(ctx, &scratch, &b->scratch, err) < 0)
        return err_wrap(err, "scratch disk of the VM");
    if (r->closing || b->unwanted)
        return err_set(err, ERR_UNAVAILABLE, "nobody needs the VM any more");
    if (boot_vm(ctx, b, run_dir, err) < 0)
        return -1;
    group_go(&b->fibers, r->o.loop, watch_main, b, "vm.watch %s", r->id);
    if (r->host->clock_open)
        group_go(&b->fibers, r->o.loop, clock_main, b, "vm.clock %s", r->id);
    b->scsi = scsi_new(b->vmm, b->guest, SCSI_CONTROLLERS);
    b->plan9 = plan9_new(b->vmm, b->guest);
    return attach_scratch(ctx, b, err);
}

static void boot_main(void *arg)
{
    struct box *b = arg;
    struct registry *r = b->r;
    struct ctx root, ctx = box_ctx(b, &root);
    struct ctx limited = ctx_with_timeout(&ctx, r->o.config->boot_timeout_s * NS_PER_S);

    if (boot(&limited, b, &b->boot_err) == 0 && !b->unwanted && !r->closing) {
        b->state = BOX_UP;
        waitq_wake_all(&r->box_q);
        return;
    }
    if (b->boot_err.code == ERR_NONE)
        err_set(&b->boot_err, ERR_UNAVAILABLE, "nobody needs the VM any more");
    b->state = BOX_ENDING;
    take_back(&ctx, b, false);
    gone(b);
}

static void begin(struct registry *r, const struct spec *spec, const struct sizing *size)
{
    struct box *b = mem_new(struct box);

    b->refs = 1;
    b->r = r;
    b->size = *size;
    b->cgroup_path = str_dup(spec_cgroups_path(spec));
    b->oom_score_adj = spec_oom_score_adj(spec, &b->set_oom_score_adj);
    group_init(&b->fibers);
    cancel_init(&b->life, NULL);
    r->box = b;
    group_go(&r->fibers, r->o.loop, boot_main, b, "vm.boot %s", r->id);
}

/* Until the boot that is under way has ended; its error is ours. */
static int await_boot(struct ctx *ctx, struct box *b, struct err *err)
{
    int r = 0;

    b->refs++;
    while (r == 0 && b->state == BOX_BOOTING)
        r = waitq_wait(ctx, &b->r->box_q, "the VM to boot", err);
    if (r == 0 && b->boot_err.code != ERR_NONE) {
        *err = b->boot_err;
        r = -1;
    }
    box_unref(b);
    return r;
}

int box_need(struct ctx *ctx, struct registry *r, const struct spec *spec,
             const struct options *options, struct err *err)
{
    struct sizing size;

    if (sizing_of(r->o.config, spec, options, &size, err) < 0)
        return -1;
    while (r->box && r->box->state == BOX_ENDING && !r->closing)
        if (waitq_wait(ctx, &r->box_q, "the last VM to end", err) < 0)
            return -1;
    if (r->closing)
        return err_set(err, ERR_UNAVAILABLE, "the shim is shutting down");
    if (!r->box)
        begin(r, spec, &size);
    if (r->box->state == BOX_BOOTING && await_boot(ctx, r->box, err) < 0)
        return err_wrap(err, "boot the VM");
    if (!box_alive(r->box))
        return err_set(err, ERR_UNAVAILABLE,
                       "the VM of sandbox %s has ended: delete its containers first", r->id);
    return 0;
}
