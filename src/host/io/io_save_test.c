/* stdio that is saved at each of its waits and continued from the document: nothing is lost,
 * doubled or in another order. The program that reads the document has a loop of its own; the
 * first one's fibers never run again. */
#include "base/saved.h"
#include "fixture/io_fixture.h"
#include "fixture/ledger_fixture.h"
#include "fixture/stream_pair.h"
#include "host/io/io_hub.h"

#define KIB UINT64_C(1024)
#define TURN_NS (5 * NS_PER_MS)
#define PATIENCE 4000 /* turns */

struct world {
    struct loop *loop;
    struct io *io;
    struct io_spec spec;
    struct tempdir temp;
    char *paths[3];
    int guest[3];            /* the far ends of the guest's streams */
    struct stream *memory;   /* the same, in memory, for stdout */
    struct io_hub *hub;      /* and its client, if there is one */
    struct io_client client; /* of stdout */
    bool has_client;
    uint64_t sent, got;
    struct err err; /* of a step */
};

/* What the first program leaves behind: not freed, as in an exec. */
static struct io *left_behind[64];
static size_t n_left;

static void world_init(struct world *w)
{
    static const char *const names[] = { "in", "out", "err" };

    *w = (struct world){ .loop = loop_new(NULL), .guest = { -1, -1, -1 } };
    tempdir_init(&w->temp, "/tmp");
    for (int i = 0; i < 3; i++)
        w->paths[i] = str_dup(tempdir_path(&w->temp, names[i]));
    w->spec = (struct io_spec){ .container_id = "c1", .ns = "test" };
}

/* --- steps: fn runs in a fiber of the world, then its other fibers for a moment --- */

struct step {
    struct world *w;
    void (*fn)(struct ctx *ctx, struct world *w);
};

static bool is_settled(void *arg, const char *name, const char *why)
{
    static const char *const known[][2] = { /* as in host/control/settled.c */
                                            { "io fifo", "a reader of the remaining output" },
                                            { "io file", "a pipe to a file" },
                                            { "io std", "read" },
                                            { "io std", "write" }
    };

    for (size_t i = 0; why && i < ARRAY_LEN(known); i++)
        if (str_starts(name, known[i][0]) && str_eq(why, known[i][1]))
            return true;
    *(bool *)arg = false;
    return false;
}

static void step_main(void *arg)
{
    struct step *s = arg;
    struct ctx ctx = ctx_root(s->w->loop);
    struct err err = ERR_INIT;
    bool settled = false;

    if (s->fn)
        s->fn(&ctx, s->w);
    for (int i = 0; i < PATIENCE && !settled; i++) {
        ASSERT_OK(fiber_sleep(&ctx, TURN_NS, &err), err);
        settled = true;
        loop_each_fiber(s->w->loop, is_settled, &settled);
    }
    ASSERT(settled);
    loop_stop(s->w->loop);
}

static void step(struct world *w, void (*fn)(struct ctx *ctx, struct world *w))
{
    struct step s = { w, fn };

    fiber_go(w->loop, step_main, &s, "test step");
    loop_run(w->loop);
}

static void open_io(struct ctx *ctx, struct world *w)
{
    struct err err = ERR_INIT;

    ASSERT_OK(io_open(ctx, w->loop, &w->spec, &w->io, &err), err);
}

static void attach_io(struct ctx *ctx, struct world *w)
{
    struct stream *ours[3] = { NULL };
    int fds[2];

    for (int i = 0; i < 3; i++) {
        if (!io_wants(w->io, i) || ours[i])
            continue;
        ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
        ours[i] = stream_from_fd(ctx->loop, fds[0]);
        w->guest[i] = fds[1];
    }
    io_attach(w->io, ours[0], ours[1], ours[2]);
}

static void attach_memory(struct ctx *ctx, struct world *w)
{
    struct stream *ours;

    stream_pair(ctx->loop, 1024 * KIB, &ours, &w->memory);
    io_attach(w->io, NULL, ours, NULL);
}

static void free_io(struct ctx *ctx, struct world *w)
{
    struct err err = ERR_INIT;

    io_free(TAKE_PTR(w->io));
    if (w->spec.drivers)
        ASSERT_OK(fibers_wait(ctx, w->spec.drivers, "log drivers", &err), err);
}

static void world_release_auto(struct world *w)
{
    step(w, free_io);
    for (int i = 0; i < 3; i++) {
        fd_close(w->guest[i]);
        free(w->paths[i]);
    }
    stream_free(w->memory);
    if (w->has_client)
        io_client_leave(&w->client);
    io_hub_free(w->hub);
    loop_free(w->loop);
    tempdir_release_auto(&w->temp);
}
#define WORLD(w)                                                                                   \
    AUTO(world_release) struct world w;                                                            \
    world_init(&w)

static void fifos(struct world *w, unsigned mask)
{
    const char **const texts[] = { &w->spec.in, &w->spec.out, &w->spec.err };

    for (int i = 0; i < 3; i++)
        if (mask >> i & 1) {
            ASSERT_EQ(mkfifo(w->paths[i], 0600), 0);
            *texts[i] = w->paths[i];
        }
}

static int client(struct world *w, int which)
{
    int fd = open(w->paths[which], (which == 0 ? O_WRONLY : O_RDONLY) | O_NONBLOCK | O_CLOEXEC);

    ASSERT(fd >= 0);
    return fd;
}

/* Another program continues. */
static void upgrade(struct world *w)
{
    AUTO(saved_free) struct saved *writer = saved_writer(), *reader = NULL;
    struct err err = ERR_INIT;
    const void *data;
    size_t len;

    step(w, NULL);
    io_saved(writer, 1, w->loop, &w->spec, &w->io);
    ASSERT_OK(saved_finish(writer, &data, &len, &err), err);

    ASSERT(n_left < ARRAY_LEN(left_behind));
    left_behind[n_left++] = TAKE_PTR(w->io);
    loop_free(w->loop);
    w->loop = loop_new(NULL);
    if (w->hub) {
        w->hub = io_hub_new(w->loop, NULL);
        w->spec.hub = w->hub;
    }

    ASSERT_OK(saved_reader(data, len, &reader, &err), err);
    if (w->memory)
        saved_hand_over(reader, writer);
    io_saved(reader, 1, w->loop, &w->spec, &w->io);
    ASSERT_OK(saved_check(reader, &err), err);
    ASSERT(w->io);
}

/* --- bytes, each of which shows its place --- */

/* As many as the descriptor takes, up to `to`. */
static void send_up_to(struct world *w, int fd, uint64_t to)
{
    char buf[4096];

    while (w->sent < to) {
        size_t n = to - w->sent < sizeof(buf) ? to - w->sent : sizeof(buf);

        fixture_fill(buf, n, w->sent);

        ssize_t r = write(fd, buf, n);

        if (r < 0) {
            ASSERT_EQ(errno, EAGAIN);
            return;
        }
        w->sent += (uint64_t)r;
    }
}

/* As many as there are, up to `to`. True: the end. */
static bool take_up_to(struct world *w, int fd, uint64_t to)
{
    char buf[4096], want[4096];

    while (w->got < to) {
        size_t n = to - w->got < sizeof(buf) ? to - w->got : sizeof(buf);
        ssize_t r = read(fd, buf, n);

        if (r < 0) {
            ASSERT_EQ(errno, EAGAIN);
            return false;
        }
        if (r == 0)
            return true;
        fixture_fill(want, (size_t)r, w->got);
        ASSERT_EQ(memcmp(buf, want, (size_t)r), 0);
        w->got += (uint64_t)r;
    }
    return false;
}

/* Until the writer and the relay cannot go on. */
static void fill_up(struct world *w, int fd)
{
    for (uint64_t last = UINT64_MAX; last != w->sent;) {
        last = w->sent;
        send_up_to(w, fd, UINT64_MAX);
        step(w, NULL);
    }
}

static void take_until(struct world *w, int fd, uint64_t to)
{
    for (int i = 0; i < PATIENCE && w->got < to; i++) {
        ASSERT(!take_up_to(w, fd, to));
        step(w, NULL);
    }
    ASSERT_EQ(w->got, to);
}

static void expect_end(struct world *w, int fd)
{
    char c;
    ssize_t n = -1;

    for (int i = 0; i < PATIENCE && n < 0; i++) {
        step(w, NULL);
        n = read(fd, &c, 1);
    }
    ASSERT_EQ(n, 0);
}

/* --- relays --- */

TEST(output_continues_from_every_wait)
{
    WORLD(w);
    fifos(&w, 2);
    step(&w, open_io);
    AUTO_FD int out = client(&w, 1);

    upgrade(&w); /* opened, not attached */
    step(&w, attach_io);
    upgrade(&w); /* waits for the first byte */
    ASSERT_EQ(w.io->outputs, 1);
    send_up_to(&w, w.guest[1], 1000);
    take_until(&w, out, 500);
    upgrade(&w); /* bytes in the FIFO, none in the guest's stream */
    fill_up(&w, w.guest[1]);
    upgrade(&w); /* waits for room */
    upgrade(&w);
    take_until(&w, out, w.sent - 100 * KIB);
    send_up_to(&w, w.guest[1], w.sent + 10 * KIB);
    upgrade(&w);
    fd_close(TAKE_FD(w.guest[1]));
    take_until(&w, out, w.sent);
    expect_end(&w, out);
    ASSERT_EQ(io_lost_bytes(w.io), 0);
    ASSERT_EQ(w.io->outputs, 0);
    upgrade(&w); /* ended */
    ASSERT(!w.io->relays[1].running && !io_wants(w.io, 1));
}

TEST(input_continues_from_every_wait_and_its_end_arrives)
{
    WORLD(w);
    fifos(&w, 3);
    step(&w, open_io);
    step(&w, attach_io);
    AUTO_FD int in = client(&w, 0), out = client(&w, 1);

    upgrade(&w);
    send_up_to(&w, in, 1000);
    take_until(&w, w.guest[0], 500);
    upgrade(&w);
    fill_up(&w, in);
    upgrade(&w); /* the guest takes no more */
    take_until(&w, w.guest[0], w.sent - 100 * KIB);
    upgrade(&w);
    fd_close(TAKE_FD(in));
    io_close_stdin(w.io);
    upgrade(&w); /* the held end stays closed */
    take_until(&w, w.guest[0], w.sent);
    expect_end(&w, w.guest[0]);
    upgrade(&w); /* the guest's stream is half-closed and open */
    ASSERT(w.io->relays[0].guest && !w.io->relays[0].running);
    ASSERT_EQ(write(w.guest[0], "x", 1), 1);
    w.sent = w.got = 0;
    send_up_to(&w, w.guest[1], 1000);
    take_until(&w, out, 1000);
}

TEST(bytes_in_the_buffer_of_a_copy_are_delivered_first)
{
    WORLD(w);
    AUTO_FREE char *data = mem_alloc(400 * KIB);
    struct err err = ERR_INIT;

    fifos(&w, 2);
    step(&w, open_io);
    step(&w, attach_memory);
    AUTO_FD int out = client(&w, 1);
    struct ctx ctx = ctx_root(w.loop);

    fixture_fill(data, 400 * KIB, 0);
    ASSERT_OK(stream_write_full(&ctx, w.memory, data, 400 * KIB, &err), err);
    step(&w, NULL);

    size_t pending = w.io->relays[1].pending.len;

    ASSERT(pending > 0);
    upgrade(&w);
    ASSERT_EQ(w.io->relays[1].pending.len, pending);
    take_until(&w, out, 100 * KIB);
    upgrade(&w);
    ASSERT(w.io->relays[1].pending.len > 0);
    stream_shutdown(w.memory, SHUT_WR);
    take_until(&w, out, 400 * KIB);
    expect_end(&w, out);
    ASSERT_EQ(w.io->relays[1].pending.cap, 0);
}

static void drain_briefly(struct ctx *ctx, struct world *w)
{
    struct ctx brief = ctx_with_timeout(ctx, NS_PER_MS);

    ASSERT_FAIL(io_drain(&brief, w->io, &w->err), w->err, ERR_DEADLINE);
}

/* Of copy_rest, whose bytes are pending too. */
TEST(the_rest_of_an_ended_process_is_delivered_and_a_silent_stream_is_closed)
{
    WORLD(w);
    fifos(&w, 2);
    step(&w, open_io);
    step(&w, attach_io);
    AUTO_FD int out = client(&w, 1);

    fill_up(&w, w.guest[1]);
    step(&w, drain_briefly);
    ASSERT(w.io->relays[1].pending.len > 0);
    upgrade(&w);
    ASSERT(w.io->over.fired);
    take_until(&w, out, 1000);
    upgrade(&w);
    take_until(&w, out, w.sent);
    upgrade(&w);
    expect_end(&w, out); /* a grandchild has the other end */
}

TEST(output_that_cannot_be_delivered_is_still_dropped_and_counted)
{
    WORLD(w);
    fifos(&w, 2);
    step(&w, open_io);
    step(&w, attach_io);

    fd_close(TAKE_FD(w.io->relays[1].up.held)); /* the last reader */
    send_up_to(&w, w.guest[1], 1000);
    step(&w, NULL);
    ASSERT(w.io->relays[1].dropping);
    send_up_to(&w, w.guest[1], 3000);
    upgrade(&w);
    ASSERT(w.io->relays[1].dropping);
    send_up_to(&w, w.guest[1], 5000);
    fd_close(TAKE_FD(w.guest[1]));
    step(&w, NULL);
    ASSERT_EQ(io_lost_bytes(w.io), 5000);
    upgrade(&w);
    ASSERT_EQ(io_lost_bytes(w.io), 5000);
}

TEST(output_without_a_destination_is_still_read)
{
    WORLD(w);
    int fds[2];

    step(&w, open_io);
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    w.guest[1] = fds[1];
    io_attach(w.io, NULL, stream_from_fd(w.loop, fds[0]), NULL);
    upgrade(&w);
    for (uint64_t to = 0; to < 1024 * KIB; to += 64 * KIB) {
        send_up_to(&w, w.guest[1], to);
        step(&w, NULL);
        ASSERT_EQ(w.sent, to);
    }
}

TEST(closed_stdio_stays_closed)
{
    WORLD(w);
    fifos(&w, 7);
    step(&w, open_io);
    step(&w, attach_io);
    fill_up(&w, w.guest[1]);
    io_close(w.io);

    uint64_t lost = io_lost_bytes(w.io);

    ASSERT(lost > 0);
    upgrade(&w);
    ASSERT(w.io->closed && w.io->cut.fired && w.io->attached);
    ASSERT_EQ(io_lost_bytes(w.io), lost);
    io_close(w.io);
    ASSERT_EQ(io_lost_bytes(w.io), lost);
}

/* --- FIFOs that are not empty at the end --- */

static void end_with(struct world *w, uint64_t bytes)
{
    send_up_to(w, w->guest[1], bytes);
    fd_close(TAKE_FD(w->guest[1]));
    step(w, NULL);
    ASSERT(w->io->leftovers[0]);
}

TEST(a_reader_that_was_away_gets_the_rest)
{
    WORLD(w);
    fifos(&w, 2);
    step(&w, open_io);
    step(&w, attach_io);
    end_with(&w, 50000);
    upgrade(&w);
    upgrade(&w);
    ASSERT(w.io->leftovers[0] && w.io->leftovers[0]->write_end >= 0);

    AUTO_FD int out = client(&w, 1);

    take_until(&w, out, 100);
    upgrade(&w); /* with a reader */
    ASSERT(w.io->leftovers[0]->read_end >= 0);
    fd_close(TAKE_FD(out)); /* which is killed */
    upgrade(&w);
    out = client(&w, 1);
    take_until(&w, out, 50000);
    expect_end(&w, out);
    ASSERT(!w.io->leftovers[0]);
    ASSERT_EQ(io_lost_bytes(w.io), 0);
}

TEST(both_outputs_may_have_a_rest)
{
    WORLD(w);
    fifos(&w, 6);
    step(&w, open_io);
    step(&w, attach_io);
    ASSERT_EQ(write(w.guest[1], "one", 3), 3);
    ASSERT_EQ(write(w.guest[2], "two", 3), 3);
    fd_close(TAKE_FD(w.guest[1]));
    fd_close(TAKE_FD(w.guest[2]));
    step(&w, NULL);
    upgrade(&w);
    for (int i = 1; i < 3; i++) {
        AUTO_FD int out = client(&w, i);
        char buf[4] = "";

        step(&w, NULL);
        ASSERT_EQ(read(out, buf, 3), 3);
        ASSERT_STR(buf, i == 1 ? "one" : "two");
        expect_end(&w, out);
    }
}

/* The reader opens the FIFO after the document was written: the next program must see it. */
TEST(a_reader_that_comes_during_the_change_gets_the_rest)
{
    WORLD(w);
    fifos(&w, 2);
    step(&w, open_io);
    step(&w, attach_io);
    end_with(&w, 50000);

    AUTO(saved_free) struct saved *writer = saved_writer(), *reader = NULL;
    struct err err = ERR_INIT;
    const void *data;
    size_t len;

    io_saved(writer, 1, w.loop, &w.spec, &w.io);
    ASSERT_OK(saved_finish(writer, &data, &len, &err), err);
    left_behind[n_left++] = TAKE_PTR(w.io);

    AUTO_FD int out = client(&w, 1);

    loop_free(w.loop);
    w.loop = loop_new(NULL);
    ASSERT_OK(saved_reader(data, len, &reader, &err), err);
    io_saved(reader, 1, w.loop, &w.spec, &w.io);
    take_until(&w, out, 50000);
    expect_end(&w, out);
}

/* --- files --- */

TEST(a_file_gets_every_byte_once)
{
    WORLD(w);
    AUTO_FREE char *uri = str_format("file://%s", w.paths[1]);

    w.spec.out = w.spec.err = uri;
    step(&w, open_io);
    upgrade(&w);
    step(&w, attach_io);
    fd_close(TAKE_FD(w.guest[2]));
    for (int i = 0; i < 8; i++) {
        send_up_to(&w, w.guest[1], w.sent + 300 * KIB);
        upgrade(&w);
    }
    fd_close(TAKE_FD(w.guest[1]));
    upgrade(&w);
    ASSERT_EQ(w.io->outputs, 0);

    AUTO_FD int file = open(w.paths[1], O_RDONLY | O_CLOEXEC);

    ASSERT(w.sent > 1024 * KIB);
    ASSERT(!take_up_to(&w, file, w.sent));
    ASSERT(take_up_to(&w, file, UINT64_MAX));
}

TEST(each_output_has_its_own_file)
{
    WORLD(w);
    AUTO_FREE char *out = str_format("file://%s", w.paths[1]),
                   *err = str_format("file://%s", w.paths[2]), *text = NULL;
    size_t len;

    w.spec.out = out;
    w.spec.err = err;
    step(&w, open_io);
    step(&w, attach_io);
    upgrade(&w);
    ASSERT_EQ(w.io->outputs, 4);
    ASSERT_EQ(write(w.guest[2], "to stderr", 9), 9);
    fd_close(TAKE_FD(w.guest[1]));
    fd_close(TAKE_FD(w.guest[2]));
    step(&w, NULL);
    ASSERT_EQ(w.io->outputs, 0);
    ASSERT_EQ(file_read_all(w.paths[2], 4096, &text, &len), 0);
    ASSERT_STR(text, "to stderr");
}

TEST(a_file_as_input_continues_where_it_was)
{
    WORLD(w);
    AUTO_FREE char *data = mem_alloc(2048 * KIB);

    fixture_fill(data, 2048 * KIB, 0);
    ASSERT_EQ(file_write(w.paths[0], data, 2048 * KIB, 0600), 0);
    w.spec.in = w.paths[0];
    step(&w, open_io);
    upgrade(&w);
    step(&w, attach_io);
    for (uint64_t to = 0; to < 2048 * KIB; to += 300 * KIB) {
        take_until(&w, w.guest[0], to);
        upgrade(&w);
    }
    take_until(&w, w.guest[0], 2048 * KIB);
    expect_end(&w, w.guest[0]);
}

TEST(a_full_disk_is_remembered)
{
    WORLD(w);
    AUTO_FREE char *uri = str_format("file://%s", w.paths[1]);

    w.spec.out = uri;
    step(&w, open_io);
    step(&w, attach_io);
    w.io->pumps[1]->lost = 7;
    w.io->pumps[1]->failed = ENOSPC;
    upgrade(&w);
    fd_close(TAKE_FD(w.guest[1]));
    step(&w, NULL);
    ASSERT_EQ(io_lost_bytes(w.io), 7);
}

/* --- log drivers --- */

struct driven {
    struct fibers drivers;
    struct ledger *ledger;
    char *uris[2];
};

/* One driver for both outputs, or two. */
static void open_driven(struct world *w, struct driven *d, bool two)
{
    AUTO_FREE char *dir = str_format("%s/ns/vm", w->temp.dir);
    struct err err = ERR_INIT;

    if (!getenv("IO_PEER"))
        tap_skip("IO_PEER does not name the log driver");
    for (int i = 0; i < 2; i++)
        d->uris[i] = str_format("binary://%s?part=copy&to=%s%s", getenv("IO_PEER"), w->temp.dir,
                                i && two ? "/ns" : "");
    ASSERT_OK(ledger_create(dir, &d->ledger, &err), err);
    fibers_init(&d->drivers);
    w->spec.out = d->uris[0];
    w->spec.err = d->uris[1];
    w->spec.ledger = d->ledger;
    w->spec.drivers = &d->drivers;
    step(w, open_io);
    step(w, attach_io);
}

static void close_driven(struct world *w, struct driven *d)
{
    fd_close(TAKE_FD(w->guest[1]));
    fd_close(TAKE_FD(w->guest[2]));
    step(w, free_io);
    ASSERT_EQ(ledger_fixture_open(d->ledger), 0);
    ledger_close(d->ledger);
    w->spec.ledger = NULL;
    for (int i = 0; i < 2; i++)
        free(d->uris[i]);
}

static void expect_file(struct world *w, const char *name, const char *want)
{
    AUTO_FREE char *text = NULL;
    size_t len;

    ASSERT_EQ(file_read_all(tempdir_path(&w->temp, name), 4096, &text, &len), 0);
    ASSERT_STR(text, want);
}

TEST(a_log_driver_continues_and_its_end_is_seen)
{
    WORLD(w);
    struct driven d;

    open_driven(&w, &d, false);

    pid_t pid = child_pid(w.io->drivers[0]->child);

    ASSERT_EQ(write(w.guest[1], "before ", 7), 7);
    upgrade(&w);
    ASSERT_EQ(child_pid(w.io->drivers[0]->child), pid);
    ASSERT_STR(w.io->drivers[0]->name, getenv("IO_PEER"));
    ASSERT_EQ(write(w.guest[1], "after", 5), 5);
    close_driven(&w, &d);
    ASSERT_EQ(proc_start_time(pid), 0);
    expect_file(&w, "driver-out", "before after");
}

TEST(two_log_drivers_continue)
{
    WORLD(w);
    struct driven d;

    open_driven(&w, &d, true);
    ASSERT(w.io->drivers[0] && w.io->drivers[1]);
    upgrade(&w);
    ASSERT_EQ(write(w.guest[1], "one", 3), 3);
    ASSERT_EQ(write(w.guest[2], "two", 3), 3);
    close_driven(&w, &d);
    expect_file(&w, "driver-out", "one");
    expect_file(&w, "ns/driver-err", "two");
}

/* --- streams of clients --- */

static void join(struct world *w, const char *id)
{
    io_hub_join(w->hub, &w->client, id, NULL);
    w->has_client = true;
}

static void leave(struct world *w)
{
    io_client_leave(&w->client);
    w->has_client = false;
}

static void with_hub(struct world *w)
{
    w->hub = io_hub_new(w->loop, NULL);
    w->spec.hub = w->hub;
}

TEST(output_to_a_stream_continues_for_the_next_client)
{
    WORLD(w);

    with_hub(&w);
    w.spec.out = "ttrpc+unix:///run/s.sock?streaming_id=x-stdout";
    step(&w, open_io);
    step(&w, attach_io);
    send_up_to(&w, w.guest[1], 1000);
    upgrade(&w);
    join(&w, "x-stdout");
    ASSERT(w.client.stream && !w.client.closed && !w.client.input);
    take_until(&w, w.client.stream->fd, 500);
    fill_up(&w, w.guest[1]);
    leave(&w);
    upgrade(&w);
    join(&w, "x-stdout");
    ASSERT(w.client.port == w.io->relays[1].up.port && w.client.port->client == &w.client);
    fd_close(TAKE_FD(w.guest[1]));
    take_until(&w, w.client.stream->fd, w.sent);
    step(&w, free_io);
    ASSERT(w.client.closed);
}

TEST(input_from_a_stream_continues)
{
    WORLD(w);

    with_hub(&w);
    w.spec.in = "ttrpc+unix:///run/s.sock?streaming_id=x-stdin";
    step(&w, open_io);
    step(&w, attach_io);
    upgrade(&w);
    join(&w, "x-stdin");
    ASSERT(w.client.input);
    send_up_to(&w, w.client.stream->fd, 1000);
    take_until(&w, w.guest[0], 1000);
    io_close_stdin(w.io);
    leave(&w);
    expect_end(&w, w.guest[0]);
}

/* --- documents that cannot be right --- */

#ifndef FIXTURE_ASAN /* what was read is not freed: that would close the old program's descriptors \
                      */
TEST(a_document_with_another_descriptor_is_refused_and_closes_nothing)
{
    WORLD(w);
    AUTO(saved_free) struct saved *writer = saved_writer(), *reader = NULL;
    struct err err = ERR_INIT;
    struct io *second = NULL;
    const void *data;
    size_t len;

    fifos(&w, 2);
    step(&w, open_io);
    step(&w, attach_io);
    io_saved(writer, 1, w.loop, &w.spec, &w.io);
    ASSERT_OK(saved_finish(writer, &data, &len, &err), err);

    int guest = w.io->relays[1].guest->fd, kept = dup(guest), null = open("/dev/null", O_RDWR);

    ASSERT_EQ(dup2(null, guest), guest);
    ASSERT_OK(saved_reader(data, len, &reader, &err), err);

    struct loop *loop = loop_new(NULL);

    io_saved(reader, 1, loop, &w.spec, &second);
    ASSERT_FAIL(saved_check(reader, &err), err, ERR_INVALID);
    ASSERT_HAS(err.msg, "the guest's side of stdio");
    ASSERT(!second);
    ASSERT_EQ(dup2(kept, guest), guest);
    ASSERT(fcntl(w.io->relays[1].up.held, F_GETFD) >= 0);
    close(kept);
    close(null);
    loop_free(loop);
}
#endif
