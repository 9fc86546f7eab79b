/* qlink_priv.h - between qlink.c and qlink_save.c. */
#pragma once
#include "base/bucket.h"
#include "base/ctx.h"
#include "base/fiber.h"
#include "base/log.h"
#include "host/vmm/qemu/qlink.h"
#include "proto/link.h"

struct vmm_listener {
    struct list node;
    struct qlink *link; /* NULL once the link is gone */
    uint32_t port;
    struct stream *stream; /* dialled, not yet accepted */
    struct waitq q;
};

/* Ports that were ever opened, as ranges: stdio ports are counted up, so there are few. */
struct qlink_range {
    uint32_t first, last;
};

/* A connection that was given away. The fd belongs to its stream, which may be freed and the
 * number used again; the kernel's cookie shows whether it is still the same socket. */
struct qlink_given {
    int fd;
    uint64_t cookie;
};

struct qlink {
    struct ctx ctx;
    struct cancel cancel;
    struct qlink_opts o;
    uint8_t token[LINK_TOKEN_BYTES];
    int device, listener; /* device: the tap, or vhost's */
    uint32_t cid, port;   /* of vsock: the guest's, the host's */
    struct fibers fibers;
    unsigned unsaid;
    struct waitq room;
    struct list listeners;
    struct qlink_range *used;
    size_t n_used, cap_used;
    uint32_t *left_open; /* ports that were open when the link was saved: listen opens them again */
    size_t n_left_open, cap_left_open;
    struct qlink_given *given;
    size_t n_given, cap_given;
    struct log_rate rate;
    struct bucket dials;
    bool closed;
    const char *why;
};

/* A link without descriptors; run begins to accept. */
struct qlink *qlink_make(const struct qlink_opts *opts);
void qlink_run(struct qlink *l);
