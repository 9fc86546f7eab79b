/* Deadlines, cancellation and shutdown on virtual time, frames over streams in memory: the way the
 * simulation runs the whole service. */
#include "base/fd.h"
#include "fixture/rpc_fixture.h"
#include "fixture/stream_pair.h"
#include "host/rpc/rpc_client.h"
#include <sys/mman.h>
#include <unistd.h>

static int wait_call(struct ctx *ctx, struct rpc_client *c, const char *method, struct err *err)
{
    WaitRequest req = WAIT_REQUEST__INIT;

    req.id = "c1";
    return rpc_client_call(ctx, c, TASK_V3, method, &req, NULL, NULL, err);
}

static struct rpc_client *client_of(struct ctx *ctx, struct rpc_server *s)
{
    return rpc_client_new(ctx->loop, peer_of(ctx, s));
}

TEST_VIRTUAL(a_timeout_ends_the_handler_and_its_answer_is_sent)
{
    struct fake f = { 0 };
    struct rpc_server *s = fake_server(ctx->loop, &f);
    AUTO(stream_free) struct stream *peer = peer_of(ctx, s);
    uint64_t start = loop_now(ctx->loop);

    peer_request(ctx, peer, 1, TASK_V2, "Wait", "c1", 3 * NS_PER_S);
    peer_expect(ctx, peer, 1, ERR_DEADLINE, "exit: deadline exceeded");
    ASSERT_EQ(loop_now(ctx->loop) - start, 3 * NS_PER_S);
    ASSERT_EQ(f.wait_code, ERR_DEADLINE);
    end_server(ctx, s);
}

TEST_VIRTUAL(a_negative_timeout_has_expired_but_the_handler_runs)
{
    struct fake f = { 0 };
    struct rpc_server *s = fake_server(ctx->loop, &f);
    AUTO(stream_free) struct stream *peer = peer_of(ctx, s);
    uint64_t start = loop_now(ctx->loop);

    peer_request(ctx, peer, 1, TASK_V2, "Wait", "c1", -5);
    peer_expect(ctx, peer, 1, ERR_DEADLINE, "exit: deadline exceeded");
    peer_request(ctx, peer, 3, TASK_V2, "Connect", "c1", INT64_MIN);
    peer_expect(ctx, peer, 3, 0, "");
    peer_request(ctx, peer, 5, TASK_V2, "Connect", "c1", INT64_MAX);
    peer_expect(ctx, peer, 5, 0, "");
    ASSERT_EQ(f.calls, 3);
    ASSERT_EQ(loop_now(ctx->loop), start);
    end_server(ctx, s);
}

TEST_VIRTUAL(without_a_timeout_a_wait_may_take_days)
{
    struct fake f = { 0 };
    struct rpc_server *s = fake_server(ctx->loop, &f);
    AUTO(stream_free) struct stream *peer = peer_of(ctx, s);
    struct ctx patient = ctx_root(ctx->loop);
    struct err err = ERR_INIT;

    peer_request(&patient, peer, 1, TASK_V2, "Wait", "c1", 0);
    ASSERT_OK(fiber_sleep(&patient, 100 * 86400 * NS_PER_S, &err), err);
    ASSERT_EQ(f.waiting, 1);
    latch_set(&f.exited);
    peer_expect(&patient, peer, 1, 0, "");

    struct ctx now = ctx_with_timeout(&patient, 0);

    ASSERT_OK(rpc_server_shutdown(&now, s, &err), err);
    rpc_server_free(s);
}

TEST_VIRTUAL(the_server_gets_the_clients_deadline)
{
    struct fake f = { 0 };
    struct rpc_server *s = fake_server(ctx->loop, &f);
    AUTO(rpc_client_free) struct rpc_client *c = client_of(ctx, s);
    struct ctx two = ctx_with_timeout(ctx, 2 * NS_PER_S);
    uint64_t start = loop_now(ctx->loop);
    struct err err = ERR_INIT;

    ASSERT_FAIL(wait_call(&two, c, "Wait", &err), err, ERR_DEADLINE);
    ASSERT_EQ(loop_now(ctx->loop) - start, 2 * NS_PER_S);
    EVENTUALLY(ctx, f.waiting == 0);
    ASSERT_EQ(f.wait_code, ERR_DEADLINE);
    /* The late answer was dropped; the connection still works. */
    latch_set(&f.exited);
    ASSERT_OK(wait_call(ctx, c, "Wait", &err), err);
    end_server(ctx, s);
}

struct shot {
    struct ctx *ctx;
    struct rpc_client *client;
    const char *method;
    struct err err;
    int result;
};

static void shot_main(void *arg)
{
    struct shot *shot = arg;

    shot->result = wait_call(shot->ctx, shot->client, shot->method, &shot->err);
}

TEST_VIRTUAL(each_of_many_calls_in_flight_is_answered)
{
    struct fake f = { 0 };
    struct rpc_server *s = fake_server(ctx->loop, &f);
    AUTO(rpc_client_free) struct rpc_client *c = client_of(ctx, s);
    struct shot shots[100];
    struct fibers fibers;
    struct err err = ERR_INIT;

    fibers_init(&fibers);
    for (size_t i = 0; i < ARRAY_LEN(shots); i++) {
        shots[i] = (struct shot){ ctx, c, i % 10 ? "Wait" : "Connect", ERR_INIT, 1 };
        fibers_go(&fibers, ctx->loop, shot_main, &shots[i], "shot %zu", i);
    }
    EVENTUALLY(ctx, f.waiting == 90 && f.calls == 100);
    for (size_t i = 0; i < ARRAY_LEN(shots); i++)
        ASSERT_EQ(shots[i].result, i % 10 ? 1 : 0);
    latch_set(&f.exited);
    ASSERT_OK(fibers_wait(ctx, &fibers, "shots", &err), err);
    for (size_t i = 0; i < ARRAY_LEN(shots); i++)
        ASSERT_EQ(shots[i].result, 0);
    end_server(ctx, s);
}

TEST_VIRTUAL(shutdown_waits_for_requests_in_flight)
{
    struct fake f = { 0 };
    struct rpc_server *s = fake_server(ctx->loop, &f);
    AUTO(stream_free) struct stream *peer = peer_of(ctx, s), *other = peer_of(ctx, s);
    struct err err = ERR_INIT;

    peer_request(ctx, peer, 1, TASK_V2, "Wait", "c1", 3 * NS_PER_S);
    EVENTUALLY(ctx, f.waiting == 1);

    uint64_t start = loop_now(ctx->loop);
    struct ctx ten = ctx_with_timeout(ctx, 5 * NS_PER_S);

    ASSERT_OK(rpc_server_shutdown(&ten, s, &err), err);
    ASSERT(loop_now(ctx->loop) - start <= 3 * NS_PER_S + RPC_HANG_UP_LIMIT);
    peer_expect(ctx, peer, 1, ERR_DEADLINE, "exit");
    peer_expect_end(ctx, peer);
    peer_expect_end(ctx, other);
    rpc_server_free(s);
}

static void shutdown_main(void *arg)
{
    struct shot *shot = arg;

    shot->result = rpc_server_shutdown(shot->ctx, (struct rpc_server *)shot->client, &shot->err);
}

/* The end of a connection must not come together with the last answer. */
TEST_VIRTUAL(shutdown_lets_a_client_that_was_just_answered_disconnect_first)
{
    struct fake f = { 0 };
    struct rpc_server *s = fake_server(ctx->loop, &f);
    struct stream *peer = peer_of(ctx, s), *idle = peer_of(ctx, s);
    struct shot end = { ctx, (struct rpc_client *)s, "", ERR_INIT, 1 };
    struct err err = ERR_INIT;

    peer_request(ctx, idle, 1, TASK_V2, "Connect", "c1", 0);
    peer_expect(ctx, idle, 1, 0, "");
    ASSERT_OK(fiber_sleep(ctx, RPC_HANG_UP_LIMIT, &err), err); /* it waits no longer */
    peer_request(ctx, peer, 1, TASK_V2, "Connect", "c1", 0);
    peer_expect(ctx, peer, 1, 0, "");

    uint64_t start = loop_now(ctx->loop);

    fiber_go(ctx->loop, shutdown_main, &end, "shutdown");
    ASSERT_OK(fiber_sleep(ctx, RPC_HANG_UP_LIMIT / 2, &err), err);
    ASSERT_EQ(end.result, 1);
    stream_free(peer);
    peer_expect_end(ctx, idle);
    EVENTUALLY(ctx, end.result == 0);
    ASSERT(loop_now(ctx->loop) - start < RPC_HANG_UP_LIMIT);
    stream_free(idle);
    rpc_server_free(s);
}

TEST_VIRTUAL(new_requests_are_refused_during_shutdown)
{
    struct fake f = { 0 };
    struct rpc_server *s = fake_server(ctx->loop, &f);
    AUTO(stream_free) struct stream *peer = peer_of(ctx, s);
    struct shot end = { ctx, (struct rpc_client *)s, "", ERR_INIT, 1 };

    peer_request(ctx, peer, 1, TASK_V2, "Wait", "c1", 0);
    EVENTUALLY(ctx, f.waiting == 1);
    fiber_go(ctx->loop, shutdown_main, &end, "shutdown");
    fiber_yield(ctx->loop);
    peer_request(ctx, peer, 3, TASK_V2, "Connect", "c1", 0);
    peer_expect(ctx, peer, 3, ERR_UNAVAILABLE, "the shim is shutting down");
    peer_request(ctx, peer, 5, TASK_V2, "State", "c1", 0); /* all objects are gone by then */
    peer_expect(ctx, peer, 5, ERR_NOT_FOUND, "the shim is shutting down");
    ASSERT_EQ(end.result, 1);
    latch_set(&f.exited);
    peer_expect(ctx, peer, 1, 0, "");
    peer_expect_end(ctx, peer);
    EVENTUALLY(ctx, end.result == 0);
    rpc_server_free(s);
}

TEST_VIRTUAL(shutdown_cancels_requests_that_take_too_long)
{
    struct fake f = { 0 };
    struct rpc_server *s = fake_server(ctx->loop, &f);
    AUTO(rpc_client_free) struct rpc_client *c = client_of(ctx, s);
    struct shot shot = { ctx, c, "Wait", ERR_INIT, 1 };
    struct ctx two = ctx_with_timeout(ctx, 2 * NS_PER_S);
    struct err err = ERR_INIT;

    fiber_go(ctx->loop, shot_main, &shot, "shot");
    EVENTUALLY(ctx, f.waiting == 1);
    ASSERT_OK(rpc_server_shutdown(&two, s, &err), err);
    ASSERT_EQ(f.waiting, 0);
    ASSERT_EQ(f.wait_code, ERR_UNAVAILABLE);
    EVENTUALLY(ctx, shot.result < 0);
    ASSERT_EQ(shot.err.code, ERR_UNAVAILABLE);
    ASSERT(rpc_client_closed(c));
    ASSERT_FAIL(wait_call(ctx, c, "Connect", &err), err, ERR_UNAVAILABLE);
    rpc_server_free(s);
}

TEST_VIRTUAL(a_handler_that_does_not_end_is_reported)
{
    struct fake f = { .stuck = true };
    struct rpc_server *s = fake_server(ctx->loop, &f);
    AUTO(stream_free) struct stream *peer = peer_of(ctx, s);
    struct ctx now = ctx_with_timeout(ctx, 0);
    uint64_t start = loop_now(ctx->loop);
    struct err err = ERR_INIT;

    peer_request(ctx, peer, 1, TASK_V2, "Pause", "c1", 0);
    EVENTUALLY(ctx, f.calls == 1);
    start = loop_now(ctx->loop);
    ASSERT_FAIL(rpc_server_shutdown(&now, s, &err), err, ERR_DEADLINE);
    ASSERT_EQ(loop_now(ctx->loop) - start, RPC_LET_GO_LIMIT);
    ASSERT_MSG_HAS(err.msg, "1 requests did not end");
    /* The handler may still end later. */
    rpc_server_free(s);
    latch_set(&f.exited);
}

TEST_VIRTUAL(calls_fail_with_unavailable_if_the_server_disappears)
{
    struct stream *ours, *theirs;
    struct shot shot = { .ctx = ctx, .method = "Wait", .result = 1 };

    stream_pair(ctx->loop, 4096, &ours, &theirs);
    shot.client = rpc_client_new(ctx->loop, ours);
    fiber_go(ctx->loop, shot_main, &shot, "shot");
    fiber_yield(ctx->loop);
    stream_free(theirs);
    EVENTUALLY(ctx, shot.result < 0);
    ASSERT_EQ(shot.err.code, ERR_UNAVAILABLE);
    rpc_client_free(shot.client);
}

TEST_VIRTUAL(freeing_the_client_ends_its_calls)
{
    struct fake f = { 0 };
    struct rpc_server *s = fake_server(ctx->loop, &f);
    struct shot shot = { ctx, client_of(ctx, s), "Wait", ERR_INIT, 1 };

    fiber_go(ctx->loop, shot_main, &shot, "shot");
    EVENTUALLY(ctx, f.waiting == 1);
    rpc_client_free(shot.client);
    EVENTUALLY(ctx, shot.result < 0);
    ASSERT_EQ(shot.err.code, ERR_UNAVAILABLE);
    EVENTUALLY(ctx, f.waiting == 0);
    end_server(ctx, s);
}

/* The result must not depend on the order in which fibers run. */
static void seeded_main(void *arg)
{
    struct loop *loop = arg;
    struct ctx root = ctx_root(loop), c = ctx_with_timeout(&root, 60 * NS_PER_S), *ctx = &c;
    struct fake f = { 0 };
    struct rpc_server *s = fake_server(loop, &f);
    struct rpc_client *clients[3];
    struct shot shots[12];
    struct fibers fibers;
    struct err err = ERR_INIT;

    fibers_init(&fibers);
    for (size_t i = 0; i < ARRAY_LEN(clients); i++)
        clients[i] = client_of(ctx, s);
    for (size_t i = 0; i < ARRAY_LEN(shots); i++) {
        shots[i] = (struct shot){ ctx, clients[i % 3], i % 2 ? "Wait" : "Connect", ERR_INIT, 1 };
        fibers_go(&fibers, loop, shot_main, &shots[i], "shot");
    }
    EVENTUALLY(ctx, f.calls == ARRAY_LEN(shots));
    rpc_client_free(clients[0]); /* with two of its Waits */
    EVENTUALLY(ctx, f.waiting == 4);
    latch_set(&f.exited);
    ASSERT_OK(fibers_wait(ctx, &fibers, "shots", &err), err);
    for (size_t i = 0; i < ARRAY_LEN(shots); i++)
        ASSERT_EQ(shots[i].result, i % 2 && i % 3 == 0 ? -1 : 0);
    rpc_client_free(clients[1]);
    end_server(ctx, s);
    rpc_client_free(clients[2]);
}

TEST(any_schedule_gives_the_same_answers)
{
    for (uint64_t seed = 1; seed <= 200; seed++) {
        struct loop *loop = loop_new(&(struct loop_opts){ .virtual_time = true, .seed = seed });

        fiber_go(loop, seeded_main, loop, "seed %d", (int)seed);
        if (loop_run(loop) != 0)
            tap_fail(__FILE__, __LINE__, "seed %d hangs", (int)seed);
        loop_free(loop);
    }
}

/* Wait has no limit; Pause, which waits here as well, has one. */
TEST_VIRTUAL(a_slow_request_is_logged_once_and_a_patient_one_never)
{
    struct fake f = { .stuck = true };
    struct rpc_server *s = fake_server(ctx->loop, &f);
    AUTO(stream_free) struct stream *peer = peer_of(ctx, s);
    AUTO_FD int fd = memfd_create("log", MFD_CLOEXEC);
    struct ctx long_ctx = ctx_root(ctx->loop);
    struct err err = ERR_INIT;
    char text[2048] = "";

    log_init(fd, LOG_INFO, LOG_LOGFMT);
    rpc_server_watch(s, 30 * NS_PER_S);
    peer_request(&long_ctx, peer, 1, TASK_V2, "Wait", "c1", 0);
    peer_request(&long_ctx, peer, 3, TASK_V2, "Pause", "c1", 0);
    ASSERT_OK(fiber_sleep(&long_ctx, 29 * NS_PER_S, &err), err);
    ASSERT_EQ(pread(fd, text, sizeof(text) - 1, 0), 0);
    ASSERT_OK(fiber_sleep(&long_ctx, 300 * NS_PER_S, &err), err);
    log_init(2, LOG_OFF, LOG_LOGFMT);
    ASSERT(pread(fd, text, sizeof(text) - 1, 0) > 0);
    ASSERT_MSG_HAS(text, "msg=\"request not answered yet\"");
    ASSERT_HAS(text, " operation=Pause cid=c1 age=30");
    ASSERT_HAS(text, "reason=SLOW_REQUEST");
    ASSERT(strchr(text, '\n') == strrchr(text, '\n'));
    latch_set(&f.exited);
    peer_expect(&long_ctx, peer, 1, 0, "");
    peer_expect(&long_ctx, peer, 3, 0, "");
    end_server(ctx, s);
}
