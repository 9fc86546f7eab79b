/* pb.c - protobuf-c, bounded. */
#include "proto/pb.h"
#include "base/clock.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NESTING_MAX 16     /* more than any message of containerd needs */
#define MALLOC_OVERHEAD 32 /* an upper bound of malloc's overhead for a small block */

/* What protobuf-c makes of no bytes at all; the generated code has no initialisers of its own. */
void *pb_new(const ProtobufCMessageDescriptor *type)
{
    ProtobufCMessage *msg = protobuf_c_message_unpack(type, NULL, 0, NULL);

    if (!msg)
        abort();
    return msg;
}

void pb_free(void *msg)
{
    if (msg)
        protobuf_c_message_free_unpacked(msg, NULL);
}

/* --- decoding --- */

/* Counts what protobuf-c takes, and refuses beyond the limit. */
struct budget {
    size_t left, used;
    bool refused;
};

static void *budget_alloc(void *data, size_t size)
{
    struct budget *b = data;

    if (size > b->left || b->left - size < MALLOC_OVERHEAD) {
        b->refused = true;
        return NULL;
    }
    b->left -= size + MALLOC_OVERHEAD;
    b->used += size + MALLOC_OVERHEAD;
    return mem_alloc(size);
}

static void budget_free(void *data, void *block)
{
    (void)data; /* counts allocations only, so an upper bound of the peak */
    free(block);
}

/* All strings of a message, at any depth. protobuf-c cuts them at a NUL and takes any bytes. */
static bool texts_ok(const ProtobufCMessageDescriptor *type, struct pb_slice data, unsigned depth)
{
    struct pb_reader r = pb_reader_of(data);
    struct pb_field f;
    int more;

    if (depth > NESTING_MAX)
        return false;
    while ((more = pb_next(&r, &f)) > 0) {
        const ProtobufCFieldDescriptor *field =
            protobuf_c_message_descriptor_get_field(type, f.number);

        if (!field || f.wire != PB_BYTES)
            continue;
        if (field->type == PROTOBUF_C_TYPE_STRING && !pb_text_ok(f.bytes))
            return false;
        if (field->type == PROTOBUF_C_TYPE_MESSAGE &&
            !texts_ok(field->descriptor, f.bytes, depth + 1))
            return false;
    }
    return more == 0;
}

int pb_unpack(const ProtobufCMessageDescriptor *type, struct pb_slice data, size_t max_bytes,
              void **ret_msg, size_t *ret_bytes)
{
    struct budget budget = { .left = max_bytes };
    ProtobufCAllocator allocator = { budget_alloc, budget_free, &budget };

    if (!texts_ok(type, data, 0))
        return -EBADMSG;

    ProtobufCMessage *msg = protobuf_c_message_unpack(type, &allocator, data.len, data.data);

    if (!msg)
        return budget.refused ? -E2BIG : -EBADMSG;
    *ret_msg = msg;
    if (ret_bytes)
        *ret_bytes = budget.used;
    return 0;
}

/* --- encoding --- */

int pb_pack(const void *msg, struct sbuf *b)
{
    const ProtobufCMessage *m = msg;
    size_t size = protobuf_c_message_get_packed_size(m);
    uint8_t *room = (uint8_t *)sbuf_room(b, size);

    protobuf_c_message_pack(m, room);
    if (!texts_ok(m->descriptor, (struct pb_slice){ room, size }, 0))
        return -EILSEQ;
    b->len += size;
    return 0;
}

void pb_set_str(const char **field, const char *value)
{
    const char *old = *field;

    *field = value ? str_dup(value) : protobuf_c_empty_string;
    if (old != protobuf_c_empty_string)
        free((char *)old);
}

Timestamp pb_time_of(uint64_t wall_ns)
{
    Timestamp t = TIMESTAMP__INIT;

    t.seconds = (int64_t)(wall_ns / NS_PER_S);
    t.nanos = (int32_t)(wall_ns % NS_PER_S);
    return t;
}

void pb_set_time(Timestamp **field, uint64_t wall_ns)
{
    if (!*field)
        *field = pb_new(&timestamp__descriptor);
    **field = pb_time_of(wall_ns);
}

void pb_set_any_raw(Any **field, const char *type_url, const void *data, size_t len)
{
    if (!*field)
        *field = pb_new(&any__descriptor);
    pb_set_str(&(*field)->type_url, type_url);
    free((*field)->value.data);
    (*field)->value = (ProtobufCBinaryData){ len, len ? mem_dup(data, len) : NULL };
}

int pb_set_any(Any **field, const void *msg)
{
    const ProtobufCMessage *m = msg;
    AUTO(sbuf_release) struct sbuf packed = { 0 };
    int r = pb_pack(msg, &packed);

    if (r < 0)
        return r;
    pb_set_any_raw(field, m->descriptor->name, packed.data, packed.len);
    return 0;
}

const char *pb_any_type(const Any *any)
{
    if (!any || !any->type_url)
        return "";

    const char *slash = strrchr(any->type_url, '/');

    return slash ? slash + 1 : any->type_url;
}

int pb_any_unpack(const Any *any, const ProtobufCMessageDescriptor *type, void **ret_msg)
{
    if (!any || !str_eq(pb_any_type(any), type->name))
        return -ENOMSG;
    return pb_unpack(type, (struct pb_slice){ any->value.data, any->value.len }, PB_MEM_MAX,
                     ret_msg, NULL);
}
