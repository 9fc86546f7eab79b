#include "guest/runtime/container.h"
#include "base/err.h"
#include "base/log.h"
#include "base/str.h"
#include "guest/runtime/cg.h"
#include "guest/runtime/container_priv.h"
#include "guest/runtime/crun.h"
#include "guest/runtime/metrics.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>

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
const struct fsm container_fsm = {
    .name = "container",
    .states = state_names,
    .n_states = CONTAINER_STATE_COUNT,
    .events = event_names,
    .n_events = CONTAINER_EV_COUNT,
    .edges = edges,
    .n_edges = ARRAY_LEN(edges),
};

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

void pod_unref(struct pod *p)
{
    if (!p || --p->refs > 0)
        return;
    int r = cg_remove(p->cgroup);
    if (r < 0)
        log_warn(NULL, "pod's cgroup stays", F_STR("pod-id", p->id), F_STR("error", strerror(-r)));
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

static void exec_free(struct exec *e)
{
    list_remove(&e->in_container);
    task_unref(e->task);
    free(e);
}

void container_unref(struct container *c)
{
    if (!c || --c->refs > 0)
        return;
    LIST_EACH (&c->execs, pos)
        exec_free(LIST_ENTRY(pos, struct exec, in_container));
    task_unref(c->init);
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
    free(c);
}

void container_forget(struct container *c)
{
    if (list_empty(&c->in_table))
        return;
    list_remove(&c->in_table);
    c->table->n--;
    waitq_wake_all(&c->table->changed);
    container_unref(c);
}

static struct container *search(const struct containers *cs, const char *id)
{
    LIST_EACH (&cs->containers, pos) {
        struct container *c = LIST_ENTRY(pos, struct container, in_table);
        if (strcmp(c->id, id) == 0)
            return c;
    }
    return NULL;
}

bool containers_knows(const struct containers *cs, const char *id)
{
    return search(cs, id) != NULL;
}

bool containers_has_bundle(const struct containers *cs, const char *bundle)
{
    LIST_EACH (&cs->containers, pos)
        if (strcmp(LIST_ENTRY(pos, struct container, in_table)->bundle, bundle) == 0)
            return true;
    return false;
}

struct container *container_find(const struct containers *cs, const char *id, struct err *err)
{
    struct container *c = search(cs, id);

    if (!c)
        err_set(err, ERR_NOT_FOUND, "no container \"%.64s\"", id);
    return c;
}

struct container *container_get(const struct containers *cs, const char *id, struct err *err)
{
    struct container *c = container_find(cs, id, err);

    if (c && c->state == CONTAINER_CREATING) {
        err_set(err, ERR_ABORTED, "container %s is still being created", id);
        return NULL;
    }
    return c ? container_ref(c) : NULL;
}

static bool any_runs(const struct containers *cs)
{
    LIST_EACH (&cs->containers, pos) {
        struct container *c = LIST_ENTRY(pos, struct container, in_table);
        if (c->init && !task_done(c->init, NULL))
            return true;
        LIST_EACH (&c->execs, e)
            if (!task_done(LIST_ENTRY(e, struct exec, in_container)->task, NULL))
                return true;
    }
    return false;
}

int containers_stop_all(struct ctx *ctx, struct containers *cs, bool forced, struct err *err)
{
    struct err ignored = ERR_INIT;

    LIST_EACH (&cs->containers, pos) {
        struct container *c = LIST_ENTRY(pos, struct container, in_table);
        if (c->init)
            (void)task_signal(c->init, forced ? SIGKILL : SIGTERM, &ignored); /* may be gone */
    }
    while (any_runs(cs))
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
    LIST_EACH (&cs->containers, pos) {
        struct container *c = LIST_ENTRY(pos, struct container, in_table);
        if (c->init) {
            task_drop_output(c->init);
            (void)task_signal(c->init, SIGKILL, &ignored);
        }
        LIST_EACH (&c->execs, e) {
            task_drop_output(LIST_ENTRY(e, struct exec, in_container)->task);
            (void)task_signal(LIST_ENTRY(e, struct exec, in_container)->task, SIGKILL, &ignored);
        }
    }
    while (any_runs(cs))
        (void)waitq_wait(&ctx, &cs->changed, "containers to end", &ignored);
    LIST_EACH (&cs->containers, pos)
        container_forget(LIST_ENTRY(pos, struct container, in_table));
    crun_free(cs->crun);
    free(cs);
}

/* --- processes by pid --- */

static struct exec *find_exec(const struct container *c, uint32_t pid)
{
    for (struct list *pos = c->execs.prev; pos != &c->execs; pos = pos->prev) {
        struct exec *e = LIST_ENTRY(pos, struct exec, in_container);
        if (task_pid(e->task) == pid)
            return e;
    }
    return NULL;
}

static struct task *find_task(const struct container *c, uint32_t pid, struct err *err)
{
    struct exec *e = find_exec(c, pid);

    if (e)
        return e->task;
    if (c->init && task_pid(c->init) == pid)
        return c->init;
    err_set(err, ERR_NOT_FOUND, "no process %u in container %s", pid, c->id);
    return NULL;
}

static void forget_exec(struct container *c, uint32_t pid, const struct task *task)
{
    struct exec *e = find_exec(c, pid);

    if (e && e->task == task) {
        c->n_execs--;
        exec_free(e);
    }
}

int container_wait(struct ctx *ctx, struct containers *cs, const char *id, uint32_t pid,
                   uint32_t timeout_ms, uint32_t *ret_code, struct container **ret_init,
                   struct err *err)
{
    AUTO(container_unref) struct container *c = container_get(cs, id, err);
    struct task *found = c ? find_task(c, pid, err) : NULL;
    struct ctx bounded = *ctx;

    if (!found)
        return -1;
    if (timeout_ms != UINT32_MAX)
        bounded = ctx_with_timeout(ctx, timeout_ms * UINT64_C(1000000));
    AUTO(task_unref) struct task *task = task_ref(found);
    bool is_init = task == c->init;
    c->init_waits += is_init;
    if (task_wait(&bounded, task, ret_code, err) < 0) {
        c->init_waits -= is_init;
        return -1;
    }
    if (is_init)
        *ret_init = TAKE_PTR(c);
    else
        forget_exec(c, pid, task);
    return 0;
}

void container_answered(struct container *c, bool sent)
{
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

int container_signal(struct containers *cs, const char *id, uint32_t pid, int signo,
                     struct err *err)
{
    AUTO(container_unref) struct container *c = container_get(cs, id, err);
    struct task *task = c ? find_task(c, pid, err) : NULL;

    if (!task || task_signal(task, signo, err) < 0)
        return -1;
    if (task == c->init && (signo == SIGTERM || signo == SIGKILL || signo == 0))
        c->last_signal = signo ? signo : SIGKILL;
    return 0;
}

int container_resize(struct containers *cs, const char *id, uint32_t pid, uint16_t rows,
                     uint16_t cols, struct err *err)
{
    AUTO(container_unref) struct container *c = container_get(cs, id, err);
    struct task *task = c ? find_task(c, pid, err) : NULL;

    return task ? task_resize(task, rows, cols, err) : -1;
}

int container_shutdown(struct containers *cs, const char *id, bool forced, struct err *err)
{
    AUTO(container_unref) struct container *c = container_get(cs, id, err);
    int signo = forced ? SIGKILL : SIGTERM;

    if (!c)
        return -1;
    if (task_exited(c->init) || task_signal(c->init, signo, err) < 0)
        return err_set(err, ERR_UNAVAILABLE, "container %s is not running", id);
    c->last_signal = signo;
    return 0;
}

/* --- queries --- */

int container_pids(struct containers *cs, const char *id, uint32_t **ret, size_t *ret_n,
                   struct err *err)
{
    AUTO(container_unref) struct container *c = container_get(cs, id, err);

    if (!c)
        return -1;
    cg_pids(c->cgroup, ret, ret_n);
    return 0;
}

int container_stats(struct containers *cs, const char *id, char **ret_json, struct err *err)
{
    AUTO(container_unref) struct container *c = container_get(cs, id, err);

    return c ? metrics_read(c->cgroup, ret_json, err) : -1;
}

char *container_scratch(struct containers *cs, const char *id)
{
    struct err ignored = ERR_INIT;
    AUTO(container_unref) struct container *c = container_get(cs, id, &ignored);

    return str_dup(c ? c->scratch : "");
}
