/* stall.h - reports a loop that is stuck: something in it blocks in the kernel or runs without end,
 * so no other fiber runs. The report comes from a thread of its own, which is asleep without a
 * timer while the loop is idle, and looks once a second while it is not.
 *
 * Life: new -> free, both on the loop's thread; the loop outlives it. One for each loop. */
#pragma once
#include "base/mem.h"
#include <stdint.h>

struct err;
struct loop;
struct stall;

struct stall_report {
    const char *who;     /* the fiber's name; "" outside fibers */
    uint64_t for_ns;     /* since it began to run */
    uint64_t since_wall; /* the same as wall time */
    const char *syscall; /* "running", or its number and arguments, as /proc/PID/syscall has it */
    const char *kernel;  /* the kernel function in which it waits; "" if it does not */
};
struct stall_opts {
    struct loop *loop;
    uint64_t limit_ns; /* at least 1 s */
    /* In the watcher's own thread, once for each stall: nothing of the loop's may be used. */
    void (*stuck)(void *arg, const struct stall_report *r);
    /* Called on the loop when it continues. May not wait. */
    void (*over)(void *arg, uint64_t for_ns);
    void *arg;
};
int stall_new(const struct stall_opts *o, struct stall **ret, struct err *err);
void stall_free(struct stall *s);
AUTO_DEFINE(struct stall *, stall_free);
