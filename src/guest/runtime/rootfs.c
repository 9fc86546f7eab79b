#include "guest/runtime/rootfs.h"
#include "base/err.h"
#include "base/offload.h"
#include "base/str.h"
#include "guest/storage/in_root.h"
#include <errno.h>
#include <string.h>
#include <sys/fsuid.h>
#include <unistd.h>

#define FIELDS_MAX 4
#define USERS_MAX_BYTES (1u << 20) /* of either file */

/* name:x:id:gid in both files; group has no fourth of use. */
struct entry {
    char *field[FIELDS_MAX];
};

/* The next line that has a name and numbers; *text moves on. It is cut into pieces. */
static bool next_entry(char **text, struct entry *ret)
{
    while (**text) {
        char *line = *text, *end = strchrnul(line, '\n');

        *text = *end ? end + 1 : end;
        *end = '\0';
        *ret = (struct entry){ 0 };
        for (size_t i = 0; i < FIELDS_MAX && line; i++)
            ret->field[i] = strsep(&line, ":");
        if (ret->field[0] && ret->field[0][0] && ret->field[2])
            return true;
    }
    return false;
}

static bool to_id(const char *s, uint32_t *ret)
{
    uint64_t n;

    if (!s || str_to_u64(s, UINT32_MAX - 1, &n) < 0)
        return false;
    *ret = (uint32_t)n;
    return true;
}

/* How many entries have this name or number; the numbers of the last one in *ret. */
static size_t search(const char *file, const char *wanted, uint32_t *ret_id, uint32_t *ret_gid)
{
    AUTO_FREE char *copy = str_dup(file);
    char *at = copy;
    struct entry e;
    uint32_t number = 0, id;
    bool by_number = to_id(wanted, &number);
    size_t n = 0;

    while (next_entry(&at, &e)) {
        if (!to_id(e.field[2], &id))
            continue;
        if (!(strcmp(e.field[0], wanted) == 0 || (by_number && id == number)))
            continue;
        n++;
        *ret_id = id;
        if (ret_gid && !to_id(e.field[3], ret_gid))
            *ret_gid = 0;
    }
    return n;
}

static int resolve(const char *what, const char *wanted, const char *file, uint32_t *ret_id,
                   uint32_t *ret_gid, struct err *err)
{
    size_t n = search(file, wanted, ret_id, ret_gid);

    if (n == 1)
        return 0;
    if (to_id(wanted, ret_id)) { /* none, or several names for one number */
        if (ret_gid && n == 0)
            *ret_gid = 0;
        return 0;
    }
    return err_because(err, REASON_USER_UNKNOWN, ERR_INVALID,
                       n == 0 ? "no %s \"%.64s\" in the image"
                              : "more than one %s \"%.64s\" in the image",
                       what, wanted);
}

int rootfs_find_user(const char *user, const char *passwd, const char *group, uint32_t *ret_uid,
                     uint32_t *ret_gid, struct err *err)
{
    const char *colon = strchr(user, ':');
    AUTO_FREE char *name = colon ? str_ndup(user, (size_t)(colon - user)) : str_dup(user);
    uint32_t uid = 0, gid = 0;

    if (!name[0] || (colon && (!colon[1] || strchr(colon + 1, ':'))))
        return err_because(err, REASON_USER_UNKNOWN, ERR_INVALID,
                           "invalid user \"%.64s\": must be user[:group]", user);
    if (resolve("user", name, passwd, &uid, &gid, err) < 0)
        return -1;
    if (colon && resolve("group", colon + 1, group, &gid, NULL, err) < 0)
        return -1;
    *ret_uid = uid;
    *ret_gid = gid;
    return 0;
}

struct job {
    const char *root, *user, *cwd; /* cwd NULL: of an exec */
    struct rootfs_owner owner;
    uint32_t uid, gid; /* out */
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

/* crun mounts and makes nodes here before it changes the root, so a symlink could lead it to the
 * VM's files. It resolves every other target inside the root, so those may be symlinks (/var/run,
 * /lib). runc refuses symlinks at /proc and /sys, too. */
static int check_mount_points(const char *root, struct err *err)
{
    static const char *const names[] = { "dev", "proc", "sys" };

    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        AUTO_FREE char *target = NULL;
        int r = in_root_check_dir(root, names[i], &target);

        if (r == -ELOOP && target)
            return err_because(
                err, REASON_ROOTFS_FAILED, ERR_INVALID,
                "/%s of the image is a symbolic link to %.200s: a container's /%s is "
                "never mounted through a link; make it a directory in the image",
                names[i], target, names[i]);
        if (r == -ENOTDIR)
            return err_because(
                err, REASON_ROOTFS_FAILED, ERR_INVALID,
                "/%s of the image is not a directory: nothing can be mounted there; make "
                "it a directory in the image",
                names[i]);
        if (r < 0)
            return err_sys(err, -r, "look at /%s of the image", names[i]);
    }
    return 0;
}

/* As the container's root user, so that it owns the directory. With a read-only root crun reports
 * the failure. */
static void make_cwd(const struct job *j)
{
    (void)setfsgid(j->owner.gid);
    (void)setfsuid(j->owner.uid);
    (void)in_root_mkdir(j->root, j->cwd, 0755);
    (void)setfsuid(geteuid());
    (void)setfsgid(getegid());
}

static int run(void *arg, struct err *err)
{
    struct job *j = arg;
    AUTO_FREE char *passwd = NULL, *group = NULL;

    if (j->cwd && check_mount_points(j->root, err) < 0)
        return -1;
    if (j->cwd)
        make_cwd(j);
    if (!j->user[0])
        return 0;
    if (read_file(j->root, "/etc/passwd", &passwd, err) < 0 ||
        read_file(j->root, "/etc/group", &group, err) < 0)
        return -1;
    return rootfs_find_user(j->user, passwd, group, &j->uid, &j->gid, err);
}

int rootfs_prepare(struct ctx *ctx, const char *root, struct rootfs_owner owner, const char *user,
                   const char *cwd, uint32_t *ret_uid, uint32_t *ret_gid, struct err *err)
{
    struct job j = { root, user, cwd, owner, 0, 0 };

    if (!user[0] && !cwd)
        return 0;
    if (OFFLOAD(ctx, run, &j, 3, NULL, "container's root", err) < 0)
        return -1;
    *ret_uid = j.uid;
    *ret_gid = j.gid;
    return 0;
}
