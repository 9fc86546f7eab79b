/* rpc_client.h - a ttrpc client on one connection: unary calls, any number in flight. When the
 * connection closes, all current and later calls fail with ERR_UNAVAILABLE; the caller creates a
 * new client. */
#pragma once
#include "proto/pb.h"

struct ctx;
struct err;
struct loop;
struct rpc_client;
struct stream;

/* Takes stream. */
struct rpc_client *rpc_client_new(struct loop *loop, struct stream *stream);
/* Connects to a unix socket; address as in rpc_sock.h. Waits. Caller frees *ret. */
int rpc_client_connect(struct ctx *ctx, const char *address, struct rpc_client **ret,
                       struct err *err);
/* Calls in flight end with ERR_UNAVAILABLE. Never waits. */
void rpc_client_free(struct rpc_client *c);
AUTO_DEFINE(struct rpc_client *, rpc_client_free);

/* Sent with every call from now on. */
void rpc_client_add_metadata(struct rpc_client *c, const char *key, const char *value);
/* True once the connection is closed. */
bool rpc_client_closed(const struct rpc_client *c);

/* Sends req, waits for the answer. The time left in ctx goes to the server as the call's timeout.
 * *ret_resp is of type resp_type, caller frees with pb_free; ret_resp may be NULL. An error of the
 * server keeps its code and its message. */
int rpc_client_call(struct ctx *ctx, struct rpc_client *c, const char *service, const char *method,
                    const void *req, const ProtobufCMessageDescriptor *resp_type, void **ret_resp,
                    struct err *err);
