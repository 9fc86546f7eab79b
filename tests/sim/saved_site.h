/* saved_site.h - for the mutations of saved state: included before each x_save.c, it makes every
 * line that saves a field a site that can be left out at run time, as if the line were not there.
 *     SAVED_SITES=FILE    appends to FILE, at the end: each site, and how often it was passed
 *     SAVED_LEFT_OUT=N    the site to leave out, by its place in that list */
#pragma once
#include "base/json.h"
#include "base/saved.h"

struct saved_site {
    const char *file, *what;
    unsigned line;
    unsigned field; /* 0: not a constant */
    unsigned long passed;
};
/* Whether to leave it out. */
bool saved_site(struct saved_site *at);
/* The same for messages, which are written, but not read: a line that only writes is not passed. */
bool saved_site_open(struct saved_site *at, struct saved *s, unsigned field);
/* The elements of a message that is left out are not there. */
size_t saved_site_count(const char *file, struct saved *s, unsigned field, size_t n);

#define SAVED_SITE(what, number)                                                                   \
    ({                                                                                             \
        static struct saved_site site_ __attribute__((section("saved_sites"), used)) = {           \
            __FILE__, what, __LINE__, __builtin_constant_p(number) ? (number) : 0, 0               \
        };                                                                                         \
        &site_;                                                                                    \
    })
#define SAVED_FIELD(fn, s, f, v) (saved_site(SAVED_SITE(#v, f)) ? (void)0 : fn(s, f, v))

#define saved_bool(s, f, v) SAVED_FIELD(saved_bool, s, f, v)
#define saved_u8(s, f, v) SAVED_FIELD(saved_u8, s, f, v)
#define saved_u16(s, f, v) SAVED_FIELD(saved_u16, s, f, v)
#define saved_u32(s, f, v) SAVED_FIELD(saved_u32, s, f, v)
#define saved_u64(s, f, v) SAVED_FIELD(saved_u64, s, f, v)
#define saved_int(s, f, v) SAVED_FIELD(saved_int, s, f, v)
#define saved_i64(s, f, v) SAVED_FIELD(saved_i64, s, f, v)
#define saved_size(s, f, v) SAVED_FIELD(saved_size, s, f, v)
#define saved_str(s, f, v) SAVED_FIELD(saved_str, s, f, v)
#define saved_sbuf(s, f, v) SAVED_FIELD(saved_sbuf, s, f, v)
#define saved_strv(s, f, v) SAVED_FIELD(saved_strv, s, f, v)
#define json_saved(s, f, v) SAVED_FIELD(json_saved, s, f, v)
#define saved_text(s, f, v, n) (saved_site(SAVED_SITE(#v, f)) ? (void)0 : saved_text(s, f, v, n))
#define saved_bytes(s, f, v, n) (saved_site(SAVED_SITE(#v, f)) ? (void)0 : saved_bytes(s, f, v, n))
#define saved_fd(s, f, w, v) (saved_site(SAVED_SITE(#v, f)) ? (void)0 : saved_fd(s, f, w, v))
#define saved_stream(s, f, w, l, v)                                                                \
    (saved_site(SAVED_SITE(#v, f)) ? (void)0 : saved_stream(s, f, w, l, v))
#undef SAVED_ENUM
#define SAVED_ENUM(s, f, v, count)                                                                 \
    (saved_site(SAVED_SITE(#v, f))                                                                 \
         ? (void)0                                                                                 \
         : (void)((v) = (__typeof__(v))saved_enum(s, f, (unsigned)(v), (unsigned)(count))))
#define saved_open(s, f) saved_site_open(SAVED_SITE("message " #f, f), s, f)
#define saved_count(s, f, n) saved_site_count(__FILE__, s, f, n)
