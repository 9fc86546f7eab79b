/* ttrpc.h - ttrpc's frames and its two envelope messages (docs/reference/containerd-contract.md
 * §1): a header of ten bytes, big-endian, then a body. Slices borrow the body they were decoded
 * from. Leaf code: 0 or more, or -errno. Never waits. */
#pragma once
#include "proto/pb_wire.h"

#define TTRPC_HEADER_BYTES 10
#define TTRPC_BODY_MAX (4u << 20)
#define TTRPC_MESSAGE_MAX 4096 /* of a status we send; the rest is cut off */

enum ttrpc_type { TTRPC_REQUEST = 1, TTRPC_RESPONSE = 2, TTRPC_DATA = 3 };
enum ttrpc_flag {
    TTRPC_CLOSED = 0x01,  /* the sender will send no more */
    TTRPC_OPEN = 0x02,    /* the sender will send data */
    TTRPC_NO_DATA = 0x04, /* no message, not even an empty one */
};

struct ttrpc_header {
    uint32_t len; /* of the body; may be more than TTRPC_BODY_MAX */
    uint32_t stream;
    uint8_t type, flags; /* as they came: other values are possible */
};
void ttrpc_header_decode(const uint8_t bytes[TTRPC_HEADER_BYTES], struct ttrpc_header *ret);
void ttrpc_header_encode(const struct ttrpc_header *h, uint8_t bytes[TTRPC_HEADER_BYTES]);

struct ttrpc_request {
    struct pb_slice service, method, payload;
    int64_t timeout_nano;     /* 0: none; below 0: expired */
    struct pb_slice metadata; /* to send: made by ttrpc_put_metadata */
};
struct ttrpc_response {
    uint32_t code;           /* as enum err_code; 0 is success */
    struct pb_slice message; /* of an error */
    struct pb_slice payload; /* of a success */
    struct pb_slice reason;  /* of an error, a name of base/reason.h; ours: other clients skip it */
};
/* Unknown fields are skipped, the last of a repeated one wins. -EBADMSG. */
int ttrpc_request_decode(struct pb_slice body, struct ttrpc_request *ret);
/* The first value of a key in the metadata of a request that was decoded; empty: none. */
struct pb_slice ttrpc_metadata(struct pb_slice body, const char *key);
int ttrpc_response_decode(struct pb_slice body, struct ttrpc_response *ret);

/* Append the body. Invalid bytes in a status message become '?', because Go would drop the whole
 * response. */
void ttrpc_put_request(struct sbuf *b, const struct ttrpc_request *r);
void ttrpc_put_response(struct sbuf *b, const struct ttrpc_response *r);

/* Appends one pair to what becomes a request's metadata. */
void ttrpc_put_metadata(struct sbuf *b, const char *key, const char *value);
