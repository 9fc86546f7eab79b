/* What a handler wants to do once its answer has gone out. */
#include "base/clock.h"
#include "base/fiber.h"
#include "base/log.h"
#include "base/stream.h"
#include "fixture/bridge_peer.h"
#include "fixture/dial_fixture.h"
#include "guest/bridge/server.h"
#include "harness/tap.h"
#include "proto/link.h"
#include <errno.h>

#define BASE "{\"ContainerId\":\"x\",\"ActivityId\":\"" BRIDGE_NULL_ID "\"}"

struct world {
    struct dial_pair *host;
    struct server *server;
    struct loop *loop;
    struct cancel stop;
    struct fibers run;
    struct waitq held;
    bool go, started;
    int sent, lost;
};

static void after(void *arg, bool sent)
{
    struct world *w = arg;
    struct err err = ERR_INIT;

    w->sent += sent;
    w->lost += !sent;
    waitq_wake_all(&w->held);
    ASSERT_OK(server_notify(w->server,
                            &(struct bridge_notification){ .container_id = "x",
                                                           .type = BRIDGE_NOTIFY_UNEXPECTED_EXIT },
                            &err),
              err);
}

static int handle(struct ctx *ctx, void *arg, struct server_call *call, struct err *err)
{
    struct world *w = arg;

    w->started = true;
    waitq_wake_all(&w->held);
    while (!w->go)
        if (waitq_wait(ctx, &w->held, "the test", err) < 0)
            return -1;
    call->after = after;
    call->after_arg = w;
    return 0;
}

static const struct server_entry table[] = { { .type = BRIDGE_START, .handle = handle } };

static void run_fiber(void *arg)
{
    struct world *w = arg;
    struct ctx root = ctx_root(w->loop), ctx = ctx_with_cancel(&root, &w->stop);
    struct err err = ERR_INIT;

    (void)server_run(&ctx, w->server, &err);
}

static void begin(struct world *w, struct ctx *ctx)
{
    log_init(2, LOG_OFF, LOG_LOGFMT);
    *w = (struct world){ .host = dial_pair_new(), .loop = ctx->loop };
    cancel_init(&w->stop, NULL);
    fibers_init(&w->run);
    waitq_init(&w->held);
    w->server = server_new(&(struct server_opts){ .dialer = dial_pair_dialer(w->host),
                                                  .port = PORT_BRIDGE,
                                                  .table = table,
                                                  .n_entries = ARRAY_LEN(table),
                                                  .arg = w });
    fibers_go(&w->run, ctx->loop, run_fiber, w, "server");
}

static void finish(struct world *w, struct ctx *ctx)
{
    struct err err = ERR_INIT;

    cancel_fire(&w->stop, ERR_CANCELLED, "test is over");
    ASSERT_OK(fibers_wait(ctx, &w->run, "server", &err), err);
    cancel_release(&w->stop);
    server_free(w->server);
    dial_pair_free(w->host);
}

TEST_FIBER(what_follows_an_answer_comes_behind_it)
{
    struct world w;

    begin(&w, ctx);
    AUTO(stream_free) struct stream *s = peer_accept(ctx, w.host);
    peer_negotiate(ctx, s);
    w.go = true;
    peer_send(ctx, s, BRIDGE_START, 1, BASE);
    ASSERT_EQ(peer_expect(ctx, s, BRIDGE_START, 1), 0);
    ASSERT_EQ(peer_expect(ctx, s, BRIDGE_CONTAINER_NOTIFICATION, 0), 0);
    ASSERT_EQ(w.sent, 1);
    ASSERT_EQ(w.lost, 0);
    finish(&w, ctx);
}

TEST_FIBER(a_lost_answer_is_reported_as_lost)
{
    struct world w;
    struct err err = ERR_INIT;

    begin(&w, ctx);
    struct stream *s = peer_accept(ctx, w.host);
    peer_negotiate(ctx, s);
    peer_send(ctx, s, BRIDGE_START, 1, BASE);
    while (!w.started)
        ASSERT_OK(waitq_wait(ctx, &w.held, "the request", &err), err);
    dial_pair_refuse(w.host, ECONNREFUSED, -1); /* and no new one comes */
    stream_free(s);
    struct server_stats stats;
    do { /* until the server has noticed */
        ASSERT_OK(fiber_sleep(ctx, 10 * NS_PER_MS, &err), err);
    } while (dial_pair_count(w.host) < 2);
    w.go = true;
    waitq_wake_all(&w.held);
    while (!w.lost && !w.sent)
        ASSERT_OK(waitq_wait(ctx, &w.held, "the end of the request", &err), err);
    ASSERT_EQ(w.lost, 1);
    ASSERT_EQ(w.sent, 0);
    server_get_stats(w.server, &stats);
    ASSERT_EQ(stats.notifications, 1); /* the notification waits for the next connection */
    finish(&w, ctx);
}
