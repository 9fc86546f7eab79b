#include "base/clock.h"
#include "base/ctx.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/offload.h"
#include "base/str.h"
#include "guest/storage/mnt.h"
#include "guest/storage/path.h"
#include "guest/storage/pci.h"
#include "guest/storage/storage_priv.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

struct storage *storage_new(int (*load_module)(const char *name, struct err *err))
{
    struct storage *s = mem_new(struct storage);

    s->load_module = load_module;
    gate_init(&s->share, "share");
    list_init(&s->holds);
    waitq_init(&s->holds_q);
    return s;
}

void storage_free(struct storage *s)
{
    free(s);
}

/* --- one at a time on a path --- */

struct storage_hold {
    struct list node;
    struct storage *s;
    char *path;
};

static bool is_first(const struct storage_hold *h)
{
    LIST_FOR (const struct storage_hold, other, &h->s->holds, node)
        if (str_eq(other->path, h->path))
            return other == h;
    return true;
}

struct storage_hold *storage_hold(struct ctx *ctx, struct storage *s, const char *path,
                                  struct err *err)
{
    struct storage_hold *h = mem_new(struct storage_hold);

    *h = (struct storage_hold){ .s = s, .path = str_dup(path) };
    list_append(&s->holds, &h->node);
    while (!is_first(h))
        if (waitq_wait(ctx, &s->holds_q, "another call to be done with this path", err) < 0) {
            err_wrap(err, "%s", path);
            storage_let_go(h);
            return NULL;
        }
    return h;
}

void storage_let_go(struct storage_hold *h)
{
    if (!h)
        return;
    list_remove(&h->node);
    waitq_wake_all(&h->s->holds_q);
    free(h->path);
    free(h);
}

/* --- beside the loop --- */

struct load {
    const char *name;
    int (*load_module)(const char *name, struct err *err);
};

static int load(void *arg, struct err *err)
{
    const struct load *l = arg;

    return l->load_module(l->name, err);
}

int storage_load(struct ctx *ctx, struct storage *s, const char *const *names, struct err *err)
{
    for (; *names; names++) {
        struct load l = { *names, s->load_module };
        if (OFFLOAD(ctx, load, &l, 1, NULL, "module to load", err) == 0)
            continue;
        if (err->code != ERR_NOT_FOUND)
            return -1;
        err_clear(err); /* may be built into the kernel; if not, the mount fails */
    }
    return 0;
}

/* A job of one string. */
struct path {
    const char *path;
};

static int unmount(void *arg, struct err *err)
{
    const char *path = ((struct path *)arg)->path;

    if (mnt_unmount(path, err) < 0)
        return -1;
    if (rmdir(path) == 0 || errno == ENOENT || errno == ENOTEMPTY)
        return 0;
    if (errno != ENOTDIR || unlink(path) < 0)
        return err_sys(err, errno, "remove %s", path);
    return 0;
}

int storage_unmount(struct ctx *ctx, const char *path, struct err *err)
{
    return OFFLOAD(ctx, unmount, &(struct path){ path }, 1, NULL, "path to be unmounted", err);
}

static int remove_tree(void *arg, struct err *err)
{
    const char *path = ((struct path *)arg)->path;
    int r = dir_remove_marked(path);

    if (r == -EBUSY)
        return err_set(err, ERR_STATE, "cannot remove %s: something is mounted in it", path);
    return r < 0 ? err_sys(err, -r, "remove %s", path) : 0;
}

int storage_remove_tree(struct ctx *ctx, const char *path, struct err *err)
{
    if (!path || !path[0])
        return 0;
    if (path_check_run(path, "path to remove", err) < 0)
        return -1;
    return OFFLOAD(ctx, remove_tree, &(struct path){ path }, 1, NULL, "tree to be removed", err);
}

/* --- shares --- */

/* Host directories. The host attaches each below the root of one virtio-9p
 * device; the agent mounts that once, at a private path, and binds single shares from there. */

#define ROOT "/run/mounts/9p"
#define TAG "lcow"
/* cache=none refuses MAP_SHARED, access=any spoils owners (docs/reference/qemu-uvm.md §6). */
#define OPTIONS "trans=virtio,version=9p2000.L,cache=mmap,access=client,msize=512000"

static const char *const share_modules[] = { "9pnet_virtio", "9p", NULL };

static int mount_root(void *arg, struct err *err)
{
    if (dir_need(ROOT, PATH_PASSABLE, err) < 0)
        return -1;
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

    if (dir_need(is_dir ? path : parent, PATH_PASSABLE, err) < 0)
        return -1;
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
        return err_set(err, ERR_INVALID, "unsupported share %s: neither a directory nor a file",
                       b->share);
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
        return err_set(err, ERR_INVALID, "invalid ShareName \"%.64s\"", name);
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
    log_info(ctx, "share mounted", F_STR("share", name), F_STR(LK_UVM_PATH, mount_path));
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

/* --- PCI devices --- */

/* A PCI device that the host has just added: until it is there, has its driver, and
 * is of use. */

#define SYS "/sys"
#define APPEAR_NS (20 * NS_PER_S) /* usually some ms, but emulation on a busy host is slow */
#define LOOK_NS (10 * NS_PER_MS)
#define ALIASES_MAX (4u << 20)

/* Waits until the next look. 1: APPEAR_NS are over; -1: ctx has ended. */
static int look_again(struct ctx *ctx, struct ctx *bounded, struct err *err)
{
    if (fiber_sleep(bounded, LOOK_NS, err) == 0)
        return 0;
    return err->code != ERR_DEADLINE || ctx_check(ctx, err) < 0 ? -1 : 1;
}

static int await_device(struct ctx *ctx, const char *place, char **ret_dir, struct err *err)
{
    struct ctx bounded = ctx_with_timeout(ctx, APPEAR_NS);
    int r;

    while ((r = pci_find(SYS, place, ret_dir)) == -ENXIO)
        if ((r = look_again(ctx, &bounded, err)) != 0)
            return r < 0 ? -1
                         : err_set(err, ERR_UNAVAILABLE, "PCI device %s did not appear", place);
    if (r < 0)
        return err_set(err, ERR_INVALID,
                       "invalid VMBusGUID \"%.64s\": not the address of a PCI device", place);
    return 0;
}

static int settle(void *arg, struct err *err)
{
    const char *place = ((struct path *)arg)->path;
    int r = pci_settle(SYS, place);

    return r < 0 ? err_sys(err, -r, "rescan the bus of PCI device %s", place) : 0;
}

/* A device without a driver in the image is allowed: a program can use its registers. */
static int load_driver(struct ctx *ctx, struct storage *s, const char *place, const char *dir,
                       struct err *err)
{
    AUTO(strv_release) struct strv names = { 0 };
    AUTO_FREE char *path = NULL, *aliases = NULL;
    struct utsname u;

    if (pci_has_driver(dir))
        return 0;
    (void)uname(&u); /* cannot fail */
    path = str_format("/lib/modules/%s/modules.alias", u.release);
    if (file_load(path, ALIASES_MAX, &aliases, err) < 0)
        return -1;
    if (pci_modules(dir, aliases, &names) < 0)
        return err_set(err, ERR_UNAVAILABLE, "PCI device %s disappeared", place);
    if (names.n == 0)
        log_info(ctx, "the image has no driver for a PCI device", F_STR("device", place));
    else if (storage_load(ctx, s, (const char *const *)names.v, err) < 0)
        return err_wrap(err, "driver of PCI device %s", place);
    return 0;
}

static int await_disk(struct ctx *ctx, const char *place, const char *dir, struct err *err)
{
    struct ctx bounded = ctx_with_timeout(ctx, APPEAR_NS);
    int r = 0;

    while (r == 0 && pci_lacks_disk(SYS, dir))
        r = look_again(ctx, &bounded, err);
    if (r > 0) {
        err_clear(err);
        log_warn(ctx, "no disk appeared behind a disk controller; continuing without it",
                 F_STR("device", place));
    }
    return r < 0 ? -1 : 0;
}

int storage_add_device(struct ctx *ctx, struct storage *s, const char *place, struct err *err)
{
    AUTO_FREE char *dir = NULL;

    if (await_device(ctx, place, &dir, err) < 0 ||
        OFFLOAD(ctx, settle, &(struct path){ place }, 1, NULL, "PCI device to settle", err) < 0 ||
        load_driver(ctx, s, place, dir, err) < 0)
        return -1;
    return await_disk(ctx, place, dir, err);
}
