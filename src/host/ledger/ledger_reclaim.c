/* Taking back what a dead owner left, from the file alone. Every step can be repeated: what is
 * already gone counts as done. */
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "host/ledger/ledger_priv.h"
#include "host/ledger/netlink.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

struct reclaim {
    struct ctx *ctx;
    bool dry_run;
    void (*fn)(void *arg, const struct ledger_record *, const char *result);
    void *arg;
    size_t failed;
    struct err first; /* of what failed */
};

/* Dead, but not yet fetched by its parent. */
static bool is_zombie(pid_t pid)
{
    AUTO_FREE char *path = str_format("/proc/%d/stat", pid), *text = NULL;
    size_t len;

    if (file_read_all(path, 4096, &text, &len) < 0)
        return false;
    const char *name_end = strrchr(text, ')');
    return name_end && str_starts(name_end, ") Z");
}

/* Each taker: 1 taken back (or would be), 0 was gone already, -1 with err. */

static int take_process(struct reclaim *r, const char *what, struct err *err)
{
    AUTO_FD int pidfd = -1;
    pid_t pid = 0;
    int found = ledger_process_open(what, &pid, &pidfd, err);

    if (found <= 0)
        return found;
    int alive = !is_zombie(pid);
    if (r->dry_run)
        return alive;
    /* A zombie too: other threads of it may still run. */
    if (ledger_process_kill(r->ctx, pid, pidfd, err) < 0)
        return -1;
    return alive;
}

static bool is_mounted(const char *path)
{
    struct statx st;

    return statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT, STATX_TYPE, &st) == 0 &&
           (st.stx_attributes & STATX_ATTR_MOUNT_ROOT);
}

/* Several mounts may lie on top of each other at one path; a record stands for one of them. */
static int take_mount(struct reclaim *r, const char *path, struct err *err)
{
    if (r->dry_run)
        return is_mounted(path);
    if (umount2(path, MNT_DETACH | UMOUNT_NOFOLLOW) == 0)
        return 1;
    if (errno == ENOENT || errno == EINVAL)
        return 0;
    return err_sys(err, errno, "unmount %s", path);
}

static int take_file(struct reclaim *r, const char *path, struct err *err)
{
    struct stat st;

    if (lstat(path, &st) < 0)
        return errno == ENOENT || errno == ENOTDIR ? 0 : err_sys(err, errno, "look at %s", path);
    if (r->dry_run)
        return 1;
    if (unlink(path) < 0 && errno != ENOENT)
        return err_sys(err, errno, "remove %s", path);
    return 1;
}

static int take_netns(struct reclaim *r, const char *path, struct err *err)
{
    if (take_mount(r, path, err) < 0)
        return -1;
    return take_file(r, path, err);
}

static int take_dir(struct reclaim *r, const char *path, struct err *err)
{
    struct stat st;

    if (lstat(path, &st) < 0)
        return errno == ENOENT || errno == ENOTDIR ? 0 : err_sys(err, errno, "look at %s", path);
    if (r->dry_run)
        return 1;
    int e = dir_remove(path);
    return e < 0 ? err_sys(err, -e, "remove directory %s", path) : 1;
}

static int take_cgroup(struct reclaim *r, const char *path, struct err *err)
{
    struct stat st;

    if (lstat(path, &st) < 0)
        return errno == ENOENT ? 0 : err_sys(err, errno, "look at %s", path);
    if (r->dry_run)
        return 1;
    if (rmdir(path) == 0 || errno == ENOENT)
        return 1;
    /* A directory above ours in which others have made theirs since is not ours any more. */
    if (errno == EBUSY && st.st_nlink > 2)
        return 0;
    return err_sys(err, errno, "remove cgroup %s", path);
}

static int take_link(struct reclaim *r, const char *what, struct err *err)
{
    return netlink_take_back(r->ctx, NETLINK_LINK, what, r->dry_run, err);
}

static int take_ingress(struct reclaim *r, const char *what, struct err *err)
{
    return netlink_take_back(r->ctx, NETLINK_INGRESS, what, r->dry_run, err);
}

static const struct {
    int (*take)(struct reclaim *r, const char *what, struct err *err);
    const char *done, *would;
} takers[LEDGER_KIND_COUNT] = {
    [LEDGER_PROCESS] = { take_process, "killed", "would be killed" },
    [LEDGER_MOUNT] = { take_mount, "unmounted", "would be unmounted" },
    [LEDGER_NETNS] = { take_netns, "removed", "would be removed" },
    [LEDGER_LINK] = { take_link, "removed", "would be removed" },
    [LEDGER_INGRESS] = { take_ingress, "removed", "would be removed" },
    [LEDGER_FILE] = { take_file, "removed", "would be removed" },
    [LEDGER_DIR] = { take_dir, "removed", "would be removed" },
    [LEDGER_CGROUP] = { take_cgroup, "removed", "would be removed" },
};

static int take_record(void *arg, const struct ledger_record *record)
{
    struct reclaim *r = arg;
    struct err err = ERR_INIT;
    const char *result = NULL;
    int n = ledger_check(record->kind, record->what, &err);

    if (n == 0)
        n = takers[record->kind].take(r, record->what, &err);
    if (n < 0) {
        result = err.msg;
        if (r->failed++ == 0)
            r->first = err;
    } else if (n == 0) {
        result = "already gone";
    } else {
        result = r->dry_run ? takers[record->kind].would : takers[record->kind].done;
    }
    if (r->fn)
        r->fn(r->arg, record, result);
    return 0;
}

/* Everything but the ledger, which goes last: until then the work can be repeated. */
static int remove_rest(const char *dir, struct err *err)
{
    DIR *d = opendir(dir);
    int first = 0;

    if (!d)
        return err_sys(err, errno, "open directory %s", dir);
    for (struct dirent *e; (e = readdir(d));) {
        if (str_eq(e->d_name, ".") || str_eq(e->d_name, "..") ||
            str_eq(e->d_name, LEDGER_FILE_NAME))
            continue;
        AUTO_FREE char *path = str_format("%s/%s", dir, e->d_name);
        int n = dir_remove(path);
        if (n < 0 && first == 0)
            first = err_sys(err, -n, "remove %s", path);
    }
    closedir(d);
    if (first < 0)
        return -1;
    AUTO_FREE char *ledger = str_format("%s/" LEDGER_FILE_NAME, dir);
    if (unlink(ledger) < 0 && errno != ENOENT)
        return err_sys(err, errno, "remove %s", ledger);
    return 0;
}

static int remove_dir(struct reclaim *r, const char *dir, struct err *err)
{
    struct ledger_record self = { .id = 0, .kind = LEDGER_DIR, .what = dir };

    if (!r->dry_run) {
        if (remove_rest(dir, err) < 0)
            return -1;
        if (rmdir(dir) < 0 && errno != ENOENT)
            return err_sys(err, errno, "remove directory %s", dir);
        ledger_drop_parent(dir);
    }
    if (r->fn)
        r->fn(r->arg, &self, r->dry_run ? "would be removed" : "removed");
    return 0;
}

/* The owner died between making the directory and the file, or removing the file and the
 * directory. Only an empty one is taken: without a ledger nothing says that the rest is ours. */
static int reclaim_bare(struct reclaim *r, const char *dir, struct err *err)
{
    struct ledger_record self = { .id = 0, .kind = LEDGER_DIR, .what = dir };
    struct stat st;

    if (lstat(dir, &st) < 0)
        return errno == ENOENT ? 0 : err_sys(err, errno, "look at %s", dir);
    if (!r->dry_run && rmdir(dir) < 0 && errno != ENOENT)
        return err_sys(err, errno, "remove %s, which has no ledger", dir);
    if (!r->dry_run)
        ledger_drop_parent(dir);
    if (r->fn)
        r->fn(r->arg, &self, r->dry_run ? "would be removed" : "removed");
    return 0;
}

int ledger_reclaim(struct ctx *ctx, const char *dir, bool dry_run,
                   void (*fn)(void *arg, const struct ledger_record *, const char *result),
                   void *arg, struct err *err)
{
    struct reclaim r = { .ctx = ctx, .dry_run = dry_run, .fn = fn, .arg = arg, .first = ERR_INIT };
    AUTO_FREE char *path = str_format("%s/" LEDGER_FILE_NAME, dir);
    enum ledger_holder holder = LEDGER_NOBODY;
    AUTO_FD int lock = -1;
    int n = dry_run ? ledger_holder(dir, &holder) : ledger_visit(ctx, dir, &lock, &holder, err);

    if (n == -ENOENT)
        return reclaim_bare(&r, dir, err);
    if (n == -EBUSY)
        return -1;
    if (holder == LEDGER_OWNER)
        return err_set(err, ERR_STATE, "the owner of %s is alive", dir);
    if (n < 0)
        return err_sys(err, -n, "open %s", path);
    int parsed = ledger_read(dir, take_record, &r, err);
    if (parsed < 0 && err->sys == ENOENT && dry_run) /* somebody has just taken it back */
        return 0;
    if (r.failed > 0) {
        *err = r.first;
        return err_wrap(err, "%zu things of %s could not be taken back, the first", r.failed, dir);
    }
    if (parsed < 0) {
        struct err why = *err;

        return err_set(err, why.code, "%s; look for leftovers, then remove %s", why.msg, dir);
    }
    return remove_dir(&r, dir, err);
}

int ledger_owner_alive(const char *dir, bool *ret_alive, struct err *err)
{
    enum ledger_holder holder = LEDGER_NOBODY;
    int n = ledger_holder(dir, &holder);

    if (n < 0 && n != -ENOENT)
        return err_sys(err, -n, "open the ledger of %s", dir);
    *ret_alive = holder == LEDGER_OWNER;
    return 0;
}
