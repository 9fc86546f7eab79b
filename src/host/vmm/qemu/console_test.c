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

TEST(a_kernel_that_complains_about_clock_or_cpu_is_noticed)
{
    static const char *const lines[] = {
        "[   32.1] watchdog: BUG: soft lockup - CPU#0 stuck for 26s! [gcs:1]\r\n",
        "[   60.0] rcu: INFO: rcu_preempt self-detected stall on CPU\r\n",
        "[   60.0] rcu: INFO: rcu_sched detected stalls on CPUs/tasks:\r\n",
        "[    9.9] clocksource: timekeeping watchdog on CPU1: Marking clocksource 'tsc' as "
        "unstable "
        "because the skew is too large:\r\n",
        "[  246.0] INFO: task kworker/0:1:10 blocked for more than 120 seconds.\r\n",
    };

    for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
        AUTO_FREE struct console *c = mem_new(struct console);

        feed(c, "[    0.0] tsc: Marking TSC unstable due to boot parameter\n");
        feed(c, "[    1.0] clocksource: Switched to clocksource tsc\n");
        ASSERT_STR(c->trouble, "");
        feed(c, lines[i]);
        ASSERT(c->trouble[0]);
        feed(c, "[   99.0] watchdog: BUG: soft lockup - CPU#7\n");
        ASSERT(!strstr(c->trouble, "CPU#7")); /* the first one is kept */
        ASSERT(!strchr(c->trouble, '\r'));
    }
}
