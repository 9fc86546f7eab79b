#include "base/clock.h"
#include "harness/tap.h"
#include <string.h>

TEST(mono_does_not_go_back)
{
    uint64_t last = clock_mono();

    ASSERT(last > 0);
    for (int i = 0; i < 1000; i++) {
        uint64_t t = clock_mono();

        ASSERT(t >= last);
        last = t;
    }
}

TEST(wall_is_after_2024)
{
    ASSERT(clock_wall() > UINT64_C(1704067200) * NS_PER_S);
}

static void check_rfc3339(uint64_t ns, const char *want)
{
    char buf[CLOCK_RFC3339_SIZE];

    memset(buf, 'x', sizeof(buf));
    clock_rfc3339(ns, buf);
    ASSERT_STR(buf, want);
}

TEST(rfc3339_is_utc_with_nine_digits)
{
    check_rfc3339(0, "1970-01-01T00:00:00.000000000Z");
    check_rfc3339(UINT64_C(1709210096) * NS_PER_S + 7, "2024-02-29T12:34:56.000000007Z");
    check_rfc3339(UINT64_C(951782400) * NS_PER_S - 1, "2000-02-28T23:59:59.999999999Z");
}

TEST(rfc3339_holds_the_last_nanosecond)
{
    check_rfc3339(UINT64_MAX, "2554-07-21T23:34:33.709551615Z");
}

static void check_human(uint64_t ns, const char *want)
{
    char buf[CLOCK_HUMAN_SIZE];

    clock_human(ns, buf);
    ASSERT_STR(buf, want);
}

TEST(human_keeps_two_or_three_digits)
{
    check_human(0, "0us");
    check_human(1, "1ns");
    check_human(999, "999ns");
    check_human(1000, "1us");
    check_human(120 * NS_PER_US, "120us");
    check_human(NS_PER_MS - 1, "999us");
    check_human(NS_PER_MS, "1.0ms");
    check_human(9999 * NS_PER_US, "9.9ms");
    check_human(45 * NS_PER_MS, "45ms");
    check_human(NS_PER_S - 1, "999ms");
    check_human(1234 * NS_PER_MS, "1.23s");
    check_human(99 * NS_PER_S, "99.00s");
    check_human(100 * NS_PER_S, "100s");
    check_human(3600 * NS_PER_S, "3600s");
    check_human(UINT64_MAX, "18446744073s");
}
