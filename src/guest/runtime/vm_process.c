#include "guest/runtime/vm_process.h"
#include "base/child.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "guest/runtime/cgroup.h"
#include "guest/runtime/standing.h"
#include "guest/stdio/tty.h"
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* Reads a quoted part and returns the position after its closing quote; NULL without one. */
static const char *take_quoted(const char *at, char quote, struct sbuf *word)
{
    for (; *at && *at != quote; at++) {
        if (quote == '"' && *at == '\\' && (at[1] == '"' || at[1] == '\\'))
            at++;
        sbuf_addc(word, *at);
    }
    return *at ? at + 1 : NULL;
}

/* Reads one word, up to the next blank. */
static const char *take_word(const char *at, struct sbuf *word, struct err *err)
{
    while (*at && !is_blank(*at)) {
        if (*at == '\'' || *at == '"') {
            char quote = *at;
            at = take_quoted(at + 1, quote, word);
            if (!at) {
                err_set(err, ERR_INVALID, "invalid command line: unclosed %c quote", quote);
                return NULL;
            }
        } else if (*at == '\\') {
            if (!at[1]) {
                err_set(err, ERR_INVALID, "invalid command line: ends with a backslash");
                return NULL;
            }
            sbuf_addc(word, at[1]);
            at += 2;
        } else {
            sbuf_addc(word, *at++);
        }
    }
    return at;
}

int cmdline_split(const char *line, struct strv *ret_words, struct err *err)
{
    if (strlen(line) > CMDLINE_MAX_BYTES)
        return err_set(err, ERR_INVALID, "invalid command line: longer than %d bytes",
                       CMDLINE_MAX_BYTES);
    for (const char *at = line; *at;) {
        AUTO(sbuf_release) struct sbuf word = { 0 };
        if (is_blank(*at)) {
            at++;
            continue;
        }
        at = take_word(at, &word, err);
        if (!at)
            return -1;
        strv_add(ret_words, word.data ? word.data : "");
    }
    return 0;
}

struct vm_processes *vm_processes_new(struct loop *loop, struct dialer *dialer)
{
    struct vm_processes *v = mem_new(struct vm_processes);

    v->loop = loop;
    v->dialer = dialer;
    processes_init(&v->all);
    waitq_init(&v->exits);
    return v;
}

void vm_processes_free(struct vm_processes *v)
{
    struct err ignored = ERR_INIT;

    if (!v)
        return;
    struct ctx ctx = ctx_root(v->loop);
    processes_each(&v->all, process_kill);
    while (!processes_all_done(&v->all))
        (void)waitq_wait(&ctx, &v->exits, "processes to end", &ignored);
    processes_release(&v->all);
    free(v);
}

static void terminate(struct process *p)
{
    struct err ignored = ERR_INIT;

    (void)process_signal(p, SIGTERM, &ignored); /* it may have exited already */
}

int vm_processes_stop(struct ctx *ctx, struct vm_processes *v, struct err *err)
{
    processes_each(&v->all, terminate);
    while (!processes_all_done(&v->all))
        if (waitq_wait(ctx, &v->exits, "processes to exit", err) < 0)
            return -1;
    return 0;
}

/* --- start --- */

/* The words to run: those given, or those of the command line, which *split owns. */
static int find_words(const struct vm_process_spec *spec, struct strv *split,
                      const char *const **ret, struct err *err)
{
    const char *const *argv = spec->argv;

    if (!argv || !argv[0]) {
        if (spec->command_line && cmdline_split(spec->command_line, split, err) < 0)
            return -1;
        argv = (const char *const *)split->v;
    }
    if (!argv || !argv[0] || !argv[0][0])
        return err_set(err, ERR_INVALID, "invalid process: neither arguments nor a command line");
    *ret = argv;
    return 0;
}

static int child_setup(void *arg, struct err *err)
{
    standing_drop();
    (void)cgroup_join_commands(); /* limit_commands() has warned */
    return 0;
}

/* Without a memory limit a command that uses all memory may end the VM. In tests there is no such
 * cgroup. */
static void limit_commands(struct ctx *ctx)
{
    struct err err = ERR_INIT;

    if (cgroup_limit_commands(CGROUP_ROOT, "/proc/meminfo", &err) < 0 && err.code != ERR_NOT_FOUND)
        log_warn(ctx, "cannot set the commands' memory limit; the command runs without it",
                 F_ERR(&err));
}

/* slave: of the terminal, or -1. */
static int spawn(struct ctx *ctx, const struct vm_process_spec *spec, const char *const *argv,
                 const struct stdio_fds *fds, int slave, struct child **ret, struct err *err)
{
    struct child_fd named[3];
    struct child_opts opts = {
        .argv = argv,
        .envp = spec->env && spec->env[0] ? spec->env : NULL,
        .cwd = spec->cwd && spec->cwd[0] ? spec->cwd : NULL,
        .fds = named,
        .setup = child_setup,
        .new_session = true,
        .ctty = spec->terminal ? STDOUT_FILENO : 0,
    };

    for (int i = 0; i < 3; i++) {
        int fd = spec->terminal ? slave : fds->fd[i];
        if (fd >= 0)
            named[opts.n_fds++] = (struct child_fd){ fd, i };
    }
    limit_commands(ctx);
    if (child_spawn(ctx, &opts, ret, err) < 0)
        return err_wrap_because(err,
                                err->code == ERR_NOT_FOUND ? REASON_COMMAND_NOT_FOUND
                                : err->sys == EACCES || err->sys == ENOEXEC
                                    ? REASON_COMMAND_NOT_EXECUTABLE
                                    : REASON_NONE,
                                "run %s", argv[0]);
    return 0;
}

static void on_done(void *arg)
{
    waitq_wake_all(&((struct vm_processes *)arg)->exits);
}

int vm_process_exec(struct ctx *ctx, struct vm_processes *v, const struct vm_process_spec *spec,
                    uint32_t *ret_pid, struct err *err)
{
    AUTO(stdio_fds_release) struct stdio_fds fds = STDIO_FDS_NONE;
    AUTO(strv_release) struct strv split = { 0 };
    AUTO(child_free) struct child *child = NULL;
    AUTO(tty_free) struct tty *tty = NULL;
    AUTO_FD int slave = -1;
    const char *const *argv = NULL;
    struct process *p;

    if (find_words(spec, &split, &argv, err) < 0)
        return -1;
    if (spec->terminal && spec->io.want[2])
        return err_set(err, ERR_INVALID,
                       "invalid process: a terminal cannot have a separate stderr");
    if (processes_make_room(&v->all, VM_PROCESS_MAX, err) < 0 ||
        dialer_dial_stdio(ctx, v->dialer, &spec->io, &fds, err) < 0)
        return -1;
    if (spec->terminal && tty_open(v->loop, &tty, &slave, err) < 0)
        return -1;
    if (spawn(ctx, spec, argv, &fds, slave, &child, err) < 0)
        return -1;
    const struct process_opts opts = {
        .loop = v->loop,
        .pid = child_pid(child),
        .tty = TAKE_PTR(tty),
        .on_done = on_done,
        .arg = v,
    };
    if (process_adopt(&opts, &p, err) < 0)
        return -1;
    child_leave(TAKE_PTR(child)); /* p has a pidfd of its own */
    fd_close(TAKE_FD(slave));
    if (spec->terminal)
        process_attach(p, &fds);
    processes_add(&v->all, p);
    *ret_pid = process_pid(p);
    return 0;
}

/* --- the rest of its life --- */

int vm_process_wait(struct ctx *ctx, struct vm_processes *v, uint32_t pid, uint32_t timeout_ms,
                    uint32_t *ret_code, struct err *err)
{
    struct process *found = processes_find(&v->all, pid, err);

    if (!found)
        return -1;
    AUTO(process_unref) struct process *p = process_ref(found);
    if (process_wait(ctx, p, timeout_ms, ret_code, err) < 0)
        return -1;
    processes_forget(&v->all, p);
    return 0;
}

int vm_process_signal(struct vm_processes *v, uint32_t pid, int signo, struct err *err)
{
    struct process *p = processes_find(&v->all, pid, err);

    return p ? process_signal(p, signo, err) : -1;
}

int vm_process_resize(struct vm_processes *v, uint32_t pid, uint16_t rows, uint16_t cols,
                      struct err *err)
{
    struct process *p = processes_find(&v->all, pid, err);

    return p ? process_resize(p, rows, cols, err) : -1;
}
