/* From structs to JSON text, by the tables. */
#include "proto/bridge_priv.h"
#include <stdlib.h>
#include <string.h>

static bool list_is_empty(const char *const *list)
{
    return !list || !list[0];
}

static uint64_t number_of(const struct bridge_field *f, const void *p)
{
    switch ((enum bridge_field_kind)f->kind) {
    case BF_BOOL:
        return *(const bool *)p;
    case BF_U8:
        return *(const uint8_t *)p;
    case BF_U16:
        return *(const uint16_t *)p;
    case BF_U64:
        return *(const uint64_t *)p;
    default: /* BF_U32, BF_I32, BF_HR */
        return *(const uint32_t *)p;
    }
}

static bool fields_are_zero(const struct bridge_schema *schema, const void *base);

/* What Go's omitempty leaves out. */
static bool is_zero(const struct bridge_field *f, const void *base)
{
    const void *p = (const char *)base + f->offset;

    switch ((enum bridge_field_kind)f->kind) {
    case BF_STR:
    case BF_RAW:
        return !*(const char *const *)p || !**(const char *const *)p;
    case BF_JSON:
        return !*(const json_t *const *)p;
    case BF_STRS:
    case BF_MAP:
        return list_is_empty(*(const char *const *const *)p);
    case BF_ARRAY:
        return !*(const size_t *)((const char *)base + f->count_offset);
    case BF_OBJ:
        return fields_are_zero(f->sub, base);
    case BF_TEXT:
    case BF_QUERY:
    case BF_MODIFY:
    case BF_FIXED:
        return false;
    default:
        return number_of(f, p) == 0;
    }
}

static bool fields_are_zero(const struct bridge_schema *schema, const void *base)
{
    for (size_t i = 0; i < schema->n_fields; i++)
        if (!is_zero(&schema->fields[i], base))
            return false;
    return true;
}

static void encode_list(struct jsw *w, const char *key, const char *const *list)
{
    jsw_arr(w, key);
    for (; list && *list; list++)
        jsw_str(w, NULL, *list);
    jsw_end_arr(w);
}

/* By the bytes of what stands before '='. */
static int key_order(const char *a, const char *b)
{
    size_t x = strcspn(a, "="), y = strcspn(b, "=");
    int r = memcmp(a, b, x < y ? x : y);

    return r ? r : (x > y) - (x < y);
}

/* As Go writes a map: keys sorted by their bytes. Of equal keys the last one counts. */
static void encode_map(struct jsw *w, const char *key, const char *const *list)
{
    const char *last = NULL, *next;

    jsw_obj(w, key);
    for (; list; last = next) {
        next = NULL;
        for (const char *const *at = list; *at; at++)
            if ((!last || key_order(*at, last) > 0) && (!next || key_order(*at, next) <= 0))
                next = *at;
        if (!next)
            break;

        AUTO_FREE char *name = str_ndup(next, strcspn(next, "="));

        jsw_str(w, name, next[strlen(name)] ? next + strlen(name) + 1 : "");
    }
    jsw_end_obj(w);
}

static void encode_object(struct jsw *w, const char *key, const struct bridge_schema *schema,
                          const void *base)
{
    jsw_obj(w, key);
    bridge_fields_encode(w, schema, base);
    jsw_end_obj(w);
}

static void encode_array(struct jsw *w, const struct bridge_field *f, const void *base)
{
    const char *items = *(const char *const *)((const char *)base + f->offset);
    size_t n = *(const size_t *)((const char *)base + f->count_offset);

    jsw_arr(w, f->key);
    for (size_t i = 0; i < n; i++)
        encode_object(w, NULL, f->sub, items + i * f->sub->size);
    jsw_end_arr(w);
}

/* JSON text as a string. The inner text escapes < > & always (docs/reference/gcs-protocol.md §2.4).
 */
static void encode_text(struct jsw *w, const char *key, const struct bridge_schema *schema,
                        const void *base)
{
    AUTO(jsw_release) struct jsw inner = { 0 };
    AUTO_FREE char *text = NULL;
    size_t len;

    jsw_init(&inner, JSW_HTML);
    encode_object(&inner, NULL, schema, base);
    text = jsw_take(&inner, &len);
    jsw_strn(w, key, text, len);
}

static void encode_modify(struct jsw *w, const char *key, const struct bridge_request *r)
{
    const struct bridge_modify *modify = &r->modify;
    const struct bridge_resource_def *def;

    if ((unsigned)modify->resource >= BRIDGE_RES_COUNT ||
        (unsigned)modify->action >= BRIDGE_ACTION_COUNT)
        abort(); /* a bug in lcow: neither comes from outside */
    def = &bridge_resources[modify->resource];
    jsw_obj(w, key);
    jsw_str(w, "RequestType", bridge_actions[modify->action]);
    jsw_str(w, "ResourceType", def->name);
    if (def->settings)
        encode_object(w, "Settings", def->settings, r);
    jsw_end_obj(w);
}

static void encode_field(struct jsw *w, const struct bridge_field *f, const void *base)
{
    const void *p = (const char *)base + f->offset;
    const char *const *text = p;
    const json_t *const *json = p;

    switch ((enum bridge_field_kind)f->kind) {
    case BF_STR:
        jsw_str(w, f->key, *text ? *text : "");
        return;
    case BF_RAW:
        jsw_raw(w, f->key, *text);
        return;
    case BF_FIXED:
        jsw_raw(w, f->key, f->text);
        return;
    case BF_JSON:
        if (*json)
            jsw_value(w, f->key, *json);
        else
            jsw_null(w, f->key);
        return;
    case BF_STRS:
        encode_list(w, f->key, *(const char *const *const *)p);
        return;
    case BF_MAP:
        encode_map(w, f->key, *(const char *const *const *)p);
        return;
    case BF_OBJ:
        encode_object(w, f->key, f->sub, base);
        return;
    case BF_ARRAY:
        encode_array(w, f, base);
        return;
    case BF_TEXT:
    case BF_QUERY:
        encode_text(w, f->key, f->sub, base);
        return;
    case BF_MODIFY:
        encode_modify(w, f->key, base);
        return;
    case BF_BOOL:
        jsw_bool(w, f->key, *(const bool *)p);
        return;
    case BF_I32:
    case BF_HR:
        jsw_i64(w, f->key, *(const int32_t *)p);
        return;
    default:
        jsw_u64(w, f->key, number_of(f, p));
    }
}

void bridge_fields_encode(struct jsw *w, const struct bridge_schema *schema, const void *base)
{
    for (size_t i = 0; i < schema->n_fields; i++) {
        const struct bridge_field *f = &schema->fields[i];

        if (f->always || !is_zero(f, base))
            encode_field(w, f, base);
    }
}
