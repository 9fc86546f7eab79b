/* Processes as crun leaves them: orphans of a parent that has exited, which become children of the
 * test. */
#include "base/child.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/loop.h"
#include "base/str.h"
#include "base/stream.h"
#include "fixture/dial_fixture.h"
#include "guest/runtime/process.h"
#include "guest/runtime/reaper.h"
#include "guest/stdio/relay.h"
#include "harness/tap.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

struct fixture {
    struct dial_pair *host;
    struct process *process;
    struct stream *s[3];
    struct stdio_ports io;
    int done;
    uint64_t grace_ns;
    struct loop *loop;
    bool closed; /* the host has read both outputs to their ends */
};

/* The pid of `script`, run in the background by a shell that has ended. It begins only then,
 * because the shell would reap it. fds 0 … 2 are given. */
static pid_t orphan(struct ctx *ctx, const char *script, const int fd[3])
{
    AUTO_FREE char *line = str_format("exec 3>&-; read gate <&7; exec 7<&-; %s", script);
    const char *const argv[] = { "sh", "-c",
                                 "sh -c \"$0\" <&4 >&5 2>&6 4<&- 5>&- 6>&- & echo $! >&3", line,
                                 NULL };
    AUTO(child_free) struct child *child = NULL;
    struct err err = ERR_INIT;
    int out[2], gate[2], status;
    char text[32] = "";

    ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), 0);
    ASSERT_EQ(pipe2(out, O_CLOEXEC), 0);
    ASSERT_EQ(pipe2(gate, O_CLOEXEC), 0);
    const struct child_fd fds[] = {
        { out[1], 3 }, { fd[0], 4 }, { fd[1], 5 }, { fd[2], 6 }, { gate[0], 7 },
    };
    const struct child_opts opts = { .argv = argv, .fds = fds, .n_fds = ARRAY_LEN(fds) };
    ASSERT_OK(child_spawn(ctx, &opts, &child, &err), err);
    fd_close(out[1]);
    ASSERT_OK(child_wait(ctx, child, &status, &err), err);
    ASSERT(fd_read_full(out[0], text, sizeof(text) - 1) > 0);
    fd_close(out[0]);
    fd_close(gate[0]);
    fd_close(gate[1]);
    return (pid_t)atoi(text);
}

static void on_done(void *arg)
{
    ((struct fixture *)arg)->done++;
}

static void start(struct ctx *ctx, struct fixture *r, const char *script)
{
    struct stdio_fds ends, fds;
    struct relay *relay;
    struct err err = ERR_INIT;

    r->host = dial_pair_new();
    ASSERT_OK(relay_open(ctx->loop, &relay, &ends, &err), err);
    pid_t pid = orphan(ctx, script, ends.fd);
    stdio_fds_release(&ends);
    ASSERT_OK(process_adopt(&(struct process_opts){ .loop = ctx->loop,
                                                    .pid = pid,
                                                    .relay = relay,
                                                    .on_done = on_done,
                                                    .arg = r,
                                                    .grace_ns = r->grace_ns },
                            &r->process, &err),
              err);
    ASSERT_OK(dialer_dial_stdio(ctx, dial_pair_dialer(r->host), &r->io, &fds, &err), err);
    for (int i = 0; i < 3; i++) {
        int host = -1;
        if (!r->io.want[i])
            continue;
        ASSERT_OK(dial_pair_accept(ctx, r->host, r->io.port[i], &host, &err), err);
        r->s[i] = stream_from_fd(ctx->loop, host);
    }
    process_attach(r->process, &fds);
}

static void release(struct fixture *r)
{
    for (int i = 0; i < 3; i++)
        stream_free(r->s[i]);
    process_unref(r->process);
    dial_pair_free(r->host);
}

/* To the end, then closed, as the host must. */
static char *read_all(struct ctx *ctx, struct fixture *r, int i)
{
    struct sbuf out = { 0 };
    struct err err = ERR_INIT;
    size_t n = 1;

    while (n > 0) {
        char *to = sbuf_room(&out, 4096);
        ASSERT_OK(stream_read(ctx, r->s[i], to, 4096, &n, &err), err);
        out.len += n;
        out.data[out.len] = '\0';
    }
    stream_free(r->s[i]);
    r->s[i] = NULL;
    return sbuf_take(&out);
}

static void drain(struct ctx *ctx, struct fixture *r, int i)
{
    free(read_all(ctx, r, i));
}

static uint32_t wait_code(struct ctx *ctx, struct fixture *r)
{
    struct err err = ERR_INIT;
    uint32_t code = 9999;

    ASSERT_OK(process_wait(ctx, r->process, PROCESS_WAIT_FOREVER, &code, &err), err);
    return code;
}

#define ALL                                                                                        \
    {                                                                                              \
        .want = { true, true, true }, .port = { 20, 21, 22 }                                       \
    }

TEST_FIBER(the_output_and_exit_code_of_an_orphan_arrive)
{
    struct fixture r = { .io = ALL };
    struct err err = ERR_INIT;

    start(ctx, &r, "cat; echo e >&2; exit 7");
    ASSERT_OK(stream_write_full(ctx, r.s[0], "in\n", 3, &err), err);
    ASSERT_EQ(stream_shutdown(r.s[0], SHUT_WR), 0);
    AUTO_FREE char *out = read_all(ctx, &r, 1), *e = read_all(ctx, &r, 2);
    ASSERT_STR(out, "in\n");
    ASSERT_STR(e, "e\n");
    ASSERT_EQ(wait_code(ctx, &r), 7);
    ASSERT_EQ(r.done, 1);
    ASSERT_FAIL(process_signal(r.process, SIGTERM, &err), err, ERR_NOT_FOUND);
    release(&r);
}

TEST_FIBER(the_exit_waits_until_the_host_has_closed)
{
    struct fixture r = { .io = ALL };
    struct err err = ERR_INIT;
    uint32_t code;

    start(ctx, &r, "echo o");
    while (!process_exited(r.process))
        ASSERT_OK(fiber_sleep(ctx, NS_PER_MS, &err), err);
    ASSERT_FAIL(process_wait(ctx, r.process, 300, &code, &err), err, ERR_DEADLINE);
    ASSERT(process_exited(r.process) && !process_done(r.process, NULL));
    drain(ctx, &r, 1);
    drain(ctx, &r, 2);
    ASSERT_EQ(wait_code(ctx, &r), 0);
    release(&r);
}

TEST_FIBER(a_reader_that_never_reads_does_not_keep_the_exit)
{
    struct fixture r = { .io = ALL, .grace_ns = 50 * NS_PER_MS };

    start(ctx, &r, "echo hello; exit 3");
    ASSERT_EQ(wait_code(ctx, &r), 3);
    ASSERT_EQ(r.done, 1);
    /* The rest of the output follows the exit. */
    AUTO_FREE char *out = read_all(ctx, &r, 1);
    ASSERT_STR(out, "hello\n");
    drain(ctx, &r, 2);
    ASSERT_EQ(r.done, 1);
    release(&r);
}

static void read_both(void *arg)
{
    struct fixture *r = arg;
    struct ctx root = ctx_root(r->loop);

    drain(&root, r, 1);
    drain(&root, r, 2);
    r->closed = true;
}

TEST_FIBER(output_that_others_hold_is_cut_off_before_the_exit_is_reported)
{
    struct fixture r = { .io = ALL, .grace_ns = NS_PER_S, .loop = ctx->loop };

    /* What holds them ends when they are cut off: no process of this test may outlive it. */
    start(ctx, &r, "(while echo x; do sleep 0.1; done) & exit 3");
    fiber_go(ctx->loop, read_both, &r, "host");
    ASSERT_EQ(wait_code(ctx, &r), 3);
    ASSERT(r.closed);
    release(&r);
}

/* On virtual time there is no epoll at all. */
TEST_VIRTUAL(without_epoll_an_exit_is_found_and_nothing_blocks)
{
    struct fixture r = { 0 };
    struct err err = ERR_INIT;
    siginfo_t info;
    pid_t pid = fork();

    ASSERT(pid >= 0);
    if (pid == 0)
        for (;;)
            pause();
    ASSERT_OK(
        process_adopt(
            &(struct process_opts){ .loop = ctx->loop, .pid = pid, .on_done = on_done, .arg = &r },
            &r.process, &err),
        err);
    ASSERT_OK(fiber_sleep(ctx, 3 * NS_PER_S, &err), err);
    ASSERT(!process_exited(r.process));
    ASSERT_OK(process_signal(r.process, SIGKILL, &err), err);
    ASSERT_EQ(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
    ASSERT_EQ(wait_code(ctx, &r), 128 + SIGKILL);
    ASSERT_EQ(r.done, 1);
    process_unref(r.process);
}

TEST_FIBER(a_signal_ends_it_with_128_and_its_number)
{
    struct fixture r = { .io = ALL };
    struct err err = ERR_INIT;

    start(ctx, &r, "exec sleep 100");
    ASSERT_FAIL(process_signal(r.process, 99, &err), err, ERR_INVALID);
    ASSERT_EQ(err.reason, REASON_INVALID_REQUEST);
    ASSERT_FAIL(process_signal(r.process, -1, &err), err, ERR_INVALID);
    ASSERT_OK(process_signal(r.process, 0, &err), err);
    drain(ctx, &r, 1);
    drain(ctx, &r, 2);
    ASSERT_EQ(wait_code(ctx, &r), 128 + SIGKILL);
    release(&r);
}

TEST_FIBER(unrequested_output_is_dropped_and_unrequested_input_ends)
{
    struct fixture r = { .io = { .want = { false } } };

    start(ctx, &r, "cat && head -c 1000000 /dev/zero && head -c 1000000 /dev/zero >&2");
    ASSERT_EQ(wait_code(ctx, &r), 0);
    release(&r);
}

TEST_FIBER(a_process_may_write_256_kib_before_it_has_to_wait)
{
    static const char data[256 * 1024];
    struct relay *relay;
    struct err err = ERR_INIT;
    struct stdio_fds ends;

    ASSERT_OK(relay_open(ctx->loop, &relay, &ends, &err), err);
    for (int i = 1; i < 3; i++) {
        ASSERT_EQ(fd_nonblock(ends.fd[i]), 0);
        ASSERT_EQ(write(ends.fd[i], data, sizeof(data)), (ssize_t)sizeof(data));
    }
    relay_free(relay);
    stdio_fds_release(&ends);
}

TEST_FIBER(a_host_that_closes_early_is_a_broken_pipe)
{
    struct fixture r = { .io = { .want = { false, true, false }, .port = { 0, 21, 0 } } };

    start(ctx, &r, "trap '' PIPE; while echo x; do :; done; exit 9");
    stream_free(TAKE_PTR(r.s[1]));
    ASSERT_EQ(wait_code(ctx, &r), 9);
    release(&r);
}

TEST_FIBER(dropped_output_does_not_keep_the_exit)
{
    struct fixture r = { .io = ALL };
    struct err err = ERR_INIT;

    start(ctx, &r, "echo o; exec sleep 100");
    process_drop_output(r.process); /* the host reads nothing and closes nothing */
    ASSERT_OK(process_signal(r.process, SIGTERM, &err), err);
    ASSERT_EQ(wait_code(ctx, &r), 128 + SIGTERM);
    release(&r);
}

TEST_FIBER(a_failed_dial_leaves_nothing_open)
{
    struct dial_pair *host = dial_pair_new();
    const struct stdio_ports io = ALL;
    struct err err = ERR_INIT;
    struct stdio_fds fds = { { 7, 7, 7 } };

    dial_pair_refuse(host, ECONNREFUSED, -1);
    ASSERT_FAIL(dialer_dial_stdio(ctx, dial_pair_dialer(host), &io, &fds, &err), err,
                ERR_UNAVAILABLE);
    ASSERT_HAS(err.msg, "stdin");
    ASSERT_EQ(fds.fd[0], 7);
    dial_pair_free(host);
}

TEST_FIBER(a_process_that_is_gone_cannot_be_adopted)
{
    struct relay *relay;
    struct process *process = NULL;
    struct err err = ERR_INIT;
    struct stdio_fds ends;

    ASSERT_OK(relay_open(ctx->loop, &relay, &ends, &err), err);
    stdio_fds_release(&ends);
    ASSERT_FAIL(process_adopt(
                    &(struct process_opts){ .loop = ctx->loop, .pid = 0x7ffffff0, .relay = relay },
                    &process, &err),
                err, err.code);
    ASSERT(!process);
}

static bool exists(pid_t pid)
{
    AUTO_FREE char *path = str_format("/proc/%d", pid);

    return access(path, F_OK) == 0;
}

TEST_FIBER(strangers_are_reaped_and_others_are_not)
{
    const char *const argv[] = { "true", NULL };
    AUTO(child_free) struct child *ours = NULL;
    AUTO_FD int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    const int fd[3] = { null, null, null };
    struct reaper *reaper = NULL;
    struct err err = ERR_INIT;

    ASSERT_OK(reaper_new(ctx->loop, &reaper, &err), err);
    ASSERT_OK(child_spawn(ctx, &(struct child_opts){ .argv = argv }, &ours, &err), err);
    pid_t stranger = orphan(ctx, "true", fd);
    while (exists(stranger))
        ASSERT_OK(fiber_sleep(ctx, 50 * NS_PER_MS, &err), err);
    int status = -1;
    ASSERT_OK(child_wait(ctx, ours, &status, &err), err);
    ASSERT_EQ(status, 0);
    ASSERT_OK(fiber_sleep(ctx, 2500 * NS_PER_MS, &err), err); /* the sweep ends by itself */
    reaper_free(reaper);
}
