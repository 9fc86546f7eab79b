/* rpc_priv.h - the inside of the server, for rpc_server.c, rpc_conn.c, rpc_call.c and their tests.
 */
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
};

struct rpc_server {
    struct loop *loop;
    unsigned refs; /* the owner's and each fiber's */
    struct list entries, conns;
    struct cancel life; /* of connections and calls */
    struct cancel accepting;
    bool stopping;
    unsigned n_conns, n_calls, n_fibers;
    void (*on_alone)(void *arg); /* may be NULL */
    void *on_alone_arg;
    size_t mem;
    uint64_t refused;
    struct log_rate refused_log;
    struct waitq changed; /* a connection, call or fiber ended, or a queue went empty */
    unsigned watched;     /* calls that are to end soon */
    struct waitq watch_q; /* there are some, or none any more */
};
void rpc_server_unref(struct rpc_server *s);
/* What every fiber of the server does first and last. */
void rpc_fiber_begin(struct rpc_server *s);
void rpc_fiber_end(struct rpc_server *s);
/* Accounts for n bytes; false if that is too much. */
bool rpc_mem_take(struct rpc_server *s, size_t n);
void rpc_mem_give(struct rpc_server *s, size_t n);

struct rpc_conn {
    struct list node;
    struct rpc_server *server;
    unsigned refs; /* the reader, each call, the writer */
    struct rpc_wire wire;
    struct cancel cancel;
    struct ctx ctx; /* of reading and writing */
    struct list calls;
    unsigned n_calls;
    uint32_t last_id;
    uint64_t answered_ns; /* when its last answer was queued; 0: none was */
    struct err why;       /* it ended; here, because the reader's stack is to fit into a page */
};
void rpc_conn_unref(struct rpc_conn *c);
/* Has the queue written by a fiber of its own, for those who must not wait. */
void rpc_conn_kick(struct rpc_conn *c);
/* Answers a frame that never became a call. Never waits. */
void rpc_conn_refuse(struct rpc_conn *c, uint32_t id, enum err_code code, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Queues a frame. If that cannot be, the connection is cut: the client does not read. */
int rpc_conn_put(struct rpc_conn *c, struct sbuf *frame, uint32_t id, uint8_t type, uint8_t flags);

struct rpc_message {
    struct list node;
    uint8_t *body;
    size_t len;
};

struct rpc_stream {
    struct list inbox; /* struct rpc_message */
    size_t inbox_bytes;
    unsigned inbox_n;
    bool peer_done;   /* the client will send no more */
    bool first_taken; /* what came with the request itself */
    struct waitq q;
    struct sbuf answer; /* packed, of a method whose server does not stream */
    bool answered;
};

#define RPC_OPERATION_MAX 32

struct rpc_call {
    struct list node; /* of the connection */
    struct rpc_conn *conn;
    uint32_t id;
    const struct rpc_method *method;
    const ProtobufCMethodDescriptor *types;
    void *self;
    struct cancel cancel;
    struct ctx ctx; /* the handler's */
    char
        operation[RPC_OPERATION_MAX]; /* its identifier: what leads from any ctx made of it to us */
    uint64_t since_ns;
    bool told_slow; /* the watchdog has */
    uint8_t *body;  /* owns; request borrows from it */
    struct ttrpc_request request;
    size_t mem; /* accounted for */
    struct rpc_stream stream;
};
/* For the watchdog. Never wait. */
void rpc_watch_begin(struct rpc_server *s, const struct rpc_call *call);
void rpc_watch_end(struct rpc_server *s, const struct rpc_call *call);
/* Starts the fiber. Takes body, whose length is accounted for already. */
void rpc_call_start(struct rpc_conn *c, const struct rpc_entry *entry,
                    const struct rpc_method *method, const struct ttrpc_header *h, uint8_t *body,
                    const struct ttrpc_request *request);
/* The open stream with this id, or NULL. */
struct rpc_call *rpc_call_find_stream(struct rpc_conn *c, uint32_t id);
/* A data frame for it. Takes body, accounted for. Never waits. */
void rpc_call_data(struct rpc_call *call, const struct ttrpc_header *h, uint8_t *body);
