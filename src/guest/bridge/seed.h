/* seed.h - what makes a clone differ from its template: random seed, clock, host name, machine id.
 * Leaf code; never waits. */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct err;

#define SEED_CHUNK 4096

/* Mixes data (at most SEED_CHUNK bytes) into the kernel's generator, counted as full entropy. */
int seed_entropy(const void *data, size_t len, struct err *err);
/* Makes the generator use the new entropy immediately. */
int seed_reseed(struct err *err);
/* Nanoseconds since the kernel started. */
uint64_t seed_uptime(void);
int seed_clock(uint64_t wall_ns, struct err *err);
/* A random host name and machine-id. */
int seed_identity(struct err *err);
