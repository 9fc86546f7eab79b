/* stream_mem.c - two stream ends in memory, for simulation and tests. Behaves as a socket pair
 * does: half-close, reads of what is left after the peer went, EPIPE on writes to nobody. */
#include "base/err.h"
#include "base/fiber.h"
#include "base/str.h"
#include "base/stream.h"
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

struct pair;

struct end {
    struct stream base;
    struct pair *pair;
    struct sbuf inbox; /* towards this end */
    bool inbox_closed; /* no more will come */
    bool freed, read_ended;
    struct waitq readable, writable; /* ours: data came; room in the peer's inbox */
};

struct pair {
    struct end ends[2];
    size_t capacity;
};

static const struct stream_ops mem_stream_ops;

static struct end *self(struct stream *s)
{
    return CONTAINER_OF(s, struct end, base);
}

static struct end *peer(struct end *e)
{
    return e == &e->pair->ends[0] ? &e->pair->ends[1] : &e->pair->ends[0];
}

void stream_pair(struct loop *loop, size_t capacity, struct stream **ret_a, struct stream **ret_b)
{
    struct pair *p = mem_new(struct pair);

    (void)loop;
    p->capacity = capacity ? capacity : 1;
    for (int i = 0; i < 2; i++) {
        p->ends[i].base = (struct stream){ &mem_stream_ops, -1 };
        p->ends[i].pair = p;
        waitq_init(&p->ends[i].readable);
        waitq_init(&p->ends[i].writable);
    }
    *ret_a = &p->ends[0].base;
    *ret_b = &p->ends[1].base;
}

static int mem_ready(struct ctx *ctx, struct stream *s, struct err *err)
{
    struct end *e = self(s);

    while (e->inbox.len == 0 && !e->inbox_closed && !e->read_ended)
        if (waitq_wait(ctx, &e->readable, "read", err) < 0)
            return -1;
    return 0;
}

static int mem_read(struct ctx *ctx, struct stream *s, void *buf, size_t len, size_t *ret_n,
                    struct err *err)
{
    struct end *e = self(s);

    if (mem_ready(ctx, s, err) < 0)
        return -1;

    size_t n = e->read_ended ? 0 : e->inbox.len < len ? e->inbox.len : len;

    if (n > 0) {
        memcpy(buf, e->inbox.data, n);
        sbuf_consume(&e->inbox, n);
        waitq_wake_all(&peer(e)->writable);
    }
    *ret_n = n;
    return 0;
}

static int mem_write(struct ctx *ctx, struct stream *s, const void *buf, size_t len, size_t *ret_n,
                     struct err *err)
{
    struct end *e = self(s), *to = peer(e);

    for (;;) {
        if (to->freed || to->inbox_closed || to->read_ended)
            return err_set(err, ERR_UNAVAILABLE, "write: the other side is gone");
        if (to->inbox.len < e->pair->capacity)
            break;
        if (waitq_wait(ctx, &e->writable, "write", err) < 0)
            return -1;
    }

    size_t room = e->pair->capacity - to->inbox.len, n = len < room ? len : room;

    sbuf_add(&to->inbox, buf, n);
    waitq_wake_all(&to->readable);
    *ret_n = n;
    return 0;
}

static int mem_shutdown(struct stream *s, int how)
{
    struct end *e = self(s), *to = peer(e);

    if (how != SHUT_RD) {
        to->inbox_closed = true;
        waitq_wake_all(&to->readable);
        waitq_wake_all(&e->writable);
    }
    if (how != SHUT_WR) {
        e->read_ended = true;
        waitq_wake_all(&e->readable);
        waitq_wake_all(&to->writable);
    }
    return 0;
}

static void mem_free(struct stream *s)
{
    struct end *e = self(s), *to = peer(e);

    mem_shutdown(s, SHUT_RDWR);
    e->freed = true;
    sbuf_release(&e->inbox);
    if (to->freed)
        free(e->pair);
}

static const struct stream_ops mem_stream_ops = {
    .read = mem_read,
    .write = mem_write,
    .ready = mem_ready,
    .shutdown = mem_shutdown,
    .free = mem_free,
};
