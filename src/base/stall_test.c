/* stall_test.c - a loop that is stuck is reported by a thread; one that is not costs nothing. */
#include "base/clock.h"
#include "base/ctx.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/loop.h"
#include "base/stall.h"
#include "base/str.h"
#include "harness/tap.h"
#include <dirent.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIMIT NS_PER_S

struct seen {
    atomic_int stuck;
    char who[32], syscall[160];
    uint64_t for_ns;
    int over;
    uint64_t over_ns;
    int pipe[2];
};

static void on_stuck(void *arg, const struct stall_report *r)
{
    struct seen *s = arg;

    snprintf(s->who, sizeof(s->who), "%s", r->who);
    snprintf(s->syscall, sizeof(s->syscall), "%s", r->syscall);
    s->for_ns = r->for_ns;
    if (atomic_fetch_add(&s->stuck, 1) == 0 && s->pipe[1] > 0)
        (void)!write(s->pipe[1], "x", 1); /* ends the call it is blocked in */
}

static void on_over(void *arg, uint64_t for_ns)
{
    struct seen *s = arg;

    s->over++;
    s->over_ns = for_ns;
}

struct scene {
    struct loop *loop;
    struct seen *seen;
    void (*fn)(struct scene *s, struct ctx *ctx);
    uint64_t idle_sleeps;
};

static void sleep_ns(struct ctx *ctx, uint64_t ns)
{
    struct err err = ERR_INIT;

    ASSERT_OK(fiber_sleep(ctx, ns, &err), err);
}

static void scene_main(void *arg)
{
    struct scene *s = arg;
    struct ctx ctx = ctx_root(s->loop);
    AUTO(stall_free) struct stall *stall = NULL;
    struct err err = ERR_INIT;

    ASSERT_OK(stall_new(&(struct stall_opts){ .loop = s->loop,
                                              .limit_ns = LIMIT,
                                              .stuck = on_stuck,
                                              .over = on_over,
                                              .arg = s->seen },
                        &stall, &err),
              err);
    sleep_ns(&ctx, NS_PER_MS); /* the loop has come round */
    s->fn(s, &ctx);
    sleep_ns(&ctx, NS_PER_MS);
}

static void play(struct scene *s)
{
    s->loop = loop_new(NULL);
    fiber_go(s->loop, scene_main, s, "culprit");
    ASSERT_EQ(loop_run(s->loop), 0);
    loop_free(s->loop);
}

static void block(struct scene *s, struct ctx *ctx)
{
    char byte;

    (void)ctx;
    ASSERT_EQ(read(s->seen->pipe[0], &byte, 1), 1); /* until the watcher has reported it */
}

TEST(a_loop_that_blocks_in_the_kernel_is_reported_with_fiber_and_call)
{
    struct seen seen = { 0 };
    struct scene s = { .seen = &seen, .fn = block };

    ASSERT_EQ(pipe(seen.pipe), 0);
    play(&s);
    ASSERT_EQ(seen.stuck, 1);
    ASSERT_STR(seen.who, "culprit");
    ASSERT(seen.for_ns >= LIMIT);
    ASSERT(str_starts(seen.syscall, "0 ")); /* read */
    ASSERT_EQ(seen.over, 1);
    ASSERT(seen.over_ns >= LIMIT);
    close(seen.pipe[0]);
    close(seen.pipe[1]);
}

static void spin(struct scene *s, struct ctx *ctx)
{
    (void)ctx;
    while (atomic_load(&s->seen->stuck) == 0)
        ;
}

TEST(a_loop_that_runs_without_end_is_reported_too)
{
    struct seen seen = { 0 };
    struct scene s = { .seen = &seen, .fn = spin };

    play(&s);
    ASSERT_EQ(seen.stuck, 1);
    ASSERT_STR(seen.who, "culprit");
    ASSERT_STR(seen.syscall, "running");
}

/* How often threads other than the main one have slept. */
static uint64_t sleeps(void)
{
    AUTO_FREE char *self = str_format("%d", (int)getpid());
    DIR *tasks = opendir("/proc/self/task");
    uint64_t sum = 0;

    for (struct dirent *e; (e = readdir(tasks));) {
        AUTO_FREE char *path = str_format("/proc/self/task/%s/status", e->d_name), *text = NULL;
        size_t len;
        char *at;

        if (e->d_name[0] != '.' && !str_eq(e->d_name, self) &&
            file_read_all(path, 1 << 16, &text, &len) == 0 &&
            (at = strstr(text, "\nvoluntary_ctxt_switches:")))
            sum += strtoul(strchr(at, ':') + 1, NULL, 10);
    }
    closedir(tasks);
    return sum;
}

static void be_idle(struct scene *s, struct ctx *ctx)
{
    uint64_t before;

    for (int i = 0; i < 20; i++)
        sleep_ns(ctx, 10 * NS_PER_MS);
    sleep_ns(ctx, 1500 * NS_PER_MS); /* the watcher has parked */
    before = sleeps();
    sleep_ns(ctx, 4500 * NS_PER_MS);
    s->idle_sleeps = sleeps() - before;
}

TEST(a_loop_that_makes_progress_is_not_reported_and_an_idle_one_is_not_checked)
{
    struct seen seen = { 0 };
    struct scene s = { .seen = &seen, .fn = be_idle };

    play(&s);
    ASSERT_EQ(seen.stuck, 0);
    ASSERT_EQ(seen.over, 0);
    /* It looks once more, parks, and wakes up with the main thread again. One that looked once a
     * second would have slept five times. */
    ASSERT(s.idle_sleeps <= 3);
}

static void nothing(struct scene *s, struct ctx *ctx)
{
    (void)s, (void)ctx;
}

TEST(a_watcher_ends_whatever_it_does)
{
    struct seen seen = { 0 };

    for (int i = 0; i < 50; i++)
        play(&(struct scene){ .seen = &seen, .fn = nothing });
    ASSERT_EQ(seen.stuck, 0);
}
