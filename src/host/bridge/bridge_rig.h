/* bridge_rig.h - for tests: the bridge on a fake VMM, and a scripted peer at its other end: expect
 * a frame, answer. */
#pragma once
#include "base/json.h"
#include "base/loop.h"
#include "base/stream.h"
#include "harness/tap.h"
#include "host/bridge/bridge_priv.h"
#include "host/bridge/fake_guest.h"
#include "host/vmm/fake/fake_vmm.h"
#include "proto/link.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OK_BODY "{\"Result\":0}"
#define CAPS_BODY                                                                                  \
    "{\"Result\":0,\"Version\":4,\"Capabilities\":{\"RuntimeOsType\":\"Linux\","                   \
    "\"GuestDefinedCapabilities\":{\"SignalProcessSupported\":true,\"DumpStacksSupported\":true}}" \
    "}"

/* --- the bench --- */

struct bench {
    struct ctx *ctx;
    struct fake_vmm_opts opts;
    struct vmm *vmm;
    struct guest *g;
    struct timeline timeline;
    struct stream *peer; /* the guest's end */
    struct group group;
};

struct frame {
    struct bridge_header h;
    char *body;
};

static inline void bench_open(struct bench *t, struct ctx *ctx)
{
    struct vm_doc doc = { .id = "t" };
    struct err err = ERR_INIT;

    t->ctx = ctx;
    t->opts.loop = ctx->loop;
    t->vmm = fake_vmm_new(&t->opts);
    ASSERT_OK(t->vmm->ops->create(ctx, t->vmm, &doc, &err), err);
    t->g = bridge_new(ctx->loop, t->vmm, &t->timeline);
    group_init(&t->group);
    ASSERT_OK(t->g->ops->prepare(ctx, t->g, &err), err);
}

static inline void bench_close(struct bench *t)
{
    struct fake_facts facts;
    struct err err = ERR_INIT;

    t->g->ops->close(t->g, "the test is over");
    ASSERT_OK(t->g->ops->drain_log(t->ctx, t->g, &err), err);
    ASSERT_OK(group_wait(t->ctx, &t->group, "helpers", &err), err);
    fake_vmm_facts(t->vmm, &facts);
    ASSERT_EQ(facts.listeners, 0);
    ASSERT_STR(facts.violation, "");
    stream_free(TAKE_PTR(t->peer));
    t->g->ops->free(t->g);
    ASSERT_OK(t->vmm->ops->release(t->ctx, t->vmm, &err), err);
    t->vmm->ops->free(t->vmm);
}

static inline void expect(struct bench *t, uint32_t type, struct frame *ret)
{
    uint8_t raw[BRIDGE_HEADER_BYTES];
    struct err err = ERR_INIT;

    ASSERT_OK(stream_read_full(t->ctx, t->peer, raw, sizeof(raw), &err), err);
    ASSERT_OK(bridge_header_decode(raw, BRIDGE_SIDE_GUEST, BRIDGE_MAX_REQUEST, &ret->h, &err), err);
    ASSERT_EQ(ret->h.type, type);
    ret->body = mem_zalloc(ret->h.size - sizeof(raw) + 1);
    ASSERT_OK(stream_read_full(t->ctx, t->peer, ret->body, ret->h.size - sizeof(raw), &err), err);
}

static inline void send_frame(struct bench *t, uint32_t type, uint64_t id, const char *body)
{
    struct bridge_header h = { type, (uint32_t)(BRIDGE_HEADER_BYTES + strlen(body)), id };
    uint8_t raw[BRIDGE_HEADER_BYTES];
    struct err err = ERR_INIT;

    bridge_header_encode(&h, raw);
    ASSERT_OK(stream_write_full(t->ctx, t->peer, raw, sizeof(raw), &err), err);
    ASSERT_OK(stream_write_full(t->ctx, t->peer, body, strlen(body), &err), err);
}

static inline void reply(struct bench *t, const struct frame *f, const char *body)
{
    send_frame(t, bridge_response_type(f->h.type), f->h.id, body);
}

static inline void expect_reply(struct bench *t, uint32_t type, const char *body)
{
    struct frame f;

    expect(t, type, &f);
    reply(t, &f, body);
    free(f.body);
}

struct connecting {
    struct bench *bench;
    int r;
    struct err err;
};

static inline void connect_main(void *arg)
{
    struct connecting *c = arg;

    c->r = c->bench->g->ops->connect(c->bench->ctx, c->bench->g, &c->err);
}

/* Dials and answers the negotiation with this body; what connect makes of it is in *c. */
static inline void bench_negotiate(struct bench *t, const char *body, struct connecting *c)
{
    struct err err = ERR_INIT;

    *c = (struct connecting){ .bench = t };
    group_go(&t->group, t->ctx->loop, connect_main, c, "connect");
    ASSERT_EQ(fake_vmm_dial(t->vmm, PORT_BRIDGE, &t->peer), 0);
    expect_reply(t, BRIDGE_NEGOTIATE_PROTOCOL, body);
    ASSERT_OK(group_wait(t->ctx, &t->group, "connect", &err), err);
}

static inline void bench_connect(struct bench *t, struct ctx *ctx)
{
    struct connecting c;

    bench_open(t, ctx);
    bench_negotiate(t, CAPS_BODY, &c);
    ASSERT_OK(c.r, c.err);
    ASSERT(t->g->ops->connected(t->g));
}

/* A call in a fiber of its own. */
struct calling {
    struct bench *bench;
    struct ctx *ctx;
    int r;
    struct err err;
    bool done;
    uint32_t code, pid;
    char *text;
    struct guest_exec exec;
    struct guest_process process;
};

static inline void wait_main(void *arg)
{
    struct calling *c = arg;
    struct guest *g = c->bench->g;

    c->r = g->ops->wait_process(c->ctx, g, NULL, c->pid, GUEST_WAIT_FOREVER, &c->code, &c->err);
    c->done = true;
}

static inline void stacks_main(void *arg)
{
    struct calling *c = arg;

    c->r = c->bench->g->ops->dump_stacks(c->ctx, c->bench->g, &c->text, &c->err);
    c->done = true;
}

static inline void signal_main(void *arg)
{
    struct calling *c = arg;

    c->r = c->bench->g->ops->signal_process(c->ctx, c->bench->g, "c1", 5, 15, &c->err);
    c->done = true;
}

static inline void shutdown_main(void *arg)
{
    struct calling *c = arg;

    c->r = c->bench->g->ops->shutdown(c->ctx, c->bench->g, NULL, false, &c->err);
    c->done = true;
}

static inline void properties_main(void *arg)
{
    struct calling *c = arg;

    c->r = c->bench->g->ops->get_properties(
        c->ctx, c->bench->g, "c1", "{\"PropertyTypes\":[\"Statistics\"]}", &c->text, &c->err);
    c->done = true;
}

static inline void exec_main(void *arg)
{
    struct calling *c = arg;

    c->r = c->bench->g->ops->exec(c->ctx, c->bench->g, &c->exec, &c->process, &c->err);
    c->done = true;
}

static inline void go(struct bench *t, struct calling *c, void (*fn)(void *arg))
{
    c->bench = t;
    if (!c->ctx)
        c->ctx = t->ctx;
    group_go(&t->group, t->ctx->loop, fn, c, "call");
}

static inline void settle(struct bench *t)
{
    struct err err = ERR_INIT;

    ASSERT_OK(group_wait(t->ctx, &t->group, "calls", &err), err);
}
