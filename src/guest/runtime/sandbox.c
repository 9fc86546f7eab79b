#include "base/err.h"
#include "base/fd.h"
#include "base/offload.h"
#include "base/str.h"
#include "guest/runtime/container_priv.h"
#include "guest/runtime/etcfiles.h"
#include "guest/storage/mnt.h"
#include "guest/storage/path.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#define HOSTNAME_BYTES 256

static const char *const files[] = { "hostname", "hosts", "resolv.conf" };
static const char *const mounts[] = { "sandboxMounts", "sandboxTmpfsMounts", "hugepages" };

/* Copies of all it sees: the work may outlive its caller. */
struct job {
    char *root, *hostname, *dns_search, *dns_servers;
    char *resolv_conf; /* NULL: of the two above */
    bool pod;
};

static void job_free(void *arg)
{
    struct job *j = arg;

    if (!j)
        return;
    free(j->root);
    free(j->hostname);
    free(j->dns_search);
    free(j->dns_servers);
    free(j->resolv_conf);
    free(j);
}

static int job_run(struct ctx *ctx, struct job *job, int (*fn)(void *arg, struct err *err),
                   const char *why, struct err *err)
{
    void *arg = job;
    int r = offload_run(ctx, fn, &arg, job_free, why, err);

    job_free(arg);
    return r;
}

static int make_dir(const char *path, mode_t mode, struct err *err)
{
    int r = dir_make(path, mode);

    if (r == 0 && chmod(path, mode) < 0)
        r = -errno;
    return r < 0 ? err_sys(err, -r, "make %s", path) : 0;
}

/* --- files --- */

static int put(const char *root, const char *name, const char *text, struct err *err)
{
    AUTO_FREE char *path = str_format("%s/%s", root, name);
    int r = file_write(path, text, strlen(text), 0644);

    return r < 0 ? err_sys(err, -r, "write %s", path) : 0;
}

static int make_files(const struct job *j, struct err *err)
{
    char own[HOSTNAME_BYTES] = "";
    const char *name = j->hostname;

    if (!name[0] && gethostname(own, sizeof(own) - 1) == 0)
        name = own;
    AUTO_FREE char *line = str_format("%s\n", name), *hosts = etcfiles_hosts(name), *resolv = NULL;
    if (j->resolv_conf ? etcfiles_check_resolv(j->resolv_conf, err) < 0
                       : etcfiles_resolv(j->dns_search, j->dns_servers, &resolv, err) < 0)
        return -1;
    if (put(j->root, "hostname", line, err) < 0 || put(j->root, "hosts", hosts, err) < 0)
        return -1;
    return put(j->root, "resolv.conf", j->resolv_conf ? j->resolv_conf : resolv, err);
}

/* --- directories that a pod's containers share --- */

/* Bound on itself, so that it is a mount point, and shared: what is mounted in it later, the
 * containers that have it see. */
static int share(const char *dir, struct err *err)
{
    if (mount(dir, dir, NULL, MS_BIND, NULL) < 0 ||
        mount(NULL, dir, NULL, MS_SHARED | MS_REC, NULL) < 0)
        return err_sys(err, errno, "share %s", dir);
    return 0;
}

static int make_dirs(const struct job *j, struct err *err)
{
    for (size_t i = 0; i < ARRAY_LEN(mounts); i++) {
        AUTO_FREE char *dir = str_format("%s/%s", j->root, mounts[i]);
        if (make_dir(dir, 0755, err) < 0)
            return -1;
        if (strcmp(mounts[i], "sandboxTmpfsMounts") == 0 &&
            mnt_mount("tmpfs", dir, "tmpfs", 0, "mode=0755", err) < 0)
            return -1;
        if (share(dir, err) < 0)
            return -1;
    }
    AUTO_FREE char *logs = str_format("%s/logs", j->root);
    return make_dir(logs, 0777, err);
}

static int make_all(void *arg, struct err *err)
{
    const struct job *j = arg;

    if (make_dir(j->root, 0700, err) < 0 || make_files(j, err) < 0)
        return -1;
    return j->pod ? make_dirs(j, err) : 0;
}

int sandbox_make(struct ctx *ctx, const char *root, const struct sandbox_names *names, bool pod,
                 struct err *err)
{
    struct job *j = mem_new(struct job);

    j->root = str_dup(root);
    j->hostname = str_dup(names->hostname);
    j->dns_search = str_dup(names->dns_search);
    j->dns_servers = str_dup(names->dns_servers);
    j->resolv_conf = names->resolv_conf ? str_dup(names->resolv_conf) : NULL;
    j->pod = pod;
    return job_run(ctx, j, make_all, "files of the pod", err);
}

static int remove_all(void *arg, struct err *err)
{
    const struct job *j = arg;

    for (size_t i = 0; j->pod && i < ARRAY_LEN(mounts); i++) {
        AUTO_FREE char *dir = str_format("%s/%s", j->root, mounts[i]);
        if (mnt_unmount_below(dir, err) < 0 || mnt_unmount(dir, err) < 0)
            return -1;
    }
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        AUTO_FREE char *path = str_format("%s/%s", j->root, files[i]);
        if (unlink(path) < 0 && errno != ENOENT)
            return err_sys(err, errno, "remove %s", path);
    }
    return 0;
}

int sandbox_remove(struct ctx *ctx, const char *root, bool pod, struct err *err)
{
    struct job *j = mem_new(struct job);

    j->root = str_dup(root);
    j->pod = pod;
    return job_run(ctx, j, remove_all, "pod's mounts to go", err);
}
