/* pb_wire.h - protobuf's wire format, field by field and without allocation: what ttrpc's envelope
 * needs, and what looks at a message before protobuf-c does. Slices borrow the bytes they were
 * read from. Leaf code: 0 or more, or -errno. Never waits. */
#pragma once
#include "base/str.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pb_slice {
    const uint8_t *data; /* may be NULL if len is 0 */
    size_t len;
};
struct pb_slice pb_slice_of(const char *s);
bool pb_slice_is(struct pb_slice s, const char *text);

enum pb_wire { PB_VARINT = 0, PB_FIXED64 = 1, PB_BYTES = 2, PB_FIXED32 = 5 };

struct pb_field {
    uint32_t number;
    enum pb_wire wire;
    uint64_t value;        /* of a varint or fixed field */
    struct pb_slice bytes; /* of PB_BYTES */
};
struct pb_reader {
    const uint8_t *pos, *end;
};
struct pb_reader pb_reader_of(struct pb_slice s);
/* 1 and a field, 0 at the end, or -EBADMSG: cut off, a number of 0 or beyond 2^29, a varint of
 * more than ten bytes, a group (proto3 has none). */
int pb_next(struct pb_reader *r, struct pb_field *f);

/* Valid UTF-8 without NUL: what a string may hold. Go refuses a message with any other, and C
 * would cut it off at the NUL. */
bool pb_text_ok(struct pb_slice s);

/* Appending. As proto3 wants it, a default value (0, empty) is left out. */
void pb_put_varint(struct sbuf *b, uint32_t number, uint64_t value);
void pb_put_bytes(struct sbuf *b, uint32_t number, struct pb_slice s);
/* Also when it is empty: for messages, where presence counts. */
void pb_put_message(struct sbuf *b, uint32_t number, struct pb_slice s);
