/* service_priv.h - what the files of the Task service share. */
#pragma once
#include "api/task.pb-c.h"
#include "base/ctx.h"
#include "base/list.h"
#include "host/control/container.h"
#include "host/control/registry.h"
#include "host/service/service.h"

struct service {
    struct service_opts opts;
    bool refusing;
    unsigned creating;
    unsigned expected;       /* creates that were announced */
    uint64_t expected_until; /* then they are given up */
    uint64_t calls, asked_to_leave;
    struct list diag_runs; /* of diag.c */
};

/* Counts the call, checks the id, finds the container. NULL: ERR_INVALID or ERR_NOT_FOUND. */
struct container *service_container(struct service *s, const char *id, struct err *err);
/* The same with one of its processes; exec_id "" is init. */
struct process *service_process(struct service *s, const char *id, const char *exec_id,
                                struct container **ret_container, struct err *err);
void service_changed(struct service *s);
/* A `start` has promised a Create; a Create or CreateSandbox has come. */
void service_expect(struct service *s);
void service_came(struct service *s);
/* For what must not stop half-way when the caller gives up: bounded by time alone. */
struct ctx service_own_ctx(const struct ctx *ctx, uint64_t ns);

/* task_life.c */
int task_create(struct ctx *ctx, struct service *s, const CreateTaskRequest *req,
                CreateTaskResponse *resp, struct err *err);
int task_start(struct ctx *ctx, struct service *s, const StartRequest *req, StartResponse *resp,
               struct err *err);
int task_delete(struct ctx *ctx, struct service *s, const DeleteRequest *req, DeleteResponse *resp,
                struct err *err);
int task_kill(struct ctx *ctx, struct service *s, const KillRequest *req, Empty *resp,
              struct err *err);
int task_exec(struct ctx *ctx, struct service *s, const ExecProcessRequest *req, Empty *resp,
              struct err *err);
/* task_query.c */
int task_state(struct ctx *ctx, struct service *s, const StateRequest *req, StateResponse *resp,
               struct err *err);
int task_wait(struct ctx *ctx, struct service *s, const WaitRequest *req, WaitResponse *resp,
              struct err *err);
int task_pids(struct ctx *ctx, struct service *s, const PidsRequest *req, PidsResponse *resp,
              struct err *err);
int task_stats(struct ctx *ctx, struct service *s, const StatsRequest *req, StatsResponse *resp,
               struct err *err);
int task_connect(struct ctx *ctx, struct service *s, const ConnectRequest *req,
                 ConnectResponse *resp, struct err *err);
int task_shutdown(struct ctx *ctx, struct service *s, const ShutdownRequest *req, Empty *resp,
                  struct err *err);
/* task_change.c */
int task_pause(struct ctx *ctx, struct service *s, const PauseRequest *req, Empty *resp,
               struct err *err);
int task_resume(struct ctx *ctx, struct service *s, const ResumeRequest *req, Empty *resp,
                struct err *err);
int task_checkpoint(struct ctx *ctx, struct service *s, const CheckpointTaskRequest *req,
                    Empty *resp, struct err *err);
int task_resize(struct ctx *ctx, struct service *s, const ResizePtyRequest *req, Empty *resp,
                struct err *err);
int task_close_io(struct ctx *ctx, struct service *s, const CloseIORequest *req, Empty *resp,
                  struct err *err);
int task_update(struct ctx *ctx, struct service *s, const UpdateTaskRequest *req, Empty *resp,
                struct err *err);
/* diag.c */
void service_add_diag(struct service *s, struct rpc_server *server);
/* sandbox.c */
void service_add_sandbox(struct service *s, struct rpc_server *server);
