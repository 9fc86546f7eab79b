/* fiber.c - fibers on ucontext, and the waits built on one primitive: struct waiter. */
#include "base/fiber.h"
#include "base/loop_priv.h"
#include "base/waits.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#define FIBER_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FIBER_ASAN 1
#endif
#endif

/* Wider than any frame: a large frame could skip a single page and reach the neighbour's stack.
 * Costs only address space. */
#define GUARD_BYTES (64 * 1024)
#ifdef FIBER_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define STACK_BYTES ((size_t)4 * FIBER_STACK_BYTES)
static void switch_begin(void **save, const void *bottom, size_t size)
{
    __sanitizer_start_switch_fiber(save, bottom, size);
}
static void switch_end(void *saved, const void **old_bottom, size_t *old_size)
{
    __sanitizer_finish_switch_fiber(saved, old_bottom, old_size);
}
#else
#define STACK_BYTES ((size_t)FIBER_STACK_BYTES)
static void switch_begin(void **save, const void *bottom, size_t size)
{
    (void)save, (void)bottom, (void)size;
}
static void switch_end(void *saved, const void **old_bottom, size_t *old_size)
{
    (void)saved, (void)old_bottom, (void)old_size;
}
#endif

#define MAP_BYTES (GUARD_BYTES + STACK_BYTES)

static size_t fiber_stack_size(const struct fiber *f)
{
    return (size_t)((const char *)f - ((const char *)f->map + GUARD_BYTES));
}

/* NULL if there is no memory. */
static void *stack_new(void)
{
    void *map =
        mmap(NULL, MAP_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (map == MAP_FAILED)
        return NULL;
    if (mprotect((char *)map + GUARD_BYTES, STACK_BYTES, PROT_READ | PROT_WRITE) < 0) {
        munmap(map, MAP_BYTES);
        return NULL;
    }
    return map;
}

void fiber_fill_reserve(struct loop *loop)
{
    void *map;

    while (loop->n_reserve < LOOP_RESERVE_STACKS && (map = stack_new()))
        loop->reserve[loop->n_reserve++] = map;
}

int fiber_admit(struct loop *loop, struct err *err)
{
    void *map = loop->n_spare > 0 ? NULL : stack_new();

    if (map)
        loop->spare[loop->n_spare++] = map;
    return loop->n_spare > 0 ? 0
                             : err_because(err, REASON_NO_MEMORY, ERR_EXHAUSTED,
                                           "no memory for another fiber's stack");
}

static void *stack_map(struct loop *loop)
{
    if (loop->n_spare > 0)
        return loop->spare[--loop->n_spare];

    void *map = stack_new();

    if (!map && loop->n_reserve > 0)
        map = loop->reserve[--loop->n_reserve];
    if (!map) {
        fprintf(stderr, "fiber: no memory for a stack, and the reserve is used up\n");
        abort();
    }
    return map;
}

/* Keeps the top page, which every fiber uses; releases those that a deep call touched. */
static void stack_release(void *map)
{
    madvise((char *)map + GUARD_BYTES, STACK_BYTES - 4096, MADV_DONTNEED);
}

static void stack_unmap(struct loop *loop, void *map)
{
#ifdef FIBER_ASAN
    ASAN_UNPOISON_MEMORY_REGION((char *)map + GUARD_BYTES, STACK_BYTES);
#endif
    bool reserve = loop->n_reserve < LOOP_RESERVE_STACKS;

    if (reserve) {
        stack_release(map);
        loop->reserve[loop->n_reserve++] = map;
    } else if (loop->n_spare < LOOP_SPARE_STACKS) {
        /* The next fiber gets this one as it is: page faults cost much in a VM. */
        if (loop->n_spare > 0)
            stack_release(loop->spare[loop->n_spare - 1]);
        loop->spare[loop->n_spare++] = map;
    } else {
        munmap(map, MAP_BYTES);
    }
}

void fiber_free_spares(struct loop *loop)
{
    while (loop->n_spare > 0)
        munmap(loop->spare[--loop->n_spare], MAP_BYTES);
}

void fiber_free_reserve(struct loop *loop)
{
    while (loop->n_reserve > 0)
        munmap(loop->reserve[--loop->n_reserve], MAP_BYTES);
}

static void fiber_main(unsigned hi, unsigned lo)
{
    struct fiber *f = (struct fiber *)(((uintptr_t)hi << 32) | lo);
    struct loop *loop = f->loop;

    switch_end(NULL, &loop->asan_stack, &loop->asan_stack_size);
    f->fn(f->arg);
    loop->ended = f;
    switch_begin(NULL, loop->asan_stack, loop->asan_stack_size);
    setcontext(&loop->uc);
    abort();
}

/* A separate function, because the compiler must assume that getcontext returns twice. */
static __attribute__((noinline)) void context_make(struct fiber *f)
{
    uintptr_t self = (uintptr_t)f;

    getcontext(&f->uc);
    f->uc.uc_stack.ss_sp = (char *)f->map + GUARD_BYTES;
    f->uc.uc_stack.ss_size = fiber_stack_size(f);
    f->uc.uc_link = NULL;
    makecontext(&f->uc, (void (*)(void))fiber_main, 2, (unsigned)(self >> 32), (unsigned)self);
}

static void fiber_ready(struct fiber *f)
{
    struct loop *loop = f->loop;

    if (loop->ready_head > 0 && loop->ready_n == loop->ready_cap) {
        for (size_t i = loop->ready_head; i < loop->ready_n; i++)
            loop->ready[i - loop->ready_head] = loop->ready[i];
        loop->ready_n -= loop->ready_head;
        loop->ready_head = 0;
    }
    loop->ready = mem_grow(loop->ready, loop->ready_n, &loop->ready_cap, sizeof(*loop->ready));
    loop->ready[loop->ready_n++] = f;
}

__attribute__((format(printf, 4, 0))) static void fiber_new(struct loop *loop,
                                                            void (*fn)(void *arg), void *arg,
                                                            const char *fmt, va_list ap)
{
    char *map = stack_map(loop);
    uintptr_t top = (uintptr_t)(map + MAP_BYTES - sizeof(struct fiber)) & ~(uintptr_t)63;
    struct fiber *f = (struct fiber *)top;

    *f = (struct fiber){ .loop = loop, .fn = fn, .arg = arg, .map = map };
    vsnprintf(f->name, sizeof(f->name), fmt, ap);
    f->born_ns = loop_now(loop);
    context_make(f);
    list_append(&loop->fibers, &f->in_all);
    loop->n_fibers++;
    fiber_ready(f);
}

void fiber_drop(struct fiber *f)
{
    struct loop *loop = f->loop;

    list_remove(&f->in_all);
    loop->n_fibers--;
    stack_unmap(loop, f->map);
}

void loop_drop_fibers(struct loop *loop, bool (*pick)(void *arg, const char *name), void *arg)
{
    LIST_FOR (struct fiber, f, &loop->fibers, in_all) {
        if (f == loop->current || !pick(arg, f->name))
            continue;
        if (!loop->virtual_time || !f->why || !f->waiter) {
            fprintf(stderr, "bug: fiber %s is dropped while it does not wait\n", f->name);
            abort();
        }
        list_remove(&f->waiter->in_queue);
        list_remove(&f->waiter->in_cancel);
        timer_remove(loop, &f->waiter->timer);
        fiber_drop(f);
    }
}

void fiber_resume(struct fiber *f)
{
    struct loop *loop = f->loop;

    loop->current = f;
    if (loop->pulse)
        memcpy(loop->pulse->who, f->name, sizeof(f->name));
    f->why = NULL;
    switch_begin(&loop->asan_fake_stack, (char *)f->map + GUARD_BYTES, fiber_stack_size(f));
    swapcontext(&loop->uc, &f->uc);
    switch_end(loop->asan_fake_stack, NULL, NULL);
    loop->current = NULL;
    if (loop->pulse)
        loop->pulse->who[0] = '\0';
    if (loop->ended) {
        fiber_drop(loop->ended);
        loop->ended = NULL;
    }
}

/* Back to the loop; returns when the fiber is ready again. */
static void fiber_park(struct fiber *f, const char *why)
{
    struct loop *loop = f->loop;

    f->why = why;
    f->parked_ns = loop_now(loop);
    switch_begin(&f->asan_fake_stack, loop->asan_stack, loop->asan_stack_size);
    swapcontext(&f->uc, &loop->uc);
    switch_end(f->asan_fake_stack, &loop->asan_stack, &loop->asan_stack_size);
}

void fiber_go(struct loop *loop, void (*fn)(void *arg), void *arg, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    fiber_new(loop, fn, arg, fmt, ap);
    va_end(ap);
}

struct fiber *fiber_self(const struct loop *loop)
{
    return loop->current;
}

void fiber_yield(struct loop *loop)
{
    fiber_ready(loop->current);
    fiber_park(loop->current, "yield");
}

void waiter_fire(struct waiter *w, int result)
{
    list_remove(&w->in_queue);
    list_remove(&w->in_cancel);
    timer_remove(w->fiber->loop, &w->timer);
    w->result = result;
    w->fiber->why = NULL;
    fiber_ready(w->fiber);
}

static void waiter_deadline(struct timer *t)
{
    waiter_fire(CONTAINER_OF(t, struct waiter, timer), WAIT_DEADLINE);
}

/* The only place where a fiber waits. q may be NULL: then only ctx ends the wait. */
static int wait_on(struct ctx *ctx, struct waitq *q, uint64_t deadline, const char *why,
                   struct err *err)
{
    struct loop *loop = ctx->loop;
    struct waiter w = { .fiber = loop->current };

    if (!w.fiber) {
        fprintf(stderr, "bug: wait (%s) outside of a fiber\n", why);
        abort();
    }
    if (ctx_check(ctx, err) < 0)
        return err_wrap(err, "%s", why);
    list_init(&w.in_queue);
    list_init(&w.in_cancel);
    if (q)
        list_append(&q->waiters, &w.in_queue);
    if (ctx->cancel)
        list_append(&ctx->cancel->waiters, &w.in_cancel);
    if (deadline)
        timer_add(loop, &w.timer, deadline, waiter_deadline);
    w.fiber->waiter = &w;
    fiber_park(w.fiber, why);
    w.fiber->waiter = NULL;
    if (w.result == WAIT_CANCELLED)
        return err_set(err, ctx->cancel->code, "%s: %s", why, ctx->cancel->why);
    if (w.result == WAIT_DEADLINE)
        return err_set(err, ERR_DEADLINE, "%s: deadline exceeded", why);
    return 0;
}

int fiber_sleep(struct ctx *ctx, uint64_t ns, struct err *err)
{
    uint64_t until = loop_now(ctx->loop) + ns;
    bool ours = ctx->deadline == 0 || until < ctx->deadline;

    if (wait_on(ctx, NULL, ours ? until : ctx->deadline, WAIT_SLEEP, err) < 0) {
        if (!ours || err->code != ERR_DEADLINE)
            return -1;
        err_clear(err);
    }
    return 0;
}

void waitq_init(struct waitq *q)
{
    list_init(&q->waiters);
}

int waitq_wait(struct ctx *ctx, struct waitq *q, const char *why, struct err *err)
{
    return wait_on(ctx, q, ctx->deadline, why, err);
}

void waitq_wake_one(struct waitq *q)
{
    if (!list_empty(&q->waiters))
        waiter_fire(LIST_ENTRY(q->waiters.next, struct waiter, in_queue), WAIT_WOKEN);
}

void waitq_wake_all(struct waitq *q)
{
    while (!list_empty(&q->waiters))
        waitq_wake_one(q);
}

void latch_init(struct latch *l)
{
    l->set = false;
    waitq_init(&l->q);
}

void latch_set(struct latch *l)
{
    l->set = true;
    waitq_wake_all(&l->q);
}

int latch_wait(struct ctx *ctx, struct latch *l, const char *why, struct err *err)
{
    while (!l->set)
        if (waitq_wait(ctx, &l->q, why, err) < 0)
            return -1;
    return 0;
}

void fibers_init(struct fibers *g)
{
    g->running = 0;
    waitq_init(&g->q);
}

struct fibers_start {
    struct fibers *of;
    void (*fn)(void *arg);
    void *arg;
};

static void fibers_main(void *arg)
{
    struct fibers_start start = *(struct fibers_start *)arg;

    free(arg);
    start.fn(start.arg);
    if (--start.of->running == 0)
        waitq_wake_all(&start.of->q);
}

void fibers_go(struct fibers *g, struct loop *loop, void (*fn)(void *arg), void *arg,
               const char *fmt, ...)
{
    struct fibers_start *start = mem_new(struct fibers_start);
    va_list ap;

    *start = (struct fibers_start){ g, fn, arg };
    g->running++;
    va_start(ap, fmt);
    fiber_new(loop, fibers_main, start, fmt, ap);
    va_end(ap);
}

int fibers_wait(struct ctx *ctx, struct fibers *g, const char *why, struct err *err)
{
    while (g->running > 0)
        if (waitq_wait(ctx, &g->q, why, err) < 0)
            return -1;
    return 0;
}
