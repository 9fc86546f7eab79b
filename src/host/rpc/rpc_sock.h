/* rpc_sock.h - unix sockets by the addresses that containerd uses: "unix:///path", "/path", or
 * "@name" for an abstract one. */
#pragma once

struct ctx;
struct err;

#define RPC_PATH_MAX 106 /* bytes; the reference implementation has the same limit */
#define RPC_BACKLOG 128

/* A listening socket that only its owner may connect to (0600). Never waits. Caller closes. An
 * address in use, by a live server or a dead one's file, is err->sys == EADDRINUSE. */
int rpc_sock_listen(const char *address, int *ret_fd, struct err *err);
/* ERR_UNAVAILABLE if nothing listens. Waits while the listener's queue is full. Caller closes. */
int rpc_sock_connect(struct ctx *ctx, const char *address, int *ret_fd, struct err *err);
