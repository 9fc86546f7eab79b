#include "base/bucket.h"
#include "base/clock.h"

/* The time that the rate needs for n. Split into parts, so that no n overflows. */
static uint64_t time_of(const struct bucket *b, uint64_t n)
{
    return n / b->per_s * NS_PER_S + n % b->per_s * NS_PER_S / b->per_s;
}

static uint64_t full_after(const struct bucket *b, uint64_t n, uint64_t now_ns)
{
    return (b->full_at_ns > now_ns ? b->full_at_ns : now_ns) + time_of(b, n);
}

uint64_t bucket_take(struct bucket *b, uint64_t n, uint64_t now_ns)
{
    uint64_t whole = time_of(b, b->burst);

    b->full_at_ns = full_after(b, n, now_ns);
    return b->full_at_ns - now_ns > whole ? b->full_at_ns - now_ns - whole : 0;
}

bool bucket_try(struct bucket *b, uint64_t n, uint64_t now_ns)
{
    if (full_after(b, n, now_ns) - now_ns > time_of(b, b->burst))
        return false;
    (void)bucket_take(b, n, now_ns);
    return true;
}
