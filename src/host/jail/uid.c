#include "host/jail/uid.h"
#include "base/err.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

int uid_slot_take(const char *path, uint32_t base, uint32_t count, struct uid_slot *ret,
                  struct err *err)
{
    if (base == 0 || count == 0 || UINT32_MAX - base < count)
        return err_set(err, ERR_INVALID,
                       "user ids %u to %u + %u for VMs: 0 and an empty range are not possible",
                       base, base, count);

    AUTO_FD int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return err_sys(err, errno, "open %s", path);
    for (uint32_t i = 0; i < count; i++) {
        /* The open file owns the lock, not the process: a process may hold several. */
        struct flock want = {
            .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)base + i, .l_len = 1
        };
        if (fcntl(fd, F_OFD_SETLK, &want) == 0) {
            ret->fd = TAKE_FD(fd);
            ret->uid = base + i;
            return 0;
        }
        if (errno != EAGAIN && errno != EACCES)
            return err_sys(err, errno, "lock byte %lld of %s", (long long)want.l_start, path);
    }
    return err_set(err, ERR_EXHAUSTED,
                   "all %u user ids for VMs (%u to %u) are taken; raise vm_uid_count in "
                   "/etc/lcow/lcow.conf",
                   count, base, base + count - 1);
}

void uid_slot_release(struct uid_slot *slot)
{
    if (slot->fd > 0)
        fd_close(slot->fd);
    slot->fd = -1;
}
