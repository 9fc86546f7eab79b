#include "guest/bridge/handlers.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/offload.h"
#include "base/str.h"
#include "guest/bridge/handlers_priv.h"
#include "guest/runtime/vm_process.h"
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GRACE_NS (5 * NS_PER_S)
#define SYNC_NS (5 * NS_PER_S)
#define SMALL_FILE 256

static void add_thread(struct sbuf *out, const char *tid)
{
    static const char *const files[] = { "comm", "wchan" };

    sbuf_addf(out, "thread %s", tid);
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        AUTO_FREE char *text = file_text(SMALL_FILE, "/proc/self/task/%s/%s", tid, files[i]);

        if (text)
            sbuf_addf(out, " %s %.*s", files[i], (int)strcspn(text, "\n"), text);
    }
    sbuf_addc(out, '\n');
}

static char *stacks_dump(struct loop *loop)
{
    struct sbuf out = { 0 };
    AUTO(closedir) DIR *dir = opendir("/proc/self/task");

    loop_dump(loop, &out);
    for (struct dirent *e; dir && (e = readdir(dir));)
        if (e->d_name[0] != '.')
            add_thread(&out, e->d_name);
    return sbuf_take(&out);
}

void stacks_log(struct loop *loop)
{
    AUTO_FREE char *text = stacks_dump(loop);
    char *save = NULL;

    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        log_warn(NULL, "stacks", F_STR("line", line));
}

static bool is_vm(const struct bridge_request *r)
{
    return str_eq(r->container_id, BRIDGE_NULL_ID);
}

int handlers_fail_code(struct err *err, uint32_t hr)
{
    char text[BRIDGE_HR_TEXT_SIZE];

    enum reason reason = err->reason;

    bridge_hr_text(hr, text);
    bridge_err(err, hr, "%s", text);
    return err_blame(err, reason);
}

int handlers_fail_as(struct err *err, uint32_t hr)
{
    struct err was = *err;

    bridge_err(err, hr, "%s", was.msg);
    return err_blame(err, was.reason);
}

int handlers_fail_process(struct err *err)
{
    switch (err->code) {
    case ERR_NOT_FOUND:
        return handlers_fail_code(err, BRIDGE_HR_NOT_FOUND);
    case ERR_DEADLINE:
        return handlers_fail_code(err, BRIDGE_HR_TIMEOUT);
    case ERR_INVALID:
        return handlers_fail_as(err, BRIDGE_HR_INVALID_ARGUMENT);
    default:
        return handlers_fail_as(err, BRIDGE_HR_FAIL);
    }
}

struct container *handlers_container(const struct handlers *h, const struct server_call *call,
                                     struct err *err)
{
    struct container *c = containers_get(h->containers, call->req.container_id, err);

    if (!c && err->code == ERR_NOT_FOUND)
        handlers_fail_code(err, BRIDGE_HR_NO_CONTAINER);
    else if (!c)
        handlers_fail_as(err, BRIDGE_HR_FAIL);
    return c;
}

/* --- processes --- */

static int execute_process(struct ctx *ctx, void *arg, struct server_call *call, struct err *err)
{
    struct handlers *h = arg;
    const struct bridge_exec *e = &call->req.exec;
    const struct vm_process_spec spec = {
        .argv = e->args,
        .command_line = e->command_line,
        .env = e->env,
        .cwd = e->cwd,
        .terminal = e->terminal,
        .io = handlers_stdio(e),
    };

    if (!e->in_vm && !is_vm(&call->req))
        return handlers_exec(ctx, h, call, err);
    if (vm_process_exec(ctx, h->processes, &spec, &call->resp.process_id, err) < 0)
        return handlers_fail_as(err, err->code == ERR_INVALID ? BRIDGE_HR_INVALID_ARGUMENT
                                                              : BRIDGE_HR_FAIL);
    return 0;
}

static int wait_for_process(struct ctx *ctx, void *arg, struct server_call *call, struct err *err)
{
    struct handlers *h = arg;
    const struct bridge_wait w = call->req.wait;

    if (!is_vm(&call->req))
        return handlers_wait(ctx, h, call, err);
    server_call_forget_request(call);
    if (vm_process_wait(ctx, h->processes, w.pid, w.timeout_ms, &call->resp.exit_code, err) < 0)
        return handlers_fail_process(err);
    return 0;
}

static int signal_process(struct ctx *ctx, void *arg, struct server_call *call, struct err *err)
{
    struct handlers *h = arg;
    const struct bridge_signal *s = &call->req.signal;
    int r;

    if (is_vm(&call->req)) {
        r = vm_process_signal(h->processes, s->pid, s->signal, err);
    } else {
        AUTO(container_unref) struct container *c = handlers_container(h, call, err);
        if (!c)
            return -1;
        r = container_signal(c, s->pid, s->signal, err);
    }
    return r < 0 ? handlers_fail_process(err) : 0;
}

static int resize_console(struct ctx *ctx, void *arg, struct server_call *call, struct err *err)
{
    struct handlers *h = arg;
    const struct bridge_resize *s = &call->req.resize;
    int r;

    if (is_vm(&call->req)) {
        r = vm_process_resize(h->processes, s->pid, s->rows, s->cols, err);
    } else {
        AUTO(container_unref) struct container *c = handlers_container(h, call, err);
        if (!c)
            return -1;
        r = container_resize(c, s->pid, s->rows, s->cols, err);
    }
    return r < 0 ? handlers_fail_process(err) : 0;
}

/* --- the VM --- */

static int get_properties(struct ctx *ctx, void *arg, struct server_call *call, struct err *err)
{
    const struct bridge_query *q = &call->req.query;

    if (!is_vm(&call->req))
        return handlers_properties(ctx, arg, call, err);
    if (!q->types[0] || !str_eq(q->types[0], BRIDGE_PROPERTY_CLOCK))
        return bridge_err(err, BRIDGE_HR_FAIL, "the VM itself has no properties");
    call->text = bridge_properties_encode(&(struct bridge_properties){ .clock = clock_mono() });
    call->resp.properties = call->text;
    return 0;
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

    log_info(ctx, "powering off", F_BOOL("forced", forced));
    if (!forced) {
        struct ctx grace = ctx_with_timeout(ctx, GRACE_NS);
        if (containers_stop(&grace, h->containers, &ignored) < 0)
            log_warn(ctx, "containers did not exit on SIGTERM; powering off anyway",
                     F_ERR(&ignored));
        if (vm_processes_stop(&grace, h->processes, &ignored) < 0)
            log_warn(ctx, "processes did not exit on SIGTERM; powering off anyway",
                     F_ERR(&ignored));
        struct ctx syncing = ctx_with_timeout(ctx, SYNC_NS);
        char none = 0;
        if (OFFLOAD(&syncing, sync_files, &none, 0, NULL, "sync", &ignored) < 0)
            log_warn(ctx, "cannot sync the file systems; powering off anyway", F_ERR(&ignored));
    }
    return h->power_off(err);
}

static int shutdown_any(struct ctx *ctx, void *arg, struct server_call *call, struct err *err)
{
    bool forced = call->req.type == BRIDGE_SHUTDOWN_FORCED;

    if (!is_vm(&call->req))
        return handlers_stop(arg, call, err);
    if (handlers_shutdown(ctx, arg, forced, err) < 0)
        return handlers_fail_as(err, BRIDGE_HR_FAIL);
    return SERVER_SILENT;
}

/* Start does nothing, even for unknown ids: ExecuteProcess starts the container. */
static int start_container(struct ctx *ctx, void *arg, struct server_call *call, struct err *err)
{
    return 0;
}

const struct server_entry handlers_table[] = {
    { .type = BRIDGE_EXECUTE_PROCESS, .handle = execute_process },
    { .type = BRIDGE_WAIT_FOR_PROCESS, .handle = wait_for_process, .parks = true },
    { .type = BRIDGE_SIGNAL_PROCESS, .handle = signal_process },
    { .type = BRIDGE_RESIZE_CONSOLE, .handle = resize_console },
    { .type = BRIDGE_GET_PROPERTIES, .handle = get_properties, .parks = true },
    { .type = BRIDGE_DUMP_STACKS, .handle = dump_stacks },
    { .type = BRIDGE_SHUTDOWN_GRACEFUL, .handle = shutdown_any },
    { .type = BRIDGE_SHUTDOWN_FORCED, .handle = shutdown_any },
    { .type = BRIDGE_START, .handle = start_container },
    { .type = BRIDGE_CREATE, .handle = handlers_create },
    { .type = BRIDGE_MODIFY_SETTINGS, .handle = handlers_modify },
    { .type = BRIDGE_DELETE_CONTAINER_STATE, .handle = handlers_delete },
};
const size_t handlers_table_len = ARRAY_LEN(handlers_table);
