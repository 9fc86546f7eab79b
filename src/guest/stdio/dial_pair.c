#include "guest/stdio/dial_pair.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/mem.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

struct dial_pair {
    struct dialer dialer;
    struct {
        uint32_t port;
        int fd;
    } waiting[DIAL_PAIR_MAX];
    size_t n, count;
    int errnum, refusals;
    struct waitq arrivals;
};

static int pair_dial(struct ctx *ctx, struct dialer *d, uint32_t port, int *ret_fd, struct err *err)
{
    struct dial_pair *p = CONTAINER_OF(d, struct dial_pair, dialer);
    int fds[2];

    p->count++;
    if (p->refusals != 0) {
        p->refusals -= p->refusals > 0;
        return err_sys(err, p->errnum, "connect");
    }
    if (p->n == DIAL_PAIR_MAX)
        return err_set(err, ERR_EXHAUSTED, "too many connections for a test");
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) < 0)
        return err_sys(err, errno, "socketpair");
    p->waiting[p->n].port = port;
    p->waiting[p->n++].fd = fds[0];
    waitq_wake_all(&p->arrivals);
    *ret_fd = fds[1];
    return 0;
}

static const struct dialer_ops pair_ops = { .dial = pair_dial };

struct dial_pair *dial_pair_new(void)
{
    struct dial_pair *p = mem_new(struct dial_pair);

    p->dialer.ops = &pair_ops;
    waitq_init(&p->arrivals);
    return p;
}

void dial_pair_free(struct dial_pair *p)
{
    for (size_t i = 0; p && i < p->n; i++)
        fd_close(p->waiting[i].fd);
    free(p);
}

struct dialer *dial_pair_dialer(struct dial_pair *p)
{
    return &p->dialer;
}

void dial_pair_refuse(struct dial_pair *p, int errnum, int times)
{
    p->errnum = errnum;
    p->refusals = times;
}

static bool take(struct dial_pair *p, uint32_t port, int *ret_fd)
{
    for (size_t i = 0; i < p->n; i++) {
        if (p->waiting[i].port != port)
            continue;
        *ret_fd = p->waiting[i].fd;
        memmove(&p->waiting[i], &p->waiting[i + 1], (p->n - i - 1) * sizeof(p->waiting[0]));
        p->n--;
        return true;
    }
    return false;
}

int dial_pair_accept(struct ctx *ctx, struct dial_pair *p, uint32_t port, int *ret_fd,
                     struct err *err)
{
    while (!take(p, port, ret_fd))
        if (waitq_wait(ctx, &p->arrivals, "guest to dial", err) < 0)
            return -1;
    return 0;
}

size_t dial_pair_count(const struct dial_pair *p)
{
    return p->count;
}

size_t dial_pair_waiting(const struct dial_pair *p)
{
    return p->n;
}
