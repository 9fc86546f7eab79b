/* task.c - containerd's Task service: check, call one controller, fill the reply. */
#include "api/process.pb-c.h"
#include "api/runc.pb-c.h"
#include "api/task.pb-c.h"
#include "base/clock.h"
#include "base/str.h"
#include "host/config/annotations.h"
#include "host/control/container.h"
#include "host/control/events.h"
#include "host/rpc/rpc_server.h"
#include "host/service/service_priv.h"
#include <unistd.h>

/* Limits of calls that continue after their client disconnects; waits inside have shorter limits.
 */
#define DELETE_LIMIT (60 * NS_PER_S)
/* If the guest does not act on a SIGKILL, the shim kills the VM after PROCESS_KILL_LIMIT. This must
 * happen even if the caller has given up by then. */
#define KILL_LIMIT (60 * NS_PER_S)
/* An interrupted start would leave a container that never ran and cannot be started again. A
 * restart of containerd must not cause that. */
#define START_LIMIT (120 * NS_PER_S)
#define FREEZE_LIMIT (60 * NS_PER_S)  /* the reported state must match the guest's */
#define UPDATE_LIMIT (120 * NS_PER_S) /* VM, guest and host cgroup must not stay inconsistent */

static int check_mounts(const CreateTaskRequest *req, struct err *err)
{
    for (size_t i = 0; i < req->n_rootfs; i++)
        if (!req->rootfs[i]->type[0] && !req->rootfs[i]->source[0])
            return err_set(err, ERR_INVALID, "rootfs mount %zu has neither type nor source", i);
    return 0;
}

/* Converts the mounts for the controllers; borrows strings from the request. */
static struct event_mount *mounts_of(const CreateTaskRequest *req, const char ***ret_options)
{
    struct event_mount *mounts = mem_zalloc(req->n_rootfs * sizeof(*mounts));
    size_t n_options = 0, at = 0;

    for (size_t i = 0; i < req->n_rootfs; i++)
        n_options += req->rootfs[i]->n_options + 1;

    const char **options = mem_zalloc(n_options * sizeof(*options));

    for (size_t i = 0; i < req->n_rootfs; i++) {
        const Mount *m = req->rootfs[i];

        mounts[i] = (struct event_mount){ m->type, m->source, m->target, &options[at] };
        for (size_t k = 0; k < m->n_options; k++)
            options[at++] = m->options[k];
        options[at++] = NULL;
    }
    *ret_options = options;
    return mounts;
}

static int task_create(struct ctx *ctx, struct service *s, const CreateTaskRequest *req,
                       CreateTaskResponse *resp, struct err *err)
{
    AUTO_FREE const char **options = NULL;
    AUTO_FREE struct event_mount *mounts = NULL;

    service_came(s);
    if (service_check_id("container id", req->id, err) < 0 || check_mounts(req, err) < 0)
        return -1;
    if (req->options && service_take_options(s, req->options, err) < 0)
        return err_wrap(err, "create container %s", req->id);
    if (req->bundle[0] != '/')
        return err_because(err, REASON_INVALID_BUNDLE, ERR_INVALID,
                           "bundle \"%s\" of container %s is not an absolute path", req->bundle,
                           req->id);
    if (s->refusing)
        return err_because(err, REASON_SHIM_LEAVING, ERR_UNAVAILABLE,
                           "the shim is shutting down and cannot create container %s; retry",
                           req->id);
    mounts = mounts_of(req, &options);

    AUTO(container_unref) struct container *c = NULL;
    const struct container_create create = { .id = req->id,
                                             .bundle = req->bundle,
                                             .stdio = { req->stdin, req->stdout, req->stderr,
                                                        req->terminal },
                                             .rootfs = mounts,
                                             .n_rootfs = req->n_rootfs,
                                             .checkpoint = req->checkpoint };

    s->asked_to_leave = 0;
    s->creating++;

    int r = container_create(ctx, s->opts.registry, &create, &c, err);

    s->creating--;
    if (r == 0)
        resp->pid = container_parts(c)->pid;
    if (r == 0 && s->opts.on_created)
        s->opts.on_created(s->opts.arg, req->id, req->bundle, resp->pid);
    service_changed(s);
    return r;
}

static int task_start(struct ctx *ctx, struct service *s, const StartRequest *req,
                      StartResponse *resp, struct err *err)
{
    struct container *c;

    if (!service_process(s, req->id, req->exec_id, &c, err))
        return -1;
    return container_start(ctx, c, req->exec_id, &resp->pid, err);
}

static int task_exec(struct ctx *ctx, struct service *s, const ExecProcessRequest *req, Empty *resp,
                     struct err *err)
{
    struct container *c = service_container(s, req->id, err);

    if (!c || service_check_id("exec id", req->exec_id, err) < 0)
        return -1;
    if (!req->spec || req->spec->value.len == 0)
        return err_because(err, REASON_INVALID_EXEC, ERR_INVALID,
                           "exec %s in container %s has no process spec", req->exec_id, req->id);

    struct container_exec e = { .exec_id = req->exec_id,
                                .stdio = { req->stdin, req->stdout, req->stderr, req->terminal },
                                .process_json = (const char *)req->spec->value.data,
                                .process_len = req->spec->value.len };

    return container_exec(c, &e, err);
}

static int task_kill(struct ctx *ctx, struct service *s, const KillRequest *req, Empty *resp,
                     struct err *err)
{
    struct container *c;

    if (!service_process(s, req->id, req->exec_id, &c, err))
        return -1;
    return container_kill(ctx, c, req->exec_id, req->signal, req->all, err);
}

static int task_delete(struct ctx *ctx, struct service *s, const DeleteRequest *req,
                       DeleteResponse *resp, struct err *err)
{
    struct container_deleted gone = { 0 };
    struct container *c;

    if (service_check_id("container id", req->id, err) < 0 ||
        (req->exec_id[0] && service_check_id("exec id", req->exec_id, err) < 0))
        return -1;
    c = registry_find(s->opts.registry, req->id, err);
    if (!c || container_delete(ctx, c, req->exec_id, &gone, err) < 0)
        return -1;
    resp->pid = gone.pid;
    resp->exit_status = gone.exit_status;
    if (gone.exited_wall_ns)
        pb_set_time(&resp->exited_at, gone.exited_wall_ns);
    service_changed(s);
    return 0;
}

/* --- existing containers --- */

static int task_pause(struct ctx *ctx, struct service *s, const PauseRequest *req, Empty *resp,
                      struct err *err)
{
    struct container *c = service_container(s, req->id, err);

    return c ? container_freeze(ctx, c, true, err) : -1;
}

static int task_resume(struct ctx *ctx, struct service *s, const ResumeRequest *req, Empty *resp,
                       struct err *err)
{
    struct container *c = service_container(s, req->id, err);

    return c ? container_freeze(ctx, c, false, err) : -1;
}

static int task_checkpoint(struct ctx *ctx, struct service *s, const CheckpointTaskRequest *req,
                           Empty *resp, struct err *err)
{
    if (!service_container(s, req->id, err))
        return -1;
    return err_because(err, REASON_UNSUPPORTED, ERR_UNIMPLEMENTED,
                       "checkpoints are not supported (container %s)", req->id);
}

static int task_resize(struct ctx *ctx, struct service *s, const ResizePtyRequest *req, Empty *resp,
                       struct err *err)
{
    struct process *p = service_process(s, req->id, req->exec_id, NULL, err);

    if (!p)
        return -1;
    if (req->width > UINT16_MAX || req->height > UINT16_MAX)
        return err_because(err, REASON_INVALID_REQUEST, ERR_INVALID,
                           "invalid terminal size %ux%u of %s: must be at most %ux%u", req->width,
                           req->height, req->id, UINT16_MAX, UINT16_MAX);
    return process_resize(ctx, p, (uint16_t)req->height, (uint16_t)req->width, err);
}

static int task_close_io(struct ctx *ctx, struct service *s, const CloseIORequest *req, Empty *resp,
                         struct err *err)
{
    struct process *p = service_process(s, req->id, req->exec_id, NULL, err);

    if (p && req->stdin)
        process_close_stdin(p);
    return p ? 0 : -1;
}

static int task_update(struct ctx *ctx, struct service *s, const UpdateTaskRequest *req,
                       Empty *resp, struct err *err)
{
    struct container *c = service_container(s, req->id, err);
    const char *group = NULL;

    if (!c)
        return -1;
    if (!req->resources || req->resources->value.len == 0)
        return err_because(err, REASON_UPDATE_FAILED, ERR_INVALID,
                           "update of container %s has no resources", req->id);
    if (!str_eq(pb_any_type(req->resources), "LinuxResources"))
        return err_because(
            err, REASON_UPDATE_FAILED, ERR_INVALID,
            "update of container %s: unsupported type \"%s\": must be LinuxResources", req->id,
            req->resources->type_url);
    for (size_t i = 0; i < req->n_annotations; i++)
        if (str_eq(req->annotations[i]->key, annotations_cpu_group))
            group = req->annotations[i]->value;
    if (group && !annotations_allowed(s->opts.registry->o.config, annotations_cpu_group))
        return err_because(
            err, REASON_UPDATE_FAILED, ERR_PERMISSION,
            "update of container %s: annotation %s is \"%.64s\", but allow_annotations "
            "does not allow it",
            req->id, annotations_cpu_group, group);
    if (container_update(ctx, c, (const char *)req->resources->value.data,
                         req->resources->value.len, err) < 0)
        return -1;
    return group && registry_set_cpu_group(ctx, s->opts.registry, group, err) < 0
               ? err_wrap_because(err, REASON_UPDATE_FAILED, "update of container %s", req->id)
               : 0;
}

/* --- queries. State and Connect are answered from memory, Pids within a short limit, so that they
 * work even if the guest does not answer. --- */

static int task_state(struct ctx *ctx, struct service *s, const StateRequest *req,
                      StateResponse *resp, struct err *err)
{
    struct process *p = service_process(s, req->id, req->exec_id, NULL, err);
    struct process_view v;

    if (!p)
        return -1;
    process_view(p, &v);
    pb_set_str(&resp->id, v.container_id);
    pb_set_str(&resp->exec_id, v.exec_id);
    pb_set_str(&resp->bundle, v.bundle);
    pb_set_str(&resp->stdin, v.stdio.in);
    pb_set_str(&resp->stdout, v.stdio.out);
    pb_set_str(&resp->stderr, v.stdio.err);
    resp->terminal = v.stdio.terminal;
    resp->pid = v.pid;
    resp->status = (Status)v.status;
    resp->exit_status = v.exit_status;
    if (v.exited_wall_ns)
        pb_set_time(&resp->exited_at, v.exited_wall_ns);
    return 0;
}

static int task_wait(struct ctx *ctx, struct service *s, const WaitRequest *req, WaitResponse *resp,
                     struct err *err)
{
    struct process *p = service_process(s, req->id, req->exec_id, NULL, err);
    struct process_view v;

    if (!p || process_wait(ctx, p, &v, err) < 0)
        return -1;
    resp->exit_status = v.exit_status;
    pb_set_time(&resp->exited_at, v.exited_wall_ns);
    return 0;
}

/* In a type that every ctr knows: with an unknown type it prints no list (decision 22). */
static void add_pid(void *arg, const struct container_listed *l)
{
    PidsResponse *resp = arg;
    AUTO(pb_free) Runc__ProcessDetails *d = pb_new(&runc__process_details__descriptor);
    ProcessInfo *info = pb_new(&process_info__descriptor);

    info->pid = l->pid;
    pb_add(resp->processes, resp->n_processes, info);
    if (!l->guest_pid)
        return; /* no details are known */
    pb_set_str(&d->exec_id, l->exec_id);
    pb_set_str(&d->image_name, l->name);
    if (l->start_ns)
        pb_set_time(&d->created_at, l->start_ns);
    d->process_id = l->guest_pid;
    d->user_time_100_ns = l->user_ns / 100;
    d->kernel_time_100_ns = l->kernel_ns / 100;
    d->memory_commit_bytes = l->data_bytes;
    d->memory_working_set_private_bytes = l->private_bytes;
    d->memory_working_set_shared_bytes = l->shared_bytes;
    (void)pb_set_any(&info->info, d); /* cannot fail: ids and names were checked */
}

static int task_pids(struct ctx *ctx, struct service *s, const PidsRequest *req, PidsResponse *resp,
                     struct err *err)
{
    struct container *c = service_container(s, req->id, err);

    if (c)
        container_list(ctx, c, add_pid, resp);
    return c ? 0 : -1;
}

static int task_stats(struct ctx *ctx, struct service *s, const StatsRequest *req,
                      StatsResponse *resp, struct err *err)
{
    struct container *c = service_container(s, req->id, err);
    AUTO(json_decref) json_t *metrics = NULL;

    if (!c || container_stats(ctx, c, &metrics, err) < 0)
        return -1;
    if (stats_from_guest(metrics, s->opts.stats_v2, &resp->stats, err) < 0)
        return err_wrap(err, "statistics of container %s", req->id);
    return 0;
}

/* containerd's health check: succeeds for unknown ids and for an empty id. */
static int task_connect(struct ctx *ctx, struct service *s, const ConnectRequest *req,
                        ConnectResponse *resp, struct err *err)
{
    struct err ignored = ERR_INIT;
    struct container *c = registry_find(s->opts.registry, req->id, &ignored);

    resp->shim_pid = (uint32_t)getpid();
    resp->task_pid = c ? container_parts(c)->pid : 0;
    pb_set_str(&resp->version, LCOW_VERSION);
    return 0;
}

/* Shutdown means "exit if idle", never "exit now": the listener of on_change checks after the
 * answer whether anything is left. */
static int task_shutdown(struct ctx *ctx, struct service *s, const ShutdownRequest *req,
                         Empty *resp, struct err *err)
{
    s->asked_to_leave++;
    service_changed(s);
    return 0;
}

static const struct rpc_method methods[] = {
    SERVICE_METHOD("State", task_state, StateRequest, StateResponse, MINOR),
    SERVICE_METHOD("Create", task_create, CreateTaskRequest, CreateTaskResponse),
    SERVICE_METHOD("Start", task_start, StartRequest, StartResponse, .limit_ns = START_LIMIT),
    SERVICE_METHOD("Delete", task_delete, DeleteRequest, DeleteResponse, .limit_ns = DELETE_LIMIT,
                   .may_be_gone = true),
    SERVICE_METHOD("Pids", task_pids, PidsRequest, PidsResponse, MINOR),
    SERVICE_METHOD("Pause", task_pause, PauseRequest, Empty, .limit_ns = FREEZE_LIMIT),
    SERVICE_METHOD("Resume", task_resume, ResumeRequest, Empty, .limit_ns = FREEZE_LIMIT),
    SERVICE_METHOD("Checkpoint", task_checkpoint, CheckpointTaskRequest, Empty),
    SERVICE_METHOD("Kill", task_kill, KillRequest, Empty, .limit_ns = KILL_LIMIT,
                   .may_be_gone = true),
    SERVICE_METHOD("Exec", task_exec, ExecProcessRequest, Empty),
    SERVICE_METHOD("ResizePty", task_resize, ResizePtyRequest, Empty, MINOR),
    SERVICE_METHOD("CloseIO", task_close_io, CloseIORequest, Empty, MINOR),
    SERVICE_METHOD("Update", task_update, UpdateTaskRequest, Empty, .limit_ns = UPDATE_LIMIT),
    SERVICE_METHOD("Wait", task_wait, WaitRequest, WaitResponse, .patient = true, .resumable = true,
                   MINOR),
    /* Monitoring calls it as well, which must not keep the shim running. */
    SERVICE_METHOD("Stats", task_stats, StatsRequest, StatsResponse, MINOR, .uncounted = true),
    SERVICE_METHOD("Connect", task_connect, ConnectRequest, ConnectResponse),
    SERVICE_METHOD("Shutdown", task_shutdown, ShutdownRequest, Empty),
};
static const struct rpc_service task_service = { &task__descriptor, methods, ARRAY_LEN(methods),
                                                 .id_key = "cid" };

void service_add_task(struct service *s, struct rpc_server *server)
{
    rpc_server_add(server, SERVICE_TASK_V2, &task_service, s);
    rpc_server_add(server, SERVICE_TASK_V3, &task_service, s);
}
