/* config_toml.c - reads the options table of containerd's CRI configuration, which is TOML. Debian
 * has no C library for TOML. This parser supports what encoders write for such a table, and refuses
 * all other syntax by name. */
#include "base/err.h"
#include "base/str.h"
#include "host/config/config_priv.h"
#include <stdlib.h>
#include <string.h>

#define TOML_MAX_BYTES (64 * 1024)

#define BARE "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"

struct toml {
    struct config *c;
    const char *name, *at;
    unsigned line;
    char *section; /* owned */
    struct err *err;
};

static int refuse(const struct toml *t, const char *what)
{
    return err_because(t->err, REASON_INVALID_CONFIG, ERR_INVALID, "%s:%u: %s", t->name, t->line,
                       what);
}

static void blanks(struct toml *t)
{
    t->at += strspn(t->at, " \t");
}

/* Skips blanks and a comment up to the end of the line. */
static void comment(struct toml *t)
{
    blanks(t);
    if (*t->at == '#')
        t->at += strcspn(t->at, "\n");
    if (str_starts(t->at, "\r\n"))
        t->at++;
}

/* Skips blanks, comments and line ends. */
static void gap(struct toml *t)
{
    for (comment(t); *t->at == '\n'; comment(t)) {
        t->at++;
        t->line++;
    }
}

static int line_end(struct toml *t)
{
    comment(t);
    return *t->at && *t->at != '\n' ? refuse(t, "unexpected text after the value") : 0;
}

static bool is_quote(char c)
{
    return c == '"' || c == '\'';
}

static int string(struct toml *t, struct sbuf *out)
{
    static const char escapes[] = "\"\\tn",
                      characters[] = "\"\\\t\n"; /* values of our keys need no others */
    char quote = *t->at;

    if (str_starts(t->at, "\"\"\"") || str_starts(t->at, "'''"))
        return refuse(t, "unsupported: a string over several lines");
    sbuf_adds(out, ""); /* so that out->data is not NULL for an empty string */
    for (t->at++; *t->at != quote; t->at++) {
        const char *hit;

        if (!*t->at)
            return refuse(t, "unterminated string");
        if ((unsigned char)*t->at < ' ' && *t->at != '\t')
            return refuse(t, "unterminated string at the end of the line");
        if (*t->at != '\\' || quote == '\'') {
            sbuf_addc(out, *t->at);
            continue;
        }
        hit = *++t->at ? strchr(escapes, *t->at) : NULL;
        if (!hit)
            return refuse(t, "unsupported escape: only \\\" \\\\ \\t \\n are supported");
        sbuf_addc(out, characters[hit - escapes]);
    }
    t->at++;
    return 0;
}

static int name(struct toml *t, struct sbuf *out)
{
    size_t n;

    blanks(t);
    if (is_quote(*t->at))
        return string(t, out);
    n = strspn(t->at, BARE);
    if (n == 0)
        return refuse(t, "invalid line: must be [table] or key = value");
    sbuf_add(out, t->at, n);
    t->at += n;
    return 0;
}

/* A number or a boolean, without the underscores that TOML allows between digits. */
static int bare(struct toml *t, struct sbuf *out)
{
    t->at += *t->at == '+';
    for (size_t n = strspn(t->at, BARE ".:"); n > 0; n--, t->at++)
        if (*t->at != '_')
            sbuf_addc(out, *t->at);
    if (out->len == 0)
        return refuse(t, "missing value");
    if (!str_eq(out->data, "true") && !str_eq(out->data, "false") &&
        strspn(out->data, "-0123456789") != out->len)
        return refuse(t, "invalid value: must be a string in quotes, an integer, a boolean or an "
                         "array of strings");
    return 0;
}

/* Reads ["a", 'b'] as words that are separated by blanks. */
static int array(struct toml *t, struct sbuf *out)
{
    sbuf_adds(out, "");
    for (t->at++;;) {
        AUTO(sbuf_release) struct sbuf word = { 0 };

        gap(t);
        if (!*t->at)
            return refuse(t, "unterminated array");
        if (*t->at == ']')
            break;
        if (!is_quote(*t->at))
            return refuse(t, "unsupported: an array of values other than strings");
        if (string(t, &word) < 0)
            return -1;
        sbuf_addf(out, "%s%s", out->len ? " " : "", word.data);
        gap(t);
        if (*t->at == ',')
            t->at++;
        else if (*t->at && *t->at != ']')
            return refuse(t, "missing comma in an array");
    }
    t->at++;
    return 0;
}

static int value(struct toml *t, struct sbuf *out)
{
    blanks(t);
    if (is_quote(*t->at))
        return string(t, out);
    if (*t->at == '[')
        return array(t, out);
    if (*t->at == '{')
        return refuse(t, "unsupported: an inline table; write [vm] or [host]");
    return bare(t, out);
}

static int table(struct toml *t)
{
    AUTO(sbuf_release) struct sbuf section = { 0 };

    if (str_starts(t->at, "[["))
        return refuse(t, "unsupported: an array of tables");
    t->at++;
    if (name(t, &section) < 0)
        return -1;
    blanks(t);
    if (*t->at != ']')
        return refuse(t, "missing ] after the table's name (nested tables are not supported)");
    t->at++;
    free(t->section);
    t->section = sbuf_take(&section);
    return line_end(t);
}

static int pair(struct toml *t)
{
    AUTO(sbuf_release) struct sbuf key = { 0 }, text = { 0 };

    if (name(t, &key) < 0)
        return -1;
    blanks(t);
    if (*t->at != '=')
        return refuse(t, *t->at == '.' ? "unsupported: a dotted key; write [vm] or [host]"
                                       : "invalid line: must be [table] or key = value");
    t->at++;

    AUTO_FREE char *where = str_format("%s:%u", t->name, t->line);

    if (value(t, &text) < 0 || line_end(t) < 0)
        return -1;
    if (strchr(text.data, '\n'))
        return refuse(t, "unsupported: a value with several lines");
    if (str_eq(key.data, "TypeUrl") || str_eq(key.data, "ConfigPath"))
        return 0; /* containerd's own keys, which it leaves in the text */
    return config_take(t->c, where, t->section, key.data, text.data, NULL, t->err);
}

int config_parse_toml(struct config *c, const char *name_, const char *text, struct err *err)
{
    struct toml t = { .c = c, .name = name_, .at = text, .line = 1, .err = err };
    int r = 0;

    if (strlen(text) > TOML_MAX_BYTES)
        return err_set(err, ERR_INVALID, "%s: the text exceeds the limit of %d bytes", name_,
                       TOML_MAX_BYTES);
    t.section = str_dup("");
    for (gap(&t); r == 0 && *t.at; gap(&t))
        r = *t.at == '[' ? table(&t) : pair(&t);
    free(t.section);
    return r;
}
