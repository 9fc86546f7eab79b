#include "base/err.h"
#include "base/json.h"
#include "harness/tap.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX (1 << 20)

static json_t *parse_n(const char *text, size_t len)
{
    json_t *v = NULL;
    struct err e;

    ASSERT_OK(js_parse(text, len, MAX, &v, &e), e);
    return v;
}

static json_t *parse(const char *text)
{
    return parse_n(text, strlen(text));
}

static void refuse_n(const char *text, size_t len, const char *why)
{
    json_t *v = NULL;
    struct err e = ERR_INIT;

    if (js_parse(text, len, MAX, &v, &e) == 0)
        tap_fail(__FILE__, __LINE__, "accepted: %s", text);
    ASSERT(!v);
    ASSERT_EQ(e.code, ERR_INVALID);
    if (tap_words_compared() && !strstr(e.msg, why))
        tap_fail(__FILE__, __LINE__, "\"%s\" for %s, expected \"%s\"", e.msg, text, why);
}

static void refuse(const char *text, const char *why)
{
    refuse_n(text, strlen(text), why);
}

/* Parsed and written again. */
static void round_trip(const char *text, const char *want)
{
    AUTO(json_decref) json_t *v = parse(text);
    AUTO(jsw_release) struct jsw w;
    AUTO_FREE char *again = NULL;

    jsw_init(&w, JSW_PLAIN);
    jsw_value(&w, NULL, v);
    again = jsw_take(&w, NULL);
    ASSERT_STR(again, want);
}

TEST(every_kind_of_value_is_read)
{
    static const char *const texts[] = {
        "{}",
        "[]",
        "null",
        "true",
        "false",
        "0",
        "-1",
        "\"\"",
        "\"abc\"",
        "[1,2,[3,{}]]",
        "{\"a\":{\"b\":[null,true,false]},\"c\":\"d\"}",
    };

    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        round_trip(texts[i], texts[i]);
}

TEST(white_space_is_free_between_tokens)
{
    round_trip(" \t\r\n{ \"a\" : [ 1 , 2 ] , \"b\" : { } } \n", "{\"a\":[1,2],\"b\":{}}");
}

TEST(text_that_is_not_json_is_refused_with_its_place)
{
    refuse("", "JSON at byte 0: unexpected token near end of file");
    refuse("  ", "JSON at byte 2: unexpected token near end of file");
    refuse("{", "byte 1: string or '}' expected near end of file");
    refuse("[1,", "byte 3: ']' expected near end of file");
    refuse("[1,]", "byte 4: unexpected token");
    refuse("[,1]", "byte 2: unexpected token");
    refuse("[1 2]", "byte 4: ']' expected");
    refuse("{\"a\"}", "byte 5: ':' expected");
    refuse("{\"a\":}", "byte 6: unexpected token");
    refuse("{\"a\":1,}", "byte 8: string or '}' expected");
    refuse("{\"a\":1 \"b\":2}", "byte 10: '}' expected");
    refuse("{1:2}", "byte 2: string or '}' expected");
    refuse("{,}", "byte 2: string or '}' expected");
    refuse("[}", "byte 2: unexpected token");
    refuse("{\"a\":1]", "byte 7: '}' expected");
    refuse("[1}", "byte 3: ']' expected");
    refuse("]", "byte 1: unexpected token");
    refuse("tru", "byte 3: invalid token");
    refuse("nulll", "byte 5: invalid token");
    refuse("{}{}", "byte 3: end of file expected");
    refuse("1 2", "byte 3: end of file expected");
    refuse("// x", "byte 1: invalid token");
    refuse("'a'", "byte 1: invalid token");
    refuse("\xef\xbb\xbf{}", "byte 3: invalid token");
    refuse("[\xff]", "byte 1: unable to decode byte 0xff");
    refuse("NaN", "byte 3: invalid token");
    refuse("-Infinity", "byte 1: invalid token");
    refuse_n("{}\0", 3, "byte 3: end of file expected");
    refuse_n("\0", 1, "byte 1: invalid token");
}

TEST(an_error_does_not_repeat_the_text)
{
    json_t *v = NULL;
    struct err e;

    ASSERT_FAIL(js_parse("{\"k\" secret}", 12, MAX, &v, &e), e, ERR_INVALID);
    ASSERT(!strstr(e.msg, "secret"));
    ASSERT_FAIL(js_parse("\"secret\n\"", 9, MAX, &v, &e), e, ERR_INVALID);
    ASSERT(!strstr(e.msg, "secret"));
}

TEST(bad_strings_are_refused)
{
    refuse("\"abc", "byte 4: premature end of input");
    refuse("\"a\nb\"", "byte 2: unexpected newline");
    refuse_n("\"a\0b\"", 5, "byte 2: control character 0x0");
    refuse("\"\\x41\"", "byte 3: invalid escape");
    refuse("\"\\\"", "premature end of input");
    refuse("\"\\", "invalid escape");
    refuse("\"\\u12\"", "invalid escape");
    refuse("\"\\u12g4\"", "invalid escape");
    refuse("\"\\u", "invalid escape");
    refuse("\"\\ud800\\u12\"", "invalid escape");
}

TEST(bad_numbers_are_refused)
{
    static const char *const bad[] = { "01",  "-01", "-",   "1.",  ".5",    "1e",
                                       "1e+", "+1",  "1-2", "--1", "1e5e5", "1e999.5" };

    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        refuse(bad[i], "");
    refuse("0x10", "byte 2: end of file expected");
    refuse("1.5.5", "byte 4: end of file expected");
    refuse("-09223372036854775808", "byte 2: invalid token");
    refuse("99999999999999999999.", "invalid token");
    refuse("99999999999999999999e", "invalid token");
    refuse("99999999999999999999-1", "");
}

TEST(the_size_is_checked_before_anything_else)
{
    json_t *v = NULL;
    struct err e;

    ASSERT_FAIL(js_parse("[1]", 3, 2, &v, &e), e, ERR_INVALID);
    ASSERT_MSG(e.msg, "JSON is too long: 3 bytes, at most 2");
    ASSERT_OK(js_parse("[1]", 3, 3, &v, &e), e);
    json_decref(v);
}

static char *nested(size_t depth, const char *open, const char *close)
{
    struct sbuf b = { 0 };

    for (size_t i = 0; i < depth; i++)
        sbuf_adds(&b, open);
    sbuf_adds(&b, "1");
    for (size_t i = 0; i < depth; i++)
        sbuf_adds(&b, close);
    return sbuf_take(&b);
}

/* On the stack that it must fit. */
TEST_FIBER(depth_64_passes_and_65_does_not)
{
    static const char *const pairs[][2] = { { "[", "]" },
                                            { "{\"a\":", "}" },
                                            { "[{\"a\":", "}]" } };

    for (size_t i = 0; i < ARRAY_LEN(pairs); i++) {
        size_t per_step = i == 2 ? 2 : 1;
        AUTO_FREE char *fits = nested(JS_MAX_DEPTH / per_step, pairs[i][0], pairs[i][1]);
        AUTO_FREE char *deep = nested(JS_MAX_DEPTH / per_step + 1, pairs[i][0], pairs[i][1]);

        round_trip(fits, fits);
        refuse(deep, "nested too deeply");
    }
}

TEST_FIBER(a_megabyte_of_brackets_costs_no_stack)
{
    AUTO_FREE char *text = mem_alloc(MAX);

    memset(text, '[', MAX);
    refuse_n(text, MAX, "byte 64: nested too deeply");
}

TEST(closed_levels_do_not_count_as_depth)
{
    struct sbuf b = { 0 };
    AUTO_FREE char *text = NULL;

    sbuf_adds(&b, "[");
    for (int i = 0; i < 200; i++)
        sbuf_addf(&b, "%s[{\"a\":[]}]", i ? "," : "");
    sbuf_adds(&b, "]");
    text = sbuf_take(&b);
    round_trip(text, text);
}

TEST(too_many_values_are_refused)
{
    size_t len = 2 * (size_t)(JS_MAX_VALUES - 1) + 1;
    AUTO_FREE char *text = mem_alloc(len + 3);
    AUTO(json_decref) json_t *v = NULL;

    /* The array itself counts too. */
    text[0] = '[';
    for (size_t i = 1; i < len + 2; i++)
        text[i] = i % 2 ? '1' : ',';
    text[len - 1] = ']';
    v = parse_n(text, len);
    ASSERT_EQ(json_array_size(v), JS_MAX_VALUES - 1);
    text[len - 1] = ',';
    text[len + 1] = ']';
    refuse_n(text, len + 2, "too many values, at most 131072");
}

TEST(the_last_of_duplicate_keys_wins)
{
    AUTO(json_decref) json_t *v = parse("{\"a\":1,\"a\":2}");
    uint32_t n = 0;
    struct err e;

    ASSERT_OK(js_u32(v, "a", &n, &e), e);
    ASSERT_EQ(n, 2);
}

TEST(escapes_are_decoded)
{
    AUTO(json_decref)
    json_t *v = parse("{\"s\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\u20AC\\ud83d\\ude00<\\u003c\"}");
    const char *s = NULL;
    struct err e;

    ASSERT_OK(js_str(v, "s", &s, &e), e);
    ASSERT_STR(s, "\"\\/\b\f\n\r\té€😀<<");
}

TEST(invalid_unicode_becomes_the_replacement_character)
{
    static const struct {
        const char *text, *want;
    } t[] = {
        { "{\"s\":\"a\xff"
          "b\"}",
          "a\xef\xbf\xbd"
          "b" },
        { "{\"s\":\"\xe2\x80\"}", "\xef\xbf\xbd\xef\xbf\xbd" },
        { "{\"s\":\"\xc0\xaf\"}", "\xef\xbf\xbd\xef\xbf\xbd" },
        { "{\"s\":\"\xed\xa0\x80\"}", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" },
        { "{\"s\":\"\\ud800\"}", "\xef\xbf\xbd" },
        { "{\"s\":\"\\udc00x\"}", "\xef\xbf\xbdx" },
        { "{\"s\":\"\\ud800\\ud83d\\ude00\"}", "\xef\xbf\xbd😀" },
        { "{\"s\":\"\\ud800\\n\"}", "\xef\xbf\xbd\n" },
        { "{\"s\":\"\\ud800\\u0041\"}", "\xef\xbf\xbd"
                                        "A" },
    };

    for (size_t i = 0; i < ARRAY_LEN(t); i++) {
        AUTO(json_decref) json_t *v = parse(t[i].text);
        const char *s = NULL;
        struct err e;

        ASSERT_OK(js_str(v, "s", &s, &e), e);
        ASSERT_STR(s, t[i].want);
    }
}

TEST(broken_unicode_in_keys_is_replaced_too)
{
    AUTO(json_decref) json_t *v = parse("{\"a\xff\":1,\"b\\udfff\":2}");

    ASSERT(js_get(v, "a\xef\xbf\xbd"));
    ASSERT(js_get(v, "b\xef\xbf\xbd"));
}

/* --- numbers --- */

static void check_u64(const char *text, uint64_t want)
{
    AUTO_FREE char *doc = str_format("{\"n\":%s}", text);
    AUTO(json_decref) json_t *v = parse(doc);
    uint64_t n = 1;
    struct err e;

    ASSERT_OK(js_u64(v, "n", &n, &e), e);
    if (n != want)
        tap_fail(__FILE__, __LINE__, "%s read as %" PRIu64, text, n);
    round_trip(doc, doc);
}

TEST(unsigned_64_bit_numbers_are_exact)
{
    check_u64("0", 0);
    check_u64("9007199254740993", UINT64_C(9007199254740993));
    check_u64("9223372036854775807", INT64_MAX);
    check_u64("9223372036854775808", (uint64_t)INT64_MAX + 1);
    check_u64("18446744073709551614", UINT64_MAX - 1);
    check_u64("18446744073709551615", UINT64_MAX);
}

static void refuse_u64(const char *text, const char *why)
{
    AUTO_FREE char *doc = str_format("{\"n\":%s}", text);
    AUTO(json_decref) json_t *v = parse(doc);
    uint64_t n = 42;
    struct err e = ERR_INIT;

    ASSERT_FAIL(js_u64(v, "n", &n, &e), e, ERR_INVALID);
    ASSERT_EQ(n, 42);
    ASSERT_MSG_HAS(e.msg, "key \"n\": ");
    ASSERT_MSG_HAS(e.msg, why);
}

TEST(u64_refuses_everything_else)
{
    refuse_u64("18446744073709551616", "18446744073709551616 is not in 0 to 18446744073709551615");
    refuse_u64("99999999999999999999999999999999999999999999", "is not in 0 to");
    refuse_u64("-9223372036854775809", "is not in 0 to");
    refuse_u64("-1", "-1 is not in 0 to 18446744073709551615");
    refuse_u64("4.0", "expected an integer, got a fraction");
    refuse_u64("1e3", "expected an integer, got a fraction");
    refuse_u64("1e400", "expected an integer, got a number out of range");
    refuse_u64("\"5\"", "expected an integer, got a string");
    refuse_u64("true", "got true");
    refuse_u64("{}", "got an object");
    refuse_u64("[]", "got an array");
}

TEST(unread_numbers_are_kept_as_written)
{
    round_trip("[1e400,-1e400,123456789012345678901234567890,-9223372036854775809]",
               "[1e400,-1e400,123456789012345678901234567890,-9223372036854775809]");
}

TEST(fractions_survive)
{
    round_trip("[0.5,-1.25,1e3,1E-7,0.1,1.7976931348623157e308]",
               "[0.5,-1.25,1000,1e-07,0.1,1.7976931348623157e+308]");
}

#define CHECK_RANGE(fn, type, low, high, below, above)                                             \
    do {                                                                                           \
        AUTO(json_decref)                                                                          \
        json_t *v_ =                                                                               \
            parse("{\"l\":" #low ",\"h\":" #high ",\"b\":" #below ",\"a\":" #above ",\"f\":1.0}"); \
        type n_ = 0;                                                                               \
        struct err e_ = ERR_INIT;                                                                  \
                                                                                                   \
        ASSERT_OK(fn(v_, "l", &n_, &e_), e_);                                                      \
        ASSERT(n_ == (type)(low));                                                                 \
        ASSERT_OK(fn(v_, "h", &n_, &e_), e_);                                                      \
        ASSERT(n_ == (type)(high));                                                                \
        ASSERT_FAIL(fn(v_, "b", &n_, &e_), e_, ERR_INVALID);                                       \
        ASSERT_MSG_HAS(e_.msg, "key \"b\": " #below " is not in " #low " to " #high);              \
        ASSERT_FAIL(fn(v_, "a", &n_, &e_), e_, ERR_INVALID);                                       \
        ASSERT_MSG_HAS(e_.msg, "key \"a\": " #above " is not in " #low " to " #high);              \
        ASSERT_FAIL(fn(v_, "f", &n_, &e_), e_, ERR_INVALID);                                       \
        ASSERT(n_ == (type)(high));                                                                \
    } while (0)

TEST(each_integer_type_has_its_range)
{
    CHECK_RANGE(js_u8, uint8_t, 0, 255, -1, 256);
    CHECK_RANGE(js_u16, uint16_t, 0, 65535, -1, 65536);
    CHECK_RANGE(js_u32, uint32_t, 0, 4294967295, -1, 4294967296);
    CHECK_RANGE(js_i32, int32_t, -2147483648, 2147483647, -2147483649, 2147483648);
}

TEST(i64_has_its_range)
{
    AUTO(json_decref)
    json_t *v = parse("{\"l\":-9223372036854775808,\"h\":9223372036854775807,"
                      "\"a\":9223372036854775808,\"b\":-9223372036854775809}");
    int64_t n = 0;
    struct err e;

    ASSERT_OK(js_i64(v, "l", &n, &e), e);
    ASSERT(n == INT64_MIN);
    ASSERT_OK(js_i64(v, "h", &n, &e), e);
    ASSERT(n == INT64_MAX);
    ASSERT_FAIL(js_i64(v, "a", &n, &e), e, ERR_INVALID);
    ASSERT_FAIL(js_i64(v, "b", &n, &e), e, ERR_INVALID);
    ASSERT_MSG_HAS(e.msg, "-9223372036854775809 is not in -9223372036854775808 to");
}

TEST(a_result_must_be_signed)
{
    AUTO(json_decref) json_t *v = parse("{\"ok\":-1070137074,\"bad\":3224830222}");
    int32_t n = 0;
    struct err e;

    ASSERT_OK(js_i32(v, "ok", &n, &e), e);
    ASSERT_EQ((uint32_t)n, 0xC037010E);
    ASSERT_FAIL(js_i32(v, "bad", &n, &e), e, ERR_INVALID);
}

/* --- the mark of a large number cannot be forged --- */

TEST(a_large_number_is_not_a_string)
{
    AUTO(json_decref) json_t *v = parse("{\"n\":18446744073709551615}");
    const char *s = "untouched";
    struct err e;

    ASSERT_FAIL(js_str(v, "n", &s, &e), e, ERR_INVALID);
    ASSERT_MSG_HAS(e.msg, "expected a string, got a number out of range");
    ASSERT_STR(s, "untouched");
    ASSERT_STR(json_string_value(js_get(v, "n")),
               ""); /* harmless to code that uses jansson directly */
}

TEST(a_string_cannot_pretend_to_be_a_large_number)
{
    static const char *const forged[] = {
        "\"\\u000018446744073709551615\"",
        "\"\\u0000\\u000018446744073709551615\"",
        "\"\\u0000\\u0000\\u000018446744073709\"",
        "\"\\u00001\"",
        "\"\\u0000\"",
        "\"\\u0000\\u0000\"",
        "\"18446744073709551615\"",
        "\"\\\\u000018446744073709551615\"",
    };

    for (size_t i = 0; i < ARRAY_LEN(forged); i++) {
        AUTO_FREE char *doc = str_format("{\"n\":%s}", forged[i]);
        AUTO(json_decref) json_t *v = parse(doc);
        uint64_t n = 42;
        struct err e;

        ASSERT_FAIL(js_u64(v, "n", &n, &e), e, ERR_INVALID);
        ASSERT_EQ(n, 42);
        round_trip(doc, doc); /* and comes out as it went in */
    }
}

TEST(nul_stays_where_it_was_in_other_places)
{
    round_trip("[\"a\\u0000\",\"\\u0000a\",\"\\u0000\",18446744073709551615]",
               "[\"a\\u0000\",\"\\u0000a\",\"\\u0000\",18446744073709551615]");
}

TEST(a_value_as_text_has_large_numbers_as_they_came)
{
    static const char compact[] =
        "{\"most\":18446744073709551615,\"less\":-9223372036854775809,\"a\":[1,[],{},\"x\"]}";
    AUTO(json_decref) json_t *v = parse(compact);
    AUTO_FREE char *line = js_text(v, 0), *lines = js_text(v, 2);

    ASSERT_STR(line, compact);
    ASSERT_STR(lines, "{\n"
                      "  \"most\": 18446744073709551615,\n"
                      "  \"less\": -9223372036854775809,\n"
                      "  \"a\": [\n"
                      "    1,\n"
                      "    [],\n"
                      "    {},\n"
                      "    \"x\"\n"
                      "  ]\n"
                      "}");
}

TEST(a_value_as_text_gives_a_terminal_nothing_to_obey)
{
    AUTO(json_decref) json_t *v = parse("[\"\\u009b31m\\u001b\"]");
    AUTO_FREE char *text = js_text(v, 0);

    ASSERT_STR(text, "[\"\\u009b31m\\u001b\"]");
}

TEST(a_string_with_nul_is_not_a_c_string)
{
    AUTO(json_decref) json_t *v = parse("{\"a\":\"/safe\\u0000/evil\",\"b\":\"\\u0000\"}");
    const char *s = NULL;
    struct err e;

    ASSERT_FAIL(js_str(v, "a", &s, &e), e, ERR_INVALID);
    ASSERT_MSG_HAS(e.msg, "key \"a\": string holds a NUL");
    ASSERT_FAIL(js_str(v, "b", &s, &e), e, ERR_INVALID);
    ASSERT(!s);
}

TEST(a_key_with_nul_is_refused)
{
    refuse("{\"a\\u0000b\":1}", "NUL byte in object key");
    refuse("{\"\\u0000\":1}", "NUL byte in object key");
}

/* --- access --- */

TEST(keys_match_exactly_first_else_in_any_case)
{
    AUTO(json_decref)
    json_t *v = parse("{\"ContainerID\":1,\"containerid\":2,\"ContainerId\":3,"
                      "\"CONTAINERID\":4}");

    ASSERT_EQ(json_integer_value(js_get(v, "ContainerId")), 3);
    ASSERT_EQ(json_integer_value(js_get(v, "containerid")), 2);
    ASSERT_EQ(json_integer_value(js_get(v, "cOnTaInErId")), 4); /* the last such */
    ASSERT(!js_get(v, "Container"));
    ASSERT(!js_get(v, ""));
}

TEST(case_is_folded_for_ascii_only)
{
    AUTO(json_decref) json_t *v = parse("{\"É\":1}");

    ASSERT(!js_get(v, "é"));
    ASSERT(js_get(v, "É"));
}

TEST(lookup_in_nothing_finds_nothing)
{
    AUTO(json_decref) json_t *v = parse("[1]");

    ASSERT(!js_get(NULL, "a"));
    ASSERT(!js_get(v, "a"));
}

TEST(absent_and_null_leave_the_default)
{
    AUTO(json_decref) json_t *v = parse("{\"n\":null}");
    static const char *const keys[] = { "n", "absent" };
    struct err e = ERR_INIT;

    for (int i = 0; i < 3; i++) {
        const json_t *obj = i < 2 ? v : NULL, *sub = v;
        const char *key = keys[i % 2], *s = "d";
        bool b = true;
        uint8_t u8 = 1;
        uint32_t u32 = 2;
        uint64_t u64 = 3;
        int64_t i64 = 4;

        ASSERT_OK(js_str(obj, key, &s, &e), e);
        ASSERT_OK(js_bool(obj, key, &b, &e), e);
        ASSERT_OK(js_u8(obj, key, &u8, &e), e);
        ASSERT_OK(js_u32(obj, key, &u32, &e), e);
        ASSERT_OK(js_u64(obj, key, &u64, &e), e);
        ASSERT_OK(js_i64(obj, key, &i64, &e), e);
        ASSERT_OK(js_obj(obj, key, &sub, &e), e);
        ASSERT_OK(js_arr(obj, key, &sub, &e), e);
        ASSERT(b && u8 == 1 && u32 == 2 && u64 == 3 && i64 == 4 && sub == v);
        ASSERT_STR(s, "d");
        ASSERT_EQ(e.code, ERR_NONE);
    }
}

TEST(each_type_is_found_and_each_wrong_one_named)
{
    AUTO(json_decref)
    json_t *v = parse("{\"s\":\"x\",\"b\":true,\"o\":{\"k\":1},\"a\":[1],"
                      "\"n\":1,\"f\":1.5}");
    const char *s = NULL;
    const json_t *o = NULL, *a = NULL;
    bool b = false;
    struct err e;

    ASSERT_OK(js_str(v, "s", &s, &e), e);
    ASSERT_OK(js_bool(v, "b", &b, &e), e);
    ASSERT_OK(js_obj(v, "o", &o, &e), e);
    ASSERT_OK(js_arr(v, "a", &a, &e), e);
    ASSERT(b && json_is_object(o) && json_is_array(a));
    ASSERT_FAIL(js_str(v, "n", &s, &e), e, ERR_INVALID);
    ASSERT_MSG(e.msg, "key \"n\": expected a string, got a number");
    ASSERT_FAIL(js_bool(v, "s", &b, &e), e, ERR_INVALID);
    ASSERT_MSG(e.msg, "key \"s\": expected true or false, got a string");
    ASSERT_FAIL(js_obj(v, "a", &o, &e), e, ERR_INVALID);
    ASSERT_MSG(e.msg, "key \"a\": expected an object, got an array");
    ASSERT_FAIL(js_arr(v, "f", &a, &e), e, ERR_INVALID);
    ASSERT_MSG(e.msg, "key \"f\": expected an array, got a fraction");
}

TEST(a_document_that_is_not_an_object_is_refused_on_access)
{
    AUTO(json_decref) json_t *v = parse("[1]");
    uint64_t n = 0;
    struct err e;

    ASSERT_FAIL(js_u64(v, "a", &n, &e), e, ERR_INVALID);
    ASSERT_MSG(e.msg, "key \"a\": looked up in an array instead of an object");
}
