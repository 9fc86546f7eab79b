/* storage_layers.c - a container's root: an overlay of layers, with a directory on a scratch disk
 * for what is written (docs/reference/gcs-protocol.md §4.5). */
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/offload.h"
#include "base/str.h"
#include "guest/storage/mnt.h"
#include "guest/storage/path.h"
#include "guest/storage/quota.h"
#include "guest/storage/storage_priv.h"
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#define LAYERS_MAX 500 /* overlay's own */
#define OPTIONS_MAX 4095

static const char *const overlay_modules[] = { "overlay", NULL };

static int check(const struct storage_layers *l, struct err *err)
{
    if (path_check_run(l->root_path, "ContainerRootPath", err) < 0)
        return -1;
    if (l->scratch_path[0] && (path_check_run(l->scratch_path, "ScratchPath", err) < 0 ||
                               path_check_option(l->scratch_path, "ScratchPath", err) < 0))
        return -1;
    if (!l->ids.uid || !l->ids.uid[0])
        return l->map_layers
                   ? err_set(err, ERR_INVALID, "invalid request: MapLayers requires UidMap")
                   : 0;
    if (!l->scratch_path[0])
        return err_set(err, ERR_INVALID, "invalid request: UidMap requires ScratchPath");
    return idmap_check(l->ids.uid, "UidMap", err) < 0 ||
                   idmap_check(l->ids.gid ? l->ids.gid : "", "GidMap", err) < 0
               ? -1
               : 0;
}

/* Joins them into one text and checks its length. */
static int join_layers(const struct storage_layers *l, struct sbuf *out, struct err *err)
{
    size_t n = 0;

    for (const char *const *layer = l->layers; layer && *layer; layer++, n++) {
        if (path_check(*layer, "layer path", err) < 0 ||
            path_check_option(*layer, "layer path", err) < 0)
            return -1;
        sbuf_addf(out, "%s%s", n ? ":" : "", *layer);
    }
    if (n == 0 && !l->scratch_path[0])
        return err_set(err, ERR_INVALID, "invalid request: no layers to combine");
    if (n > LAYERS_MAX)
        return err_set(err, ERR_INVALID, "too many layers: %zu, at most %d", n, LAYERS_MAX);
    return 0;
}

/* --- the mount --- */

struct dirs {
    int fds[LAYERS_MAX];
    size_t n;
};

static void dirs_release_auto(struct dirs *d)
{
    for (size_t i = 0; i < d->n; i++)
        fd_close(d->fds[i]);
}

struct overlay {
    const char *root, *scratch, *layers, *uid, *gid; /* scratch: or "", layers: or NULL */
    uint64_t quota;
    uint32_t project;
    bool keep_bundle, map_layers;
};

/* A layer with the container's ids is an id-mapped mount of its own. The kernel accepts it as a
 * layer only if it is attached in the agent's namespace, so all are stacked on one directory until
 * overlay holds them. */
static int open_mapped(int userns, const char *layer, const char *spot, struct err *err)
{
    AUTO_FD int tree = open_tree(AT_FDCWD, layer, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);

    if (tree < 0)
        return err_sys(err, errno, "layer %s", layer);
    if (idmap_mount(tree, userns, false, layer, err) < 0)
        return err_wrap(err, "layer");
    if (move_mount(tree, "", AT_FDCWD, spot, MOVE_MOUNT_F_EMPTY_PATH) < 0)
        return err_sys(err, errno, "mount layer %s", layer);
    return TAKE_FD(tree);
}

/* The paths of two hundred layers do not fit into the page that mount(2) takes; the numbers of
 * their descriptors do, relative to /proc/self/fd. */
static int make_options(const struct overlay *o, const char *spot, struct dirs *d, struct sbuf *out,
                        struct err *err)
{
    AUTO_FREE char *list = str_dup(o->layers);
    const struct idmap ids = { (char *)o->uid, (char *)o->gid };
    AUTO_FD int userns = o->map_layers ? idmap_userns(&ids, err) : -1;
    const char *scratch = o->scratch;
    char *rest = list, *layer;

    if (o->map_layers && userns < 0)
        return -1;

    while (d->n < LAYERS_MAX && (layer = strsep(&rest, ":"))) {
        int fd = o->map_layers ? open_mapped(userns, layer, spot, err)
                               : open(layer, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0)
            return o->map_layers ? -1 : err_sys(err, errno, "layer %s", layer);
        sbuf_addf(out, "%s%d", d->n ? ":" : "lowerdir=", fd);
        d->fds[d->n++] = fd;
    }
    if (scratch[0])
        sbuf_addf(out, ",upperdir=%s/upper,workdir=%s/work", scratch, scratch);
    if (out->len > OPTIONS_MAX)
        return err_set(err, ERR_INVALID, "the path %s is too long for a mount", scratch);
    return 0;
}

/* Runs in a thread with a working directory of its own. */
static int mount_overlay(const struct overlay *o, struct err *err)
{
    AUTO(sbuf_release) struct sbuf options = { 0 };
    AUTO(dirs_release) struct dirs d = { .n = 0 };
    AUTO_FREE char *spot = str_format("%s/mapped", o->scratch);
    int r = -1;

    if (o->map_layers && dir_need(spot, 0700, err) < 0)
        return -1;
    if (make_options(o, spot, &d, &options, err) == 0) {
        if (unshare(CLONE_FS) < 0 || chdir("/proc/self/fd") < 0)
            r = err_sys(err, errno, "change to /proc/self/fd");
        else
            r = mnt_mount("overlay", o->root, "overlay", o->scratch[0] ? 0 : MS_RDONLY,
                          options.data, err);
    }
    if (o->map_layers) {
        while (umount2(spot, MNT_DETACH | UMOUNT_NOFOLLOW) == 0)
            ;
        (void)rmdir(spot);
    }
    return r;
}

/* True if the bundle must become a directory of the scratch disk, because it does not exist yet. */
static bool binds_bundle(const char *scratch, const char *bundle)
{
    return scratch && scratch[0] && !path_is_below(scratch, bundle);
}

static int bind_bundle(const char *scratch, const char *bundle, struct err *err)
{
    AUTO_FREE char *dir = str_format("%s/bundle", scratch);

    if (dir_need(dir, 0755, err) < 0 || dir_need(bundle, 0755, err) < 0)
        return -1;
    return mnt_is_mounted(bundle) ? 0 : mnt_bind(dir, bundle, false, err);
}

/* Undoes make_scratch and bind_bundle. Errors are ignored: parts may be removed already. */
static int drop_scratch(const char *scratch, const char *bundle, struct err *err)
{
    static const char *const dirs[] = { "upper", "work", "bundle" };

    if (binds_bundle(scratch, bundle) && mnt_unmount(bundle, err) < 0)
        return -1;
    (void)rmdir(bundle); /* fails if it is not empty */
    for (size_t i = 0; scratch[0] && i < ARRAY_LEN(dirs); i++) {
        AUTO_FREE char *dir = str_format("%s/%s", scratch, dirs[i]);
        int r = dir_remove_marked(dir);
        if (r < 0)
            return err_sys(err, -r, "remove %s", dir);
    }
    if (scratch[0])
        (void)rmdir(scratch);
    return 0;
}

/* Without a limit the quota only counts usage, so a failure is not an error. */
static int begin_quota(const struct overlay *o, struct err *err)
{
    struct err ignored = ERR_INIT;

    if (dir_need(o->scratch, 0755, err) < 0)
        return -1;
    if (quota_begin(o->scratch, o->project, o->quota, o->quota ? err : &ignored) == 0 || !o->quota)
        return 0;
    if (err->code != ERR_UNIMPLEMENTED)
        return err_wrap_because(err, REASON_SCRATCH_QUOTA, "quota of the scratch directory");
    return err_because(
        err, REASON_SCRATCH_QUOTA, ERR_UNIMPLEMENTED,
        "cannot limit the scratch directory (scratch_quota_mib): the scratch disk does "
        "not support quotas; an encrypted one never does");
}

/* The container's root user owns its root directory. */
static int own(const char *upper, const struct overlay *o, struct err *err)
{
    uint32_t uid, gid;

    if (!idmap_outside(o->uid, 0, &uid) || !idmap_outside(o->gid, 0, &gid))
        return 0;
    return chown(upper, uid, gid) < 0 ? err_sys(err, errno, "change the owner of %s", upper) : 0;
}

static int make_scratch(const struct overlay *o, const char *bundle, struct err *err)
{
    AUTO_FREE char *upper = str_format("%s/upper", o->scratch);
    AUTO_FREE char *work = str_format("%s/work", o->scratch);

    if (begin_quota(o, err) < 0) /* set first, because files made later inherit it */
        return -1;
    if (binds_bundle(o->scratch, bundle) && bind_bundle(o->scratch, bundle, err) < 0)
        return -1;
    if (dir_need(upper, 0755, err) < 0 || dir_need(work, 0755, err) < 0)
        return -1;
    return own(upper, o, err);
}

static int combine(void *arg, struct err *err)
{
    const struct overlay *o = arg;
    AUTO_FREE char *bundle = path_parent(o->root), *upper = str_format("%s/upper", o->scratch);
    bool fresh = access(upper, F_OK) < 0; /* else it may be in use and is not undone */
    struct err ignored = ERR_INIT;

    if (mnt_is_mounted(o->root))
        return err_set(err, ERR_EXISTS, "cannot combine layers: something is already mounted on %s",
                       o->root);
    if ((o->scratch[0] && make_scratch(o, bundle, err) < 0) ||
        (o->layers && (dir_need(o->root, 0755, err) < 0 || mount_overlay(o, err) < 0))) {
        (void)rmdir(o->root);
        if (fresh)
            (void)drop_scratch(o->scratch, bundle, &ignored); /* the first error is reported */
        return -1;
    }
    return 0;
}

int storage_combine(struct ctx *ctx, struct storage *s, const struct storage_layers *l,
                    struct err *err)
{
    AUTO(sbuf_release) struct sbuf layers = { 0 };

    if (check(l, err) < 0 || join_layers(l, &layers, err) < 0)
        return -1;

    AUTO(storage_let_go) struct storage_hold *held = storage_hold(ctx, s, l->root_path, err);
    if (!held)
        return -1;
    if (layers.data && storage_load(ctx, s, overlay_modules, err) < 0)
        return -1;
    struct overlay o = { .root = l->root_path,
                         .scratch = l->scratch_path,
                         .layers = layers.data,
                         .uid = l->ids.uid,
                         .gid = l->ids.gid,
                         .quota = l->scratch_quota,
                         .project = ++s->last_project,
                         .map_layers = l->map_layers };
    if (OFFLOAD(ctx, combine, &o, 5, NULL, "layers to be combined", err) < 0)
        return -1;
    log_info(ctx, "layers combined", F_STR(LK_UVM_PATH, l->root_path));
    return 0;
}

static int uncombine(void *arg, struct err *err)
{
    const struct overlay *o = arg;
    AUTO_FREE char *bundle = path_parent(o->root);

    if (mnt_unmount(o->root, err) < 0)
        return -1;
    if (rmdir(o->root) < 0 && errno != ENOENT)
        return err_sys(err, errno, "remove %s", o->root);
    return o->keep_bundle ? 0 : drop_scratch(o->scratch, bundle, err);
}

int storage_uncombine(struct ctx *ctx, struct storage *s, const struct storage_layers *l,
                      bool keep_bundle, struct err *err)
{
    struct overlay o = { .root = l->root_path,
                         .scratch = l->scratch_path,
                         .keep_bundle = keep_bundle };

    if (check(l, err) < 0)
        return -1;

    AUTO(storage_let_go) struct storage_hold *held = storage_hold(ctx, s, l->root_path, err);
    if (!held)
        return -1;
    return OFFLOAD(ctx, uncombine, &o, 5, NULL, "layers to be separated", err);
}

struct usage {
    const char *scratch;
    uint64_t bytes;
};

static int read_used(void *arg, struct err *err)
{
    struct usage *u = arg;

    return quota_used(u->scratch, &u->bytes, err);
}

int storage_used(struct ctx *ctx, const char *scratch_path, uint64_t *ret, struct err *err)
{
    struct usage u = { scratch_path, 0 };

    if (!scratch_path[0])
        return err_set(err, ERR_NOT_FOUND, "no scratch directory");
    if (path_check_run(scratch_path, "ScratchPath", err) < 0 ||
        OFFLOAD(ctx, read_used, &u, 1, NULL, "quota to be read", err) < 0)
        return -1;
    *ret = u.bytes;
    return 0;
}
