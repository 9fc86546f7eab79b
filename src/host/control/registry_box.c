/* registry_box.c - the box: one VM with its ledger, cgroup, device controllers and scratch disk.
 * How it is used and how it ends, with the last container; how it begins is in registry_boot.c. */
#include "base/fd.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/str.h"
#include "host/control/registry_priv.h"
#include "host/control/vm.h"
#include "host/device/plan9.h"
#include "host/device/scsi.h"
#include "host/device/vpci.h"
#include "host/ledger/ledger.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void box_unref(struct box *b)
{
    if (--b->refs > 0)
        return;
    cancel_release(&b->life);
    cancel_release(&b->dead);
    volumes_release(b);
    free(b->kernel);
    free(b->cgroup_path);
    free(b->scratch_path);
    free(b);
}

struct ctx box_ctx(const struct box *b, struct ctx *root)
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
    return b && (b->state == BOX_UP || (b->state == BOX_BOOTING && b->vm_up)) &&
           vm_state(b->vm) == VM_RUNNING;
}

/* --- the end --- */

static int drop_cgroup(struct ctx *ctx, struct box *b, struct err *err)
{
    uint64_t pause = BOX_CGROUP_PAUSE;

    if (!b->cgroup)
        return 0;
    /* With us in it, it is not empty. Also after a join that failed half way. */
    if (b->r->o.home && cgroup_join(b->r->o.home, getpid(), err) < 0)
        return err_wrap(err, "leave the pod's cgroup");
    for (unsigned n = 1;; n++, pause *= 2) { /* busy while a process of it is being reaped */
        struct err ignored = ERR_INIT;

        err_clear(err);
        if (cgroup_remove(b->cgroup, err) == 0)
            break;
        if (n == BOX_CGROUP_TRIES || fiber_sleep(ctx, pause, &ignored) < 0)
            return -1;
    }
    cgroup_free(TAKE_PTR(b->cgroup));
    return 0;
}

static int drop_scratch(struct ctx *ctx, struct box *b, struct err *err)
{
    return b->scratch ? scratch_remove(ctx, b->scratch, err) : 0;
}

static void drop_ledger(struct ctx *ctx, struct box *b)
{
    struct ctx limited = ctx_with_timeout(ctx, BOX_DRIVERS_LIMIT);
    struct err err = ERR_INIT;

    if (!b->ledger)
        return;
    if (group_wait(&limited, &b->r->drivers, "log drivers", &err) < 0 ||
        drop_scratch(ctx, b, &err) < 0 || drop_cgroup(ctx, b, &err) < 0 ||
        box_drop_note(b, &err) < 0 || ledger_finish(b->ledger, &err) < 0)
        log_error(ctx, "not all is taken back; `lcow gc` takes the rest", F_ERR(&err));
    if (b->scratch)
        scratch_free(TAKE_PTR(b->scratch));
    if (b->cgroup)
        cgroup_free(TAKE_PTR(b->cgroup));
    ledger_close(TAKE_PTR(b->ledger));
}

void box_take_back(struct ctx *ctx, struct box *b, bool orderly)
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
    vpci_free(TAKE_PTR(b->vpci));
    vm_free(TAKE_PTR(b->vm));
    drop_ledger(ctx, b);
}

void box_gone(struct box *b)
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

    box_take_back(&ctx, b, !b->r->closing);
    box_gone(b);
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

void box_kill_vm(struct box *b)
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
    /* It may not wait for what hangs: the scratch disk is made beside the boot. */
    cancel_fire(&b->life, ERR_UNAVAILABLE, "nobody needs the VM any more");
    box_kill_vm(b);
}

void box_give_up(struct box *b)
{
    struct ctx root, ctx = box_ctx(b, &root);

    if (!b->ending_asked)
        log_error(&ctx, "the guest does not take a SIGKILL; its VM is ended now");
    box_kill_vm(b);
}

int box_kill(struct ctx *ctx, struct box *b, struct err *err)
{
    return box_stop(ctx, b, false, err);
}

/* Counted among those that use the VM: whoever takes it back at the same time frees it only when
 * we have let go. */
static void hold(struct box *b)
{
    b->refs++;
    b->fibers.running++;
}

static void let_go(struct box *b)
{
    if (--b->fibers.running == 0)
        waitq_wake_all(&b->fibers.q);
    box_unref(b);
}

int box_explain(struct box *b, struct err *err)
{
    struct err ignored = ERR_INIT;
    bool killed;

    if (!b || !b->vm || err->code != ERR_UNAVAILABLE || b->stop_asked || b->ending_asked)
        return -1;

    struct ctx root, ctx = box_ctx(b, &root), limited = ctx_with_timeout(&ctx, BOX_WHY_LIMIT);

    hold(b);
    if (vm_wait_gone(&limited, b->vm, &killed, &ignored) == 0) {
        const char *why = vm_gone_why(b->vm);

        if (why[0] && !strstr(err->msg, why))
            err_wrap(err, "the VM has ended (%s)", why);
    }
    let_go(b);
    return -1;
}

int box_stop(struct ctx *ctx, struct box *b, bool orderly, struct err *err)
{
    int r;

    if (!b || !b->vm)
        return 0;
    if (!b->vm_up) /* it may still wait for what it needs to boot */
        cancel_fire(&b->life, ERR_UNAVAILABLE, "the VM is ended");
    b->stopping = b->stopping || orderly;
    b->stop_asked = true;
    hold(b);
    r = orderly ? vm_shutdown(ctx, b->vm, BOX_GRACE, err) : vm_terminate(ctx, b->vm, err);
    let_go(b);
    return r;
}

bool box_lost(struct box *b)
{
    struct ctx root, ctx = box_ctx(b, &root), limited = ctx_with_timeout(&ctx, PROCESS_LOST_LIMIT);
    struct err err = ERR_INIT;
    bool killed = false;

    if (b->stopping)
        return true;
    if (vm_wait_gone(&limited, b->vm, &killed, &err) == 0)
        return killed || b->r->closing; /* by whom does not matter */
    if (!b->ending_asked && !b->stop_asked)
        log_error(&ctx, "the guest is lost but its VM runs; it is ended now");
    box_kill_vm(b);
    return b->r->closing;
}
