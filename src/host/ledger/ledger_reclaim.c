/* ledger_reclaim.c - cleans up what a dead owner left, from the ledger alone. Every step can be
 * repeated: an object that is already gone counts as done. */
#include "base/child.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/loop.h"
#include "base/netlink.h"
#include "base/offload.h"
#include "host/ledger/ledger_priv.h"
#include "proto/rtnl.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- processes: a later process with the same pid is never mistaken for the recorded one --- */

char *ledger_boot_id(void)
{
    char *text = file_text(64, "/proc/sys/kernel/random/boot_id");

    if (text)
        text[strcspn(text, "\n")] = '\0';
    return text ? text : str_dup("");
}

char *ledger_process_name(pid_t pid)
{
    uint64_t start = proc_start_time(pid);

    if (start == 0)
        return NULL;

    AUTO_FREE char *boot = ledger_boot_id();

    return str_format("%d %llu %s", pid, (unsigned long long)start, boot);
}

int ledger_add_process(struct ledger *l, pid_t pid, uint64_t *ret_id, struct err *err)
{
    AUTO_FREE char *what = ledger_process_name(pid);

    if (!what)
        return err_set(err, ERR_NOT_FOUND, "process %d has exited", pid);
    return ledger_add(l, LEDGER_PROCESS, what, ret_id, err);
}

int ledger_process_open(const char *what, pid_t *ret_pid, int *ret_pidfd, struct err *err)
{
    AUTO_FREE char *now = ledger_boot_id(), *copy = str_dup(what);
    char *rest = copy;
    const char *first = strsep(&rest, " "), *second = strsep(&rest, " "); /* rest: the boot */
    uint64_t number, start;

    if (!rest || str_to_u64(first, INT32_MAX, &number) < 0 || number < 2 ||
        str_to_u64(second, UINT64_MAX, &start) < 0)
        return err_set(err, ERR_DATA_LOSS, "invalid process record \"%s\"", what);
    /* Pids and start times repeat after a reboot, so this pid is another process now. */
    if (!str_eq(rest, now))
        return 0;

    pid_t pid = (pid_t)number;
    AUTO_FD int pidfd = pidfd_open(pid, 0);

    if (pidfd < 0)
        return errno == ESRCH ? 0 : err_sys(err, errno, "open process %d", pid);
    /* The pidfd pins the process. If its start time matches, it is the recorded process. */
    if (proc_start_time(pid) != start)
        return 0;
    *ret_pid = pid;
    *ret_pidfd = TAKE_FD(pidfd);
    return 1;
}

int ledger_process_kill(struct ctx *ctx, pid_t pid, int pidfd, struct err *err)
{
    if (pidfd_send_signal(pidfd, SIGKILL, NULL, 0) < 0)
        return errno == ESRCH ? 0 : err_sys(err, errno, "kill process %d", pid);
    if (loop_wait_fd(ctx, pidfd, POLLIN, "the exit of a killed process", err) < 0)
        return err_wrap(err, "wait for killed process %d to exit", pid);
    return 0;
}

/* --- interfaces --- */

struct interface_job {
    const char *netns, *ifname;
    enum ledger_kind kind;
    bool dry_run;
    uint64_t inode; /* 0: any */
    int found;
};

char *ledger_interface_name(const char *netns_path, uint64_t inode, const char *ifname)
{
    return str_format("%s#%llu %s", netns_path, (unsigned long long)inode, ifname);
}

/* Runs in the thread that is in the namespace. 0 or -errno of the kernel. */

static int delete_interface(int rtnl, int index)
{
    const struct ifinfomsg info = { .ifi_family = AF_UNSPEC, .ifi_index = index };
    struct nl_msg m;

    nl_begin(&m, RTM_DELLINK, 0, &info, sizeof(info));
    return nl_ask(rtnl, &m, NULL, NULL);
}

static int delete_ingress(int rtnl, int index)
{
    struct nl_msg m;

    rtnl_delete_ingress(&m, index);
    int r = nl_ask(rtnl, &m, NULL, NULL);
    return r == -EINVAL || r == -ENOENT ? -ENODEV
                                        : r; /* kernels differ in the error for a missing one */
}

/* Enters the namespace and checks that it is the recorded one. The thread ends with this job, so it
 * need not return to its own namespace. */
static int enter_netns(const struct interface_job *j, bool *ret_there, struct err *err)
{
    AUTO_FD int fd = open(j->netns, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;

    *ret_there = false;
    if (fd < 0)
        return errno == ENOENT ? 0 : err_sys(err, errno, "open %s", j->netns);
    if (fstat(fd, &st) < 0 || (j->inode && st.st_ino != j->inode))
        return 0;
    /* EINVAL: the file exists, but the namespace is no longer mounted on it. */
    if (setns(fd, CLONE_NEWNET) < 0)
        return errno == EINVAL ? 0 : err_sys(err, errno, "enter network namespace %s", j->netns);
    *ret_there = true;
    return 0;
}

static int take_in_thread(void *p, struct err *err)
{
    struct interface_job *j = p;
    bool there;

    if (enter_netns(j, &there, err) < 0)
        return -1;
    int index = there ? (int)if_nametoindex(j->ifname) : 0;
    j->found = index > 0;
    if (index == 0 || j->dry_run)
        return 0;
    AUTO_FD int rtnl = nl_open(NETLINK_ROUTE, 0);
    int r = rtnl;
    if (r >= 0)
        r = j->kind == LEDGER_INTERFACE ? delete_interface(rtnl, index)
                                        : delete_ingress(rtnl, index);
    if (r < 0 && r != -ENODEV)
        return err_sys(err, -r, "delete %s %s in %s",
                       j->kind == LEDGER_INTERFACE ? "interface" : "the ingress qdisc of",
                       j->ifname, j->netns);
    j->found = r == 0;
    return 0;
}

/* --- all records --- */

struct reclaim {
    struct ctx *ctx;
    bool dry_run;
    enum ledger_kind kind; /* of the current record */
    void (*fn)(void *arg, const struct ledger_record *, int taken, const char *result);
    void *arg;
    size_t failed;
    struct err first; /* the first failure */
};

/* True for a zombie: it has exited, but its parent has not reaped it. */
static bool is_zombie(pid_t pid)
{
    AUTO_FREE char *text = file_text(4096, "/proc/%d/stat", pid);
    const char *name_end = text ? strrchr(text, ')') : NULL;

    return name_end && str_starts(name_end, ") Z");
}

/* Each function returns 1 if it cleaned up (or would), 0 if the object was gone already, -1 and
 * err. */

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
    /* Also for a zombie: other threads of the process may still run. */
    if (ledger_process_kill(r->ctx, pid, pidfd, err) < 0)
        return -1;
    return alive;
}

/* 1: the path exists; 0: it does not. */
static int look(const char *path, struct err *err)
{
    struct stat st;

    if (lstat(path, &st) == 0)
        return 1;
    return errno == ENOENT || errno == ENOTDIR ? 0 : err_sys(err, errno, "look at %s", path);
}

static int take_file(struct reclaim *r, const char *path, struct err *err)
{
    int there = look(path, err);

    if (there <= 0 || r->dry_run || unlink(path) == 0 || errno == ENOENT)
        return there;
    return err_sys(err, errno, "remove %s", path);
}

static int take_dir(struct reclaim *r, const char *path, struct err *err)
{
    int there = look(path, err), e = there <= 0 || r->dry_run ? 0 : dir_remove(path);

    return e < 0 ? err_sys(err, -e, "remove directory %s", path) : there;
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
    /* A parent cgroup in which others have created cgroups since is no longer ours to remove. */
    if (errno == EBUSY && st.st_nlink > 2)
        return 0;
    return err_sys(err, errno, "remove cgroup %s", path);
}

static int take_interface(struct reclaim *r, const char *what, struct err *err)
{
    const char *blank = strrchr(what, ' ');
    size_t len = blank ? strlen(blank + 1) : 0;

    if (len == 0 || len >= IFNAMSIZ)
        return err_set(err, ERR_DATA_LOSS, "invalid interface record \"%.256s\"", what);
    AUTO_FREE char *netns = str_ndup(what, (size_t)(blank - what));
    struct interface_job j = {
        .netns = netns, .ifname = blank + 1, .kind = r->kind, .dry_run = r->dry_run
    };
    char *hash = strrchr(netns, '#');
    if (hash && str_to_u64(hash + 1, UINT64_MAX, &j.inode) == 0)
        *hash = '\0';
    int e = OFFLOAD(r->ctx, take_in_thread, &j, 2, NULL, "remove an interface or qdisc", err);
    return e < 0 ? -1 : j.found;
}

static const struct {
    int (*take)(struct reclaim *r, const char *what, struct err *err);
    const char *done, *would;
} takers[LEDGER_KIND_COUNT] = {
    [LEDGER_PROCESS] = { take_process, "killed", "would be killed" },
    [LEDGER_INTERFACE] = { take_interface, "removed", "would be removed" },
    [LEDGER_INGRESS] = { take_interface, "removed", "would be removed" },
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

    r->kind = record->kind;
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
        r->fn(r->arg, record, n, result);
    return 0;
}

/* Removes everything except the ledger, which is removed last, so that this can be repeated. */
static int remove_rest(const char *dir, struct err *err)
{
    AUTO(closedir) DIR *d = opendir(dir);
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
    if (first < 0)
        return -1;
    AUTO_FREE char *ledger = str_format("%s/" LEDGER_FILE_NAME, dir);
    if (unlink(ledger) < 0 && errno != ENOENT)
        return err_sys(err, errno, "remove %s", ledger);
    return 0;
}

/* Without a ledger, only an empty directory is removed, since its content may not be ours. */
static int remove_dir(struct reclaim *r, const char *dir, bool has_ledger, struct err *err)
{
    struct ledger_record self = { .id = 0, .kind = LEDGER_DIR, .what = dir };

    if (!r->dry_run) {
        if (has_ledger && remove_rest(dir, err) < 0)
            return -1;
        if (rmdir(dir) < 0 && errno != ENOENT)
            return err_sys(err, errno, "remove directory %s%s", dir,
                           has_ledger ? "" : ", which has no ledger");
        ledger_drop_parent(dir);
    }
    if (r->fn)
        r->fn(r->arg, &self, 1, r->dry_run ? "would be removed" : "removed");
    return 0;
}

static int await_visitor(void *arg, struct err *err)
{
    const char *dir = *(const char **)arg;
    AUTO_FREE char *path = str_format("%s/" LEDGER_FILE_NAME, dir);
    AUTO_FD int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);

    if (fd < 0)
        return errno == ENOENT ? 0 : err_sys(err, errno, "open %s", path);
    int r = ledger_await_visitor(fd);
    return r < 0 ? err_sys(err, -r, "lock %s", path) : 0;
}

/* Locks the ledger as a visitor, and waits (until ctx ends) while another visitor has it: -EBUSY
 * with err in that case. */
static int visit(struct ctx *ctx, const char *dir, int *ret_fd, enum ledger_holder *ret_holder,
                 struct err *err)
{
    int r;

    while ((r = ledger_lock(dir, 0, LEDGER_VISITOR, ret_fd, ret_holder)) == -EWOULDBLOCK &&
           *ret_holder == LEDGER_VISITOR) {
        const char *job = dir;

        if (OFFLOAD(ctx, await_visitor, &job, 1, NULL, "another process that cleans up", err) < 0) {
            err_wrap(err, "another process is cleaning up %s", dir);
            return -EBUSY;
        }
    }
    return r;
}

int ledger_reclaim(struct ctx *ctx, const char *dir, bool dry_run,
                   void (*fn)(void *arg, const struct ledger_record *, int taken,
                              const char *result),
                   void *arg, struct err *err)
{
    struct reclaim r = { .ctx = ctx, .dry_run = dry_run, .fn = fn, .arg = arg, .first = ERR_INIT };
    AUTO_FREE char *path = str_format("%s/" LEDGER_FILE_NAME, dir);
    enum ledger_holder holder = LEDGER_NOBODY;
    AUTO_FD int lock = -1;
    int n = dry_run ? ledger_holder(dir, &holder) : visit(ctx, dir, &lock, &holder, err);

    if (n == -ENOENT) {
        /* The owner died between creating or removing the directory and the file. */
        int there = look(dir, err);
        return there <= 0 ? there : remove_dir(&r, dir, false, err);
    }
    if (n == -EBUSY)
        return -1;
    if (holder == LEDGER_OWNER)
        return err_set(err, ERR_STATE, "the owner of %s is running", dir);
    if (n < 0)
        return err_sys(err, -n, "open %s", path);
    int parsed = ledger_read(dir, take_record, &r, err);
    if (parsed < 0 && err->sys == ENOENT && dry_run) /* another process has just cleaned it up */
        return 0;
    if (r.failed > 0) {
        *err = r.first;
        return err_wrap(err, "%zu items of %s could not be cleaned up, the first", r.failed, dir);
    }
    if (parsed < 0) {
        struct err why = *err;

        return err_set(err, why.code, "%s; check for leftovers, then remove %s", why.msg, dir);
    }
    return remove_dir(&r, dir, true, err);
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
