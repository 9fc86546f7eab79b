/* publisher_test.c - publishing events to a containerd that accepts, is stopped, is slow or
 * refuses.
 */
#include "api/events.pb-c.h"
#include "api/forward.pb-c.h"
#include "base/clock.h"
#include "base/fiber.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/stream.h"
#include "fixture/stream_pair.h"
#include "fixture/ttrpc_read.h"
#include "fixture/ttrpc_vectors.h"
#include "harness/tap.h"
#include "host/control/events.h"
#include "host/rpc/rpc_client.h"
#include "host/rpc/rpc_server.h"
#include "host/shim/publisher.h"
#include "proto/pb.h"
#include "proto/ttrpc.h"
#include <string.h>

#define SERVICE "containerd.services.events.ttrpc.v1.Events"

__attribute__((constructor)) static void quiet(void)
{
    log_init(2, LOG_OFF, LOG_LOGFMT);
}

/* containerd's end. */
struct peer {
    struct rpc_server *server;
    struct strv got;              /* "topic id" */
    bool away, silent, unwilling; /* refuses connections; takes no answer; refuses events */
    unsigned connects, calls, lose_answers;
    struct latch never;
};

static int forward(struct ctx *ctx, struct peer *p, const ForwardRequest *req, Empty *resp,
                   struct err *err)
{
    AUTO(pb_free) TaskStart *start = NULL;

    (void)resp;
    p->calls++;
    if (p->silent)
        return latch_wait(ctx, &p->never, "nothing", err);
    if (p->unwilling)
        return err_set(err, ERR_INVALID, "bad topic");
    ASSERT_STR(req->envelope->namespace_, "test");
    ASSERT(pb_time(req->envelope->timestamp) > 0);
    if (pb_any_unpack(req->envelope->event, &task_start__descriptor, (void **)&start) == 0)
        strv_addf(&p->got, "%s %s", req->envelope->topic, start->container_id);
    else
        strv_add(&p->got, req->envelope->topic);
    return 0;
}

static const struct rpc_method methods[] = {
    RPC_METHOD("Forward", forward, struct peer, ForwardRequest, Empty),
};
static const struct rpc_service events_service = { &events__descriptor, methods, 1 };

static int dial(struct ctx *ctx, void *arg, struct rpc_client **ret, struct err *err)
{
    struct peer *p = arg;
    struct stream *ours, *theirs;

    p->connects++;
    if (p->away)
        return err_set(err, ERR_UNAVAILABLE, "connection refused");
    stream_pair(ctx->loop, 65536, &ours, &theirs);
    rpc_server_serve(p->server, theirs);
    *ret = rpc_client_new(ctx->loop, ours);
    return 0;
}

static void peer_begin(struct ctx *ctx, struct peer *p)
{
    p->server = rpc_server_new(ctx->loop);
    latch_init(&p->never);
    rpc_server_add(p->server, SERVICE, &events_service, p);
}

static void peer_end(struct ctx *ctx, struct peer *p)
{
    struct ctx now = ctx_with_timeout(ctx, 0);
    struct err err = ERR_INIT;

    ASSERT_OK(rpc_server_shutdown(&now, p->server, &err), err);
    rpc_server_free(p->server);
    strv_release(&p->got);
}

static struct publisher *publish_to(struct ctx *ctx, struct peer *p, struct events *q)
{
    return publisher_new(&(struct publisher_opts){ .loop = ctx->loop,
                                                   .events = q,
                                                   .ns = "test",
                                                   .address = "/somewhere",
                                                   .connect = dial,
                                                   .arg = p });
}

static void push(struct ctx *ctx, struct events *q, const char *id)
{
    events_push(q, &(struct event){ .kind = EVENT_START,
                                    .wall_ns = loop_wall(ctx->loop) + 1,
                                    .container_id = id,
                                    .exec_id = "",
                                    .pid = 1 });
}

static void end(struct ctx *ctx, struct publisher *pub, struct events *q, struct peer *p)
{
    struct err err = ERR_INIT;

    ASSERT_OK(publisher_stop(ctx, pub, &err), err);
    publisher_free(pub);
    events_free(q);
    peer_end(ctx, p);
}

TEST(T7_an_exit_is_encoded_as_containerd_reads_it)
{
    struct event e = { .kind = EVENT_EXIT,
                       .wall_ns = UINT64_C(1700000000123456789),
                       .container_id = "c1",
                       .exec_id = "",
                       .pid = 4343,
                       .exit_status = 137,
                       .exited_wall_ns = UINT64_C(1700000000123456789) };
    AUTO(pb_free) ForwardRequest *req = publisher_wire(&e, "default");
    AUTO(sbuf_release) struct sbuf payload = { 0 };
    struct vector v = vector_load("T7");

    ASSERT(req);
    ASSERT_EQ(pb_pack(req, &payload), 0);
    ASSERT(memmem(v.bytes, v.len, payload.data, payload.len));
    ASSERT(payload.len > 90);
}

TEST(every_kind_has_topic_type_and_fields)
{
    static const char *const want[EVENT_KIND_COUNT][2] = {
        [EVENT_CREATE] = { "/tasks/create", "containerd.events.TaskCreate" },
        [EVENT_START] = { "/tasks/start", "containerd.events.TaskStart" },
        [EVENT_EXEC_ADDED] = { "/tasks/exec-added", "containerd.events.TaskExecAdded" },
        [EVENT_EXEC_STARTED] = { "/tasks/exec-started", "containerd.events.TaskExecStarted" },
        [EVENT_OOM] = { "/tasks/oom", "containerd.events.TaskOOM" },
        [EVENT_EXIT] = { "/tasks/exit", "containerd.events.TaskExit" },
        [EVENT_DELETE] = { "/tasks/delete", "containerd.events.TaskDelete" },
        [EVENT_PAUSED] = { "/tasks/paused", "containerd.events.TaskPaused" },
        [EVENT_RESUMED] = { "/tasks/resumed", "containerd.events.TaskResumed" },
    };

    for (unsigned k = 0; k < EVENT_KIND_COUNT; k++) {
        struct event e = { .kind = (enum event_kind)k,
                           .wall_ns = 1,
                           .container_id = "c1",
                           .exec_id = "e1",
                           .bundle = "/b",
                           .in = "",
                           .out = "/o",
                           .err = "" };
        AUTO(pb_free) ForwardRequest *req = publisher_wire(&e, "n");

        ASSERT_STR(req->envelope->topic, want[k][0]);
        ASSERT_STR(req->envelope->event->type_url, want[k][1]);
        ASSERT(memmem(req->envelope->event->value.data, req->envelope->event->value.len,
                      "\x0a\x02"
                      "c1",
                      4));
    }
}

TEST(a_create_event_has_mounts_and_stdio)
{
    const char *const options[] = { "ro", "rbind", NULL };
    struct event_mount mount = { "bind", "/src", "", options };
    struct event e = { .kind = EVENT_CREATE,
                       .wall_ns = 1,
                       .container_id = "c1",
                       .exec_id = "",
                       .bundle = "/b",
                       .in = "/i",
                       .out = "/o",
                       .err = "/e",
                       .terminal = true,
                       .pid = 7,
                       .rootfs = &mount,
                       .n_rootfs = 1 };
    AUTO(pb_free) ForwardRequest *req = publisher_wire(&e, "n");
    AUTO(pb_free) TaskCreate *m = NULL;

    ASSERT_EQ(pb_any_unpack(req->envelope->event, &task_create__descriptor, (void **)&m), 0);
    ASSERT_STR(m->bundle, "/b");
    ASSERT_EQ(m->pid, 7);
    ASSERT_STR(m->io->stdin, "/i");
    ASSERT(m->io->terminal);
    ASSERT_EQ(m->n_rootfs, 1);
    ASSERT_EQ(m->rootfs[0]->n_options, 2);
    ASSERT_STR(m->rootfs[0]->options[1], "rbind");
}

TEST(an_event_with_invalid_utf8_is_not_sent)
{
    struct event e = { .kind = EVENT_START, .wall_ns = 1, .container_id = "\xff", .exec_id = "" };

    ASSERT(!publisher_wire(&e, "n"));
}

TEST_VIRTUAL(events_arrive_in_order_over_one_connection)
{
    struct peer p = { 0 };
    struct events *q = events_new();
    struct err err = ERR_INIT;

    peer_begin(ctx, &p);
    push(ctx, q, "a");
    push(ctx, q, "b");

    struct publisher *pub = publish_to(ctx, &p, q);

    push(ctx, q, "c");
    ASSERT_OK(events_flush(ctx, q, &err), err);
    ASSERT_EQ(p.got.n, 3);
    ASSERT_STR(p.got.v[0], "/tasks/start a");
    ASSERT_STR(p.got.v[2], "/tasks/start c");
    ASSERT_EQ(p.connects, 1);
    end(ctx, pub, q, &p);
}

TEST_VIRTUAL(ws09_a_containerd_that_is_away_delays_nothing_but_its_events)
{
    struct peer p = { .away = true };
    struct events *q = events_new();
    struct err err = ERR_INIT;

    peer_begin(ctx, &p);

    struct publisher *pub = publish_to(ctx, &p, q);
    uint64_t before = loop_now(ctx->loop);

    for (int i = 0; i < 100; i++)
        push(ctx, q, "a");
    push(ctx, q, "last");
    ASSERT_EQ(loop_now(ctx->loop), before); /* nobody waited */
    ASSERT_OK(fiber_sleep(ctx, 5 * NS_PER_S, &err), err);
    ASSERT_EQ(p.got.n, 0);
    p.away = false;
    ASSERT_OK(events_flush(ctx, q, &err), err);
    ASSERT_EQ(p.got.n, 101);
    ASSERT_STR(p.got.v[100], "/tasks/start last");
    end(ctx, pub, q, &p);
}

TEST_VIRTUAL(the_first_event_is_dropped_after_a_minute_and_the_next_is_tried)
{
    struct peer p = { .away = true };
    struct events *q = events_new();
    struct err err = ERR_INIT;
    struct ctx root = ctx_root(ctx->loop), longer = ctx_with_timeout(&root, 600 * NS_PER_S);

    peer_begin(ctx, &p);
    push(ctx, q, "a");
    push(ctx, q, "b");

    struct publisher *pub = publish_to(ctx, &p, q);

    ASSERT_OK(fiber_sleep(&longer, 59 * NS_PER_S, &err), err);
    ASSERT_EQ(events_pending(q), 2);
    ASSERT_OK(fiber_sleep(&longer, 4 * NS_PER_S, &err), err);
    ASSERT_EQ(events_pending(q), 1);
    ASSERT_EQ(events_dropped(q), 1);
    p.away = false;
    ASSERT_OK(events_flush(&longer, q, &err), err);
    ASSERT_EQ(p.got.n, 1);
    ASSERT_STR(p.got.v[0], "/tasks/start b");
    ASSERT(p.connects < 60); /* not a busy loop */
    end(&longer, pub, q, &p);
}

TEST_VIRTUAL(an_event_that_containerd_refuses_is_not_sent_again)
{
    struct peer p = { .unwilling = true };
    struct events *q = events_new();
    struct err err = ERR_INIT;

    peer_begin(ctx, &p);
    push(ctx, q, "bad");

    struct publisher *pub = publish_to(ctx, &p, q);

    ASSERT_OK(events_flush(ctx, q, &err), err);
    ASSERT_EQ(p.calls, 1);
    ASSERT_EQ(events_dropped(q), 1);
    p.unwilling = false;
    push(ctx, q, "good");
    ASSERT_OK(events_flush(ctx, q, &err), err);
    ASSERT_EQ(p.got.n, 1);
    end(ctx, pub, q, &p);
}

TEST_VIRTUAL(an_unresponsive_containerd_is_retried_after_five_seconds)
{
    struct peer p = { .silent = true };
    struct events *q = events_new();
    struct err err = ERR_INIT;
    struct ctx root = ctx_root(ctx->loop), longer = ctx_with_timeout(&root, 60 * NS_PER_S);

    peer_begin(ctx, &p);
    push(ctx, q, "a");

    struct publisher *pub = publish_to(ctx, &p, q);

    ASSERT_OK(fiber_sleep(&longer, 4 * NS_PER_S, &err), err);
    ASSERT_EQ(p.calls, 1);
    p.silent = false;
    ASSERT_OK(events_flush(&longer, q, &err), err);
    ASSERT_EQ(p.got.n, 1);
    ASSERT(loop_now(ctx->loop) >= 5 * NS_PER_S);
    end(&longer, pub, q, &p);
}

TEST_VIRTUAL(stopping_does_not_wait_for_containerd)
{
    struct peer p = { .silent = true };
    struct events *q = events_new();
    struct err err = ERR_INIT;

    peer_begin(ctx, &p);
    push(ctx, q, "a");

    struct publisher *pub = publish_to(ctx, &p, q);
    uint64_t before;

    ASSERT_OK(fiber_sleep(ctx, NS_PER_S, &err), err);
    before = loop_now(ctx->loop);
    ASSERT_OK(publisher_stop(ctx, pub, &err), err);
    ASSERT_EQ(loop_now(ctx->loop), before);
    ASSERT_EQ(events_pending(q), 1);
    publisher_free(pub);
    events_free(q);
    peer_end(ctx, &p);
}

TEST_VIRTUAL(without_an_address_events_are_dropped)
{
    struct events *q = events_new();
    struct err err = ERR_INIT;
    struct publisher *pub = publisher_new(
        &(struct publisher_opts){ .loop = ctx->loop, .events = q, .ns = "test", .address = "" });

    push(ctx, q, "a");
    ASSERT_OK(events_flush(ctx, q, &err), err);
    ASSERT_OK(publisher_stop(ctx, pub, &err), err);
    publisher_free(pub);
    events_free(q);
}
