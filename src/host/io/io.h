/* io.h - the stdio of one process: containerd's side (FIFO, file://, binary://, ttrpc+unix://,
 * none) and the relays between it and the guest's streams.
 *
 * Life: open -> attach (when the guest's streams exist) -> drain -> close. Three independent
 * relays, each a fiber; a stuck reader blocks only its own stream, without memory growth. IO does
 * not depend on a request: open's ctx bounds only the opening. A reader that disappears (containerd
 * restarts) and returns loses nothing: the shim keeps the FIFO's other end open, and the remaining
 * bytes stay in the FIFO after the process's exit until they are read or io_free. */
#pragma once
#include "base/mem.h"
#include <stdbool.h>
#include <stdint.h>

struct ctx;
struct err;
struct saved;
struct fibers;
struct io;
struct io_hub;
struct ledger;
struct loop;
struct stream;

struct io_times {
    uint64_t ready; /* for a log driver to report that it is ready */
    /* Most drivers exit at the end of their input. An immediate SIGTERM, as containerd sends it,
     * would kill a simple program that has not read all input yet. */
    uint64_t finish;
    uint64_t term; /* after SIGTERM */
};

struct io_spec {
    const char *in, *out, *err;    /* as in the request; "" or NULL: none */
    bool terminal;                 /* then err is ignored */
    const char *container_id, *ns; /* for binary:// */
    struct ledger *ledger;         /* borrows; a log driver is a process */
    /* Counts log drivers, which get time to finish (13 s) even after io_free: wait for it before
     * the ledger is closed. NULL: io_free kills them. Borrows. */
    struct fibers *drivers;
    struct io_hub *hub; /* for ttrpc+unix://; borrows. NULL: refused */
    const struct io_times
        *times; /* for tests; NULL: those of io_driver.c. Borrows as long as the driver exists */
};

/* Waits: opens FIFOs without blocking for a reader, starts a log driver and waits until it is ready
 * (10 s). ERR_INVALID: unknown scheme, or a path that is neither FIFO nor file. Caller frees
 * with io_free(). */
int io_open(struct ctx *ctx, struct loop *loop, const struct io_spec *spec, struct io **ret,
            struct err *err);
/* Takes the guest's streams (NULL where none is needed) and starts the relays. At the end of an
 * output, its guest stream and its upstream are closed at once; after the end of the input, the
 * guest stream is half-closed. A full disk or a dead log driver does not block the process: its
 * output is then read and counted as lost. After io_close, the streams are freed. */
void io_attach(struct io *io, struct stream *in, struct stream *out, struct stream *err);
/* True if the process needs that stream. */
bool io_wants(const struct io *io, int fd);
/* To be called after the process has exited. Waits until all output has ended and was written
 * upstream. Also waits while a client reads the rest from a FIFO, or until the client of a stream
 * has disconnected, since containerd drops unread output when it learns of the exit. When ctx ends:
 * ERR_DEADLINE; delivery continues in the background until io_free. From then on, a stream that is
 * silent for a second is closed, upstream as well, since a grandchild keeps it open. */
int io_drain(struct ctx *ctx, struct io *io, struct err *err);
/* Ends the input after the bytes that are in the FIFO. Also valid before attach. Idempotent. */
void io_close_stdin(struct io *io);
/* Closes upstream: readers get end of file. Stops relays and counts lost bytes. Idempotent. */
void io_close(struct io *io);
uint64_t io_lost_bytes(const struct io *io);
void io_free(struct io *io); /* closes; never waits */
AUTO_DEFINE(struct io *, io_free);

/* For saved.h: relays that wait for data or for room are saved where they are. spec: as for
 * io_open. NULL: none. */
void io_saved(struct saved *s, uint32_t field, struct loop *loop, const struct io_spec *spec,
              struct io **io);
