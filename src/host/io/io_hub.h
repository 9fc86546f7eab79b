/* io_hub.h - stdio over streams that clients open to this shim (containerd's io_type =
 * "streaming"), by id. A port is one id. A pipe connects a process and the client of its port, so
 * that it behaves like a FIFO: 64 KiB are kept for a client that is away, a process that writes
 * more blocks, and input ends when CloseIO was called and the client has left.
 *
 * A client may join before the process exists (containerd does), and again after the client has
 * restarted: the latest client counts. Nothing here waits, except for `changed`. */
#pragma once
#include "base/ctx.h"
#include "base/fiber.h"

struct io_hub;
struct io_port;
struct loop;
struct saved;
struct stream;

/* address: where this shim listens, unix:///path; NULL: not checked. Borrows. */
struct io_hub *io_hub_new(struct loop *loop, const char *address);
/* After all processes have exited and all clients have left. */
void io_hub_free(struct io_hub *h);

/* A client; its owner keeps it where it is until leave. */
struct io_client {
    struct io_port *port;
    struct stream *stream; /* its end of the pipe; NULL before there is a process */
    bool input;            /* the client writes */
    bool closed;           /* the process has exited, or has closed its input */
    struct waitq changed;  /* woken with these */
    struct cancel over;    /* fired when another client joins with that id */
};
/* parent: of its cancel. */
void io_hub_join(struct io_hub *h, struct io_client *c, const char *id, struct cancel *parent);
void io_client_leave(struct io_client *c);
