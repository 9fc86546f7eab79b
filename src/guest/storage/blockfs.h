/* blockfs.h - which file system a device holds, and how a new ext4 is made. Leaf code; blocks while
 * it reads and writes. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;

/* "ext4" (also for ext2 and ext3, which its driver mounts), "xfs", "erofs", "squashfs", or NULL if
 * it is none of these. Static text. */
const char *blockfs_detect(const void *head, size_t len);
#define BLOCKFS_HEAD_BYTES 4096
/* The size of the file system in bytes, from its superblock; 0 if it is none of the above. */
uint64_t blockfs_size(const void *head, size_t len);
/* The same of a device or file. 0, or -errno; *ret may be NULL. */
int blockfs_of(const char *path, const char **ret);
/* Whether its first MiB is zeros, or all of it if it is smaller. 0, or -errno. */
int blockfs_is_empty(const char *path, bool *ret);

/* Makes an empty ext4. Writes a few hundred KiB, whatever the size, since inode tables are left as
 * they are (busybox's mke2fs writes them all: 160 MiB for 10 GiB). Blocks of 4 KiB, so that it fits
 * a disk with sectors of that size; no journal. */
#define MKEXT4_MIN_BYTES (256u << 10)

/* fd: a block device or file of so many bytes. uuid: random. */
int mkext4(int fd, uint64_t bytes, const uint8_t uuid[16], struct err *err);
