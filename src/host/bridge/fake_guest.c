/* fake_guest.c - the scripted peer of the bridge. */
#include "host/bridge/fake_guest.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fiber.h"
#include "base/gate.h"
#include "base/list.h"
#include "base/loop.h"
#include "base/str.h"
#include "base/stream.h"
#include "host/bridge/fake_guest_priv.h"
#include "proto/bridge.h"
#include "proto/link.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define LOG_LINGER (60 * NS_PER_S)
#define OUTPUT_BYTE 'o'
#define FIRST_PID 300
#define TELL_NS (10 * NS_PER_S)

static void guest_unref(struct fake *g)
{
    if (--g->refs > 0)
        return;
    cancel_release(&g->power);
    free(g);
}

static struct ctx guest_ctx(struct fake *g, struct ctx *root)
{
    *root = ctx_root(g->opts.loop);
    return ctx_with_cancel(root, &g->power);
}

static struct stream *dial(struct fake *g, uint32_t port)
{
    struct stream *s = NULL;

    /* The power may have gone while we were woken; then the other end may be gone, too. */
    if (g->power.fired)
        return NULL;
    return g->opts.dial(g->opts.dial_arg, port, &s) < 0 ? NULL : s;
}

/* --- sending --- */

/* The stream lives as long as somebody uses it: reader, and writers in their gate. */
static void bridge_put(struct fake *g)
{
    if (--g->bridge_users == 0)
        stream_free(TAKE_PTR(g->bridge));
}

static void send_bytes(struct ctx *ctx, struct fake *g, const void *data, size_t len)
{
    struct err err = ERR_INIT;
    struct gate *held;

    if (g->bridge_ended)
        return;
    g->bridge_users++;
    held = gate_enter(&g->writer, ctx, "fake.write", &err);
    if (held && !g->bridge_ended)
        (void)stream_write_full(ctx, g->bridge, data, len, &err); /* the host may be gone */
    if (held)
        gate_leave(held);
    bridge_put(g);
}

static void disconnect(struct fake *g)
{
    if (g->bridge_ended)
        return;
    g->bridge_ended = true;
    stream_shutdown(g->bridge, SHUT_RDWR);
}

static void send_poison(struct ctx *ctx, struct fake *g, enum fake_answer_how how, uint32_t type,
                        uint64_t id)
{
    static const char no_json[] = "{\"Result\":";
    struct bridge_header h = { bridge_response_type(type), BRIDGE_HEADER_BYTES, id };
    uint8_t frame[BRIDGE_HEADER_BYTES + sizeof(no_json)] = { 0 };
    size_t len = BRIDGE_HEADER_BYTES;

    if (how == FAKE_SIZE_0)
        h.size = 0;
    else if (how == FAKE_SIZE_15)
        h.size = 15;
    else if (how == FAKE_SIZE_HUGE)
        h.size = UINT32_MAX;
    else if (how == FAKE_TRUNCATED)
        h.size = 100;
    else if (how == FAKE_UNKNOWN_ID)
        h.id = id + 1000000;
    else if (how == FAKE_KIND_4)
        h.type = (type & 0x0fffffff) | 4u << 28;
    else if (how == FAKE_KIND_REQUEST)
        h.type = type;
    bridge_header_encode(&h, frame);
    if (how == FAKE_BAD_JSON) {
        memcpy(frame + len, no_json, sizeof(no_json) - 1);
        len += sizeof(no_json) - 1;
        h.size = (uint32_t)len;
        bridge_header_encode(&h, frame);
    }
    send_bytes(ctx, g, frame, len);
    if (how == FAKE_TRUNCATED)
        disconnect(g);
}

void fake_guest_exit_frame(struct sbuf *out, const char *container)
{
    struct bridge_notification n = { .container_id = container,
                                     .type = BRIDGE_NOTE_UNEXPECTED_EXIT };
    struct err err = ERR_INIT;

    (void)bridge_notification_encode(&n, out, &err); /* tests name short containers */
}

/* --- processes --- */

static void process_unref(struct process *p)
{
    if (--p->refs > 0)
        return;
    list_remove(&p->node);
    cancel_release(&p->killed);
    guest_unref(p->guest);
    free(p->container);
    free(p);
}

static void write_output(struct ctx *ctx, struct stream *s, size_t len)
{
    char block[512];
    struct err err = ERR_INIT;

    memset(block, OUTPUT_BYTE, sizeof(block));
    for (size_t n; len > 0; len -= n) {
        n = len < sizeof(block) ? len : sizeof(block);
        if (stream_write_full(ctx, s, block, n, &err) < 0)
            return;
    }
}

/* Until the host has closed its end. */
static void await_close(struct ctx *ctx, struct stream *s)
{
    struct err err = ERR_INIT;
    char byte;
    size_t n;

    if (s)
        (void)stream_read(ctx, s, &byte, 1, &n, &err);
}

/* As the real guest does: the exit is told when the output was taken, or after a while; then the
 * output flows on behind it. */
static void finish(struct ctx *ctx, struct process *p)
{
    struct ctx telling = ctx_with_timeout(ctx, TELL_NS);

    stream_free(TAKE_PTR(p->in));
    if (p->out)
        stream_shutdown(p->out, SHUT_WR);
    if (p->err)
        stream_shutdown(p->err, SHUT_WR);
    await_close(&telling, p->out);
    await_close(&telling, p->err);
    latch_set(&p->exited);
    if (p->init)
        fake_container_stopped(p->guest, p->container);
    await_close(ctx, p->out);
    await_close(ctx, p->err);
    stream_free(TAKE_PTR(p->out));
    stream_free(TAKE_PTR(p->err));
}

static void process_main(void *arg)
{
    struct process *p = arg;
    struct ctx root, ctx = guest_ctx(p->guest, &root), running = ctx_with_cancel(&ctx, &p->killed);
    struct err err = ERR_INIT;

    uint64_t lasts = p->guest->opts.process_ns;

    if (p->init && p->guest->opts.container_ns)
        lasts = p->guest->opts.container_ns;
    (void)fiber_sleep(&running, lasts, &err);
    if (p->out && !p->killed.fired)
        write_output(&running, p->out, p->guest->opts.output_bytes);
    finish(&ctx, p);
    process_unref(p);
}

static struct process *find_process(struct fake *g, uint32_t pid)
{
    LIST_EACH (&g->processes, pos) {
        struct process *p = LIST_ENTRY(pos, struct process, node);

        if (p->pid == pid)
            return p;
    }
    return NULL;
}

static int do_exec(struct fake *g, const struct bridge_request *r, struct bridge_response *resp,
                   struct err *err)
{
    const struct bridge_exec *e = &r->exec;
    bool dials = !g->opts.no_stdio, ok = true;
    bool in_vm = str_eq(r->container_id, BRIDGE_NULL_ID) || e->in_vm;

    if (!in_vm && !fake_container_find(g, r->container_id))
        return bridge_err(err, BRIDGE_HR_NO_CONTAINER, "no container %s", r->container_id);

    struct process *p = mem_new(struct process);

    if (dials && e->want_in)
        ok = (p->in = dial(g, e->ports.in)) && ok;
    if (dials && e->want_out)
        ok = (p->out = dial(g, e->ports.out)) && ok;
    if (dials && e->want_err)
        ok = (p->err = dial(g, e->ports.err)) && ok;
    if (!ok) {
        stream_free(p->in);
        stream_free(p->out);
        stream_free(p->err);
        free(p);
        return bridge_err(err, BRIDGE_HR_FAIL, "dial stdio");
    }
    p->guest = g;
    p->refs = 1;
    p->pid = g->next_pid++;
    p->exit_code = g->opts.exit_code;
    p->container = str_dup(in_vm ? "" : r->container_id);
    p->init = !in_vm && !e->oci_process;
    cancel_init(&p->killed, &g->power);
    latch_init(&p->exited);
    list_append(&g->processes, &p->node);
    g->refs++;
    resp->process_id = p->pid;
    if (p->init)
        fake_container_started(g, p->container, p->pid);
    p->refs++; /* the table's, until a wait is answered or the guest ends */
    fiber_go(g->opts.loop, process_main, p, "fake.process %u", p->pid);
    return 0;
}

static int do_wait(struct ctx *ctx, struct fake *g, const struct bridge_request *r,
                   struct bridge_response *resp, struct err *err)
{
    struct process *p = find_process(g, r->wait.pid);
    struct ctx limited = ctx_with_timeout(ctx, r->wait.timeout_ms * NS_PER_MS);
    bool forever = r->wait.timeout_ms == BRIDGE_WAIT_FOREVER;
    int ret;

    if (!p)
        return bridge_err(err, BRIDGE_HR_NOT_FOUND, "no process %u", r->wait.pid);
    p->refs++;
    ret = latch_wait(forever ? ctx : &limited, &p->exited, "process", err);
    if (ret < 0 && err->code == ERR_DEADLINE)
        bridge_err(err, BRIDGE_HR_TIMEOUT, "still running");
    if (ret == 0) {
        resp->exit_code = p->exit_code;
        if (!p->init && !list_empty(&p->node)) { /* forgotten with the first answered wait */
            list_remove(&p->node);
            process_unref(p);
        }
    }
    process_unref(p);
    return ret;
}

static int do_signal(struct fake *g, const struct bridge_request *r, struct err *err)
{
    struct process *p = find_process(g, r->signal.pid);

    if (!p || p->exited.set)
        return bridge_err(err, BRIDGE_HR_NOT_FOUND, "no process %u", r->signal.pid);
    g->facts.signals++;
    g->facts.last_signal = (uint32_t)r->signal.signal;
    g->facts.last_signal_pid = r->signal.pid;
    fake_guest_tell(g);
    if (r->signal.signal == SIGUSR1) /* the one that nobody dies of */
        return 0;
    p->exit_code = 128 + (uint32_t)r->signal.signal;
    cancel_fire(&p->killed, ERR_CANCELLED, "killed");
    return 0;
}

/* --- requests --- */

struct request {
    struct fake *guest;
    struct bridge_request msg;
    uint64_t id;
    struct err err; /* of decoding */
};

static int tell_clock(struct fake *g, struct bridge_response *resp)
{
    int64_t ns = (int64_t)loop_now(g->opts.loop) + 1;

    g->facts.clock_reads++;
    snprintf(g->clock, sizeof(g->clock), "{\"MonotonicNs\":%lld}",
             (long long)(ns + ns / 1000000 * g->opts.clock_ppm));
    resp->properties = g->clock;
    fake_guest_tell(g);
    return 0;
}

static int answer(struct ctx *ctx, struct fake *g, const struct bridge_request *r,
                  struct bridge_response *resp, struct err *err)
{
    switch (r->type) {
    case BRIDGE_NEGOTIATE_PROTOCOL:
        resp->negotiate.version = g->opts.version ? g->opts.version : BRIDGE_VERSION;
        resp->negotiate.caps = (struct bridge_caps){ .os = g->opts.os ? g->opts.os : "Linux",
                                                     .signal_process = true,
                                                     .delete_container_state = true,
                                                     .dump_stacks = true };
        return 0;
    case BRIDGE_EXECUTE_PROCESS:
        return do_exec(g, r, resp, err);
    case BRIDGE_WAIT_FOR_PROCESS:
        return do_wait(ctx, g, r, resp, err);
    case BRIDGE_SIGNAL_PROCESS:
        return do_signal(g, r, err);
    case BRIDGE_DUMP_STACKS:
        resp->stacks = "thread 1: somewhere\n";
        return 0;
    case BRIDGE_CREATE:
    case BRIDGE_START:
    case BRIDGE_DELETE_CONTAINER_STATE:
    case BRIDGE_MODIFY_SETTINGS:
        return fake_container_answer(ctx, g, r, resp, err);
    case BRIDGE_GET_PROPERTIES:
        if (r->query.types[0] && str_eq(r->query.types[0], BRIDGE_PROPERTY_OUT_OF_MEMORY))
            return fake_container_answer(ctx, g, r, resp, err);
        if (r->query.types[0] && str_eq(r->query.types[0], BRIDGE_PROPERTY_STATISTICS)) {
            resp->properties = "{\"LCOWMetrics\":{\"pids\":{\"current\":1}},\"ScratchBytes\":4096}";
            return 0;
        }
        if (r->query.types[0] && str_eq(r->query.types[0], BRIDGE_PROPERTY_CLOCK))
            return tell_clock(g, resp);
        resp->properties = "{\"ProcessList\":[{\"ProcessId\":1}]}";
        return 0;
    case BRIDGE_RESIZE_CONSOLE:
        return 0;
    default:
        return bridge_err(err, BRIDGE_HR_NOT_IMPLEMENTED, "not here");
    }
}

static void send_answer(struct ctx *ctx, struct request *rq, struct fake_answer how)
{
    struct fake *g = rq->guest;
    AUTO(sbuf_release) struct sbuf out = { 0 };
    struct bridge_response resp = bridge_response_for(&rq->msg);
    struct err err = rq->err;

    if (how.how == FAKE_REFUSE)
        bridge_err(&err, how.hr, "refused\x1b[31m on purpose");
    else if (err.code == ERR_NONE)
        (void)answer(ctx, g, &rq->msg, &resp, &err);
    if (g->power.fired)
        return;
    if (err.code != ERR_NONE)
        bridge_response_fail(&resp, &err);
    bridge_response_encode(&resp, rq->id, BRIDGE_MAX_RESPONSE, &out);
    send_bytes(ctx, g, out.data, out.len);
    if (how.how == FAKE_TWICE)
        send_bytes(ctx, g, out.data, out.len);
}

static void request_main(void *arg)
{
    struct request *rq = arg;
    struct fake *g = rq->guest;
    struct ctx root, ctx = guest_ctx(g, &root);
    struct fake_answer how = { FAKE_ANSWER };
    struct err err = ERR_INIT;

    if (g->opts.decide_request)
        how = g->opts.decide_request(g->opts.decide_arg, &rq->msg);
    else if (g->opts.decide)
        how = g->opts.decide(g->opts.decide_arg, rq->msg.type);
    if (how.delay_ns)
        (void)fiber_sleep(&ctx, how.delay_ns, &err);
    if (g->power.fired || how.how == FAKE_SILENT)
        ; /* nothing to say */
    else if (how.how == FAKE_DISCONNECT)
        disconnect(g);
    else if (rq->msg.type == BRIDGE_SHUTDOWN_GRACEFUL && g->opts.power_off &&
             how.how == FAKE_ANSWER)
        g->opts.power_off(g->opts.power_off_arg);
    else if (how.how == FAKE_ANSWER || how.how == FAKE_REFUSE || how.how == FAKE_TWICE)
        send_answer(&ctx, rq, how);
    else
        send_poison(&ctx, g, how.how, rq->msg.type, rq->id);
    bridge_request_release(&rq->msg);
    free(rq);
    guest_unref(g);
}

static int take_request(struct ctx *ctx, struct fake *g, struct err *err)
{
    uint8_t raw[BRIDGE_HEADER_BYTES];
    struct bridge_header h;

    if (stream_read_full(ctx, g->bridge, raw, sizeof(raw), err) < 0 ||
        bridge_header_decode(raw, BRIDGE_SIDE_GUEST, BRIDGE_MAX_REQUEST, &h, err) < 0)
        return -1;

    AUTO_FREE char *payload = mem_alloc(h.size - sizeof(raw) + 1);

    if (stream_read_full(ctx, g->bridge, payload, h.size - sizeof(raw), err) < 0)
        return -1;

    struct request *rq = mem_new(struct request);

    rq->guest = g;
    rq->id = h.id;
    /* What cannot be decoded is answered with that error. */
    (void)bridge_request_decode(h.type, payload, h.size - sizeof(raw), &rq->msg, &rq->err);
    g->refs++;
    fiber_go(g->opts.loop, request_main, rq, "fake.%s", bridge_message_name(h.type));
    return 0;
}

/* --- boot --- */

static void forget_processes(struct fake *g)
{
    while (!list_empty(&g->processes)) {
        struct process *p = LIST_FIRST(&g->processes, struct process, node);

        list_remove(&p->node);
        process_unref(p);
    }
}

static void agent_main(void *arg)
{
    struct fake *g = arg;
    struct ctx root, ctx = guest_ctx(g, &root);
    struct err err = ERR_INIT;

    if (fiber_sleep(&ctx, g->opts.init_ns + g->opts.agent_ns, &err) == 0 && !g->opts.agent_hangs &&
        (g->bridge = dial(g, PORT_BRIDGE))) {
        g->bridge_users = 1;
        while (!g->bridge_ended && take_request(&ctx, g, &err) == 0)
            ;
        g->bridge_ended = true;
        bridge_put(g);
        /* The agent lives until the power goes, like its processes. */
        struct waitq q;

        waitq_init(&q);
        (void)waitq_wait(&ctx, &q, "power", &err);
    }
    forget_processes(g);
    fake_containers_forget(g);
    guest_unref(g);
}

static void entropy_main(void *arg)
{
    struct fake *g = arg;
    struct ctx root, ctx = guest_ctx(g, &root);
    struct err err = ERR_INIT;
    char seed[64];
    size_t n = 1;

    if (fiber_sleep(&ctx, g->opts.init_ns, &err) == 0) {
        AUTO(stream_free) struct stream *s = dial(g, PORT_ENTROPY);

        while (s && n > 0 && stream_read(&ctx, s, seed, sizeof(seed), &n, &err) == 0)
            ;
    }
    guest_unref(g);
}

static void log_main(void *arg)
{
    struct fake *g = arg;
    struct ctx root, ctx = guest_ctx(g, &root);
    struct err err = ERR_INIT;

    if (fiber_sleep(&ctx, g->opts.init_ns, &err) == 0) {
        AUTO(stream_free) struct stream *s = dial(g, PORT_LOG);
        struct waitq q;

        waitq_init(&q);
        if (s && g->opts.log_text)
            (void)stream_write_full(&ctx, s, g->opts.log_text, g->opts.log_len, &err);
        (void)waitq_wait(&ctx, &q, "power", &err);
        if (s && g->opts.log_lingers)
            (void)fiber_sleep(&root, LOG_LINGER, &err);
    }
    guest_unref(g);
}

void fake_guest_boot(const struct fake_guest_opts *opts)
{
    struct fake *g = mem_new(struct fake);

    g->opts = *opts;
    g->next_pid = FIRST_PID;
    cancel_init(&g->power, opts->power);
    gate_init(&g->writer, "fake.writer");
    list_init(&g->processes);
    list_init(&g->containers);
    g->refs = 1;
    if (!opts->skip_entropy) {
        g->refs++;
        fiber_go(opts->loop, entropy_main, g, "fake.entropy");
    }
    if (!opts->skip_log) {
        g->refs++;
        fiber_go(opts->loop, log_main, g, "fake.log");
    }
    fiber_go(opts->loop, agent_main, g, "fake.agent");
}
