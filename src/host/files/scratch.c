/* scratch.c - mke2fs formats a disk in memory (a memfd), and a thread copies what it wrote into the
 * sparse file. On the file itself mke2fs calls fsync four times, and on a busy disk each waits for
 * what others write; what is formatted here needs no disk at all (docs/decisions/0006).
 *
 * No journal and no checksums of metadata: the file system never outlives its VM, so nothing is
 * ever recovered, and each write would cost twice. assume_storage_prezeroed: a new sparse file is
 * zeros; without it either mke2fs writes the inode tables or the guest's kernel does, later, in
 * the background (160 MiB for 10 GiB). The built-in defaults of mke2fs are used, not the host's
 * /etc/mke2fs.conf: a guest kernel must be able to mount it. Quotas of projects: each container's
 * directory is one, and what it takes is known and can be limited. */
#include "base/child.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/loop.h"
#include "base/offload.h"
#include "base/str.h"
#include "host/files/scratch_priv.h"
#include "host/ledger/ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#define FORMAT_NS (60 * NS_PER_S)
#define UNDO_NS (5 * NS_PER_S)
#define TRIES 16 /* a neighbour's removal or a sweep may take the directory from under us */

#define FEATURES "^has_journal,^metadata_csum,uninit_bg,^resize_inode,^orphan_file,quota,project"
#define EXTENDED "assume_storage_prezeroed=1,nodiscard,root_owner=0:0,quotatype=prjquota"

/* ENOSPC and EDQUOT name the directory that is full. */
static int no_disk(struct err *err, int errnum, const char *doing, const char *dir)
{
    if (errnum != ENOSPC && errnum != EDQUOT)
        return err_sys(err, errnum, "%s in %s", doing, dir);
    err_because(err, REASON_DISK_FULL, ERR_EXHAUSTED,
                "%s: no space is left in %s; free some, or set scratch_dir", doing, dir);
    err->sys = errnum;
    return -1;
}

static int check_name(const char *what, const char *name, struct err *err)
{
    if (name && *name && strlen(name) <= 255 && !strchr(name, '/') && !str_eq(name, ".") &&
        !str_eq(name, ".."))
        return 0;
    return err_set(err, ERR_INVALID, "%s \"%s\" cannot be the name of a directory", what,
                   name ? name : "");
}

/* --- room, in a thread --- */

struct room {
    const char *dir;
    uint32_t free_mib;
};

static int room_in_thread(void *arg, struct err *err)
{
    const struct room *room = arg;
    struct statvfs fs;

    if (statvfs(room->dir, &fs) < 0)
        return errno == ENOENT ? 0 : err_sys(err, errno, "look at %s", room->dir);
    uint64_t free_mib = (uint64_t)fs.f_bavail * fs.f_frsize >> 20;
    if (free_mib >= room->free_mib)
        return 0;
    return err_because(
        err, REASON_DISK_FULL, ERR_EXHAUSTED,
        "%s has %llu MiB free, and %u MiB must be left for the containers that run: make "
        "room there, or change scratch_dir or scratch_free_mib",
        room->dir, (unsigned long long)free_mib, room->free_mib);
}

int scratch_room(struct ctx *ctx, const char *dir, uint32_t free_mib, struct err *err)
{
    struct room room = { dir, free_mib };

    return OFFLOAD(ctx, room_in_thread, &room, 1, NULL, "room for scratch disks", err);
}

/* --- formatting, in memory --- */

const char *scratch_mke2fs(void)
{
    return access("/usr/sbin/mke2fs", X_OK) == 0 ? "/usr/sbin/mke2fs" : "mke2fs";
}

static int judge(int status, int said, struct err *err)
{
    char text[300] = "";
    ssize_t n = pread(said, text, sizeof(text) - 1, 0);

    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    for (ssize_t i = 0; i < n; i++)
        text[i] = text[i] == '\n' ? ' ' : text[i];
    return err_because(err, REASON_SCRATCH_FAILED, ERR_INTERNAL, "mke2fs failed (%s %d): %s",
                       WIFEXITED(status) ? "exit status" : "signal",
                       WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status), text);
}

static int format(struct ctx *ctx, uint32_t size_mib, int *ret_image, struct err *err)
{
    static const char *const env[] = { "LC_ALL=C", "MKE2FS_CONFIG=/nonexistent", NULL };
    const char *mke2fs = scratch_mke2fs();
    const char *const argv[] = { mke2fs,   "-q", "-F",     "-t",
                                 "ext4",   "-b", "4096",   "-I",
                                 "256",    "-m", "0",      "-O",
                                 FEATURES, "-E", EXTENDED, "/proc/self/fd/3",
                                 NULL };
    struct ctx limited = ctx_with_timeout(ctx, FORMAT_NS);
    AUTO_FD int image = memfd_create("scratch", MFD_CLOEXEC),
                said = memfd_create("mke2fs", MFD_CLOEXEC);
    const struct child_fd fds[] = { { said, 2 }, { image, 3 } };
    AUTO(child_free) struct child *c = NULL;
    int status;

    if (image < 0 || said < 0 || ftruncate(image, (off_t)size_mib << 20) < 0)
        return err_sys(err, errno, "make a file in memory");
    if (child_spawn(&limited,
                    &(struct child_opts){
                        .argv = argv, .envp = env, .fds = fds, .n_fds = 2, .die_with_us = true },
                    &c, err) < 0)
        return err_wrap_because(err, REASON_SCRATCH_FAILED, "format (install e2fsprogs)");
    if (child_wait(&limited, c, &status, err) < 0)
        return err_wrap_because(err, REASON_SCRATCH_FAILED, "mke2fs");
    if (judge(status, said, err) < 0)
        return -1;
    *ret_image = TAKE_FD(image);
    return 0;
}

/* --- making, in a thread --- */

struct job {
    const char *ns_dir, *dir, *path;
    int image;    /* what was formatted */
    int fd, lock; /* out */
    int end;      /* closed when the thread has ended */
};

static void drop(void *arg)
{
    struct job *j = arg;

    fd_close(j->image);
    fd_close_later(j->fd);
    fd_close_later(j->lock);
    fd_close(j->end);
}

/* 1: it vanished between two steps. */
static int lock_dir(struct job *j, struct err *err)
{
    int r = dir_make(j->ns_dir, 0700);

    if (r < 0)
        return r == -ENOENT ? 1 : no_disk(err, -r, "make the directory", j->ns_dir);
    if (mkdir(j->dir, 0700) < 0 && errno != EEXIST)
        return errno == ENOENT ? 1 : no_disk(err, errno, "make the directory", j->dir);
    AUTO_FD int lock = open(j->dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (lock < 0)
        return errno == ENOENT ? 1 : err_sys(err, errno, "open %s", j->dir);
    if (flock(lock, LOCK_EX | LOCK_NB) < 0)
        return errno == EWOULDBLOCK
                   ? err_set(err, ERR_EXISTS, "%s is in use by a running process", j->dir)
                   : err_sys(err, errno, "lock %s", j->dir);
    struct stat st;
    if (fstat(lock, &st) < 0)
        return err_sys(err, errno, "look at %s", j->dir);
    if (st.st_nlink == 0)
        return 1; /* removed before we had the lock */
    j->lock = TAKE_FD(lock);
    return 0;
}

/* Holes stay holes: an empty file system of 10 GiB is 168 KiB. */
static int copy_data(int from, int to)
{
    for (off_t at = 0;;) {
        at = lseek(from, at, SEEK_DATA);
        if (at < 0)
            return errno == ENXIO ? 0 : -errno; /* only a hole is left */
        off_t hole = lseek(from, at, SEEK_HOLE);
        if (hole < 0 || lseek(to, at, SEEK_SET) < 0)
            return -errno;
        while (at < hole) {
            ssize_t n = sendfile(to, from, &at, (size_t)(hole - at));
            if (n == 0 || (n < 0 && errno != EINTR))
                return n < 0 ? -errno : -EIO;
        }
    }
}

static int make_in_thread(void *arg, struct err *err)
{
    struct job *j = arg;
    struct stat st;
    int r = 1;

    for (int i = 0; r == 1 && i < TRIES; i++)
        r = lock_dir(j, err);
    if (r == 1)
        return err_set(err, ERR_ABORTED, "%s was removed repeatedly by another process", j->dir);
    if (r < 0)
        return -1;
    /* A killed shim of the same name may have left its disk. */
    if (unlink(j->path) < 0 && errno != ENOENT)
        return err_sys(err, errno, "remove %s", j->path);
    j->fd = open(j->path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    r = j->fd < 0 || fstat(j->image, &st) < 0 || ftruncate(j->fd, st.st_size) < 0
            ? -errno
            : copy_data(j->image, j->fd);
    return r < 0 ? no_disk(err, -r, "make a scratch disk", j->dir) : 0;
}

/* The namespace's directory goes with its last sandbox. */
static int remove_in_thread(void *arg, struct err *err)
{
    struct job *j = arg;
    int r = dir_remove(j->dir);

    if (r < 0)
        return err_sys(err, -r, "remove %s", j->dir);
    (void)rmdir(j->ns_dir); /* others may have theirs in it */
    return 0;
}

/* Takes image. */
static int run(struct ctx *ctx, struct scratch *s, int image, int (*fn)(void *arg, struct err *err),
               struct err *err)
{
    struct job j = { s->ns_dir, s->dir, s->path, image, .fd = -1, .lock = -1 };
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) < 0) {
        fd_close(image);
        return err_sys(err, errno, "pipe");
    }
    j.end = ends[1];
    if (OFFLOAD(ctx, fn, &j, 3, drop, "scratch disk", err) < 0) {
        fd_close(s->making); /* one that has ended: see scratch_remove() */
        s->making = ends[0];
        return -1;
    }
    if (j.fd >= 0) {
        s->fd = TAKE_FD(j.fd);
        s->lock = TAKE_FD(j.lock);
    }
    drop(&j);
    fd_close(ends[0]);
    return 0;
}

/* --- the object --- */

static int fill(struct ctx *ctx, struct scratch *s, const struct scratch_opts *o, struct err *err)
{
    AUTO_FD int image = -1;

    if (scratch_room(ctx, o->dir, o->free_mib, err) < 0 ||
        format(ctx, o->size_mib, &image, err) < 0 ||
        ledger_add(o->ledger, LEDGER_DIR, s->dir, &s->record, err) < 0)
        return -1;
    if (run(ctx, s, TAKE_FD(image), make_in_thread, err) == 0)
        return 0;
    struct ctx limited = ctx_limited(ctx->loop, UNDO_NS);
    struct err ignored = ERR_INIT; /* the record stays then, and gc takes it */
    if (err->code == ERR_EXISTS)   /* not ours to remove */
        (void)ledger_forget(s->ledger, s->record, &ignored);
    else
        (void)scratch_remove(&limited, s, &ignored);
    return -1;
}

int scratch_make(struct ctx *ctx, const struct scratch_opts *o, struct scratch **ret,
                 struct err *err)
{
    AUTO(scratch_free) struct scratch *s = mem_new(struct scratch);

    s->fd = s->lock = s->making = -1;
    if (check_name("namespace", o->ns, err) < 0 || check_name("sandbox", o->id, err) < 0)
        return err_wrap_because(err, REASON_SCRATCH_FAILED, "scratch disk");
    if (o->size_mib < SCRATCH_MIB_MIN || o->size_mib > SCRATCH_MIB_MAX)
        return err_because(err, REASON_SCRATCH_FAILED, ERR_INVALID,
                           "invalid scratch disk size %u MiB: must be %u–%u MiB", o->size_mib,
                           SCRATCH_MIB_MIN, SCRATCH_MIB_MAX);
    s->ns_dir = str_format("%s/sandboxes/%s", o->dir, o->ns);
    s->dir = str_format("%s/%s", s->ns_dir, o->id);
    s->path = str_format("%s/scratch.img", s->dir);
    s->ledger = o->ledger;
    if (fill(ctx, s, o, err) < 0)
        return err_wrap_because(err, REASON_SCRATCH_FAILED, "scratch disk");
    *ret = TAKE_PTR(s);
    return 0;
}

int scratch_fd(const struct scratch *s)
{
    return s->fd;
}

int scratch_remove(struct ctx *ctx, struct scratch *s, struct err *err)
{
    if (!s->record)
        return 0;
    /* Else the thread makes again what is removed here. */
    if (s->making >= 0 &&
        loop_wait_fd(ctx, s->making, POLLIN, "the scratch disk's thread", err) < 0)
        return err_wrap_because(err, REASON_SCRATCH_FAILED, "scratch disk");
    if (run(ctx, s, -1, remove_in_thread, err) < 0 || ledger_forget(s->ledger, s->record, err) < 0)
        return err_wrap_because(err, REASON_SCRATCH_FAILED, "scratch disk");
    s->record = 0;
    return 0;
}

void scratch_free(struct scratch *s)
{
    if (!s)
        return;
    fd_close_later(s->fd);
    fd_close_later(s->lock);
    fd_close(s->making);
    free(s->ns_dir);
    free(s->dir);
    free(s->path);
    free(s);
}

void scratch_drop_empty(const char *dir, const char *ns)
{
    AUTO_FREE char *ns_dir = str_format("%s/sandboxes/%s", dir, ns);

    (void)rmdir(ns_dir); /* others may have theirs in it */
}

/* --- directories that no ledger names --- */

struct sweep {
    bool dry_run;
    void (*fn)(void *arg, const char *name, const char *path, int taken, const char *result);
    void *arg;
    size_t failed;
    struct err *err; /* the first failure */
};

/* Says what became of it. */
static void swept(struct sweep *w, const char *name, const char *path, int r)
{
    if (r < 0 && w->failed++ == 0)
        err_sys(w->err, -r, "remove %s", path);
    if (w->fn)
        w->fn(w->arg, name, path, r < 0 ? -1 : 1,
              r < 0 ? strerror(-r) : (w->dry_run ? "would be removed" : "removed"));
}

static void sweep_one(struct sweep *w, const char *name, const char *path)
{
    AUTO_FD int lock = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int r = lock < 0 ? -errno : 0;

    if (r == 0 && flock(lock, LOCK_EX | LOCK_NB) < 0)
        r = -errno;
    if (r == -EWOULDBLOCK || r == -ENOENT)
        return; /* in use, or gone */
    if (r == 0 && !w->dry_run)
        r = dir_remove(path);
    swept(w, name, path, r);
}

/* Older versions of lcow kept a formatted disk of each size to copy from. */
static void sweep_template(struct sweep *w, const char *name, const char *path)
{
    if (!str_starts(name, "template/ext4-v") || !str_ends(name, ".img"))
        return;
    bool failed = !w->dry_run && unlink(path) < 0 && errno != ENOENT;
    swept(w, name, path, failed ? -errno : 0);
}

/* Calls fn for each name in dir, with prefix before it. */
static void sweep_dir(struct sweep *w, const char *prefix, const char *dir,
                      void (*fn)(struct sweep *w, const char *name, const char *path))
{
    struct dirent **names = NULL;
    int n = scandir(dir, &names, NULL, alphasort);

    if (n < 0 && errno != ENOENT && errno != ENOTDIR && w->failed++ == 0)
        err_sys(w->err, errno, "read %s", dir);
    for (int i = 0; i < n; i++) {
        AUTO_FREE char *path = str_format("%s/%s", dir, names[i]->d_name),
                       *name = str_format("%s%s", prefix, names[i]->d_name);
        if (names[i]->d_name[0] != '.')
            fn(w, name, path);
        free(names[i]);
    }
    free(names);
}

static void sweep_ns(struct sweep *w, const char *name, const char *path)
{
    AUTO_FREE char *prefix = str_format("%s/", name);

    sweep_dir(w, prefix, path, sweep_one);
    if (!w->dry_run)
        (void)rmdir(path); /* others may have theirs in it */
}

int scratch_sweep(const char *dir, bool dry_run,
                  void (*fn)(void *arg, const char *name, const char *path, int taken,
                             const char *result),
                  void *arg, struct err *err)
{
    struct sweep w = { .dry_run = dry_run, .fn = fn, .arg = arg, .err = err };
    AUTO_FREE char *templates = str_format("%s/scratch", dir),
                   *sandboxes = str_format("%s/sandboxes", dir);

    sweep_dir(&w, "template/", templates, sweep_template);
    if (!dry_run)
        (void)rmdir(templates);
    sweep_dir(&w, "", sandboxes, sweep_ns);
    return w.failed > 0 ? -1 : 0;
}
