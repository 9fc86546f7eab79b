#include "base/thread.h"
#include <signal.h>

int thread_start(pthread_t *ret, size_t stack_bytes, void *(*fn)(void *arg), void *arg)
{
    pthread_attr_t attr;
    sigset_t all, old;

    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, stack_bytes);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);

    int r = pthread_create(ret, &attr, fn, arg);

    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    return -r;
}
