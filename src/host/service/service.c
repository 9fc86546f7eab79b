/* service.c - the table of the Task service and what its handlers share. */
#include "base/clock.h"
#include "base/loop.h"
#include "host/rpc/rpc_server.h"
#include "host/service/service_priv.h"
#include <stdlib.h>

#define EXPECT_LIMIT (30 * NS_PER_S) /* containerd calls as soon as `start` has answered */

static const struct rpc_method task_methods[] = {
    RPC_UNARY_BUT("State", task_state, struct service, StateRequest, StateResponse,
                  .may_be_gone = true),
    RPC_UNARY("Create", task_create, struct service, CreateTaskRequest, CreateTaskResponse),
    RPC_UNARY("Start", task_start, struct service, StartRequest, StartResponse),
    RPC_UNARY_BUT("Delete", task_delete, struct service, DeleteRequest, DeleteResponse,
                  .may_be_gone = true),
    RPC_UNARY_BUT("Pids", task_pids, struct service, PidsRequest, PidsResponse,
                  .may_be_gone = true),
    RPC_UNARY("Pause", task_pause, struct service, PauseRequest, Empty),
    RPC_UNARY("Resume", task_resume, struct service, ResumeRequest, Empty),
    RPC_UNARY("Checkpoint", task_checkpoint, struct service, CheckpointTaskRequest, Empty),
    RPC_UNARY_BUT("Kill", task_kill, struct service, KillRequest, Empty, .may_be_gone = true),
    RPC_UNARY("Exec", task_exec, struct service, ExecProcessRequest, Empty),
    RPC_UNARY_BUT("ResizePty", task_resize, struct service, ResizePtyRequest, Empty,
                  .may_be_gone = true),
    RPC_UNARY_BUT("CloseIO", task_close_io, struct service, CloseIORequest, Empty,
                  .may_be_gone = true),
    RPC_UNARY("Update", task_update, struct service, UpdateTaskRequest, Empty),
    RPC_UNARY_BUT("Wait", task_wait, struct service, WaitRequest, WaitResponse, .patient = true,
                  .may_be_gone = true),
    RPC_UNARY_BUT("Stats", task_stats, struct service, StatsRequest, StatsResponse,
                  .may_be_gone = true),
    RPC_UNARY("Connect", task_connect, struct service, ConnectRequest, ConnectResponse),
    RPC_UNARY("Shutdown", task_shutdown, struct service, ShutdownRequest, Empty),
};
static const struct rpc_service task_service = { &task__descriptor, task_methods,
                                                 ARRAY_LEN(task_methods) };

struct service *service_new(const struct service_opts *o)
{
    struct service *s = mem_new(struct service);

    s->opts = *o;
    list_init(&s->diag_runs);
    return s;
}

void service_free(struct service *s)
{
    free(s);
}

void service_add_to(struct service *s, struct rpc_server *server)
{
    rpc_server_add(server, SERVICE_TASK_V2, &task_service, s);
    rpc_server_add(server, SERVICE_TASK_V3, &task_service, s);
    service_add_sandbox(s, server);
    service_add_diag(s, server);
}

void service_refuse(struct service *s)
{
    s->refusing = true;
}

uint64_t service_asked_to_leave(const struct service *s)
{
    return s->asked_to_leave;
}

bool service_busy(const struct service *s)
{
    return s->creating > 0 || service_expects(s) > 0;
}

bool service_idle(const struct service *s)
{
    return !service_busy(s) && registry_idle(s->opts.registry);
}

bool service_given_up(const struct service *s)
{
    return !service_busy(s) && registry_given_up(s->opts.registry);
}

uint64_t service_expects(const struct service *s)
{
    uint64_t now = loop_now(s->opts.loop);

    return s->expected > 0 && s->expected_until > now ? s->expected_until - now : 0;
}

void service_expect(struct service *s)
{
    if (service_expects(s) == 0)
        s->expected = 0; /* those of before never came */
    s->expected++;
    s->expected_until = loop_now(s->opts.loop) + EXPECT_LIMIT;
    service_changed(s);
}

void service_came(struct service *s)
{
    s->calls++;
    if (s->expected > 0)
        s->expected--;
}

uint64_t service_calls(const struct service *s)
{
    return s->calls;
}

void service_changed(struct service *s)
{
    if (s->opts.on_change)
        s->opts.on_change(s->opts.arg);
}

struct ctx service_own_ctx(const struct ctx *ctx, uint64_t ns)
{
    struct ctx own = *ctx;

    own.cancel = NULL;
    own.deadline = loop_now(ctx->loop) + ns;
    return own;
}

struct container *service_container(struct service *s, const char *id, struct err *err)
{
    s->calls++;
    if (service_check_id("container id", id, err) < 0)
        return NULL;
    return registry_find(s->opts.registry, id, err);
}

struct process *service_process(struct service *s, const char *id, const char *exec_id,
                                struct container **ret_container, struct err *err)
{
    struct container *c = service_container(s, id, err);

    if (!c || (exec_id[0] && service_check_id("exec id", exec_id, err) < 0))
        return NULL;
    if (ret_container)
        *ret_container = c;
    return container_process(c, exec_id, err);
}
