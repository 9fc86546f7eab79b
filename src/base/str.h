/* str.h - strings and a growing buffer. Allocation aborts when memory ends. Never waits. */
#pragma once
#include "base/mem.h"
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>

/* Caller frees. */
char *str_format(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
char *str_vformat(const char *fmt, va_list ap) __attribute__((format(printf, 1, 0)));
char *str_dup(const char *s); /* NULL stays NULL */
char *str_ndup(const char *s, size_t n);

bool str_eq(const char *a, const char *b); /* NULL equals NULL only */
bool str_starts(const char *s, const char *prefix);
bool str_ends(const char *s, const char *suffix);

/* The length of the UTF-8 character at s (1 … 4) and the character in *ret; 0 when the bytes are
 * not valid UTF-8 (overlong, surrogate, beyond U+10FFFF, cut off) or len is 0. */
size_t str_utf8(const char *s, size_t len, uint32_t *ret);

/* Neither a control character nor one that breaks lines or turns the direction of writing. */
bool str_is_harmless(uint32_t c);
/* Makes untrusted text safe for a terminal: unsafe characters and invalid UTF-8 become '?'. Caller
 * frees. */
char *str_printable(const char *s);

/* Strict numbers: the whole string, no sign, no blanks. 0, or -EINVAL, -ERANGE. */
int str_to_u64(const char *s, uint64_t max, uint64_t *ret);
/* The words of Go's strconv.ParseBool: 1, t, T, true, TRUE, True and their opposites. -EINVAL. */
int str_to_bool(const char *s, bool *ret);

/* Edit distance, for "did you mean". Bounded: anything longer than 64 characters is far. */
unsigned str_distance(const char *a, const char *b);
/* The nearest of a NULL-terminated list, or NULL when nothing is near. Borrows. */
const char *str_nearest(const char *word, const char *const *candidates);

/* A NULL-terminated list of strings that owns them. */
struct strv {
    char **v;
    size_t n, cap;
};
void strv_add(struct strv *l, const char *s);
void strv_addf(struct strv *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void strv_release(struct strv *l);
AUTO_VALUE(struct strv, strv_release);

/* A growing byte buffer, always NUL-terminated behind len once written to. {0} is empty. */
struct sbuf {
    char *data;
    size_t len, cap;
};
void sbuf_add(struct sbuf *b, const void *data, size_t len);
void sbuf_addc(struct sbuf *b, char c);
void sbuf_adds(struct sbuf *b, const char *s);
void sbuf_addf(struct sbuf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Room for `extra` more bytes; returns where they go. Caller adds to len itself. */
char *sbuf_room(struct sbuf *b, size_t extra);
/* Drops the first n bytes. */
void sbuf_consume(struct sbuf *b, size_t n);
/* Gives the content away ("" if empty); the buffer is empty again. Caller frees. */
char *sbuf_take(struct sbuf *b);
void sbuf_release(struct sbuf *b);
AUTO_VALUE(struct sbuf, sbuf_release);
