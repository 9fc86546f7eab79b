#include "base/err.h"
#include "base/offload.h"
#include "base/str.h"
#include "guest/runtime/container_priv.h"
#include "guest/runtime/users.h"
#include "guest/storage/inroot.h"
#include <errno.h>
#include <stdlib.h>

struct job {
    char *root, *user, *cwd;
    uint32_t uid, gid;
};

static void job_free(void *arg)
{
    struct job *j = arg;

    if (!j)
        return;
    free(j->root);
    free(j->user);
    free(j->cwd);
    free(j);
}

/* "" for a file that the image does not have. */
static int read_file(const char *root, const char *path, char **ret, struct err *err)
{
    size_t len;
    int r = inroot_read(root, path, USERS_MAX_BYTES, ret, &len);

    if (r == -ENOENT || r == -ENOTDIR) {
        *ret = str_dup("");
        return 0;
    }
    return r < 0 ? err_sys(err, -r, "read %s of the container's root", path) : 0;
}

static int run(void *arg, struct err *err)
{
    struct job *j = arg;
    AUTO_FREE char *passwd = NULL, *group = NULL;

    if (j->cwd[0])
        (void)inroot_mkdir(j->root, j->cwd, 0755); /* a read-only root: crun tells */
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
    struct job *j;
    void *arg;

    if (!user[0] && (!cwd[0] || str_eq(cwd, "/")))
        return 0;
    j = mem_new(struct job);
    j->root = str_dup(root);
    j->user = str_dup(user);
    j->cwd = str_dup(str_eq(cwd, "/") ? "" : cwd);
    arg = j;
    int r = offload_run(ctx, run, &arg, job_free, "container's root", err);
    if (r == 0) {
        *ret_uid = ((struct job *)arg)->uid;
        *ret_gid = ((struct job *)arg)->gid;
    }
    job_free(arg);
    return r;
}
