/* link.h - dialers over the two transports: TCP on the private link, and AF_VSOCK. Each connection
 * begins with a preface of token and port. Only to a host that has no boot block (Hyper-V, not
 * lcow's QEMU) it is AF_VSOCK without a preface: there the port is the socket's own.
 *
 * The boot block (token, seed, time) is read from fw_cfg before each dial, because a clone of a
 * saved VM finds its own there. A block not seen before is applied first: generator, clock,
 * identity. A block without a token is a template's: nothing is dialled, no socket is opened. */
#pragma once
#include "base/mem.h"
#include "guest/stdio/dial.h"
#include <stdbool.h>

struct err;
struct link;

enum link_transport { LINK_TCP, LINK_VSOCK };

/* Reads the block of LINK_BOOT_BYTES; fw_cfg_read() for LINK_BOOT_FILE, or a test's. arg is that of
 * the options. */
typedef int link_read_boot(void *arg, void *buf, size_t len, struct err *err);

struct link_opts {
    enum link_transport transport;
    link_read_boot *read_boot;
    /* Of tests; 0 means LINK_HOST_ADDR (or the host's CID) and LINK_TCP_PORT. Host byte order. */
    uint32_t host_addr;
    uint16_t host_port;
    bool no_seed; /* of tests: does not set clock, generator and name */
    /* Called once before the wait if this is a template, which has no token yet. May be NULL. */
    void (*on_waiting)(void *arg);
    /* Called when another block came, with the log level in it (enum log_level). May be NULL. */
    void (*on_level)(void *arg, unsigned level);
    /* Called when a template has become a clone whose host does not want the template's log lines.
     * May be NULL. */
    void (*on_clone)(void *arg);
    void *arg;
};

/* Caller frees. */
struct link *link_new(const struct link_opts *opts);
void link_free(struct link *l);
AUTO_DEFINE(struct link *, link_free);
struct dialer *link_dialer(struct link *l); /* borrows */
/* Waits until there is a token and reads every 5 ms; returns at once if the host is foreign. */
int link_await_token(struct ctx *ctx, struct link *l, struct err *err);
/* After the above: AF_VSOCK, and no boot block was found. */
bool link_is_foreign(const struct link *l);

/* Finds the link's interface by its MAC, gives it its address and a fixed neighbour, and brings it
 * up. Waits up to 5 s for the interface to appear. */
int link_up(struct ctx *ctx, struct err *err);
