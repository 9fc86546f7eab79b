/* A stream of bridge frames as it comes from the other end. First byte: who reads it (host or
 * guest); then frames. Every header we accept we write back the same; every payload is decoded as
 * its reader would. */
#include "base/err.h"
#include "fuzz/on_fiber.h"
#include "proto/bridge.h"
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void host_reads(const struct bridge_header *h, const uint8_t *payload, size_t len)
{
    AUTO(bridge_response_release) struct bridge_response r = { 0 };
    uint32_t request_type = (h->type & 0x0fffffffu) | (uint32_t)BRIDGE_KIND_REQUEST << 28;
    struct err err = ERR_INIT;

    if (bridge_kind(h->type) != BRIDGE_KIND_NOTIFICATION)
        (void)bridge_response_decode(request_type, payload, len, &r, &err);
}

/* The guest answers every frame, and never with one that is too long. */
static void guest_reads(const struct bridge_header *h, const uint8_t *payload, size_t len)
{
    AUTO(bridge_request_release) struct bridge_request r = { 0 };
    AUTO(sbuf_release) struct sbuf out = { 0 };
    struct bridge_response response;
    struct bridge_header answer;
    struct err err = ERR_INIT;
    int result = bridge_request_decode(h->type, payload, len, &r, &err);

    response = bridge_response_for(&r);
    if (result < 0)
        bridge_response_fail(&response, &err);
    bridge_response_encode(&response, h->id, BRIDGE_MAX_RESPONSE, &out);
    if (bridge_header_decode((uint8_t *)out.data, BRIDGE_SIDE_HOST, BRIDGE_MAX_RESPONSE, &answer,
                             &err) < 0 ||
        answer.id != h->id || answer.size != out.len)
        abort();
}

static void fuzz(void *arg)
{
    const struct fuzz_input *in = arg;
    enum bridge_side side = in->data[0] & 1 ? BRIDGE_SIDE_GUEST : BRIDGE_SIDE_HOST;
    uint32_t max = side == BRIDGE_SIDE_GUEST ? BRIDGE_MAX_REQUEST : BRIDGE_MAX_RECEIVE;
    const uint8_t *p = in->data + 1;
    size_t left = in->size - 1;

    while (left >= BRIDGE_HEADER_BYTES) {
        uint8_t again[BRIDGE_HEADER_BYTES];
        struct bridge_header h;
        struct err err = ERR_INIT;

        if (bridge_header_decode(p, side, max, &h, &err) < 0)
            return;
        bridge_header_encode(&h, again);
        if (memcmp(again, p, sizeof(again)) != 0)
            abort();
        if (h.size > left)
            return; /* cut off */
        (side == BRIDGE_SIDE_GUEST ? guest_reads : host_reads)(&h, p + BRIDGE_HEADER_BYTES,
                                                               h.size - BRIDGE_HEADER_BYTES);
        p += h.size;
        left -= h.size;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return size ? fuzz_on_fiber(fuzz, data, size) : 0;
}
