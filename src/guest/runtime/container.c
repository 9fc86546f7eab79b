#include "guest/runtime/container.h"
#include "base/err.h"
#include "base/log.h"
#include "guest/net/nets.h"
#include "guest/runtime/cgroup.h"
#include "guest/runtime/container_priv.h"
#include "guest/runtime/crun.h"
#include "guest/runtime/metrics.h"
#include "guest/runtime/ps.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define METRICS_OPEN_MAX 32

static const char *const state_names[CONTAINER_STATE_COUNT] = {
    [CONTAINER_CREATING] = "Creating", [CONTAINER_CREATED] = "Created",
    [CONTAINER_RUNNING] = "Running",   [CONTAINER_PAUSED] = "Paused",
    [CONTAINER_STOPPED] = "Stopped",   [CONTAINER_GONE] = "Gone",
};
static const char *const event_names[CONTAINER_EV_COUNT] = {
    [CONTAINER_EV_CREATED] = "be created", [CONTAINER_EV_FAILED] = "fail to be created",
    [CONTAINER_EV_STARTED] = "start",      [CONTAINER_EV_FROZEN] = "pause",
    [CONTAINER_EV_THAWED] = "resume",      [CONTAINER_EV_EXITED] = "exit",
    [CONTAINER_EV_DELETED] = "be deleted",
};
static const struct fsm_edge edges[] = {
    { CONTAINER_CREATING, CONTAINER_EV_CREATED, CONTAINER_CREATED },
    { CONTAINER_CREATING, CONTAINER_EV_FAILED, CONTAINER_GONE },
    { CONTAINER_CREATED, CONTAINER_EV_STARTED, CONTAINER_RUNNING },
    { CONTAINER_CREATED, CONTAINER_EV_EXITED, CONTAINER_STOPPED },
    { CONTAINER_RUNNING, CONTAINER_EV_FROZEN, CONTAINER_PAUSED },
    { CONTAINER_RUNNING, CONTAINER_EV_EXITED, CONTAINER_STOPPED },
    { CONTAINER_PAUSED, CONTAINER_EV_THAWED, CONTAINER_RUNNING },
    { CONTAINER_PAUSED, CONTAINER_EV_EXITED, CONTAINER_STOPPED },
    { CONTAINER_STOPPED, CONTAINER_EV_DELETED, CONTAINER_GONE },
};
FSM_DEFINE(container_fsm, "container", state_names, CONTAINER_STATE_COUNT, event_names,
           CONTAINER_EV_COUNT, edges);

/* --- the table --- */

struct containers *containers_new(const struct containers_opts *opts)
{
    struct containers *cs = mem_new(struct containers);

    cs->opts = *opts;
    cs->crun = opts->crun;
    list_init(&cs->containers);
    waitq_init(&cs->changed);
    gate_init(&cs->volumes, "volumes");
    return cs;
}

struct crun *containers_crun(struct containers *cs, struct err *err)
{
    if (!cs->crun && crun_new(&cs->crun, err) < 0)
        return NULL;
    return cs->crun;
}

static void pod_unref(struct pod *p)
{
    if (!p || --p->refs > 0)
        return;
    int r = cgroup_remove(p->cgroup);
    if (r < 0)
        log_warn(NULL, "cannot remove a pod's cgroup; it stays", F_STR(LK_POD_ID, p->id),
                 F_STR(LK_ERROR, strerror(-r)));
    free(p->id);
    free(p->root);
    free(p->cgroup);
    free(p);
}

struct container *container_ref(struct container *c)
{
    c->refs++;
    return c;
}

void container_leave_network(struct container *c)
{
    if (c->network)
        nets_release(c->table->opts.nets, c->network);
    free(TAKE_PTR(c->network));
}

void container_unref(struct container *c)
{
    if (!c || --c->refs > 0)
        return;
    processes_release(&c->execs);
    process_unref(c->init);
    pod_unref(c->pod);
    container_leave_network(c);
    cancel_release(&c->oom_stop);
    json_decref(c->rlimits);
    json_decref(c->user);
    free(c->id);
    free(c->activity_id);
    free(c->bundle);
    free(c->scratch);
    free(c->cgroup);
    free(c->root);
    idmap_release(&c->ids);
    metrics_close(c->metrics);
    free(c);
}

static void close_metrics(struct container *c)
{
    c->table->n_metrics -= c->metrics != NULL;
    metrics_close(TAKE_PTR(c->metrics));
}

void container_forget(struct container *c)
{
    close_metrics(c);
    if (list_empty(&c->in_table))
        return;
    list_remove(&c->in_table);
    c->table->n--;
    waitq_wake_all(&c->table->changed);
    container_unref(c);
}

struct container *containers_find(const struct containers *cs, const char *id, struct err *err)
{
    LIST_FOR (struct container, c, &cs->containers, in_table)
        if (strcmp(c->id, id) == 0)
            return c;
    err_because(err, REASON_NOT_FOUND, ERR_NOT_FOUND, "no container \"%.64s\"", id);
    return NULL;
}

static struct container *find_by_bundle(const struct containers *cs, const char *bundle)
{
    LIST_EACH (&cs->containers, pos) {
        struct container *c = LIST_ENTRY(pos, struct container, in_table);

        if (str_eq(c->bundle, bundle))
            return c;
    }
    return NULL;
}

int containers_look_at_bundle(struct ctx *ctx, struct containers *cs, const char *bundle,
                              bool *ret_used, struct err *err)
{
    struct container *c;

    while ((c = find_by_bundle(cs, bundle)) && c->state == CONTAINER_CREATING)
        if (waitq_wait(ctx, &cs->changed, "the container to be created", err) < 0)
            return -1;
    *ret_used = c != NULL;
    return 0;
}

struct container *containers_get(const struct containers *cs, const char *id, struct err *err)
{
    struct container *c = containers_find(cs, id, err);

    if (c && c->state == CONTAINER_CREATING) {
        err_because(err, REASON_WRONG_STATE, ERR_ABORTED, "container %s is still being created",
                    id);
        return NULL;
    }
    return c ? container_ref(c) : NULL;
}

/* --- the end of all --- */

static bool all_done(const struct containers *cs)
{
    LIST_FOR (const struct container, c, &cs->containers, in_table)
        if ((c->init && !process_done(c->init, NULL)) || !processes_all_done(&c->execs))
            return false;
    return true;
}

int containers_stop(struct ctx *ctx, struct containers *cs, struct err *err)
{
    struct err ignored = ERR_INIT;

    LIST_FOR (struct container, c, &cs->containers, in_table)
        if (c->init)
            (void)process_signal(c->init, SIGTERM, &ignored); /* may be gone */
    while (!all_done(cs))
        if (waitq_wait(ctx, &cs->changed, "containers to end", err) < 0)
            return -1;
    return 0;
}

void containers_free(struct containers *cs)
{
    struct err ignored = ERR_INIT;

    if (!cs)
        return;
    struct ctx ctx = ctx_root(cs->opts.loop);
    LIST_FOR (struct container, c, &cs->containers, in_table) {
        if (c->init)
            process_kill(c->init);
        processes_each(&c->execs, process_kill);
    }
    while (!all_done(cs))
        (void)waitq_wait(&ctx, &cs->changed, "containers to end", &ignored);
    LIST_EACH (&cs->containers, pos)
        container_forget(LIST_ENTRY(pos, struct container, in_table));
    crun_free(cs->crun);
    free(cs);
}

/* --- processes by pid --- */

static struct process *find_process(const struct container *c, uint32_t pid, struct err *err)
{
    struct err in_execs = ERR_INIT;
    struct process *p = processes_find(&c->execs, pid, &in_execs);

    if (p)
        return p;
    if (c->init && process_pid(c->init) == pid)
        return c->init;
    err_because(err, REASON_NOT_FOUND, ERR_NOT_FOUND, "no process %u in container %s", pid, c->id);
    return NULL;
}

int container_wait(struct ctx *ctx, struct container *c, uint32_t pid, uint32_t timeout_ms,
                   uint32_t *ret_code, bool *ret_init, struct err *err)
{
    struct process *found = find_process(c, pid, err);

    if (!found)
        return -1;
    AUTO(process_unref) struct process *p = process_ref(found);
    bool is_init = p == c->init;
    c->init_waits += is_init;
    if (process_wait(ctx, p, timeout_ms, ret_code, err) < 0) {
        c->init_waits -= is_init;
        return -1;
    }
    if (!is_init)
        processes_forget(&c->execs, p);
    *ret_init = is_init;
    return 0;
}

void container_answered(void *container, bool sent)
{
    struct container *c = container;
    const struct containers_opts *o = &c->table->opts;
    enum container_end end = c->last_signal == SIGTERM   ? CONTAINER_END_GRACEFUL
                             : c->last_signal == SIGKILL ? CONTAINER_END_FORCED
                                                         : CONTAINER_END_UNEXPECTED;

    c->init_waits--;
    c->wait_answered |= sent;
    if (c->wait_answered && c->init_waits == 0 && !c->notified) {
        c->notified = true;
        o->notify(o->arg, c->id, c->activity_id, end);
    }
    container_unref(c);
}

int container_signal(struct container *c, uint32_t pid, int signo, struct err *err)
{
    struct process *p = find_process(c, pid, err);

    if (!p || process_signal(p, signo, err) < 0)
        return -1;
    if (p == c->init && (signo == SIGTERM || signo == SIGKILL || signo == 0))
        c->last_signal = signo ? signo : SIGKILL;
    return 0;
}

int container_resize(struct container *c, uint32_t pid, uint16_t rows, uint16_t cols,
                     struct err *err)
{
    struct process *p = find_process(c, pid, err);

    return p ? process_resize(p, rows, cols, err) : -1;
}

int container_shutdown(struct container *c, bool forced, struct err *err)
{
    int signo = forced ? SIGKILL : SIGTERM;

    if (process_signal(c->init, signo, err) < 0)
        return err_because(err, REASON_WRONG_STATE, ERR_UNAVAILABLE, "container %s is not running",
                           c->id);
    c->last_signal = signo;
    return 0;
}

/* --- queries --- */

static bool is_exec(const void *arg, uint32_t pid)
{
    const struct container *c = arg;
    struct err none = ERR_INIT;
    const struct process *p = processes_find(&c->execs, pid, &none);

    return p && !process_exited(p);
}

void container_list(const struct container *c, struct ps_entry **ret, size_t *ret_n)
{
    AUTO_FREE uint32_t *pids = NULL;
    size_t n = 0;

    cgroup_pids(c->cgroup, &pids, &n);
    ps_list(
        &(struct ps_opts){
            .loop = c->table->opts.loop, .proc = "/proc", .is_leader = is_exec, .arg = c },
        pids, n, ret, ret_n);
}

int container_stats(struct container *c, bool totals, char **ret_json, struct err *err)
{
    if (!c->metrics && metrics_open(c->cgroup, &c->metrics, err) == 0)
        c->table->n_metrics++;
    int r = c->metrics ? metrics_read(c->metrics, totals, ret_json, err) : -1;

    if (r < 0 || c->table->n_metrics > METRICS_OPEN_MAX)
        close_metrics(c);
    return r < 0 ? err_wrap(err, "metrics of container %s", c->id) : 0;
}

void containers_trim(struct containers *cs)
{
    LIST_FOR (struct container, c, &cs->containers, in_table)
        close_metrics(c);
}

const char *container_scratch(const struct container *c)
{
    return c->scratch;
}
