#include "host/jail/netns.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/offload.h"
#include "base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/nsfs.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/vfs.h>

struct open_job {
    char *path;
    int fd;
};

static void open_job_free(void *arg)
{
    struct open_job *j = arg;

    if (!j)
        return;
    fd_close(j->fd);
    free(j->path);
    free(j);
}
AUTO_DEFINE(struct open_job *, open_job_free);

/* Looked at before it is opened. */
static int open_in_thread(void *arg, struct err *err)
{
    struct open_job *j = arg;
    AUTO_FD int seen = open(j->path, O_PATH | O_CLOEXEC);
    AUTO_FREE char *again = str_format("/proc/self/fd/%d", seen);
    struct statfs fs;

    if (seen < 0 || fstatfs(seen, &fs) < 0)
        return err_sys(err, errno, "open network namespace %.256s", j->path);
    j->fd = fs.f_type == NSFS_MAGIC ? open(again, O_RDONLY | O_CLOEXEC) : -1;
    if (j->fd < 0 || ioctl(j->fd, NS_GET_NSTYPE) != CLONE_NEWNET)
        return err_set(err, ERR_INVALID, "%.256s is no network namespace", j->path);
    return 0;
}

int netns_open(struct ctx *ctx, const char *path, int *ret_fd, struct err *err)
{
    AUTO(open_job_free) struct open_job *j = mem_new(struct open_job);

    j->path = str_dup(path);
    j->fd = -1;
    if (offload_run(ctx, open_in_thread, (void **)&j, open_job_free, "network namespace", err) < 0)
        return -1;
    *ret_fd = TAKE_FD(j->fd);
    return 0;
}
