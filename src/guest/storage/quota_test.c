/* What no file system but ext4 with quotas does; those of a real one are tested in a VM
 * (tests/e2e/test_layers.py). */
#include "base/err.h"
#include "guest/storage/quota.h"
#include "harness/tap.h"

#define NO_QUOTAS "/proc/sys" /* wherever the tests run */

TEST(a_limit_that_cannot_be_held_is_refused)
{
    struct err err = ERR_INIT;

    ASSERT_FAIL(quota_begin(NO_QUOTAS, 1, 1 << 20, &err), err, ERR_UNIMPLEMENTED);
    ASSERT_HAS(err.msg, NO_QUOTAS);
}

TEST(what_is_not_counted_is_not_known)
{
    struct err err = ERR_INIT;
    uint64_t bytes = 7;

    ASSERT_FAIL(quota_used(NO_QUOTAS, &bytes, &err), err, ERR_NOT_FOUND);
    ASSERT_EQ(bytes, 7);
}

TEST(a_symlink_is_not_a_scratch_directory)
{
    struct err err = ERR_INIT;

    ASSERT(quota_begin("/proc/self", 1, 0, &err) < 0);
    ASSERT_HAS(err.msg, "/proc/self");
}
