/* pb_wire.c - protobuf's wire format. */
#include "proto/pb_wire.h"
#include <errno.h>
#include <string.h>

#define NUMBER_MAX ((UINT32_C(1) << 29) - 1)
#define VARINT_BYTES 10

struct pb_slice pb_slice_of(const char *s)
{
    return (struct pb_slice){ (const uint8_t *)s, s ? strlen(s) : 0 };
}

bool pb_slice_is(struct pb_slice s, const char *text)
{
    return strlen(text) == s.len && (s.len == 0 || memcmp(s.data, text, s.len) == 0);
}

struct pb_reader pb_reader_of(struct pb_slice s)
{
    return (struct pb_reader){ s.data, s.len ? s.data + s.len : s.data };
}

/* Bits beyond the 64th are dropped, as every decoder does. */
static int read_varint(struct pb_reader *r, uint64_t *ret)
{
    uint64_t value = 0;

    for (unsigned i = 0; i < VARINT_BYTES && r->pos < r->end; i++) {
        uint8_t byte = *r->pos++;

        value |= (uint64_t)(byte & 0x7f) << (7 * i);
        if (!(byte & 0x80)) {
            *ret = value;
            return 0;
        }
    }
    return -EBADMSG;
}

static int read_fixed(struct pb_reader *r, unsigned size, uint64_t *ret)
{
    if ((size_t)(r->end - r->pos) < size)
        return -EBADMSG;
    *ret = 0;
    for (unsigned i = 0; i < size; i++)
        *ret |= (uint64_t)*r->pos++ << (8 * i);
    return 0;
}

static int read_bytes(struct pb_reader *r, struct pb_slice *ret)
{
    uint64_t len;

    if (read_varint(r, &len) < 0 || len > (uint64_t)(r->end - r->pos))
        return -EBADMSG;
    *ret = (struct pb_slice){ r->pos, (size_t)len };
    r->pos += len;
    return 0;
}

int pb_next(struct pb_reader *r, struct pb_field *f)
{
    uint64_t tag;
    int result;

    if (r->pos == r->end)
        return 0;
    if (read_varint(r, &tag) < 0 || tag >> 3 == 0 || tag >> 3 > NUMBER_MAX)
        return -EBADMSG;
    *f = (struct pb_field){ .number = (uint32_t)(tag >> 3), .wire = (enum pb_wire)(tag & 7) };
    switch (f->wire) {
    case PB_VARINT:
        result = read_varint(r, &f->value);
        break;
    case PB_FIXED64:
        result = read_fixed(r, 8, &f->value);
        break;
    case PB_FIXED32:
        result = read_fixed(r, 4, &f->value);
        break;
    case PB_BYTES:
        result = read_bytes(r, &f->bytes);
        break;
    default:
        result = -EBADMSG;
    }
    return result < 0 ? result : 1;
}

bool pb_text_ok(struct pb_slice s)
{
    for (size_t i = 0, n; i < s.len; i += n) {
        uint32_t c = s.data[i];

        n = c < 0x80 ? 1 : str_utf8((const char *)s.data + i, s.len - i, &c);
        if (n == 0 || c == 0)
            return false;
    }
    return true;
}

static void put_varint(struct sbuf *b, uint64_t value)
{
    char bytes[VARINT_BYTES];
    size_t n = 0;

    for (; value > 0x7f; value >>= 7)
        bytes[n++] = (char)(value | 0x80);
    bytes[n++] = (char)value;
    sbuf_add(b, bytes, n);
}

void pb_put_varint(struct sbuf *b, uint32_t number, uint64_t value)
{
    if (value == 0)
        return;
    put_varint(b, (uint64_t)number << 3 | PB_VARINT);
    put_varint(b, value);
}

void pb_put_message(struct sbuf *b, uint32_t number, struct pb_slice s)
{
    put_varint(b, (uint64_t)number << 3 | PB_BYTES);
    put_varint(b, s.len);
    sbuf_add(b, s.data, s.len);
}

void pb_put_bytes(struct sbuf *b, uint32_t number, struct pb_slice s)
{
    if (s.len > 0)
        pb_put_message(b, number, s);
}
