/* io_form.c - the forms of a stdio string (containerd-contract.md §5.3). */
#include "base/err.h"
#include "host/io/io_priv.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define FORM_MAX_BYTES (64 * 1024)
#define FORM_MAX_ARGS 512 /* keys and values */

static const struct {
    const char *scheme;
    enum io_kind kind;
} schemes[] = {
    { "fifo", IO_FIFO },
    { "file", IO_FILE },
    { "binary", IO_BINARY },
    { "binary-v2", IO_BINARY2 },
};

void io_form_release(struct io_form *f)
{
    free(TAKE_PTR(f->path));
    strv_release(&f->args);
    f->kind = IO_NONE;
}

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Percent-decoding; in a query a plus is a blank. Caller frees. */
static int decode(const char *s, size_t n, bool query, char **ret, struct err *err)
{
    AUTO(sbuf_release) struct sbuf out = { 0 };

    for (size_t i = 0; i < n; i++) {
        if (s[i] != '%') {
            sbuf_addc(&out, query && s[i] == '+' ? ' ' : s[i]);
            continue;
        }
        int high = i + 1 < n ? hex(s[i + 1]) : -1, low = i + 2 < n ? hex(s[i + 2]) : -1;

        if (high < 0 || low < 0 || high + low == 0)
            return err_set(err, ERR_INVALID, "\"%%\" without two hex digits, or %%00");
        sbuf_addc(&out, (char)(high << 4 | low));
        i += 2;
    }
    *ret = sbuf_take(&out);
    return 0;
}

static bool has_key(const struct strv *args, const char *key)
{
    for (size_t i = 0; i < args->n; i += 2)
        if (str_eq(args->v[i], key))
            return true;
    return false;
}

/* k=v&k=v. Of a repeated key the first counts, as in containerd. */
static int parse_query(const char *query, struct strv *args, struct err *err)
{
    for (const char *p = query; *p; p += strcspn(p, "&"), p += *p == '&') {
        size_t len = strcspn(p, "&"), key_len = strcspn(p, "=&");
        AUTO_FREE char *key = NULL, *value = NULL;

        if (len == 0)
            continue;
        if (args->n >= FORM_MAX_ARGS)
            return err_set(err, ERR_INVALID, "more than %d arguments", FORM_MAX_ARGS / 2);
        if (decode(p, key_len, true, &key, err) < 0)
            return -1;
        if (key_len < len && decode(p + key_len + 1, len - key_len - 1, true, &value, err) < 0)
            return -1;
        if (has_key(args, key))
            continue;
        strv_add(args, key);
        strv_add(args, value ? value : "");
    }
    return 0;
}

static int parse_uri(const char *text, size_t scheme_len, struct io_form *f, struct err *err)
{
    const char *rest = text + scheme_len + 1;

    for (size_t i = 0; i < ARRAY_LEN(schemes); i++)
        if (strlen(schemes[i].scheme) == scheme_len &&
            strncasecmp(text, schemes[i].scheme, scheme_len) == 0)
            f->kind = schemes[i].kind;
    if (f->kind == IO_NONE && scheme_len == 10 && strncasecmp(text, "ttrpc+unix", 10) == 0)
        return err_set(err, ERR_UNIMPLEMENTED,
                       "streaming I/O is not supported (set io_type to \"fifo\" in containerd)");
    if (f->kind == IO_NONE)
        return err_set(err, ERR_INVALID,
                       "unknown scheme (known are a path, fifo://, file://, binary://)");
    if (!str_starts(rest, "///"))
        return err_set(err, ERR_INVALID, "an absolute path must follow: %.*s:///…", (int)scheme_len,
                       text);
    rest += 2;

    size_t path_len = strcspn(rest, "?#");
    const char *query = rest[path_len] == '?' ? rest + path_len + 1 : "";
    AUTO_FREE char *plain = str_ndup(query, strcspn(query, "#"));

    if (decode(rest, path_len, false, &f->path, err) < 0)
        return -1;
    return io_form_is_driver(f) ? parse_query(plain, &f->args, err) : 0;
}

int io_form_parse(const char *text, struct io_form *ret, struct err *err)
{
    struct io_form f = { 0 };
    size_t scheme = 0;

    if (!text || !*text) {
        *ret = f;
        return 0;
    }
    if (strnlen(text, FORM_MAX_BYTES + 1) > FORM_MAX_BYTES)
        return err_set(err, ERR_INVALID, "%.*s… is longer than %d bytes", 40, text, FORM_MAX_BYTES);
    while (isalnum((unsigned char)text[scheme]) ||
           (scheme > 0 && strchr("+-.", text[scheme]) && text[scheme] != '\0'))
        scheme++;
    if (text[0] == '/') {
        f.kind = IO_PATH;
        f.path = str_dup(text);
    } else if (scheme == 0 || text[scheme] != ':') {
        return err_set(err, ERR_INVALID, "%.*s: neither an absolute path nor a URI", IO_NAME_SHOWN,
                       text);
    } else if (parse_uri(text, scheme, &f, err) < 0) {
        io_form_release(&f);
        return err_wrap(err, "%.*s", IO_NAME_SHOWN, text);
    }
    *ret = f;
    return 0;
}
