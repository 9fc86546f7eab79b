#include "tool/lib/term.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/loop.h"
#include "base/str.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

/* The terminal state that the signal handlers below restore. */
static struct termios saved;
static volatile sig_atomic_t is_raw;

static const int fatal[] = { SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGQUIT };
static struct sigaction before[sizeof(fatal) / sizeof(fatal[0])];

void term_restore(void)
{
    if (is_raw) {
        is_raw = 0;
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &saved); /* the terminal may be gone */
    }
}

/* Restores the old handler and raises the signal again, so that core dumps and sanitizers work as
 * usual. */
static void on_fatal(int signo)
{
    term_restore();
    for (size_t i = 0; i < sizeof(fatal) / sizeof(fatal[0]); i++) {
        if (fatal[i] == signo)
            (void)sigaction(signo, &before[i], NULL);
    }
    (void)raise(signo);
}

int term_raw(void)
{
    struct termios raw;
    struct sigaction sa = { .sa_handler = on_fatal, .sa_flags = SA_NODEFER };

    if (is_raw)
        return 0;
    if (tcgetattr(STDIN_FILENO, &saved) < 0)
        return -errno;
    for (size_t i = 0; i < sizeof(fatal) / sizeof(fatal[0]); i++)
        (void)sigaction(fatal[i], &sa,
                        &before[i]); /* optional: it only restores the terminal after a crash */
    raw = saved;
    cfmakeraw(&raw);
    is_raw = 1;
    if (tcsetattr(STDIN_FILENO, TCSANOW, &raw) < 0) {
        int r = -errno;

        is_raw = 0;
        return r;
    }
    return 0;
}

bool term_size(uint16_t *ret_rows, uint16_t *ret_cols)
{
    for (int fd = 0; fd <= 2; fd++) {
        struct winsize w;

        if (ioctl(fd, TIOCGWINSZ, &w) == 0 && w.ws_row > 0 && w.ws_col > 0) {
            *ret_rows = w.ws_row;
            *ret_cols = w.ws_col;
            return true;
        }
    }
    return false;
}

bool term_in_background(void)
{
    pid_t foreground = tcgetpgrp(STDIN_FILENO);

    return foreground > 0 && foreground != getpgrp();
}

bool term_is(int fd)
{
    const char *term = getenv("TERM");

    return isatty(fd) && !str_eq(term, "dumb");
}

static void on_signal(void *arg, const struct signalfd_siginfo *info)
{
    (void)info;
    cancel_fire(arg, ERR_CANCELLED, "stopped by a signal");
}

void term_cancel_by_signals(struct loop *loop, struct cancel *c)
{
    struct sigaction hangup;

    (void)loop_on_signal(loop, SIGINT, on_signal, c); /* else it kills this process */
    (void)loop_on_signal(loop, SIGTERM, on_signal, c);
    if (sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler != SIG_IGN) /* nohup */
        (void)loop_on_signal(loop, SIGHUP, on_signal, c);
}

/* ---- a line of progress */

#define FRAME (100 * NS_PER_MS)

struct spinner {
    struct loop *loop;
    int fd; /* our own, non-blocking: a stopped terminal must not stop us; -1 without terminal */
    uint64_t since;
    unsigned frame;
    const char *text;
    bool utf8;
    struct cancel stop;
    bool drawing; /* the fiber is running */
    bool orphan;  /* the fiber frees this object */
};

static bool locale_is_utf8(void)
{
    static const char *const names[] = { "LC_ALL", "LC_CTYPE", "LANG" };

    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        const char *v = getenv(names[i]);

        if (v && *v)
            return strcasestr(v, "utf-8") || strcasestr(v, "utf8");
    }
    return false;
}

static void draw(struct spinner *s)
{
    static const char *const dots[] = { "⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏" };
    static const char *const plain[] = { "|", "/", "-", "\\" };
    const char *mark =
        s->utf8 ? dots[s->frame % ARRAY_LEN(dots)] : plain[s->frame % ARRAY_LEN(plain)];
    char line[160];
    double seconds = (double)(loop_now(s->loop) - s->since) / 1e9;

    int n = snprintf(line, sizeof(line), "\r\033[K%s %.100s  %.1fs", mark, s->text, seconds);
    if (n > 0 && (size_t)n < sizeof(line) && write(s->fd, line, (size_t)n) < 0)
        return; /* only this frame is lost */
}

static void spin(void *arg)
{
    struct spinner *s = arg;
    struct ctx ctx = ctx_until(s->loop, &s->stop);
    struct err err = ERR_INIT;

    while (fiber_sleep(&ctx, FRAME, &err) == 0) {
        s->frame++;
        draw(s);
    }
    s->drawing = false;
    if (s->orphan) {
        cancel_release(&s->stop);
        free(s);
    }
}

struct spinner *spinner_new(struct loop *loop)
{
    struct spinner *s = mem_new(struct spinner);

    s->loop = loop;
    s->since = loop_now(loop);
    s->utf8 = locale_is_utf8();
    s->fd = -1;
    cancel_init(&s->stop, NULL);
    if (term_is(STDERR_FILENO))
        s->fd = open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    return s;
}

void spinner_say(struct spinner *s, const char *text)
{
    if (s->fd < 0)
        return;
    s->text = text;
    draw(s);
    if (!s->drawing) {
        s->drawing = true;
        fiber_go(s->loop, spin, s, "spinner");
    }
}

void spinner_free(struct spinner *s)
{
    if (!s)
        return;
    if (s->fd >= 0 && write(s->fd, "\r\033[K", 4) < 0)
        s->frame = 0; /* on failure the line stays on the screen */
    fd_close(TAKE_FD(s->fd));
    s->orphan = true;
    if (s->drawing) {
        cancel_fire(&s->stop, ERR_CANCELLED, "done");
        return; /* the fiber frees it */
    }
    cancel_release(&s->stop);
    free(s);
}
