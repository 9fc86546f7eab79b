#include "tool/term.h"
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

/* Signal plumbing: what the handlers below must undo. */
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

/* Puts the old handler back and lets the signal happen again, so that core dumps and sanitizers
 * work as ever. */
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
        (void)sigaction(fatal[i], &sa, &before[i]); /* only a convenience when we crash */
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
