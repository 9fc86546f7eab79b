/* bridge_hostile_test.c - refusals, poisonous frames, notifications, and exec. */
#include "fixture/bridge_fixture.h"

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

/* --- lists of processes --- */

/* The call after an answer with this list; free c.list. */
static struct calling list_after(struct bench *t, const char *list)
{
    AUTO_FREE char *inner = str_format("{\"ProcessList\":[%s]}", list);
    AUTO(sbuf_release) struct sbuf body = { 0 };
    struct calling c = { 0 };

    sbuf_adds(&body, "{\"Result\":0,\"Properties\":\"");
    for (const char *p = inner; *p; p++) {
        if (*p == '"' || *p == '\\')
            sbuf_addc(&body, '\\');
        sbuf_addc(&body, *p);
    }
    sbuf_add(&body, "\"}", 3);
    go(t, &c, list_main);
    expect_reply(t, BRIDGE_GET_PROPERTIES, (const char *)body.data);
    settle(t);
    ASSERT(c.done);
    return c;
}

TEST_VIRTUAL(a_process_list_is_sorted_without_invalid_and_repeated_pids)
{
    struct bench t = { 0 };

    bench_connect(&t, ctx);
    struct calling c = list_after(
        &t, "{\"ProcessId\":7,\"Name\":\"a\\u001b[2J\\u00e9 and much more than sixteen\","
            "\"AgeMs\":2000,\"Leader\":5,\"PrivateKiB\":9},{\"ProcessId\":0},{},"
            "{\"ProcessId\":4194305},{\"ProcessId\":4294967295},{\"ProcessId\":5},"
            "{\"ProcessId\":7},{\"ProcessId\":4194304,\"AgeMs\":18446744073709551615}");

    ASSERT_OK(c.r, c.err);
    ASSERT_EQ(c.n_list, 3);
    ASSERT_EQ(c.list[0].pid, 5);
    ASSERT_EQ(c.list[0].start_ns, 0);
    ASSERT_EQ(c.list[1].pid, 7);
    ASSERT_EQ(c.list[1].leader, 5);
    ASSERT_EQ(c.list[1].private_kib, 9);
    ASSERT_EQ(c.list[1].start_ns, loop_wall(ctx->loop) - 2 * NS_PER_S);
    ASSERT_STR(c.list[1].name, "a?[2J?? and muc");
    ASSERT_EQ(c.list[2].pid, GUEST_PID_MAX);
    ASSERT_EQ(c.list[2].start_ns, 0);
    free(c.list);

    struct calling none = list_after(&t, "");

    ASSERT_OK(none.r, none.err);
    ASSERT_EQ(none.n_list, 0);
    free(none.list);
    bench_close(&t);
}

TEST_VIRTUAL(a_process_list_of_something_else_is_an_error)
{
    static const char *const lists[] = { "{\"ProcessId\":-1}",
                                         "{\"ProcessId\":4294967296}",
                                         "{\"ProcessId\":1.5}",
                                         "{\"ProcessId\":\"1\"}",
                                         "{\"ProcessId\":[]}",
                                         "{\"ProcessId\":1,\"Name\":7}",
                                         "{\"ProcessId\":1,\"UserMs\":-7}",
                                         "1",
                                         "[]" };
    struct bench t = { 0 };

    bench_connect(&t, ctx);
    for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
        struct calling c = list_after(&t, lists[i]);
        ASSERT_EQ(c.r, -1);
        ASSERT_EQ(c.list, NULL);
    }
    bench_close(&t);
}

/* {} so that the frame is not too long. */
static char *long_list(size_t n_empty, unsigned n_pids)
{
    struct sbuf text = { 0 };

    for (size_t i = 0; i < n_empty; i++)
        sbuf_adds(&text, i ? ",{}" : "{}");
    for (unsigned i = 0; i < n_pids; i++)
        sbuf_addf(&text, ",{\"ProcessId\":%u}", i + 1);
    return sbuf_take(&text);
}

TEST_VIRTUAL(a_list_of_too_many_processes_is_cut_and_one_of_100000_is_refused)
{
    struct bench t = { 0 };
    AUTO_FREE char *many = long_list(30000, 9000), *too_many = long_list(100000, 20000);

    bench_connect(&t, ctx);

    struct calling c = list_after(&t, many), no = list_after(&t, too_many);

    ASSERT_OK(c.r, c.err);
    ASSERT_EQ(c.n_list, GUEST_LIST_MAX);
    ASSERT_EQ(c.list[GUEST_LIST_MAX - 1].pid, GUEST_LIST_MAX);
    free(c.list);
    ASSERT_EQ(no.r, -1);
    ASSERT_MSG_HAS(no.err.msg, "too many values");
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
    { "a notification of 1 MiB", 0x30100101, 1u << 20, 0, "", false, "at most 4096" },
    { "a notification of 4097 bytes", 0x30100101, 4097, 0, "", false, "at most 4096" },
    { "an answer without a call, not yet sent", 0x20100c01, 60000, 7, "", false,
      "that was not made" },
    { "truncated header", 0, 0, 0, NULL, true, "stream ended" },
    { "truncated payload", 0x20100c01, 100, 0, "{\"Res", true, "stream ended" },
    { "unknown id", 0x20100c01, 28, 7, OK_BODY, false, "that was not made" },
    { "kind 4", 0x40100c01, 28, 0, OK_BODY, false, "bad frame" },
    { "kind request", 0x10100c01, 28, 0, OK_BODY, false, "bad frame" },
    { "another notification", 0x30100201, 28, 0, OK_BODY, false, "bad frame" },
    { "no JSON", 0x20100c01, 20, 0, "nope", false, "unreadable" },
    { "empty payload", 0x20100c01, 16, 0, "", false, "unreadable" },
    { "wrong type of a key", 0x20100c01, 30, 0, "{\"Result\":\"0\"}", false, "unreadable" },
    { "an array", 0x20100c01, 18, 0, "[]", false, "unreadable" },
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

TEST_VIRTUAL(an_invalid_frame_closes_the_bridge_and_fails_all_calls)
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
        uint64_t before = log_failures(REASON_GUEST_PROTOCOL);
        send_poison(&t, p, f.h.id);
        settle(&t);
        if (!p->then_ends)
            ASSERT_EQ(log_failures(REASON_GUEST_PROTOCOL), before + 1);
        if (a.err.code != ERR_UNAVAILABLE || b.err.code != ERR_UNAVAILABLE ||
            t.g->ops->connected(t.g) || (tap_words_compared() && !strstr(a.err.msg, p->why)))
            tap_fail(__FILE__, __LINE__, "%s: %s / %s", p->name, a.err.msg, b.err.msg);
        go(&t, &after, signal_main);
        settle(&t);
        ASSERT_FAIL(after.r, after.err, ERR_UNAVAILABLE);
        ASSERT_EQ(after.err.reason, REASON_GUEST_LOST);
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

TEST_VIRTUAL(close_fails_all_calls_with_its_reason)
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

static void flood_main(void *arg)
{
    struct calling *c = arg;
    AUTO(sbuf_release) struct sbuf out = { 0 };

    fake_guest_exit_frame(&out, "nobody");
    for (uint32_t i = 0; i < c->code && c->r == 0; i++)
        c->r = stream_write_full(c->ctx, c->bench->peer, out.data, out.len, &c->err);
    c->done = true;
}

/* All containers and execs of a VM may end at once. */
TEST_VIRTUAL(a_thousand_exits_at_once_are_heard_at_once)
{
    struct bench t = { 0 };
    struct calling flood = { .code = 1024 }, c = { 0 };
    uint64_t began = loop_now(ctx->loop);
    struct frame f;

    bench_connect(&t, ctx);
    go(&t, &c, signal_main);
    expect(&t, BRIDGE_SIGNAL_PROCESS, &f);
    flood.bench = &t;
    flood.ctx = ctx;
    flood_main(&flood);
    reply(&t, &f, OK_BODY);
    free(f.body);
    settle(&t);
    ASSERT_OK(c.r, c.err);
    ASSERT_EQ(loop_now(ctx->loop) - began, 0);
    bench_close(&t);
}

/* The clock stands still but for our own pauses: what is read in a second is bounded by them, on
 * whatever machine. */
TEST_VIRTUAL(a_guest_that_floods_the_bridge_is_read_slowly_and_its_answers_wait)
{
    struct bench t = { 0 };
    struct calling flood = { .code = BRIDGE_UNASKED_BURST + 3 * BRIDGE_UNASKED_PER_S }, c = { 0 };
    uint64_t began = loop_now(ctx->loop), took;
    struct frame f;

    bench_connect(&t, ctx);
    go(&t, &c, signal_main);
    expect(&t, BRIDGE_SIGNAL_PROCESS, &f);
    flood.bench = &t;
    flood.ctx = ctx;
    flood_main(&flood);
    ASSERT_OK(flood.r, flood.err);
    reply(&t, &f, OK_BODY);
    free(f.body);
    settle(&t);
    ASSERT_OK(c.r, c.err);
    took = loop_now(ctx->loop) - began;
    ASSERT(took >= 2 * NS_PER_S && took <= 4 * NS_PER_S);
    ASSERT(t.g->ops->connected(t.g));
    bench_close(&t);
}

TEST_VIRTUAL(large_notifications_are_counted_by_their_bytes)
{
    struct bench t = { 0 };
    AUTO_FREE char *body = mem_zalloc(BRIDGE_UNASKED_MAX - BRIDGE_HEADER_BYTES + 1);
    unsigned n = (BRIDGE_UNASKED_BYTES_BURST + 4 * BRIDGE_UNASKED_BYTES_PER_S) / BRIDGE_UNASKED_MAX;
    uint64_t began = loop_now(ctx->loop);
    struct err err = ERR_INIT;

    memset(body, ' ', BRIDGE_UNASKED_MAX - BRIDGE_HEADER_BYTES);
    bench_connect(&t, ctx);
    for (unsigned i = 0; i < n; i++)
        send_frame(&t, 0x30100101, 0, body);
    while (bridge_of(t.g)->unasked_bytes.full_at_ns < began + 12 * NS_PER_S)
        ASSERT_OK(fiber_sleep(ctx, NS_PER_S / 4, &err), err);
    ASSERT(loop_now(ctx->loop) - began >= 3 * NS_PER_S);
    ASSERT(t.g->ops->connected(t.g));
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
    ASSERT_EQ(facts.listeners, 1 + 1); /* entropy and log, to which the guest did not connect */
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
    AUTO(json_decref) json_t *process = json_pack("{s[s]}", "args", "sh");
    struct calling c = { .exec = { .container = "c1", .oci_process = process } };
    struct frame f;

    bench_connect(&t, ctx);
    go(&t, &c, exec_main);
    expect(&t, BRIDGE_EXECUTE_PROCESS, &f);
    ASSERT_HAS(f.body, "\\\"OciProcess\\\":{\\\"args\\\":[\\\"sh\\\"]}");
    reply(&t, &f, "{\"Result\":0,\"ProcessId\":5}");
    free(f.body);
    settle(&t);
    ASSERT_OK(c.r, c.err);
    bench_close(&t);
}

static void closed_main(void *arg)
{
    struct calling *c = arg;

    c->r = c->bench->g->ops->wait_closed(c->ctx, c->bench->g, &c->err);
    c->done = true;
}

/* No call is outstanding, so no call would report the end. */
TEST_VIRTUAL(a_wait_for_the_end_of_the_bridge_returns_at_its_end)
{
    struct bench t = { 0 };
    struct calling c = { 0 };

    bench_connect(&t, ctx);
    go(&t, &c, closed_main);
    ASSERT_OK(fiber_sleep(ctx, NS_PER_S, &c.err), c.err);
    ASSERT(!c.done);
    stream_free(TAKE_PTR(t.peer));
    settle(&t);
    ASSERT(c.done);
    ASSERT_OK(c.r, c.err);
    bench_close(&t);
}
