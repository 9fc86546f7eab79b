#include "guest/storage/quota.h"
#include "base/err.h"
#include "base/fd.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/dqblk_xfs.h>
#include <linux/fs.h>
#include <linux/quota.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BLOCK 1024            /* of a limit, in the kernel's interface */
#define BYTES_PER_FILE 16384u /* mke2fs makes an inode for each so many */
#define FILES_MIN 256         /* what a container's root needs, and a reserve */

static int call(int fd, int cmd, uint32_t project, void *arg)
{
    return syscall(SYS_quotactl_fd, fd, QCMD(cmd, PRJQUOTA), project, arg) < 0 ? -errno : 0;
}

/* Only files made later inherit the project, so the directory must be empty. */
static int count(int fd, uint32_t wanted, uint32_t *ret)
{
    struct fsxattr x = { 0 };

    if (ioctl(fd, FS_IOC_FSGETXATTR, &x) < 0)
        return -errno;
    if (x.fsx_projid == 0) {
        x.fsx_projid = wanted;
        x.fsx_xflags |= FS_XFLAG_PROJINHERIT;
        if (ioctl(fd, FS_IOC_FSSETXATTR, &x) < 0)
            return -errno;
    }
    *ret = x.fsx_projid;
    return 0;
}

/* Enables enforcement: without a mount option the kernel only counts. */
static int limit_to(int fd, uint32_t project, uint64_t bytes)
{
    uint64_t files = bytes / BYTES_PER_FILE;
    struct if_dqblk q = { .dqb_bhardlimit = bytes / BLOCK,
                          .dqb_ihardlimit = files > FILES_MIN ? files : FILES_MIN,
                          .dqb_valid = QIF_LIMITS };
    unsigned flags = FS_QUOTA_PDQ_ENFD;
    int r = call(fd, Q_XQUOTAON, 0, &flags);

    if (r < 0 && r != -EEXIST)
        return r;
    return call(fd, Q_SETQUOTA, project, &q);
}

static int open_dir(const char *dir, struct err *err)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    return fd < 0 ? err_sys(err, errno, "open %s", dir) : fd;
}

int quota_begin(const char *dir, uint32_t project, uint64_t limit, struct err *err)
{
    AUTO_FD int fd = open_dir(dir, err);
    int r = fd < 0 ? -1 : count(fd, project, &project);

    if (fd < 0)
        return -1;
    if (r == -ENOTTY || r == -EOPNOTSUPP)
        return err_because(err, REASON_SCRATCH_QUOTA, ERR_UNIMPLEMENTED,
                           "%s: its file system does not support quotas", dir);
    if (r < 0)
        return err_sys(err, -r, "count what is in %s", dir);
    r = limit > 0 ? limit_to(fd, project, limit) : 0;
    return r < 0 ? err_sys(err, -r, "limit %s to %llu bytes", dir, (unsigned long long)limit) : 0;
}

int quota_used(const char *dir, uint64_t *ret, struct err *err)
{
    AUTO_FD int fd = open_dir(dir, err);
    struct fsxattr x = { 0 };
    struct if_dqblk q = { 0 };

    if (fd < 0)
        return -1;
    if (ioctl(fd, FS_IOC_FSGETXATTR, &x) < 0 || x.fsx_projid == 0)
        return err_set(err, ERR_NOT_FOUND, "%s has no quota", dir);
    int r = call(fd, Q_GETQUOTA, x.fsx_projid, &q);
    if (r < 0)
        return err_sys(err, -r, "read the quota of %s", dir);
    *ret = q.dqb_curspace;
    return 0;
}
