/* template_draft.c - writing into the store, and what identifies a template. */
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/offload.h"
#include "base/rand.h"
#include "base/sha256.h"
#include "base/str.h"
#include "host/ledger/ledger.h"
#include "host/template/template.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define DRAFT_PREFIX ".new-"

/* --- the lock --- */

struct lock_job {
    int fd;
    bool wait;
};

static void lock_job_free(void *arg)
{
    struct lock_job *j = arg;

    fd_close(j->fd);
    free(j);
}

static int lock_in_thread(void *arg, struct err *err)
{
    struct lock_job *j = arg;

    if (flock(j->fd, LOCK_EX | (j->wait ? 0 : LOCK_NB)) == 0)
        return 0;
    if (errno == EWOULDBLOCK)
        return err_set(err, ERR_EXISTS, "a template is being built already");
    return err_sys(err, errno, "lock the templates");
}

int template_lock(struct ctx *ctx, const char *dir, bool wait, int *ret, struct err *err)
{
    int r = dir_make(dir, 0700);
    struct lock_job *j;
    void *arg;

    if (r < 0)
        return err_sys(err, -r, "make %s", dir);
    j = mem_new(struct lock_job);
    j->wait = wait;
    j->fd = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (j->fd < 0) {
        r = errno;
        lock_job_free(j);
        return err_sys(err, r, "open %s", dir);
    }
    arg = j;
    r = offload_run(ctx, lock_in_thread, &arg, lock_job_free, "lock the templates", err);
    if (!arg)
        return -1;
    if (r == 0)
        *ret = TAKE_FD(j->fd);
    lock_job_free(j);
    return r;
}

/* --- drafts --- */

/* We hold the lock: whoever made these is gone. Best effort; they are only in the way of space. */
static void remove_old_drafts(const char *dir)
{
    DIR *d = opendir(dir);

    for (struct dirent *e; d && (e = readdir(d));) {
        if (!str_starts(e->d_name, DRAFT_PREFIX))
            continue;
        AUTO_FREE char *path = str_format("%s/%s", dir, e->d_name);
        (void)dir_remove(path);
    }
    if (d)
        closedir(d);
}

static int make_file(const char *dir, const char *name, uint64_t bytes, int *ret, struct err *err)
{
    AUTO_FREE char *path = str_format("%s/%s", dir, name);
    AUTO_FD int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    int r = fd < 0 ? errno : 0;

    /* A hole that the disk has no room for would kill QEMU by SIGBUS when it is written to. */
    if (r == 0 && bytes > 0)
        r = posix_fallocate(fd, 0, (off_t)bytes);
    if (r > 0)
        return err_sys(err, r, "make %s of %llu bytes", path, (unsigned long long)bytes);
    *ret = TAKE_FD(fd);
    return 0;
}

int template_draft_begin(const char *dir, const char *key, uint64_t ram_bytes,
                         struct ledger *ledger, struct template_draft *ret, struct err *err)
{
    struct template_draft d = { .ram_fd = -1, .state_fd = -1, .ledger = ledger };
    uint32_t number;

    remove_old_drafts(dir);
    rand_bytes(&number, sizeof(number));
    d.path = str_format("%s/" DRAFT_PREFIX "%s-%08x", dir, key, number);
    if (ledger_note(ledger, LEDGER_DIR, d.path, &d.note, err) < 0) {
        free(d.path);
        return -1;
    }
    int r = mkdir(d.path, 0700) < 0 ? err_sys(err, errno, "make %s", d.path) : 0;
    if (r == 0)
        r = make_file(d.path, "ram", ram_bytes, &d.ram_fd, err);
    if (r == 0)
        r = make_file(d.path, "state", 0, &d.state_fd, err);
    if (r < 0) {
        template_draft_abort(&d);
        return -1;
    }
    *ret = d;
    return 0;
}

void template_draft_abort(struct template_draft *d)
{
    struct err ignored = ERR_INIT;

    fd_close(TAKE_FD(d->ram_fd));
    fd_close(TAKE_FD(d->state_fd));
    if (!d->path)
        return;
    if (dir_remove(d->path) == 0 && d->note)
        (void)ledger_forget(d->ledger, d->note, &ignored); /* gc finds nothing, which is fine */
    d->note = 0;
    free(TAKE_PTR(d->path));
}

/* Its bytes are on the disk, and what they are is known. */
static int settle(int fd, const char *name, struct template_file *ret, struct err *err)
{
    AUTO_FREE char *path = str_format("/proc/self/fd/%d", fd);
    struct stat st;

    if (fsync(fd) < 0)
        return err_sys(err, errno, "write %s to the disk", name);
    int r = sha256_sparse_file(path, ret->sha256);
    if (r < 0)
        return err_sys(err, -r, "read %s", name);
    if (fstat(fd, &st) < 0)
        return err_sys(err, errno, "look at %s", name);
    ret->size = (uint64_t)st.st_size;
    ret->inode = st.st_ino;
    ret->mtime_ns = (uint64_t)st.st_mtim.tv_sec * 1000000000 + (uint64_t)st.st_mtim.tv_nsec;
    return 0;
}

int template_draft_publish(struct template_draft *d, const char *dir, const char *key,
                           struct err *err)
{
    AUTO_FREE char *to = str_format("%s/%s", dir, key);
    struct err ignored = ERR_INIT;

    /* What is there is damaged: a good one had not been built again. */
    (void)template_remove(dir, key, &ignored);
    if (rename(d->path, to) < 0)
        return err_sys(err, errno, "rename %s", d->path);
    (void)ledger_forget(d->ledger, d->note, &ignored); /* the name is gone: harmless */
    d->note = 0;
    free(TAKE_PTR(d->path));
    AUTO_FD int store = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (store >= 0)
        (void)fsync(store); /* a lost rename is a template that is built again */
    template_draft_abort(d);
    return 0;
}

int template_draft_seal(struct template_draft *d, struct template_info *info, struct err *err)
{
    AUTO_FREE char *path = str_format("%s/header", d->path), *text = NULL;
    size_t len;
    int r = settle(d->ram_fd, "ram", &info->ram, err);

    if (r == 0)
        r = settle(d->state_fd, "state", &info->state, err);
    if (r == 0) {
        text = template_header_format(info, &len);
        int w = file_replace(path, text, len, 0600);
        r = w < 0 ? err_sys(err, -w, "write %s", path) : 0;
    }
    return r;
}
