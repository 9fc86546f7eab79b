#include "base/thread.h"
#include "base/mem.h"
#include <signal.h>

/* Blocked, they would end the process without their handlers. */
static const int crashes[] = { SIGSEGV, SIGBUS, SIGILL, SIGFPE };

int thread_start(pthread_t *ret, size_t stack_bytes, void *(*fn)(void *arg), void *arg)
{
    pthread_attr_t attr;
    sigset_t all, old;

    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, stack_bytes);
    sigfillset(&all);
    for (size_t i = 0; i < ARRAY_LEN(crashes); i++)
        sigdelset(&all, crashes[i]);
    pthread_sigmask(SIG_SETMASK, &all, &old);

    int r = pthread_create(ret, &attr, fn, arg);

    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    return -r;
}
