/* io.c - relays between the guest's streams and containerd's. */
#include "host/io/io.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/stream.h"
#include "base/waits.h"
#include "host/io/io_priv.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <unistd.h>

#define DISCARD_BYTES 4096
#define REST_BYTES 4096
#define REST_IDLE_NS (1 * NS_PER_S)
#define READER_LOOK_NS (NS_PER_MS / 2)
#define READER_LOOK_MAX_NS (16 * NS_PER_MS)

struct io *io_ref(struct io *io)
{
    io->refs++;
    return io;
}

void io_unref(struct io *io)
{
    if (--io->refs > 0)
        return;
    cancel_release(&io->over);
    cancel_release(&io->cut);
    cancel_release(&io->gone);
    free(io->id);
    free(io);
}

void io_output_ended(struct io *io)
{
    io->outputs--;
    waitq_wake_all(&io->outputs_q);
}

/* --- lingering FIFOs: FIFOs that still have bytes when their writer has finished. The kernel drops
 * the bytes when the last descriptor is closed, and a reader that is away (containerd restarts)
 * would never get them. So the shim keeps the FIFO open, in one of two ways:
 *
 *   a client reads       The shim holds only a reading end. The client gets the bytes, then end of
 *                        file. If the client is killed before, the bytes stay in the FIFO.
 *   no client reads      The shim holds only a writing end, so that the next client's open
 * succeeds. Then the shim changes to a reading end.
 *
 * inotify reports clients that open and close the FIFO. --- */

/* Watches for these events from now on; earlier events are dropped. */
static int linger_watch(struct io_leftover *l, uint32_t mask, struct err *err)
{
    char path[40];

    snprintf(path, sizeof(path), "/proc/self/fd/%d", l->write_end < 0 ? l->read_end : l->write_end);
    if (l->watch < 0)
        l->watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (l->watch < 0 || inotify_add_watch(l->watch, path, mask) < 0) {
        err_sys(err, errno, "watch a FIFO (fs.inotify.max_user_instances may be too low)");
        err->reason = REASON_TOO_MANY_FILES; /* ENOSPC means something else here */
        return -1;
    }
    return 0;
}

static void swallow_events(struct io_leftover *l)
{
    char buf[1024];

    while (read(l->watch, buf, sizeof(buf)) > 0)
        ;
}

/* With our own reading end closed, the kernel reports an error on the writing end exactly if no
 * process reads. Keeps the end that is needed, and leaves only events of other processes in the
 * watch: our own are dropped or not watched for. */
static int look(struct io_leftover *l, struct err *err)
{
    if (l->write_end < 0) {
        l->write_end = io_reopen(l->read_end, O_WRONLY | O_NONBLOCK);
        if (l->write_end < 0)
            return err_sys(err, -l->write_end, "keep a FIFO open");
        fd_close(TAKE_FD(l->read_end));
    }
    if (linger_watch(l, IN_OPEN | IN_CLOSE_NOWRITE, err) < 0)
        return -1;
    swallow_events(l);
    if (fd_ready_now(l->write_end, 0) & POLLERR)
        return 0;
    if (linger_watch(l, IN_CLOSE_NOWRITE, err) < 0)
        return -1;
    l->read_end = io_reopen(l->write_end, O_RDONLY | O_NONBLOCK);
    if (l->read_end < 0)
        return err_sys(err, -l->read_end, "keep a FIFO open");
    fd_close(TAKE_FD(l->write_end));
    return 0;
}

static int linger(struct io_leftover *l, struct err *err)
{
    if (loop_io(&l->io->rest, WAIT_FIFO_READER, err) < 0)
        return -1;
    while (io_unread(l->write_end < 0 ? l->read_end : l->write_end) > 0)
        if (look(l, err) < 0 ||
            loop_wait_fd(&l->io->rest, l->watch, POLLIN, WAIT_FIFO_READER, err) < 0)
            return -1;
    return 0;
}

/* Bytes that the current reader has not read. Before the first check there may be a reader. */
static uint64_t linger_unread(const struct io *io)
{
    uint64_t n = 0;

    for (size_t i = 0; i < ARRAY_LEN(io->leftovers); i++)
        if (io->leftovers[i])
            n += io_unread(io->leftovers[i]->read_end);
    return n;
}

/* Each of the two outputs has at most one. */
static void exchange(struct io *io, const struct io_leftover *old, struct io_leftover *new)
{
    io->leftovers[io->leftovers[0] == old ? 0 : 1] = new;
}

static void linger_fiber(void *arg)
{
    struct io_leftover *l = arg;
    struct err err = ERR_INIT;

    if (linger(l, &err) < 0 && l->write_end >= 0 &&
        (fd_ready_now(l->write_end, 0) &
         POLLERR)) { /* with a reader, all bytes count as delivered */
        uint64_t lost = io_unread(l->write_end);

        l->io->lost += lost;
        log_warn(&l->io->rest, "output was never read", F_U("lost-bytes", lost), F_ERR(&err));
    }
    fd_close(l->read_end);
    fd_close(l->write_end);
    fd_close(l->watch);
    exchange(l->io, l, NULL);
    io_unref(l->io);
    free(l);
}

void io_leftover_go(struct io_leftover *l)
{
    io_ref(l->io);
    fiber_go(l->io->loop, linger_fiber, l, FIBER_IO_FIFO " %s", l->io->id);
}

/* Takes the read end of a FIFO that has no writer any more: keeps its bytes until they are read or
 * io is freed. */
static void linger_start(struct io *io, int read_end)
{
    if (io->gone.fired || io_unread(read_end) == 0) {
        fd_close(read_end);
        return;
    }

    struct io_leftover *l = mem_new(struct io_leftover);

    *l = (struct io_leftover){ .io = io, .read_end = read_end, .write_end = -1, .watch = -1 };
    exchange(io, NULL, l);
    io_leftover_go(l);
}

/* --- relays --- */

/* Closes upstream. An output's FIFO keeps its unread bytes. */
static void end_close(struct relay *r)
{
    stream_free(TAKE_PTR(r->up.stream));
    if (r->up.port && r->which == 0)
        io_port_shut(r->up.port);
    if (r->up.held < 0)
        return;
    if (r->which == 0)
        fd_close(TAKE_FD(r->up.held));
    else
        linger_start(r->io, TAKE_FD(r->up.held));
}

static void relay_release(struct relay *r)
{
    stream_free(TAKE_PTR(r->guest));
    sbuf_release(&r->pending);
    end_close(r);
}

/* Reads the guest's stream to its end and drops it: a process must not block because its output has
 * no reader. (Not inlined: the buffer would enlarge the stack of a relay that waits in
 * stream_relay.) */
__attribute__((noinline)) static void discard(struct relay *r)
{
    char buf[DISCARD_BYTES];
    struct err err = ERR_INIT;

    for (size_t n = 1; n > 0; r->dropped += n)
        if (stream_read(&r->io->life, r->guest, buf, sizeof(buf), &n, &err) < 0)
            break;
}

/* The process has exited, but its output has not ended. Either no client reads at the moment: then
 * bytes are pending, and the relay keeps waiting. Or a grandchild keeps the stream open: then it is
 * silent for a while, and the relay stops waiting. */
static int copy_rest(struct relay *r, char *side, struct err *err)
{
    for (size_t n = 1; n > 0; r->pending.len = n) {
        struct ctx idle = ctx_with_timeout(&r->io->life, REST_IDLE_NS);

        *side = 'w';
        if (stream_flush(&r->io->life, r->up.stream, &r->pending, err) < 0)
            return -1;
        *side = 'r';
        if (stream_read(&idle, r->guest, sbuf_room(&r->pending, REST_BYTES), REST_BYTES, &n, err) <
            0)
            return err->code == ERR_DEADLINE ? 0 : -1;
    }
    return 0;
}

/* Until the output has ended. What it waits for is in r, so that a new program can continue. */
static void deliver(struct relay *r, const struct ctx *ctx)
{
    struct io *io = r->io;
    struct err err = ERR_INIT;
    char side = 'r';
    int n = 0;

    if (r->up.stream && !r->dropping) {
        stream_pack(r->up.stream); /* a client may read only after the exit */
        n = stream_relay(&io->flow, r->guest, r->up.stream, &r->pending, &side, &err);
        if (n < 0 && io->over.fired && !io->cut.fired)
            n = copy_rest(r, &side, &err);
    }
    if (n < 0 && !io->cut.fired && side == 'r') {
        log_warn(ctx, "the guest's output stream broke", F_ERR(&err));
    } else if (n < 0 && !io->cut.fired) {
        log_warn(ctx, "could not deliver output; dropping the rest", F_ERR(&err));
        r->dropping = true;
        r->dropped = r->pending.len;
        sbuf_release(&r->pending);
    }
    if (!r->up.stream || r->dropping)
        discard(r);
    if (r->dropping) {
        io->lost += r->dropped;
        log_warn(ctx, "output was lost", F_U("lost-bytes", r->dropped));
    }
}

static void output_fiber(void *arg)
{
    struct relay *r = arg;
    struct io *io = r->io;
    struct ctx ctx = ctx_with_id(&io->life, "stream", io_names[r->which]);
    bool counted = r->up.stream;

    deliver(r, &ctx);
    r->running = false;
    relay_release(r); /* the guest reports the process's exit only when this stream is closed */
    if (counted)
        io_output_ended(io);
    io_unref(io);
}

static void input_fiber(void *arg)
{
    struct relay *r = arg;
    struct io *io = r->io;
    struct err err = ERR_INIT;
    char side = 'r';

    if (stream_relay(&io->life, r->up.stream, r->guest, &r->pending, &side, &err) < 0 &&
        !io->cut.fired) {
        struct ctx ctx = ctx_with_id(&io->life, "stream", io_names[0]);

        log_debug(&ctx, side == 'w' ? "the process closed its input" : "the client's input broke",
                  F_ERR(&err));
    }
    (void)stream_shutdown(r->guest, SHUT_WR); /* fails if the guest is gone */
    sbuf_release(&r->pending);
    r->running = false;
    /* Writers then get a broken pipe. The guest's stream stays half-closed: closing it could
     * discard bytes that are still in transit. */
    end_close(r);
    if (io->closed)
        relay_release(r);
    io_unref(io);
}

void io_relay_go(struct relay *r)
{
    struct io *io = r->io;

    if (r->which > 0 && r->up.stream)
        io->outputs++;
    r->running = true;
    io_ref(io);
    fiber_go(io->loop, r->which == 0 ? input_fiber : output_fiber, r, FIBER_IO "%s %s",
             io_names[r->which], io->id);
}

static void relay_start(struct relay *r, struct stream *guest)
{
    if (r->io->closed)
        stream_free(TAKE_PTR(guest));
    r->guest = guest;
    if (!guest)
        return;
    if (r->which == 0 && !r->up.stream) {
        (void)stream_shutdown(guest, SHUT_WR);
        return;
    }
    io_relay_go(r);
}

void io_attach(struct io *io, struct stream *in, struct stream *out, struct stream *err)
{
    struct stream *const guest[] = { in, out, err };

    io->attached = true;
    for (int i = 0; i < 3; i++) {
        struct relay *r = &io->relays[i];

        relay_start(r, guest[i]);
        if (i > 0 && !r->running)
            end_close(r); /* this output has no stream */
    }
}

/* --- opening --- */

struct io *io_new(struct loop *loop, const struct io_spec *spec)
{
    struct io *io = mem_new(struct io);

    io->loop = loop;
    io->refs = 1;
    io->id = str_dup(spec->container_id ? spec->container_id : "");
    cancel_init(&io->cut, NULL);
    cancel_init(&io->over, &io->cut);
    cancel_init(&io->gone, NULL);
    io->root = ctx_root(loop);
    io->rest = ctx_with_id(&io->root, LK_CID, io->id);
    io->life = ctx_with_cancel(&io->rest, &io->cut);
    io->flow = ctx_with_cancel(&io->rest, &io->over);
    io->rest.cancel = &io->gone;
    waitq_init(&io->outputs_q);
    for (int i = 0; i < 3; i++)
        io->relays[i] = (struct relay){ .io = io, .which = i, .up = { .held = -1 } };
    return io;
}

struct forms {
    struct io_form v[3];
};

static void forms_release_auto(struct forms *f)
{
    for (int i = 0; i < 3; i++)
        io_form_release(&f->v[i]);
}

static int parse_forms(const struct io_spec *spec, struct forms *f, struct err *err)
{
    const char *const texts[] = { spec->in, spec->out, spec->terminal ? NULL : spec->err };

    for (int i = 0; i < 3; i++)
        if (io_form_parse(texts[i], &f->v[i], err) < 0)
            return err_wrap(err, "%s", io_names[i]);
    if (io_form_is_driver(&f->v[0]))
        return err_set(err, ERR_INVALID, "stdin %.*s: a log driver supports output only",
                       IO_NAME_SHOWN, spec->in);
    return 0;
}

/* For paths: a FIFO is used directly, a file through its pump. Takes the opened descriptors. */
static int open_paths(struct ctx *ctx, struct io *io, const struct forms *f, struct err *err)
{
    struct io_opened opened[3];
    int r = io_paths_open(ctx, f->v, opened, err);

    for (int i = 0; i < 3 && r >= 0; i++) {
        struct io_end *up = &io->relays[i].up;
        int fd = opened[i].fd;

        up->held = opened[i].held;
        if (opened[i].shared)
            fd = fcntl(io->relays[1].up.stream->fd, F_DUPFD_CLOEXEC, 3);
        else if (fd >= 0 && up->held < 0 && io_pump_start(io, i, fd, &fd, err) < 0)
            r = fd = -1;
        if (fd >= 0)
            up->stream = stream_from_fd(io->loop, fd);
        else if (r == 0 && opened[i].shared)
            r = err_sys(err, errno, "dup");
        if (r < 0) /* the following descriptors have no owner yet */
            for (int k = i + 1; k < 3; k++)
                fd_close_later(opened[k].fd), fd_close_later(opened[k].held);
    }
    return r;
}

/* Starts one driver for both outputs, unless stderr names another destination. */
static int open_drivers(struct ctx *ctx, struct io *io, const struct forms *f,
                        const struct io_spec *spec, struct err *err)
{
    bool out = io_form_is_driver(&f->v[1]), second = io_form_is_driver(&f->v[2]);
    bool both = out && !spec->terminal &&
                (f->v[2].kind == IO_NONE || (second && str_eq(spec->out, spec->err)));
    int fds[2];

    if (out) {
        if (io_driver_start(ctx, &f->v[1], spec, &io->drivers[0], fds, err) < 0)
            return -1;
        io->relays[1].up.stream = stream_from_fd(io->loop, fds[0]);
        if (both)
            io->relays[2].up.stream = stream_from_fd(io->loop, fds[1]);
        else
            fd_close(fds[1]);
    }
    if (second && !both) {
        if (io_driver_start(ctx, &f->v[2], spec, &io->drivers[1], fds, err) < 0)
            return -1;
        fd_close(fds[0]);
        io->relays[2].up.stream = stream_from_fd(io->loop, fds[1]);
    }
    return 0;
}

static int open_streams(struct io *io, const struct forms *f, struct io_hub *hub, struct err *err)
{
    for (int i = 0; i < 3; i++) {
        struct io_end *up = &io->relays[i].up;
        int fd;

        if (f->v[i].kind != IO_STREAM)
            continue;
        if (io_port_open(hub, &f->v[i], i == 0, &up->port, &fd, err) < 0)
            return err_wrap(err, "%s", io_names[i]);
        up->stream = stream_from_fd(io->loop, fd);
    }
    return 0;
}

int io_open(struct ctx *ctx, struct loop *loop, const struct io_spec *spec, struct io **ret,
            struct err *err)
{
    AUTO(forms_release) struct forms f = { 0 };
    AUTO(io_free) struct io *io = io_new(loop, spec);

    if (parse_forms(spec, &f, err) < 0 || open_paths(ctx, io, &f, err) < 0 ||
        open_drivers(ctx, io, &f, spec, err) < 0 || open_streams(io, &f, spec->hub, err) < 0)
        return -1;
    *ret = TAKE_PTR(io);
    return 0;
}

bool io_wants(const struct io *io, int fd)
{
    return fd >= 0 && fd < 3 && io->relays[fd].up.stream;
}

/* --- the end --- */

/* Clients of containerd 2.1 close their end when they learn of the exit, and lose what is left in
 * the FIFO. So an active reader gets time to finish before the exit is reported. A reader that does
 * not read may be waiting for the exit, so it gets none. */
static int await_reader(struct ctx *ctx, struct io *io, struct err *err)
{
    uint64_t pause = READER_LOOK_NS, left = linger_unread(io), moved = loop_now(io->loop);

    while (left > 0 && loop_now(io->loop) - moved < REST_IDLE_NS) {
        if (fiber_sleep(ctx, pause, err) < 0)
            return err_wrap(err, "%s: the client has not read all output", io->id);

        uint64_t now = linger_unread(io);

        if (now != left)
            moved = loop_now(io->loop);
        pause = now != left                      ? READER_LOOK_NS
                : pause < READER_LOOK_MAX_NS / 2 ? 2 * pause
                                                 : READER_LOOK_MAX_NS;
        left = now;
    }
    return 0;
}

int io_drain(struct ctx *ctx, struct io *io, struct err *err)
{
    while (io->attached && io->outputs > 0)
        if (waitq_wait(ctx, &io->outputs_q, "the rest of the output", err) < 0) {
            if (err->code == ERR_DEADLINE)
                cancel_fire(&io->over, ERR_CANCELLED, "the process has exited");
            return err_wrap(err, "%s: the output has not ended", io->id);
        }
    if (await_reader(ctx, io, err) < 0)
        return -1;
    for (int i = 1; i < 3; i++)
        if (io->relays[i].up.port && io_port_await(ctx, io->relays[i].up.port, err) < 0)
            return err_wrap(err, "%s", io->id);
    return 0;
}

void io_close_stdin(struct io *io)
{
    fd_close(TAKE_FD(io->relays[0].up.held));
    if (io->relays[0].up.port)
        io_port_shut(io->relays[0].up.port);
}

/* Counts the bytes that the stopped relays have not read. */
static void count_lost(struct io *io)
{
    uint64_t lost = 0;

    for (int i = 1; i < 3; i++)
        if (io->relays[i].running && io->relays[i].up.stream)
            lost += io_unread(io->relays[i].guest->fd) + io->relays[i].pending.len;
    if (lost > 0)
        log_warn(&io->rest, "stdio was closed before all bytes were delivered",
                 F_U("lost-bytes", lost));
    io->lost += lost;
}

void io_close(struct io *io)
{
    if (io->closed)
        return;
    io->closed = true;
    count_lost(io);
    cancel_fire(&io->cut, ERR_CANCELLED, "stdio is closed");
    for (int i = 0; i < 3; i++)
        if (!io->relays[i].running)
            relay_release(&io->relays[i]);
    for (size_t i = 0; i < ARRAY_LEN(io->drivers); i++)
        io_driver_end(&io->drivers[i]);
}

uint64_t io_lost_bytes(const struct io *io)
{
    return io->lost;
}

void io_free(struct io *io)
{
    uint64_t lost = 0;

    if (!io)
        return;
    io_close(io);
    for (int i = 0; i < 3; i++)
        io_port_close(TAKE_PTR(io->relays[i].up.port), &lost);
    if (lost > 0)
        log_warn(&io->rest, "output was never read", F_U("lost-bytes", lost));
    for (size_t i = 0; i < ARRAY_LEN(io->drivers); i++)
        io_driver_drop(&io->drivers[i]);
    cancel_fire(&io->gone, ERR_CANCELLED, "stdio is freed");
    io_unref(io);
}
