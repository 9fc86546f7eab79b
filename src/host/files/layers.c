/* layers.c - the store: key, header, quick check, list, verify, prune. */
#include "base/child.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/offload.h"
#include "base/owned.h"
#include "base/sha256.h"
#include "host/files/layers_priv.h"
#include "host/files/tree_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#define FORMAT 1
#define HEADER_MAX (64 * 1024)
#define FAILED "failed-"
#define FAILURE_MAX 2048
#define RETRY_NS (UINT64_C(600) * 1000000000)
#define RETRY_MOST_NS (UINT64_C(24) * 3600 * 1000000000)
#define RECENT_NS (UINT64_C(3600) * 1000000000)
#define FORGET_NS (7 * RETRY_MOST_NS) /* since the last attempt: its layer is gone or not used */
#define MIB (UINT64_C(1) << 20)

#define XFS_MAGIC 0x58465342
#define ZFS_MAGIC 0x2fc12fc1
#define BCACHEFS_MAGIC 0xca451a4e

void layers_info_release(struct layers_info *i)
{
    free(TAKE_PTR(i->identity));
    free(TAKE_PTR(i->path));
    free(TAKE_PTR(i->stamp));
    free(TAKE_PTR(i->tool));
}

void layers_close(struct layers_image *i)
{
    layers_info_release(&i->info);
    fd_close(TAKE_FD(i->fd));
    free(TAKE_PTR(i->path));
}

/* --- identity and key --- */

void layers_key_of(const char *identity, char ret[LAYERS_KEY_SIZE])
{
    char hex[SHA256_HEX_SIZE];

    sha256_of(identity, strlen(identity), hex);
    memcpy(ret, hex, LAYERS_KEY_SIZE - 1);
    ret[LAYERS_KEY_SIZE - 1] = '\0';
}

static bool is_key(const char *s)
{
    return strspn(s, "0123456789abcdef") == LAYERS_KEY_SIZE - 1 && !s[LAYERS_KEY_SIZE - 1];
}

/* File systems of this machine's own disks and memory: no other machine changes what is in them. */
static bool is_local(int fd)
{
    static const unsigned long known[] = {
        EXT4_SUPER_MAGIC,      XFS_MAGIC,        BTRFS_SUPER_MAGIC,   TMPFS_MAGIC,
        RAMFS_MAGIC,           F2FS_SUPER_MAGIC, ZFS_MAGIC,           BCACHEFS_MAGIC,
        OVERLAYFS_SUPER_MAGIC, SQUASHFS_MAGIC,   EROFS_SUPER_MAGIC_V1
    };
    struct statfs fs;

    if (fstatfs(fd, &fs) < 0)
        return false;
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if ((unsigned long)fs.f_type == known[i])
            return true;
    return false;
}

/* A committed snapshot of overlayfs (…/snapshots/7/fs) or native (…/snapshots/7), which never
 * changes. Of other directories nothing is known. */
static bool is_committed(const char *path)
{
    static const char parent[] = "/snapshots/";
    size_t len = strlen(path), before = sizeof(parent) - 1;

    if (len > 3 && str_eq(path + len - 3, "/fs"))
        len -= 3;
    size_t name = len;
    while (name > 0 && path[name - 1] >= '0' && path[name - 1] <= '9')
        name--;
    return name < len && name >= before && memcmp(path + name - before, parent, before) == 0;
}

static char *program_identity(void)
{
    AUTO_FREE char *path = child_find(LAYERS_PROGRAM);
    struct stat st;

    if (!path || stat(path, &st) < 0)
        return NULL;
    return str_format("size %lld mtime %llu", (long long)st.st_size,
                      (unsigned long long)owned_mtime_ns(&st));
}

int layers_identify(const struct layers_opts *o, const char *path, int fd, char **ret,
                    struct err *err)
{
    AUTO_FREE char *program = program_identity();
    AUTO_FREE char *open_path = str_format("/proc/thread-self/fd/%d", fd);
    AUTO_FD int dir = open(open_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct statx st;

    if (!program)
        return err_set(err, ERR_UNIMPLEMENTED,
                       LAYERS_PROGRAM " is not installed: apt install erofs-utils");
    if (dir < 0)
        return err_sys(err, errno, "open %s", path);
    if (!is_committed(path))
        return err_set(err, ERR_UNIMPLEMENTED,
                       "%s is not a committed snapshot (…/snapshots/N or …/snapshots/N/fs)", path);
    if (!is_local(dir))
        return err_set(err, ERR_UNIMPLEMENTED, "%s is not on a local file system", path);
    if (statx(dir, "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_BTIME, &st) < 0)
        return err_sys(err, errno, "look at %s", path);
    /* Snapshotters that pull lazily mount something there, which may change. */
    if (st.stx_attributes & STATX_ATTR_MOUNT_ROOT)
        return err_set(err, ERR_UNIMPLEMENTED, "%s is a mount of its own", path);
    if (!(st.stx_mask & STATX_BTIME))
        st.stx_btime = (struct statx_timestamp){ 0 };
    *ret = str_format("format %d\npath %s\ndevice %u:%u inode %llu\nbirth %lld.%09u\nchange "
                      "%lld.%09u\nprogram %s\nverity %s\n",
                      FORMAT, path, st.stx_dev_major, st.stx_dev_minor,
                      (unsigned long long)st.stx_ino, (long long)st.stx_btime.tv_sec,
                      st.stx_btime.tv_nsec, (long long)st.stx_ctime.tv_sec, st.stx_ctime.tv_nsec,
                      program, o->verity ? "on" : "off");
    return 0;
}

/* --- the header --- */

void layers_info_write(const struct layers_info *i, struct jsw *w, const char *key)
{
    jsw_obj(w, key);
    jsw_u64(w, "format", FORMAT);
    jsw_str(w, "key", i->key);
    jsw_str(w, "path", i->path);
    jsw_u64(w, "created_ns", i->created_ns);
    if (i->used_ns)
        jsw_u64(w, "used_ns", i->used_ns);
    jsw_str(w, "tool", i->tool);
    jsw_u64(w, "entries", i->entries);
    jsw_u64(w, "size", i->size);
    jsw_u64(w, "data_bytes", i->data_bytes);
    jsw_u64(w, "inode", i->inode);
    jsw_u64(w, "mtime_ns", i->mtime_ns);
    jsw_str(w, "sha256", i->sha256);
    jsw_str(w, "root_hash", i->root_hash);
    jsw_str(w, "stamp", i->stamp);
    jsw_str(w, "identity", i->identity);
    jsw_end_obj(w);
}

char *layers_header_format(const struct layers_info *i, size_t *ret_len)
{
    struct jsw w;
    size_t len;

    jsw_init(&w, JSW_PLAIN);
    layers_info_write(i, &w, NULL);
    AUTO_FREE char *body = jsw_take(&w, &len);
    return owned_seal(body, len, ret_len);
}

static int take_hash(const json_t *o, const char *name, bool may_be_empty, char ret[65],
                     struct err *err)
{
    const char *hex = "";

    if (js_str(o, name, &hex, err) < 0)
        return -1;
    if (!(may_be_empty && !*hex) && (strspn(hex, "0123456789abcdef") != 64 || hex[64]))
        return err_set(err, ERR_DATA_LOSS, "the header has no valid %s", name);
    memcpy(ret, hex, strlen(hex) + 1);
    return 0;
}

static int read_info(const json_t *o, struct layers_info *i, struct err *err)
{
    const char *key = "", *identity = "", *path = "", *stamp = "", *tool = "";
    uint32_t format = 0;

    if (js_u32(o, "format", &format, err) < 0)
        return -1;
    if (format != FORMAT)
        return err_set(err, ERR_DATA_LOSS, "unsupported format %u: must be %d", format, FORMAT);
    if (js_str(o, "key", &key, err) < 0 || js_str(o, "identity", &identity, err) < 0 ||
        js_str(o, "path", &path, err) < 0 || js_str(o, "stamp", &stamp, err) < 0 ||
        js_str(o, "tool", &tool, err) < 0 || js_u64(o, "created_ns", &i->created_ns, err) < 0 ||
        js_u64(o, "entries", &i->entries, err) < 0 || js_u64(o, "size", &i->size, err) < 0 ||
        js_u64(o, "data_bytes", &i->data_bytes, err) < 0 ||
        js_u64(o, "inode", &i->inode, err) < 0 || js_u64(o, "mtime_ns", &i->mtime_ns, err) < 0 ||
        take_hash(o, "sha256", false, i->sha256, err) < 0 ||
        take_hash(o, "root_hash", true, i->root_hash, err) < 0)
        return -1;
    layers_key_of(identity, i->key);
    if (!str_eq(i->key, key))
        return err_set(err, ERR_DATA_LOSS, "the header belongs to another image");
    i->identity = str_dup(identity);
    i->path = str_dup(path);
    i->stamp = str_dup(stamp);
    i->tool = str_dup(tool);
    return 0;
}

int layers_header_parse(const char *text, size_t len, struct layers_info *ret, struct err *err)
{
    AUTO(json_decref) json_t *o = NULL;
    AUTO(layers_info_release) struct layers_info i = { 0 };
    const char *body = owned_unseal(text, len, &len, err);

    if (!body)
        return -1;
    if (js_parse(body, len, HEADER_MAX, &o, err) < 0 || read_info(o, &i, err) < 0) {
        err->code = ERR_DATA_LOSS;
        return -1;
    }
    *ret = i;
    i = (struct layers_info){ 0 };
    return 0;
}

/* --- the quick check --- */

static int read_header(int dir, struct layers_info *ret, struct err *err)
{
    AUTO_FD int fd = -1;
    struct stat st;

    if (owned_open(dir, "header", &st, &fd, err) < 0)
        return -1;
    if (st.st_size > HEADER_MAX)
        return err_set(err, ERR_DATA_LOSS, "invalid header of %lld bytes", (long long)st.st_size);
    AUTO_FREE char *text = mem_alloc((size_t)st.st_size + 1);
    ssize_t n = fd_read_full(fd, text, (size_t)st.st_size);
    if (n < 0)
        return err_sys(err, (int)-n, "read header");
    return layers_header_parse(text, (size_t)n, ret, err);
}

static int check_image(const struct layers_info *i, const struct stat *st, struct err *err)
{
    if (i->size != (uint64_t)st->st_size)
        return err_set(err, ERR_DATA_LOSS, "it has %lld bytes, not %llu", (long long)st->st_size,
                       (unsigned long long)i->size);
    if (i->inode != st->st_ino || i->mtime_ns != owned_mtime_ns(st))
        return err_set(err, ERR_DATA_LOSS, "it was changed after it was made");
    return 0;
}

static int open_parts(int fd, const char *key, const char *identity, struct layers_image *ret,
                      struct err *err)
{
    struct stat st;

    if (owned_check(fd, key, S_IFDIR, &st, err) < 0 || read_header(fd, &ret->info, err) < 0)
        return -1;
    ret->info.used_ns = owned_mtime_ns(&st);
    if (!str_eq(ret->info.key, key) || (identity && !str_eq(ret->info.identity, identity)))
        return err_set(err, ERR_DATA_LOSS, "the header is of another directory");
    if (owned_open(fd, "image", &st, &ret->fd, err) < 0)
        return -1;
    return check_image(&ret->info, &st, err);
}

int layers_open_key(const char *dir, const char *key, const char *identity,
                    struct layers_image *ret, struct err *err)
{
    AUTO(layers_close) struct layers_image i = { .fd = -1 };
    AUTO_FREE char *path = str_format("%s/%s", dir, key);
    AUTO_FD int fd = -1;

    if (!is_key(key))
        return err_set(err, ERR_INVALID, "\"%.64s\" is not the key of a layer image", key);
    fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && (errno == ELOOP || errno == ENOTDIR))
        return err_set(err, ERR_PERMISSION, "layer image %s is not a directory", key);
    if (fd < 0)
        return err_sys(err, errno, "layer image %s", key);
    if (open_parts(fd, key, identity, &i, err) < 0)
        return err_wrap(err, "layer image %s", key);
    i.path = str_format("%s/image", path);
    *ret = i;
    i = (struct layers_image){ .fd = -1 };
    return 0;
}

/* The time of a directory's last use is its modification time. */
int layers_open(const struct layers_opts *o, const char *path, struct layers_image *ret,
                struct err *err)
{
    AUTO_FD int fd = tree_open_path(path, true, err);
    AUTO_FREE char *identity = NULL;
    char key[LAYERS_KEY_SIZE];

    if (fd < 0 || layers_identify(o, path, fd, &identity, err) < 0)
        return -1;
    layers_key_of(identity, key);
    if (layers_open_key(o->dir, key, identity, ret, err) < 0)
        return -1;
    /* QEMU gets this descriptor: a VM has its disks locked, which layers_prune respects. */
    (void)flock(ret->fd, LOCK_SH | LOCK_NB); /* fails only while layers_prune looks at it */
    AUTO_FREE char *used = str_format("%s/%s", o->dir, key);
    (void)utimensat(AT_FDCWD, used, NULL, AT_SYMLINK_NOFOLLOW); /* a read-only store has no LRU */
    return 0;
}

/* --- what failed --- */

static char *failure_path(const char *dir, const char *key)
{
    return str_format("%s/" FAILED "%s", dir, key);
}

/* "<count> <reason>\n"; 0: it did not fail. */
static unsigned failures(const char *dir, const char *key)
{
    AUTO_FREE char *text = file_text(FAILURE_MAX, "%s/" FAILED "%s", dir, key);

    return text ? (unsigned)strtoul(text, NULL, 10) % 1000 : 0;
}

void layers_remember_failure(const char *dir, const char *key, const char *why)
{
    AUTO_FREE char *path = failure_path(dir, key),
                   *text = str_format("%u %.1000s\n", failures(dir, key) + 1, why);

    (void)file_replace(path, text, strlen(text), 0600); /* without it the next pod tries again */
}

static bool failed_lately(const char *dir, const char *key, uint64_t now_ns)
{
    AUTO_FREE char *path = failure_path(dir, key);
    unsigned n = failures(dir, key);
    uint64_t wait = RETRY_NS;
    struct stat st;

    if (n == 0 || lstat(path, &st) < 0)
        return false;
    for (unsigned i = 1; i < n && wait < RETRY_MOST_NS; i++)
        wait *= 2;
    return now_ns < owned_mtime_ns(&st) + (wait < RETRY_MOST_NS ? wait : RETRY_MOST_NS);
}

bool layers_wanted(const struct layers_opts *o, const char *path, uint64_t now_ns)
{
    struct err none = ERR_INIT;
    AUTO_FD int fd = tree_open_path(path, true, &none);
    AUTO_FREE char *identity = NULL;
    char key[LAYERS_KEY_SIZE];

    if (fd < 0 || layers_identify(o, path, fd, &identity, &none) < 0)
        return false;
    layers_key_of(identity, key);
    return !failed_lately(o->dir, key, now_ns);
}

/* --- the store as a whole --- */

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

int layers_list(const char *dir, struct strv *ret, struct err *err)
{
    AUTO(closedir) DIR *d = opendir(dir);

    if (!d && errno != ENOENT)
        return err_sys(err, errno, "open %s", dir);
    for (struct dirent *e; d && (e = readdir(d));)
        if (is_key(e->d_name))
            strv_add(ret, e->d_name);
    if (ret->n)
        qsort(ret->v, ret->n, sizeof(*ret->v), by_name);
    return 0;
}

int layers_look(const char *dir, const char *key, struct layers_info *ret, struct err *err)
{
    struct layers_image i = { .fd = -1 };

    if (layers_open_key(dir, key, NULL, &i, err) < 0)
        return -1;
    *ret = i.info;
    i.info = (struct layers_info){ 0 };
    layers_close(&i);
    return 0;
}

/* Whether the directory at its path is the one that the image was made of. */
static int check_source(const struct layers_info *i, int *ret_fd, struct err *err)
{
    const struct layers_opts o = { .verity = i->root_hash[0] };
    AUTO_FD int fd = tree_open_path(i->path, true, err);
    AUTO_FREE char *now = NULL;

    if (fd < 0 || layers_identify(&o, i->path, fd, &now, err) < 0)
        return -1;
    if (!str_eq(now, i->identity))
        return err_set(err, ERR_STATE,
                       "%s or " LAYERS_PROGRAM " was changed after the image was made", i->path);
    if (ret_fd)
        *ret_fd = TAKE_FD(fd);
    return 0;
}

int layers_verify(const char *dir, const char *key, struct layers_info *ret, struct err *err)
{
    AUTO(layers_close) struct layers_image i = { .fd = -1 };
    char hex[SHA256_HEX_SIZE];
    struct layers_scan scan;
    AUTO_FD int source = -1;

    if (layers_open_key(dir, key, NULL, &i, err) < 0)
        return -1;
    int r = sha256_sparse_file(i.path, hex);
    if (r < 0)
        return err_sys(err, -r, "read %s", i.path);
    if (!str_eq(hex, i.info.sha256))
        return err_set(err, ERR_DATA_LOSS, "layer image %s does not match its checksum", key);
    if (check_source(&i.info, &source, err) < 0)
        return err_wrap(err, "layer image %s", key);
    AUTO_FREE char *top = str_format("/proc/self/fd/%d", source);
    AUTO_FD int fd = open(top, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return err_sys(err, errno, "open %s", i.info.path);
    if (layers_scan(fd, &scan, err) < 0)
        return -1;
    if (!str_eq(scan.stamp, i.info.stamp))
        return err_set(err, ERR_STATE, "layer image %s: files of %s were changed after it was made",
                       key, i.info.path);
    *ret = i.info;
    i.info = (struct layers_info){ 0 };
    return 0;
}

static int remove_image(const char *dir, const char *key, struct err *err)
{
    AUTO_FREE char *path = str_format("%s/%s", dir, key);
    struct stat st;

    if (!is_key(key))
        return err_set(err, ERR_INVALID, "\"%.64s\" is not the key of a layer image", key);
    if (lstat(path, &st) < 0)
        return err_sys(err, errno, "layer image %s", key);
    int r = S_ISDIR(st.st_mode) ? dir_remove(path) : unlink(path) < 0 ? -errno : 0;
    return r < 0 ? err_sys(err, -r, "remove %s", path) : 0;
}

int layers_remove(const char *dir, const char *key, struct err *err)
{
    AUTO_FREE char *failure = failure_path(dir, key);

    if (is_key(key))
        (void)unlink(failure);
    return remove_image(dir, key, err);
}

struct discard {
    const char *dir, *key, *why;
};

static int discard(void *arg, struct err *err)
{
    const struct discard *d = arg;

    layers_remember_failure(d->dir, d->key, d->why);
    return remove_image(d->dir, d->key, err);
}

int layers_discard(struct ctx *ctx, const char *dir, const char *key, const char *why,
                   struct err *err)
{
    struct discard d = { dir, key, why };

    return OFFLOAD(ctx, discard, &d, 3, NULL, "a layer image to be removed", err);
}

/* --- one builder at a time --- */

struct turn {
    const char *dir;
    int fd;
};

static void drop_turn(void *arg)
{
    struct turn *t = arg;

    fd_close(t->fd);
}

static int take_turn(void *arg, struct err *err)
{
    struct turn *t = arg;

    t->fd = open(t->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (t->fd < 0)
        return err_sys(err, errno, "open %s", t->dir);
    while (flock(t->fd, LOCK_EX) < 0)
        if (errno != EINTR)
            return err_sys(err, errno, "lock %s", t->dir);
    return 0;
}

int layers_lock(struct ctx *ctx, const char *dir, int *ret, struct err *err)
{
    struct turn t = { dir, -1 };

    if (OFFLOAD(ctx, take_turn, &t, 1, drop_turn, "other builders of layer images", err) < 0)
        return -1;
    *ret = t.fd;
    return 0;
}

/* --- pruning --- */

struct image {
    const char *key, *why; /* why it is to be removed; NULL: it is not */
    uint64_t used_ns, size;
    bool open; /* by a VM */
};

struct pruning {
    const struct layers_opts *o;
    bool dry_run;
    void (*removed)(void *arg, const char *name, const char *why);
    void *arg;
    struct strv keys;
    struct image *images; /* longest unused first */
    uint64_t bytes;       /* of those that stay */
};

static void pruning_release_auto(struct pruning *p)
{
    strv_release(&p->keys);
    free(p->images);
}

static int oldest_first(const void *a, const void *b)
{
    const struct image *x = a, *y = b;

    return (x->used_ns > y->used_ns) - (x->used_ns < y->used_ns);
}

static void sweep_failure(const char *path, uint64_t now_ns)
{
    struct stat st;

    if (now_ns > FORGET_NS && lstat(path, &st) == 0 && owned_mtime_ns(&st) < now_ns - FORGET_NS)
        (void)unlink(path);
}

static void say_removed(const struct pruning *p, const char *name, const char *why)
{
    if (p->removed)
        p->removed(p->arg, name, why);
}

static void sweep(const struct pruning *p)
{
    AUTO(closedir) DIR *d = opendir(p->o->dir);

    for (struct dirent *e; d && (e = readdir(d));) {
        AUTO_FREE char *path = str_format("%s/%s", p->o->dir, e->d_name);

        if (str_starts(e->d_name, LAYERS_NEW)) {
            /* Its builder is gone. If it cannot be removed, it only takes space. */
            if (p->dry_run || dir_remove(path) == 0)
                say_removed(p, e->d_name, "incomplete");
        } else if (str_starts(e->d_name, FAILED) && !p->dry_run) {
            sweep_failure(path, p->o->now_ns);
        }
    }
}

static void judge(const char *dir, struct image *i)
{
    AUTO(layers_close) struct layers_image open = { .fd = -1 };
    struct err err = ERR_INIT;

    if (layers_open_key(dir, i->key, NULL, &open, &err) < 0) {
        i->why = "damaged";
        return;
    }
    i->used_ns = open.info.used_ns;
    i->size = open.info.size;
    i->open = flock(open.fd, LOCK_EX | LOCK_NB) < 0;
    if (check_source(&open.info, NULL, &err) < 0 && err.code != ERR_UNIMPLEMENTED)
        i->why = err.code == ERR_NOT_FOUND ? "its directory is gone" : "its directory was changed";
}

static int look_at_all(struct pruning *p, struct err *err)
{
    sweep(p);
    if (layers_list(p->o->dir, &p->keys, err) < 0)
        return -1;
    p->images = mem_zalloc((p->keys.n + 1) * sizeof(*p->images));
    for (size_t i = 0; i < p->keys.n; i++) {
        p->images[i].key = p->keys.v[i];
        judge(p->o->dir, &p->images[i]);
        p->bytes += p->images[i].why ? 0 : p->images[i].size;
    }
    qsort(p->images, p->keys.n, sizeof(*p->images), oldest_first);
    return 0;
}

/* Down to most bytes, without those that are open or were used since then. */
static void evict(struct pruning *p, uint64_t most, uint64_t since_ns)
{
    for (size_t i = 0; i < p->keys.n && p->bytes > most; i++)
        if (!p->images[i].why && !p->images[i].open && p->images[i].used_ns < since_ns) {
            p->images[i].why = "longest unused";
            p->bytes -= p->images[i].size;
        }
}

static int remove_all(const struct pruning *p, struct err *err)
{
    for (size_t i = 0; i < p->keys.n; i++) {
        const struct image *image = &p->images[i];

        if (!image->why)
            continue;
        if (!p->dry_run && layers_remove(p->o->dir, image->key, err) < 0) {
            if (err->code != ERR_NOT_FOUND)
                return -1;
            err_clear(err);
        }
        say_removed(p, image->key, image->why);
    }
    return 0;
}

int layers_prune(const struct layers_opts *o, bool dry_run,
                 void (*removed)(void *arg, const char *name, const char *why), void *arg,
                 struct err *err)
{
    AUTO(pruning_release)
    struct pruning p = { .o = o, .dry_run = dry_run, .removed = removed, .arg = arg };

    if (look_at_all(&p, err) < 0)
        return -1;
    evict(&p, o->max_mib * MIB, UINT64_MAX);
    return remove_all(&p, err);
}

int layers_make_room(const struct layers_opts *o, uint64_t need, uint64_t *ret, struct err *err)
{
    AUTO(pruning_release) struct pruning p = { .o = o };
    uint64_t most = o->max_mib * MIB;

    if (look_at_all(&p, err) < 0)
        return -1;
    evict(&p, most > need ? most - need : 0, o->now_ns > RECENT_NS ? o->now_ns - RECENT_NS : 0);
    if (p.bytes + need > most)
        return err_set(err, ERR_EXHAUSTED,
                       "it needs %llu MiB beside %llu MiB of images that are in use or were used "
                       "within the last hour, more than layer_images_max_mib = %u",
                       (unsigned long long)(need / MIB + 1),
                       (unsigned long long)(p.bytes / MIB + 1), o->max_mib);
    *ret = p.bytes;
    return remove_all(&p, err);
}
