#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "guest/storage/storage_priv.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_BITS 0660
#define DIR_BITS (S_ISGID | 0770)

static mode_t wanted(mode_t mode)
{
    return (mode & 07777) | (S_ISDIR(mode) ? DIR_BITS : FILE_BITS);
}

/* Changes only the owner of a symlink. chown clears the setuid and setgid bits. */
static int give(int dir, const char *name, const struct stat *st, uint32_t gid)
{
    if (st->st_gid != gid && fchownat(dir, name, (uid_t)-1, gid, AT_SYMLINK_NOFOLLOW) < 0)
        return -errno;
    if (S_ISLNK(st->st_mode) || (st->st_gid == gid && wanted(st->st_mode) == (st->st_mode & 07777)))
        return 0;
    return fchmodat(dir, name, wanted(st->st_mode), 0) < 0 ? -errno : 0;
}

/* Handles the entries of dir. Takes dir. */
static int walk(int dir, uint32_t gid, unsigned depth)
{
    AUTO(closedir) DIR *d = fdopendir(dir);
    int r = d ? 0 : -errno;

    if (!d)
        fd_close(dir);
    for (struct dirent *e; r == 0 && (e = readdir(d));) {
        struct stat st;

        if (str_eq(e->d_name, ".") || str_eq(e->d_name, ".."))
            continue;
        if (fstatat(dir, e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            return -errno;
        r = give(dir, e->d_name, &st, gid);
        if (r < 0 || !S_ISDIR(st.st_mode))
            continue;
        if (depth == FSGROUP_DEPTH_MAX)
            return -ELOOP;
        int below = openat(dir, e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        r = below < 0 ? -errno : walk(below, gid, depth + 1);
    }
    return r;
}

int fsgroup_apply(const char *root, uint32_t gid, bool only_mismatch, struct err *err)
{
    struct stat st;
    int dir = open(root, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), r;

    if (dir < 0 || fstat(dir, &st) < 0) {
        fd_close(dir);
        return err_sys(err, errno, "open %s", root);
    }
    if (only_mismatch && st.st_gid == gid && wanted(st.st_mode) == (st.st_mode & 07777)) {
        fd_close(dir);
        return 0;
    }
    r = walk(dir, gid, 0);
    /* Changes the root last, so that an interrupted run is not taken for a complete one. */
    if (r == 0)
        r = give(AT_FDCWD, root, &st, gid);
    if (r == -ELOOP)
        return err_set(err, ERR_INVALID,
                       "cannot give %s to group %u: directories are more than %d deep", root, gid,
                       FSGROUP_DEPTH_MAX);
    return r < 0 ? err_sys(err, -r, "give %s to group %u", root, gid) : 0;
}
