/* dial.h - the way to the host: every connection is dialled by the guest, to one of the host's
 * 32-bit port numbers (docs/reference/gcs-protocol.md §1.1). What lies beneath (TCP with a preface,
 * vsock, a socketpair in tests) is behind this seam. */
#pragma once
#include "base/mem.h"
#include <stdbool.h>
#include <stdint.h>

struct ctx;
struct dialer;
struct err;
struct stream;

struct dialer_ops {
    /* One try. Waits until connected or ctx ends. The fd is a blocking stream socket, because it
     * may become a process's stdin; caller closes it. */
    int (*dial)(struct ctx *ctx, struct dialer *d, uint32_t port, int *ret_fd, struct err *err);
};

struct dialer {
    const struct dialer_ops *ops;
};

/* Dials by the rules of the protocol: a time-out (ETIMEDOUT) is tried again, 10 times in all,
 * 100 ms apart; any other failure is final. Waits until ctx ends. */
int dialer_dial(struct ctx *ctx, struct dialer *d, uint32_t port, int *ret_fd, struct err *err);
/* Called when the output has ended. Waits until the host has closed its side, which means that it
 * has read everything, or until ctx ends. */
void dialer_finish(struct ctx *ctx, struct stream *host);

/* The three streams of a process: which are requested, and the host's port of each. */
struct stdio_ports {
    bool want[3];
    uint32_t port[3];
};
/* Their descriptors, -1 for what is not there. */
struct stdio_fds {
    int fd[3];
};
#define STDIO_FDS_NONE ((struct stdio_fds){ .fd = { -1, -1, -1 } })
/* Closes them. */
void stdio_fds_release(struct stdio_fds *fds);
AUTO_VALUE(struct stdio_fds, stdio_fds_release);
/* Connects the requested streams. On failure none is open, and the error names the stream. */
int dialer_dial_stdio(struct ctx *ctx, struct dialer *d, const struct stdio_ports *ports,
                      struct stdio_fds *ret, struct err *err);
