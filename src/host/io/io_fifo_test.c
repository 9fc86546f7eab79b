/* Relays between the guest and FIFOs. */
#include "host/io/io_rig.h"

#include <netinet/in.h>
#include <sys/ioctl.h>

#define MIB (UINT64_C(1024) * 1024)

/* A program that opens the FIFO as clients do, blocking, and passes on what it reads. */
static struct stream *cat(struct rig *r, int which, struct child **ret)
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
    RIG(r);
    rig_fifos(&r, 6);
    rig_open(&r);
    AUTO(stream_free) struct stream *out = rig_client(&r, 1), *errs = rig_client(&r, 2);
    struct err err = ERR_INIT;

    ASSERT(!io_wants(r.io, 0) && io_wants(r.io, 1) && io_wants(r.io, 2));
    rig_attach(&r);
    rig_put(&r, r.guest[1], "to stdout");
    rig_put(&r, r.guest[2], "to stderr");
    rig_get(&r, out, "to stdout");
    rig_get(&r, errs, "to stderr");
    rig_get_nothing(&r, out);
    stream_shutdown(r.guest[1], SHUT_WR);
    stream_shutdown(r.guest[2], SHUT_WR);
    rig_get_end(&r, out);
    rig_get_end(&r, errs);
    ASSERT_OK(io_drain(ctx, r.io, &err), err);
    ASSERT_EQ(io_lost_bytes(r.io), 0);
}

TEST_FIBER(at_its_end_the_guest_s_stream_is_closed)
{
    RIG(r);
    rig_fifos(&r, 2);
    rig_open(&r);
    rig_attach(&r);
    stream_shutdown(r.guest[1], SHUT_WR);
    rig_get_end(&r, r.guest[1]); /* without any reader, drain or close */
}

TEST_FIBER(sixty_four_mebibytes_arrive_unchanged)
{
    RIG(r);
    rig_fifos(&r, 2);
    rig_open(&r);
    AUTO(stream_free) struct stream *out = rig_client(&r, 1);
    struct rig_writer w;

    rig_attach(&r);
    rig_write(&r, &w, &r.guest[1], 64 * MIB);
    rig_expect(&r, out, 0, 64 * MIB);
    rig_get_end(&r, out);
}

TEST_FIBER(a_reader_that_vanishes_and_returns_gets_every_byte)
{
    RIG(r);
    rig_fifos(&r, 2);
    rig_open(&r);
    AUTO(stream_free) struct stream *out = rig_client(&r, 1);
    struct rig_writer w;

    rig_attach(&r);
    rig_write(&r, &w, &r.guest[1], 4 * MIB);
    rig_expect(&r, out, 0, 100001);
    stream_free(TAKE_PTR(out));
    rig_await_stuck(&r, &w);
    ASSERT(w.written > 100001);
    out = rig_client(&r, 1);
    rig_expect(&r, out, 100001, 4 * MIB);
    rig_get_end(&r, out);
}

TEST_FIBER(what_is_left_when_all_is_closed_waits_for_a_reader)
{
    RIG(r);
    rig_fifos(&r, 2);
    rig_open(&r);
    struct rig_writer w;
    struct err err = ERR_INIT;

    rig_attach(&r);
    rig_write(&r, &w, &r.guest[1], 50000);
    ASSERT_OK(io_drain(ctx, r.io, &err), err);
    io_close(r.io);
    ASSERT_OK(fiber_sleep(ctx, 20 * NS_PER_MS, &err), err);

    AUTO(child_free) struct child *c = NULL;
    AUTO(stream_free) struct stream *out = cat(&r, 1, &c);

    rig_expect(&r, out, 0, 50000);
    rig_get_end(&r, out);
    ASSERT_EQ(io_lost_bytes(r.io), 0);
    /* Nothing is kept for nobody, though io is not freed. */
    while (loop_fiber_count(ctx->loop) > 1)
        ASSERT_OK(fiber_sleep(ctx, NS_PER_MS, &err), err);
}

struct late_reader {
    struct rig *r;
    struct stream *out;
    bool done;
};

static void read_late(void *arg)
{
    struct late_reader *l = arg;
    struct err err = ERR_INIT;

    for (uint64_t at = 0; at < 50000; at += 10000) {
        ASSERT_OK(fiber_sleep(l->r->ctx, 20 * NS_PER_MS, &err), err);
        rig_expect(l->r, l->out, at, at + 10000);
    }
    l->done = true;
}

/* The client's end of an output that is written to: 50000 bytes, which fit into the FIFO. */
static struct stream *written(struct rig *r, struct rig_writer *w)
{
    rig_fifos(r, 2);
    rig_open(r);

    struct stream *out = rig_client(r, 1);

    rig_attach(r);
    rig_write(r, w, &r->guest[1], 50000);
    return out;
}

TEST_FIBER(a_drain_ends_when_the_reader_has_it_all)
{
    RIG(r);
    struct rig_writer w;
    AUTO(stream_free) struct stream *out = written(&r, &w);
    struct late_reader late = { .r = &r, .out = out };
    struct err err = ERR_INIT;

    fiber_go(ctx->loop, read_late, &late, "reader");
    ASSERT_OK(io_drain(ctx, r.io, &err), err);
    ASSERT(late.done);
}

TEST_FIBER(a_drain_does_not_wait_for_a_reader_that_waits_for_the_exit)
{
    RIG(r);
    struct rig_writer w;
    AUTO(stream_free) struct stream *out = written(&r, &w);
    struct err err = ERR_INIT;

    ASSERT_OK(io_drain(ctx, r.io, &err), err);
    rig_expect(&r, out, 0, 50000);
    rig_get_end(&r, out);
}

TEST_FIBER(a_reader_killed_half_way_leaves_the_rest_to_the_next)
{
    RIG(r);
    struct rig_writer w;
    AUTO(stream_free) struct stream *out = written(&r, &w);
    struct err err = ERR_INIT;

    ASSERT_OK(io_drain(ctx, r.io, &err), err);
    io_close(r.io);
    rig_expect(&r, out, 0, 12345);
    stream_free(TAKE_PTR(out));

    AUTO(child_free) struct child *c = NULL;

    out = cat(&r, 1, &c);
    rig_expect(&r, out, 12345, 50000);
    rig_get_end(&r, out);
}

TEST_FIBER(what_nobody_reads_goes_with_io_free)
{
    RIG(r);
    rig_fifos(&r, 2);
    rig_open(&r);
    struct err err = ERR_INIT;

    rig_attach(&r);
    rig_put(&r, r.guest[1], "unread");
    stream_free(TAKE_PTR(r.guest[1]));
    ASSERT_OK(io_drain(ctx, r.io, &err), err);
    io_close(r.io);
    ASSERT_OK(fiber_sleep(ctx, 20 * NS_PER_MS, &err), err);
    io_free(TAKE_PTR(r.io));
    while (loop_fiber_count(ctx->loop) > 1)
        ASSERT_OK(fiber_sleep(ctx, NS_PER_MS, &err), err);
    ASSERT_EQ(open(r.paths[1], O_WRONLY | O_NONBLOCK), -1); /* no reading end is left */
}

TEST_FIBER(a_stuck_reader_of_stdout_does_not_stop_stderr)
{
    RIG(r);
    rig_fifos(&r, 6);
    rig_open(&r);
    AUTO(stream_free) struct stream *out = rig_client(&r, 1), *errs = rig_client(&r, 2);
    struct rig_writer stuck, flows;

    rig_attach(&r);
    rig_write(&r, &stuck, &r.guest[1], 8 * MIB);
    rig_await_stuck(&r, &stuck);
    rig_write(&r, &flows, &r.guest[2], 8 * MIB);
    rig_expect(&r, errs, 0, 8 * MIB);
    rig_get_end(&r, errs);
    ASSERT(!stuck.done);
    rig_expect(&r, out, 0, 8 * MIB);
}

TEST_FIBER(memory_stays_flat_with_a_stuck_reader)
{
    RIG(r);
    rig_fifos(&r, 2);
    rig_open(&r);
    AUTO(stream_free) struct stream *out = rig_client(&r, 1);
    struct rig_writer w;

    rig_attach(&r);
    rig_write(&r, &w, &r.guest[1], 64 * MIB);
    rig_expect(&r, out, 0, 1 * MIB);

    size_t before = rig_rss_kib();

    rig_await_stuck(&r, &w);
    for (uint64_t at = 1 * MIB; at < 64 * MIB; at += MIB) {
        rig_expect(&r, out, at, at + MIB);
        fiber_yield(ctx->loop);
#ifndef RIG_ASAN
        ASSERT(rig_rss_kib() < before + 256);
#endif
    }
    rig_get_end(&r, out);
    ASSERT(before > 0);
}

TEST_FIBER(a_drain_has_its_deadline_and_the_relay_goes_on)
{
    RIG(r);
    rig_fifos(&r, 2);
    rig_open(&r);
    AUTO(stream_free) struct stream *out = rig_client(&r, 1);
    struct ctx brief = ctx_with_timeout(ctx, 20 * NS_PER_MS);
    struct err err = ERR_INIT;

    rig_attach(&r);
    rig_put(&r, r.guest[1], "before ");
    ASSERT_FAIL(io_drain(&brief, r.io, &err), err, ERR_DEADLINE);
    ASSERT_HAS(err.msg, "c1");
    rig_put(&r, r.guest[1], "after");
    stream_free(TAKE_PTR(r.guest[1]));
    rig_get(&r, out, "before after");
    rig_get_end(&r, out);
}

TEST_FIBER(a_stream_that_a_grandchild_holds_open_ends_a_while_after_the_drain)
{
    RIG(r);
    rig_fifos(&r, 2);
    rig_open(&r);
    AUTO(stream_free) struct stream *out = rig_client(&r, 1);
    struct ctx brief = ctx_with_timeout(ctx, 20 * NS_PER_MS);
    struct err err = ERR_INIT;

    rig_attach(&r);
    rig_put(&r, r.guest[1], "x");
    ASSERT_FAIL(io_drain(&brief, r.io, &err), err, ERR_DEADLINE);
    rig_get(&r, out, "x");
    rig_get_end(&r, out);
    rig_get_end(&r, r.guest[1]);
    ASSERT_OK(io_drain(ctx, r.io, &err), err);
    ASSERT_EQ(io_lost_bytes(r.io), 0);
}

TEST_FIBER(a_reader_that_is_away_longer_than_the_drain_loses_nothing)
{
    RIG(r);
    rig_fifos(&r, 2);
    rig_open(&r);
    struct ctx brief = ctx_with_timeout(ctx, 20 * NS_PER_MS);
    struct rig_writer w;
    struct err err = ERR_INIT;

    rig_attach(&r);
    rig_write(&r, &w, &r.guest[1], 4 * MIB);
    ASSERT_FAIL(io_drain(&brief, r.io, &err), err, ERR_DEADLINE);
    ASSERT_OK(fiber_sleep(ctx, 1200 * NS_PER_MS, &err), err); /* not mistaken for silence */
    AUTO(stream_free) struct stream *out = rig_client(&r, 1);

    rig_expect(&r, out, 0, 4 * MIB);
    rig_get_end(&r, out);
    ASSERT_EQ(io_lost_bytes(r.io), 0);
}

TEST_FIBER(a_cut_counts_what_was_not_delivered)
{
    RIG(r);
    rig_fifos(&r, 2);
    rig_open(&r);
    AUTO(stream_free) struct stream *out = rig_client(&r, 1);
    struct rig_writer w;
    int in_fifo = 0;

    rig_attach(&r);
    rig_write(&r, &w, &r.guest[1], 8 * MIB);
    rig_await_stuck(&r, &w);
    ASSERT_EQ(ioctl(out->fd, FIONREAD, &in_fifo), 0);
    io_close(r.io);
    ASSERT(io_lost_bytes(r.io) > 0);
    ASSERT_EQ(io_lost_bytes(r.io) + (uint64_t)in_fifo, w.written);
    rig_expect(&r, out, 0, (uint64_t)in_fifo);
    rig_get_end(&r, out);
    io_close(r.io); /* repeatable */
    ASSERT(w.done);
}

TEST_FIBER(a_guest_that_vanishes_ends_the_output)
{
    RIG(r);
    rig_fifos(&r, 6);
    rig_open(&r);
    AUTO(stream_free) struct stream *out = rig_client(&r, 1);
    struct err err = ERR_INIT;

    rig_attach(&r);
    rig_put(&r, r.guest[1], "last words");
    stream_free(TAKE_PTR(r.guest[1]));
    stream_free(TAKE_PTR(r.guest[2]));
    ASSERT_OK(io_drain(ctx, r.io, &err), err);
    rig_get(&r, out, "last words");
    rig_get_end(&r, out);
}

TEST_FIBER(a_connection_that_is_reset_ends_the_output_after_what_had_arrived)
{
    RIG(r);
    rig_fifos(&r, 2);
    rig_open(&r);
    AUTO(stream_free) struct stream *out = rig_client(&r, 1);
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
    rig_get(&r, out, "arrived");
    ASSERT_EQ(setsockopt(guest, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)), 0);
    fd_close(TAKE_FD(guest));
    ASSERT_OK(io_drain(ctx, r.io, &err), err);
    rig_get_end(&r, out);
    fd_close(TAKE_FD(listener)); /* before the rig counts */
}

TEST_FIBER(input_ends_only_when_it_was_closed_and_the_last_writer_is_gone)
{
    RIG(r);
    rig_fifos(&r, 1);
    rig_open(&r);
    AUTO(stream_free) struct stream *client = rig_client(&r, 0);

    rig_attach(&r);
    rig_put(&r, client, "one ");
    stream_free(TAKE_PTR(client)); /* detached */
    rig_get(&r, r.guest[0], "one ");
    rig_get_nothing(&r, r.guest[0]);
    client = rig_client(&r, 0); /* attached again */
    rig_put(&r, client, "two ");
    io_close_stdin(r.io);
    io_close_stdin(r.io);
    rig_put(&r, client, "three");
    rig_get(&r, r.guest[0], "two three");
    rig_get_nothing(&r, r.guest[0]);
    stream_free(TAKE_PTR(client));
    rig_get_end(&r, r.guest[0]);
    /* Half-closed: the other direction is still there. */
    rig_put(&r, r.guest[0], "x");
}

TEST_FIBER(input_written_before_the_start_is_not_lost_by_closing_it)
{
    RIG(r);
    rig_fifos(&r, 1);
    rig_open(&r);
    AUTO(stream_free) struct stream *client = rig_client(&r, 0);

    rig_put(&r, client, "all of it");
    stream_free(TAKE_PTR(client));
    io_close_stdin(r.io);
    rig_attach(&r);
    rig_get(&r, r.guest[0], "all of it");
    rig_get_end(&r, r.guest[0]);
}

TEST_FIBER(sixty_four_mebibytes_of_input_arrive_unchanged)
{
    RIG(r);
    rig_fifos(&r, 1);
    rig_open(&r);
    AUTO(stream_free) struct stream *client = rig_client(&r, 0);
    struct rig_writer w;

    rig_attach(&r);
    io_close_stdin(r.io);
    rig_write(&r, &w, &client, 64 * MIB);
    rig_expect(&r, r.guest[0], 0, 64 * MIB);
    rig_get_end(&r, r.guest[0]);
}

TEST_FIBER(whoever_writes_input_that_is_not_wanted_any_more_learns_it)
{
    RIG(r);
    rig_fifos(&r, 1);
    rig_open(&r);
    AUTO(stream_free) struct stream *client = rig_client(&r, 0);
    struct err err = ERR_INIT;
    size_t n;

    rig_attach(&r);
    stream_free(TAKE_PTR(r.guest[0]));
    while (stream_write(ctx, client, "x", 1, &n, &err) == 0)
        ASSERT_OK(fiber_sleep(ctx, NS_PER_MS, &err), err);
    ASSERT_EQ(err.sys, EPIPE);
}

TEST_FIBER(closing_ends_idle_relays)
{
    RIG(r);
    rig_fifos(&r, 7);
    rig_open(&r);
    AUTO(stream_free) struct stream *out = rig_client(&r, 1), *in = rig_client(&r, 0);
    struct err err = ERR_INIT;
    size_t n;

    rig_attach(&r);
    rig_get_nothing(&r, out);
    io_close(r.io);
    rig_get_end(&r, out);
    rig_get_end(&r, r.guest[0]);
    ASSERT_FAIL(stream_write(ctx, in, "x", 1, &n, &err), err, ERR_UNAVAILABLE);
    ASSERT_OK(io_drain(ctx, r.io, &err), err);
}

TEST_FIBER(a_process_that_never_started_ends_its_readers)
{
    RIG(r);
    rig_fifos(&r, 7);
    rig_open(&r);
    AUTO(stream_free) struct stream *out = rig_client(&r, 1);
    struct err err = ERR_INIT;

    ASSERT_OK(io_drain(ctx, r.io, &err), err);
    io_free(TAKE_PTR(r.io));
    rig_get_end(&r, out);
}

TEST_FIBER(streams_that_come_after_the_close_are_freed)
{
    RIG(r);
    rig_fifos(&r, 2);
    rig_open(&r);
    int fds[2];

    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    r.guest[1] = stream_from_fd(ctx->loop, fds[1]);
    io_close(r.io);
    io_attach(r.io, NULL, stream_from_fd(ctx->loop, fds[0]), NULL);
    rig_get_end(&r, r.guest[1]);
}

TEST_FIBER(without_stdio_output_goes_nowhere_and_blocks_nobody)
{
    RIG(r);
    rig_open(&r);
    struct rig_writer w;
    struct err err = ERR_INIT;
    int fds[2];

    for (int i = 0; i < 3; i++)
        ASSERT(!io_wants(r.io, i));
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    r.guest[1] = stream_from_fd(ctx->loop, fds[1]);
    io_attach(r.io, NULL, stream_from_fd(ctx->loop, fds[0]), NULL);
    rig_write(&r, &w, &r.guest[1], 4 * MIB);
    ASSERT_OK(io_drain(ctx, r.io, &err), err);
    while (!w.done)
        ASSERT_OK(fiber_sleep(ctx, NS_PER_MS, &err), err);
    ASSERT_EQ(w.written, 4 * MIB);
    ASSERT_EQ(io_lost_bytes(r.io), 0);
}

TEST_FIBER(a_terminal_has_no_stderr)
{
    RIG(r);
    rig_fifos(&r, 3);
    r.spec.err = "/nowhere/at/all";
    r.spec.terminal = true;
    rig_open(&r);
    ASSERT(io_wants(r.io, 0) && io_wants(r.io, 1) && !io_wants(r.io, 2));
}

TEST_FIBER(both_outputs_may_share_a_fifo)
{
    RIG(r);
    rig_fifos(&r, 2);
    r.spec.err = r.spec.out;
    rig_open(&r);
    AUTO(stream_free) struct stream *out = rig_client(&r, 1);

    rig_attach(&r);
    rig_put(&r, r.guest[1], "a");
    rig_get(&r, out, "a");
    stream_free(TAKE_PTR(r.guest[1]));
    rig_put(&r, r.guest[2], "b");
    rig_get(&r, out, "b");
    stream_free(TAKE_PTR(r.guest[2]));
    rig_get_end(&r, out);
}
