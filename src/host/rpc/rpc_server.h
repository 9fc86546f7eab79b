/* rpc_server.h - a ttrpc server: tables of handlers, served on any stream or on a listening socket.
 *
 * Each connection is a fiber that reads, each request one that runs its handler; handlers may wait
 * as long as they like and answer in any order. A handler's ctx carries the request's deadline, is
 * cancelled when the client closes the connection or the server is shut down, and names the method
 * in log lines ("operation"). An error it returns becomes the status, code for code; a failed
 * request is logged here, once. A handler that must not stop half-way takes a ctx of its own.
 *
 * Clients are hostile. What is wrong with one frame is answered on its stream and the connection
 * goes on, because containerd takes a closed connection for a dead shim; bounded are requests,
 * bytes and connections. Only a client that does not read its answers is cut off.
 *
 * Life: new -> add … -> listen or serve -> shutdown -> free. */
#pragma once
#include "base/clock.h"
#include "proto/pb.h"
#include <sys/types.h>

struct ctx;
struct err;
struct loop;
struct rpc_server;
struct rpc_stream;
struct stream;

#define RPC_CONNS_MAX 1024u                 /* more wait in the listener's queue */
#define RPC_CALLS_PER_CONN 4096u            /* in flight; more are refused, ERR_EXHAUSTED */
#define RPC_CALLS_MAX 8192u                 /* the same, for all connections */
#define RPC_MEM_MAX (128u << 20)            /* of all requests in flight, as sent and as decoded */
#define RPC_INBOX_MAX (1u << 20)            /* bytes that a stream's handler has not taken yet */
#define RPC_INBOX_MESSAGES 1024u            /* the same, in messages */
#define RPC_HANG_UP_LIMIT (500 * NS_PER_MS) /* for clients to end what they have the answer of */
#define RPC_LET_GO_LIMIT (5 * NS_PER_S)     /* for handlers to end after shutdown cancelled them */

typedef int rpc_unary_fn(struct ctx *ctx, void *self, const void *req, void *resp, struct err *err);
typedef int rpc_stream_fn(struct ctx *ctx, void *self, struct rpc_stream *stream, struct err *err);

enum rpc_streams { RPC_CLIENT_STREAMS = 1, RPC_SERVER_STREAMS = 2 };

struct rpc_method {
    const char *name;
    rpc_unary_fn *unary; /* one of the two */
    rpc_stream_fn *stream;
    unsigned streams; /* enum rpc_streams, for the latter */
    size_t req_size, resp_size;
    bool patient; /* may take as long as it likes: the watchdog does not tell of it */
    /* ERR_NOT_FOUND is an answer, not a failure: clients ask once more for what has ended. */
    bool may_be_gone;
};
/* The handler with its own types:
 *     int fn(struct ctx *, Self *, const Req *, Resp *, struct err *)
 * req lives as long as the call. resp is at its defaults; what the handler puts there is on the
 * heap (pb_set_*) and freed after it was sent, or if the handler fails. */
#define RPC_UNARY(method, fn, Self, Req, Resp)                                                     \
    RPC_UNARY_BUT(method, fn, Self, Req, Resp, .patient = false)
#define RPC_UNARY_PATIENT(method, fn, Self, Req, Resp)                                             \
    RPC_UNARY_BUT(method, fn, Self, Req, Resp, .patient = true)
/* The same with fields of struct rpc_method. */
#define RPC_UNARY_BUT(method, fn, Self, Req, Resp, ...)                                            \
    {                                                                                              \
        .name = (method), .req_size = sizeof(Req), .resp_size = sizeof(Resp), __VA_ARGS__,         \
        .unary = (rpc_unary_fn *)(1 ? (fn)                                                         \
                                    : (int (*)(struct ctx *, Self *, const Req *, Resp *,          \
                                               struct err *))NULL)                                 \
    }
#define RPC_STREAM(method, fn, Self, which)                                                        \
    {                                                                                              \
        .name = (method), .streams = (which),                                                      \
        .stream = (rpc_stream_fn *)(1 ? (fn)                                                       \
                                      : (int (*)(struct ctx *, Self *, struct rpc_stream *,        \
                                                 struct err *))NULL)                               \
    }

/* A service: its methods by the generated descriptor, which knows their messages. A method
 * without a handler is unimplemented. */
struct rpc_service {
    const ProtobufCServiceDescriptor *descriptor;
    const struct rpc_method *methods;
    size_t n_methods;
};

struct rpc_server *rpc_server_new(struct loop *loop);
/* Borrows all, until the server is freed. The same table may be added under several names. Aborts
 * if the table names a method that the descriptor has not, or other messages. */
void rpc_server_add(struct rpc_server *s, const char *name, const struct rpc_service *service,
                    void *self);
/* From now on a request that is not answered after limit_ns is told in the log, once. */
void rpc_server_watch(struct rpc_server *s, uint64_t limit_ns);
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
    size_t mem;       /* against RPC_MEM_MAX */
    uint64_t refused; /* frames, since the start */
};
struct rpc_stats rpc_server_stats(const struct rpc_server *s);

/* For handlers: the first value of a key in the request's metadata, NUL-terminated, into buf. ctx
 * is the handler's or made from it. Its length; -ENOENT, -ENOBUFS, -EBADMSG (no text). */
int rpc_metadata(const struct ctx *ctx, const char *key, char *buf, size_t size);

/* For stream handlers. recv: the next message, which the caller frees with pb_free; NULL when the
 * client will send no more. Waits. */
int rpc_stream_recv(struct ctx *ctx, struct rpc_stream *st, void **ret_msg, struct err *err);
/* Waits while the client reads too slowly. A method whose server does not stream sends once. */
int rpc_stream_send(struct ctx *ctx, struct rpc_stream *st, const void *msg, struct err *err);
