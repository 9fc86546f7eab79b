/* mkext4.h - makes an empty ext4. Leaf code; blocks while it writes: a few hundred KiB, whatever
 * the size, since inode tables are left as they are (busybox's mke2fs writes them all: 160 MiB for
 * 10 GiB). Blocks of 4 KiB, so that it fits a disk with sectors of that size; no journal. */
#pragma once
#include <stdint.h>

struct err;

#define MKEXT4_MIN_BYTES (256u << 10)

/* fd: a block device or file of so many bytes. uuid: random. */
int mkext4(int fd, uint64_t bytes, const uint8_t uuid[16], struct err *err);
