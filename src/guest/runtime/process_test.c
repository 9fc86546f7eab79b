/* process_test.c - real children; the host is a socketpair per stream. */
#include "base/clock.h"
#include "base/ctx.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/loop.h"
#include "base/str.h"
#include "base/stream.h"
#include "guest/runtime/process.h"
#include "guest/stdio/dial_pair.h"
#include "harness/tap.h"
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ARGV(...) ((const char *const[]){ __VA_ARGS__, NULL })
#define SH(script) ARGV("sh", "-c", script)

struct world {
    struct dial_pair *host;
    struct process_table *t;
    struct stream *in, *out, *err; /* the host's ends */
};

static void world_init(struct world *w, struct ctx *ctx)
{
    *w = (struct world){ .host = dial_pair_new() };
    w->t = process_table_new(ctx->loop, dial_pair_dialer(w->host));
}

static void world_release(struct world *w)
{
    stream_free(w->in);
    stream_free(w->out);
    stream_free(w->err);
    process_table_free(w->t);
    dial_pair_free(w->host);
}

static struct stream *accept_stream(struct ctx *ctx, struct world *w, uint32_t port)
{
    struct err err = ERR_INIT;
    int fd = -1;

    ASSERT_OK(dial_pair_accept(ctx, w->host, port, &fd, &err), err);
    return stream_from_fd(ctx->loop, fd);
}

/* Starts with ports 10, 11 and 12 and takes the host's ends. */
static uint32_t start(struct ctx *ctx, struct world *w, struct process_spec spec)
{
    struct err err = ERR_INIT;
    uint32_t pid = 0;

    spec.port[0] = 10;
    spec.port[1] = 11;
    spec.port[2] = 12;
    ASSERT_OK(process_exec(ctx, w->t, &spec, &pid, &err), err);
    if (spec.want[0])
        w->in = accept_stream(ctx, w, 10);
    if (spec.want[1])
        w->out = accept_stream(ctx, w, 11);
    if (spec.want[2])
        w->err = accept_stream(ctx, w, 12);
    return pid;
}

static uint32_t wait_code(struct ctx *ctx, struct world *w, uint32_t pid)
{
    struct err err = ERR_INIT;
    uint32_t code = 9999;

    ASSERT_OK(process_wait(ctx, w->t, pid, PROCESS_WAIT_FOREVER, &code, &err), err);
    return code;
}

/* To its end. Caller frees. */
static char *read_all(struct ctx *ctx, struct stream *s)
{
    struct sbuf out = { 0 };
    struct err err = ERR_INIT;
    char buf[4096];
    size_t n;

    while (stream_read(ctx, s, buf, sizeof(buf), &n, &err) == 0 && n > 0)
        sbuf_add(&out, buf, n);
    if (err.code != ERR_NONE && err.code != ERR_UNAVAILABLE)
        tap_fail(__FILE__, __LINE__, "reading output: %s", err.msg);
    return sbuf_take(&out);
}

/* Until the text has been seen; what came up to then. Caller frees. */
static char *read_until(struct ctx *ctx, struct stream *s, const char *text)
{
    struct sbuf out = { 0 };
    struct err err = ERR_INIT;
    char buf[256];
    size_t n;

    do {
        ASSERT_OK(stream_read(ctx, s, buf, sizeof(buf), &n, &err), err);
        ASSERT(n > 0);
        sbuf_add(&out, buf, n);
    } while (!strstr(out.data, text));
    return sbuf_take(&out);
}

static void say(struct ctx *ctx, struct stream *s, const char *text)
{
    struct err err = ERR_INIT;

    ASSERT_OK(stream_write_full(ctx, s, text, strlen(text), &err), err);
}

/* --- ends --- */

TEST_FIBER(the_exit_status_is_the_code)
{
    struct world w;

    world_init(&w, ctx);
    uint32_t pid = start(ctx, &w, (struct process_spec){ .argv = SH("exit 7") });
    ASSERT_EQ(wait_code(ctx, &w, pid), 7);
    ASSERT_EQ(process_count(w.t), 0);
    world_release(&w);
}

TEST_FIBER(a_signal_is_128_and_its_number)
{
    struct world w;

    world_init(&w, ctx);
    uint32_t pid = start(ctx, &w, (struct process_spec){ .argv = SH("kill -TERM $$") });
    ASSERT_EQ(wait_code(ctx, &w, pid), 128 + SIGTERM);
    world_release(&w);
}

TEST_FIBER(a_process_is_forgotten_after_its_first_answered_wait)
{
    struct world w;
    struct err err = ERR_INIT;
    uint32_t code;

    world_init(&w, ctx);
    uint32_t pid = start(ctx, &w, (struct process_spec){ .argv = ARGV("true") });
    ASSERT_EQ(wait_code(ctx, &w, pid), 0);
    ASSERT_FAIL(process_wait(ctx, w.t, pid, PROCESS_WAIT_FOREVER, &code, &err), err, ERR_NOT_FOUND);
    ASSERT_FAIL(process_signal(w.t, pid, SIGTERM, &err), err, ERR_NOT_FOUND);
    ASSERT_FAIL(process_resize(w.t, pid, 1, 1, &err), err, ERR_NOT_FOUND);
    world_release(&w);
}

TEST_FIBER(a_wait_that_times_out_changes_nothing)
{
    struct world w;
    struct err err = ERR_INIT;
    uint32_t code;

    world_init(&w, ctx);
    uint32_t pid = start(ctx, &w, (struct process_spec){ .argv = ARGV("sleep", "60") });
    ASSERT_FAIL(process_wait(ctx, w.t, pid, 0, &code, &err), err, ERR_DEADLINE);
    ASSERT_FAIL(process_wait(ctx, w.t, pid, 20, &code, &err), err, ERR_DEADLINE);
    ASSERT_OK(process_signal(w.t, pid, 0, &err), err); /* 0 is KILL */
    ASSERT_EQ(wait_code(ctx, &w, pid), 128 + SIGKILL);
    world_release(&w);
}

struct waiter {
    struct world *w;
    struct loop *loop;
    uint32_t pid, code;
};

static void wait_fiber(void *arg)
{
    struct waiter *a = arg;
    struct ctx root = ctx_root(a->loop), ctx = ctx_with_timeout(&root, 10 * NS_PER_S);

    a->code = wait_code(&ctx, a->w, a->pid);
}

TEST_FIBER(all_who_wait_get_the_code)
{
    struct world w;
    struct err err = ERR_INIT;
    struct waiter waiters[3];
    struct group g;

    world_init(&w, ctx);
    group_init(&g);
    uint32_t pid =
        start(ctx, &w, (struct process_spec){ .argv = SH("read x; exit 5"), .want = { true } });
    for (size_t i = 0; i < ARRAY_LEN(waiters); i++) {
        waiters[i] = (struct waiter){ &w, ctx->loop, pid, 0 };
        group_go(&g, ctx->loop, wait_fiber, &waiters[i], "waiter %zu", i);
    }
    fiber_yield(ctx->loop);
    say(ctx, w.in, "go\n");
    ASSERT_OK(group_wait(ctx, &g, "waiters", &err), err);
    for (size_t i = 0; i < ARRAY_LEN(waiters); i++)
        ASSERT_EQ(waiters[i].code, 5);
    world_release(&w);
}

/* --- pipes --- */

TEST_FIBER(input_comes_back_and_its_end_ends_cat)
{
    struct world w;

    world_init(&w, ctx);
    uint32_t pid =
        start(ctx, &w, (struct process_spec){ .argv = ARGV("cat"), .want = { true, true } });
    say(ctx, w.in, "hello\n");
    ASSERT_EQ(stream_shutdown(w.in, SHUT_WR), 0);
    AUTO_FREE char *out = read_all(ctx, w.out);
    ASSERT_STR(out, "hello\n");
    ASSERT_EQ(wait_code(ctx, &w, pid), 0);
    world_release(&w);
}

TEST_FIBER(stdout_and_stderr_are_two_streams)
{
    struct world w;

    world_init(&w, ctx);
    uint32_t pid = start(
        ctx, &w,
        (struct process_spec){ .argv = SH("echo o; echo e >&2"), .want = { false, true, true } });
    AUTO_FREE char *out = read_all(ctx, w.out), *err = read_all(ctx, w.err);
    ASSERT_STR(out, "o\n");
    ASSERT_STR(err, "e\n");
    ASSERT_EQ(wait_code(ctx, &w, pid), 0);
    world_release(&w);
}

TEST_FIBER(streams_nobody_asked_for_are_dev_null)
{
    struct world w;

    world_init(&w, ctx);
    uint32_t pid =
        start(ctx, &w,
              (struct process_spec){ .argv = SH("cat && echo x >&2 && readlink /proc/self/fd/0"),
                                     .want = { false, true } });
    AUTO_FREE char *out = read_all(ctx, w.out);
    ASSERT_STR(out, "/dev/null\n");
    ASSERT_EQ(wait_code(ctx, &w, pid), 0);
    ASSERT_EQ(dial_pair_count(w.host), 1);
    world_release(&w);
}

TEST_FIBER(output_nobody_reads_does_not_hold_the_exit_back)
{
    struct world w;

    world_init(&w, ctx);
    uint32_t pid = start(
        ctx, &w, (struct process_spec){ .argv = ARGV("echo", "unread"), .want = { false, true } });
    ASSERT_EQ(wait_code(ctx, &w, pid), 0);
    AUTO_FREE char *out = read_all(ctx, w.out);
    ASSERT_STR(out, "unread\n");
    world_release(&w);
}

TEST_FIBER(a_grandchild_that_keeps_stdout_does_not_hold_the_exit_back)
{
    struct world w;
    struct err err = ERR_INIT;

    world_init(&w, ctx);
    uint32_t pid = start(
        ctx, &w,
        (struct process_spec){ .argv = SH("sleep 60 & echo $!; exit 3"), .want = { false, true } });
    ASSERT_EQ(wait_code(ctx, &w, pid), 3);
    AUTO_FREE char *line = read_until(ctx, w.out, "\n");
    struct ctx brief = ctx_with_timeout(ctx, 20 * NS_PER_MS);
    char byte;
    size_t n;
    ASSERT_FAIL(stream_read(&brief, w.out, &byte, 1, &n, &err), err, ERR_DEADLINE);
    ASSERT_EQ(kill((pid_t)atoi(line), SIGKILL), 0);
    AUTO_FREE char *rest = read_all(ctx, w.out); /* ends with the grandchild */
    ASSERT_STR(rest, "");
    world_release(&w);
}

TEST_FIBER(much_output_arrives_whole)
{
    struct world w;

    world_init(&w, ctx);
    uint32_t pid = start(
        ctx, &w,
        (struct process_spec){ .argv = SH("head -c 3000000 /dev/zero"), .want = { false, true } });
    struct err err = ERR_INIT;
    AUTO_FREE char *buf = mem_alloc(65536);
    size_t total = 0, n;
    while (stream_read(ctx, w.out, buf, 65536, &n, &err) == 0 && n > 0)
        total += n;
    ASSERT_EQ(total, 3000000);
    ASSERT_EQ(wait_code(ctx, &w, pid), 0);
    world_release(&w);
}

/* --- what is run --- */

TEST_FIBER(environment_and_directory_are_those_given)
{
    struct world w;

    world_init(&w, ctx);
    uint32_t pid = start(ctx, &w,
                         (struct process_spec){ .argv = SH("pwd; /usr/bin/env | grep -v -e PWD= "
                                                           "-e SHLVL= -e _="),
                                                .env = ARGV("A=1", "B=two words"),
                                                .cwd = "/usr",
                                                .want = { false, true } });
    AUTO_FREE char *out = read_all(ctx, w.out);
    ASSERT_HAS(out, "/usr\n");
    ASSERT_HAS(out, "A=1\n");
    ASSERT_HAS(out, "B=two words\n");
    ASSERT(!strstr(out, "HOME="));
    ASSERT_EQ(wait_code(ctx, &w, pid), 0);
    world_release(&w);
}

TEST_FIBER(a_command_line_is_split_into_words)
{
    struct world w;

    world_init(&w, ctx);
    uint32_t pid = start(ctx, &w,
                         (struct process_spec){ .argv = ARGV(NULL),
                                                .command_line = "sh -c 'echo \"$0\"; exit 4' 'a b'",
                                                .want = { false, true } });
    AUTO_FREE char *out = read_all(ctx, w.out);
    ASSERT_STR(out, "a b\n");
    ASSERT_EQ(wait_code(ctx, &w, pid), 4);
    world_release(&w);
}

TEST_FIBER(nothing_to_run_is_invalid)
{
    static const char *const lines[] = { NULL, "", "   ", "'", "''" };
    struct world w;

    world_init(&w, ctx);
    for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
        struct process_spec spec = { .command_line = lines[i], .want = { true, true, true } };
        struct err err = ERR_INIT;
        uint32_t pid;
        ASSERT_FAIL(process_exec(ctx, w.t, &spec, &pid, &err), err, ERR_INVALID);
    }
    ASSERT_EQ(dial_pair_count(w.host), 0);
    world_release(&w);
}

TEST_FIBER(an_unknown_command_or_directory_is_named)
{
    struct world w;
    struct err err = ERR_INIT;
    uint32_t pid;

    world_init(&w, ctx);
    struct process_spec spec = { .argv = ARGV("no-such-command") };
    ASSERT_FAIL(process_exec(ctx, w.t, &spec, &pid, &err), err, ERR_NOT_FOUND);
    ASSERT_HAS(err.msg, "no-such-command");
    spec = (struct process_spec){ .argv = ARGV("/no/such/command") };
    ASSERT_FAIL(process_exec(ctx, w.t, &spec, &pid, &err), err, ERR_NOT_FOUND);
    ASSERT_HAS(err.msg, "/no/such/command");
    spec = (struct process_spec){ .argv = ARGV("true"), .cwd = "/no/such/dir" };
    ASSERT_FAIL(process_exec(ctx, w.t, &spec, &pid, &err), err, ERR_NOT_FOUND);
    ASSERT_HAS(err.msg, "/no/such/dir");
    ASSERT_EQ(process_count(w.t), 0);
    world_release(&w);
}

TEST_FIBER(a_stream_that_cannot_be_dialled_is_named_and_nothing_starts)
{
    struct world w;
    struct err err = ERR_INIT;
    uint32_t pid;

    world_init(&w, ctx);
    dial_pair_refuse(w.host, ECONNREFUSED, -1);
    struct process_spec spec = { .argv = ARGV("true"), .want = { false, true }, .port = { 0, 77 } };
    ASSERT(process_exec(ctx, w.t, &spec, &pid, &err) < 0);
    ASSERT_HAS(err.msg, "stdout");
    ASSERT_HAS(err.msg, "77");
    ASSERT_EQ(process_count(w.t), 0);
    world_release(&w);
}

/* --- signals --- */

TEST_FIBER(signals_reach_the_process_and_nonsense_is_refused)
{
    struct world w;
    struct err err = ERR_INIT;

    world_init(&w, ctx);
    uint32_t pid = start(ctx, &w,
                         (struct process_spec){
                             .argv = SH("trap 'exit 42' USR1; echo ready; while :; do sleep 0.01; "
                                        "done"),
                             .want = { false, true } });
    free(read_until(ctx, w.out, "ready"));
    ASSERT_FAIL(process_signal(w.t, pid, 1000, &err), err, ERR_INVALID);
    ASSERT_FAIL(process_signal(w.t, pid, -1, &err), err, ERR_INVALID);
    ASSERT_FAIL(process_signal(w.t, 1, SIGTERM, &err), err, ERR_NOT_FOUND);
    ASSERT_OK(process_signal(w.t, pid, SIGUSR1, &err), err);
    ASSERT_EQ(wait_code(ctx, &w, pid), 42);
    world_release(&w);
}

TEST_FIBER(stopping_all_ends_those_that_listen_and_is_bounded_for_the_rest)
{
    struct world w;
    struct err err = ERR_INIT;

    world_init(&w, ctx);
    uint32_t gentle = start(ctx, &w, (struct process_spec){ .argv = ARGV("sleep", "60") });
    ASSERT_OK(process_stop_all(ctx, w.t, SIGTERM, &err), err);
    ASSERT_EQ(wait_code(ctx, &w, gentle), 128 + SIGTERM);

    start(ctx, &w,
          (struct process_spec){ .argv = SH("trap '' TERM; echo ready; while :; do sleep 0.01; "
                                            "done"),
                                 .want = { false, true } });
    free(read_until(ctx, w.out, "ready"));
    struct ctx brief = ctx_with_timeout(ctx, 30 * NS_PER_MS);
    ASSERT_FAIL(process_stop_all(&brief, w.t, SIGTERM, &err), err, ERR_DEADLINE);
    world_release(&w); /* kills it */
}

/* --- terminals --- */

static const struct process_spec terminal = {
    .terminal = true, .rows = 24, .cols = 80, .want = { true, true }
};

static uint32_t start_terminal(struct ctx *ctx, struct world *w, const char *script)
{
    struct process_spec spec = terminal;

    spec.argv = (const char *const[]){ "sh", "-c", script, NULL };
    return start(ctx, w, spec);
}

TEST_FIBER(a_terminal_is_one_and_has_its_size)
{
    struct world w;

    world_init(&w, ctx);
    uint32_t pid = start_terminal(ctx, &w, "tty -s && stty size && ps -o stat= -p $$; exit 6");
    AUTO_FREE char *out = read_all(ctx, w.out);
    ASSERT_HAS(out, "24 80\r\n");
    ASSERT_HAS(out, "s"); /* leads its session */
    stream_free(TAKE_PTR(w.out));
    ASSERT_EQ(wait_code(ctx, &w, pid), 6);
    world_release(&w);
}

TEST_FIBER(keys_go_in_and_echo_comes_back)
{
    struct world w;

    world_init(&w, ctx);
    uint32_t pid = start_terminal(ctx, &w, "read x; echo got:$x");
    say(ctx, w.in, "abc\r");
    AUTO_FREE char *out = read_all(ctx, w.out);
    ASSERT_HAS(out, "abc");
    ASSERT_HAS(out, "got:abc");
    stream_free(TAKE_PTR(w.out));
    ASSERT_EQ(wait_code(ctx, &w, pid), 0);
    world_release(&w);
}

TEST_FIBER(control_c_interrupts)
{
    struct world w;

    world_init(&w, ctx);
    uint32_t pid = start_terminal(ctx, &w, "echo ready; exec sleep 60");
    free(read_until(ctx, w.out, "ready"));
    say(ctx, w.in, "\003");
    free(read_all(ctx, w.out));
    stream_free(TAKE_PTR(w.out));
    ASSERT_EQ(wait_code(ctx, &w, pid), 128 + SIGINT);
    world_release(&w);
}

TEST_FIBER(the_exit_of_a_terminal_is_told_when_the_host_has_closed_its_output)
{
    struct world w;
    struct err err = ERR_INIT;
    uint32_t code;

    world_init(&w, ctx);
    uint32_t pid = start_terminal(ctx, &w, "echo bye; exit 2");
    AUTO_FREE char *out = read_all(ctx, w.out); /* the half-close arrives … */
    ASSERT_HAS(out, "bye");
    ASSERT_FAIL(process_wait(ctx, w.t, pid, 20, &code, &err), err, ERR_DEADLINE);
    ASSERT_OK(process_resize(w.t, pid, 10, 10, &err), err);
    stream_free(TAKE_PTR(w.out)); /* … and ours is what the guest waits for */
    ASSERT_EQ(wait_code(ctx, &w, pid), 2);
    world_release(&w);
}

TEST_FIBER(a_host_that_stops_listening_does_not_block_a_terminal)
{
    struct world w;

    world_init(&w, ctx);
    uint32_t pid = start_terminal(ctx, &w, "read x; head -c 300000 /dev/zero; exit 9");
    stream_free(TAKE_PTR(w.out));
    say(ctx, w.in, "go\r");
    ASSERT_EQ(wait_code(ctx, &w, pid), 9);
    world_release(&w);
}

TEST_FIBER(a_background_process_does_not_keep_a_terminal_open)
{
    struct world w;

    world_init(&w, ctx);
    uint32_t pid = start_terminal(ctx, &w, "(trap '' HUP; exec sleep 60) & echo $!; exit 1");
    AUTO_FREE char *out = read_all(ctx, w.out);
    stream_free(TAKE_PTR(w.out));
    ASSERT_EQ(wait_code(ctx, &w, pid), 1);
    (void)kill((pid_t)atoi(out), SIGKILL);
    world_release(&w);
}

TEST_FIBER(a_background_process_that_never_stops_writing_does_not_keep_a_terminal_open)
{
    struct world w;

    world_init(&w, ctx);
    uint32_t pid = start_terminal(ctx, &w, "(trap '' HUP; exec yes) & sleep 0.05; exit 1");
    AUTO_FREE char *out = read_all(ctx, w.out);
    stream_free(TAKE_PTR(w.out));
    ASSERT_EQ(wait_code(ctx, &w, pid), 1);
    ASSERT(strlen(out) > 1000);
    world_release(&w);
}

TEST_FIBER(a_terminal_whose_output_nobody_wants_still_runs)
{
    struct world w;

    world_init(&w, ctx);
    struct process_spec spec = { .argv = SH("head -c 300000 /dev/zero; exit 8"), .terminal = true };
    ASSERT_EQ(wait_code(ctx, &w, start(ctx, &w, spec)), 8);
    world_release(&w);
}

TEST_FIBER(a_resize_reaches_the_terminal)
{
    struct world w;
    struct err err = ERR_INIT;

    world_init(&w, ctx);
    uint32_t pid = start_terminal(ctx, &w, "echo ready; read x; stty size");
    free(read_until(ctx, w.out, "ready"));
    ASSERT_OK(process_resize(w.t, pid, 40, 120, &err), err);
    say(ctx, w.in, "\r");
    AUTO_FREE char *out = read_all(ctx, w.out);
    ASSERT_HAS(out, "40 120");
    stream_free(TAKE_PTR(w.out));
    ASSERT_EQ(wait_code(ctx, &w, pid), 0);
    world_release(&w);
}

TEST_FIBER(what_has_no_terminal_cannot_be_resized)
{
    struct world w;
    struct err err = ERR_INIT;

    world_init(&w, ctx);
    uint32_t pid = start(ctx, &w, (struct process_spec){ .argv = ARGV("sleep", "60") });
    ASSERT_FAIL(process_resize(w.t, pid, 10, 10, &err), err, ERR_STATE);
    world_release(&w);
}

TEST_FIBER(a_terminal_has_no_stderr)
{
    struct world w;
    struct err err = ERR_INIT;
    struct process_spec spec = terminal;
    uint32_t pid;

    world_init(&w, ctx);
    spec.argv = ARGV("true");
    spec.want[2] = true;
    ASSERT_FAIL(process_exec(ctx, w.t, &spec, &pid, &err), err, ERR_INVALID);
    world_release(&w);
}

/* --- many --- */

TEST_FIBER(a_table_that_closes_kills_and_reaps)
{
    struct world w;

    world_init(&w, ctx);
    for (int i = 0; i < 20; i++)
        start(ctx, &w, (struct process_spec){ .argv = ARGV("sleep", "60") });
    start_terminal(ctx, &w, "exec sleep 60");
    ASSERT_EQ(process_count(w.t), 21);
    world_release(&w);
}
