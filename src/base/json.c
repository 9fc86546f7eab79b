#include "base/json.h"
#include "base/err.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* --- reading --- */

#define REPLACEMENT "\xef\xbf\xbd" /* U+FFFD; jansson needs ten times as long for an escape */
#define TEXT(s) (s), sizeof(s) - 1

/* One pass over the tokens before jansson sees a byte. It bounds depth and number of values, and
 * replaces, in a copy, what jansson would refuse although Go reads it: broken Unicode and large
 * numbers. jansson checks the grammar. It reads from left to right and stops at the first misplaced
 * token; up to there both see the same tokens. */
struct scan {
    const char *text;
    size_t len, at;
    size_t copied; /* so much of text is in out */
    struct sbuf out;
    unsigned depth;
    size_t n_values;
};

/* Puts `with` in the place of the next n bytes. */
static void replace(struct scan *s, size_t n, const char *with, size_t with_len)
{
    sbuf_add(&s->out, s->text + s->copied, s->at - s->copied);
    sbuf_add(&s->out, with, with_len);
    s->at += n;
    s->copied = s->at;
}

/* The character of a "\uXXXX" at offset `at`, or -1. */
static int unicode_escape(const struct scan *s, size_t at)
{
    char digits[5] = "";

    if (at + 6 > s->len || memcmp(s->text + at, "\\u", 2) != 0)
        return -1;
    memcpy(digits, s->text + at + 2, 4);
    return strspn(digits, "0123456789abcdefABCDEF") == 4 ? (int)strtoul(digits, NULL, 16) : -1;
}

/* At a backslash. A surrogate without its other half becomes U+FFFD, as in Go. */
static void scan_escape(struct scan *s, bool at_start)
{
    int c = unicode_escape(s, s->at), low = c >> 10 == 0x36 ? unicode_escape(s, s->at + 6) : -1;

    if (c == 0 && at_start)
        replace(s, 0, TEXT("\\u0000")); /* one more: see big_number() */
    if (low >> 10 == 0x37)
        s->at += 12;
    else if (c >> 11 == 0x1b)
        replace(s, 6, TEXT(REPLACEMENT));
    else
        s->at += 2; /* perhaps beyond the end, where jansson finds the string not closed */
}

/* At the opening quote; ends behind the closing one. */
static void scan_string(struct scan *s)
{
    size_t first = ++s->at;

    for (char c; s->at < s->len && (c = s->text[s->at]) != '"';) {
        uint32_t character;
        size_t n =
            (unsigned char)c < 0x80 ? 1 : str_utf8(s->text + s->at, s->len - s->at, &character);

        if (c == '\\')
            scan_escape(s, s->at == first);
        else if (n > 0)
            s->at += n;
        else
            replace(s, 1, TEXT(REPLACEMENT));
    }
    s->at++;
}

static size_t digits(const char *s)
{
    return strspn(s, "0123456789");
}

/* Whether s is a number of RFC 8259 that jansson cannot hold. */
static bool is_too_large(const char *s)
{
    const char *p = s + (*s == '-');
    bool real = false;
    size_t n = *p == '0' ? 1 : digits(p);

    p += n;
    if (n > 0 && *p == '.') {
        real = true;
        n = digits(p + 1);
        p += 1 + n;
    }
    if (n > 0 && (*p == 'e' || *p == 'E')) {
        real = true;
        p += p[1] == '+' || p[1] == '-' ? 2 : 1;
        n = digits(p);
        p += n;
    }
    if (n == 0 || *p)
        return false;
    if (real)
        return !isfinite(strtod(s, NULL));

    json_int_t value = strtoll(s, NULL, 10);

    return value == INT64_MAX ? !str_eq(s, "9223372036854775807")
                              : value == INT64_MIN && !str_eq(s, "-9223372036854775808");
}

static void scan_number(struct scan *s)
{
    static const char set[] = "0123456789+-.eE";
    size_t n = 1;

    while (s->at + n < s->len && memchr(set, s->text[s->at + n], sizeof(set) - 1))
        n++;

    AUTO_FREE char *number = str_ndup(s->text + s->at, n);
    bool quote = is_too_large(number);

    if (quote)
        replace(s, 0, TEXT("\"\\u0000"));
    s->at += n;
    if (quote)
        replace(s, 0, TEXT("\""));
}

static int scan_text(struct scan *s, struct err *err)
{
    while (s->at < s->len) {
        switch (s->text[s->at]) {
        case '"':
            scan_string(s);
            continue;
        case '-':
        case '0' ... '9':
            scan_number(s);
            continue;
        case '[':
        case '{':
            if (++s->depth > JS_MAX_DEPTH)
                return err_set(err, ERR_INVALID, "JSON at byte %zu: nested too deeply", s->at);
            /* fall through */
        case ',': /* each begins one more value, but for an empty array or object */
            if (++s->n_values >= JS_MAX_VALUES)
                return err_set(err, ERR_INVALID, "JSON at byte %zu: too many values, at most %d",
                               s->at, JS_MAX_VALUES);
            break;
        case ']':
        case '}':
            s->depth -= s->depth > 0;
            break;
        }
        s->at++;
    }
    return 0;
}

int js_parse(const char *text, size_t len, size_t max_len, json_t **ret, struct err *err)
{
    struct scan s = { .text = text, .len = len };
    AUTO_FREE json_error_t *reason = NULL; /* 250 bytes, allocated to spare a fiber's stack */
    json_t *value = NULL;

    if (len > max_len)
        return err_set(err, ERR_INVALID, "JSON is too long: %zu bytes, at most %zu", len, max_len);
    if (scan_text(&s, err) == 0) {
        if (s.out.len > 0)
            sbuf_add(&s.out, text + s.copied, len - s.copied);
        reason = mem_new(json_error_t);
        value = json_loadb(s.out.len ? s.out.data : text, s.out.len ? s.out.len : len,
                           JSON_DECODE_ANY | JSON_ALLOW_NUL, reason);
        if (!value) { /* "… near 'TEXT'": what stands there may be a secret */
            char *near = strstr(reason->text, " near '");

            err_set(err, ERR_INVALID, "JSON at byte %d: %.*s", reason->position,
                    near ? (int)(near - reason->text) : JSON_ERROR_TEXT_LENGTH, reason->text);
        }
    }
    sbuf_release(&s.out);
    if (value)
        *ret = value;
    return value ? 0 : -1;
}

/* Numbers that jansson cannot hold (beyond int64, beyond double) are, for jansson, strings of NUL
 * and the number's text. A string of the peer that begins with NUL gets a second NUL in front, so
 * the two cannot be confused. The text of such a number, or NULL if v is anything else. Borrows. */
static const char *big_number(const json_t *v)
{
    const char *s = json_string_value(v);

    return s && json_string_length(v) >= 2 && s[0] == '\0' && s[1] != '\0' ? s + 1 : NULL;
}

json_t *js_get(const json_t *obj, const char *key)
{
    json_t *found = json_object_get(obj, key), *value;
    json_t *o = (json_t *)(uintptr_t)obj; /* jansson's iterator is not const */
    const char *name;

    if (found)
        return found;
    json_object_foreach(o, name, value)
    {
        if (strcasecmp(name, key) == 0)
            found = value;
    }
    return found;
}

static const char *type_name(const json_t *v)
{
    static const char *const names[] = {
        [JSON_OBJECT] = "an object", [JSON_ARRAY] = "an array",  [JSON_STRING] = "a string",
        [JSON_INTEGER] = "a number", [JSON_REAL] = "a fraction", [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",      [JSON_NULL] = "null",
    };

    return big_number(v) ? "a number out of range" : names[json_typeof(v)];
}

/* 1 with *ret if there is a value, 0 if absent or null, -1 if obj is not an object. */
static int lookup(const json_t *obj, const char *key, json_t **ret, struct err *err)
{
    if (!obj || json_is_null(obj))
        return 0;
    if (!json_is_object(obj))
        return err_set(err, ERR_INVALID, "key \"%s\": looked up in %s instead of an object", key,
                       type_name(obj));
    *ret = js_get(obj, key);
    return *ret && !json_is_null(*ret);
}

static int wrong_type(struct err *err, const char *key, const char *want, const json_t *got)
{
    return err_set(err, ERR_INVALID, "key \"%s\": expected %s, got %s", key, want, type_name(got));
}

int js_str(const json_t *obj, const char *key, const char **ret, struct err *err)
{
    json_t *v = NULL;
    int r = lookup(obj, key, &v, err);

    if (r <= 0)
        return r;
    if (!json_is_string(v) || big_number(v))
        return wrong_type(err, key, "a string", v);
    /* As a C string it would end there: "/safe\0/../evil" must not pass as something else. */
    if (memchr(json_string_value(v), '\0', json_string_length(v)))
        return err_set(err, ERR_INVALID, "key \"%s\": string holds a NUL", key);
    *ret = json_string_value(v);
    return 0;
}

int js_bool(const json_t *obj, const char *key, bool *ret, struct err *err)
{
    json_t *v = NULL;
    int r = lookup(obj, key, &v, err);

    if (r <= 0)
        return r;
    if (!json_is_boolean(v))
        return wrong_type(err, key, "true or false", v);
    *ret = json_is_true(v);
    return 0;
}

/* 1 with *ret in min … max, 0 if absent. Unsigned numbers beyond int64 come modulo 2^64. */
static int get_int(const json_t *obj, const char *key, int64_t min, uint64_t max, uint64_t *ret,
                   struct err *err)
{
    json_t *v = NULL;
    int r = lookup(obj, key, &v, err);
    const char *big = big_number(v);
    char text[24];

    if (r <= 0)
        return r;
    if (json_is_integer(v)) {
        int64_t value = json_integer_value(v);

        *ret = (uint64_t)value;
        if (value >= min && (value < 0 || *ret <= max))
            return 1;
        snprintf(text, sizeof(text), "%" PRId64, value);
        big = text;
    } else if (!big || strpbrk(big, ".eE")) {
        return wrong_type(err, key, "an integer", v);
    } else if (str_to_u64(big, max, ret) == 0) {
        return 1;
    }
    return err_set(err, ERR_INVALID, "key \"%s\": %.32s is not in %" PRId64 " to %" PRIu64, key,
                   big, min, max);
}

#define DEFINE_GET_INT(name, type, min, max)                                                       \
    int name(const json_t *obj, const char *key, type *ret, struct err *err)                       \
    {                                                                                              \
        uint64_t value = 0;                                                                        \
        int r = get_int(obj, key, min, max, &value, err);                                          \
                                                                                                   \
        if (r > 0)                                                                                 \
            *ret = (type)value;                                                                    \
        return r < 0 ? -1 : 0;                                                                     \
    }
DEFINE_GET_INT(js_u8, uint8_t, 0, UINT8_MAX)
DEFINE_GET_INT(js_u16, uint16_t, 0, UINT16_MAX)
DEFINE_GET_INT(js_u32, uint32_t, 0, UINT32_MAX)
DEFINE_GET_INT(js_i32, int32_t, INT32_MIN, INT32_MAX)
DEFINE_GET_INT(js_u64, uint64_t, 0, UINT64_MAX)
DEFINE_GET_INT(js_i64, int64_t, INT64_MIN, INT64_MAX)

static int get_tree(const json_t *obj, const char *key, json_type type, const char *want,
                    const json_t **ret, struct err *err)
{
    json_t *v = NULL;
    int r = lookup(obj, key, &v, err);

    if (r <= 0)
        return r;
    if (json_typeof(v) != type)
        return wrong_type(err, key, want, v);
    *ret = v;
    return 0;
}

int js_obj(const json_t *obj, const char *key, const json_t **ret, struct err *err)
{
    return get_tree(obj, key, JSON_OBJECT, "an object", ret, err);
}

int js_arr(const json_t *obj, const char *key, const json_t **ret, struct err *err)
{
    return get_tree(obj, key, JSON_ARRAY, "an array", ret, err);
}

/* --- writing --- */

enum { LEVEL_IS_OBJECT = 1, LEVEL_HAS_ITEM = 2 };

static _Noreturn void misuse(const char *what)
{
    fprintf(stderr, "bug: JSON writer: %s\n", what);
    abort();
}

/* encoding/json: what cannot stand in JavaScript is escaped too (U+2028, U+2029). Beyond it, if not
 * html, C1 is escaped: a terminal interprets U+009B, and lcow prints guests' texts as JSON. */
static void add_char(struct sbuf *b, bool html, uint32_t c, const char *s, size_t n)
{
    static const char special[] = "\"\\\n\r\t\b\f", letters[] = "\"\\nrtbf";
    const char *found = c && c < 0x80 ? strchr(special, (int)c) : NULL;

    if (found)
        sbuf_add(b, (const char[]){ '\\', letters[found - special] }, 2);
    else if (c < 0x20 || (!html && c >= 0x80 && c < 0xa0) || c == 0x2028 || c == 0x2029 ||
             (html && (c == '<' || c == '>' || c == '&')))
        sbuf_addf(b, "\\u%04x", c);
    else
        sbuf_add(b, s, n);
}

/* Written as it is, with html or without. */
static bool is_plain(char c)
{
    return c >= ' ' && c <= '~' && c != '"' && c != '\\' && c != '<' && c != '>' && c != '&';
}

static void add_string(struct sbuf *b, bool html, const char *s, size_t len)
{
    const char *plain = s, *end = s + len;

    sbuf_addc(b, '"');
    while (s < end) {
        if (is_plain(*s)) { /* runs of these are copied in one piece */
            s++;
            continue;
        }

        uint32_t c = 0;
        size_t n = str_utf8(s, (size_t)(end - s), &c);

        sbuf_add(b, plain, (size_t)(s - plain));
        if (n == 0)
            sbuf_adds(b, "\\ufffd");
        else
            add_char(b, html, c, s, n);
        s += n ? n : 1;
        plain = s;
    }
    sbuf_add(b, plain, (size_t)(s - plain));
    sbuf_addc(b, '"');
}

static void add_break(struct jsw *w)
{
    if (w->indent)
        sbuf_addf(&w->out, "\n%*s", (int)(w->indent * w->depth), "");
}

/* Comma and key: whatever stands before a value. */
static void begin(struct jsw *w, const char *key)
{
    uint8_t *level = &w->level[w->depth];

    if (!(*level & LEVEL_IS_OBJECT) != !key)
        misuse(key ? "key outside an object" : "no key inside an object");
    if ((*level & LEVEL_HAS_ITEM) && w->depth == 0)
        misuse("second value behind the outermost");
    if (*level & LEVEL_HAS_ITEM)
        sbuf_addc(&w->out, ',');
    *level |= LEVEL_HAS_ITEM;
    if (w->depth > 0)
        add_break(w);
    if (key) {
        add_string(&w->out, w->html, key, strlen(key));
        sbuf_adds(&w->out, w->indent ? ": " : ":");
    }
}

static void open_level(struct jsw *w, const char *key, bool obj)
{
    begin(w, key);
    if (w->depth >= JSW_MAX_DEPTH)
        misuse("too deep");
    w->level[++w->depth] = obj ? LEVEL_IS_OBJECT : 0;
    sbuf_addc(&w->out, obj ? '{' : '[');
}

static void close_level(struct jsw *w, bool obj)
{
    uint8_t level = w->level[w->depth];

    if (w->depth == 0)
        misuse("an end too many");
    if (!(level & LEVEL_IS_OBJECT) != !obj)
        misuse(obj ? "end of an object inside an array" : "end of an array inside an object");
    w->depth--;
    if (level & LEVEL_HAS_ITEM)
        add_break(w);
    sbuf_addc(&w->out, obj ? '}' : ']');
}

void jsw_init(struct jsw *w, bool html)
{
    *w = (struct jsw){ .html = html };
}

void jsw_obj(struct jsw *w, const char *key)
{
    open_level(w, key, true);
}

void jsw_arr(struct jsw *w, const char *key)
{
    open_level(w, key, false);
}

void jsw_end_obj(struct jsw *w)
{
    close_level(w, true);
}

void jsw_end_arr(struct jsw *w)
{
    close_level(w, false);
}

void jsw_raw(struct jsw *w, const char *key, const char *json)
{
    begin(w, key);
    sbuf_adds(&w->out, json);
}

void jsw_strn(struct jsw *w, const char *key, const char *value, size_t len)
{
    begin(w, key);
    add_string(&w->out, w->html, value, len);
}

void jsw_str(struct jsw *w, const char *key, const char *value)
{
    if (value)
        jsw_strn(w, key, value, strlen(value));
    else
        jsw_null(w, key);
}

/* Without printf, which takes four times as long: metrics are mostly numbers. */
static void add_number(struct jsw *w, const char *key, bool negative, uint64_t value)
{
    char digits[21], *at = digits + sizeof(digits);

    begin(w, key);
    do
        *--at = (char)('0' + value % 10);
    while ((value /= 10) > 0);
    if (negative)
        *--at = '-';
    sbuf_add(&w->out, at, (size_t)(digits + sizeof(digits) - at));
}

void jsw_u64(struct jsw *w, const char *key, uint64_t value)
{
    add_number(w, key, false, value);
}

void jsw_i64(struct jsw *w, const char *key, int64_t value)
{
    add_number(w, key, value < 0, value < 0 ? -(uint64_t)value : (uint64_t)value);
}

/* The shortest of the forms that read back as the same number. JSON cannot represent infinity. */
void jsw_f64(struct jsw *w, const char *key, double value)
{
    char text[32] = "null";

    for (int digits = 15; digits <= 17 && isfinite(value); digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    jsw_raw(w, key, text);
}

void jsw_bool(struct jsw *w, const char *key, bool value)
{
    jsw_raw(w, key, value ? "true" : "false");
}

void jsw_null(struct jsw *w, const char *key)
{
    jsw_raw(w, key, "null");
}

static void value_string(struct jsw *w, const char *key, const json_t *v)
{
    const char *s = json_string_value(v);
    size_t len = json_string_length(v);
    bool doubled = len >= 2 && s[0] == '\0' && s[1] == '\0'; /* see big_number() */

    if (big_number(v))
        jsw_raw(w, key, big_number(v));
    else
        jsw_strn(w, key, s + doubled, len - doubled);
}

/* Recursion is bounded by what js_parse lets through. */
void jsw_value(struct jsw *w, const char *key, const json_t *value)
{
    json_t *v = (json_t *)(uintptr_t)value, *item; /* jansson's iterator is not const */
    const char *name;
    size_t i;

    switch (v ? json_typeof(v) : JSON_NULL) {
    case JSON_OBJECT:
        jsw_obj(w, key);
        json_object_foreach(v, name, item)
        {
            jsw_value(w, name, item);
        }
        jsw_end_obj(w);
        break;
    case JSON_ARRAY:
        jsw_arr(w, key);
        json_array_foreach(v, i, item)
        {
            jsw_value(w, NULL, item);
        }
        jsw_end_arr(w);
        break;
    case JSON_STRING:
        value_string(w, key, v);
        break;
    case JSON_INTEGER:
        jsw_i64(w, key, json_integer_value(v));
        break;
    case JSON_REAL:
        jsw_f64(w, key, json_real_value(v));
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        jsw_bool(w, key, json_is_true(v));
        break;
    case JSON_NULL:
        jsw_null(w, key);
        break;
    }
}

char *js_text(const json_t *value, unsigned indent)
{
    struct jsw w = { .html = JSW_PLAIN, .indent = indent };

    jsw_value(&w, NULL, value);
    return jsw_take(&w, NULL);
}

char *jsw_take(struct jsw *w, size_t *ret_len)
{
    if (w->depth)
        misuse("an end is missing");
    if (ret_len)
        *ret_len = w->out.len;
    w->level[0] = 0;
    return sbuf_take(&w->out);
}

void jsw_release(struct jsw *w)
{
    sbuf_release(&w->out);
    jsw_init(w, w->html);
}
