/* A bridge that is saved, and read into another object on another loop: the guest notices nothing.
 */
#include "fixture/bridge_fixture.h"
#define SAVED_TWO_PROGRAMS
#include "fixture/handover_fixture.h"

#define EXIT_BODY "{\"Result\":0,\"ExitCode\":42}"
#define HALF_LINE "{\"level\":\"info\",\"msg\":\"hello"

struct world {
    struct bench first, second;
    struct calling wait, other;
    struct frame asked; /* by the first program */
    struct stream *log; /* the guest's end */
    struct saved *writer;
    int checked;
    struct err err;
    void (*before)(struct world *w);
};

/* Lets fibers run until they wait. */
static void turn(struct bench *t)
{
    for (int i = 0; i < 20; i++)
        fiber_yield(t->ctx->loop);
}

static void first_half(struct ctx *ctx, void *arg)
{
    struct world *w = arg;

    bench_connect(&w->first, ctx);
    ASSERT_EQ(fake_vmm_dial(w->first.vmm, PORT_LOG, &w->log), 0);
    w->wait.pid = 7;
    go(&w->first, &w->wait, wait_main);
    expect(&w->first, BRIDGE_WAIT_FOR_PROCESS, &w->asked);
    if (w->before)
        w->before(w);
    turn(&w->first);
    w->writer = saved_writer();
    w->first.g->ops->saved(w->first.g, w->writer);
    w->checked = saved_check(w->writer, &w->err);
}

/* The second program: a bridge on a VMM of its own loop, with the peer of the first. */
static void replace(struct world *w, struct ctx *ctx, void (*before)(struct world *w))
{
    struct vm_doc doc = { .id = "t" };
    struct err err = ERR_INIT;

    *w = (struct world){ .before = before };
    saved_first_half(true, first_half, w);
    ASSERT_OK(w->checked, w->err);
    struct bench *t = &w->second;
    t->ctx = ctx;
    t->opts.loop = ctx->loop;
    t->vmm = fake_vmm_new(&t->opts);
    ASSERT_OK(t->vmm->ops->create(ctx, t->vmm, &doc, &err), err);
    t->g = bridge_new(ctx->loop, t->vmm, &t->timeline);
    fibers_init(&t->fibers);
    t->peer = w->first.peer;
    AUTO(saved_free) struct saved *reader = saved_fixture_read(w->writer);
    t->g->ops->saved(t->g, reader);
    ASSERT_OK(saved_check(reader, &err), err);
    ASSERT(t->g->ops->connected(t->g));
}

static void finish(struct world *w)
{
    w->second.g->ops->close(w->second.g, "the test is over");
    stream_free(w->log);
    bench_close(&w->second);
    free(w->asked.body);
    saved_free(w->writer);
}

/* The wait of the first program, by its id. */
static void wait_again(struct world *w, struct calling *c)
{
    *c = (struct calling){ .pid = 7, .wait_id = w->wait.wait_id };
    ASSERT(c->wait_id != 0);
    go(&w->second, c, wait_main);
}

TEST_VIRTUAL(a_wait_is_answered_after_the_program_was_replaced)
{
    struct world w;
    struct calling c;

    replace(&w, ctx, NULL);
    wait_again(&w, &c);
    turn(&w.second);
    ASSERT(!c.done);
    reply(&w.second, &w.asked, EXIT_BODY);
    settle(&w.second);
    ASSERT_OK(c.r, c.err);
    ASSERT_EQ(c.code, 42);
    ASSERT_EQ(c.wait_id, 0);
    finish(&w);
}

TEST_VIRTUAL(an_answer_that_comes_before_its_wait_is_kept)
{
    struct world w;
    struct calling c;

    replace(&w, ctx, NULL);
    reply(&w.second, &w.asked, EXIT_BODY);
    turn(&w.second);
    ASSERT_EQ(w.second.g->ops->oldest_call(w.second.g), 0);
    wait_again(&w, &c);
    settle(&w.second);
    ASSERT_OK(c.r, c.err);
    ASSERT_EQ(c.code, 42);
    finish(&w);
}

TEST_VIRTUAL(an_answer_without_its_wait_is_freed_with_the_bridge)
{
    struct world w;

    replace(&w, ctx, NULL);
    reply(&w.second, &w.asked, EXIT_BODY);
    turn(&w.second);
    finish(&w);
}

TEST_VIRTUAL(a_wait_that_was_not_saved_is_refused)
{
    struct world w;
    struct calling c = { .pid = 7, .wait_id = 1234 };

    replace(&w, ctx, NULL);
    go(&w.second, &c, wait_main);
    settle(&w.second);
    ASSERT_EQ(c.err.code, ERR_STATE);
    finish(&w);
}

/* The answer's first bytes, then the rest. */
static uint8_t answer[BRIDGE_HEADER_BYTES + sizeof(EXIT_BODY) - 1];
static size_t sent;

static void send_part(struct bench *t, size_t from, size_t to)
{
    struct err err = ERR_INIT;

    ASSERT_OK(stream_write_full(t->ctx, t->peer, answer + from, to - from, &err), err);
}

static void half_an_answer(struct world *w)
{
    struct bridge_header h = { bridge_response_type(w->asked.h.type), sizeof(answer),
                               w->asked.h.id };

    bridge_header_encode(&h, answer);
    memcpy(answer + BRIDGE_HEADER_BYTES, EXIT_BODY, sizeof(EXIT_BODY) - 1);
    send_part(&w->first, 0, sent);
}

TEST_VIRTUAL(a_frame_is_read_to_its_end_wherever_it_was_cut)
{
    for (sent = 1; sent < sizeof(answer); sent++) {
        struct world w;
        struct calling c;

        replace(&w, ctx, half_an_answer);
        send_part(&w.second, sent, sizeof(answer));
        wait_again(&w, &c);
        settle(&w.second);
        ASSERT_OK(c.r, c.err);
        ASSERT_EQ(c.code, 42);
        finish(&w);
    }
}

/* A call whose caller gave up, and half of its late answer. */
static void give_up(struct world *w)
{
    struct ctx limited = ctx_with_timeout(w->first.ctx, NS_PER_S);
    struct frame f;

    w->other = (struct calling){ .ctx = &limited };
    go(&w->first, &w->other, signal_main);
    expect(&w->first, BRIDGE_SIGNAL_PROCESS, &f);
    while (!w->other.done)
        ASSERT_EQ(fiber_sleep(w->first.ctx, NS_PER_S, &w->err), 0);
    ASSERT_EQ(w->other.err.code, ERR_DEADLINE);
    free(w->asked.body);
    w->asked = f;
}

TEST_VIRTUAL(the_late_answer_to_an_abandoned_call_is_dropped)
{
    struct world w;
    struct calling c = { 0 };

    replace(&w, ctx, give_up);
    reply(&w.second, &w.asked, OK_BODY);
    go(&w.second, &c, signal_main);
    expect_reply(&w.second, BRIDGE_SIGNAL_PROCESS, OK_BODY);
    settle(&w.second);
    ASSERT_OK(c.r, c.err);
    finish(&w);
}

static void half_a_notification(struct world *w)
{
    struct bridge_header h = { BRIDGE_CONTAINER_NOTIFICATION, sizeof(answer), 0 };

    bridge_header_encode(&h, answer);
    send_part(&w->first, 0, BRIDGE_HEADER_BYTES + 3);
}

TEST_VIRTUAL(half_a_notification_is_dropped_with_its_rest)
{
    struct world w;
    struct calling c = { 0 };

    replace(&w, ctx, half_a_notification);
    send_part(&w.second, BRIDGE_HEADER_BYTES + 3, sizeof(answer));
    go(&w.second, &c, signal_main);
    expect_reply(&w.second, BRIDGE_SIGNAL_PROCESS, OK_BODY);
    settle(&w.second);
    ASSERT_OK(c.r, c.err);
    finish(&w);
}

static void use_ports(struct world *w)
{
    bridge_of(w->first.g)->next_port += 5;
}

TEST_VIRTUAL(ids_and_ports_are_not_used_twice)
{
    struct world w;
    struct calling c = { .exec = { .container = "c1", .want_stdout = true } };
    struct frame f;
    struct stream *out = NULL;

    replace(&w, ctx, use_ports);
    go(&w.second, &c, exec_main);
    expect(&w.second, BRIDGE_EXECUTE_PROCESS, &f);
    ASSERT_EQ(f.h.id, w.asked.h.id + 1);
    ASSERT_EQ(fake_vmm_dial(w.second.vmm, PORT_STDIO_FIRST + 5, &out), 0);
    reply(&w.second, &f, "{\"Result\":0,\"ProcessId\":9}");
    settle(&w.second);
    ASSERT_OK(c.r, c.err);
    stream_free(c.process.out);
    stream_free(out);
    free(f.body);
    finish(&w);
}

static void call_somebody(struct world *w)
{
    struct frame f;

    w->other = (struct calling){ 0 };
    go(&w->first, &w->other, signal_main);
    expect(&w->first, BRIDGE_SIGNAL_PROCESS, &f);
    free(f.body);
}

TEST_VIRTUAL(a_call_under_way_is_not_saved)
{
    struct world w = { .before = call_somebody };

    saved_first_half(true, first_half, &w);
    ASSERT_EQ(w.checked, -1);
    ASSERT_EQ(w.err.reason, REASON_SAVED_STATE);
    ASSERT_MSG_HAS(w.err.msg, "a call to the guest is not answered yet");
    ASSERT_EQ(w.err.code, ERR_STATE);
    saved_free(w.writer);
}

static void half_a_line(struct world *w)
{
    struct bridge *b = bridge_of(w->first.g);

    ASSERT_OK(stream_write_full(w->first.ctx, w->log, HALF_LINE, strlen(HALF_LINE), &w->err),
              w->err);
    b->log.lost = 3;
    b->log.floor_ns = 5;
    b->log.have_offset = true;
    b->log.offset = -7;
    b->log.slow.full_at_ns = 11;
    b->log.parsed.full_at_ns = 12;
    b->log.skipping = true; /* nothing that a line of this length is */
    b->unasked.full_at_ns = 13;
    b->unasked_bytes.full_at_ns = 14;
    b->log_lost = true;
}

TEST_VIRTUAL(the_log_continues_within_its_line)
{
    struct world w;
    struct err err = ERR_INIT;

    replace(&w, ctx, half_a_line);
    const struct bridge *a = bridge_of(w.first.g), *b = bridge_of(w.second.g);
    ASSERT_EQ(b->log.line.len, a->log.line.len);
    ASSERT(b->log.read.full_at_ns > 0);
    ASSERT_EQ(b->log.read.full_at_ns, a->log.read.full_at_ns);
    ASSERT_EQ(b->log.lost, 3);
    ASSERT_EQ(b->log.floor_ns, 5);
    ASSERT(b->log.have_offset);
    ASSERT_EQ(b->log.offset, -7);
    ASSERT_EQ(b->log.slow.full_at_ns, 11);
    ASSERT_EQ(b->log.parsed.full_at_ns, 12);
    ASSERT(b->log.skipping);
    ASSERT_EQ(b->unasked.full_at_ns, 13);
    ASSERT_EQ(b->unasked_bytes.full_at_ns, 14);
    ASSERT(b->log_lost && b->log_open && b->log.flushed);
    ASSERT(b->caps.namespace_add && b->caps.signal_process && b->caps.dump_stacks &&
           b->caps.delete_container_state && b->caps.holder);
    ASSERT_OK(stream_write_full(ctx, w.log, "\"}\n{", 4, &err), err);
    turn(&w.second);
    ASSERT(!b->log.skipping);
    ASSERT_EQ(b->log.line.len, 1);
    finish(&w);
}

static void last_words(struct world *w)
{
    ASSERT_OK(stream_write_full(w->first.ctx, w->log, "panic\nat 1", 10, &w->err), w->err);
}

TEST_VIRTUAL(the_last_words_of_an_agent_are_collected_on)
{
    struct world w;
    struct err err = ERR_INIT;

    replace(&w, ctx, last_words);
    const struct bridge *b = bridge_of(w.second.g);
    ASSERT(b->log.last_words);
    ASSERT_OK(stream_write_full(ctx, w.log, "2\n", 2, &err), err);
    turn(&w.second);
    ASSERT_EQ(b->log.line.len, strlen("panic\nat 12\n"));
    ASSERT_EQ(memcmp(b->log.line.data, "panic\nat 12\n", b->log.line.len), 0);
    finish(&w);
}

TEST_VIRTUAL(a_port_that_was_not_dialled_is_open_again)
{
    struct world w;
    struct stream *s = NULL;
    uint8_t seed[BRIDGE_ENTROPY_BYTES];
    struct err err = ERR_INIT;

    replace(&w, ctx, NULL);
    ASSERT_EQ(fake_vmm_dial(w.second.vmm, PORT_ENTROPY, &s), 0);
    ASSERT_OK(stream_read_full(ctx, s, seed, sizeof(seed), &err), err);
    stream_free(s);
    s = NULL;
    ASSERT(fake_vmm_dial(w.second.vmm, PORT_LOG, &s) != 0); /* that one was */
    finish(&w);
}

/* It came, but its caller has not been woken yet. */
static void answered(struct world *w)
{
    struct bridge_call *c = LIST_FIRST(&bridge_of(w->first.g)->calls, struct bridge_call, node);

    c->payload = str_dup(EXIT_BODY);
    c->len = strlen(EXIT_BODY);
    c->done = true;
}

TEST_VIRTUAL(an_answer_that_came_before_is_saved_with_its_wait)
{
    struct world w;
    struct calling c;

    replace(&w, ctx, answered);
    wait_again(&w, &c);
    settle(&w.second);
    ASSERT_OK(c.r, c.err);
    ASSERT_EQ(c.code, 42);
    finish(&w);
}

static void end_the_log(struct world *w)
{
    stream_free(TAKE_PTR(w->log));
}

TEST_VIRTUAL(a_log_that_has_ended_is_not_awaited)
{
    struct world w;
    struct err err = ERR_INIT;

    replace(&w, ctx, end_the_log);
    ASSERT_OK(w.second.g->ops->drain_log(ctx, w.second.g, &err), err);
    finish(&w);
}
