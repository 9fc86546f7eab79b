/* fiber.h - fibers and what they wait on. A fiber is a function with a stack of its own that
 * runs until it waits; between two waits it is alone, so fields need no lock. After a wait, look
 * again: the object may have changed or be gone. Stacks have guard pages; a parked fiber costs
 * about one page. */
#pragma once
#include "base/list.h"
#include <stddef.h>
#include <stdint.h>

struct ctx;
struct err;
struct fiber;
struct loop;

#define FIBER_STACK_BYTES (64 * 1024) /* four times that under ASan */

/* Starts fn(arg) as a fiber named by fmt (31 characters kept). It runs when the loop reaches it. It
 * cannot be joined: start it by fibers_go(), or give it a waitq to signal its end. If no memory is
 * left for its stack, it gets one of the reserve, which is for work that was admitted before;
 * aborts when the reserve is used up. */
void fiber_go(struct loop *loop, void (*fn)(void *arg), void *arg, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Whether the next fiber_go gets its stack without the reserve: ERR_EXHAUSTED if not. Asked before
 * work from outside (a request, a connection) is admitted. */
int fiber_admit(struct loop *loop, struct err *err);
/* NULL outside fibers. */
struct fiber *fiber_self(const struct loop *loop);

/* Lets the other ready fibers run. */
void fiber_yield(struct loop *loop);
/* 0 when the time is over; -1 if ctx ended first. */
int fiber_sleep(struct ctx *ctx, uint64_t ns, struct err *err);

/* A queue of waiting fibers. {0} must be initialised by waitq_init. Wake-ups are not counted:
 * check the condition, wait, check again. */
struct waitq {
    struct list waiters;
};
void waitq_init(struct waitq *q);
/* 0 when woken; -1 with ERR_DEADLINE, or the code of ctx's cancel. why: static text for dumps. */
int waitq_wait(struct ctx *ctx, struct waitq *q, const char *why, struct err *err);
void waitq_wake_one(struct waitq *q);
void waitq_wake_all(struct waitq *q);

/* A latch: set once, then every wait returns at once. */
struct latch {
    bool set;
    struct waitq q;
};
void latch_init(struct latch *l);
void latch_set(struct latch *l); /* repeatable */
int latch_wait(struct ctx *ctx, struct latch *l, const char *why, struct err *err);

/* Counts fibers, so that an owner can wait for those it started. */
struct fibers {
    size_t running;
    struct waitq q;
};
void fibers_init(struct fibers *g);
/* As fiber_go; g must outlive the fiber. */
void fibers_go(struct fibers *g, struct loop *loop, void (*fn)(void *arg), void *arg,
               const char *fmt, ...) __attribute__((format(printf, 5, 6)));
int fibers_wait(struct ctx *ctx, struct fibers *g, const char *why, struct err *err);
