#include "guest/runtime/cgroup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#define RESERVE_BYTES (UINT64_C(75) << 20)
#define CONTROLLERS_MAX 1024

uint64_t cgroup_pods_limit(uint64_t total_bytes)
{
    uint64_t quarter = total_bytes / 4;

    return total_bytes - (quarter < RESERVE_BYTES ? quarter : RESERVE_BYTES);
}

static int put(const char *root, const char *file, const char *value, struct err *err)
{
    AUTO_FREE char *path = str_format("%s/%s", root, file);
    int r = file_write(path, value, strlen(value), 0644);

    return r < 0 ? err_sys(err, -r, "write %s", path) : 0;
}

static int make(const char *root, const char *name, struct err *err)
{
    AUTO_FREE char *path = str_format("%s/%s", root, name);

    if (mkdir(path, 0755) < 0 && errno != EEXIST)
        return err_sys(err, errno, "make cgroup %s", path);
    return 0;
}

/* All that the kernel has, so that containers can be limited below. */
static int enable_controllers(const char *root, struct err *err)
{
    AUTO_FREE char *path = str_format("%s/pods/cgroup.controllers", root), *list = NULL;
    AUTO(sbuf_release) struct sbuf words = { 0 };
    char *save = NULL;
    size_t len;
    int r = file_read_all(path, CONTROLLERS_MAX, &list, &len);

    if (r < 0)
        return err_sys(err, -r, "read %s", path);
    for (char *name = strtok_r(list, " \n", &save); name; name = strtok_r(NULL, " \n", &save))
        sbuf_addf(&words, "+%s ", name);
    return put(root, "pods/cgroup.subtree_control", words.data ? words.data : "", err);
}

int cgroup_limit_pods(const char *root, uint64_t total_bytes, struct err *err)
{
    AUTO_FREE char *limit = str_format("%lu", cgroup_pods_limit(total_bytes));

    return put(root, "pods/memory.max", limit, err);
}

int cgroup_setup(const char *root, uint64_t total_bytes, struct err *err)
{
    if (make(root, "gcs", err) < 0 || put(root, "gcs/cgroup.procs", "0", err) < 0)
        return -1;
    if (make(root, "pods", err) < 0 || cgroup_limit_pods(root, total_bytes, err) < 0)
        return -1;
    return enable_controllers(root, err);
}
