/* task_query.c - State, Wait, Pids, Stats, Connect, Shutdown. State, Pids and Connect are answered
 * from memory: they must work while the guest does not. */
#include "api/process.pb-c.h"
#include "api/runc.pb-c.h"
#include "host/service/service_priv.h"
#include "host/service/stats.h"
#include "proto/pb.h"
#include <stdlib.h>
#include <unistd.h>

int task_state(struct ctx *ctx, struct service *s, const StateRequest *req, StateResponse *resp,
               struct err *err)
{
    struct process *p = service_process(s, req->id, req->exec_id, NULL, err);
    struct process_view v;

    (void)ctx;
    if (!p)
        return -1;
    process_view(p, &v);
    pb_set_str(&resp->id, v.container_id);
    pb_set_str(&resp->exec_id, v.exec_id);
    pb_set_str(&resp->bundle, v.bundle);
    pb_set_str(&resp->stdin, v.in);
    pb_set_str(&resp->stdout, v.out);
    pb_set_str(&resp->stderr, v.err);
    resp->terminal = v.terminal;
    resp->pid = v.pid;
    resp->status = (Status)v.status;
    resp->exit_status = v.exit_status;
    if (v.exited_wall_ns)
        pb_set_time(&resp->exited_at, v.exited_wall_ns);
    return 0;
}

int task_wait(struct ctx *ctx, struct service *s, const WaitRequest *req, WaitResponse *resp,
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

int task_pids(struct ctx *ctx, struct service *s, const PidsRequest *req, PidsResponse *resp,
              struct err *err)
{
    struct container *c = service_container(s, req->id, err);
    AUTO_FREE struct container_pid *pids = NULL;
    size_t n = 0;

    (void)ctx;
    if (!c || container_pids(c, &pids, &n, err) < 0)
        return -1;
    for (size_t i = 0; i < n; i++) {
        ProcessInfo *info = pb_new(&process_info__descriptor);

        info->pid = pids[i].pid;
        pb_add(resp->processes, resp->n_processes, info);
        if (pids[i].exec_id[0]) {
            Runc__ProcessDetails details = RUNC__PROCESS_DETAILS__INIT;

            details.exec_id = pids[i].exec_id;
            (void)pb_set_any(&info->info, &details); /* a checked id is text */
        }
    }
    return 0;
}

int task_stats(struct ctx *ctx, struct service *s, const StatsRequest *req, StatsResponse *resp,
               struct err *err)
{
    struct container *c = service_container(s, req->id, err);
    AUTO_FREE char *json = NULL;

    if (!c || container_stats(ctx, c, &json, err) < 0)
        return -1;
    if (stats_from_guest(json, s->opts.stats_v2, &resp->stats, err) < 0)
        return err_wrap(err, "statistics of container %s", req->id);
    return 0;
}

/* containerd's health check: succeeds for ids that nobody knows, and for none. */
int task_connect(struct ctx *ctx, struct service *s, const ConnectRequest *req,
                 ConnectResponse *resp, struct err *err)
{
    struct err ignored = ERR_INIT;
    struct container *c = registry_find(s->opts.registry, req->id, &ignored);
    struct process *init = c ? container_process(c, "", &ignored) : NULL;
    struct process_view v;

    (void)ctx, (void)err;
    s->calls++;
    resp->shim_pid = (uint32_t)getpid();
    if (init) {
        process_view(init, &v);
        resp->task_pid = v.pid;
    }
    pb_set_str(&resp->version, LCOW_VERSION);
    return 0;
}

/* "Exit if you serve nothing", never "exit now": whoever listens to on_change looks whether there
 * is anything left, when this was answered. */
int task_shutdown(struct ctx *ctx, struct service *s, const ShutdownRequest *req, Empty *resp,
                  struct err *err)
{
    (void)ctx, (void)req, (void)resp, (void)err;
    s->calls++;
    s->asked_to_leave++;
    service_changed(s);
    return 0;
}
