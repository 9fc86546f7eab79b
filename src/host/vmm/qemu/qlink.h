/* qlink.h - the host's end of the link: a network namespace that holds nothing but lo and a tap,
 * one listener in it, and the rule which peers may connect (docs/design.md §2). The namespace has
 * no name: it exists as long as the listener, a connection or a descriptor of the tap, and the
 * kernel removes it with everything in it. Over kernel vsock there is no namespace: vhost's device
 * has a CID of its own, one vsock port listens, and connections from other CIDs are refused.
 *
 * Life: new -> (listen, accept …) -> close -> join -> free. The guest is hostile: a connection
 * must say its preface within a deadline, few may be without one, and each opened port is given
 * away once. close never waits and wakes every accept with ERR_UNAVAILABLE; what a connection has
 * received already can still be read from it, then it ends. */
#pragma once
#include "base/mem.h"
#include <stdbool.h>
#include <stdint.h>

struct ctx;
struct err;
struct qlink;
struct saved;
struct stream;
struct vmm_listener;

/* Generous: on a busy host 64 execs at once take seconds to dial, and who is late on purpose keeps
 * only its own VM waiting. */
#define QLINK_PREFACE_NS (UINT64_C(30) * 1000 * 1000 * 1000)
#define QLINK_UNSAID_MAX 16 /* connections without a preface */
/* An exec has three; a thousand of them at once need no waiting. */
#define QLINK_DIALS_BURST 4096
#define QLINK_DIALS_PER_S 500

struct qlink_opts {
    const struct ctx *life; /* outlives the link: its fibers wait and log with it */
    const uint8_t *token;   /* LINK_TOKEN_BYTES */
    bool vsock;             /* kernel vsock instead of the namespace */
    uint64_t preface_ns;    /* 0: QLINK_PREFACE_NS */
    /* A port was dialled and given away; on the loop, may not wait. May be NULL. */
    void (*on_dial)(void *arg, uint32_t port);
    void *arg;
};

/* Waits (a thread makes the namespace). Copies opts. */
int qlink_new(struct ctx *ctx, const struct qlink_opts *opts, struct qlink **ret, struct err *err);
/* Before each QEMU that gets it: over vsock, another device with another CID (vhost keeps the first
 * owner for good). Waits. ERR_STATE names the module that is missing. */
int qlink_arm(struct ctx *ctx, struct qlink *l, struct err *err);
/* For QEMU: the tap, or vhost's device; borrows. */
int qlink_device(const struct qlink *l);
/* QEMU has it: the tap is dropped. */
void qlink_started(struct qlink *l);
/* Over vsock: the CID that the guest has, and the host's port; otherwise 0. */
uint32_t qlink_cid(const struct qlink *l);
uint32_t qlink_port(const struct qlink *l);

/* As in vmm.h. */
int qlink_listen(struct qlink *l, uint32_t port, struct vmm_listener **ret, struct err *err);
int qlink_accept(struct ctx *ctx, struct vmm_listener *listener, struct stream **ret,
                 struct err *err);
void qlink_unlisten(struct vmm_listener *listener);

/* why: static text. Repeatable. */
void qlink_close(struct qlink *l, const char *why);
/* Until its fibers are gone; after close that is at once, over vsock within a second if data
 * that has arrived is not read yet. */
int qlink_join(struct ctx *ctx, struct qlink *l, struct err *err);
void qlink_free(struct qlink *l);
AUTO_DEFINE(struct qlink *, qlink_free);

/* For saved.h: a link on which no connection is without its preface, and no one that came waits for
 * accept. Ports that were open and not dialled are opened by listen again. Of opts, which are those
 * of new, the token is not looked at. */
void qlink_saved(struct saved *s, uint32_t field, const struct qlink_opts *opts,
                 struct qlink **link);
