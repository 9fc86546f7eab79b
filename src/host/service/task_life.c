/* task_life.c - Create, Start, Exec, Kill, Delete: from nothing to nothing. */
#include "base/clock.h"
#include "base/str.h"
#include "host/control/events.h"
#include "host/service/options.h"
#include "host/service/service_priv.h"
#include "proto/pb.h"
#include <stdlib.h>

/* Delete finishes what it began, whoever still listens; what the controllers wait for has smaller
 * limits of its own. */
#define DELETE_LIMIT (60 * NS_PER_S)
/* A start that was given up half-way would leave a container that can neither be started again nor
 * ever ran: the end of containerd must not do that. */
#define START_LIMIT (120 * NS_PER_S)
#define SIGNAL_MAX 64

static int check_mounts(const CreateTaskRequest *req, struct err *err)
{
    for (size_t i = 0; i < req->n_rootfs; i++)
        if (!req->rootfs[i]->type[0] && !req->rootfs[i]->source[0])
            return err_set(err, ERR_INVALID, "rootfs mount %zu has neither type nor source", i);
    return 0;
}

/* The mounts as the controllers know them; texts stay the request's. */
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

int task_create(struct ctx *ctx, struct service *s, const CreateTaskRequest *req,
                CreateTaskResponse *resp, struct err *err)
{
    AUTO_FREE const char **options = NULL;
    AUTO_FREE struct event_mount *mounts = NULL;
    struct ctx named = ctx_with_id(ctx, "cid", req->id);
    enum options_type type;

    service_came(s);
    if (service_check_id("container id", req->id, err) < 0 || check_mounts(req, err) < 0)
        return -1;
    /* What they say was said to `start`, too. */
    if (req->options && options_type(req->options->type_url, &type, err) < 0)
        return -1;
    if (req->bundle[0] != '/')
        return err_set(err, ERR_INVALID, "bundle \"%s\" of container %s is no absolute path",
                       req->bundle, req->id);
    if (s->refusing)
        return err_set(err, ERR_UNAVAILABLE,
                       "this shim is shutting down and takes no container %s; create it again",
                       req->id);
    mounts = mounts_of(req, &options);

    struct registry_create create = { .id = req->id,
                                      .bundle = req->bundle,
                                      .in = req->stdin,
                                      .out = req->stdout,
                                      .err = req->stderr,
                                      .terminal = req->terminal,
                                      .rootfs = mounts,
                                      .n_rootfs = req->n_rootfs,
                                      .checkpoint = req->checkpoint };

    s->asked_to_leave = 0;
    s->creating++;

    int r = registry_create(&named, s->opts.registry, &create, &resp->pid, err);

    s->creating--;
    if (r == 0 && s->opts.on_created)
        s->opts.on_created(s->opts.arg, req->id, req->bundle, resp->pid);
    service_changed(s);
    return r;
}

int task_start(struct ctx *ctx, struct service *s, const StartRequest *req, StartResponse *resp,
               struct err *err)
{
    struct ctx own = service_own_ctx(ctx, START_LIMIT);
    struct ctx named = ctx_with_id(&own, "cid", req->id);
    struct container *c;

    if (!service_process(s, req->id, req->exec_id, &c, err))
        return -1;
    return container_start(&named, c, req->exec_id, &resp->pid, err);
}

int task_exec(struct ctx *ctx, struct service *s, const ExecProcessRequest *req, Empty *resp,
              struct err *err)
{
    struct ctx named = ctx_with_id(ctx, "cid", req->id);
    struct container *c = service_container(s, req->id, err);

    (void)resp;
    if (!c || service_check_id("exec id", req->exec_id, err) < 0)
        return -1;
    if (!req->spec || req->spec->value.len == 0)
        return err_set(err, ERR_INVALID, "exec %s in container %s comes without a process spec",
                       req->exec_id, req->id);

    struct container_exec e = { .exec_id = req->exec_id,
                                .in = req->stdin,
                                .out = req->stdout,
                                .err = req->stderr,
                                .terminal = req->terminal,
                                .process_json = (const char *)req->spec->value.data,
                                .process_len = req->spec->value.len };

    return container_exec(&named, c, &e, err);
}

int task_kill(struct ctx *ctx, struct service *s, const KillRequest *req, Empty *resp,
              struct err *err)
{
    struct ctx named = ctx_with_id(ctx, "cid", req->id);
    struct container *c;

    (void)resp;
    if (!service_process(s, req->id, req->exec_id, &c, err))
        return -1;
    if (req->signal < 1 || req->signal > SIGNAL_MAX)
        return err_set(err, ERR_INVALID, "signal %u for %s is none: 1 to %d are", req->signal,
                       req->id, SIGNAL_MAX);
    return container_kill(&named, c, req->exec_id, req->signal, req->all, err);
}

int task_delete(struct ctx *ctx, struct service *s, const DeleteRequest *req, DeleteResponse *resp,
                struct err *err)
{
    struct ctx own = service_own_ctx(ctx, DELETE_LIMIT);
    struct ctx named = ctx_with_id(&own, "cid", req->id);
    struct registry_deleted gone = { 0 };

    s->calls++;
    if (service_check_id("container id", req->id, err) < 0 ||
        (req->exec_id[0] && service_check_id("exec id", req->exec_id, err) < 0))
        return -1;
    /* By id, not by container: one whose creation failed half-way is known to the registry only. */
    if (registry_delete(&named, s->opts.registry, req->id, req->exec_id, &gone, err) < 0)
        return -1;
    resp->pid = gone.pid;
    resp->exit_status = gone.exit_status;
    if (gone.exited_wall_ns)
        pb_set_time(&resp->exited_at, gone.exited_wall_ns);
    service_changed(s);
    return 0;
}
