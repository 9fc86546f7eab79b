#include "host/files/blockimage.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/offload.h"
#include "base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define UEVENT_MAX 4096

struct job {
    char *path; /* NULL: by number */
    enum blockimage_kind kind;
    uint32_t major, minor;
    bool read_only;
    int fd;
};

static void job_free(void *arg)
{
    struct job *j = arg;

    if (!j)
        return;
    fd_close_later(j->fd);
    free(j->path);
    free(j);
}

/* --- in the thread --- */

/* The kernel tells the name that devtmpfs has. */
static int find_name(struct job *j, struct err *err)
{
    AUTO_FREE char *path = str_format("/sys/dev/block/%u:%u/uevent", j->major, j->minor);
    AUTO_FREE char *text = NULL;
    size_t len;
    int r = file_read_all(path, UEVENT_MAX, &text, &len);

    if (r < 0)
        return err_set(err, ERR_NOT_FOUND, "the host has no block device %u:%u", j->major,
                       j->minor);
    const char *name = strstr(text, "DEVNAME=");
    if (!name)
        return err_set(err, ERR_NOT_FOUND, "block device %u:%u has no name", j->major, j->minor);
    name += strlen("DEVNAME=");
    j->path = str_format("/dev/%.*s", (int)strcspn(name, "\n"), name);
    return 0;
}

/* Whoever mounted it, or made it part of something, holds it exclusively. */
static int check_unused(const struct job *j, const char *again, struct err *err)
{
    AUTO_FD int fd = open(again, O_RDONLY | O_EXCL | O_CLOEXEC | O_NONBLOCK);

    if (fd < 0 && errno == EBUSY)
        return err_set(err, ERR_STATE,
                       "%s is in use on the host: unmount it there before a VM gets it", j->path);
    return fd < 0 ? err_sys(err, errno, "open %s", j->path) : 0;
}

static int check_kind(const struct job *j, const struct stat *st, struct err *err)
{
    if (j->kind == BLOCKIMAGE_FILE && !S_ISREG(st->st_mode))
        return err_set(
            err, ERR_INVALID,
            "%s is no plain file: a virtual-disk is an image; a block device of the host "
            "is a physical-disk",
            j->path);
    if (j->kind == BLOCKIMAGE_DEVICE && !S_ISBLK(st->st_mode))
        return err_set(err, ERR_INVALID,
                       "%s is no block device: a physical-disk is one; an image file is a "
                       "virtual-disk",
                       j->path);
    if (S_ISREG(st->st_mode) && st->st_size < 512)
        return err_set(err, ERR_INVALID, "%s is too small for a disk (%lld bytes)", j->path,
                       (long long)st->st_size);
    return 0;
}

static int open_in_thread(void *arg, struct err *err)
{
    struct job *j = arg;
    struct stat st;

    if (!j->path && find_name(j, err) < 0)
        return -1;
    /* Looked at first, since to open a device may do something; then opened by what was looked at,
     * whatever has the name by then. */
    AUTO_FD int seen = open(j->path, O_PATH | O_CLOEXEC);
    if (seen < 0)
        return err_sys(err, errno, "open %s", j->path);
    if (fstat(seen, &st) < 0)
        return err_sys(err, errno, "look at %s", j->path);
    AUTO_FREE char *again = str_format("/proc/self/fd/%d", seen);
    if (check_kind(j, &st, err) < 0 || (S_ISBLK(st.st_mode) && check_unused(j, again, err) < 0))
        return -1;
    AUTO_FD int fd =
        open(again, (j->read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0)
        return err_sys(err, errno, "open %s", j->path);
    if (j->major && (major(st.st_rdev) != j->major || minor(st.st_rdev) != j->minor))
        return err_set(err, ERR_NOT_FOUND, "%s is not block device %u:%u any more", j->path,
                       j->major, j->minor);
    j->fd = TAKE_FD(fd);
    return 0;
}

static int run(struct ctx *ctx, struct job *j, int *ret_fd, struct err *err)
{
    void *arg = j;
    int r = offload_run(ctx, open_in_thread, &arg, job_free, "open a disk", err);

    j = arg;
    if (r == 0)
        *ret_fd = TAKE_FD(j->fd);
    job_free(j);
    return r;
}

int blockimage_open(struct ctx *ctx, const char *path, enum blockimage_kind kind, bool read_only,
                    int *ret_fd, struct err *err)
{
    struct job *j = mem_new(struct job);

    *j = (struct job){ .path = str_dup(path), .kind = kind, .read_only = read_only, .fd = -1 };
    return run(ctx, j, ret_fd, err);
}

int blockimage_open_number(struct ctx *ctx, uint32_t major_number, uint32_t minor_number,
                           bool read_only, int *ret_fd, struct err *err)
{
    struct job *j = mem_new(struct job);

    *j = (struct job){ .kind = BLOCKIMAGE_DEVICE,
                       .major = major_number,
                       .minor = minor_number,
                       .read_only = read_only,
                       .fd = -1 };
    return run(ctx, j, ret_fd, err);
}
