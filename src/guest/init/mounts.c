#include "guest/init/mounts.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/mem.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#define SAFE (MS_NODEV | MS_NOSUID | MS_NOEXEC)
#define CGROUP_ROOT "/sys/fs/cgroup"
#define CONTROLLERS_MAX 1024

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
    { CGROUP_ROOT, "cgroup2", SAFE, NULL },
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

/* Without "+controller" in the root's subtree_control no child cgroup can have limits. */
static int enable_controllers(struct err *err)
{
    AUTO_FREE char *list = NULL;
    size_t len;
    int r = file_read_all(CGROUP_ROOT "/cgroup.controllers", CONTROLLERS_MAX, &list, &len);

    if (r < 0)
        return err_sys(err, -r, "read " CGROUP_ROOT "/cgroup.controllers");
    char *save = NULL;
    for (char *name = strtok_r(list, " \n", &save); name; name = strtok_r(NULL, " \n", &save)) {
        char word[64];
        int n = snprintf(word, sizeof(word), "+%s", name);
        if (n >= (int)sizeof(word))
            continue;
        r = file_write(CGROUP_ROOT "/cgroup.subtree_control", word, (size_t)n, 0644);
        if (r < 0)
            return err_sys(err, -r, "enable cgroup controller %s", name);
    }
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
    return enable_controllers(err) < 0 ? -1 : seal(err);
}
