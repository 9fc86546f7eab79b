/* relay.h - stdio of a container's process without a terminal: pipes in the guest, spliced to the
 * streams that the host named. Life: open -> attach (starts the relays) -> drain (the process has
 * exited) -> free.
 *
 * Back-pressure reaches the process, because nothing is buffered here. Output that the host did not
 * ask for is read and dropped, so that the process neither blocks nor dies of SIGPIPE. */
#pragma once
#include "base/mem.h"
#include <stdint.h>

struct ctx;
struct err;
struct loop;
struct relay;
struct stdio_fds;

/* Caller frees *ret with relay_free() and closes *ret_ends, the process's ends of the pipes. */
int relay_open(struct loop *loop, struct relay **ret, struct stdio_fds *ret_ends, struct err *err);
/* Takes the host's sockets. If the host closes an output, the process gets EPIPE.
 * Our copies of the process's ends must be closed by now. */
void relay_attach(struct relay *r, struct stdio_fds *host);
/* The process has exited: its input ends. Waits until its output was sent, the end of it was
 * signalled (SHUT_WR) and the host has closed its side. All that the process itself wrote gets
 * through, however slow the host is; others that still hold its pipes are cut off after grace_ns.
 * When ctx ends first, the rest is dropped and -1 returned; the relays have ended either way. */
int relay_drain(struct ctx *ctx, struct relay *r, uint64_t grace_ns, struct err *err);
/* Only when no relay runs: never attached, or drained. NULL is fine. */
void relay_free(struct relay *r);
AUTO_DEFINE(struct relay *, relay_free);
