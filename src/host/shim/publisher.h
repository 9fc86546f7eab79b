/* publisher.h - tells containerd what happened: one fiber takes events from the queue and forwards
 * them over one connection, in order. The head is tried again (5 s each) until it is delivered,
 * refused as senseless, or a minute has passed; then the next. containerd may be away, or not
 * accept yet while it loads: nobody but this fiber waits for it.
 *
 * Life: new (starts the fiber) -> stop -> free. */
#pragma once
#include "api/forward.pb-c.h"
#include "base/mem.h"

struct ctx;
struct err;
struct event;
struct events;
struct loop;
struct publisher;
struct rpc_client;

struct publisher_opts {
    struct loop *loop;
    struct events *events; /* borrows */
    const char *ns;
    const char *address; /* containerd's ttrpc socket; "": nobody is told, all is dropped */
    /* For tests; NULL: rpc_client_connect(address). */
    int (*connect)(struct ctx *ctx, void *arg, struct rpc_client **ret, struct err *err);
    void *arg;
};
struct publisher *publisher_new(const struct publisher_opts *o);
/* Ends the fiber; what is still queued stays. Waits. */
int publisher_stop(struct ctx *ctx, struct publisher *p, struct err *err);
void publisher_free(struct publisher *p); /* after stop */
AUTO_DEFINE(struct publisher *, publisher_free);

/* What containerd gets of an event; NULL if it has text that is not UTF-8. Caller frees (pb_free).
 */
ForwardRequest *publisher_wire(const struct event *e, const char *ns);
