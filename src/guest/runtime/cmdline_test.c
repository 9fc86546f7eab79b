#include "base/str.h"
#include "guest/runtime/vm_process.h"
#include "harness/tap.h"
#include <string.h>

/* The words joined by '|'. */
static char *split(const char *line, struct err *err)
{
    AUTO(strv_release) struct strv words = { 0 };
    struct sbuf out = { 0 };

    if (cmdline_split(line, &words, err) < 0)
        return NULL;
    for (size_t i = 0; i < words.n; i++)
        sbuf_addf(&out, "%s%s", i ? "|" : "", words.v[i]);
    return sbuf_take(&out);
}

static void expect(const char *line, const char *want)
{
    struct err err = ERR_INIT;
    AUTO_FREE char *got = split(line, &err);

    ASSERT_STR(got, want);
}

TEST(blanks_separate_words)
{
    expect("ls -l /run", "ls|-l|/run");
    expect("  a\t b \n c ", "a|b|c");
    expect("", "");
    expect("   ", "");
}

TEST(quotes_join_words)
{
    expect("sh -c 'exit 7'", "sh|-c|exit 7");
    expect("a \"b c\" d", "a|b c|d");
    expect("a'b c'd", "ab cd");
    expect("'' \"\"", "|");
    expect("'a\\b' \"$x\"", "a\\b|$x");
}

TEST(a_backslash_takes_the_next_character)
{
    expect("a\\ b", "a b");
    expect("\\'x\\\"", "'x\"");
    expect("\"a\\\"b\\\\c\\d\"", "a\"b\\c\\d");
}

TEST(open_quotes_are_refused)
{
    static const char *const bad[] = { "'a", "\"a", "a 'b c", "a\\", "\"a\\\"" };

    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct err err = ERR_INIT;
        AUTO_FREE char *got = split(bad[i], &err);
        ASSERT(got == NULL);
        ASSERT_EQ(err.code, ERR_INVALID);
    }
}

TEST(a_line_without_end_is_refused)
{
    AUTO_FREE char *line = mem_alloc(CMDLINE_MAX_BYTES + 2);
    struct err err = ERR_INIT;

    memset(line, 'x', CMDLINE_MAX_BYTES + 1);
    line[CMDLINE_MAX_BYTES + 1] = '\0';
    AUTO_FREE char *got = split(line, &err);
    ASSERT(got == NULL);
    ASSERT_EQ(err.code, ERR_INVALID);
}
