#include "base/owned.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/sha256.h"
#include "base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SEAL_LINE (64 + 1) /* the checksum in hexadecimal, and the line's end */

int owned_check(int fd, const char *what, mode_t kind, struct stat *st, struct err *err)
{
    if (fstat(fd, st) < 0)
        return err_sys(err, errno, "look at %s", what);
    if ((st->st_mode & S_IFMT) != kind)
        return err_set(err, ERR_DATA_LOSS, "%s is not a %s", what,
                       kind == S_IFDIR ? "directory" : "regular file");
    if (st->st_uid != geteuid())
        return err_set(err, ERR_PERMISSION, "%s belongs to user %u", what, st->st_uid);
    if (st->st_mode & 022)
        return err_set(err, ERR_PERMISSION, "%s can be written by others (mode %03o)", what,
                       st->st_mode & 0777);
    return 0;
}

int owned_open(int dir, const char *name, struct stat *st, int *ret, struct err *err)
{
    AUTO_FD int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);

    if (fd < 0 && errno == ELOOP)
        return err_set(err, ERR_PERMISSION, "%s is a symbolic link", name);
    if (fd < 0)
        return err_set(err, ERR_DATA_LOSS, "%s cannot be opened: %s", name, strerrordesc_np(errno));
    if (owned_check(fd, name, S_IFREG, st, err) < 0)
        return -1;
    *ret = TAKE_FD(fd);
    return 0;
}

uint64_t owned_mtime_ns(const struct stat *st)
{
    return (uint64_t)st->st_mtim.tv_sec * 1000000000 + (uint64_t)st->st_mtim.tv_nsec;
}

char *owned_seal(const char *body, size_t len, size_t *ret_len)
{
    char hex[SHA256_HEX_SIZE];

    sha256_of(body, len, hex);
    *ret_len = SEAL_LINE + len;
    return str_format("%s\n%s", hex, body);
}

const char *owned_unseal(const char *text, size_t len, size_t *ret_len, struct err *err)
{
    char hex[SHA256_HEX_SIZE];

    if (len < SEAL_LINE || text[SEAL_LINE - 1] != '\n') {
        err_set(err, ERR_DATA_LOSS, "header cut at %zu bytes", len);
        return NULL;
    }
    sha256_of(text + SEAL_LINE, len - SEAL_LINE, hex);
    if (memcmp(hex, text, SEAL_LINE - 1) != 0) {
        err_set(err, ERR_DATA_LOSS, "header does not match its checksum");
        return NULL;
    }
    *ret_len = len - SEAL_LINE;
    return text + SEAL_LINE;
}
