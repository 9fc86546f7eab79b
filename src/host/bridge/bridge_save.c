/* bridge_save.c - the bridge in saved state: a guest that is connected, and of whose calls only
 * waits are outstanding. Half a frame and half a log line are saved as they are. Not saved: boot
 * stages (they are in the timeline since the guest connected), the rate of log lines within this
 * second, and pauses of a reader that is too fast: the buckets have its debt. The VMM must be read
 * first. */
#include "base/err.h"
#include "base/loop.h"
#include "base/saved.h"
#include "base/stream.h"
#include "base/waits.h"
#include "host/bridge/bridge_priv.h"
#include "host/vmm/vmm.h"
#include "proto/link.h"
#include <string.h>

static void call_saved(struct saved *s, struct bridge_call *c)
{
    struct sbuf payload = { .data = c->payload, .len = c->len };

    if (!c->waits)
        saved_fail(s, "a call to the guest is not answered yet");
    saved_u64(s, 1, &c->id);
    saved_bool(s, 2, &c->done);
    saved_sbuf(s, 3, &payload);
    if (saved_reads(s) && c->done) {
        c->len = payload.len;
        sbuf_addc(&payload, '\0');
        c->payload = payload.data;
    }
}

static struct bridge_call *park(struct bridge *b)
{
    struct bridge_call *c = mem_new(struct bridge_call);

    c->waits = c->parked = true;
    waitq_init(&c->q);
    list_append(&b->calls, &c->node);
    return c;
}

static void calls_saved(struct saved *s, struct bridge *b)
{
    if (saved_reads(s)) {
        while (saved_open(s, 1)) {
            call_saved(s, park(b));
            saved_close(s);
        }
        return;
    }
    LIST_FOR (struct bridge_call, c, &b->calls, node) {
        saved_open(s, 1);
        call_saved(s, c);
        saved_close(s);
    }
}

static void abandoned_saved(struct saved *s, struct bridge *b)
{
    size_t n = saved_count(s, 2, b->n_abandoned);

    for (size_t i = 0; i < n && saved_open(s, 2); i++) {
        if (saved_reads(s)) {
            b->abandoned =
                mem_grow(b->abandoned, b->n_abandoned, &b->abandoned_cap, sizeof(*b->abandoned));
            b->abandoned[b->n_abandoned++] = 0;
        }
        saved_u64(s, 1, &b->abandoned[i]);
        saved_close(s);
    }
}

/* The guest decided how long it is: its header is checked again. */
static void body_resume(struct saved *s, struct bridge_in *in, const struct sbuf *body)
{
    struct bridge_header h;
    struct err err = ERR_INIT;

    if (!in->admitted)
        return;
    if (in->n_raw != sizeof(in->raw) ||
        bridge_header_decode(in->raw, BRIDGE_SIDE_HOST, BRIDGE_MAX_RECEIVE, &h, &err) < 0 ||
        in->n_body > h.size - BRIDGE_HEADER_BYTES || (!in->unneeded && body->len != in->n_body)) {
        saved_fail(s, "a frame of the guest is damaged");
        return;
    }
    if (in->unneeded)
        return;
    in->body = mem_alloc(h.size - BRIDGE_HEADER_BYTES + 1);
    if (body->len > 0)
        memcpy(in->body, body->data, body->len);
}

static void in_saved(struct saved *s, uint32_t field, struct bridge_in *in)
{
    struct sbuf body = { .data = in->body, .len = in->body ? in->n_body : 0 };

    if (!saved_open(s, field))
        return;
    saved_bytes(s, 1, in->raw, sizeof(in->raw));
    saved_size(s, 2, &in->n_raw);
    saved_bool(s, 3, &in->admitted);
    saved_bool(s, 4, &in->unneeded);
    saved_size(s, 5, &in->n_body);
    saved_sbuf(s, 6, &body);
    saved_close(s);
    if (!saved_reads(s))
        return;
    if (in->n_raw > sizeof(in->raw))
        saved_fail(s, "the header of a frame has %zu bytes", in->n_raw);
    body_resume(s, in, &body);
    sbuf_release(&body);
}

static void caps_saved(struct saved *s, uint32_t field, struct bridge_caps *c)
{
    if (!saved_open(s, field))
        return;
    saved_bool(s, 1, &c->namespace_add);
    saved_bool(s, 2, &c->signal_process);
    saved_bool(s, 3, &c->dump_stacks);
    saved_bool(s, 4, &c->delete_container_state);
    saved_bool(s, 5, &c->holder);
    saved_close(s);
}

static void log_saved(struct saved *s, uint32_t field, struct guestlog *l)
{
    if (!saved_open(s, field))
        return;
    saved_u64(s, 1, &l->floor_ns);
    saved_u64(s, 2, &l->slow.full_at_ns);
    saved_u64(s, 3, &l->parsed.full_at_ns);
    saved_u64(s, 4, &l->read.full_at_ns);
    saved_u64(s, 5, &l->lost);
    saved_bool(s, 6, &l->have_offset);
    saved_i64(s, 7, &l->offset);
    saved_sbuf(s, 8, &l->line);
    saved_bool(s, 9, &l->skipping);
    saved_bool(s, 10, &l->last_words);
    saved_close(s);
    l->flushed = true; /* when the guest connected */
}

/* A port that the guest has not dialled: a clone has its seed from its boot block. */
static void port_saved(struct saved *s, uint32_t field, struct bridge *b, uint32_t port,
                       bool is_open, struct vmm_listener **listener)
{
    struct err err = ERR_INIT;

    saved_bool(s, field, &is_open);
    if (saved_reads(s) && is_open && saved_check(s, &err) == 0 &&
        b->vmm->ops->listen(b->vmm, port, listener, &err) < 0)
        saved_fail(s, "listen on port %u of the guest: %s", port, err.msg);
}

static void resume(struct bridge *b)
{
    b->prepared = b->connected = true;
    b->stream_users = 2;
    bridge_go(b, bridge_writer_main, FIBER_BRIDGE_WRITE);
    bridge_go(b, bridge_reader_main, FIBER_BRIDGE_READ);
    if (b->log_stream || b->log_listener)
        bridge_go(b, bridge_log_main, FIBER_BRIDGE_LOG);
    if (b->entropy_listener)
        bridge_go(b, bridge_entropy_main, FIBER_BRIDGE_ENTROPY);
}

void bridge_ops_saved(struct guest *g, struct saved *s)
{
    struct bridge *b = bridge_of(g);
    bool reads = saved_reads(s);
    struct err err = ERR_INIT;

    if (reads)
        guestlog_init(&b->log, b->timeline, loop_now(b->loop));
    else if (!b->connected)
        saved_fail(s, "the guest is %s", b->closed ? b->why : "not connected");
    else if (!list_empty(&b->queue))
        saved_fail(s, "a message to the guest is not sent yet");
    calls_saved(s, b);
    abandoned_saved(s, b);
    saved_stream(s, 3, "the bridge", b->loop, &b->stream);
    saved_u64(s, 4, &b->next_id);
    in_saved(s, 5, &b->in);
    saved_u64(s, 6, &b->unasked.full_at_ns);
    saved_u64(s, 7, &b->unasked_bytes.full_at_ns);
    saved_u32(s, 8, &b->next_port);
    caps_saved(s, 9, &b->caps);
    saved_stream(s, 10, "the guest's log", b->loop, &b->log_stream);
    log_saved(s, 11, &b->log);
    saved_bool(s, 12, &b->log_open);
    saved_bool(s, 13, &b->log_lost);
    saved_bool(s, 14, &b->log_ended.set);
    port_saved(s, 15, b, PORT_ENTROPY, b->entropy_awaited, &b->entropy_listener);
    port_saved(s, 16, b, PORT_LOG, !b->log_open && !b->log_lost && !b->log_ended.set,
               &b->log_listener);
    if (!reads || saved_check(s, &err) < 0)
        return;
    if (b->stream)
        resume(b);
    else
        saved_fail(s, "the bridge has no stream");
}
