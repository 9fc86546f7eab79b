#include "guest/bridge/server_rig.h"
#include "base/ctx.h"
#include "base/log.h"
#include "base/loop.h"
#include "harness/tap.h"
#include "proto/link.h"

static int at_once(struct ctx *ctx, void *arg, struct server_call *call, struct err *err)
{
    ((struct rig *)arg)->served++;
    return 0;
}

static int refuse(struct ctx *ctx, void *arg, struct server_call *call, struct err *err)
{
    return bridge_err(err, BRIDGE_HR_NO_CONTAINER, "no container %s", call->req.container_id);
}

static int silent(struct ctx *ctx, void *arg, struct server_call *call, struct err *err)
{
    return SERVER_SILENT;
}

/* Waits until the test lets it go (rig_let_go), in the order of arrival. */
static int hold(struct ctx *ctx, void *arg, struct server_call *call, struct err *err)
{
    struct rig *w = arg;

    w->started++;
    while (w->released == 0) {
        if (waitq_wait(ctx, &w->held, "the test", err) < 0) {
            w->cancelled++;
            return -1;
        }
    }
    w->released--;
    w->served++;
    return 0;
}

static int hold_parked(struct ctx *ctx, void *arg, struct server_call *call, struct err *err)
{
    server_call_forget_request(call);
    call->resp.exit_code = 5;
    return hold(ctx, arg, call, err);
}

static const struct server_entry table[] = {
    { .type = BRIDGE_START, .handle = at_once },
    { .type = BRIDGE_SIGNAL_PROCESS, .handle = refuse },
    { .type = BRIDGE_SHUTDOWN_FORCED, .handle = silent },
    { .type = BRIDGE_DELETE_CONTAINER_STATE, .handle = hold },
    { .type = BRIDGE_WAIT_FOR_PROCESS, .handle = hold_parked, .parks = true },
    { .type = BRIDGE_CREATE },
};

static void on_negotiated(void *arg)
{
    ((struct rig *)arg)->negotiated++;
}

static void on_unreachable(void *arg, const struct err *why)
{
    ((struct rig *)arg)->unreachable++;
}

static void run_fiber(void *arg)
{
    struct rig *w = arg;
    struct ctx root = ctx_root(w->loop), ctx = ctx_with_cancel(&root, &w->stop);
    struct err err = ERR_INIT;

    (void)server_run(&ctx, w->server, &err);
}

void rig_start(struct rig *w, struct ctx *ctx, unsigned max_in_flight)
{
    log_init(2, LOG_OFF, LOG_LOGFMT); /* refusals are what is tested */
    *w = (struct rig){ .host = dial_pair_new(), .loop = ctx->loop };
    cancel_init(&w->stop, NULL);
    group_init(&w->run);
    waitq_init(&w->held);
    w->server = server_new(&(struct server_opts){ .dialer = dial_pair_dialer(w->host),
                                                  .port = PORT_BRIDGE,
                                                  .table = table,
                                                  .n_entries = ARRAY_LEN(table),
                                                  .arg = w,
                                                  .max_in_flight = max_in_flight,
                                                  .trim_ns = RIG_TRIM_NS,
                                                  .on_negotiated = on_negotiated,
                                                  .on_unreachable = on_unreachable });
    group_go(&w->run, ctx->loop, run_fiber, w, "server");
}

void rig_init(struct rig *w, struct ctx *ctx, unsigned max_in_flight)
{
    rig_start(w, ctx, max_in_flight);
    w->s = peer_accept(ctx, w->host);
    peer_negotiate(ctx, w->s);
}

void rig_release(struct rig *w, struct ctx *ctx)
{
    struct err err = ERR_INIT;

    cancel_fire(&w->stop, ERR_CANCELLED, "test is over");
    ASSERT_OK(group_wait(ctx, &w->run, "server to stop", &err), err);
    stream_free(w->s);
    server_free(w->server);
    dial_pair_free(w->host);
}

void rig_let_go(struct rig *w, unsigned n)
{
    w->released += n;
    waitq_wake_all(&w->held);
}

void rig_reconnect(struct rig *w, struct ctx *ctx)
{
    stream_free(TAKE_PTR(w->s));
    w->s = peer_accept(ctx, w->host);
}

struct server_stats rig_stats(struct rig *w)
{
    struct server_stats st;

    server_get_stats(w->server, &st);
    return st;
}

void rig_await_requests(struct rig *w, struct ctx *ctx, uint64_t n)
{
    struct err err = ERR_INIT;

    while (rig_stats(w).requests < n)
        ASSERT_OK(fiber_sleep(ctx, NS_PER_MS, &err), err);
}
