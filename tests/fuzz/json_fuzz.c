/* Any bytes as JSON. What is accepted is written and read again: from the second text on nothing
 * may change. Every accessor is tried on every key. */
#include "base/err.h"
#include "base/json.h"
#include "fuzz/on_fiber.h"
#include <string.h>

#define MAX_TEXT (1 << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void access_all(const json_t *obj, const char *key)
{
    struct err err = ERR_INIT;
    const json_t *sub = NULL;
    const char *s = NULL;
    bool b;
    uint8_t u8;
    uint16_t u16;
    uint32_t u32;
    uint64_t u64;
    int32_t i32;
    int64_t i64;

    /* A number is never a string, whatever it looks like inside. */
    if (js_str(obj, key, &s, &err) == 0 && s &&
        (js_u64(obj, key, &u64, &err) == 0 || js_i64(obj, key, &i64, &err) == 0))
        abort();
    (void)js_bool(obj, key, &b, &err);
    (void)js_u8(obj, key, &u8, &err);
    (void)js_u16(obj, key, &u16, &err);
    (void)js_u32(obj, key, &u32, &err);
    (void)js_i32(obj, key, &i32, &err);
    (void)js_i64(obj, key, &i64, &err);
    (void)js_u64(obj, key, &u64, &err);
    (void)js_obj(obj, key, &sub, &err);
    (void)js_arr(obj, key, &sub, &err);
}

static char *write_text(const json_t *v, bool html, size_t *ret_len)
{
    struct jsw w;

    jsw_init(&w, html);
    jsw_value(&w, NULL, v);
    return jsw_take(&w, ret_len);
}

static json_t *must_parse(const char *text, size_t len)
{
    json_t *v = NULL;
    struct err err;

    if (js_parse(text, len, SIZE_MAX, &v, &err) < 0)
        abort();
    return v;
}

static void fuzz(void *arg)
{
    const struct fuzz_input *in = arg;
    AUTO(json_decref) json_t *v = NULL, *v2 = NULL, *v3 = NULL;
    AUTO_FREE char *t1 = NULL, *t2 = NULL, *t3 = NULL;
    size_t l1, l2, l3;
    struct err err = ERR_INIT;

    if (js_parse((const char *)in->data, in->size, MAX_TEXT, &v, &err) < 0) {
        if (err.code != ERR_INVALID || !err.msg[0] || v)
            abort();
        return;
    }
    for (void *i = json_object_iter(v); i; i = json_object_iter_next(v, i))
        access_all(v, json_object_iter_key(i));
    access_all(v, "key");
    t1 = write_text(v, JSW_HTML, &l1);
    v2 = must_parse(t1, l1);
    /* The first text may differ from the second in one way: -0.0 reads back as 0. */
    t2 = write_text(v2, JSW_PLAIN, &l2);
    v3 = must_parse(t2, l2);
    t3 = write_text(v3, JSW_PLAIN, &l3);
    if (l2 != l3 || memcmp(t2, t3, l2) != 0 || !json_equal(v2, v3))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return fuzz_on_fiber(fuzz, data, size);
}
