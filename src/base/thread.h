/* thread.h - starts a thread beside the loop's. All signals are blocked in it, since they belong to
 * the loop's thread, but for those of a crash of its own. */
#pragma once
#include <pthread.h>

/* The C library keeps the stack of a thread that has ended for the next one of the same size. */
#define THREAD_STACK_BYTES (256 * 1024)

/* 0 or -errno. Caller joins or detaches *ret. */
int thread_start(pthread_t *ret, size_t stack_bytes, void *(*fn)(void *arg), void *arg);
