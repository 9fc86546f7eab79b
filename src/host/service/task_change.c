/* task_change.c - what is done to a container that lives: Pause, Resume, ResizePty, CloseIO,
 * Update. */
#include "base/clock.h"
#include "base/str.h"
#include "host/service/service_priv.h"
#include "proto/pb.h"

#define CPU_GROUP "io.microsoft.virtualmachine.cpugroup.id"

/* Whoever listens: what we say of the freezer is what the guest did. */
#define FREEZE_LIMIT (60 * NS_PER_S)
#define UPDATE_LIMIT (120 * NS_PER_S) /* VM, guest and host cgroup agree only at its end */

int task_pause(struct ctx *ctx, struct service *s, const PauseRequest *req, Empty *resp,
               struct err *err)
{
    struct ctx own = service_own_ctx(ctx, FREEZE_LIMIT);
    struct ctx named = ctx_with_id(&own, "cid", req->id);
    struct container *c = service_container(s, req->id, err);

    (void)resp;
    return c ? container_pause(&named, c, err) : -1;
}

int task_resume(struct ctx *ctx, struct service *s, const ResumeRequest *req, Empty *resp,
                struct err *err)
{
    struct ctx own = service_own_ctx(ctx, FREEZE_LIMIT);
    struct ctx named = ctx_with_id(&own, "cid", req->id);
    struct container *c = service_container(s, req->id, err);

    (void)resp;
    return c ? container_resume(&named, c, err) : -1;
}

int task_checkpoint(struct ctx *ctx, struct service *s, const CheckpointTaskRequest *req,
                    Empty *resp, struct err *err)
{
    (void)ctx, (void)resp;
    if (!service_container(s, req->id, err))
        return -1;
    return err_set(err, ERR_UNIMPLEMENTED, "checkpoints are not supported (container %s)", req->id);
}

int task_resize(struct ctx *ctx, struct service *s, const ResizePtyRequest *req, Empty *resp,
                struct err *err)
{
    struct ctx named = ctx_with_id(ctx, "cid", req->id);
    struct container *c;

    (void)resp;
    if (!service_process(s, req->id, req->exec_id, &c, err))
        return -1;
    if (req->width > UINT16_MAX || req->height > UINT16_MAX)
        return err_set(err, ERR_INVALID, "terminal size %ux%u of %s is beyond %ux%u", req->width,
                       req->height, req->id, UINT16_MAX, UINT16_MAX);
    return container_resize(&named, c, req->exec_id, (uint16_t)req->height, (uint16_t)req->width,
                            err);
}

int task_close_io(struct ctx *ctx, struct service *s, const CloseIORequest *req, Empty *resp,
                  struct err *err)
{
    struct container *c;

    (void)ctx, (void)resp;
    if (!service_process(s, req->id, req->exec_id, &c, err))
        return -1;
    return req->stdin ? container_close_stdin(c, req->exec_id, err) : 0;
}

int task_update(struct ctx *ctx, struct service *s, const UpdateTaskRequest *req, Empty *resp,
                struct err *err)
{
    struct ctx own = service_own_ctx(ctx, UPDATE_LIMIT), named = ctx_with_id(&own, "cid", req->id);
    struct container *c = service_container(s, req->id, err);

    (void)resp;
    if (!c)
        return -1;
    if (!req->resources || req->resources->value.len == 0)
        return err_set(err, ERR_INVALID, "update of container %s comes without resources", req->id);
    if (!str_eq(pb_any_type(req->resources), "LinuxResources"))
        return err_set(err, ERR_INVALID, "update of container %s with \"%s\": only LinuxResources",
                       req->id, req->resources->type_url);
    for (size_t i = 0; i < req->n_annotations; i++)
        if (str_eq(req->annotations[i]->key, CPU_GROUP))
            return err_set(err, ERR_INVALID,
                           "update of container %s: annotation " CPU_GROUP
                           " is not supported: the host has no groups of CPUs",
                           req->id);
    return container_update(&named, c, (const char *)req->resources->value.data,
                            req->resources->value.len, err);
}
