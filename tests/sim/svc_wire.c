/* svc_wire.c - ttrpc as a client speaks it, by hand: what the product's own client would do is not
 * to be taken for granted here. */
#include "api/sandbox.pb-c.h"
#include "api/task.pb-c.h"
#include "base/loop.h"
#include "base/stream.h"
#include "fixture/stream_pair.h"
#include "fixture/ttrpc_read.h"
#include "host/rpc/rpc_server.h"
#include "host/service/service.h"
#include "proto/pb.h"
#include "proto/ttrpc.h"
#include "svc_priv.h"
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define WRITE_LIMIT (60 * NS_PER_S) /* the server reads, whatever is stuck */
#define PROCESS_TYPE "types.containerd.io/opencontainers/runtime-spec/1/Process"
#define RESOURCES_TYPE "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources"

static const char *const methods[] = {
    "Create",         "Start",          "Exec",        "Kill",          "Wait",     "Delete",
    "State",          "Pids",           "Connect",     "Pause",         "Resume",   "Stats",
    "Update",         "CloseIO",        "ResizePty",   "Checkpoint",    "Shutdown", "CreateSandbox",
    "StartSandbox",   "StopSandbox",    "WaitSandbox", "SandboxStatus", "Platform", "PingSandbox",
    "SandboxMetrics", "ShutdownSandbox"
};
_Static_assert(ARRAY_LEN(methods) == SVC_ACT_COUNT, "a method for each act");

const char *svc_method(enum svc_act a)
{
    return methods[a];
}

/* --- life --- */

void svc_conn_unref(struct svc_conn *c)
{
    if (!c || --c->refs > 0)
        return;
    LIST_FOR (struct svc_call, call, &c->calls, node) {
        list_remove(&call->node);
        free(call->text);
        free(call->payload);
        free(call);
    }
    stream_free(c->stream);
    free(c);
}

static struct svc_call *find(struct svc_conn *c, uint32_t stream)
{
    LIST_FOR (struct svc_call, call, &c->calls, node)
        if (call->stream == stream)
            return call;
    return NULL;
}

static void take_answer(struct svc_conn *c, const struct ttrpc_header *h, const uint8_t *body)
{
    struct svc_call *call = find(c, h->stream);
    struct ttrpc_response r;

    if (c->vandal && !call)
        return; /* what it sent was not worth remembering */
    if (h->type != TTRPC_RESPONSE)
        world_broken(&c->s->w, "a frame of type %u came for a request", h->type);
    else if (!call)
        world_broken(&c->s->w, "an answer to stream %u, which has no request", h->stream);
    else if (call->answered)
        world_broken(&c->s->w, "%s was answered twice", svc_method(call->ask.act));
    else if (ttrpc_response_decode((struct pb_slice){ body, h->len }, &r) < 0)
        world_broken(&c->s->w, "the answer to %s is not a response", svc_method(call->ask.act));
    else {
        call->answered = true;
        call->answered_ns = loop_now(c->s->w.loop);
        call->code = r.code;
        call->text = pb_slice_dup(r.message);
        call->payload = mem_alloc(r.payload.len + 1);
        call->len = r.payload.len;
        if (r.payload.len)
            memcpy(call->payload, r.payload.data, r.payload.len);
        svc_check_answer(c->s, call);
        waitq_wake_all(&call->q);
    }
}

static int read_one(struct ctx *ctx, struct svc_conn *c, struct err *err)
{
    struct world *w = &c->s->w;
    uint8_t raw[TTRPC_HEADER_BYTES];
    struct ttrpc_header h;

    if (c->slow && !c->s->closing && world_chance(w, 300))
        (void)fiber_sleep(ctx, world_some_ns(w, 3 * NS_PER_S), err);
    if (stream_read_full(ctx, c->stream, raw, sizeof(raw), err) < 0)
        return -1;
    ttrpc_header_decode(raw, &h);
    if (h.len > TTRPC_BODY_MAX) {
        world_broken(w, "an answer of %u bytes is announced", h.len);
        return -1;
    }

    AUTO_FREE uint8_t *body = mem_alloc(h.len + 1);

    if (stream_read_full(ctx, c->stream, body, h.len, err) < 0)
        return -1;
    take_answer(c, &h, body);
    return 0;
}

static void reader_main(void *arg)
{
    struct svc_conn *c = arg;
    struct ctx ctx = ctx_root(c->s->w.loop);
    struct err err = ERR_INIT;

    while (read_one(&ctx, c, &err) == 0)
        ;
    c->ended = true;
    if (!c->hung_up && !c->s->leaving)
        world_broken(&c->s->w, "the server hangs up: %s", err.msg);
    LIST_FOR (struct svc_call, call, &c->calls, node) {
        call->lost = !call->answered;
        waitq_wake_all(&call->q);
    }
    svc_conn_unref(c);
}

struct svc_conn *svc_conn_new(struct svc *s)
{
    struct svc_conn *c = mem_new(struct svc_conn);
    struct stream *theirs;

    c->s = s;
    c->refs = 2;
    c->next_id = 1;
    c->slow = s->bad_frames && world_chance(&s->w, 300);
    c->vandal = s->bad_frames && world_chance(&s->w, 500);
    list_init(&c->calls);
    gate_init(&c->writer, "client's writer");
    stream_pair(s->w.loop,
                c->slow || world_chance(&s->w, 100) ? 1 + world_below(&s->w, 200) : 65536,
                &c->stream, &theirs);
    rpc_server_serve(s->server, theirs);
    fibers_go(&s->helpers, s->w.loop, reader_main, c, "sim.client reader");
    return c;
}

void svc_conn_hang_up(struct svc_conn *c)
{
    c->hung_up = true;
    (void)stream_shutdown(c->stream, SHUT_RDWR);
}

/* --- requests --- */

/* As the generated structs are: id first, exec_id second, where there is one. */
static void pack(struct svc *s, const struct svc_ask *a, struct sbuf *out)
{
    static const char process[] = "{\"args\":[\"sh\"],\"cwd\":\"/\"}";
    const ProtobufCMethodDescriptor *m = protobuf_c_service_descriptor_get_method_by_name(
        a->act >= SVC_SB_CREATE ? &sandbox__descriptor : &task__descriptor, methods[a->act]);
    AUTO(pb_free) void *msg = pb_new(m->input);
    const ProtobufCFieldDescriptor *exec =
        protobuf_c_message_descriptor_get_field_by_name(m->input, "exec_id");

    pb_set_str((const char **)((char *)msg + m->input->fields[0].offset), a->id);
    if (exec)
        pb_set_str((const char **)((char *)msg + exec->offset), a->exec);
    if (a->act == SVC_CREATE) {
        CreateTaskRequest *r = msg;

        pb_set_str(&r->bundle, a->bad == ERR_INVALID ? "nowhere" : s->bundle);
        pb_set_str(&r->stdin, world_chance(&s->w, 300) ? "/in" : "");
        pb_set_str(&r->stdout, "/out");
    } else if (a->act == SVC_EXEC) {
        ExecProcessRequest *r = msg;

        pb_set_str(&r->stdout, "/xout");
        if (!a->bad)
            pb_set_any_raw(&r->spec, PROCESS_TYPE, process, sizeof(process) - 1);
    } else if (a->act == SVC_KILL) {
        KillRequest *r = msg;

        r->signal = a->signo;
        r->all = a->all;
    } else if (a->act == SVC_UPDATE) {
        UpdateTaskRequest *r = msg;

        pb_set_any_raw(&r->resources, RESOURCES_TYPE, "{}", 2);
    } else if (a->act == SVC_CLOSE_IO) {
        ((CloseIORequest *)msg)->stdin = true;
    } else if (a->act == SVC_RESIZE) {
        ((ResizePtyRequest *)msg)->width = 80;
    } else if (a->act == SVC_SB_CREATE) { /* as CRI: there is no config.json */
        pb_set_str(&((CreateSandboxRequest *)msg)->bundle_path, "/sim/none");
    } else if (a->act == SVC_SB_STOP) {
        ((StopSandboxRequest *)msg)->timeout_secs = a->grace_s;
    }
    (void)pb_pack(msg, out); /* all texts are ours */
}

static void make_frame(struct svc *s, struct svc_call *call, struct sbuf *frame)
{
    static const char room[TTRPC_HEADER_BYTES];
    AUTO(sbuf_release) struct sbuf payload = { 0 }, metadata = { 0 };
    const char *service = world_chance(&s->w, 500) ? SERVICE_TASK_V2 : SERVICE_TASK_V3;

    if (call->ask.act >= SVC_SB_CREATE)
        service = SERVICE_SANDBOX;

    pack(s, &call->ask, &payload);
    svc_laws_asked(s, &call->ask);
    if (world_chance(&s->w, 500))
        ttrpc_put_metadata(&metadata, "containerd-namespace-ttrpc", "sim");
    sbuf_add(frame, room, sizeof(room));
    ttrpc_put_request(
        frame, &(struct ttrpc_request){ .service = pb_slice_of(service),
                                        .method = pb_slice_of(methods[call->ask.act]),
                                        .payload = { (uint8_t *)payload.data, payload.len },
                                        .timeout_nano = call->ask.timeout_ns,
                                        .metadata = { (uint8_t *)metadata.data, metadata.len } });
    ttrpc_header_encode(&(struct ttrpc_header){ (uint32_t)(frame->len - TTRPC_HEADER_BYTES),
                                                call->stream, TTRPC_REQUEST, 0 },
                        (uint8_t *)frame->data);
}

/* In one piece; or in two, with time between them. */
static int write_frame(struct ctx *ctx, struct svc_conn *c, const struct sbuf *frame,
                       struct err *err)
{
    struct world *w = &c->s->w;
    size_t cut =
        c->s->bad_frames && world_chance(w, 200) ? world_below(w, (unsigned)frame->len) : 0;

    if (cut > 0) {
        if (stream_write_full(ctx, c->stream, frame->data, cut, err) < 0)
            return -1;
        (void)fiber_sleep(ctx, world_some_ns(w, 2 * NS_PER_S), err);
    }
    return stream_write_full(ctx, c->stream, frame->data + cut, frame->len - cut, err);
}

struct svc_call *svc_conn_send(struct ctx *ctx, struct svc_conn *c, const struct svc_ask *ask)
{
    struct ctx limited = ctx_with_timeout(ctx, WRITE_LIMIT);
    struct err err = ERR_INIT;
    AUTO(sbuf_release) struct sbuf frame = { 0 };
    AUTO(gate_leave) struct gate *held = gate_enter(&c->writer, &limited, "write", &err);
    struct svc_call *call;

    if (!held || c->ended || c->hung_up)
        return NULL;
    call = mem_new(struct svc_call);
    call->conn = c;
    call->ask = *ask;
    call->stream = c->next_id;
    c->next_id += 2;
    waitq_init(&call->q);
    list_append(&c->calls, &call->node);
    make_frame(c->s, call, &frame);
    if (ask->act == SVC_SHUTDOWN || ask->act == SVC_SB_SHUTDOWN)
        c->s->shutdowns++;
    if ((ask->act == SVC_SB_STOP && !ask->bad) || ask->act == SVC_SB_SHUTDOWN)
        c->s->stops++;
    call->sent_ns = loop_now(c->s->w.loop);
    call->held_ns = svc_held(c->s);
    if (write_frame(&limited, c, &frame, &err) < 0) {
        if (err.code == ERR_DEADLINE)
            world_broken(&c->s->w, "the server does not read its requests");
        call->lost = true;
        return NULL;
    }
    call->sent = true;
    if (!call->answered) {
        call->sent_ns = loop_now(c->s->w.loop);
        call->held_ns = svc_held(c->s);
    }
    return call;
}

int svc_call_wait(struct ctx *ctx, struct svc_call *call, struct err *err)
{
    while (!call->answered && !call->lost)
        if (waitq_wait(ctx, &call->q, "an answer", err) < 0)
            return -1;
    return 0;
}

void *svc_call_answer(struct svc_call *call, const ProtobufCMessageDescriptor *type)
{
    void *msg = NULL;

    if (call->code != ERR_NONE)
        return NULL;
    if (pb_unpack(type, (struct pb_slice){ call->payload, call->len }, PB_MEM_MAX, &msg, NULL) < 0)
        world_broken(&call->conn->s->w, "the answer to %s is no %s", svc_method(call->ask.act),
                     type->short_name);
    return msg;
}

unsigned svc_conn_open_calls(const struct svc_conn *c)
{
    unsigned n = 0;

    LIST_FOR (const struct svc_call, call, &c->calls, node)
        n += call->sent && !call->answered;
    return n;
}

void svc_conn_check(struct svc_conn *c)
{
    LIST_FOR (struct svc_call, call, &c->calls, node)
        if (!c->hung_up && !c->slow && call->sent && call->sent_ns < c->s->leave_ns &&
            !call->answered)
            world_broken(&c->s->w, "%s %s/%s was never answered", svc_method(call->ask.act),
                         call->ask.id, call->ask.exec);
}

/* --- invalid requests --- */

/* Each is answered on its stream or ignored, and the connection stays open. */
static void put_rubbish(struct world *w, struct svc_conn *c, struct sbuf *out)
{
    struct ttrpc_header h = { 1 + world_below(w, 40), c->next_id, TTRPC_REQUEST, 0 };
    uint8_t raw[TTRPC_HEADER_BYTES];

    switch (world_below(w, 4)) {
    case 0:
        h.type = (uint8_t)(4 + world_below(w, 200)); /* of a later version */
        break;
    case 1:
        h.stream = world_chance(w, 500) ? 0 : c->next_id + 1; /* a server's */
        break;
    case 2:
        h.type = TTRPC_DATA; /* of a stream that is not open */
        break;
    default:
        break; /* a body that is not a request */
    }
    c->next_id += 2; /* what comes back on that stream is nobody's */
    ttrpc_header_encode(&h, raw);
    sbuf_add(out, raw, sizeof(raw));
    for (uint32_t i = 0; i < h.len; i++)
        sbuf_addc(out, (char)(0x80 | world_below(w, 128)));
}

bool svc_conn_vandalise(struct ctx *ctx, struct svc_conn *c)
{
    struct world *w = &c->s->w;
    AUTO(sbuf_release) struct sbuf out = { 0 };
    struct err err = ERR_INIT;
    AUTO(gate_leave) struct gate *held = gate_enter(&c->writer, ctx, "write", &err);

    if (!held || c->ended)
        return true;
    put_rubbish(w, c, &out);
    if (world_chance(w, 200)) { /* and breaks off in it */
        (void)stream_write_full(ctx, c->stream, out.data, world_below(w, (unsigned)out.len), &err);
        world_say(w, "a client breaks off in a frame");
        return false;
    }
    (void)stream_write_full(ctx, c->stream, out.data, out.len, &err);
    return true;
}
