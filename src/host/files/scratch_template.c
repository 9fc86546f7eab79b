/* scratch_template.c - the pristine image. Formatted by mke2fs in a temporary file, then renamed:
 * whoever makes the same one at the same time does no harm, the last rename wins and all are equal.
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
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define FORMAT_VERSION 2 /* in the name: another layout is another file */
#define FORMAT_NS (60 * NS_PER_S)
#define DROP_NS (5 * NS_PER_S)

/* --- in a thread --- */

struct job {
    char *dir, *path, *tmp; /* <dir>/scratch, the template, its beginnings */
    uint64_t size;
    int fd;
};

static void job_free(void *arg)
{
    struct job *j = arg;

    if (!j)
        return;
    fd_close_later(j->fd);
    free(j->dir);
    free(j->path);
    free(j->tmp);
    free(j);
}

/* Ours, whole, and not to be changed by others; else it is made again. */
static bool is_good(int fd, uint64_t size)
{
    struct stat st;

    return fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size == size &&
           st.st_uid == geteuid() && (st.st_mode & 077) == 0;
}

static int look(void *arg, struct err *err)
{
    struct job *j = arg;
    AUTO_FD int fd = open(j->path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);

    if (fd < 0 && errno != ENOENT)
        return err_sys(err, errno, "open %s", j->path);
    if (fd >= 0 && is_good(fd, j->size))
        j->fd = TAKE_FD(fd);
    return 0;
}

bool scratch_template_is_old(const char *name)
{
    int version = 0, end = 0;

    return sscanf(name, "ext4-v%d-%*umib.img%n", &version, &end) == 1 && end > 0 && !name[end] &&
           version < FORMAT_VERSION;
}

static int begin(void *arg, struct err *err)
{
    struct job *j = arg;
    int r = dir_make(j->dir, 0700);

    if (r < 0)
        return scratch_err(err, -r, "make the directory", j->dir);
    AUTO_FD int fd = open(j->tmp, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)j->size) < 0)
        return scratch_err(err, errno, "make a scratch template", j->dir);
    return 0;
}

static int end(void *arg, struct err *err)
{
    struct job *j = arg;
    AUTO_FD int fd = open(j->tmp, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);

    if (fd < 0)
        return err_sys(err, errno, "open %s", j->tmp);
    if (fsync(fd) < 0) /* a full disk may show only here */
        return scratch_err(err, errno, "write a scratch template", j->dir);
    if (rename(j->tmp, j->path) < 0)
        return err_sys(err, errno, "rename %s", j->tmp);
    j->fd = TAKE_FD(fd);
    return 0;
}

static int drop(void *arg, struct err *err)
{
    struct job *j = arg;

    if (unlink(j->tmp) < 0 && errno != ENOENT)
        return err_sys(err, errno, "remove %s", j->tmp);
    return 0;
}

static struct job *job_new(const char *dir, const char *suffix, uint32_t size_mib)
{
    struct job *j = mem_new(struct job);

    j->dir = str_format("%s/scratch", dir);
    j->path = str_format("%s/ext4-v%d-%umib.img", j->dir, FORMAT_VERSION, size_mib);
    j->tmp = str_format("%s/.%s.tmp", j->dir, suffix);
    j->size = (uint64_t)size_mib << 20;
    j->fd = -1;
    return j;
}

/* Each step has its own copy of the names: a thread that hangs keeps its. */
static int run(struct ctx *ctx, struct job *j, int (*fn)(void *arg, struct err *err), int *ret_fd,
               struct err *err)
{
    void *arg = j;
    int r = offload_run(ctx, fn, &arg, job_free, "scratch template", err);

    j = arg;
    if (r == 0 && ret_fd)
        *ret_fd = TAKE_FD(j->fd);
    job_free(j);
    return r;
}

/* --- formatting --- */

static const char *find_mke2fs(void)
{
    static const char *const places[] = { "/usr/sbin/mke2fs", "/sbin/mke2fs" };

    for (size_t i = 0; i < ARRAY_LEN(places); i++)
        if (access(places[i], X_OK) == 0)
            return places[i];
    return "mke2fs";
}

static int judge(int status, int said, const char *dir, struct err *err)
{
    char text[300] = "";
    ssize_t n = pread(said, text, sizeof(text) - 1, 0);

    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    text[n > 0 ? n : 0] = '\0';
    for (char *p = text; *p; p++)
        if (*p == '\n')
            *p = ' ';
    if (strstr(text, strerror(ENOSPC)))
        return scratch_err(err, ENOSPC, "format a scratch template", dir);
    return err_set(err, ERR_INTERNAL, "mke2fs failed (%s %d): %s",
                   WIFEXITED(status) ? "exit status" : "signal",
                   WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status), text);
}

static int format(struct ctx *ctx, const char *file, const char *dir, struct err *err)
{
    static const char *const env[] = { "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C",
                                       "MKE2FS_CONFIG=/nonexistent", NULL };
    const char *const argv[] = { find_mke2fs(),
                                 "-q",
                                 "-F",
                                 "-t",
                                 "ext4",
                                 "-b",
                                 "4096",
                                 "-I",
                                 "256",
                                 "-m",
                                 "0",
                                 "-O",
                                 "^has_journal,^metadata_csum,uninit_bg,^resize_inode,^orphan_file,"
                                 "quota,project",
                                 "-E",
                                 "assume_storage_prezeroed=1,nodiscard,root_owner=0:0,"
                                 "quotatype=prjquota",
                                 file,
                                 NULL };
    struct ctx limited = ctx_with_timeout(ctx, FORMAT_NS);
    AUTO_FD int said = memfd_create("mke2fs", MFD_CLOEXEC);
    const struct child_fd fds[] = { { said, 2 } };
    AUTO(child_free) struct child *c = NULL;
    int status;

    if (said < 0)
        return err_sys(err, errno, "memfd_create");
    if (child_spawn(&limited,
                    &(struct child_opts){
                        .argv = argv, .envp = env, .fds = fds, .n_fds = 1, .die_with_us = true },
                    &c, err) < 0)
        return err_wrap(err, "format a scratch disk (install e2fsprogs)");
    if (child_wait(&limited, c, &status, err) < 0)
        return err_wrap(err, "mke2fs of %s", file);
    return judge(status, said, dir, err);
}

/* The first step does not end with its caller: its thread could make the file after that was
 * removed. *ret_late: it has not ended in time, and may still do so. */
static int make(struct ctx *ctx, const char *dir, uint32_t size_mib, const char *suffix,
                int *ret_fd, bool *ret_late, struct err *err)
{
    struct job *names = job_new(dir, suffix, size_mib);
    struct ctx root = ctx_root(ctx->loop), limited = ctx_with_timeout(&root, DROP_NS);
    int r = run(&limited, job_new(dir, suffix, size_mib), begin, NULL, err);

    *ret_late = r < 0 && err->code == ERR_DEADLINE;
    if (r == 0)
        r = format(ctx, names->tmp, names->dir, err);
    if (r == 0)
        r = run(ctx, job_new(dir, suffix, size_mib), end, ret_fd, err);
    job_free(names);
    return r;
}

/* After a failure; if this fails too, the record stays, and gc takes it. */
static bool dropped(struct ctx *ctx, const char *dir, uint32_t size_mib, const char *suffix)
{
    struct ctx root = ctx_root(ctx->loop), limited = ctx_with_timeout(&root, DROP_NS);
    struct err ignored = ERR_INIT;

    return run(&limited, job_new(dir, suffix, size_mib), drop, NULL, &ignored) == 0;
}

int scratch_template(struct ctx *ctx, const char *dir, uint32_t size_mib, struct ledger *ledger,
                     struct err *err)
{
    struct err second = ERR_INIT;
    uint64_t number, note;
    int fd = -1;

    if (run(ctx, job_new(dir, "", size_mib), look, &fd, err) < 0)
        return -1;
    if (fd >= 0)
        return fd;
    loop_rand(ctx->loop, &number, sizeof(number));
    AUTO_FREE char *suffix = str_format("%016llx", (unsigned long long)number);
    AUTO_FREE char *tmp = str_format("%s/scratch/.%s.tmp", dir, suffix);
    if (ledger_note(ledger, LEDGER_FILE, tmp, &note, err) < 0)
        return -1;
    bool late = false;
    int r = make(ctx, dir, size_mib, suffix, &fd, &late, err);
    if (r == 0 || (!late && dropped(ctx, dir, size_mib, suffix)))
        if (ledger_forget(ledger, note, r == 0 ? err : &second) < 0)
            r = -1;
    if (r == 0)
        return fd;
    fd_close_later(fd);
    return -1;
}
