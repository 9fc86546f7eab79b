#include "api/bootstrap.pb-c.h"
#include "api/cgroups_v2.pb-c.h"
#include "api/events.pb-c.h"
#include "api/forward.pb-c.h"
#include "api/runhcs.pb-c.h"
#include "api/runtimeoptions.pb-c.h"
#include "api/sandbox.pb-c.h"
#include "api/shimdiag.pb-c.h"
#include "api/streaming.pb-c.h"
#include "api/task.pb-c.h"
#include "api/transfer.pb-c.h"
#include "api/types.pb-c.h"
#include "fixture/ttrpc_read.h"
#include "fixture/ttrpc_vectors.h"
#include "harness/tap.h"
#include "proto/pb.h"
#include "proto/ttrpc.h"
#include <errno.h>
#include <string.h>

#define WHEN UINT64_C(1700000000123456789)
#define SLICE(b) ((struct pb_slice){ (const uint8_t *)(b).data, (b).len })
#define BYTES(s) ((struct pb_slice){ (const uint8_t *)(s), sizeof(s) - 1 })

/* The bytes decode, nothing of them is unknown, and what was decoded encodes to the same bytes. */
static void *both_ways(const char *name, const ProtobufCMessageDescriptor *type)
{
    struct vector v = vector_load(name);
    AUTO(sbuf_release) struct sbuf again = { 0 };
    void *msg = NULL;

    ASSERT_EQ(pb_unpack(type, vector_slice(&v), PB_MEM_MAX, &msg, NULL), 0);
    ASSERT_EQ(((ProtobufCMessage *)msg)->n_unknown_fields, 0);
    ASSERT_EQ(pb_pack(msg, &again), 0);
    vector_same(name, again.data, again.len);
    return msg;
}

TEST(bootstrap_parameters_vector)
{
    AUTO(pb_free)
    Bootstrap__BootstrapParams *p = both_ways("B1", &bootstrap__bootstrap_params__descriptor);

    ASSERT_STR(p->instance_id, "c1");
    ASSERT_STR(p->namespace_, "default");
    ASSERT_EQ(p->log_level, BOOTSTRAP__LOG_LEVEL__DEBUG);
    ASSERT_STR(p->containerd_version, "v2.3.4");
    ASSERT_STR(p->containerd_ttrpc_address, "/run/containerd/containerd.sock.ttrpc");
    ASSERT_STR(p->containerd_binary, "/usr/bin/containerd");
    ASSERT_STR(p->socket_dir, "/run/containerd/s");
    ASSERT_EQ(p->n_extensions, 0);
}

TEST(bootstrap_result_vector)
{
    AUTO(pb_free)
    Bootstrap__BootstrapResult *r = both_ways("B2", &bootstrap__bootstrap_result__descriptor);

    ASSERT_EQ(r->version, 3);
    ASSERT_STR(r->protocol, "ttrpc");
    ASSERT_HAS(r->address, "unix:///run/containerd/s/d25aa4ef");
}

TEST(legacy_options_vector)
{
    AUTO(pb_free) Any *any = both_ways("B3", &any__descriptor);
    AUTO(pb_free) Runtimeoptions__Options *o = NULL;
    void *msg = NULL;

    ASSERT_STR(pb_any_type(any), "runtimeoptions.v1.Options");
    ASSERT_EQ(pb_any_unpack(any, &runhcs__options__descriptor, &msg), -ENOMSG);
    ASSERT_EQ(pb_any_unpack(any, &runtimeoptions__options__descriptor, (void **)&o), 0);
    ASSERT_STR(o->config_path, "/etc/lcow.toml");
    ASSERT_STR(o->type_url, "");
}

TEST(delete_response_vector)
{
    AUTO(pb_free) DeleteResponse *d = both_ways("B4", &delete_response__descriptor);

    ASSERT_EQ(d->pid, 4343);
    ASSERT_EQ(d->exit_status, 137);
    ASSERT_EQ(pb_time(d->exited_at), WHEN);
}

TEST(runtime_info_vector)
{
    AUTO(pb_free) RuntimeInfo *i = both_ways("B5", &runtime_info__descriptor);

    ASSERT_STR(i->name, "io.containerd.lcow.v2");
    ASSERT_STR(i->version->revision, "abcdef");
    ASSERT_EQ(i->n_annotations, 1);
    ASSERT_STR(i->annotations[0]->key, "containerd.io/runtime-allow-mounts");
    ASSERT_STR(i->annotations[0]->value, "mkdir/*,format/*,mkfs/*,erofs,loop");
}

/* The payload of a request vector. */
static struct pb_slice payload_of(const struct vector *v)
{
    struct ttrpc_frame f;
    struct ttrpc_request r;
    size_t used;

    ASSERT_EQ(ttrpc_frame_decode(v->bytes, v->len, &f, &used), 0);
    ASSERT_EQ(ttrpc_request_decode(f.body, &r), 0);
    return r.payload;
}

TEST(an_exit_event_is_built_to_the_byte)
{
    struct vector v = vector_load("T7");
    struct pb_slice want = payload_of(&v);
    AUTO(sbuf_release) struct sbuf got = { 0 };
    AUTO(pb_free) Any *event = NULL;
    Timestamp when = pb_time_of(WHEN);
    TaskExit exit = TASK_EXIT__INIT;
    Envelope envelope = ENVELOPE__INIT;
    ForwardRequest forward = FORWARD_REQUEST__INIT;

    exit.container_id = exit.id = "c1";
    exit.pid = 4343;
    exit.exit_status = 137;
    exit.exited_at = envelope.timestamp = &when;
    ASSERT_EQ(pb_set_any(&event, &exit), 0);
    ASSERT_STR(event->type_url, "containerd.events.TaskExit");
    envelope.namespace_ = "default";
    envelope.topic = "/tasks/exit";
    envelope.event = event;
    forward.envelope = &envelope;
    ASSERT_EQ(pb_pack(&forward, &got), 0);
    ASSERT_EQ(got.len, want.len);
    ASSERT(memcmp(got.data, want.data, want.len) == 0);
}

TEST(kill_request_vector)
{
    struct vector v = vector_load("T3");
    AUTO(pb_free) KillRequest *k = NULL;

    ASSERT_EQ(pb_unpack(&kill_request__descriptor, payload_of(&v), PB_MEM_MAX, (void **)&k, NULL),
              0);
    ASSERT_STR(k->id, "c1");
    ASSERT_STR(k->exec_id, "");
    ASSERT_EQ(k->signal, 9);
    ASSERT(k->all);
}

TEST(stream_messages_vectors)
{
    struct vector v9 = vector_load("T9"), v12 = vector_load("T12");
    AUTO(pb_free) Any *init_any = NULL, *data_any = NULL;
    AUTO(pb_free) StreamInit *init = NULL;
    AUTO(pb_free) Transfer__Data *data = NULL;
    struct pb_slice b9 = { v9.bytes + 10, v9.len - 10 }, b12 = { v12.bytes + 10, v12.len - 10 };

    ASSERT_EQ(pb_unpack(&any__descriptor, b9, PB_MEM_MAX, (void **)&init_any, NULL), 0);
    ASSERT_EQ(pb_any_unpack(init_any, &stream_init__descriptor, (void **)&init), 0);
    ASSERT_STR(init->id, "c1-stdout");
    ASSERT_EQ(pb_unpack(&any__descriptor, b12, PB_MEM_MAX, (void **)&data_any, NULL), 0);
    ASSERT_EQ(pb_any_unpack(data_any, &transfer__data__descriptor, (void **)&data), 0);
    ASSERT_EQ(data->data.len, 3);
}

TEST(names_on_the_wire_are_containerds)
{
    ASSERT_STR(task__descriptor.name, "containerd.task.v3.Task");
    ASSERT_EQ(task__descriptor.n_methods, 17);
    ASSERT_STR(sandbox__descriptor.name, "containerd.runtime.sandbox.v1.Sandbox");
    ASSERT_EQ(sandbox__descriptor.n_methods, 9);
    ASSERT_STR(events__descriptor.name, "containerd.services.events.ttrpc.v1.Events");
    ASSERT_STR(streaming__descriptor.name, "containerd.services.streaming.v1.Streaming");
    ASSERT_STR(diag__shim_diag__descriptor.name, "containerd.runhcs.v1.diag.ShimDiag");
    ASSERT_EQ(diag__shim_diag__descriptor.n_methods, 5);
    ASSERT_STR(cgroups2__metrics__descriptor.name, "io.containerd.cgroups.v2.Metrics");
    ASSERT_STR(runhcs__options__descriptor.name, "containerd.runhcs.v1.Options");
}

TEST(an_any_with_a_prefix_is_the_same_type)
{
    AUTO(pb_free) Any *any = NULL;
    AUTO(pb_free) Runhcs__Options *o = NULL;

    pb_set_any_raw(&any, "type.googleapis.com/containerd.runhcs.v1.Options", "\xa0\x01\x00", 3);
    ASSERT_EQ(pb_any_unpack(any, &runhcs__options__descriptor, (void **)&o), 0);
    /* Set to false is not the same as unset. */
    ASSERT_EQ(o->scrub_case, RUNHCS__OPTIONS__SCRUB_SCRUB_LOGS);
    ASSERT(!o->scrub_logs);
    ASSERT_STR(pb_any_type(NULL), "");
    ASSERT_EQ(pb_any_unpack(NULL, &runhcs__options__descriptor, (void **)&o), -ENOMSG);
}

TEST(strings_must_be_text)
{
    void *msg = NULL;

    /* A NUL would make "c1\0x" the same container as "c1". */
    ASSERT_EQ(pb_unpack(&kill_request__descriptor,
                        BYTES("\x0a\x04"
                              "c1\0x"),
                        PB_MEM_MAX, &msg, NULL),
              -EBADMSG);
    ASSERT_EQ(
        pb_unpack(&kill_request__descriptor, BYTES("\x0a\x02\xc3\x28"), PB_MEM_MAX, &msg, NULL),
        -EBADMSG);
    /* Deeper: the second mount's third option. Bytes fields may hold anything. */
    ASSERT_EQ(pb_unpack(&create_task_request__descriptor,
                        BYTES("\x1a\x03\x22\x01"
                              "a\x1a\x06\x22\x01"
                              "b\x22\x01\xff"),
                        PB_MEM_MAX, &msg, NULL),
              -EBADMSG);
    ASSERT_EQ(pb_unpack(&any__descriptor, BYTES("\x12\x02\xff\0"), PB_MEM_MAX, &msg, NULL), 0);
    pb_free(msg);
}

TEST(of_a_field_sent_twice_the_last_counts)
{
    AUTO(pb_free) KillRequest *k = NULL;

    ASSERT_EQ(pb_unpack(&kill_request__descriptor,
                        BYTES("\x0a\x01"
                              "a\x18\x01\x0a\x01"
                              "b\x18\x02"),
                        PB_MEM_MAX, (void **)&k, NULL),
              0);
    ASSERT_STR(k->id, "b");
    ASSERT_EQ(k->signal, 2);
}

TEST(invalid_text_is_not_sent)
{
    AUTO(sbuf_release) struct sbuf out = { 0 };
    StateResponse s = STATE_RESPONSE__INIT;

    sbuf_adds(&out, "before");
    s.bundle = "\xff";
    ASSERT_EQ(pb_pack(&s, &out), -EILSEQ);
    ASSERT_EQ(out.len, 6);
    s.bundle = "/run/ü";
    ASSERT_EQ(pb_pack(&s, &out), 0);
    ASSERT_EQ(out.len, 6 + 2 + 7);
}

TEST(memory_is_bounded)
{
    AUTO(sbuf_release) struct sbuf body = { 0 };
    void *msg = NULL;
    size_t bytes = 0;

    for (int i = 0; i < 100000; i++)
        sbuf_add(&body, "\x1a\x00", 2); /* an empty mount takes two bytes here, a hundred there */
    ASSERT_EQ(pb_unpack(&create_task_request__descriptor, SLICE(body), 1 << 20, &msg, NULL),
              -E2BIG);
    ASSERT_EQ(pb_unpack(&create_task_request__descriptor, SLICE(body), PB_MEM_MAX, &msg, &bytes),
              0);
    ASSERT_EQ(((CreateTaskRequest *)msg)->n_rootfs, 100000);
    ASSERT(bytes > 1 << 20 && bytes < PB_MEM_MAX);
    pb_free(msg);
}

TEST(every_limit_below_the_need_is_refused_without_a_leak)
{
    struct vector v = vector_load("B5");
    size_t need = 0;
    void *msg = NULL;

    ASSERT_EQ(pb_unpack(&runtime_info__descriptor, vector_slice(&v), PB_MEM_MAX, &msg, &need), 0);
    pb_free(msg);
    for (size_t limit = 0; limit < need; limit++)
        ASSERT_EQ(pb_unpack(&runtime_info__descriptor, vector_slice(&v), limit, &msg, NULL),
                  -E2BIG);
    ASSERT_EQ(pb_unpack(&runtime_info__descriptor, vector_slice(&v), need, &msg, NULL), 0);
    pb_free(msg);
}

TEST(fields_of_a_response_can_be_set_again)
{
    AUTO(pb_free) StateResponse *s = pb_new(&state_response__descriptor);
    AUTO(pb_free) PidsResponse *p = pb_new(&pids_response__descriptor);

    ASSERT_STR(s->id, "");
    pb_set_str(&s->id, "a");
    pb_set_str(&s->id, "b");
    ASSERT_STR(s->id, "b");
    pb_set_str(&s->id, NULL);
    ASSERT_STR(s->id, "");
    pb_set_time(&s->exited_at, 1);
    pb_set_time(&s->exited_at, WHEN);
    ASSERT_EQ(pb_time(s->exited_at), WHEN);
    for (unsigned i = 1; i <= 3; i++) {
        ProcessInfo *info = pb_new(&process_info__descriptor);

        info->pid = i;
        pb_add(p->processes, p->n_processes, info);
    }
    ASSERT_EQ(p->n_processes, 3);
    ASSERT_EQ(p->processes[2]->pid, 3);
}
