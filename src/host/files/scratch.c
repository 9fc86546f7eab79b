#include "host/files/scratch.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/loop.h"
#include "base/offload.h"
#include "base/str.h"
#include "host/files/scratch_priv.h"
#include "host/ledger/ledger.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define UNDO_NS (5 * NS_PER_S)
#define TRIES 16 /* a neighbour's removal or a sweep may take the directory from under us */

struct scratch {
    char *ns_dir, *dir, *path;
    int fd, lock;
    int making; /* ends when the thread does that was given up while it made the disk; -1: none */
    struct ledger *ledger;
    uint64_t note; /* 0: none */
};

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
    char *dir;
    uint32_t free_mib;
};

static void room_free(void *arg)
{
    struct room *room = arg;

    if (room)
        free(room->dir);
    free(room);
}

static int room_in_thread(void *arg, struct err *err)
{
    const struct room *room = arg;
    struct statvfs fs;

    if (statvfs(room->dir, &fs) < 0)
        return errno == ENOENT ? 0 : err_sys(err, errno, "look at %s", room->dir);
    uint64_t free_mib = (uint64_t)fs.f_bavail * fs.f_frsize >> 20;
    if (free_mib >= room->free_mib)
        return 0;
    return err_set(
        err, ERR_EXHAUSTED,
        "%s has %llu MiB free, and %u MiB must be left for the containers that run: make "
        "room there, or change scratch_dir or scratch_free_mib",
        room->dir, (unsigned long long)free_mib, room->free_mib);
}

int scratch_room(struct ctx *ctx, const char *dir, uint32_t free_mib, struct err *err)
{
    struct room *room = mem_new(struct room);
    void *arg = room;

    *room = (struct room){ str_dup(dir), free_mib };
    int r = offload_run(ctx, room_in_thread, &arg, room_free, "room for scratch disks", err);
    room_free(arg);
    return r;
}

/* --- making, in a thread --- */

struct job {
    char *ns_dir, *dir, *path;
    int from;     /* the template */
    int fd, lock; /* out */
    int end;      /* closed when the thread has ended */
};

static void job_free(void *arg)
{
    struct job *j = arg;

    if (!j)
        return;
    fd_close_later(j->from);
    fd_close_later(j->fd);
    fd_close_later(j->lock);
    fd_close(j->end);
    free(j->ns_dir);
    free(j->dir);
    free(j->path);
    free(j);
}

static struct job *job_new(const struct scratch *s, int from)
{
    struct job *j = mem_new(struct job);

    j->ns_dir = str_dup(s->ns_dir);
    j->dir = str_dup(s->dir);
    j->path = str_dup(s->path);
    j->from = from;
    j->fd = j->lock = j->end = -1;
    return j;
}

/* 1: it vanished between two steps. */
static int lock_dir(struct job *j, struct err *err)
{
    int r = dir_make(j->ns_dir, 0700);

    if (r < 0)
        return scratch_err(err, -r, "make the directory", j->ns_dir);
    if (mkdir(j->dir, 0700) < 0 && errno != EEXIST)
        return errno == ENOENT ? 1 : scratch_err(err, errno, "make the directory", j->dir);
    AUTO_FD int lock = open(j->dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (lock < 0)
        return errno == ENOENT ? 1 : err_sys(err, errno, "open %s", j->dir);
    if (flock(lock, LOCK_EX | LOCK_NB) < 0)
        return errno == EWOULDBLOCK
                   ? err_set(err, ERR_EXISTS, "somebody living uses %s already", j->dir)
                   : err_sys(err, errno, "lock %s", j->dir);
    struct stat st;
    if (fstat(lock, &st) < 0)
        return err_sys(err, errno, "look at %s", j->dir);
    if (st.st_nlink == 0)
        return 1; /* removed before we had the lock */
    j->lock = TAKE_FD(lock);
    return 0;
}

static int make_in_thread(void *arg, struct err *err)
{
    struct job *j = arg;
    int r = 1;

    for (int i = 0; r == 1 && i < TRIES; i++)
        r = lock_dir(j, err);
    if (r == 1)
        return err_set(err, ERR_ABORTED, "%s is removed again and again", j->dir);
    if (r < 0)
        return -1;
    /* What a dead one of the same name left is nobody's. */
    if (unlink(j->path) < 0 && errno != ENOENT)
        return err_sys(err, errno, "remove %s", j->path);
    AUTO_FD int fd = open(j->path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return scratch_err(err, errno, "make a scratch disk", j->dir);
    if (scratch_copy(j->from, fd, j->dir, err) < 0)
        return -1;
    j->fd = TAKE_FD(fd);
    return 0;
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

static int run(struct ctx *ctx, struct scratch *s, int from, int (*fn)(void *arg, struct err *err),
               struct err *err)
{
    struct job *j = job_new(s, from);
    void *arg = j;
    int ends[2], r;

    if (pipe2(ends, O_CLOEXEC) < 0) {
        r = err_sys(err, errno, "pipe");
        job_free(j);
        return r;
    }
    j->end = ends[1];
    r = offload_run(ctx, fn, &arg, job_free, "scratch disk", err);
    j = arg;
    if (r == 0 && j->fd >= 0) {
        s->fd = TAKE_FD(j->fd);
        s->lock = TAKE_FD(j->lock);
    }
    if (!j && s->making < 0)
        s->making = TAKE_FD(ends[0]); /* ctx ended first: the thread goes on */
    fd_close(ends[0]);
    job_free(j);
    return r;
}

/* --- the object --- */

static int fill(struct ctx *ctx, struct scratch *s, const struct scratch_opts *o, struct err *err)
{
    int from = scratch_template(ctx, o->dir, o->size_mib, o->ledger, err);

    if (from < 0)
        return -1;
    if (scratch_room(ctx, o->dir, o->free_mib, err) < 0) {
        fd_close_later(from);
        return -1;
    }
    if (ledger_note(o->ledger, LEDGER_DIR, s->dir, &s->note, err) < 0) {
        fd_close_later(from);
        return -1;
    }
    if (run(ctx, s, from, make_in_thread, err) == 0)
        return 0;
    struct ctx root = ctx_root(ctx->loop), limited = ctx_with_timeout(&root, UNDO_NS);
    struct err ignored = ERR_INIT; /* the record stays then, and gc takes it */
    if (err->code == ERR_EXISTS)   /* not ours to remove */
        (void)ledger_forget(s->ledger, s->note, &ignored);
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
        return err_wrap(err, "scratch disk");
    if (o->size_mib < SCRATCH_MIB_MIN || o->size_mib > SCRATCH_MIB_MAX)
        return err_set(err, ERR_INVALID, "a scratch disk of %u MiB; possible are %u to %u",
                       o->size_mib, SCRATCH_MIB_MIN, SCRATCH_MIB_MAX);
    s->ns_dir = str_format("%s/sandboxes/%s", o->dir, o->ns);
    s->dir = str_format("%s/%s", s->ns_dir, o->id);
    s->path = str_format("%s/scratch.img", s->dir);
    s->ledger = o->ledger;
    if (fill(ctx, s, o, err) < 0)
        return err_wrap(err, "scratch disk");
    *ret = TAKE_PTR(s);
    return 0;
}

int scratch_fd(const struct scratch *s)
{
    return s->fd;
}

const char *scratch_path(const struct scratch *s)
{
    return s->path;
}

int scratch_remove(struct ctx *ctx, struct scratch *s, struct err *err)
{
    if (!s->note)
        return 0;
    /* Else the thread makes again what is removed here. */
    if (s->making >= 0 &&
        loop_wait_fd(ctx, s->making, POLLIN, "the scratch disk's thread", err) < 0)
        return err_wrap(err, "scratch disk");
    if (run(ctx, s, -1, remove_in_thread, err) < 0 || ledger_forget(s->ledger, s->note, err) < 0)
        return err_wrap(err, "scratch disk");
    s->note = 0;
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

/* --- what nobody names --- */

struct sweep {
    bool dry_run;
    void (*fn)(void *arg, const char *name, const char *path, const char *result);
    void *arg;
    size_t failed;
    struct err *err; /* the first failure */
};

static int is_name(const struct dirent *d)
{
    return d->d_name[0] != '.';
}

/* Says what became of it. */
static void swept(struct sweep *w, const char *name, const char *path, int r)
{
    if (r < 0 && w->failed++ == 0)
        err_sys(w->err, -r, "remove %s", path);
    if (w->fn)
        w->fn(w->arg, name, path,
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

static int is_old(const struct dirent *d)
{
    return scratch_template_is_old(d->d_name);
}

static int sweep_templates(struct sweep *w, const char *dir, struct err *err)
{
    AUTO_FREE char *top = str_format("%s/scratch", dir);
    struct dirent **names;
    int n = scandir(top, &names, is_old, alphasort);

    if (n < 0)
        return errno == ENOENT ? 0 : err_sys(err, errno, "read %s", top);
    for (int i = 0; i < n; i++) {
        AUTO_FREE char *path = str_format("%s/%s", top, names[i]->d_name);
        AUTO_FREE char *name = str_format("template/%s", names[i]->d_name);
        bool failed = !w->dry_run && unlink(path) < 0 && errno != ENOENT;

        swept(w, name, path, failed ? -errno : 0);
        free(names[i]);
    }
    free(names);
    return 0;
}

static int sweep_ns(struct sweep *w, const char *dir, const char *ns, struct err *err)
{
    struct dirent **names;
    int n = scandir(dir, &names, is_name, alphasort);

    if (n < 0)
        return errno == ENOENT || errno == ENOTDIR ? 0 : err_sys(err, errno, "read %s", dir);
    for (int i = 0; i < n; i++) {
        AUTO_FREE char *path = str_format("%s/%s", dir, names[i]->d_name);
        AUTO_FREE char *name = str_format("%s/%s", ns, names[i]->d_name);
        sweep_one(w, name, path);
        free(names[i]);
    }
    free(names);
    if (!w->dry_run)
        (void)rmdir(dir); /* others may have theirs in it */
    return 0;
}

int scratch_sweep(const char *dir, bool dry_run,
                  void (*fn)(void *arg, const char *name, const char *path, const char *result),
                  void *arg, struct err *err)
{
    struct sweep w = { .dry_run = dry_run, .fn = fn, .arg = arg, .err = err };
    AUTO_FREE char *top = str_format("%s/sandboxes", dir);
    struct dirent **names;
    int r = sweep_templates(&w, dir, err);
    int n = scandir(top, &names, is_name, alphasort);

    if (n < 0 && errno == ENOENT)
        return r < 0 || w.failed > 0 ? -1 : 0;
    if (n < 0)
        return err_sys(err, errno, "read %s", top);
    for (int i = 0; i < n; i++) {
        AUTO_FREE char *path = str_format("%s/%s", top, names[i]->d_name);
        if (r == 0)
            r = sweep_ns(&w, path, names[i]->d_name, err);
        free(names[i]);
    }
    free(names);
    return r < 0 || w.failed > 0 ? -1 : 0;
}
