/* rootfs.c - of an overlay the directories are opened first, each by its own name, and overlay then
 * gets the numbers of their descriptors, relative to /proc/self/fd: no path is too long, five
 * hundred layers fit into the one page that mount(2) takes, no byte in a name needs quoting, and a
 * missing directory is named in the error instead of a bare ENOENT. */
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/loop.h"
#include "base/offload.h"
#include "host/files/layers.h"
#include "host/files/rootfs_priv.h"
#include "host/files/tree_priv.h"
#include "host/jail/mountinfo.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define PAGE_BYTES 4096 /* mount(2)'s */
#define MOUNTINFO_MAX (16u << 20)
#define LOOP_MAJOR 7
#define PATH_BYTES 8192

struct job {
    const char *layer_dir;
    struct layers_opts layers;
    uint64_t now_ns;
    struct rootfs_plan plan;
    struct rootfs out;
};

void rootfs_release(struct rootfs *r)
{
    fd_close_later(r->tree);
    for (size_t i = 0; i < r->n_disks; i++) {
        fd_close_later(r->disks[i].fd);
        free(r->disks[i].path);
        free(r->disks[i].root_hash);
        free(r->disks[i].image_key);
    }
    free(r->disks);
    idmap_release(&r->ids);
    strv_release(&r->unbuilt);
    free(r->why_shared);
    *r = (struct rootfs){ .tree = -1 };
}

static void drop(void *arg)
{
    struct job *j = arg;

    rootfs_release(&j->out);
    rootfs_plan_release(&j->plan);
}

/* --- in the thread: images and devices --- */

static int check_kind(const char *path, bool device, const struct stat *st, struct err *err)
{
    if (S_ISREG(st->st_mode) || (S_ISBLK(st->st_mode) && device))
        return 0;
    if (S_ISBLK(st->st_mode))
        return err_because(
            err, REASON_LAYER_CHANGED, ERR_INVALID,
            "%s is a device where the image file of a layer is expected; a device is "
            "taken only if the mount names it below /dev and has no option loop",
            path);
    return err_because(err, REASON_LAYER_CHANGED, ERR_INVALID,
                       "%s is %s, not the image file of a layer", path,
                       S_ISDIR(st->st_mode)    ? "a directory"
                       : S_ISLNK(st->st_mode)  ? "a symbolic link"
                       : S_ISFIFO(st->st_mode) ? "a fifo"
                                               : "a socket or a character device");
}

/* device: may be one (named below /dev). Looked at first, then opened by what was looked at:
 * opening a fifo or a tape would do things. */
static int open_disk(const char *path, bool device, struct rootfs_disk *d, struct err *err)
{
    /* /dev/mapper/x is a symlink to /dev/dm-3; elsewhere symlinks are not followed. */
    bool in_dev = str_starts(path, "/dev/") && !strstr(path, "/../");
    AUTO_FD int seen = open(path, O_PATH | O_CLOEXEC | (in_dev ? 0 : O_NOFOLLOW));
    struct stat st;

    if (path[0] != '/')
        return err_set(err, ERR_INVALID, "\"%s\" is not an absolute path", path);
    if (seen < 0)
        return err_sys(err, errno, "open %s", path);
    if (fstat(seen, &st) < 0)
        return err_sys(err, errno, "look at %s", path);
    if (check_kind(path, device && in_dev, &st, err) < 0)
        return -1;
    AUTO_FREE char *again = str_format("/proc/self/fd/%d", seen);
    d->fd = open(again, (d->writable ? O_RDWR : O_RDONLY) | O_NONBLOCK | O_CLOEXEC);
    if (d->fd < 0)
        return err_sys(err, errno, "open %s for %s", path, d->writable ? "writing" : "reading");
    d->path = str_dup(path);
    return 0;
}

/* --- what is mounted on a directory --- */

/* The line of mountinfo with this id. Caller frees; NULL: none. */
static char *find_line(const char *table, uint64_t id)
{
    AUTO_FREE char *begin = str_format("%llu ", (unsigned long long)id);

    for (const char *line = table; *line; line += strcspn(line, "\n"), line += *line == '\n')
        if (str_starts(line, begin))
            return str_ndup(line, strcspn(line, "\n"));
    return NULL;
}

/* A loop device's file, by its name in /sys, if that still is the same file. */
static int open_loop(const char *device, struct rootfs_disk *d, struct err *err)
{
    AUTO_FD int fd = open(device, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    struct loop_info64 info;
    struct stat st;

    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISBLK(st.st_mode) || major(st.st_rdev) != LOOP_MAJOR ||
        ioctl(fd, LOOP_GET_STATUS64, &info) < 0 || info.lo_offset || info.lo_sizelimit)
        return err_set(err, ERR_NOT_FOUND, "%s is not a loop device of a whole file", device);
    AUTO_FREE char *text = file_text(PATH_BYTES, "/sys/dev/block/%u:%u/loop/backing_file",
                                     major(st.st_rdev), minor(st.st_rdev));
    if (!text)
        return err_set(err, ERR_NOT_FOUND, "%s has no file", device);
    text[strcspn(text, "\n")] = '\0';
    if (open_disk(text, false, d, err) < 0)
        return -1;
    if (fstat(d->fd, &st) < 0 || st.st_dev != info.lo_device || st.st_ino != info.lo_inode)
        return err_set(err, ERR_NOT_FOUND, "%s is not the file of %s any more", text, device);
    return 0;
}

/* 1, 0 or -1 as find_images() does. */
static int find_image(const char *dir, const char *table, struct rootfs_disk *d, struct err *err)
{
    AUTO_FD int fd = tree_open_path(dir, true, err);
    struct err no = ERR_INIT;
    struct mountinfo m;
    struct statx st;

    if (fd < 0)
        return -1;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_MNT_ID, &st) < 0 || !(st.stx_mask & STATX_MNT_ID) ||
        !(st.stx_attributes & STATX_ATTR_MOUNT_ROOT))
        return 0;
    AUTO_FREE char *line = find_line(table, st.stx_mnt_id);
    if (!line || !mountinfo_parse(line, &m))
        return 0;
    d->filesystem = rootfs_filesystem(m.type);
    /* Its root, not a directory of it; and mounted read-only. */
    if (!str_eq(m.root, "/") || !(str_eq(m.options, "ro") || str_starts(m.options, "ro,")) ||
        !d->filesystem || m.source[0] != '/')
        return 0;
    return (str_starts(m.source, "/dev/loop") ? open_loop(m.source, d, &no)
                                              : open_disk(m.source, false, d, &no)) == 0;
}

/* The images behind directories that are roots of mounts (containerd 2.1 mounts erofs layers
 * itself). 1: all were found; 0: not all, and nothing is in r; -1: a directory is missing. */
static int find_images(const struct strv *dirs, struct rootfs *r, struct err *err)
{
    AUTO_FREE char *table = file_text(MOUNTINFO_MAX, "/proc/thread-self/mountinfo");
    int found = table && dirs->n <= ROOTFS_IMAGES_MAX;

    r->disks = mem_zalloc((dirs->n + 1) * sizeof(*r->disks));
    for (size_t i = 0; i < dirs->n && found == 1; i++) {
        r->disks[i].fd = -1;
        found = find_image(dirs->v[i], table, &r->disks[i], err);
        r->n_disks = i + 1;
    }
    if (found != 1)
        rootfs_release(r);
    return found;
}

/* --- images that were made of directories --- */

/* 1: each has one, and they are in r; 0: not all. */
static int find_built(const struct job *j, const struct strv *dirs, struct rootfs *r)
{
    struct layers_opts o = j->layers;
    bool found = true;
    uint64_t entries = 0;

    if (!j->layer_dir || dirs->n > ROOTFS_IMAGES_MAX)
        return 0;
    o.dir = j->layer_dir;
    r->disks = mem_zalloc((dirs->n + 1) * sizeof(*r->disks));
    for (size_t i = 0; i < dirs->n; i++) {
        struct layers_image image = { .fd = -1 };
        struct err err = ERR_INIT;

        if (layers_open(&o, dirs->v[i], &image, &err) < 0) {
            found = false;
            if (layers_wanted(&o, dirs->v[i], j->now_ns))
                strv_add(&r->unbuilt, dirs->v[i]);
            free(r->why_shared);
            r->why_shared = str_dup(err.msg);
        }
        r->disks[r->n_disks++] = (struct rootfs_disk){
            .fd = TAKE_FD(image.fd),
            .path = TAKE_PTR(image.path),
            .filesystem = "erofs",
            .root_hash = image.info.root_hash[0] ? str_dup(image.info.root_hash) : NULL,
            .image_key = str_dup(image.info.key)
        };
        entries += image.info.entries;
        layers_close(&image);
    }
    /* A disk takes longer to attach than a share, so for few files it is not worth it. */
    if (found && entries < dirs->n * o.worth) {
        found = false;
        r->why_shared =
            str_format("%zu layers have only %llu files", dirs->n, (unsigned long long)entries);
    }
    if (!found) {
        struct rootfs shared = { .tree = -1,
                                 .unbuilt = r->unbuilt,
                                 .why_shared = TAKE_PTR(r->why_shared) };

        r->unbuilt = (struct strv){ 0 };
        rootfs_release(r);
        *r = shared;
    }
    return found;
}

/* --- in the thread: trees --- */

struct dirs {
    int fds[ROOTFS_LAYERS_MAX + 3];
    size_t n;
};

static void dirs_release_auto(struct dirs *d)
{
    for (size_t i = 0; i < d->n; i++)
        fd_close(d->fds[i]);
}

/* Opens it and writes its number. */
static int add_dir(struct dirs *d, const char *path, struct sbuf *text, struct err *err)
{
    int fd = tree_open_path(path, true, err);

    if (fd < 0)
        return -1;
    d->fds[d->n++] = fd;
    sbuf_addf(text, "%d", fd);
    return 0;
}

/* The same of a lower one. With other ids it is a mount of its own, which must be in this
 * namespace: it covers its directory, for us alone. */
static int add_lower(int userns, struct dirs *d, const char *path, struct sbuf *text,
                     struct err *err)
{
    AUTO_FD int tree = -1;

    if (userns < 0)
        return add_dir(d, path, text, err);
    AUTO_FD int fd = tree_open_path(path, true, err);
    if (fd < 0 || (tree = tree_clone(fd, false, path, err)) < 0 ||
        idmap_mount(tree, userns, false, path, err) < 0)
        return -1;
    if (move_mount(tree, "", fd, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) < 0)
        return err_sys(err, errno, "mount %s", path);
    sbuf_addf(text, "%d", tree);
    d->fds[d->n++] = TAKE_FD(tree);
    return 0;
}

/* Without writing, the upper directory is one more lower one: the topmost. */
static int overlay_options(const struct job *j, struct dirs *d, struct sbuf *text, struct err *err)
{
    bool as_lower = j->plan.upper && !j->plan.writable;
    AUTO_FD int userns = j->plan.ids.uid ? idmap_userns(&j->plan.ids, err) : -1;

    if (j->plan.ids.uid && userns < 0)
        return -1;
    sbuf_adds(text, "lowerdir=");
    if (as_lower && add_dir(d, j->plan.upper, text, err) < 0)
        return -1;
    for (size_t i = 0; i < j->plan.lower.n; i++) {
        if (i > 0 || as_lower)
            sbuf_addc(text, ':');
        if (add_lower(userns, d, j->plan.lower.v[i], text, err) < 0)
            return -1;
    }
    if (j->plan.upper && j->plan.writable) {
        sbuf_adds(text, ",upperdir=");
        if (add_dir(d, j->plan.upper, text, err) < 0)
            return -1;
        sbuf_adds(text, ",workdir=");
        if (add_dir(d, j->plan.work, text, err) < 0)
            return -1;
    }
    sbuf_adds(text, j->plan.other.data ? j->plan.other.data : "");
    if (text->len >= PAGE_BYTES)
        return err_set(err, ERR_EXHAUSTED, "overlay of %zu layers: its options exceed %d bytes",
                       j->plan.lower.n, PAGE_BYTES);
    return 0;
}

static int open_overlay(struct job *j, struct err *err)
{
    AUTO(dirs_release) struct dirs d = { .n = 0 };
    AUTO(sbuf_release) struct sbuf text = { 0 };

    /* The kernel takes layers only from the namespace it mounts in: first there, then open. */
    if (tree_enter_private(err) < 0 || overlay_options(j, &d, &text, err) < 0)
        return -1;
    j->out.mapped = true;
    /* The kernel refuses an overlay of a single lower directory without an upper one. */
    if (d.n == 1) {
        j->out.tree = tree_clone(d.fds[0], false, j->plan.lower.v[0], err);
        return j->out.tree < 0 ? -1 : 0;
    }
    if (chdir("/proc/self/fd") < 0)
        return err_sys(err, errno, "change to /proc/self/fd");
    if (mount("overlay", TREE_SPOT, "overlay", j->plan.writable ? 0 : MS_RDONLY, text.data) < 0)
        return err_sys(err, errno, "mount overlay of %zu layers (%s; the kernel's log says more)",
                       j->plan.lower.n + (j->plan.upper ? 1 : 0),
                       j->plan.other.data ? j->plan.other.data + 1 : "no options");
    AUTO_FD int top = open(TREE_SPOT, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (top < 0)
        return err_sys(err, errno, "open the overlay");
    j->out.tree = tree_clone(top, false, "the overlay", err);
    return j->out.tree < 0 ? -1 : 0;
}

static int open_dir(struct job *j, struct err *err)
{
    AUTO_FD int fd = tree_open_path(j->plan.dir, true, err);

    if (fd < 0)
        return -1;
    if (j->plan.view && !j->plan.as_tree) {
        AUTO(strv_release) struct strv dirs = { 0 };

        strv_add(&dirs, j->plan.dir);
        j->out.has_tree = find_built(j, &dirs, &j->out) == 1;
        if (j->out.has_tree)
            return 0;
    }
    j->out.tree = tree_clone(fd, j->plan.recursive, j->plan.dir, err);
    return j->out.tree < 0 ? -1 : 0;
}

static bool is_empty(const char *path)
{
    DIR *d = opendir(path);
    const struct dirent *e;
    bool empty = true;

    if (!d)
        return false;
    while (empty && (e = readdir(d)))
        empty = str_eq(e->d_name, ".") || str_eq(e->d_name, "..");
    closedir(d);
    return empty;
}

/* Files in the upper directory were written by a process that had the images mounted. */
static int open_images(struct job *j, struct err *err)
{
    const struct rootfs_plan *plan = &j->plan;
    size_t n = plan->images.n;

    if (plan->upper && !is_empty(plan->upper))
        return err_set(err, ERR_STATE,
                       "the upper directory %s is missing or has files, which cannot be seen in "
                       "the VM above layers that are images",
                       plan->upper);
    j->out.disks = mem_zalloc(n * sizeof(*j->out.disks));
    for (size_t i = 0; i < n; i++) {
        j->out.disks[i] = (struct rootfs_disk){ .fd = -1,
                                                .filesystem = plan->filesystems[i],
                                                .writable = plan->writable };
        j->out.n_disks = i + 1;
        if (open_disk(plan->images.v[i], plan->device, &j->out.disks[i], err) < 0 ||
            (plan->verity.v[i][0] &&
             rootfs_verity_read(plan->verity.v[i], &j->out.disks[i], err) < 0))
            return n == 1 ? -1 : err_wrap(err, "layer %zu of %zu from the top", i + 1, n);
    }
    return 0;
}

/* An upper directory with something in it cannot be a layer in the guest: its marks would not get
 * through the share. */
static bool may_be_disks(const struct job *j)
{
    return !j->plan.as_tree && !j->plan.writable && j->plan.plain &&
           (!j->plan.upper || is_empty(j->plan.upper));
}

static int open_layers(struct job *j, struct err *err)
{
    int found = 0;

    if (may_be_disks(j))
        found = find_images(&j->plan.lower, &j->out, err);
    if (found == 0 && may_be_disks(j))
        found = find_built(j, &j->plan.lower, &j->out);
    j->out.has_tree = found == 1;
    return found == 0 ? open_overlay(j, err) : found == 1 ? 0 : -1;
}

static int open_in_thread(void *arg, struct err *err)
{
    struct job *j = arg;

    if (j->plan.images.n)
        return open_images(j, err);
    if ((j->plan.dir ? open_dir(j, err) : open_layers(j, err)) < 0)
        return -1;
    j->out.tree_writable = j->plan.writable && j->out.tree >= 0;
    if (j->plan.writable || j->out.tree < 0)
        return 0;
    return tree_set_read_only(j->out.tree, true, "the root file system", err);
}

int rootfs_open(struct ctx *ctx, const struct rootfs_mount *mounts, size_t n, const char *root_path,
                unsigned how, const struct layers_opts *layers, struct rootfs *ret, struct err *err)
{
    struct job j = { .layer_dir = layers ? layers->dir : NULL,
                     .now_ns = loop_wall(ctx->loop),
                     .plan = { .must_write = how & ROOTFS_WRITABLE,
                               .writable = how & (ROOTFS_WRITABLE | ROOTFS_KEPT),
                               .as_tree = how & ROOTFS_TREE,
                               .plain = true },
                     .out = { .tree = -1 } };
    if (layers)
        j.layers = *layers;
    int r = rootfs_plan_read(&j.plan, mounts, n, root_path, err);

    if (r < 0)
        drop(&j);
    else
        r = OFFLOAD(ctx, open_in_thread, &j, 1, drop, "open a root file system", err);
    if (r < 0)
        return err_wrap_because(err, REASON_ROOTFS_FAILED, "root file system");
    *ret = j.out;
    ret->ids = j.plan.ids;
    j.plan.ids = (struct idmap){ 0 };
    rootfs_plan_release(&j.plan);
    return 0;
}
