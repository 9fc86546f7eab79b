/* container_files.c - all files of a container: its root file system (container_rootfs.c) and its
 * mounts (container_mounts.c). */
#include "host/control/registry_priv.h"

void files_release(struct files *f)
{
    root_release(&f->root);
    mounts_release(&f->mounts);
}

int files_open(struct ctx *ctx, struct container *c, struct spec *spec,
               const struct registry_create *rc, enum config_rootfs writes, struct files *f,
               struct err *err)
{
    int span = vm_span_begin(c->r->vm, "open files");
    int r = root_open(ctx, c, spec, rc, writes, &f->root, err);

    if (r == 0)
        r = mounts_open(ctx, c, spec, &f->mounts, err);
    vm_span_end(c->r->vm, span);
    return r;
}

/* The layers need the scratch disk, the mounts do not: each waits for its own. */
int files_share(struct ctx *ctx, struct container *c, struct files *f, struct err *err)
{
    struct err second = ERR_INIT;

    if (root_share(ctx, c, &f->root, err) < 0)
        return -1;

    int r = mounts_share(ctx, c, &f->mounts, err);
    int combined = root_wait(c, &f->root, &second);

    if (r == 0 && combined < 0) {
        *err = second;
        r = -1;
    }
    return r;
}
