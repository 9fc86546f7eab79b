#include "base/err.h"
#include "base/json.h"
#include "harness/tap.h"
#include <math.h>
#include <string.h>

static void check(struct jsw *w, const char *want)
{
    size_t len = 0;
    AUTO_FREE char *text = jsw_take(w, &len);

    ASSERT_STR(text, want);
    ASSERT_EQ(len, strlen(want));
}

TEST(keys_keep_their_order)
{
    struct jsw w;

    jsw_init(&w, JSW_PLAIN);
    jsw_obj(&w, NULL);
    jsw_u64(&w, "z", 1);
    jsw_str(&w, "a", "x");
    jsw_arr(&w, "m");
    jsw_i64(&w, NULL, -1);
    jsw_obj(&w, NULL);
    jsw_end_obj(&w);
    jsw_arr(&w, NULL);
    jsw_end_arr(&w);
    jsw_bool(&w, NULL, true);
    jsw_null(&w, NULL);
    jsw_end_arr(&w);
    jsw_bool(&w, "b", false);
    jsw_end_obj(&w);
    check(&w, "{\"z\":1,\"a\":\"x\",\"m\":[-1,{},[],true,null],\"b\":false}");
}

TEST(a_level_begins_without_a_comma)
{
    struct jsw w;

    jsw_init(&w, JSW_PLAIN);
    jsw_arr(&w, NULL);
    for (int i = 0; i < 2; i++) {
        jsw_obj(&w, NULL);
        jsw_u64(&w, "a", 1);
        jsw_u64(&w, "b", 2);
        jsw_end_obj(&w);
    }
    jsw_end_arr(&w);
    check(&w, "[{\"a\":1,\"b\":2},{\"a\":1,\"b\":2}]");
}

TEST(the_writer_can_be_used_again_after_take)
{
    struct jsw w;

    jsw_init(&w, JSW_HTML);
    jsw_str(&w, NULL, "<");
    check(&w, "\"\\u003c\"");
    jsw_str(&w, NULL, ">");
    check(&w, "\"\\u003e\"");
}

TEST(strings_are_escaped_as_go_does)
{
    struct jsw w;

    jsw_init(&w, JSW_PLAIN);
    jsw_str(&w, NULL, "\"\\/\b\f\n\r\t\x01\x1f\x7f<>&é😀\xe2\x80\xa8\xe2\x80\xa9");
    check(&w, "\"\\\"\\\\/\\b\\f\\n\\r\\t\\u0001\\u001f\x7f<>&é😀\\u2028\\u2029\"");
    jsw_init(&w, JSW_PLAIN);
    jsw_str(&w, NULL, "\xc2\x9b[2J\xc2\xa0"); /* not as Go does: for terminals */
    check(&w, "\"\\u009b[2J\xc2\xa0\"");
    jsw_init(&w, JSW_HTML);
    jsw_str(&w, NULL, "a<b>&c");
    check(&w, "\"a\\u003cb\\u003e\\u0026c\"");
}

TEST(keys_are_escaped_too)
{
    struct jsw w;

    jsw_init(&w, JSW_HTML);
    jsw_obj(&w, NULL);
    jsw_null(&w, "a\"<");
    jsw_end_obj(&w);
    check(&w, "{\"a\\\"\\u003c\":null}");
}

TEST(invalid_utf8_becomes_the_replacement_character)
{
    struct jsw w;

    jsw_init(&w, JSW_PLAIN);
    jsw_str(&w, NULL, "a\xff\xe2\x80z");
    check(&w, "\"a\\ufffd\\ufffd\\ufffdz\"");
}

TEST(strn_takes_nul_bytes_and_null_is_null)
{
    struct jsw w;

    jsw_init(&w, JSW_PLAIN);
    jsw_arr(&w, NULL);
    jsw_strn(&w, NULL, "a\0b", 3);
    jsw_strn(&w, NULL, "abc", 1);
    jsw_strn(&w, NULL, "", 0);
    jsw_str(&w, NULL, NULL);
    jsw_end_arr(&w);
    check(&w, "[\"a\\u0000b\",\"a\",\"\",null]");
}

TEST(integers_reach_both_ends)
{
    struct jsw w;

    jsw_init(&w, JSW_PLAIN);
    jsw_arr(&w, NULL);
    jsw_u64(&w, NULL, UINT64_MAX);
    jsw_i64(&w, NULL, INT64_MIN);
    jsw_i64(&w, NULL, INT64_MAX);
    jsw_end_arr(&w);
    check(&w, "[18446744073709551615,-9223372036854775808,9223372036854775807]");
}

TEST(fractions_are_short_and_exact)
{
    struct jsw w;

    jsw_init(&w, JSW_PLAIN);
    jsw_arr(&w, NULL);
    jsw_f64(&w, NULL, 0.1);
    jsw_f64(&w, NULL, 1.0 / 3);
    jsw_f64(&w, NULL, 5);
    jsw_f64(&w, NULL, -0.5);
    jsw_f64(&w, NULL, 1e300);
    jsw_f64(&w, NULL, NAN);
    jsw_f64(&w, NULL, -INFINITY);
    jsw_end_arr(&w);
    check(&w, "[0.1,0.3333333333333333,5,-0.5,1e+300,null,null]");
}

TEST(raw_text_is_copied)
{
    struct jsw w;

    jsw_init(&w, JSW_HTML);
    jsw_obj(&w, NULL);
    jsw_raw(&w, "a", "{\"x\":[1]}");
    jsw_raw(&w, "b", "\"<\"");
    jsw_end_obj(&w);
    check(&w, "{\"a\":{\"x\":[1]},\"b\":\"<\"}");
}

TEST(values_of_any_kind_are_written)
{
    static const char text[] = "{\"a\":[1,-2,0.5,true,false,null,\"<\",18446744073709551615],"
                               "\"o\":{\"k\":{}}}";
    AUTO(json_decref) json_t *v = NULL;
    struct jsw w;
    struct err e;

    ASSERT_OK(js_parse(text, strlen(text), 1000, &v, &e), e);
    jsw_init(&w, JSW_HTML);
    jsw_obj(&w, NULL);
    jsw_value(&w, "v", v);
    jsw_value(&w, "none", NULL);
    jsw_end_obj(&w);
    check(&w, "{\"v\":{\"a\":[1,-2,0.5,true,false,null,\"\\u003c\",18446744073709551615],"
              "\"o\":{\"k\":{}}},\"none\":null}");
}

/* A value from outside may be as deep as js_parse allows, wherever it is put. */
TEST_FIBER(the_deepest_value_fits_at_the_deepest_level)
{
    char text[2 * JS_MAX_DEPTH + 1] = "";
    AUTO(json_decref) json_t *v = NULL;
    AUTO_FREE char *out = NULL;
    struct jsw w;
    struct err e;

    memset(text, '[', JS_MAX_DEPTH);
    memset(text + JS_MAX_DEPTH, ']', JS_MAX_DEPTH);
    ASSERT_OK(js_parse(text, strlen(text), 1000, &v, &e), e);
    jsw_init(&w, JSW_PLAIN);
    for (int i = 0; i < 64; i++)
        jsw_arr(&w, NULL);
    jsw_value(&w, NULL, v);
    for (int i = 0; i < 64; i++)
        jsw_end_arr(&w);
    out = jsw_take(&w, NULL);
    ASSERT_EQ(strlen(out), 2 * (64 + JS_MAX_DEPTH));
}

static void end_too_many(void *arg)
{
    jsw_end_obj(arg);
}
static void key_missing(void *arg)
{
    jsw_obj(arg, NULL);
    jsw_null(arg, NULL);
}
static void key_in_array(void *arg)
{
    jsw_arr(arg, NULL);
    jsw_null(arg, "k");
}
static void key_outside(void *arg)
{
    jsw_null(arg, "k");
}
static void wrong_end(void *arg)
{
    jsw_arr(arg, NULL);
    jsw_end_obj(arg);
}
static void second_value(void *arg)
{
    jsw_null(arg, NULL);
    jsw_null(arg, NULL);
}
static void end_missing(void *arg)
{
    jsw_obj(arg, NULL);
    (void)jsw_take(arg, NULL);
}
static void too_deep(void *arg)
{
    for (int i = 0; i <= JSW_MAX_DEPTH; i++)
        jsw_arr(arg, NULL);
}

TEST(misuse_aborts_and_says_what)
{
    struct jsw w;

    jsw_init(&w, JSW_PLAIN);
    ASSERT_ABORTS(end_too_many, &w, "an end too many");
    ASSERT_ABORTS(key_missing, &w, "no key inside an object");
    ASSERT_ABORTS(key_in_array, &w, "key outside an object");
    ASSERT_ABORTS(key_outside, &w, "key outside an object");
    ASSERT_ABORTS(wrong_end, &w, "end of an object inside an array");
    ASSERT_ABORTS(second_value, &w, "second value");
    ASSERT_ABORTS(end_missing, &w, "an end is missing");
    ASSERT_ABORTS(too_deep, &w, "too deep");
}

TEST(release_works_at_any_point_and_again)
{
    struct jsw w;

    jsw_init(&w, JSW_PLAIN);
    jsw_obj(&w, NULL);
    jsw_str(&w, "a", "b");
    jsw_release(&w);
    jsw_release(&w);
    jsw_null(&w, NULL);
    check(&w, "null");
}
