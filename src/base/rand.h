/* rand.h - random bytes. rand_bytes is the kernel's; struct rng is a seeded generator
 * (xoshiro256**) for simulation and jitter, never for secrets. Code above base uses
 * loop_rand(), which the simulator replaces. */
#pragma once
#include <stddef.h>
#include <stdint.h>

void rand_bytes(void *data, size_t len); /* getrandom(); aborts if the kernel has none */

struct rng {
    uint64_t s[4];
};
void rng_seed(struct rng *r, uint64_t seed);
uint64_t rng_next(struct rng *r);
uint64_t rng_below(struct rng *r, uint64_t n); /* 0 … n-1; n > 0 */
void rng_fill(struct rng *r, void *data, size_t len);
