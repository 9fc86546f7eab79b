#include "tool/lib/exec.h"
#include "api/lcow.pb-c.h"
#include "api/shimdiag.pb-c.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/loop.h"
#include "base/stream.h"
#include "host/rpc/rpc_client.h"
#include "tool/lib/exec_task.h"
#include "tool/lib/shims.h"
#include "tool/lib/term.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#define CONTROL_LIMIT (5 * NS_PER_S)
#define CONTROL_PAUSE (20 * NS_PER_MS)
#define OUTPUT_LIMIT (5 * NS_PER_S) /* for what is left in the FIFOs behind the answer */

/* ---- three FIFOs */

struct exec {
    struct loop *loop;
    const struct exec_what *what;
    struct rpc_client *client;
    char dir[64];
    char *path[3];
    int held[3];                      /* the end of each that the shim uses, or -1 */
    struct stream *ours[3], *fifo[3]; /* between which bytes are copied */
    uint64_t moved[3];
    struct ctx in_ctx, out_ctx;
    struct cancel call_end, in_end, out_end;
    struct group in, out;
};

static void close_all(struct exec *x)
{
    for (int i = 0; i < 3; i++) {
        stream_free(x->ours[i]);
        stream_free(x->fifo[i]);
        fd_close(x->held[i]);
        if (x->path[i])
            (void)unlink(x->path[i]);
        free(x->path[i]);
    }
    if (x->dir[0])
        (void)rmdir(x->dir);
}

/* Ours and the shim's end, so that neither sees an end before the other has come. */
static int open_fifo(struct exec *x, int i, const char *name, struct err *err)
{
    x->path[i] = str_format("%s/%s", x->dir, name);
    if (mkfifo(x->path[i], 0600) < 0)
        return err_sys(err, errno, "make %s", x->path[i]);

    AUTO_FD int reader = open(x->path[i], O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    AUTO_FD int writer = open(x->path[i], O_WRONLY | O_NONBLOCK | O_CLOEXEC);

    if (reader < 0 || writer < 0)
        return err_sys(err, errno, "open %s", x->path[i]);
    x->held[i] = i == 0 ? TAKE_FD(reader) : TAKE_FD(writer);
    x->fifo[i] = stream_from_fd(x->loop, i == 0 ? TAKE_FD(writer) : TAKE_FD(reader));
    x->ours[i] = stream_reopen(x->loop, x->what->fds[i], i == 0 ? O_RDONLY : O_WRONLY);
    return 0;
}

static int open_all(struct exec *x, bool terminal, struct err *err)
{
    snprintf(x->dir, sizeof(x->dir), "/tmp/lcow-exec.XXXXXX");
    if (!mkdtemp(x->dir)) {
        x->dir[0] = '\0';
        return err_sys(err, errno, "make a directory in /tmp");
    }
    return open_fifo(x, 0, "in", err) < 0 || open_fifo(x, 1, "out", err) < 0 ||
                   (!terminal && open_fifo(x, 2, "err", err) < 0)
               ? -1
               : 0;
}

static int tell_once(struct ctx *ctx, struct exec *x, const Lcow__ExecControlRequest *req,
                     struct err *err)
{
    const struct exec_task *task = x->what->task;

    if (!task)
        return shim_call(ctx, x->client, 0, &lcow__shim__descriptor, "ExecControl", req, NULL, err);
    return req->close_stdin
               ? exec_task_close_stdin(ctx, task, err)
               : exec_task_resize(ctx, task, (uint16_t)req->rows, (uint16_t)req->cols, err);
}

/* Tells the shim of a news about the command, which it may not have started yet. */
static void control(struct exec *x, const Lcow__ExecControlRequest *req)
{
    for (;;) {
        struct ctx limited = ctx_with_timeout(&x->in_ctx, CONTROL_LIMIT);
        struct err err = ERR_INIT;

        if (tell_once(&limited, x, req, &err) == 0 ||
            (err.code != ERR_NOT_FOUND && err.code != ERR_STATE) ||
            fiber_sleep(&x->in_ctx, CONTROL_PAUSE, &err) < 0)
            return;
    }
}

static void copy_in(void *arg)
{
    struct exec *x = arg;
    struct err ignored = ERR_INIT; /* it may have ended, or closed its stdin */
    char side;

    if (!x->ours[0] ||
        stream_copy(&x->in_ctx, x->ours[0], x->fifo[0], &x->moved[0], &side, &ignored) == 0) {
        Lcow__ExecControlRequest req = LCOW__EXEC_CONTROL_REQUEST__INIT;

        stream_free(TAKE_PTR(x->fifo[0])); /* what is in it is read, then comes the end */
        req.stdin = x->path[0];
        req.close_stdin = true;
        control(x, &req);
    }
}

static void copy_output(struct exec *x, int i)
{
    struct err ignored = ERR_INIT; /* of a pipe that nobody reads */
    char side;

    if (x->ours[i])
        (void)stream_copy(&x->out_ctx, x->fifo[i], x->ours[i], &x->moved[i], &side, &ignored);
}

static void copy_out(void *arg)
{
    copy_output(arg, 1);
}

static void copy_err(void *arg)
{
    copy_output(arg, 2);
}

static void start_relays(struct ctx *ctx, struct exec *x)
{
    cancel_init(&x->in_end, ctx->cancel);
    cancel_init(&x->out_end, ctx->cancel);
    x->in_ctx = ctx_with_cancel(ctx, &x->in_end);
    x->out_ctx = ctx_with_cancel(ctx, &x->out_end);
    group_init(&x->in);
    group_init(&x->out);
    group_go(&x->in, ctx->loop, copy_in, x, "stdin");
    group_go(&x->out, ctx->loop, copy_out, x, "stdout");
    if (x->fifo[2])
        group_go(&x->out, ctx->loop, copy_err, x, "stderr");
}

/* What the shim has written is in the FIFOs when it answers, and its ends are closed. */
static void end_relays(struct exec *x)
{
    struct ctx root = ctx_root(x->loop);
    struct ctx limited = ctx_with_timeout(&root, OUTPUT_LIMIT);
    struct err ignored = ERR_INIT;

    for (int i = 1; i < 3; i++)
        fd_close(TAKE_FD(x->held[i]));
    (void)group_wait(&limited, &x->out, "output", &ignored);
    cancel_fire(&x->in_end, ERR_CANCELLED, "the command has ended");
    cancel_fire(&x->out_end, ERR_CANCELLED, "the command has ended");
    (void)group_wait(&root, &x->in, "stdin", &ignored);
    (void)group_wait(&root, &x->out, "output", &ignored);
}

/* ---- the command */

static int call(struct ctx *ctx, struct exec *x, int *ret_code, struct err *err)
{
    Diag__ExecProcessRequest req = DIAG__EXEC_PROCESS_REQUEST__INIT;
    AUTO(pb_free) Diag__ExecProcessResponse *resp = NULL;

    if (x->what->task)
        return exec_task_run(ctx, x->what->task, x->path[0], x->path[1],
                             x->path[2] ? x->path[2] : "", ret_code, err);
    req.args = (const char **)x->what->argv;
    for (size_t i = 0; x->what->argv[i]; i++)
        req.n_args++;
    req.workdir = x->what->cwd ? x->what->cwd : "";
    req.terminal = x->what->terminal;
    req.stdin = x->path[0];
    req.stdout = x->path[1];
    req.stderr = x->path[2] ? x->path[2] : "";
    if (shim_call(ctx, x->client, 0, &diag__shim_diag__descriptor, "DiagExecInHost", &req,
                  (void **)&resp, err) < 0)
        return -1;
    *ret_code = resp->exit_code;
    return 0;
}

/* The size is told once, as soon as there is a terminal to tell. */
static void tell_size(void *arg)
{
    struct exec *x = arg;
    Lcow__ExecControlRequest req = LCOW__EXEC_CONTROL_REQUEST__INIT;
    uint16_t rows, cols;

    if (!term_size(&rows, &cols))
        return;
    req.stdin = x->path[0];
    req.rows = rows;
    req.cols = cols;
    control(x, &req);
}

static void watch_stall(void *arg)
{
    struct exec *x = arg;
    struct err ignored = ERR_INIT; /* it has ended */
    uint64_t before, now = 0;

    do {
        before = now;
        if (fiber_sleep(&x->in_ctx, x->what->stall_ns, &ignored) < 0)
            return;
        now = x->moved[0] + x->moved[1] + x->moved[2];
    } while (now != before);
    cancel_fire(&x->call_end, ERR_DEADLINE, "no byte was copied for too long");
}

static void on_signal(void *arg, const struct signalfd_siginfo *info)
{
    struct exec *x = arg;

    (void)info;
    cancel_fire(&x->call_end, ERR_CANCELLED, "a signal ended it"); /* the shim kills the command */
}

int exec_run(struct ctx *ctx, struct rpc_client *client, const struct exec_what *what,
             int *ret_code, struct err *err)
{
    struct exec *x = mem_new(struct exec); /* the signals' handler stays as long as the loop */
    int r;

    *x = (struct exec){ .loop = ctx->loop, .what = what, .client = client, .held = { -1, -1, -1 } };
    r = open_all(x, what->terminal, err);
    cancel_init(&x->call_end, ctx->cancel);
    struct ctx calling = ctx_with_cancel(ctx, &x->call_end);
    (void)loop_on_signal(ctx->loop, SIGINT, on_signal, x);
    (void)loop_on_signal(ctx->loop, SIGTERM, on_signal, x);
    (void)loop_on_signal(ctx->loop, SIGHUP, on_signal, x);
    if (r == 0) {
        start_relays(ctx, x);
        if (what->stall_ns)
            group_go(&x->in, ctx->loop, watch_stall, x, "stall");
        if (what->terminal) {
            (void)term_raw();
            group_go(&x->in, ctx->loop, tell_size, x, "size");
        }
        r = call(&calling, x, ret_code, err);
        end_relays(x);
        term_restore();
    }
    close_all(x);
    return r;
}
