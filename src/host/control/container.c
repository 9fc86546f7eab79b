/* container.c - a container's life as clients see it. Its files and its document are made in
 * container_create.c and released in container_release.c; how it ends is in container_end.c. */
#include "host/control/container.h"
#include "base/exit_code.h"
#include "base/json.h"
#include "base/loop.h"
#include "host/bridge/guest.h"
#include "host/control/container_priv.h"
#include "host/control/events.h"
#include "host/device/network.h"
#include "host/device/plan9.h"
#include "host/device/vpci.h"
#include "oci/hooks.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const states[] = { "NotCreated", "Created", "Running",
                                      "Paused",     "Stopped", "Invalid" };
static const char *const events[] = {
    "create", "fail to create", "start", "pause", "resume", "exit"
};
static const struct fsm_edge edges[] = {
    { CONTAINER_NOT_CREATED, CONTAINER_EV_CREATED, CONTAINER_CREATED },
    { CONTAINER_NOT_CREATED, CONTAINER_EV_CREATE_FAILED, CONTAINER_INVALID },
    { CONTAINER_CREATED, CONTAINER_EV_STARTED, CONTAINER_RUNNING },
    { CONTAINER_CREATED, CONTAINER_EV_EXITED, CONTAINER_STOPPED }, /* killed, or the VM died */
    { CONTAINER_RUNNING, CONTAINER_EV_PAUSED, CONTAINER_PAUSED },
    { CONTAINER_RUNNING, CONTAINER_EV_EXITED, CONTAINER_STOPPED },
    { CONTAINER_PAUSED, CONTAINER_EV_RESUMED, CONTAINER_RUNNING },
    { CONTAINER_PAUSED, CONTAINER_EV_EXITED, CONTAINER_STOPPED },
};
FSM_DEFINE(container_fsm, "container", states, CONTAINER_STATE_COUNT, events, CONTAINER_EV_COUNT,
           edges);

struct container *container_new(struct registry *r)
{
    struct container *c = mem_new(struct container);

    c->refs = 1;
    c->r = r;
    c->p.listed = true;
    gate_init(&c->gate, "container");
    waitq_init(&c->changed);
    return c;
}

struct container *container_ref(struct container *c)
{
    c->refs++;
    return c;
}

void container_unref(struct container *c)
{
    if (!c || --c->refs > 0)
        return;
    pod_unref(c->p.pod);
    free(c->p.id);
    free(c->p.guest_id);
    free(c->log_name);
    free(c->log_dir);
    free(c->log_uri);
    free(c->p.bundle);
    free(c->execs);
    free(c->last_stats);
    free(c->last_list);
    free(c->holdings);
    free(c->bundle_path);
    free(c->root_path);
    free(c->scratch_path);
    strv_release(&c->layers);
    strv_release(&c->unbuilt);
    free(c->p.anchor_name);
    hooks_free(c->hooks);
    free(c);
}

/* --- queries --- */

const char *container_id(const struct container *c)
{
    return c->p.id;
}

struct pod *container_pod(const struct container *c)
{
    return c->p.pod;
}

enum container_state container_state(const struct container *c)
{
    return c->p.state;
}

const struct container_parts *container_parts(const struct container *c)
{
    return &c->p;
}

bool container_has_ended(const struct container *c)
{
    return c->p.state == CONTAINER_STOPPED || c->p.state == CONTAINER_INVALID;
}

void container_forsake(struct container *c)
{
    c->p.forsaken = true;
}

struct process *container_process(struct container *c, const char *exec_id, struct err *err)
{
    bool init = !exec_id || !exec_id[0];

    if (init && c->p.init)
        return c->p.init;
    for (size_t i = 0; !init && i < c->n_execs; i++)
        if (str_eq(process_exec_id(c->execs[i]), exec_id))
            return c->execs[i];
    if (init)
        err_because(err, REASON_NOT_FOUND, ERR_NOT_FOUND, "container %s has no process yet",
                    c->p.id);
    else
        err_because(err, REASON_NOT_FOUND, ERR_NOT_FOUND, "container %s has no exec %.80s", c->p.id,
                    exec_id);
    return NULL;
}

void container_each(const struct container *c, void (*fn)(void *arg, const struct process_view *v),
                    void *arg)
{
    struct process_view v;

    if (c->p.init) {
        process_view(c->p.init, &v);
        fn(arg, &v);
    }
    for (size_t i = 0; i < c->n_execs; i++) {
        process_view(c->execs[i], &v);
        fn(arg, &v);
    }
}

void container_describe(const struct container *c, struct jsw *w)
{
    static const char *const writes[] = {
        [ROOT_DISCARDED] = "discarded", [ROOT_KEPT] = "kept", [ROOT_READ_ONLY] = "read-only"
    };
    const struct vm_parts *vm = c->p.pod->vm ? vm_parts(c->p.pod->vm) : NULL;

    jsw_obj(w, NULL);
    jsw_str(w, "id", c->p.id);
    jsw_str(w, "guest_id", c->p.guest_id);
    jsw_str(w, "pod", c->p.pod->id);
    jsw_str(w, "bundle", c->p.bundle);
    jsw_str(w, "name", c->log_name);
    jsw_str(w, "log_directory", c->log_dir);
    jsw_str(w, "stdout", c->log_uri);
    jsw_u64(w, "pid", c->p.pid);
    if (c == c->p.pod->holder)
        pod_describe_network(c->p.pod, w);
    if (c->p.init)
        process_describe(c->p.init, w);
    else
        jsw_str(w, "state", "creating");
    jsw_arr(w, "execs");
    for (size_t i = 0; i < c->n_execs; i++) {
        jsw_obj(w, NULL);
        jsw_str(w, "id", process_exec_id(c->execs[i]));
        process_describe(c->execs[i], w);
        jsw_end_obj(w);
    }
    jsw_end_arr(w);
    /* What it holds of the VM: shares by their names, devices by their addresses. */
    jsw_arr(w, "shares");
    for (size_t i = 0; vm && vm->plan9 && i < c->n_holdings; i++)
        if (c->holdings[i].kind == HOLD_SHARE)
            jsw_str(w, NULL, plan9_name(vm->plan9, c->holdings[i].id));
    jsw_end_arr(w);
    jsw_arr(w, "devices");
    for (size_t i = 0; vm && vm->vpci && i < c->n_holdings; i++)
        if (c->holdings[i].kind == HOLD_DEVICE)
            jsw_str(w, NULL, vpci_address(vm->vpci, c->holdings[i].id));
    jsw_end_arr(w);
    jsw_str(w, "rootfs", c->p.init ? writes[c->root_writes] : NULL);
    if (c->scratch_bytes)
        jsw_u64(w, "scratch_bytes", c->scratch_bytes);
    else
        jsw_null(w, "scratch_bytes");
    jsw_end_obj(w);
}

/* --- start, exec, kill --- */

static int refuse(const struct container *c, const char *what, struct err *err)
{
    return err_because(err, REASON_WRONG_STATE, ERR_STATE, "container %s is %s, cannot %s", c->p.id,
                       fsm_state_name(&container_fsm, c->p.state), what);
}

static int start_init(struct ctx *ctx, struct container *c, struct err *err)
{
    AUTO(gate_leave) struct gate *held = gate_enter(&c->gate, ctx, "container.start", err);

    if (!held)
        return -1;
    if (!c->p.listed || !c->p.init)
        return err_because(err, REASON_NOT_FOUND, ERR_NOT_FOUND, "no container %s", c->p.id);
    if (c->p.state != CONTAINER_CREATED)
        return refuse(c, "start", err);
    if (c == c->p.pod->holder && pod_attach_network(ctx, c->p.pod, err) < 0)
        return -1;
    if (c->p.state != CONTAINER_CREATED) /* killed meanwhile, or its VM died */
        return refuse(c, "start", err);
    if (c->ending)
        return err_because(err, REASON_WRONG_STATE, ERR_STATE, "container %s is being killed",
                           c->p.id);

    /* Its end is the first instruction of the container's own program. */
    SPAN(step, ctx, vm_timeline(c->p.pod->vm), TRACK_HOST, "start container", err);

    if (process_start(step.ctx, c->p.init, err) < 0)
        return -1;
    container_run_poststart_hooks(step.ctx, c);
    if (c->unbuilt.n > 0)
        c->r->o.want_layers(c->r->o.arg, NULL, &c->unbuilt);
    strv_release(&c->unbuilt);
    return 0;
}

/* Without the gate: many may start at once, and a stuck one does not delay the others. */
static int start_exec(struct ctx *ctx, struct container *c, const char *exec_id, struct err *err)
{
    struct process *p = container_process(c, exec_id, err);

    if (!p)
        return -1;
    if (c->p.state != CONTAINER_RUNNING && c->p.state != CONTAINER_CREATED)
        return refuse(c, "start a process in it", err);
    if (c->ending)
        return err_because(err, REASON_WRONG_STATE, ERR_STATE, "container %s is being killed",
                           c->p.id);
    return process_start(ctx, p, err);
}

int container_start(struct ctx *ctx, struct container *given, const char *exec_id,
                    uint32_t *ret_pid, struct err *err)
{
    AUTO(container_unref) struct container *c = container_ref(given);
    struct ctx own = ctx_with_id(ctx, LK_CID, c->p.id);
    bool init = !exec_id || !exec_id[0];
    int r = init ? start_init(&own, c, err) : start_exec(&own, c, exec_id, err);

    if (c->p.pod->vm)
        vm_container_started(c->p.pod->vm, r == 0);
    if (r < 0)
        return err_wrap(err, "start %s%s%s", c->p.id, init ? "" : "/", init ? "" : exec_id);
    *ret_pid = c->p.pid;
    return 0;
}

int container_exec(struct container *c, const struct container_exec *e, struct err *err)
{
    AUTO(json_decref) json_t *process = NULL;
    struct err none = ERR_INIT;
    struct process *p;

    if (registry_check_id("exec id", e->exec_id, CONTAINER_EXEC_ID_MAX, err) < 0)
        return -1;
    if (container_process(c, e->exec_id, &none))
        return err_because(err, REASON_ALREADY_EXISTS, ERR_EXISTS,
                           "container %s has an exec %s already", c->p.id, e->exec_id);
    if (c->p.state != CONTAINER_RUNNING && c->p.state != CONTAINER_CREATED)
        return refuse(c, "exec", err);
    if (c->n_execs >= CONTAINER_EXECS_MAX)
        return err_set(err, ERR_EXHAUSTED,
                       "too many execs of container %s: at most %d; delete some", c->p.id,
                       CONTAINER_EXECS_MAX);
    if (spec_process_parse(e->process_json, e->process_len, e->stdio.terminal, &process, err) < 0)
        return err_wrap_because(err, REASON_INVALID_EXEC, "exec %s in container %s", e->exec_id,
                                c->p.id);
    p = process_new(c, e->exec_id, &e->stdio, TAKE_PTR(process));
    process_created(p);
    c->execs = mem_grow(c->execs, c->n_execs, &c->execs_cap, sizeof(struct process *));
    c->execs[c->n_execs++] = p;
    events_push(c->r->o.events, &(struct event){ .kind = EVENT_EXEC_ADDED,
                                                 .wall_ns = loop_wall(c->r->o.loop),
                                                 .container_id = c->p.id,
                                                 .exec_id = e->exec_id });
    return 0;
}

/* Those that are there now: one that is started later finds its container dying. */
static void signal_execs(struct ctx *ctx, struct container *c, uint32_t signo)
{
    /* A guest that does not answer must not keep us from init. */
    struct ctx limited = ctx_with_timeout(ctx, CONTAINER_EXECS_KILL_LIMIT);
    size_t n = c->n_execs;
    AUTO_FREE struct process **execs = mem_zalloc((n + 1) * sizeof(struct process *));
    struct err none = ERR_INIT;

    for (size_t i = 0; i < n; i++)
        execs[i] = process_ref(c->execs[i]);
    for (size_t i = 0; i < n; i++) {
        if (process_is_alive(execs[i]))
            (void)process_signal(&limited, execs[i], signo, &none); /* it may have ended */
        process_unref(execs[i]);
    }
}

/* Created and not started, so without a watcher. What the guest made for it goes with delete. */
static bool ends_unstarted(struct container *c, uint32_t signo)
{
    if (process_state(c->p.init) != PROCESS_ST_CREATED || process_is_starting(c->p.init))
        return false;
    container_end_created(c, EXIT_BY_SIGNAL(signo), true);
    return true;
}

int container_kill_alone(struct ctx *ctx, struct container *given, uint32_t signo, struct err *err)
{
    AUTO(container_unref) struct container *c = container_ref(given);
    AUTO(process_unref) struct process *init = NULL;

    if (!c->p.init || ends_unstarted(c, signo) || process_state(c->p.init) == PROCESS_ST_TERMINATED)
        return 0;
    init = process_ref(c->p.init);
    /* The end of the first process of a pid namespace ends all in it. */
    if (signo != SIGKILL || !c->own_pids)
        signal_execs(ctx, c, signo);
    if (process_signal(ctx, init, signo, err) == 0)
        return 0;
    if (err->code != ERR_NOT_FOUND)
        return -1;
    err_clear(err); /* ended: with all, that is what was wanted */
    return 0;
}

int container_kill(struct ctx *ctx, struct container *c, const char *exec_id, uint32_t signo,
                   bool all, struct err *err)
{
    struct process *p = container_process(c, exec_id, err);

    if (!p)
        return -1;
    if (signo < 1 || signo > PROCESS_SIGNAL_MAX)
        return err_because(err, REASON_INVALID_REQUEST, ERR_INVALID,
                           "invalid signal %u for container %s: must be 1–%d", signo, c->p.id,
                           PROCESS_SIGNAL_MAX);
    if (all && !process_is_init(p))
        return err_because(err, REASON_INVALID_REQUEST, ERR_STATE,
                           "all processes of a container, or exec %s: not both", exec_id);
    if (all)
        return c == c->p.pod->holder && pod_other(c->p.pod, c, false)
                   ? pod_kill(ctx, c->p.pod, signo, err)
                   : container_kill_alone(ctx, c, signo, err);
    if (p == c->p.init && ends_unstarted(c, signo))
        return 0;
    if (process_state(p) == PROCESS_ST_CREATED && !process_is_starting(p))
        return err_because(err, REASON_WRONG_STATE, ERR_STATE,
                           "exec %s of container %s was not started", exec_id, c->p.id);
    return process_signal(ctx, p, signo, err);
}

/* --- while it runs --- */

void container_push(struct container *c, unsigned kind)
{
    if (c->p.hidden)
        return;
    events_push(c->r->o.events, &(struct event){ .kind = kind,
                                                 .wall_ns = loop_wall(c->r->o.loop),
                                                 .container_id = c->p.id,
                                                 .exec_id = "" });
}

int container_freeze(struct ctx *ctx, struct container *given, bool frozen, struct err *err)
{
    AUTO(container_unref) struct container *c = container_ref(given);
    const char *op = frozen ? "pause" : "resume";
    unsigned event = frozen ? CONTAINER_EV_PAUSED : CONTAINER_EV_RESUMED;
    AUTO(gate_leave) struct gate *held = gate_enter(&c->gate, ctx, "container.freeze", err);
    AUTO(vm_leave) const struct vm_parts *in = NULL;

    if (!held)
        return -1;
    if (!c->p.listed)
        return err_because(err, REASON_NOT_FOUND, ERR_NOT_FOUND, "no container %s", c->p.id);
    if (fsm_check(&container_fsm, c->p.state, event, err) < 0 ||
        !(in = vm_enter(c->p.pod->vm, op, err)) ||
        in->guest->ops->freeze_container(ctx, in->guest, c->p.guest_id, frozen, err) < 0 ||
        fsm_check(&container_fsm, c->p.state, event, err) < 0) /* it may have ended meanwhile */
        return err_wrap(err, "%s container %s", op, c->p.id);
    fsm_step(&container_fsm, &c->p.state, event);
    container_push(c, frozen ? EVENT_PAUSED : EVENT_RESUMED);
    return 0;
}

/* --- metrics --- */

static int ask_metrics(struct ctx *ctx, struct container *c, json_t **ret, uint64_t *ret_scratch,
                       struct err *err)
{
    if (!c->p.in_guest)
        return err_because(err, REASON_NOT_FOUND, ERR_NOT_FOUND, "container %s is not in the VM",
                           c->p.id);

    AUTO(vm_leave) const struct vm_parts *in = vm_enter(c->p.pod->vm, "read metrics", err);

    return in ? in->guest->ops->read_stats(ctx, in->guest, c->p.guest_id, ret, ret_scratch, err)
              : -1;
}

int container_stats(struct ctx *ctx, struct container *given, json_t **ret, struct err *err)
{
    AUTO(container_unref) struct container *c = container_ref(given);

    if (ask_metrics(ctx, c, ret, NULL, err) == 0) {
        free(c->last_stats);
        c->last_stats = js_text(*ret, 0);
        return 0;
    }
    if (c->p.state != CONTAINER_STOPPED || !c->last_stats)
        return err_wrap(err, "metrics of container %s", c->p.id);
    err_clear(err);
    return js_parse(c->last_stats, strlen(c->last_stats), SIZE_MAX, ret, err);
}

void container_measure(struct ctx *ctx, struct container *given)
{
    AUTO(container_unref) struct container *c = container_ref(given);
    AUTO(json_decref) json_t *unused = NULL;
    struct err ignored = ERR_INIT; /* the number stays as it was known */

    (void)ask_metrics(ctx, c, &unused, &c->scratch_bytes, &ignored);
}
