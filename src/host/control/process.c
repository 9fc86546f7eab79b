/* process.c - one process of a container, init or exec: from its registration to its exit. */
#include "base/log.h"
#include "base/loop.h"
#include "base/str.h"
#include "base/stream.h"
#include "host/bridge/guest.h"
#include "host/control/registry_priv.h"
#include "host/control/vm.h"
#include <signal.h>
#include <stdlib.h>

#define EXIT_KILLED 137u /* SIGKILL, in the shell's way */
#define EXIT_LOST 255u   /* nobody knows how it would have ended */
#define EXIT_NOT_STARTED 1u
/* From a SIGKILL that the guest took to the news of the end: more than all the limits on its way,
 * for output, execs and OOM. */
#define KILLED_LIMIT (60 * NS_PER_S)

static const char *const states[] = { "NotCreated", "Created", "Running", "Terminated" };
static const char *const events[] = { "created", "started", "ended" };
static const struct fsm_edge edges[] = {
    { PROCESS_ST_NOT_CREATED, PROCESS_EV_CREATED, PROCESS_ST_CREATED },
    { PROCESS_ST_NOT_CREATED, PROCESS_EV_ENDED, PROCESS_ST_TERMINATED },
    { PROCESS_ST_CREATED, PROCESS_EV_STARTED, PROCESS_ST_RUNNING },
    { PROCESS_ST_CREATED, PROCESS_EV_ENDED, PROCESS_ST_TERMINATED },
    { PROCESS_ST_RUNNING, PROCESS_EV_ENDED, PROCESS_ST_TERMINATED },
};
const struct fsm process_fsm = { .name = "process",
                                 .states = states,
                                 .n_states = PROCESS_ST_COUNT,
                                 .events = events,
                                 .n_events = PROCESS_EV_COUNT,
                                 .edges = edges,
                                 .n_edges = ARRAY_LEN(edges) };

struct process *process_new(struct container *c, const char *exec_id, const char *in,
                            const char *out, const char *err, bool terminal)
{
    struct process *p = mem_new(struct process);

    p->refs = 1; /* the container's */
    p->c = c;
    p->r = c->r;
    p->container_id = str_dup(c->id);
    p->bundle = str_dup(c->bundle);
    p->exec_id = str_dup(exec_id);
    p->in = str_dup(in ? in : "");
    p->out = str_dup(out ? out : "");
    p->err = str_dup(err ? err : "");
    p->terminal = terminal;
    p->hidden = c->hidden;
    p->pid = c->pid;
    list_init(&p->node);
    latch_init(&p->exited);
    return p;
}

static struct process *process_ref(struct process *p)
{
    p->refs++;
    return p;
}

/* What it lost is the sandbox's to tell. */
static void drop_io(struct process *p)
{
    if (!p->io)
        return;
    io_close(p->io);
    p->r->lost_bytes += io_lost_bytes(p->io);
    io_free(TAKE_PTR(p->io));
}

void process_unref(struct process *p)
{
    if (!p || --p->refs > 0)
        return;
    free(p->container_id);
    free(p->bundle);
    free(p->exec_id);
    free(p->in);
    free(p->out);
    free(p->err);
    json_decref(p->oci_process);
    drop_io(p);
    free(p);
}

void process_forget(struct process *p)
{
    struct container *c = p->c;

    if (!c)
        return;
    p->c = NULL;
    p->gone = true;
    if (!p->draining) /* else the last reference does it */
        drop_io(p);
    if (c->init == p) {
        c->init = NULL;
    } else {
        list_remove(&p->node);
        c->n_execs--;
    }
    waitq_wake_all(&c->changed);
    latch_set(&p->exited);
    process_unref(p);
}

bool process_is_init(const struct process *p)
{
    return p->exec_id[0] == '\0';
}

int process_open_io(struct ctx *ctx, struct process *p, struct err *err)
{
    const struct io_spec spec = { .in = p->in,
                                  .out = p->out,
                                  .err = p->err,
                                  .terminal = p->terminal,
                                  .container_id = p->container_id,
                                  .ns = p->r->ns,
                                  .ledger = p->r->vm ? vm_parts(p->r->vm)->ledger : NULL,
                                  .drivers = &p->r->drivers };

    if (io_open(ctx, p->r->o.loop, &spec, &p->io, err) < 0)
        return err_wrap(err, "stdio of %s%s%s", p->container_id, p->exec_id[0] ? "/" : "",
                        p->exec_id);
    if (p->stdin_closed)
        io_close_stdin(p->io);
    return 0;
}

/* --- the end --- */

void process_end(struct process *p, uint32_t status, bool tell)
{
    struct container *c = p->c;

    if (p->state == PROCESS_ST_TERMINATED)
        return;
    fsm_step(&process_fsm, &p->state, PROCESS_EV_ENDED);
    p->exit_status = status;
    p->exited_wall_ns = loop_wall(p->r->o.loop);
    if (c && process_is_init(p)) {
        if (fsm_check(&container_fsm, c->state, CONTAINER_EV_EXITED, &(struct err)ERR_INIT) == 0)
            fsm_step(&container_fsm, &c->state, CONTAINER_EV_EXITED);
        if (c->anchor)
            anchor_end(c->anchor);
    }
    if (tell && !p->hidden)
        events_push(p->r->o.events, &(struct event){ .kind = EVENT_EXIT,
                                                     .wall_ns = p->exited_wall_ns,
                                                     .container_id = p->container_id,
                                                     .exec_id = p->exec_id,
                                                     .pid = p->pid,
                                                     .exit_status = p->exit_status,
                                                     .exited_wall_ns = p->exited_wall_ns,
                                                     .bundle = p->bundle });
    latch_set(&p->exited);
    if (c)
        waitq_wake_all(&c->changed);
}

static void drain(struct ctx *ctx, struct process *p, uint64_t limit)
{
    struct ctx limited = ctx_with_timeout(ctx, limit);
    struct err err = ERR_INIT;

    p->draining = true;
    int r = p->io ? io_drain(&limited, p->io, &err) : 0;
    p->draining = false;
    if (r < 0)
        log_warn(ctx, "output not yet taken when its process has ended", F_STR("eid", p->exec_id),
                 F_ERR(&err));
}

/* Whatever happens, theirs come first. */
static void await_execs(struct ctx *ctx, struct container *c, uint64_t limit, uint32_t status)
{
    struct ctx limited = ctx_with_timeout(ctx, limit);
    struct err err = ERR_INIT;

    while (container_has_running_execs(c) &&
           waitq_wait(&limited, &c->changed, "execs to end", &err) == 0)
        ;
    LIST_EACH (&c->execs, pos) {
        struct process *e = LIST_ENTRY(pos, struct process, node);

        if (e->state == PROCESS_ST_RUNNING) {
            log_warn(ctx, "an exec is not told to have ended, but its container has",
                     F_STR("eid", e->exec_id));
            process_end(e, status, true);
        }
    }
}

void process_settle_execs(struct ctx *ctx, struct container *c)
{
    await_execs(ctx, c, PROCESS_LOST_DRAIN_LIMIT, EXIT_KILLED);
}

struct created_end {
    struct process *p;
    struct container *c;
    uint32_t status;
    bool ask;
};

static void end_created(struct process *p, uint32_t status)
{
    if (p->io)
        io_close(p->io);
    process_end(p, status, true);
}

static void end_created_main(void *arg)
{
    struct created_end *e = arg;
    struct ctx root = ctx_root(e->p->r->o.loop), ctx = ctx_with_id(&root, "cid", e->c->id);
    struct err err = ERR_INIT;

    if (e->ask) {
        AUTO(vm_leave)
        const struct vm_parts *in = vm_enter(e->p->r->vm, "kill a container", &err);
        struct ctx limited = ctx_with_timeout(&ctx, PROCESS_EXECS_LIMIT);

        /* With the first process of its pid namespace all the others go. */
        if (in)
            (void)in->guest->ops->shutdown(&limited, in->guest, e->c->id, true, &err);
    }
    await_execs(&ctx, e->c, e->ask ? PROCESS_EXECS_LIMIT : PROCESS_LOST_LIMIT, e->status);
    end_created(e->p, e->status);
    container_unref(e->c);
    process_unref(e->p);
    free(e);
}

void process_end_created(struct process *p, uint32_t status, bool ask)
{
    struct created_end *e;

    if (p->ending)
        return;
    if (!container_has_running_execs(p->c)) {
        end_created(p, status);
        return;
    }
    p->ending = true;
    p->refs++;
    e = mem_new(struct created_end);
    *e = (struct created_end){ p, container_ref(p->c), status, ask };
    group_go(&p->r->fibers, p->r->o.loop, end_created_main, e, "end %s", p->container_id);
}

/* The VM is gone, or does not talk any more: from what the host knows, and fast. */
static void end_lost(struct ctx *ctx, struct process *p)
{
    AUTO(vm_unref) struct vm *vm = vm_ref(p->r->vm);
    uint32_t status = vm && vm_lost(vm) ? EXIT_KILLED : EXIT_LOST;

    if (vm && p->c && process_is_init(p) && vm_ended_by_oom(vm))
        container_tell_oom(p->c);
    drain(ctx, p, PROCESS_LOST_DRAIN_LIMIT);
    if (p->io)
        io_close(p->io);
    if (p->c && process_is_init(p))
        await_execs(ctx, p->c, PROCESS_LOST_DRAIN_LIMIT, status);
    process_end(p, status, true);
}

static int await_exit(struct ctx *ctx, struct process *p, uint32_t *ret_code, struct err *err)
{
    AUTO(vm_leave) const struct vm_parts *in = vm_enter(p->r->vm, "wait for a process", err);

    return in ? in->guest->ops->wait_process(ctx, in->guest, p->container_id, p->guest_pid,
                                             GUEST_WAIT_FOREVER, ret_code, err)
              : -1;
}

/* As long as its VM lives there is time. */
static void drain_alive(struct ctx *ctx, struct process *p)
{
    AUTO(vm_unref) struct vm *vm = vm_ref(p->r->vm); /* it may go while we wait */

    if (vm) {
        struct ctx alive = ctx_with_cancel(ctx, vm_life(vm));

        drain(&alive, p, PROCESS_DRAIN_LIMIT);
    }
    if (!vm || vm_life(vm)->fired)
        drain(ctx, p, PROCESS_LOST_DRAIN_LIMIT);
}

/* Depends on no request. */
static void watch_main(void *arg)
{
    AUTO(process_unref) struct process *p = arg;
    AUTO(container_unref) struct container *c = p->c;
    struct ctx root = ctx_root(p->r->o.loop), ctx = ctx_with_id(&root, "cid", p->container_id);
    struct err err = ERR_INIT;
    uint32_t code = EXIT_LOST;

    if (await_exit(&ctx, p, &code, &err) < 0) {
        log_warn(&ctx, "the exit of a process is not known", F_STR("eid", p->exec_id), F_ERR(&err));
        end_lost(&ctx, p);
        return;
    }
    drain_alive(&ctx, p);
    if (process_is_init(p)) {
        container_settle_oom(c);
        await_execs(&ctx, c, PROCESS_EXECS_LIMIT, EXIT_KILLED);
    }
    process_end(p, code, true);
    log_info(&ctx, "process ended", F_STR("eid", p->exec_id), F_U("status", code));
}

/* --- the start --- */

static int guest_start(struct ctx *ctx, struct process *p, struct guest_process *ret,
                       struct err *err)
{
    const struct guest_exec e = { .container = p->container_id,
                                  .oci_process = p->oci_process,
                                  .terminal = p->terminal,
                                  .want_stdin = io_wants(p->io, 0),
                                  .want_stdout = io_wants(p->io, 1),
                                  .want_stderr = io_wants(p->io, 2) };
    struct vm *vm = p->r->vm;
    AUTO(vm_leave) const struct vm_parts *in = vm_enter(vm, "start a process", err);

    if (!in || vm_await_clock(ctx, vm, err) < 0 ||
        (process_is_init(p) &&
         in->guest->ops->start_container(ctx, in->guest, p->container_id, err) < 0))
        return -1;
    return in->guest->ops->exec(ctx, in->guest, &e, ret, err);
}

static void send_pending(struct ctx *ctx, struct process *p)
{
    struct err err = ERR_INIT;

    if (p->terminal && (p->rows || p->cols))
        (void)container_resize(ctx, p->c, p->exec_id, p->rows, p->cols, &err); /* it may be gone */
    for (uint32_t n = 1; n <= 64; n++) {
        if (!(p->pending_signals & UINT64_C(1) << (n - 1)))
            continue;
        err_clear(&err);
        if (process_signal(ctx, p, n, &err) < 0)
            log_warn(ctx, "a signal that came during the start was not delivered", F_U("signal", n),
                     F_ERR(&err));
    }
    p->pending_signals = 0;
}

static void started(struct process *p)
{
    struct container *c = p->c;
    bool init = process_is_init(p);

    fsm_step(&process_fsm, &p->state, PROCESS_EV_STARTED);
    if (init)
        fsm_step(&container_fsm, &c->state, CONTAINER_EV_STARTED);
    if (!p->hidden)
        events_push(p->r->o.events,
                    &(struct event){ .kind = init ? EVENT_START : EVENT_EXEC_STARTED,
                                     .wall_ns = loop_wall(p->r->o.loop),
                                     .container_id = p->container_id,
                                     .exec_id = p->exec_id,
                                     .pid = p->pid });
    /* Only now: no exit can come before its start. */
    p->refs++;
    container_ref(c);
    if (init)
        container_watch_oom(c);
    group_go(&p->r->fibers, p->r->o.loop, watch_main, p, "watch %s", p->container_id);
}

static int start(struct ctx *ctx, struct process *p, struct err *err)
{
    struct guest_process g = { 0 };

    if (!p->io && process_open_io(ctx, p, err) < 0)
        return -1;
    if (p->c->state != CONTAINER_CREATED && p->c->state != CONTAINER_RUNNING)
        return err_set(err, ERR_STATE, "container %s is %s meanwhile", p->container_id,
                       fsm_state_name(&container_fsm, p->c->state));
    if (guest_start(ctx, p, &g, err) < 0)
        return -1;
    p->guest_pid = g.pid;
    io_attach(p->io, g.in, g.out, g.err);
    return 0;
}

int process_start(struct ctx *ctx, struct process *p, struct err *err)
{
    struct container *c = p->c;
    struct registry *of = p->r;
    int r;

    if (p->starting || c->init->ending)
        return err_set(err, ERR_STATE, "process is being %s already",
                       p->starting ? "started" : "killed");
    if (fsm_check(&process_fsm, p->state, PROCESS_EV_STARTED, err) < 0)
        return -1;
    p->starting = true;
    p->refs++;
    c->starting++;
    container_ref(c);
    r = start(ctx, p, err);
    if (r == 0 && c->state == CONTAINER_STOPPED) /* told already; it took its execs with it */
        r = err_set(err, ERR_STATE, "container %s has ended meanwhile", c->id);
    p->starting = false;
    c->starting--;
    waitq_wake_all(&c->changed);
    if (r == 0) {
        started(p);
        send_pending(ctx, p);
    } else {
        if (p->io)
            io_close(p->io);
        process_end(p, EXIT_NOT_STARTED, false);
    }
    container_unref(c);
    process_unref(p);
    return r < 0 ? vm_explain(of->vm, err) : 0;
}

static void killed_main(void *arg)
{
    struct process *p = arg;
    struct ctx root = ctx_root(p->r->o.loop), limited = ctx_with_timeout(&root, KILLED_LIMIT);
    struct err err = ERR_INIT;

    if (latch_wait(&limited, &p->exited, "a killed process to end", &err) < 0)
        vm_give_up(p->r->vm);
    process_unref(p);
}

/* The guest took a SIGKILL, or knows of no such process. If that is not told as its end, it ends
 * with its VM. */
static void watch_killed(struct process *p)
{
    if (p->killed)
        return;
    p->killed = true;
    p->refs++;
    group_go(&p->r->fibers, p->r->o.loop, killed_main, p, "killed %s", p->container_id);
}

static int ask_signal(struct ctx *ctx, struct process *p, uint32_t signo, struct err *err)
{
    AUTO(vm_leave) const struct vm_parts *in = vm_enter(p->r->vm, "signal a process", err);

    return in ? in->guest->ops->signal_process(ctx, in->guest, p->container_id, p->guest_pid,
                                               (int)signo, err)
              : -1;
}

int process_signal(struct ctx *ctx, struct process *given, uint32_t signo, struct err *err)
{
    /* It may be deleted while we wait. */
    AUTO(process_unref) struct process *p = process_ref(given);
    /* The one that must work, also with a guest that hangs. */
    bool must = signo == SIGKILL && process_is_init(p);
    struct ctx limited = ctx_with_timeout(ctx, PROCESS_KILL_LIMIT);
    int r;

    if (p->starting) {
        p->pending_signals |= UINT64_C(1) << (signo - 1);
        return 0;
    }
    if (p->state != PROCESS_ST_RUNNING)
        return err_set(err, ERR_NOT_FOUND, "process %s%s%s has ended", p->container_id,
                       p->exec_id[0] ? "/" : "", p->exec_id);
    r = ask_signal(&limited, p, signo, err);
    must = must && p->state == PROCESS_ST_RUNNING;
    if (must && (r == 0 || err->code == ERR_NOT_FOUND))
        watch_killed(p);
    if (r < 0 && must && err->code == ERR_DEADLINE && ctx_left(ctx) > 0) {
        err_clear(err);
        vm_give_up(p->r->vm);
        return 0;
    }
    if (r < 0 && err->code == ERR_UNAVAILABLE) /* with its VM */
        return err_set(err, ERR_NOT_FOUND, "process %s%s%s has ended with its VM", p->container_id,
                       p->exec_id[0] ? "/" : "", p->exec_id);
    return r;
}

/* --- what a client sees --- */

void process_view(const struct process *p, struct process_view *ret)
{
    static const enum process_status status[PROCESS_ST_COUNT] = {
        [PROCESS_ST_NOT_CREATED] = PROCESS_UNKNOWN,
        [PROCESS_ST_CREATED] = PROCESS_CREATED,
        [PROCESS_ST_RUNNING] = PROCESS_RUNNING,
        [PROCESS_ST_TERMINATED] = PROCESS_STOPPED,
    };

    *ret = (struct process_view){ .container_id = p->container_id,
                                  .exec_id = p->exec_id,
                                  .bundle = p->bundle,
                                  .in = p->in,
                                  .out = p->out,
                                  .err = p->err,
                                  .terminal = p->terminal,
                                  .pid = p->pid,
                                  .exit_status = p->exit_status,
                                  .exited_wall_ns = p->exited_wall_ns,
                                  .status = status[p->state] };
    if (ret->status == PROCESS_RUNNING && p->c && p->c->state == CONTAINER_PAUSED)
        ret->status = PROCESS_PAUSED;
}

int process_wait(struct ctx *ctx, struct process *p, struct process_view *ret, struct err *err)
{
    int r;

    p->refs++;
    r = latch_wait(ctx, &p->exited, "the process to end", err);
    if (r == 0 && p->state != PROCESS_ST_TERMINATED)
        r = err_set(err, ERR_NOT_FOUND, "process %s%s%s was deleted", p->container_id,
                    p->exec_id[0] ? "/" : "", p->exec_id);
    if (r == 0) {
        process_view(p, ret);
        if (p->refs == 1) /* deleted meanwhile: its texts go now */
            ret->container_id = ret->exec_id = ret->bundle = ret->in = ret->out = ret->err = "";
    }
    process_unref(p);
    return r;
}
