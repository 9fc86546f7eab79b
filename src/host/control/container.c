/* container.c - a container's life as clients see it. Its files and its document are made in
 * container_create.c and taken back in container_release.c. */
#include "host/control/container.h"
#include "base/bucket.h"
#include "base/json.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/str.h"
#include "host/bridge/guest.h"
#include "host/control/registry_priv.h"
#include "host/control/vm_clock.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIGNAL_MAX 64
#define STATS_QUERY "{\"PropertyTypes\":[\"Statistics\"]}"

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
const struct fsm container_fsm = { .name = "container",
                                   .states = states,
                                   .n_states = CONTAINER_STATE_COUNT,
                                   .events = events,
                                   .n_events = CONTAINER_EV_COUNT,
                                   .edges = edges,
                                   .n_edges = ARRAY_LEN(edges) };

struct container *container_new(struct registry *r, const char *id, const char *bundle)
{
    struct container *c = mem_new(struct container);

    c->refs = 1;
    c->r = r;
    c->id = str_dup(id);
    c->pod_id = str_dup(id);
    c->bundle = str_dup(bundle);
    gate_init(&c->gate, "container");
    list_init(&c->node);
    list_init(&c->execs);
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
    free(c->id);
    free(c->pod_id);
    free(c->log_name);
    free(c->log_dir);
    free(c->log_uri);
    free(c->bundle);
    json_decref(c->last_stats);
    free(c->shares);
    free(c->disks);
    free(c->devices);
    free(c->bundle_path);
    free(c->root_path);
    free(c->scratch_path);
    strv_release(&c->layers);
    free(c->netns);
    free(c->anchor_name);
    free(c);
}

/* --- queries --- */

const char *container_id(const struct container *c)
{
    return c->id;
}

const char *container_pod_id(const struct container *c)
{
    return c->pod_id;
}

enum container_state container_state(const struct container *c)
{
    return c->state;
}

struct process *container_process(struct container *c, const char *exec_id, struct err *err)
{
    bool init = !exec_id || !exec_id[0];

    if (init && c->init)
        return c->init;
    LIST_EACH (&c->execs, pos) {
        struct process *p = LIST_ENTRY(pos, struct process, node);

        if (!init && str_eq(p->exec_id, exec_id))
            return p;
    }
    if (init)
        err_set(err, ERR_NOT_FOUND, "container %s has no process yet", c->id);
    else
        err_set(err, ERR_NOT_FOUND, "container %s has no exec %.80s", c->id, exec_id);
    return NULL;
}

bool container_has_running_execs(const struct container *c)
{
    LIST_EACH (&c->execs, pos) {
        const struct process *p = LIST_ENTRY(pos, struct process, node);

        if (p->state == PROCESS_ST_RUNNING || p->starting)
            return true;
    }
    return false;
}

int container_pids(struct container *c, struct container_pid **ret, size_t *ret_n, struct err *err)
{
    struct container_pid *list = mem_zalloc((c->n_execs + 1) * sizeof(*list));
    size_t n = 0;

    (void)err;
    list[n++].pid = c->pid;
    LIST_EACH (&c->execs, pos) {
        const struct process *p = LIST_ENTRY(pos, struct process, node);

        if (p->state != PROCESS_ST_RUNNING)
            continue;
        list[n].pid = p->pid;
        snprintf(list[n++].exec_id, sizeof(list->exec_id), "%s", p->exec_id);
    }
    *ret = list;
    *ret_n = n;
    return 0;
}

/* --- start, exec, kill --- */

static int refuse(const struct container *c, const char *what, struct err *err)
{
    return err_set(err, ERR_STATE, "container %s is %s, cannot %s", c->id,
                   fsm_state_name(&container_fsm, c->state), what);
}

/* Its end is the first instruction of the container's own program. */
static int start_in_vm(struct ctx *ctx, struct container *c, struct err *err)
{
    int span = vm_span_begin(c->r->vm, "start container");
    int r = process_start(ctx, c->init, err);

    vm_span_end(c->r->vm, span);
    return r;
}

static int start_init(struct ctx *ctx, struct container *c, struct err *err)
{
    AUTO(gate_leave) struct gate *held = gate_enter(&c->gate, ctx, "container.start", err);

    if (!held)
        return -1;
    if (!c->listed || !c->init)
        return err_set(err, ERR_NOT_FOUND, "no container %s", c->id);
    if (c->state != CONTAINER_CREATED)
        return refuse(c, "start", err);
    if (container_attach_network(ctx, c, err) < 0)
        return -1;
    if (c->state != CONTAINER_CREATED) /* killed meanwhile, or its VM died */
        return refuse(c, "start", err);
    return start_in_vm(ctx, c, err);
}

/* Without the gate: many may start at once, and a stuck one holds up nobody. */
static int start_exec(struct ctx *ctx, struct container *c, const char *exec_id, struct err *err)
{
    struct process *p = container_process(c, exec_id, err);

    if (!p)
        return -1;
    if (c->state != CONTAINER_RUNNING && c->state != CONTAINER_CREATED)
        return refuse(c, "start a process in it", err);
    return process_start(ctx, p, err);
}

int container_start(struct ctx *ctx, struct container *given, const char *exec_id,
                    uint32_t *ret_pid, struct err *err)
{
    AUTO(container_unref) struct container *c = container_ref(given);
    struct ctx own = ctx_with_id(ctx, "cid", c->id);
    bool init = !exec_id || !exec_id[0];
    int r = init ? start_init(&own, c, err) : start_exec(&own, c, exec_id, err);

    if (c->r->vm)
        vm_container_started(c->r->vm, r == 0);
    if (r < 0)
        return err_wrap(err, "start %s%s%s", c->id, init ? "" : "/", init ? "" : exec_id);
    *ret_pid = c->pid;
    return 0;
}

int container_exec(struct ctx *ctx, struct container *c, const struct container_exec *e,
                   struct err *err)
{
    AUTO(json_decref) json_t *process = NULL;
    struct err none = ERR_INIT;

    (void)ctx;
    if (registry_check_id("exec id", e->exec_id, CONTAINER_EXEC_ID_MAX, err) < 0)
        return -1;
    if (container_process(c, e->exec_id, &none))
        return err_set(err, ERR_EXISTS, "container %s has an exec %s already", c->id, e->exec_id);
    if (c->state != CONTAINER_RUNNING && c->state != CONTAINER_CREATED)
        return refuse(c, "exec", err);
    if (c->n_execs >= CONTAINER_EXECS_MAX)
        return err_set(err, ERR_EXHAUSTED, "container %s has %d execs: delete some", c->id,
                       CONTAINER_EXECS_MAX);
    if (spec_process_parse(e->process_json, e->process_len, e->terminal, &process, err) < 0)
        return err_wrap(err, "exec %s in container %s", e->exec_id, c->id);

    struct process *p = process_new(c, e->exec_id, e->in, e->out, e->err, e->terminal);

    p->oci_process = TAKE_PTR(process);
    fsm_step(&process_fsm, &p->state, PROCESS_EV_CREATED);
    list_append(&c->execs, &p->node);
    c->n_execs++;
    events_push(c->r->o.events, &(struct event){ .kind = EVENT_EXEC_ADDED,
                                                 .wall_ns = loop_wall(c->r->o.loop),
                                                 .container_id = c->id,
                                                 .exec_id = p->exec_id });
    return 0;
}

static int kill_all(struct ctx *ctx, struct container *c, uint32_t signo, struct err *err)
{
    /* The end of the first process of a pid namespace ends all in it. */
    bool first_is_enough = signo == SIGKILL && c->own_pids;
    /* A guest that does not answer must not keep us from init. */
    struct ctx execs = ctx_with_timeout(ctx, PROCESS_KILL_LIMIT / 4);
    struct err none = ERR_INIT;

    if (!first_is_enough) {
        for (bool again = true; again;) { /* the list may change while we wait */
            again = false;
            LIST_EACH (&c->execs, pos) {
                struct process *p = LIST_ENTRY(pos, struct process, node);

                if (p->state != PROCESS_ST_RUNNING || p->kill_round == c->kill_round)
                    continue;
                p->kill_round = c->kill_round;
                (void)process_signal(&execs, p, signo, &none); /* it may have ended meanwhile */
                again = true;
                break;
            }
        }
    }
    if (process_signal(ctx, c->init, signo, err) == 0)
        return 0;
    if (err->code != ERR_NOT_FOUND)
        return -1;
    err_clear(err); /* ended: with all, that is what was wanted */
    return 0;
}

int container_kill(struct ctx *ctx, struct container *given, const char *exec_id, uint32_t signo,
                   bool all, struct err *err)
{
    AUTO(container_unref) struct container *c = container_ref(given);
    struct process *p = container_process(c, exec_id, err);

    if (!p)
        return -1;
    if (signo < 1 || signo > SIGNAL_MAX)
        return err_set(err, ERR_INVALID, "%u is no signal: 1 to %d", signo, SIGNAL_MAX);
    if (all && !process_is_init(p))
        return err_set(err, ERR_STATE, "all processes of a container, or exec %s: not both",
                       exec_id);
    if (p->state == PROCESS_ST_CREATED && !p->starting) {
        if (!process_is_init(p))
            return err_set(err, ERR_STATE, "exec %s of container %s was not started", exec_id,
                           c->id);
        /* What the guest made for it goes with delete. */
        process_end_created(p, 128 + signo, true);
        return 0;
    }
    if (p->state == PROCESS_ST_TERMINATED && all)
        return 0;
    if (all) {
        c->kill_round++;
        return kill_all(ctx, c, signo, err);
    }
    return process_signal(ctx, p, signo, err);
}

void container_vm_died(struct container *c, bool killed)
{
    struct process *p = c->init;

    if (!p || p->state != PROCESS_ST_CREATED || p->starting || c->state != CONTAINER_CREATED)
        return;
    process_end_created(p, killed ? 137 : 255, false);
}

/* --- while it runs --- */

static void push(struct container *c, enum event_kind kind)
{
    if (c->hidden)
        return;
    events_push(c->r->o.events, &(struct event){ .kind = kind,
                                                 .wall_ns = loop_wall(c->r->o.loop),
                                                 .container_id = c->id,
                                                 .exec_id = "" });
}

static int freeze(struct ctx *ctx, struct container *given, bool frozen, struct err *err)
{
    AUTO(container_unref) struct container *c = container_ref(given);
    const char *op = frozen ? "pause" : "resume";
    unsigned event = frozen ? CONTAINER_EV_PAUSED : CONTAINER_EV_RESUMED;
    AUTO(gate_leave) struct gate *held = gate_enter(&c->gate, ctx, "container.freeze", err);
    AUTO(vm_leave) const struct vm_parts *in = NULL;

    if (!held)
        return -1;
    if (!c->listed)
        return err_set(err, ERR_NOT_FOUND, "no container %s", c->id);
    if (fsm_check(&container_fsm, c->state, event, err) < 0 ||
        !(in = vm_enter(c->r->vm, op, err)) ||
        in->guest->ops->freeze_container(ctx, in->guest, c->id, frozen, err) < 0 ||
        fsm_check(&container_fsm, c->state, event, err) < 0) /* it may have ended meanwhile */
        return err_wrap(err, "%s container %s", op, c->id);
    fsm_step(&container_fsm, &c->state, event);
    push(c, frozen ? EVENT_PAUSED : EVENT_RESUMED);
    return 0;
}

int container_pause(struct ctx *ctx, struct container *c, struct err *err)
{
    return freeze(ctx, c, true, err);
}

int container_resume(struct ctx *ctx, struct container *c, struct err *err)
{
    return freeze(ctx, c, false, err);
}

int container_resize(struct ctx *ctx, struct container *c, const char *exec_id, uint16_t rows,
                     uint16_t cols, struct err *err)
{
    struct process *p = container_process(c, exec_id, err);

    if (!p)
        return -1;
    if (!p->terminal || p->state == PROCESS_ST_TERMINATED)
        return 0;
    p->rows = rows;
    p->cols = cols;
    if (p->state != PROCESS_ST_RUNNING)
        return 0; /* sent with the start */

    AUTO(vm_leave) const struct vm_parts *in = vm_enter(c->r->vm, "resize a terminal", err);

    return in ? in->guest->ops->resize_console(ctx, in->guest, p->container_id, p->guest_pid, rows,
                                               cols, err)
              : -1;
}

int container_close_stdin(struct container *c, const char *exec_id, struct err *err)
{
    struct process *p = container_process(c, exec_id, err);

    if (!p)
        return -1;
    p->stdin_closed = true;
    if (p->io)
        io_close_stdin(p->io);
    return 0;
}

/* --- metrics --- */

static int ask_metrics(struct ctx *ctx, struct container *c, json_t **ret, struct err *err)
{
    if (!c->in_guest)
        return err_set(err, ERR_NOT_FOUND, "container %s is not in the VM", c->id);

    AUTO(vm_leave) const struct vm_parts *in = vm_enter(c->r->vm, "read metrics", err);

    return in ? in->guest->ops->read_stats(ctx, in->guest, c->id, ret, &c->scratch_bytes, err) : -1;
}

int container_stats(struct ctx *ctx, struct container *given, json_t **ret, struct err *err)
{
    AUTO(container_unref) struct container *c = container_ref(given);
    json_t *metrics = NULL;

    if (ask_metrics(ctx, c, &metrics, err) == 0) {
        json_decref(c->last_stats);
        c->last_stats = metrics;
    } else if (c->state != CONTAINER_STOPPED || !c->last_stats) {
        return err_wrap(err, "metrics of container %s", c->id);
    } else {
        err_clear(err);
    }
    *ret = json_incref(c->last_stats);
    return 0;
}

/* --- out of memory --- */

void container_tell_oom(struct container *c)
{
    if (c->state == CONTAINER_RUNNING || c->state == CONTAINER_PAUSED) /* else it comes too late */
        push(c, EVENT_OOM);
}

static void watch_oom(struct container *c)
{
    struct ctx root = ctx_root(c->r->o.loop), ctx = ctx_with_id(&root, "cid", c->id);
    /* Each event is worth the seconds after which there may be another. */
    struct bucket rate = { .burst = CONTAINER_OOM_BURST * CONTAINER_OOM_EVERY_S, .per_s = 1 };
    struct err err = ERR_INIT;
    uint64_t untold = 0;
    bool oom = true;

    AUTO(vm_leave) const struct vm_parts *in = vm_enter(c->r->vm, "watch for OOM", &err);

    while (in && oom && in->guest->ops->wait_oom(&ctx, in->guest, c->id, &oom, &err) == 0) {
        if (oom) {
            if (bucket_try(&rate, CONTAINER_OOM_EVERY_S, loop_now(ctx.loop)))
                container_tell_oom(c);
            else
                untold++;
            (void)fiber_sleep(&ctx, CONTAINER_OOM_PAUSE, &err); /* whatever the guest says */
        }
    }
    if (untold > 0)
        log_warn(&ctx, "out of memory more often than events were published", F_U("more", untold));
}

static void oom_main(void *arg)
{
    struct container *c = arg;

    watch_oom(c);
    c->oom_watched = false;
    waitq_wake_all(&c->changed);
    container_unref(c);
}

void container_watch_oom(struct container *c)
{
    c->oom_watched = true;
    group_go(&c->r->fibers, c->r->o.loop, oom_main, container_ref(c), "oom %s", c->id);
}

void container_settle_oom(struct container *c)
{
    struct ctx root = ctx_root(c->r->o.loop), ctx = ctx_with_timeout(&root, PROCESS_OOM_LIMIT);
    struct err err = ERR_INIT;

    while (c->oom_watched && waitq_wait(&ctx, &c->changed, "the guest's word on OOM", &err) == 0)
        ;
}
