/* svc_peer.c - containerd's ttrpc socket, where events arrive. What it read it has; what it does
 * not answer in time, or at all, comes again. */
#include "api/forward.pb-c.h"
#include "api/types.pb-c.h"
#include "base/loop.h"
#include "base/stream.h"
#include "fixture/stream_pair.h"
#include "fixture/ttrpc_read.h"
#include "host/rpc/rpc_client.h"
#include "proto/pb.h"
#include "proto/ttrpc.h"
#include "svc_priv.h"
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define EVENTS_SERVICE "containerd.services.events.ttrpc.v1.Events"
#define PATIENCE (5 * NS_PER_S) /* of the publisher, for one answer */

/* One fiber reads, another handles: what came before an answer was sent came because there was
 * none. */
struct frame {
    struct list node;
    uint32_t stream;
    uint64_t at_ns, tick; /* of its arrival */
    uint8_t *body;
    size_t len;
};

struct peer_conn {
    struct list node;
    unsigned refs;
    struct svc *s;
    struct stream *stream;
    struct list frames;
    bool ended;
    struct waitq q;
};

void svc_peer_init(struct svc *s)
{
    list_init(&s->peer.conns);
}

void svc_peer_release(struct svc *s)
{
    sbuf_release(&s->peer.last);
}

void svc_peer_lose(struct svc *s)
{
    LIST_EACH (&s->peer.conns, pos)
        (void)stream_shutdown(LIST_ENTRY(pos, struct peer_conn, node)->stream, SHUT_RDWR);
}

void svc_peer_hang_up(struct svc *s)
{
    svc_peer_lose(s);
    s->peer.disturbed = true;
}

/* --- an event --- */

static void take_event(struct svc *s, const struct ttrpc_request *r, uint64_t tick)
{
    struct svc_peer *p = &s->peer;
    AUTO(pb_free) ForwardRequest *req = NULL;
    bool again =
        p->last.len == r->payload.len && memcmp(p->last.data, r->payload.data, p->last.len) == 0;
    uint64_t at;

    if (pb_unpack(&forward_request__descriptor, r->payload, PB_MEM_MAX, (void **)&req, NULL) < 0 ||
        !req->envelope || !req->envelope->event) {
        world_broken(&s->w, "an event is not an envelope");
        return;
    }
    /* Two may be alike, at one moment; that none came twice is seen by their number. */
    again = again && (!p->last_sure || p->disturbed || tick < p->last_sure_tick);
    world_say(&s->w, "event %s%s", req->envelope->topic, again ? ", again" : "");
    p->n_again += again;
    if (again)
        return;
    at = pb_time(req->envelope->timestamp);
    if (!str_eq(req->envelope->namespace_, "sim") || at == 0)
        world_broken(&s->w, "event %s has no namespace or time", req->envelope->topic);
    if (at < p->last_wall && !s->clock_was_set)
        world_broken(&s->w, "event %s is older than the one before it", req->envelope->topic);
    p->last_wall = at;
    p->last.len = 0;
    sbuf_add(&p->last, r->payload.data, r->payload.len);
    p->last_sure = false;
    p->n_events++;
    svc_laws_event(s, req->envelope->topic, req->envelope->event);
}

/* --- a connection --- */

enum manner { ANSWER, REFUSE, LATE, NEVER, BREAK_OFF, HALF_AN_ANSWER, MANNERS };

static int answer(struct ctx *ctx, struct peer_conn *c, uint32_t stream, enum manner how,
                  struct err *err)
{
    static const char room[TTRPC_HEADER_BYTES];
    AUTO(sbuf_release) struct sbuf frame = { 0 };
    struct ttrpc_response r = { 0 };

    if (how == REFUSE) {
        r.code = ERR_UNAVAILABLE;
        r.message = pb_slice_of("containerd is loading");
    }
    sbuf_add(&frame, room, sizeof(room));
    ttrpc_put_response(&frame, &r);
    ttrpc_header_encode(&(struct ttrpc_header){ (uint32_t)(frame.len - TTRPC_HEADER_BYTES), stream,
                                                TTRPC_RESPONSE, 0 },
                        (uint8_t *)frame.data);
    if (how == HALF_AN_ANSWER)
        frame.len = 1 + world_below(&c->s->w, (unsigned)frame.len - 1);
    if (stream_write_full(ctx, c->stream, frame.data, frame.len, err) < 0)
        return -1;
    return how == HALF_AN_ANSWER ? -1 : 0;
}

static int handle(struct ctx *ctx, struct peer_conn *c, const struct frame *f, struct err *err)
{
    struct svc *s = c->s;
    struct svc_peer *p = &s->peer;
    enum manner how = p->sloppy && world_chance(&s->w, 400)
                          ? (enum manner)(1 + world_below(&s->w, MANNERS - 1))
                          : ANSWER;
    struct ttrpc_request r;
    struct pb_slice ns;

    if (ttrpc_request_decode((struct pb_slice){ f->body, f->len }, &r) < 0 ||
        !pb_slice_is(r.service, EVENTS_SERVICE) || !pb_slice_is(r.method, "Forward") ||
        !ttrpc_metadata_get((struct pb_slice){ f->body, f->len }, "containerd-namespace-ttrpc",
                            &ns) ||
        !pb_slice_is(ns, "sim")) {
        world_broken(&s->w, "containerd was called with something else than Forward in sim");
        return -1;
    }
    if (how == NEVER) /* it hangs before it has looked at the event */
        return 0;
    if (how != REFUSE)
        take_event(s, &r, f->tick);
    if (how == LATE) {
        p->stalled++;
        (void)fiber_sleep(ctx, rng_below(&s->w.rng, 2 * PATIENCE), err);
        p->stalled--;
    }
    if (how == BREAK_OFF || answer(ctx, c, f->stream, how, err) < 0)
        return -1;
    if (how != REFUSE && loop_now(s->w.loop) - f->at_ns < PATIENCE) {
        p->last_sure = true;
        p->last_sure_tick = ++p->ticks;
        p->disturbed = false;
    }
    return 0;
}

static void conn_unref(struct peer_conn *c)
{
    if (--c->refs > 0)
        return;
    while (!list_empty(&c->frames)) {
        struct frame *f = LIST_FIRST(&c->frames, struct frame, node);

        list_remove(&f->node);
        free(f->body);
        free(f);
    }
    stream_free(c->stream);
    free(c);
}

static int read_one(struct ctx *ctx, struct peer_conn *c, struct err *err)
{
    uint8_t raw[TTRPC_HEADER_BYTES];
    struct ttrpc_header h;
    struct frame *f;

    if (stream_read_full(ctx, c->stream, raw, sizeof(raw), err) < 0)
        return -1;
    ttrpc_header_decode(raw, &h);
    if (h.type != TTRPC_REQUEST || h.stream % 2 == 0 || h.len > TTRPC_BODY_MAX) {
        world_broken(&c->s->w, "containerd got a frame of type %u on stream %u", h.type, h.stream);
        return -1;
    }

    AUTO_FREE uint8_t *body = mem_alloc(h.len + 1);

    if (stream_read_full(ctx, c->stream, body, h.len, err) < 0)
        return -1;
    f = mem_new(struct frame);
    *f = (struct frame){
        .stream = h.stream,
        .at_ns = loop_now(ctx->loop),
        .body = TAKE_PTR(body),
        .len = h.len,
        .tick = ++c->s->peer.ticks,
    };
    list_append(&c->frames, &f->node);
    waitq_wake_all(&c->q);
    return 0;
}

static void reader_main(void *arg)
{
    struct peer_conn *c = arg;
    struct ctx ctx = ctx_root(c->s->w.loop);
    struct err err = ERR_INIT;

    while (read_one(&ctx, c, &err) == 0)
        ;
    c->ended = true;
    waitq_wake_all(&c->q);
    conn_unref(c);
}

static void handler_main(void *arg)
{
    struct peer_conn *c = arg;
    struct ctx ctx = ctx_root(c->s->w.loop);
    struct err err = ERR_INIT;
    int r = 0;

    while (r == 0 && !c->ended) {
        struct frame *f;

        if (c->s->peer.deaf) {
            (void)waitq_wait(&ctx, &c->s->back, "containerd hears", &err);
            continue;
        }
        if (list_empty(&c->frames)) {
            (void)waitq_wait(&ctx, &c->q, "events", &err);
            continue;
        }
        f = LIST_FIRST(&c->frames, struct frame, node);
        list_remove(&f->node);
        r = handle(&ctx, c, f, &err);
        free(f->body);
        free(f);
    }
    (void)stream_shutdown(c->stream, SHUT_RDWR);
    list_remove(&c->node);
    conn_unref(c);
}

int svc_peer_connect(struct ctx *ctx, void *arg, struct rpc_client **ret, struct err *err)
{
    struct svc *s = arg;
    struct peer_conn *c;
    struct stream *theirs;

    (void)ctx;
    if (s->peer.away)
        return err_set(err, ERR_UNAVAILABLE, "containerd is not there");
    c = mem_new(struct peer_conn);
    c->s = s;
    c->refs = 2;
    list_init(&c->frames);
    waitq_init(&c->q);
    stream_pair(s->w.loop, 4096, &theirs, &c->stream);
    list_append(&s->peer.conns, &c->node);
    fibers_go(&s->helpers, s->w.loop, reader_main, c, "sim.peer reader");
    fibers_go(&s->helpers, s->w.loop, handler_main, c, "sim.peer events");
    *ret = rpc_client_new(s->w.loop, theirs);
    return 0;
}
