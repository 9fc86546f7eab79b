/* process.h - one process that the agent has started, in a container (through crun) or in the VM
 * itself: its stdio, its exit. Pids are those of the VM's root pid namespace. The process is our
 * child: spawned by us, or left to us by crun, whose subreaper we are.
 *
 * Counted: process_adopt gives one reference; the watcher holds another until the process has
 * exited and its output is drained. The exit is reported when the output was read. A reader that
 * stops reading delays it for a bounded time only; the rest of the output follows the exit. */
#pragma once
#include "base/list.h"
#include "base/mem.h"
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct ctx;
struct err;
struct loop;
struct process;
struct relay;
struct stdio_fds;
struct tty;

#define PROCESS_GRACE_NS (UINT64_C(10) * 1000 * 1000 * 1000)
#define PROCESS_WAIT_FOREVER UINT32_MAX

struct process_opts {
    struct loop *loop;
    pid_t pid;
    struct relay *relay; /* takes one of both, or none … */
    struct tty *tty;     /* … also on failure */
    /* Runs in the watcher once the process is reaped, before its output is drained. May wait. */
    void (*on_exit)(void *arg);
    void (*on_done)(void *arg); /* the code may be reported. May not wait */
    /* Time from the exit until other holders of its pipes are cut off; 0: PROCESS_GRACE_NS. The
     * exit is reported at most a fifth of it later, so that cut output still comes first. */
    uint64_t grace_ns;
    void *arg;
};

int process_adopt(const struct process_opts *opts, struct process **ret, struct err *err);
struct process *process_ref(struct process *p);
void process_unref(struct process *p);
AUTO_DEFINE(struct process *, process_unref);

uint32_t process_pid(const struct process *p);
bool process_exited(const struct process *p); /* reaped; its output may still flow */
/* The exit may be reported: see above. */
bool process_done(const struct process *p, uint32_t *ret_code);

/* Takes the sockets; once. */
void process_attach(struct process *p, struct stdio_fds *fds);
/* Waits for exit and drained output. Code: exit status, or 128 + signal. ERR_DEADLINE after
 * timeout_ms, if it is not PROCESS_WAIT_FOREVER. */
int process_wait(struct ctx *ctx, struct process *p, uint32_t timeout_ms, uint32_t *ret_code,
                 struct err *err);
/* ERR_NOT_FOUND: gone. 0 means SIGKILL. ERR_INVALID: no such signal. */
int process_signal(struct process *p, int signo, struct err *err);
/* ERR_STATE without a terminal; success if it is closed already. */
int process_resize(struct process *p, uint16_t rows, uint16_t cols, struct err *err);
/* Drops output that has not been sent. Never waits. */
void process_drop_output(struct process *p);
/* SIGKILL, and its output is dropped. Never waits. */
void process_kill(struct process *p);

/* Processes by pid, oldest first. Each is in it until its first answered wait. */
struct processes {
    struct list all;
    size_t n;
};
void processes_init(struct processes *l);
void processes_release(struct processes *l);
/* Takes one reference. An exited process that had the same pid is forgotten. */
void processes_add(struct processes *l, struct process *p);
void processes_forget(struct processes *l, struct process *p);
/* Borrows; NULL with ERR_NOT_FOUND. */
struct process *processes_find(const struct processes *l, uint32_t pid, struct err *err);
/* Makes room for one more: with max of them, forgets the oldest exited process that was not waited
 * for. ERR_EXHAUSTED: all of them run. */
int processes_make_room(struct processes *l, size_t max, struct err *err);
bool processes_all_done(const struct processes *l);
void processes_each(const struct processes *l, void (*fn)(struct process *p));
