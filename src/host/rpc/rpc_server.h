/* rpc_server.h - a ttrpc server: tables of handlers, served on any stream or on a listening socket.
 *
 * A fiber reads each connection, and another runs the handler of each request. Handlers may wait
 * for any time and answer in any order. A handler's ctx carries the request's deadline, is
 * cancelled when the client closes the connection or the server shuts down, and names the method in
 * log lines
 * ("operation"). A handler's error becomes the status with the same code; a failed request is
 * logged here, once. A method that must not be interrupted has a time limit of its own. A stream is
 * a call with any number of messages in both directions. A connection that was used for streams
 * only is closed when both sides have ended theirs, since containerd 2.1 never closes it.
 *
 * Clients are hostile. An invalid frame gets an error on its stream, and the connection stays open,
 * because containerd treats a closed connection as a dead shim. Requests, bytes and connections are
 * bounded. Only a client that does not read its answers is disconnected.
 *
 * Life: new -> add … -> listen or serve -> shutdown -> free. */
#pragma once
#include "base/clock.h"
#include "proto/pb.h"

struct ctx;
struct err;
struct loop;
struct rpc_server;
struct saved;
struct span_sink;
struct stream;

#define RPC_CONNS_MAX 1024u      /* more wait in the listener's queue */
#define RPC_CALLS_PER_CONN 4096u /* in flight; more are refused, ERR_EXHAUSTED */
#define RPC_CALLS_MAX 8192u      /* the same, for all connections */
#define RPC_MEM_MAX (128u << 20) /* of all requests in flight, as sent and as decoded */
#define RPC_MINOR_PAUSE (600 * NS_PER_S)
#define RPC_HANG_UP_LIMIT (500 * NS_PER_MS) /* for clients to disconnect after an answer */
#define RPC_LET_GO_LIMIT (5 * NS_PER_S)     /* for handlers to end after shutdown cancelled them */

typedef int rpc_handler(struct ctx *ctx, void *self, const void *req, void *resp, struct err *err);
/* ctx does not end with the client's connection; the handler sees end of stream instead. */
struct rpc_stream;
typedef int rpc_stream_handler(struct ctx *ctx, void *self, struct rpc_stream *st, struct err *err);

struct rpc_method {
    const char *name;
    rpc_handler *handler;
    rpc_stream_handler *stream; /* instead of handler; the sizes are those of a message */
    size_t req_size, resp_size;
    /* Not 0: the call continues even if its client disconnects, for at most this time. */
    uint64_t limit_ns;
    bool patient; /* may take any time: the watchdog does not report it */
    /* ERR_NOT_FOUND is an expected answer, not a failure: clients repeat calls for objects that
     * have ended. A server that shuts down gives this answer, too, since all its objects are gone.
     */
    bool may_be_gone;
    /* A failure changes nothing. It is logged as a warning, once per RPC_MINOR_PAUSE: clients
     * repeat State and Stats indefinitely, and would fill the journal. */
    bool minor;
    bool uncounted; /* rpc_stats.used does not count it */
    /* Changes nothing while it waits: it is saved with its request, and begins again (saved.h). */
    bool resumable;
};
/* The handler with its own types, then fields of struct rpc_method:
 *     int fn(struct ctx *, Self *, const Req *, Resp *, struct err *)
 * req is valid as long as the call. resp has its defaults; what the handler puts there is on the
 * heap (pb_set_*) and freed after it was sent, or if the handler fails. */
#define RPC_METHOD(method, fn, Self, Req, Resp, ...)                                               \
    {                                                                                              \
        .name = (method), .req_size = sizeof(Req), .resp_size = sizeof(Resp),                      \
        .handler = (rpc_handler *)(1 ? (fn)                                                        \
                                     : (int (*)(struct ctx *, Self *, const Req *, Resp *,         \
                                                struct err *))NULL),                               \
        __VA_ARGS__                                                                                \
    }

/* The client's next message, of the method's input type: 1, and the caller frees it with pb_free; 0
 * after the client's last one; -1. Waits. For one fiber at a time, as the next. */
int rpc_stream_recv(struct ctx *ctx, struct rpc_stream *st, void **ret_msg, struct err *err);
/* Waits until the client reads, or its connection closes. */
int rpc_stream_send(struct ctx *ctx, struct rpc_stream *st, const void *msg, struct err *err);
/* Ends our side of the stream, as the handler's return does. Repeatable. */
int rpc_stream_finish(struct rpc_stream *st, struct err *err);

/* A service: its methods by the generated descriptor, which has the types of their messages. A
 * method without a handler is unimplemented. */
struct rpc_service {
    const ProtobufCServiceDescriptor *descriptor;
    const struct rpc_method *methods;
    size_t n_methods;
    const char
        *id_key; /* in log lines, for field 1 of every request; NULL: there is no such field */
};

struct rpc_server *rpc_server_new(struct loop *loop);
/* Borrows all, until the server is freed. The same table may be added under several names. Aborts
 * if the table names a method that the descriptor has not, or other messages. */
void rpc_server_add(struct rpc_server *s, const char *name, const struct rpc_service *service,
                    void *self);
/* From now on, a request without an answer after limit_ns is logged, once. */
void rpc_server_watch(struct rpc_server *s, uint64_t limit_ns);
/* From now on requests are traced, if they are sampled. Borrows sink until the server is freed. */
void rpc_server_trace(struct rpc_server *s, struct span_sink *sink);
/* Calls fn when the last connection has closed. fn must not wait. */
void rpc_server_on_alone(struct rpc_server *s, void (*fn)(void *arg), void *arg);
/* Accepts connections on fd, a listening socket, which it takes. Drops connections of other users
 * and groups. */
void rpc_server_listen(struct rpc_server *s, int fd);
/* Serves one connection. Takes stream. */
void rpc_server_serve(struct rpc_server *s, struct stream *stream);
/* Stops accepting and refuses new requests (ERR_UNAVAILABLE). Waits until requests in flight are
 * answered and their clients have disconnected, for at most RPC_HANG_UP_LIMIT after the last
 * answer, or until ctx ends. Then cancels the rest and closes all connections. 0: no handler runs
 * any more, so that their objects may be freed. -1: a handler did not end within RPC_LET_GO_LIMIT.
 */
int rpc_server_shutdown(struct ctx *ctx, struct rpc_server *s, struct err *err);
/* After shutdown, or if nothing was ever served. */
void rpc_server_free(struct rpc_server *s);
AUTO_DEFINE(struct rpc_server *, rpc_server_free);

struct rpc_stats {
    unsigned conns, calls;
    size_t mem;    /* against RPC_MEM_MAX */
    uint64_t used; /* requests that count as use, since the start */
};
struct rpc_stats rpc_server_stats(const struct rpc_server *s);

/* While the server is held, no further request is started: bytes wait in the sockets. */
void rpc_server_hold(struct rpc_server *s, bool held);
/* Whether a frame has arrived in part. */
bool rpc_server_receiving(const struct rpc_server *s);
/* Connections, and the calls that wait on them, for saved.h. Everything else must be answered.
 * Reading: into a new server with all its services. */
void rpc_server_saved(struct saved *sv, struct rpc_server *s);
