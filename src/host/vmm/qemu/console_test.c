#include "base/str.h"
#include "harness/tap.h"
#include "host/vmm/qemu/console.h"

#include <stdlib.h>
#include <string.h>

static enum console_news feed(struct console *c, const char *text)
{
    return console_feed(c, text, strlen(text));
}

static char *tail(const struct console *c, size_t max)
{
    struct sbuf b = { 0 };

    console_tail(c, max, &b);
    return sbuf_take(&b);
}

TEST(stages_are_seen_in_whole_lines_only)
{
    static struct console c;

    ASSERT_EQ(feed(&c, "[    0.000000] Linux ver"), CONSOLE_NOTHING);
    ASSERT_EQ(feed(&c, "sion 6.1.0\r"), CONSOLE_NOTHING);
    ASSERT_EQ(feed(&c, "\nother\n"), CONSOLE_KERNEL);
    ASSERT_EQ(feed(&c, "lcow: stage init 1.2\n"), CONSOLE_INIT);
    ASSERT_EQ(feed(&c, "lcow: stage init\nLinux version 5\n"), CONSOLE_INIT);
}

TEST(a_stage_far_into_an_endless_line_is_not_looked_at)
{
    static struct console c;

    for (int i = 0; i < 100; i++)
        ASSERT_EQ(feed(&c, "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"), CONSOLE_NOTHING);
    ASSERT_EQ(feed(&c, "Linux version 6\n"), CONSOLE_NOTHING);
    ASSERT_EQ(feed(&c, "Linux version 6\n"), CONSOLE_KERNEL);
}

TEST(the_tail_has_whole_lines_and_nothing_that_moves_a_cursor)
{
    static struct console c;

    feed(&c, "first line\r\nsecond \033[2Jline\nthird\xffline\n");
    AUTO_FREE char *all = tail(&c, 1000), *some = tail(&c, 20), *few = tail(&c, 3);
    ASSERT_STR(all, "first line\nsecond ?[2Jline\nthird?line\n");
    ASSERT_STR(some, "third?line\n");
    ASSERT_STR(few, "ne\n");
}

TEST(only_the_last_bytes_are_kept)
{
    static struct console c;

    for (int i = 0; i < 5000; i++) {
        AUTO_FREE char *line = str_format("line %d\n", i);
        feed(&c, line);
    }
    AUTO_FREE char *all = tail(&c, 1 << 20);
    ASSERT(strlen(all) <= CONSOLE_KEEP && strlen(all) > CONSOLE_KEEP - 20);
    ASSERT_HAS(all, "\nline 4999\n");
    ASSERT(strncmp(all, "line ", 5) == 0);
    ASSERT(!strstr(all, "line 10\n"));
}
