/* publisher.h - publishes events to containerd: one fiber forwards the events of the queue over one
 * connection, in order. The first event is retried (5 s each) until it is delivered, containerd
 * refuses it as invalid, or a minute has passed; then the next. containerd may be stopped, or not
 * yet accept connections: only this fiber waits for it.
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
    const char *address; /* containerd's ttrpc socket; "": events are dropped */
    /* For tests; NULL: rpc_client_connect(address). */
    int (*connect)(struct ctx *ctx, void *arg, struct rpc_client **ret, struct err *err);
    void *arg;
};
struct publisher *publisher_new(const struct publisher_opts *o);
/* Ends the fiber; queued events stay. Waits. */
int publisher_stop(struct ctx *ctx, struct publisher *p, struct err *err);
void publisher_free(struct publisher *p); /* after stop */
AUTO_DEFINE(struct publisher *, publisher_free);

/* The message for an event; NULL if it has text that is not UTF-8. Caller frees (pb_free). */
ForwardRequest *publisher_wire(const struct event *e, const char *ns);
