#include "host/files/blockimage.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/offload.h"
#include "base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#define UEVENT_MAX 4096

struct job {
    const char *path; /* NULL: by number */
    enum blockimage_kind kind;
    uint32_t major, minor;
    bool read_only;
    int fd;
};

static void drop(void *arg)
{
    fd_close_later(((struct job *)arg)->fd);
}

/* --- in the thread --- */

/* The kernel reports the name that devtmpfs has. */
static char *find_name(const struct job *j, struct err *err)
{
    AUTO_FREE char *text = file_text(UEVENT_MAX, "/sys/dev/block/%u:%u/uevent", j->major, j->minor);
    const char *name = text ? strstr(text, "DEVNAME=") : NULL;

    if (!name) {
        err_because(err, REASON_MOUNT_SOURCE_MISSING, ERR_NOT_FOUND,
                    "the host has no block device %u:%u%s", j->major, j->minor,
                    text ? " with a name" : "");
        return NULL;
    }
    name += strlen("DEVNAME=");
    return str_format("/dev/%.*s", (int)strcspn(name, "\n"), name);
}

/* The lock decides between those that hold it, and lasts as long as a copy of fd is open. */
static int lock(const char *path, int fd, bool read_only, struct err *err)
{
    if (flock(fd, (read_only ? LOCK_SH : LOCK_EX) | LOCK_NB) == 0)
        return 0;
    if (errno != EWOULDBLOCK)
        return err_sys(err, errno, "lock %s", path);
    return err_because(
        err, REASON_DISK_IN_USE, ERR_STATE,
        "%s is in use by another pod: a device that one of them writes to is in one VM "
        "at a time; see: lcow volume ls",
        path);
}

/* The kernel opens a device exclusively when it is mounted or part of another device. */
static int check_unused(const struct job *j, const char *path, const char *again, struct err *err)
{
    AUTO_FD int fd = open(again, O_RDONLY | O_EXCL | O_CLOEXEC | O_NONBLOCK), other = -1;
    bool busy = fd < 0 && errno == EBUSY;

    if (busy && j->kind == BLOCKIMAGE_HELD) {
        other = open(again, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (other >= 0 && lock(path, other, j->read_only, err) < 0)
            return -1;
    }
    if (busy)
        return err_because(err, REASON_DISK_IN_USE, ERR_STATE,
                           "%s is in use on the host: unmount it there before a VM gets it", path);
    return fd < 0 ? err_sys(err, errno, "open %s", path) : 0;
}

static int check_kind(const struct job *j, const char *path, const struct stat *st, struct err *err)
{
    if (j->kind == BLOCKIMAGE_HELD && !S_ISREG(st->st_mode) && !S_ISBLK(st->st_mode))
        return err_because(err, REASON_MOUNT_SOURCE_INVALID, ERR_INVALID,
                           "%s is neither a block device nor an image file", path);
    if (j->kind == BLOCKIMAGE_FILE && !S_ISREG(st->st_mode))
        return err_because(err, REASON_MOUNT_SOURCE_INVALID, ERR_INVALID,
                           "%s is not a regular file: virtual-disk takes an image; use "
                           "physical-disk for a block device of the host",
                           path);
    if (j->kind == BLOCKIMAGE_DEVICE && !S_ISBLK(st->st_mode))
        return err_because(
            err, REASON_MOUNT_SOURCE_INVALID, ERR_INVALID,
            "%s is not a block device: physical-disk takes one; use virtual-disk for an image file",
            path);
    if (S_ISREG(st->st_mode) && st->st_size < 512)
        return err_because(err, REASON_MOUNT_SOURCE_INVALID, ERR_INVALID,
                           "%s is too small for a disk (%lld bytes)", path, (long long)st->st_size);
    return 0;
}

static int open_in_thread(void *arg, struct err *err)
{
    struct job *j = arg;
    AUTO_FREE char *path = j->path ? str_dup(j->path) : find_name(j, err);
    struct stat st;

    if (!path)
        return -1;
    /* Looked at first, since to open a device may do something; then opened by what was looked at,
     * whatever has the name by then. */
    AUTO_FD int seen = open(path, O_PATH | O_CLOEXEC);
    if (seen < 0)
        return err_sys(err, errno, "open %s", path);
    if (fstat(seen, &st) < 0)
        return err_sys(err, errno, "look at %s", path);
    AUTO_FREE char *again = str_format("/proc/self/fd/%d", seen);
    if (check_kind(j, path, &st, err) < 0 ||
        (S_ISBLK(st.st_mode) && check_unused(j, path, again, err) < 0))
        return -1;
    /* Nor can the host mount a device that a VM writes to. */
    int held = j->kind == BLOCKIMAGE_HELD && S_ISBLK(st.st_mode) && !j->read_only ? O_EXCL : 0;
    AUTO_FD int fd =
        open(again, (j->read_only ? O_RDONLY : O_RDWR) | held | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return err_sys(err, errno, "open %s", path);
    if (j->kind == BLOCKIMAGE_HELD && lock(path, fd, j->read_only, err) < 0)
        return -1;
    if (j->major && (major(st.st_rdev) != j->major || minor(st.st_rdev) != j->minor))
        return err_because(err, REASON_MOUNT_SOURCE_MISSING, ERR_NOT_FOUND,
                           "%s is not block device %u:%u any more", path, j->major, j->minor);
    j->fd = TAKE_FD(fd);
    return 0;
}

static int run(struct ctx *ctx, struct job j, int *ret_fd, struct err *err)
{
    j.fd = -1;
    if (OFFLOAD(ctx, open_in_thread, &j, 1, drop, "open a disk", err) < 0)
        return -1;
    *ret_fd = j.fd;
    return 0;
}

int blockimage_open(struct ctx *ctx, const char *path, enum blockimage_kind kind, bool read_only,
                    int *ret_fd, struct err *err)
{
    return run(ctx, (struct job){ .path = path, .kind = kind, .read_only = read_only }, ret_fd,
               err);
}

int blockimage_open_number(struct ctx *ctx, uint32_t major_number, uint32_t minor_number,
                           bool read_only, int *ret_fd, struct err *err)
{
    const struct job j = { NULL, BLOCKIMAGE_DEVICE, major_number, minor_number, read_only, -1 };

    return run(ctx, j, ret_fd, err);
}
