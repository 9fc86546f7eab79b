/* config_toml.c - the options table of containerd's CRI configuration, as TOML. Debian has no C
 * library for it, and what an encoder makes of such a table needs little: this reads that, and
 * names the rest instead of guessing. */
#include "base/err.h"
#include "base/str.h"
#include "host/config/config_priv.h"
#include <stdlib.h>
#include <string.h>

#define TOML_MAX_BYTES (64 * 1024)

struct toml {
    struct config *c;
    const char *name, *at, *end;
    unsigned line;
    char *section; /* owned */
    struct err *err;
};

static int refuse(const struct toml *t, const char *what)
{
    return err_set(t->err, ERR_INVALID, "%s:%u: %s", t->name, t->line, what);
}

static bool more(const struct toml *t)
{
    return t->at < t->end;
}

static bool starts(const struct toml *t, const char *text)
{
    size_t n = strlen(text);

    return (size_t)(t->end - t->at) >= n && memcmp(t->at, text, n) == 0;
}

static void blanks(struct toml *t)
{
    while (more(t) && (*t->at == ' ' || *t->at == '\t'))
        t->at++;
}

static void comment(struct toml *t)
{
    blanks(t);
    if (more(t) && *t->at == '#')
        while (more(t) && *t->at != '\n')
            t->at++;
}

/* Blanks, comments and line ends. */
static void gap(struct toml *t)
{
    for (;;) {
        comment(t);
        if (starts(t, "\r\n"))
            t->at++;
        if (!more(t) || *t->at != '\n')
            return;
        t->at++;
        t->line++;
    }
}

static int line_end(struct toml *t)
{
    comment(t);
    if (starts(t, "\r\n"))
        t->at++;
    return more(t) && *t->at != '\n' ? refuse(t, "something follows the value on its line") : 0;
}

/* Behind the backslash. Texts of ours need no character beyond these. */
static int escape(struct toml *t, struct sbuf *out)
{
    static const char from[] = "\"\\tn", to[] = "\"\\\t\n";
    const char *hit = more(t) && *t->at ? strchr(from, *t->at) : NULL;

    if (!hit)
        return refuse(t, "an escape other than \\\" \\\\ \\t \\n is not taken");
    sbuf_addc(out, to[hit - from]);
    t->at++;
    return 0;
}

static int string(struct toml *t, struct sbuf *out)
{
    char quote = *t->at;

    if (starts(t, "\"\"\"") || starts(t, "'''"))
        return refuse(t, "a string over several lines is not taken");
    sbuf_adds(out, ""); /* also an empty one is a string */
    for (t->at++; more(t) && *t->at != quote;) {
        if ((unsigned char)*t->at < ' ' && *t->at != '\t')
            return refuse(t, "a string is not closed on its line");
        if (*t->at == '\\' && quote == '"') {
            t->at++;
            if (escape(t, out) < 0)
                return -1;
        } else {
            sbuf_addc(out, *t->at++);
        }
    }
    if (!more(t))
        return refuse(t, "a string is not closed");
    t->at++;
    return 0;
}

static bool is_bare(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
}

static int name(struct toml *t, struct sbuf *out)
{
    blanks(t);
    if (more(t) && (*t->at == '"' || *t->at == '\''))
        return string(t, out);
    while (more(t) && is_bare(*t->at))
        sbuf_addc(out, *t->at++);
    return out->len == 0 ? refuse(t, "neither [table] nor key = value") : 0;
}

/* A number or a boolean, without the underscores that TOML allows between digits. */
static int bare(struct toml *t, struct sbuf *out)
{
    if (more(t) && *t->at == '+')
        t->at++;
    while (more(t) && (is_bare(*t->at) || *t->at == '.' || *t->at == ':')) {
        if (*t->at != '_')
            sbuf_addc(out, *t->at);
        t->at++;
    }
    if (out->len == 0)
        return refuse(t, "a value is missing");
    if (!str_eq(out->data, "true") && !str_eq(out->data, "false") &&
        strspn(out->data, "-0123456789") != out->len)
        return refuse(t, "a value that is no string, whole number, boolean or array of strings; "
                         "text needs quotes");
    return 0;
}

/* ["a", 'b'] as words. */
static int array(struct toml *t, struct sbuf *out)
{
    sbuf_adds(out, "");
    for (t->at++;;) {
        AUTO(sbuf_release) struct sbuf word = { 0 };

        gap(t);
        if (!more(t))
            return refuse(t, "an array is not closed");
        if (*t->at == ']')
            break;
        if (*t->at != '"' && *t->at != '\'')
            return refuse(t, "an array of anything but strings is not taken");
        if (string(t, &word) < 0)
            return -1;
        sbuf_addf(out, "%s%s", out->len ? " " : "", word.data);
        gap(t);
        if (more(t) && *t->at == ',')
            t->at++;
        else if (more(t) && *t->at != ']')
            return refuse(t, "a comma is missing in an array");
    }
    t->at++;
    return 0;
}

static int value(struct toml *t, struct sbuf *out)
{
    blanks(t);
    if (!more(t))
        return refuse(t, "a value is missing");
    if (*t->at == '"' || *t->at == '\'')
        return string(t, out);
    if (*t->at == '[')
        return array(t, out);
    if (*t->at == '{')
        return refuse(t, "an inline table is not taken: write [vm] or [host]");
    return bare(t, out);
}

static int table(struct toml *t)
{
    AUTO(sbuf_release) struct sbuf section = { 0 };

    if (starts(t, "[["))
        return refuse(t, "an array of tables is not taken");
    t->at++;
    if (name(t, &section) < 0)
        return -1;
    blanks(t);
    if (!more(t) || *t->at != ']')
        return refuse(t, "a table's name is followed by no ] (tables in tables are not taken)");
    t->at++;
    free(t->section);
    t->section = sbuf_take(&section);
    return line_end(t);
}

/* containerd's own, which it leaves in the text. */
static bool is_containerds(const char *key)
{
    return str_eq(key, "TypeUrl") || str_eq(key, "ConfigPath");
}

static int pair(struct toml *t)
{
    AUTO(sbuf_release) struct sbuf key = { 0 }, text = { 0 };

    if (name(t, &key) < 0)
        return -1;
    blanks(t);
    if (!more(t) || *t->at != '=')
        return refuse(t, more(t) && *t->at == '.'
                             ? "a dotted key is not taken: write [vm] or [host]"
                             : "neither [table] nor key = value");
    t->at++;

    AUTO_FREE char *place = str_format("%s:%u", t->name, t->line);

    if (value(t, &text) < 0 || line_end(t) < 0)
        return -1;
    if (strlen(text.data) != text.len || strpbrk(text.data, "\n"))
        return refuse(t, "a value of several lines");
    if (is_containerds(key.data))
        return 0;
    return config_take(t->c, place, t->section, key.data, text.data, NULL, t->err);
}

int config_parse_toml(struct config *c, const char *name_, const char *text, size_t len,
                      struct err *err)
{
    struct toml t = { .c = c, .name = name_, .at = text, .end = text + len, .line = 1, .err = err };
    int r = 0;

    if (len > TOML_MAX_BYTES)
        return err_set(err, ERR_INVALID, "%s: more than %d bytes", name_, TOML_MAX_BYTES);
    if (memchr(text, '\0', len))
        return err_set(err, ERR_INVALID, "%s: not text", name_);
    t.section = str_dup("");
    for (gap(&t); r == 0 && more(&t); gap(&t))
        r = *t.at == '[' ? table(&t) : pair(&t);
    free(t.section);
    return r;
}
