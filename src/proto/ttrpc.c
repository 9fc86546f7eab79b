/* ttrpc.c - frames, Request, Response, google.rpc.Status, KeyValue. */
#include "proto/ttrpc.h"
#include <endian.h>
#include <errno.h>
#include <string.h>

enum { REQ_SERVICE = 1, REQ_METHOD, REQ_PAYLOAD, REQ_TIMEOUT, REQ_METADATA };
enum { RESP_STATUS = 1, RESP_PAYLOAD };
enum { STATUS_CODE = 1, STATUS_MESSAGE };
enum { RESP_REASON = 1000 }; /* docs/decisions/0037-reasons-in-answers.md */
enum { PAIR_KEY = 1, PAIR_VALUE };

void ttrpc_header_decode(const uint8_t bytes[TTRPC_HEADER_BYTES], struct ttrpc_header *ret)
{
    uint32_t words[2];

    memcpy(words, bytes, sizeof(words));
    *ret = (struct ttrpc_header){ be32toh(words[0]), be32toh(words[1]), bytes[8], bytes[9] };
}

void ttrpc_header_encode(const struct ttrpc_header *h, uint8_t bytes[TTRPC_HEADER_BYTES])
{
    const uint32_t words[2] = { htobe32(h->len), htobe32(h->stream) };

    memcpy(bytes, words, sizeof(words));
    bytes[8] = h->type;
    bytes[9] = h->flags;
}

/* A field of the wrong wire type is an unknown field. */
static bool is(const struct pb_field *f, uint32_t number, enum pb_wire wire)
{
    return f->number == number && f->wire == wire;
}

int ttrpc_request_decode(struct pb_slice body, struct ttrpc_request *ret)
{
    struct pb_reader r = pb_reader_of(body);
    struct pb_field f;
    int more;

    *ret = (struct ttrpc_request){ 0 };
    while ((more = pb_next(&r, &f)) > 0) {
        if (is(&f, REQ_SERVICE, PB_BYTES))
            ret->service = f.bytes;
        else if (is(&f, REQ_METHOD, PB_BYTES))
            ret->method = f.bytes;
        else if (is(&f, REQ_PAYLOAD, PB_BYTES))
            ret->payload = f.bytes;
        else if (is(&f, REQ_TIMEOUT, PB_VARINT))
            ret->timeout_nano = (int64_t)f.value;
    }
    if (more < 0 || !pb_text_ok(ret->service) || !pb_text_ok(ret->method))
        return -EBADMSG;
    return 0;
}

struct pb_slice ttrpc_metadata(struct pb_slice body, const char *key)
{
    struct pb_reader r = pb_reader_of(body);
    struct pb_field f, part;

    while (pb_next(&r, &f) > 0) {
        struct pb_reader pair = pb_reader_of(f.bytes);
        struct pb_slice name = { 0 }, value = { 0 };

        if (!is(&f, REQ_METADATA, PB_BYTES))
            continue;
        while (pb_next(&pair, &part) > 0) {
            if (is(&part, PAIR_KEY, PB_BYTES))
                name = part.bytes;
            else if (is(&part, PAIR_VALUE, PB_BYTES))
                value = part.bytes;
        }
        if (pb_slice_is(name, key))
            return value;
    }
    return (struct pb_slice){ 0 };
}

static int status_decode(struct pb_slice status, struct ttrpc_response *ret)
{
    struct pb_reader r = pb_reader_of(status);
    struct pb_field f;
    int more;

    while ((more = pb_next(&r, &f)) > 0) {
        if (is(&f, STATUS_CODE, PB_VARINT))
            ret->code = (uint32_t)f.value;
        else if (is(&f, STATUS_MESSAGE, PB_BYTES))
            ret->message = f.bytes;
    }
    return more;
}

int ttrpc_response_decode(struct pb_slice body, struct ttrpc_response *ret)
{
    struct pb_reader r = pb_reader_of(body);
    struct pb_field f;
    int more;

    *ret = (struct ttrpc_response){ 0 };
    while ((more = pb_next(&r, &f)) > 0) {
        if (is(&f, RESP_PAYLOAD, PB_BYTES))
            ret->payload = f.bytes;
        else if (is(&f, RESP_REASON, PB_BYTES))
            ret->reason = f.bytes;
        else if (is(&f, RESP_STATUS, PB_BYTES) && status_decode(f.bytes, ret) < 0)
            return -EBADMSG;
    }
    return more < 0 || !pb_text_ok(ret->message) ? -EBADMSG : 0;
}

void ttrpc_put_request(struct sbuf *b, const struct ttrpc_request *r)
{
    pb_put_bytes(b, REQ_SERVICE, r->service);
    pb_put_bytes(b, REQ_METHOD, r->method);
    pb_put_bytes(b, REQ_PAYLOAD, r->payload);
    pb_put_varint(b, REQ_TIMEOUT, (uint64_t)r->timeout_nano);
    if (r->metadata.len > 0)
        sbuf_add(b, r->metadata.data, r->metadata.len);
}

/* Cut between characters, so that what is left stays valid. */
static void put_text(struct sbuf *b, struct pb_slice s)
{
    for (size_t i = 0, n; i < s.len; i += n) {
        uint32_t c;

        n = str_utf8((const char *)s.data + i, s.len - i, &c);
        if (b->len + (n ? n : 1) > TTRPC_MESSAGE_MAX)
            return;
        if (n > 0 && c != 0) {
            sbuf_add(b, s.data + i, n);
        } else {
            sbuf_addc(b, '?');
            n = 1;
        }
    }
}

void ttrpc_put_response(struct sbuf *b, const struct ttrpc_response *r)
{
    if (r->code != 0) {
        AUTO(sbuf_release) struct sbuf text = { 0 }, status = { 0 };

        put_text(&text, r->message);
        pb_put_varint(&status, STATUS_CODE, r->code);
        pb_put_bytes(&status, STATUS_MESSAGE, (struct pb_slice){ (uint8_t *)text.data, text.len });
        pb_put_message(b, RESP_STATUS, (struct pb_slice){ (uint8_t *)status.data, status.len });
    }
    pb_put_bytes(b, RESP_PAYLOAD, r->payload);
    if (r->code != 0)
        pb_put_bytes(b, RESP_REASON, r->reason);
}

void ttrpc_put_metadata(struct sbuf *b, const char *key, const char *value)
{
    AUTO(sbuf_release) struct sbuf pair = { 0 };

    pb_put_bytes(&pair, PAIR_KEY, pb_slice_of(key));
    pb_put_bytes(&pair, PAIR_VALUE, pb_slice_of(value));
    pb_put_message(b, REQ_METADATA, (struct pb_slice){ (uint8_t *)pair.data, pair.len });
}
