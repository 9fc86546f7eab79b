/* Texts from outside, made to fit. */
#include "proto/bridge_priv.h"
#include <string.h>

/* What jsw makes of the character at s with JSW_HTML. *ret_len: what to go on by. */
static size_t escaped_char(const char *s, size_t left, size_t *ret_len)
{
    uint32_t c = 0;
    size_t n = str_utf8(s, left, &c);

    *ret_len = n ? n : 1;
    if (n == 1 && c && strchr("\"\\\b\f\n\r\t", (int)c))
        return 2;
    if (n == 0 || c < 0x20 || c == '<' || c == '>' || c == '&' || c == 0x2028 || c == 0x2029)
        return 6;
    return n;
}

size_t bridge_escaped_len(const char *s, size_t len)
{
    size_t total = 0, n;

    for (size_t at = 0; at < len; at += n)
        total += escaped_char(s + at, len - at, &n);
    return total;
}

char *bridge_text_cut(const char *s, size_t budget)
{
    size_t len = strlen(s), mark = sizeof(BRIDGE_CUT) - 1, used = 0, keep = 0, n;
    char *cut;

    for (size_t at = 0; at < len; at += n) {
        used += escaped_char(s + at, len - at, &n);
        if (used > budget)
            break;
        if (used + mark <= budget)
            keep = at + n;
    }
    if (used <= budget)
        return str_dup(s);
    cut = mem_alloc(keep + mark + 1);
    memcpy(cut, s, keep);
    memcpy(cut + keep, BRIDGE_CUT, mark + 1);
    return cut;
}

bool bridge_is_guid(const char *s)
{
    if (!s || strlen(s) != 36)
        return false;
    for (size_t i = 0; i < 36; i++) {
        bool hyphen = i == 8 || i == 13 || i == 18 || i == 23;

        if (hyphen ? s[i] != '-' : !strchr("0123456789abcdefABCDEF", s[i]))
            return false;
    }
    return true;
}
