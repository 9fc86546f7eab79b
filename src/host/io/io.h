/* io.h - the stdio of one process: containerd's side (FIFO, file://, binary://, ttrpc+unix://,
 * none) and the relays between it and the guest's streams.
 *
 * Life: open -> attach (when the guest's streams exist) -> drain -> close. Three independent
 * relays, each a fiber of its own; a stuck reader stops its own stream only, without memory
 * growth. IO depends on no request: open's ctx bounds only the opening. A reader that vanishes
 * (containerd restarts) and returns loses nothing: we hold the FIFO's other end open, and what is
 * in it when the process has ended stays there until somebody reads it or io_free. */
#pragma once
#include "base/mem.h"
#include <stdbool.h>
#include <stdint.h>

struct ctx;
struct err;
struct fibers;
struct io;
struct io_hub;
struct ledger;
struct loop;
struct stream;

struct io_times {
    uint64_t ready; /* until a log driver says that it is */
    /* The end of its input alone ends most drivers. SIGTERM at once, as containerd does it, would
     * kill a plain program that has not read all yet. */
    uint64_t finish;
    uint64_t term; /* after SIGTERM */
};

struct io_spec {
    const char *in, *out, *err;    /* as in the request; "" or NULL: none */
    bool terminal;                 /* then err is ignored */
    const char *container_id, *ns; /* for binary:// */
    struct ledger *ledger;         /* borrows; a log driver is a process */
    /* Counts log drivers, which get their time to finish (13 s) after io_free too: wait for it
     * before the ledger is closed. NULL: io_free kills them. Borrows. */
    struct fibers *drivers;
    struct io_hub *hub; /* for ttrpc+unix://; borrows. NULL: refused */
    const struct io_times
        *times; /* for tests; NULL: those of io_driver.c. Borrows for the driver's life */
};

/* Waits: opens FIFOs without blocking for a reader, starts a log driver and awaits its readiness
 * (10 s). ERR_INVALID: unknown scheme, or a path that is neither FIFO nor file. Caller frees
 * with io_free(). */
int io_open(struct ctx *ctx, struct loop *loop, const struct io_spec *spec, struct io **ret,
            struct err *err);
/* Takes the guest's streams (NULL where none is wanted) and starts the relays. At the end of an
 * output its guest stream and its upstream are closed at once; after the end of the input the
 * guest stream is half-closed. A full disk or a dead log driver does not stop the process: its
 * output is then read and counted as lost. After io_close: the streams are freed. */
void io_attach(struct io *io, struct stream *in, struct stream *out, struct stream *err);
/* Whether the process has to be given that stream. */
bool io_wants(const struct io *io, int fd);
/* The process has ended: until all output has reached its end and was written upstream, and as long
 * as somebody is reading the rest out of a FIFO, or until the client of a stream has hung up: by
 * then it has read all, while containerd drops what it has not read when it learns of the exit. ctx
 * over: ERR_DEADLINE; what was not delivered goes on in the background until io_free. From then on
 * a stream that is silent for a second is closed, upstream too: somebody else (a grandchild) holds
 * it open. */
int io_drain(struct ctx *ctx, struct io *io, struct err *err);
/* No more input after what is in the FIFO. Before attach too. Idempotent. */
void io_close_stdin(struct io *io);
/* Closes upstream: readers see the end. Stops relays; lost bytes are counted. Idempotent. */
void io_close(struct io *io);
uint64_t io_lost_bytes(const struct io *io);
void io_free(struct io *io); /* closes; waits for nothing */
AUTO_DEFINE(struct io *, io_free);
