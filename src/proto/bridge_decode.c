/* From JSON text to structs, by the tables and Go's rules (docs/reference/gcs-protocol.md §2.4). */
#include "base/err.h"
#include "proto/bridge_priv.h"
#include <stdio.h>
#include <string.h>

/* An empty list. */
struct bridge_mem {
    struct bridge_mem *next;
    json_t *root;
    max_align_t data[];
};

struct bridge_mem *bridge_mem_new(void)
{
    return mem_new(struct bridge_mem);
}

void bridge_mem_free(struct bridge_mem *m)
{
    for (struct bridge_mem *next; m; m = next) {
        next = m->next;
        json_decref(m->root);
        free(m);
    }
}

static struct bridge_mem *add(struct bridge_mem *m, size_t size)
{
    struct bridge_mem *added = mem_zalloc(sizeof(*added) + size);

    added->next = m->next;
    m->next = added;
    return added;
}

/* Zeroed; lives as long as m. */
static void *mem_of(struct bridge_mem *m, size_t size)
{
    return add(m, size)->data;
}

/* Takes root. */
static void keep(struct bridge_mem *m, json_t *root)
{
    add(m, 0)->root = root;
}

static const char *const empty_list[] = { NULL };
static max_align_t empty_array[1]; /* never read: its count is 0 */

static void default_field(const struct bridge_field *f, void *base)
{
    void *p = (char *)base + f->offset;

    switch ((enum bridge_field_kind)f->kind) {
    case BF_STR:
        *(const char **)p = "";
        return;
    case BF_STRS:
    case BF_MAP:
        *(const char *const **)p = empty_list;
        return;
    case BF_ARRAY:
        *(void **)p = empty_array;
        return;
    case BF_OBJ:
    case BF_TEXT:
    case BF_QUERY:
        bridge_fields_default(f->sub, base);
        return;
    default: /* numbers and the like: all bytes zero */
        return;
    }
}

void bridge_fields_default(const struct bridge_schema *schema, void *base)
{
    for (size_t i = 0; i < schema->n_fields; i++)
        default_field(&schema->fields[i], base);
}

int bridge_text_parse(struct bridge_mem *m, const char *text, size_t len, const json_t **ret,
                      struct err *err)
{
    json_t *root;

    if (js_parse(text, len, len, &root, err) < 0)
        return -1;
    keep(m, root);
    if (json_is_null(root)) {
        root = json_object();
        keep(m, root);
    }
    if (!json_is_object(root))
        return err_set(err, ERR_INVALID, "not a JSON object");
    *ret = root;
    return 0;
}

/* An element of a list of strings: Go reads null as "". NULL if it is something else, or holds a
 * NUL (which js_str refuses too; base also marks numbers beyond 64 bits that way). */
static const char *string_or_null(const json_t *value)
{
    const char *s = json_string_value(value);

    if (json_is_null(value))
        return "";
    return s && strlen(s) == json_string_length(value) ? s : NULL;
}

static int decode_list(struct bridge_mem *m, const json_t *obj, const char *key,
                       const char *const **ret, struct err *err)
{
    const json_t *arr = NULL;
    const char **list;
    size_t n;

    if (js_arr(obj, key, &arr, err) < 0)
        return -1;
    if (!arr)
        return 0;
    n = json_array_size(arr);
    list = mem_of(m, (n + 1) * sizeof(*list));
    for (size_t i = 0; i < n; i++) {
        list[i] = string_or_null(json_array_get(arr, i));
        if (!list[i])
            return err_set(err, ERR_INVALID, "%s[%zu] is not a string", key, i);
    }
    *ret = list;
    return 0;
}

static int decode_map(struct bridge_mem *m, const json_t *obj, const char *key,
                      const char *const **ret, struct err *err)
{
    const json_t *map = NULL;
    const char **list, *name, *text;
    size_t n = 0;
    json_t *value;

    if (js_obj(obj, key, &map, err) < 0)
        return -1;
    if (!map)
        return 0;
    list = mem_of(m, (json_object_size(map) + 1) * sizeof(*list));
    json_object_foreach((json_t *)map, name, value)
    {
        char *pair;
        size_t size;

        text = string_or_null(value);
        if (!text)
            return err_set(err, ERR_INVALID, "%s: the value of \"%s\" is not a string", key, name);
        size = strlen(name) + strlen(text) + sizeof("=");
        list[n++] = pair = mem_of(m, size);
        snprintf(pair, size, "%s=%s", name, text);
    }
    *ret = list;
    return 0;
}

static int decode_object(struct bridge_mem *m, const json_t *obj, const struct bridge_field *f,
                         void *base, struct err *err)
{
    const json_t *sub = NULL;

    if (js_obj(obj, f->key, &sub, err) < 0)
        return -1;
    if (!sub) { /* so that a text that is required in it is missed */
        json_t *none = json_object();

        keep(m, none);
        sub = none;
    }
    if (bridge_fields_decode(m, sub, f->sub, base, err) < 0)
        return err_wrap(err, "%s", f->key);
    return 0;
}

static int decode_array(struct bridge_mem *m, const json_t *obj, const struct bridge_field *f,
                        void *base, struct err *err)
{
    const json_t *arr = NULL;
    char *items;
    size_t n;

    if (js_arr(obj, f->key, &arr, err) < 0)
        return -1;
    n = arr ? json_array_size(arr) : 0;
    if (!n)
        return 0;
    items = mem_of(m, n * f->sub->size);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(arr, i);

        bridge_fields_default(f->sub, items + i * f->sub->size);
        if (json_is_null(v))
            continue;
        if (!json_is_object(v))
            return err_set(err, ERR_INVALID, "%s[%zu] is not an object", f->key, i);
        if (bridge_fields_decode(m, v, f->sub, items + i * f->sub->size, err) < 0)
            return err_wrap(err, "%s[%zu]", f->key, i);
    }
    *(void **)((char *)base + f->offset) = items;
    *(size_t *)((char *)base + f->count_offset) = n;
    return 0;
}

static int decode_text(struct bridge_mem *m, const json_t *obj, const struct bridge_field *f,
                       void *base, struct err *err)
{
    const char *text = "";
    const json_t *inner;

    if (js_str(obj, f->key, &text, err) < 0)
        return -1;
    if (!*text && f->kind == BF_QUERY)
        return 0;
    if (!*text)
        return err_set(err, ERR_INVALID, "%s is missing or empty, expected JSON text", f->key);
    if (bridge_text_parse(m, text, strlen(text), &inner, err) < 0 ||
        bridge_fields_decode(m, inner, f->sub, base, err) < 0)
        return err_wrap(err, "%s", f->key);
    return 0;
}

static int find_resource(const char *name, enum bridge_resource *ret, struct err *err)
{
    for (unsigned i = 0; i < BRIDGE_RES_COUNT; i++) {
        if (strcmp(bridge_resources[i].name, name) == 0) {
            *ret = i;
            return 0;
        }
    }
    return bridge_err(err, BRIDGE_HR_FAIL, "unknown ResourceType \"%.64s\"", name);
}

static int find_action(const char *name, enum bridge_action *ret, struct err *err)
{
    if (!*name) {
        *ret = BRIDGE_ADD;
        return 0;
    }
    for (unsigned i = 0; i < BRIDGE_ACTION_COUNT; i++) {
        if (strcmp(bridge_actions[i], name) == 0) {
            *ret = i;
            return 0;
        }
    }
    return bridge_err(err, BRIDGE_HR_FAIL, "unknown RequestType \"%.64s\"", name);
}

static int decode_modify(struct bridge_mem *m, const json_t *obj, const struct bridge_field *f,
                         struct bridge_request *ret, struct err *err)
{
    const json_t *request = NULL, *settings = NULL;
    const char *action = "", *resource = "";
    const struct bridge_resource_def *def;

    if (js_obj(obj, f->key, &request, err) < 0)
        return -1;
    if (!request)
        return err_set(err, ERR_INVALID, "%s is missing", f->key);
    if (js_str(request, "RequestType", &action, err) < 0 ||
        js_str(request, "ResourceType", &resource, err) < 0 ||
        find_resource(resource, &ret->modify.resource, err) < 0 ||
        find_action(action, &ret->modify.action, err) < 0)
        return -1;
    def = &bridge_resources[ret->modify.resource];
    if (!(def->actions & 1u << ret->modify.action))
        return bridge_err(err, BRIDGE_HR_FAIL, "%s does not support %s", def->name,
                          bridge_actions[ret->modify.action]);
    if (!def->settings)
        return 0;
    bridge_fields_default(def->settings, ret);
    if (js_obj(request, "Settings", &settings, err) < 0)
        return -1;
    if (!settings)
        return err_set(err, ERR_INVALID, "%s: Settings is missing", def->name);
    if (bridge_fields_decode(m, settings, def->settings, ret, err) < 0)
        return err_wrap(err, "%s", def->name);
    return 0;
}

static int decode_field(struct bridge_mem *m, const json_t *obj, const struct bridge_field *f,
                        void *base, struct err *err)
{
    void *p = (char *)base + f->offset;

    switch ((enum bridge_field_kind)f->kind) {
    case BF_STR:
        return js_str(obj, f->key, p, err);
    case BF_BOOL:
        return js_bool(obj, f->key, p, err);
    case BF_U8:
        return js_u8(obj, f->key, p, err);
    case BF_U16:
        return js_u16(obj, f->key, p, err);
    case BF_U32:
        return js_u32(obj, f->key, p, err);
    case BF_U64:
        return js_u64(obj, f->key, p, err);
    case BF_I32:
    case BF_HR:
        return js_i32(obj, f->key, p, err);
    case BF_JSON:
        return js_obj(obj, f->key, p, err);
    case BF_STRS:
        return decode_list(m, obj, f->key, p, err);
    case BF_MAP:
        return decode_map(m, obj, f->key, p, err);
    case BF_OBJ:
        return decode_object(m, obj, f, base, err);
    case BF_ARRAY:
        return decode_array(m, obj, f, base, err);
    case BF_TEXT:
    case BF_QUERY:
        return decode_text(m, obj, f, base, err);
    case BF_MODIFY:
        return decode_modify(m, obj, f, base, err);
    case BF_RAW:
    case BF_FIXED:
        break;
    }
    return 0;
}

int bridge_fields_decode(struct bridge_mem *m, const json_t *obj,
                         const struct bridge_schema *schema, void *base, struct err *err)
{
    for (size_t i = 0; i < schema->n_fields; i++) {
        if (decode_field(m, obj, &schema->fields[i], base, err) < 0)
            return -1;
    }
    return 0;
}
