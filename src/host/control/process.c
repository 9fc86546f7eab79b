/* process.c - one process of a container, init or exec: from its registration to its exit. */
#include "host/control/process.h"
#include "base/exit_code.h"
#include "base/json.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/str.h"
#include "base/waits.h"
#include "host/bridge/guest.h"
#include "host/control/container.h"
#include "host/control/events.h"
#include "host/control/pod.h"
#include "host/control/process_priv.h"
#include "host/control/registry.h"
#include "host/control/vm.h"
#include "host/io/io.h"
#include <signal.h>
#include <stdlib.h>

enum process_event {
    PROCESS_EV_CREATED,
    PROCESS_EV_STARTED,
    PROCESS_EV_ENDED, /* exit, failed start, kill before start, delete before start */
    PROCESS_EV_COUNT
};
static const char *const states[] = { "NotCreated", "Created", "Running", "Terminated" };
static const char *const events[] = { "created", "started", "ended" };
static const struct fsm_edge edges[] = {
    { PROCESS_ST_NOT_CREATED, PROCESS_EV_CREATED, PROCESS_ST_CREATED },
    { PROCESS_ST_NOT_CREATED, PROCESS_EV_ENDED, PROCESS_ST_TERMINATED },
    { PROCESS_ST_CREATED, PROCESS_EV_STARTED, PROCESS_ST_RUNNING },
    { PROCESS_ST_CREATED, PROCESS_EV_ENDED, PROCESS_ST_TERMINATED },
    { PROCESS_ST_RUNNING, PROCESS_EV_ENDED, PROCESS_ST_TERMINATED },
};
FSM_DEFINE(process_fsm, "process", states, PROCESS_ST_COUNT, events, PROCESS_EV_COUNT, edges);

static char *own(const char *path)
{
    return str_dup(path ? path : "");
}

struct process *process_new(struct container *c, const char *exec_id,
                            const struct stdio_paths *stdio, json_t *oci_process)
{
    struct process *p = mem_new(struct process);

    *p = (struct process){ .refs = 1, /* the container's */
                           .c = c,
                           .pod = pod_ref(container_pod(c)),
                           .container_id = str_dup(container_id(c)),
                           .guest_id = str_dup(container_parts(c)->guest_id),
                           .bundle = str_dup(container_parts(c)->bundle),
                           .exec_id = str_dup(exec_id),
                           .in = own(stdio->in),
                           .out = own(stdio->out),
                           .err = own(stdio->err),
                           .oci_process = oci_process,
                           .terminal = stdio->terminal,
                           .hidden = container_parts(c)->hidden,
                           .pid = container_parts(c)->pid };
    latch_init(&p->exited);
    return p;
}

struct process *process_ref(struct process *p)
{
    p->refs++;
    return p;
}

/* What it lost is the sandbox's to report. */
static void drop_io(struct process *p)
{
    if (!p->io)
        return;
    io_close(p->io);
    p->pod->r->lost_bytes += io_lost_bytes(p->io);
    io_free(TAKE_PTR(p->io));
}

void process_unref(struct process *p)
{
    if (!p || --p->refs > 0)
        return;
    drop_io(p);
    pod_unref(p->pod);
    free(p->container_id);
    free(p->guest_id);
    free(p->bundle);
    free(p->exec_id);
    free(p->in);
    free(p->out);
    free(p->err);
    json_decref(p->oci_process);
    free(p);
}

void process_forget(struct process *p)
{
    p->c = NULL;
    if (!p->draining) /* else the last reference does it */
        drop_io(p);
    latch_set(&p->exited);
    process_unref(p);
}

/* --- queries --- */

enum process_state process_state(const struct process *p)
{
    return p->state;
}

bool process_is_init(const struct process *p)
{
    return p->exec_id[0] == '\0';
}

bool process_is_starting(const struct process *p)
{
    return p->starting;
}

bool process_is_alive(const struct process *p)
{
    return p->state == PROCESS_ST_RUNNING || p->starting;
}

const char *process_exec_id(const struct process *p)
{
    return p->exec_id;
}

uint32_t process_guest_pid(const struct process *p)
{
    return p->guest_pid;
}

static struct loop *loop_of(const struct process *p)
{
    return p->pod->r->o.loop;
}

static int err_ended(const struct process *p, const char *how, struct err *err)
{
    return err_because(err, REASON_NOT_FOUND, ERR_NOT_FOUND, "process %s%s%s%s", p->container_id,
                       p->exec_id[0] ? "/" : "", p->exec_id, how);
}

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
                                  .stdio = { p->in, p->out, p->err, p->terminal },
                                  .pid = p->pid,
                                  .exit_status = p->exit_status,
                                  .exited_wall_ns = p->exited_wall_ns,
                                  .status = status[p->state] };
    if (ret->status == PROCESS_RUNNING && p->c && container_state(p->c) == CONTAINER_PAUSED)
        ret->status = PROCESS_PAUSED;
}

int process_wait(struct ctx *ctx, struct process *given, struct process_view *ret, struct err *err)
{
    AUTO(process_unref) struct process *p = process_ref(given);

    if (latch_wait(ctx, &p->exited, WAIT_PROCESS_END, err) < 0)
        return -1;
    if (p->state != PROCESS_ST_TERMINATED)
        return err_ended(p, " was deleted", err);
    process_view(p, ret);
    if (p->refs == 1) { /* deleted meanwhile: its texts go now */
        ret->container_id = ret->exec_id = ret->bundle = "";
        ret->stdio = (struct stdio_paths){ "", "", "", p->terminal };
    }
    return 0;
}

void process_describe(const struct process *p, struct jsw *w)
{
    static const char *const names[] = { "unknown", "created", "running", "stopped", "paused" };
    struct process_view v;

    process_view(p, &v);
    jsw_str(w, "state", names[v.status]);
    jsw_u64(w, "guest_pid", p->guest_pid);
    if (v.exited_wall_ns) {
        jsw_u64(w, "exit_status", v.exit_status);
        jsw_u64(w, "exited_ns", v.exited_wall_ns);
    }
}

/* --- stdio --- */

struct io_spec process_io_spec(const struct process *p)
{
    struct registry *r = p->pod->r;

    return (struct io_spec){ .in = p->in,
                             .out = p->out,
                             .err = p->err,
                             .terminal = p->terminal,
                             .container_id = p->container_id,
                             .ns = r->ns,
                             .ledger = p->pod->vm ? vm_parts(p->pod->vm)->ledger : NULL,
                             .drivers = &r->drivers,
                             .hub = r->hub };
}

int process_open_io(struct ctx *ctx, struct process *p, struct err *err)
{
    const struct io_spec spec = process_io_spec(p);

    if (io_open(ctx, loop_of(p), &spec, &p->io, err) < 0)
        return err_wrap_because(err, REASON_STDIO_FAILED, "stdio of %s%s%s", p->container_id,
                                p->exec_id[0] ? "/" : "", p->exec_id);
    if (p->stdin_closed)
        io_close_stdin(p->io);
    return 0;
}

void process_close_io(struct process *p)
{
    if (p->io)
        io_close(p->io);
}

void process_close_stdin(struct process *p)
{
    p->stdin_closed = true;
    if (p->io)
        io_close_stdin(p->io);
}

/* --- the end --- */

static void publish(struct process *p, enum event_kind kind)
{
    if (!p->hidden)
        events_push(p->pod->r->o.events,
                    &(struct event){ .kind = kind,
                                     .wall_ns = loop_wall(loop_of(p)),
                                     .container_id = p->container_id,
                                     .exec_id = p->exec_id,
                                     .pid = p->pid,
                                     .exit_status = p->exit_status,
                                     .exited_wall_ns = p->exited_wall_ns,
                                     .bundle = kind == EVENT_EXIT ? p->bundle : NULL });
}

void process_end(struct process *p, uint32_t status, bool published)
{
    if (p->state == PROCESS_ST_TERMINATED)
        return;
    fsm_step(&process_fsm, &p->state, PROCESS_EV_ENDED);
    p->exit_status = status;
    p->exited_wall_ns = loop_wall(loop_of(p));
    if (p->c)
        container_process_changed(p->c, p);
    if (published)
        publish(p, EVENT_EXIT);
    latch_set(&p->exited);
}

static void drain(struct ctx *ctx, struct process *p, uint64_t limit)
{
    struct ctx limited = ctx_with_timeout(ctx, limit);
    struct err err = ERR_INIT;

    p->draining = true;
    int r = p->io ? io_drain(&limited, p->io, &err) : 0;
    p->draining = false;
    if (r < 0)
        log_warn(ctx, "output not yet read when its process has ended", F_STR(LK_EID, p->exec_id),
                 F_ERR(&err));
}

/* As long as its VM lives there is time. */
static void drain_alive(struct ctx *ctx, struct process *p)
{
    struct cancel *life = &vm_parts(p->pod->vm)->life;
    struct ctx alive = ctx_with_cancel(ctx, life);

    drain(&alive, p, PROCESS_DRAIN_LIMIT);
    if (life->fired)
        drain(ctx, p, PROCESS_LOST_DRAIN_LIMIT);
}

static int await_exit(struct ctx *ctx, struct process *p, uint32_t *ret_code, struct err *err)
{
    AUTO(vm_leave) const struct vm_parts *in = vm_enter(p->pod->vm, "wait for a process", err);

    return in ? in->guest->ops->wait_process(ctx, in->guest, p->guest_id, p->guest_pid,
                                             GUEST_WAIT_FOREVER, ret_code, &p->wait_id, err)
              : -1;
}

/* Depends on no request. */
static void watch_main(void *arg)
{
    AUTO(process_unref) struct process *p = arg;
    AUTO(container_unref) struct container *c = p->c;
    struct ctx ctx = ctx_background(loop_of(p), LK_CID, p->container_id);
    struct err err = ERR_INIT;
    uint32_t code = EXIT_LOST;
    bool lost = await_exit(&ctx, p, &code, &err) < 0;

    if (lost) { /* the VM is gone, or does not talk any more: from what the host knows, and fast */
        log_warn(&ctx, "the exit status of a process is unknown", F_STR(LK_EID, p->exec_id),
                 F_ERR(&err));
        code = vm_lost(p->pod->vm) ? EXIT_KILLED : EXIT_LOST;
        drain(&ctx, p, PROCESS_LOST_DRAIN_LIMIT);
        process_close_io(p);
    } else {
        drain_alive(&ctx, p);
    }
    container_process_exits(&ctx, c, p, code, lost);
    process_end(p, code, true);
    if (!lost)
        log_info(&ctx, "process ended", F_STR(LK_EID, p->exec_id), F_U("status", code));
}

void process_watch(struct process *p)
{
    container_ref(p->c);
    fibers_go(&p->pod->r->fibers, loop_of(p), watch_main, process_ref(p), FIBER_PROCESS_WATCH "%s",
              p->container_id);
}

/* --- the start --- */

void process_created(struct process *p)
{
    fsm_step(&process_fsm, &p->state, PROCESS_EV_CREATED);
}

static int guest_start(struct ctx *ctx, struct process *p, struct guest_process *ret,
                       struct err *err)
{
    const struct guest_exec e = { .container = p->guest_id,
                                  .oci_process = p->oci_process,
                                  .terminal = p->terminal,
                                  .want_stdin = io_wants(p->io, 0),
                                  .want_stdout = io_wants(p->io, 1),
                                  .want_stderr = io_wants(p->io, 2) };
    struct vm *vm = p->pod->vm;
    AUTO(vm_leave) const struct vm_parts *in = vm_enter(vm, "start a process", err);

    if (!in || vm_await_clock(ctx, vm, err) < 0 ||
        (process_is_init(p) &&
         in->guest->ops->start_container(ctx, in->guest, p->guest_id, err) < 0))
        return -1;
    return in->guest->ops->exec(ctx, in->guest, &e, ret, err);
}

static void send_pending(struct ctx *ctx, struct process *p)
{
    struct err err = ERR_INIT;

    if (p->rows || p->cols)
        (void)process_resize(ctx, p, p->rows, p->cols, &err); /* it may be gone */
    for (uint32_t n = 1; n <= PROCESS_SIGNAL_MAX; n++) {
        if (!(p->pending_signals & UINT64_C(1) << (n - 1)))
            continue;
        err_clear(&err);
        if (process_signal(ctx, p, n, &err) < 0)
            log_warn(ctx, "a signal sent during the start was not delivered", F_U("signal", n),
                     F_ERR(&err));
    }
    p->pending_signals = 0;
}

static void started(struct process *p)
{
    fsm_step(&process_fsm, &p->state, PROCESS_EV_STARTED);
    publish(p, process_is_init(p) ? EVENT_START : EVENT_EXEC_STARTED);
    container_process_changed(p->c, p);
    process_watch(p); /* only now: no exit can come before its start */
}

static int start(struct ctx *ctx, struct process *p, struct container *c, struct err *err)
{
    struct guest_process g = { 0 };
    enum container_state state;

    if (!p->io && process_open_io(ctx, p, err) < 0)
        return -1;
    state = container_state(c);
    if (state != CONTAINER_CREATED && state != CONTAINER_RUNNING)
        return err_because(err, REASON_WRONG_STATE, ERR_STATE,
                           "container %s became %s during the start", p->container_id,
                           fsm_state_name(&container_fsm, state));
    if (guest_start(ctx, p, &g, err) < 0)
        return -1;
    p->guest_pid = g.pid;
    io_attach(p->io, g.in, g.out, g.err);
    if (container_state(c) == CONTAINER_STOPPED) /* published; it took its execs with it */
        return err_because(err, REASON_WRONG_STATE, ERR_STATE,
                           "container %s exited during the start", p->container_id);
    return 0;
}

int process_start(struct ctx *ctx, struct process *given, struct err *err)
{
    AUTO(process_unref) struct process *p = process_ref(given);
    AUTO(container_unref) struct container *c = NULL;
    int r;

    if (p->starting)
        return err_because(err, REASON_WRONG_STATE, ERR_STATE,
                           "the process is already being started");
    if (fsm_check(&process_fsm, p->state, PROCESS_EV_STARTED, err) < 0)
        return -1;
    c = container_ref(p->c);
    p->starting = true;
    r = start(ctx, p, c, err);
    p->starting = false;
    json_decref(TAKE_PTR(p->oci_process)); /* started or ended: nothing asks for it again */
    if (r == 0) {
        started(p);
        send_pending(ctx, p);
        return 0;
    }
    process_close_io(p);
    process_end(p, EXIT_NOT_STARTED, false);
    return vm_explain(p->pod->vm, err);
}

/* --- while it runs --- */

int process_resize(struct ctx *ctx, struct process *p, uint16_t rows, uint16_t cols,
                   struct err *err)
{
    if (!p->terminal || p->state == PROCESS_ST_TERMINATED)
        return 0;
    p->rows = rows;
    p->cols = cols;
    if (p->state != PROCESS_ST_RUNNING)
        return 0; /* sent with the start */

    AUTO(vm_leave) const struct vm_parts *in = vm_enter(p->pod->vm, "resize a terminal", err);

    return in ? in->guest->ops->resize_console(ctx, in->guest, p->guest_id, p->guest_pid, rows,
                                               cols, err)
              : -1;
}

static void kill_vm(struct process *p)
{
    struct ctx ctx = ctx_background(loop_of(p), LK_CID, p->container_id);

    log_error(&ctx, "the guest did not act on SIGKILL within 20 s; killing its VM",
              F_REASON(REASON_GUEST_SILENT));
    vm_kill(p->pod->vm, VM_END_FAILED, "the guest did not act on SIGKILL");
}

static void killed_main(void *arg)
{
    AUTO(process_unref) struct process *p = arg;
    struct ctx limited = ctx_root(loop_of(p));
    struct err err = ERR_INIT;

    limited.deadline = p->killed_until;
    if (latch_wait(&limited, &p->exited, WAIT_KILLED, &err) < 0)
        kill_vm(p);
}

void process_watch_killed(struct process *p)
{
    fibers_go(&p->pod->r->fibers, loop_of(p), killed_main, process_ref(p), FIBER_KILLED "%s",
              p->container_id);
}

/* The guest acted on a SIGKILL, or knows of no such process. If it does not report an end, the
 * process ends with its VM. */
static void watch_killed(struct process *p)
{
    if (p->killed)
        return;
    p->killed = true;
    p->killed_until = loop_now(loop_of(p)) + PROCESS_KILLED_LIMIT;
    process_watch_killed(p);
}

static int ask_signal(struct ctx *ctx, struct process *p, uint32_t signo, struct err *err)
{
    AUTO(vm_leave) const struct vm_parts *in = vm_enter(p->pod->vm, "signal a process", err);

    return in ? in->guest->ops->signal_process(ctx, in->guest, p->guest_id, p->guest_pid,
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
        return err_ended(p, " has ended", err);
    r = ask_signal(&limited, p, signo, err);
    must = must && p->state == PROCESS_ST_RUNNING;
    if (must && (r == 0 || err->code == ERR_NOT_FOUND))
        watch_killed(p);
    if (r < 0 && must && err->code == ERR_DEADLINE && ctx_left(ctx) > 0) {
        err_clear(err);
        kill_vm(p);
        return 0;
    }
    if (r < 0 && err->code == ERR_UNAVAILABLE)
        return err_ended(p, " has ended with its VM", err);
    return r;
}
