/* From structs to JSON text, by the tables. */
#include "proto/bridge_priv.h"
#include <stdlib.h>
#include <string.h>

static bool list_is_empty(const char *const *list)
{
    return !list || !list[0];
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
    case BF_BOOL:
        return !*(const bool *)p;
    case BF_U8:
        return !*(const uint8_t *)p;
    case BF_U16:
        return !*(const uint16_t *)p;
    case BF_U32:
    case BF_HR:
    case BF_I32:
        return !*(const uint32_t *)p;
    case BF_U64:
        return !*(const uint64_t *)p;
    case BF_JSON:
        return !*(const json_t *const *)p;
    case BF_STRS:
    case BF_MAP:
        return list_is_empty(*(const char *const *const *)p);
    case BF_PAIR:
        return !((const int32_t *)p)[0] && !((const int32_t *)p)[1];
    case BF_ARRAY:
        return !*(const size_t *)((const char *)base + f->count_offset);
    case BF_OBJ:
        return fields_are_zero(f->sub, p);
    case BF_TEXT:
    case BF_QUERY:
    case BF_MODIFY:
    case BF_EMPTY:
    case BF_ZERO:
        break;
    }
    return false;
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

struct map_item {
    char *key;
    const char *value;
    size_t index;
};

static int map_order(const void *a, const void *b)
{
    const struct map_item *x = a, *y = b;
    int by_key = strcmp(x->key, y->key);

    return by_key ? by_key : (x->index > y->index) - (x->index < y->index);
}

/* As Go writes a map: keys sorted by their bytes. Of equal keys the last one counts. */
static void encode_map(struct jsw *w, const char *key, const char *const *list)
{
    AUTO_FREE struct map_item *items = NULL;
    size_t n = 0, cap = 0;

    for (; list && *list; list++, n++) {
        size_t key_len = strcspn(*list, "=");

        items = mem_grow(items, n, &cap, sizeof(*items));
        items[n] = (struct map_item){
            .key = str_ndup(*list, key_len),
            .value = (*list)[key_len] ? *list + key_len + 1 : "",
            .index = n,
        };
    }
    if (n)
        qsort(items, n, sizeof(*items), map_order);
    jsw_obj(w, key);
    for (size_t i = 0; i < n; i++) {
        if (i + 1 == n || strcmp(items[i].key, items[i + 1].key) != 0)
            jsw_str(w, items[i].key, items[i].value);
    }
    jsw_end_obj(w);
    for (size_t i = 0; i < n; i++)
        free(items[i].key);
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

/* JSON text as a string. The inner text escapes < > & always (gcs-protocol.md §2.4). */
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

static void encode_json(struct jsw *w, const char *key, const json_t *value)
{
    if (value)
        jsw_value(w, key, value);
    else
        jsw_null(w, key);
}

static void encode_pair(struct jsw *w, const char *key, const int32_t pair[2])
{
    jsw_arr(w, key);
    jsw_i64(w, NULL, pair[0]);
    jsw_i64(w, NULL, pair[1]);
    jsw_end_arr(w);
}

/* Numbers and booleans; false if it is neither. */
static bool encode_scalar(struct jsw *w, const struct bridge_field *f, const void *p)
{
    switch ((enum bridge_field_kind)f->kind) {
    case BF_BOOL:
        jsw_bool(w, f->key, *(const bool *)p);
        return true;
    case BF_U8:
        jsw_u64(w, f->key, *(const uint8_t *)p);
        return true;
    case BF_U16:
        jsw_u64(w, f->key, *(const uint16_t *)p);
        return true;
    case BF_U32:
        jsw_u64(w, f->key, *(const uint32_t *)p);
        return true;
    case BF_U64:
        jsw_u64(w, f->key, *(const uint64_t *)p);
        return true;
    case BF_I32:
    case BF_HR:
        jsw_i64(w, f->key, *(const int32_t *)p);
        return true;
    case BF_ZERO:
        jsw_u64(w, f->key, 0);
        return true;
    default:
        return false;
    }
}

static void encode_field(struct jsw *w, const struct bridge_field *f, const void *base)
{
    const void *p = (const char *)base + f->offset;
    const char *text;

    if (encode_scalar(w, f, p))
        return;
    switch ((enum bridge_field_kind)f->kind) {
    case BF_STR:
        text = *(const char *const *)p;
        jsw_str(w, f->key, text ? text : "");
        return;
    case BF_RAW:
        jsw_raw(w, f->key, *(const char *const *)p);
        return;
    case BF_JSON:
        encode_json(w, f->key, *(const json_t *const *)p);
        return;
    case BF_STRS:
        encode_list(w, f->key, *(const char *const *const *)p);
        return;
    case BF_MAP:
        encode_map(w, f->key, *(const char *const *const *)p);
        return;
    case BF_PAIR:
        encode_pair(w, f->key, p);
        return;
    case BF_OBJ:
        encode_object(w, f->key, f->sub, p);
        return;
    case BF_ARRAY:
        encode_array(w, f, base);
        return;
    case BF_TEXT:
    case BF_QUERY:
        encode_text(w, f->key, f->sub, p);
        return;
    case BF_MODIFY:
        bridge_modify_encode(w, f->key, p);
        return;
    case BF_EMPTY:
        jsw_obj(w, f->key);
        jsw_end_obj(w);
        return;
    default: /* a scalar */
        return;
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

void bridge_modify_encode(struct jsw *w, const char *key, const struct bridge_modify *modify)
{
    const struct bridge_resource_def *def;

    if ((unsigned)modify->resource >= BRIDGE_RES_COUNT ||
        (unsigned)modify->action >= BRIDGE_ACTION_COUNT)
        abort(); /* our own bug: neither comes from outside */
    def = &bridge_resources[modify->resource];
    jsw_obj(w, key);
    jsw_str(w, "RequestType", bridge_actions[modify->action]);
    jsw_str(w, "ResourceType", def->name);
    if (def->settings)
        encode_object(w, "Settings", def->settings, &modify->disk);
    jsw_end_obj(w);
}
