#include "host/jail/hook.h"
#include "base/child.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "host/ledger/ledger.h"
#include <ctype.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define SAID_MAX 400

struct run {
    const struct hook_opts *o;
    uint64_t record; /* 0: none */
};

static int record_pid(void *arg, pid_t pid, struct err *err)
{
    struct run *r = arg;

    return ledger_add_process(r->o->ledger, pid, &r->record, err);
}

/* The end of what it wrote, on one line. */
static int judge(int status, int said, struct err *err)
{
    char text[SAID_MAX + 1] = "";
    off_t size = lseek(said, 0, SEEK_END);
    ssize_t n = pread(said, text, SAID_MAX, size > SAID_MAX ? size - SAID_MAX : 0);

    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    while (n > 0 && isspace((unsigned char)text[n - 1]))
        text[--n] = '\0';
    for (ssize_t i = 0; i < n; i++)
        text[i] = (unsigned char)text[i] < ' ' ? ' ' : text[i];
    return err_set(
        err, ERR_STATE, "%s %d%s%s", WIFSIGNALED(status) ? "killed by signal" : "exit status",
        WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), n > 0 ? ": " : "", text);
}

static int run(struct ctx *ctx, struct run *r, int in, int said, int *ret_status, struct err *err)
{
    const struct hook_opts *o = r->o;
    const struct child_fd fds[] = { { in, 0 }, { said, 1 }, { said, 2 } };
    AUTO(child_free) struct child *c = NULL;

    if (child_spawn(ctx,
                    &(struct child_opts){ .path = o->path,
                                          .argv = o->argv,
                                          .envp = o->env,
                                          .cwd = o->cwd,
                                          .fds = fds,
                                          .n_fds = ARRAY_LEN(fds),
                                          .new_session = true,
                                          .die_with_us = true,
                                          .on_pid = record_pid,
                                          .on_pid_arg = r },
                    &c, err) < 0)
        return -1;
    int ret = child_wait(ctx, c, ret_status, err);

    if (ret < 0) /* what it has started, too; the session's id is its own until it is reaped */
        (void)kill(-child_pid(c), SIGKILL);
    return ret;
}

int hook_run(struct ctx *ctx, const struct hook_opts *o, struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, o->limit_ns);
    AUTO_FD int in = memfd_create("hook-state", MFD_CLOEXEC),
                said = memfd_create("hook-output", MFD_CLOEXEC);
    struct run r = { .o = o };
    struct err lost = ERR_INIT;
    int status = 0, result;

    if (in < 0 || said < 0 || fd_write_full(in, o->input, strlen(o->input)) < 0 ||
        lseek(in, 0, SEEK_SET) < 0)
        return err_sys(err, errno, "make a file in memory");
    result = run(&limited, &r, in, said, &status, err);
    if (r.record && ledger_forget(o->ledger, r.record, &lost) < 0)
        log_warn(ctx, "could not remove the ledger record of a hook", F_ERR(&lost));
    if (result < 0 && err->code == ERR_NOT_FOUND) /* to a client that means its container */
        err->code = ERR_INVALID;
    return result < 0 ? -1 : judge(status, said, err);
}
