#include "guest/storage/mnt.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "guest/storage/path.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>

#define STACKED_MAX 5
#define MOUNTS_MAX_BYTES (16u << 20)

int mnt_mount(const char *source, const char *target, const char *type, unsigned long flags,
              const char *data, struct err *err)
{
    if (mount(source, target, type, flags, data) < 0)
        return err_sys(err, errno, "mount %s (%s) on %s", source, type ? type : "bind", target);
    return 0;
}

int mnt_bind(const char *source, const char *target, bool read_only, struct err *err)
{
    if (mnt_mount(source, target, NULL, MS_BIND, NULL, err) < 0)
        return -1;
    if (read_only && mount(NULL, target, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL) < 0) {
        err_sys(err, errno, "make %s read-only", target);
        (void)umount2(target, MNT_DETACH); /* not in use yet */
        return -1;
    }
    return 0;
}

int mnt_unmount(const char *path, struct err *err)
{
    for (int i = 0; i < STACKED_MAX; i++) {
        if (umount2(path, UMOUNT_NOFOLLOW) == 0)
            continue;
        if (errno == EINVAL || errno == ENOENT)
            return 0;
        return err_sys(err, errno, "unmount %s", path);
    }
    return 0;
}

/* The kernel writes blanks as \040. */
static void unescape(char *text)
{
    char *out = text;

    for (const char *in = text; *in; in++) {
        if (in[0] == '\\' && in[1] && in[2] && in[3]) {
            *out++ = (char)((in[1] - '0') * 64 + (in[2] - '0') * 8 + (in[3] - '0'));
            in += 3;
        } else {
            *out++ = *in;
        }
    }
    *out = '\0';
}

int mnt_unmount_below(const char *dir, struct err *err)
{
    AUTO(strv_release) struct strv found = { 0 };
    AUTO_FREE char *text = NULL;
    char *lines = NULL, *words;

    if (file_load("/proc/self/mounts", MOUNTS_MAX_BYTES, &text, err) < 0)
        return -1;
    for (char *line = strtok_r(text, "\n", &lines); line; line = strtok_r(NULL, "\n", &lines)) {
        char *target = strtok_r(line, " ", &words) ? strtok_r(NULL, " ", &words) : NULL;

        if (!target)
            continue;
        unescape(target);
        if (path_is_below(target, dir) && strcmp(target, dir) != 0)
            strv_add(&found, target);
    }
    for (size_t i = found.n; i > 0; i--)
        if (mnt_unmount(found.v[i - 1], err) < 0)
            return -1;
    return 0;
}

bool mnt_is_mounted(const char *path)
{
    struct statx st;

    return statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT, 0, &st) == 0 &&
           (st.stx_attributes & STATX_ATTR_MOUNT_ROOT);
}
