#include "guest/runtime/task.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
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
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* docs/decisions/0007-containers-in-the-guest.md */
#define GRACE_NS (10 * NS_PER_S)
#define EXIT_UNKNOWN 255

struct task {
    unsigned refs;
    struct task_opts opts;
    int pidfd;
    bool exited;
    uint32_t code;
    struct latch done;
    struct cancel drop;
};

struct task *task_ref(struct task *t)
{
    t->refs++;
    return t;
}

void task_unref(struct task *t)
{
    if (!t || --t->refs > 0)
        return;
    relay_free(t->opts.relay);
    tty_free(t->opts.tty);
    cancel_release(&t->drop);
    fd_close(t->pidfd);
    free(t);
}

uint32_t task_pid(const struct task *t)
{
    return (uint32_t)t->opts.pid;
}

bool task_exited(const struct task *t)
{
    return t->exited;
}

bool task_done(const struct task *t, uint32_t *ret_code)
{
    if (t->done.set && ret_code)
        *ret_code = t->code;
    return t->done.set;
}

/* --- exit --- */

static uint32_t reap(struct task *t)
{
    siginfo_t info = { 0 };

    if (waitid(P_PIDFD, (id_t)t->pidfd, &info, WEXITED) < 0 || info.si_pid == 0) {
        log_error(NULL, "cannot reap a process of a container", F_U("pid", task_pid(t)));
        return EXIT_UNKNOWN;
    }
    return info.si_code == CLD_EXITED ? (uint32_t)info.si_status : 128u + (uint32_t)info.si_status;
}

static void tell(struct task *t)
{
    if (t->done.set)
        return;
    latch_set(&t->done);
    if (t->opts.on_done)
        t->opts.on_done(t->opts.arg);
}

static void tell_in_time(void *arg)
{
    struct task *t = arg;
    struct ctx root = ctx_root(t->opts.loop);
    struct ctx limited = ctx_with_timeout(&root, t->opts.tell_ns ? t->opts.tell_ns : TASK_TELL_NS);
    struct err err = ERR_INIT;

    if (latch_wait(&limited, &t->done, "output to be taken", &err) < 0)
        log_warn(&root, "nobody takes the output of a process that has exited",
                 F_U("pid", task_pid(t)));
    tell(t);
    task_unref(t);
}

static void watch(void *arg)
{
    struct task *t = arg;
    struct ctx root = ctx_root(t->opts.loop), ctx = ctx_with_cancel(&root, &t->drop);
    struct err err = ERR_INIT;

    if (loop_wait_fd(&root, t->pidfd, POLLIN, "process to exit", &err) < 0)
        log_error(&root, "cannot wait for a process", F_U("pid", task_pid(t)), F_ERR(&err));
    t->code = reap(t);
    t->exited = true;
    if (t->opts.on_exit)
        t->opts.on_exit(t->opts.arg);
    fiber_go(t->opts.loop, tell_in_time, task_ref(t), "task.tell %d", t->opts.pid);
    /* Both fail only when the output is dropped on purpose. */
    if (t->opts.relay)
        (void)relay_drain(&ctx, t->opts.relay, GRACE_NS, &err);
    if (t->opts.tty)
        (void)tty_drain(&ctx, t->opts.tty, &err);
    tell(t);
    task_unref(t);
}

int task_adopt(const struct task_opts *opts, struct task **ret, struct err *err)
{
    struct task *t = mem_new(struct task);

    t->opts = *opts;
    t->refs = 2;
    t->pidfd = (int)syscall(SYS_pidfd_open, opts->pid, 0);
    latch_init(&t->done);
    cancel_init(&t->drop, NULL);
    if (t->pidfd < 0) {
        err_sys(err, errno, "pidfd of process %d", opts->pid);
        t->refs = 1;
        task_unref(t);
        return -1;
    }
    fiber_go(opts->loop, watch, t, "task %d", opts->pid);
    *ret = t;
    return 0;
}

/* --- stdio --- */

int task_dial(struct ctx *ctx, struct dialer *d, const struct task_stdio *io, int ret_fd[3],
              struct err *err)
{
    static const char *const names[] = { "stdin", "stdout", "stderr" };
    int fd[3] = { -1, -1, -1 };

    for (int i = 0; i < 3; i++) {
        if (!io->want[i] || dialer_dial(ctx, d, io->port[i], &fd[i], err) == 0)
            continue;
        for (int k = 0; k < i; k++)
            fd_close(fd[k]);
        return err_wrap(err, "%s", names[i]);
    }
    for (int i = 0; i < 3; i++)
        ret_fd[i] = fd[i];
    return 0;
}

void task_attach(struct task *t, const int fd[3], const struct task_stdio *io,
                 struct dialer *redial)
{
    if (t->opts.tty) {
        fd_close(fd[2]); /* a terminal has none */
        tty_attach(t->opts.tty, fd[0], fd[1]);
        return;
    }
    relay_attach(t->opts.relay, &(struct relay_host){
                                    .fd = { fd[0], fd[1], fd[2] },
                                    .port = { io->port[0], io->port[1], io->port[2] },
                                    .redial = redial,
                                });
}

void task_drop_output(struct task *t)
{
    cancel_fire(&t->drop, ERR_CANCELLED, "container is deleted");
}

/* --- the rest of its life --- */

int task_wait(struct ctx *ctx, struct task *t, uint32_t *ret_code, struct err *err)
{
    if (!t->done.set && latch_wait(ctx, &t->done, "process to exit", err) < 0)
        return -1;
    *ret_code = t->code;
    return 0;
}

int task_signal(struct task *t, int signo, struct err *err)
{
    if (signo < 0 || signo > SIGRTMAX)
        return err_set(err, ERR_INVALID, "no signal %d", signo);
    if (t->exited)
        return err_set(err, ERR_NOT_FOUND, "process %u has exited", task_pid(t));
    if (syscall(SYS_pidfd_send_signal, t->pidfd, signo ? signo : SIGKILL, NULL, 0) == 0)
        return 0;
    if (errno == ESRCH)
        return err_set(err, ERR_NOT_FOUND, "process %u has exited", task_pid(t));
    return err_sys(err, errno, "signal %d to process %u", signo, task_pid(t));
}

int task_resize(struct task *t, uint16_t rows, uint16_t cols, struct err *err)
{
    if (!t->opts.tty)
        return err_set(err, ERR_STATE, "process %u has no terminal", task_pid(t));
    return tty_resize(t->opts.tty, rows, cols, err);
}
