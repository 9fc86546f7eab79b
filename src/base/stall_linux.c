/* stall_linux.c - the loop leaves the time at which it woke up in one atomic word, 0 while it
 * sleeps; the watcher reads it. */
#include "base/clock.h"
#include "base/fd.h"
#include "base/loop_priv.h"
#include "base/stall.h"
#include "base/thread.h"
#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LOOK_EVERY NS_PER_S
#define STACK_BYTES (64 * 1024)
#define FACT_BYTES 160

enum { AWAKE, PARKED, ENDING };

struct stall {
    struct stall_opts opts;
    struct loop_pulse pulse;
    pid_t tid; /* of the loop */
    pthread_t thread;
};

static void futex_wait(atomic_int *word, int while_it_is, uint64_t ns)
{
    struct timespec limit = { .tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S) };

    (void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, while_it_is, ns ? &limit : NULL, NULL, 0);
}

static void futex_wake(atomic_int *word)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

void loop_pulse_wake(struct loop_pulse *p)
{
    int parked = PARKED;

    if (atomic_compare_exchange_strong(&p->watcher, &parked, AWAKE))
        futex_wake(&p->watcher);
}

void loop_pulse_over(struct loop_pulse *p, uint64_t since)
{
    struct stall *s = CONTAINER_OF(p, struct stall, pulse);

    atomic_store(&p->told, 0);
    if (s->opts.over)
        s->opts.over(s->opts.arg, clock_mono() - since);
}

/* One line of /proc, without its newline; no memory is allocated. */
static void read_fact(pid_t tid, const char *name, char buf[FACT_BYTES])
{
    char path[64];
    ssize_t n = 0;

    snprintf(path, sizeof(path), "/proc/self/task/%d/%s", (int)tid, name);

    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd >= 0)
        n = read(fd, buf, FACT_BYTES - 1);
    fd_close(fd);
    buf[n > 0 ? n : 0] = '\0';
    buf[strcspn(buf, "\n")] = '\0';
}

static void report(struct stall *s, uint64_t since)
{
    char who[FIBER_NAME_SIZE], syscall_text[FACT_BYTES], kernel[FACT_BYTES];
    uint64_t for_ns = clock_mono() - since;
    struct stall_report r = { .who = who,
                              .for_ns = for_ns,
                              .since_wall = clock_wall() - for_ns,
                              .syscall = syscall_text,
                              .kernel = kernel };

    memcpy(who, s->pulse.who, sizeof(who)); /* the loop may write it now: a torn name at worst */
    who[sizeof(who) - 1] = '\0';
    read_fact(s->tid, "syscall", syscall_text);
    read_fact(s->tid, "wchan", kernel);
    if (kernel[0] == '0')
        kernel[0] = '\0';
    s->opts.stuck(s->opts.arg, &r);
}

/* Without a timer until the loop wakes up. */
static void park(struct loop_pulse *p)
{
    int awake = AWAKE;

    if (!atomic_compare_exchange_strong(&p->watcher, &awake, PARKED))
        return;
    /* The loop stores its time first and then checks for the watcher, so one of them sees the
     * other. */
    if (atomic_load(&p->since) != 0)
        loop_pulse_wake(p);
    while (atomic_load(&p->watcher) == PARKED)
        futex_wait(&p->watcher, PARKED, 0);
}

static void *watch_main(void *arg)
{
    struct stall *s = arg;
    struct loop_pulse *p = &s->pulse;

    while (atomic_load(&p->watcher) != ENDING) {
        uint64_t since = atomic_load(&p->since);

        if (since == 0) {
            park(p);
            continue;
        }
        if (clock_mono() - since >= s->opts.limit_ns && atomic_load(&p->told) != since) {
            atomic_store(&p->told, since);
            report(s, since);
        }
        futex_wait(&p->watcher, AWAKE, LOOK_EVERY);
    }
    return NULL;
}

int stall_new(const struct stall_opts *o, struct stall **ret, struct err *err)
{
    struct stall *s = mem_new(struct stall);

    s->opts = *o;
    s->tid = (pid_t)syscall(SYS_gettid);
    atomic_store(&s->pulse.since, clock_mono());

    int r = thread_start(&s->thread, STACK_BYTES, watch_main, s);

    if (r < 0) {
        free(s);
        return err_sys(err, -r, "start a thread");
    }
    o->loop->pulse = &s->pulse;
    *ret = s;
    return 0;
}

void stall_free(struct stall *s)
{
    if (!s)
        return;
    s->opts.loop->pulse = NULL;
    atomic_store(&s->pulse.watcher, ENDING);
    futex_wake(&s->pulse.watcher);
    pthread_join(s->thread, NULL);
    free(s);
}
