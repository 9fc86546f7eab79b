/* Any bytes as the guest's log stream. It is read to its end, and every stage that reaches the
 * timeline lies between our beginning and now. */
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/span.h"
#include "base/stream.h"
#include "fixture/stream_pair.h"
#include "fuzz/on_fiber.h"
#include "host/bridge/guestlog.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fuzz(void *arg)
{
    const struct fuzz_input *in = arg;
    struct loop *loop = in->loop;
    struct ctx ctx = ctx_root(loop);
    struct timeline t = { 0 };
    struct guestlog l;
    struct stream *a, *b;
    struct err err = ERR_INIT;

    log_init(2, LOG_OFF, LOG_JSON);
    guestlog_init(&l, &t, loop_now(loop));
    stream_pair(loop, in->size + 1, &a, &b);
    if (in->size > 0 && stream_write_full(&ctx, a, in->data, in->size, &err) < 0)
        abort();
    stream_free(a);
    if (guestlog_read(&ctx, &l, b, &err) < 0)
        abort(); /* the stream itself is sound */
    stream_free(b);
    guestlog_flush(&l, loop_now(loop));
    for (unsigned i = 0; i < t.n; i++)
        if (t.spans[i].start < l.floor_ns || t.spans[i].end < t.spans[i].start ||
            t.spans[i].end > loop_now(loop))
            abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return fuzz_on_fiber(fuzz, data, size);
}
