/* Relays between the guest and FIFOs. */
#include "fixture/io_fixture.h"
#include "fixture/loop_fixture.h"

#include <netinet/in.h>
#include <sys/ioctl.h>

#define MIB (UINT64_C(1024) * 1024)

/* A program that opens the FIFO as clients do, blocking, and passes on what it reads. */
static struct stream *cat(struct fixture *r, int which, struct child **ret)
{
    const char *const argv[] = { "cat", r->paths[which], NULL };
    struct err err = ERR_INIT;
    int fds[2];

    ASSERT_EQ(pipe2(fds, O_CLOEXEC), 0);
    ASSERT_OK(child_spawn(r->ctx,
                          &(struct child_opts){ .argv = argv,
                                                .fds = &(struct child_fd){ fds[1], 1 },
                                                .n_fds = 1,
                                                .die_with_us = true },
                          ret, &err),
              err);
    close(fds[1]);
    return stream_from_fd(r->ctx->loop, fds[0]);
}

TEST_FIBER(output_reaches_the_reader_and_then_its_end)
{
    FIXTURE(r);
    fixture_fifos(&r, 6);
    fixture_open(&r);
    AUTO(stream_free) struct stream *out = fixture_client(&r, 1), *errs = fixture_client(&r, 2);
    struct err err = ERR_INIT;

    ASSERT(!io_wants(r.io, 0) && io_wants(r.io, 1) && io_wants(r.io, 2));
    fixture_attach(&r);
    fixture_put(&r, r.guest[1], "to stdout");
    fixture_put(&r, r.guest[2], "to stderr");
    fixture_get(&r, out, "to stdout");
    fixture_get(&r, errs, "to stderr");
    fixture_get_nothing(&r, out);
    stream_shutdown(r.guest[1], SHUT_WR);
    stream_shutdown(r.guest[2], SHUT_WR);
    fixture_get_end(&r, out);
    fixture_get_end(&r, errs);
    ASSERT_OK(io_drain(ctx, r.io, &err), err);
    ASSERT_EQ(io_lost_bytes(r.io), 0);
}

TEST_FIBER(the_guests_stream_is_closed_at_its_end)
{
    FIXTURE(r);
    fixture_fifos(&r, 2);
    fixture_open(&r);
    fixture_attach(&r);
    stream_shutdown(r.guest[1], SHUT_WR);
    fixture_get_end(&r, r.guest[1]); /* without any reader, drain or close */
}

TEST_FIBER(sixty_four_mebibytes_arrive_unchanged)
{
    FIXTURE(r);
    fixture_fifos(&r, 2);
    fixture_open(&r);
    AUTO(stream_free) struct stream *out = fixture_client(&r, 1);
    struct fixture_writer w;

    fixture_attach(&r);
    fixture_write(&r, &w, &r.guest[1], 64 * MIB);
    fixture_expect(&r, out, 0, 64 * MIB);
    fixture_get_end(&r, out);
}

TEST_FIBER(a_reader_that_disappears_and_returns_gets_every_byte)
{
    FIXTURE(r);
    fixture_fifos(&r, 2);
    fixture_open(&r);
    AUTO(stream_free) struct stream *out = fixture_client(&r, 1);
    struct fixture_writer w;

    fixture_attach(&r);
    fixture_write(&r, &w, &r.guest[1], 4 * MIB);
    fixture_expect(&r, out, 0, 100001);
    stream_free(TAKE_PTR(out));
    fixture_await_stuck(&r, &w);
    ASSERT(w.written > 100001);
    out = fixture_client(&r, 1);
    fixture_expect(&r, out, 100001, 4 * MIB);
    fixture_get_end(&r, out);
}

TEST_FIBER(unread_output_is_kept_for_a_reader_after_the_close)
{
    FIXTURE(r);
    fixture_fifos(&r, 2);
    fixture_open(&r);
    struct fixture_writer w;
    struct err err = ERR_INIT;

    fixture_attach(&r);
    fixture_write(&r, &w, &r.guest[1], 50000);
    ASSERT_OK(io_drain(ctx, r.io, &err), err);
    io_close(r.io);
    ASSERT_OK(fiber_sleep(ctx, 20 * NS_PER_MS, &err), err);

    AUTO(child_free) struct child *c = NULL;
    AUTO(stream_free) struct stream *out = cat(&r, 1, &c);

    fixture_expect(&r, out, 0, 50000);
    fixture_get_end(&r, out);
    ASSERT_EQ(io_lost_bytes(r.io), 0);
    /* Once all is read, the FIFO is released, although io is not freed. */
    while (loop_fiber_count(ctx->loop) > 1)
        ASSERT_OK(fiber_sleep(ctx, NS_PER_MS, &err), err);
}

struct late_reader {
    struct fixture *r;
    struct stream *out;
    bool done;
};

static void read_late(void *arg)
{
    struct late_reader *l = arg;
    struct err err = ERR_INIT;

    for (uint64_t at = 0; at < 50000; at += 10000) {
        ASSERT_OK(fiber_sleep(l->r->ctx, 20 * NS_PER_MS, &err), err);
        fixture_expect(l->r, l->out, at, at + 10000);
    }
    l->done = true;
}

/* The client's end of an output that is written to: 50000 bytes, which fit into the FIFO. */
static struct stream *written(struct fixture *r, struct fixture_writer *w)
{
    fixture_fifos(r, 2);
    fixture_open(r);

    struct stream *out = fixture_client(r, 1);

    fixture_attach(r);
    fixture_write(r, w, &r->guest[1], 50000);
    return out;
}

/* A packet that is spliced takes a whole page of a FIFO, which usually has 16; two of 2100 bytes
 * that are written do not share one. */
TEST_FIBER(output_in_small_packets_fits_into_a_fifo_that_is_not_read_yet)
{
    static const size_t sizes[] = { 1000, 2100 };

    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        FIXTURE(r);
        fixture_fifos(&r, 2);
        fixture_open(&r);
        AUTO(stream_free) struct stream *out = fixture_client(&r, 1);
        struct ctx limited = ctx_with_timeout(ctx, 5 * NS_PER_S);
        struct err err = ERR_INIT;
        char piece[2100];
        uint64_t sent = 0;
        int in_fifo = 0;

        fixture_attach(&r);
        for (; sent < 60000; sent += sizes[i]) {
            fixture_fill(piece, sizes[i], sent);
            ASSERT_OK(stream_write_full(ctx, r.guest[1], piece, sizes[i], &err), err);
            ASSERT_OK(fiber_sleep(ctx, NS_PER_MS, &err), err); /* each is passed on by itself */
        }
        ASSERT_OK(stream_shutdown(r.guest[1], SHUT_WR), err);
        while ((uint64_t)in_fifo < sent) {
            ASSERT_OK(fiber_sleep(&limited, NS_PER_MS, &err), err);
            ASSERT_EQ(ioctl(out->fd, FIONREAD, &in_fifo), 0);
        }
        ASSERT_OK(io_drain(ctx, r.io, &err), err);
        fixture_expect(&r, out, 0, sent);
        fixture_get_end(&r, out);
    }
}

TEST_FIBER(a_drain_ends_when_the_reader_has_read_everything)
{
    FIXTURE(r);
    struct fixture_writer w;
    AUTO(stream_free) struct stream *out = written(&r, &w);
    struct late_reader late = { .r = &r, .out = out };
    struct err err = ERR_INIT;

    fiber_go(ctx->loop, read_late, &late, "reader");
    ASSERT_OK(io_drain(ctx, r.io, &err), err);
    ASSERT(late.done);
}

TEST_FIBER(a_drain_does_not_wait_for_a_reader_that_waits_for_the_exit)
{
    FIXTURE(r);
    struct fixture_writer w;
    AUTO(stream_free) struct stream *out = written(&r, &w);
    struct err err = ERR_INIT;

    ASSERT_OK(io_drain(ctx, r.io, &err), err);
    fixture_expect(&r, out, 0, 50000);
    fixture_get_end(&r, out);
}

TEST_FIBER(a_killed_reader_leaves_the_rest_to_the_next_one)
{
    FIXTURE(r);
    struct fixture_writer w;
    AUTO(stream_free) struct stream *out = written(&r, &w);
    struct err err = ERR_INIT;

    ASSERT_OK(io_drain(ctx, r.io, &err), err);
    io_close(r.io);
    fixture_expect(&r, out, 0, 12345);
    stream_free(TAKE_PTR(out));

    AUTO(child_free) struct child *c = NULL;

    out = cat(&r, 1, &c);
    fixture_expect(&r, out, 12345, 50000);
    fixture_get_end(&r, out);
}

TEST_FIBER(unread_output_is_dropped_by_io_free)
{
    FIXTURE(r);
    fixture_fifos(&r, 2);
    fixture_open(&r);
    struct err err = ERR_INIT;

    fixture_attach(&r);
    fixture_put(&r, r.guest[1], "unread");
    stream_free(TAKE_PTR(r.guest[1]));
    ASSERT_OK(io_drain(ctx, r.io, &err), err);
    io_close(r.io);
    ASSERT_OK(fiber_sleep(ctx, 20 * NS_PER_MS, &err), err);
    io_free(TAKE_PTR(r.io));
    while (loop_fiber_count(ctx->loop) > 1)
        ASSERT_OK(fiber_sleep(ctx, NS_PER_MS, &err), err);
    ASSERT_EQ(open(r.paths[1], O_WRONLY | O_NONBLOCK), -1); /* no reading end is left */
}

TEST_FIBER(a_stuck_reader_of_stdout_does_not_block_stderr)
{
    FIXTURE(r);
    fixture_fifos(&r, 6);
    fixture_open(&r);
    AUTO(stream_free) struct stream *out = fixture_client(&r, 1), *errs = fixture_client(&r, 2);
    struct fixture_writer stuck, flows;

    fixture_attach(&r);
    fixture_write(&r, &stuck, &r.guest[1], 8 * MIB);
    fixture_await_stuck(&r, &stuck);
    fixture_write(&r, &flows, &r.guest[2], 8 * MIB);
    fixture_expect(&r, errs, 0, 8 * MIB);
    fixture_get_end(&r, errs);
    ASSERT(!stuck.done);
    fixture_expect(&r, out, 0, 8 * MIB);
}

TEST_FIBER(memory_does_not_grow_with_a_stuck_reader)
{
    FIXTURE(r);
    fixture_fifos(&r, 2);
    fixture_open(&r);
    AUTO(stream_free) struct stream *out = fixture_client(&r, 1);
    struct fixture_writer w;

    fixture_attach(&r);
    fixture_write(&r, &w, &r.guest[1], 64 * MIB);
    fixture_expect(&r, out, 0, 1 * MIB);

    size_t before = fixture_rss_kib();

    fixture_await_stuck(&r, &w);
    for (uint64_t at = 1 * MIB; at < 64 * MIB; at += MIB) {
        fixture_expect(&r, out, at, at + MIB);
        fiber_yield(ctx->loop);
#ifndef FIXTURE_ASAN
        ASSERT(fixture_rss_kib() < before + 256);
#endif
    }
    fixture_get_end(&r, out);
    ASSERT(before > 0);
}

TEST_FIBER(a_drain_keeps_its_deadline_and_the_relay_continues)
{
    FIXTURE(r);
    fixture_fifos(&r, 2);
    fixture_open(&r);
    AUTO(stream_free) struct stream *out = fixture_client(&r, 1);
    struct ctx brief = ctx_with_timeout(ctx, 20 * NS_PER_MS);
    struct err err = ERR_INIT;

    fixture_attach(&r);
    fixture_put(&r, r.guest[1], "before ");
    ASSERT_FAIL(io_drain(&brief, r.io, &err), err, ERR_DEADLINE);
    ASSERT_HAS(err.msg, "c1");
    fixture_put(&r, r.guest[1], "after");
    stream_free(TAKE_PTR(r.guest[1]));
    fixture_get(&r, out, "before after");
    fixture_get_end(&r, out);
}

TEST_FIBER(a_stream_that_a_grandchild_keeps_open_is_closed_after_the_drain)
{
    FIXTURE(r);
    fixture_fifos(&r, 2);
    fixture_open(&r);
    AUTO(stream_free) struct stream *out = fixture_client(&r, 1);
    struct ctx brief = ctx_with_timeout(ctx, 20 * NS_PER_MS);
    struct err err = ERR_INIT;

    fixture_attach(&r);
    fixture_put(&r, r.guest[1], "x");
    ASSERT_FAIL(io_drain(&brief, r.io, &err), err, ERR_DEADLINE);
    fixture_get(&r, out, "x");
    fixture_get_end(&r, out);
    fixture_get_end(&r, r.guest[1]);
    ASSERT_OK(io_drain(ctx, r.io, &err), err);
    ASSERT_EQ(io_lost_bytes(r.io), 0);
}

TEST_FIBER(a_reader_that_is_away_longer_than_the_drain_loses_nothing)
{
    FIXTURE(r);
    fixture_fifos(&r, 2);
    fixture_open(&r);
    struct ctx brief = ctx_with_timeout(ctx, 20 * NS_PER_MS);
    struct fixture_writer w;
    struct err err = ERR_INIT;

    fixture_attach(&r);
    fixture_write(&r, &w, &r.guest[1], 4 * MIB);
    ASSERT_FAIL(io_drain(&brief, r.io, &err), err, ERR_DEADLINE);
    ASSERT_OK(fiber_sleep(ctx, 1200 * NS_PER_MS, &err), err); /* not mistaken for silence */
    AUTO(stream_free) struct stream *out = fixture_client(&r, 1);

    fixture_expect(&r, out, 0, 4 * MIB);
    fixture_get_end(&r, out);
    ASSERT_EQ(io_lost_bytes(r.io), 0);
}

TEST_FIBER(closing_counts_undelivered_bytes)
{
    FIXTURE(r);
    fixture_fifos(&r, 2);
    fixture_open(&r);
    AUTO(stream_free) struct stream *out = fixture_client(&r, 1);
    struct fixture_writer w;
    int in_fifo = 0;

    fixture_attach(&r);
    fixture_write(&r, &w, &r.guest[1], 8 * MIB);
    fixture_await_stuck(&r, &w);
    ASSERT_EQ(ioctl(out->fd, FIONREAD, &in_fifo), 0);
    io_close(r.io);
    ASSERT(io_lost_bytes(r.io) > 0);
    ASSERT_EQ(io_lost_bytes(r.io) + (uint64_t)in_fifo, w.written);
    fixture_expect(&r, out, 0, (uint64_t)in_fifo);
    fixture_get_end(&r, out);
    io_close(r.io); /* repeatable */
    ASSERT(w.done);
}

TEST_FIBER(a_guest_that_disappears_ends_the_output)
{
    FIXTURE(r);
    fixture_fifos(&r, 6);
    fixture_open(&r);
    AUTO(stream_free) struct stream *out = fixture_client(&r, 1);
    struct err err = ERR_INIT;

    fixture_attach(&r);
    fixture_put(&r, r.guest[1], "last words");
    stream_free(TAKE_PTR(r.guest[1]));
    stream_free(TAKE_PTR(r.guest[2]));
    ASSERT_OK(io_drain(ctx, r.io, &err), err);
    fixture_get(&r, out, "last words");
    fixture_get_end(&r, out);
}

TEST_FIBER(a_connection_that_is_reset_ends_the_output_after_what_had_arrived)
{
    FIXTURE(r);
    fixture_fifos(&r, 2);
    fixture_open(&r);
    AUTO(stream_free) struct stream *out = fixture_client(&r, 1);
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof(a);
    AUTO_FD int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0),
                guest = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct linger reset = { .l_onoff = 1 };
    struct err err = ERR_INIT;

    ASSERT_EQ(bind(listener, (struct sockaddr *)&a, len), 0);
    ASSERT_EQ(getsockname(listener, (struct sockaddr *)&a, &len), 0);
    ASSERT_EQ(listen(listener, 1), 0);
    ASSERT_EQ(connect(guest, (struct sockaddr *)&a, len), 0);
    io_attach(r.io, NULL, stream_from_fd(ctx->loop, accept4(listener, NULL, NULL, SOCK_CLOEXEC)),
              NULL);
    ASSERT_EQ(write(guest, "arrived", 7), 7);
    fixture_get(&r, out, "arrived");
    ASSERT_EQ(setsockopt(guest, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)), 0);
    fd_close(TAKE_FD(guest));
    ASSERT_OK(io_drain(ctx, r.io, &err), err);
    fixture_get_end(&r, out);
    fd_close(TAKE_FD(listener)); /* before the fixture counts */
}

TEST_FIBER(input_ends_only_when_it_was_closed_and_the_last_writer_is_gone)
{
    FIXTURE(r);
    fixture_fifos(&r, 1);
    fixture_open(&r);
    AUTO(stream_free) struct stream *client = fixture_client(&r, 0);

    fixture_attach(&r);
    fixture_put(&r, client, "one ");
    stream_free(TAKE_PTR(client)); /* detached */
    fixture_get(&r, r.guest[0], "one ");
    fixture_get_nothing(&r, r.guest[0]);
    client = fixture_client(&r, 0); /* attached again */
    fixture_put(&r, client, "two ");
    io_close_stdin(r.io);
    io_close_stdin(r.io);
    fixture_put(&r, client, "three");
    fixture_get(&r, r.guest[0], "two three");
    fixture_get_nothing(&r, r.guest[0]);
    stream_free(TAKE_PTR(client));
    fixture_get_end(&r, r.guest[0]);
    /* Half-closed: the other direction is still there. */
    fixture_put(&r, r.guest[0], "x");
}

TEST_FIBER(input_written_before_the_start_is_not_lost_by_closing_it)
{
    FIXTURE(r);
    fixture_fifos(&r, 1);
    fixture_open(&r);
    AUTO(stream_free) struct stream *client = fixture_client(&r, 0);

    fixture_put(&r, client, "all of it");
    stream_free(TAKE_PTR(client));
    io_close_stdin(r.io);
    fixture_attach(&r);
    fixture_get(&r, r.guest[0], "all of it");
    fixture_get_end(&r, r.guest[0]);
}

TEST_FIBER(sixty_four_mebibytes_of_input_arrive_unchanged)
{
    FIXTURE(r);
    fixture_fifos(&r, 1);
    fixture_open(&r);
    AUTO(stream_free) struct stream *client = fixture_client(&r, 0);
    struct fixture_writer w;

    fixture_attach(&r);
    io_close_stdin(r.io);
    fixture_write(&r, &w, &client, 64 * MIB);
    fixture_expect(&r, r.guest[0], 0, 64 * MIB);
    fixture_get_end(&r, r.guest[0]);
}

TEST_FIBER(a_writer_of_input_gets_a_broken_pipe_when_the_process_closes_it)
{
    FIXTURE(r);
    fixture_fifos(&r, 1);
    fixture_open(&r);
    AUTO(stream_free) struct stream *client = fixture_client(&r, 0);
    struct err err = ERR_INIT;
    size_t n;

    fixture_attach(&r);
    stream_free(TAKE_PTR(r.guest[0]));
    while (stream_write(ctx, client, "x", 1, &n, &err) == 0)
        ASSERT_OK(fiber_sleep(ctx, NS_PER_MS, &err), err);
    ASSERT_EQ(err.sys, EPIPE);
}

TEST_FIBER(closing_ends_idle_relays)
{
    FIXTURE(r);
    fixture_fifos(&r, 7);
    fixture_open(&r);
    AUTO(stream_free) struct stream *out = fixture_client(&r, 1), *in = fixture_client(&r, 0);
    struct err err = ERR_INIT;
    size_t n;

    fixture_attach(&r);
    fixture_get_nothing(&r, out);
    io_close(r.io);
    fixture_get_end(&r, out);
    fixture_get_end(&r, r.guest[0]);
    ASSERT_FAIL(stream_write(ctx, in, "x", 1, &n, &err), err, ERR_UNAVAILABLE);
    ASSERT_OK(io_drain(ctx, r.io, &err), err);
}

TEST_FIBER(a_process_that_never_started_ends_its_readers)
{
    FIXTURE(r);
    fixture_fifos(&r, 7);
    fixture_open(&r);
    AUTO(stream_free) struct stream *out = fixture_client(&r, 1);
    struct err err = ERR_INIT;

    ASSERT_OK(io_drain(ctx, r.io, &err), err);
    io_free(TAKE_PTR(r.io));
    fixture_get_end(&r, out);
}

TEST_FIBER(streams_that_come_after_the_close_are_freed)
{
    FIXTURE(r);
    fixture_fifos(&r, 2);
    fixture_open(&r);
    int fds[2];

    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    r.guest[1] = stream_from_fd(ctx->loop, fds[1]);
    io_close(r.io);
    io_attach(r.io, NULL, stream_from_fd(ctx->loop, fds[0]), NULL);
    fixture_get_end(&r, r.guest[1]);
}

TEST_FIBER(without_stdio_output_is_dropped_and_does_not_block)
{
    FIXTURE(r);
    fixture_open(&r);
    struct fixture_writer w;
    struct err err = ERR_INIT;
    int fds[2];

    for (int i = 0; i < 3; i++)
        ASSERT(!io_wants(r.io, i));
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    r.guest[1] = stream_from_fd(ctx->loop, fds[1]);
    io_attach(r.io, NULL, stream_from_fd(ctx->loop, fds[0]), NULL);
    fixture_write(&r, &w, &r.guest[1], 4 * MIB);
    ASSERT_OK(io_drain(ctx, r.io, &err), err);
    while (!w.done)
        ASSERT_OK(fiber_sleep(ctx, NS_PER_MS, &err), err);
    ASSERT_EQ(w.written, 4 * MIB);
    ASSERT_EQ(io_lost_bytes(r.io), 0);
}

TEST_FIBER(a_terminal_has_no_stderr)
{
    FIXTURE(r);
    fixture_fifos(&r, 3);
    r.spec.err = "/nowhere/at/all";
    r.spec.terminal = true;
    fixture_open(&r);
    ASSERT(io_wants(r.io, 0) && io_wants(r.io, 1) && !io_wants(r.io, 2));
}

TEST_FIBER(both_outputs_may_share_a_fifo)
{
    FIXTURE(r);
    fixture_fifos(&r, 2);
    r.spec.err = r.spec.out;
    fixture_open(&r);
    AUTO(stream_free) struct stream *out = fixture_client(&r, 1);

    fixture_attach(&r);
    fixture_put(&r, r.guest[1], "a");
    fixture_get(&r, out, "a");
    stream_free(TAKE_PTR(r.guest[1]));
    fixture_put(&r, r.guest[2], "b");
    fixture_get(&r, out, "b");
    stream_free(TAKE_PTR(r.guest[2]));
    fixture_get_end(&r, out);
}
