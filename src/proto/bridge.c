#include "proto/bridge.h"
#include "base/err.h"
#include "proto/bridge_priv.h"
#include <endian.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* --- frames ---------------------------------------------------------------------------------- */

/* As it is sent: numbers are little-endian. */
struct wire_header {
    uint32_t type, size;
    uint64_t id;
};
_Static_assert(sizeof(struct wire_header) == BRIDGE_HEADER_BYTES, "the header has no gaps");

void bridge_header_encode(const struct bridge_header *h, uint8_t out[BRIDGE_HEADER_BYTES])
{
    const struct wire_header w = { htole32(h->type), htole32(h->size), htole64(h->id) };

    memcpy(out, &w, sizeof(w));
}

int bridge_header_decode(const uint8_t in[BRIDGE_HEADER_BYTES], enum bridge_side receiver,
                         uint32_t max, struct bridge_header *ret, struct err *err)
{
    struct wire_header w;

    memcpy(&w, in, sizeof(w));
    struct bridge_header h = { le32toh(w.type), le32toh(w.size), le64toh(w.id) };

    if (h.size < BRIDGE_HEADER_BYTES || h.size > max)
        return err_set(err, ERR_INVALID,
                       "bridge frame of type 0x%08x has invalid size %u: must be %u–%u bytes",
                       h.type, h.size, BRIDGE_HEADER_BYTES, max);
    if (receiver == BRIDGE_SIDE_HOST && bridge_kind(h.type) != BRIDGE_KIND_RESPONSE &&
        h.type != BRIDGE_CONTAINER_NOTIFICATION)
        return err_set(err, ERR_INVALID,
                       "invalid bridge frame of type 0x%08x: the guest may send only responses and "
                       "container notifications",
                       h.type);
    *ret = h;
    return 0;
}

void bridge_frame_add(struct sbuf *out, uint32_t type, uint64_t id, struct jsw *w, bool line_feed)
{
    AUTO_FREE char *payload = NULL;
    uint8_t header[BRIDGE_HEADER_BYTES];
    size_t len;

    payload = jsw_take(w, &len);
    bridge_header_encode(
        &(struct bridge_header){
            .type = type, .size = (uint32_t)(BRIDGE_HEADER_BYTES + len + line_feed), .id = id },
        header);
    sbuf_add(out, header, sizeof(header));
    sbuf_add(out, payload, len);
    if (line_feed)
        sbuf_addc(out, '\n');
}

/* --- results --------------------------------------------------------------------------------- */

static const struct {
    uint32_t hr;
    enum err_code code;
} hr_codes[] = {
    { BRIDGE_HR_NOT_IMPLEMENTED, ERR_UNIMPLEMENTED },
    { BRIDGE_HR_FAIL, ERR_UNKNOWN },
    { BRIDGE_HR_INVALID_ARGUMENT, ERR_INVALID },
    { BRIDGE_HR_NOT_FOUND, ERR_NOT_FOUND },
    { BRIDGE_HR_INVALID_STATE, ERR_STATE },
    { BRIDGE_HR_HOST_INVALID_STATE, ERR_STATE },
    { BRIDGE_HR_TIMEOUT, ERR_DEADLINE },
    { BRIDGE_HR_UNKNOWN_MESSAGE, ERR_UNIMPLEMENTED },
    { BRIDGE_HR_UNSUPPORTED_VERSION, ERR_UNIMPLEMENTED },
    { BRIDGE_HR_INVALID_JSON, ERR_INVALID },
    { BRIDGE_HR_NO_CONTAINER, ERR_NOT_FOUND },
    { BRIDGE_HR_CONTAINER_EXISTS, ERR_EXISTS },
    { BRIDGE_HR_NOT_RUNNING, ERR_STATE },
};

static enum err_code code_of_hr(uint32_t hr)
{
    for (size_t i = 0; i < ARRAY_LEN(hr_codes); i++)
        if (hr_codes[i].hr == hr)
            return hr_codes[i].code;
    return ERR_UNKNOWN;
}

void bridge_hr_text(uint32_t hr, char buf[BRIDGE_HR_TEXT_SIZE])
{
    snprintf(buf, BRIDGE_HR_TEXT_SIZE, "HRESULT: 0x%08" PRIx32, hr);
}

int bridge_err(struct err *err, uint32_t hr, const char *fmt, ...)
{
    AUTO_FREE char *text = NULL;
    va_list ap;

    va_start(ap, fmt);
    text = str_vformat(fmt, ap);
    va_end(ap);
    err_set(err, code_of_hr(hr), "%s", text);
    /* An untrusted guest may report a failure with a success code. */
    err->sys = (int32_t)((int32_t)hr < 0 ? hr : BRIDGE_HR_FAIL);
    return -1;
}

uint32_t bridge_hr(const struct err *err)
{
    return err->sys < 0 ? (uint32_t)err->sys : BRIDGE_HR_FAIL;
}

/* --- requests -------------------------------------------------------------------------------- */

int bridge_request_encode(const struct bridge_request *r, uint64_t id, struct sbuf *out,
                          struct err *err)
{
    const struct bridge_message *message = bridge_message_find(r->type);
    AUTO(jsw_release) struct jsw w = { 0 };
    struct bridge_request base = *r;

    if (!message || bridge_kind(r->type) != BRIDGE_KIND_REQUEST)
        return err_set(err, ERR_INVALID, "0x%08x is not a bridge request", r->type);
    if (!base.activity_id)
        base.activity_id = BRIDGE_NULL_ID;
    jsw_init(&w, JSW_PLAIN); /* the host's outer encoding leaves < > & alone */
    jsw_obj(&w, NULL);
    bridge_fields_encode(&w, &bridge_request_base, &base);
    bridge_fields_encode(&w, message->request, &base);
    jsw_end_obj(&w);
    if (w.out.len > BRIDGE_MAX_REQUEST - BRIDGE_HEADER_BYTES - 1)
        return err_set(err, ERR_EXHAUSTED, "%s request is too long: %zu bytes, at most %u",
                       message->name, w.out.len, BRIDGE_MAX_REQUEST);
    bridge_frame_add(out, r->type, id, &w, BRIDGE_LINE_FEED);
    return 0;
}

static int decode_request(uint32_t type, const char *payload, size_t len,
                          struct bridge_request *ret, struct err *err)
{
    const struct bridge_message *message = bridge_message_find(type);
    const json_t *root = NULL;
    int r = bridge_text_parse(ret->mem, payload, len, &root, err);

    if (r == 0)
        r = bridge_fields_decode(ret->mem, root, &bridge_request_base, ret, err);
    if (!message || !message->linux_guest || bridge_kind(type) != BRIDGE_KIND_REQUEST)
        return bridge_err(err, BRIDGE_HR_NOT_IMPLEMENTED,
                          "message type 0x%08x (%s) is not implemented", type,
                          bridge_message_name(type));
    if (r < 0)
        return -1;
    bridge_fields_default(message->request, ret);
    if (bridge_fields_decode(ret->mem, root, message->request, ret, err) < 0)
        return -1;
    return message->check ? message->check(ret, err) : 0;
}

int bridge_request_decode(uint32_t type, const void *payload, size_t len,
                          struct bridge_request *ret, struct err *err)
{
    *ret = (struct bridge_request){ .type = type, .mem = bridge_mem_new() };
    bridge_fields_default(&bridge_request_base, ret);
    if (decode_request(type, payload, len, ret, err) == 0)
        return 0;
    if (err->sys >= 0) /* from the JSON code, which does not set an HRESULT */
        err->sys = (int32_t)BRIDGE_HR_INVALID_JSON;
    return err_wrap(err, "%s request", bridge_message_name(type));
}

void bridge_request_release(struct bridge_request *r)
{
    bridge_mem_free(r->mem);
    *r = (struct bridge_request){ 0 };
}
