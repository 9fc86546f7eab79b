#include "base/reason.h"
#include "base/str.h"
#include "harness/tap.h"
#include <errno.h>
#include <string.h>

TEST(every_reason_has_a_name_of_its_own_in_upper_case)
{
    for (int i = 0; i < REASON_COUNT; i++) {
        const char *name = reason_name((enum reason)i);

        ASSERT(name && strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == strlen(name));
        ASSERT_EQ(reason_parse(name), i);
    }
}

TEST(what_is_not_a_reason_is_unknown)
{
    ASSERT_EQ(reason_parse(NULL), REASON_NONE);
    ASSERT_EQ(reason_parse(""), REASON_NONE);
    ASSERT_EQ(reason_parse("UNKNOWN"), REASON_NONE);
    ASSERT_EQ(reason_parse("DISK_FUL"), REASON_NONE);
    ASSERT_STR(reason_name((enum reason)REASON_COUNT), "UNKNOWN");
    ASSERT_STR(reason_name((enum reason) - 1), "UNKNOWN");
}

TEST(an_errno_of_either_sign_has_the_same_reason)
{
    ASSERT_EQ(reason_from_errno(ENOSPC), REASON_DISK_FULL);
    ASSERT_EQ(reason_from_errno(-ENOSPC), REASON_DISK_FULL);
    ASSERT_EQ(reason_from_errno(0), REASON_NONE);
}
