/* tap.h - unit tests. A file of TEST(name) { … } bodies becomes a program that prints TAP. One
 * behaviour per test, named as a sentence. A failed assertion ends its test, not the program.
 *     TEST(attach_failure_is_terminal) { ASSERT_EQ(d.state, DISK_DETACHED); }
 *     TEST_FIBER(gate_is_fair) { … the body runs as a fiber; `ctx` has three minutes … }
 *     TEST_VIRTUAL(deadline_fires) { … on virtual time; `ctx` has a 10 s deadline … }
 * After the body of a fiber test every fiber it started must have ended, or end within a few
 * seconds: what is left fails the test and is listed. A failed assertion in a fiber other than the
 * test's own ends the test too. Arguments: a substring of test names to run; -l lists. */
#pragma once
#include "base/ctx.h"
#include "base/err.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tap_test {
    const char *name;
    void (*plain)(void);
    void (*fiber)(struct ctx *ctx);
    bool virtual_time;
    struct tap_test *next;
};
void tap_register(struct tap_test *t);
/* Records the failure and jumps out of the test. */
_Noreturn void tap_fail(const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Marks the test as skipped, with the reason, and jumps out of it. */
_Noreturn void tap_skip(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Runs fn(arg) in a child process and waits for it. True if it died by abort(); what it wrote to
 * stderr is then in text, NUL-terminated. For bugs that must not be survived. */
bool tap_aborts(void (*fn)(void *arg), void *arg, char *text, size_t size);

#define TAP_REGISTER_(id, ...)                                                                     \
    __attribute__((constructor)) static void tap_register_##id(void)                               \
    {                                                                                              \
        static struct tap_test t = { .name = #id, __VA_ARGS__ };                                   \
        tap_register(&t);                                                                          \
    }
#define TEST(id)                                                                                   \
    static void tap_body_##id(void);                                                               \
    TAP_REGISTER_(id, .plain = tap_body_##id)                                                      \
    static void tap_body_##id(void)
#define TEST_FIBER_(id, virt)                                                                      \
    static void tap_body_##id(struct ctx *ctx);                                                    \
    TAP_REGISTER_(id, .fiber = tap_body_##id, .virtual_time = virt)                                \
    static void tap_body_##id(__attribute__((unused)) struct ctx *ctx)
#define TEST_FIBER(id) TEST_FIBER_(id, false)
#define TEST_VIRTUAL(id) TEST_FIBER_(id, true)

#define ASSERT(cond)                                                                               \
    do {                                                                                           \
        if (!(cond))                                                                               \
            tap_fail(__FILE__, __LINE__, "%s", #cond);                                             \
    } while (0)
#define ASSERT_EQ(a, b)                                                                            \
    do {                                                                                           \
        long long a_ = (long long)(a), b_ = (long long)(b);                                        \
        if (a_ != b_)                                                                              \
            tap_fail(__FILE__, __LINE__, "%s is %lld, expected %s = %lld", #a, a_, #b, b_);        \
    } while (0)
#define ASSERT_STR(a, b)                                                                           \
    do {                                                                                           \
        const char *a_ = (a), *b_ = (b);                                                           \
        if (!a_ || !b_ || __builtin_strcmp(a_, b_) != 0)                                           \
            tap_fail(__FILE__, __LINE__, "%s is \"%s\", expected \"%s\"", #a, a_ ? a_ : "(null)",  \
                     b_ ? b_ : "(null)");                                                          \
    } while (0)
/* The text contains the other. */
#define ASSERT_HAS(text, part)                                                                     \
    do {                                                                                           \
        const char *t_ = (text), *p_ = (part);                                                     \
        if (!t_ || !__builtin_strstr(t_, p_))                                                      \
            tap_fail(__FILE__, __LINE__, "\"%s\" does not contain \"%s\"", t_ ? t_ : "(null)",     \
                     p_);                                                                          \
    } while (0)
/* A golden line: the words of a message, whole or in part. One for each message, in the tests of
 * the room that makes it; every other test asserts code, reason and data. A build with scrambled
 * messages (src/base/words.h) compares no golden line. */
bool tap_words_compared(void);
#define ASSERT_MSG(text, words)                                                                    \
    do {                                                                                           \
        if (tap_words_compared())                                                                  \
            ASSERT_STR(text, words);                                                               \
    } while (0)
#define ASSERT_MSG_HAS(text, words)                                                                \
    do {                                                                                           \
        if (tap_words_compared())                                                                  \
            ASSERT_HAS(text, words);                                                               \
    } while (0)
#define ASSERT_ABORTS(fn, arg, part)                                                               \
    do {                                                                                           \
        char text_[512];                                                                           \
        if (!tap_aborts((fn), (arg), text_, sizeof(text_)))                                        \
            tap_fail(__FILE__, __LINE__, "%s does not abort", #fn);                                \
        ASSERT_HAS(text_, part);                                                                   \
    } while (0)
#define ASSERT_OK(expr, err)                                                                       \
    do {                                                                                           \
        if ((expr) < 0)                                                                            \
            tap_fail(__FILE__, __LINE__, "%s: %s (code %d)", #expr, (err).msg, (err).code);        \
    } while (0)
#define ASSERT_FAIL(expr, err, want)                                                               \
    do {                                                                                           \
        if ((expr) >= 0)                                                                           \
            tap_fail(__FILE__, __LINE__, "%s succeeded, expected %s", #expr, #want);               \
        if ((err).code != (want))                                                                  \
            tap_fail(__FILE__, __LINE__, "%s: code %d, expected %s: %s", #expr, (err).code, #want, \
                     (err).msg);                                                                   \
    } while (0)
