/* registry_boot.c - how the box begins: one fiber boots the VM, another makes the scratch disk
 * meanwhile; whoever asked for the box prepares what it needs on the host at the same time, and
 * waits only for what it is about to use:
 *
 *     ledger, cgroup ─┬─ VMM … kernel … agent ─┬─ scratch attached ── up
 *                     ├─ scratch file ─────────┘
 *                     └─ containers: anchor, stdio, root file system ── shares ── layers …
 */
#include "base/clock_step.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/str.h"
#include "host/bridge/guest.h"
#include "host/config/config.h"
#include "host/control/registry_priv.h"
#include "host/control/vm.h"
#include "host/device/plan9.h"
#include "host/device/scsi.h"
#include "host/device/vpci.h"
#include "host/ledger/ledger.h"
#include <stdlib.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#define MANIFEST_MAX_BYTES (1u << 20)
#define BOOT_CONTROLLERS 1 /* others come when they are needed */

/* --- those who watch it --- */

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
    cancel_fire(&b->dead, ERR_UNAVAILABLE, "the VM has ended");
    LIST_EACH (&b->r->containers, pos)
        container_vm_died(LIST_ENTRY(pos, struct container, node), killed || b->r->closing);
    waitq_wake_all(&b->r->box_q);
}

/* A guest that is lost while nobody calls it: nothing in there can be reached any more. */
static void lost_main(void *arg)
{
    struct box *b = arg;
    struct ctx root, ctx = box_ctx(b, &root);
    struct err err = ERR_INIT;

    (void)b->guest->ops->wait_closed(&ctx, b->guest, &err); /* without a limit it cannot fail */
    if (b->state == BOX_ENDING || b->stopping || box_enter(b, "look for the guest", &err) < 0)
        return; /* that is why */
    box_leave(b);
    (void)box_lost(b);
}

/* The guest's clock goes on by itself; what it cannot know is that ours was set. */
static void clock_main(void *arg)
{
    struct box *b = arg;
    struct ctx root, own = box_ctx(b, &root), ctx = ctx_with_cancel(&own, &b->life);
    struct err err = ERR_INIT;
    AUTO_FD int fd = clock_step_open(&err);

    while (fd >= 0 && clock_step_wait(&ctx, fd, &err) == 0) {
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

static void watch(struct box *b)
{
    struct registry *r = b->r;

    group_go(&b->fibers, r->o.loop, watch_main, b, "vm.watch %s", r->id);
    group_go(&b->fibers, r->o.loop, lost_main, b, "vm.lost %s", r->id);
    group_go(&b->fibers, r->o.loop, clock_main, b, "vm.clock %s", r->id);
}

/* --- the scratch disk --- */

static void scratch_main(void *arg)
{
    struct box *b = arg;
    struct registry *r = b->r;
    const struct config *c = r->o.config;
    const struct scratch_opts opts = { .dir = c->scratch_dir,
                                       .ns = r->ns,
                                       .id = r->id,
                                       .size_mib = c->scratch_mib,
                                       .free_mib = c->scratch_free_mib,
                                       .ledger = b->ledger };
    struct ctx root, own = box_ctx(b, &root), ctx = ctx_with_cancel(&own, &b->life);
    struct ctx limited = ctx_with_timeout(&ctx, c->boot_timeout_s * NS_PER_S);
    int span = box_span_begin(b, "make scratch");

    if (scratch_make(&limited, &opts, &b->scratch, &b->scratch_err) < 0)
        err_wrap(&b->scratch_err, "scratch disk of the VM");
    box_span_end(b, span);
    latch_set(&b->scratch_made);
}

static int attach_scratch(struct ctx *ctx, struct box *b, struct err *err)
{
    /* With a key of the guest's own what the host has formatted means nothing. */
    const struct scsi_mount mount = { .filesystem = "ext4",
                                      .encrypted = b->encrypted_scratch,
                                      .ensure_filesystem = b->encrypted_scratch };
    uint64_t id;

    if (latch_wait(ctx, &b->scratch_made, "the scratch disk to be made", err) < 0)
        return -1;
    if (b->scratch_err.code != ERR_NONE) {
        *err = b->scratch_err;
        return -1;
    }

    const struct scsi_disk disk = { .host_path = "(scratch)",
                                    .fd = scratch_fd(b->scratch),
                                    .first = true };

    if (box_enter(b, "attach the scratch disk", err) < 0)
        return -1;

    int span = box_span_begin(b, "attach scratch");
    int r = scsi_reserve(ctx, b->scsi, &disk, &mount, &id, err);

    if (r == 0)
        r = scsi_map(ctx, b->scsi, id, &b->scratch_path, err);
    box_span_end(b, span);
    box_leave(b);
    return r < 0 ? err_wrap(err, "attach the scratch disk") : 0;
}

/* --- the VM --- */

static int join_cgroup(void *arg, int pid, struct err *err)
{
    struct box *b = arg;
    struct ctx root, ctx = box_ctx(b, &root);

    if (b->cgroup && cgroup_join(b->cgroup, pid, err) < 0)
        return -1;
    return b->set_oom_score_adj ? oom_score_adj_set(&ctx, pid, b->oom_score_adj, err) : 0;
}

static void say_start(struct ctx *ctx, struct box *b)
{
    const struct registry_opts *o = &b->r->o;
    struct vmm_info info;

    vm_info(b->vm, &info);
    if (info.cold_why[0])
        log_info(ctx, "no clone but a cold start", F_STR("reason", info.cold_why));
    if (info.want_template && o->want_template)
        o->want_template(o->arg, b->size.memory_mib);
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
        .max_memory_mib = c->max_memory_mib,
        .max_cpus = c->max_cpus > b->size.cpus ? c->max_cpus : b->size.cpus,
        .accel = VM_ACCEL_AUTO,
        .allow_emulation = c->allow_emulation,
        .nested = c->nested_virtualization,
        .code_cache_mib = c->emulation_cache_mib,
        .uid_base = c->vm_uid_base,
        .uid_count = c->vm_uid_count,
        .scsi_controllers = BOOT_CONTROLLERS,
        .pci_ports = config_pci_ports(c),
        .disk_mib = c->scratch_mib, /* in the scratch disk's place */
        .agent_log_level = log_level_name(c->log_level),
        .template_dir = c->use_template ? c->template_dir : NULL,
        .ledger = b->ledger,
        .on_pid = join_cgroup,
        .on_pid_arg = b,
    };

    if (vm_create(ctx, b->vm, &doc, err) < 0 || vm_start(ctx, b->vm, err) < 0)
        return -1;
    say_start(ctx, b);
    return 0;
}

/* Twenty VMs that boot at once on two processors are all too late; in turns none is. Not to get one
 * is no reason to fail: it may be held by a shim that hangs. */
static int take_turn(struct ctx *ctx, struct box *b, struct err *err)
{
    const struct config *c = b->r->o.config;
    AUTO_FREE char *path = str_format("%s/starts", c->run_root);
    unsigned n = c->parallel_starts ? c->parallel_starts : 2 * (unsigned)get_nprocs();
    struct ctx life = ctx_with_cancel(ctx, &b->life),
               limited = ctx_with_timeout(&life, BOX_TURN_LIMIT);
    uint64_t began = loop_now(ctx->loop);
    int r = turn_take(&limited, path, n, &b->turn, err);

    if (loop_now(ctx->loop) - began > BOX_TURN_WORTH)
        timeline_add(b->vmm->timeline, TRACK_HOST, "wait for a turn", began, loop_now(ctx->loop));
    if (r < 0 && ctx_check(&life, err) == 0) {
        log_warn(ctx, "no turn to start, going on without", F_ERR(err));
        err_clear(err);
        r = 0;
    }
    return r;
}

static void give_turn(struct box *b)
{
    if (b->turn)
        turn_give(TAKE_PTR(b->turn));
}

/* Up is not yet through: the first container is as much work for the processors as the boot was.
 * If whoever waits came in now, all would be half-way at the same time. */
static void turn_main(void *arg)
{
    struct box *b = arg;
    struct ctx root, own = box_ctx(b, &root), life = ctx_with_cancel(&own, &b->life),
                     ctx = ctx_with_timeout(&life, BOX_TURN_HOLD);
    struct err ignored = ERR_INIT;

    (void)latch_wait(&ctx, &b->first_start, "a container to start", &ignored);
    give_turn(b);
}

/* From here on time is limited. */
static int boot_in_time(struct ctx *ctx, struct box *b, const char *run_dir, struct err *err)
{
    struct registry *r = b->r;
    struct ctx limited = ctx_with_timeout(ctx, r->o.config->boot_timeout_s * NS_PER_S);

    if (boot_vm(&limited, b, run_dir, err) < 0)
        return -1;
    watch(b);
    b->scsi = scsi_new(b->vmm, b->guest, SCSI_CONTROLLERS_MAX);
    scsi_keep_first(b->scsi); /* a container's images may be there before the scratch disk is */
    b->plan9 = plan9_new(b->vmm, b->guest);
    b->vpci = vpci_new(b->vmm, b->guest);
    b->vm_up = true;
    waitq_wake_all(&r->box_q);
    return attach_scratch(&limited, b, err);
}

static int boot(struct ctx *ctx, struct box *b, struct err *err)
{
    struct registry *r = b->r;
    AUTO_FREE char *run_dir = str_format("%s/%s/%s", r->o.config->run_root, r->ns, r->id);
    int ret;

    b->vmm = r->o.make_vmm(r->o.arg);
    if (!b->vmm->timeline)
        b->vmm->timeline = &b->timeline;
    b->guest = r->o.make_guest(r->o.arg, b->vmm);
    b->vm = vm_new(r->o.loop, b->vmm, b->guest);
    if (ledger_create(run_dir, &b->ledger, err) < 0 || box_write_note(b, err) < 0)
        return -1;
    if (cgroup_make(b->cgroup_path, b->ledger, &b->cgroup, err) < 0)
        return err_wrap(err, "cgroup of the VM");
    if (r->o.home && b->cgroup && cgroup_join(b->cgroup, getpid(), err) < 0)
        return err_wrap(err, "shim_cgroup = pod");
    if (r->closing || b->unwanted)
        return err_set(err, ERR_UNAVAILABLE, "nobody needs the VM any more");
    b->prepared = true;
    waitq_wake_all(&r->box_q);
    group_go(&b->fibers, r->o.loop, scratch_main, b, "vm.scratch %s", r->id);
    if (take_turn(ctx, b, err) < 0)
        return -1;
    ret = boot_in_time(ctx, b, run_dir, err);
    if (ret < 0)
        give_turn(b);
    else if (b->turn)
        group_go(&b->fibers, r->o.loop, turn_main, b, "vm.turn %s", r->id);
    return ret;
}

/* Containers may hold something of it: then it goes with the last of them. */
static void boot_failed(struct ctx *ctx, struct box *b)
{
    struct registry *r = b->r;

    if (b->boot_err.code == ERR_NONE)
        err_set(&b->boot_err, ERR_UNAVAILABLE, "nobody needs the VM any more");
    cancel_fire(&b->life, ERR_UNAVAILABLE, "the VM did not boot");
    if (r->n_containers > 0 && !b->unwanted) {
        b->state = BOX_DEAD;
        box_kill_vm(b);
        waitq_wake_all(&r->box_q);
        return;
    }
    b->state = BOX_ENDING;
    waitq_wake_all(&r->box_q);
    box_take_back(ctx, b, false);
    box_gone(b);
}

static void boot_main(void *arg)
{
    struct box *b = arg;
    struct registry *r = b->r;
    struct ctx root, ctx = box_ctx(b, &root);

    if (boot(&ctx, b, &b->boot_err) < 0 || b->unwanted || r->closing) {
        boot_failed(&ctx, b);
        return;
    }
    b->state = BOX_UP;
    waitq_wake_all(&r->box_q);
}

/* The administrator's file, as the kernel itself; whoever asks what runs in there wants to know. */
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

static void begin(struct registry *r, const struct spec *spec, const struct sizing *size,
                  const struct annotations *options)
{
    struct box *b = mem_new(struct box);

    b->encrypted_scratch = options->encrypted_scratch;

    b->refs = 1;
    b->r = r;
    b->size = *size;
    b->kernel = kernel_of(r->o.config->image_dir);
    b->cgroup_path = str_dup(spec_cgroups_path(spec));
    b->oom_score_adj = spec_oom_score_adj(spec, &b->set_oom_score_adj);
    list_init(&b->volumes);
    gate_init(&b->size_gate, "vm.size");
    group_init(&b->fibers);
    latch_init(&b->scratch_made);
    latch_init(&b->first_start);
    cancel_init(&b->life, NULL);
    cancel_init(&b->dead, NULL);
    r->box = b;
    group_go(&r->fibers, r->o.loop, boot_main, b, "vm.boot %s", r->id);
}

/* --- those who need it --- */

enum need { NEED_PREPARED, NEED_VM, NEED_ALL };

static bool is_there(const struct box *b, enum need need)
{
    return need == NEED_PREPARED ? b->prepared : need == NEED_VM ? b->vm_up : b->state == BOX_UP;
}

/* A boot's error is that of all who wait for it. */
static int await(struct ctx *ctx, struct registry *r, enum need need, struct err *err)
{
    struct box *b = r->box;
    int ret = 0;

    if (!b)
        return err_set(err, ERR_UNAVAILABLE, "there is no VM");
    b->refs++;
    while (ret == 0 && b->state == BOX_BOOTING && !is_there(b, need))
        ret = waitq_wait(ctx, &r->box_q, "the VM to boot", err);
    if (ret == 0 && b->boot_err.code != ERR_NONE) {
        *err = b->boot_err;
        ret = err_wrap(err, "boot the VM");
    } else if (ret == 0 && (r->box != b || !box_alive(b)) && b->state != BOX_BOOTING) {
        ret = err_set(err, ERR_UNAVAILABLE,
                      "the VM of sandbox %s has ended: delete its containers first", r->id);
    }
    box_unref(b);
    return ret;
}

int box_begin(struct ctx *ctx, struct registry *r, const struct spec *spec,
              const struct annotations *options, struct err *err)
{
    struct sizing size;

    if (sizing_of(r->o.config, spec, options, &size, err) < 0)
        return -1;
    while (r->box && (r->box->state == BOX_ENDING || r->box->unwanted) && !r->closing)
        if (waitq_wait(ctx, &r->box_q, "the last VM to end", err) < 0)
            return -1;
    if (r->closing)
        return err_set(err, ERR_UNAVAILABLE, "the shim is shutting down");
    if (!r->box) {
        begin(r, spec, &size, options);
        r->box->least = (struct sizing){ options->memory_mib, options->cpus };
    } else if (options->encrypted_scratch && !r->box->encrypted_scratch) {
        return err_set(err, ERR_STATE,
                       "an encrypted scratch disk is asked for, and the VM runs with one that is "
                       "not: the pod's first container (its sandbox) must ask for it");
    }
    return await(ctx, r, NEED_PREPARED, err);
}

int box_need_vm(struct ctx *ctx, struct registry *r, struct err *err)
{
    return await(ctx, r, NEED_VM, err);
}

int box_need_all(struct ctx *ctx, struct registry *r, struct err *err)
{
    return await(ctx, r, NEED_ALL, err);
}

int box_span_begin(struct box *b, const char *name)
{
    return timeline_begin(b->vmm ? b->vmm->timeline : NULL, TRACK_HOST, name,
                          loop_now(b->r->o.loop));
}

void box_span_end(struct box *b, int span)
{
    timeline_end(b->vmm ? b->vmm->timeline : NULL, span, loop_now(b->r->o.loop));
}
