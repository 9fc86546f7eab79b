/* fake_vmm.c - the scripted, faulty backend. */
#include "host/vmm/fake/fake_vmm.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/list.h"
#include "base/loop.h"
#include "base/str.h"
#include "base/stream.h"
#include "host/own/ledger.h"
#include "host/vmm/fake/fake_priv.h"
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STREAM_BYTES (64 * 1024)

static void say(struct fake *f, const char *what)
{
    if (f->opts.trace)
        f->opts.trace(f->opts.trace_arg, what);
}

void fake_violation(struct fake *f, const char *what)
{
    say(f, what);
    if (!f->violation[0])
        snprintf(f->violation, sizeof(f->violation), "%s", what);
}

static void fake_unlisten(struct vmm_listener *l);

static void fake_unref(struct fake *f)
{
    if (--f->refs > 0)
        return;
    ledger_close(f->ledger);
    while (!list_empty(&f->listeners))
        fake_unlisten(LIST_FIRST(&f->listeners, struct vmm_listener, node));
    cancel_release(&f->power);
    fake_devices_release(f);
    free(f->dir);
    free(f->ports);
    free(f);
}

/* One step of an operation. It ends early with ctx, with terminate, and with the VMM. */
int fake_step_run(struct ctx *ctx, struct fake *f, const struct fake_step *s, const char *op,
                  struct err *err)
{
    uint64_t until = loop_now(f->opts.loop) + s->delay_ns;
    bool asked_before = f->terminated, gone_before = f->gone;

    while (s->how == FAKE_HANG || loop_now(f->opts.loop) < until) {
        struct ctx limited = ctx_with_timeout(ctx, until - loop_now(f->opts.loop));
        struct ctx *c = s->how == FAKE_HANG ? ctx : &limited;

        if (waitq_wait(c, &f->changed, op, err) < 0) {
            if (c == &limited && err->code == ERR_DEADLINE && loop_now(f->opts.loop) >= until)
                break;
            return -1;
        }
        if ((f->terminated != asked_before && !f->opts.deaf) || f->gone != gone_before)
            return err_set(err, ERR_UNAVAILABLE, "%s: the VMM was terminated", op);
    }
    err_clear(err);
    if (s->how == FAKE_FAIL)
        return err_set(err, ERR_INTERNAL, "%s: the fake says no", op);
    return 0;
}

/* --- the end of the process --- */

static void set_gone(struct fake *f, int status, bool powered_off, const char *why)
{
    if (f->gone || !f->spawned)
        return;
    say(f, why);
    f->gone = true;
    f->gone_ns = loop_now(f->opts.loop);
    f->exit = (struct vmm_exit){ .requested = f->terminated || f->quitting,
                                 .powered_off = powered_off,
                                 .status = status,
                                 .at_wall_ns = loop_wall(f->opts.loop) };
    if (!f->exit.requested)
        snprintf(f->exit.why, sizeof(f->exit.why), "%s", why);
    cancel_fire(&f->power, ERR_UNAVAILABLE, "power is off");
    waitq_wake_all(&f->changed);
    LIST_EACH (&f->listeners, pos) {
        waitq_wake_all(&LIST_ENTRY(pos, struct vmm_listener, node)->q);
    }
}

void fake_vmm_die(struct vmm *v, enum fake_death how)
{
    struct fake *f = fake_of(v);

    switch (how) {
    case FAKE_KILLED:
        set_gone(f, SIGKILL, false, "killed by signal 9");
        break;
    case FAKE_CRASHED:
        set_gone(f, 1 << 8, false, "exit status 1");
        break;
    case FAKE_POWERED_OFF:
        set_gone(f, 0, true, "the guest powered off");
        break;
    case FAKE_OOM:
        set_gone(f, SIGKILL, false, "killed by the OOM killer");
        f->exit.oom = f->gone && !f->exit.requested;
        break;
    }
}

struct later {
    struct fake *fake;
    uint64_t ns;
    bool kill;
};

static void later_main(void *arg)
{
    struct later l = *(struct later *)arg;
    struct ctx root = ctx_root(l.fake->opts.loop), ctx = ctx_with_cancel(&root, &l.fake->power);
    struct err err = ERR_INIT;

    free(arg);
    if (fiber_sleep(&ctx, l.ns, &err) == 0) {
        if (l.kill)
            set_gone(l.fake, SIGKILL, false, "killed by us");
        else
            fake_vmm_die(&l.fake->vmm, l.fake->opts.death);
    }
    fake_unref(l.fake);
}

static void later(struct fake *f, uint64_t ns, bool kill)
{
    struct later *l = mem_new(struct later);

    *l = (struct later){ f, ns, kill };
    f->refs++;
    fiber_go(f->opts.loop, later_main, l, kill ? "fake.kill" : "fake.death");
}

/* --- life --- */

static void op_begin(struct fake *f, const char *op)
{
    if (f->op[0]) {
        char text[96];

        snprintf(text, sizeof(text), "%s while %s is under way", op, f->op);
        fake_violation(f, text);
    }
    if (f->freed)
        fake_violation(f, "use after free");
    snprintf(f->op, sizeof(f->op), "%s", op);
}

static void op_end(struct fake *f)
{
    f->op[0] = '\0';
}

static int fake_create(struct ctx *ctx, struct vmm *v, const struct vm_doc *doc, struct err *err)
{
    struct fake *f = fake_of(v);
    struct fake_step part = f->opts.create;
    int r = 0;

    f->least_mib = doc->memory_mib;
    f->most_mib = doc->max_memory_mib > doc->memory_mib ? doc->max_memory_mib : doc->memory_mib;
    say(f, "create");
    if (f->terminated)
        return err_set(err, ERR_UNAVAILABLE, "create: the VMM was terminated");
    if (f->created)
        fake_violation(f, "created twice");
    op_begin(f, "create");
    part.delay_ns /= FAKE_THINGS;
    if (part.how == FAKE_FAIL)
        part.how = FAKE_OK;
    for (unsigned i = 0; i < FAKE_THINGS && r == 0; i++) {
        r = fake_thing_make(f, err);
        if (r == 0)
            r = fake_step_run(ctx, f, &part, "create", err);
    }
    if (r == 0 && f->opts.create.how == FAKE_FAIL)
        r = err_set(err, ERR_INTERNAL, "create: the fake says no");
    f->created = r == 0;
    f->released = false;
    op_end(f);
    return r;
}

static int fake_start(struct ctx *ctx, struct vmm *v, struct err *err)
{
    struct fake *f = fake_of(v);
    int r;

    say(f, "start");
    if (!f->created || f->released)
        fake_violation(f, "start without create");
    if (f->spawned)
        fake_violation(f, "started twice");
    if (f->terminated)
        return err_set(err, ERR_UNAVAILABLE, "start: the VMM was terminated");
    op_begin(f, "start");
    r = fake_thing_make(f, err);
    if (r == 0 && f->opts.start_fails_early && f->opts.start.how == FAKE_FAIL) {
        r = fake_step_run(ctx, f, &f->opts.start, "start", err);
    } else if (r == 0) {
        f->spawned = true;
        if (v->on_stage)
            v->on_stage(v->on_stage_arg, VM_STAGE_SPAWNED);
        if (f->opts.dies_after_ns)
            later(f, f->opts.dies_after_ns, false);
        if (f->opts.on_power)
            f->opts.on_power(f->opts.on_power_arg, v, &f->power);
        r = fake_step_run(ctx, f, &f->opts.start, "start", err);
    }
    if (r == 0)
        f->started = true;
    op_end(f);
    return r;
}

static void fake_terminate(struct vmm *v)
{
    struct fake *f = fake_of(v);

    say(f, "terminate");
    if (f->freed)
        fake_violation(f, "terminate after free");
    f->terminates++;
    if (f->terminated)
        return;
    f->terminated = true;
    f->terminated_ns = loop_now(f->opts.loop);
    if (f->spawned && !f->gone)
        later(f, f->opts.kill_ns, true);
    waitq_wake_all(&f->changed);
}

static int fake_quit(struct ctx *ctx, struct vmm *v, struct err *err)
{
    struct fake *f = fake_of(v);

    say(f, "quit");
    f->quits++;
    if (!f->spawned || f->gone)
        return err_set(err, ERR_UNAVAILABLE, "quit: no VMM");
    f->inside++;

    int r = fake_step_run(ctx, f, &f->opts.quit, "quit", err);

    f->inside--;
    if (r < 0)
        return -1;
    f->quitting = true;
    set_gone(f, 0, false, "quit");
    return 0;
}

static int fake_wait(struct ctx *ctx, struct vmm *v, struct vmm_exit *ret, struct err *err)
{
    struct fake *f = fake_of(v);

    if (!f->spawned)
        return err_set(err, ERR_STATE, "wait: the VMM was never started");
    f->inside++;
    while (!f->gone) {
        if (waitq_wait(ctx, &f->changed, "the VMM to end", err) < 0) {
            f->inside--;
            return -1;
        }
    }
    f->inside--;
    *ret = f->exit;
    return 0;
}

static int fake_release(struct ctx *ctx, struct vmm *v, struct err *err)
{
    struct fake *f = fake_of(v);
    int r;

    say(f, "release");
    f->releases++;
    if (f->spawned && !f->gone)
        fake_violation(f, "released while the VMM runs");
    if (f->inside > 0)
        fake_violation(f, "released while somebody is inside the VMM");
    if (f->n_listeners > 0)
        fake_violation(f, "released while a port is open");
    op_begin(f, "release");
    if (f->releases <= f->opts.release_failures) {
        (void)fake_thing_unmake(f, err); /* half-way */
        r = err_set(err, ERR_INTERNAL, "release: the fake says no");
    } else if (f->releases == f->opts.release_failures + 1 && f->opts.release.how != FAKE_OK) {
        r = fake_step_run(ctx, f, &f->opts.release, "release", err);
    } else {
        r = f->opts.release.how == FAKE_OK ? fake_step_run(ctx, f, &f->opts.release, "release", err)
                                           : 0;
        while (r == 0 && f->n_things > 0)
            r = fake_thing_unmake(f, err);
        if (r == 0)
            r = fake_things_done(f, err);
    }
    op_end(f);
    if (r < 0)
        return -1;
    f->released = true;
    f->created = false;
    return 0;
}

static void fake_free(struct vmm *v)
{
    struct fake *f = fake_of(v);

    if (f->inside > 0 || f->op[0])
        fake_violation(f, "freed while somebody is inside the VMM");
    f->freed = true;
    fake_unref(f);
}

/* --- ports --- */

static int fake_listen(struct vmm *v, uint32_t port, struct vmm_listener **ret, struct err *err)
{
    struct fake *f = fake_of(v);

    if (!f->created)
        fake_violation(f, "listen without create");
    if (++f->listens == f->opts.listen_fails_at)
        return err_set(err, ERR_EXHAUSTED, "listen on 0x%x: the fake says no", port);
    for (size_t i = 0; i < f->n_ports; i++) {
        if (f->ports[i] != port)
            continue;
        fake_violation(f, "a port opened twice");
        return err_set(err, ERR_EXISTS, "port 0x%x was used before", port);
    }
    f->ports = mem_grow(f->ports, f->n_ports, &f->ports_cap, sizeof(*f->ports));
    f->ports[f->n_ports++] = port;

    struct vmm_listener *l = mem_new(struct vmm_listener);

    l->fake = f;
    l->port = port;
    waitq_init(&l->q);
    list_append(&f->listeners, &l->node);
    f->n_listeners++;
    *ret = l;
    return 0;
}

static void fake_unlisten(struct vmm_listener *l)
{
    if (!l)
        return;
    list_remove(&l->node);
    l->fake->n_listeners--;
    stream_free(l->stream);
    free(l);
}

static int fake_accept(struct ctx *ctx, struct vmm_listener *l, struct stream **ret,
                       struct err *err)
{
    struct fake *f = l->fake;
    int r = 0;

    f->inside++;
    while (r == 0 && !l->stream) {
        if (f->gone || f->terminated)
            r = err_set(err, ERR_UNAVAILABLE, "accept on 0x%x: the VM is gone", l->port);
        else
            r = waitq_wait(ctx, &l->q, "the guest to dial", err);
    }
    f->inside--;
    if (r == 0)
        *ret = TAKE_PTR(l->stream);
    fake_unlisten(l);
    return r;
}

int fake_vmm_dial(struct vmm *v, uint32_t port, struct stream **ret)
{
    struct fake *f = fake_of(v);

    LIST_EACH (&f->listeners, pos) {
        struct vmm_listener *l = LIST_ENTRY(pos, struct vmm_listener, node);

        if (l->port != port || l->stream || f->gone)
            continue;
        stream_pair(f->opts.loop, f->opts.stream_bytes, &l->stream, ret);
        waitq_wake_all(&l->q);
        return 0;
    }
    return -ECONNREFUSED;
}

/* --- the rest --- */

static int fake_stats(struct ctx *ctx, struct vmm *v, struct vmm_stats *ret, struct err *err)
{
    struct fake *f = fake_of(v);
    int r;

    f->inside++;
    r = f->gone ? err_set(err, ERR_UNAVAILABLE, "stats: no VMM")
                : fake_step_run(ctx, f, &f->opts.stats, "stats", err);
    f->inside--;
    if (r == 0)
        *ret = (struct vmm_stats){ .cpu_ns = 1, .memory_bytes = 1 << 28 };
    return r;
}

static void fake_info(struct vmm *v, struct vmm_info *ret)
{
    struct fake *f = fake_of(v);

    *ret = (struct vmm_info){ .emulated = true, .backend = "fake", .version = "1" };
    ret->clone = f->opts.clone;
    ret->pid = f->spawned && !f->gone ? 4242 : 0;
}

static void fake_judge(struct vmm *v, const char *why)
{
    struct fake *f = fake_of(v);

    f->judged++;
    snprintf(f->judged_why, sizeof(f->judged_why), "%s", why ? why : "");
}

static enum vm_stage fake_stage(struct vmm *v)
{
    return fake_of(v)->spawned ? VM_STAGE_SPAWNED : VM_STAGE_NONE;
}

static void fake_console_tail(struct vmm *v, size_t max, struct sbuf *out)
{
    (void)v;
    if (max >= sizeof("fake console\n"))
        sbuf_adds(out, "fake console\n");
}

void fake_vmm_facts(struct vmm *v, struct fake_facts *ret)
{
    struct fake *f = fake_of(v);

    *ret = (struct fake_facts){ .created = f->created,
                                .started = f->spawned,
                                .gone = f->gone,
                                .released = f->n_things == 0 && !f->ledger,
                                .died = f->gone && !f->exit.requested && !f->exit.powered_off,
                                .powered_off = f->exit.powered_off,
                                .terminated_ns = f->terminated_ns,
                                .gone_ns = f->gone_ns,
                                .terminates = f->terminates,
                                .quits = f->quits,
                                .releases = f->releases,
                                .things = f->n_things,
                                .listeners = f->n_listeners,
                                .judged = f->judged,
                                .violation = f->violation };
    snprintf(ret->judged_why, sizeof(ret->judged_why), "%s", f->judged_why);
    fake_devices_facts(f, ret);
}

static const struct vmm_ops fake_ops = {
    .create = fake_create,
    .start = fake_start,
    .terminate = fake_terminate,
    .quit = fake_quit,
    .wait = fake_wait,
    .release = fake_release,
    .free = fake_free,
    .listen = fake_listen,
    .accept = fake_accept,
    .unlisten = fake_unlisten,
    .stats = fake_stats,
    .info = fake_info,
    .stage = fake_stage,
    .console_tail = fake_console_tail,
    .scsi_add = fake_scsi_add,
    .scsi_remove = fake_scsi_remove,
    .share_add = fake_share_add,
    .share_remove = fake_share_remove,
    .nic_add = fake_nic_add,
    .judge = fake_judge,
    .set_memory = fake_set_memory,
    .set_cpus = fake_set_cpus,
    .nic_remove = fake_nic_remove,
    .pci_add = fake_pci_add,
    .pci_remove = fake_pci_remove,
};

struct vmm *fake_vmm_new(const struct fake_vmm_opts *opts)
{
    struct fake *f = mem_new(struct fake);

    f->vmm.ops = &fake_ops;
    f->opts = *opts;
    if (!f->opts.stream_bytes)
        f->opts.stream_bytes = STREAM_BYTES;
    f->dir = str_dup(opts->dir);
    f->refs = 1;
    waitq_init(&f->changed);
    cancel_init(&f->power, NULL);
    list_init(&f->listeners);
    return &f->vmm;
}
