/* A stream of ttrpc frames. What we read as a frame is what we write; a request or response that
 * we take and write again gives the same fields. */
#include "fixture/ttrpc_read.h"
#include "fuzz/on_fiber.h"
#include <string.h>

#define SLICE(b) ((struct pb_slice){ (const uint8_t *)(b).data, (b).len })

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void same(struct pb_slice a, struct pb_slice b)
{
    if (a.len != b.len || (a.len > 0 && memcmp(a.data, b.data, a.len) != 0))
        abort();
}

static void request(struct pb_slice body)
{
    AUTO(sbuf_release) struct sbuf out = { 0 };
    struct ttrpc_request r, again;

    if (ttrpc_request_decode(body, &r) < 0)
        return;
    ttrpc_put_request(&out, &r);
    if (ttrpc_request_decode(SLICE(out), &again) < 0 || again.timeout_nano != r.timeout_nano)
        abort();
    same(r.service, again.service);
    same(r.method, again.method);
    same(r.payload, again.payload);
}

static void response(struct pb_slice body)
{
    AUTO(sbuf_release) struct sbuf out = { 0 };
    struct ttrpc_response r, again;

    if (ttrpc_response_decode(body, &r) < 0)
        return;
    ttrpc_put_response(&out, &r);
    if (ttrpc_response_decode(SLICE(out), &again) < 0 || again.code != r.code)
        abort();
    same(r.payload, again.payload);
    if (r.code != 0 && r.message.len <= TTRPC_MESSAGE_MAX)
        same(r.message, again.message);
}

static void fuzz(void *arg)
{
    const struct fuzz_input *in = arg;
    const uint8_t *p = in->data;
    size_t left = in->size, used;
    struct ttrpc_frame f;

    for (; ttrpc_frame_decode(p, left, &f, &used) == 0; p += used, left -= used) {
        uint8_t again[TTRPC_HEADER_BYTES];

        ttrpc_header_encode(
            &(struct ttrpc_header){ (uint32_t)f.body.len, f.stream, f.type, f.flags }, again);
        if (memcmp(again, p, sizeof(again)) != 0)
            abort();
        if (f.type == TTRPC_REQUEST)
            request(f.body);
        else
            response(f.body);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return fuzz_on_fiber(fuzz, data, size);
}
