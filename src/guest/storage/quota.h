/* quota.h - space that a directory uses of its ext4. Everything below it belongs to one project of
 * the file system's quotas. The directory's inode holds the project id, so the agent keeps no
 * state. Leaf code; blocks on the disk. */
#pragma once
#include <stdint.h>

struct err;

/* A directory that is empty, or had this before. project: used if it has none yet. limit: bytes it
 * may hold, and as many files as an ext4 of that size has; 0: it is only counted.
 * ERR_UNIMPLEMENTED: the file system does not support project quotas. */
int quota_begin(const char *dir, uint32_t project, uint64_t limit, struct err *err);
/* Bytes in use. ERR_NOT_FOUND: it is not counted. */
int quota_used(const char *dir, uint64_t *ret, struct err *err);
