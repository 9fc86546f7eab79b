/* bucket.h - a rate limit: `burst` at once, `per_s` a second in the long run. For input that a
 * guest can send at any rate. Pure: the caller brings the time. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

/* { .burst = …, .per_s = … } is a full one. per_s must not be 0. */
struct bucket {
    uint64_t burst, per_s;
    uint64_t full_at_ns; /* when it will be full again if nothing more is taken */
};

/* Takes n even if there is less, which leaves a debt. Returns how long the caller must wait before
 * it acts; 0: not at all. */
uint64_t bucket_take(struct bucket *b, uint64_t n, uint64_t now_ns);
/* Takes n if there is that much. */
bool bucket_try(struct bucket *b, uint64_t n, uint64_t now_ns);
