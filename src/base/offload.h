/* offload.h - work that may block in the kernel (a client's path may be a dead NFS) runs in a
 * thread that shares no data with the loop: fn sees only its copy of the job. */
#pragma once
#include <stddef.h>

struct ctx;
struct err;

/* Waits until fn(job) has returned in a thread, or ctx has ended. The thread works on a copy of
 * *job. The first n_strings members of the job are const char *, borrowed and perhaps NULL: the
 * copy has copies of them, and fn leaves them as they are. What else the job holds (descriptors,
 * memory) belongs to fn during the call.
 *   0: *job has what fn put into it, and the caller owns it again.
 *  -1: fn failed, or ctx ended first. All that the job holds is released by drop(job), in the
 * second case by the thread when fn returns at last. Numbers that fn left in *job may be read. drop
 * may be NULL; it does not free the job itself, nor the strings. In virtual time fn runs inline. */
#define OFFLOAD(ctx, fn, job, n_strings, drop, why, err)                                           \
    offload_job(ctx, fn, job, sizeof(*(job)), n_strings, drop, why, err)
int offload_job(struct ctx *ctx, int (*fn)(void *job, struct err *err), void *job, size_t size,
                unsigned n_strings, void (*drop)(void *job), const char *why, struct err *err);
/* Threads whose callers have stopped waiting, and that still run fn or drop. */
unsigned offload_abandoned(void);
