#include "guest/bridge/handlers.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/offload.h"
#include "guest/bridge/stacks.h"
#include "guest/runtime/process.h"
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#define GRACE_NS (5 * NS_PER_S)
#define SYNC_NS (5 * NS_PER_S)

static bool is_vm(const struct bridge_request *r)
{
    return str_eq(r->container_id, BRIDGE_NULL_ID);
}

/* Errors that are nothing but their number, as the real guest words them. */
static int fail_code(struct err *err, uint32_t hr)
{
    char text[BRIDGE_HR_TEXT_SIZE];

    bridge_hr_text(hr, text);
    return bridge_err(err, hr, "%s", text);
}

/* Gives an error of another room its HRESULT, and keeps its text. */
static int fail_as(struct err *err, uint32_t hr)
{
    struct err was = *err;

    return bridge_err(err, hr, "%s", was.msg);
}

/* Of calls that name a pid. */
static int fail_process(struct err *err)
{
    switch (err->code) {
    case ERR_NOT_FOUND:
        return fail_code(err, BRIDGE_HR_NOT_FOUND);
    case ERR_DEADLINE:
        return fail_code(err, BRIDGE_HR_TIMEOUT);
    case ERR_INVALID:
        return fail_as(err, BRIDGE_HR_INVALID_ARGUMENT);
    default:
        return fail_as(err, BRIDGE_HR_FAIL);
    }
}

/* --- processes --- */

static uint16_t console_size(int32_t n)
{
    return n > 0 && n <= UINT16_MAX ? (uint16_t)n : 0;
}

static int execute_process(struct ctx *ctx, void *arg, struct server_call *call, struct err *err)
{
    struct handlers *h = arg;
    const struct bridge_exec *e = &call->req.exec;
    const struct process_spec spec = {
        .argv = e->args,
        .command_line = e->command_line,
        .env = e->env,
        .cwd = e->cwd,
        .terminal = e->terminal,
        .rows = console_size(e->rows),
        .cols = console_size(e->cols),
        .want = { e->want_in, e->want_out, e->want_err },
        .port = { e->ports.in, e->ports.out, e->ports.err },
    };

    if (!e->in_vm && !is_vm(&call->req))
        return fail_code(err, BRIDGE_HR_NO_CONTAINER);
    if (process_exec(ctx, h->processes, &spec, &call->resp.process_id, err) < 0)
        return fail_as(err, err->code == ERR_INVALID ? BRIDGE_HR_INVALID_ARGUMENT : BRIDGE_HR_FAIL);
    return 0;
}

static int wait_for_process(struct ctx *ctx, void *arg, struct server_call *call, struct err *err)
{
    struct handlers *h = arg;
    const struct bridge_wait w = call->req.wait;

    if (!is_vm(&call->req))
        return fail_code(err, BRIDGE_HR_NO_CONTAINER);
    server_call_forget_request(call);
    if (process_wait(ctx, h->processes, w.pid, w.timeout_ms, &call->resp.exit_code, err) < 0)
        return fail_process(err);
    return 0;
}

static int signal_process(struct ctx *ctx, void *arg, struct server_call *call, struct err *err)
{
    struct handlers *h = arg;

    if (!is_vm(&call->req))
        return fail_code(err, BRIDGE_HR_NO_CONTAINER);
    if (process_signal(h->processes, call->req.signal.pid, call->req.signal.signal, err) < 0)
        return fail_process(err);
    return 0;
}

static int resize_console(struct ctx *ctx, void *arg, struct server_call *call, struct err *err)
{
    struct handlers *h = arg;
    const struct bridge_resize *r = &call->req.resize;

    if (!is_vm(&call->req))
        return fail_code(err, BRIDGE_HR_NO_CONTAINER);
    if (process_resize(h->processes, r->pid, r->rows, r->cols, err) < 0)
        return fail_process(err);
    return 0;
}

/* --- the VM --- */

static int get_properties(struct ctx *ctx, void *arg, struct server_call *call, struct err *err)
{
    if (is_vm(&call->req))
        return bridge_err(err, BRIDGE_HR_FAIL, "the VM itself has no properties");
    return fail_code(err, BRIDGE_HR_NO_CONTAINER);
}

static int dump_stacks(struct ctx *ctx, void *arg, struct server_call *call, struct err *err)
{
    call->text = stacks_dump(ctx->loop);
    call->resp.stacks = call->text;
    return 0;
}

static int sync_files(void *arg, struct err *err)
{
    sync();
    return 0;
}

int handlers_shutdown(struct ctx *ctx, struct handlers *h, bool forced, struct err *err)
{
    struct err ignored = ERR_INIT;

    log_info(ctx, "power off", F_BOOL("forced", forced));
    if (!forced) {
        struct ctx grace = ctx_with_timeout(ctx, GRACE_NS);
        if (process_stop_all(&grace, h->processes, SIGTERM, &ignored) < 0)
            log_warn(ctx, "processes outlive SIGTERM, going on", F_ERR(&ignored));
        struct ctx syncing = ctx_with_timeout(ctx, SYNC_NS);
        void *none = NULL;
        if (offload_run(&syncing, sync_files, &none, NULL, "sync", &ignored) < 0)
            log_warn(ctx, "file systems are not in sync, going on", F_ERR(&ignored));
    }
    return h->power_off(err);
}

static int shutdown_any(struct ctx *ctx, void *arg, struct server_call *call, struct err *err)
{
    bool forced = call->req.type == BRIDGE_SHUTDOWN_FORCED;

    if (!is_vm(&call->req))
        return fail_code(err, BRIDGE_HR_NO_CONTAINER);
    if (handlers_shutdown(ctx, arg, forced, err) < 0)
        return fail_as(err, BRIDGE_HR_FAIL);
    return SERVER_SILENT;
}

/* Start does nothing, also for ids nobody knows: ExecuteProcess is what starts. */
static int start_container(struct ctx *ctx, void *arg, struct server_call *call, struct err *err)
{
    return 0;
}

/* A message without a handler is answered like one nobody knows. */
const struct server_entry handlers_table[] = {
    { .type = BRIDGE_EXECUTE_PROCESS, .handle = execute_process },
    { .type = BRIDGE_WAIT_FOR_PROCESS, .handle = wait_for_process, .parks = true },
    { .type = BRIDGE_SIGNAL_PROCESS, .handle = signal_process },
    { .type = BRIDGE_RESIZE_CONSOLE, .handle = resize_console },
    { .type = BRIDGE_GET_PROPERTIES, .handle = get_properties },
    { .type = BRIDGE_DUMP_STACKS, .handle = dump_stacks },
    { .type = BRIDGE_SHUTDOWN_GRACEFUL, .handle = shutdown_any },
    { .type = BRIDGE_SHUTDOWN_FORCED, .handle = shutdown_any },
    { .type = BRIDGE_START, .handle = start_container },
    { .type = BRIDGE_CREATE },
    { .type = BRIDGE_MODIFY_SETTINGS },
    { .type = BRIDGE_DELETE_CONTAINER_STATE },
};
const size_t handlers_table_len = ARRAY_LEN(handlers_table);
