/* rootfs.c - the directories are opened first, each by its own name, and overlay then gets the
 * numbers of their descriptors, relative to /proc/self/fd: no path is too long, five hundred
 * layers fit into the one page that mount(2) takes, no byte in a name needs quoting, and a missing
 * directory is told by name instead of a bare ENOENT. */
#include "host/own/rootfs.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/offload.h"
#include "base/str.h"
#include "host/own/tree_priv.h"

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

    bool writable;
    int tree;
};

static void job_free(void *arg)
{
    struct job *j = arg;

    if (!j)
        return;
    fd_close(j->tree);
    free(j->dir);
    strv_release(&j->lower);
    free(j->upper);
    free(j->work);
    sbuf_release(&j->other);
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
    if (n > 1)
        return err_set(err, ERR_UNIMPLEMENTED,
                       "a list of %zu mounts, the first of type \"%s\", is not supported yet; use "
                       "the overlayfs or the native snapshotter",
                       n, type);
    if (str_eq(type, "overlay"))
        return read_overlay(j, m, err);
    if (str_eq(type, "bind") || str_eq(type, "rbind")) {
        j->recursive = str_eq(type, "rbind");
        return read_bind(j, m, err);
    }
    return err_set(err, ERR_UNIMPLEMENTED,
                   "mounts of type \"%s\" are not supported yet; use the overlayfs or the native "
                   "snapshotter",
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
        j->tree = tree_clone(d.fds[0], false, j->lower.v[0], err);
        return j->tree < 0 ? -1 : 0;
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
    j->tree = tree_clone(top, false, "the overlay", err);
    return j->tree < 0 ? -1 : 0;
}

static int open_dir(struct job *j, struct err *err)
{
    AUTO_FD int fd = tree_open_path(j->dir, true, err);

    if (fd < 0)
        return -1;
    j->tree = tree_clone(fd, j->recursive, j->dir, err);
    return j->tree < 0 ? -1 : 0;
}

static int open_in_thread(void *arg, struct err *err)
{
    struct job *j = arg;

    if ((j->dir ? open_dir(j, err) : open_overlay(j, err)) < 0)
        return -1;
    return j->writable ? 0 : tree_set_read_only(j->tree, true, "the root file system", err);
}

int rootfs_open(struct ctx *ctx, const struct rootfs_mount *mounts, size_t n, const char *root_path,
                bool writable, int *ret_fd, struct err *err)
{
    struct job *j = mem_new(struct job);
    void *arg = j;

    j->tree = -1;
    j->writable = writable;
    int r = read_list(j, mounts, n, root_path, err);
    if (r == 0)
        r = offload_run(ctx, open_in_thread, &arg, job_free, "open a root file system", err);
    j = arg;
    if (r == 0)
        *ret_fd = TAKE_FD(j->tree);
    job_free(j);
    return r < 0 ? err_wrap(err, "root file system") : 0;
}
