#include "guest/runtime/process.h"
#include "base/child.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/list.h"
#include "base/log.h"
#include "base/str.h"
#include "guest/runtime/cgroup.h"
#include "guest/runtime/cmdline.h"
#include "guest/runtime/standing.h"
#include "guest/stdio/dial.h"
#include "guest/stdio/tty.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

struct process {
    struct list in_table; /* alone once forgotten */
    unsigned refs;        /* table, watcher, each waiter */
    struct process_table *table;
    struct child *child;
    struct tty *tty; /* NULL without a terminal */
    uint32_t pid, code;
    struct latch done; /* exited and drained; code is valid */
};

struct process_table {
    struct loop *loop;
    struct dialer *dialer;
    struct list processes; /* oldest first */
    size_t n;
    struct cancel closing;
    struct group watchers;
    struct waitq exits;
};

/* The sockets of a process that is being started, and its words. */
struct launch {
    int fd[3];
    struct strv words;
    const char *const *argv;
};

struct process_table *process_table_new(struct loop *loop, struct dialer *dialer)
{
    struct process_table *t = mem_new(struct process_table);

    t->loop = loop;
    t->dialer = dialer;
    list_init(&t->processes);
    cancel_init(&t->closing, NULL);
    group_init(&t->watchers);
    waitq_init(&t->exits);
    return t;
}

static void process_unref(struct process *p)
{
    if (--p->refs > 0)
        return;
    child_free(p->child);
    tty_free(p->tty);
    free(p);
}

static void process_forget(struct process *p)
{
    if (list_empty(&p->in_table))
        return;
    list_remove(&p->in_table);
    p->table->n--;
    process_unref(p);
}

void process_table_free(struct process_table *t)
{
    if (!t)
        return;
    struct ctx ctx = ctx_root(t->loop);
    struct err ignored = ERR_INIT;

    LIST_EACH (&t->processes, pos)
        (void)child_kill(LIST_ENTRY(pos, struct process, in_table)->child, SIGKILL);
    cancel_fire(&t->closing, ERR_CANCELLED, "process table is closing");
    if (t->watchers.running > 0)
        (void)group_wait(&ctx, &t->watchers, "processes to end", &ignored);
    LIST_EACH (&t->processes, pos)
        process_forget(LIST_ENTRY(pos, struct process, in_table));
    cancel_release(&t->closing);
    free(t);
}

size_t process_count(const struct process_table *t)
{
    return t->n;
}

static struct process *find(const struct process_table *t, uint32_t pid)
{
    for (struct list *pos = t->processes.prev; pos != &t->processes; pos = pos->prev) {
        struct process *p = LIST_ENTRY(pos, struct process, in_table);
        if (p->pid == pid)
            return p;
    }
    return NULL;
}

static int not_found(uint32_t pid, struct err *err)
{
    return err_set(err, ERR_NOT_FOUND, "no process %u", pid);
}

/* --- start --- */

static void launch_release(struct launch *l)
{
    for (int i = 0; i < 3; i++)
        fd_close(l->fd[i]);
    strv_release(&l->words);
}

static int check_spec(struct process_table *t, const struct process_spec *spec, struct launch *l,
                      struct err *err)
{
    l->argv = spec->argv;
    if (!l->argv || !l->argv[0]) {
        if (spec->command_line && cmdline_split(spec->command_line, &l->words, err) < 0)
            return -1;
        l->argv = (const char *const *)l->words.v;
    }
    if (!l->argv || !l->argv[0] || !l->argv[0][0])
        return err_set(err, ERR_INVALID, "process has neither arguments nor a command line");
    if (spec->terminal && spec->want[2])
        return err_set(err, ERR_INVALID, "a terminal has no stderr of its own");
    if (t->n < PROCESS_MAX)
        return 0;

    /* Room: the oldest whose end nobody asked for. */
    LIST_EACH (&t->processes, pos) {
        struct process *p = LIST_ENTRY(pos, struct process, in_table);
        if (p->done.set) {
            process_forget(p);
            return 0;
        }
    }
    return err_set(err, ERR_EXHAUSTED, "%d processes run already", PROCESS_MAX);
}

static int dial_stdio(struct ctx *ctx, struct process_table *t, const struct process_spec *spec,
                      struct launch *l, struct err *err)
{
    static const char *const names[] = { "stdin", "stdout", "stderr" };

    for (int i = 0; i < 3; i++)
        if (spec->want[i] && dialer_dial(ctx, t->dialer, spec->port[i], &l->fd[i], err) < 0)
            return err_wrap(err, "%s", names[i]);
    return 0;
}

static int child_setup(void *arg, struct err *err)
{
    standing_drop();
    (void)cgroup_join_commands(); /* limit_commands() has warned */
    return 0;
}

/* Without a limit of its own a command that eats all memory may take the VM with it. In tests there
 * is no such cgroup. */
static void limit_commands(struct ctx *ctx)
{
    struct err err = ERR_INIT;

    if (cgroup_limit_commands(CGROUP_ROOT, "/proc/meminfo", &err) < 0 && err.code != ERR_NOT_FOUND)
        log_warn(ctx, "command has no limit of memory", F_ERR(&err));
}

static int spawn(struct ctx *ctx, const struct process_spec *spec, const struct launch *l,
                 int slave, struct child **ret, struct err *err)
{
    struct child_fd fds[3];
    size_t n = 0;
    struct child_opts opts = {
        .argv = l->argv,
        .envp = spec->env && spec->env[0] ? spec->env : NULL,
        .cwd = spec->cwd && spec->cwd[0] ? spec->cwd : NULL,
        .fds = fds,
        .setup = child_setup,
    };

    for (int i = 0; i < 3; i++) {
        int fd = spec->terminal ? slave : l->fd[i];
        if (fd >= 0)
            fds[n++] = (struct child_fd){ fd, i };
    }
    opts.n_fds = n;
    opts.new_session = true;
    if (spec->terminal)
        opts.ctty = STDOUT_FILENO;
    limit_commands(ctx);
    if (child_spawn(ctx, &opts, ret, err) < 0)
        return err_wrap(err, "run %s", l->argv[0]);
    return 0;
}

static uint32_t exit_code(int status)
{
    return WIFSIGNALED(status) ? 128u + (uint32_t)WTERMSIG(status) : (uint32_t)WEXITSTATUS(status);
}

static void watch(void *arg)
{
    struct process *p = arg;
    struct process_table *t = p->table;
    struct ctx root = ctx_root(t->loop), ctx = ctx_with_cancel(&root, &t->closing);
    struct err err = ERR_INIT;
    int status = 0;

    /* Not with ctx: a closing table has killed it, so that this ends either way. */
    if (child_wait(&root, p->child, &status, &err) < 0)
        log_error(&root, "cannot wait for a process", F_U("pid", p->pid), F_ERR(&err));
    p->code = exit_code(status);
    waitq_wake_all(&t->exits);
    if (p->tty)
        (void)tty_drain(&ctx, p->tty, &err); /* fails only when the table closes */
    latch_set(&p->done);
    process_unref(p);
}

/* The kernel may hand out a pid again while an exit nobody asked for is still in the table. */
static void table_add(struct process_table *t, struct process *p)
{
    struct process *old = find(t, p->pid);

    if (old)
        process_forget(old);
    list_append(&t->processes, &p->in_table);
    t->n++;
    p->refs = 2;
    group_go(&t->watchers, t->loop, watch, p, "process %u", p->pid);
}

static int start(struct ctx *ctx, struct process_table *t, const struct process_spec *spec,
                 struct launch *l, uint32_t *ret_pid, struct err *err)
{
    AUTO(tty_free) struct tty *tty = NULL;
    AUTO_FD int slave = -1;
    struct child *child;

    if (check_spec(t, spec, l, err) < 0 || dial_stdio(ctx, t, spec, l, err) < 0)
        return -1;
    if (spec->terminal && tty_open(t->loop, spec->rows, spec->cols, &tty, &slave, err) < 0)
        return -1;
    if (spawn(ctx, spec, l, slave, &child, err) < 0)
        return -1;

    struct process *p = mem_new(struct process);
    p->table = t;
    p->child = child;
    p->pid = (uint32_t)child_pid(child);
    latch_init(&p->done);
    if (tty) {
        fd_close(TAKE_FD(slave));
        tty_attach(tty, TAKE_FD(l->fd[0]), TAKE_FD(l->fd[1]));
        p->tty = TAKE_PTR(tty);
    }
    table_add(t, p);
    *ret_pid = p->pid;
    return 0;
}

int process_exec(struct ctx *ctx, struct process_table *t, const struct process_spec *spec,
                 uint32_t *ret_pid, struct err *err)
{
    struct launch l = { .fd = { -1, -1, -1 } };
    int r = start(ctx, t, spec, &l, ret_pid, err);

    launch_release(&l);
    return r;
}

/* --- the rest of its life --- */

int process_wait(struct ctx *ctx, struct process_table *t, uint32_t pid, uint32_t timeout_ms,
                 uint32_t *ret_code, struct err *err)
{
    struct process *p = find(t, pid);
    struct ctx bounded = *ctx;

    if (!p)
        return not_found(pid, err);
    if (timeout_ms != PROCESS_WAIT_FOREVER)
        bounded = ctx_with_timeout(ctx, timeout_ms * NS_PER_MS);
    p->refs++;
    int r = p->done.set ? 0 : latch_wait(&bounded, &p->done, "process to exit", err);
    if (r == 0) {
        *ret_code = p->code;
        process_forget(p);
    }
    process_unref(p);
    return r;
}

int process_signal(struct process_table *t, uint32_t pid, int signo, struct err *err)
{
    struct process *p = find(t, pid);

    if (signo < 0 || signo > SIGRTMAX)
        return err_set(err, ERR_INVALID, "no signal %d", signo);
    if (!p)
        return not_found(pid, err);
    int r = child_kill(p->child, signo ? signo : SIGKILL);
    if (r == -ESRCH)
        return not_found(pid, err);
    return r < 0 ? err_sys(err, -r, "signal %d to process %u", signo, pid) : 0;
}

int process_resize(struct process_table *t, uint32_t pid, uint16_t rows, uint16_t cols,
                   struct err *err)
{
    struct process *p = find(t, pid);

    if (!p)
        return not_found(pid, err);
    if (!p->tty)
        return err_set(err, ERR_STATE, "process %u has no terminal", pid);
    return tty_resize(p->tty, rows, cols, err);
}

static bool any_runs(const struct process_table *t)
{
    LIST_EACH (&t->processes, pos)
        if (!child_done(LIST_ENTRY(pos, struct process, in_table)->child, NULL))
            return true;
    return false;
}

int process_stop_all(struct ctx *ctx, struct process_table *t, int signo, struct err *err)
{
    LIST_EACH (&t->processes, pos)
        (void)child_kill(LIST_ENTRY(pos, struct process, in_table)->child, signo);
    while (any_runs(t))
        if (waitq_wait(ctx, &t->exits, "processes to exit", err) < 0)
            return -1;
    return 0;
}
