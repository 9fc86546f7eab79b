/* rpc_client.c - a reader fiber completes the calls; a writer exists while there is something to
 * write, so that a call keeps its deadline even if the server does not read. */
#include "host/rpc/rpc_client.h"
#include "base/ctx.h"
#include "base/log.h"
#include "base/stream.h"
#include "base/waits.h"
#include "host/rpc/rpc_sock.h"
#include "host/rpc/rpc_wire.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define CLOSED_TEXT "the connection is closed"

struct rpc_client {
    unsigned refs; /* the owner's, the reader's, the writer's, each call's */
    struct loop *loop;
    struct rpc_wire wire;
    struct ctx ctx; /* of reading and writing: until the wire is cut */
    struct sbuf metadata;
    struct list calls;
    uint32_t next_id;
    bool closed;
};

/* On the caller's stack. */
struct call {
    struct list node;
    uint32_t id;
    bool done;
    enum err_code failed; /* instead of an answer */
    uint8_t *body;
    size_t len;
    struct waitq q;
};

static void unref(struct rpc_client *c)
{
    if (--c->refs > 0)
        return;
    rpc_wire_release(&c->wire);
    sbuf_release(&c->metadata);
    free(c);
}

/* --- in --- */

static struct call *find_call(struct rpc_client *c, uint32_t id)
{
    LIST_FOR (struct call, call, &c->calls, node)
        if (call->id == id)
            return call;
    return NULL;
}

static void finish(struct call *call, enum err_code failed)
{
    list_remove(&call->node);
    call->done = true;
    call->failed = failed;
    waitq_wake_all(&call->q);
}

/* An answer to a call that has given up is read and dropped. */
static int read_frame(struct rpc_client *c, struct rpc_in *in, const struct ttrpc_header *h,
                      struct err *err)
{
    struct call *call = h->type == TTRPC_RESPONSE ? find_call(c, h->stream) : NULL;

    if (!call || h->len > TTRPC_BODY_MAX) {
        if (call)
            finish(call, ERR_EXHAUSTED);
        return h->len > 0 ? rpc_in_skip(&c->ctx, in, h->len, err) : 0;
    }

    AUTO_FREE uint8_t *body = mem_alloc(h->len);

    if (rpc_in_read(&c->ctx, in, body, h->len, err) < 0)
        return -1;
    call = find_call(c, h->stream); /* the call may have given up while the body was read */
    if (call) {
        call->body = TAKE_PTR(body);
        call->len = h->len;
        finish(call, ERR_NONE);
    }
    return 0;
}

static void reader_main(void *arg)
{
    struct rpc_client *c = arg;
    struct rpc_in in = { .stream = c->wire.stream };
    struct ttrpc_header h;
    struct err err = ERR_INIT;
    int r;

    while ((r = rpc_in_header(&c->ctx, &in, &h, &err)) > 0)
        if ((r = read_frame(c, &in, &h, &err)) < 0)
            break;
    if (r < 0)
        log_debug(&c->ctx, "connection to the server closed", F_ERR(&err));
    c->closed = true;
    rpc_wire_cut(&c->wire);
    while (!list_empty(&c->calls))
        finish(LIST_FIRST(&c->calls, struct call, node), ERR_UNAVAILABLE);
    unref(c);
}

struct rpc_client *rpc_client_new(struct loop *loop, struct stream *stream)
{
    struct rpc_client *c = mem_new(struct rpc_client);

    c->refs = 2;
    c->loop = loop;
    c->next_id = 1;
    rpc_wire_init(&c->wire, stream);
    c->ctx = ctx_root(loop);
    list_init(&c->calls);
    fiber_go(loop, reader_main, c, FIBER_RPC_CLIENT);
    return c;
}

int rpc_client_connect(struct ctx *ctx, const char *address, struct rpc_client **ret,
                       struct err *err)
{
    int fd;

    if (rpc_sock_connect(ctx, address, &fd, err) < 0)
        return -1;
    *ret = rpc_client_new(ctx->loop, stream_from_fd(ctx->loop, fd));
    return 0;
}

void rpc_client_free(struct rpc_client *c)
{
    if (!c)
        return;
    c->closed = true;
    rpc_wire_cut(&c->wire);
    unref(c);
}

bool rpc_client_closed(const struct rpc_client *c)
{
    return c->closed;
}

void rpc_client_add_metadata(struct rpc_client *c, const char *key, const char *value)
{
    ttrpc_put_metadata(&c->metadata, key, value);
}

/* --- out --- */

static void writer_main(void *arg)
{
    struct rpc_client *c = arg;
    struct err err = ERR_INIT;

    (void)rpc_wire_drain(&c->ctx, &c->wire, &err); /* on failure the reader fails too and reports */
    unref(c);
}

static void kick(struct rpc_client *c)
{
    if (c->wire.writing)
        return;
    c->wire.writing = true;
    c->refs++;
    fiber_go(c->loop, writer_main, c, "rpc client writer");
}

static int64_t timeout_of(const struct ctx *ctx)
{
    uint64_t left = ctx_left(ctx);

    return left == UINT64_MAX ? 0 : left == 0 ? -1 : left > INT64_MAX ? INT64_MAX : (int64_t)left;
}

static int send_request(struct ctx *ctx, struct rpc_client *c, uint32_t id, const char *service,
                        const char *method, const void *req, struct err *err)
{
    AUTO(sbuf_release) struct sbuf payload = { 0 };
    struct sbuf frame = { 0 };

    if (pb_pack(req, &payload) < 0)
        return err_set(err, ERR_INVALID, "a string in the request is not UTF-8");
    rpc_frame_begin(&frame);
    ttrpc_put_request(&frame, &(struct ttrpc_request){
                                  .service = pb_slice_of(service),
                                  .method = pb_slice_of(method),
                                  .payload = { (uint8_t *)payload.data, payload.len },
                                  .timeout_nano = timeout_of(ctx),
                                  .metadata = { (uint8_t *)c->metadata.data, c->metadata.len } });
    switch (rpc_wire_put(&c->wire, &frame, id, TTRPC_REQUEST, 0)) {
    case 0:
        kick(c);
        return 0;
    case -EMSGSIZE:
        return err_set(err, ERR_EXHAUSTED,
                       "the request of %zu bytes exceeds the maximum message size", payload.len);
    case -ENOBUFS:
        return err_set(err, ERR_UNAVAILABLE, "the server does not read its requests");
    default:
        return err_set(err, ERR_UNAVAILABLE, CLOSED_TEXT);
    }
}

/* --- calls --- */

static int decode_answer(const struct call *call, const ProtobufCMessageDescriptor *type,
                         void **ret_resp, struct err *err)
{
    struct ttrpc_response r;

    if (call->failed == ERR_EXHAUSTED)
        return err_set(err, ERR_EXHAUSTED, "the answer exceeds the maximum message size");
    if (call->failed)
        return err_set(err, call->failed, CLOSED_TEXT);
    if (ttrpc_response_decode((struct pb_slice){ call->body, call->len }, &r) < 0)
        return err_set(err, ERR_INTERNAL, "the answer is not a ttrpc.Response");
    if (r.code != ERR_NONE) {
        char reason[64]; /* longer than every name */

        snprintf(reason, sizeof(reason), "%.*s", (int)r.reason.len,
                 r.reason.len ? (const char *)r.reason.data : "");

        return err_because(err, reason_parse(reason),
                           r.code < ERR_COUNT ? (enum err_code)r.code : ERR_UNKNOWN, "%.*s",
                           (int)(r.message.len < ERR_MSG_MAX ? r.message.len : ERR_MSG_MAX),
                           r.message.len ? (const char *)r.message.data : "");
    }
    if (ret_resp && pb_unpack(type, r.payload, PB_MEM_MAX, ret_resp, NULL) < 0)
        return err_set(err, ERR_INTERNAL, "the answer is not a %s", type->name);
    return 0;
}

int rpc_client_call(struct ctx *ctx, struct rpc_client *c, const char *service, const char *method,
                    const void *req, const ProtobufCMessageDescriptor *resp_type, void **ret_resp,
                    struct err *err)
{
    struct call call = { .id = c->next_id };
    int r = 0;

    if (c->closed || c->next_id == UINT32_MAX) /* ids are not reused */
        return err_set(err, ERR_UNAVAILABLE, CLOSED_TEXT);
    if (send_request(ctx, c, call.id, service, method, req, err) < 0)
        return -1;
    c->next_id += 2;
    c->refs++;
    waitq_init(&call.q);
    list_append(&c->calls, &call.node);
    while (r == 0 && !call.done)
        r = waitq_wait(ctx, &call.q, method, err);
    list_remove(&call.node);
    if (r == 0)
        r = decode_answer(&call, resp_type, ret_resp, err);
    free(call.body);
    unref(c);
    return r;
}
