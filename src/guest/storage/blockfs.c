#include "guest/storage/blockfs.h"
#include "base/fd.h"
#include "base/mem.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>

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
