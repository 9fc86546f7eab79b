#include "base/clock.h"
#include "base/ctx.h"
#include "base/fiber.h"
#include "base/json.h"
#include "base/loop.h"
#include "base/str.h"
#include "base/stream.h"
#include "fixture/stream_pair.h"
#include "harness/tap.h"
#include "host/vmm/qemu/qmp_client.h"
#include "proto/qmp.h"

#include <stdlib.h>
#include <string.h>

#define GREETING                                                                                   \
    "{\"QMP\": {\"version\": {\"qemu\": {\"micro\": 2, \"minor\": 0, \"major\": 10}, "             \
    "\"package\": \"Debian\"}, \"capabilities\": [\"oob\"]}}\r\n"

/* A scripted QEMU at the other end, and a client that is connected to it. */
struct fixture {
    struct ctx *ctx;
    struct ctx life;
    struct stream *peer;
    struct qmp_client *c;
    char events[256];
    struct fibers calls;
};

static void on_event(void *arg, const struct qmp_message *event)
{
    struct fixture *f = arg;

    strncat(f->events, event->event, sizeof(f->events) - strlen(f->events) - 1);
    strncat(f->events, " ", sizeof(f->events) - strlen(f->events) - 1);
}

static void start(struct ctx *ctx, struct fixture *f)
{
    struct stream *ours;

    *f = (struct fixture){ .ctx = ctx, .life = ctx_root(ctx->loop) };
    stream_pair(ctx->loop, 64 * 1024, &ours, &f->peer);
    fibers_init(&f->calls);
    f->c = qmp_client_new(&(struct qmp_client_opts){
        .life = &f->life, .stream = ours, .on_event = on_event, .arg = f });
}

static void say(struct fixture *f, const char *text)
{
    struct err err = ERR_INIT;

    ASSERT_OK(stream_write_full(f->ctx, f->peer, text, strlen(text), &err), err);
}

/* The next command line that the client sent. */
static void expect(struct fixture *f, const char *want)
{
    char line[512];
    struct err err = ERR_INIT;
    size_t n = 0;

    do
        ASSERT_OK(stream_read_full(f->ctx, f->peer, &line[n], 1, &err), err);
    while (line[n] != '\n' && ++n < sizeof(line) - 1);
    line[n] = '\0';
    if (n > 0 && line[n - 1] == '\r')
        line[n - 1] = '\0';
    ASSERT_STR(line, want);
}

static void finish(struct fixture *f)
{
    struct err err = ERR_INIT;

    qmp_client_close(f->c, "the test is over");
    ASSERT_OK(qmp_client_join(f->ctx, f->c, &err), err);
    ASSERT_OK(fibers_wait(f->ctx, &f->calls, "calls", &err), err);
    qmp_client_free(f->c);
    stream_free(f->peer);
}

struct one_call {
    struct fixture *f;
    const char *name;
    uint64_t timeout;
    int result;
    bool done;
    struct err err;
    char value[64];
};

static void call_fiber(void *arg)
{
    struct one_call *o = arg;
    struct ctx ctx = ctx_with_timeout(o->f->ctx, o->timeout ? o->timeout : 30 * NS_PER_S);
    struct qmp_message reply = { 0 };
    char v[64];
    bool connect = str_eq(o->name, "connect"), plain = str_starts(o->name, "query");

    if (connect)
        o->result = qmp_client_connect(&ctx, o->f->c, v, &o->err);
    else
        o->result = qmp_client_call(&ctx, o->f->c, o->name,
                                    plain ? NULL : json_pack("{ss}", "id", "d0"), &reply, &o->err);
    if (o->result == 0 && connect)
        strcpy(o->value, v);
    else if (o->result == 0 && json_is_string(reply.data))
        strncpy(o->value, json_string_value(reply.data), sizeof(o->value) - 1);
    qmp_message_release(&reply);
    o->done = true;
}

static void call(struct fixture *f, struct one_call *o, const char *name)
{
    o->f = f;
    o->name = name;
    fibers_go(&f->calls, f->ctx->loop, call_fiber, o, "%s", name);
}

static void wait_calls(struct fixture *f)
{
    struct err err = ERR_INIT;

    ASSERT_OK(fibers_wait(f->ctx, &f->calls, "calls", &err), err);
}

TEST_VIRTUAL(the_greeting_is_answered_and_has_the_version)
{
    struct fixture f;
    struct one_call o = { 0 };

    start(ctx, &f);
    call(&f, &o, "connect");
    say(&f, GREETING);
    expect(&f, "{\"execute\":\"qmp_capabilities\",\"id\":1}");
    say(&f, "{\"return\": {}, \"id\": 1}\r\n");
    wait_calls(&f);
    ASSERT_OK(o.result, o.err);
    ASSERT_STR(o.value, "10.0.2");
    finish(&f);
}

TEST_VIRTUAL(answers_find_their_calls_in_any_order_with_events_between)
{
    struct fixture f;
    struct one_call a = { 0 }, b = { 0 };

    start(ctx, &f);
    call(&f, &a, "query-a");
    call(&f, &b, "query-b");
    expect(&f, "{\"execute\":\"query-a\",\"id\":1}");
    expect(&f, "{\"execute\":\"query-b\",\"id\":2}");
    say(&f, "{\"timestamp\": {\"seconds\": 1, \"microseconds\": 2}, \"event\": \"STOP\"}\r\n"
            "{\"return\": \"of b\", \"id\": 2}\r\n"
            "{\"timestamp\": {\"seconds\": 1, \"microseconds\": 2}, \"event\": \"SHUTDOWN\", "
            "\"data\": {\"guest\": true, \"reason\": \"guest-shutdown\"}}\r\n");
    say(&f, "{\"return\": \"of a\", \"id\": 1}\r\n");
    wait_calls(&f);
    ASSERT_STR(a.value, "of a");
    ASSERT_STR(b.value, "of b");
    ASSERT_STR(f.events, "STOP SHUTDOWN ");
    finish(&f);
}

TEST_VIRTUAL(an_error_has_qemus_words)
{
    struct fixture f;
    struct one_call o = { 0 };

    start(ctx, &f);
    call(&f, &o, "device_del");
    expect(&f, "{\"execute\":\"device_del\",\"arguments\":{\"id\":\"d0\"},\"id\":1}");
    say(&f, "{\"id\": 1, \"error\": {\"class\": \"DeviceNotFound\", \"desc\": \"Device 'd0' not "
            "found\"}}\r\n");
    wait_calls(&f);
    ASSERT_FAIL(o.result, o.err, ERR_NOT_FOUND);
    ASSERT_HAS(o.err.msg, "Device 'd0' not found");
    finish(&f);
}

TEST_VIRTUAL(silence_ends_with_the_deadline_and_a_late_answer_is_ignored)
{
    struct fixture f;
    struct one_call slow = { .timeout = NS_PER_MS }, next = { 0 };

    start(ctx, &f);
    call(&f, &slow, "query-slow");
    wait_calls(&f);
    ASSERT_FAIL(slow.result, slow.err, ERR_DEADLINE);
    ASSERT_HAS(slow.err.msg, "query-slow");
    call(&f, &next, "query-next");
    expect(&f, "{\"execute\":\"query-slow\",\"id\":1}");
    expect(&f, "{\"execute\":\"query-next\",\"id\":2}");
    say(&f, "{\"return\": \"late\", \"id\": 1}\r\n{\"return\": \"now\", \"id\": 2}\r\n"
            "{\"return\": \"twice\", \"id\": 2}\r\n");
    wait_calls(&f);
    ASSERT_STR(next.value, "now");
    finish(&f);
}

TEST_VIRTUAL(no_greeting_ends_with_the_deadline)
{
    struct fixture f;
    struct one_call o = { .timeout = NS_PER_MS };

    start(ctx, &f);
    call(&f, &o, "connect");
    wait_calls(&f);
    ASSERT_FAIL(o.result, o.err, ERR_DEADLINE);
    ASSERT_EQ(o.err.reason, REASON_QEMU_SILENT);
    ASSERT_HAS(o.err.msg, "greet");
    finish(&f);
}

static enum reason breaks(struct ctx *ctx, const char *text, bool shut, const char *why)
{
    struct fixture f;
    struct one_call a = { 0 }, b = { 0 }, later = { 0 };

    start(ctx, &f);
    call(&f, &a, "query-a");
    call(&f, &b, "connect");
    expect(&f, "{\"execute\":\"query-a\",\"id\":1}");
    say(&f, text);
    if (shut)
        (void)stream_shutdown(f.peer, 1 /* SHUT_WR */);
    wait_calls(&f);
    ASSERT_FAIL(a.result, a.err, ERR_UNAVAILABLE);
    ASSERT_MSG_HAS(a.err.msg, why);
    ASSERT_FAIL(b.result, b.err, ERR_UNAVAILABLE);
    call(&f, &later, "query-later");
    wait_calls(&f);
    ASSERT_FAIL(later.result, later.err, ERR_UNAVAILABLE);
    finish(&f);
    return a.err.reason;
}

TEST_VIRTUAL(the_end_of_the_stream_fails_every_call)
{
    ASSERT_EQ(breaks(ctx, "", true, "closed its monitor"), REASON_QEMU_GONE);
}

TEST_VIRTUAL(an_end_within_a_message_is_reported)
{
    breaks(ctx, "{\"return\": ", true, "in a message");
}

TEST_VIRTUAL(rubbish_fails_every_call)
{
    breaks(ctx, "hello world\r\n", false, "qmp");
}

TEST_VIRTUAL(json_that_is_not_qmp_fails_every_call)
{
    breaks(ctx, "{\"hello\": 1}\r\n", false, "qmp");
}

static void flood(void *arg)
{
    struct fixture *f = arg;
    struct ctx ctx = ctx_with_timeout(f->ctx, NS_PER_S);
    AUTO_FREE char *block = mem_alloc(65536);
    struct err err = ERR_INIT;

    memset(block, 'x', 65536);
    block[0] = '{';
    block[1] = '"';
    for (int i = 0; i < 32; i++) {
        if (stream_write_full(&ctx, f->peer, block, 65536, &err) < 0)
            return;
        block[0] = block[1] = 'x';
    }
}

TEST_VIRTUAL(a_huge_message_is_cut_off)
{
    struct fixture f;
    struct one_call a = { 0 };

    start(ctx, &f);
    call(&f, &a, "query-a");
    fibers_go(&f.calls, ctx->loop, flood, &f, "flood");
    wait_calls(&f);
    ASSERT_FAIL(a.result, a.err, ERR_UNAVAILABLE);
    finish(&f);
}

TEST_VIRTUAL(a_qemu_that_does_not_read_blocks_no_call_without_limit)
{
    struct fixture f;
    struct one_call o[8] = { 0 };
    static char big[300 * 1024];

    memset(big, 'x', sizeof(big) - 1);
    start(ctx, &f);
    for (size_t i = 0; i < ARRAY_LEN(o); i++) { /* the name is the easiest part to make long */
        o[i].timeout = NS_PER_MS;
        o[i].f = &f;
        o[i].name = big;
        fibers_go(&f.calls, ctx->loop, call_fiber, &o[i], "big %zu", i);
    }
    wait_calls(&f);
    for (size_t i = 0; i < ARRAY_LEN(o); i++)
        ASSERT(o[i].result < 0 &&
               (o[i].err.code == ERR_DEADLINE || o[i].err.code == ERR_EXHAUSTED));
    ASSERT_EQ(o[7].err.code, ERR_EXHAUSTED);
    finish(&f);
}

TEST_VIRTUAL(close_fails_all_calls_with_its_reason)
{
    struct fixture f;
    struct one_call a = { 0 };

    start(ctx, &f);
    call(&f, &a, "query-a");
    fiber_yield(ctx->loop);
    qmp_client_close(f.c, "the VM was terminated");
    wait_calls(&f);
    ASSERT_FAIL(a.result, a.err, ERR_UNAVAILABLE);
    ASSERT_HAS(a.err.msg, "the VM was terminated");
    finish(&f);
}
