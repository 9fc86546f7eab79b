/* offload.c - a thread per job. The thread and we meet only in one atomic word and an eventfd. */
#include "base/offload.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/loop.h"
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define THREAD_STACK_BYTES (256 * 1024)

enum { JOB_RUNNING, JOB_DONE, JOB_ABANDONED };

struct job {
    int (*fn)(void *arg, struct err *err);
    void (*free_arg)(void *arg);
    void *arg;
    int result;
    struct err err;
    int done_fd;
    atomic_int state;
    pthread_t thread; /* for us alone: joined, or detached when it is abandoned */
};

static void job_free(struct job *j)
{
    fd_close(j->done_fd);
    free(j);
}

static void *job_main(void *p)
{
    struct job *j = p;

    j->result = j->fn(j->arg, &j->err);
    if (atomic_exchange(&j->state, JOB_DONE) == JOB_ABANDONED) {
        if (j->free_arg)
            j->free_arg(j->arg);
        job_free(j);
    } else {
        (void)!write(j->done_fd, &(uint64_t){ 1 }, 8); /* cannot fail: the counter is 0 */
    }
    return NULL;
}

static int job_start(struct job *j, struct err *err)
{
    pthread_attr_t attr;
    sigset_t all, old;
    int r;

    j->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (j->done_fd < 0)
        return err_sys(err, errno, "eventfd");
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, THREAD_STACK_BYTES);
    sigfillset(&all); /* signals belong to the main thread */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    r = pthread_create(&j->thread, &attr, job_main, j);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    return r ? err_sys(err, r, "start a thread") : 0;
}

int offload_run(struct ctx *ctx, int (*fn)(void *arg, struct err *err), void **arg,
                void (*free_arg)(void *arg), const char *why, struct err *err)
{
    if (loop_is_virtual(ctx->loop))
        return fn(*arg, err);

    struct job *j = mem_new(struct job);

    *j = (struct job){ .fn = fn, .free_arg = free_arg, .arg = *arg, .done_fd = -1 };
    if (job_start(j, err) < 0) {
        job_free(j);
        return err_wrap(err, "%s", why);
    }

    pthread_t thread = j->thread; /* an abandoned job may be gone in a moment */

    if (loop_wait_fd(ctx, j->done_fd, POLLIN, why, err) < 0 &&
        atomic_exchange(&j->state, JOB_ABANDONED) == JOB_RUNNING) {
        pthread_detach(thread);
        *arg = NULL;
        return -1;
    }
    /* Done, perhaps at the very moment ctx ended: then the result counts. The thread may still be
     * between its exchange and its write, but has nothing else left to do. Waiting for its end also
     * lets the next thread have its stack: each that overlaps would leave one more in the C
     * library's cache, 16 KiB of it in use. */
    pthread_join(thread, NULL);

    int r = j->result;

    if (r < 0)
        *err = j->err;
    else
        err_clear(err);
    job_free(j);
    return r;
}
