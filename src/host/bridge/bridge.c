/* bridge.c - life of the bridge: ports, connecting, closing, entropy, log. */
#include "host/bridge/bridge.h"
#include "base/err.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/stream.h"
#include "base/waits.h"
#include "host/bridge/bridge_priv.h"
#include "host/vmm/vmm.h"
#include "proto/link.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void unref(struct bridge *b)
{
    if (--b->refs > 0)
        return;
    cancel_release(&b->life);
    cancel_release(&b->log_life);
    LIST_FOR (struct bridge_call, c, &b->calls, node) /* parked: they have no other owner */
        bridge_call_free(c);
    free(b->abandoned);
    free(b->in.body);
    guestlog_release(&b->log);
    free(b);
}

struct start {
    struct bridge *bridge;
    void (*fn)(struct bridge *b);
};

static void fiber_main(void *arg)
{
    struct start start = *(struct start *)arg;
    struct bridge *b = start.bridge;

    free(arg);
    start.fn(b);
    if (--b->running == 0)
        waitq_wake_all(&b->idle_q);
    unref(b);
}

void bridge_go(struct bridge *b, void (*fn)(struct bridge *b), const char *name)
{
    struct start *start = mem_new(struct start);

    *start = (struct start){ b, fn };
    b->refs++;
    b->running++;
    fiber_go(b->loop, fiber_main, start, "%s", name);
}

static void tell_stage(struct bridge *b, int stage)
{
    if (b->vmm->on_stage)
        b->vmm->on_stage(b->vmm->on_stage_arg, stage);
}

struct ctx bridge_enter(struct ctx *ctx, struct bridge *b, struct bridge_user *u)
{
    cancel_init(&u->cancel, ctx->cancel);
    list_append(&b->users, &u->node);
    if (b->closed) /* closed between two waits of the same call: nothing would fire it later */
        cancel_fire(&u->cancel, ERR_UNAVAILABLE, "the guest is gone");
    return ctx_with_cancel(ctx, &u->cancel);
}

void bridge_leave(struct bridge_user *u)
{
    list_remove(&u->node);
    cancel_release(&u->cancel);
}

void bridge_close(struct bridge *b, const char *why)
{
    AUTO(sbuf_release) struct sbuf harmless = { 0 };

    if (b->closed)
        return;
    /* A decoder's complaint may quote the guest. */
    guestlog_escape(&harmless, why, strlen(why), sizeof(b->why) - 1);
    snprintf(b->why, sizeof(b->why), "%s", harmless.data ? harmless.data : "");
    b->closed = true;
    b->connected = false;
    cancel_fire(&b->life, ERR_UNAVAILABLE, "the guest is gone");
    LIST_FOR (struct bridge_user, u, &b->users, node)
        cancel_fire(&u->cancel, ERR_UNAVAILABLE, "the guest is gone");
    bridge_wire_close(b);
    if (b->listener)
        b->vmm->ops->unlisten(TAKE_PTR(b->listener));
    latch_set(&b->ended);
}

void bridge_condemn(struct bridge *b, const char *fmt, ...)
{
    struct ctx ctx = ctx_root(b->loop);
    va_list ap;

    if (b->closed)
        return;
    va_start(ap, fmt);
    AUTO_FREE char *why = str_vformat(fmt, ap);
    va_end(ap);
    bridge_close(b, why);
    log_warn(&ctx, "the guest violated the protocol; closing its bridge", F_STR("why", b->why),
             F_REASON(REASON_GUEST_PROTOCOL));
}

void bridge_ops_close(struct guest *g, const char *why)
{
    bridge_close(bridge_of(g), why);
}

void bridge_ops_free(struct guest *g)
{
    struct bridge *b = bridge_of(g);

    bridge_close(b, "it is no longer needed");
    cancel_fire(&b->log_life, ERR_UNAVAILABLE, "the guest is gone");
    unref(b);
}

/* --- the ports the guest dials while it boots --- */

void bridge_entropy_main(struct bridge *b)
{
    struct ctx ctx = ctx_until(b->loop, &b->life);
    AUTO(stream_free) struct stream *s = NULL;
    uint8_t seed[BRIDGE_ENTROPY_BYTES];
    struct err err = ERR_INIT;
    int r;

    b->entropy_awaited = true;
    r = b->vmm->ops->accept(&ctx, TAKE_PTR(b->entropy_listener), &s, &err);
    b->entropy_awaited = false;
    if (r < 0) {
        log_debug(&ctx, "the guest did not fetch its entropy", F_ERR(&err));
        return;
    }
    tell_stage(b, VM_STAGE_INIT);
    loop_rand(b->loop, seed, sizeof(seed));

    struct ctx limited = ctx_with_timeout(&ctx, BRIDGE_ENTROPY_LIMIT);

    if (stream_write_full(&limited, s, seed, sizeof(seed), &err) < 0)
        log_warn(&ctx, "the guest did not read its entropy", F_ERR(&err));
    mem_wipe(seed, sizeof(seed));
}

/* Accepts the stream first, unless it was saved while it was read. */
void bridge_log_main(struct bridge *b)
{
    struct ctx ctx = ctx_until(b->loop, &b->life), reading = ctx_until(b->loop, &b->log_life);
    struct err err = ERR_INIT;

    if (!b->log_stream &&
        b->vmm->ops->accept(&ctx, TAKE_PTR(b->log_listener), &b->log_stream, &err) < 0) {
        log_debug(&ctx, "the guest opened no log", F_ERR(&err));
    } else {
        b->log_open = true;
        tell_stage(b, VM_STAGE_INIT);
        if (guestlog_read(&reading, &b->log, b->log_stream, &err) < 0)
            log_debug(&ctx, "the connection for the guest's log broke", F_ERR(&err));
    }
    stream_free(TAKE_PTR(b->log_stream));
    guestlog_flush(&b->log, loop_now(b->loop));
    latch_set(&b->log_ended);
}

static void unlisten_all(struct bridge *b)
{
    struct vmm_listener **all[] = { &b->listener, &b->log_listener, &b->entropy_listener };

    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        if (*all[i])
            b->vmm->ops->unlisten(TAKE_PTR(*all[i]));
}

int bridge_ops_prepare(struct ctx *ctx, struct guest *g, struct err *err)
{
    struct bridge *b = bridge_of(g);
    const struct vmm_ops *ops = b->vmm->ops;

    struct err no_log = ERR_INIT;

    if (b->closed)
        return err_because(err, REASON_GUEST_LOST, ERR_UNAVAILABLE, "the guest is gone: %s",
                           b->why);
    if (b->prepared)
        return err_set(err, ERR_STATE, "the guest's ports are open already");
    if (ops->listen(b->vmm, PORT_ENTROPY, &b->entropy_listener, err) < 0 ||
        ops->listen(b->vmm, PORT_BRIDGE, &b->listener, err) < 0) {
        unlisten_all(b);
        return err_wrap(err, "listen for entropy and bridge");
    }
    /* The VM is of use without its log; containers are not refused for want of it. */
    b->log_lost = ops->listen(b->vmm, PORT_LOG, &b->log_listener, &no_log) < 0;
    if (b->log_lost)
        log_warn(ctx, "cannot listen for the guest's log: the VM runs without log forwarding",
                 F_ERR(&no_log));
    b->prepared = true;
    guestlog_init(&b->log, b->timeline, loop_now(b->loop));
    bridge_go(b, bridge_entropy_main, FIBER_BRIDGE_ENTROPY);
    if (b->log_listener)
        bridge_go(b, bridge_log_main, FIBER_BRIDGE_LOG);
    return 0;
}

int bridge_ops_connect(struct ctx *ctx, struct guest *g, struct err *err)
{
    struct bridge *b = bridge_of(g);
    struct stream *stream = NULL;
    struct bridge_user user;
    int r;

    if (b->connected)
        return 0;
    if (b->closed)
        return err_because(err, REASON_GUEST_LOST, ERR_UNAVAILABLE, "the guest is gone: %s",
                           b->why);
    if (!b->listener)
        return err_set(err, ERR_STATE, "the bridge's port is not open");

    struct ctx inner = bridge_enter(ctx, b, &user);

    r = b->vmm->ops->accept(&inner, TAKE_PTR(b->listener), &stream, err);
    if (r < 0) {
        err_wrap(err, "wait for the agent's connection");
    } else if (b->closed) {
        stream_free(stream);
        r = err_because(err, REASON_GUEST_LOST, ERR_UNAVAILABLE, "the guest is gone: %s", b->why);
    } else {
        tell_stage(b, VM_STAGE_AGENT);
        bridge_wire_start(b, stream);
        r = bridge_negotiate_version(&inner, b, err);
        if (r == 0 && b->closed) /* while the answer was on its way to us */
            r = err_because(err, REASON_GUEST_LOST, ERR_UNAVAILABLE, "the guest is gone: %s",
                            b->why);
    }
    bridge_leave(&user);
    if (r < 0) {
        bridge_close(b, err->msg);
        return -1;
    }
    b->connected = true;
    tell_stage(b, VM_STAGE_NEGOTIATED);
    guestlog_flush(&b->log, loop_now(b->loop));
    return 0;
}

int bridge_ops_wait_closed(struct ctx *ctx, struct guest *g, struct err *err)
{
    return latch_wait(ctx, &bridge_of(g)->ended, WAIT_BRIDGE_CLOSE, err);
}

int bridge_ops_drain_log(struct ctx *ctx, struct guest *g, struct err *err)
{
    struct bridge *b = bridge_of(g);
    struct ctx limited = ctx_limited(b->loop, BRIDGE_FIBERS_LIMIT);
    int r = 0;

    if (b->log_open)
        r = latch_wait(ctx, &b->log_ended, "the guest's log to end", err);
    if (!b->closed)
        return r;
    /* Nothing of us may touch the VMM from here on. All our fibers are cancelled now, so this is
     * one round of the loop. */
    cancel_fire(&b->log_life, ERR_UNAVAILABLE, "the guest is gone");
    while (b->running > 0) {
        struct err late = ERR_INIT;

        if (waitq_wait(&limited, &b->idle_q, "the bridge's fibers to end", &late) < 0) {
            *err = late;
            return -1;
        }
    }
    return r;
}

/* --- looking at it --- */

bool bridge_ops_connected(const struct guest *g)
{
    return bridge_of(g)->connected;
}

bool bridge_ops_log_lost(const struct guest *g)
{
    return bridge_of(g)->log_lost;
}

uint64_t bridge_ops_oldest_call(const struct guest *g)
{
    struct bridge *b = bridge_of(g);
    uint64_t now = loop_now(b->loop), oldest = 0;

    LIST_FOR (const struct bridge_call, c, &b->calls, node)
        if (c->counts && now - c->since_ns > oldest)
            oldest = now - c->since_ns;
    return oldest;
}

struct guest *bridge_new(struct loop *loop, struct vmm *vmm, struct timeline *timeline)
{
    struct bridge *b = mem_new(struct bridge);

    b->guest.ops = &bridge_ops;
    b->refs = 1;
    b->loop = loop;
    b->vmm = vmm;
    b->timeline = timeline;
    b->next_port = PORT_STDIO_FIRST;
    b->unasked = (struct bucket){ .burst = BRIDGE_UNASKED_BURST, .per_s = BRIDGE_UNASKED_PER_S };
    b->unasked_bytes =
        (struct bucket){ .burst = BRIDGE_UNASKED_BYTES_BURST, .per_s = BRIDGE_UNASKED_BYTES_PER_S };
    cancel_init(&b->life, NULL);
    cancel_init(&b->log_life, NULL);
    waitq_init(&b->idle_q);
    waitq_init(&b->queue_q);
    latch_init(&b->log_ended);
    latch_init(&b->ended);
    list_init(&b->users);
    list_init(&b->calls);
    list_init(&b->queue);
    return &b->guest;
}
