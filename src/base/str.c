#include "base/str.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Most texts are short: the first try goes into the room there is. */
__attribute__((format(printf, 2, 0))) static void sbuf_addv(struct sbuf *b, const char *fmt,
                                                            va_list ap)
{
    char *to = sbuf_room(b, 63);
    size_t room = b->cap - b->len;
    va_list again;
    int n;

    va_copy(again, ap);
    n = vsnprintf(to, room, fmt, ap);
    if (n < 0)
        abort(); /* only for a format that the compiler has checked */
    if ((size_t)n >= room)
        (void)vsnprintf(sbuf_room(b, (size_t)n), (size_t)n + 1, fmt, again);
    va_end(again);
    b->len += (size_t)n;
}

char *str_vformat(const char *fmt, va_list ap)
{
    struct sbuf b = { 0 };

    sbuf_addv(&b, fmt, ap);
    return sbuf_take(&b);
}

char *str_format(const char *fmt, ...)
{
    va_list ap;
    char *s;

    va_start(ap, fmt);
    s = str_vformat(fmt, ap);
    va_end(ap);
    return s;
}

char *str_dup(const char *s)
{
    return s ? mem_dup(s, strlen(s) + 1) : NULL;
}

char *str_ndup(const char *s, size_t n)
{
    size_t len = strnlen(s, n);
    char *copy = mem_alloc(len + 1);

    memcpy(copy, s, len);
    copy[len] = '\0';
    return copy;
}

bool str_eq(const char *a, const char *b)
{
    if (!a || !b)
        return a == b;
    return strcmp(a, b) == 0;
}

bool str_starts(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

bool str_ends(const char *s, const char *suffix)
{
    size_t len = strlen(s), n = strlen(suffix);

    return len >= n && memcmp(s + len - n, suffix, n) == 0;
}

size_t str_utf8(const char *s, size_t len, uint32_t *ret)
{
    static const uint32_t smallest[] = { 0, 0, 0x80, 0x800, 0x10000 };
    const unsigned char *u = (const unsigned char *)s;
    uint32_t c;
    size_t n;

    if (len == 0)
        return 0;
    c = u[0];
    if (c < 0x80) {
        *ret = c;
        return 1;
    }
    if (c < 0xc2 || c > 0xf4)
        return 0;
    n = c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    if (len < n)
        return 0;
    c &= 0x7fu >> n;
    for (size_t i = 1; i < n; i++) {
        if ((u[i] & 0xc0) != 0x80)
            return 0;
        c = c << 6 | (u[i] & 0x3f);
    }
    if (c < smallest[n] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff))
        return 0;
    *ret = c;
    return n;
}

bool str_is_harmless(uint32_t c)
{
    if (c < 0x20 || (c >= 0x7f && c < 0xa0))
        return false; /* C0, DEL, C1 */
    return !(c >= 0x2028 && c <= 0x202e) && !(c >= 0x2066 && c <= 0x2069);
}

char *str_printable(const char *s)
{
    struct sbuf out = { 0 };
    uint32_t c;

    for (size_t len = strlen(s), n; len > 0; s += n, len -= n) {
        n = str_utf8(s, len, &c);
        if (n > 0 && str_is_harmless(c))
            sbuf_add(&out, s, n);
        else
            sbuf_addc(&out, '?');
        n += n == 0;
    }
    return sbuf_take(&out);
}

int str_to_u64(const char *s, uint64_t max, uint64_t *ret)
{
    uint64_t value = 0;
    bool over = false;

    if (!s || !*s)
        return -EINVAL;
    /* Checks all characters even after an overflow, so that an invalid one is always -EINVAL. */
    for (; *s; s++) {
        if (*s < '0' || *s > '9')
            return -EINVAL;
        over |= __builtin_mul_overflow(value, 10, &value);
        over |= __builtin_add_overflow(value, (uint64_t)(*s - '0'), &value);
    }
    if (over || value > max)
        return -ERANGE;
    *ret = value;
    return 0;
}

int str_to_bool(const char *s, bool *ret)
{
    static const char *const words[2][6] = { { "0", "f", "F", "false", "FALSE", "False" },
                                             { "1", "t", "T", "true", "TRUE", "True" } };

    for (int i = 0; i < 12; i++)
        if (str_eq(s, words[i % 2][i / 2])) {
            *ret = i % 2;
            return 0;
        }
    return -EINVAL;
}

#define DISTANCE_MAX 64

unsigned str_distance(const char *a, const char *b)
{
    unsigned row[DISTANCE_MAX + 1];
    size_t n = strnlen(a, DISTANCE_MAX + 1), m = strnlen(b, DISTANCE_MAX + 1);

    if (n > DISTANCE_MAX || m > DISTANCE_MAX)
        return DISTANCE_MAX + 1;
    for (size_t j = 0; j <= m; j++)
        row[j] = (unsigned)j;
    for (size_t i = 1; i <= n; i++) {
        unsigned diagonal = row[0];

        row[0] = (unsigned)i;
        for (size_t j = 1; j <= m; j++) {
            unsigned best = diagonal + (a[i - 1] != b[j - 1]);

            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[m];
}

const char *str_nearest(const char *word, const char *const *candidates)
{
    const char *nearest = NULL;
    size_t len = strlen(word);
    /* A third of the letters may differ, and always two: a typing error. */
    unsigned best = len / 3 > 2 ? (unsigned)(len / 3) + 1 : 3;

    for (; *candidates; candidates++) {
        unsigned d = str_distance(word, *candidates);

        /* A word in which every letter differs is not similar. */
        if (d < best && d < len && d < strlen(*candidates)) {
            best = d;
            nearest = *candidates;
        }
    }
    return nearest;
}

static void strv_push(struct strv *l, char *owned)
{
    l->v = mem_grow(l->v, l->n + 1, &l->cap, sizeof(*l->v));
    l->v[l->n++] = owned;
    l->v[l->n] = NULL;
}

void strv_add(struct strv *l, const char *s)
{
    strv_push(l, mem_dup(s, strlen(s) + 1));
}

void strv_addf(struct strv *l, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    strv_push(l, str_vformat(fmt, ap));
    va_end(ap);
}

void strv_release(struct strv *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->v[i]);
    free(l->v);
    *l = (struct strv){ 0 };
}

char *sbuf_room(struct sbuf *b, size_t extra)
{
    size_t need;

    if (__builtin_add_overflow(b->len, extra, &need) || __builtin_add_overflow(need, 1, &need))
        need = SIZE_MAX; /* mem_realloc aborts */
    if (need > b->cap) {
        size_t cap = b->cap < 64 ? 64 : b->cap;

        while (cap < need)
            if (__builtin_mul_overflow(cap, 2, &cap))
                cap = need;
        b->data = mem_realloc(b->data, cap);
        b->cap = cap;
    }
    b->data[b->len] = '\0';
    return b->data + b->len;
}

void sbuf_add(struct sbuf *b, const void *data, size_t len)
{
    char *to = sbuf_room(b, len);

    if (len)
        memcpy(to, data, len);
    b->len += len;
    b->data[b->len] = '\0';
}

void sbuf_addc(struct sbuf *b, char c)
{
    sbuf_add(b, &c, 1);
}

void sbuf_adds(struct sbuf *b, const char *s)
{
    sbuf_add(b, s, strlen(s));
}

void sbuf_addf(struct sbuf *b, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    sbuf_addv(b, fmt, ap);
    va_end(ap);
}

void sbuf_consume(struct sbuf *b, size_t n)
{
    if (n > b->len)
        abort(); /* a bug in the caller: the length would wrap around */
    if (n == 0)
        return;
    b->len -= n;
    memmove(b->data, b->data + n, b->len);
    b->data[b->len] = '\0';
}

char *sbuf_take(struct sbuf *b)
{
    char *data = b->data ? b->data : mem_zalloc(1);

    *b = (struct sbuf){ 0 };
    return data;
}

void sbuf_release(struct sbuf *b)
{
    free(b->data);
    *b = (struct sbuf){ 0 };
}
