/* Who has a ledger: its owner for as long as it lives, or a visitor (gc, delete) while it takes
 * things back. Both lock the first byte of the file; a visitor locks one more, and so the two can
 * be told apart from outside, and a visitor is waited for. Whoever only looks locks nothing. */
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/offload.h"
#include "host/ledger/ledger_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

#define TRIES 16

static const off_t lock_bytes[] = { [LEDGER_OWNER] = 1, [LEDGER_VISITOR] = 2 };

static struct flock range(short type, off_t start, off_t len)
{
    return (struct flock){ .l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = len };
}

/* Whose lock is in the way on an open ledger. */
static int holder_of(int fd, enum ledger_holder *ret)
{
    struct flock there = range(F_WRLCK, 0, 1);

    if (fcntl(fd, F_OFD_GETLK, &there) < 0)
        return -errno;
    *ret = there.l_type == F_UNLCK                     ? LEDGER_NOBODY
           : there.l_len == lock_bytes[LEDGER_VISITOR] ? LEDGER_VISITOR
                                                       : LEDGER_OWNER;
    return 0;
}

int ledger_own(int fd)
{
    struct flock want = range(F_WRLCK, 0, lock_bytes[LEDGER_OWNER]);

    return fcntl(fd, F_OFD_SETLK, &want) < 0 ? -errno : 0;
}

/* Is it still the file with that name? Another holder may have removed it before we had it, or its
 * owner may have put a shorter one in its place. */
static bool is_there(const char *path, int fd)
{
    struct stat ours, now;

    return fstat(fd, &ours) == 0 && stat(path, &now) == 0 && now.st_ino == ours.st_ino &&
           now.st_dev == ours.st_dev;
}

int ledger_holder(const char *dir, enum ledger_holder *ret)
{
    AUTO_FREE char *path = str_format("%s/" LEDGER_FILE_NAME, dir);

    for (int tries = 0; tries < TRIES; tries++) {
        AUTO_FD int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        int r = fd < 0 ? -errno : holder_of(fd, ret);

        if (r < 0 || *ret != LEDGER_NOBODY || is_there(path, fd))
            return r;
    }
    return -EAGAIN;
}

int ledger_lock(const char *dir, int flags, enum ledger_holder as, int *ret_fd,
                enum ledger_holder *ret_holder)
{
    AUTO_FREE char *path = str_format("%s/" LEDGER_FILE_NAME, dir);

    for (int tries = 0; tries < TRIES; tries++) {
        struct flock want = range(F_WRLCK, 0, lock_bytes[as]);
        AUTO_FD int fd = open(path, O_RDWR | O_APPEND | O_CLOEXEC | O_NOFOLLOW | flags, 0600);

        if (fd < 0)
            return -errno;
        if (fcntl(fd, F_OFD_SETLK, &want) == 0) {
            if (!is_there(path, fd))
                continue;
            *ret_fd = TAKE_FD(fd);
            return 0;
        }
        if (errno != EAGAIN && errno != EACCES)
            return -errno;

        int r = holder_of(fd, ret_holder);

        if (r < 0)
            return r;
        if (*ret_holder != LEDGER_NOBODY)
            return -EWOULDBLOCK;
    }
    return -EAGAIN;
}

static int await_visitor(void *arg, struct err *err)
{
    AUTO_FREE char *path = str_format("%s/" LEDGER_FILE_NAME, (const char *)arg);
    AUTO_FD int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    struct flock want = range(F_WRLCK, lock_bytes[LEDGER_OWNER],
                              lock_bytes[LEDGER_VISITOR] - lock_bytes[LEDGER_OWNER]);

    if (fd < 0)
        return errno == ENOENT ? 0 : err_sys(err, errno, "open %s", path);
    while (fcntl(fd, F_OFD_SETLKW, &want) < 0) /* let go at once: fd is closed */
        if (errno != EINTR)
            return err_sys(err, errno, "lock %s", path);
    return 0;
}

int ledger_visit(struct ctx *ctx, const char *dir, int *ret_fd, enum ledger_holder *ret_holder,
                 struct err *err)
{
    int r;

    while ((r = ledger_lock(dir, 0, LEDGER_VISITOR, ret_fd, ret_holder)) == -EWOULDBLOCK &&
           *ret_holder == LEDGER_VISITOR) {
        void *arg = str_dup(dir);
        int waited = offload_run(ctx, await_visitor, &arg, free, "another clean-up to end", err);

        free(arg);
        if (waited < 0) {
            err_wrap(err, "somebody else is cleaning up %s", dir);
            return -EBUSY;
        }
    }
    return r;
}
