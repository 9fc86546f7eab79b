#include "base/rand.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

void rand_bytes(void *data, size_t len)
{
    char *p = data;

    while (len > 0) {
        ssize_t n = getrandom(p, len, 0);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            fprintf(stderr, "getrandom: %s\n", n < 0 ? strerror(errno) : "no bytes");
            abort();
        }
        p += n;
        len -= (size_t)n;
    }
}

/* splitmix64: what the authors of xoshiro recommend to spread a seed over its state. It never
 * gives four zeros in a row, the one state xoshiro cannot leave. */
static uint64_t splitmix(uint64_t *x)
{
    uint64_t z = *x += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

void rng_seed(struct rng *r, uint64_t seed)
{
    for (int i = 0; i < 4; i++)
        r->s[i] = splitmix(&seed);
}

static uint64_t rotate(uint64_t x, int k)
{
    return (x << k) | (x >> (64 - k));
}

uint64_t rng_next(struct rng *r)
{
    uint64_t *s = r->s;
    uint64_t result = rotate(s[1] * 5, 7) * 9, t = s[1] << 17;

    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate(s[3], 45);
    return result;
}

uint64_t rng_below(struct rng *r, uint64_t n)
{
    uint64_t limit, x;

    if (n == 0)
        abort();
    /* Throws away the short last stretch, so that every value is equally likely. */
    limit = UINT64_MAX - UINT64_MAX % n;
    do
        x = rng_next(r);
    while (x >= limit);
    return x % n;
}

void rng_fill(struct rng *r, void *data, size_t len)
{
    char *p = data;

    while (len > 0) {
        uint64_t x = rng_next(r);
        size_t n = len < sizeof(x) ? len : sizeof(x);

        memcpy(p, &x, n);
        p += n;
        len -= n;
    }
}
