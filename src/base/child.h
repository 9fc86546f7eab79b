/* child.h - child processes: spawned with exactly the fds named, watched by pidfd. Only the main
 * thread spawns (PDEATHSIG fires when the creating thread ends). */
#pragma once
#include "base/mem.h"
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct child;
struct ctx;
struct err;
struct loop;
struct saved;

/* Above every fd number that a child may ask for. In the child's setup only the parent's fds at or
 * above it are unchanged: named fds may have replaced the others. */
#define CHILD_SAFE_FD 256

struct child_fd {
    int from; /* ours; borrowed */
    int to;   /* its number in the child */
};

struct child_opts {
    const char *path; /* what to execute; argv[0] if NULL. No PATH search if it has a '/' */
    int exec_fd;      /* > 0: fexecve this fd instead of path */
    const char *const *argv;
    const char *const *envp; /* NULL: only PATH */
    const char *cwd;         /* NULL: the parent's */
    /* 0, 1, 2 that are not named become /dev/null; everything else is closed. */
    const struct child_fd *fds;
    size_t n_fds;
    uint64_t clone_flags; /* CLONE_NEWNS, CLONE_NEWPID … */
    bool new_session;     /* setsid() */
    int ctty;             /* > 0: this fd number of the child becomes its terminal */
    bool die_with_us;     /* PDEATHSIG = SIGKILL, set after setup; then the parent is checked */
    /* Runs in the child after the fds are placed and before exec; must not allocate or wait.
     * A failure (-1 with *err) ends the child and reaches child_spawn's caller. */
    int (*setup)(void *arg, struct err *err);
    void *setup_arg;
    /* Called with the pid before setup and exec run, to record it (the ledger). A failure ends the
     * child. May be NULL. */
    int (*on_pid)(void *arg, pid_t pid, struct err *err);
    void *on_pid_arg;
};

/* A program's path; a name without a slash is looked for in the absolute directories of PATH.
 * Caller frees. NULL: there is no executable program; for a path, errno is the reason. */
char *child_find(const char *name);
/* Waits until exec has happened or failed (ERR_NOT_FOUND, ERR_PERMISSION … naming the program).
 * Caller frees with child_free(). */
int child_spawn(struct ctx *ctx, const struct child_opts *opts, struct child **ret,
                struct err *err);
pid_t child_pid(const struct child *c);
int child_pidfd(const struct child *c); /* borrows */
/* Waits for the end; any number of fibers may. *ret_status as from waitpid(). */
int child_wait(struct ctx *ctx, struct child *c, int *ret_status, struct err *err);
bool child_done(const struct child *c, int *ret_status);
/* 0 or -errno; -ESRCH once it is gone. Never hits another process. */
int child_kill(struct child *c, int signo);
/* Kills it if it still runs, and reaps it. NULL is fine. Blocks for 50 ms at most: a child that the
 * kernel does not let die yet is reaped by the loop when it ends. */
void child_free(struct child *c);
AUTO_DEFINE(struct child *, child_free);
/* Frees the object without killing the child: for a daemon that outlives its parent. No fiber may
 * be waiting for it. */
void child_leave(struct child *c);

/* Of any process: its start time in clock ticks since boot (field 22 of /proc/PID/stat), which
 * names it for good together with its pid; 0 if it is gone. */
uint64_t proc_start_time(pid_t pid);
/* A child that runs, for saved.h: the program that reads it must be the same process. NULL: none.
 */
void child_saved(struct saved *s, uint32_t field, struct loop *loop, struct child **c);
