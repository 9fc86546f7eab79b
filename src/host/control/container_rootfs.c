/* container_rootfs.c - a container's root file system: opened on the host while the VM comes up,
 * given to it, and combined with its scratch directory in the guest. */
#include "base/log.h"
#include "base/str.h"
#include "host/bridge/guest.h"
#include "host/control/container_priv.h"
#include "host/control/events.h"
#include "host/device/plan9.h"
#include "host/device/scsi.h"
#include "host/files/layers.h"
#include <stdlib.h>

#define WORTH_FILES 50 /* in a layer, for a disk instead of a share; a pause image has one */

/* Without ids of its own it has those of outside already: containerd has changed its owners. */
static int map_root(struct ctx *ctx, struct container *c, const struct rootfs *fs, struct err *err)
{
    AUTO(idmap_release) struct idmap ids = { 0 };

    if (!fs->ids.uid)
        return 0;
    if (!idmap_eq(&fs->ids, &c->p.pod->ids))
        return err_because(
            err, REASON_USERNS_MISMATCH, ERR_INVALID,
            "its ids (uidmap=%.128s, gidmap=%.128s) differ from the container's user "
            "namespace (uids %.128s, gids %.128s)",
            fs->ids.uid, fs->ids.gid, c->p.pod->ids.uid ? c->p.pod->ids.uid : "none",
            c->p.pod->ids.gid ? c->p.pod->ids.gid : "none");
    if (fs->tree < 0 || fs->mapped)
        return 0;
    return container_share_ids(c, &fs->ids, &ids, err) < 0
               ? -1
               : tree_map(ctx, fs->tree, &ids, "its directory", err);
}

static int open_mounts(struct ctx *ctx, struct container *c, const char *path, unsigned how,
                       struct root *f, struct err *err)
{
    const struct container_create *cc = f->cc;
    const struct config *config = c->r->o.config;
    const struct layers_opts layers = { .dir = config->layer_dir,
                                        .verity = config->layer_verity,
                                        .worth = config->layer_images == CONFIG_LAYERS_AUTO
                                                     ? WORTH_FILES
                                                     : 0 };
    bool images = config->layer_images != CONFIG_LAYERS_OFF && c->r->o.want_layers;
    AUTO_FREE struct rootfs_mount *mounts = mem_zalloc((cc->n_rootfs + 1) * sizeof(*mounts));

    for (size_t i = 0; i < cc->n_rootfs; i++)
        mounts[i] = (struct rootfs_mount){ .type = cc->rootfs[i].type,
                                           .source = cc->rootfs[i].source,
                                           .options = cc->rootfs[i].options };
    if (rootfs_open(ctx, mounts, cc->n_rootfs, path, how, images ? &layers : NULL, &f->fs, err) <
            0 ||
        map_root(ctx, c, &f->fs, err) < 0)
        return err_wrap_because(err, REASON_ROOTFS_FAILED, "root file system");
    return 0;
}

/* Opens it again when its layers have become images; a failure is not the container's. */
static int open_built(struct ctx *ctx, struct container *c, const char *path, unsigned how,
                      struct root *f, struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, CONTAINER_LAYERS_LIMIT);

    if (open_mounts(ctx, c, path, how, f, err) < 0)
        return -1;
    if (f->fs.unbuilt.n > 0 && c->r->o.config->layer_images == CONFIG_LAYERS_ALWAYS) {
        c->r->o.want_layers(c->r->o.arg, &limited, &f->fs.unbuilt);
        rootfs_release(&f->fs);
        if (open_mounts(ctx, c, path, how, f, err) < 0)
            return -1;
    }
    if (f->fs.why_shared)
        log_debug(ctx, "layers are shared, not disks", F_STR("why", f->fs.why_shared));
    strv_release(&c->unbuilt);
    c->unbuilt = f->fs.unbuilt;
    f->fs.unbuilt = (struct strv){ 0 };
    return 0;
}

/* Logs that the container's writes are discarded, unless the configuration says so. */
static void set_root_writes(struct ctx *ctx, struct container *c, const struct spec *spec,
                            enum config_rootfs writes, const struct root *f)
{
    bool kept = f->fs.tree >= 0 ? f->fs.tree_writable : f->fs.disks[0].writable;

    c->root_writes = spec_root_readonly(spec) || (f->shared && !kept) ? ROOT_READ_ONLY
                     : kept                                           ? ROOT_KEPT
                                                                      : ROOT_DISCARDED;
    if (writes == CONFIG_ROOTFS_AUTO && c->root_writes == ROOT_DISCARDED)
        log_warn(ctx, "writes to the container's root are discarded with its VM: its snapshot has "
                      "no writable directory on the host");
}

int root_open(struct ctx *ctx, struct container *c, const struct spec *spec,
              const struct container_create *cc, enum config_rootfs writes, struct root *f,
              struct err *err)
{
    static const unsigned how[] = { [CONFIG_ROOTFS_AUTO] = ROOTFS_KEPT,
                                    [CONFIG_ROOTFS_SHARED] = ROOTFS_WRITABLE,
                                    [CONFIG_ROOTFS_SCRATCH] = 0 };

    f->cc = cc;
    if (c->p.hidden)
        return tree_open_pause(ctx, &f->fs.tree, err);

    const char *root = spec_root_path(spec);
    AUTO_FREE char *path = root[0] == '/'
                               ? str_dup(root)
                               : str_format("%s/%s", c->p.bundle, root[0] ? root : "rootfs");

    if (open_built(ctx, c, path, how[writes], f, err) < 0)
        return -1;
    f->shared = writes == CONFIG_ROOTFS_SHARED || f->fs.tree_writable;
    set_root_writes(ctx, c, spec, writes, f);
    return 0;
}

/* --- into the VM --- */

static int share_tree(struct ctx *ctx, struct container *c, const struct root *f, struct err *err)
{
    const struct plan9_share share = {
        .host_path = c->p.bundle, .tree_fd = f->fs.tree, .read_only = !f->shared, .unique = true
    };
    AUTO_FREE char *path = NULL;

    if (container_share(ctx, c, &share, &path, err) < 0)
        return -1;
    strv_add(&c->layers, path);
    return 0;
}

static int attach_disk(struct ctx *ctx, struct container *c, const struct rootfs_disk *d,
                       uint64_t *ret_id, struct err *err)
{
    const struct scsi_disk disk = { .host_path = d->path, .fd = d->fd, .read_only = !d->writable };
    const struct guest_disk mount = { .read_only = !d->writable,
                                      .filesystem = d->filesystem,
                                      .verity = d->root_hash != NULL,
                                      .root_hash = d->root_hash };

    return container_attach(ctx, c, &disk, &mount, ret_id, err);
}

static int layer_failed(const struct root *f, size_t i, struct err *err)
{
    return err_wrap_because(err, REASON_ROOTFS_FAILED, "layer %zu of %zu from the top (%s)", i + 1,
                            f->fs.n_disks, f->fs.disks[i].path);
}

/* All are attached before the first is mounted: meanwhile the guest finds them. *ret_failed: the
 * disk that could not be used. */
static int attach_disks(struct ctx *ctx, struct container *c, const struct root *f,
                        size_t *ret_failed, struct err *err)
{
    AUTO_FREE uint64_t *ids = mem_zalloc((f->fs.n_disks + 1) * sizeof(*ids));

    for (size_t i = 0; i < f->fs.n_disks; i++) {
        *ret_failed = i;
        if (attach_disk(ctx, c, &f->fs.disks[i], &ids[i], err) < 0)
            return layer_failed(f, i, err);
    }
    for (size_t i = 0; i < f->fs.n_disks; i++) {
        AUTO_FREE char *path = NULL;

        *ret_failed = i;
        if (container_mount(ctx, c, ids[i], &path, err) < 0)
            return layer_failed(f, i, err);
        strv_add(&c->layers, path);
    }
    return 0;
}

/* --- disks that cannot be used --- */

/* The keys of those that are layer images. */
static void list_images(const struct root *f, size_t from, size_t n, struct strv *ret)
{
    for (size_t i = from; i < from + n; i++)
        if (f->fs.disks[i].image_key)
            strv_add(ret, f->fs.disks[i].image_key);
}

/* An image can be damaged where the quick check does not look. A failure of the VM, or the end of
 * ctx, says nothing of it. */
static bool may_be_damaged(const struct ctx *ctx, const struct container *c,
                           const struct strv *images)
{
    const struct guest *guest = vm_parts(c->p.pod->vm)->guest;
    struct err none = ERR_INIT;

    return images->n > 0 && ctx_check(ctx, &none) == 0 && vm_state(c->p.pod->vm) == VM_RUNNING &&
           guest->ops->connected(guest);
}

/* Without them it worked. They are made again, later. */
static void discard_images(struct ctx *ctx, struct container *c, const struct strv *images,
                           const struct err *why)
{
    for (size_t i = 0; i < images->n; i++) {
        struct err err = ERR_INIT;

        log_warn(ctx, "the VM could not use a layer image, which is removed; its layer is shared",
                 F_STR("key", images->v[i]), F_ERR(why));
        if (layers_discard(ctx, c->r->o.config->layer_dir, images->v[i], why->msg, &err) < 0 &&
            err.code != ERR_NOT_FOUND)
            log_warn(ctx, "could not remove a layer image", F_STR("key", images->v[i]),
                     F_ERR(&err));
    }
}

/* What the host has mounted is shared, as with more layers than become disks. */
static int share_instead(struct ctx *ctx, struct container *c, struct root *f, struct err *err)
{
    err_clear(err);
    rootfs_release(&f->fs);
    strv_release(&c->layers);
    return open_mounts(ctx, c, NULL, ROOTFS_TREE, f, err) < 0 ? -1 : share_tree(ctx, c, f, err);
}

/* If the VM has no slots left for them, or an image is damaged. Nothing else of the container is in
 * the VM yet. */
static int give_disks(struct ctx *ctx, struct container *c, struct root *f, struct err *err)
{
    AUTO(strv_release) struct strv images = { 0 };
    size_t failed = 0;

    if (attach_disks(ctx, c, f, &failed, err) == 0)
        return 0;
    if (!f->fs.has_tree)
        return -1;

    const struct err why = *err;
    if (why.code == ERR_EXHAUSTED) {
        log_info(ctx, "the VM has too few disk slots for all layers; sharing them as one tree",
                 F_U("layers", f->fs.n_disks), F_ERR(err));
    } else {
        list_images(f, failed, 1, &images);
        if (!may_be_damaged(ctx, c, &images))
            return -1;
    }
    err_clear(err);
    if (container_release_holdings(ctx, c, err) < 0 || share_instead(ctx, c, f, err) < 0)
        return -1;
    discard_images(ctx, c, &images, &why);
    return 0;
}

static int give(struct ctx *ctx, struct container *c, struct root *f, struct err *err)
{
    return f->fs.tree >= 0 ? share_tree(ctx, c, f, err) : give_disks(ctx, c, f, err);
}

static int combine(struct ctx *ctx, struct container *c, const struct rootfs *fs, struct err *err)
{
    const struct guest_layers l = { .container = c->p.guest_id,
                                    .root_path = c->root_path,
                                    .scratch_path = c->scratch_path,
                                    .scratch_quota = (uint64_t)c->scratch_quota_mib << 20,
                                    .uid_map = c->p.pod->ids.uid,
                                    .gid_map = c->p.pod->ids.gid,
                                    .map_layers = fs->ids.uid && fs->n_disks > 0,
                                    .layers = (const char *const *)c->layers.v };

    AUTO(vm_leave)
    const struct vm_parts *in = vm_enter(c->p.pod->vm, "combine the root file system", err);

    if (!in)
        return -1;
    /* Set before the call: if the answer is lost, release must still remove the layers. */
    c->combined = true;
    return in->guest->ops->combine_layers(ctx, in->guest, &l, err);
}

/* If an image is damaged. Mounts of the container are added meanwhile, so the disks stay attached
 * until its end. */
static int combine_or_share(struct ctx *ctx, struct container *c, struct root *f, struct err *err)
{
    AUTO(strv_release) struct strv images = { 0 };

    if (combine(ctx, c, &f->fs, err) == 0)
        return 0;
    list_images(f, 0, f->fs.n_disks, &images);
    if (!may_be_damaged(ctx, c, &images))
        return -1;

    const struct err why = *err;
    if (share_instead(ctx, c, f, err) < 0 || combine(ctx, c, &f->fs, err) < 0)
        return -1;
    discard_images(ctx, c, &images, &why);
    return 0;
}

/* The scratch disk may come later than the VM. */
static void combine_main(void *arg)
{
    struct root *f = arg;
    struct container *c = f->c;

    f->ret = vm_need_ready(f->ctx, c->p.pod->vm, &f->err);
    if (f->ret == 0) {
        SPAN(step, f->ctx, vm_timeline(c->p.pod->vm), TRACK_HOST,
             f->none ? "make bundle" : "combine layers", &f->err);

        c->scratch_path = str_format("%s/scratch/%s/%s", vm_parts(c->p.pod->vm)->scratch_path,
                                     c->p.pod->guest_id, c->p.guest_id);
        c->p.pod->has_scratch = c->p.pod->has_scratch || c == c->p.pod->holder;
        f->ret = combine_or_share(step.ctx, c, f, &f->err);
    }
    if (f->ret < 0)
        err_wrap_because(&f->err, REASON_ROOTFS_FAILED, "combine the root file system");
}

/* A directory that is shared for writing, or a disk of its own, is the root itself: what is written
 * is where containerd looks for it. */
static bool is_whole(const struct root *f)
{
    return f->fs.tree >= 0 ? f->shared : f->fs.disks[0].writable;
}

static int share(struct ctx *ctx, struct container *c, struct root *f, struct err *err)
{
    SPAN(step, ctx, vm_timeline(c->p.pod->vm), TRACK_HOST, "share rootfs", err);

    if (give(step.ctx, c, f, err) < 0)
        return err_wrap_because(err, REASON_ROOTFS_FAILED, "share the root file system");
    return 0;
}

int root_share(struct ctx *ctx, struct container *c, struct root *f, struct err *err)
{
    if (f->none)
        c->root_writes = ROOT_READ_ONLY;
    else if (share(ctx, c, f, err) < 0)
        return -1;
    f->ctx = ctx;
    f->c = c;
    fibers_init(&f->fibers);
    if (!f->none && is_whole(f)) {
        free(c->root_path);
        c->root_path = str_dup(c->layers.v[0]);
    } else {
        fibers_go(&f->fibers, c->r->o.loop, combine_main, f, "combine %s", c->p.id);
    }
    return 0;
}

int root_wait(struct container *c, struct root *f, struct err *err)
{
    struct ctx root = ctx_root(c->r->o.loop);
    struct err none = ERR_INIT;

    (void)fibers_wait(&root, &f->fibers, "layers", &none); /* its own ctx bounds it */
    if (f->ret < 0)
        *err = f->err;
    return f->ret;
}

void root_release(struct root *f)
{
    rootfs_release(&f->fs);
}
