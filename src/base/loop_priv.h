/* loop_priv.h - the inside of loop, fiber and what registers with them. Only for base. */
#pragma once
#include "base/ctx.h"
#include "base/fiber.h"
#include "base/list.h"
#include "base/loop.h"
#include "base/rand.h"
#include <stdatomic.h>
#include <sys/epoll.h>
#include <ucontext.h>

/* A moment at which fn runs on the loop. In a binary heap; index 0 means "not in it". */
struct timer {
    uint64_t at;
    size_t index;
    void (*fn)(struct timer *t);
};
void timer_add(struct loop *loop, struct timer *t, uint64_t at, void (*fn)(struct timer *t));
void timer_remove(struct loop *loop, struct timer *t); /* repeatable */

/* An fd in epoll. fn runs on the loop, outside fibers. */
struct source {
    int fd; /* borrowed; -1 if not registered */
    void (*fn)(struct source *s, uint32_t events);
};
/* -errno; -EPERM for fds that are always ready. */
int source_add(struct loop *loop, struct source *s, int fd, uint32_t events,
               void (*fn)(struct source *s, uint32_t events));
void source_remove(struct loop *loop, struct source *s); /* repeatable */

/* One fiber's wait, on its own stack: on a queue, on a cancel, on a deadline at once. */
struct waiter {
    struct fiber *fiber;
    struct list in_queue, in_cancel;
    struct timer timer;
    enum { WAIT_WOKEN, WAIT_DEADLINE, WAIT_CANCELLED } result;
};
/* Ends the wait and makes its fiber ready. */
void waiter_fire(struct waiter *w, int result);

#define FIBER_NAME_SIZE 32

struct fiber {
    ucontext_t uc;
    struct loop *loop;
    void (*fn)(void *arg);
    void *arg;
    struct list in_all;
    uint64_t born_ns, parked_ns;
    const char *why;       /* NULL while ready or running */
    struct waiter *waiter; /* of wait_on, while it is parked there */
    void *map;             /* the whole mapping; this struct lies at its upper end */
    void *asan_fake_stack;
    char name[FIBER_NAME_SIZE];
};
/* Switches to f until it parks or ends; frees it in the latter case. Only the loop calls it. */
void fiber_resume(struct fiber *f);
void fiber_drop(struct fiber *f); /* without running on */
void fiber_free_spares(struct loop *loop);
/* Stacks for work that must continue when memory is short. Untouched, they only cost addresses. */
void fiber_fill_reserve(struct loop *loop);
void fiber_free_reserve(struct loop *loop);

/* A killed child whose object was freed and that has not exited yet. */
struct orphan {
    struct source source;
    struct list node;
    struct loop *loop;
    int pidfd;
};
void orphan_free(struct orphan *o);

/* Whether the loop makes progress, for a watcher in another thread (stall.h). */
struct loop_pulse {
    atomic_ullong since;       /* monotonic time at which it woke up; 0: it sleeps */
    atomic_ullong told;        /* the since that was reported */
    atomic_int watcher;        /* of stall_linux.c */
    char who[FIBER_NAME_SIZE]; /* the fiber that runs; "": none */
};
void loop_pulse_wake(struct loop_pulse *p);
void loop_pulse_over(struct loop_pulse *p, uint64_t since);

#define LOOP_EVENTS 64
#define LOOP_SPARE_STACKS 16
#define LOOP_RESERVE_STACKS 8

struct loop {
    bool virtual_time, stopped;
    bool seeded, by_name;
    struct rng rng;
    uint64_t virtual_now;
    uint64_t wall_offset; /* of the virtual clock, modulo 2^64: it may be set back */
    struct list fibers;
    size_t n_fibers;
    struct fiber *current;
    struct fiber **ready; /* a queue in an array: [head, n) */
    size_t ready_head, ready_n, ready_cap;
    struct timer **heap; /* from 1 */
    size_t heap_n, heap_cap;
    struct loop_pulse *pulse; /* NULL: no watcher */
    int epoll;
    struct epoll_event events[LOOP_EVENTS]; /* being handled: [event_next, n_events) */
    int n_events, event_next;
    struct source signals;
    int signal_fd;
    struct {
        void (*fn)(void *arg, const struct signalfd_siginfo *info);
        void *arg;
    } handlers[65];
    ucontext_t uc; /* of loop_run */
    void *asan_fake_stack;
    const void *asan_stack;
    size_t asan_stack_size;
    void *spare[LOOP_SPARE_STACKS]; /* mappings of ended fibers */
    size_t n_spare;
    void *reserve[LOOP_RESERVE_STACKS];
    size_t n_reserve;
    uint64_t switches; /* to a fiber, ever */
    struct waitq idle; /* loop_wait_idle */
    unsigned n_idle;   /* fibers in it */
    bool io_held;      /* loop_hold_io */
    struct waitq io_released;
    uint64_t idle_seen; /* switches, once those that were woken have looked */
    struct list orphans;
    struct fiber *ended; /* to be freed after the switch */
};
