#include "base/fd.h"
#include "base/str.h"
#include "guest/storage/storage.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/types.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#define SECTOR 512
#define NUMBER_MAX 4096 /* the size that sysfs reports for its files */

/* The kernel's UAPI headers define neither. */
#define EXT4_RESIZE _IOW('f', 16, __u64)
struct xfs_geometry { /* version 1 */
    __u32 blocksize, skipped[6], imaxpct;
    __u64 datablocks, skipped_too[9];
};
struct xfs_growth {
    __u64 newblocks;
    __u32 imaxpct;
};
#define XFS_GEOMETRY _IOR('X', 100, struct xfs_geometry)
#define XFS_GROW _IOW('X', 110, struct xfs_growth)
_Static_assert(sizeof(struct xfs_geometry) == 112, "as the kernel has it");

static int grow_xfs(int fd, uint64_t bytes)
{
    struct xfs_geometry g = { 0 };

    if (ioctl(fd, XFS_GEOMETRY, &g) < 0)
        return -1;

    struct xfs_growth to = { bytes / g.blocksize, g.imaxpct };

    return to.newblocks <= g.datablocks ? 0 : ioctl(fd, XFS_GROW, &to);
}

/* *Rescans the disk. ret: its size in bytes. */
static int look_again(dev_t dev, uint64_t *ret)
{
    AUTO_FREE char *at = str_format("/sys/dev/block/%u:%u", major(dev), minor(dev));
    AUTO_FREE char *rescan = str_format("%s/device/rescan", at);
    int r = file_put(rescan, "1\n");
    AUTO_FREE char *text = file_text(NUMBER_MAX, "%s/size", at);
    uint64_t sectors;

    if (r < 0 && r != -ENOENT) /* a disk that is not SCSI needs no rescan */
        return r;
    if (text)
        text[strcspn(text, "\n")] = '\0';
    if (!text || str_to_u64(text, UINT64_MAX / SECTOR, &sectors) < 0)
        return -EIO;
    *ret = sectors * SECTOR;
    return 0;
}

int storage_grow_main(const char *path)
{
    AUTO_FD int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    const char *what = "open";
    uint64_t bytes = 0;
    struct statfs fs;
    struct stat st;
    int r = fd < 0 || fstat(fd, &st) < 0 || fstatfs(fd, &fs) < 0 ? -errno : 0;

    if (r == 0) {
        what = "look at the disk of";
        r = look_again(st.st_dev, &bytes);
    }
    if (r == 0) {
        uint64_t blocks = fs.f_bsize ? bytes / (uint64_t)fs.f_bsize : 0;

        what = "grow the file system of";
        errno = EOPNOTSUPP;
        r = fs.f_type == EXT4_SUPER_MAGIC  ? ioctl(fd, EXT4_RESIZE, &blocks)
            : fs.f_type == XFS_SUPER_MAGIC ? grow_xfs(fd, bytes)
                                           : -1;
        if (r < 0)
            r = -errno;
    }
    if (r < 0)
        fprintf(stderr, "gcs: %s %s: %s\n", what, path, strerror(-r));
    return r < 0;
}
