#include "guest/storage/mnt.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "guest/storage/path.h"
#include <errno.h>
#include <string.h>
#include <sys/mount.h>

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
        (void)umount2(target, MNT_DETACH); /* nobody has seen it yet */
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

/* Calls each with every mount point, the oldest first. The kernel writes blanks as \040. */
static int each_mount(void (*each)(void *arg, const char *target), void *arg)
{
    AUTO_FREE char *text = NULL;
    char *save = NULL;
    size_t len;
    int r = file_read_all("/proc/self/mounts", MOUNTS_MAX_BYTES, &text, &len);

    if (r < 0)
        return r;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char *from = strchr(line, ' '), *end = from ? strchr(from + 1, ' ') : NULL;
        if (!end)
            continue;
        *end = '\0';
        char *out = ++from;
        for (const char *in = from; *in; in++) {
            if (in[0] == '\\' && in[1] && in[2] && in[3]) {
                *out++ = (char)((in[1] - '0') * 64 + (in[2] - '0') * 8 + (in[3] - '0'));
                in += 3;
            } else {
                *out++ = *in;
            }
        }
        *out = '\0';
        each(arg, from);
    }
    return 0;
}

struct collect {
    const char *dir;
    struct strv found;
};

static void collect_below(void *arg, const char *target)
{
    struct collect *c = arg;

    if (path_is_below(target, c->dir) && strcmp(target, c->dir) != 0)
        strv_add(&c->found, target);
}

int mnt_unmount_below(const char *dir, struct err *err)
{
    struct collect c = { .dir = dir };
    int r = each_mount(collect_below, &c), result = 0;

    if (r < 0)
        result = err_sys(err, -r, "read /proc/self/mounts");
    for (size_t i = c.found.n; i > 0 && result == 0; i--)
        result = mnt_unmount(c.found.v[i - 1], err);
    strv_release(&c.found);
    return result;
}

struct search {
    const char *path;
    bool found;
};

static void search_one(void *arg, const char *target)
{
    struct search *s = arg;

    s->found |= strcmp(target, s->path) == 0;
}

bool mnt_is_mounted(const char *path)
{
    struct search s = { .path = path };

    return each_mount(search_one, &s) == 0 && s.found;
}
