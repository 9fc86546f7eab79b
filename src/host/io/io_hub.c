/* io_hub.c - ports: a list, since there are a few for each process. */
#include "host/io/io_hub.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/stream.h"
#include "host/io/io_priv.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct io_hub {
    struct loop *loop;
    const char *address;
    struct list ports;
};

struct io_hub *io_hub_new(struct loop *loop, const char *address)
{
    struct io_hub *h = mem_new(struct io_hub);

    h->loop = loop;
    h->address = address;
    list_init(&h->ports);
    return h;
}

void io_hub_free(struct io_hub *h)
{
    free(h);
}

struct io_port *io_port_new(struct io_hub *h, const char *id)
{
    struct io_port *p = mem_new(struct io_port);

    *p = (struct io_port){ .hub = h, .id = str_dup(id), .fd = -1 };
    list_init(&p->node);
    waitq_init(&p->left);
    return p;
}

struct io_port *io_port_of(struct io_hub *h, const char *id)
{
    LIST_FOR (struct io_port, p, &h->ports, node)
        if (str_eq(p->id, id))
            return p;

    struct io_port *p = io_port_new(h, id);

    list_append(&h->ports, &p->node);
    return p;
}

static void unref(struct io_port *p)
{
    if (--p->refs > 0)
        return;
    list_remove(&p->node);
    fd_close(p->fd);
    free(p->id);
    free(p);
}

/* --- clients --- */

/* A separate descriptor, since the previous client may not have closed its own yet. */
static void let_in(struct io_port *p)
{
    struct io_client *c = p->client;
    int fd = p->fd < 0 ? -1 : fcntl(p->fd, F_DUPFD_CLOEXEC, 3);

    c->input = p->input;
    c->closed = fd < 0;
    if (fd >= 0)
        c->stream = stream_from_fd(p->hub->loop, fd);
    waitq_wake_all(&c->changed);
}

void io_hub_join(struct io_hub *h, struct io_client *c, const char *id, struct cancel *parent)
{
    struct io_port *p = io_port_of(h, id);

    *c = (struct io_client){ .port = p };
    p->refs++;
    waitq_init(&c->changed);
    cancel_init(&c->over, parent);
    if (p->client)
        cancel_fire(&p->client->over, ERR_CANCELLED, "another client reads this stream now");
    p->client = c;
    if (p->opened)
        let_in(p);
}

void io_client_leave(struct io_client *c)
{
    struct io_port *p = c->port;

    stream_free(TAKE_PTR(c->stream));
    if (p->client == c)
        p->client = NULL;
    waitq_wake_all(&p->left);
    cancel_release(&c->over);
    unref(p);
}

/* --- processes --- */

int io_port_open(struct io_hub *h, const struct io_form *form, bool input, struct io_port **ret,
                 int *ret_fd, struct err *err)
{
    const char *own = h && h->address ? h->address : NULL;
    struct io_port *p;
    int fds[2];

    if (!h)
        return err_set(err, ERR_UNIMPLEMENTED, "this shim does not support streaming I/O");
    if (own && str_starts(own, "unix://"))
        own += strlen("unix://");
    if (own && !str_eq(own, form->path))
        return err_set(err, ERR_INVALID, "%.*s is not the socket of this shim, %s", IO_NAME_SHOWN,
                       form->path, own);
    p = io_port_of(h, form->args.v[0]);
    if (p->opened)
        return err_set(err, ERR_EXISTS, "stream %.*s is in use", IO_NAME_SHOWN, p->id);
    if (pipe2(fds, O_CLOEXEC) < 0) {
        (void)err_sys(err, errno, "create a pipe for stream %.*s", IO_NAME_SHOWN, p->id);
        p->refs++;
        unref(p);
        return -1;
    }
    p->refs++;
    p->opened = true;
    p->input = input;
    p->fd = fds[input];
    if (p->client)
        let_in(p);
    *ret = p;
    *ret_fd = fds[!input];
    return 0;
}

void io_port_shut(struct io_port *p)
{
    fd_close(TAKE_FD(p->fd));
}

int io_port_await(struct ctx *ctx, struct io_port *p, struct err *err)
{
    while (p->client)
        if (waitq_wait(ctx, &p->left, "the client to read the remaining output", err) < 0)
            return err_wrap(err, "the client has not read all of stream %.*s", IO_NAME_SHOWN,
                            p->id);
    return 0;
}

void io_port_close(struct io_port *p, uint64_t *ret_lost)
{
    if (!p)
        return;
    if (p->client) {
        p->client->closed = true;
        waitq_wake_all(&p->client->changed);
    } else if (!p->input) {
        *ret_lost += io_unread(p->fd);
    }
    fd_close(TAKE_FD(p->fd));
    list_remove(&p->node); /* its id is free again */
    unref(p);
}
