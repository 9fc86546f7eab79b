/* link.h - dialers over the two transports: TCP on the private link, where each connection begins
 * with a preface of token and port, and AF_VSOCK, where the port is the socket's own.
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
    /* Of tests; 0 means LINK_HOST_ADDR and LINK_TCP_PORT. Host byte order. */
    uint32_t host_addr;
    uint16_t host_port;
    bool no_seed; /* of tests: leaves clock, generator and name alone */
    /* This is a template: there is no token yet. Once, before the wait; may be NULL. */
    void (*on_waiting)(void *arg);
    /* Another block came, with a log level in it (enum log_level). May be NULL. */
    void (*on_level)(void *arg, unsigned level);
    /* This was a template, and is a clone whose host does not want to know what the template has
     * logged. May be NULL. */
    void (*on_clone)(void *arg);
    void *arg;
};

/* Caller frees. */
struct link *link_new(const struct link_opts *opts);
void link_free(struct link *l);
AUTO_DEFINE(struct link *, link_free);
struct dialer *link_dialer(struct link *l); /* borrows */
/* Waits until there is a token, looking every 5 ms; at once on vsock. */
int link_await_token(struct ctx *ctx, struct link *l, struct err *err);

/* Finds the link's interface by its MAC, gives it its address and a fixed neighbour, and brings it
 * up. Waits up to 5 s for the interface to appear. */
int link_up(struct ctx *ctx, struct err *err);
