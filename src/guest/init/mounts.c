#include "guest/init/mounts.h"
#include "base/err.h"
#include "base/mem.h"
#include <errno.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#define SAFE (MS_NODEV | MS_NOSUID | MS_NOEXEC)

struct entry {
    const char *where, *type;
    unsigned long flags;
    const char *data;
};

static const struct entry dev_entry = { "/dev", "devtmpfs", MS_NOSUID | MS_NOEXEC, NULL };

static const struct entry entries[] = {
    { "/proc", "proc", SAFE, NULL },
    { "/sys", "sysfs", SAFE, NULL },
    { "/run", "tmpfs", SAFE, "mode=0755" },
    { "/tmp", "tmpfs", SAFE, "mode=1777" },
    { "/mnt", "tmpfs", MS_NODEV | MS_NOSUID, "mode=0755" }, /* shared directories, tools */
    { "/dev/shm", "tmpfs", SAFE, "mode=1777" },
    { "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "mode=0620,ptmxmode=0666" },
    { "/sys/fs/cgroup", "cgroup2", SAFE, NULL },
};

static const struct {
    const char *path, *target;
} links[] = {
    { "/dev/fd", "/proc/self/fd" },
    { "/dev/stdin", "/proc/self/fd/0" },
    { "/dev/stdout", "/proc/self/fd/1" },
    { "/dev/stderr", "/proc/self/fd/2" },
};

static int mount_entry(const struct entry *e, struct err *err)
{
    if (mkdir(e->where, 0755) < 0 && errno != EEXIST)
        return err_sys(err, errno, "make %s", e->where);
    /* EBUSY: the kernel mounted it already (CONFIG_DEVTMPFS_MOUNT). */
    if (mount(e->type, e->where, e->type, e->flags, e->data) < 0 && errno != EBUSY)
        return err_sys(err, errno, "mount %s on %s", e->type, e->where);
    return 0;
}

int mounts_root(struct err *err)
{
    if (mkdir("/sysroot", 0755) < 0 && errno != EEXIST)
        return err_sys(err, errno, "make /sysroot");
    if (mount("/", "/sysroot", NULL, MS_BIND | MS_REC, NULL) < 0)
        return err_sys(err, errno, "bind / on /sysroot");
    if (chdir("/sysroot") < 0)
        return err_sys(err, errno, "enter /sysroot");
    if (mount(".", "/", NULL, MS_MOVE, NULL) < 0)
        return err_sys(err, errno, "move /sysroot to /");
    if (chroot(".") < 0 || chdir("/") < 0)
        return err_sys(err, errno, "chroot to the moved root");
    return 0;
}

int mounts_dev(struct err *err)
{
    if (mount_entry(&dev_entry, err) < 0)
        return -1;
    for (size_t i = 0; i < ARRAY_LEN(links); i++)
        if (symlink(links[i].target, links[i].path) < 0 && errno != EEXIST)
            return err_sys(err, errno, "link %s", links[i].path);
    return 0;
}

/* Whoever is misled to write into the VM's own files, by a link in a container's root for example,
 * fails. The kernel itself still makes nodes in /dev: it does not go through this mount, and a
 * device can be opened for writing on a read-only one. */
static int seal(struct err *err)
{
    if (mount(NULL, "/", NULL, MS_REMOUNT | MS_RDONLY, NULL) < 0)
        return err_sys(err, errno, "make / read-only");
    if (mount(NULL, dev_entry.where, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | dev_entry.flags,
              NULL) < 0)
        return err_sys(err, errno, "make %s read-only", dev_entry.where);
    return 0;
}

int mounts_all(struct err *err)
{
    for (size_t i = 0; i < ARRAY_LEN(entries); i++)
        if (mount_entry(&entries[i], err) < 0)
            return -1;
    return seal(err);
}
