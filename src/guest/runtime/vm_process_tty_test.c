/* vm_process_tty_test.c - real children with a terminal. */
#include "base/clock.h"
#include "fixture/vm_process_fixture.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static const struct vm_process_spec terminal = { .terminal = true, .io.want = { true, true } };

static uint32_t start_terminal(struct ctx *ctx, struct fixture *w, const char *script)
{
    struct vm_process_spec spec = terminal;

    spec.argv = (const char *const[]){ "sh", "-c", script, NULL };
    return fixture_start(ctx, w, spec);
}

TEST_FIBER(a_process_gets_a_terminal_and_leads_its_session)
{
    struct fixture w;

    fixture_init(&w, ctx);
    uint32_t pid = start_terminal(ctx, &w, "tty -s && echo terminal && ps -o stat= -p $$; exit 6");
    AUTO_FREE char *out = fixture_read_all(ctx, w.out);
    ASSERT_HAS(out, "terminal\r\n");
    ASSERT_HAS(out, "s"); /* leads its session */
    stream_free(TAKE_PTR(w.out));
    ASSERT_EQ(fixture_wait(ctx, &w, pid), 6);
    fixture_release(&w);
}

TEST_FIBER(keys_go_in_and_echo_comes_back)
{
    struct fixture w;

    fixture_init(&w, ctx);
    uint32_t pid = start_terminal(ctx, &w, "read x; echo got:$x");
    fixture_say(ctx, w.in, "abc\r");
    AUTO_FREE char *out = fixture_read_all(ctx, w.out);
    ASSERT_HAS(out, "abc");
    ASSERT_HAS(out, "got:abc");
    stream_free(TAKE_PTR(w.out));
    ASSERT_EQ(fixture_wait(ctx, &w, pid), 0);
    fixture_release(&w);
}

TEST_FIBER(control_c_interrupts)
{
    struct fixture w;

    fixture_init(&w, ctx);
    uint32_t pid = start_terminal(ctx, &w, "echo ready; exec sleep 60");
    free(fixture_read_until(ctx, w.out, "ready"));
    fixture_say(ctx, w.in, "\003");
    free(fixture_read_all(ctx, w.out));
    stream_free(TAKE_PTR(w.out));
    ASSERT_EQ(fixture_wait(ctx, &w, pid), 128 + SIGINT);
    fixture_release(&w);
}

TEST_FIBER(the_exit_of_a_terminal_is_reported_when_the_host_has_closed_its_output)
{
    struct fixture w;
    struct err err = ERR_INIT;
    uint32_t code;

    fixture_init(&w, ctx);
    uint32_t pid = start_terminal(ctx, &w, "echo bye; exit 2");
    AUTO_FREE char *out = fixture_read_all(ctx, w.out); /* the half-close arrives … */
    ASSERT_HAS(out, "bye");
    ASSERT_FAIL(vm_process_wait(ctx, w.t, pid, 20, &code, &err), err, ERR_DEADLINE);
    ASSERT_OK(vm_process_resize(w.t, pid, 10, 10, &err), err);
    stream_free(TAKE_PTR(w.out)); /* … and ours is what the guest waits for */
    ASSERT_EQ(fixture_wait(ctx, &w, pid), 2);
    fixture_release(&w);
}

TEST_FIBER(a_host_that_stops_listening_does_not_block_a_terminal)
{
    struct fixture w;

    fixture_init(&w, ctx);
    uint32_t pid = start_terminal(ctx, &w, "read x; head -c 300000 /dev/zero; exit 9");
    stream_free(TAKE_PTR(w.out));
    fixture_say(ctx, w.in, "go\r");
    ASSERT_EQ(fixture_wait(ctx, &w, pid), 9);
    fixture_release(&w);
}

TEST_FIBER(a_background_process_does_not_keep_a_terminal_open)
{
    struct fixture w;

    fixture_init(&w, ctx);
    uint32_t pid = start_terminal(ctx, &w, "(trap '' HUP; exec sleep 60) & echo $!; exit 1");
    AUTO_FREE char *out = fixture_read_all(ctx, w.out);
    stream_free(TAKE_PTR(w.out));
    ASSERT_EQ(fixture_wait(ctx, &w, pid), 1);
    (void)kill((pid_t)atoi(out), SIGKILL);
    fixture_release(&w);
}

TEST_FIBER(a_background_process_that_never_stops_writing_does_not_keep_a_terminal_open)
{
    struct fixture w;

    fixture_init(&w, ctx);
    uint32_t pid = start_terminal(ctx, &w, "(trap '' HUP; exec yes) & sleep 0.05; exit 1");
    AUTO_FREE char *out = fixture_read_all(ctx, w.out);
    stream_free(TAKE_PTR(w.out));
    ASSERT_EQ(fixture_wait(ctx, &w, pid), 1);
    ASSERT(strlen(out) > 1000);
    fixture_release(&w);
}

TEST_FIBER(a_terminal_without_an_output_stream_still_runs)
{
    struct fixture w;

    fixture_init(&w, ctx);
    struct vm_process_spec spec = { .argv = SH("head -c 300000 /dev/zero; exit 8"),
                                    .terminal = true };
    ASSERT_EQ(fixture_wait(ctx, &w, fixture_start(ctx, &w, spec)), 8);
    fixture_release(&w);
}

TEST_FIBER(a_resize_reaches_the_terminal)
{
    struct fixture w;
    struct err err = ERR_INIT;

    fixture_init(&w, ctx);
    uint32_t pid = start_terminal(ctx, &w, "echo ready; read x; stty size");
    free(fixture_read_until(ctx, w.out, "ready"));
    ASSERT_OK(vm_process_resize(w.t, pid, 40, 120, &err), err);
    fixture_say(ctx, w.in, "\r");
    AUTO_FREE char *out = fixture_read_all(ctx, w.out);
    ASSERT_HAS(out, "40 120");
    stream_free(TAKE_PTR(w.out));
    ASSERT_EQ(fixture_wait(ctx, &w, pid), 0);
    fixture_release(&w);
}

TEST_FIBER(what_has_no_terminal_cannot_be_resized)
{
    struct fixture w;
    struct err err = ERR_INIT;

    fixture_init(&w, ctx);
    uint32_t pid = fixture_start(ctx, &w, (struct vm_process_spec){ .argv = ARGV("sleep", "60") });
    ASSERT_FAIL(vm_process_resize(w.t, pid, 10, 10, &err), err, ERR_STATE);
    fixture_release(&w);
}

TEST_FIBER(a_terminal_has_no_stderr)
{
    struct fixture w;
    struct err err = ERR_INIT;
    struct vm_process_spec spec = terminal;
    uint32_t pid;

    fixture_init(&w, ctx);
    spec.argv = ARGV("true");
    spec.io.want[2] = true;
    ASSERT_FAIL(vm_process_exec(ctx, w.t, &spec, &pid, &err), err, ERR_INVALID);
    fixture_release(&w);
}
