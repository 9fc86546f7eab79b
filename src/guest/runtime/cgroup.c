#include "guest/runtime/cgroup.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define RESERVE_BYTES (UINT64_C(75) << 20)
#define KEPT_BYTES (UINT64_C(32) << 20) /* of what is available, which the kernel overestimates */
#define CONTROLLERS_MAX 1024
#define STAT_MAX 16384 /* of memory.stat and meminfo */

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
    if (make(root, "commands", err) < 0 || make(root, "pods", err) < 0 ||
        cgroup_limit_pods(root, total_bytes, err) < 0)
        return -1;
    return enable_controllers(root, err);
}

/* --- commands --- */

uint64_t cgroup_commands_limit(uint64_t available_bytes, uint64_t held_bytes)
{
    uint64_t quarter = available_bytes / 4;

    return held_bytes + available_bytes - (quarter < KEPT_BYTES ? quarter : KEPT_BYTES);
}

/* The number behind a line's first word; 0 if there is no such line. */
static uint64_t number_of(const char *text, const char *word)
{
    size_t len = strlen(word);

    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, word, len) == 0 && line[len] == ' ')
            return strtoull(line + len, NULL, 10);
    }
    return 0;
}

int cgroup_limit_commands(const char *root, const char *meminfo, struct err *err)
{
    AUTO_FREE char *path = str_format("%s/commands/memory.stat", root), *stat = NULL, *info = NULL;
    size_t len;
    int r = file_read_all(path, STAT_MAX, &stat, &len);

    if (r < 0)
        return err_sys(err, -r, "read %s", path);
    r = file_read_all(meminfo, STAT_MAX, &info, &len);
    if (r < 0)
        return err_sys(err, -r, "read %s", meminfo);
    /* A limit below what cannot be given back would kill at once. Cached files can. */
    uint64_t held = number_of(stat, "anon") + number_of(stat, "shmem") + number_of(stat, "kernel");
    AUTO_FREE char *limit =
        str_format("%lu", cgroup_commands_limit(number_of(info, "MemAvailable:") * 1024, held));
    return put(root, "commands/memory.max", limit, err);
}

int cgroup_join_commands(void)
{
    int fd = open(CGROUP_ROOT "/commands/cgroup.procs", O_WRONLY | O_CLOEXEC), r = 0;

    if (fd < 0)
        return -errno;
    if (write(fd, "0", 1) < 0)
        r = -errno;
    close(fd);
    return r;
}
