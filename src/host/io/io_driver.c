/* io_driver.c - log drivers: programs that read a container's output
 * (docs/reference/containerd-contract.md §5.3, binary://). Such a program does not depend on a
 * request or a connection. */
#include "base/child.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/stream.h"
#include "host/io/io_priv.h"
#include "host/ledger/ledger.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CRASH_NS (1 * NS_PER_S)
#define PF_EXITING 4 /* of the kernel's task flags, field 9 of /proc/PID/stat */

enum { FD_OUT = 3, FD_ERR = 4, FD_READY = 5 };

/* --- its end --- */

static void forget(struct io_driver *d)
{
    struct err err = ERR_INIT;

    if (d->ledger && d->record && ledger_forget(d->ledger, d->record, &err) < 0)
        log_warn(NULL, "could not remove the ledger record of a log driver", F_ERR(&err));
    d->record = 0;
}

static void driver_free(struct io_driver *d)
{
    if (!d)
        return;
    if (d->slot)
        *d->slot = NULL;
    child_free(d->child);
    forget(d);
    free(d->name);
    free(d);
}
AUTO_DEFINE(struct io_driver *, driver_free);

static bool ended_within(struct io_driver *d, uint64_t ns)
{
    struct ctx limited = ctx_limited(d->loop, ns);
    struct err err = ERR_INIT;
    int status;

    return child_wait(&limited, d->child, &status, &err) == 0;
}

static void end_fiber(void *arg)
{
    struct io_driver *d = arg;
    struct ctx ctx = ctx_background(d->loop, "log-driver", d->name);
    bool asked = !ended_within(d, d->times->finish);
    int status = 0;

    if (asked) {
        (void)child_kill(d->child, SIGTERM); /* fails if it has just exited */
        if (!ended_within(d, d->times->term))
            log_warn(&ctx, "the log driver ignores SIGTERM; killing it");
    }
    if (child_done(d->child, &status) && status != 0 && !(asked && WIFSIGNALED(status)))
        log_warn(&ctx, "the log driver failed", F_I("status", status));
    driver_free(d);
}

void io_driver_end(struct io_driver **slot)
{
    struct io_driver *d = *slot;

    if (!d || d->ending)
        return;
    d->ending = true;
    d->slot = slot;
    if (d->counted)
        fibers_go(d->counted, d->loop, end_fiber, d, "io log driver");
    else
        fiber_go(d->loop, end_fiber, d, "io log driver");
}

void io_driver_drop(struct io_driver **slot)
{
    struct io_driver *d = TAKE_PTR(*slot);

    if (d)
        d->slot = NULL;
    if (!d || d->counted)
        return;
    /* The ledger may be closed now; a killed process needs no record, and the fiber reaps it. */
    (void)child_kill(d->child, SIGKILL);
    forget(d);
}

/* --- its beginning --- */

struct pipes {
    int out[2], err[2], ready[2];
};

static void pipes_release_auto(struct pipes *p)
{
    int *const all[] = { p->out, p->err, p->ready };

    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        fd_close(all[i][0]);
        fd_close(all[i][1]);
    }
}

static int record_pid(void *arg, pid_t pid, struct err *err)
{
    struct io_driver *d = arg;

    return d->ledger ? ledger_add_process(d->ledger, pid, &d->record, err) : 0;
}

static int spawn(struct ctx *ctx, struct io_driver *d, const struct io_form *form,
                 const struct io_spec *spec, const struct pipes *p, struct err *err)
{
    AUTO(strv_release) struct strv argv = { 0 }, env = { 0 };
    const struct child_fd fds[] = { { p->out[0], FD_OUT },
                                    { p->err[0], FD_ERR },
                                    { p->ready[1], FD_READY } };

    strv_add(&argv, form->path);
    for (size_t i = 0; i < form->args.n; i++)
        strv_add(&argv, form->args.v[i]);
    strv_addf(&env, "CONTAINER_ID=%s", spec->container_id ? spec->container_id : "");
    strv_addf(&env, "CONTAINER_NAMESPACE=%s", spec->ns && *spec->ns ? spec->ns : "default");
    return child_spawn(ctx,
                       &(struct child_opts){ .argv = (const char *const *)argv.v,
                                             .envp = (const char *const *)env.v,
                                             .fds = fds,
                                             .n_fds = ARRAY_LEN(fds),
                                             .new_session = true,
                                             .on_pid = record_pid,
                                             .on_pid_arg = d },
                       &d->child, err);
}

/* A process closes its files after the kernel has marked it as exiting, but before it can be waited
 * for. */
static bool is_ending(struct io_driver *d)
{
    AUTO_FREE char *path = str_format("/proc/%d/stat", child_pid(d->child)), *text = NULL;
    size_t len;
    unsigned flags = 0;

    if (child_done(d->child, NULL) || file_read_all(path, 4096, &text, &len) < 0)
        return true;

    const char *p = strrchr(text, ')'); /* the name may contain any character */

    return !p || sscanf(p + 1, " %*c %*d %*d %*d %*d %*d %u", &flags) != 1 || (flags & PF_EXITING);
}

static int crashed(struct ctx *ctx, struct io_driver *d, struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, CRASH_NS);
    int status = 0;

    if (child_wait(&limited, d->child, &status, err) < 0)
        return err_wrap(err, "wait for the exit of log driver %s", d->name);
    return err_because(err, REASON_LOG_DRIVER_FAILED, ERR_STATE,
                       "log driver %s %s %d before it was ready", d->name,
                       WIFSIGNALED(status) ? "was killed by signal" : "exited with status",
                       WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

static int await_ready(struct ctx *ctx, struct io_driver *d, const struct io_form *form, int fd,
                       struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, d->times->ready);
    AUTO(stream_free) struct stream *ready = stream_from_fd(d->loop, fd);
    size_t n;
    char c;

    if (stream_read(&limited, ready, &c, 1, &n, err) < 0)
        return err_wrap_because(err, REASON_LOG_DRIVER_FAILED,
                                "log driver %s did not report on fd %d that it is ready", d->name,
                                FD_READY);
    if (n == 0 && is_ending(d))
        return crashed(ctx, d, err);
    if (n == 0 && form->kind == IO_BINARY2)
        return err_because(err, REASON_LOG_DRIVER_FAILED, ERR_STATE,
                           "log driver %s closed fd %d without reporting that it is ready", d->name,
                           FD_READY);
    return 0;
}

struct io_driver *io_driver_new(struct loop *loop, const struct io_spec *spec)
{
    static const struct io_times times = { .ready = 10 * NS_PER_S,
                                           .finish = 1 * NS_PER_S,
                                           .term = 12 * NS_PER_S };
    struct io_driver *d = mem_new(struct io_driver);

    *d = (struct io_driver){ .loop = loop,
                             .times = spec->times ? spec->times : &times,
                             .ledger = spec->ledger,
                             .counted = spec->drivers };
    return d;
}

int io_driver_start(struct ctx *ctx, const struct io_form *form, const struct io_spec *spec,
                    struct io_driver **ret, int ret_fds[2], struct err *err)
{
    AUTO(pipes_release) struct pipes p = { { -1, -1 }, { -1, -1 }, { -1, -1 } };
    AUTO(driver_free) struct io_driver *d = io_driver_new(ctx->loop, spec);

    d->name = str_format("%.*s", IO_NAME_SHOWN, form->path);
    if (pipe2(p.out, O_CLOEXEC) < 0 || pipe2(p.err, O_CLOEXEC) < 0 || pipe2(p.ready, O_CLOEXEC) < 0)
        return err_sys(err, errno, "create pipes for log driver %s", d->name);
    if (spawn(ctx, d, form, spec, &p, err) < 0)
        return err_wrap_because(err, REASON_LOG_DRIVER_FAILED, "start log driver %s", d->name);
    fd_close(TAKE_FD(p.out[0])); /* only the driver reads: its death shows as EPIPE */
    fd_close(TAKE_FD(p.err[0]));
    fd_close(TAKE_FD(p.ready[1]));
    if (await_ready(ctx, d, form, TAKE_FD(p.ready[0]), err) < 0)
        return -1;
    ret_fds[0] = TAKE_FD(p.out[1]);
    ret_fds[1] = TAKE_FD(p.err[1]);
    *ret = TAKE_PTR(d);
    return 0;
}
