/* child_test.c - children get what was named and nothing else, and their end is known. */
#include "base/child_priv.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/loop.h"
#include "base/str.h"
#include "base/stream.h"
#include "fixture/handover_fixture.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

static int run(struct ctx *ctx, struct child_opts *o, int *ret_status, struct err *err)
{
    AUTO(child_free) struct child *c = NULL;

    if (child_spawn(ctx, o, &c, err) < 0)
        return -1;
    return child_wait(ctx, c, ret_status, err);
}

static int run_sh(struct ctx *ctx, const char *script, int *ret_status, struct err *err)
{
    const char *argv[] = { "sh", "-c", script, NULL };

    return run(ctx, &(struct child_opts){ .argv = argv }, ret_status, err);
}

TEST_FIBER(exit_code_and_signal_are_distinguished)
{
    struct err err = ERR_INIT;
    int status;

    ASSERT_OK(run_sh(ctx, "exit 7", &status, &err), err);
    ASSERT(WIFEXITED(status));
    ASSERT_EQ(WEXITSTATUS(status), 7);
    ASSERT_OK(run_sh(ctx, "kill -TERM $$", &status, &err), err);
    ASSERT(WIFSIGNALED(status));
    ASSERT_EQ(WTERMSIG(status), SIGTERM);
}

TEST_FIBER(a_missing_program_is_named)
{
    const char *bare[] = { "no-such-program-here", NULL }, *path[] = { "/no/such/file", NULL };
    struct err err = ERR_INIT;
    int status;

    ASSERT_FAIL(run(ctx, &(struct child_opts){ .argv = bare }, &status, &err), err, ERR_NOT_FOUND);
    ASSERT_HAS(err.msg, "no-such-program-here");
    ASSERT_FAIL(run(ctx, &(struct child_opts){ .argv = path }, &status, &err), err, ERR_NOT_FOUND);
    ASSERT_HAS(err.msg, "/no/such/file");
}

TEST_FIBER(a_file_that_cannot_be_executed_is_a_permission)
{
    const char *argv[] = { "/etc/passwd", NULL };
    struct err err = ERR_INIT;
    int status;

    ASSERT_FAIL(run(ctx, &(struct child_opts){ .argv = argv }, &status, &err), err, ERR_PERMISSION);
}

TEST_FIBER(an_empty_command_is_refused)
{
    const char *none[] = { NULL }, *blank[] = { "", NULL };
    struct err err = ERR_INIT;
    int status;

    ASSERT_FAIL(run(ctx, &(struct child_opts){ .argv = none }, &status, &err), err, ERR_INVALID);
    ASSERT_FAIL(run(ctx, &(struct child_opts){ .argv = blank }, &status, &err), err, ERR_INVALID);
}

static char *output_of(struct ctx *ctx, struct child_opts *o)
{
    int p[2], status;
    struct err err = ERR_INIT;
    char buf[4096];

    ASSERT_EQ(pipe2(p, O_CLOEXEC), 0);

    struct child_fd out = { p[1], 1 };
    AUTO(child_free) struct child *c = NULL;

    o->fds = o->fds ? o->fds : &out;
    o->n_fds = o->n_fds ? o->n_fds : 1;
    if (o->fds != &out)
        ((struct child_fd *)o->fds)[0].from = p[1];
    ASSERT_OK(child_spawn(ctx, o, &c, &err), err);
    close(p[1]);
    ASSERT_OK(child_wait(ctx, c, &status, &err), err);

    ssize_t n = fd_read_full(p[0], buf, sizeof(buf) - 1);

    close(p[0]);
    ASSERT(n >= 0);
    return str_ndup(buf, (size_t)n);
}

TEST_FIBER(only_the_named_fds_arrive)
{
    AUTO_FD int secret = open("/etc/passwd", O_RDONLY); /* not even CLOEXEC */
    const char *argv[] = { "sh", "-c", "ls /proc/$$/fd; true", NULL };
    AUTO_FREE char *out = output_of(ctx, &(struct child_opts){ .argv = argv });

    ASSERT(secret > 2);
    ASSERT_STR(out, "0\n1\n2\n");
}

TEST_FIBER(fds_may_be_exchanged)
{
    AUTO_FD int a = open("/dev/null", O_RDONLY | O_CLOEXEC);
    AUTO_FD int b = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    struct child_fd fds[] = { { -1, 1 }, { a, b }, { b, a } };
    AUTO_FREE char *script = str_format("readlink /proc/self/fd/%d /proc/self/fd/%d", a, b);
    const char *argv[] = { "sh", "-c", script, NULL };
    AUTO_FREE char *out =
        output_of(ctx, &(struct child_opts){ .argv = argv, .fds = fds, .n_fds = 3 });

    ASSERT_STR(out, "/dev/zero\n/dev/null\n");
}

TEST_FIBER(environment_and_directory_are_as_named)
{
    const char *argv[] = { "/bin/sh", "-c", "pwd; echo $A; env | wc -l", NULL },
               *env[] = { "A=b", NULL };
    AUTO_FREE char *out =
        output_of(ctx, &(struct child_opts){ .argv = argv, .envp = env, .cwd = "/usr" });

    ASSERT_HAS(out, "/usr\nb\n");
}

TEST_FIBER(signals_are_not_blocked_or_ignored_in_a_child)
{
    sigset_t set, old;
    struct err err = ERR_INIT;
    int status;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, &old);
    signal(SIGTERM, SIG_IGN);
    ASSERT_OK(run_sh(ctx, "kill -TERM $$; exit 0", &status, &err), err);
    ASSERT(WIFSIGNALED(status));
    signal(SIGTERM, SIG_DFL);
    sigprocmask(SIG_SETMASK, &old, NULL);
}

static int setup_fails(void *arg, struct err *err)
{
    return err_set(err, ERR_STATE, "setup of %s failed", (const char *)arg);
}

TEST_FIBER(an_error_in_setup_reaches_the_caller)
{
    const char *argv[] = { "true", NULL };
    struct err err = ERR_INIT;
    int status;
    struct child_opts o = { .argv = argv, .setup = setup_fails, .setup_arg = (void *)"jail" };

    ASSERT_FAIL(run(ctx, &o, &status, &err), err, ERR_STATE);
    ASSERT_MSG(err.msg, "setup of jail failed");
}

static int refuse_pid(void *arg, pid_t pid, struct err *err)
{
    *(pid_t *)arg = pid;
    return err_set(err, ERR_EXHAUSTED, "ledger is full");
}

TEST_FIBER(a_child_that_cannot_be_recorded_does_not_run)
{
    TEMPDIR(p);
    const char *mark = tempdir_path(&p, "mark");
    const char *argv[] = { "touch", mark, NULL };
    struct err err = ERR_INIT;
    pid_t pid = 0;
    int status;
    struct child_opts o = { .argv = argv, .on_pid = refuse_pid, .on_pid_arg = &pid };

    ASSERT_FAIL(run(ctx, &o, &status, &err), err, ERR_EXHAUSTED);
    ASSERT(pid > 0);
    ASSERT_EQ(kill(pid, 0), -1);
    ASSERT_EQ(access(mark, F_OK), -1);
}

TEST_FIBER(many_fibers_may_wait_and_a_kill_after_the_exit_hits_no_process)
{
    const char *argv[] = { "sleep", "1000", NULL };
    AUTO(child_free) struct child *c = NULL;
    struct err err = ERR_INIT;
    int status;

    ASSERT_OK(child_spawn(ctx, &(struct child_opts){ .argv = argv }, &c, &err), err);
    ASSERT(!child_done(c, NULL));
    ASSERT(proc_start_time(child_pid(c)) > 0);
    ASSERT_EQ(child_kill(c, SIGKILL), 0);
    ASSERT_OK(child_wait(ctx, c, &status, &err), err);
    ASSERT_OK(child_wait(ctx, c, &status, &err), err);
    ASSERT_EQ(WTERMSIG(status), SIGKILL);
    ASSERT_EQ(child_kill(c, SIGKILL), -ESRCH);
}

TEST_FIBER(freeing_a_running_child_ends_it)
{
    const char *argv[] = { "sleep", "1000", NULL };
    struct child *c = NULL;
    struct err err = ERR_INIT;

    ASSERT_OK(child_spawn(ctx, &(struct child_opts){ .argv = argv }, &c, &err), err);

    pid_t pid = child_pid(c);

    child_free(c);
    ASSERT_EQ(kill(pid, 0), -1);
}

TEST_FIBER(a_wait_for_a_living_child_ends_with_the_deadline)
{
    const char *argv[] = { "sleep", "1000", NULL };
    AUTO(child_free) struct child *c = NULL;
    struct err err = ERR_INIT;
    struct ctx soon = ctx_with_timeout(ctx, 10 * NS_PER_MS);
    int status;

    ASSERT_OK(child_spawn(ctx, &(struct child_opts){ .argv = argv }, &c, &err), err);
    ASSERT_FAIL(child_wait(&soon, c, &status, &err), err, ERR_DEADLINE);
    ASSERT_EQ(err_reason(&err), REASON_TIMED_OUT);
}

/* A middle process spawns a child that dies with it, reports that child's pid, and is killed. */
static void middle(void *arg)
{
    struct ctx *ctx = ((void **)arg)[0];
    int *tell = ((void **)arg)[1];
    const char *argv[] = { "sleep", "1000", NULL };
    struct child *c = NULL;
    struct err err = ERR_INIT;

    if (child_spawn(ctx, &(struct child_opts){ .argv = argv, .die_with_us = true }, &c, &err) < 0)
        _exit(1);

    pid_t pid = child_pid(c);

    (void)!write(*tell, &pid, sizeof(pid));
    pause();
}

TEST_FIBER(a_child_dies_with_us)
{
    int p[2];
    pid_t grandchild = 0;
    struct err err = ERR_INIT;

    ASSERT_EQ(pipe2(p, O_CLOEXEC), 0);
    prctl(PR_SET_CHILD_SUBREAPER, 1);

    pid_t pid = fork();

    if (pid == 0) {
        struct loop *loop = loop_new(NULL);
        struct ctx inner = ctx_root(loop);
        void *arg[] = { &inner, &p[1] };

        fiber_go(loop, middle, arg, "middle");
        loop_run(loop);
        _exit(1);
    }
    ASSERT_OK(loop_wait_fd(ctx, p[0], POLLIN, "pid", &err), err);
    ASSERT_EQ(read(p[0], &grandchild, sizeof(grandchild)), (ssize_t)sizeof(grandchild));
    kill(pid, SIGKILL);
    ASSERT_EQ(waitpid(pid, NULL, 0), pid);

    int status;

    ASSERT_EQ(waitpid(grandchild, &status, 0), grandchild); /* blocks without end if it lives on */
    ASSERT(WIFSIGNALED(status));
    prctl(PR_SET_CHILD_SUBREAPER, 0);
    close(p[0]);
    close(p[1]);
}

static int die_now(void *arg, pid_t pid, struct err *err)
{
    (void)err;
    (void)!write(*(int *)arg, &pid, sizeof(pid));
    return kill(getpid(), SIGKILL);
}

static void dies_in_the_middle(void *arg)
{
    struct ctx *ctx = ((void **)arg)[0];
    const char *argv[] = { "sleep", "1000", NULL };
    struct child *c = NULL;
    struct err err = ERR_INIT;

    (void)child_spawn(
        ctx,
        &(struct child_opts){ .argv = argv, .on_pid = die_now, .on_pid_arg = ((void **)arg)[1] },
        &c, &err);
}

/* Between clone and exec the child is not recorded yet, so it must exit by itself. */
TEST_FIBER(a_child_whose_parent_dies_before_its_exec_ends)
{
    int p[2], status = 0;
    pid_t orphan = 0;
    struct err err = ERR_INIT;

    ASSERT_EQ(pipe2(p, O_CLOEXEC), 0);
    prctl(PR_SET_CHILD_SUBREAPER, 1);

    pid_t pid = fork();

    if (pid == 0) {
        struct loop *loop = loop_new(NULL);
        struct ctx inner = ctx_root(loop);
        void *arg[] = { &inner, &p[1] };

        fiber_go(loop, dies_in_the_middle, arg, "middle");
        loop_run(loop);
        _exit(1);
    }
    ASSERT_OK(loop_wait_fd(ctx, p[0], POLLIN, "pid", &err), err);
    ASSERT_EQ(read(p[0], &orphan, sizeof(orphan)), (ssize_t)sizeof(orphan));
    ASSERT_EQ(waitpid(pid, NULL, 0), pid);

    AUTO_FD int pidfd = pidfd_open(orphan, 0);
    struct ctx soon = ctx_with_timeout(ctx, 30 * NS_PER_S);
    int r = loop_wait_fd(&soon, pidfd, POLLIN, "the orphan's end", &err);

    kill(orphan, SIGKILL);
    ASSERT_EQ(waitpid(orphan, &status, 0), orphan);
    prctl(PR_SET_CHILD_SUBREAPER, 0);
    close(p[0]);
    close(p[1]);
    ASSERT_OK(r, err);
    ASSERT_EQ(WEXITSTATUS(status), 127);
}

/* A process that holds pid at its end until our end of the pipe closes. */
static pid_t hold_end(pid_t pid, int *ret_release)
{
    int ready[2], release[2];
    char c;

    ASSERT(pipe2(ready, O_CLOEXEC) == 0 && pipe2(release, O_CLOEXEC) == 0);

    pid_t tracer = fork();

    ASSERT(tracer >= 0);
    if (tracer == 0) {
        fd_close(release[1]);
        if (ptrace(PTRACE_SEIZE, pid, NULL, PTRACE_O_TRACEEXIT) == 0)
            (void)!write(ready[1], "r", 1);
        fd_close(ready[1]);
        (void)!read(release[0], &c, 1);
        _exit(0);
    }
    fd_close(ready[1]);
    fd_close(release[0]);
    *ret_release = release[1];

    bool held = read(ready[0], &c, 1) == 1;

    fd_close(ready[0]);
    if (!held) {
        fd_close(release[1]);
        ASSERT_EQ(waitpid(tracer, NULL, 0), tracer);
        tap_skip("ptrace is forbidden here");
    }
    return tracer;
}

static bool is_ours(pid_t pid)
{
    siginfo_t info;

    return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

static int allow_ptrace(void *arg, struct err *err)
{
    (void)arg, (void)err;
    (void)prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY); /* Yama is not everywhere */
    return 0;
}

TEST_FIBER(a_child_that_does_not_exit_blocks_no_fiber_and_is_reaped_when_it_does)
{
    const char *argv[] = { "sleep", "600", NULL };
    struct child_opts o = { .argv = argv, .setup = allow_ptrace };
    struct err err = ERR_INIT;
    struct child *c;
    int release;

    ASSERT_OK(child_spawn(ctx, &o, &c, &err), err);

    pid_t pid = child_pid(c), tracer = hold_end(pid, &release);
    uint64_t begin = clock_mono();

    child_free(c);
    ASSERT(clock_mono() - begin < 2 * NS_PER_S);
    ASSERT(is_ours(pid)); /* killed, but not dead */
    fd_close(release);
    for (struct ctx soon = ctx_with_timeout(ctx, 20 * NS_PER_S); is_ours(pid);)
        ASSERT_OK(fiber_sleep(&soon, NS_PER_MS, &err), err);
    ASSERT_EQ(waitpid(tracer, NULL, 0), tracer);
}

/* As an exec does: the object goes, its descriptor stays. */
static struct child *replace(struct child *old)
{
    AUTO(saved_free) struct saved *writer = saved_writer(), *reader = NULL;
    struct loop *loop = old->loop;
    struct child *c = NULL;
    struct err err = ERR_INIT;

    child_saved(writer, 1, loop, &old);
    reader = saved_fixture_read(writer);
    source_remove(loop, &old->source);
    free(old);
    child_saved(reader, 1, loop, &c);
    ASSERT_OK(saved_check(reader, &err), err);
    ASSERT(c);
    return c;
}

TEST_FIBER(a_saved_child_is_still_ours)
{
    const char *argv[] = { "sh", "-c", "read x; exit 7", NULL };
    struct child *c = NULL;
    struct err err = ERR_INIT;
    int in[2], status;

    ASSERT_EQ(pipe2(in, O_CLOEXEC), 0);
    const struct child_fd fds[] = { { in[0], 0 } };
    ASSERT_OK(
        child_spawn(ctx, &(struct child_opts){ .argv = argv, .fds = fds, .n_fds = 1 }, &c, &err),
        err);
    pid_t pid = child_pid(c);
    c = replace(c);
    ASSERT_EQ(child_pid(c), pid);
    ASSERT(!child_done(c, NULL));
    fd_close(in[1]);
    ASSERT_OK(child_wait(ctx, c, &status, &err), err);
    ASSERT(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    c = replace(c); /* its end is known */
    ASSERT(child_done(c, &status));
    ASSERT(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    ASSERT_EQ(child_kill(c, SIGKILL), -ESRCH);
    child_free(c);
    fd_close(in[0]);
}

TEST_FIBER(a_child_that_ends_while_it_is_saved_is_reaped)
{
    const char *argv[] = { "sleep", "600", NULL };
    struct child *c = NULL;
    struct err err = ERR_INIT;
    int status;

    ASSERT_OK(child_spawn(ctx, &(struct child_opts){ .argv = argv }, &c, &err), err);
    ASSERT_EQ(child_kill(c, SIGTERM), 0);
    c = replace(c); /* no turn of the loop since */
    ASSERT(!child_done(c, NULL));
    ASSERT_OK(child_wait(ctx, c, &status, &err), err);
    ASSERT(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    ASSERT_EQ(kill(child_pid(c), 0), -1);
    child_free(c);
}

TEST_FIBER(without_a_child_nothing_is_read_and_a_foreign_process_is_refused)
{
    AUTO(saved_free) struct saved *writer = saved_writer(), *reader = NULL;
    struct child *none = NULL, *got = (struct child *)&none, *foreign, *read = NULL;
    struct err err = ERR_INIT;

    foreign = child_new(ctx->loop, getppid(), pidfd_open(getppid(), 0));
    child_saved(writer, 1, ctx->loop, &none);
    child_saved(writer, 2, ctx->loop, &foreign);
    reader = saved_fixture_read(writer);
    child_saved(reader, 1, ctx->loop, &got);
    ASSERT(!got);
    child_saved(reader, 2, ctx->loop, &read);
    ASSERT_FAIL(saved_check(reader, &err), err, ERR_INVALID);
    fd_close(foreign->pidfd);
    free(foreign);
    free(read);
}

/* The previous program may have to. */
TEST_FIBER(while_a_program_may_go_back_no_child_is_reaped)
{
    const char *argv[] = { "true", NULL };
    AUTO(child_free) struct child *c = NULL;
    siginfo_t info = { 0 };
    struct err err = ERR_INIT;
    int status;

    loop_hold_io(ctx->loop, true);
    ASSERT_OK(child_spawn(ctx, &(struct child_opts){ .argv = argv }, &c, &err), err);
    ASSERT_EQ(waitid(P_PIDFD, (id_t)child_pidfd(c), &info, WEXITED | WNOWAIT), 0);
    ASSERT_OK(fiber_sleep(ctx, 20 * NS_PER_MS, &err), err);
    ASSERT_EQ(waitid(P_PIDFD, (id_t)child_pidfd(c), &info, WEXITED | WNOWAIT | WNOHANG), 0);
    ASSERT(!child_done(c, NULL));
    loop_hold_io(ctx->loop, false);
    ASSERT_OK(child_wait(ctx, c, &status, &err), err);
    ASSERT_EQ(status, 0);
}
