/* pb.h - containerd's messages (api/) through protobuf-c, with what it leaves to its caller: bounds
 * on memory, valid texts, ownership in one place.
 *
 * A message made by pb_new or pb_unpack owns all it points to, on the heap; pb_free frees it all.
 * One on the stack (= REQUEST__INIT) may borrow anything and is not given to pb_free. Leaf code: 0
 * or more, or -errno. Never waits. */
#pragma once
#include "api/wellknown.pb-c.h"
#include "proto/pb_wire.h"

#define PB_MEM_MAX (64u << 20) /* for one decoded message: a body of 4 MiB may hold 10^5 mounts */

/* All fields at their defaults. Caller frees with pb_free. */
void *pb_new(const ProtobufCMessageDescriptor *type);
void pb_free(void *msg);
static inline void pb_free_auto(void *pointer_to_pointer)
{
    pb_free(*(void **)pointer_to_pointer);
}

/* At most max_bytes of memory; *ret_bytes (may be NULL) is an upper bound of what it used. Caller
 * frees *ret_msg with pb_free. -EBADMSG: no such message, or a string that pb_text_ok refuses;
 * -E2BIG: it would take more than max_bytes. */
int pb_unpack(const ProtobufCMessageDescriptor *type, struct pb_slice data, size_t max_bytes,
              void **ret_msg, size_t *ret_bytes);
/* Appends the encoded message. -EILSEQ if a string is not valid text; b is then unchanged. */
int pb_pack(const void *msg, struct sbuf *b);

/* Fields of a message that owns its parts. The old value is freed; NULL means default. */
void pb_set_str(const char **field, const char *value);
void pb_set_time(Timestamp **field, uint64_t wall_ns);
/* Packs a message into an Any, whose type URL is the bare full name. -EILSEQ as pb_pack. */
int pb_set_any(Any **field, const void *msg);
/* Any type and bytes, for values that are JSON. */
void pb_set_any_raw(Any **field, const char *type_url, const void *data, size_t len);
/* One more element of a repeated message field; it takes element. */
#define pb_add(array, n, element)                                                                  \
    do {                                                                                           \
        (array) = mem_realloc((array), ((n) + 1) * sizeof(*(array)));                              \
        (array)[(n)++] = (element);                                                                \
    } while (0)

/* A value for a message on the stack. */
Timestamp pb_time_of(uint64_t wall_ns);

/* What follows the last '/' of the type URL; "" for NULL. Borrows. */
const char *pb_any_type(const Any *any);
/* -ENOMSG if any is NULL or of another type; else as pb_unpack, with PB_MEM_MAX. */
int pb_any_unpack(const Any *any, const ProtobufCMessageDescriptor *type, void **ret_msg);
