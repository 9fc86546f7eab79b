/* Any bytes as what a guest sends after it has negotiated, with calls outstanding (ids 1 to 3).
 * Whatever it is, every call ends, and after close nothing is left. */
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "base/stream.h"
#include "fixture/fake_vmm.h"
#include "fixture/kept_spans.h"
#include "fuzz/on_fiber.h"
#include "host/bridge/bridge.h"
#include "host/bridge/guest.h"
#include "proto/bridge.h"
#include "proto/link.h"
#include <string.h>

#define CALLS 4
#define NEGOTIATED                                                                                 \
    "{\"Result\":0,\"Version\":4,\"Capabilities\":{\"RuntimeOsType\":\"Linux\","                   \
    "\"GuestDefinedCapabilities\":{}}}"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct bench {
    struct loop *loop;
    struct guest *guest;
    struct fibers calls;
    unsigned ended;
};

static void call(struct bench *b, int (*fn)(struct ctx *ctx, struct guest *g, struct err *err))
{
    struct ctx ctx = ctx_limited(b->loop, NS_PER_S);
    struct kept k = kept_with(b->loop);
    struct span traced;
    struct err err = ERR_INIT;

    (void)span_begin_request(&traced, &ctx, &k.sink, &(struct trace){ 0 }, true, "call");
    if (fn(&ctx, b->guest, &err) < 0 && (err.code == ERR_NONE || !err.msg[0]))
        abort();
    for (unsigned i = 0; i < k.n; i++) /* the guest's are within the call's time */
        if (k.spans[i].start < traced.start || k.spans[i].end < k.spans[i].start ||
            k.spans[i].end > loop_now(b->loop) || !str_utf8(k.names[i], 64, &(uint32_t){ 0 }))
            abort();
    b->ended++;
}

static int do_stacks(struct ctx *ctx, struct guest *g, struct err *err)
{
    AUTO_FREE char *text = NULL;

    return g->ops->dump_stacks(ctx, g, &text, err);
}

static int do_properties(struct ctx *ctx, struct guest *g, struct err *err)
{
    AUTO(json_decref) json_t *metrics = NULL;
    uint64_t scratch;

    return g->ops->read_stats(ctx, g, "c", &metrics, &scratch, err);
}

static int do_list(struct ctx *ctx, struct guest *g, struct err *err)
{
    AUTO_FREE struct guest_listed *v = NULL;
    size_t n = 0;

    if (g->ops->list_processes(ctx, g, "c", &v, &n, err) < 0)
        return -1;
    if (n > GUEST_LIST_MAX)
        abort();
    for (size_t i = 0; i < n; i++)
        if (v[i].pid == 0 || v[i].pid > GUEST_PID_MAX || (i > 0 && v[i].pid <= v[i - 1].pid))
            abort();
    return 0;
}

static int do_wait(struct ctx *ctx, struct guest *g, struct err *err)
{
    uint64_t wait_id = 0;
    uint32_t code = 0;

    return g->ops->wait_process(ctx, g, NULL, 1, GUEST_WAIT_FOREVER, &code, &wait_id, err);
}

static int do_connect(struct ctx *ctx, struct guest *g, struct err *err)
{
    return g->ops->connect(ctx, g, err);
}

static void stacks_main(void *arg)
{
    call(arg, do_stacks);
}

static void properties_main(void *arg)
{
    call(arg, do_properties);
}

static void list_main(void *arg)
{
    call(arg, do_list);
}

static void wait_main(void *arg)
{
    call(arg, do_wait);
}

static void connect_main(void *arg)
{
    call(arg, do_connect);
}

/* Answers the negotiation as a guest does. */
static void negotiate(struct ctx *ctx, struct stream *s)
{
    struct bridge_header h = { bridge_response_type(BRIDGE_NEGOTIATE_PROTOCOL),
                               BRIDGE_HEADER_BYTES + sizeof(NEGOTIATED) - 1, 0 };
    uint8_t raw[BRIDGE_HEADER_BYTES];
    struct err err = ERR_INIT;

    bridge_header_encode(&h, raw);
    if (stream_read_full(ctx, s, raw, 1, &err) < 0)
        abort(); /* the request must have left before its answer comes */
    bridge_header_encode(&h, raw);
    if (stream_write_full(ctx, s, raw, sizeof(raw), &err) < 0 ||
        stream_write_full(ctx, s, NEGOTIATED, sizeof(NEGOTIATED) - 1, &err) < 0)
        abort();
}

static void fuzz(void *arg)
{
    const struct fuzz_input *in = arg;
    struct bench b = { .loop = in->loop };
    struct ctx ctx = ctx_limited(in->loop, 10 * NS_PER_S);
    struct fake_vmm_opts opts = { .loop = in->loop, .stream_bytes = in->size + (1 << 16) };
    struct vmm *vmm = fake_vmm_new(&opts);
    struct vm_doc doc = { .id = "fuzz" };
    struct stream *s = NULL;
    struct err err = ERR_INIT;

    log_init(2, LOG_OFF, LOG_JSON);
    b.guest = bridge_new(in->loop, vmm, NULL);
    fibers_init(&b.calls);
    if (vmm->ops->create(&ctx, vmm, &doc, &err) < 0 ||
        b.guest->ops->prepare(&ctx, b.guest, &err) < 0 || fake_vmm_dial(vmm, PORT_BRIDGE, &s) < 0)
        abort();
    fibers_go(&b.calls, in->loop, connect_main, &b, "connect");
    negotiate(&ctx, s);
    if (fibers_wait(&ctx, &b.calls, "connect", &err) < 0 || !b.guest->ops->connected(b.guest))
        abort();
    fibers_go(&b.calls, in->loop, stacks_main, &b, "stacks");
    fibers_go(&b.calls, in->loop, properties_main, &b, "properties");
    fibers_go(&b.calls, in->loop, wait_main, &b, "wait");
    fibers_go(&b.calls, in->loop, list_main, &b, "list");
    if (fiber_sleep(&ctx, NS_PER_MS, &err) < 0)
        abort();
    if (in->size > 0)
        (void)stream_write_full(&ctx, s, in->data, in->size, &err); /* it may be closed by then */
    if (fibers_wait(&ctx, &b.calls, "calls", &err) < 0 || b.ended != CALLS + 1)
        abort();
    b.guest->ops->close(b.guest, "done");
    if (b.guest->ops->drain_log(&ctx, b.guest, &err) < 0)
        abort();
    stream_free(s);
    b.guest->ops->free(b.guest);
    vmm->ops->free(vmm);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return fuzz_on_fiber(fuzz, data, size);
}
