#include "guest/stdio/tty.h"
#include "base/ctx.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/stream.h"
#include "guest/stdio/dial.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define CHUNK 4096 /* what a terminal returns at once */
/* More than the kernel holds for a terminal: what is beyond was written after the exit. */
#define DRAIN_MAX (1024 * 1024)

struct tty {
    struct loop *loop;
    struct stream *master, *in, *out;
    struct cancel input;  /* the process has exited */
    struct cancel output; /* the rest of the output is dropped */
    struct fibers relays;
    bool exited, drained;
    size_t left; /* bytes still read once the process has exited */
};

struct tty *tty_adopt(struct loop *loop, int master)
{
    struct tty *t = mem_new(struct tty);

    t->loop = loop;
    t->left = DRAIN_MAX;
    t->master = stream_from_fd(loop, master);
    cancel_init(&t->input, NULL);
    cancel_init(&t->output, NULL);
    fibers_init(&t->relays);
    return t;
}

int tty_open(struct loop *loop, struct tty **ret, int *ret_slave, struct err *err)
{
    AUTO_FD int master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
    int unlocked = 0;

    if (master < 0)
        return err_sys(err, errno, "open /dev/ptmx");
    if (ioctl(master, TIOCSPTLCK, &unlocked) < 0)
        return err_sys(err, errno, "unlock the terminal");
    int slave = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (slave < 0)
        return err_sys(err, errno, "open the terminal's other side");

    *ret = tty_adopt(loop, TAKE_FD(master));
    *ret_slave = slave;
    return 0;
}

/* Copies keystrokes. The end of the host's input is not forwarded, because a terminal has no end of
 * input. */
static void relay_in(void *arg)
{
    struct tty *t = arg;
    struct err err = ERR_INIT;
    struct ctx ctx = ctx_until(t->loop, &t->input);
    char side;

    (void)stream_copy(&ctx, t->in, t->master, NULL, &side,
                      &err); /* an error ends the input like its end does */
}

/* Reads one chunk once there is one, so that an idle terminal needs no buffer. 0 at the end: every
 * process has closed its side (EIO), or the terminal's process has exited and its output was read.
 * A process left in the background does not keep the terminal open, like on a real one. */
static ssize_t read_chunk(struct ctx *reading, struct tty *t, char **ret_data)
{
    struct err err = ERR_INIT;

    while (!t->exited && t->master->ops->ready(reading, t->master, &err) < 0)
        if (!t->exited)
            return 0;
    if (t->exited && t->left < CHUNK)
        return 0;
    AUTO_FREE char *data = mem_alloc(CHUNK);
    ssize_t n = read(t->master->fd, data, CHUNK);
    if (n > 0)
        *ret_data = TAKE_PTR(data);
    if (n > 0 && t->exited)
        t->left -= (size_t)n;
    return n < 0 && errno == EAGAIN && !t->exited ? -1 : n > 0 ? n : 0;
}

static void relay_out(void *arg)
{
    struct tty *t = arg;
    struct ctx reading = ctx_until(t->loop, &t->input);
    struct ctx writing = ctx_until(t->loop, &t->output);
    struct err err = ERR_INIT;
    bool wanted = t->out != NULL;

    for (;;) {
        AUTO_FREE char *data = NULL;
        ssize_t n = read_chunk(&reading, t, &data);
        if (n == 0)
            break;
        /* Without a host the output is dropped, so that the process does not block. */
        if (n > 0 && wanted)
            wanted = stream_write_full(&writing, t->out, data, (size_t)n, &err) == 0;
    }
    if (!t->out)
        return;
    dialer_finish(&writing, t->out);
}

void tty_attach(struct tty *t, int in_fd, int out_fd)
{
    if (in_fd >= 0) {
        t->in = stream_from_fd(t->loop, in_fd);
        fibers_go(&t->relays, t->loop, relay_in, t, "tty input");
    }
    if (out_fd >= 0)
        t->out = stream_from_fd(t->loop, out_fd);
    fibers_go(&t->relays, t->loop, relay_out, t, "tty output");
}

int tty_drain(struct ctx *ctx, struct tty *t, struct err *err)
{
    t->exited = true;
    cancel_fire(&t->input, ERR_CANCELLED, "process has exited");
    if (fibers_wait(ctx, &t->relays, "terminal output to drain", err) < 0) {
        struct ctx forced = ctx_root(t->loop);
        struct err ignored = ERR_INIT;

        /* ctx is over: the relays end at once. */
        cancel_fire(&t->output, ERR_CANCELLED, "terminal is closed");
        (void)fibers_wait(&forced, &t->relays, "terminal relays to end", &ignored);
    }
    t->drained = true;
    stream_free(TAKE_PTR(t->in));
    stream_free(TAKE_PTR(t->out));
    stream_free(TAKE_PTR(t->master));
    return err->code == ERR_NONE ? 0 : -1;
}

int tty_resize(struct tty *t, uint16_t rows, uint16_t cols, struct err *err)
{
    const struct winsize size = { .ws_row = rows, .ws_col = cols };

    if (t->drained)
        return 0;
    if (ioctl(t->master->fd, TIOCSWINSZ, &size) < 0)
        return err_sys(err, errno, "set the terminal's size");
    return 0;
}

void tty_free(struct tty *t)
{
    if (!t)
        return;
    stream_free(t->in);
    stream_free(t->out);
    stream_free(t->master);
    cancel_release(&t->input);
    cancel_release(&t->output);
    free(t);
}
