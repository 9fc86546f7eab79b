#include "base/scrub.h"
#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include <ctype.h>
#include <string.h>
#include <strings.h>

#define MESSAGE_MAX (16u << 20)
#define NESTED_MAX 4u /* JSON in JSON in JSON */

static bool scrubbing = true;

void scrub_set(bool on)
{
    scrubbing = on;
}

static bool is_secret(const char *key)
{
    static const char *const names[] = { "env",         "environment", "args",
                                         "commandargs", "commandline", "annotations" };
    static const char *const parts[] = { "policy", "password", "secret",
                                         "token",  "auth",     "credential" };

    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (strcasecmp(key, names[i]) == 0)
            return true;
    for (size_t i = 0; i < ARRAY_LEN(parts); i++)
        if (strcasestr(key, parts[i]))
            return true;
    return false;
}

static json_t *clean(json_t *value, unsigned depth);

/* A string that is JSON itself: the bridge's way to carry documents. */
static json_t *clean_text(const char *text, size_t len, unsigned depth)
{
    AUTO(json_decref) json_t *inner = NULL;
    struct err ignored = ERR_INIT;

    size_t blank = strspn(text, " \t\r\n");

    if (text[blank] != '{' && text[blank] != '[')
        return json_stringn(text, len);
    /* A document that cannot be read may hold a secret. */
    if (depth >= NESTED_MAX || js_parse(text, len, MESSAGE_MAX, &inner, &ignored) < 0)
        return json_string(SCRUBBED);
    return clean(inner, depth + 1);
}

/* A copy without secrets. */
static json_t *clean(json_t *value, unsigned depth)
{
    const char *key;
    json_t *item, *out;
    size_t i;

    if (json_is_string(value))
        return clean_text(json_string_value(value), json_string_length(value), depth);
    if (json_is_array(value)) {
        out = json_array();
        json_array_foreach(value, i, item) json_array_append_new(out, clean(item, depth));
        return out;
    }
    if (!json_is_object(value))
        return json_incref(value);
    out = json_object();
    json_object_foreach(value, key, item)
        json_object_set_new(out, key, is_secret(key) ? json_string(SCRUBBED) : clean(item, depth));
    return out;
}

char *scrub_json(const char *text, size_t len)
{
    AUTO(json_decref) json_t *root = NULL, *safe = NULL;
    struct err ignored = ERR_INIT;
    char *out;

    if (!scrubbing) {
        out = str_ndup(text, len < SCRUB_TEXT_MAX ? len : SCRUB_TEXT_MAX);
    } else if (js_parse(text, len, MESSAGE_MAX, &root, &ignored) < 0) {
        return str_format("(%zu bytes that are not JSON)", len);
    } else {
        safe = clean(root, 0);
        out = js_text(safe, 0);
    }
    if (strlen(out) > SCRUB_TEXT_MAX)
        out[SCRUB_TEXT_MAX] = '\0';
    return out;
}
