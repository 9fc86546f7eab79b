#include "base/err.h"
#include "base/offload.h"
#include "base/str.h"
#include "guest/runtime/container_priv.h"
#include "guest/runtime/users.h"
#include "guest/storage/in_root.h"
#include <errno.h>

struct job {
    const char *root, *user, *cwd; /* cwd NULL: of an exec */
    uint32_t uid, gid;             /* out */
};

/* "" for a file that the image does not have. */
static int read_file(const char *root, const char *path, char **ret, struct err *err)
{
    size_t len;
    int r = in_root_read(root, path, USERS_MAX_BYTES, ret, &len);

    if (r == -ENOENT || r == -ENOTDIR) {
        *ret = str_dup("");
        return 0;
    }
    return r < 0 ? err_sys(err, -r, "read %s of the container's root", path) : 0;
}

/* crun mounts and makes nodes here before the root is the container's: a link may lead it to files
 * of the VM's. Every other target it resolves inside the root, and so may be a link (/var/run,
 * /lib). runc refuses links at /proc and /sys, too. */
static int check_mount_points(const char *root, struct err *err)
{
    static const char *const names[] = { "dev", "proc", "sys" };

    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        AUTO_FREE char *target = NULL;
        int r = in_root_check_dir(root, names[i], &target);

        if (r == -ELOOP && target)
            return err_set(err, ERR_INVALID,
                           "/%s of the image is a symbolic link to %.200s: a container's /%s is "
                           "never mounted through a link; make it a directory in the image",
                           names[i], target, names[i]);
        if (r == -ENOTDIR)
            return err_set(
                err, ERR_INVALID,
                "/%s of the image is not a directory: nothing can be mounted there; make "
                "it a directory in the image",
                names[i]);
        if (r < 0)
            return err_sys(err, -r, "look at /%s of the image", names[i]);
    }
    return 0;
}

static int run(void *arg, struct err *err)
{
    struct job *j = arg;
    AUTO_FREE char *passwd = NULL, *group = NULL;

    if (j->cwd && check_mount_points(j->root, err) < 0)
        return -1;
    if (j->cwd)
        (void)in_root_mkdir(j->root, j->cwd, 0755); /* a read-only root: crun tells */
    if (!j->user[0])
        return 0;
    if (read_file(j->root, "/etc/passwd", &passwd, err) < 0 ||
        read_file(j->root, "/etc/group", &group, err) < 0)
        return -1;
    return users_resolve(j->user, passwd, group, &j->uid, &j->gid, err);
}

int rootfs_prepare(struct ctx *ctx, const char *root, const char *user, const char *cwd,
                   uint32_t *ret_uid, uint32_t *ret_gid, struct err *err)
{
    struct job j = { root, user, cwd, 0, 0 };

    if (!user[0] && !cwd)
        return 0;
    if (OFFLOAD(ctx, run, &j, 3, NULL, "container's root", err) < 0)
        return -1;
    *ret_uid = j.uid;
    *ret_gid = j.gid;
    return 0;
}
