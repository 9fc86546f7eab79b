/* scsi_image.c - looks at an image that a VM has had. */
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/offload.h"
#include "host/control/scsi_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

struct look {
    int fd; /* a copy */
    uint64_t bytes;
};

static void look_free(void *arg)
{
    struct look *l = arg;

    if (!l)
        return;
    fd_close(l->fd);
    free(l);
}

static int look(void *arg, struct err *err)
{
    struct look *l = arg;
    struct stat st;

    if (fstat(l->fd, &st) < 0)
        return err_sys(err, errno, "look at the image");
    l->bytes = S_ISBLK(st.st_mode) ? 0 : (uint64_t)st.st_size;
    return 0;
}

int scsi_image_bytes(struct ctx *ctx, int fd, uint64_t *ret)
{
    struct look *l = mem_new(struct look);
    void *arg = l;
    struct err ignored = ERR_INIT;

    l->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    int r = offload_run(ctx, look, &arg, look_free, "scsi: look at an image", &ignored);
    if (r == 0)
        *ret = ((struct look *)arg)->bytes;
    look_free(arg);
    return r;
}
