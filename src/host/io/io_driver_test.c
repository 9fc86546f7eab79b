/* Real log drivers, with a peer as the program. */
#include "fixture/io_fixture.h"
#include "fixture/ledger_fixture.h"

#include <signal.h>

#define MIB (UINT64_C(1024) * 1024)

/* Generous limits for a busy machine. A test of a timeout shortens that one. */
static const struct io_times patient = { .ready = 30 * NS_PER_S,
                                         .finish = 30 * NS_PER_S,
                                         .term = 30 * NS_PER_S };

struct driven {
    struct fixture fixture;
    struct ledger *ledger;
    struct fibers drivers;
    struct io_times times;
    char *uri;
};

static void driven_init(struct driven *d, struct ctx *ctx, const char *scheme, const char *part)
{
    struct err err = ERR_INIT;
    AUTO_FREE char *dir = NULL;

    if (!getenv("IO_PEER"))
        tap_skip("IO_PEER does not name the log driver");
    memset(d, 0, sizeof(*d));
    d->times = patient;
    fixture_init(&d->fixture, ctx);
    dir = str_format("%s/ns/vm", d->fixture.temp.dir);
    ASSERT_OK(ledger_create(dir, &d->ledger, &err), err);
    fibers_init(&d->drivers);
    d->uri = str_format("%s://%s?part=%s&to=%s&odd=a%%20b+c%%26&bare&part=again", scheme,
                        getenv("IO_PEER"), part, d->fixture.temp.dir);
    d->fixture.spec.out = d->fixture.spec.err = d->uri;
    d->fixture.spec.ledger = d->ledger;
    d->fixture.spec.drivers = &d->drivers;
}

static void driven_release_auto(struct driven *d)
{
    struct err err = ERR_INIT;

    io_free(TAKE_PTR(d->fixture.io));
    ASSERT_OK(fibers_wait(d->fixture.ctx, &d->drivers, "log drivers", &err), err);
    ASSERT_EQ(ledger_fixture_open(d->ledger), 0);
    ledger_close(d->ledger);
    free(d->uri);
    fixture_release_auto(&d->fixture);
}
#define DRIVEN(d, scheme, part)                                                                    \
    AUTO(driven_release) struct driven d;                                                          \
    driven_init(&d, ctx, scheme, part)

static int driven_open(struct driven *d, struct err *err)
{
    d->fixture.spec.times = &d->times;
    return io_open(d->fixture.ctx, d->fixture.ctx->loop, &d->fixture.spec, &d->fixture.io, err);
}

static char *given(struct driven *d)
{
    char *text = NULL;
    size_t len;

    ASSERT_EQ(file_read_all(tempdir_path(&d->fixture.temp, "given"), 4096, &text, &len), 0);
    return text;
}

static pid_t driver_pid(struct driven *d)
{
    AUTO_FREE char *text = given(d);

    return atoi(strstr(text, "pid ") + 4);
}

static void await_gone(struct driven *d, pid_t pid)
{
    struct err err = ERR_INIT;

    while (proc_start_time(pid) != 0)
        ASSERT_OK(fiber_sleep(d->fixture.ctx, NS_PER_MS, &err), err);
}

TEST_FIBER(a_log_driver_gets_its_arguments_two_variables_and_three_pipes)
{
    DRIVEN(d, "binary", "copy");
    struct err err = ERR_INIT;

    ASSERT_OK(driven_open(&d, &err), err);
    ASSERT(!io_wants(d.fixture.io, 0) && io_wants(d.fixture.io, 1) && io_wants(d.fixture.io, 2));
    ASSERT_EQ(ledger_fixture_open(d.ledger), 1);

    AUTO_FREE char *text = given(&d), *want = NULL;

    want = str_format("arg part\narg copy\narg to\narg %s\narg odd\narg a b c&\narg bare\narg \n"
                      "env CONTAINER_ID=c1\nenv CONTAINER_NAMESPACE=test\n"
                      "fd 0\nfd 1\nfd 2\nfd 3\nfd 4\nfd 5\n",
                      d.fixture.temp.dir);
    ASSERT_EQ(strncmp(text, want, strlen(want)), 0);
}

TEST_FIBER(sixty_four_mebibytes_reach_a_log_driver)
{
    DRIVEN(d, "binary", "copy");
    struct fixture_writer out, errs;
    struct err err = ERR_INIT;

    ASSERT_OK(driven_open(&d, &err), err);
    fixture_attach(&d.fixture);
    fixture_write(&d.fixture, &out, &d.fixture.guest[1], 64 * MIB);
    fixture_write(&d.fixture, &errs, &d.fixture.guest[2], 1000);
    ASSERT_OK(io_drain(ctx, d.fixture.io, &err), err);
    io_free(TAKE_PTR(d.fixture.io));
    ASSERT_OK(fibers_wait(ctx, &d.drivers, "log drivers", &err), err);
    fixture_expect_file(&d.fixture, tempdir_path(&d.fixture.temp, "driver-out"), 64 * MIB);
    fixture_expect_file(&d.fixture, tempdir_path(&d.fixture.temp, "driver-err"), 1000);
}

static void cancel_soon(void *arg)
{
    cancel_fire(arg, ERR_CANCELLED, "the client went away");
}

/* docs/reference/host.md, weak spot 43: it died with the request or with containerd's connection.
 */
TEST_FIBER(ws43_a_log_driver_outlives_the_request_that_started_it)
{
    DRIVEN(d, "binary", "copy");
    struct cancel request;
    struct ctx with_cancel, call;
    struct err err = ERR_INIT;

    cancel_init(&request, NULL);
    with_cancel = ctx_with_cancel(ctx, &request);
    call = ctx_with_timeout(&with_cancel, 3 * NS_PER_S);
    ASSERT_OK(io_open(&call, ctx->loop, &d.fixture.spec, &d.fixture.io, &err), err);
    fiber_go(ctx->loop, cancel_soon, &request, "client gone");
    ASSERT_OK(fiber_sleep(ctx, 3100 * NS_PER_MS, &err), err);
    ASSERT(request.fired && ctx_check(&call, &err) < 0);
    fixture_attach(&d.fixture);
    fixture_put(&d.fixture, d.fixture.guest[1], "still here");
    stream_free(TAKE_PTR(d.fixture.guest[1]));
    stream_free(TAKE_PTR(d.fixture.guest[2]));
    ASSERT_OK(io_drain(ctx, d.fixture.io, &err), err);
    ASSERT_EQ(io_lost_bytes(d.fixture.io), 0);
    io_free(TAKE_PTR(d.fixture.io));
    ASSERT_OK(fibers_wait(ctx, &d.drivers, "log drivers", &err), err);

    AUTO_FREE char *text = NULL;
    size_t len;

    ASSERT_EQ(file_read_all(tempdir_path(&d.fixture.temp, "driver-out"), 100, &text, &len), 0);
    ASSERT_STR(text, "still here");
    cancel_release(&request);
}

TEST_FIBER(version_two_reports_with_a_byte_that_it_is_ready)
{
    DRIVEN(d, "binary-v2", "byte");
    struct err err = ERR_INIT;

    ASSERT_OK(driven_open(&d, &err), err);
}

TEST_FIBER(version_two_that_only_closes_is_not_ready)
{
    DRIVEN(d, "binary-v2", "copy");
    struct err err = ERR_INIT;

    ASSERT_FAIL(driven_open(&d, &err), err, ERR_STATE);
    ASSERT_MSG_HAS(err.msg, "without reporting that it is ready");
    await_gone(&d, driver_pid(&d));
}

TEST_FIBER(a_log_driver_that_never_becomes_ready_is_killed)
{
    DRIVEN(d, "binary", "mute");
    struct err err = ERR_INIT;

    d.times.ready = 2 * NS_PER_S; /* enough for it to write its pid */
    ASSERT_FAIL(driven_open(&d, &err), err, ERR_DEADLINE);
    ASSERT_HAS(err.msg, "io_peer");
    await_gone(&d, driver_pid(&d));
}

TEST_FIBER(a_log_driver_that_exits_at_once_is_reported)
{
    DRIVEN(d, "binary", "crash");
    struct err err = ERR_INIT;

    ASSERT_FAIL(driven_open(&d, &err), err, ERR_STATE);
    ASSERT_MSG_HAS(err.msg, "status 3 before it was ready");
}

TEST_FIBER(a_log_driver_killed_at_once_is_reported)
{
    DRIVEN(d, "binary", "abort");
    struct err err = ERR_INIT;

    ASSERT_FAIL(driven_open(&d, &err), err, ERR_STATE);
    ASSERT_HAS(err.msg, "signal 9");
}

TEST_FIBER(the_error_for_a_missing_log_driver_names_it)
{
    FIXTURE(r);
    struct err err = ERR_INIT;

    r.spec.out = "binary:///no/such/driver?a=b";
    ASSERT_FAIL(io_open(ctx, ctx->loop, &r.spec, &r.io, &err), err, ERR_NOT_FOUND);
    ASSERT_HAS(err.msg, "/no/such/driver");
}

TEST_FIBER(a_log_driver_that_dies_does_not_stop_the_process)
{
    DRIVEN(d, "binary", "dies");
    struct fixture_writer w;
    struct err err = ERR_INIT;

    ASSERT_OK(driven_open(&d, &err), err);
    fixture_attach(&d.fixture);
    fixture_write(&d.fixture, &w, &d.fixture.guest[1], 8 * MIB);
    stream_free(TAKE_PTR(d.fixture.guest[2]));
    ASSERT_OK(io_drain(ctx, d.fixture.io, &err), err);
    ASSERT_EQ(w.written, 8 * MIB);
    ASSERT(io_lost_bytes(d.fixture.io) > 7 * MIB && io_lost_bytes(d.fixture.io) < 8 * MIB);
}

TEST_FIBER(a_log_driver_that_keeps_running_after_its_input_ended_gets_sigterm)
{
    DRIVEN(d, "binary", "obedient");
    struct err err = ERR_INIT;

    d.times.finish = 100 * NS_PER_MS;
    ASSERT_OK(driven_open(&d, &err), err);

    pid_t pid = driver_pid(&d);
    uint64_t before = loop_now(ctx->loop);

    io_free(TAKE_PTR(d.fixture.io));
    ASSERT(proc_start_time(pid) != 0); /* not at once */
    ASSERT_OK(fibers_wait(ctx, &d.drivers, "log drivers", &err), err);
    ASSERT(loop_now(ctx->loop) - before >= d.times.finish);
    ASSERT_EQ(proc_start_time(pid), 0);
}

TEST_FIBER(a_log_driver_that_ignores_sigterm_is_killed)
{
    DRIVEN(d, "binary", "stubborn");
    struct err err = ERR_INIT;

    d.times.finish = 100 * NS_PER_MS;
    d.times.term = 200 * NS_PER_MS;
    ASSERT_OK(driven_open(&d, &err), err);

    pid_t pid = driver_pid(&d);
    uint64_t before = loop_now(ctx->loop);

    io_close(d.fixture.io);
    ASSERT_EQ(ledger_fixture_open(d.ledger), 1);
    ASSERT_OK(fibers_wait(ctx, &d.drivers, "log drivers", &err), err);
    ASSERT(loop_now(ctx->loop) - before >= d.times.finish + d.times.term);
    ASSERT_EQ(proc_start_time(pid), 0);
    ASSERT_EQ(ledger_fixture_open(d.ledger), 0);
}

TEST_FIBER(io_free_kills_a_log_driver_that_is_not_counted)
{
    DRIVEN(d, "binary", "stubborn");
    struct err err = ERR_INIT;

    d.fixture.spec.drivers = NULL;
    ASSERT_OK(driven_open(&d, &err), err);

    pid_t pid = driver_pid(&d);

    io_free(TAKE_PTR(d.fixture.io));
    ASSERT_EQ(ledger_fixture_open(d.ledger), 0);
    await_gone(&d, pid);
}

TEST_FIBER(a_terminal_s_log_driver_gets_stdout_only)
{
    DRIVEN(d, "binary", "copy");
    struct err err = ERR_INIT;

    d.fixture.spec.terminal = true;
    ASSERT_OK(driven_open(&d, &err), err);
    ASSERT(io_wants(d.fixture.io, 1) && !io_wants(d.fixture.io, 2));
}

TEST_FIBER(stderr_may_go_elsewhere_than_a_log_driver)
{
    DRIVEN(d, "binary", "copy");
    struct err err = ERR_INIT;

    fixture_fifos(&d.fixture, 4);
    ASSERT_OK(driven_open(&d, &err), err);
    fixture_attach(&d.fixture);
    AUTO(stream_free) struct stream *errs = fixture_client(&d.fixture, 2);

    fixture_put(&d.fixture, d.fixture.guest[2], "elsewhere");
    fixture_get(&d.fixture, errs, "elsewhere");
}

TEST_FIBER(input_from_a_log_driver_is_refused)
{
    DRIVEN(d, "binary", "copy");
    struct err err = ERR_INIT;

    d.fixture.spec.in = d.uri;
    ASSERT_FAIL(driven_open(&d, &err), err, ERR_INVALID);
}
