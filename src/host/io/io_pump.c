/* io_pump.c - between a pipe and a plain file. Reading or writing a file blocks, on a dead NFS for
 * ever: a thread does it, and the relay sees only a pipe. */
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/offload.h"
#include "host/io/io_priv.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#define PUMP_BYTES (16 * 1024) /* on the thread's stack */

struct job {
    int from, to; /* the thread's own */
    bool input;
    uint64_t lost;
    int failed; /* errno of the first failure */
};

struct pump {
    struct io *io;
    struct job job;
};

static void drop(void *job)
{
    struct job *j = job;

    fd_close_later(j->from);
    fd_close_later(j->to);
}

/* A file that cannot be written to (full disk) must not stop the process whose output it is: the
 * bytes are counted, and the next ones are tried again. */
static int pump_main(void *job, struct err *err)
{
    struct job *j = job;
    char buf[PUMP_BYTES];

    for (;;) {
        ssize_t n = read(j->from, buf, sizeof(buf));

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_sys(err, errno, "read");
        if (n == 0)
            return 0;

        int r = fd_write_full(j->to, buf, (size_t)n);

        if (r < 0 && j->input)
            return 0; /* nobody takes input any more */
        if (r < 0) {
            j->lost += (uint64_t)n;
            j->failed = j->failed ? j->failed : -r;
        }
    }
}

static void pump_fiber(void *arg)
{
    struct pump *p = arg;
    struct job *j = &p->job;
    struct io *io = p->io;
    struct err err = ERR_INIT;
    bool input = j->input;

    if (OFFLOAD(&io->rest, pump_main, j, 0, drop, "a file of stdio", &err) == 0)
        drop(j);
    else if (!io->gone.fired) /* after that the thread writes what is left and ends */
        log_warn(&io->rest, "file of stdio is given up", F_ERR(&err));
    if (j->failed) {
        io->lost += j->lost;
        (void)err_sys(&err, j->failed, "write");
        log_warn(&io->rest, "output could not be written to its file", F_U("lost-bytes", j->lost),
                 F_ERR(&err));
    }
    free(p);
    if (!input)
        io_output_ended(io);
    io_unref(io);
}

int io_pump_start(struct io *io, int file_fd, bool input, int *ret, struct err *err)
{
    int fds[2];

    if (pipe2(fds, O_CLOEXEC) < 0) {
        fd_close_later(file_fd);
        return err_sys(err, errno, "make a pipe for a file of stdio");
    }

    struct pump *p = mem_new(struct pump);

    p->io = io_ref(io);
    p->job = input ? (struct job){ .from = file_fd, .to = fds[1], .input = true }
                   : (struct job){ .from = fds[0], .to = file_fd };
    if (!input)
        io->outputs++;
    fiber_go(io->loop, pump_fiber, p, "io file %s", io->id);
    *ret = input ? fds[0] : fds[1];
    return 0;
}
