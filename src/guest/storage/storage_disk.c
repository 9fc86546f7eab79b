#include "base/clock.h"
#include "base/ctx.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/offload.h"
#include "base/rand.h"
#include "base/str.h"
#include "guest/storage/blockfs.h"
#include "guest/storage/mnt.h"
#include "guest/storage/path.h"
#include "guest/storage/scsi.h"
#include "guest/storage/storage_priv.h"
#include "oci/volume.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <unistd.h>

#define SYS "/sys"
/* A disk that the host has attached shows up within some ms; emulation on a busy host is slow. */
#define APPEAR_NS (60 * NS_PER_S)
#define LOOK_NS (10 * NS_PER_MS)
#define SCAN_AFTER_NS (500 * NS_PER_MS)
/* How long the kernel is asked again for a missing capacity. Then the disk counts as empty. */
#define CAPACITY_NS (5 * NS_PER_S)
/* The kernel reads the partition table before it announces the disk; some are slow. */
#define PARTITION_NS (3 * NS_PER_S)
#define MKFS_NS (120 * NS_PER_S)

static const char *const disk_modules[] = { "virtio_scsi", "sd_mod", NULL };

static int check(const struct storage_disk *d, struct err *err)
{
    if (d->controller >= SCSI_CONTROLLERS)
        return err_set(err, ERR_INVALID, "invalid SCSI controller %u: must be below %d",
                       d->controller, SCSI_CONTROLLERS);
    if (d->encrypted && (d->read_only || d->verity))
        return err_set(err, ERR_INVALID,
                       "encrypted disks are formatted on attach and cannot be read-only");
    if (d->verity && !d->read_only)
        return err_set(err, ERR_INVALID, "dm-verity requires a read-only disk");
    return d->mount_path[0] ? path_check_run(d->mount_path, "MountPath", err) : 0;
}

/* --- finding --- */

struct slot {
    unsigned host, lun;
};

static int scan(void *arg, struct err *err)
{
    const struct slot *s = arg;
    int r = scsi_scan(SYS, s->host, s->lun);

    return r < 0 ? err_sys(err, -r, "scan SCSI host %u", s->host) : 0;
}

/* The kernel does not look for partitions on a disk without a capacity, nor when the capacity
 * comes. */
static int reread(void *arg, struct err *err)
{
    const struct slot *s = arg;
    AUTO_FREE char *disk = NULL;
    int r = scsi_reread(SYS, s->host, s->lun);

    if (r < 0 || (r = scsi_block(SYS, s->host, s->lun, 0, &disk)) < 0)
        return err_sys(err, -r, "rescan SCSI device %u:0:0:%u", s->host, s->lun);
    AUTO_FREE char *node = str_format("/dev/%s", disk);
    AUTO_FD int fd = open(node, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    return fd < 0 || ioctl(fd, BLKRRPART) < 0 ? err_sys(err, errno, "read partitions of %s", node)
                                              : 0;
}

/* How far it has come. */
struct sight {
    unsigned host;
    bool has_host, has_disk; /* which may lack the partition that was asked for */
    bool has_capacity;
    uint64_t blank; /* ns with the disk but without its capacity */
};

/* The device's node exists and its driver answers. */
static bool look(const struct storage_disk *d, struct sight *at, char **ret_node)
{
    AUTO_FREE char *disk = NULL, *name = NULL;

    at->has_host = scsi_host(SYS, d->controller, &at->host) == 0;
    at->has_disk = at->has_host && scsi_block(SYS, at->host, d->lun, 0, &disk) == 0;
    at->has_capacity = at->has_disk &&
                       (scsi_has_capacity(SYS, at->host, d->lun, disk) || at->blank >= CAPACITY_NS);
    if (!at->has_capacity || scsi_block(SYS, at->host, d->lun, d->partition, &name) < 0)
        return false;
    AUTO_FREE char *node = str_format("/dev/%s", name);
    if (access(node, F_OK) < 0)
        return false;
    *ret_node = TAKE_PTR(node);
    return true;
}

/* What is asked about a disk, or done to it. */
struct work {
    const char *node;
    const char *type; /* out: of the file system found, static; NULL: none */
    bool empty;       /* out */
};

static int probe(void *arg, struct err *err)
{
    const char *node = ((struct work *)arg)->node;
    AUTO_FD int fd = open(node, O_RDONLY | O_NONBLOCK | O_CLOEXEC);

    return fd < 0 ? err_sys(err, errno, "open %s", node) : 0;
}

/* Opens the disk, because its node appears before it is ready. 1: not yet. */
static int try_disk(struct ctx *ctx, const struct storage_disk *d, struct sight *at,
                    char **ret_node, struct err *err)
{
    AUTO_FREE char *node = NULL;

    if (!look(d, at, &node))
        return 1;
    if (OFFLOAD(ctx, probe, &(struct work){ node }, 1, NULL, "disk to be opened", err) < 0)
        return err->sys == ENXIO || err->sys == ENOENT ? 1 : -1;
    *ret_node = TAKE_PTR(node);
    return 0;
}

/* The kernel's events come before nodes and partitions exist, and can be lost. Looking every 10 ms,
 * for a bounded time, is simpler and cheap. */
static int find(struct ctx *ctx, struct storage *s, const struct storage_disk *d, char **ret_node,
                struct err *err)
{
    struct ctx bounded = ctx_with_timeout(ctx, APPEAR_NS);
    struct sight at = { 0 };
    uint64_t waited = 0, without = 0; /* all in all; and with the disk but not the partition */
    int r;

    if (storage_load(ctx, s, disk_modules, err) < 0)
        return -1;
    while ((r = try_disk(&bounded, d, &at, ret_node, err)) > 0) {
        struct err ignored = ERR_INIT;
        struct slot slot = { at.host, d->lun };

        if (at.has_host && !at.has_disk && waited == SCAN_AFTER_NS)
            (void)OFFLOAD(&bounded, scan, &slot, 0, NULL, "SCSI scan", &ignored);
        if (at.has_disk && !at.has_capacity) {
            at.blank += LOOK_NS;
            (void)OFFLOAD(&bounded, reread, &slot, 0, NULL, "SCSI rescan", &ignored);
        }
        if (at.has_capacity && d->partition && (without += LOOK_NS) > PARTITION_NS)
            return err_because(err, REASON_DISK_NO_FILESYSTEM, ERR_INVALID,
                               "disk %u:%u has no partition %llu", d->controller, d->lun,
                               (unsigned long long)d->partition);
        if (fiber_sleep(&bounded, LOOK_NS, err) < 0) {
            if (err->code != ERR_DEADLINE)
                return -1;
            return err_because(err, REASON_DISK_FAILED, ERR_UNAVAILABLE,
                               "disk %u:%u%s did not appear", d->controller, d->lun,
                               at.has_host ? "" : " and its controller");
        }
        waited += LOOK_NS;
    }
    return r;
}

/* --- file system --- */

static int detect(void *arg, struct err *err)
{
    struct work *w = arg;
    int r = blockfs_of(w->node, &w->type);

    if (r == 0 && !w->type)
        r = blockfs_is_empty(w->node, &w->empty);
    return r < 0 ? err_sys(err, -r, "read %s", w->node) : 0;
}

static int format(void *arg, struct err *err)
{
    const char *node = ((struct work *)arg)->node;
    AUTO_FD int fd = open(node, O_RDWR | O_EXCL | O_CLOEXEC); /* not while it is mounted */
    uint64_t bytes = 0;
    uint8_t uuid[16];

    if (fd < 0 || ioctl(fd, BLKGETSIZE64, &bytes) < 0)
        return err_sys(err, errno, "open %s", node);
    rand_bytes(uuid, sizeof(uuid));
    uuid[6] = (uuid[6] & 0x0f) | 0x40; /* version 4: random */
    uuid[8] = (uuid[8] & 0x3f) | 0x80;
    return mkext4(fd, bytes, uuid, err) < 0 ? err_wrap(err, "format %s", node) : 0;
}

/* Unlike the original, refuses to overwrite existing data. */
static int make_type(struct ctx *ctx, const struct storage_disk *d, struct work *w,
                     const char *type, struct err *err)
{
    struct ctx bounded = ctx_with_timeout(ctx, MKFS_NS);

    if (strcmp(type, "ext4") != 0)
        return err_set(err, ERR_INVALID,
                       "cannot format a disk with \"%.32s\": only ext4 is supported", type);
    if (!w->empty)
        return err_because(
            err, REASON_DISK_NOT_EMPTY, ERR_INVALID,
            "cannot format disk %u:%u (%s) with ext4: it holds other data; wipe it first",
            d->controller, d->lun, w->node);
    log_info(ctx, "formatting a disk", F_STR("device", w->node));
    return OFFLOAD(&bounded, format, w, 1, NULL, "disk to be formatted", err);
}

/* The type to mount with; *ret is borrowed from d or static. */
static int choose_type(struct ctx *ctx, const struct storage_disk *d, const char *node,
                       const char **ret, struct err *err)
{
    /* With a new key the disk reads as noise, and one in 65536 of those looks like ext4. */
    struct work w = { .node = node, .empty = d->encrypted };
    bool wanted = d->filesystem && d->filesystem[0];

    if (!d->encrypted && OFFLOAD(ctx, detect, &w, 1, NULL, "disk to be read", err) < 0)
        return -1;
    if (!wanted && !w.type && !d->ensure_filesystem)
        return err_because(err, REASON_DISK_NO_FILESYSTEM, ERR_INVALID,
                           "disk %u:%u (%s) holds no file system that the guest supports",
                           d->controller, d->lun, node);
    *ret = wanted ? d->filesystem : w.type ? w.type : "ext4";
    if (wanted && !d->ensure_filesystem && (w.type || w.empty) && !str_eq(w.type, *ret))
        return err_because(err, REASON_DISK_NO_FILESYSTEM, ERR_INVALID,
                           "disk %u:%u (%s) holds %s, not %.32s", d->controller, d->lun, node,
                           w.type ? w.type : "no file system", *ret);
    if (!d->ensure_filesystem || str_eq(w.type, *ret))
        return 0;
    if (d->read_only)
        return err_because(err, REASON_DISK_NO_FILESYSTEM, ERR_INVALID,
                           "cannot format disk %u:%u with %s: it is read-only", d->controller,
                           d->lun, *ret);
    return make_type(ctx, d, &w, *ret, err);
}

/* No journal or log is replayed, because other VMs may read the same disk. Lazy inode tables need
 * no initialization, because the kernel does not read unused ones. Prefetching bitmaps would cost a
 * thread. */
static const char *mount_data(const char *type, bool read_only)
{
    if (strcmp(type, "ext4") == 0)
        return read_only ? "noload" : "noinit_itable,no_prefetch_block_bitmaps";
    if (strcmp(type, "xfs") == 0) /* all snapshots of one base have its UUID */
        return read_only ? "norecovery,nouuid" : "nouuid";
    return "";
}

/* The mount options other than propagation. Unknown ones are ignored, as in the original. Caller
 * frees. */
static char *read_options(const struct storage_disk *d, const char *type, unsigned long *flags)
{
    struct sbuf data = { 0 };

    sbuf_adds(&data, mount_data(type, d->read_only));
    for (const char *const *o = d->options; o && *o; o++) {
        unsigned long more = 0;
        int r = volume_option(*o, &more);

        if (r > 0)
            sbuf_addf(&data, "%s%s", data.len ? "," : "", *o);
        else if (r == 0)
            *flags |= more;
    }
    return sbuf_take(&data);
}

static unsigned long propagation(const char *word)
{
    static const struct {
        const char *word;
        unsigned long flags;
    } words[] = {
        { "shared", MS_SHARED },         { "rshared", MS_SHARED | MS_REC },
        { "slave", MS_SLAVE },           { "rslave", MS_SLAVE | MS_REC },
        { "private", MS_PRIVATE },       { "rprivate", MS_PRIVATE | MS_REC },
        { "unbindable", MS_UNBINDABLE }, { "runbindable", MS_UNBINDABLE | MS_REC },
    };

    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        if (strcmp(words[i].word, word) == 0)
            return words[i].flags;
    return 0;
}

struct mounting {
    const char *node, *target, *type, *data, *fs_group_policy;
    unsigned long flags;
    uint32_t fs_group;
};

static int mount_disk(void *arg, struct err *err)
{
    const struct mounting *m = arg;

    if (dir_need(m->target, PATH_PASSABLE, err) < 0)
        return -1;
    if (mnt_mount(m->node, m->target, m->type, m->flags, m->data, err) < 0) {
        (void)rmdir(m->target); /* fails if it is not empty, so not new */
        return -1;
    }
    if (m->fs_group_policy[0] && !(m->flags & MS_RDONLY) &&
        fsgroup_apply(m->target, m->fs_group, str_eq(m->fs_group_policy, "OnRootMismatch"), err) <
            0) {
        struct err ignored = ERR_INIT;

        (void)mnt_unmount(m->target, &ignored); /* a removal does so again */
        return -1;
    }
    return 0;
}

static int add_mount(struct ctx *ctx, struct storage *s, const struct storage_disk *d,
                     const char *node, struct err *err)
{
    const char *type = NULL;

    if (choose_type(ctx, d, node, &type, err) < 0)
        return -1;
    if (!path_name_ok(type))
        return err_set(err, ERR_INVALID, "unsupported file system \"%.32s\"", type);
    /* The kernel cannot load the quota module of an ext4 by itself. */
    const char *const modules[] = { type, strcmp(type, "ext4") == 0 ? "quota_v2" : NULL, NULL };
    if (storage_load(ctx, s, modules, err) < 0)
        return -1;
    unsigned long mount_flags = d->read_only ? MS_RDONLY : 0;
    AUTO_FREE char *data = read_options(d, type, &mount_flags);
    struct mounting m = {
        node,        d->mount_path, type, data, d->fs_group_policy ? d->fs_group_policy : "",
        mount_flags, d->fs_group
    };
    if (OFFLOAD(ctx, mount_disk, &m, 5, NULL, "disk to be mounted", err) < 0)
        return -1;
    for (const char *const *o = d->options; o && *o; o++) {
        unsigned long flags = propagation(*o);
        if (flags && mount(NULL, d->mount_path, NULL, flags, NULL) < 0)
            log_warn(ctx, "cannot set mount propagation; continuing without it",
                     F_STR(LK_UVM_PATH, d->mount_path), F_STR(LK_ERROR, strerror(errno)));
    }
    return 0;
}

static int add_symlink(const struct storage_disk *d, const char *node, struct err *err)
{
    AUTO_FREE char *parent = path_parent(d->mount_path);

    if (dir_need(parent, PATH_PASSABLE, err) < 0)
        return -1;
    if (symlink(node, d->mount_path) < 0)
        return err_sys(err, errno, "make symlink %s to %s", d->mount_path, node);
    return 0;
}

int storage_add_disk(struct ctx *ctx, struct storage *s, const struct storage_disk *d,
                     struct err *err)
{
    AUTO_FREE char *node = NULL;

    if (check(d, err) < 0)
        return -1;
    if (!d->mount_path[0])
        return 0;

    AUTO(storage_let_go) struct storage_hold *held = storage_hold(ctx, s, d->mount_path, err);
    if (!held)
        return -1;
    if (find(ctx, s, d, &node, err) < 0 || storage_dm_add(ctx, s, d, &node, err) < 0)
        return -1;
    int r = d->block_device ? add_symlink(d, node, err) : add_mount(ctx, s, d, node, err);
    if (r < 0 && (d->verity || d->encrypted)) {
        struct err ignored = ERR_INIT;

        (void)storage_dm_remove(ctx, d, &ignored); /* a removal does so again */
    }
    if (r == 0)
        log_info(ctx, "disk mounted", F_U(LK_CONTROLLER, d->controller), F_U(LK_LUN, d->lun),
                 F_STR("device", node), F_STR(LK_UVM_PATH, d->mount_path));
    return r;
}

int storage_remove_disk(struct ctx *ctx, struct storage *s, const struct storage_disk *d,
                        struct err *err)
{
    if (check(d, err) < 0)
        return -1;
    if (!d->mount_path[0])
        return 0;

    AUTO(storage_let_go) struct storage_hold *held = storage_hold(ctx, s, d->mount_path, err);
    if (!held)
        return -1;
    if (!d->block_device && storage_unmount(ctx, d->mount_path, err) < 0)
        return -1;
    if (d->block_device && unlink(d->mount_path) < 0 && errno != ENOENT)
        return err_sys(err, errno, "remove %s", d->mount_path);
    return storage_dm_remove(ctx, d, err);
}

static int forget(void *arg, struct err *err)
{
    const struct slot *s = arg;
    int r = scsi_forget(SYS, s->host, s->lun);

    return r < 0 ? err_sys(err, -r, "remove SCSI device %u:0:0:%u", s->host, s->lun) : 0;
}

int storage_eject_disk(struct ctx *ctx, struct storage *s, unsigned controller, unsigned lun,
                       struct err *err)
{
    struct slot slot = { 0, lun };

    if (controller >= SCSI_CONTROLLERS)
        return err_set(err, ERR_INVALID, "invalid SCSI controller %u: must be below %d", controller,
                       SCSI_CONTROLLERS);
    int r = scsi_host(SYS, controller, &slot.host);
    if (r == -ENXIO) /* no controller, no disk */
        return 0;
    if (r < 0)
        return err_sys(err, -r, "SCSI controller %u", controller);
    return OFFLOAD(ctx, forget, &slot, 0, NULL, "disk to be ejected", err);
}
