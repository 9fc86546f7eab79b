/* storage_share.c - host directories. The host attaches each below the root of one virtio-9p
 * device; we mount that device once, where nobody looks, and bind single shares onwards. */
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/offload.h"
#include "base/str.h"
#include "guest/storage/mnt.h"
#include "guest/storage/path.h"
#include "guest/storage/storage_priv.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#define ROOT "/run/mounts/9p"
#define TAG "lcow"
/* cache=none refuses MAP_SHARED, access=any spoils owners (qemu-uvm.md §6). */
#define OPTIONS "trans=virtio,version=9p2000.L,cache=mmap,access=client,msize=512000"

static const char *const share_modules[] = { "9pnet_virtio", "9p", NULL };

static int mount_root(void *arg, struct err *err)
{
    int r = dir_make(ROOT, 0700);

    if (r < 0)
        return err_sys(err, -r, "make " ROOT);
    return mnt_mount(TAG, ROOT, "9p", MS_NODEV | MS_NOSUID, OPTIONS, err);
}

/* At the first share and not at boot: a mounted 9p device cannot be saved in a template. */
static int need_root(struct ctx *ctx, struct storage *s, struct err *err)
{
    AUTO(gate_leave) struct gate *held = gate_enter(&s->share, ctx, "share.mount", err);
    char none = 0;

    if (!held)
        return -1;
    if (s->share_mounted)
        return 0;
    if (storage_load(ctx, s, share_modules, err) < 0 ||
        OFFLOAD(ctx, mount_root, &none, 0, NULL, "9p device to be mounted", err) < 0)
        return err_wrap(err, "shares");
    s->share_mounted = true;
    return 0;
}

static int make_target(const char *path, bool is_dir, struct err *err)
{
    AUTO_FREE char *parent = path_parent(path);
    int r = dir_make(is_dir ? path : parent, 0700);

    if (r < 0)
        return err_sys(err, -r, "make %s", is_dir ? path : parent);
    if (is_dir)
        return 0;
    AUTO_FD int fd = open(path, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    return fd < 0 ? err_sys(err, errno, "make %s", path) : 0;
}

struct bind {
    const char *share, *target;
    bool read_only;
};

static int bind_share(void *arg, struct err *err)
{
    const struct bind *b = arg;
    struct stat st;

    if (lstat(b->share, &st) < 0)
        return err_sys(err, errno, "share %s", b->share);
    if (!S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode))
        return err_set(err, ERR_INVALID, "share %s is neither a directory nor a file", b->share);
    if (make_target(b->target, S_ISDIR(st.st_mode), err) < 0)
        return -1;
    if (mnt_bind(b->share, b->target, b->read_only, err) < 0) {
        (void)(S_ISDIR(st.st_mode) ? rmdir(b->target) : unlink(b->target));
        return -1;
    }
    return 0;
}

int storage_add_share(struct ctx *ctx, struct storage *s, const char *name, const char *mount_path,
                      bool read_only, struct err *err)
{
    if (!path_name_ok(name))
        return err_set(err, ERR_INVALID, "ShareName \"%.64s\" is not a name", name);
    if (path_check_run(mount_path, "MountPath", err) < 0)
        return -1;

    AUTO(storage_let_go) struct storage_hold *held = storage_hold(ctx, s, mount_path, err);
    if (!held)
        return -1;
    if (need_root(ctx, s, err) < 0)
        return -1;
    AUTO_FREE char *source = str_format(ROOT "/%s", name);
    struct bind b = { source, mount_path, read_only };
    if (OFFLOAD(ctx, bind_share, &b, 2, NULL, "share to be mounted", err) < 0)
        return -1;
    log_info(ctx, "share mounted", F_STR("share", name), F_STR("uvm-path", mount_path));
    return 0;
}

int storage_remove_share(struct ctx *ctx, struct storage *s, const char *mount_path,
                         struct err *err)
{
    if (path_check_run(mount_path, "MountPath", err) < 0)
        return -1;

    AUTO(storage_let_go) struct storage_hold *held = storage_hold(ctx, s, mount_path, err);
    return held ? storage_unmount(ctx, mount_path, err) : -1;
}
