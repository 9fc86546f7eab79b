/* blockfs.h - which file system a device holds. Leaf code; blocks while it is read. */
#pragma once
#include <stddef.h>

/* "ext4" (also for ext2 and ext3, which its driver mounts), "xfs", "erofs", "squashfs", or NULL if
 * it is none of these. Static text. */
const char *blockfs_detect(const void *head, size_t len);
#define BLOCKFS_HEAD_BYTES 4096
/* The same of a device or file. 0, or -errno; *ret may be NULL. */
int blockfs_of(const char *path, const char **ret);
