/* rpc_priv.h - the inside of the server, for rpc_server.c and rpc_conn.c. */
#pragma once
#include "base/ctx.h"
#include "base/log.h"
#include "host/rpc/rpc_server.h"
#include "host/rpc/rpc_wire.h"

/* A service under one of its names. */
struct rpc_entry {
    struct list node;
    const char *name;
    const struct rpc_service *service;
    void *self;
    uint64_t *next_warning; /* by method: when a failure of a minor method is logged again */
};

struct rpc_server {
    struct loop *loop;
    unsigned refs; /* the owner's and each fiber's */
    struct list entries, conns;
    struct cancel life; /* of connections and calls */
    struct cancel accepting;
    int listener; /* of its fiber */
    bool stopping;
    bool held;             /* no further request is started */
    struct waitq released; /* held became false */
    unsigned n_conns, n_calls;
    void (*on_alone)(void *arg); /* may be NULL */
    void *on_alone_arg;
    size_t mem; /* of requests in flight */
    uint64_t used;
    struct log_rate refused_log;
    struct waitq changed;    /* a connection, call or fiber ended, or a queue went empty */
    struct span_sink *spans; /* NULL: nothing is traced */
    uint64_t slow_ns;        /* of the watchdog */
    unsigned watched;        /* calls with a limit */
    struct waitq watch_q;    /* watched became 0 or 1 */
};
/* Each fiber of the server begins with a reference and ends with this. */
void rpc_server_unref(struct rpc_server *s);

struct rpc_conn {
    struct list node;
    struct rpc_server *server;
    unsigned refs; /* the reader, each call, the writer */
    struct rpc_wire wire;
    struct cancel cancel;
    struct ctx ctx;     /* of reading and writing */
    struct rpc_in *in;  /* of the reader, on its stack; NULL: it has not run yet */
    struct sbuf unread; /* what it begins with */
    struct list calls, streams;
    unsigned n_calls;
    uint32_t last_id, last_stream; /* of a request, and of one that opened a stream */
    bool unary;                    /* it had a unary call */
    uint64_t answered_ns;          /* when its last answer was queued; 0: none was */
    struct err why; /* why it ended; here, so that the reader's stack fits into a page */
};

struct rpc_call {
    struct list node; /* of the connection */
    struct rpc_conn *conn;
    uint32_t id;
    const struct rpc_entry *entry;
    const struct rpc_method *method;
    struct ctx ctx, named; /* the handler's: with the operation, and with the ids as well */
    uint64_t since_ns;
    bool told_slow; /* the watchdog has reported it */
    uint8_t *body;  /* owns; payload borrows from it */
    size_t body_len;
    struct pb_slice payload;
    void *req;                 /* the decoded payload */
    struct rpc_stream *stream; /* for a streaming method */
    size_t mem;                /* bytes that are accounted for */
    struct span *span;         /* NULL: not traced */
    char *trace_state;         /* the span borrows it */
};

/* rpc_conn.c, for rpc_save.c. Starts to read; takes stream. */
struct rpc_conn *rpc_conn_new(struct rpc_server *s, struct stream *stream);
/* A call that was saved: the same request once more, on the same stream. Takes body. -1: there is
 * no such method. */
int rpc_conn_again(struct rpc_conn *c, uint32_t id, uint8_t *body, size_t len, uint64_t since_ns,
                   uint64_t deadline);

/* --- rpc_stream.c --- */

struct rpc_stream *rpc_stream_new(struct rpc_conn *c, uint32_t id,
                                  const ProtobufCMessageDescriptor *type);
/* True if the client had ended its side. */
bool rpc_stream_free(struct rpc_stream *st);
struct cancel *rpc_stream_cancel(struct rpc_stream *st);
/* True if the body of a data frame must be read. Ends the stream of a client that sends too much.
 */
bool rpc_stream_has_room(struct rpc_conn *c, const struct ttrpc_header *h);
/* Takes body. True if it was the client's end of stream, and ours had ended before. */
bool rpc_stream_put(struct rpc_conn *c, const struct ttrpc_header *h, uint8_t *body);
void rpc_streams_client_gone(struct rpc_conn *c);
void rpc_streams_stop(struct rpc_conn *c);
