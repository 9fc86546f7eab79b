#include "harness/tap.h"
#include "base/clock.h"
#include "base/fiber.h"
#include "base/loop.h"
#include "base/str.h"
#include "fixture/loop_fixture.h"
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define VIRTUAL_TIMEOUT (10 * NS_PER_S)
#define REAL_TIMEOUT (180 * NS_PER_S) /* the machine may have other things to do */
#define LEFTOVER_STEP (5 * NS_PER_MS)
#define LEFTOVER_STEPS 4000 /* 20 s for what the body started and does not wait for */
#define MAIN_STACK_BYTES (8 * 1024 * 1024)

enum outcome { PASSED, FAILED, SKIPPED };

/* The test that runs now. */
static struct {
    const struct tap_test *test;
    unsigned number;
    enum outcome outcome;
    char *reason; /* why skipped */
    sigjmp_buf out;
    uintptr_t stack; /* of the plain test: where `out` leads */
    struct loop *loop;
    struct fiber *fiber; /* that runs the body: where `out` leads in a fiber test */
} now;

static struct tap_test *tests, **tests_end = &tests;

void tap_register(struct tap_test *t)
{
    *tests_end = t;
    tests_end = &t->next;
}

/* TAP: other text than results is a comment, line by line. */
static void comment(const char *text)
{
    while (*text) {
        size_t n = strcspn(text, "\n");

        printf("# %.*s\n", (int)n, text);
        text += n + (text[n] == '\n');
    }
}

static void print_outcome(void)
{
    printf("%sok %u - %s%s%s\n", now.outcome == FAILED ? "not " : "", now.number, now.test->name,
           now.outcome == SKIPPED ? " # SKIP " : "", now.outcome == SKIPPED ? now.reason : "");
}

static _Noreturn void bail_out(const char *why)
{
    now.outcome = FAILED;
    print_outcome();
    printf("Bail out! %s\n", why);
    fflush(stdout);
    _exit(1);
}

/* Away from the test's body, from wherever we are. */
static _Noreturn void leave_test(void)
{
    uintptr_t here = (uintptr_t)__builtin_frame_address(0);

    if (now.loop && fiber_self(now.loop) == now.fiber)
        siglongjmp(now.out, 1);
    if (now.loop && fiber_self(now.loop)) {
        /* Another fiber: there is no way from its stack to the body's. Nobody runs any more. */
        struct ctx never = ctx_root(now.loop);
        struct waitq q;
        struct err err;

        waitq_init(&q);
        loop_stop(now.loop);
        for (;;)
            (void)waitq_wait(&never, &q, "failed assertion", &err);
    }
    if (!now.loop && here < now.stack && now.stack - here < MAIN_STACK_BYTES)
        siglongjmp(now.out, 1);
    bail_out("left the test on a stack that the harness does not know");
}

void tap_fail(const char *file, int line, const char *fmt, ...)
{
    AUTO_FREE char *what = NULL, *text = NULL;
    va_list ap;

    va_start(ap, fmt);
    what = str_vformat(fmt, ap);
    va_end(ap);
    text = str_format("%s:%d: %s", file, line, what);
    comment(text);
    free(TAKE_PTR(what));
    free(TAKE_PTR(text));
    now.outcome = FAILED;
    leave_test();
}

void tap_skip(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    free(now.reason);
    now.reason = str_vformat(fmt, ap);
    va_end(ap);
    if (now.outcome == PASSED)
        now.outcome = SKIPPED;
    leave_test();
}

static void run_plain(void)
{
    now.stack = (uintptr_t)__builtin_frame_address(0);
    if (sigsetjmp(now.out, 0) == 0)
        now.test->plain();
}

static void fail_with_leftovers(const char *why)
{
    AUTO(sbuf_release) struct sbuf text = { 0 };

    sbuf_addf(&text, "%s\n", why);
    loop_dump(now.loop, &text);
    comment(text.data);
    now.outcome = FAILED;
}

/* Cancelled fibers need a few more turns to end. */
static void await_others(struct ctx *ctx)
{
    struct err err;

    for (int i = 0; i < LEFTOVER_STEPS && loop_fiber_count(now.loop) > 1; i++)
        (void)fiber_sleep(ctx, LEFTOVER_STEP, &err);
    if (loop_fiber_count(now.loop) > 1) {
        fail_with_leftovers("fibers were left when the test ended:");
        loop_stop(now.loop);
    }
}

static void body_fiber(void *arg)
{
    struct cancel cancel;
    struct ctx root = ctx_root(now.loop), with_cancel, ctx;

    (void)arg;
    now.fiber = fiber_self(now.loop);
    cancel_init(&cancel, NULL);
    with_cancel = ctx_with_cancel(&root, &cancel);
    ctx = ctx_with_timeout(&with_cancel, now.test->virtual_time ? VIRTUAL_TIMEOUT : REAL_TIMEOUT);
    if (sigsetjmp(now.out, 0) == 0) {
        now.test->fiber(&ctx);
    } else {
        /* Others may hold pointers into the body's frames, which are gone. */
        loop_stop(now.loop);
        return;
    }
    await_others(&root);
    if (now.outcome != FAILED)
        cancel_release(&cancel);
}

static void run_fiber(void)
{
    struct loop_opts opts = { .virtual_time = now.test->virtual_time };

    now.loop = loop_new(&opts);
    fiber_go(now.loop, body_fiber, NULL, "test %s", now.test->name);
    if (loop_run(now.loop) > 0 && now.outcome == PASSED)
        fail_with_leftovers("the loop ended with fibers that nothing can wake:");
    loop_free(now.loop);
    now.loop = NULL;
    now.fiber = NULL;
}

static bool run_test(const struct tap_test *t, unsigned number)
{
    now.test = t;
    now.number = number;
    now.outcome = PASSED;
    if (t->plain)
        run_plain();
    else
        run_fiber();
    print_outcome();
    fflush(stdout);
    free(TAKE_PTR(now.reason));
    return now.outcome != FAILED;
}

bool tap_words_compared(void)
{
#ifdef WORDS_SCRAMBLED
    return false;
#else
    return true;
#endif
}

bool tap_aborts(void (*fn)(void *arg), void *arg, char *text, size_t size)
{
    int pipe_fds[2], status = 0;
    size_t len = 0;
    pid_t pid;

    fflush(stdout);
    if (pipe(pipe_fds) < 0 || (pid = fork()) < 0)
        tap_fail(__FILE__, __LINE__, "no child: %s", strerror(errno));
    if (pid == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){ 0, 0 });
        dup2(pipe_fds[1], STDERR_FILENO);
        close(pipe_fds[0]);
        close(pipe_fds[1]);
        fn(arg);
        _exit(0);
    }
    close(pipe_fds[1]);
    for (;;) {
        ssize_t n = read(pipe_fds[0], text + len, size - 1 - len);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        len += (size_t)n;
    }
    text[len] = '\0';
    close(pipe_fds[0]);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

/* Meson's word for "it took too long". Not safe in a handler, but the alternative is to say
 * nothing about where it hangs. */
static void on_sigterm(int signo)
{
    (void)signo;
    if (now.loop)
        fail_with_leftovers("ended from outside while these were there:");
    if (now.test)
        bail_out("ended from outside");
    _exit(1);
}

int main(int argc, char **argv)
{
    const char *filter = argc > 1 ? argv[1] : "";
    unsigned n = 0, failed = 0;

    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGTERM, on_sigterm);
    signal(SIGPIPE, SIG_IGN);
    if (str_eq(filter, "-l")) {
        for (const struct tap_test *t = tests; t; t = t->next)
            printf("%s\n", t->name);
        return 0;
    }
    for (const struct tap_test *t = tests; t; t = t->next)
        n += strstr(t->name, filter) != NULL;
    printf("1..%u\n", n);
    if (n == 0) {
        printf("# no test is named like \"%s\"\n", filter);
        return 1;
    }
    n = 0;
    for (const struct tap_test *t = tests; t; t = t->next)
        if (strstr(t->name, filter))
            failed += !run_test(t, ++n);
    return failed > 0;
}
