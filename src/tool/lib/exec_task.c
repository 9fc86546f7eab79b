#include "tool/lib/exec_task.h"
#include "api/task.pb-c.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/fd.h"
#include "base/json.h"
#include "host/rpc/rpc_client.h"
#include "tool/lib/shims.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define PROCESS_TYPE "types.containerd.io/opencontainers/runtime-spec/1/Process"
#define SPEC_BYTES (8u << 20)
#define START_LIMIT (30 * NS_PER_S) /* a guest that hangs shall be told of */
#define HUNG_LIMIT (3 * NS_PER_S)   /* the same, of a guest that does not answer */
#define END_LIMIT (30 * NS_PER_S)   /* to take back what nobody waits for any more */

/* ---- what it is */

int exec_task_process(const char *bundle, char *const *argv, const char *cwd, bool terminal,
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
            return err_set(err, ERR_INVALID, "word %zu of the command is no UTF-8", i + 1);
    json_object_set_new(process, "terminal", json_boolean(terminal));
    json_object_del(process, "consoleSize");
    if (cwd && json_object_set_new(process, "cwd", json_string(cwd)) < 0)
        return err_set(err, ERR_INVALID, "the directory is no UTF-8");
    *ret_json = js_text(process, 0);
    return 0;
}

/* ---- the calls */

static int begin(struct ctx *ctx, const struct exec_task *t, const char *in, const char *out,
                 const char *err_path, struct err *err)
{
    ExecProcessRequest req = EXEC_PROCESS_REQUEST__INIT;
    Any spec = ANY__INIT;

    spec.type_url = PROCESS_TYPE;
    spec.value.data = (uint8_t *)t->process;
    spec.value.len = strlen(t->process);
    req.id = t->container;
    req.exec_id = t->exec_id;
    req.terminal = t->terminal;
    req.stdin = in;
    req.stdout = out;
    req.stderr = err_path;
    req.spec = &spec;
    return shim_call(ctx, t->client, 0, &task__descriptor, "Exec", &req, NULL, err);
}

static int start_and_wait(struct ctx *ctx, const struct exec_task *t, int *ret_code,
                          struct err *err)
{
    AUTO(pb_free) WaitResponse *resp = NULL;
    StartRequest start = START_REQUEST__INIT;
    WaitRequest wait = WAIT_REQUEST__INIT;

    start.id = wait.id = t->container;
    start.exec_id = wait.exec_id = t->exec_id;
    if (shim_call(ctx, t->client, START_LIMIT, &task__descriptor, "Start", &start, NULL, err) < 0 ||
        shim_call(ctx, t->client, 0, &task__descriptor, "Wait", &wait, (void **)&resp, err) < 0)
        return -1;
    *ret_code = (int)resp->exit_status;
    return 0;
}

/* Whatever became of it. One that still runs is killed first; one that never began is just gone. */
static void take_back(struct ctx *ctx, const struct exec_task *t, bool kill, uint64_t limit)
{
    struct ctx root = ctx_root(ctx->loop), limited = ctx_with_timeout(&root, limit);
    KillRequest signal_ = KILL_REQUEST__INIT;
    WaitRequest wait = WAIT_REQUEST__INIT;
    DeleteRequest gone = DELETE_REQUEST__INIT;
    struct err ignored = ERR_INIT; /* it goes with its container at the latest */

    signal_.id = wait.id = gone.id = t->container;
    signal_.exec_id = wait.exec_id = gone.exec_id = t->exec_id;
    signal_.signal = SIGKILL;
    if (kill &&
        shim_call(&limited, t->client, 0, &task__descriptor, "Kill", &signal_, NULL, &ignored) == 0)
        (void)shim_call(&limited, t->client, 0, &task__descriptor, "Wait", &wait, NULL, &ignored);
    (void)shim_call(&limited, t->client, 0, &task__descriptor, "Delete", &gone, NULL, &ignored);
}

int exec_task_run(struct ctx *ctx, const struct exec_task *t, const char *in, const char *out,
                  const char *err_path, int *ret_code, struct err *err)
{
    int r;

    if (begin(ctx, t, in, out, err_path, err) < 0)
        return -1;
    r = start_and_wait(ctx, t, ret_code, err);
    take_back(ctx, t, r < 0, r < 0 && err->code == ERR_DEADLINE ? HUNG_LIMIT : END_LIMIT);
    return r;
}

int exec_task_close_stdin(struct ctx *ctx, const struct exec_task *t, struct err *err)
{
    CloseIORequest req = CLOSE_IOREQUEST__INIT;

    req.id = t->container;
    req.exec_id = t->exec_id;
    req.stdin = true;
    return shim_call(ctx, t->client, 0, &task__descriptor, "CloseIO", &req, NULL, err);
}

int exec_task_resize(struct ctx *ctx, const struct exec_task *t, uint16_t rows, uint16_t cols,
                     struct err *err)
{
    ResizePtyRequest req = RESIZE_PTY_REQUEST__INIT;

    req.id = t->container;
    req.exec_id = t->exec_id;
    req.width = cols;
    req.height = rows;
    return shim_call(ctx, t->client, 0, &task__descriptor, "ResizePty", &req, NULL, err);
}
