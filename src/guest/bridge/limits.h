/* limits.h - what the kernel derived from the memory it found when it booted, and does not derive
 * again when more is plugged: a VM that began with 128 MiB and has 8 GiB now could have a thousand
 * threads and 6 MB of TCP buffers. Leaf code; never waits. */
#pragma once
#include <stdint.h>

/* Raises what is lower than the kernel would have set it for so much memory; never lowers. root is
 * /proc/sys. */
void limits_raise(const char *root, uint64_t total_bytes);
