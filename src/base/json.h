/* json.h - JSON in both directions. Reading goes through jansson, after a scan of our own that
 * bounds size, depth and number of values before jansson sees a byte (jansson recurses without a
 * limit at run time). Access follows the rules of Go's encoding/json, which the peers of the GCS
 * protocol use. Writing is our own: key order kept, no tree, 64-bit unsigned numbers. Never waits.
 */
#pragma once
#include "base/str.h"
#include <jansson.h>

struct err;
struct saved;

#define JS_MAX_DEPTH 64
/* Each value of a tree costs up to 250 bytes, however short its text: this bounds a hostile one
 * to 32 MiB. */
#define JS_MAX_VALUES 131072

/* Caller frees with json_decref() or AUTO(json_decref). ERR_INVALID names position and cause.
 * Duplicate keys: the last wins. Numbers up to 2^64-1 are kept exactly. Trailing white space is
 * fine, anything else behind the value is not. As in Go, bytes that are not UTF-8 and lone
 * surrogates become U+FFFD. A number beyond what jansson can hold is, for jansson, a string that
 * begins with NUL; js_* and jsw_value recognize it, and no text of a peer can forge one. */
int js_parse(const char *text, size_t len, size_t max_len, json_t **ret, struct err *err);
AUTO_DEFINE(json_t *, json_decref);

/* Exact key first, else any letter case; NULL if absent. Borrows. */
json_t *js_get(const json_t *obj, const char *key);

/* Typed access: absent or null leaves *ret alone and is fine; a wrong type or a number out of
 * range (also 4.0, 1e3) is -1 with ERR_INVALID naming the key. Strings are borrowed from obj. */
int js_str(const json_t *obj, const char *key, const char **ret, struct err *err);
int js_bool(const json_t *obj, const char *key, bool *ret, struct err *err);
int js_u8(const json_t *obj, const char *key, uint8_t *ret, struct err *err);
int js_u16(const json_t *obj, const char *key, uint16_t *ret, struct err *err);
int js_u32(const json_t *obj, const char *key, uint32_t *ret, struct err *err);
int js_i32(const json_t *obj, const char *key, int32_t *ret, struct err *err);
int js_u64(const json_t *obj, const char *key, uint64_t *ret, struct err *err);
int js_i64(const json_t *obj, const char *key, int64_t *ret, struct err *err);
int js_obj(const json_t *obj, const char *key, const json_t **ret, struct err *err);
int js_arr(const json_t *obj, const char *key, const json_t **ret, struct err *err);

/* The writer. Keys are NULL inside arrays and for the outermost value. Misuse (an end too many,
 * a key missing) aborts: it is a bug in lcow. */
#define JSW_MAX_DEPTH (2 * JS_MAX_DEPTH) /* a parsed tree inside another */
struct jsw {
    struct sbuf out;
    bool html;       /* escape < > & as Go does by default */
    unsigned indent; /* blanks for each level; 0: all in one line */
    unsigned depth;
    uint8_t level[JSW_MAX_DEPTH + 1]; /* what is open; 0: outside all of it */
};
#define JSW_HTML true
#define JSW_PLAIN false
void jsw_init(struct jsw *w, bool html);
void jsw_obj(struct jsw *w, const char *key);
void jsw_arr(struct jsw *w, const char *key);
void jsw_end_obj(struct jsw *w);
void jsw_end_arr(struct jsw *w);
void jsw_str(struct jsw *w, const char *key, const char *value); /* NULL becomes null */
void jsw_strn(struct jsw *w, const char *key, const char *value, size_t len);
void jsw_u64(struct jsw *w, const char *key, uint64_t value);
void jsw_i64(struct jsw *w, const char *key, int64_t value);
void jsw_f64(struct jsw *w, const char *key, double value);
void jsw_bool(struct jsw *w, const char *key, bool value);
void jsw_null(struct jsw *w, const char *key);
void jsw_raw(struct jsw *w, const char *key, const char *json); /* trusted JSON text */
void jsw_value(struct jsw *w, const char *key, const json_t *value);
/* A value alone, as text: in one line, or with so many blanks for each level. Not by jansson's
 * json_dumps, which does not know the large numbers (see js_parse). Never NULL; caller frees. */
char *js_text(const json_t *value, unsigned indent);
/* The text; w is empty again. Caller frees. */
char *jsw_take(struct jsw *w, size_t *ret_len);
void jsw_release(struct jsw *w);
AUTO_VALUE(struct jsw, jsw_release);

/* json_save.c, for saved.h. NULL: none. Reading drops the old value; caller drops the new one. */
void json_saved(struct saved *s, uint32_t field, json_t **v);
