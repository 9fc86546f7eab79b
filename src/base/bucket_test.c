#include "base/bucket.h"
#include "base/clock.h"
#include "harness/tap.h"

TEST(a_burst_is_free_and_the_rest_waits_for_its_rate)
{
    struct bucket b = { .burst = 10, .per_s = 5 };
    uint64_t now = 3 * NS_PER_S;

    for (int i = 0; i < 10; i++)
        ASSERT_EQ(bucket_take(&b, 1, now), 0);
    ASSERT_EQ(bucket_take(&b, 1, now), NS_PER_S / 5);
    ASSERT_EQ(bucket_take(&b, 4, now), NS_PER_S);
    /* The debt is paid before anything is free again. */
    ASSERT_EQ(bucket_take(&b, 1, now + NS_PER_S), NS_PER_S / 5);
}

TEST(what_is_not_there_is_not_taken)
{
    struct bucket b = { .burst = 10, .per_s = 5 };

    ASSERT(bucket_try(&b, 10, 0));
    for (int i = 0; i < 100; i++)
        ASSERT(!bucket_try(&b, 1, 0));
    ASSERT(!bucket_try(&b, 1, NS_PER_S / 5 - 1));
    ASSERT(bucket_try(&b, 1, NS_PER_S / 5)); /* refusals cost nothing */
    ASSERT(!bucket_try(&b, 1, NS_PER_S / 5));
}

TEST(it_is_full_again_and_no_fuller)
{
    struct bucket b = { .burst = 10, .per_s = 5 };

    ASSERT(bucket_try(&b, 10, NS_PER_S));
    ASSERT(bucket_try(&b, 10, 1000 * NS_PER_S));
    ASSERT(!bucket_try(&b, 1, 1000 * NS_PER_S));
}

TEST(large_amounts_do_not_overflow)
{
    struct bucket b = { .burst = 1u << 30, .per_s = 1u << 20 };

    ASSERT_EQ(bucket_take(&b, 1u << 30, 0), 0);
    ASSERT_EQ(bucket_take(&b, UINT64_C(4) << 30, 0), 4096 * NS_PER_S);
}
