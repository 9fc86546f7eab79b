#include "guest/runtime/cmdline.h"
#include "base/err.h"
#include "base/str.h"
#include <string.h>

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* From behind the opening quote to behind the closing one; NULL if there is none. */
static const char *take_quoted(const char *at, char quote, struct sbuf *word)
{
    for (; *at && *at != quote; at++) {
        if (quote == '"' && *at == '\\' && (at[1] == '"' || at[1] == '\\'))
            at++;
        sbuf_addc(word, *at);
    }
    return *at ? at + 1 : NULL;
}

/* One word, up to the blank behind it. */
static const char *take_word(const char *at, struct sbuf *word, struct err *err)
{
    while (*at && !is_blank(*at)) {
        if (*at == '\'' || *at == '"') {
            char quote = *at;
            at = take_quoted(at + 1, quote, word);
            if (!at) {
                err_set(err, ERR_INVALID, "command line has an open %c quote", quote);
                return NULL;
            }
        } else if (*at == '\\') {
            if (!at[1]) {
                err_set(err, ERR_INVALID, "command line ends with a backslash");
                return NULL;
            }
            sbuf_addc(word, at[1]);
            at += 2;
        } else {
            sbuf_addc(word, *at++);
        }
    }
    return at;
}

int cmdline_split(const char *line, struct strv *ret_words, struct err *err)
{
    if (strlen(line) > CMDLINE_MAX_BYTES)
        return err_set(err, ERR_INVALID, "command line is longer than %d bytes", CMDLINE_MAX_BYTES);
    for (const char *at = line; *at;) {
        AUTO(sbuf_release) struct sbuf word = { 0 };
        if (is_blank(*at)) {
            at++;
            continue;
        }
        at = take_word(at, &word, err);
        if (!at)
            return -1;
        strv_add(ret_words, word.data ? word.data : "");
    }
    return 0;
}
