/* cmd_boot_io.c - connects CMD to our stdin, stdout and stderr by three relays, each a fiber. At
 * the end, first CMD's output is read completely and written, then its exit code is requested, then
 * the helper fibers (stdin, signals) are cancelled. */
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/stream.h"
#include "host/control/vm.h"
#include "host/control/vm_clock.h"
#include "tool/cmd_boot.h"
#include "tool/lib/term.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define FORWARD_LIMIT (10 * NS_PER_S)
#define HELPERS_LIMIT (10 * NS_PER_S)
#define DRAIN_LIMIT NS_PER_S
#define QUIET_LIMIT NS_PER_S
#define EXEC_LIMIT (60 * NS_PER_S)

struct relay {
    struct boot_session *s;
    struct ctx *ctx;
    struct stream *ours, *theirs;
    const char *name;
    struct boot_flow flow;
    struct err err; /* an error of our descriptor, not of CMD's */
};

struct io {
    struct relay in, out, errs;
    struct ctx helper_ctx; /* ends when CMD has ended */
    struct ctx output_ctx; /* ends some time after the VM, if the VM stops before CMD exits */
    int flags[3];          /* of our fds, restored later: other processes may share them */
};

/* Our fd as a stream. A file that cannot be reopened (another user's terminal) is shared. */
static struct stream *our_stream(struct loop *loop, int fd, int flags)
{
    struct stream *s = stream_reopen(loop, fd, flags);
    int copy;

    if (s || errno == ENXIO) /* ENXIO: a FIFO without a reader */
        return s;
    copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    return copy < 0 ? NULL : stream_from_fd(loop, copy);
}

static void set_time(struct relay *r, uint64_t since)
{
    r->flow.ns = loop_now(r->s->tool->loop) - since;
}

static void relay_in(void *arg)
{
    struct relay *r = arg;
    uint64_t since = loop_now(r->s->tool->loop);
    struct err err = ERR_INIT;
    char side = 0;

    if (r->ours && stream_copy(r->ctx, r->ours, r->theirs, &r->flow.bytes, &side, &err) < 0) {
        /* CMD may exit or close its stdin at any time, so only errors of our side are reported. */
        if (side == 'r' && !r->s->quiet.fired && !r->s->stop.fired)
            r->err = err;
    }
    (void)stream_shutdown(r->theirs, SHUT_WR); /* fails if CMD has already closed it */
    set_time(r, since);
}

static void relay_out(void *arg)
{
    struct relay *r = arg;
    uint64_t since = loop_now(r->s->tool->loop);
    struct err err = ERR_INIT;
    char side = 'w';

    if (!r->ours || stream_copy(r->ctx, r->theirs, r->ours, &r->flow.bytes, &side, &err) < 0) {
        /* Our reader is gone. Closing CMD's stream gives CMD a broken pipe, as in any pipeline. */
        if (side == 'w' && r->ours && err.sys != EPIPE && !r->s->stop.fired)
            r->err = err;
    }
    stream_free(TAKE_PTR(r->theirs));
    set_time(r, since);
}

/* Forwards signals and window sizes, one after the other. */
static void forward_news(void *arg)
{
    struct io *io = arg;
    struct boot_session *s = io->in.s;
    struct err err = ERR_INIT;

    for (;;) {
        while (!s->forward && !s->resized) {
            if (waitq_wait(&io->helper_ctx, &s->news, "a signal to forward", &err) < 0)
                return;
        }
        struct ctx limited = ctx_with_timeout(&io->helper_ctx, FORWARD_LIMIT);
        uint16_t rows, cols;
        int signo = s->forward, r = 0;

        s->forward = 0;
        if (s->resized && s->terminal && term_size(&rows, &cols))
            r = vm_process_resize(&limited, s->process, rows, cols, &err);
        s->resized = false;
        if (r == 0 && signo)
            r = vm_process_signal(&limited, s->process, signo, &err);
        if (r < 0 && !s->quiet.fired && !s->stop.fired)
            log_warn(&io->helper_ctx, "could not forward a signal to the command",
                     F_I("signal", signo), F_ERR(&err));
        else if (signo && term_is(STDERR_FILENO) && !s->terminal)
            tool_print(STDERR_FILENO,
                       "\nlcow: forwarded the signal to the command; a second one stops the VM\n");
        err_clear(&err);
    }
}

static int start_process(struct ctx *ctx, struct boot_session *s, struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, EXEC_LIMIT);
    const char *term = getenv("TERM");
    AUTO_FREE char *term_var = str_format("TERM=%s", term ? term : "linux");
    const char *env[] = { "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                          "HOME=/root", s->terminal ? term_var : NULL, NULL };
    struct vm_exec e = { .argv = (const char *const *)s->argv,
                         .env = env,
                         .terminal = s->terminal,
                         .want_stdin = true,
                         .want_stdout = true,
                         .want_stderr = !s->terminal };
    SPAN(step, &limited, &s->result->timeline, TRACK_HOST, "exec", err);

    if (s->terminal)
        (void)term_size(&e.rows, &e.cols); /* on failure the guest uses its default size */
    if (vm_exec(step.ctx, s->vm, &e, &s->process, err) < 0)
        return -1;
    vm_clock_check(s->vm);
    return 0;
}

static void start_relays(struct boot_session *s, struct io *io)
{
    struct loop *loop = s->tool->loop;
    bool no_stdin = term_in_background();

    for (int fd = 0; fd <= 2; fd++)
        io->flags[fd] = fcntl(fd, F_GETFL);
    io->in = (struct relay){ s, &io->helper_ctx, no_stdin ? NULL : our_stream(loop, 0, O_RDONLY),
                             vm_process_take_stream(s->process, 0), "stdin" };
    io->out = (struct relay){ s, &io->output_ctx, our_stream(loop, 1, O_WRONLY),
                              vm_process_take_stream(s->process, 1), "stdout" };
    fibers_go(&s->helpers, loop, relay_in, &io->in, "stdin");
    fibers_go(&s->helpers, loop, relay_out, &io->out, "stdout");
    if (!s->terminal) {
        io->errs = (struct relay){ s, &io->output_ctx, our_stream(loop, 2, O_WRONLY),
                                   vm_process_take_stream(s->process, 2), "stderr" };
        fibers_go(&s->helpers, loop, relay_out, &io->errs, "stderr");
    }
    fibers_go(&s->helpers, loop, forward_news, io, "signals");
}

static void release_relay(struct relay *r)
{
    stream_free(r->ours);
    stream_free(r->theirs);
}

static void release_io(struct io *io)
{
    release_relay(&io->in);
    release_relay(&io->out);
    release_relay(&io->errs);
    for (int fd = 0; fd <= 2; fd++) {
        if (io->flags[fd] >= 0)
            (void)fcntl(fd, F_SETFL, io->flags[fd]); /* best effort, for processes that share it */
    }
    free(io);
}

/* True if no output waits to be read or to be written. */
static bool is_quiet(const struct relay *r)
{
    int left = 0;

    if (!r->theirs || r->theirs->fd < 0)
        return true;
    if (ioctl(r->theirs->fd, FIONREAD, &left) == 0 && left > 0)
        return false;
    return !r->ours || r->ours->fd < 0 || fd_ready_now(r->ours->fd, POLLOUT);
}

/* CMD has exited. All of its output is delivered, however slow our reader is. A process that CMD
 * left behind may keep the output open indefinitely, so the relays end once the output has been
 * quiet for a while. It must be quiet twice, since a write may be in progress. */
static int await_output(struct ctx *ctx, struct boot_session *s, struct io *io, struct err *err)
{
    bool was_quiet = is_quiet(&io->out) && is_quiet(&io->errs);

    for (;;) {
        struct ctx limited = ctx_with_timeout(ctx, QUIET_LIMIT);

        if (fibers_wait(&limited, &s->helpers, "the relays' end", err) == 0)
            return 0;
        bool quiet = is_quiet(&io->out) && is_quiet(&io->errs);
        if (err->code != ERR_DEADLINE || (quiet && was_quiet))
            return -1;
        was_quiet = quiet;
        err_clear(err);
    }
}

/* Cancels the helper fibers and waits for them, since they use io. If the VM stopped first, its
 * broken connections never reach end of file: their remaining output is written for a short time
 * only. */
static int end_helpers(struct ctx *ctx, struct boot_session *s, struct io *io, bool lost,
                       struct err *err)
{
    struct ctx limited = ctx_limited(s->tool->loop, DRAIN_LIMIT);
    int r;

    cancel_fire(&s->quiet, ERR_CANCELLED, "the command has exited");
    r = lost ? fibers_wait(&limited, &s->helpers, "the relays' end", err)
             : await_output(ctx, s, io, err);
    if (r < 0) {
        cancel_fire(&s->drain, ERR_UNAVAILABLE, "the command has exited");
        limited = ctx_limited(s->tool->loop, HELPERS_LIMIT);
        err_clear(err);
        r = fibers_wait(&limited, &s->helpers, "the relays' end", err);
    }
    if (r < 0)
        return err_wrap(err, "the command's output relays did not end");
    s->result->in = io->in.flow;
    s->result->out = io->out.flow;
    return 0;
}

static int our_failure(const struct io *io, struct err *err)
{
    const struct relay *const all[] = { &io->in, &io->out, &io->errs };

    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        if (all[i]->err.code != ERR_NONE) {
            *err = all[i]->err;
            err->code = ERR_DATA_LOSS; /* so that the VM is not blamed */
            return err_wrap(err, "lcow's own %s", all[i]->name);
        }
    }
    return 0;
}

int boot_run_command(struct ctx *ctx, struct boot_session *s, uint32_t *ret_code, struct err *err)
{
    struct io *io;
    struct err ignored = ERR_INIT;
    int r;

    if (start_process(ctx, s, err) < 0)
        return -1;
    if (s->terminal && isatty(STDIN_FILENO) && !term_in_background() && term_raw() < 0)
        log_warn(ctx, "could not set the terminal to raw mode");
    io = mem_new(struct io);
    cancel_init(&s->quiet, ctx->cancel);
    cancel_init(&s->drain, ctx->cancel);
    io->helper_ctx = ctx_with_cancel(ctx, &s->quiet);
    io->output_ctx = ctx_with_cancel(ctx, &s->drain);
    start_relays(s, io);
    r = vm_process_wait(ctx, s->process, ret_code, err);
    if (end_helpers(ctx, s, io, r < 0, r < 0 ? &ignored : err) < 0) {
        /* The relays still use io, so it is not freed; the program exits next. */
        term_restore();
        return -1;
    }
    term_restore();
    if (r == 0 && our_failure(io, err) < 0)
        r = -1;
    release_io(io);
    cancel_release(&s->quiet);
    cancel_release(&s->drain);
    vm_process_free(TAKE_PTR(s->process));
    return r;
}
