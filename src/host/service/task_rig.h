/* task_rig.h - for tests: the Task service behind real ttrpc frames, over the registry's rig. */
#pragma once
#include "api/task.pb-c.h"
#include "base/log.h"
#include "harness/tap.h"
#include "host/control/registry_rig.h"
#include "host/rpc/rpc_client.h"
#include "host/rpc/rpc_server.h"
#include "host/service/service.h"
#include "proto/pb.h"

struct desk {
    struct rig rig;
    struct service *service;
    struct rpc_server *server;
    struct rpc_client *client;
    const char *name; /* of the service; NULL: v2 */
    unsigned changes, created;
    uint32_t created_pid;
};

__attribute__((constructor)) static void desk_quiet(void)
{
    log_init(2, LOG_OFF, LOG_LOGFMT);
}

static inline void desk_on_change(void *arg)
{
    ((struct desk *)arg)->changes++;
}

static inline void desk_on_created(void *arg, const char *id, const char *bundle, uint32_t pid)
{
    struct desk *d = arg;

    ASSERT(id[0] && bundle[0] == '/');
    d->created++;
    d->created_pid = pid;
}

static inline struct rpc_client *desk_connect(struct desk *d)
{
    struct stream *ours, *theirs;

    stream_pair(d->rig.loop, 65536, &ours, &theirs);
    rpc_server_serve(d->server, theirs);
    return rpc_client_new(d->rig.loop, ours);
}

static inline void desk_open(struct desk *d, struct ctx *ctx)
{
    rig_open(&d->rig, ctx);
    d->service = service_new(&(struct service_opts){ .loop = ctx->loop,
                                                     .registry = d->rig.registry,
                                                     .stats_v2 = true,
                                                     .on_change = desk_on_change,
                                                     .on_created = desk_on_created,
                                                     .arg = d });
    d->server = rpc_server_new(ctx->loop);
    service_add_to(d->service, d->server);
    d->client = desk_connect(d);
}

static inline void desk_close(struct desk *d, struct ctx *ctx)
{
    struct ctx root = ctx_root(ctx->loop), now = ctx_with_timeout(&root, 100 * NS_PER_S);
    struct err err = ERR_INIT;

    rpc_client_free(d->client);
    ASSERT_OK(rpc_server_shutdown(&now, d->server, &err), err);
    rpc_server_free(d->server);
    rig_close(&d->rig, ctx);
    service_free(d->service);
}

/* 0 and the answer (may be NULL), or -1. */
static inline int desk_call(struct desk *d, struct ctx *ctx, const char *method, const void *req,
                            const ProtobufCMessageDescriptor *type, void **ret, struct err *err)
{
    return rpc_client_call(ctx, d->client, d->name ? d->name : SERVICE_TASK_V2, method, req, type,
                           ret, err);
}

/* The ids alone: what most requests are. Returns the code. */
static inline enum err_code desk_code(struct desk *d, struct ctx *ctx, const char *method,
                                      const ProtobufCMessageDescriptor *req_type, const char *id,
                                      const char *exec_id, struct err *err)
{
    AUTO(pb_free) void *req = pb_new(req_type);
    const char **first = (const char **)((char *)req + req_type->fields[0].offset);

    err_clear(err);
    pb_set_str(first, id);
    if (exec_id && exec_id[0]) {
        const ProtobufCFieldDescriptor *f =
            protobuf_c_message_descriptor_get_field_by_name(req_type, "exec_id");

        pb_set_str((const char **)((char *)req + f->offset), exec_id);
    }

    const ProtobufCMethodDescriptor *m =
        protobuf_c_service_descriptor_get_method_by_name(&task__descriptor, method);

    return desk_call(d, ctx, method, req, m->output, NULL, err) == 0 ? ERR_NONE : err->code;
}

static inline CreateTaskRequest *desk_create_request(struct desk *d, const char *id)
{
    CreateTaskRequest *req = pb_new(&create_task_request__descriptor);
    AUTO_FREE char *bundle = str_format("%s/%s", d->rig.dir, id);

    pb_set_str(&req->id, id);
    pb_set_str(&req->bundle, bundle);
    pb_set_str(&req->stdout, "/fifo/out");
    return req;
}

static inline enum err_code desk_try_create(struct desk *d, struct ctx *ctx, const char *id,
                                            struct err *err)
{
    AUTO(pb_free) CreateTaskRequest *req = desk_create_request(d, id);

    err_clear(err);
    return desk_call(d, ctx, "Create", req, &create_task_response__descriptor, NULL, err) == 0
               ? ERR_NONE
               : err->code;
}

static inline void desk_create(struct desk *d, struct ctx *ctx, const char *id)
{
    struct err err = ERR_INIT;

    rig_write_spec(&d->rig, id, "");
    (void)desk_try_create(d, ctx, id, &err);
    ASSERT_STR(err.msg, "");
}

static inline void desk_start(struct desk *d, struct ctx *ctx, const char *id, const char *exec)
{
    struct err err = ERR_INIT;

    (void)desk_code(d, ctx, "Start", &start_request__descriptor, id, exec, &err);
    ASSERT_STR(err.msg, "");
}

static inline enum err_code desk_exec(struct desk *d, struct ctx *ctx, const char *id,
                                      const char *exec, const char *spec, struct err *err)
{
    AUTO(pb_free) ExecProcessRequest *req = pb_new(&exec_process_request__descriptor);

    err_clear(err);
    pb_set_str(&req->id, id);
    pb_set_str(&req->exec_id, exec);
    if (spec)
        pb_set_any_raw(&req->spec, "types.containerd.io/opencontainers/runtime-spec/1/Process",
                       spec, strlen(spec));
    return desk_call(d, ctx, "Exec", req, &empty__descriptor, NULL, err) == 0 ? ERR_NONE
                                                                              : err->code;
}

static inline enum err_code desk_kill(struct desk *d, struct ctx *ctx, const char *id,
                                      const char *exec, uint32_t signo, bool all, struct err *err)
{
    KillRequest req = KILL_REQUEST__INIT;

    err_clear(err);
    req.id = id;
    req.exec_id = exec;
    req.signal = signo;
    req.all = all;
    return desk_call(d, ctx, "Kill", &req, &empty__descriptor, NULL, err) == 0 ? ERR_NONE
                                                                               : err->code;
}

/* Caller frees; NULL with err. */
static inline StateResponse *desk_state(struct desk *d, struct ctx *ctx, const char *id,
                                        const char *exec, struct err *err)
{
    StateRequest req = STATE_REQUEST__INIT;
    StateResponse *resp = NULL;

    err_clear(err);
    req.id = id;
    req.exec_id = exec;
    (void)desk_call(d, ctx, "State", &req, &state_response__descriptor, (void **)&resp, err);
    return resp;
}

static inline Status desk_status(struct desk *d, struct ctx *ctx, const char *id, const char *exec)
{
    struct err err = ERR_INIT;
    AUTO(pb_free) StateResponse *s = desk_state(d, ctx, id, exec, &err);

    ASSERT_STR(err.msg, "");
    return s->status;
}

/* The exit status. */
static inline uint32_t desk_wait(struct desk *d, struct ctx *ctx, const char *id, const char *exec)
{
    WaitRequest req = WAIT_REQUEST__INIT;
    AUTO(pb_free) WaitResponse *resp = NULL;
    struct err err = ERR_INIT;

    req.id = id;
    req.exec_id = exec;
    ASSERT_OK(desk_call(d, ctx, "Wait", &req, &wait_response__descriptor, (void **)&resp, &err),
              err);
    ASSERT(pb_time(resp->exited_at) > 0);
    return resp->exit_status;
}

static inline void desk_delete(struct desk *d, struct ctx *ctx, const char *id, const char *exec)
{
    struct err err = ERR_INIT;

    (void)desk_code(d, ctx, "Delete", &delete_request__descriptor, id, exec, &err);
    ASSERT_STR(err.msg, "");
}
