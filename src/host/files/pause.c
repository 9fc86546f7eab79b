#include "host/files/pause.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/offload.h"
#include "host/files/tree_priv.h"
#include "host/jail/anchor_program.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

struct job {
    int fd;
};

static void job_free(void *arg)
{
    struct job *j = arg;

    if (j)
        fd_close(j->fd);
    free(j);
}

/* The same program as a container's anchor on the host. */
static int write_program(int dir, struct err *err)
{
    AUTO_FD int fd = openat(dir, PAUSE_NAME, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0555);
    int r = fd < 0 ? -errno : fd_write_full(fd, anchor_blob, anchor_blob_len);

    if (r == 0 && fchmod(fd, 0555) < 0) /* whatever our umask says */
        r = -errno;
    return r < 0 ? err_sys(err, -r, "write the pod's program") : 0;
}

static int open_in_thread(void *arg, struct err *err)
{
    struct job *j = arg;

    if (tree_enter_private(err) < 0)
        return -1;
    if (mount("lcow-pause", TREE_SPOT, "tmpfs", MS_NOSUID | MS_NODEV,
              "mode=0755,size=64k,nr_inodes=4") < 0)
        return err_sys(err, errno, "mount a tmpfs");
    AUTO_FD int dir = open(TREE_SPOT, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return err_sys(err, errno, "open the tmpfs");
    if (write_program(dir, err) < 0)
        return -1;
    j->fd = tree_clone(dir, false, "the pod's root", err);
    return j->fd < 0 ? -1 : tree_set_read_only(j->fd, false, "the pod's root", err);
}

int pause_open(struct ctx *ctx, int *ret_fd, struct err *err)
{
    struct job *j = mem_new(struct job);
    void *arg = j;

    j->fd = -1;
    int r = offload_run(ctx, open_in_thread, &arg, job_free, "the pod's root", err);

    j = arg;
    if (r == 0)
        *ret_fd = TAKE_FD(j->fd);
    job_free(j);
    return r < 0 ? err_wrap(err, "root file system of the pod") : 0;
}
