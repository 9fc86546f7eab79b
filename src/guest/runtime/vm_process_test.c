/* vm_process_test.c - real children, with pipes. */
#include "base/clock.h"
#include "base/fiber.h"
#include "fixture/vm_process_fixture.h"
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* --- ends --- */

TEST_FIBER(the_exit_status_is_the_code)
{
    struct fixture w;

    fixture_init(&w, ctx);
    uint32_t pid = fixture_start(ctx, &w, (struct vm_process_spec){ .argv = SH("exit 7") });
    ASSERT_EQ(fixture_wait(ctx, &w, pid), 7);
    ASSERT_EQ(w.t->all.n, 0);
    fixture_release(&w);
}

TEST_FIBER(a_signal_is_128_and_its_number)
{
    struct fixture w;

    fixture_init(&w, ctx);
    uint32_t pid = fixture_start(ctx, &w, (struct vm_process_spec){ .argv = SH("kill -TERM $$") });
    ASSERT_EQ(fixture_wait(ctx, &w, pid), 128 + SIGTERM);
    fixture_release(&w);
}

TEST_FIBER(a_process_is_forgotten_after_its_first_answered_wait)
{
    struct fixture w;
    struct err err = ERR_INIT;
    uint32_t code;

    fixture_init(&w, ctx);
    uint32_t pid = fixture_start(ctx, &w, (struct vm_process_spec){ .argv = ARGV("true") });
    ASSERT_EQ(fixture_wait(ctx, &w, pid), 0);
    ASSERT_FAIL(vm_process_wait(ctx, w.t, pid, PROCESS_WAIT_FOREVER, &code, &err), err,
                ERR_NOT_FOUND);
    ASSERT_FAIL(vm_process_signal(w.t, pid, SIGTERM, &err), err, ERR_NOT_FOUND);
    ASSERT_FAIL(vm_process_resize(w.t, pid, 1, 1, &err), err, ERR_NOT_FOUND);
    fixture_release(&w);
}

TEST_FIBER(a_wait_that_times_out_changes_nothing)
{
    struct fixture w;
    struct err err = ERR_INIT;
    uint32_t code;

    fixture_init(&w, ctx);
    uint32_t pid = fixture_start(ctx, &w, (struct vm_process_spec){ .argv = ARGV("sleep", "60") });
    ASSERT_FAIL(vm_process_wait(ctx, w.t, pid, 0, &code, &err), err, ERR_DEADLINE);
    ASSERT_FAIL(vm_process_wait(ctx, w.t, pid, 20, &code, &err), err, ERR_DEADLINE);
    ASSERT_OK(vm_process_signal(w.t, pid, 0, &err), err); /* 0 is KILL */
    ASSERT_EQ(fixture_wait(ctx, &w, pid), 128 + SIGKILL);
    fixture_release(&w);
}

struct waiter {
    struct fixture *w;
    struct loop *loop;
    uint32_t pid, code;
};

static void wait_fiber(void *arg)
{
    struct waiter *a = arg;
    struct ctx root = ctx_root(a->loop), ctx = ctx_with_timeout(&root, 60 * NS_PER_S);

    a->code = fixture_wait(&ctx, a->w, a->pid);
}

TEST_FIBER(all_waiters_get_the_code)
{
    struct fixture w;
    struct err err = ERR_INIT;
    struct waiter waiters[3];
    struct fibers g;

    fixture_init(&w, ctx);
    fibers_init(&g);
    uint32_t pid = fixture_start(
        ctx, &w, (struct vm_process_spec){ .argv = SH("read x; exit 5"), .io.want = { true } });
    for (size_t i = 0; i < ARRAY_LEN(waiters); i++) {
        waiters[i] = (struct waiter){ &w, ctx->loop, pid, 0 };
        fibers_go(&g, ctx->loop, wait_fiber, &waiters[i], "waiter %zu", i);
    }
    fiber_yield(ctx->loop);
    fixture_say(ctx, w.in, "go\n");
    ASSERT_OK(fibers_wait(ctx, &g, "waiters", &err), err);
    for (size_t i = 0; i < ARRAY_LEN(waiters); i++)
        ASSERT_EQ(waiters[i].code, 5);
    fixture_release(&w);
}

/* --- pipes --- */

TEST_FIBER(input_comes_back_and_its_end_ends_cat)
{
    struct fixture w;

    fixture_init(&w, ctx);
    uint32_t pid = fixture_start(
        ctx, &w, (struct vm_process_spec){ .argv = ARGV("cat"), .io.want = { true, true } });
    fixture_say(ctx, w.in, "hello\n");
    ASSERT_EQ(stream_shutdown(w.in, SHUT_WR), 0);
    AUTO_FREE char *out = fixture_read_all(ctx, w.out);
    ASSERT_STR(out, "hello\n");
    ASSERT_EQ(fixture_wait(ctx, &w, pid), 0);
    fixture_release(&w);
}

TEST_FIBER(stdout_and_stderr_are_two_streams)
{
    struct fixture w;

    fixture_init(&w, ctx);
    uint32_t pid = fixture_start(ctx, &w,
                                 (struct vm_process_spec){ .argv = SH("echo o; echo e >&2"),
                                                           .io.want = { false, true, true } });
    AUTO_FREE char *out = fixture_read_all(ctx, w.out), *err = fixture_read_all(ctx, w.err);
    ASSERT_STR(out, "o\n");
    ASSERT_STR(err, "e\n");
    ASSERT_EQ(fixture_wait(ctx, &w, pid), 0);
    fixture_release(&w);
}

TEST_FIBER(unrequested_streams_are_dev_null)
{
    struct fixture w;

    fixture_init(&w, ctx);
    uint32_t pid = fixture_start(
        ctx, &w,
        (struct vm_process_spec){ .argv = SH("cat && echo x >&2 && readlink /proc/self/fd/0"),
                                  .io.want = { false, true } });
    AUTO_FREE char *out = fixture_read_all(ctx, w.out);
    ASSERT_STR(out, "/dev/null\n");
    ASSERT_EQ(fixture_wait(ctx, &w, pid), 0);
    ASSERT_EQ(dial_pair_count(w.host), 1);
    fixture_release(&w);
}

TEST_FIBER(unread_output_does_not_delay_the_exit)
{
    struct fixture w;

    fixture_init(&w, ctx);
    uint32_t pid = fixture_start(
        ctx, &w,
        (struct vm_process_spec){ .argv = ARGV("echo", "unread"), .io.want = { false, true } });
    ASSERT_EQ(fixture_wait(ctx, &w, pid), 0);
    AUTO_FREE char *out = fixture_read_all(ctx, w.out);
    ASSERT_STR(out, "unread\n");
    fixture_release(&w);
}

TEST_FIBER(a_grandchild_that_keeps_stdout_does_not_hold_the_exit_back)
{
    struct fixture w;
    struct err err = ERR_INIT;

    fixture_init(&w, ctx);
    uint32_t pid = fixture_start(ctx, &w,
                                 (struct vm_process_spec){ .argv = SH("sleep 60 & echo $!; exit 3"),
                                                           .io.want = { false, true } });
    ASSERT_EQ(fixture_wait(ctx, &w, pid), 3);
    AUTO_FREE char *line = fixture_read_until(ctx, w.out, "\n");
    struct ctx brief = ctx_with_timeout(ctx, 20 * NS_PER_MS);
    char byte;
    size_t n;
    ASSERT_FAIL(stream_read(&brief, w.out, &byte, 1, &n, &err), err, ERR_DEADLINE);
    ASSERT_EQ(kill((pid_t)atoi(line), SIGKILL), 0);
    AUTO_FREE char *rest = fixture_read_all(ctx, w.out); /* ends with the grandchild */
    ASSERT_STR(rest, "");
    fixture_release(&w);
}

TEST_FIBER(much_output_arrives_whole)
{
    struct fixture w;

    fixture_init(&w, ctx);
    uint32_t pid = fixture_start(ctx, &w,
                                 (struct vm_process_spec){ .argv = SH("head -c 3000000 /dev/zero"),
                                                           .io.want = { false, true } });
    struct err err = ERR_INIT;
    AUTO_FREE char *buf = mem_alloc(65536);
    size_t total = 0, n;
    while (stream_read(ctx, w.out, buf, 65536, &n, &err) == 0 && n > 0)
        total += n;
    ASSERT_EQ(total, 3000000);
    ASSERT_EQ(fixture_wait(ctx, &w, pid), 0);
    fixture_release(&w);
}

/* --- what is run --- */

TEST_FIBER(environment_and_directory_are_those_given)
{
    struct fixture w;

    fixture_init(&w, ctx);
    uint32_t pid =
        fixture_start(ctx, &w,
                      (struct vm_process_spec){ .argv = SH("pwd; /usr/bin/env | grep -v -e PWD= "
                                                           "-e SHLVL= -e _="),
                                                .env = ARGV("A=1", "B=two words"),
                                                .cwd = "/usr",
                                                .io.want = { false, true } });
    AUTO_FREE char *out = fixture_read_all(ctx, w.out);
    ASSERT_HAS(out, "/usr\n");
    ASSERT_HAS(out, "A=1\n");
    ASSERT_HAS(out, "B=two words\n");
    ASSERT(!strstr(out, "HOME="));
    ASSERT_EQ(fixture_wait(ctx, &w, pid), 0);
    fixture_release(&w);
}

TEST_FIBER(a_command_line_is_split_into_words)
{
    struct fixture w;

    fixture_init(&w, ctx);
    uint32_t pid =
        fixture_start(ctx, &w,
                      (struct vm_process_spec){ .argv = ARGV(NULL),
                                                .command_line = "sh -c 'echo \"$0\"; exit 4' 'a b'",
                                                .io.want = { false, true } });
    AUTO_FREE char *out = fixture_read_all(ctx, w.out);
    ASSERT_STR(out, "a b\n");
    ASSERT_EQ(fixture_wait(ctx, &w, pid), 4);
    fixture_release(&w);
}

TEST_FIBER(nothing_to_run_is_invalid)
{
    static const char *const lines[] = { NULL, "", "   ", "'", "''" };
    struct fixture w;

    fixture_init(&w, ctx);
    for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
        struct vm_process_spec spec = { .command_line = lines[i], .io.want = { true, true, true } };
        struct err err = ERR_INIT;
        uint32_t pid;
        ASSERT_FAIL(vm_process_exec(ctx, w.t, &spec, &pid, &err), err, ERR_INVALID);
    }
    ASSERT_EQ(dial_pair_count(w.host), 0);
    fixture_release(&w);
}

TEST_FIBER(an_unknown_command_or_directory_is_named)
{
    struct fixture w;
    struct err err = ERR_INIT;
    uint32_t pid;

    fixture_init(&w, ctx);
    struct vm_process_spec spec = { .argv = ARGV("no-such-command") };
    ASSERT_FAIL(vm_process_exec(ctx, w.t, &spec, &pid, &err), err, ERR_NOT_FOUND);
    ASSERT_HAS(err.msg, "no-such-command");
    spec = (struct vm_process_spec){ .argv = ARGV("/no/such/command") };
    ASSERT_FAIL(vm_process_exec(ctx, w.t, &spec, &pid, &err), err, ERR_NOT_FOUND);
    ASSERT_HAS(err.msg, "/no/such/command");
    spec = (struct vm_process_spec){ .argv = ARGV("true"), .cwd = "/no/such/dir" };
    ASSERT_FAIL(vm_process_exec(ctx, w.t, &spec, &pid, &err), err, ERR_NOT_FOUND);
    ASSERT_HAS(err.msg, "/no/such/dir");
    ASSERT_EQ(w.t->all.n, 0);
    fixture_release(&w);
}

TEST_FIBER(a_stream_that_cannot_be_dialled_is_named_and_nothing_starts)
{
    struct fixture w;
    struct err err = ERR_INIT;
    uint32_t pid;

    fixture_init(&w, ctx);
    dial_pair_refuse(w.host, ECONNREFUSED, -1);
    struct vm_process_spec spec = { .argv = ARGV("true"),
                                    .io.want = { false, true },
                                    .io.port = { 0, 77 } };
    ASSERT(vm_process_exec(ctx, w.t, &spec, &pid, &err) < 0);
    ASSERT_HAS(err.msg, "stdout");
    ASSERT_HAS(err.msg, "77");
    ASSERT_EQ(w.t->all.n, 0);
    fixture_release(&w);
}

/* --- signals --- */

TEST_FIBER(signals_reach_the_process_and_invalid_ones_are_refused)
{
    struct fixture w;
    struct err err = ERR_INIT;

    fixture_init(&w, ctx);
    uint32_t pid =
        fixture_start(ctx, &w,
                      (struct vm_process_spec){
                          .argv = SH("trap 'exit 42' USR1; echo ready; while :; do sleep 0.01; "
                                     "done"),
                          .io.want = { false, true } });
    free(fixture_read_until(ctx, w.out, "ready"));
    ASSERT_FAIL(vm_process_signal(w.t, pid, 1000, &err), err, ERR_INVALID);
    ASSERT_FAIL(vm_process_signal(w.t, pid, -1, &err), err, ERR_INVALID);
    ASSERT_FAIL(vm_process_signal(w.t, 1, SIGTERM, &err), err, ERR_NOT_FOUND);
    ASSERT_OK(vm_process_signal(w.t, pid, SIGUSR1, &err), err);
    ASSERT_EQ(fixture_wait(ctx, &w, pid), 42);
    fixture_release(&w);
}

TEST_FIBER(stopping_all_ends_processes_that_handle_the_signal_and_is_bounded_for_the_rest)
{
    struct fixture w;
    struct err err = ERR_INIT;

    fixture_init(&w, ctx);
    uint32_t gentle =
        fixture_start(ctx, &w, (struct vm_process_spec){ .argv = ARGV("sleep", "60") });
    ASSERT_OK(vm_processes_stop(ctx, w.t, &err), err);
    ASSERT_EQ(fixture_wait(ctx, &w, gentle), 128 + SIGTERM);

    fixture_start(
        ctx, &w,
        (struct vm_process_spec){ .argv = SH("trap '' TERM; echo ready; while :; do sleep 0.01; "
                                             "done"),
                                  .io.want = { false, true } });
    free(fixture_read_until(ctx, w.out, "ready"));
    struct ctx brief = ctx_with_timeout(ctx, 30 * NS_PER_MS);
    ASSERT_FAIL(vm_processes_stop(&brief, w.t, &err), err, ERR_DEADLINE);
    fixture_release(&w); /* kills it */
}

/* --- many --- */

TEST_FIBER(a_table_that_closes_kills_and_reaps)
{
    struct fixture w;

    fixture_init(&w, ctx);
    for (int i = 0; i < 20; i++)
        fixture_start(ctx, &w, (struct vm_process_spec){ .argv = ARGV("sleep", "60") });
    fixture_start(ctx, &w,
                  (struct vm_process_spec){ .argv = ARGV("sleep", "60"), .terminal = true });
    ASSERT_EQ(w.t->all.n, 21);
    fixture_release(&w);
}
