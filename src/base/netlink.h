/* netlink.h - netlink messages and the socket they travel on: a builder, a reader of attributes,
 * and one question with its answer. Which messages there are is proto/rtnl.h's. Everything read is
 * checked against the length that came; sizes of requests are bounded. Asking blocks until the
 * kernel has answered: in a thread (base/offload), or where that is known to be short.
 * (docs/decisions/0012: why not libmnl.) */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NL_MSG_BYTES 2048

/* A request. What does not fit makes it unusable: nl_ask then fails with -EMSGSIZE. */
struct nl_msg {
    size_t len;
    bool full;
    uint8_t data[NL_MSG_BYTES] __attribute__((aligned(8)));
};

/* body: the fixed part behind the header (struct ifinfomsg …). */
void nl_begin(struct nl_msg *m, uint16_t type, uint16_t flags, const void *body, size_t len);
void nl_put(struct nl_msg *m, uint16_t type, const void *data, size_t len);
void nl_put_u32(struct nl_msg *m, uint16_t type, uint32_t value);
void nl_put_str(struct nl_msg *m, uint16_t type, const char *value); /* with its NUL */
/* As it is, padded; where it begins. What begins with its own length is ended by nl_nest_end. */
size_t nl_put_raw(struct nl_msg *m, const void *data, size_t len);
/* Attributes put between the two are inside it. */
size_t nl_nest(struct nl_msg *m, uint16_t type);
void nl_nest_end(struct nl_msg *m, size_t nest);

/* Attributes of a message, or of a nested one. */
struct nl_attr {
    uint16_t type; /* without its flags */
    const uint8_t *data;
    size_t len;
};
struct nl_iter {
    const uint8_t *data;
    size_t len;
};
/* false at the end, and if the rest is invalid. */
bool nl_next(struct nl_iter *it, struct nl_attr *ret);
/* 0 unless the attribute is that long. */
uint32_t nl_u32(const struct nl_attr *a);
/* Copies a text that fits with a NUL; false if it does not. */
bool nl_text(const struct nl_attr *a, char *ret, size_t size);

/* One message of an answer. fn stops with -errno. */
typedef int nl_fn(void *arg, uint16_t type, const uint8_t *body, size_t len);
/* How far an answer has come. */
struct nl_end {
    bool done;
    bool disturbed; /* a dump of a table that was changed meanwhile: to be repeated */
    int error;      /* 0 or -errno, as the kernel reports it */
};
/* The messages in one datagram. 0; -errno of fn; -EBADMSG for an invalid one. Messages with another
 * sequence number are ignored. */
int nl_parse(const void *data, size_t len, uint32_t seq, nl_fn *fn, void *arg, struct nl_end *end);

/* In the calling thread's network namespace. fd or -errno. A socket with groups (RTMGRP_…) only
 * receives changes; requests need a socket without groups. */
int nl_open(int protocol, uint32_t groups);
/* Sends m and reads the answer to its end: an acknowledgement, or a dump. fn may be NULL. 0 or
 * -errno, the kernel's or fn's; after fn's the socket cannot be used again. -EAGAIN: a dump was
 * interrupted; what fn has seen may be inconsistent. */
int nl_ask(int fd, struct nl_msg *m, nl_fn *fn, void *arg);
