#include "guest/bridge/fw_cfg.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

static int open_file(const char *dir, const char *name, int *ret_fd, struct err *err)
{
    AUTO_FREE char *path = str_format("%s/%s/raw", dir, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0 && errno == ENOENT && access(dir, F_OK) == 0)
        return err_set(err, ERR_NOT_FOUND, "fw_cfg has no file %s", name);
    if (fd < 0 && errno == ENOENT)
        return err_set(err, ERR_UNAVAILABLE, "no fw_cfg device: this is not a QEMU machine");
    if (fd < 0)
        return err_sys(err, errno, "open %s", path);
    *ret_fd = fd;
    return 0;
}

int fw_cfg_read(const char *dir, const char *name, int *fd, void *buf, size_t len, struct err *err)
{
    char more;

    if (*fd < 0 && open_file(dir, name, fd, err) < 0)
        return -1;
    ssize_t n = pread(*fd, buf, len, 0);
    /* stat() reports size 0 for every file of the module, so reading finds the end. */
    ssize_t beyond = n < 0 ? 0 : pread(*fd, &more, 1, (off_t)len);
    if (n < 0 || beyond < 0)
        return err_sys(err, errno, "read fw_cfg file %s", name);
    if ((size_t)n != len || beyond > 0)
        return err_set(err, ERR_INVALID, "invalid size of fw_cfg file %s: must be %zu bytes", name,
                       len);
    return 0;
}
