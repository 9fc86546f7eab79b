/* container_run.c - starting what runs in a container, and changing it while it does. */
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "guest/runtime/cg.h"
#include "guest/runtime/container_priv.h"
#include "guest/runtime/crun.h"
#include "guest/runtime/resources.h"
#include "guest/runtime/rewrite.h"
#include "guest/stdio/relay.h"
#include "guest/stdio/tty.h"
#include <stdlib.h>
#include <string.h>

/* --- init --- */

static int start(struct ctx *ctx, struct container *c, const struct task_stdio *io, struct err *err)
{
    int fd[3];

    if (fsm_check(&container_fsm, c->state, CONTAINER_EV_STARTED, err) < 0)
        return err_wrap(err, "container %s", c->id);
    if (c->attached)
        return err_set(err, ERR_STATE, "container %s was started before and failed", c->id);
    if (task_dial(ctx, c->table->opts.dialer, io, fd, err) < 0)
        return -1;
    if (task_exited(c->init)) { /* while we dialled: its waiters will be told */
        for (int i = 0; i < 3; i++)
            fd_close(fd[i]);
        return err_set(err, ERR_UNAVAILABLE, "container %s has exited before its start", c->id);
    }
    c->attached = true;
    task_attach(c->init, fd, io, c->table->opts.dialer);
    if (crun_start(ctx, c->table->crun, c->id, err) < 0)
        return err_wrap(err, "start container %s", c->id);
    /* A short one may have come and gone while crun was still talking. */
    if (c->state == CONTAINER_CREATED)
        fsm_step(&container_fsm, &c->state, CONTAINER_EV_STARTED);
    return 0;
}

int container_start(struct ctx *ctx, struct containers *cs, const char *id,
                    const struct task_stdio *io, uint32_t *ret_pid, struct err *err)
{
    AUTO(container_unref) struct container *c = container_get(cs, id, err);

    if (!c)
        return -1;
    AUTO(gate_leave) struct gate *held = gate_enter(&c->gate, ctx, "container.start", err);
    if (!held)
        return -1;
    if (c->terminal && io->want[2])
        return err_set(err, ERR_INVALID, "a terminal has no stderr of its own");
    if (start(ctx, c, io, err) < 0)
        return -1;
    *ret_pid = task_pid(c->init);
    log_info(ctx, "container started", F_STR("cid", id), F_U("pid", *ret_pid));
    return 0;
}

/* --- exec --- */

/* The document that crun gets. Caller frees. */
static int make_process(struct ctx *ctx, const struct container *c, const json_t *given,
                        char **ret_text, bool *ret_terminal, struct err *err)
{
    AUTO(json_decref) json_t *process = NULL;
    uint32_t uid = 0, gid = 0;
    struct jsw w;
    size_t len;

    jsw_init(&w, JSW_PLAIN);
    jsw_value(&w, NULL, given);
    AUTO_FREE char *text = jsw_take(&w, &len);
    *ret_terminal = json_is_true(js_get(given, "terminal"));
    if (spec_process_parse(text, len, *ret_terminal, &process, err) < 0)
        return -1;
    AUTO_FREE char *user = str_dup(rewrite_username(process));
    rewrite_exec(process, c->rlimits, c->user);
    if (rootfs_prepare(ctx, c->root, user, NULL, &uid, &gid, err) < 0)
        return -1;
    if (user[0])
        rewrite_set_user(process, uid, gid);
    jsw_init(&w, JSW_PLAIN);
    jsw_value(&w, NULL, process);
    *ret_text = jsw_take(&w, NULL);
    return 0;
}

static void exec_done(void *arg)
{
    struct container *c = arg;

    waitq_wake_all(&c->table->changed);
    container_unref(c);
}

/* Room for one more: the oldest whose end nobody asked for goes. */
static int make_room(struct container *c, struct err *err)
{
    if (c->n_execs < CONTAINER_EXECS_MAX)
        return 0;
    LIST_EACH (&c->execs, pos) {
        struct exec *e = LIST_ENTRY(pos, struct exec, in_container);
        if (!task_done(e->task, NULL))
            continue;
        list_remove(&e->in_container);
        task_unref(e->task);
        free(e);
        c->n_execs--;
        return 0;
    }
    return err_set(err, ERR_EXHAUSTED, "%d processes run in container %s already",
                   CONTAINER_EXECS_MAX, c->id);
}

/* Streams of the host in fd are taken on success. */
static int run_exec(struct ctx *ctx, struct container *c, const char *process, bool terminal,
                    const struct task_stdio *io, int fd[3], struct task **ret, struct err *err)
{
    AUTO(relay_free) struct relay *relay = NULL;
    struct crun_start s = {
        .id = c->id,
        .process = process,
        .terminal = terminal,
        .fd = { -1, -1, -1 },
    };
    int master = -1;
    pid_t pid;

    if (!terminal && relay_open(ctx->loop, &relay, s.fd, err) < 0)
        return -1;
    int r = crun_start_process(ctx, c->table->crun, &s, &pid, &master, err);
    for (int i = 0; i < 3; i++)
        fd_close(s.fd[i]);
    if (r < 0)
        return -1;
    const struct task_opts opts = {
        .loop = ctx->loop,
        .pid = pid,
        .relay = TAKE_PTR(relay),
        .tty = terminal ? tty_adopt(ctx->loop, master) : NULL,
        .on_done = exec_done,
        .arg = container_ref(c),
    };
    if (task_adopt(&opts, ret, err) < 0) {
        container_unref(c);
        return -1;
    }
    task_attach(*ret, fd, io, NULL);
    return 0;
}

static int exec_in(struct ctx *ctx, struct container *c, const json_t *given,
                   const struct task_stdio *io, uint32_t *ret_pid, struct err *err)
{
    AUTO_FREE char *process = NULL;
    struct task *task;
    bool terminal;
    int fd[3];

    if (c->state != CONTAINER_CREATED && c->state != CONTAINER_RUNNING)
        return err_set(err, c->state == CONTAINER_STOPPED ? ERR_UNAVAILABLE : ERR_STATE,
                       "container %s is %s: nothing can be run in it", c->id,
                       fsm_state_name(&container_fsm, c->state));
    if (make_room(c, err) < 0 || make_process(ctx, c, given, &process, &terminal, err) < 0)
        return -1;
    if (terminal && io->want[2])
        return err_set(err, ERR_INVALID, "a terminal has no stderr of its own");
    if (task_dial(ctx, c->table->opts.dialer, io, fd, err) < 0)
        return -1;
    if (run_exec(ctx, c, process, terminal, io, fd, &task, err) < 0) {
        for (int i = 0; i < 3; i++)
            fd_close(fd[i]);
        return -1;
    }
    struct exec *e = mem_new(struct exec);
    e->task = task;
    list_append(&c->execs, &e->in_container);
    c->n_execs++;
    *ret_pid = task_pid(task);
    return 0;
}

int container_exec(struct ctx *ctx, struct containers *cs, const char *id, const json_t *process,
                   const struct task_stdio *io, uint32_t *ret_pid, struct err *err)
{
    AUTO(container_unref) struct container *c = container_get(cs, id, err);

    if (!c)
        return -1;
    if (exec_in(ctx, c, process, io, ret_pid, err) < 0)
        return err_wrap(err, "exec in container %s", id);
    return 0;
}

/* --- changes --- */

int container_update(struct ctx *ctx, struct containers *cs, const char *id,
                     const json_t *resources, struct err *err)
{
    AUTO(container_unref) struct container *c = container_get(cs, id, err);
    struct jsw w;

    if (!c || resources_check(resources, err) < 0)
        return -1;
    AUTO(gate_leave) struct gate *held = gate_enter(&c->gate, ctx, "container.update", err);
    if (!held)
        return -1;
    if (c->state == CONTAINER_STOPPED)
        return err_set(err, ERR_UNAVAILABLE, "container %s is not running", id);
    jsw_init(&w, JSW_PLAIN);
    jsw_value(&w, NULL, resources);
    AUTO_FREE char *text = jsw_take(&w, NULL);
    /* A pod's first container speaks for the pod. */
    if (c->kind == SPEC_SANDBOX && cg_update_pod(c->pod->cgroup, resources, err) < 0)
        return err_wrap(err, "update container %s", id);
    if (crun_update(ctx, cs->crun, id, text, err) < 0)
        return err_wrap(err, "update container %s", id);
    return 0;
}

int container_freeze(struct ctx *ctx, struct containers *cs, const char *id, bool frozen,
                     struct err *err)
{
    AUTO(container_unref) struct container *c = container_get(cs, id, err);
    unsigned event = frozen ? CONTAINER_EV_FROZEN : CONTAINER_EV_THAWED;

    if (!c)
        return -1;
    AUTO(gate_leave) struct gate *held = gate_enter(&c->gate, ctx, "container.freeze", err);
    if (!held)
        return -1;
    if (c->state == (frozen ? CONTAINER_PAUSED : CONTAINER_RUNNING))
        return 0;
    if (fsm_check(&container_fsm, c->state, event, err) < 0)
        return err_wrap(err, "container %s", id);
    if (cg_freeze(ctx, c->cgroup, frozen, err) < 0)
        return err_wrap(err, "container %s", id);
    if (fsm_check(&container_fsm, c->state, event, err) < 0) /* it may have been killed */
        return err_wrap(err, "container %s", id);
    fsm_step(&container_fsm, &c->state, event);
    return 0;
}
