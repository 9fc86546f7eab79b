#include "guest/runtime/process.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/exit_code.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/log.h"
#include "base/loop.h"
#include "guest/stdio/dial.h"
#include "guest/stdio/relay.h"
#include "guest/stdio/tty.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define LOOK_NS NS_PER_S

struct process {
    unsigned refs;
    struct list in_list; /* of struct processes */
    struct process_opts opts;
    int pidfd;
    bool exited;
    uint32_t code;
    struct latch done;
    struct cancel drop;
};

struct process *process_ref(struct process *p)
{
    p->refs++;
    return p;
}

void process_unref(struct process *p)
{
    if (!p || --p->refs > 0)
        return;
    relay_free(p->opts.relay);
    tty_free(p->opts.tty);
    cancel_release(&p->drop);
    fd_close(p->pidfd);
    free(p);
}

uint32_t process_pid(const struct process *p)
{
    return (uint32_t)p->opts.pid;
}

bool process_exited(const struct process *p)
{
    return p->exited;
}

bool process_done(const struct process *p, uint32_t *ret_code)
{
    if (p->done.set && ret_code)
        *ret_code = p->code;
    return p->done.set;
}

/* --- exit --- */

/* True once the process has exited. Never blocks. */
static bool reap(struct process *p)
{
    siginfo_t info = { 0 };

    if (waitid(P_PIDFD, (id_t)p->pidfd, &info, WEXITED | WNOHANG) < 0) {
        log_error(NULL, "cannot reap a process", F_U(LK_PID, process_pid(p)),
                  F_STR(LK_ERROR, strerror(errno)));
        p->code = EXIT_LOST;
        return true;
    }
    if (info.si_pid == 0)
        return false;
    p->code = info.si_code == CLD_EXITED ? (uint32_t)info.si_status
                                         : EXIT_BY_SIGNAL((uint32_t)info.si_status);
    return true;
}

/* Checks every second if the wait fails, because containers have used up the epoll watches, or if
 * it returns early, because the exited process still has a tracer. */
static void await_exit(struct ctx *ctx, struct process *p)
{
    struct err err = ERR_INIT, ignored = ERR_INIT;
    bool logged = false;

    for (;;) {
        int r = loop_wait_fd(ctx, p->pidfd, POLLIN, "process to exit", &err);

        if (reap(p))
            return;
        if (r < 0 && !logged)
            log_warn(ctx, "cannot wait for a process; polling every second instead",
                     F_U(LK_PID, process_pid(p)), F_ERR(&err));
        logged = logged || r < 0;
        (void)fiber_sleep(ctx, LOOK_NS, &ignored); /* cannot fail: nothing cancels ctx */
    }
}

static void report(struct process *p)
{
    if (p->done.set)
        return;
    latch_set(&p->done);
    if (p->opts.on_done)
        p->opts.on_done(p->opts.arg);
}

static void report_in_time(void *arg)
{
    struct process *p = arg;
    struct ctx limited = ctx_limited(p->opts.loop, p->opts.grace_ns + p->opts.grace_ns / 5);
    struct err err = ERR_INIT;

    if (latch_wait(&limited, &p->done, "output to be taken", &err) < 0)
        log_warn(&limited, "reporting the exit of a process although its output was not read",
                 F_U(LK_PID, process_pid(p)));
    report(p);
    process_unref(p);
}

static void watch(void *arg)
{
    struct process *p = arg;
    struct ctx root = ctx_root(p->opts.loop), ctx = ctx_with_cancel(&root, &p->drop);
    struct err err = ERR_INIT;

    await_exit(&root, p);
    p->exited = true;
    if (p->opts.on_exit)
        p->opts.on_exit(p->opts.arg);
    if (p->opts.relay || p->opts.tty)
        fiber_go(p->opts.loop, report_in_time, process_ref(p), "exit of %d", p->opts.pid);
    /* Both fail only when the output is dropped on purpose. */
    if (p->opts.relay)
        (void)relay_drain(&ctx, p->opts.relay, p->opts.grace_ns, &err);
    if (p->opts.tty)
        (void)tty_drain(&ctx, p->opts.tty, &err);
    report(p);
    process_unref(p);
}

int process_adopt(const struct process_opts *opts, struct process **ret, struct err *err)
{
    struct process *p = mem_new(struct process);

    p->opts = *opts;
    if (p->opts.grace_ns == 0)
        p->opts.grace_ns = PROCESS_GRACE_NS;
    p->refs = 2;
    p->pidfd = (int)syscall(SYS_pidfd_open, opts->pid, 0);
    list_init(&p->in_list);
    latch_init(&p->done);
    cancel_init(&p->drop, NULL);
    if (p->pidfd < 0) {
        err_sys(err, errno, "pidfd of process %d", opts->pid);
        p->refs = 1;
        process_unref(p);
        return -1;
    }
    fiber_go(opts->loop, watch, p, "process %d", opts->pid);
    *ret = p;
    return 0;
}

/* --- the rest of its life --- */

void process_attach(struct process *p, struct stdio_fds *fds)
{
    if (p->opts.tty) /* which has no stderr */
        tty_attach(p->opts.tty, TAKE_FD(fds->fd[0]), TAKE_FD(fds->fd[1]));
    else
        relay_attach(p->opts.relay, fds);
}

void process_drop_output(struct process *p)
{
    cancel_fire(&p->drop, ERR_CANCELLED, "output is dropped");
}

int process_wait(struct ctx *ctx, struct process *p, uint32_t timeout_ms, uint32_t *ret_code,
                 struct err *err)
{
    struct ctx bounded = *ctx;

    if (timeout_ms != PROCESS_WAIT_FOREVER)
        bounded = ctx_with_timeout(ctx, timeout_ms * NS_PER_MS);
    if (!p->done.set && latch_wait(&bounded, &p->done, "process to exit", err) < 0)
        return -1;
    *ret_code = p->code;
    return 0;
}

int process_signal(struct process *p, int signo, struct err *err)
{
    if (signo < 0 || signo > SIGRTMAX)
        return err_because(err, REASON_INVALID_REQUEST, ERR_INVALID,
                           "invalid signal %d: must be 1–%d", signo, SIGRTMAX);
    if (!p->exited &&
        syscall(SYS_pidfd_send_signal, p->pidfd, signo ? signo : SIGKILL, NULL, 0) == 0)
        return 0;
    if (p->exited || errno == ESRCH)
        return err_set(err, ERR_NOT_FOUND, "process %u has exited", process_pid(p));
    return err_sys(err, errno, "signal %d to process %u", signo, process_pid(p));
}

void process_kill(struct process *p)
{
    struct err ignored = ERR_INIT;

    process_drop_output(p);
    (void)process_signal(p, SIGKILL, &ignored); /* it may have exited already */
}

int process_resize(struct process *p, uint16_t rows, uint16_t cols, struct err *err)
{
    if (!p->opts.tty)
        return err_set(err, ERR_STATE, "process %u has no terminal", process_pid(p));
    return tty_resize(p->opts.tty, rows, cols, err);
}

/* --- many of them --- */

void processes_init(struct processes *l)
{
    *l = (struct processes){ 0 };
    list_init(&l->all);
}

void processes_each(const struct processes *l, void (*fn)(struct process *p))
{
    LIST_EACH (&l->all, pos)
        fn(LIST_ENTRY(pos, struct process, in_list));
}

void processes_forget(struct processes *l, struct process *p)
{
    if (list_empty(&p->in_list))
        return;
    list_remove(&p->in_list);
    l->n--;
    process_unref(p);
}

void processes_release(struct processes *l)
{
    LIST_EACH (&l->all, pos)
        processes_forget(l, LIST_ENTRY(pos, struct process, in_list));
}

/* Searches from the newest: the kernel may reuse a pid while an exited process that was not waited
 * for is still in the table. */
static struct process *find(const struct processes *l, uint32_t pid)
{
    for (struct list *pos = l->all.prev; pos != &l->all; pos = pos->prev) {
        struct process *p = LIST_ENTRY(pos, struct process, in_list);
        if (process_pid(p) == pid)
            return p;
    }
    return NULL;
}

void processes_add(struct processes *l, struct process *p)
{
    struct process *old = find(l, process_pid(p));

    if (old)
        processes_forget(l, old);
    list_append(&l->all, &p->in_list);
    l->n++;
}

struct process *processes_find(const struct processes *l, uint32_t pid, struct err *err)
{
    struct process *p = find(l, pid);

    if (!p)
        err_set(err, ERR_NOT_FOUND, "no process %u", pid);
    return p;
}

int processes_make_room(struct processes *l, size_t max, struct err *err)
{
    if (l->n < max)
        return 0;
    LIST_FOR (struct process, p, &l->all, in_list) {
        if (p->done.set) {
            processes_forget(l, p);
            return 0;
        }
    }
    return err_set(err, ERR_EXHAUSTED, "too many processes: at most %zu", max);
}

bool processes_all_done(const struct processes *l)
{
    LIST_EACH (&l->all, pos)
        if (!LIST_ENTRY(pos, struct process, in_list)->done.set)
            return false;
    return true;
}
