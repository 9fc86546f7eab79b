/* rpc_watchdog.c - tells of requests that take longer than they should, once each, with what they
 * are: the first thing to know when something hangs. Asleep without a timer while no request is
 * under way, but for those that may take for ever (Wait). */
#include "base/fiber.h"
#include "base/loop.h"
#include "host/rpc/rpc_priv.h"
#include <stdlib.h>

struct watchdog {
    struct rpc_server *server;
    uint64_t limit;
};

static bool is_watched(const struct rpc_call *call)
{
    return !call->method->patient && !call->method->stream;
}

/* Both are called for every request: only the first to come and the last to go wake us. */
void rpc_watch_begin(struct rpc_server *s, const struct rpc_call *call)
{
    if (is_watched(call) && s->watched++ == 0)
        waitq_wake_all(&s->watch_q);
}

void rpc_watch_end(struct rpc_server *s, const struct rpc_call *call)
{
    if (is_watched(call) && --s->watched == 0)
        waitq_wake_all(&s->watch_q);
}

/* Tells of those that are overdue; returns when the next one will be. */
static uint64_t look(struct watchdog *w, uint64_t now)
{
    uint64_t next = now + w->limit;

    LIST_EACH (&w->server->conns, at) {
        struct rpc_conn *c = LIST_ENTRY(at, struct rpc_conn, node);

        LIST_EACH (&c->calls, pos) {
            struct rpc_call *call = LIST_ENTRY(pos, struct rpc_call, node);
            uint64_t due = call->since_ns + w->limit;

            if (!is_watched(call) || call->told_slow)
                continue;
            if (due > now) {
                next = due < next ? due : next;
                continue;
            }
            call->told_slow = true;
            log_warn(&call->ctx, "request not answered yet", F_NS("age", now - call->since_ns),
                     F_U("requests", w->server->n_calls));
        }
    }
    return next;
}

static void watch_main(void *arg)
{
    struct watchdog *w = arg;
    struct rpc_server *s = w->server;
    struct ctx root = ctx_root(s->loop), ctx = ctx_with_cancel(&root, &s->life);
    struct err err = ERR_INIT;

    while (!s->life.fired) {
        struct ctx until = ctx;

        if (s->watched > 0)
            until.deadline = look(w, loop_now(s->loop));
        (void)waitq_wait(&until, &s->watch_q, "requests", &err); /* a wake, a limit or the end */
    }
    free(w);
    rpc_fiber_end(s);
}

void rpc_server_watch(struct rpc_server *s, uint64_t limit_ns)
{
    struct watchdog *w = mem_new(struct watchdog);

    *w = (struct watchdog){ s, limit_ns };
    rpc_fiber_begin(s);
    fiber_go(s->loop, watch_main, w, "rpc watchdog");
}
