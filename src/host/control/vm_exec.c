/* vm_exec.c - processes in the VM itself, and the other calls that need a running guest. */
#include "base/exit_code.h"
#include "base/log.h"
#include "base/str.h"
#include "base/stream.h"
#include "host/bridge/guest.h"
#include "host/control/vm_priv.h"
#include <stdlib.h>

/* Shared by the client and the watching fiber. One wait without end is sent for each process:
 * the guest forgets a process with the first wait it answers, so a client's own wait, given up
 * half-way, would take the exit code with it. */
struct vm_process {
    unsigned refs;
    struct vm *vm; /* borrows */
    uint32_t pid;
    struct stream *streams[3];
    bool done;   /* code or lost is set */
    bool failed; /* lost is set */
    uint32_t code;
    struct err lost;
    struct waitq q;
};

static void process_unref(struct vm_process *p)
{
    if (--p->refs > 0)
        return;
    for (size_t i = 0; i < ARRAY_LEN(p->streams); i++)
        stream_free(p->streams[i]);
    free(p);
}

static void watch_main(void *arg)
{
    struct vm_process *p = arg;
    struct vm *vm = p->vm;
    struct ctx ctx = vm_own_ctx(vm);
    uint64_t wait_id = 0;
    uint32_t code = 0;

    if (vm->p.guest->ops->wait_process(&ctx, vm->p.guest, NULL, p->pid, GUEST_WAIT_FOREVER, &code,
                                       &wait_id, &p->lost) < 0)
        p->failed = true;
    p->code = code > EXIT_LOST ? EXIT_LOST : code;
    p->done = true;
    waitq_wake_all(&p->q);
    process_unref(p);
    vm_drop(vm);
}

static void process_start_watch(struct vm_process *p)
{
    p->refs++;
    vm_hold(p->vm);
    fiber_go(p->vm->o.loop, watch_main, p, "vm.process %u", p->pid);
}

int vm_exec(struct ctx *ctx, struct vm *vm, const struct vm_exec *e, struct vm_process **ret,
            struct err *err)
{
    struct guest_exec g = { .argv = e->argv,
                            .env = e->env,
                            .cwd = e->cwd ? e->cwd : "/",
                            .terminal = e->terminal,
                            .want_stdin = e->want_stdin,
                            .want_stdout = e->want_stdout,
                            .want_stderr = e->want_stderr };
    struct guest_process process = { 0 };

    if (!e->argv || !e->argv[0])
        return err_set(err, ERR_INVALID, "exec: no command");
    if (e->terminal && e->want_stderr)
        return err_set(err, ERR_INVALID, "exec: a terminal has no separate stderr");

    AUTO(vm_leave) const struct vm_parts *in = vm_enter(vm, "exec", err);

    if (!in)
        return -1;
    if (vm_await_clock(ctx, vm, err) < 0 ||
        in->guest->ops->exec(ctx, in->guest, &g, &process, err) < 0)
        return err_wrap(err, "exec %s in the VM", e->argv[0]);

    struct vm_process *p = mem_new(struct vm_process);

    *p = (struct vm_process){
        .refs = 1, .vm = vm, .pid = process.pid, .streams = { process.in, process.out, process.err }
    };
    waitq_init(&p->q);
    process_start_watch(p);
    if (e->terminal && (e->rows || e->cols)) {
        struct err lost = ERR_INIT;

        if (in->guest->ops->resize_console(ctx, in->guest, NULL, p->pid, e->rows, e->cols, &lost) <
            0)
            log_warn(ctx, "the terminal keeps its default size", F_U(LK_PID, p->pid), F_ERR(&lost));
    }
    *ret = p;
    return 0;
}

struct stream *vm_process_take_stream(struct vm_process *p, int fd)
{
    if (fd < 0 || (size_t)fd >= ARRAY_LEN(p->streams))
        return NULL;
    return TAKE_PTR(p->streams[fd]);
}

int vm_process_wait(struct ctx *ctx, struct vm_process *p, uint32_t *ret_code, struct err *err)
{
    while (!p->done)
        if (waitq_wait(ctx, &p->q, "a process in the VM to end", err) < 0)
            return -1;
    if (p->failed) {
        *err = p->lost;
        return err_wrap(err, "wait for process %u", p->pid);
    }
    *ret_code = p->code;
    return 0;
}

/* Around a call that names the process. */
static const struct vm_parts *process_enter(struct vm_process *p, const char *what, struct err *err)
{
    if (!p->done)
        return vm_enter(p->vm, what, err);
    err_because(err, REASON_NOT_FOUND, ERR_NOT_FOUND, "%s: process %u has ended", what, p->pid);
    return NULL;
}

int vm_process_signal(struct ctx *ctx, struct vm_process *p, int signo, struct err *err)
{
    AUTO(vm_leave) const struct vm_parts *in = process_enter(p, "signal", err);

    if (!in)
        return -1;
    if (in->guest->ops->signal_process(ctx, in->guest, NULL, p->pid, signo, err) < 0)
        return err_wrap(err, "signal %d to process %u", signo, p->pid);
    return 0;
}

int vm_process_resize(struct ctx *ctx, struct vm_process *p, uint16_t rows, uint16_t cols,
                      struct err *err)
{
    AUTO(vm_leave) const struct vm_parts *in = process_enter(p, "resize", err);

    if (!in)
        return -1;

    uint32_t pid = p->pid; /* p may be freed while we wait */

    if (in->guest->ops->resize_console(ctx, in->guest, NULL, pid, rows, cols, err) < 0)
        return err_wrap(err, "resize the terminal of process %u", pid);
    return 0;
}

void vm_process_free(struct vm_process *p)
{
    if (!p)
        return;
    for (size_t i = 0; i < ARRAY_LEN(p->streams); i++)
        stream_free(TAKE_PTR(p->streams[i])); /* closed now, though the watch may go on */
    process_unref(p);
}

int vm_dump_stacks(struct ctx *ctx, struct vm *vm, char **ret_text, struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, VM_STACKS_LIMIT);
    AUTO(vm_leave) const struct vm_parts *in = vm_enter(vm, "dump stacks", err);

    return in ? in->guest->ops->dump_stacks(&limited, in->guest, ret_text, err) : -1;
}

int vm_stats(struct ctx *ctx, struct vm *vm, struct vmm_stats *ret, struct err *err)
{
    AUTO(vm_leave) const struct vm_parts *in = vm_enter(vm, "give statistics", err);

    if (!in)
        return -1;
    if (!in->vmm->ops->stats)
        return err_set(err, ERR_UNIMPLEMENTED, "this backend has no statistics");
    return in->vmm->ops->stats(ctx, in->vmm, ret, err);
}
