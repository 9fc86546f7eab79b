/* scsi_image.c - looks at an image that a VM gets, or has had. */
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/offload.h"
#include "host/device/scsi_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

struct look {
    int fd; /* a copy */
    struct scsi_image image;
};

static void look_free(void *arg)
{
    struct look *l = arg;

    if (!l)
        return;
    fd_close_later(l->fd);
    free(l);
}

static int look(void *arg, struct err *err)
{
    struct look *l = arg;
    struct stat st;

    if (fstat(l->fd, &st) < 0)
        return err_sys(err, errno, "look at the image");
    l->image = S_ISBLK(st.st_mode)
                   ? (struct scsi_image){ .dev = st.st_rdev }
                   : (struct scsi_image){ st.st_dev, st.st_ino, (uint64_t)st.st_size };
    return 0;
}

int scsi_image_look(struct ctx *ctx, int fd, struct scsi_image *ret, struct err *err)
{
    struct look *l = mem_new(struct look);
    void *arg = l;

    l->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    int r = offload_run(ctx, look, &arg, look_free, "scsi: look at an image", err);
    if (r == 0)
        *ret = ((struct look *)arg)->image;
    look_free(arg);
    return r;
}
