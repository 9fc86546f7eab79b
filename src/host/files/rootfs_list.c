/* rootfs_list.c - reading a list of mounts; pure. Either it is one mount, or the list of a
 * containerd (2.2) that leaves images to the runtime: each image is an entry, and an overlay at the
 * end names them by templates,
 *
 *     mkfs/ext4             .../rwlayer.img
 *     erofs                 .../layer.erofs          topmost first
 *     format/mkdir/overlay  upperdir={{ mount 0 }}/upper lowerdir={{ overlay 1 3 }}
 *
 * The layers become disks. What is written goes to the VM's scratch disk, as with every overlay: so
 * the image for writing is neither made nor formatted. */
#include "base/err.h"
#include "host/files/rootfs_priv.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MAX 65536 /* of one option of a list from outside */

const char *rootfs_filesystem(const char *type)
{
    static const struct {
        const char *type, *as;
    } known[] = { { "ext4", "ext4" }, { "ext3", "ext4" },   { "ext2", "ext4" },
                  { "xfs", "xfs" },   { "erofs", "erofs" }, { "squashfs", "squashfs" } };

    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (str_eq(known[i].type, type))
            return known[i].as;
    return NULL;
}

void rootfs_plan_release(struct rootfs_plan *plan)
{
    free(plan->dir);
    strv_release(&plan->lower);
    free(plan->upper);
    free(plan->work);
    sbuf_release(&plan->other);
    strv_release(&plan->images);
    free(plan->filesystems);
    strv_release(&plan->verity);
    idmap_release(&plan->ids);
}

/* --- one mount --- */

/* As the kernel splits: ':' ends a name, a backslash takes the next character as it is. */
static int split_lower(struct rootfs_plan *plan, const char *text, struct err *err)
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
        if (plan->lower.n == ROOTFS_LAYERS_MAX)
            return err_set(err, ERR_EXHAUSTED, "overlay with more than %d layers",
                           ROOTFS_LAYERS_MAX);
        AUTO_FREE char *dir = sbuf_take(&name);
        strv_add(&plan->lower, dir);
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

static bool is_context(const char *o)
{
    static const char *const words[] = { "context", "fscontext", "defcontext", "rootcontext",
                                         NULL };

    return is_one_of(o, strcspn(o, "="), words);
}

static int add_overlay_option(struct rootfs_plan *plan, const char *o, struct err *err)
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
        if (str_eq(o, "volatile") && plan->writable)
            sbuf_adds(&plan->other, ",volatile");
        if (str_eq(o, "ro"))
            plan->writable = false;
        return 0;
    }
    if (!is_one_of(o, len, passed))
        return err_set(err, ERR_INVALID, "unsupported overlay option \"%s\"", o);
    sbuf_addf(&plan->other, ",%s", o);
    plan->plain = plan->plain && (str_eq(o, "index=off") || is_context(o));
    return 0;
}

/* 1: it is one of ids; 0: not. */
static int take_ids(struct rootfs_plan *plan, const char *o, struct err *err)
{
    char **ids = str_starts(o, "uidmap=")   ? &plan->ids.uid
                 : str_starts(o, "gidmap=") ? &plan->ids.gid
                                            : NULL;

    if (!ids)
        return 0;
    free(*ids);
    *ids = str_dup(o + strlen("uidmap="));
    return idmap_check(*ids, ids == &plan->ids.uid ? "uidmap" : "gidmap", err) < 0 ? -1 : 1;
}

static int read_overlay(struct rootfs_plan *plan, const struct rootfs_mount *m, struct err *err)
{
    for (const char *const *o = m->options; o && *o; o++) {
        int r = 0;

        if (strlen(*o) > TEXT_MAX)
            return err_set(err, ERR_INVALID, "overlay with an option of %zu bytes", strlen(*o));
        if (str_starts(*o, "lowerdir=")) {
            r = split_lower(plan, *o + 9, err);
        } else if (str_starts(*o, "upperdir=")) {
            free(plan->upper);
            plan->upper = str_dup(*o + 9);
        } else if (str_starts(*o, "workdir=")) {
            free(plan->work);
            plan->work = str_dup(*o + 8);
        } else if ((r = take_ids(plan, *o, err)) == 0) {
            r = add_overlay_option(plan, *o, err);
        }
        if (r < 0)
            return -1;
    }
    if (plan->lower.n == 0)
        return err_set(err, ERR_INVALID, "overlay without lowerdir");
    if (!plan->upper)
        plan->writable = false; /* nowhere to write to */
    if (plan->upper && plan->writable && !plan->work)
        return err_set(err, ERR_INVALID, "overlay with upperdir but without workdir");
    return 0;
}

static int read_bind(struct rootfs_plan *plan, const struct rootfs_mount *m, struct err *err)
{
    if (!m->source || !*m->source)
        return err_set(err, ERR_INVALID, "bind mount without a source");
    plan->dir = str_dup(m->source);
    for (const char *const *o = m->options; o && *o; o++) {
        if (str_eq(*o, "ro"))
            plan->view = true;
        else if (str_eq(*o, "rbind"))
            plan->recursive = true;
        else if (take_ids(plan, *o, err) < 0)
            return -1;
    }
    plan->writable = plan->writable && !plan->view;
    return 0;
}

/* How the host would mount it does not matter, unless leaving it out would change what is seen. */
static bool disk_option(const char *o, bool *writable, bool *device)
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
        return is_one_of(o, strlen(o), ignored) || is_context(o);
    return true;
}

static void add_image(struct rootfs_plan *plan, const char *path, const char *filesystem,
                      const char *verity)
{
    plan->filesystems =
        mem_realloc(plan->filesystems, (plan->images.n + 1) * sizeof(*plan->filesystems));
    plan->filesystems[plan->images.n] = filesystem;
    strv_add(&plan->images, path);
    strv_add(&plan->verity, verity);
}

static bool is_written(const char *filesystem)
{
    return str_eq(filesystem, "ext4") || str_eq(filesystem, "xfs");
}

static int read_disk(struct rootfs_plan *plan, const struct rootfs_mount *m, struct err *err)
{
    const char *filesystem = rootfs_filesystem(m->type), *verity = "";

    if (!m->source || !*m->source)
        return err_set(err, ERR_INVALID, "mount of type %s without a source", m->type);
    plan->writable = is_written(filesystem);
    plan->device = true;
    for (const char *const *o = m->options; o && *o; o++) {
        if (str_starts(*o, ROOTFS_VERITY)) {
            if (rootfs_verity_option(*o, &verity, err) < 0)
                return err_wrap(err, "%s %s", m->type, m->source);
        } else if (!disk_option(*o, &plan->writable, &plan->device)) {
            return err_set(err, ERR_INVALID, "unsupported option \"%s\" of %s %s", *o, m->type,
                           m->source);
        }
    }
    add_image(plan, m->source, filesystem, verity);
    return 0;
}

/* --- a list with images --- */

enum { FORMAT = 1, MKDIR = 2, MKFS = 4 };

struct entry {
    const char *filesystem; /* NULL: a loop device, or the overlay */
    const char *verity;     /* rootfs_verity_option(); NULL: not verified */
    char *image;            /* NULL: the overlay */
    bool writable, made;    /* made: for this container, by mkfs */
};

struct list {
    const struct rootfs_mount *mounts;
    struct entry *entries;
    size_t n;
};

static void list_release_auto(struct list *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->entries[i].image);
    free(l->entries);
}

/* --- words --- */

/* "format/mkdir/overlay" is overlay, and what is to be done before. NULL with err. */
static const char *base_type(const char *type, unsigned *ret_does, struct err *err)
{
    static const char *const words[] = { "format/", "mkdir/", "mkfs/" };
    const char *at = type;

    *ret_does = 0;
    while (strchr(at, '/')) {
        size_t i = 0;

        while (i < ARRAY_LEN(words) && !str_starts(at, words[i]))
            i++;
        if (i == ARRAY_LEN(words)) {
            err_because(err, REASON_SNAPSHOTTER_UNSUPPORTED, ERR_INVALID,
                        "unsupported mount type \"%.64s\"", type);
            return NULL;
        }
        *ret_does |= 1u << i;
        at += strlen(words[i]);
    }
    return at;
}

static bool take_number(const char **at, size_t below, size_t *ret)
{
    char *end;

    *at += strspn(*at, " ");
    if (!isdigit((unsigned char)**at))
        return false;
    unsigned long long n = strtoull(*at, &end, 10);
    *at = end;
    *ret = (size_t)n;
    return n < below;
}

/* What stands between "{{" and "}}". A mount point is written as "#3": no path begins so. */
static bool fill_in(const struct list *l, size_t below, const char *at, struct sbuf *out)
{
    static const char *const words[] = { "mount", "source", "overlay" };
    size_t word = 0, a, b;

    at += strspn(at, " -");
    while (word < ARRAY_LEN(words) && !str_starts(at, words[word]))
        word++;
    if (word == ARRAY_LEN(words))
        return false;
    at += strlen(words[word]);
    if (!take_number(&at, below, &a) || (word == 2 && !take_number(&at, below, &b)))
        return false;
    at += strspn(at, " -");
    if (*at)
        return false;
    if (word == 0)
        sbuf_addf(out, "#%zu", a);
    else if (word == 1)
        sbuf_adds(out, l->mounts[a].source ? l->mounts[a].source : "");
    for (size_t i = a; word == 2; i = a < b ? i + 1 : i - 1) {
        sbuf_addf(out, "%s#%zu", i == a ? "" : ":", i);
        if (i == b)
            break;
    }
    return true;
}

/* Templates may name what comes before them only. Caller frees; NULL with err. */
static char *expand(const struct list *l, size_t at, const char *text, unsigned does,
                    struct err *err)
{
    AUTO(sbuf_release) struct sbuf out = { 0 };
    const char *open, *close;

    text = text ? text : "";
    if (strlen(text) > TEXT_MAX) {
        err_set(err, ERR_INVALID, "mount %zu: %zu bytes of text", at, strlen(text));
        return NULL;
    }
    for (; does & FORMAT && (open = strstr(text, "{{")); text = close + 2) {
        close = strstr(open, "}}");
        AUTO_FREE char *inner = close ? str_ndup(open + 2, (size_t)(close - open - 2)) : NULL;
        sbuf_add(&out, text, (size_t)(open - text));
        if (!inner || !fill_in(l, at, inner, &out)) {
            err_set(err, ERR_INVALID, "mount %zu: the template %.64s is not understood", at, open);
            return NULL;
        }
        /* Sixty thousand bytes of templates may each name as many. */
        if (out.len > TEXT_MAX) {
            err_set(err, ERR_INVALID, "mount %zu: its templates yield more than %d bytes", at,
                    TEXT_MAX);
            return NULL;
        }
    }
    sbuf_adds(&out, text);
    return sbuf_take(&out);
}

/* "#3" or "#3/upper". */
static const struct entry *entry_of(const struct list *l, const char *text, const char **ret_rest)
{
    const char *at = text + 1;
    size_t n;

    if (text[0] != '#' || !take_number(&at, l->n, &n))
        return NULL;
    *ret_rest = at;
    return &l->entries[n];
}

/* --- one image --- */

static int read_image(struct list *l, size_t at, const char *type, unsigned does, struct err *err)
{
    const struct rootfs_mount *m = &l->mounts[at];
    struct entry *e = &l->entries[at];
    bool device = true; /* open_disk() looks at that again */

    AUTO_FREE char *source = expand(l, at, m->source, does, err);
    if (!source)
        return -1;
    const char *rest = "";
    const struct entry *looped = entry_of(l, source, &rest);
    if (looped && (looped->filesystem || !looped->image || *rest))
        return err_set(err, ERR_INVALID, "mount %zu: its source is not an image", at);
    e->image = looped ? str_dup(looped->image) : TAKE_PTR(source);
    if (e->image[0] != '/')
        return err_set(err, ERR_INVALID, "mount %zu: \"%.200s\" is not an absolute path", at,
                       e->image);
    e->made = does & MKFS || (looped && looped->made);
    if (str_eq(type, "loop"))
        return 0;
    e->filesystem = rootfs_filesystem(type);
    e->writable = is_written(e->filesystem);
    for (const char *const *o = m->options; o && *o; o++) {
        if ((does & MKFS && str_starts(*o, "X-containerd.mkfs.")) ||
            (does & MKDIR && str_starts(*o, "X-containerd.mkdir.")))
            continue;
        if (str_starts(*o, ROOTFS_VERITY)) {
            if (rootfs_verity_option(*o, &e->verity, err) < 0)
                return err_wrap(err, "%s %s", m->type, e->image);
        } else if (!disk_option(*o, &e->writable, &device))
            return err_set(err, ERR_INVALID, "unsupported option \"%.200s\" of %s %s", *o, m->type,
                           e->image);
    }
    return 0;
}

/* --- the overlay --- */

static int add_layers(const struct list *l, char *list, struct rootfs_plan *plan, struct err *err)
{
    for (char *at = list, *name; (name = strsep(&at, ":"));) {
        const char *rest = "";
        const struct entry *e = entry_of(l, name, &rest);

        if (!e || !e->filesystem || e->writable || *rest)
            return err_set(
                err, ERR_INVALID,
                "lowerdir \"%.200s\" of a list of images is not a read-only image of that list",
                name);
        if (plan->images.n == ROOTFS_IMAGES_MAX)
            return err_because(err, REASON_SNAPSHOTTER_UNSUPPORTED, ERR_EXHAUSTED,
                               "more than %d layers that are images: use the overlayfs snapshotter",
                               ROOTFS_IMAGES_MAX);
        add_image(plan, e->image, e->filesystem, e->verity ? e->verity : "");
    }
    return 0;
}

/* In an image that is made for it there is nothing; a directory of the host is looked at later. */
static int take_upper(const struct list *l, char *path, struct rootfs_plan *plan, struct err *err)
{
    const char *rest = "";
    const struct entry *e = entry_of(l, path, &rest);

    if (e && e->writable && e->made)
        return 0;
    if (e && e->writable)
        return err_set(err, ERR_STATE,
                       "upperdir is in the image %.200s, which no mount of the list creates "
                       "(mkfs/); its files cannot be seen in the VM above layers that are images",
                       e->image);
    if (e || path[0] != '/')
        return err_set(err, ERR_INVALID, "upperdir \"%.200s\" is not in a writable image", path);
    free(plan->upper);
    plan->upper = str_dup(path);
    return 0;
}

static int read_last(const struct list *l, size_t at, unsigned does, struct rootfs_plan *plan,
                     struct err *err)
{
    static const char *const ignored[] = { "index=off", "rw", "ro", "volatile", "userxattr" };

    for (const char *const *o = l->mounts[at].options; o && *o; o++) {
        AUTO_FREE char *text = expand(l, at, *o, does, err);
        bool known = false;
        int r = 0;

        if (!text)
            return -1;
        for (size_t i = 0; i < ARRAY_LEN(ignored); i++)
            known = known || str_eq(text, ignored[i]);
        if (str_starts(text, "lowerdir="))
            r = add_layers(l, text + strlen("lowerdir="), plan, err);
        else if (str_starts(text, "upperdir="))
            r = take_upper(l, text + strlen("upperdir="), plan, err);
        else if ((r = take_ids(plan, text, err)) == 0 && !known && !str_starts(text, "workdir=") &&
                 !is_context(text) &&
                 !(does & MKDIR && str_starts(text, "X-containerd.mkdir.path=")))
            r = err_because(err, REASON_SNAPSHOTTER_UNSUPPORTED, ERR_INVALID,
                            "overlay option \"%.200s\" is not supported in a list "
                            "of images",
                            text);
        if (r < 0)
            return -1;
    }
    if (plan->images.n == 0)
        return err_set(err, ERR_INVALID, "overlay without lowerdir");
    return 0;
}

static int read_entry(struct list *l, size_t at, struct rootfs_plan *plan, struct err *err)
{
    const char *given = l->mounts[at].type ? l->mounts[at].type : "", *type;
    unsigned does;

    type = base_type(given, &does, err);
    if (!type)
        return -1;
    if (str_eq(type, "overlay") && at + 1 == l->n)
        return read_last(l, at, does, plan, err);
    if (str_eq(type, "loop") || rootfs_filesystem(type))
        return read_image(l, at, type, does, err);
    return err_because(err, REASON_SNAPSHOTTER_UNSUPPORTED, ERR_INVALID,
                       "\"%.64s\" is not supported in a list of images", given);
}

/* There is no tree on the host that could be shared for writing. */
static int read_images(struct rootfs_plan *plan, const struct rootfs_mount *m, size_t n,
                       struct err *err)
{
    if (plan->must_write)
        return err_because(err, REASON_SNAPSHOTTER_UNSUPPORTED, ERR_INVALID,
                           "rootfs = shared needs directories, and these are images; use the "
                           "overlayfs or native snapshotter");
    if (n > ROOTFS_IMAGES_MAX + 8)
        return err_because(err, REASON_SNAPSHOTTER_UNSUPPORTED, ERR_EXHAUSTED,
                           "a list of %zu mounts; at most %d layers are disks: use the overlayfs "
                           "snapshotter",
                           n, ROOTFS_IMAGES_MAX);
    plan->writable = false;

    AUTO(list_release) struct list l = { m, mem_zalloc(n * sizeof(struct entry)), n };

    for (size_t i = 0; i < n; i++)
        if (read_entry(&l, i, plan, err) < 0)
            return err_wrap(err, "mount %zu of %zu", i, n);
    if (plan->images.n == 0)
        return err_because(err, REASON_SNAPSHOTTER_UNSUPPORTED, ERR_INVALID,
                           "a list of %zu mounts, the last of type \"%.64s\", does not end in an "
                           "overlay: unsupported",
                           n, m[n - 1].type ? m[n - 1].type : "");
    return 0;
}

/* --- either --- */

static int read_plan(struct rootfs_plan *plan, const struct rootfs_mount *m, size_t n,
                     const char *root_path, struct err *err)
{
    if (n == 0) {
        if (!root_path || !*root_path)
            return err_set(err, ERR_INVALID, "neither mounts nor a root path");
        plan->dir = str_dup(root_path);
        plan->recursive = true;
        return 0;
    }
    const char *type = m->type ? m->type : "";
    if (n > 1 || strchr(type, '/'))
        return read_images(plan, m, n, err);
    if (str_eq(type, "overlay"))
        return read_overlay(plan, m, err);
    if (str_eq(type, "bind") || str_eq(type, "rbind")) {
        plan->recursive = str_eq(type, "rbind");
        return read_bind(plan, m, err);
    }
    if (rootfs_filesystem(type))
        return read_disk(plan, m, err);
    return err_because(
        err, REASON_SNAPSHOTTER_UNSUPPORTED, ERR_INVALID,
        "mounts of type \"%s\" are not supported; use the overlayfs, native, blockfile "
        "or erofs snapshotter",
        type);
}

int rootfs_plan_read(struct rootfs_plan *plan, const struct rootfs_mount *m, size_t n,
                     const char *root_path, struct err *err)
{
    if (read_plan(plan, m, n, root_path, err) < 0)
        return -1;
    if (!plan->ids.uid != !plan->ids.gid)
        return err_set(err, ERR_INVALID, "options uidmap= and gidmap= need each other");
    return 0;
}
