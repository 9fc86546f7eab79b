/* bridge_priv.h - how messages are described to the codec: one table of fields per JSON object,
 * read by both encoder and decoder. Key order is table order; a field that is not `always` is left
 * out when it is zero (Go's omitempty). Only for bridge*.c and its tests. */
#pragma once
#include "base/json.h"
#include "proto/bridge.h"

enum bridge_field_kind {
    BF_STR,  /* const char * */
    BF_BOOL, /* bool */
    BF_U8,   /* uint8_t … */
    BF_U16,
    BF_U32,
    BF_U64,
    BF_I32,
    BF_HR,     /* uint32_t, a signed number on the wire */
    BF_JSON,   /* json_t *, an object */
    BF_RAW,    /* const char *: trusted JSON text, embedded as it is; nothing read */
    BF_STRS,   /* const char *const *, ends with NULL */
    BF_MAP,    /* the same, each "key=value"; an object of strings on the wire, keys sorted */
    BF_OBJ,    /* sub, of the same struct */
    BF_ARRAY,  /* pointer to sub.size elements, count at count_offset */
    BF_TEXT,   /* the same; a string whose content is JSON text, required */
    BF_QUERY,  /* the same; an empty string is an empty object */
    BF_MODIFY, /* struct bridge_modify */
    BF_FIXED,  /* no member: text is written, nothing read */
};

struct bridge_schema;

struct bridge_field {
    const char *key;
    uint8_t kind;
    bool always;
    uint16_t offset, count_offset;
    union {
        const struct bridge_schema *sub;
        const char *text;
    };
};

struct bridge_schema {
    const struct bridge_field *fields;
    size_t n_fields;
    size_t size; /* of an element, for BF_ARRAY */
};

struct bridge_message {
    uint32_t type;
    const char *name;
    bool linux_guest;                            /* it exists there */
    const struct bridge_schema *request, *reply; /* offsets into bridge_request, bridge_response */
    int (*check)(const struct bridge_request *r, struct err *err); /* after decoding; or NULL */
};

struct bridge_resource_def {
    const char *name;
    const struct bridge_schema *settings; /* offsets into bridge_request; or NULL */
    unsigned actions;                     /* bit per enum bridge_action */
};

/* bridge_tables.c */
extern const struct bridge_schema bridge_request_base, bridge_response_base,
    bridge_notification_schema, bridge_properties_schema;
extern const struct bridge_resource_def bridge_resources[BRIDGE_RES_COUNT];
extern const char *const bridge_actions[BRIDGE_ACTION_COUNT];
/* NULL if it is unknown. Accepts any kind nibble that goes with the number. */
const struct bridge_message *bridge_message_find(uint32_t type);

/* bridge_decode.c: what a decoded message owns, freed at once. */
struct bridge_mem *bridge_mem_new(void);
void bridge_mem_free(struct bridge_mem *m);
AUTO_DEFINE(struct bridge_mem *, bridge_mem_free);
/* bridge.c: appends header and w's text, which is taken. A host's payload ends with a line feed, as
 * Go's stream encoder does it, a guest's does not. */
#define BRIDGE_LINE_FEED true
#define BRIDGE_NO_LINE_FEED false
void bridge_frame_add(struct sbuf *out, uint32_t type, uint64_t id, struct jsw *w, bool line_feed);

/* bridge_encode.c: the fields of `schema` into the open object of w. */
void bridge_fields_encode(struct jsw *w, const struct bridge_schema *schema, const void *base);
/* bridge_decode.c */
int bridge_fields_decode(struct bridge_mem *m, const json_t *obj,
                         const struct bridge_schema *schema, void *base, struct err *err);
/* Parses text, which must be an object (or null, which is read as {}). Borrows *ret from m. */
int bridge_text_parse(struct bridge_mem *m, const char *text, size_t len, const json_t **ret,
                      struct err *err);
/* Every string "", every list and array empty, everything else zero. */
void bridge_fields_default(const struct bridge_schema *schema, void *base);

/* bridge_response.c */
/* s, or as much of it as fits into `budget` escaped bytes with BRIDGE_CUT behind it. Caller
 * frees. Bytes that are not UTF-8 count as a replacement character. */
char *bridge_text_cut(const char *s, size_t budget);
/* 36 characters, hex and hyphens in their places. */
bool bridge_is_guid(const char *s);
