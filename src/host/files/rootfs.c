/* rootfs.c - of an overlay the directories are opened first, each by its own name, and overlay then
 * gets the numbers of their descriptors, relative to /proc/self/fd: no path is too long, five
 * hundred layers fit into the one page that mount(2) takes, no byte in a name needs quoting, and a
 * missing directory is told by name instead of a bare ENOENT. */
#include "host/files/rootfs.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/offload.h"
#include "base/str.h"
#include "host/files/rootfs_priv.h"
#include "host/files/tree_priv.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#define LAYERS_MAX 500       /* overlay's own limit */
#define PAGE_BYTES 4096      /* mount(2)'s */
#define MOUNT_TEXT_MAX 65536 /* of one option of a list from outside */

struct job {
    /* bind, or the spec's directory: */
    char *dir;
    bool recursive;
    /* overlay: */
    struct strv lower;
    char *upper, *work;
    struct sbuf other; /* ",name=value" … */
    bool plain;        /* other says nothing that the guest's overlay would have to know */
    /* disk: */
    char *image;
    const char *filesystem;
    bool device;
    /* disks: */
    struct rootfs_typed typed;

    bool writable;
    bool must_write; /* or be refused */
    bool as_tree;    /* though images are behind it */
    struct rootfs out;
};

void rootfs_release(struct rootfs *r)
{
    fd_close_later(r->tree);
    for (size_t i = 0; i < r->n_disks; i++)
        rootfs_disk_release(&r->disks[i]);
    free(r->disks);
    *r = (struct rootfs){ .tree = -1 };
}

static void job_free(void *arg)
{
    struct job *j = arg;

    if (!j)
        return;
    rootfs_release(&j->out);
    free(j->dir);
    free(j->image);
    strv_release(&j->lower);
    free(j->upper);
    free(j->work);
    sbuf_release(&j->other);
    rootfs_typed_release(&j->typed);
    free(j);
}

/* --- the list --- */

/* As the kernel splits: ':' ends a name, a backslash takes the next character as it is. */
static int split_lower(struct job *j, const char *text, struct err *err)
{
    AUTO(sbuf_release) struct sbuf name = { 0 };

    for (const char *p = text;; p++) {
        if (*p && *p != ':') {
            if (*p == '\\' && p[1])
                p++;
            sbuf_addc(&name, *p);
            continue;
        }
        if (name.len == 0)
            return err_set(err, ERR_UNIMPLEMENTED,
                           "overlay option lowerdir=%s has an empty name (data-only layers are not "
                           "supported)",
                           text);
        if (j->lower.n == LAYERS_MAX)
            return err_set(err, ERR_EXHAUSTED, "overlay with more than %d layers", LAYERS_MAX);
        AUTO_FREE char *dir = sbuf_take(&name);
        strv_add(&j->lower, dir);
        if (!*p)
            return 0;
    }
}

static bool is_one_of(const char *word, size_t len, const char *const *list)
{
    for (; *list; list++)
        if (strlen(*list) == len && memcmp(*list, word, len) == 0)
            return true;
    return false;
}

bool rootfs_is_context(const char *o)
{
    static const char *const words[] = { "context", "fscontext", "defcontext", "rootcontext",
                                         NULL };

    return is_one_of(o, strcspn(o, "="), words);
}

static int add_overlay_option(struct job *j, const char *o, struct err *err)
{
    static const char *const passed[] = { "index",   "metacopy",  "redirect_dir", "xino",
                                          "uuid",    "userxattr", "nfs_export",   "verity",
                                          "context", "fscontext", "defcontext",   "rootcontext",
                                          NULL };
    /* volatile is about writing; the others are about the mount, and the share sets its own. */
    static const char *const ignored[] = { "volatile", "rw",    "ro",       "nosuid",  "nodev",
                                           "noexec",   "async", "relatime", "noatime", NULL };
    size_t len = strcspn(o, "=");

    if (is_one_of(o, len, ignored)) {
        if (str_eq(o, "volatile") && j->writable)
            sbuf_adds(&j->other, ",volatile");
        if (str_eq(o, "ro"))
            j->writable = false;
        return 0;
    }
    if (!is_one_of(o, len, passed))
        return err_set(err, ERR_INVALID, "overlay option \"%s\" is not known", o);
    sbuf_addf(&j->other, ",%s", o);
    j->plain = j->plain && (str_eq(o, "index=off") || rootfs_is_context(o));
    return 0;
}

static int read_overlay(struct job *j, const struct rootfs_mount *m, struct err *err)
{
    for (const char *const *o = m->options; o && *o; o++) {
        int r = 0;

        if (strlen(*o) > MOUNT_TEXT_MAX)
            return err_set(err, ERR_INVALID, "overlay with an option of %zu bytes", strlen(*o));
        if (str_starts(*o, "lowerdir=")) {
            r = split_lower(j, *o + 9, err);
        } else if (str_starts(*o, "upperdir=")) {
            free(j->upper);
            j->upper = str_dup(*o + 9);
        } else if (str_starts(*o, "workdir=")) {
            free(j->work);
            j->work = str_dup(*o + 8);
        } else if (str_starts(*o, "uidmap=") || str_starts(*o, "gidmap=")) {
            r = err_set(err, ERR_UNIMPLEMENTED,
                        "id-mapped root file systems (%s) are not supported: containers in a VM "
                        "need no user namespace on the host",
                        *o);
        } else {
            r = add_overlay_option(j, *o, err);
        }
        if (r < 0)
            return -1;
    }
    if (j->lower.n == 0)
        return err_set(err, ERR_INVALID, "overlay without lowerdir");
    if (!j->upper)
        j->writable = false; /* nowhere to write to */
    if (j->upper && j->writable && !j->work)
        return err_set(err, ERR_INVALID, "overlay with upperdir but without workdir");
    return 0;
}

static int read_bind(struct job *j, const struct rootfs_mount *m, struct err *err)
{
    if (!m->source || !*m->source)
        return err_set(err, ERR_INVALID, "bind mount without a source");
    j->dir = str_dup(m->source);
    for (const char *const *o = m->options; o && *o; o++) {
        if (str_eq(*o, "ro"))
            j->writable = false;
        else if (str_eq(*o, "rbind"))
            j->recursive = true;
        else if (str_starts(*o, "uidmap=") || str_starts(*o, "gidmap="))
            return err_set(err, ERR_UNIMPLEMENTED,
                           "id-mapped root file systems (%s) are not supported", *o);
    }
    return 0;
}

/* How the host would mount it does not matter, unless leaving it out would change what is seen. */
bool rootfs_disk_option(const char *o, bool *writable, bool *device)
{
    static const char *const ignored[] = { "rw",        "loop",     "direct-io",  "discard",
                                           "nodiscard", "nouuid",   "noatime",    "relatime",
                                           "async",     "defaults", "norecovery", "noload",
                                           NULL };

    if (str_eq(o, "ro"))
        *writable = false;
    else if (str_eq(o, "loop"))
        *device = false;
    else
        return is_one_of(o, strlen(o), ignored) || rootfs_is_context(o);
    return true;
}

static int read_disk(struct job *j, const struct rootfs_mount *m, struct err *err)
{
    if (!m->source || !*m->source)
        return err_set(err, ERR_INVALID, "mount of type %s without a source", m->type);
    j->image = str_dup(m->source);
    j->filesystem = rootfs_filesystem(m->type);
    j->writable = str_eq(j->filesystem, "ext4") || str_eq(j->filesystem, "xfs");
    j->device = true;
    for (const char *const *o = m->options; o && *o; o++)
        if (!rootfs_disk_option(*o, &j->writable, &j->device))
            return err_set(err, ERR_INVALID, "option \"%s\" of %s %s is not supported", *o, m->type,
                           m->source);
    return 0;
}

/* There is no tree on the host that could be shared for writing. */
static int read_typed(struct job *j, const struct rootfs_mount *m, size_t n, struct err *err)
{
    if (j->must_write)
        return err_set(err, ERR_INVALID,
                       "rootfs = shared needs directories, and these are images; use the "
                       "overlayfs or native snapshotter");
    return rootfs_read_typed(m, n, &j->typed, err);
}

static int read_list(struct job *j, const struct rootfs_mount *m, size_t n, const char *root_path,
                     struct err *err)
{
    if (n == 0) {
        if (!root_path || !*root_path)
            return err_set(err, ERR_INVALID, "neither mounts nor a root path");
        j->dir = str_dup(root_path);
        j->recursive = true;
        return 0;
    }
    const char *type = m->type ? m->type : "";
    if (rootfs_is_typed(m, n))
        return read_typed(j, m, n, err);
    if (str_eq(type, "overlay"))
        return read_overlay(j, m, err);
    if (str_eq(type, "bind") || str_eq(type, "rbind")) {
        j->recursive = str_eq(type, "rbind");
        return read_bind(j, m, err);
    }
    if (rootfs_filesystem(type))
        return read_disk(j, m, err);
    return err_set(err, ERR_INVALID,
                   "mounts of type \"%s\" are not supported; use the overlayfs, native, blockfile "
                   "or erofs snapshotter",
                   type);
}

/* --- in the thread --- */

struct dirs {
    int fds[LAYERS_MAX + 3];
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

/* Without writing, the upper directory is one more lower one: the topmost. */
static int overlay_options(const struct job *j, struct dirs *d, struct sbuf *text, struct err *err)
{
    bool as_lower = j->upper && !j->writable;

    sbuf_adds(text, "lowerdir=");
    if (as_lower && add_dir(d, j->upper, text, err) < 0)
        return -1;
    for (size_t i = 0; i < j->lower.n; i++) {
        if (i > 0 || as_lower)
            sbuf_addc(text, ':');
        if (add_dir(d, j->lower.v[i], text, err) < 0)
            return -1;
    }
    if (j->upper && j->writable) {
        sbuf_adds(text, ",upperdir=");
        if (add_dir(d, j->upper, text, err) < 0)
            return -1;
        sbuf_adds(text, ",workdir=");
        if (add_dir(d, j->work, text, err) < 0)
            return -1;
    }
    sbuf_adds(text, j->other.data ? j->other.data : "");
    if (text->len >= PAGE_BYTES)
        return err_set(err, ERR_EXHAUSTED, "overlay of %zu layers: its options exceed %d bytes",
                       j->lower.n, PAGE_BYTES);
    return 0;
}

static int open_overlay(struct job *j, struct err *err)
{
    AUTO(dirs_release) struct dirs d = { .n = 0 };
    AUTO(sbuf_release) struct sbuf text = { 0 };

    /* The kernel takes layers only from the namespace it mounts in: first there, then open. */
    if (tree_enter_private(err) < 0 || overlay_options(j, &d, &text, err) < 0)
        return -1;
    /* A single lower directory and nothing above it is no overlay for the kernel. */
    if (d.n == 1) {
        j->out.tree = tree_clone(d.fds[0], false, j->lower.v[0], err);
        return j->out.tree < 0 ? -1 : 0;
    }
    if (chdir("/proc/self/fd") < 0)
        return err_sys(err, errno, "change to /proc/self/fd");
    if (mount("overlay", TREE_SPOT, "overlay", j->writable ? 0 : MS_RDONLY, text.data) < 0)
        return err_sys(err, errno, "mount overlay of %zu layers (%s; the kernel's log says more)",
                       j->lower.n + (j->upper ? 1 : 0),
                       j->other.data ? j->other.data + 1 : "no options");
    AUTO_FD int top = open(TREE_SPOT, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (top < 0)
        return err_sys(err, errno, "open the overlay");
    j->out.tree = tree_clone(top, false, "the overlay", err);
    return j->out.tree < 0 ? -1 : 0;
}

static int open_dir(struct job *j, struct err *err)
{
    AUTO_FD int fd = tree_open_path(j->dir, true, err);

    if (fd < 0)
        return -1;
    j->out.tree = tree_clone(fd, j->recursive, j->dir, err);
    return j->out.tree < 0 ? -1 : 0;
}

static int open_disk(struct job *j, struct err *err)
{
    j->out.disks = mem_new(struct rootfs_disk);
    j->out.n_disks = 1;
    *j->out.disks =
        (struct rootfs_disk){ .fd = -1, .filesystem = j->filesystem, .writable = j->writable };
    return rootfs_disk_open(j->image, j->device, j->out.disks, err);
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

/* What is in there was written by somebody who had the images mounted. */
static int open_typed(struct job *j, struct err *err)
{
    const struct rootfs_typed *t = &j->typed;

    if (t->upper && !is_empty(t->upper))
        return err_set(err, ERR_STATE,
                       "the upper directory %s is missing or has files, which cannot be seen in "
                       "the VM above layers that are images",
                       t->upper);
    j->out.disks = mem_zalloc(t->images.n * sizeof(*j->out.disks));
    for (size_t i = 0; i < t->images.n; i++) {
        j->out.disks[i] = (struct rootfs_disk){ .fd = -1, .filesystem = t->filesystems[i] };
        j->out.n_disks = i + 1;
        if (rootfs_disk_open(t->images.v[i], false, &j->out.disks[i], err) < 0)
            return err_wrap(err, "layer %zu of %zu from the top", i + 1, t->images.n);
    }
    return 0;
}

/* An upper directory with something in it cannot be a layer in the guest: its marks would not get
 * through the share. */
static int open_layers(struct job *j, struct err *err)
{
    int found = 0;

    if (!j->as_tree && !j->writable && j->plain && (!j->upper || is_empty(j->upper)))
        found = rootfs_find_images(&j->lower, &j->out, err);
    j->out.has_tree = found == 1;
    return found == 0 ? open_overlay(j, err) : found == 1 ? 0 : -1;
}

static int open_in_thread(void *arg, struct err *err)
{
    struct job *j = arg;

    if (j->image)
        return open_disk(j, err);
    if (j->typed.images.n)
        return open_typed(j, err);
    if ((j->dir ? open_dir(j, err) : open_layers(j, err)) < 0)
        return -1;
    j->out.tree_writable = j->writable && j->out.tree >= 0;
    if (j->writable || j->out.tree < 0)
        return 0;
    return tree_set_read_only(j->out.tree, true, "the root file system", err);
}

int rootfs_open(struct ctx *ctx, const struct rootfs_mount *mounts, size_t n, const char *root_path,
                unsigned how, struct rootfs *ret, struct err *err)
{
    struct job *j = mem_new(struct job);
    void *arg = j;

    j->out.tree = -1;
    j->must_write = how & ROOTFS_WRITABLE;
    j->writable = how & (ROOTFS_WRITABLE | ROOTFS_KEPT);
    j->as_tree = how & ROOTFS_TREE;
    j->plain = true;
    int r = read_list(j, mounts, n, root_path, err);
    if (r == 0)
        r = offload_run(ctx, open_in_thread, &arg, job_free, "open a root file system", err);
    j = arg;
    if (r == 0) {
        *ret = j->out;
        j->out = (struct rootfs){ .tree = -1 };
    }
    job_free(j);
    return r < 0 ? err_wrap(err, "root file system") : 0;
}
