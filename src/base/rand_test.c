#include "base/rand.h"
#include "harness/tap.h"
#include <string.h>

TEST(kernel_bytes_differ)
{
    unsigned char a[32] = { 0 }, b[32] = { 0 };

    rand_bytes(a, sizeof(a));
    rand_bytes(b, sizeof(b));
    ASSERT(memcmp(a, b, sizeof(a)) != 0);
    rand_bytes(NULL, 0);
}

TEST(kernel_bytes_fill_more_than_one_call_gives)
{
    static unsigned char big[1 << 20];
    size_t zeros = 0;

    rand_bytes(big, sizeof(big));
    for (size_t i = sizeof(big) - 4096; i < sizeof(big); i++)
        zeros += big[i] == 0;
    ASSERT(zeros < 100);
}

TEST(the_generator_is_xoshiro256_starstar)
{
    /* From state {1, 2, 3, 4}: the reference implementation's first values. */
    struct rng r = { { 1, 2, 3, 4 } };

    ASSERT_EQ(rng_next(&r), 11520);
    ASSERT_EQ(rng_next(&r), 0);
    ASSERT_EQ(rng_next(&r), 1509978240);
    ASSERT_EQ(rng_next(&r), 1215971899390074240);
}

TEST(a_seed_spreads_by_splitmix64)
{
    struct rng r;

    rng_seed(&r, 0);
    ASSERT(r.s[0] == UINT64_C(0xe220a8397b1dcdaf)); /* splitmix64 of 0: reference */
    ASSERT(r.s[1] == UINT64_C(0x6e789e6aa1b965f4));
}

TEST(the_same_seed_gives_the_same_numbers)
{
    struct rng a, b, c;

    rng_seed(&a, 7);
    rng_seed(&b, 7);
    rng_seed(&c, 8);
    for (int i = 0; i < 100; i++) {
        uint64_t x = rng_next(&a);

        ASSERT(x == rng_next(&b));
        ASSERT(x != rng_next(&c));
    }
}

TEST(below_stays_below_and_reaches_all)
{
    struct rng r;
    unsigned seen[7] = { 0 };

    rng_seed(&r, 1);
    for (int i = 0; i < 7000; i++) {
        uint64_t x = rng_below(&r, 7);

        ASSERT(x < 7);
        seen[x]++;
    }
    for (int i = 0; i < 7; i++)
        ASSERT(seen[i] > 850 && seen[i] < 1150);
}

TEST(below_one_is_zero_and_the_largest_bound_works)
{
    struct rng r;

    rng_seed(&r, 1);
    for (int i = 0; i < 10; i++) {
        ASSERT_EQ(rng_below(&r, 1), 0);
        ASSERT(rng_below(&r, UINT64_MAX) < UINT64_MAX);
        ASSERT(rng_below(&r, (UINT64_C(1) << 63) + 1) <= UINT64_C(1) << 63);
    }
}

static void below_zero(void *arg)
{
    (void)rng_below(arg, 0);
}

TEST(below_zero_is_a_bug)
{
    struct rng r;

    rng_seed(&r, 1);
    ASSERT_ABORTS(below_zero, &r, "");
}

TEST(fill_writes_exactly_the_length)
{
    unsigned char a[16], b[16];
    struct rng r;

    for (size_t len = 0; len <= 13; len++) {
        memset(a, 0xaa, sizeof(a));
        memset(b, 0x55, sizeof(b));
        rng_seed(&r, 3);
        rng_fill(&r, a, len);
        rng_seed(&r, 3);
        rng_fill(&r, b, len);
        ASSERT(memcmp(a, b, len) == 0);
        ASSERT(a[len] == 0xaa && b[len] == 0x55);
    }
}
