#include "guest/stdio/tty.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/stream.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <termios.h>

struct tty {
    struct loop *loop;
    struct stream *master, *in, *out;
    struct cancel input, output; /* end the relays */
    struct group relays;
    bool drained;
};

int tty_open(struct loop *loop, uint16_t rows, uint16_t cols, struct tty **ret, int *ret_slave,
             struct err *err)
{
    AUTO_FD int master = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
    const struct winsize size = { .ws_row = rows, .ws_col = cols };
    int unlocked = 0;

    if (master < 0)
        return err_sys(err, errno, "open /dev/ptmx");
    if (ioctl(master, TIOCSPTLCK, &unlocked) < 0)
        return err_sys(err, errno, "unlock the terminal");
    if (rows && cols && ioctl(master, TIOCSWINSZ, &size) < 0)
        return err_sys(err, errno, "set the terminal's size");
    int slave = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (slave < 0)
        return err_sys(err, errno, "open the terminal's other side");

    struct tty *t = mem_new(struct tty);
    t->loop = loop;
    t->master = stream_from_fd(loop, TAKE_FD(master));
    cancel_init(&t->input, NULL);
    cancel_init(&t->output, NULL);
    group_init(&t->relays);
    *ret = t;
    *ret_slave = slave;
    return 0;
}

/* Keystrokes. An end of the host's input is not passed on: a terminal has no such thing. */
static void relay_in(void *arg)
{
    struct tty *t = arg;
    struct err err = ERR_INIT;
    struct ctx root = ctx_root(t->loop), ctx = ctx_with_cancel(&root, &t->input);
    char side;

    (void)stream_copy(&ctx, t->in, t->master, NULL, &side, &err); /* how it ended changes nothing */
}

static void drop_output(struct ctx *ctx, struct tty *t)
{
    struct err err = ERR_INIT;
    char buf[512];
    size_t n;

    while (stream_read(ctx, t->master, buf, sizeof(buf), &n, &err) == 0 && n > 0)
        ;
}

/* The host says that it has all output by closing its side. */
static void await_close(struct ctx *ctx, struct stream *s)
{
    struct err err = ERR_INIT;
    char byte;
    size_t n;

    while (stream_read(ctx, s, &byte, 1, &n, &err) == 0 && n > 0)
        ;
}

static void relay_out(void *arg)
{
    struct tty *t = arg;
    struct err err = ERR_INIT;
    struct ctx root = ctx_root(t->loop), ctx = ctx_with_cancel(&root, &t->output);
    char side = 'r';

    if (t->out && stream_copy(&ctx, t->master, t->out, NULL, &side, &err) == 0)
        side = 'r';
    if (!t->out || (err.code != ERR_NONE && side == 'w'))
        drop_output(&ctx, t);
    if (!t->out)
        return;
    (void)stream_shutdown(t->out, SHUT_WR); /* the host may be gone */
    await_close(&ctx, t->out);
}

void tty_attach(struct tty *t, int in_fd, int out_fd)
{
    if (in_fd >= 0) {
        t->in = stream_from_fd(t->loop, in_fd);
        group_go(&t->relays, t->loop, relay_in, t, "tty input");
    }
    if (out_fd >= 0)
        t->out = stream_from_fd(t->loop, out_fd);
    group_go(&t->relays, t->loop, relay_out, t, "tty output");
}

int tty_drain(struct ctx *ctx, struct tty *t, struct err *err)
{
    cancel_fire(&t->input, ERR_CANCELLED, "process has exited");
    if (group_wait(ctx, &t->relays, "terminal output to drain", err) < 0) {
        struct ctx forced = ctx_root(t->loop);
        struct err ignored = ERR_INIT;

        /* ctx is over: the relays end at once. */
        cancel_fire(&t->output, ERR_CANCELLED, "terminal is closed");
        (void)group_wait(&forced, &t->relays, "terminal relays to end", &ignored);
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
