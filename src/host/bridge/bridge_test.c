/* bridge_test.c - the host's end of the bridge: connecting and calling. */
#include "fixture/bridge_fixture.h"
#include "fixture/kept_spans.h"
#include <errno.h>
#include <signal.h>

/* --- connecting --- */

TEST_VIRTUAL(negotiation_sends_what_the_original_sends)
{
    struct bench t = { 0 };
    struct connecting c = { .bench = &t };
    struct frame f;

    bench_open(&t, ctx);
    fibers_go(&t.fibers, ctx->loop, connect_main, &c, "connect");
    ASSERT_EQ(fake_vmm_dial(t.vmm, PORT_BRIDGE, &t.peer), 0);
    expect(&t, BRIDGE_NEGOTIATE_PROTOCOL, &f);
    ASSERT_STR(f.body, "{\"ContainerId\":\"\",\"ActivityId\":\"00000000-0000-0000-0000-"
                       "000000000000\",\"MinimumVersion\":4,\"MaximumVersion\":4}\n");
    ASSERT_EQ(f.h.id, 0);
    reply(&t, &f, CAPS_BODY);
    free(f.body);
    settle(&t);
    ASSERT_OK(c.r, c.err);
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
    ASSERT_MSG_HAS(c.err.msg, "version 3");
    ASSERT_EQ(c.err.reason, REASON_VERSION_MISMATCH);
    ASSERT_MSG_HAS(c.err.msg, "version 4");
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
    ASSERT_MSG_HAS(c.err.msg, "does not speak protocol version 4");
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
    for (unsigned at = 1; at <= 2; at++) {
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

TEST_VIRTUAL(a_log_that_cannot_be_listened_for_is_marked_and_the_guest_serves)
{
    for (unsigned at = 0; at <= 3; at += 3) {
        struct bench t = { .opts.listen_fails_at = at };
        struct fake_facts facts;
        struct stream *log = NULL;
        struct err err = ERR_INIT;

        bench_connect(&t, ctx);
        ASSERT(t.g->ops->connected(t.g));
        ASSERT_EQ(t.g->ops->log_lost(t.g), at == 3);
        fake_vmm_facts(t.vmm, &facts);
        ASSERT_EQ(facts.listeners, at == 3 ? 1u : 2u); /* entropy's; and the log's */
        ASSERT_EQ(fake_vmm_dial(t.vmm, PORT_LOG, &log), at == 3 ? -ECONNREFUSED : 0);
        stream_free(log);
        ASSERT_OK(t.g->ops->drain_log(ctx, t.g, &err), err); /* it does not wait for what is not */
        bench_close(&t);
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

TEST_VIRTUAL(a_call_ends_at_its_limit_and_its_late_answer_is_ignored)
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
    go(&t, &last, stats_main);
    expect(&t, BRIDGE_DUMP_STACKS, &f); /* whole */
    reply(&t, &f, "{\"Result\":0,\"GuestStacks\":\"s\"}");
    free(f.body);
    expect_reply(&t, BRIDGE_GET_PROPERTIES, "{\"Result\":0,\"Properties\":\"{}\"}");
    settle(&t);
    ASSERT_OK(stuck.r, stuck.err);
    ASSERT_FAIL(last.r, last.err, ERR_NOT_FOUND); /* the guest answered, without metrics */
    free(stuck.text);
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

TEST_VIRTUAL(statistics_are_asked_for_and_come_as_a_tree)
{
    struct bench t = { 0 };
    struct calling c = { 0 };
    struct frame f;

    bench_connect(&t, ctx);
    go(&t, &c, stats_main);
    expect(&t, BRIDGE_GET_PROPERTIES, &f);
    ASSERT_HAS(f.body, "\"ContainerId\":\"c1\"");
    ASSERT_HAS(
        f.body,
        "\"Query\":\"{\\\"PropertyTypes\\\":[\\\"Statistics\\\",\\\"Short\\\",\\\"Scratch\\\"]}\"");
    reply(&t, &f,
          "{\"Result\":0,\"Properties\":\"{\\\"LCOWMetrics\\\":{\\\"a\\\":1},"
          "\\\"ScratchBytes\\\":7}\"}");
    settle(&t);
    ASSERT_OK(c.r, c.err);
    ASSERT_EQ(json_integer_value(js_get(c.metrics, "a")), 1);
    ASSERT_EQ(c.scratch, 7);
    json_decref(c.metrics);
    free(f.body);
    bench_close(&t);
}

static void stats_alone_main(void *arg)
{
    struct calling *c = arg;

    c->r = c->bench->g->ops->read_stats(c->ctx, c->bench->g, "c1", &c->metrics, NULL, &c->err);
    c->done = true;
}

TEST_VIRTUAL(statistics_alone_do_not_ask_for_the_scratch_disk)
{
    struct bench t = { 0 };
    struct calling c = { 0 };
    struct frame f;

    bench_connect(&t, ctx);
    go(&t, &c, stats_alone_main);
    expect(&t, BRIDGE_GET_PROPERTIES, &f);
    ASSERT_HAS(f.body, "\"Query\":\"{\\\"PropertyTypes\\\":[\\\"Statistics\\\",\\\"Short\\\"]}\"");
    reply(&t, &f, "{\"Result\":0,\"Properties\":\"{\\\"LCOWMetrics\\\":{\\\"a\\\":1}}\"}");
    settle(&t);
    ASSERT_OK(c.r, c.err);
    ASSERT_EQ(json_integer_value(js_get(c.metrics, "a")), 1);
    json_decref(c.metrics);
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

static int signal_with(struct bench *t, struct calling *c, int signo)
{
    return t->g->ops->signal_process(t->ctx, t->g, "c1", 5, signo, &c->err);
}

static void kill_main(void *arg)
{
    struct calling *c = arg;

    c->r = signal_with(c->bench, c, SIGKILL);
}

static void term_main(void *arg)
{
    struct calling *c = arg;

    c->r = signal_with(c->bench, c, SIGTERM);
}

TEST_VIRTUAL(a_traced_call_hands_its_trace_to_the_guest_and_keeps_its_steps_within_the_call)
{
    struct bench t = { 0 };
    struct calling c = { 0 };
    struct frame f;
    struct kept k = kept_with(ctx->loop);
    struct span request;
    struct trace from;
    bool sampled;

    bench_connect(&t, ctx);
    ASSERT(trace_parse(KEPT_PARENT, strlen(KEPT_PARENT), &from, &sampled));
    from.tracestate = "a=b";
    ASSERT(span_begin_request(&request, ctx, &k.sink, &from, true, "Kill"));
    go(&t, &c, term_main);
    expect(&t, BRIDGE_SIGNAL_PROCESS, &f);
    ASSERT_HAS(f.body, "\"otsc\":{\"traceparent\":\"00-4bf92f3577b34da6a3ce929d0e0e4736-");
    ASSERT_HAS(f.body, "-01\",\"tracestate\":\"a=b\"}");
    ASSERT_OK(fiber_sleep(ctx, 100 * NS_PER_MS, &c.err), c.err);
    reply(&t, &f,
          "{\"Result\":0,\"Spans\":[{\"Name\":\"\\u001b[31m\",\"Start\":18446744073709551615,"
          "\"End\":18446744073709551615},{\"Name\":\"whole\",\"End\":40000000,\"Failed\":true}]}");
    free(f.body);
    settle(&t);
    ASSERT_OK(c.r, c.err);
    ctx->span = NULL;
    bench_close(&t);
    ASSERT_EQ(k.n, 3);

    const struct span *whole = &k.spans[0], *step = &k.spans[1], *call = &k.spans[2];

    ASSERT_STR(k.names[0], "whole");
    ASSERT(kept_is_child(whole, &call->trace) && kept_is_child(step, &whole->trace));
    ASSERT(kept_is_child(call, &request.trace));
    ASSERT_EQ(call->kind, SPAN_CLIENT);
    ASSERT_EQ(whole->start - call->start, 30 * NS_PER_MS);
    ASSERT_EQ(whole->end - whole->start, 40 * NS_PER_MS);
    ASSERT(whole->err && !step->err);
    ASSERT_STR(k.names[1], "\\x1b[31m");
    ASSERT(step->start == whole->end && step->end == whole->end);
}

TEST_VIRTUAL(a_guest_without_a_capability_gets_the_older_way_or_the_error_names_it)
{
    static void (*const ends[])(void *) = { term_main, kill_main };
    const struct guest_nic nic = { .ns = "n", .id = "i", .name = "eth0" };
    struct bench t = { 0 };
    struct calling c = { 0 };
    struct frame f;
    char *text = NULL;

    bench_connect_as(&t, ctx, NO_CAPS_BODY);
    ASSERT_FAIL(t.g->ops->dump_stacks(ctx, t.g, &text, &c.err), c.err, ERR_UNIMPLEMENTED);
    ASSERT_HAS(c.err.msg, "DumpStacksSupported");
    ASSERT_FAIL(t.g->ops->add_nic(ctx, t.g, &nic, &c.err), c.err, ERR_UNIMPLEMENTED);
    ASSERT_HAS(c.err.msg, "NamespaceAddRequestSupported");
    ASSERT_FAIL(signal_with(&t, &c, SIGHUP), c.err, ERR_UNIMPLEMENTED);
    ASSERT_HAS(c.err.msg, "SignalProcessSupported");
    ASSERT_OK(t.g->ops->delete_container(ctx, t.g, "c1", &c.err), c.err); /* nothing is sent */
    for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
        go(&t, &c, ends[i]);
        expect(&t, BRIDGE_SIGNAL_PROCESS, &f);
        ASSERT(!strstr(f.body, "Options"));
        reply(&t, &f, OK_BODY);
        free(f.body);
        settle(&t);
        ASSERT_OK(c.r, c.err);
    }
    bench_close(&t);
}
