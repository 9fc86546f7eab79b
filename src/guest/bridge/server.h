/* server.h - the guest end of the bridge: dials the host, reads requests, runs each in a fiber of
 * its own through a table, writes the answers in the order they are ready. No input ends it: a bad
 * frame drops the connection, and the server reconnects without limit.
 *
 * Rules (docs/reference/gcs-protocol.md §2, §5.6): a new connection must negotiate before it may
 * send other requests. Requests outlive their connection and answer on the connection that exists
 * when they are done; without a connection the answer is dropped. Notifications are never dropped:
 * they wait for the next connection and go out before its negotiation. */
#pragma once
#include "base/mem.h"
#include "proto/bridge.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ctx;
struct dialer;
struct err;
struct server;

#define SERVER_IN_FLIGHT 1024 /* requests being worked on; more are not read from the socket */
#define SERVER_PARKED 4096    /* requests that wait for processes; more are refused */
#define SERVER_BYTES (32u << 20)
#define SERVER_NOTIFICATIONS 4096

/* One request and its answer. */
struct server_call {
    struct bridge_request req;
    struct bridge_response resp; /* success, with the request's activity id, to begin with */
    char *text;                  /* what resp borrows and the call frees; may be NULL */
    /* Runs once the answer is written, or lost. May not wait; may be NULL. */
    void (*after)(void *arg, bool sent);
    void *after_arg;
};

/* What a handler returns when the host expects no answer. */
#define SERVER_SILENT 1

struct server_entry {
    uint32_t type; /* enum bridge_type */
    /* 0: answer with call->resp; -1: answer with err (its HRESULT: bridge_err()); SERVER_SILENT.
     * May wait until ctx ends. NULL: not implemented. */
    int (*handle)(struct ctx *ctx, void *arg, struct server_call *call, struct err *err);
    bool parks; /* may wait without limit: not counted as in flight, no deadline */
};

struct server_opts {
    struct dialer *dialer; /* borrows */
    uint32_t port;
    const struct server_entry *table; /* borrows; NegotiateProtocol is the server's own */
    size_t n_entries;
    void *arg;                       /* for the handlers */
    unsigned max_in_flight;          /* 0: SERVER_IN_FLIGHT */
    uint64_t trim_ns;                /* idle time until memory is given back; 0: two seconds */
    void (*on_connected)(void *arg); /* may not wait; may be NULL; so the next two */
    void (*on_idle)(void *arg);      /* memory is about to be given back */
    void (*on_negotiated)(void *arg);
    /* Called when the host cannot be reached; once until it can be again. */
    void (*on_unreachable)(void *arg, const struct err *why);
};

struct server_stats {
    uint64_t connections, requests, dropped; /* answers without a connection */
    unsigned in_flight, parked;
    size_t notifications; /* waiting for a connection */
    unsigned trims;       /* times that memory was given back */
};

/* Caller frees, after server_run() has returned. */
struct server *server_new(const struct server_opts *opts);
void server_free(struct server *s);
AUTO_DEFINE(struct server *, server_free);
/* Serves until ctx ends; then waits until the requests under way, which it cancels, have ended.
 * Always -1 with ctx's reason. */
int server_run(struct ctx *ctx, struct server *s, struct err *err);
/* Queues a notification; never waits. ERR_EXHAUSTED when SERVER_NOTIFICATIONS are waiting. */
int server_notify(struct server *s, const struct bridge_notification *n, struct err *err);
void server_get_stats(const struct server *s, struct server_stats *ret);

/* For a handler that is going to wait long: frees the request, which may be large. req is empty
 * afterwards but for its type. */
void server_call_forget_request(struct server_call *call);
