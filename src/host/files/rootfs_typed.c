/* rootfs_typed.c - the list of mounts of a containerd (2.2) that leaves images to the runtime: each
 * image is an entry, and an overlay at the end names them by templates,
 *
 *     mkfs/ext4             .../rwlayer.img
 *     erofs                 .../layer.erofs          topmost first
 *     format/mkdir/overlay  upperdir={{ mount 0 }}/upper lowerdir={{ overlay 1 3 }}
 *
 * The layers become disks. What is written goes to the VM's scratch disk, as with every overlay: so
 * the image for writing is neither made nor formatted. Pure. */
#include "base/err.h"
#include "base/str.h"
#include "host/files/rootfs_priv.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MAX 65536

enum { FORMAT = 1, MKDIR = 2, MKFS = 4 };

struct entry {
    const char *filesystem; /* NULL: a loop device, or the overlay */
    char *image;            /* NULL: the overlay */
    bool writable, made;    /* made: for this container, by mkfs */
};

struct list {
    const struct rootfs_mount *mounts;
    struct entry *entries;
    size_t n;
};

void rootfs_typed_release(struct rootfs_typed *t)
{
    strv_release(&t->images);
    free(t->filesystems);
    free(t->upper);
    *t = (struct rootfs_typed){ 0 };
}

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
            err_set(err, ERR_INVALID, "mounts of type \"%.64s\" are not supported", type);
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
static char *expand(const struct list *l, size_t at, const char *text, struct err *err)
{
    AUTO(sbuf_release) struct sbuf out = { 0 };
    const char *open, *close;

    for (; (open = strstr(text, "{{")); text = close + 2) {
        close = strstr(open, "}}");
        AUTO_FREE char *inner = close ? str_ndup(open + 2, (size_t)(close - open - 2)) : NULL;
        AUTO_FREE char *before = str_ndup(text, (size_t)(open - text));
        sbuf_adds(&out, before);
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

static char *maybe_expand(const struct list *l, size_t at, const char *text, unsigned does,
                          struct err *err)
{
    text = text ? text : "";
    if (strlen(text) > TEXT_MAX) {
        err_set(err, ERR_INVALID, "mount %zu: %zu bytes of text", at, strlen(text));
        return NULL;
    }
    return does & FORMAT ? expand(l, at, text, err) : str_dup(text);
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
    bool device = true; /* rootfs_disk_open() looks at that again */

    AUTO_FREE char *source = maybe_expand(l, at, m->source, does, err);
    if (!source)
        return -1;
    const char *rest = "";
    const struct entry *looped = entry_of(l, source, &rest);
    if (looped && (looped->filesystem || !looped->image || *rest))
        return err_set(err, ERR_INVALID, "mount %zu: its source is no image", at);
    e->image = looped ? str_dup(looped->image) : TAKE_PTR(source);
    if (e->image[0] != '/')
        return err_set(err, ERR_INVALID, "mount %zu: \"%.200s\" is no absolute path", at, e->image);
    e->made = does & MKFS || (looped && looped->made);
    if (str_eq(type, "loop"))
        return 0;
    e->filesystem = rootfs_filesystem(type);
    e->writable = str_eq(e->filesystem, "ext4") || str_eq(e->filesystem, "xfs");
    for (const char *const *o = m->options; o && *o; o++) {
        if ((does & MKFS && str_starts(*o, "X-containerd.mkfs.")) ||
            (does & MKDIR && str_starts(*o, "X-containerd.mkdir.")))
            continue;
        if (!rootfs_disk_option(*o, &e->writable, &device))
            return err_set(err, ERR_INVALID, "option \"%.200s\" of %s %s is not supported", *o,
                           m->type, e->image);
    }
    return 0;
}

/* --- the overlay --- */

static int add_layers(const struct list *l, char *list, struct rootfs_typed *t, struct err *err)
{
    for (char *at = list, *name; (name = strsep(&at, ":"));) {
        const char *rest = "";
        const struct entry *e = entry_of(l, name, &rest);

        if (!e || !e->filesystem || e->writable || *rest)
            return err_set(err, ERR_INVALID,
                           "lowerdir \"%.200s\" of a list of images is no read-only image of it",
                           name);
        if (t->images.n == ROOTFS_IMAGES_MAX)
            return err_set(err, ERR_EXHAUSTED,
                           "more than %d layers that are images: use the overlayfs snapshotter",
                           ROOTFS_IMAGES_MAX);
        t->filesystems = mem_realloc(t->filesystems, (t->images.n + 1) * sizeof(*t->filesystems));
        t->filesystems[t->images.n] = e->filesystem;
        strv_add(&t->images, e->image);
    }
    return 0;
}

/* In an image that is made for it there is nothing; a directory of the host is looked at later. */
static int take_upper(const struct list *l, char *path, struct rootfs_typed *t, struct err *err)
{
    const char *rest = "";
    const struct entry *e = entry_of(l, path, &rest);

    if (e && e->writable && e->made)
        return 0;
    if (e && e->writable)
        return err_set(err, ERR_STATE,
                       "upperdir is in the image %.200s, which nobody makes (mkfs/): what it holds "
                       "cannot be seen in the VM above layers that are images",
                       e->image);
    if (e || path[0] != '/')
        return err_set(err, ERR_INVALID, "upperdir \"%.200s\" is in no writable image", path);
    free(t->upper);
    t->upper = str_dup(path);
    return 0;
}

static int read_overlay(const struct list *l, size_t at, unsigned does, struct rootfs_typed *t,
                        struct err *err)
{
    static const char *const ignored[] = { "index=off", "rw", "ro", "volatile", "userxattr" };

    for (const char *const *o = l->mounts[at].options; o && *o; o++) {
        AUTO_FREE char *text = maybe_expand(l, at, *o, does, err);
        bool known = false;
        int r = 0;

        if (!text)
            return -1;
        for (size_t i = 0; i < ARRAY_LEN(ignored); i++)
            known = known || str_eq(text, ignored[i]);
        if (str_starts(text, "lowerdir="))
            r = add_layers(l, text + strlen("lowerdir="), t, err);
        else if (str_starts(text, "upperdir="))
            r = take_upper(l, text + strlen("upperdir="), t, err);
        else if (!known && !str_starts(text, "workdir=") && !rootfs_is_context(text) &&
                 !(does & MKDIR && str_starts(text, "X-containerd.mkdir.path=")))
            r = err_set(err, ERR_INVALID,
                        "overlay option \"%.200s\" is not supported in a list "
                        "of images",
                        text);
        if (r < 0)
            return -1;
    }
    if (t->images.n == 0)
        return err_set(err, ERR_INVALID, "overlay without lowerdir");
    return 0;
}

static int read_entry(struct list *l, size_t at, struct rootfs_typed *t, struct err *err)
{
    const char *given = l->mounts[at].type ? l->mounts[at].type : "", *type;
    unsigned does;

    type = base_type(given, &does, err);
    if (!type)
        return -1;
    if (str_eq(type, "overlay") && at + 1 == l->n)
        return read_overlay(l, at, does, t, err);
    if (str_eq(type, "loop") || rootfs_filesystem(type))
        return read_image(l, at, type, does, err);
    return err_set(err, ERR_INVALID, "\"%.64s\" is not supported in a list of images", given);
}

bool rootfs_is_typed(const struct rootfs_mount *m, size_t n)
{
    return n > 1 || (n == 1 && m->type && strchr(m->type, '/'));
}

int rootfs_read_typed(const struct rootfs_mount *m, size_t n, struct rootfs_typed *ret,
                      struct err *err)
{
    AUTO(list_release) struct list l = { .mounts = m, .n = n };

    if (n > ROOTFS_IMAGES_MAX + 8)
        return err_set(err, ERR_EXHAUSTED,
                       "a list of %zu mounts; at most %d layers are disks: use the overlayfs "
                       "snapshotter",
                       n, ROOTFS_IMAGES_MAX);
    l.entries = mem_zalloc(n * sizeof(*l.entries));
    for (size_t i = 0; i < n; i++)
        if (read_entry(&l, i, ret, err) < 0)
            return err_wrap(err, "mount %zu of %zu", i, n);
    if (ret->images.n == 0)
        return err_set(
            err, ERR_INVALID,
            "a list of %zu mounts, the last of type \"%.64s\", ends in no overlay: it is "
            "not supported",
            n, m[n - 1].type ? m[n - 1].type : "");
    return 0;
}
