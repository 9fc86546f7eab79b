#include "base/json.h"
#include "base/err.h"
#include "base/json_priv.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define REPLACEMENT "\xef\xbf\xbd" /* U+FFFD; jansson needs ten times as long for an escape */

/* The scan: the whole grammar of RFC 8259 without recursion, one bit per open level. Run twice at
 * most: first to check and to see whether jansson can read the text as it is; then, if not, to
 * write a copy that it can read. */
enum scan_state {
    SCAN_VALUE,        /* a value must come */
    SCAN_VALUE_OR_END, /* behind '[' */
    SCAN_KEY,          /* behind ',' in an object */
    SCAN_KEY_OR_END,   /* behind '{' */
    SCAN_COLON,
    SCAN_NEXT, /* ',' or the end of the level */
    SCAN_DONE,
};

struct scan {
    const char *text;
    size_t len, at;
    unsigned depth;
    uint64_t is_obj; /* bit per level */
    size_t n_values;
    bool rewrite;     /* found something that jansson would refuse */
    struct sbuf *out; /* the copy; NULL in the first run */
    struct err *err;
};

static int scan_error(struct scan *s, const char *what)
{
    unsigned char c;

    if (s->at >= s->len)
        return err_set(s->err, ERR_INVALID, "JSON ends at byte %zu: %s", s->len, what);
    c = (unsigned char)s->text[s->at];
    if (c > 0x20 && c < 0x7f)
        return err_set(s->err, ERR_INVALID, "JSON at byte %zu, '%c': %s", s->at, c, what);
    return err_set(s->err, ERR_INVALID, "JSON at byte %zu, 0x%02x: %s", s->at, c, what);
}

static int peek(const struct scan *s)
{
    return s->at < s->len ? (unsigned char)s->text[s->at] : -1;
}

static void copy(struct scan *s, const char *data, size_t len)
{
    if (s->out)
        sbuf_add(s->out, data, len);
}

/* Four hexadecimal digits at offset `at`, or -1. */
static int hex4(const struct scan *s, size_t at)
{
    int value = 0;

    if (s->len < 4 || at > s->len - 4)
        return -1;
    for (size_t i = at; i < at + 4; i++) {
        char c = s->text[i];

        if (c >= '0' && c <= '9')
            value = value << 4 | (c - '0');
        else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
            value = value << 4 | ((c | 0x20) - 'a' + 10);
        else
            return -1;
    }
    return value;
}

/* "\uXXXX", at the backslash. A surrogate without its other half becomes U+FFFD, as in Go. */
static int scan_unicode(struct scan *s, bool is_key, bool at_start)
{
    int c = hex4(s, s->at + 2), low = -1;
    size_t used = 6;

    if (c < 0)
        return scan_error(s, "\\u needs four hexadecimal digits");
    if (c == 0 && is_key)
        return scan_error(s, "NUL in a key");
    if (c == 0 && at_start) {
        s->rewrite = true;
        copy(s, "\\u0000", 6); /* one more: see json_priv.h */
    }
    if (c >= 0xd800 && c <= 0xdbff) {
        if (s->at + 7 < s->len && s->text[s->at + 6] == '\\' && s->text[s->at + 7] == 'u')
            low = hex4(s, s->at + 8);
        if (low >= 0xdc00 && low <= 0xdfff)
            used = 12;
        else
            c = 0xdc00;
    }
    if (c >= 0xdc00 && c <= 0xdfff) {
        s->rewrite = true;
        copy(s, REPLACEMENT, sizeof(REPLACEMENT) - 1);
    } else {
        copy(s, s->text + s->at, used);
    }
    s->at += used;
    return 0;
}

static int scan_escape(struct scan *s, bool is_key, bool at_start)
{
    char c = s->at + 1 < s->len ? s->text[s->at + 1] : '\0';

    if (c == 'u')
        return scan_unicode(s, is_key, at_start);
    if (!c || !strchr("\"\\/bfnrt", c))
        return scan_error(s, "unknown escape in a string");
    copy(s, s->text + s->at, 2);
    s->at += 2;
    return 0;
}

/* At the opening quote; ends behind the closing one. */
static int scan_string(struct scan *s, bool is_key)
{
    size_t first = s->at + 1, plain = s->at++;

    for (;;) {
        int c = peek(s);
        uint32_t character;
        size_t n;

        if (c >= 0x20 && c < 0x80 && c != '"' && c != '\\') {
            s->at++;
            continue;
        }
        if (c < 0x20)
            return scan_error(s, c < 0 ? "string is not closed" : "control byte in a string");
        copy(s, s->text + plain, s->at - plain);
        if (c == '"')
            break;
        if (c == '\\') {
            if (scan_escape(s, is_key, s->at == first) < 0)
                return -1;
        } else if ((n = str_utf8(s->text + s->at, s->len - s->at, &character)) > 0) {
            copy(s, s->text + s->at, n);
            s->at += n;
        } else {
            s->rewrite = true;
            copy(s, REPLACEMENT, sizeof(REPLACEMENT) - 1);
            s->at++;
        }
        plain = s->at;
    }
    copy(s, "\"", 1);
    s->at++;
    return 0;
}

static bool is_digit(int c)
{
    return c >= '0' && c <= '9';
}

static int skip_digits(struct scan *s, const char *what)
{
    if (!is_digit(peek(s)))
        return scan_error(s, what);
    while (is_digit(peek(s)))
        s->at++;
    return 0;
}

/* Whether jansson can hold it; text is the number alone. */
static bool number_fits(const char *text, size_t len, bool real)
{
    char small[32];
    AUTO_FREE char *big = NULL;
    const char *copied = small;
    bool fits;

    if (len < sizeof(small)) {
        memcpy(small, text, len);
        small[len] = '\0';
    } else {
        copied = big = str_ndup(text, len);
    }
    errno = 0;
    if (real)
        fits = isfinite(strtod(copied, NULL));
    else
        fits = ((void)strtoll(copied, NULL, 10), errno == 0);
    errno = 0;
    return fits;
}

static int scan_number(struct scan *s)
{
    size_t start = s->at, digits;
    bool real = false;

    if (peek(s) == '-')
        s->at++;
    digits = s->at;
    if (skip_digits(s, "number needs a digit") < 0)
        return -1;
    if (s->text[digits] == '0' && s->at > digits + 1) {
        s->at = digits + 1;
        return scan_error(s, "number with a leading zero");
    }
    if (peek(s) == '.') {
        real = true;
        s->at++;
        if (skip_digits(s, "number needs a digit behind the point") < 0)
            return -1;
    }
    if (peek(s) == 'e' || peek(s) == 'E') {
        real = true;
        s->at++;
        if (peek(s) == '+' || peek(s) == '-')
            s->at++;
        if (skip_digits(s, "number needs a digit in the exponent") < 0)
            return -1;
    }
    if (number_fits(s->text + start, s->at - start, real)) {
        copy(s, s->text + start, s->at - start);
        return 0;
    }
    s->rewrite = true;
    copy(s, "\"\\u0000", 7);
    copy(s, s->text + start, s->at - start);
    copy(s, "\"", 1);
    return 0;
}

static int scan_word(struct scan *s)
{
    static const char *const words[] = { "true", "false", "null" };

    for (size_t i = 0; i < ARRAY_LEN(words); i++) {
        size_t n = strlen(words[i]);

        if (s->len - s->at >= n && memcmp(s->text + s->at, words[i], n) == 0) {
            copy(s, words[i], n);
            s->at += n;
            return 0;
        }
    }
    return scan_error(s, "expected a value");
}

static enum scan_state after_value(const struct scan *s)
{
    return s->depth ? SCAN_NEXT : SCAN_DONE;
}

static bool in_object(const struct scan *s)
{
    return s->depth && (s->is_obj >> (s->depth - 1) & 1);
}

static int scan_open(struct scan *s, bool obj, enum scan_state *state)
{
    uint64_t bit;

    if (s->depth >= JS_MAX_DEPTH)
        return scan_error(s, "nested too deeply");
    bit = UINT64_C(1) << s->depth++;
    s->is_obj = obj ? s->is_obj | bit : s->is_obj & ~bit;
    *state = obj ? SCAN_KEY_OR_END : SCAN_VALUE_OR_END;
    copy(s, s->text + s->at++, 1);
    return 0;
}

static int scan_value(struct scan *s, enum scan_state *state)
{
    int c = peek(s), r;

    if (++s->n_values > JS_MAX_VALUES)
        return scan_error(s, "too many values, at most 131072");
    if (c == '{' || c == '[')
        return scan_open(s, c == '{', state);
    if (c == '"')
        r = scan_string(s, false);
    else if (c == '-' || is_digit(c))
        r = scan_number(s);
    else
        r = scan_word(s);
    *state = after_value(s);
    return r;
}

static int scan_close(struct scan *s, enum scan_state *state)
{
    copy(s, s->text + s->at++, 1);
    s->depth--;
    *state = after_value(s);
    return 0;
}

static int scan_step(struct scan *s, enum scan_state *state)
{
    int c = peek(s);

    switch (*state) {
    case SCAN_VALUE_OR_END:
        if (c == ']')
            return scan_close(s, state);
        return scan_value(s, state);
    case SCAN_VALUE:
        return scan_value(s, state);
    case SCAN_KEY_OR_END:
        if (c == '}')
            return scan_close(s, state);
        /* fall through */
    case SCAN_KEY:
        *state = SCAN_COLON;
        return c == '"' ? scan_string(s, true) : scan_error(s, "expected a key in quotes");
    case SCAN_COLON:
        if (c != ':')
            return scan_error(s, "expected ':' behind the key");
        *state = SCAN_VALUE;
        break;
    case SCAN_NEXT:
        if (c == (in_object(s) ? '}' : ']'))
            return scan_close(s, state);
        if (c != ',')
            return scan_error(s, in_object(s) ? "expected ',' or '}'" : "expected ',' or ']'");
        *state = in_object(s) ? SCAN_KEY : SCAN_VALUE;
        break;
    case SCAN_DONE:
        return scan_error(s, "something behind the value");
    }
    copy(s, s->text + s->at++, 1);
    return 0;
}

static int scan_text(struct scan *s)
{
    enum scan_state state = SCAN_VALUE;

    for (;;) {
        int c = peek(s);

        if (c == ' ' || c == '\t' || c == '\n' || c == '\r')
            s->at++;
        else if (state == SCAN_DONE && c < 0)
            return 0;
        else if (scan_step(s, &state) < 0)
            return -1;
    }
}

int js_parse(const char *text, size_t len, size_t max_len, json_t **ret, struct err *err)
{
    struct scan s = { .text = text, .len = len, .err = err };
    AUTO(sbuf_release) struct sbuf rewritten = { 0 };
    AUTO_FREE json_error_t *reason = NULL; /* 250 bytes that a fiber's stack need not hold */
    json_t *value;

    if (len > max_len)
        return err_set(err, ERR_INVALID, "JSON of %zu bytes is longer than the %zu allowed", len,
                       max_len);
    if (scan_text(&s) < 0)
        return -1;
    if (s.rewrite) {
        s = (struct scan){ .text = text, .len = len, .err = err, .out = &rewritten };
        if (scan_text(&s) < 0)
            return -1;
        text = rewritten.data;
        len = rewritten.len;
    }
    reason = mem_new(json_error_t);
    value = json_loadb(text, len, JSON_DECODE_ANY | JSON_ALLOW_NUL, reason);
    if (!value)
        return err_set(err, ERR_INVALID, "JSON at byte %d: %s", reason->position, reason->text);
    *ret = value;
    return 0;
}

const char *js_big_number(const json_t *v)
{
    const char *s = json_string_value(v);

    if (!s || json_string_length(v) < 2 || s[0] != '\0' || s[1] == '\0')
        return NULL;
    return s + 1;
}

json_t *js_get(const json_t *obj, const char *key)
{
    json_t *exact = json_object_get(obj, key), *found = NULL;
    json_t *o = (json_t *)(uintptr_t)obj; /* jansson's iterator is not const */

    if (exact)
        return exact;
    for (void *i = json_object_iter(o); i; i = json_object_iter_next(o, i))
        if (strcasecmp(json_object_iter_key(i), key) == 0)
            found = json_object_iter_value(i);
    return found;
}

static const char *type_name(const json_t *v)
{
    static const char *const names[] = {
        [JSON_OBJECT] = "an object", [JSON_ARRAY] = "an array",  [JSON_STRING] = "a string",
        [JSON_INTEGER] = "a number", [JSON_REAL] = "a fraction", [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",      [JSON_NULL] = "null",
    };

    return js_big_number(v) ? "a number out of range" : names[json_typeof(v)];
}

/* 1 with *ret if there is a value, 0 if absent or null, -1 if obj is no object. */
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
    if (!json_is_string(v) || js_big_number(v))
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

/* 1 with *ret in min … max, 0 if absent. */
static int get_int(const json_t *obj, const char *key, int64_t min, int64_t max, int64_t *ret,
                   struct err *err)
{
    json_t *v = NULL;
    int r = lookup(obj, key, &v, err);

    if (r <= 0)
        return r;
    if (js_big_number(v) && !strpbrk(js_big_number(v), ".eE"))
        return err_set(err, ERR_INVALID, "key \"%s\": %.32s is not in %" PRId64 " to %" PRId64, key,
                       js_big_number(v), min, max);
    if (!json_is_integer(v))
        return wrong_type(err, key, "an integer", v);
    *ret = json_integer_value(v);
    if (*ret < min || *ret > max)
        return err_set(err, ERR_INVALID,
                       "key \"%s\": %" PRId64 " is not in %" PRId64 " to %" PRId64, key, *ret, min,
                       max);
    return 1;
}

#define DEFINE_GET_INT(name, type, min, max)                                                       \
    int name(const json_t *obj, const char *key, type *ret, struct err *err)                       \
    {                                                                                              \
        int64_t value = 0;                                                                         \
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
DEFINE_GET_INT(js_i64, int64_t, INT64_MIN, INT64_MAX)

int js_u64(const json_t *obj, const char *key, uint64_t *ret, struct err *err)
{
    json_t *v = NULL;
    int r = lookup(obj, key, &v, err);
    const char *big;

    if (r <= 0)
        return r;
    big = js_big_number(v);
    if (big && str_to_u64(big, UINT64_MAX, ret) == 0)
        return 0;
    if (big && !strpbrk(big, ".eE"))
        return err_set(err, ERR_INVALID, "key \"%s\": %.32s is not in 0 to %" PRIu64, key, big,
                       UINT64_MAX);
    if (!json_is_integer(v))
        return wrong_type(err, key, "an integer", v);
    if (json_integer_value(v) < 0)
        return err_set(err, ERR_INVALID, "key \"%s\": %" JSON_INTEGER_FORMAT " is negative", key,
                       json_integer_value(v));
    *ret = (uint64_t)json_integer_value(v);
    return 0;
}

int js_obj(const json_t *obj, const char *key, const json_t **ret, struct err *err)
{
    json_t *v = NULL;
    int r = lookup(obj, key, &v, err);

    if (r <= 0)
        return r;
    if (!json_is_object(v))
        return wrong_type(err, key, "an object", v);
    *ret = v;
    return 0;
}

int js_arr(const json_t *obj, const char *key, const json_t **ret, struct err *err)
{
    json_t *v = NULL;
    int r = lookup(obj, key, &v, err);

    if (r <= 0)
        return r;
    if (!json_is_array(v))
        return wrong_type(err, key, "an array", v);
    *ret = v;
    return 0;
}
