/* offload.h - work that may block in the kernel (a client's path may be a dead NFS) runs in a
 * thread that shares no data with us: fn sees only *arg. */
#pragma once

struct ctx;
struct err;

/* Waits until fn returned or ctx ended. While the caller waits, *arg belongs to fn. When fn has
 * returned, *arg is the caller's again, with what fn put into it. If ctx ended first, *arg is
 * NULL and the thread frees it with free_arg when fn comes back at last: give fn a copy of
 * everything. In virtual time fn runs inline. */
int offload_run(struct ctx *ctx, int (*fn)(void *arg, struct err *err), void **arg,
                void (*free_arg)(void *arg), const char *why, struct err *err);
