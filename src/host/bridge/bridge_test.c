/* bridge_test.c - the host's end of the bridge against a scripted peer: expect a frame, answer. */
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

static void bench_open(struct bench *t, struct ctx *ctx)
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

static void bench_close(struct bench *t)
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

static void expect(struct bench *t, uint32_t type, struct frame *ret)
{
    uint8_t raw[BRIDGE_HEADER_BYTES];
    struct err err = ERR_INIT;

    ASSERT_OK(stream_read_full(t->ctx, t->peer, raw, sizeof(raw), &err), err);
    ASSERT_OK(bridge_header_decode(raw, BRIDGE_SIDE_GUEST, BRIDGE_MAX_REQUEST, &ret->h, &err), err);
    ASSERT_EQ(ret->h.type, type);
    ret->body = mem_zalloc(ret->h.size - sizeof(raw) + 1);
    ASSERT_OK(stream_read_full(t->ctx, t->peer, ret->body, ret->h.size - sizeof(raw), &err), err);
}

static void send_frame(struct bench *t, uint32_t type, uint64_t id, const char *body)
{
    struct bridge_header h = { type, (uint32_t)(BRIDGE_HEADER_BYTES + strlen(body)), id };
    uint8_t raw[BRIDGE_HEADER_BYTES];
    struct err err = ERR_INIT;

    bridge_header_encode(&h, raw);
    ASSERT_OK(stream_write_full(t->ctx, t->peer, raw, sizeof(raw), &err), err);
    ASSERT_OK(stream_write_full(t->ctx, t->peer, body, strlen(body), &err), err);
}

static void reply(struct bench *t, const struct frame *f, const char *body)
{
    send_frame(t, bridge_response_type(f->h.type), f->h.id, body);
}

static void expect_reply(struct bench *t, uint32_t type, const char *body)
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

static void connect_main(void *arg)
{
    struct connecting *c = arg;

    c->r = c->bench->g->ops->connect(c->bench->ctx, c->bench->g, &c->err);
}

/* Dials and answers the negotiation with this body; what connect makes of it is in *c. */
static void bench_negotiate(struct bench *t, const char *body, struct connecting *c)
{
    struct err err = ERR_INIT;

    *c = (struct connecting){ .bench = t };
    group_go(&t->group, t->ctx->loop, connect_main, c, "connect");
    ASSERT_EQ(fake_vmm_dial(t->vmm, PORT_BRIDGE, &t->peer), 0);
    expect_reply(t, BRIDGE_NEGOTIATE_PROTOCOL, body);
    ASSERT_OK(group_wait(t->ctx, &t->group, "connect", &err), err);
}

static void bench_connect(struct bench *t, struct ctx *ctx)
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

static void wait_main(void *arg)
{
    struct calling *c = arg;
    struct guest *g = c->bench->g;

    c->r = g->ops->wait_process(c->ctx, g, NULL, c->pid, GUEST_WAIT_FOREVER, &c->code, &c->err);
    c->done = true;
}

static void stacks_main(void *arg)
{
    struct calling *c = arg;

    c->r = c->bench->g->ops->dump_stacks(c->ctx, c->bench->g, &c->text, &c->err);
    c->done = true;
}

static void signal_main(void *arg)
{
    struct calling *c = arg;

    c->r = c->bench->g->ops->signal_process(c->ctx, c->bench->g, "c1", 5, 15, &c->err);
    c->done = true;
}

static void shutdown_main(void *arg)
{
    struct calling *c = arg;

    c->r = c->bench->g->ops->shutdown(c->ctx, c->bench->g, NULL, false, &c->err);
    c->done = true;
}

static void properties_main(void *arg)
{
    struct calling *c = arg;

    c->r = c->bench->g->ops->get_properties(
        c->ctx, c->bench->g, "c1", "{\"PropertyTypes\":[\"Statistics\"]}", &c->text, &c->err);
    c->done = true;
}

static void exec_main(void *arg)
{
    struct calling *c = arg;

    c->r = c->bench->g->ops->exec(c->ctx, c->bench->g, &c->exec, &c->process, &c->err);
    c->done = true;
}

static void go(struct bench *t, struct calling *c, void (*fn)(void *arg))
{
    c->bench = t;
    if (!c->ctx)
        c->ctx = t->ctx;
    group_go(&t->group, t->ctx->loop, fn, c, "call");
}

static void settle(struct bench *t)
{
    struct err err = ERR_INIT;

    ASSERT_OK(group_wait(t->ctx, &t->group, "calls", &err), err);
}

/* --- connecting --- */

TEST_VIRTUAL(negotiation_sends_what_the_original_sends)
{
    struct bench t = { 0 };
    struct connecting c = { .bench = &t };
    struct frame f;

    bench_open(&t, ctx);
    group_go(&t.group, ctx->loop, connect_main, &c, "connect");
    ASSERT_EQ(fake_vmm_dial(t.vmm, PORT_BRIDGE, &t.peer), 0);
    expect(&t, BRIDGE_NEGOTIATE_PROTOCOL, &f);
    ASSERT_STR(f.body, "{\"ContainerId\":\"\",\"ActivityId\":\"00000000-0000-0000-0000-"
                       "000000000000\",\"MinimumVersion\":4,\"MaximumVersion\":4}\n");
    ASSERT_EQ(f.h.id, 0);
    reply(&t, &f, CAPS_BODY);
    free(f.body);
    settle(&t);
    ASSERT_OK(c.r, c.err);
    ASSERT(t.g->ops->caps(t.g)->dump_stacks && !t.g->ops->caps(t.g)->namespace_add);
    ASSERT_STR(t.g->ops->caps(t.g)->os, "linux");
    connect_main(&c); /* connected already: nothing happens */
    ASSERT_OK(c.r, c.err);
    bench_close(&t);
}

TEST_VIRTUAL(another_version_is_refused_naming_both)
{
    struct bench t = { 0 };
    struct connecting c;

    bench_open(&t, ctx);
    bench_negotiate(&t,
                    "{\"Result\":0,\"Version\":3,\"Capabilities\":{\"RuntimeOsType\":\"Linux\","
                    "\"GuestDefinedCapabilities\":{}}}",
                    &c);
    ASSERT_FAIL(c.r, c.err, ERR_UNIMPLEMENTED);
    ASSERT_HAS(c.err.msg, "version 3");
    ASSERT_HAS(c.err.msg, "version 4");
    ASSERT(!t.g->ops->connected(t.g));
    bench_close(&t);
}

TEST_VIRTUAL(an_agent_that_refuses_our_version_is_named)
{
    struct bench t = { 0 };
    struct connecting c;

    bench_open(&t, ctx);
    bench_negotiate(&t, "{\"Result\":-1070137076,\"ErrorMessage\":\"no\"}", &c);
    ASSERT(c.r < 0);
    ASSERT_HAS(c.err.msg, "does not speak protocol version 4");
    bench_close(&t);
}

TEST_VIRTUAL(a_guest_that_is_not_linux_is_refused)
{
    struct bench t = { 0 };
    struct connecting c;

    bench_open(&t, ctx);
    bench_negotiate(
        &t,
        "{\"Result\":0,\"Version\":4,\"Capabilities\":{\"RuntimeOsType\":\"Win\\u001b\","
        "\"GuestDefinedCapabilities\":{}}}",
        &c);
    ASSERT_FAIL(c.r, c.err, ERR_UNIMPLEMENTED);
    ASSERT_HAS(c.err.msg, "'win?'");
    bench_close(&t);
}

TEST_VIRTUAL(connect_without_open_ports_is_a_state_error)
{
    struct fake_vmm_opts opts = { .loop = ctx->loop };
    struct vmm *vmm = fake_vmm_new(&opts);
    struct guest *g = bridge_new(ctx->loop, vmm, NULL);
    struct err err = ERR_INIT;

    ASSERT_FAIL(g->ops->connect(ctx, g, &err), err, ERR_STATE);
    g->ops->free(g);
    vmm->ops->free(vmm);
}

TEST_VIRTUAL(a_port_that_cannot_be_opened_leaves_none_open)
{
    for (unsigned at = 1; at <= 3; at++) {
        struct fake_vmm_opts opts = { .loop = ctx->loop, .listen_fails_at = at };
        struct vmm *vmm = fake_vmm_new(&opts);
        struct guest *g = bridge_new(ctx->loop, vmm, NULL);
        struct vm_doc doc = { .id = "t" };
        struct fake_facts facts;
        struct err err = ERR_INIT;

        ASSERT_OK(vmm->ops->create(ctx, vmm, &doc, &err), err);
        ASSERT_FAIL(g->ops->prepare(ctx, g, &err), err, ERR_EXHAUSTED);
        fake_vmm_facts(vmm, &facts);
        ASSERT_EQ(facts.listeners, 0);
        g->ops->free(g);
        vmm->ops->free(vmm);
    }
}

TEST_VIRTUAL(the_guest_gets_512_bytes_of_entropy_and_an_end)
{
    struct bench t = { 0 };
    AUTO(stream_free) struct stream *s = NULL;
    char buf[BRIDGE_ENTROPY_BYTES];
    struct err err = ERR_INIT;
    size_t n = 1, zeros = 0;

    bench_open(&t, ctx);
    ASSERT_EQ(fake_vmm_dial(t.vmm, PORT_ENTROPY, &s), 0);
    ASSERT_OK(stream_read_full(ctx, s, buf, sizeof(buf), &err), err);
    for (size_t i = 0; i < sizeof(buf); i++)
        zeros += buf[i] == 0;
    ASSERT(zeros < 50);
    ASSERT_OK(stream_read(ctx, s, buf, 1, &n, &err), err);
    ASSERT_EQ(n, 0);
    bench_close(&t);
}

/* --- calls --- */

TEST_VIRTUAL(answers_are_matched_by_id_alone_in_any_order)
{
    struct bench t = { 0 };
    struct calling c[3] = { { .pid = 10 }, { .pid = 11 }, { .pid = 12 } };
    struct frame f[3];

    bench_connect(&t, ctx);
    for (int i = 0; i < 3; i++) {
        go(&t, &c[i], wait_main);
        expect(&t, BRIDGE_WAIT_FOR_PROCESS, &f[i]);
    }
    for (int i = 2; i >= 0; i--) {
        AUTO_FREE char *body = str_format("{\"Result\":0,\"ExitCode\":%d}", 100 + i);

        /* The type of the answer is not looked at. */
        send_frame(&t, bridge_response_type(BRIDGE_START), f[i].h.id, body);
        free(f[i].body);
    }
    settle(&t);
    for (int i = 0; i < 3; i++) {
        ASSERT_OK(c[i].r, c[i].err);
        ASSERT_EQ(c[i].code, 100 + i);
    }
    bench_close(&t);
}

TEST_VIRTUAL(a_call_ends_at_its_limit_and_its_late_answer_hurts_nobody)
{
    struct bench t = { 0 };
    struct ctx root = ctx_root(ctx->loop);
    struct calling slow = { .ctx = &root }, quick = { 0 };
    struct frame f;
    struct err err = ERR_INIT;
    uint64_t began;

    bench_connect(&t, ctx);
    t.ctx = &root;
    began = loop_now(ctx->loop);
    go(&t, &slow, stacks_main);
    expect(&t, BRIDGE_DUMP_STACKS, &f);
    ASSERT_OK(fiber_sleep(&root, NS_PER_S, &err), err);
    ASSERT_EQ(t.g->ops->oldest_call(t.g), NS_PER_S);
    settle(&t);
    ASSERT_FAIL(slow.r, slow.err, ERR_DEADLINE);
    ASSERT_EQ(loop_now(ctx->loop) - began, BRIDGE_CALL_LIMIT);
    ASSERT_EQ(t.g->ops->oldest_call(t.g), 0);
    reply(&t, &f, "{\"Result\":0,\"GuestStacks\":\"late\"}");
    go(&t, &quick, signal_main);
    expect_reply(&t, BRIDGE_SIGNAL_PROCESS, OK_BODY);
    settle(&t);
    ASSERT_OK(quick.r, quick.err);
    ASSERT(t.g->ops->connected(t.g));
    /* But only once. */
    reply(&t, &f, "{\"Result\":0,\"GuestStacks\":\"later still\"}");
    ASSERT_OK(fiber_sleep(&root, NS_PER_MS, &err), err);
    ASSERT(!t.g->ops->connected(t.g));
    free(f.body);
    bench_close(&t);
}

TEST_VIRTUAL(a_shorter_deadline_of_the_caller_counts)
{
    struct bench t = { 0 };
    struct ctx soon;
    struct calling c = { 0 };

    bench_connect(&t, ctx);
    soon = ctx_with_timeout(ctx, NS_PER_S);
    c.ctx = &soon;
    go(&t, &c, stacks_main);
    settle(&t);
    ASSERT_FAIL(c.r, c.err, ERR_DEADLINE);
    ASSERT(t.g->ops->connected(t.g));
    bench_close(&t);
}

TEST_VIRTUAL(what_was_given_up_before_it_was_sent_is_never_sent)
{
    struct bench t = { .opts.stream_bytes = 8 };
    struct ctx soon;
    struct calling stuck = { 0 }, dropped = { 0 }, last = { 0 };
    struct frame f;
    struct err err = ERR_INIT;

    bench_connect(&t, ctx);
    go(&t, &stuck, stacks_main); /* fills the stream: the guest does not read */
    ASSERT_OK(fiber_sleep(ctx, NS_PER_MS, &err), err);
    soon = ctx_with_timeout(ctx, NS_PER_MS);
    dropped.ctx = &soon;
    go(&t, &dropped, signal_main);
    ASSERT_OK(fiber_sleep(ctx, 2 * NS_PER_MS, &err), err);
    ASSERT_FAIL(dropped.r, dropped.err, ERR_DEADLINE);
    go(&t, &last, properties_main);
    expect(&t, BRIDGE_DUMP_STACKS, &f); /* whole */
    reply(&t, &f, "{\"Result\":0,\"GuestStacks\":\"s\"}");
    free(f.body);
    expect_reply(&t, BRIDGE_GET_PROPERTIES, "{\"Result\":0,\"Properties\":\"{}\"}");
    settle(&t);
    ASSERT_OK(stuck.r, stuck.err);
    ASSERT_OK(last.r, last.err);
    free(stuck.text);
    free(last.text);
    bench_close(&t);
}

TEST_VIRTUAL(a_guest_that_does_not_read_does_not_fill_our_memory)
{
    enum { N = 4, EACH = 12 << 20 };
    struct bench t = { .opts.stream_bytes = 8 };
    AUTO_FREE char *big = mem_alloc(EACH + 1);
    const char *argv[] = { "x", NULL };
    struct calling c[N] = { 0 };
    unsigned refused = 0;
    struct err err = ERR_INIT;

    memset(big, 'x', EACH);
    big[EACH] = '\0';
    bench_connect(&t, ctx);
    for (int i = 0; i < N; i++) {
        c[i].exec = (struct guest_exec){ .argv = argv, .cwd = big };
        go(&t, &c[i], exec_main);
    }
    ASSERT_OK(fiber_sleep(ctx, NS_PER_MS, &err), err);
    for (int i = 0; i < N; i++)
        refused += c[i].done && c[i].err.code == ERR_EXHAUSTED;
    ASSERT_EQ(refused, 2); /* two wait to be sent; with a third they would be 36 MiB */
    t.g->ops->close(t.g, "enough");
    settle(&t);
    bench_close(&t);
}

TEST_VIRTUAL(too_many_unanswered_calls_close_the_bridge)
{
    struct bench t = { 0 };
    struct err err = ERR_INIT;
    unsigned n = 0;

    bench_connect(&t, ctx);
    for (; t.g->ops->connected(t.g) && n < 2 * BRIDGE_ABANDONED_MAX; n++) {
        struct ctx soon = ctx_with_timeout(ctx, NS_PER_US);
        struct frame f;
        struct calling c = { .ctx = &soon };

        go(&t, &c, signal_main);
        expect(&t, BRIDGE_SIGNAL_PROCESS, &f);
        free(f.body);
        ASSERT_OK(fiber_sleep(ctx, 2 * NS_PER_US, &err), err);
        ASSERT(c.r < 0);
    }
    ASSERT_EQ(n, BRIDGE_ABANDONED_MAX + 1);
    bench_close(&t);
}

TEST_VIRTUAL(ws15_an_answer_of_more_than_64_kib_is_taken)
{
    struct bench t = { 0 };
    struct calling c = { 0 };
    struct frame f;
    AUTO_FREE char *body = mem_alloc(300 * 1024);
    size_t head = (size_t)sprintf(body, "{\"Result\":0,\"GuestStacks\":\"");

    memset(body + head, 's', 250 * 1024);
    strcpy(body + head + 250 * 1024, "\"}");
    bench_connect(&t, ctx);
    go(&t, &c, stacks_main);
    expect(&t, BRIDGE_DUMP_STACKS, &f);
    reply(&t, &f, body);
    settle(&t);
    ASSERT_OK(c.r, c.err);
    ASSERT_EQ(strlen(c.text), 250 * 1024);
    free(c.text);
    free(f.body);
    bench_close(&t);
}

TEST_VIRTUAL(queries_reach_the_guest_as_they_were_asked)
{
    struct bench t = { 0 };
    struct calling c = { 0 };
    struct frame f;

    bench_connect(&t, ctx);
    go(&t, &c, properties_main);
    expect(&t, BRIDGE_GET_PROPERTIES, &f);
    ASSERT_HAS(f.body, "\"ContainerId\":\"c1\"");
    ASSERT_HAS(f.body, "\"Query\":\"{\\\"PropertyTypes\\\":[\\\"Statistics\\\"]}\"");
    reply(&t, &f, "{\"Result\":0,\"Properties\":\"{\\\"a\\\":1}\"}");
    settle(&t);
    ASSERT_OK(c.r, c.err);
    ASSERT_STR(c.text, "{\"a\":1}");
    free(c.text);
    free(f.body);
    bench_close(&t);
}

TEST_VIRTUAL(a_vm_that_goes_away_has_taken_its_shutdown)
{
    struct bench t = { 0 };
    struct calling c = { 0 };
    struct frame f;

    bench_connect(&t, ctx);
    go(&t, &c, shutdown_main);
    expect(&t, BRIDGE_SHUTDOWN_GRACEFUL, &f);
    ASSERT_HAS(f.body, GUEST_NULL_ID);
    free(f.body);
    stream_free(TAKE_PTR(t.peer));
    settle(&t);
    ASSERT_OK(c.r, c.err);
    bench_close(&t);
}

/* --- refusals --- */

TEST_VIRTUAL(results_become_the_codes_of_callers)
{
    static const struct {
        uint32_t hr;
        enum err_code code;
    } map[] = {
        { 0x80070490, ERR_NOT_FOUND }, { 0xC037010E, ERR_NOT_FOUND },
        { 0xC0370109, ERR_DEADLINE },  { 0x80004001, ERR_UNIMPLEMENTED },
        { 0xC037010F, ERR_EXISTS },    { 0xC0370110, ERR_STATE },
        { 0x80370105, ERR_STATE },     { 0x80070057, ERR_INVALID },
        { 0xC037010D, ERR_INVALID },   { 0x80004005, ERR_UNKNOWN },
        { 0x12345678, ERR_UNKNOWN },
    };
    struct bench t = { 0 };

    bench_connect(&t, ctx);
    for (size_t i = 0; i < ARRAY_LEN(map); i++) {
        AUTO_FREE char *body =
            str_format("{\"Result\":%d,\"ErrorMessage\":\"sorry\"}", (int32_t)map[i].hr);
        struct calling c = { 0 };

        go(&t, &c, signal_main);
        expect_reply(&t, BRIDGE_SIGNAL_PROCESS, body);
        settle(&t);
        ASSERT_FAIL(c.r, c.err, map[i].code);
        ASSERT_HAS(c.err.msg, "\"sorry\"");
        ASSERT_HAS(c.err.msg, "SignalProcess");
    }
    ASSERT(t.g->ops->connected(t.g));
    bench_close(&t);
}

TEST_VIRTUAL(the_guests_words_are_quoted_bounded_and_harmless)
{
    struct bench t = { 0 };
    struct calling c = { 0 };
    AUTO_FREE char *body = mem_alloc(20000);
    size_t head = (size_t)sprintf(body, "{\"Result\":-1,\"ErrorMessage\":\"\\u001b[2J\\n\\u009b");

    memset(body + head, 'z', 10000);
    strcpy(body + head + 10000, "\"}");
    bench_connect(&t, ctx);
    go(&t, &c, signal_main);
    expect_reply(&t, BRIDGE_SIGNAL_PROCESS, body);
    settle(&t);
    ASSERT_FAIL(c.r, c.err, ERR_UNKNOWN);
    ASSERT_HAS(c.err.msg, "\\x1b[2J\\n\\xc2\\x9bzzz");
    ASSERT_HAS(c.err.msg, "zzz…\" (0xffffffff)");
    ASSERT(!strpbrk(c.err.msg, "\x1b\n") && strlen(c.err.msg) < 300);
    bench_close(&t);
}

/* --- a hostile guest --- */

struct poison {
    const char *name;
    uint32_t type, size;
    int64_t id_offset; /* from the outstanding call's */
    const char *body;
    bool then_ends;
    const char *why; /* in the reason */
};

static const struct poison poisons[] = {
    { "length 0", 0x20100c01, 0, 0, "", false, "bad frame" },
    { "length 15", 0x20100c01, 15, 0, "", false, "bad frame" },
    { "length 2^32-1", 0x20100c01, UINT32_MAX, 0, "", false, "bad frame" },
    { "length beyond the limit", 0x20100c01, BRIDGE_MAX_RECEIVE + 1, 0, "", false, "bad frame" },
    { "truncated header", 0, 0, 0, NULL, true, "stream ended" },
    { "truncated payload", 0x20100c01, 100, 0, "{\"Res", true, "stream ended" },
    { "unknown id", 0x20100c01, 28, 7, OK_BODY, false, "nobody made" },
    { "kind 4", 0x40100c01, 28, 0, OK_BODY, false, "bad frame" },
    { "kind request", 0x10100c01, 28, 0, OK_BODY, false, "bad frame" },
    { "another notification", 0x30100201, 28, 0, OK_BODY, false, "bad frame" },
    { "no JSON", 0x20100c01, 20, 0, "nope", false, "unreadable" },
    { "empty payload", 0x20100c01, 16, 0, "", false, "unreadable" },
    { "wrong type of a key", 0x20100c01, 30, 0, "{\"Result\":\"0\"}", false, "unreadable" },
    { "an array", 0x20100c01, 18, 0, "[]", false, "unreadable" },
    { "no readable notification", 0x30100101, 18, 0, "[]", false, "unreadable" },
};

static void send_poison(struct bench *t, const struct poison *p, uint64_t id)
{
    struct bridge_header h = { p->type, p->size, id + (uint64_t)p->id_offset };
    uint8_t raw[BRIDGE_HEADER_BYTES];
    struct err err = ERR_INIT;

    bridge_header_encode(&h, raw);
    ASSERT_OK(stream_write_full(t->ctx, t->peer, raw, p->body ? sizeof(raw) : 7, &err), err);
    if (p->body)
        ASSERT_OK(stream_write_full(t->ctx, t->peer, p->body, strlen(p->body), &err), err);
    if (p->then_ends)
        stream_free(TAKE_PTR(t->peer));
}

TEST_VIRTUAL(a_poisonous_frame_closes_the_bridge_and_wakes_everyone)
{
    for (size_t i = 0; i < ARRAY_LEN(poisons); i++) {
        const struct poison *p = &poisons[i];
        struct bench t = { 0 };
        struct calling a = { .pid = 1 }, b = { 0 }, after = { 0 };
        struct frame f;

        bench_connect(&t, ctx);
        go(&t, &a, wait_main);
        expect(&t, BRIDGE_WAIT_FOR_PROCESS, &f);
        free(f.body);
        go(&t, &b, stacks_main);
        expect(&t, BRIDGE_DUMP_STACKS, &f);
        free(f.body);
        send_poison(&t, p, f.h.id);
        settle(&t);
        if (a.err.code != ERR_UNAVAILABLE || b.err.code != ERR_UNAVAILABLE ||
            t.g->ops->connected(t.g) || !strstr(a.err.msg, p->why))
            tap_fail(__FILE__, __LINE__, "%s: %s / %s", p->name, a.err.msg, b.err.msg);
        go(&t, &after, signal_main);
        settle(&t);
        ASSERT_FAIL(after.r, after.err, ERR_UNAVAILABLE);
        bench_close(&t);
    }
}

TEST_VIRTUAL(an_answer_before_the_question_closes_the_bridge)
{
    struct bench t = { 0 };
    struct calling c = { 0 };

    bench_connect(&t, ctx);
    /* The next id, guessed: nothing was asked with it yet. */
    send_frame(&t, bridge_response_type(BRIDGE_DUMP_STACKS), 1, OK_BODY);
    fiber_yield(ctx->loop);
    fiber_yield(ctx->loop);
    go(&t, &c, stacks_main);
    settle(&t);
    ASSERT_FAIL(c.r, c.err, ERR_UNAVAILABLE);
    bench_close(&t);
}

TEST_VIRTUAL(close_wakes_everyone_with_its_reason)
{
    struct bench t = { 0 };
    struct calling a = { .pid = 1 }, b = { 0 };
    struct err err = ERR_INIT;

    bench_connect(&t, ctx);
    go(&t, &a, wait_main);
    go(&t, &b, stacks_main);
    ASSERT_OK(fiber_sleep(ctx, NS_PER_MS, &err), err);
    t.g->ops->close(t.g, "the VM was terminated");
    settle(&t);
    ASSERT_FAIL(a.r, a.err, ERR_UNAVAILABLE);
    ASSERT_FAIL(b.r, b.err, ERR_UNAVAILABLE);
    ASSERT_HAS(b.err.msg, "the VM was terminated");
    bench_close(&t);
}

/* --- notifications --- */

TEST_VIRTUAL(news_of_unknown_containers_are_kept_up_to_a_limit)
{
    struct bench t = { 0 };
    AUTO(sbuf_release) struct sbuf out = { 0 };
    struct err err = ERR_INIT;
    char name[32];

    bench_connect(&t, ctx);
    for (int i = 0; i < BRIDGE_NOTES_MAX + 10; i++) {
        snprintf(name, sizeof(name), "container-%d", i);
        fake_guest_exit_frame(&out, name);
    }
    ASSERT_OK(stream_write_full(ctx, t.peer, out.data, out.len, &err), err);
    ASSERT_OK(fiber_sleep(ctx, NS_PER_MS, &err), err);
    ASSERT(t.g->ops->connected(t.g));
    ASSERT(!bridge_take_exit(t.g, "container-9"));
    ASSERT(bridge_take_exit(t.g, "container-10"));
    ASSERT(!bridge_take_exit(t.g, "container-10"));
    ASSERT(bridge_take_exit(t.g, "container-73"));
    bench_close(&t);
}

TEST_VIRTUAL(a_container_name_without_end_closes_the_bridge)
{
    struct bench t = { 0 };
    AUTO(sbuf_release) struct sbuf out = { 0 };
    char name[BRIDGE_CONTAINER_ID_MAX + 2];
    struct err err = ERR_INIT;

    memset(name, 'n', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    bench_connect(&t, ctx);
    fake_guest_exit_frame(&out, name);
    ASSERT_OK(stream_write_full(ctx, t.peer, out.data, out.len, &err), err);
    ASSERT_OK(fiber_sleep(ctx, NS_PER_MS, &err), err);
    ASSERT(!t.g->ops->connected(t.g));
    bench_close(&t);
}

/* --- exec --- */

static const char *const argv_ls[] = { "/bin/ls", "-l", NULL };

TEST_VIRTUAL(stdio_ports_are_open_before_the_request_and_never_reused)
{
    struct bench t = { 0 };
    struct calling c = {
        .exec = { .argv = argv_ls, .want_stdin = true, .want_stdout = true, .want_stderr = true }
    };
    struct stream *s[3] = { 0 };
    struct frame f;

    bench_connect(&t, ctx);
    for (uint32_t round = 0; round < 2; round++) {
        uint32_t first = PORT_STDIO_FIRST + 3 * round;
        AUTO_FREE char *ports =
            str_format("{\"StdIn\":%u,\"StdOut\":%u,\"StdErr\":%u}", first, first + 1, first + 2);

        go(&t, &c, exec_main);
        expect(&t, BRIDGE_EXECUTE_PROCESS, &f);
        ASSERT_HAS(f.body, ports);
        ASSERT_HAS(f.body, "\\\"CommandArgs\\\":[\\\"/bin/ls\\\",\\\"-l\\\"]");
        for (uint32_t i = 0; i < 3; i++)
            ASSERT_EQ(fake_vmm_dial(t.vmm, first + i, &s[i]), 0);
        reply(&t, &f, "{\"Result\":0,\"ProcessId\":77}");
        settle(&t);
        ASSERT_OK(c.r, c.err);
        ASSERT_EQ(c.process.pid, 77);
        ASSERT(c.process.in && c.process.out && c.process.err);
        ASSERT(fake_vmm_dial(t.vmm, first, &s[0]) < 0); /* each once */
        stream_free(c.process.in);
        stream_free(c.process.out);
        stream_free(c.process.err);
        for (int i = 0; i < 3; i++)
            stream_free(s[i]);
        free(f.body);
    }
    bench_close(&t);
}

TEST_VIRTUAL(a_refused_exec_closes_all_its_ports)
{
    struct bench t = { 0 };
    struct calling c = { .exec = { .argv = argv_ls, .want_stdin = true, .want_stdout = true } };
    struct fake_facts facts;
    struct stream *s = NULL;
    struct frame f;

    bench_connect(&t, ctx);
    go(&t, &c, exec_main);
    expect(&t, BRIDGE_EXECUTE_PROCESS, &f);
    ASSERT_EQ(fake_vmm_dial(t.vmm, PORT_STDIO_FIRST, &s), 0);
    reply(&t, &f, "{\"Result\":-2147467259,\"ErrorMessage\":\"exec format error\"}");
    settle(&t);
    ASSERT_FAIL(c.r, c.err, ERR_UNKNOWN);
    ASSERT_HAS(c.err.msg, "exec format error");
    fake_vmm_facts(t.vmm, &facts);
    ASSERT_EQ(facts.listeners, 1 + 1); /* entropy and log, which nobody dialled */
    stream_free(s);
    free(f.body);
    bench_close(&t);
}

TEST_VIRTUAL(a_process_whose_streams_do_not_come_is_killed)
{
    struct bench t = { 0 };
    struct ctx root = ctx_root(ctx->loop);
    struct calling c = { .ctx = &root, .exec = { .argv = argv_ls, .want_stdout = true } };
    struct frame f;
    uint64_t began;

    bench_connect(&t, ctx);
    t.ctx = &root;
    began = loop_now(ctx->loop);
    go(&t, &c, exec_main);
    expect_reply(&t, BRIDGE_EXECUTE_PROCESS, "{\"Result\":0,\"ProcessId\":77}");
    expect(&t, BRIDGE_SIGNAL_PROCESS, &f);
    ASSERT_EQ(loop_now(ctx->loop) - began, BRIDGE_STDIO_LIMIT);
    ASSERT_HAS(f.body, "\"ProcessId\":77,\"Options\":{\"Signal\":9}");
    reply(&t, &f, OK_BODY);
    free(f.body);
    settle(&t);
    ASSERT_FAIL(c.r, c.err, ERR_DEADLINE);
    ASSERT_HAS(c.err.msg, "stdout");
    bench_close(&t);
}

TEST_VIRTUAL(a_port_that_cannot_be_opened_fails_the_exec_before_it_is_sent)
{
    struct bench t = { .opts.listen_fails_at = 5 };
    struct calling c = { .exec = { .argv = argv_ls, .want_stdin = true, .want_stdout = true } };

    bench_connect(&t, ctx);
    go(&t, &c, exec_main);
    settle(&t);
    ASSERT_FAIL(c.r, c.err, ERR_EXHAUSTED);
    bench_close(&t);
}

TEST_VIRTUAL(an_exec_in_a_container_carries_its_oci_process)
{
    struct bench t = { 0 };
    struct calling c = { .exec = { .container = "c1", .oci_process = "{\"args\":[\"sh\"]}" } };
    struct calling bad = { .exec = { .container = "c1", .oci_process = "{" } };
    struct frame f;

    bench_connect(&t, ctx);
    go(&t, &bad, exec_main);
    settle(&t);
    ASSERT_FAIL(bad.r, bad.err, ERR_INVALID);
    go(&t, &c, exec_main);
    expect(&t, BRIDGE_EXECUTE_PROCESS, &f);
    ASSERT_HAS(f.body, "\\\"OciProcess\\\":{\\\"args\\\":[\\\"sh\\\"]}");
    reply(&t, &f, "{\"Result\":0,\"ProcessId\":5}");
    free(f.body);
    settle(&t);
    ASSERT_OK(c.r, c.err);
    bench_close(&t);
}
