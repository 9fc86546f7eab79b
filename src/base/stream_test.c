/* stream_test.c - every kind of stream behaves alike, and copies lose nothing. */
#include "base/clock.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/loop.h"
#include "base/str.h"
#include "base/stream.h"
#include "fixture/stream_pair.h"
#include "harness/tap.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void memory_pair(struct loop *loop, struct stream **a, struct stream **b)
{
    stream_pair(loop, 4096, a, b);
}

static void socket_pair(struct loop *loop, struct stream **a, struct stream **b)
{
    int fds[2];

    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    *a = stream_from_fd(loop, fds[0]);
    *b = stream_from_fd(loop, fds[1]);
}

static void pipe_pair(struct loop *loop, struct stream **reader, struct stream **writer)
{
    int fds[2];

    ASSERT_EQ(pipe2(fds, O_CLOEXEC), 0);
    *reader = stream_from_fd(loop, fds[0]);
    *writer = stream_from_fd(loop, fds[1]);
}

static void (*const both_ways[])(struct loop *, struct stream **, struct stream **) = {
    memory_pair,
    socket_pair,
};

TEST_FIBER(bytes_written_are_read_and_half_close_is_the_end)
{
    for (size_t i = 0; i < ARRAY_LEN(both_ways); i++) {
        struct stream *a, *b;
        struct err err = ERR_INIT;
        char buf[16];
        size_t n;

        both_ways[i](ctx->loop, &a, &b);
        ASSERT_OK(stream_write_full(ctx, a, "hello", 5, &err), err);
        ASSERT_EQ(stream_shutdown(a, SHUT_WR), 0);
        ASSERT_OK(stream_read_full(ctx, b, buf, 5, &err), err);
        ASSERT(memcmp(buf, "hello", 5) == 0);
        ASSERT_OK(stream_read(ctx, b, buf, sizeof(buf), &n, &err), err);
        ASSERT_EQ(n, 0);
        ASSERT_OK(stream_write_full(ctx, b, "back", 4, &err), err);
        ASSERT_OK(stream_read_full(ctx, a, buf, 4, &err), err);
        stream_free(a);
        stream_free(b);
    }
}

struct talker {
    struct loop *loop;
    struct stream *to;
};

/* A byte every millisecond. */
static void talk(void *arg)
{
    struct talker *t = arg;
    struct ctx ctx = ctx_root(t->loop);
    struct err err = ERR_INIT;

    for (int i = 0; i < 30; i++) {
        ASSERT_OK(fiber_sleep(&ctx, NS_PER_MS, &err), err);
        ASSERT_OK(stream_write_full(&ctx, t->to, "x", 1, &err), err);
    }
    ASSERT_EQ(stream_shutdown(t->to, SHUT_WR), 0);
}

TEST_FIBER(what_comes_in_a_pause_is_read_behind_it)
{
    for (size_t i = 0; i < ARRAY_LEN(both_ways); i++) {
        struct talker t = { .loop = ctx->loop };
        struct stream *from;
        struct err err = ERR_INIT;
        size_t total = 0, n = 1, reads = 0;
        char buf[64];

        both_ways[i](ctx->loop, &t.to, &from);
        fiber_go(ctx->loop, talk, &t, "talk");
        while (n > 0) {
            ASSERT_OK(stream_read(ctx, from, buf, sizeof(buf), &n, &err), err);
            total += n;
            reads++;
            ASSERT_OK(stream_pause(ctx, from, NS_PER_MS, &err), err);
        }
        ASSERT_EQ(total, 30);
        ASSERT(reads < 15);
        stream_free(t.to);
        stream_free(from);
    }
}

TEST_FIBER(an_end_in_the_middle_is_unavailable)
{
    for (size_t i = 0; i < ARRAY_LEN(both_ways); i++) {
        struct stream *a, *b;
        struct err err = ERR_INIT;
        char buf[8];

        both_ways[i](ctx->loop, &a, &b);
        ASSERT_OK(stream_write_full(ctx, a, "abc", 3, &err), err);
        stream_free(a);
        ASSERT_FAIL(stream_read_full(ctx, b, buf, 8, &err), err, ERR_UNAVAILABLE);
        ASSERT_EQ(err_reason(&err), REASON_UNAVAILABLE);
        ASSERT_MSG_HAS(err.msg, "3 of 8");
        stream_free(b);
    }
}

TEST_FIBER(writing_to_a_closed_peer_is_unavailable_and_raises_no_signal)
{
    for (size_t i = 0; i < ARRAY_LEN(both_ways); i++) {
        struct stream *a, *b;
        struct err err = ERR_INIT;

        both_ways[i](ctx->loop, &a, &b);
        stream_free(b);
        ASSERT_FAIL(stream_write_full(ctx, a, "x", 1, &err), err, ERR_UNAVAILABLE);
        stream_free(a);
    }
}

TEST_FIBER(reading_stops_at_the_deadline)
{
    for (size_t i = 0; i < ARRAY_LEN(both_ways); i++) {
        struct stream *a, *b;
        struct err err = ERR_INIT;
        struct ctx soon = ctx_with_timeout(ctx, 5 * NS_PER_MS);
        char c;
        size_t n;

        both_ways[i](ctx->loop, &a, &b);
        ASSERT_FAIL(stream_read(&soon, a, &c, 1, &n, &err), err, ERR_DEADLINE);
        stream_free(a);
        stream_free(b);
    }
}

struct reader {
    struct ctx *ctx;
    struct stream *s;
    bool ended;
};

static void read_to_end(void *arg)
{
    struct reader *r = arg;
    struct err err = ERR_INIT;
    char buf[64];
    size_t n;

    while (stream_read(r->ctx, r->s, buf, sizeof(buf), &n, &err) == 0 && n > 0)
        ;
    r->ended = true;
}

TEST_FIBER(shutting_down_our_side_ends_our_reader)
{
    for (size_t i = 0; i < ARRAY_LEN(both_ways); i++) {
        struct stream *a, *b;
        struct err err = ERR_INIT;
        struct fibers g;

        both_ways[i](ctx->loop, &a, &b);

        struct reader r = { .ctx = ctx, .s = a };

        fibers_init(&g);
        fibers_go(&g, ctx->loop, read_to_end, &r, "reader");
        fiber_yield(ctx->loop);
        stream_shutdown(a, SHUT_RDWR);
        ASSERT_OK(fibers_wait(ctx, &g, "reader", &err), err);
        ASSERT(r.ended);
        stream_free(a);
        stream_free(b);
    }
}

#define BULK_BYTES (3 * 1024 * 1024 + 17)

struct bulk {
    struct ctx *ctx;
    struct stream *in, *out, *relay_in, *relay_out;
    uint32_t sum_in, sum_out;
    size_t received;
    uint64_t copied;
};

static void produce(void *arg)
{
    struct bulk *b = arg;
    struct err err = ERR_INIT;
    char block[8191];

    for (size_t left = BULK_BYTES; left > 0;) {
        size_t n = left < sizeof(block) ? left : sizeof(block);

        for (size_t i = 0; i < n; i++) {
            block[i] = (char)((left - i) * 31);
            b->sum_in = b->sum_in * 33 + (uint8_t)block[i];
        }
        if (stream_write_full(b->ctx, b->in, block, n, &err) < 0)
            break;
        left -= n;
    }
    stream_shutdown(b->in, SHUT_WR);
}

static void relay(void *arg)
{
    struct bulk *b = arg;
    struct err err = ERR_INIT;

    if (stream_copy(b->ctx, b->relay_in, b->relay_out, &b->copied, NULL, &err) == 0)
        stream_shutdown(b->relay_out, SHUT_WR);
}

static void run_bulk(struct ctx *ctx, struct bulk *b)
{
    struct err err = ERR_INIT;
    struct fibers g;
    char buf[5000];
    size_t n;

    b->ctx = ctx;
    fibers_init(&g);
    fibers_go(&g, ctx->loop, produce, b, "producer");
    fibers_go(&g, ctx->loop, relay, b, "relay");
    for (;;) {
        ASSERT_OK(stream_read(ctx, b->out, buf, sizeof(buf), &n, &err), err);
        if (n == 0)
            break;
        b->received += n;
        for (size_t i = 0; i < n; i++)
            b->sum_out = b->sum_out * 33 + (uint8_t)buf[i];
    }
    ASSERT_OK(fibers_wait(ctx, &g, "bulk", &err), err);
    ASSERT_EQ(b->received, BULK_BYTES);
    ASSERT_EQ(b->copied, BULK_BYTES);
    ASSERT_EQ(b->sum_in, b->sum_out);
    stream_free(b->in);
    stream_free(b->relay_in);
    stream_free(b->relay_out);
    stream_free(b->out);
}

TEST_FIBER(socket_to_pipe_is_spliced_without_loss)
{
    struct bulk b = { 0 };

    socket_pair(ctx->loop, &b.in, &b.relay_in);
    pipe_pair(ctx->loop, &b.out, &b.relay_out);
    run_bulk(ctx, &b);
}

TEST_FIBER(pipe_to_socket_is_spliced_without_loss)
{
    struct bulk b = { 0 };

    pipe_pair(ctx->loop, &b.relay_in, &b.in);
    socket_pair(ctx->loop, &b.relay_out, &b.out);
    run_bulk(ctx, &b);
}

TEST_FIBER(socket_to_socket_is_copied_without_loss)
{
    struct bulk b = { 0 };

    socket_pair(ctx->loop, &b.in, &b.relay_in);
    socket_pair(ctx->loop, &b.relay_out, &b.out);
    run_bulk(ctx, &b);
}

TEST_VIRTUAL(memory_to_memory_is_copied_without_loss)
{
    struct bulk b = { 0 };

    memory_pair(ctx->loop, &b.in, &b.relay_in);
    memory_pair(ctx->loop, &b.relay_out, &b.out);
    run_bulk(ctx, &b);
}

TEST_FIBER(a_copy_reports_which_side_failed)
{
    struct stream *in, *relay_in, *relay_out, *out;
    struct err err = ERR_INIT;
    char side = 0;

    socket_pair(ctx->loop, &in, &relay_in);
    pipe_pair(ctx->loop, &out, &relay_out);
    signal(SIGPIPE, SIG_IGN);
    stream_free(out);
    ASSERT_OK(stream_write_full(ctx, in, "x", 1, &err), err);
    ASSERT_FAIL(stream_copy(ctx, relay_in, relay_out, NULL, &side, &err), err, ERR_UNAVAILABLE);
    ASSERT_EQ(side, 'w');
    stream_free(in);
    stream_free(relay_in);
    stream_free(relay_out);
}

TEST_FIBER(reopening_leaves_the_flags_of_the_original_alone)
{
    int fds[2];
    struct err err = ERR_INIT;
    char c;

    ASSERT_EQ(pipe2(fds, O_CLOEXEC), 0);

    struct stream *s = stream_reopen(ctx->loop, fds[0], O_RDONLY);

    ASSERT(s);
    ASSERT(!(fcntl(fds[0], F_GETFL) & O_NONBLOCK));
    ASSERT_EQ(write(fds[1], "y", 1), 1);
    ASSERT_OK(stream_read_full(ctx, s, &c, 1, &err), err);
    ASSERT_EQ(c, 'y');
    stream_free(s);
    close(fds[0]);
    close(fds[1]);
}

TEST_FIBER(a_file_is_a_stream_too)
{
    struct stream *s = stream_from_fd(ctx->loop, open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
    struct err err = ERR_INIT;
    char magic[4];

    ASSERT_OK(stream_read_full(ctx, s, magic, 4, &err), err);
    ASSERT(memcmp(magic, "\177ELF", 4) == 0);
    stream_free(s);
}

static void count_turns(void *arg)
{
    unsigned *turns = arg;

    (*turns)++;
}

TEST_FIBER(a_copy_that_never_waits_lets_others_run_and_sees_its_deadline)
{
    struct stream *from = stream_from_fd(ctx->loop, open("/dev/zero", O_RDONLY | O_CLOEXEC)),
                  *to = stream_from_fd(ctx->loop, open("/dev/null", O_WRONLY | O_CLOEXEC));
    struct ctx brief = ctx_with_timeout(ctx, 20 * NS_PER_MS);
    struct err err = ERR_INIT;
    unsigned turns = 0;

    fiber_go(ctx->loop, count_turns, &turns, "other");
    ASSERT_FAIL(stream_copy(&brief, from, to, NULL, NULL, &err), err, ERR_DEADLINE);
    ASSERT_EQ(turns, 1);
    stream_free(from);
    stream_free(to);
}

struct stuck {
    struct ctx ctx;
    struct stream *stream;
    struct err err;
};

static void read_for_ever(void *arg)
{
    struct stuck *s = arg;
    char buf[512];
    size_t n;

    while (stream_read(&s->ctx, s->stream, buf, sizeof(buf), &n, &s->err) == 0 && n > 0)
        ;
}

static void write_for_ever(void *arg)
{
    struct stuck *s = arg;
    const char buf[512] = { 0 };

    while (stream_write_full(&s->ctx, s->stream, buf, sizeof(buf), &s->err) == 0)
        ;
}

/* A guest that floods its console, a QEMU that floods its monitor. */
TEST_FIBER(endless_reads_and_writes_let_others_run_and_see_a_cancel)
{
    void (*const endless[])(void *) = { read_for_ever, write_for_ever };
    const char *const from[] = { "/dev/zero", "/dev/null" };

    for (size_t i = 0; i < ARRAY_LEN(endless); i++) {
        struct err err = ERR_INIT;
        struct cancel cancel;
        struct fibers fibers;
        struct stuck s = { .stream = stream_from_fd(ctx->loop, open(from[i], O_RDWR | O_CLOEXEC)),
                           .err = ERR_INIT };

        cancel_init(&cancel, NULL);
        s.ctx = ctx_with_cancel(ctx, &cancel);
        fibers_init(&fibers);
        fibers_go(&fibers, ctx->loop, endless[i], &s, "endless");
        ASSERT_OK(fiber_sleep(ctx, 5 * NS_PER_MS, &err), err);
        cancel_fire(&cancel, ERR_CANCELLED, "enough");
        ASSERT_OK(fibers_wait(ctx, &fibers, "endless", &err), err);
        ASSERT_EQ(s.err.code, ERR_CANCELLED);
        stream_free(s.stream);
        cancel_release(&cancel);
    }
}

TEST_FIBER(nothing_is_read_or_written_while_the_loop_holds_it)
{
    struct ctx limited = ctx_with_timeout(ctx, 20 * NS_PER_MS);
    struct err err = ERR_INIT;
    char buf[8];
    size_t n = 0;
    int ends[2];

    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    struct stream *in = stream_from_fd(ctx->loop, ends[0]),
                  *out = stream_from_fd(ctx->loop, ends[1]);
    ASSERT_OK(stream_write_full(ctx, out, "a", 1, &err), err);
    loop_hold_io(ctx->loop, true);
    ASSERT_FAIL(stream_read(&limited, in, buf, sizeof(buf), &n, &err), err, ERR_DEADLINE);
    err_clear(&err);
    ASSERT_FAIL(stream_write_full(&limited, out, "b", 1, &err), err, ERR_DEADLINE);
    err_clear(&err);
    loop_hold_io(ctx->loop, false);
    ASSERT_OK(stream_read(ctx, in, buf, sizeof(buf), &n, &err), err);
    ASSERT(n == 1 && buf[0] == 'a');
    stream_free(in);
    stream_free(out);
}
