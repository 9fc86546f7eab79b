#include "guest/storage/blockfs.h"
#include "base/fd.h"
#include "base/mem.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#define EMPTY_BYTES (1u << 20)

static const struct {
    const char *name, *magic;
    size_t offset, len;
} known[] = {
    { "ext4", "\x53\xef", 1080, 2 },
    { "xfs", "XFSB", 0, 4 },
    { "erofs", "\xe2\xe1\xf5\xe0", 1024, 4 },
    { "squashfs", "hsqs", 0, 4 },
};

const char *blockfs_detect(const void *head, size_t len)
{
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (known[i].offset + known[i].len <= len &&
            memcmp((const char *)head + known[i].offset, known[i].magic, known[i].len) == 0)
            return known[i].name;
    return NULL;
}

static uint64_t le(const uint8_t *p, size_t bytes)
{
    uint64_t n = 0;

    for (size_t i = bytes; i > 0; i--)
        n = n << 8 | p[i - 1];
    return n;
}

static uint64_t be(const uint8_t *p, size_t bytes)
{
    uint64_t n = 0;

    for (size_t i = 0; i < bytes; i++)
        n = n << 8 | p[i];
    return n;
}

/* 0 for what no file system has. */
static uint64_t product(uint64_t blocks, unsigned shift)
{
    return shift > 16 || blocks > UINT64_MAX >> shift ? 0 : blocks << shift;
}

static uint64_t ext4_size(const uint8_t *super)
{
    bool has_64bit = super[0x60] & 0x80;
    uint64_t high = has_64bit ? le(super + 0x150, 4) : 0;

    return product(high << 32 | le(super + 4, 4), 10 + (unsigned)le(super + 24, 1));
}

static uint64_t xfs_size(const uint8_t *super)
{
    uint64_t block = be(super + 4, 4);

    return block == 0 || block > 1u << 16 || be(super + 8, 8) > UINT64_MAX / block
               ? 0
               : be(super + 8, 8) * block;
}

uint64_t blockfs_size(const void *head, size_t len)
{
    const char *type = blockfs_detect(head, len);
    const uint8_t *p = head;

    if (!type || len < BLOCKFS_HEAD_BYTES)
        return 0;
    if (strcmp(type, "ext4") == 0)
        return ext4_size(p + 1024);
    if (strcmp(type, "xfs") == 0)
        return xfs_size(p);
    if (strcmp(type, "erofs") == 0)
        return product(le(p + 1024 + 36, 4), p[1024 + 12]);
    return le(p + 40, 8); /* squashfs */
}

int blockfs_of(const char *path, const char **ret)
{
    AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
    char head[BLOCKFS_HEAD_BYTES];

    if (fd < 0)
        return -errno;
    ssize_t n = fd_read_full(fd, head, sizeof(head));
    if (n < 0)
        return (int)n;
    *ret = blockfs_detect(head, (size_t)n);
    return 0;
}

int blockfs_is_empty(const char *path, bool *ret)
{
    AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
    static const char zeros[BLOCKFS_HEAD_BYTES];
    char block[BLOCKFS_HEAD_BYTES];

    if (fd < 0)
        return -errno;
    for (size_t at = 0; at < EMPTY_BYTES; at += sizeof(block)) {
        ssize_t n = fd_read_full(fd, block, sizeof(block));
        if (n < 0)
            return (int)n;
        *ret = memcmp(block, zeros, (size_t)n) == 0;
        if (!*ret || n < (ssize_t)sizeof(block))
            return 0;
    }
    return 0;
}
