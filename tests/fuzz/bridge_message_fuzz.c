/* Payloads of every bridge message, both directions. First byte: which message; the rest: its
 * JSON. What we decode we encode, decode and encode again: the two texts are the same. */
#include "base/err.h"
#include "fuzz/on_fiber.h"
#include "proto/bridge.h"
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const uint32_t types[] = {
    BRIDGE_CREATE,
    BRIDGE_START,
    BRIDGE_SHUTDOWN_GRACEFUL,
    BRIDGE_SHUTDOWN_FORCED,
    BRIDGE_EXECUTE_PROCESS,
    BRIDGE_WAIT_FOR_PROCESS,
    BRIDGE_SIGNAL_PROCESS,
    BRIDGE_RESIZE_CONSOLE,
    BRIDGE_GET_PROPERTIES,
    BRIDGE_MODIFY_SETTINGS,
    BRIDGE_NEGOTIATE_PROTOCOL,
    BRIDGE_DUMP_STACKS,
    BRIDGE_DELETE_CONTAINER_STATE,
    BRIDGE_UPDATE_CONTAINER,
    BRIDGE_LIFECYCLE_NOTIFICATION,
    BRIDGE_MODIFY_SERVICE_SETTINGS,
};
#define SELECT_PROPERTIES 0x41
#define SELECT_RESPONSE 0x80 /* else a request */

static void must(bool ok)
{
    if (!ok)
        abort();
}

/* In OCI values kept as JSON -0.0 is written "-0" and reads back as 0; nothing else may change. */
static void must_be_equal(const struct sbuf *a, const struct sbuf *b)
{
    must((a->len == b->len && memcmp(a->data, b->data, a->len) == 0) ||
         memmem(a->data, a->len, ":-0", 3) || memmem(a->data, a->len, ",-0", 3) ||
         memmem(a->data, a->len, "[-0", 3));
}

static const char *payload(const struct sbuf *frame)
{
    return frame->data + BRIDGE_HEADER_BYTES;
}

static size_t payload_len(const struct sbuf *frame)
{
    return frame->len - BRIDGE_HEADER_BYTES;
}

static void answer(const struct bridge_request *r, const struct err *err)
{
    AUTO(sbuf_release) struct sbuf out = { 0 };
    struct bridge_response response = bridge_response_for(r);

    bridge_response_fail(&response, err);
    bridge_response_encode(&response, 1, BRIDGE_MAX_RESPONSE, &out);
    must(out.len <= BRIDGE_MAX_RESPONSE);
}

static void request(uint32_t type, const char *text, size_t len)
{
    AUTO(bridge_request_release) struct bridge_request a = { 0 }, b = { 0 };
    AUTO(sbuf_release) struct sbuf x = { 0 }, y = { 0 };
    struct err err = ERR_INIT;

    if (bridge_request_decode(type, text, len, &a, &err) < 0) {
        answer(&a, &err);
        return;
    }
    must(bridge_request_encode(&a, 1, &x, &err) == 0);
    must(bridge_request_decode(type, payload(&x), payload_len(&x), &b, &err) == 0);
    must(bridge_request_encode(&b, 1, &y, &err) == 0);
    must_be_equal(&x, &y);
}

static void response(uint32_t type, const char *text, size_t len)
{
    AUTO(bridge_response_release) struct bridge_response a = { 0 }, b = { 0 };
    AUTO(sbuf_release) struct sbuf x = { 0 }, y = { 0 };
    struct err err = ERR_INIT;

    if (bridge_response_decode(type, text, len, &a, &err) < 0)
        return;
    bridge_response_encode(&a, 1, BRIDGE_MAX_RESPONSE, &x);
    must(x.len <= BRIDGE_MAX_RESPONSE);
    must(bridge_response_decode(type, payload(&x), payload_len(&x), &b, &err) == 0);
    bridge_response_encode(&b, 1, BRIDGE_MAX_RESPONSE, &y);
    must_be_equal(&x, &y);
}

static void properties(const char *text, size_t len)
{
    AUTO(bridge_properties_release) struct bridge_properties a = { 0 }, b = { 0 };
    AUTO_FREE char *in = str_ndup(text, len), *x = NULL, *y = NULL;
    struct err err = ERR_INIT;

    if (bridge_properties_decode(in, &a, &err) < 0)
        return;
    x = bridge_properties_encode(&a);
    must(bridge_properties_decode(x, &b, &err) == 0);
    y = bridge_properties_encode(&b);
    must(str_eq(x, y) || strstr(x, "-0"));
}

static void fuzz(void *arg)
{
    const struct fuzz_input *in = arg;
    const char *text = (const char *)in->data + 1;
    uint8_t select = in->data[0];
    uint32_t type = types[select % ARRAY_LEN(types)];

    if (select == SELECT_PROPERTIES)
        properties(text, in->size - 1);
    else if (select & SELECT_RESPONSE)
        response(type, text, in->size - 1);
    else
        request(type, text, in->size - 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return size ? fuzz_on_fiber(fuzz, data, size) : 0;
}
