/* diag.c - hcsshim's ShimDiag service: inspects a shim and its VM, even if the guest does not
 * answer. Exit codes are reported unchanged (weak spot 25). A share gets the requested path, and
 * the answer names the path (weak spot 26). Also lcow's own service, for lcow(1). */
#include "host/control/diag.h"
#include "api/lcow.pb-c.h"
#include "api/shimdiag.pb-c.h"
#include "base/log.h"
#include "base/str.h"
#include "host/control/container.h"
#include "host/control/inspect.h"
#include "host/rpc/rpc_server.h"
#include "host/service/service_priv.h"
#include "proto/pb.h"
#include <unistd.h>

#define ARGS_MAX 4096

/* A running process of DiagExecInHost. Its name is the path of its stdin. */
struct diag_run {
    struct list node;
    const char *name;
    struct diag_live live;
};

static int exec_in_vm(struct ctx *ctx, struct service *s, const Diag__ExecProcessRequest *req,
                      Diag__ExecProcessResponse *resp, struct err *err)
{
    AUTO_FREE const char **argv = NULL;
    uint32_t code = 0;

    if (req->n_args > ARGS_MAX)
        return err_set(err, ERR_INVALID, "exec in the VM: %zu arguments; the maximum is %d",
                       req->n_args, ARGS_MAX);
    argv = mem_zalloc((req->n_args + 1) * sizeof(*argv));
    for (size_t i = 0; i < req->n_args; i++)
        argv[i] = req->args[i];

    const struct diag_exec e = { .argv = argv,
                                 .cwd = req->workdir,
                                 .stdio = { req->stdin, req->stdout, req->stderr, req->terminal } };

    struct diag_run run = { .name = req->stdin };

    list_append(&s->diag_runs, &run.node);

    int r = diag_exec(ctx, s->opts.registry, &e, &run.live, &code, err);

    list_remove(&run.node);
    resp->exit_code = (int32_t)code;
    return r;
}

static int exec_control(struct ctx *ctx, struct service *s, const Lcow__ExecControlRequest *req,
                        Lcow__ExecControlResponse *resp, struct err *err)
{
    if (!req->stdin[0] || req->rows > UINT16_MAX || req->cols > UINT16_MAX)
        return err_set(
            err, ERR_INVALID,
            "invalid request to control a process: stdin must be set, and sizes must be at most %u",
            UINT16_MAX);
    LIST_FOR (struct diag_run, run, &s->diag_runs, node) {
        if (!str_eq(run->name, req->stdin))
            continue;
        if (req->close_stdin)
            diag_close_stdin(&run->live);
        return req->rows || req->cols
                   ? diag_resize(ctx, &run->live, (uint16_t)req->rows, (uint16_t)req->cols, err)
                   : 0;
    }
    return err_set(err, ERR_NOT_FOUND, "no running process has stdin %s", req->stdin);
}

static int stacks(struct ctx *ctx, struct service *s, const Diag__StacksRequest *req,
                  Diag__StacksResponse *resp, struct err *err)
{
    AUTO_FREE char *host = NULL, *guest = NULL;

    diag_stacks(ctx, s->opts.registry, &host, &guest);
    pb_set_str(&resp->stacks, host);
    pb_set_str(&resp->guest_stacks, guest);
    return 0;
}

struct tasks {
    Diag__TasksResponse *resp;
    bool execs;
};

static void add_process(void *arg, const struct process_view *v)
{
    /* The names that clients of hcsshim know, by enum process_status. */
    static const char *const names[] = { "UNKNOWN", "CREATED", "RUNNING", "STOPPED", "PAUSED" };
    struct tasks *t = arg;

    if (v->exec_id[0]) {
        Diag__Task *task =
            t->resp->tasks[t->resp->n_tasks - 1]; /* its container was added before */
        Diag__Exec *exec;

        if (!t->execs)
            return;
        exec = pb_new(&diag__exec__descriptor);
        pb_set_str(&exec->id, v->exec_id);
        pb_set_str(&exec->state, names[v->status]);
        pb_add(task->execs, task->n_execs, exec);
    } else {
        Diag__Task *task = pb_new(&diag__task__descriptor);

        pb_set_str(&task->id, v->container_id);
        pb_add(t->resp->tasks, t->resp->n_tasks, task);
    }
}

static int tasks(struct ctx *ctx, struct service *s, const Diag__TasksRequest *req,
                 Diag__TasksResponse *resp, struct err *err)
{
    struct tasks t = { resp, req->execs };

    diag_each(s->opts.registry, add_process, &t);
    return 0;
}

static int share(struct ctx *ctx, struct service *s, const Diag__ShareRequest *req,
                 Diag__ShareResponse *resp, struct err *err)
{
    AUTO_FREE char *path = NULL;

    if (diag_share(ctx, s->opts.registry, req->host_path, req->uvm_path, req->read_only, &path,
                   err) < 0)
        return -1;
    pb_set_str(&resp->uvm_path, path);
    return 0;
}

static int pid(struct ctx *ctx, struct service *s, const Diag__PidRequest *req,
               Diag__PidResponse *resp, struct err *err)
{
    resp->pid = getpid();
    return 0;
}

static int inspect(struct ctx *ctx, struct service *s, const Lcow__InspectRequest *req,
                   Lcow__InspectResponse *resp, struct err *err)
{
    if (req->ask_guest)
        registry_measure(ctx, s->opts.registry);

    AUTO_FREE char *json = registry_inspect(s->opts.registry);

    pb_set_str(&resp->json, json);
    return 0;
}

static int console(struct ctx *ctx, struct service *s, const Lcow__ConsoleRequest *req,
                   Lcow__ConsoleResponse *resp, struct err *err)
{
    AUTO_FREE char *text = NULL;

    if (diag_console(s->opts.registry, &text, err) < 0)
        return -1;
    pb_set_str(&resp->text, text);
    return 0;
}

static int expect(struct ctx *ctx, struct service *s, const Lcow__ExpectRequest *req,
                  Lcow__ExpectResponse *resp, struct err *err)
{
    service_expect(s);
    return 0;
}

static int resize_disk(struct ctx *ctx, struct service *s, const Lcow__ResizeDiskRequest *req,
                       Lcow__ResizeDiskResponse *resp, struct err *err)
{
    return diag_resize_disk(ctx, s->opts.registry, req->path, &resp->bytes, err);
}

static int set_cpu_group(struct ctx *ctx, struct service *s, const Lcow__SetCpuGroupRequest *req,
                         Lcow__SetCpuGroupResponse *resp, struct err *err)
{
    return registry_set_cpu_group(ctx, s->opts.registry, req->name, err);
}

static int upgrade(struct ctx *ctx, struct service *s, const Lcow__UpgradeRequest *req,
                   Lcow__UpgradeResponse *resp, struct err *err)
{
    char from[SERVICE_VERSION_SIZE] = "", to[SERVICE_VERSION_SIZE] = "";
    const struct service_upgrade u = { .program = req->program,
                                       .dry_run = req->dry_run,
                                       .token = req->token,
                                       .ret_from = from,
                                       .ret_to = to,
                                       .ret_pause_ns = &resp->pause_ns };

    if (!s->opts.on_upgrade)
        return err_set(err, ERR_UNIMPLEMENTED, "this VM has no shim of containerd's to upgrade");
    if (s->opts.on_upgrade(ctx, s->opts.arg, &u, err) < 0) {
        log_warn(ctx, "not upgraded", F_ERR(err));
        pb_set_str(&resp->reason, reason_name(err_reason(err))); /* a status of ttrpc has none */
        pb_set_str(&resp->error, err->msg);
        err_clear(err);
        return 0;
    }
    pb_set_str(&resp->from, from);
    pb_set_str(&resp->to, to);
    return 0;
}

#define DIAG(method, fn, Message, ...)                                                             \
    RPC_METHOD(method, fn, struct service, Diag__##Message##Request, Diag__##Message##Response,    \
               __VA_ARGS__)
#define LCOW(method, fn, ...)                                                                      \
    RPC_METHOD(#method, fn, struct service, Lcow__##method##Request, Lcow__##method##Response,     \
               __VA_ARGS__)

static const struct rpc_method methods[] = {
    DIAG("DiagExecInHost", exec_in_vm, ExecProcess, .patient = true),
    DIAG("DiagStacks", stacks, Stacks),
    DIAG("DiagTasks", tasks, Tasks),
    DIAG("DiagShare", share, Share),
    DIAG("DiagPid", pid, Pid),
};
static const struct rpc_service diag_service = { &diag__shim_diag__descriptor, methods,
                                                 ARRAY_LEN(methods) };

static const struct rpc_method own_methods[] = {
    LCOW(Inspect, inspect, .uncounted = true), /* monitoring alone does not keep the shim running */
    LCOW(ExecControl, exec_control),
    LCOW(Console, console),
    LCOW(Expect, expect),
    LCOW(ResizeDisk, resize_disk),
    LCOW(SetCpuGroup, set_cpu_group),
    LCOW(Upgrade, upgrade, .uncounted = true, .resumable = true),
};
static const struct rpc_service own_service = { &lcow__shim__descriptor, own_methods,
                                                ARRAY_LEN(own_methods) };

void service_add_diag(struct service *s, struct rpc_server *server)
{
    rpc_server_add(server, SERVICE_DIAG, &diag_service, s);
    rpc_server_add(server, SERVICE_LCOW, &own_service, s);
}
