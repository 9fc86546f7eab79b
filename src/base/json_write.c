#include "base/err.h"
#include "base/json.h"
#include "base/json_priv.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define JSW_MAX_DEPTH 64                   /* bits of has_item */
#define VALUE_MAX_DEPTH (2 * JS_MAX_DEPTH) /* a parsed tree inside another */

static _Noreturn void misuse(const char *what)
{
    fprintf(stderr, "bug: JSON writer: %s\n", what);
    abort();
}

/* encoding/json: what cannot stand in JavaScript is escaped too (U+2028, U+2029). Beyond it, if not
 * html, C1: a terminal obeys U+009B, and lcow prints what guests said as JSON, too. */
static void add_char(struct sbuf *b, bool html, uint32_t c, const char *s, size_t n)
{
    if (c == '"' || c == '\\')
        sbuf_addf(b, "\\%c", (char)c);
    else if (c == '\n')
        sbuf_adds(b, "\\n");
    else if (c == '\r')
        sbuf_adds(b, "\\r");
    else if (c == '\t')
        sbuf_adds(b, "\\t");
    else if (c == '\b')
        sbuf_adds(b, "\\b");
    else if (c == '\f')
        sbuf_adds(b, "\\f");
    else if (c < 0x20 || (!html && c >= 0x80 && c < 0xa0) || c == 0x2028 || c == 0x2029 ||
             (html && (c == '<' || c == '>' || c == '&')))
        sbuf_addf(b, "\\u%04x", c);
    else
        sbuf_add(b, s, n);
}

static void add_string(struct sbuf *b, bool html, const char *s, size_t len)
{
    const char *plain = s, *end = s + len;

    sbuf_addc(b, '"');
    while (s < end) {
        uint32_t c = 0;
        size_t n = str_utf8(s, (size_t)(end - s), &c);

        /* Runs of harmless ASCII are copied in one piece. */
        if (n == 1 && c >= 0x20 && c != '"' && c != '\\' && c != '<' && c != '>' && c != '&') {
            s++;
            continue;
        }
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

/* Comma and key: whatever stands before a value. */
static void begin(struct jsw *w, const char *key)
{
    if (w->depth == 0) {
        if (key)
            misuse("key outside an object");
        if (w->out.len)
            misuse("second value behind the outermost");
        return;
    }
    uint64_t bit = UINT64_C(1) << (w->depth - 1);

    if (!(w->is_obj & bit) != !key)
        misuse(key ? "key inside an array" : "no key inside an object");
    if (w->has_item & bit)
        sbuf_addc(&w->out, ',');
    w->has_item |= bit;
    if (key) {
        add_string(&w->out, w->html, key, strlen(key));
        sbuf_addc(&w->out, ':');
    }
}

static void open_level(struct jsw *w, const char *key, bool obj)
{
    begin(w, key);
    if (w->depth >= JSW_MAX_DEPTH)
        misuse("too deep");
    uint64_t bit = UINT64_C(1) << w->depth++;

    w->has_item &= ~bit;
    w->is_obj = obj ? w->is_obj | bit : w->is_obj & ~bit;
    sbuf_addc(&w->out, obj ? '{' : '[');
}

static void close_level(struct jsw *w, bool obj)
{
    if (w->depth == 0)
        misuse("an end too many");
    w->depth--;
    if (!(w->is_obj & (UINT64_C(1) << w->depth)) != !obj)
        misuse(obj ? "end of an object inside an array" : "end of an array inside an object");
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

void jsw_str(struct jsw *w, const char *key, const char *value)
{
    if (value)
        jsw_strn(w, key, value, strlen(value));
    else
        jsw_null(w, key);
}

void jsw_strn(struct jsw *w, const char *key, const char *value, size_t len)
{
    begin(w, key);
    add_string(&w->out, w->html, value, len);
}

void jsw_u64(struct jsw *w, const char *key, uint64_t value)
{
    begin(w, key);
    sbuf_addf(&w->out, "%" PRIu64, value);
}

void jsw_i64(struct jsw *w, const char *key, int64_t value)
{
    begin(w, key);
    sbuf_addf(&w->out, "%" PRId64, value);
}

/* The shortest of the forms that read back as the same number. */
static void add_f64(struct sbuf *b, double value)
{
    char text[32];

    if (!isfinite(value)) {
        sbuf_adds(b, "null"); /* JSON has no word for it */
        return;
    }
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    sbuf_adds(b, text);
}

void jsw_f64(struct jsw *w, const char *key, double value)
{
    begin(w, key);
    add_f64(&w->out, value);
}

void jsw_bool(struct jsw *w, const char *key, bool value)
{
    begin(w, key);
    sbuf_adds(&w->out, value ? "true" : "false");
}

void jsw_null(struct jsw *w, const char *key)
{
    begin(w, key);
    sbuf_adds(&w->out, "null");
}

void jsw_raw(struct jsw *w, const char *key, const char *json)
{
    begin(w, key);
    sbuf_adds(&w->out, json);
}

static void add_json_string(struct sbuf *b, bool html, const json_t *v)
{
    const char *s = json_string_value(v), *number = js_big_number(v);
    size_t len = json_string_length(v);

    if (number) {
        sbuf_adds(b, number);
        return;
    }
    if (len >= 2 && s[0] == '\0' && s[1] == '\0') { /* see json_priv.h */
        s++;
        len--;
    }
    add_string(b, html, s, len);
}

/* How a tree is written. */
struct style {
    bool html;
    unsigned indent; /* blanks for each level; 0: all in one line */
};

static void add_value(struct sbuf *b, const struct style *style, const json_t *v, unsigned depth);

static void add_break(struct sbuf *b, const struct style *style, unsigned depth)
{
    if (style->indent)
        sbuf_addf(b, "\n%*s", (int)(style->indent * depth), "");
}

static void add_object(struct sbuf *b, const struct style *style, const json_t *v, unsigned depth)
{
    json_t *obj = (json_t *)(uintptr_t)v; /* jansson's iterator is not const */
    bool first = true;

    sbuf_addc(b, '{');
    for (void *i = json_object_iter(obj); i; i = json_object_iter_next(obj, i)) {
        const char *key = json_object_iter_key(i);

        if (!first)
            sbuf_addc(b, ',');
        first = false;
        add_break(b, style, depth + 1);
        add_string(b, style->html, key, strlen(key));
        sbuf_adds(b, style->indent ? ": " : ":");
        add_value(b, style, json_object_iter_value(i), depth + 1);
    }
    if (!first)
        add_break(b, style, depth);
    sbuf_addc(b, '}');
}

static void add_array(struct sbuf *b, const struct style *style, const json_t *v, unsigned depth)
{
    size_t n = json_array_size(v);

    sbuf_addc(b, '[');
    for (size_t i = 0; i < n; i++) {
        if (i)
            sbuf_addc(b, ',');
        add_break(b, style, depth + 1);
        add_value(b, style, json_array_get(v, i), depth + 1);
    }
    if (n)
        add_break(b, style, depth);
    sbuf_addc(b, ']');
}

/* Recursion is bounded by what js_parse lets through. */
static void add_value(struct sbuf *b, const struct style *style, const json_t *v, unsigned depth)
{
    if (depth > VALUE_MAX_DEPTH)
        misuse("value too deep");
    switch (v ? json_typeof(v) : JSON_NULL) {
    case JSON_OBJECT:
        add_object(b, style, v, depth);
        break;
    case JSON_ARRAY:
        add_array(b, style, v, depth);
        break;
    case JSON_STRING:
        add_json_string(b, style->html, v);
        break;
    case JSON_INTEGER:
        sbuf_addf(b, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
        break;
    case JSON_REAL:
        add_f64(b, json_real_value(v));
        break;
    case JSON_TRUE:
        sbuf_adds(b, "true");
        break;
    case JSON_FALSE:
        sbuf_adds(b, "false");
        break;
    case JSON_NULL:
        sbuf_adds(b, "null");
        break;
    }
}

void jsw_value(struct jsw *w, const char *key, const json_t *value)
{
    begin(w, key);
    add_value(&w->out, &(struct style){ .html = w->html }, value, 0);
}

char *js_text(const json_t *value, unsigned indent)
{
    struct sbuf out = { 0 };

    add_value(&out, &(struct style){ .html = JSW_PLAIN, .indent = indent }, value, 0);
    return sbuf_take(&out);
}

char *jsw_take(struct jsw *w, size_t *ret_len)
{
    if (w->depth)
        misuse("an end is missing");
    if (ret_len)
        *ret_len = w->out.len;
    return sbuf_take(&w->out);
}

void jsw_release(struct jsw *w)
{
    sbuf_release(&w->out);
    jsw_init(w, w->html);
}
