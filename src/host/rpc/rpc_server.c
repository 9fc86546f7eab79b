/* rpc_server.c - the server: tables, listening, counting, shutdown. */
#include "host/rpc/rpc_server.h"
#include "base/fd.h"
#include "base/loop.h"
#include "base/stream.h"
#include "base/waits.h"
#include "host/rpc/rpc_priv.h"
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define ACCEPT_RETRY (100 * NS_PER_MS) /* when the process is out of descriptors or memory */
#define REFUSED_LOG_BURST 20

struct rpc_server *rpc_server_new(struct loop *loop)
{
    struct rpc_server *s = mem_new(struct rpc_server);

    s->loop = loop;
    s->refs = 1;
    s->listener = -1;
    list_init(&s->entries);
    list_init(&s->conns);
    cancel_init(&s->life, NULL);
    cancel_init(&s->accepting, &s->life);
    waitq_init(&s->changed);
    waitq_init(&s->watch_q);
    waitq_init(&s->released);
    s->refused_log.burst = REFUSED_LOG_BURST;
    return s;
}

void rpc_server_unref(struct rpc_server *s)
{
    waitq_wake_all(&s->changed);
    if (--s->refs > 0)
        return;
    cancel_release(&s->accepting);
    cancel_release(&s->life);
    LIST_FOR (struct rpc_entry, e, &s->entries, node) {
        free(e->next_warning);
        free(e);
    }
    free(s);
}

void rpc_server_free(struct rpc_server *s)
{
    if (!s)
        return;
    cancel_fire(&s->life, ERR_UNAVAILABLE, "the server has shut down");
    rpc_server_unref(s);
}

void rpc_server_on_alone(struct rpc_server *s, void (*fn)(void *arg), void *arg)
{
    s->on_alone = fn;
    s->on_alone_arg = arg;
}

void rpc_server_trace(struct rpc_server *s, struct span_sink *sink)
{
    s->spans = sink;
}

struct rpc_stats rpc_server_stats(const struct rpc_server *s)
{
    return (struct rpc_stats){ s->n_conns, s->n_calls, s->mem, s->used };
}

/* --- tables --- */

static void check_method(const struct rpc_service *service, const struct rpc_method *m)
{
    const ProtobufCMethodDescriptor *d =
        protobuf_c_service_descriptor_get_method_by_name(service->descriptor, m->name);

    if (d && d->input->sizeof_message == m->req_size && d->output->sizeof_message == m->resp_size &&
        (!service->id_key ||
         (d->input->n_fields && d->input->fields->type == PROTOBUF_C_TYPE_STRING)))
        return;
    fprintf(stderr, "rpc: the table of %s does not match its .proto at %s\n",
            service->descriptor->name, m->name);
    abort();
}

void rpc_server_add(struct rpc_server *s, const char *name, const struct rpc_service *service,
                    void *self)
{
    struct rpc_entry *e = mem_new(struct rpc_entry);

    for (size_t i = 0; i < service->n_methods; i++)
        check_method(service, &service->methods[i]);
    *e = (struct rpc_entry){
        .name = name,
        .service = service,
        .self = self,
        .next_warning = mem_zalloc(service->n_methods * sizeof(*e->next_warning)),
    };
    list_append(&s->entries, &e->node);
}

/* --- listening --- */

/* Both reference servers check the peer, too. */
static bool same_user(int fd)
{
    struct ucred peer;
    socklen_t len = sizeof(peer);

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0)
        return false;
    if (peer.uid == geteuid() && peer.gid == getegid())
        return true;
    log_warn(NULL, "dropped a connection of another user", F_U("uid", peer.uid),
             F_U("gid", peer.gid), F_I(LK_PID, peer.pid));
    return false;
}

static int accept_later(struct ctx *ctx, struct rpc_server *s, struct err *err)
{
    if (log_rate_ok(&s->refused_log, loop_now(ctx->loop)))
        log_error(ctx, "cannot accept connections; retrying", F_ERR(err));
    return fiber_sleep(ctx, ACCEPT_RETRY, err);
}

/* 0 if there may be more to accept. */
static int accept_one(struct ctx *ctx, struct rpc_server *s, struct err *err)
{
    if (loop_io(ctx, WAIT_ACCEPT, err) < 0)
        return -1;
    if (fiber_admit(ctx->loop, err) < 0)
        return accept_later(ctx, s, err);

    AUTO_FD int fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    if (fd >= 0) {
        if (same_user(fd))
            rpc_server_serve(s, stream_from_fd(ctx->loop, TAKE_FD(fd)));
        fiber_yield(ctx->loop);
        return 0;
    }
    switch (errno) {
    case EAGAIN:
        if (loop_wait_fd(ctx, s->listener, POLLIN, WAIT_ACCEPT, err) == 0)
            return 0;
        /* Without memory for epoll, accept cannot wait; the listener itself still works. */
        return s->accepting.fired ? -1 : accept_later(ctx, s, err);
    case EINTR:
    case ECONNABORTED:
        return 0;
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
        (void)err_sys(err, errno, "accept");
        return accept_later(ctx, s, err);
    default:
        return err_sys(err, errno, "accept");
    }
}

static void listener_main(void *arg)
{
    struct rpc_server *s = arg;
    struct ctx ctx = ctx_until(s->loop, &s->accepting);
    struct err err = ERR_INIT;
    int r = 0;

    while (r == 0)
        r = s->n_conns < RPC_CONNS_MAX
                ? accept_one(&ctx, s, &err)
                : waitq_wait(&ctx, &s->changed, WAIT_FEWER_CONNECTIONS, &err);
    if (!s->accepting.fired)
        log_error(&ctx, "no longer accepting connections", F_ERR(&err));
    fd_close(TAKE_FD(s->listener));
    rpc_server_unref(s);
}

void rpc_server_listen(struct rpc_server *s, int fd)
{
    (void)fd_nonblock(fd);
    s->listener = fd;
    s->refs++;
    fiber_go(s->loop, listener_main, s, FIBER_RPC_LISTENER);
}

/* --- shutdown --- */

static bool all_answered(struct rpc_server *s)
{
    if (s->n_calls > 0)
        return false;
    LIST_EACH (&s->conns, pos)
        if (LIST_ENTRY(pos, struct rpc_conn, node)->wire.out_bytes > 0)
            return false;
    return true;
}

/* How long a client may still be reading an answer. If containerd's client sees an answer and the
 * end of its connection at the same time, it picks one of them at random, and may report that the
 * sandbox could not be shut down. Therefore the server lets clients disconnect first. */
static uint64_t still_reading_ns(struct rpc_server *s)
{
    uint64_t now = loop_now(s->loop), most = 0;

    LIST_EACH (&s->conns, pos) {
        uint64_t answered = LIST_ENTRY(pos, struct rpc_conn, node)->answered_ns;
        uint64_t until = answered + RPC_HANG_UP_LIMIT;

        if (answered > 0 && until > now && until - now > most)
            most = until - now;
    }
    return most;
}

static void await_hang_up(struct ctx *ctx, struct rpc_server *s)
{
    struct err ignored = ERR_INIT;

    for (uint64_t left; (left = still_reading_ns(s)) > 0;) {
        struct ctx limited = ctx_with_timeout(ctx, left);

        if (waitq_wait(&limited, &s->changed, "clients to disconnect", &ignored) < 0)
            return;
    }
}

int rpc_server_shutdown(struct ctx *ctx, struct rpc_server *s, struct err *err)
{
    struct err ignored = ERR_INIT; /* a timeout is logged below */

    s->stopping = true;
    cancel_fire(&s->accepting, ERR_UNAVAILABLE, "the server is shutting down");
    LIST_EACH (&s->conns, pos)
        rpc_streams_stop(LIST_ENTRY(pos, struct rpc_conn, node));
    while (!all_answered(s))
        if (waitq_wait(ctx, &s->changed, "requests in flight", &ignored) < 0)
            break;
    await_hang_up(ctx, s);
    if (s->n_calls > 0)
        log_warn(ctx, "shutdown cancels requests in flight", F_U("requests", s->n_calls));
    cancel_fire(&s->life, ERR_UNAVAILABLE, "the server is shutting down");

    struct ctx last = ctx_limited(s->loop, RPC_LET_GO_LIMIT);

    while (s->refs > 1)
        if (waitq_wait(&last, &s->changed, "rpc fibers", err) < 0)
            return err_wrap(err, "%u requests did not end", s->n_calls);
    return 0;
}
