/* server_rig.h - for tests: a server whose host is a socketpair, with a handler for each way to
 * answer. Whatever goes wrong in these fails the running test. */
#pragma once
#include "base/clock.h"
#include "base/fiber.h"
#include "base/stream.h"
#include "guest/bridge/peer.h"
#include "guest/bridge/server.h"
#include "guest/stdio/dial_pair.h"
#include "harness/tap.h"

#define BASE "{\"ContainerId\":\"x\",\"ActivityId\":\"" BRIDGE_NULL_ID "\"}"

#define RIG_TRIM_NS (20 * NS_PER_MS)

struct rig {
    struct dial_pair *host;
    struct server *server;
    struct loop *loop;
    struct cancel stop;
    struct group run;
    struct stream *s;
    unsigned started, served, cancelled, negotiated, unreachable;
    struct waitq held;
    unsigned released; /* held requests that may go on */
};

/* BRIDGE_START is answered at once, BRIDGE_SIGNAL_PROCESS refused, BRIDGE_SHUTDOWN_FORCED not
 * answered, BRIDGE_CREATE not implemented; BRIDGE_DELETE_CONTAINER_STATE and
 * BRIDGE_WAIT_FOR_PROCESS, which parks, wait for rig_let_go. Nobody is connected yet. */
void rig_start(struct rig *w, struct ctx *ctx, unsigned max_in_flight);
/* With a negotiated connection. */
void rig_init(struct rig *w, struct ctx *ctx, unsigned max_in_flight);
void rig_release(struct rig *w, struct ctx *ctx);
void rig_let_go(struct rig *w, unsigned n);
/* The host drops the connection and takes the next. */
void rig_reconnect(struct rig *w, struct ctx *ctx);
struct server_stats rig_stats(struct rig *w);
/* Until so many requests were read. */
void rig_await_requests(struct rig *w, struct ctx *ctx, uint64_t n);
