/* container_run.c - starting what runs in a container, and changing it while it does. */
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "guest/runtime/cgroup.h"
#include "guest/runtime/container_priv.h"
#include "guest/runtime/crun.h"
#include "guest/runtime/resources.h"
#include "guest/runtime/rewrite.h"
#include "guest/stdio/dial.h"
#include "guest/stdio/relay.h"
#include "guest/stdio/tty.h"
#include <stdlib.h>
#include <string.h>

int container_run(struct ctx *ctx, struct container *c, const char *process, bool terminal,
                  void (*on_exit)(void *arg), void (*on_done)(void *arg), struct process **ret,
                  struct err *err)
{
    AUTO(stdio_fds_release) struct stdio_fds ends = STDIO_FDS_NONE;
    AUTO(relay_free) struct relay *relay = NULL;
    struct crun *crun = containers_crun(c->table, err);
    AUTO_FD int master = -1;
    pid_t pid;

    if (!crun || (!terminal && relay_open(ctx->loop, &relay, &ends, err) < 0))
        return -1;
    const struct crun_start start = {
        .id = c->id,
        .bundle = c->bundle,
        .process = process,
        .terminal = terminal,
        .fds = ends,
    };
    if (crun_start_process(ctx, crun, &start, &pid, &master, err) < 0)
        return -1;
    const struct process_opts opts = {
        .loop = ctx->loop,
        .pid = pid,
        .relay = TAKE_PTR(relay),
        .tty = terminal ? tty_adopt(ctx->loop, TAKE_FD(master)) : NULL,
        .on_exit = on_exit,
        .on_done = on_done,
        .arg = container_ref(c),
    };
    if (process_adopt(&opts, ret, err) == 0)
        return 0;
    container_unref(c);
    return -1;
}

/* --- init --- */

static int start(struct ctx *ctx, struct container *c, const struct stdio_ports *io,
                 struct err *err)
{
    AUTO(stdio_fds_release) struct stdio_fds fds = STDIO_FDS_NONE;

    if (fsm_check(&container_fsm, c->state, CONTAINER_EV_STARTED, err) < 0)
        return err_wrap(err, "container %s", c->id);
    if (c->attached)
        return err_set(err, ERR_STATE, "container %s was started before and failed", c->id);
    if (dialer_dial_stdio(ctx, c->table->opts.dialer, io, &fds, err) < 0)
        return -1;
    if (process_exited(c->init)) /* while we dialled: its waiters learn of it */
        return err_set(err, ERR_UNAVAILABLE, "container %s has exited before its start", c->id);
    c->attached = true;
    process_attach(c->init, &fds, io, c->table->opts.dialer);
    if (crun_start(ctx, c->table->crun, c->id, err) < 0)
        return err_wrap(err, "start container %s", c->id);
    /* A short one may have come and gone while crun was still talking. */
    if (c->state == CONTAINER_CREATED)
        fsm_step(&container_fsm, &c->state, CONTAINER_EV_STARTED);
    return 0;
}

int container_start(struct ctx *ctx, struct container *c, const struct stdio_ports *io,
                    uint32_t *ret_pid, struct err *err)
{
    AUTO(gate_leave) struct gate *held = gate_enter(&c->gate, ctx, "container.start", err);

    if (!held)
        return -1;
    if (c->terminal && io->want[2])
        return err_set(err, ERR_INVALID, "a terminal has no stderr of its own");
    if (start(ctx, c, io, err) < 0)
        return -1;
    *ret_pid = process_pid(c->init);
    log_info(ctx, "container started", F_STR("cid", c->id), F_U("pid", *ret_pid));
    return 0;
}

/* --- exec --- */

/* The document that crun gets. Caller frees. */
static int make_process(struct ctx *ctx, const struct container *c, json_t *process,
                        char **ret_text, struct err *err)
{
    uint32_t uid = 0, gid = 0;

    if (spec_process_check(process, err) < 0)
        return -1;
    AUTO_FREE char *user = str_dup(rewrite_username(process));
    rewrite_exec(process, c->rlimits, c->user);
    if (rootfs_prepare(ctx, c->root, user, NULL, &uid, &gid, err) < 0)
        return -1;
    if (user[0])
        rewrite_set_user(process, uid, gid);
    *ret_text = js_text(process, 0);
    return 0;
}

static void exec_done(void *arg)
{
    struct container *c = arg;

    waitq_wake_all(&c->table->changed);
    container_unref(c);
}

static int run_in(struct ctx *ctx, struct container *c, json_t *process,
                  const struct stdio_ports *io, uint32_t *ret_pid, struct err *err)
{
    AUTO(stdio_fds_release) struct stdio_fds fds = STDIO_FDS_NONE;
    AUTO_FREE char *text = NULL;
    struct process *p;
    bool terminal = json_is_true(js_get(process, "terminal"));

    if (c->state != CONTAINER_CREATED && c->state != CONTAINER_RUNNING)
        return err_set(err, c->state == CONTAINER_STOPPED ? ERR_UNAVAILABLE : ERR_STATE,
                       "container %s is %s: nothing can be run in it", c->id,
                       fsm_state_name(&container_fsm, c->state));
    if (processes_make_room(&c->execs, CONTAINER_EXECS_MAX, err) < 0 ||
        make_process(ctx, c, process, &text, err) < 0)
        return -1;
    if (terminal && io->want[2])
        return err_set(err, ERR_INVALID, "a terminal has no stderr of its own");
    if (dialer_dial_stdio(ctx, c->table->opts.dialer, io, &fds, err) < 0 ||
        container_run(ctx, c, text, terminal, NULL, exec_done, &p, err) < 0)
        return -1;
    process_attach(p, &fds, io, NULL);
    processes_add(&c->execs, p);
    *ret_pid = process_pid(p);
    return 0;
}

int container_exec(struct ctx *ctx, struct container *c, json_t *process,
                   const struct stdio_ports *io, uint32_t *ret_pid, struct err *err)
{
    if (run_in(ctx, c, process, io, ret_pid, err) < 0)
        return err_wrap(err, "exec in container %s", c->id);
    return 0;
}

/* --- changes --- */

int container_update(struct ctx *ctx, struct container *c, const json_t *resources, struct err *err)
{
    if (resources_check(resources, err) < 0)
        return -1;
    AUTO(gate_leave) struct gate *held = gate_enter(&c->gate, ctx, "container.update", err);
    if (!held)
        return -1;
    if (c->state == CONTAINER_STOPPED)
        return err_set(err, ERR_UNAVAILABLE, "container %s is not running", c->id);
    AUTO_FREE char *text = js_text(resources, 0);
    /* A pod's first container speaks for the pod. */
    if ((c->kind == SPEC_SANDBOX && cgroup_update_pod(c->pod->cgroup, resources, err) < 0) ||
        crun_update(ctx, c->table->crun, c->id, text, err) < 0)
        return err_wrap(err, "update container %s", c->id);
    return 0;
}

static int freeze(struct ctx *ctx, struct container *c, bool frozen, struct err *err)
{
    unsigned event = frozen ? CONTAINER_EV_FROZEN : CONTAINER_EV_THAWED;

    if (c->state == (frozen ? CONTAINER_PAUSED : CONTAINER_RUNNING))
        return 0;
    if (fsm_check(&container_fsm, c->state, event, err) < 0 ||
        cgroup_freeze(ctx, c->cgroup, frozen, err) < 0 ||
        fsm_check(&container_fsm, c->state, event, err) < 0) /* it may have been killed */
        return -1;
    fsm_step(&container_fsm, &c->state, event);
    return 0;
}

int container_freeze(struct ctx *ctx, struct container *c, bool frozen, struct err *err)
{
    AUTO(gate_leave) struct gate *held = gate_enter(&c->gate, ctx, "container.freeze", err);

    if (!held)
        return -1;
    return freeze(ctx, c, frozen, err) < 0 ? err_wrap(err, "container %s", c->id) : 0;
}
