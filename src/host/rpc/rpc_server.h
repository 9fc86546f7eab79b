/* rpc_server.h - a ttrpc server: tables of handlers, served on any stream or on a listening socket.
 *
 * Each connection is a fiber that reads, each request one that runs its handler; handlers may wait
 * as long as they like and answer in any order. A handler's ctx carries the request's deadline, is
 * cancelled when the client closes the connection or the server is shut down, and names the method
 * in log lines ("operation"). An error it returns becomes the status, code for code; a failed
 * request is logged here, once. A method that must not stop half-way has a limit of its own.
 * A stream is a call, too, with any number of messages in both directions. A connection that was
 * used for streams alone is closed when both sides have ended theirs: containerd 2.1 never does.
 *
 * Clients are hostile. What is wrong with one frame is answered on its stream and the connection
 * goes on, because containerd takes a closed connection for a dead shim; bounded are requests,
 * bytes and connections. Only a client that does not read its answers is cut off.
 *
 * Life: new -> add … -> listen or serve -> shutdown -> free. */
#pragma once
#include "base/clock.h"
#include "proto/pb.h"

struct ctx;
struct err;
struct loop;
struct rpc_server;
struct span_sink;
struct stream;

#define RPC_CONNS_MAX 1024u      /* more wait in the listener's queue */
#define RPC_CALLS_PER_CONN 4096u /* in flight; more are refused, ERR_EXHAUSTED */
#define RPC_CALLS_MAX 8192u      /* the same, for all connections */
#define RPC_MEM_MAX (128u << 20) /* of all requests in flight, as sent and as decoded */
#define RPC_MINOR_PAUSE (600 * NS_PER_S)
#define RPC_HANG_UP_LIMIT (500 * NS_PER_MS) /* for clients to end what they have the answer of */
#define RPC_LET_GO_LIMIT (5 * NS_PER_S)     /* for handlers to end after shutdown cancelled them */

typedef int rpc_handler(struct ctx *ctx, void *self, const void *req, void *resp, struct err *err);
/* ctx does not end with the client's connection: that is the end of what the client sends. */
struct rpc_stream;
typedef int rpc_stream_handler(struct ctx *ctx, void *self, struct rpc_stream *st, struct err *err);

struct rpc_method {
    const char *name;
    rpc_handler *handler;
    rpc_stream_handler *stream; /* instead of handler; the sizes are those of a message */
    size_t req_size, resp_size;
    /* Not 0: the call goes on without its client, and this long at most. */
    uint64_t limit_ns;
    bool patient; /* may take as long as it likes: the watchdog does not report it */
    /* ERR_NOT_FOUND is an answer, not a failure: clients ask once more for what has ended. It is
     * the answer of a server that shuts down, too, when nothing is left that could be asked for. */
    bool may_be_gone;
    /* A failure leaves nothing behind. It is logged as a warning, and only once in RPC_MINOR_PAUSE:
     * clients repeat State and Stats for ever, and would fill the journal. */
    bool minor;
    bool uncounted; /* rpc_stats.used does not count it */
};
/* The handler with its own types, then fields of struct rpc_method:
 *     int fn(struct ctx *, Self *, const Req *, Resp *, struct err *)
 * req lives as long as the call. resp is at its defaults; what the handler puts there is on the
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
/* Waits until the client reads, but not longer than its connection lives. */
int rpc_stream_send(struct ctx *ctx, struct rpc_stream *st, const void *msg, struct err *err);
/* Tells the client that nothing more comes, as the handler's end does. Repeatable. */
int rpc_stream_finish(struct rpc_stream *st, struct err *err);

/* A service: its methods by the generated descriptor, which knows their messages. A method
 * without a handler is unimplemented. */
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
/* From now on a request that is not answered after limit_ns is told in the log, once. */
void rpc_server_watch(struct rpc_server *s, uint64_t limit_ns);
/* From now on requests are traced, if they are sampled. Borrows sink until the server is freed. */
void rpc_server_trace(struct rpc_server *s, struct span_sink *sink);
/* fn is told when the last connection has ended. It may not wait. */
void rpc_server_on_alone(struct rpc_server *s, void (*fn)(void *arg), void *arg);
/* Accepts connections from fd, which it takes: a listening socket. Peers of another user or group
 * than our own are dropped. */
void rpc_server_listen(struct rpc_server *s, int fd);
/* Serves one connection. Takes stream. */
void rpc_server_serve(struct rpc_server *s, struct stream *stream);
/* Stops accepting, refuses new requests (ERR_UNAVAILABLE), waits until those in flight are answered
 * and who was answered last has hung up, or RPC_HANG_UP_LIMIT after that, or ctx ends; then cancels
 * what is left and closes all connections. 0: nothing runs any more,
 * the handlers' objects may go. -1: a handler does not let go within RPC_LET_GO_LIMIT. */
int rpc_server_shutdown(struct ctx *ctx, struct rpc_server *s, struct err *err);
/* After shutdown; or when nothing was ever served. */
void rpc_server_free(struct rpc_server *s);
AUTO_DEFINE(struct rpc_server *, rpc_server_free);

struct rpc_stats {
    unsigned conns, calls;
    size_t mem;    /* against RPC_MEM_MAX */
    uint64_t used; /* requests that count as use, since the start */
};
struct rpc_stats rpc_server_stats(const struct rpc_server *s);
