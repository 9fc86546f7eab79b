/* dial.h - the way to the host: every connection is dialled by the guest, to one of the host's
 * 32-bit port numbers (gcs-protocol.md §1.1). What lies beneath (TCP with a preface, vsock, a
 * socketpair in tests) is behind this seam. */
#pragma once
#include <stdint.h>

struct ctx;
struct dialer;
struct err;

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
