/* cmd_boot_run.c - one session: create the VM, wait for its agent, run CMD, clean up. */
#include "base/clock.h"
#include "base/exit_code.h"
#include "base/log.h"
#include "base/loop.h"
#include "host/bridge/guest.h"
#include "host/control/vm.h"
#include "host/control/vm_clock.h"
#include "host/ledger/ledger.h"
#include "tool/cmd_boot.h"
#include "tool/lib/term.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define END_LIMIT (60 * NS_PER_S)
#define LOST_LIMIT (3 * NS_PER_S)
#define CONSOLE_TAIL 6000 /* bytes; the cause of a panic is far above its last line */

/* What happens after a stage was reached and before the next one. */
static const char *const doing[VM_STAGE_COUNT] = {
    [VM_STAGE_NONE] = "starting QEMU",
    [VM_STAGE_SPAWNED] = "QEMU is running and loading the guest's kernel",
    [VM_STAGE_KERNEL] = "the guest's kernel is starting",
    [VM_STAGE_INIT] = "the agent is starting",
    [VM_STAGE_AGENT] = "the agent is connected",
    [VM_STAGE_NEGOTIATED] = "ready",
};

/* What to do if a boot stopped at a stage. */
static const char *const advice[VM_STAGE_COUNT] = {
    [VM_STAGE_NONE] = "run `lcow doctor`: it checks what a VM needs from this machine",
    [VM_STAGE_SPAWNED] =
        "the kernel printed nothing: rebuild the image with `make image`, then run `lcow doctor`",
    [VM_STAGE_KERNEL] = "the kernel did not start its first program: see the console below; "
                        "try more --memory, or `make image`",
    [VM_STAGE_INIT] =
        "the agent did not connect: see the console below, and try again with --log-level debug",
    [VM_STAGE_AGENT] = "the agent connected, but did not answer: unless the VM was stopped, lcow "
                       "and the image have different versions; rebuild both with `make`",
    [VM_STAGE_NEGOTIATED] = "see the console below, and try again with --log-level debug",
};

void boot_result_release(struct boot_result *r)
{
    free(TAKE_PTR(r->console));
}

static void on_stage(void *arg, enum vm_stage stage)
{
    struct boot_session *s = arg;

    s->result->stage = stage;
    s->result->stage_at[stage] = loop_now(s->tool->loop);
    if (s->spinner)
        spinner_say(s->spinner, doing[stage]);
}

void boot_session_signal(struct boot_session *s, int signo)
{
    if (signo == SIGWINCH) {
        s->resized = true;
        waitq_wake_all(&s->news);
        return;
    }
    bool first = s->signo == 0;

    if (first)
        s->signo = signo;
    if (first && s->phase == BOOT_RUNNING) {
        s->forward = signo;
        waitq_wake_all(&s->news);
        return;
    }
    if (s->phase != BOOT_ENDING)
        cancel_fire(&s->stop, ERR_CANCELLED, "interrupted");
}

static void fill_doc(struct boot_session *s, const char *id, const char *run_dir,
                     struct vm_doc *doc)
{
    const struct config *c = &s->tool->config;
    const struct tool_opts *o = s->opts;

    *doc = (struct vm_doc){
        .id = id,
        .run_dir = run_dir,
        .vmm_path = c->qemu,
        .kernel = s->image->kernel,
        .initrd = s->image->initrd,
        .memory_mib = o->memory_mib,
        .cpus = o->cpus,
        .max_cpus = o->cpus,
        .accel = o->kvm ? VM_ACCEL_KVM : VM_ACCEL_AUTO,
        .allow_emulation = o->allow_emulation,
        .vsock = c->vsock_link,
        .nested = c->nested_virtualization,
        .code_cache_mib = c->emulation_cache_mib,
        .uid_base = c->vm_uid_base,
        .uid_count = c->vm_uid_count,
        /* Part of a template's key: with other values the VM would need its own template. */
        .disk_mib = c->scratch_mib,
        .pci_ports = config_pci_ports(c),
        .agent_log_level = s->tool->opts.log_level,
        .template_dir = c->use_template && !s->cold ? c->template_dir : NULL,
    };
}

/* Boots the VM until the bridge is negotiated. */
static int start(struct ctx *ctx, struct boot_session *s, struct err *err)
{
    const struct config *c = &s->tool->config;
    struct ctx limited = ctx_with_timeout(ctx, c->boot_timeout_s * NS_PER_S);
    AUTO_FREE char *id = str_format("%s@vm", s->result->id);
    AUTO_FREE char *dir = str_format("%s/boot/%s", c->run_root, s->result->id);
    struct vm_doc doc;
    int r;

    fill_doc(s, id, dir, &doc);
    if (s->opts->keep && s->tool->backend->serve && ledger_create(dir, &s->ledger, err) < 0)
        return -1;
    doc.ledger = s->ledger;
    s->spinner = spinner_new(s->tool->loop);
    spinner_say(s->spinner, doing[VM_STAGE_NONE]);
    r = vm_start(&limited, s->vm, &doc, err);
    spinner_free(TAKE_PTR(s->spinner));
    return r;
}

static void set_info(struct boot_session *s)
{
    struct vmm_info info;

    vm_info(s->vm, &info);
    s->result->emulated = info.emulated;
    s->result->clone = info.clone;
    snprintf(s->result->cold_why, sizeof(s->result->cold_why), "%s", info.cold_why);
    snprintf(s->result->vmm_version, sizeof(s->result->vmm_version), "%s", info.version);
}

static void set_console(struct boot_session *s)
{
    AUTO(sbuf_release) struct sbuf tail = { 0 };

    vm_console_tail(s->vm, CONSOLE_TAIL, &tail);
    if (tail.len > 0)
        s->result->console = sbuf_take(&tail);
}

/* Replaces the error by the VM's own exit, which is closer to the cause. */
static bool set_exit(struct boot_session *s, const char *what)
{
    struct ctx ctx = ctx_limited(s->tool->loop, LOST_LIMIT);
    struct vm_exit gone;
    struct err ignored = ERR_INIT;

    if (s->result->err.code != ERR_UNAVAILABLE || vm_wait(&ctx, s->vm, &gone, &ignored) < 0 ||
        gone.requested)
        return false;
    err_set(&s->result->err, ERR_UNAVAILABLE, "%s%s", what, gone.why);
    return true;
}

static bool is_of_vmm(enum reason reason)
{
    switch (reason) {
    case REASON_QEMU_FAILED:
    case REASON_QEMU_SILENT:
    case REASON_QEMU_KILLED:
    case REASON_QEMU_SECCOMP:
    case REASON_QEMU_TOO_OLD:
    case REASON_QEMU_UNUSABLE:
    case REASON_QEMU_GONE:
    case REASON_KVM_FAILED:
    case REASON_JAIL_FAILED:
        return true;
    default:
        return false;
    }
}

/* Completes the result of a boot that failed and was not stopped by the user. */
static void explain_boot_failure(struct boot_session *s)
{
    struct boot_result *r = s->result;
    struct err damaged = ERR_INIT;
    bool in_vmm = is_of_vmm(err_reason(&r->err)); /* the guest is not to blame */

    r->next = advice[in_vmm ? VM_STAGE_NONE : r->stage];
    if (r->err.code == ERR_PERMISSION && geteuid() != 0)
        r->next = "run lcow as root: it creates namespaces, and runs each VM as its own user";
    set_console(s);
    (void)set_exit(s, ""); /* without an exit of the VM the error stays as it is */
    /* Checked only after a failure, because hashing is too slow for every boot. */
    if (!in_vmm && r->stage > VM_STAGE_NONE && r->stage < VM_STAGE_NEGOTIATED &&
        image_verify(s->image, &damaged) < 0)
        r->err = damaged;
}

static void keep(struct ctx *ctx, struct boot_session *s)
{
    struct vmm_info info;
    struct vm_exit end;
    struct err err = ERR_INIT;

    vm_info(s->vm, &info);
    tool_printf(STDERR_FILENO,
                "lcow: VM %s keeps running: pid %d, directory %s/boot/%s; Ctrl-C stops it\n",
                s->result->id, info.pid, s->tool->config.run_root, s->result->id);
    vm_clock_check(s->vm);
    boot_serve(ctx, s);
    s->phase = BOOT_KEEPING;
    s->signo = 0;
    if (vm_wait(ctx, s->vm, &end, &err) == 0 && !end.requested) {
        err_set(&s->result->err, ERR_UNAVAILABLE, "the kept VM stopped unexpectedly: %s", end.why);
        s->result->code = TOOL_BOOT_FAILED;
        set_console(s);
    }
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* Measures round trips over the bridge. */
static int bench_bridge(struct ctx *ctx, struct guest *g, uint32_t calls, struct boot_bench *ret,
                        struct err *err)
{
    AUTO_FREE uint64_t *took = mem_alloc(calls * sizeof(*took));

    for (uint32_t i = 0; i < calls; i++) {
        uint64_t before = loop_now(ctx->loop);
        uint64_t clock;

        /* An error from the guest is a complete round trip, too. */
        if (g->ops->read_clock(ctx, g, &clock, err) < 0 &&
            (err->code == ERR_UNAVAILABLE || err->code == ERR_DEADLINE ||
             err->code == ERR_CANCELLED))
            return err_wrap(err, "round trip %u of the bridge", i + 1);
        took[i] = loop_now(ctx->loop) - before;
    }
    err_clear(err);
    qsort(took, calls, sizeof(*took), by_value);
    *ret = (struct boot_bench){ .calls = calls,
                                .min_us = (double)took[0] / 1e3,
                                .median_us = (double)took[calls / 2] / 1e3,
                                .p99_us = (double)took[(uint64_t)calls * 99 / 100] / 1e3 };
    return 0;
}

static int use(struct ctx *ctx, struct boot_session *s, struct err *err)
{
    struct boot_result *r = s->result;
    uint32_t code = 0;

    if (s->opts->bench_bridge > 0 &&
        bench_bridge(ctx, s->guest, s->opts->bench_bridge, &r->bench, err) < 0)
        return -1;
    if (s->argv) {
        s->phase = BOOT_RUNNING;
        if (boot_run_command(ctx, s, &code, err) < 0)
            return -1;
        r->ran = true;
        r->code = (int)code;
    }
    if (s->opts->keep && !s->stop.fired)
        keep(ctx, s);
    return 0;
}

/* Kills the VM: an orderly shutdown has no use, since it has no disk and CMD has exited. */
static void end(struct boot_session *s)
{
    struct ctx ctx = ctx_limited(s->tool->loop, END_LIMIT);
    struct err err = ERR_INIT;

    s->phase = BOOT_ENDING;
    boot_unserve(s);
    vm_kill(s->vm, VM_END_KILL, "`lcow boot` is exiting");
    if (vm_wait(&ctx, s->vm, NULL, &err) == 0) {
        vm_free(TAKE_PTR(s->vm));
        if (!s->ledger || ledger_finish(s->ledger, &err) == 0) {
            ledger_close(TAKE_PTR(s->ledger));
            return;
        }
    }
    /* Not freed, since a fiber still uses it. The ledger records what is left for gc. */
    s->vm = NULL;
    s->result->err = err;
    s->result->next = "run `lcow gc` to clean up the rest";
    s->result->code = TOOL_BOOT_FAILED;
}

static int code_of(const struct boot_session *s, const struct err *err)
{
    if (s->stop.fired && s->signo)
        return (int)EXIT_BY_SIGNAL((unsigned)s->signo);
    if (s->phase != BOOT_RUNNING || s->process)
        return TOOL_BOOT_FAILED;
    /* CMD was not started. */
    return err->reason == REASON_COMMAND_NOT_FOUND        ? TOOL_NOT_FOUND
           : err->reason == REASON_COMMAND_NOT_EXECUTABLE ? TOOL_NOT_EXECUTABLE
                                                          : TOOL_BOOT_FAILED;
}

void boot_session_run(struct ctx *ctx, struct boot_session *s, struct boot_result *ret)
{
    struct loop *loop = s->tool->loop;
    struct ctx inner = ctx_with_cancel(ctx, &s->stop);
    struct vmm *vmm = s->tool->backend->vmm_new(loop);
    uint32_t number;

    *ret = (struct boot_result){ .origin = loop_now(loop) };
    loop_rand(loop, &number, sizeof(number));
    snprintf(ret->id, sizeof(ret->id), "b-%08x", number);
    s->result = ret;
    vmm->timeline = &ret->timeline;
    s->guest = s->tool->backend->guest_new(loop, vmm, &ret->timeline);
    s->vm = vm_new(loop, vmm, s->guest);
    vm_on_stage(s->vm, on_stage, s);
    waitq_init(&s->news);
    fibers_init(&s->helpers);
    cancel_init(&s->stop, NULL);

    if (start(&inner, s, &ret->err) < 0) {
        ret->code = code_of(s, &ret->err);
        ret->failed_at = loop_now(loop);
        if (!s->stop.fired)
            explain_boot_failure(s);
    } else {
        set_info(s);
        if (use(&inner, s, &ret->err) < 0) {
            ret->code = code_of(s, &ret->err);
            if (!s->stop.fired && set_exit(s, "the VM stopped while it was in use: "))
                set_console(s);
        }
    }
    if (s->stop.fired && !ret->ran)
        err_set(&ret->err, ERR_CANCELLED, "stopped by SIG%s", sigabbrev_np(s->signo));
    end(s);
    ret->ended = loop_now(loop);
    cancel_release(&s->stop);
}
