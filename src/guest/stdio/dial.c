#include "guest/stdio/dial.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/stream.h"
#include <errno.h>
#include <sys/socket.h>

#define TRIES 10
#define PAUSE_NS (100 * NS_PER_MS)

int dialer_dial(struct ctx *ctx, struct dialer *d, uint32_t port, int *ret_fd, struct err *err)
{
    for (int i = 1;; i++) {
        if (d->ops->dial(ctx, d, port, ret_fd, err) == 0)
            return 0;
        if (err->sys != ETIMEDOUT || i == TRIES)
            return err_wrap(err, "dial host port %u", port);
        struct err why = *err; /* a cancelled sleep must not replace the dial's error */
        if (fiber_sleep(ctx, PAUSE_NS, err) < 0) {
            *err = why;
            return err_wrap(err, "dial host port %u", port);
        }
    }
}

void dialer_finish(struct ctx *ctx, struct stream *host)
{
    struct err err = ERR_INIT;
    char byte;
    size_t n;

    (void)stream_shutdown(host, SHUT_WR); /* it may be gone */
    while (stream_read(ctx, host, &byte, 1, &n, &err) == 0 && n > 0)
        ;
}

void stdio_fds_release(struct stdio_fds *fds)
{
    for (int i = 0; i < 3; i++)
        fd_close(TAKE_FD(fds->fd[i]));
}

int dialer_dial_stdio(struct ctx *ctx, struct dialer *d, const struct stdio_ports *ports,
                      struct stdio_fds *ret, struct err *err)
{
    static const char *const names[] = { "stdin", "stdout", "stderr" };
    struct stdio_fds fds = STDIO_FDS_NONE;

    for (int i = 0; i < 3; i++)
        if (ports->want[i] && dialer_dial(ctx, d, ports->port[i], &fds.fd[i], err) < 0) {
            stdio_fds_release(&fds);
            return err_wrap(err, "%s", names[i]);
        }
    *ret = fds;
    return 0;
}
