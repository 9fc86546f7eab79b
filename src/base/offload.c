/* offload.c - a thread per job. The thread and the caller share only one atomic word and an
 * eventfd. */
#include "base/offload.h"
#include "base/ctx.h"
#include "base/fd.h"
#include "base/loop.h"
#include "base/str.h"
#include "base/thread.h"
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { WORK_RUNNING, WORK_DONE, WORK_ABANDONED };

struct work {
    int (*fn)(void *job, struct err *err);
    void (*drop)(void *job);
    unsigned n_strings;
    int result;
    struct err err;
    int done_fd;
    atomic_int state;
    pthread_t thread; /* for us alone: joined, or detached when it is abandoned */
    _Alignas(max_align_t) char job[];
};

static atomic_uint abandoned; /* threads that nobody waits for */

unsigned offload_abandoned(void)
{
    return atomic_load(&abandoned);
}

static void work_free(struct work *w)
{
    char **strings = (char **)w->job;

    for (unsigned i = 0; i < w->n_strings; i++)
        free(strings[i]);
    fd_close(w->done_fd);
    free(w);
}

static void *work_main(void *p)
{
    struct work *w = p;

    w->result = w->fn(w->job, &w->err);
    if (atomic_exchange(&w->state, WORK_DONE) == WORK_ABANDONED) {
        if (w->drop)
            w->drop(w->job);
        work_free(w);
        atomic_fetch_sub(&abandoned, 1);
    } else {
        (void)!write(w->done_fd, &(uint64_t){ 1 }, 8); /* cannot fail: the counter is 0 */
    }
    return NULL;
}

static int work_start(struct work *w, struct err *err)
{
    w->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (w->done_fd < 0)
        return err_sys(err, errno, "eventfd");
    int r = thread_start(&w->thread, THREAD_STACK_BYTES, work_main, w);
    return r < 0 ? err_sys(err, -r, "start a thread") : 0;
}

static struct work *work_new(int (*fn)(void *job, struct err *err), const void *job, size_t size,
                             unsigned n_strings, void (*drop)(void *job))
{
    struct work *w = mem_zalloc(sizeof(*w) + size);
    char **strings = (char **)w->job;

    *w = (struct work){ .fn = fn, .drop = drop, .n_strings = n_strings, .done_fd = -1 };
    memcpy(w->job, job, size);
    for (unsigned i = 0; i < n_strings; i++)
        strings[i] = strings[i] ? str_dup(strings[i]) : NULL;
    return w;
}

/* Moves into *job what fn left in the copy, but for the strings, and frees w. */
static int work_result(struct work *w, void *job, size_t size, struct err *err)
{
    size_t borrowed = w->n_strings * sizeof(char *);
    int r = w->result;

    memcpy((char *)job + borrowed, w->job + borrowed, size - borrowed);
    if (r < 0)
        *err = w->err;
    else
        err_clear(err);
    work_free(w);
    return r;
}

static int drop_failed(int r, void *job, void (*drop)(void *job))
{
    if (r < 0 && drop)
        drop(job);
    return r;
}

int offload_job(struct ctx *ctx, int (*fn)(void *job, struct err *err), void *job, size_t size,
                unsigned n_strings, void (*drop)(void *job), const char *why, struct err *err)
{
    if (loop_is_virtual(ctx->loop))
        return drop_failed(fn(job, err), job, drop);

    struct work *w = work_new(fn, job, size, n_strings, drop);

    if (work_start(w, err) < 0) {
        work_free(w);
        return drop_failed(err_wrap(err, "%s", why), job, drop);
    }

    pthread_t thread = w->thread; /* the thread may free abandoned work at any time */

    if (loop_wait_fd(ctx, w->done_fd, POLLIN, why, err) < 0) {
        atomic_fetch_add(&abandoned, 1); /* first: the thread may end, and subtract, at any time */
        if (atomic_exchange(&w->state, WORK_ABANDONED) == WORK_RUNNING) {
            pthread_detach(thread);
            return -1;
        }
        atomic_fetch_sub(&abandoned, 1);
    }
    /* Done, perhaps at the very moment ctx ended: then the result counts. The thread may still be
     * between its exchange and its write, but has nothing else left to do. Waiting for its end also
     * lets the next thread have its stack: each that overlaps would leave one more in the C
     * library's cache, 16 KiB of it in use. */
    pthread_join(thread, NULL);
    return drop_failed(work_result(w, job, size, err), job, drop);
}
