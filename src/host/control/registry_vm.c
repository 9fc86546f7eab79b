/* registry_vm.c - the registry's VM: made with its first container, closed with its last one, and
 * the run file beside its ledger that says what is in it (run_file.h). */
#include "base/ctx.h"
#include "base/err.h"
#include "base/log.h"
#include "base/str.h"
#include "host/config/annotations.h"
#include "host/config/shape.h"
#include "host/control/container.h"
#include "host/control/registry.h"
#include "host/control/run_file.h"
#include "host/control/vm.h"
#include "host/ledger/ledger.h"
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

/* --- the run file --- */

static int write_run_file(struct registry *r, struct ledger *ledger, struct err *err)
{
    AUTO_FREE char *self = ledger_process_name(getpid());
    AUTO(run_file_release)
    struct run_file n = { .address = r->o.address,
                          .version = LCOW_VERSION,
                          .pid = getpid(),
                          .process = self ? self : "",
                          .home = r->o.bundle ? r->o.bundle : "",
                          .v = mem_zalloc((r->n_containers + 1) * sizeof(*n.v)) };

    for (size_t i = 0; i < r->n_containers; i++) {
        const struct container_parts *c = container_parts(r->containers[i]);

        if (c->anchor_name)
            n.v[n.n++] = (struct run_member){ c->id, c->bundle, c->anchor_name, c->hidden };
    }
    return run_file_write(ledger_dir(ledger), &n, err);
}

void registry_update_run_file(struct registry *r)
{
    struct err err = ERR_INIT;

    if (r->record && write_run_file(r, vm_parts(r->vm)->ledger, &err) < 0)
        log_warn(NULL, "the list of containers for `delete` and lcow(1) is out of date",
                 F_ERR(&err));
}

static int run_file_begin(void *arg, struct ledger *ledger, struct err *err)
{
    struct registry *r = arg;
    AUTO_FREE char *path = run_file_path(ledger_dir(ledger));

    if (!r->o.address)
        return 0;
    if (ledger_add(ledger, LEDGER_FILE, path, &r->record, err) < 0)
        return -1;
    return write_run_file(r, ledger, err);
}

static void drop_forsaken(void *arg, const char *id, const char *anchor)
{
    (void)anchor;
    run_unforsake(arg, id);
}

static int run_file_end(void *arg, struct ledger *ledger, struct err *err)
{
    struct registry *r = arg;
    AUTO_FREE char *path = run_file_path(ledger_dir(ledger)), *dir = str_dup(ledger_dir(ledger));
    uint64_t id = r->record;

    if (!id)
        return 0;
    r->record = 0;
    run_each_forsaken(dir, drop_forsaken, dir);
    if (unlink(path) < 0 && errno != ENOENT)
        return err_sys(err, errno, "remove %s", path);
    return ledger_forget(ledger, id, err);
}

/* --- the VM --- */

int registry_adopt(struct registry *r, struct vm *vm, struct ledger *ledger, struct err *err)
{
    r->vm = vm;
    return run_file_begin(r, ledger, err);
}

int registry_yield(struct registry *r, struct ledger *ledger, struct err *err)
{
    r->vm = NULL;
    return run_file_end(r, ledger, err);
}

static void want_template(void *arg, uint32_t memory_mib)
{
    struct registry *r = arg;

    if (r->o.want_template)
        r->o.want_template(r->o.arg, memory_mib);
}

static void vm_changed(void *arg)
{
    struct registry *r = arg;

    waitq_wake_all(&r->changed);
}

static void vm_ended(void *arg, bool killed)
{
    struct registry *r = arg;

    /* Containers without a watcher yet; the watchers of the others notice by themselves. */
    for (size_t i = 0; i < r->n_containers; i++)
        container_vm_died(r->containers[i], killed);
    waitq_wake_all(&r->changed);
}

static void vm_closed(void *arg)
{
    struct registry *r = arg;

    r->vm = NULL;
    r->record = 0;
    waitq_wake_all(&r->changed);
}

struct vm_opts registry_vm_opts(struct registry *r)
{
    struct vmm *vmm = r->o.make_vmm(r->o.arg);

    return (struct vm_opts){ .loop = r->o.loop,
                             .vmm = vmm,
                             .guest = r->o.make_guest(r->o.arg, vmm),
                             .config = r->o.config,
                             .ns = r->ns,
                             .id = r->id,
                             .guest_id = r->guest_id,
                             .home = r->o.home,
                             .drivers = &r->drivers,
                             .on_ledger = run_file_begin,
                             .on_change = vm_changed,
                             .on_ended = vm_ended,
                             .on_close = run_file_end,
                             .on_closed = vm_closed,
                             .want_template = want_template,
                             .arg = r };
}

static int open_vm(struct ctx *ctx, struct registry *r, const struct spec *spec,
                   const struct sizing *size, const struct annotations *options, struct err *err)
{
    struct vm_shape shape;
    struct vm_opts o;

    if (shape_of(options, size, &shape, err) < 0)
        return -1;
    o = registry_vm_opts(r);
    o.size = *size;
    o.wishes = *options;
    o.shape = shape;
    o.cgroup_path = spec_cgroups_path(spec);
    o.oom_score_adj = spec_oom_score_adj(spec, &o.set_oom_score_adj);
    r->vm = vm_open(&o);
    timeline_follow(vm_timeline(r->vm), ctx);
    return 0;
}

int registry_need_vm(struct ctx *ctx, struct registry *r, const struct spec *spec,
                     const struct annotations *options, struct err *err)
{
    struct sizing size;

    if (sizing_of(r->o.config, spec, options, &size, err) < 0)
        return -1;
    while (r->vm && vm_is_closing(r->vm) && !r->closing)
        if (waitq_wait(ctx, &r->changed, "the last VM to end", err) < 0)
            return -1;
    if (r->closing)
        return err_because(err, REASON_SHIM_LEAVING, ERR_UNAVAILABLE, "the shim is shutting down");
    if (!r->vm) {
        if (open_vm(ctx, r, spec, &size, options, err) < 0)
            return -1;
    } else if (annotations_contradiction(&vm_parts(r->vm)->wishes, options, err) < 0) {
        return -1;
    } else if (options->encrypted_scratch && !vm_parts(r->vm)->wishes.encrypted_scratch)
        return err_because(err, REASON_INVALID_ANNOTATION, ERR_STATE,
                           "an encrypted scratch disk was requested, but the VM runs without one: "
                           "request it for the pod's first container (its sandbox)");
    return vm_need_prepared(ctx, r->vm, err);
}

int registry_set_cpu_group(struct ctx *ctx, struct registry *r, const char *name, struct err *err)
{
    if (!r->vm || vm_state(r->vm) != VM_RUNNING)
        return err_because(err, REASON_WRONG_STATE, ERR_STATE,
                           "no running VM can join CPU group %.64s", name);
    return vm_set_cpu_group(ctx, r->vm, name, err);
}
