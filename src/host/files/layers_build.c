/* layers_build.c - makes a layer's image. A thread locks and looks (the directory may be on a
 * device that does not answer), mkfs.erofs runs in a jail (host/jail/jail.h) in which it sees the
 * system's libraries, the layer, read-only and without what is mounted below it, and one file to
 * write, and a thread seals and publishes what it wrote. If the directory changed meanwhile, the
 * image is discarded. */
#include "base/child.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/offload.h"
#include "base/owned.h"
#include "base/rand.h"
#include "base/sha256.h"
#include "host/files/layers_priv.h"
#include "host/files/tree_priv.h"
#include "host/jail/jail.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)
#define VERSION_NS (20 * NS_PER_S)
#define SAID_MAX 4096
#define HIGH_FD (CHILD_SAFE_FD + 1)
#define ROOT "root"    /* in the draft, where the jail is mounted */
#define LAYER "/layer" /* in the jail, as is the next */
#define IMAGE "/image"
#define NOBODY 65534
/* CAP_DAC_READ_SEARCH: files of all owners. CAP_SYS_ADMIN: trusted attributes. */
#define CAPS (UINT64_C(1) << 2 | UINT64_C(1) << 21)
#define MEMORY_MAX (UINT64_C(2) << 30) /* of mkfs.erofs */
#define ENTRY_BYTES 256 /* of metadata for each file: more than it needs on average */
#define SALT_BYTES 32
#define FULL_BYTES (64 * 1024) /* with less it ran out of space */
#define TURN_NS (60 * 60 * NS_PER_S)
#define BUILD_NS (15 * 60 * NS_PER_S)

struct job {
    const char *dir, *path; /* the store, the layer */
    struct layers_opts o;
    char *draft; /* its directory */
    char key[LAYERS_KEY_SIZE];
    int to;   /* its directory, too */
    int tree; /* the layer as a mount of its own */
    int out;  /* the image, too */
    struct jail *jail;
    int scan_fd;
    struct layers_scan scan;
    uint64_t most;           /* bytes that the image may have */
    struct layers_info info; /* what is known of it so far; complete if it exists */
    bool exists, published;
};

static void drop(void *arg)
{
    struct job *j = arg;

    fd_close_later(j->scan_fd);
    fd_close_later(j->tree);
    fd_close(j->out);
    if (j->to >= 0 && !j->published)
        (void)dir_remove(j->draft); /* what is left takes space until the next prune */
    fd_close(j->to);
    free(j->draft);
    layers_info_release(&j->info);
}

static void step(const struct job *j, enum layers_step step)
{
    if (j->o.on_step)
        j->o.on_step(step);
}

static int no_space(struct err *err, const struct job *j, uint64_t need)
{
    return err_because(err, REASON_DISK_FULL, ERR_EXHAUSTED,
                       "the image of %s needs %llu MiB, which %s does not have; free some, or set "
                       "layer_dir",
                       j->path, (unsigned long long)(need / MIB + 1), j->dir);
}

/* --- first thread: look --- */

/* Places for the jail and the image. The jail's user may write this file; the directories above it
 * are root's alone. */
static int prepare_draft(struct job *j, struct err *err)
{
    j->draft = str_format("%s/" LAYERS_NEW "%s", j->dir, j->key);
    if (mkdir(j->draft, 0700) < 0)
        return err_sys(err, errno, "create %s", j->draft);
    j->to = open(j->draft, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (j->to < 0)
        return err_sys(err, errno, "open %s", j->draft);
    AUTO_FD int fd = openat(j->to, "image", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 || fchmod(fd, 0666) < 0 || mkdirat(j->to, ROOT, 0700) < 0)
        return err_sys(err, errno, "prepare %s", j->draft);
    j->out = tree_clone(fd, false, "the image", err);
    return j->out < 0 ? -1 : 0;
}

/* The hash tree takes 1/127 of the data. */
static int check_space(struct job *j, struct err *err)
{
    struct layers_opts o = j->o;
    uint64_t need = j->scan.bytes, others, reserve = j->o.free_mib * MIB;
    struct statvfs fs;

    if (need <= j->o.max_mib * MIB) { /* no overflow */
        need += j->scan.entries * ENTRY_BYTES;
        need += j->o.verity ? need / 100 : 0;
    }
    if (need > j->o.max_mib * MIB)
        return err_set(err, ERR_EXHAUSTED,
                       "the files of %s have %llu MiB, more than layer_images_max_mib = %u",
                       j->path, (unsigned long long)(need / MIB), j->o.max_mib);
    o.dir = j->dir;
    if (layers_make_room(&o, need, &others, err) < 0)
        return -1;
    if (statvfs(j->dir, &fs) < 0)
        return err_sys(err, errno, "look at %s", j->dir);
    uint64_t space = fs.f_bavail * fs.f_frsize;
    if (space < need + reserve)
        return no_space(err, j, need);
    j->most = j->o.max_mib * MIB - others;
    if (j->most > space - reserve)
        j->most = space - reserve;
    j->most -= j->o.verity ? j->most / 100 : 0;
    return 0;
}

static int begin(void *arg, struct err *err)
{
    struct job *j = arg;
    AUTO_FD int fd = tree_open_path(j->path, true, err);
    AUTO(layers_close) struct layers_image old = { .fd = -1 };
    struct err none = ERR_INIT;

    if (fd < 0 || layers_identify(&j->o, j->path, fd, &j->info.identity, err) < 0)
        return -1;
    layers_key_of(j->info.identity, j->key);
    memcpy(j->info.key, j->key, sizeof(j->key));
    step(j, LAYERS_LOCKED);
    if (layers_open_key(j->dir, j->key, j->info.identity, &old, &none) == 0) {
        layers_info_release(&j->info);
        j->info = old.info;
        old.info = (struct layers_info){ 0 };
        j->exists = true;
        return 0;
    }
    j->tree = jail_tree(fd);
    if (j->tree < 0)
        return err_sys(err, -TAKE_FD(j->tree), "make a mount of %s", j->path);
    j->scan_fd = openat(j->tree, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (j->scan_fd < 0)
        return err_sys(err, errno, "open %s", j->path);
    if (layers_scan(j->scan_fd, &j->scan, err) < 0 || check_space(j, err) < 0 ||
        prepare_draft(j, err) < 0)
        return -1;
    step(j, LAYERS_SCANNED);
    return 0;
}

/* --- mkfs.erofs --- */

/* In the child. What it writes is bounded even if it is wrong. Version 1.5 takes 4.6 KiB of memory
 * for each file; if the host has none left, it is the first to go. */
static int enter(void *arg, struct err *err)
{
    const struct job *j = arg;
    const rlim_t most = (rlim_t)j->most;

    (void)file_put("/proc/self/oom_score_adj", "1000"); /* a host without /proc has no OOM scores */
    if (jail_setup(j->jail, err) < 0)
        return -1;
    if (setrlimit(RLIMIT_FSIZE, &(struct rlimit){ most, most }) < 0 ||
        setrlimit(RLIMIT_AS, &(struct rlimit){ MEMORY_MAX, MEMORY_MAX }) < 0)
        return err_sys(err, errno, "set limits of " LAYERS_PROGRAM);
    return layers_confine(err);
}

/* Its last line, for an error. *ret_complained: there is an error message, in spite of which
 * version 1.5 may succeed: it continues after a write of data that failed. Caller frees. */
static char *last_words(int said, bool *ret_complained)
{
    char text[SAID_MAX + 1];
    off_t size = lseek(said, 0, SEEK_END);
    ssize_t n = pread(said, text, SAID_MAX, size > SAID_MAX ? size - SAID_MAX : 0);

    text[n > 0 ? n : 0] = '\0';
    *ret_complained = strstr(text, "<E>") != NULL;
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == ' '))
        n--;
    text[n > 0 ? n : 0] = '\0';
    const char *line = strrchr(text, '\n');
    return str_printable(line ? line + 1 : text);
}

/* j NULL: without a jail. */
static int run(struct ctx *ctx, const char *program, const char *const *argv, struct job *j,
               int said, int *ret_status, struct err *err)
{
    const struct child_fd fds[] = { { said, 1 }, { said, 2 } };
    AUTO(child_free) struct child *c = NULL;

    if (child_spawn(ctx,
                    &(struct child_opts){ .path = program,
                                          .argv = argv,
                                          .fds = fds,
                                          .n_fds = 2,
                                          .clone_flags = j ? JAIL_CLONE_FLAGS : 0,
                                          .setup = j ? enter : NULL,
                                          .setup_arg = j,
                                          .die_with_us = true },
                    &c, err) < 0)
        return -1;
    return child_wait(ctx, c, ret_status, err);
}

/* Caller frees. */
static char *find_program(struct err *err)
{
    char *program = child_find(LAYERS_PROGRAM);

    if (!program)
        err_set(err, ERR_NOT_FOUND, LAYERS_PROGRAM " is not installed: apt install erofs-utils");
    return program;
}

/* Children see the parent's descriptors only above CHILD_SAFE_FD. */
static int lift(int *fd, struct err *err)
{
    int high = fcntl(*fd, F_DUPFD_CLOEXEC, HIGH_FD);

    if (high < 0)
        return err_sys(err, errno, "prepare " LAYERS_PROGRAM);
    fd_close(*fd);
    *fd = high;
    return 0;
}

static int run_in_jail(struct ctx *ctx, struct job *j, int said, int *ret_status, struct err *err)
{
    static const char *const dirs[] = { LAYER, NULL };
    static const char *const argv[] = { LAYERS_PROGRAM, "--quiet", IMAGE, LAYER, NULL };
    AUTO_FREE char *program = find_program(err), *root = str_format("%s/" ROOT, j->draft);
    AUTO(jail_free) struct jail *jail = NULL;

    if (!program || lift(&j->tree, err) < 0 || lift(&j->out, err) < 0)
        return -1;
    const struct jail_file files[] = { { j->tree, LAYER }, { j->out, IMAGE } };
    if (jail_new(&(struct jail_opts){ .mount_point = root,
                                      .program = program,
                                      .uid = NOBODY,
                                      .caps = CAPS,
                                      .dirs = dirs,
                                      .files = files,
                                      .n_files = ARRAY_LEN(files) },
                 &jail, err) < 0)
        return -1;
    j->jail = jail;
    int r = run(ctx, program, argv, j, said, ret_status, err);
    j->jail = NULL;
    return r;
}

/* Not every version says why a write failed. As process 1 of its jail it has an error instead of
 * SIGXFSZ. */
static bool ran_full(const struct job *j, const char *words)
{
    struct statvfs fs;
    struct stat st;

    return strstr(words, "No space left") || strstr(words, "-28]") ||
           strstr(words, "File too large") || strstr(words, "Failed to write data") ||
           (fstatvfs(j->out, &fs) == 0 && fs.f_bavail * fs.f_frsize < FULL_BYTES) ||
           (fstat(j->out, &st) == 0 && (uint64_t)st.st_size + FULL_BYTES > j->most);
}

static int pack(struct ctx *ctx, struct job *j, struct err *err)
{
    AUTO_FD int said = memfd_create(LAYERS_PROGRAM, MFD_CLOEXEC);
    int status = 0;

    if (said < 0)
        return err_sys(err, errno, "make a file in memory");
    if (run_in_jail(ctx, j, said, &status, err) < 0)
        return err_wrap(err, LAYERS_PROGRAM);
    bool complained;
    AUTO_FREE char *words = last_words(said, &complained);
    if (status == 0 && !complained)
        return 0;
    bool full = ran_full(j, words);
    if (full)
        return err_because(err, REASON_DISK_FULL, ERR_EXHAUSTED,
                           "no space for the image of %s in %s: %s", j->path, j->dir, words);
    return err_set(err, ERR_UNAVAILABLE, LAYERS_PROGRAM " of %s failed (status %d): %s", j->path,
                   status, words);
}

int layers_program(struct ctx *ctx, char **ret_version, struct err *err)
{
    static const char *const argv[] = { LAYERS_PROGRAM, "--version", NULL };
    struct ctx limited = ctx_with_timeout(ctx, VERSION_NS);
    AUTO_FREE char *program = find_program(err);
    AUTO_FD int said = memfd_create(LAYERS_PROGRAM, MFD_CLOEXEC);
    char text[SAID_MAX + 1];
    int status;

    if (!program)
        return -1;
    if (said < 0)
        return err_sys(err, errno, "make a file in memory");
    if (run(&limited, program, argv, NULL, said, &status, err) < 0)
        return -1;
    /* "mkfs.erofs 1.5", and a complaint about the option; later "mkfs.erofs (erofs-utils) 1.8.6" */
    ssize_t n = pread(said, text, SAID_MAX, 0);
    text[n > 0 ? n : 0] = '\0';
    const char *at = strstr(text, LAYERS_PROGRAM " ");
    at = at ? at + strcspn(at, "0123456789\n") : "";
    *ret_version = str_ndup(at, strspn(at, "0123456789."));
    return 0;
}

/* --- second thread: seal and publish --- */

static int seal(struct job *j, int fd, struct err *err)
{
    AUTO_FREE char *header = str_format("%s/header", j->draft),
                   *image = str_format("/proc/self/fd/%d", fd);
    struct layers_info *i = &j->info;
    uint8_t salt[SALT_BYTES];
    struct stat st;
    size_t len;

    if (fstat(fd, &st) < 0)
        return err_sys(err, errno, "look at the image");
    i->data_bytes = (uint64_t)st.st_size;
    rand_bytes(salt, sizeof(salt));
    if (j->o.verity && layers_add_verity(fd, salt, sizeof(salt), i->root_hash, err) < 0)
        return -1;
    if (fchmod(fd, 0400) < 0 || fsync(fd) < 0)
        return err_sys(err, errno, "write the image to the disk");
    int r = sha256_sparse_file(image, i->sha256);
    if (r < 0 || fstat(fd, &st) < 0)
        return err_sys(err, r < 0 ? -r : errno, "read the image");
    i->path = str_dup(j->path);
    i->stamp = str_dup(j->scan.stamp);
    i->entries = j->scan.entries;
    i->size = (uint64_t)st.st_size;
    i->inode = st.st_ino;
    i->mtime_ns = owned_mtime_ns(&st);
    AUTO_FREE char *text = layers_header_format(i, &len);
    r = file_replace(header, text, len, 0600);
    return r < 0 ? err_sys(err, -r, "write %s", header) : 0;
}

/* Nothing of the layer has changed, and it still is at its path. */
static int check_unchanged(const struct job *j, struct err *err)
{
    AUTO_FD int fd = tree_open_path(j->path, true, err);
    AUTO_FREE char *now = NULL;
    struct layers_scan scan;

    if (fd < 0 || layers_identify(&j->o, j->path, fd, &now, err) < 0 ||
        layers_scan(j->scan_fd, &scan, err) < 0)
        return -1;
    if (!str_eq(now, j->info.identity) || !str_eq(scan.stamp, j->scan.stamp))
        return err_set(err, ERR_STATE, "%s was changed while its image was made", j->path);
    return 0;
}

static int publish(struct job *j, struct err *err)
{
    AUTO_FREE char *to = str_format("%s/%s", j->dir, j->key);

    if (unlinkat(j->to, ROOT, AT_REMOVEDIR) < 0)
        return err_sys(err, errno, "remove %s/" ROOT, j->draft);
    if (rename(j->draft, to) < 0)
        return err_sys(err, errno, "rename %s", j->draft);
    j->published = true;
    AUTO_FD int store = open(j->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (store >= 0)
        (void)fsync(store); /* if the rename is lost, the image is built again */
    step(j, LAYERS_RENAMED);
    return 0;
}

static int finish(void *arg, struct err *err)
{
    struct job *j = arg;
    AUTO_FD int fd = openat(j->to, "image", O_RDWR | O_NOFOLLOW | O_CLOEXEC);

    if (fd < 0)
        return err_sys(err, errno, "open the image");
    step(j, LAYERS_PACKED);
    if (check_unchanged(j, err) < 0 || seal(j, fd, err) < 0)
        return -1;
    step(j, LAYERS_SEALED);
    return publish(j, err);
}

/* --- all of it --- */

static int build(struct ctx *ctx, struct job *j, struct err *err)
{
    if (layers_program(ctx, &j->info.tool, err) < 0 || pack(ctx, j, err) < 0) {
        drop(j);
        return -1;
    }
    j->info.created_ns = loop_wall(ctx->loop);
    return OFFLOAD(ctx, finish, j, 2, drop, "seal a layer image", err);
}

/* The caller has the lock. */
static int build_alone(struct ctx *ctx, const struct layers_opts *o, const char *path,
                       struct layers_info *ret, bool *ret_made, struct err *err)
{
    struct job j = {
        .dir = o->dir, .path = path, .o = *o, .to = -1, .tree = -1, .out = -1, .scan_fd = -1
    };
    char key[LAYERS_KEY_SIZE];
    uint64_t begun = loop_now(ctx->loop);

    j.o.dir = NULL; /* the thread has a copy of dir */
    j.o.now_ns = loop_wall(ctx->loop);
    int r = OFFLOAD(ctx, begin, &j, 2, drop, "look at a layer", err);
    memcpy(key, j.key, sizeof(key));
    bool exists = r == 0 && j.exists;
    if (r == 0 && !exists)
        r = build(ctx, &j, err);
    if (r < 0) {
        if (key[0] && err->code != ERR_CANCELLED)
            layers_remember_failure(o->dir, key, err->msg);
        return -1;
    }
    if (!exists)
        log_info(ctx, "layer image made", F_STR("key", key), F_STR("path", path),
                 F_U("bytes", j.info.size), F_NS("took", loop_now(ctx->loop) - begun));
    *ret = j.info;
    j.info = (struct layers_info){ 0 };
    drop(&j);
    *ret_made = !exists;
    return 0;
}

int layers_build(struct ctx *ctx, const struct layers_opts *o, const char *path,
                 struct layers_info *ret, bool *ret_made, struct err *err)
{
    struct ctx turn = ctx_with_timeout(ctx, TURN_NS);
    AUTO_FD int lock = -1;

    if (dir_need(o->dir, 0700, err) < 0 || layers_lock(&turn, o->dir, &lock, err) < 0)
        return err_wrap(err, "layer image");
    struct ctx limited = ctx_with_timeout(ctx, BUILD_NS);
    return build_alone(&limited, o, path, ret, ret_made, err) < 0 ? err_wrap(err, "layer image")
                                                                  : 0;
}
