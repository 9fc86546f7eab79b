#include "base/err.h"
#include "host/files/scratch_priv.h"

#include <errno.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

int scratch_err(struct err *err, int errnum, const char *doing, const char *dir)
{
    if (errnum == ENOSPC || errnum == EDQUOT) {
        err_set(err, ERR_EXHAUSTED, "%s: no space is left in %s; free some, or set scratch_dir",
                doing, dir);
        err->sys = errnum;
        return -1;
    }
    return err_sys(err, errnum, "%s in %s", doing, dir);
}

static int copy_range(int from, int to, off_t at, off_t end)
{
    while (at < end) {
        off_t in = at, out = at;
        ssize_t n = copy_file_range(from, &in, to, &out, (size_t)(end - at), 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -EIO;
        at += n;
    }
    return 0;
}

/* Holes stay holes: an empty file system of 10 GiB is a few hundred KiB. */
static int copy_data(int from, int to, off_t size)
{
    off_t at = 0;

    for (;;) {
        off_t data = lseek(from, at, SEEK_DATA);
        if (data < 0)
            return errno == ENXIO ? 0 : -errno; /* only a hole is left */
        off_t hole = lseek(from, data, SEEK_HOLE);
        if (hole < 0)
            return -errno;
        int r = copy_range(from, to, data, hole < size ? hole : size);
        if (r < 0)
            return r;
        at = hole;
    }
}

int scratch_copy(int from, int to, const char *to_dir, struct err *err)
{
    struct stat st;

    if (fstat(from, &st) < 0)
        return err_sys(err, errno, "look at the scratch template");
    if (ioctl(to, FICLONE, from) == 0)
        return 0;
    if (ftruncate(to, st.st_size) < 0)
        return scratch_err(err, errno, "make a scratch disk", to_dir);
    int r = copy_data(from, to, st.st_size);
    return r < 0 ? scratch_err(err, -r, "make a scratch disk", to_dir) : 0;
}
