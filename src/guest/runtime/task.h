/* task.h - a process in a container, from the moment crun made it: its stdio, its exit. Pids are
 * those of the VM's root pid namespace. The process is our child, because crun has ended and we are
 * its subreaper.
 *
 * Counted: task_adopt gives one reference; the watcher holds another until the process has exited
 * and its output is drained. The exit is told when the output was taken, but a reader that takes
 * nothing holds it back only for a while: then it is told, and the output flows on behind it. */
#pragma once
#include "base/mem.h"
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct ctx;
struct dialer;
struct err;
struct loop;
struct relay;
struct task;
struct tty;

#define TASK_TELL_NS (UINT64_C(10) * 1000 * 1000 * 1000)

struct task_opts {
    struct loop *loop;
    pid_t pid;
    struct relay *relay; /* takes one of both … */
    struct tty *tty;     /* … also on failure */
    /* Runs in the watcher once the process is reaped, before its output is drained. May wait. */
    void (*on_exit)(void *arg);
    void (*on_done)(void *arg); /* the code may be told. May not wait */
    uint64_t tell_ns;           /* from the exit, at most; 0: TASK_TELL_NS */
    void *arg;
};

int task_adopt(const struct task_opts *opts, struct task **ret, struct err *err);
struct task *task_ref(struct task *t);
void task_unref(struct task *t);
AUTO_DEFINE(struct task *, task_unref);

uint32_t task_pid(const struct task *t);
bool task_exited(const struct task *t); /* reaped; its output may still flow */
/* As told: see above. */
bool task_done(const struct task *t, uint32_t *ret_code);

struct task_stdio {
    bool want[3];
    uint32_t port[3];
};
/* Dials what is wanted. fds are the caller's; -1 for the others. On failure none is open. */
int task_dial(struct ctx *ctx, struct dialer *d, const struct task_stdio *io, int ret_fd[3],
              struct err *err);
/* Takes the sockets; once. redial: a lost output is dialled again; NULL: it is given up. */
void task_attach(struct task *t, const int fd[3], const struct task_stdio *io,
                 struct dialer *redial);

/* Waits for exit and drained output. Code: exit status, or 128 + signal. */
int task_wait(struct ctx *ctx, struct task *t, uint32_t *ret_code, struct err *err);
/* ERR_NOT_FOUND: gone. 0 means SIGKILL. ERR_INVALID: no such signal. */
int task_signal(struct task *t, int signo, struct err *err);
/* ERR_STATE without a terminal. */
int task_resize(struct task *t, uint16_t rows, uint16_t cols, struct err *err);
/* Output that is still on its way is dropped: nobody waits for it. Never waits. */
void task_drop_output(struct task *t);
