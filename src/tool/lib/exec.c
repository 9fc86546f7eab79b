#include "tool/lib/exec.h"
#include "api/lcow.pb-c.h"
#include "api/shimdiag.pb-c.h"
#include "api/task.pb-c.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/json.h"
#include "base/loop.h"
#include "base/stream.h"
#include "host/rpc/rpc_client.h"
#include "tool/lib/shims.h"
#include "tool/lib/term.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CONTROL_LIMIT (5 * NS_PER_S)
#define CONTROL_PAUSE (20 * NS_PER_MS)
#define OUTPUT_LIMIT (5 * NS_PER_S) /* for reading the rest of the FIFOs after the answer */
#define PROCESS_TYPE "types.containerd.io/opencontainers/runtime-spec/1/Process"
#define SPEC_BYTES (8u << 20)
#define START_LIMIT (30 * NS_PER_S) /* then the guest is reported as unresponsive */
#define HUNG_LIMIT (3 * NS_PER_S)   /* the same, if the guest has not answered before */
#define END_LIMIT (30 * NS_PER_S)   /* for cleaning up after the command */

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
    struct fibers in, out;
    struct flow {
        struct exec *x;
        int i;
    } flows[3];
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

/* Opens our end and the shim's end, so that neither side sees end of file before the other opens.
 */
static int open_fifo(struct exec *x, int i, const char *name, struct err *err)
{
    x->path[i] = str_format("%s/%s", x->dir, name);
    if (mkfifo(x->path[i], 0600) < 0)
        return err_sys(err, errno, "create %s", x->path[i]);

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
        return err_sys(err, errno, "create a directory in /tmp");
    }
    return open_fifo(x, 0, "in", err) < 0 || open_fifo(x, 1, "out", err) < 0 ||
                   (!terminal && open_fifo(x, 2, "err", err) < 0)
               ? -1
               : 0;
}

static int task_call(struct ctx *ctx, struct exec *x, uint64_t limit_ns, const char *method,
                     const void *req, void *ret_resp, struct err *err)
{
    return shim_call(ctx, x->client, limit_ns, &task__descriptor, method, req, ret_resp, err);
}

static int tell_once(struct ctx *ctx, struct exec *x, const Lcow__ExecControlRequest *req,
                     struct err *err)
{
    CloseIORequest close = CLOSE_IOREQUEST__INIT;
    ResizePtyRequest resize = RESIZE_PTY_REQUEST__INIT;

    if (!x->what->container)
        return shim_call(ctx, x->client, 0, &lcow__shim__descriptor, "ExecControl", req, NULL, err);
    close.id = resize.id = x->what->container;
    close.exec_id = resize.exec_id = x->what->exec_id;
    close.stdin = true;
    resize.width = req->cols;
    resize.height = req->rows;
    return req->close_stdin ? task_call(ctx, x, 0, "CloseIO", &close, NULL, err)
                            : task_call(ctx, x, 0, "ResizePty", &resize, NULL, err);
}

/* Sends the shim a signal or size for the command, which may not have started yet. */
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
    struct err ignored = ERR_INIT; /* the command may have exited or closed its stdin */
    char side;

    if (!x->ours[0] ||
        stream_copy(&x->in_ctx, x->ours[0], x->fifo[0], &x->moved[0], &side, &ignored) == 0) {
        Lcow__ExecControlRequest req = LCOW__EXEC_CONTROL_REQUEST__INIT;

        stream_free(
            TAKE_PTR(x->fifo[0])); /* the reader gets the remaining bytes, then end of file */
        req.stdin = x->path[0];
        req.close_stdin = true;
        control(x, &req);
    }
}

static void copy_output(void *arg)
{
    const struct flow *f = arg;
    struct exec *x = f->x;
    struct err ignored = ERR_INIT; /* a pipe without a reader */
    char side;

    if (x->ours[f->i])
        (void)stream_copy(&x->out_ctx, x->fifo[f->i], x->ours[f->i], &x->moved[f->i], &side,
                          &ignored);
}

static void start_relays(struct ctx *ctx, struct exec *x)
{
    cancel_init(&x->in_end, ctx->cancel);
    cancel_init(&x->out_end, ctx->cancel);
    x->in_ctx = ctx_with_cancel(ctx, &x->in_end);
    x->out_ctx = ctx_with_cancel(ctx, &x->out_end);
    fibers_init(&x->in);
    fibers_init(&x->out);
    fibers_go(&x->in, ctx->loop, copy_in, x, "stdin");
    for (int i = 1; i < 3 && x->fifo[i]; i++) {
        x->flows[i] = (struct flow){ x, i };
        fibers_go(&x->out, ctx->loop, copy_output, &x->flows[i], i == 1 ? "stdout" : "stderr");
    }
}

/* When the shim answers, its output is in the FIFOs and it has closed its ends. */
static void end_relays(struct exec *x)
{
    struct ctx root = ctx_root(x->loop), limited = ctx_with_timeout(&root, OUTPUT_LIMIT);
    struct err ignored = ERR_INIT;

    for (int i = 1; i < 3; i++)
        fd_close(TAKE_FD(x->held[i]));
    (void)fibers_wait(&limited, &x->out, "output", &ignored);
    cancel_fire(&x->in_end, ERR_CANCELLED, "the command has exited");
    cancel_fire(&x->out_end, ERR_CANCELLED, "the command has exited");
    (void)fibers_wait(&root, &x->in, "stdin", &ignored);
    (void)fibers_wait(&root, &x->out, "output", &ignored);
}

/* ---- in a container, with containerd's calls: Exec, Start, Wait, Delete */

int exec_process(const char *bundle, char *const *argv, const char *cwd, bool terminal,
                 char **ret_json, struct err *err)
{
    AUTO_FREE char *path = str_format("%s/config.json", bundle), *text = NULL;
    AUTO(json_decref) json_t *spec = NULL;
    json_t *process, *args;
    size_t len;
    int r = file_read_all(path, SPEC_BYTES, &text, &len);

    if (r < 0)
        return err_sys(err, -r, "read %s", path);
    if (js_parse(text, len, SPEC_BYTES, &spec, err) < 0)
        return err_wrap(err, "%s", path);
    process = json_object_get(spec, "process");
    if (!json_is_object(process))
        return err_set(err, ERR_INVALID, "%s has no process", path);
    args = json_array();
    json_object_set_new(process, "args", args);
    for (size_t i = 0; argv[i]; i++)
        if (json_array_append_new(args, json_string(argv[i])) < 0)
            return err_set(err, ERR_INVALID, "word %zu of the command is not UTF-8", i + 1);
    json_object_set_new(process, "terminal", json_boolean(terminal));
    json_object_del(process, "consoleSize");
    if (cwd && json_object_set_new(process, "cwd", json_string(cwd)) < 0)
        return err_set(err, ERR_INVALID, "the directory is not UTF-8");
    *ret_json = js_text(process, 0);
    return 0;
}

static int begin(struct ctx *ctx, struct exec *x, struct err *err)
{
    ExecProcessRequest req = EXEC_PROCESS_REQUEST__INIT;
    Any spec = ANY__INIT;

    spec.type_url = PROCESS_TYPE;
    spec.value.data = (uint8_t *)x->what->process;
    spec.value.len = strlen(x->what->process);
    req.id = x->what->container;
    req.exec_id = x->what->exec_id;
    req.terminal = x->what->terminal;
    req.stdin = x->path[0];
    req.stdout = x->path[1];
    req.stderr = x->path[2] ? x->path[2] : "";
    req.spec = &spec;
    return task_call(ctx, x, 0, "Exec", &req, NULL, err);
}

static int start_and_wait(struct ctx *ctx, struct exec *x, int *ret_code, struct err *err)
{
    AUTO(pb_free) WaitResponse *resp = NULL;
    StartRequest start = START_REQUEST__INIT;
    WaitRequest wait = WAIT_REQUEST__INIT;

    start.id = wait.id = x->what->container;
    start.exec_id = wait.exec_id = x->what->exec_id;
    if (task_call(ctx, x, START_LIMIT, "Start", &start, NULL, err) < 0 ||
        task_call(ctx, x, 0, "Wait", &wait, &resp, err) < 0)
        return -1;
    *ret_code = (int)resp->exit_status;
    return 0;
}

/* Deletes the exec in any state. A running process is killed first. */
static void take_back(struct ctx *ctx, struct exec *x, bool kill, uint64_t limit)
{
    struct ctx limited = ctx_limited(ctx->loop, limit);
    KillRequest signal_ = KILL_REQUEST__INIT;
    WaitRequest wait = WAIT_REQUEST__INIT;
    DeleteRequest gone = DELETE_REQUEST__INIT;
    struct err ignored = ERR_INIT; /* the exec is deleted with its container at the latest */

    signal_.id = wait.id = gone.id = x->what->container;
    signal_.exec_id = wait.exec_id = gone.exec_id = x->what->exec_id;
    signal_.signal = SIGKILL;
    if (kill && task_call(&limited, x, 0, "Kill", &signal_, NULL, &ignored) == 0)
        (void)task_call(&limited, x, 0, "Wait", &wait, NULL, &ignored);
    (void)task_call(&limited, x, 0, "Delete", &gone, NULL, &ignored);
}

static int run_in_container(struct ctx *ctx, struct exec *x, int *ret_code, struct err *err)
{
    int r;

    if (begin(ctx, x, err) < 0)
        return -1;
    r = start_and_wait(ctx, x, ret_code, err);
    take_back(ctx, x, r < 0, r < 0 && err->code == ERR_DEADLINE ? HUNG_LIMIT : END_LIMIT);
    return r;
}

/* ---- the command */

static int call(struct ctx *ctx, struct exec *x, int *ret_code, struct err *err)
{
    Diag__ExecProcessRequest req = DIAG__EXEC_PROCESS_REQUEST__INIT;
    AUTO(pb_free) Diag__ExecProcessResponse *resp = NULL;

    if (x->what->container)
        return run_in_container(ctx, x, ret_code, err);
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

/* Sends the size once, as soon as the command has a terminal. */
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
    struct err ignored = ERR_INIT; /* the command has exited */
    uint64_t before, now = 0;

    do {
        before = now;
        if (fiber_sleep(&x->in_ctx, x->what->stall_ns, &ignored) < 0)
            return;
        now = x->moved[0] + x->moved[1] + x->moved[2];
    } while (now != before);
    cancel_fire(&x->call_end, ERR_DEADLINE, "no progress within the time limit");
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
    term_cancel_by_signals(ctx->loop, &x->call_end); /* the shim then kills the command */
    if (r == 0) {
        start_relays(ctx, x);
        if (what->stall_ns)
            fibers_go(&x->in, ctx->loop, watch_stall, x, "stall");
        if (what->terminal) {
            (void)term_raw();
            fibers_go(&x->in, ctx->loop, tell_size, x, "size");
        }
        r = call(&calling, x, ret_code, err);
        end_relays(x);
        term_restore();
    }
    close_all(x);
    return r;
}
