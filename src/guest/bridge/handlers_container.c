/* handlers_container.c - messages about containers and the processes in them. */
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/log.h"
#include "guest/bridge/handlers_priv.h"
#include "guest/runtime/ps.h"
#include "guest/storage/storage.h"
#include <stdlib.h>
#include <string.h>

#define SCRATCH_LIMIT (2 * NS_PER_S)

/* Maps a container's errors to HRESULTs. The host shows crun's text. */
static int fail_container(struct err *err)
{
    switch (err->code) {
    case ERR_EXISTS:
        return handlers_fail_as(err, BRIDGE_HR_CONTAINER_EXISTS);
    case ERR_INVALID:
        return handlers_fail_as(err, BRIDGE_HR_INVALID_ARGUMENT);
    case ERR_UNAVAILABLE: /* with an errno it is a connection */
        return handlers_fail_as(err, err->sys ? BRIDGE_HR_FAIL : BRIDGE_HR_NOT_RUNNING);
    default:
        return handlers_fail_as(err, BRIDGE_HR_FAIL);
    }
}

void handlers_notify(void *arg, const char *id, const char *activity_id, enum container_end end)
{
    static const char *const types[] = {
        [CONTAINER_END_UNEXPECTED] = BRIDGE_NOTIFY_UNEXPECTED_EXIT,
        [CONTAINER_END_GRACEFUL] = BRIDGE_NOTIFY_GRACEFUL_EXIT,
        [CONTAINER_END_FORCED] = BRIDGE_NOTIFY_FORCED_EXIT,
    };
    const struct handlers *h = arg;
    const struct bridge_notification notification = {
        .container_id = id,
        .activity_id = activity_id,
        .type = types[end],
    };
    struct err err = ERR_INIT;

    if (server_notify(h->server, &notification, &err) < 0)
        log_error(NULL, "cannot report the exit of a container", F_STR(LK_CID, id), F_ERR(&err));
}

int handlers_create(struct ctx *ctx, void *arg, struct server_call *call, struct err *err)
{
    struct handlers *h = arg;
    const struct bridge_create *c = &call->req.create;
    const struct container_config config = {
        .id = call->req.container_id,
        .activity_id = call->req.activity_id,
        .bundle_path = c->bundle_path,
        .scratch_path = c->scratch_path,
        .spec = c->spec,
        .privileged = c->privileged,
        .holder = c->holder,
    };

    return container_create(ctx, h->containers, &config, err) < 0 ? fail_container(err) : 0;
}

struct stdio_ports handlers_stdio(const struct bridge_exec *e)
{
    return (struct stdio_ports){
        .want = { e->want_in, e->want_out, e->want_err },
        .port = { e->ports.in, e->ports.out, e->ports.err },
    };
}

int handlers_exec(struct ctx *ctx, struct handlers *h, struct server_call *call, struct err *err)
{
    const struct bridge_exec *e = &call->req.exec;
    AUTO(container_unref) struct container *c = handlers_container(h, call, err);
    const struct stdio_ports io = handlers_stdio(e);
    uint32_t *pid = &call->resp.process_id;

    if (!c)
        return -1;
    int r = e->oci_process ? container_exec(ctx, c, e->oci_process, &io, pid, err)
                           : container_start(ctx, c, &io, pid, err);
    return r < 0 ? fail_container(err) : 0;
}

int handlers_wait(struct ctx *ctx, struct handlers *h, struct server_call *call, struct err *err)
{
    const struct bridge_wait w = call->req.wait;
    AUTO(container_unref) struct container *c = handlers_container(h, call, err);
    bool is_init = false;

    if (!c)
        return -1;
    server_call_forget_request(call);
    if (container_wait(ctx, c, w.pid, w.timeout_ms, &call->resp.exit_code, &is_init, err) < 0)
        return handlers_fail_process(err);
    if (is_init) {
        call->after = container_answered;
        call->after_arg = TAKE_PTR(c);
    }
    return 0;
}

/* --- properties --- */

static int wait_oom(struct ctx *ctx, struct container *c, struct server_call *call, struct err *err)
{
    bool oom = false;

    server_call_forget_request(call);
    if (container_wait_oom(ctx, c, &oom, err) < 0)
        return handlers_fail_as(err, BRIDGE_HR_FAIL);
    call->after = container_oom_answered;
    call->after_arg = container_ref(c);
    call->text = str_dup(oom ? "{\"OutOfMemory\":true}" : "{\"OutOfMemory\":false}");
    call->resp.properties = call->text;
    return 0;
}

/* Names are borrowed from *ret, which the caller frees. */
static void list_processes(const struct container *c, struct bridge_properties *to,
                           struct ps_entry **ret)
{
    struct ps_entry *v = NULL;

    container_list(c, &v, &to->n_processes);
    to->processes = mem_zalloc((to->n_processes + 1) * sizeof(to->processes[0]));
    for (size_t i = 0; i < to->n_processes; i++)
        to->processes[i] = (struct bridge_process){ .pid = v[i].pid,
                                                    .leader = v[i].leader,
                                                    .name = v[i].name,
                                                    .age_ms = v[i].age_ms,
                                                    .user_ms = v[i].user_ms,
                                                    .kernel_ms = v[i].kernel_ms,
                                                    .data_kib = v[i].data_kib,
                                                    .private_kib = v[i].private_kib,
                                                    .shared_kib = v[i].shared_kib };
    *ret = v;
}

/* A disk that hangs must not hold up the rest of the answer. */
static uint64_t read_scratch(struct ctx *ctx, const struct container *c)
{
    struct ctx limited = ctx_with_timeout(ctx, SCRATCH_LIMIT);
    struct err ignored = ERR_INIT;
    uint64_t bytes = 0;

    return storage_used(&limited, container_scratch(c), &bytes, &ignored) == 0 ? bytes : 0;
}

static bool asks(const struct bridge_query *q, const char *type)
{
    for (const char *const *t = q->types; *t; t++)
        if (strcmp(*t, type) == 0)
            return true;
    return false;
}

int handlers_properties(struct ctx *ctx, struct handlers *h, struct server_call *call,
                        struct err *err)
{
    const struct bridge_query *q = &call->req.query;
    AUTO(container_unref) struct container *c = handlers_container(h, call, err);
    AUTO_FREE char *metrics = NULL;
    AUTO_FREE struct ps_entry *processes = NULL;
    struct bridge_properties p = { 0 };

    if (!c)
        return -1;
    if (asks(q, BRIDGE_PROPERTY_OUT_OF_MEMORY))
        return wait_oom(ctx, c, call, err);
    if (asks(q, BRIDGE_PROPERTY_STATISTICS)) {
        if (container_stats(c, !asks(q, BRIDGE_PROPERTY_SHORT), &metrics, err) < 0)
            return handlers_fail_as(err, BRIDGE_HR_FAIL);
        p.metrics_text = metrics;
    }
    if (asks(q, BRIDGE_PROPERTY_SCRATCH))
        p.scratch = read_scratch(ctx, c);
    if (asks(q, BRIDGE_PROPERTY_PROCESS_LIST))
        list_processes(c, &p, &processes);
    call->text = bridge_properties_encode(&p);
    call->resp.properties = call->text;
    free(p.processes);
    return 0;
}

/* --- the end --- */

int handlers_stop(struct handlers *h, struct server_call *call, struct err *err)
{
    AUTO(container_unref) struct container *c = handlers_container(h, call, err);

    if (!c)
        return -1;
    if (container_shutdown(c, call->req.type == BRIDGE_SHUTDOWN_FORCED, err) < 0)
        return fail_container(err);
    return 0;
}

int handlers_delete(struct ctx *ctx, void *arg, struct server_call *call, struct err *err)
{
    struct handlers *h = arg;

    if (container_delete(ctx, h->containers, call->req.container_id, err) == 0)
        return 0;
    if (err->code == ERR_NOT_FOUND)
        return handlers_fail_code(err, BRIDGE_HR_NO_CONTAINER);
    return handlers_fail_as(err, err->code == ERR_STATE ? BRIDGE_HR_INVALID_STATE : BRIDGE_HR_FAIL);
}
