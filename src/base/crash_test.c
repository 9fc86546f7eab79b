/* crash_test.c - what a process leaves that dies of a fault of its own. Each in a child. */
#include "base/crash.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/str.h"
#include "harness/tap.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

extern void __asan_init(void) __attribute__((weak));

/* How the child ended; *ret_line: what it wrote, caller frees. */
static int status_of(void (*fault)(void *arg), char **ret_line)
{
    int ends[2], status = 0;
    char *text = mem_zalloc(16384);
    pid_t pid;

    ASSERT_EQ(pipe(ends), 0);
    pid = fork();
    ASSERT(pid >= 0);
    if (pid == 0) {
        struct loop *loop = loop_new(NULL);

        (void)setrlimit(RLIMIT_CORE, &(struct rlimit){ 0 });
        log_init(STDERR_FILENO, LOG_OFF, LOG_LOGFMT);
        crash_install(ends[1], loop);
        fiber_go(loop, fault, loop, "culprit");
        (void)loop_run(loop);
        _exit(0);
    }
    close(ends[1]);
    ASSERT(fd_read_full(ends[0], text, 16383) >= 0);
    close(ends[0]);
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    *ret_line = text;
    return status;
}

static void expect(void (*fault)(void *arg), int signo, const char *name)
{
    AUTO_FREE char *line = NULL, *field = str_format("\"signal\":\"%s\"", name);
    int status;

    if (__asan_init) /* which reports the crash itself */
        return;
    status = status_of(fault, &line);
    ASSERT(WIFSIGNALED(status));
    ASSERT_EQ(WTERMSIG(status), signo); /* its usual effect */
    ASSERT_MSG_HAS(line, "\"msg\":\"the process crashed\"");
    ASSERT_HAS(line, field);
    ASSERT_HAS(line, "\"fiber\":\"culprit\"");
    ASSERT_HAS(line, "\"backtrace\":\"crash_test+0x");
    ASSERT(str_ends(line, "\"}\n"));
    ASSERT(strchr(line, '\n') == line + strlen(line) - 1); /* one whole line */
}

static void touch_nothing(void *arg)
{
    volatile int *volatile nowhere = NULL;

    (void)arg;
    *nowhere = 1;
}

TEST(a_fault_in_a_fiber_is_logged_with_its_name)
{
    expect(touch_nothing, SIGSEGV, "SIGSEGV");
}

static __attribute__((noinline)) int dive(volatile char *above, int depth)
{
    volatile char here[512];

    here[0] = above[0];
    return depth > 1000000 ? here[0] : dive(here, depth + 1) + here[0];
}

static void overflow(void *arg)
{
    char top[1] = { 0 };

    (void)arg;
    (void)dive(top, 0);
}

TEST(a_fibers_stack_that_overflows_is_logged_too)
{
    expect(overflow, SIGSEGV, "SIGSEGV");
}

static void wild(void *arg)
{
    (void)arg;
    kill(getpid(), SIGFPE);
}

TEST(a_signal_from_another_process_is_logged_as_a_fault)
{
    AUTO_FREE char *line = NULL;

    if (__asan_init)
        return;
    ASSERT_EQ(WTERMSIG(status_of(wild, &line)), SIGFPE);
    ASSERT_HAS(line, "\"signal\":\"SIGFPE\"");
    ASSERT_HAS(line, "\"sent-by\":");
}

static void give_up(void *arg)
{
    (void)arg;
    abort();
}

TEST(an_abort_is_logged)
{
    AUTO_FREE char *line = NULL;

    if (__asan_init)
        return;
    ASSERT_EQ(WTERMSIG(status_of(give_up, &line)), SIGABRT);
    ASSERT_HAS(line, "\"fiber\":\"culprit\"");
    ASSERT_HAS(line, "crash_test+0x");
}
