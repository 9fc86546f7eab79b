#include "host/jail/jail.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/offload.h"
#include "base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/capability.h>
#include <linux/keyctl.h>
#include <linux/magic.h>
#include <linux/nsfs.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

_Static_assert(JAIL_CLONE_FLAGS ==
                   (CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS),
               "the header spells the number out");

/* Where programs of the system find their libraries and QEMU its firmware. What is missing on
 * this host is left out; what is a symbolic link there is one in the jail. */
static const char *const system_dirs[] = {
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/usr/libx32",
    "/usr/share/qemu",
    "/usr/share/seabios",
    "/usr/share/qemu-firmware",
};

#define FD_LINKS "/proc/self/fd"

enum step_kind {
    STEP_DIR,     /* make a directory */
    STEP_TOUCH,   /* make an empty file to mount on */
    STEP_SYMLINK, /* make a symbolic link to `from` */
    STEP_BIND,    /* show `from` read-only */
    STEP_DEVICE,  /* show a device node */
    STEP_FD,      /* move the mount behind fd here, then close that at exec */
    STEP_BLOB,    /* write data */
    STEP_FDS,     /* show the descriptors of process 1, which is the program */
};

struct step {
    enum step_kind kind;
    char *from, *to; /* to: relative to the jail's root */
    int fd;
    void *data;
    size_t len;
};

struct jail {
    struct step *steps;
    size_t n, cap;
    char *mount_point;
    uint32_t uid;
    uint64_t caps;
    struct rlimit nofile, nproc;
    bool small_pages;
};

/* --- laying out, in the parent --- */

static struct step *add_step(struct jail *j, enum step_kind kind, const char *from, const char *to)
{
    j->steps = mem_grow(j->steps, j->n, &j->cap, sizeof(*j->steps));
    struct step *s = &j->steps[j->n++];
    *s = (struct step){ .kind = kind, .from = str_dup(from), .to = str_dup(to + (*to == '/')) };
    return s;
}

static bool has_step(const struct jail *j, const char *to)
{
    for (size_t i = 0; i < j->n; i++)
        if (str_eq(j->steps[i].to, to + 1))
            return true;
    return false;
}

/* All directories above path, which begins with '/'. */
static void add_parents(struct jail *j, const char *path)
{
    for (const char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        AUTO_FREE char *dir = str_ndup(path, (size_t)(slash - path));
        if (!has_step(j, dir))
            add_step(j, STEP_DIR, NULL, dir);
    }
}

/* A file below a directory that is bound from the host is there already. */
static bool is_shown(const struct jail *j, const char *path)
{
    for (size_t i = 0; i < j->n; i++) {
        const struct step *s = &j->steps[i];
        if (s->kind == STEP_BIND && str_starts(path + 1, s->to) && path[1 + strlen(s->to)] == '/')
            return true;
    }
    return false;
}

static int add_system_dir(struct jail *j, const char *path, struct err *err)
{
    struct stat st;
    char target[PATH_MAX];

    if (lstat(path, &st) < 0)
        return errno == ENOENT ? 0 : err_sys(err, errno, "look at %s", path);
    add_parents(j, path);
    if (S_ISLNK(st.st_mode)) {
        ssize_t n = readlink(path, target, sizeof(target) - 1);
        if (n < 0)
            return err_sys(err, errno, "read symlink %s", path);
        target[n] = '\0';
        add_step(j, STEP_SYMLINK, target, path);
    } else if (S_ISDIR(st.st_mode)) {
        add_step(j, STEP_DIR, NULL, path);
        add_step(j, STEP_BIND, path, path);
    }
    return 0;
}

static int add_program(struct jail *j, const char *path, struct err *err)
{
    struct stat st;

    if (path[0] != '/' || stat(path, &st) < 0)
        return err_sys(err, path[0] == '/' ? errno : EINVAL, "program %s", path);
    if (!S_ISREG(st.st_mode))
        return err_set(err, ERR_INVALID, "program %s is not a regular file", path);
    if (is_shown(j, path))
        return 0;
    add_parents(j, path);
    add_step(j, STEP_TOUCH, NULL, path);
    add_step(j, STEP_BIND, path, path);
    return 0;
}

static void add_named(struct jail *j, const struct jail_opts *o)
{
    for (const char *const *d = o->dirs; d && *d; d++) {
        add_parents(j, *d);
        if (!has_step(j, *d))
            add_step(j, STEP_DIR, NULL, *d);
    }
    for (const char *const *d = o->devices; d && *d; d++) {
        add_parents(j, *d);
        add_step(j, STEP_TOUCH, NULL, *d);
        add_step(j, STEP_DEVICE, *d, *d);
    }
    if (o->device_dir) { /* of the jail's own root, mounted on itself */
        add_parents(j, o->device_dir);
        add_step(j, STEP_DIR, NULL, o->device_dir);
        add_step(j, STEP_DEVICE, o->device_dir + 1, o->device_dir);
    }
    if (o->fd_links) {
        add_parents(j, FD_LINKS);
        add_step(j, STEP_DIR, NULL, FD_LINKS);
        add_step(j, STEP_FDS, NULL, FD_LINKS);
    }
    for (size_t i = 0; i < o->n_files; i++) {
        add_parents(j, o->files[i].to);
        if (!has_step(j, o->files[i].to))
            add_step(j, STEP_TOUCH, NULL, o->files[i].to);
        add_step(j, STEP_FD, NULL, o->files[i].to)->fd = o->files[i].child_fd;
    }
    for (size_t i = 0; i < o->n_blobs; i++) {
        add_parents(j, o->blobs[i].to);
        struct step *s = add_step(j, STEP_BLOB, NULL, o->blobs[i].to);
        s->data = mem_dup(o->blobs[i].data, o->blobs[i].len);
        s->len = o->blobs[i].len;
    }
}

/* Both limits, never above what we have: raising needs a capability we may lack. */
static int limit(int resource, uint64_t max, struct rlimit *ret, struct err *err)
{
    if (getrlimit(resource, ret) < 0)
        return err_sys(err, errno, "getrlimit");
    if (max > 0 && ret->rlim_max > max)
        ret->rlim_max = max;
    if (max > 0)
        ret->rlim_cur = ret->rlim_max;
    return 0;
}

int jail_new(const struct jail_opts *opts, struct jail **ret, struct err *err)
{
    AUTO(jail_free) struct jail *j = mem_new(struct jail);

    if (opts->uid == 0)
        return err_set(err, ERR_INVALID, "invalid user id 0 for a jail: must not be root's");
    j->uid = opts->uid;
    j->caps = opts->caps;
    j->small_pages = opts->small_pages;
    j->mount_point = str_dup(opts->mount_point);
    for (size_t i = 0; i < ARRAY_LEN(system_dirs); i++)
        if (add_system_dir(j, system_dirs[i], err) < 0)
            return -1;
    if (add_program(j, opts->program, err) < 0)
        return -1;
    add_named(j, opts);
    if (limit(RLIMIT_NOFILE, opts->max_fds, &j->nofile, err) < 0 ||
        limit(RLIMIT_NPROC, opts->max_threads, &j->nproc, err) < 0)
        return -1;
    *ret = TAKE_PTR(j);
    return 0;
}

void jail_free(struct jail *j)
{
    if (!j)
        return;
    for (size_t i = 0; i < j->n; i++) {
        free(j->steps[i].from);
        free(j->steps[i].to);
        if (j->steps[i].data)
            mem_wipe(j->steps[i].data, j->steps[i].len);
        free(j->steps[i].data);
    }
    free(j->steps);
    free(j->mount_point);
    free(j);
}

static int set_attr(int tree, uint64_t attr)
{
    struct mount_attr set = { .attr_set = attr };

    return mount_setattr(tree, "", AT_EMPTY_PATH, &set, sizeof(set)) < 0 ? -errno : 0;
}

/* A mount of our namespace cannot be bound in the child's, which is a copy: it goes there as a
 * mount of its own. */
int jail_tree(int fd)
{
    AUTO_FD int tree = open_tree(fd, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);
    int r = tree < 0 ? -errno
                     : set_attr(tree, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV |
                                          MOUNT_ATTR_NOEXEC);

    return r < 0 ? r : TAKE_FD(tree);
}

/* A read-only mount does not prevent writes to a device. The mount exists as long as the
 * descriptor; nodev, so that no device can be opened through it, is set when ours is open. */
int jail_device(int fd, int flags)
{
    AUTO_FD int tree = open_tree(fd, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);
    char path[40];
    int r = tree < 0 ? -errno : set_attr(tree, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID);

    if (r < 0)
        return r;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", tree);
    AUTO_FD int device = open(path, flags | O_CLOEXEC);
    if (device < 0)
        return -errno;
    r = set_attr(tree, MOUNT_ATTR_NODEV);
    return r < 0 ? r : TAKE_FD(device);
}

static int open_module(const char *name, const char *path, const char *module, int *ret_fd,
                       struct err *err)
{
    AUTO_FD int node = open(path, O_PATH | O_CLOEXEC);
    int r = node < 0 ? -errno : jail_device(node, O_RDWR | O_NONBLOCK);

    if (r == -ENOENT || r == -ENODEV || r == -ENXIO)
        return err_because(err, REASON_MODULE_MISSING, ERR_STATE,
                           "the kernel has no %s device (%s: %s); load it: modprobe %s", name, path,
                           strerrordesc_np(-r), module);
    if (r < 0)
        return err_sys(err, -r, "open %s", path);
    *ret_fd = r;
    return 0;
}

int jail_tun(int *ret_fd, struct err *err)
{
    return open_module("tun", "/dev/net/tun", "tun", ret_fd, err);
}

int jail_vhost_net(int *ret_fd, struct err *err)
{
    return open_module("vhost-net", "/dev/vhost-net", "vhost_net", ret_fd, err);
}

int jail_vsock(int *ret_fd, struct err *err)
{
    return open_module("vsock", "/dev/vhost-vsock", "vhost_vsock", ret_fd, err);
}

/* --- for every process of ours --- */

struct netns_job {
    const char *path;
    int fd;
};

static void netns_drop(void *arg)
{
    fd_close(((struct netns_job *)arg)->fd);
}

/* Looked at before it is opened. */
static int netns_in_thread(void *arg, struct err *err)
{
    struct netns_job *j = arg;
    AUTO_FD int seen = open(j->path, O_PATH | O_CLOEXEC);
    AUTO_FREE char *again = str_format("/proc/self/fd/%d", seen);
    struct statfs fs;

    if (seen < 0 || fstatfs(seen, &fs) < 0)
        return err_sys(err, errno, "open network namespace %.256s", j->path);
    j->fd = fs.f_type == NSFS_MAGIC ? open(again, O_RDONLY | O_CLOEXEC) : -1;
    if (j->fd < 0 || ioctl(j->fd, NS_GET_NSTYPE) != CLONE_NEWNET)
        return err_because(err, REASON_NETNS_MISSING, ERR_INVALID,
                           "%.256s is not a network namespace", j->path);
    return 0;
}

int jail_netns(struct ctx *ctx, const char *path, int *ret_fd, struct err *err)
{
    struct netns_job j = { path, -1 };

    if (OFFLOAD(ctx, netns_in_thread, &j, 1, netns_drop, "network namespace", err) < 0)
        return -1;
    *ret_fd = j.fd;
    return 0;
}

int jail_oom_score(const struct ctx *ctx, pid_t pid, int adj, struct err *err)
{
    AUTO_FREE char *path = str_format("/proc/%d/oom_score_adj", (int)pid),
                   *text = str_format("%d", adj);

    if (adj < -JAIL_OOM_SCORE_MAX || adj > JAIL_OOM_SCORE_MAX)
        return err_set(err, ERR_INVALID, "invalid oom_score_adj %d: must be -%d–%d", adj,
                       JAIL_OOM_SCORE_MAX, JAIL_OOM_SCORE_MAX);
    int r = file_put(path, text);
    if (r == -EACCES || r == -EPERM) {
        log_warn(ctx, "oom_score_adj stays unchanged: lowering it needs CAP_SYS_RESOURCE",
                 F_I(LK_PID, pid), F_I("oom-score-adj", adj));
        return 0;
    }
    return r < 0 ? err_sys(err, -r, "set %s", path) : 0;
}

/* --- in the child: system calls only --- */

/* Each: 0, or -1 with errno. */

static int show(const struct step *s, unsigned long flags)
{
    return mount(s->from, s->to, NULL, MS_BIND, NULL) < 0
               ? -1
               : mount(NULL, s->to, NULL, MS_REMOUNT | MS_BIND | MS_NOSUID | flags, NULL);
}

static int make_file(const struct jail *j, const struct step *s, mode_t mode)
{
    AUTO_FD int fd = open(s->to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    int r = fd < 0 ? -errno : fd_write_full(fd, s->data, s->len);

    if (r == 0 && s->kind == STEP_BLOB && fchown(fd, j->uid, j->uid) < 0)
        r = -errno;
    errno = -r;
    return r < 0 ? -1 : 0;
}

/* All of procfs is there for a moment only, and only for us. */
static int show_fds(const char *to)
{
    const unsigned long flags = MS_NOSUID | MS_NODEV | MS_NOEXEC;
    struct mount_attr attr = { .attr_set = MOUNT_ATTR_RDONLY };
    AUTO_FD int where = -1, tree = -1;

    if (mount("proc", to, "proc", flags, "subset=pid") == 0)
        where = open(to, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (where >= 0)
        tree = open_tree(where, "1/fd", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    return tree < 0 || umount2(to, MNT_DETACH) < 0 ||
                   mount_setattr(tree, "", AT_EMPTY_PATH, &attr, sizeof(attr)) < 0
               ? -1
               : move_mount(tree, "", AT_FDCWD, to, MOVE_MOUNT_F_EMPTY_PATH);
}

static int take_step(const struct jail *j, const struct step *s)
{
    switch (s->kind) {
    case STEP_DIR:
        return mkdir(s->to, 0755);
    case STEP_TOUCH:
        return make_file(j, s, 0444);
    case STEP_SYMLINK:
        return symlink(s->from, s->to);
    case STEP_BIND:
        return show(s, MS_RDONLY | MS_NODEV);
    case STEP_DEVICE:
        /* Read-only: with CAP_FOWNER its mode could be changed, and it is the whole host's. */
        return show(s, MS_RDONLY | MS_NOEXEC);
    case STEP_FD:
        return move_mount(s->fd, "", AT_FDCWD, s->to, MOVE_MOUNT_F_EMPTY_PATH) < 0
                   ? -1
                   : fcntl(s->fd, F_SETFD, FD_CLOEXEC);
    case STEP_BLOB:
        return make_file(j, s, 0400);
    case STEP_FDS:
        return show_fds(s->to);
    }
    return 0;
}

static int do_step(const struct jail *j, const struct step *s, struct err *err)
{
    static const char *const doing[] = {
        [STEP_DIR] = "make directory", [STEP_TOUCH] = "make",  [STEP_SYMLINK] = "make symlink",
        [STEP_BIND] = "show",          [STEP_DEVICE] = "show", [STEP_FD] = "show",
        [STEP_BLOB] = "write",         [STEP_FDS] = "show",
    };

    if (take_step(j, s) < 0)
        return err_sys(err, errno, "%s /%s in the jail", doing[s->kind], s->to);
    return 0;
}

static int build_root(const struct jail *j, struct err *err)
{
    const unsigned long flags = MS_NOSUID | MS_NODEV | MS_NOEXEC;

    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        return err_sys(err, errno, "make mounts private");
    if (mount("lcow-jail", j->mount_point, "tmpfs", flags, "mode=0755,size=1m,nr_inodes=512") < 0)
        return err_sys(err, errno, "mount the jail's root on %s", j->mount_point);
    if (chdir(j->mount_point) < 0)
        return err_sys(err, errno, "change to %s", j->mount_point);
    umask(0022);
    for (size_t i = 0; i < j->n; i++)
        if (do_step(j, &j->steps[i], err) < 0)
            return -1;
    if (mount(NULL, ".", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | flags, NULL) < 0)
        return err_sys(err, errno, "make the jail's root read-only");
    /* The old root comes to lie on top of the new one and is taken off again. */
    if (syscall(SYS_pivot_root, ".", ".") < 0)
        return err_sys(err, errno, "pivot_root");
    if (umount2(".", MNT_DETACH) < 0 || chdir("/") < 0)
        return err_sys(err, errno, "leave the old root");
    return 0;
}

/* What was opened as /dev/null outside is not behind a read-only mount. */
static int replace_null(struct err *err)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    struct stat ours, st;

    if (null < 0)
        return errno == ENOENT ? 0 : err_sys(err, errno, "open /dev/null in the jail");
    if (fstat(null, &ours) < 0)
        return err_sys(err, errno, "look at /dev/null");
    for (int fd = 0; fd < 3; fd++)
        if (fstat(fd, &st) == 0 && S_ISCHR(st.st_mode) && st.st_rdev == ours.st_rdev &&
            dup2(null, fd) < 0)
            return err_sys(err, errno, "replace fd %d", fd);
    close(null);
    return 0;
}

/* Our keyring is inherited and may hold root's keys. The new one counts against root's quota,
 * which no process in a jail can use up. */
static int leave_keyring(struct err *err)
{
    if (syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL, 0, 0, 0) < 0 && errno != ENOSYS &&
        errno != EPERM) /* no keyrings, or a filter that keeps the program from them too */
        return err_sys(err, errno, "make a session keyring");
    return 0;
}

static int drop_bounding_set(const struct jail *j, struct err *err)
{
    for (int cap = 0; cap < 64; cap++) {
        int held = prctl(PR_CAPBSET_READ, cap, 0, 0, 0);
        if (held < 0)
            break; /* the kernel knows no more */
        if (held == 1 && !(j->caps >> cap & 1) && prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0)
            return err_sys(err, errno, "drop capability %d", cap);
    }
    return 0;
}

static int become_user(const struct jail *j, struct err *err)
{
    struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
    struct __user_cap_data_struct data[2];

    if (drop_bounding_set(j, err) < 0)
        return -1;
    if (prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) < 0)
        return err_sys(err, errno, "keep capabilities");
    /* The raw calls: this is the only thread here, and the C library's would look for others. */
    if (syscall(SYS_setgroups, 0, NULL) < 0 || syscall(SYS_setresgid, j->uid, j->uid, j->uid) < 0 ||
        syscall(SYS_setresuid, j->uid, j->uid, j->uid) < 0)
        return err_sys(err, errno, "become user %u", j->uid);
    for (int i = 0; i < 2; i++) {
        uint32_t mask = (uint32_t)(j->caps >> (32 * i));
        data[i] = (struct __user_cap_data_struct){ mask, mask, mask };
    }
    if (syscall(SYS_capset, &head, data) < 0)
        return err_sys(err, errno, "set capabilities");
    for (int cap = 0; cap < 64; cap++)
        if (j->caps >> cap & 1 && prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, cap, 0, 0) < 0)
            return err_sys(err, errno, "keep capability %d across exec", cap);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return err_sys(err, errno, "no_new_privs");
    return 0;
}

static int set_up(const struct jail *j, struct err *err)
{
    const struct rlimit no_core = { 0, 0 };

    if (build_root(j, err) < 0 || replace_null(err) < 0 || leave_keyring(err) < 0)
        return -1;
    if (sethostname("vm", 2) < 0)
        return err_sys(err, errno, "sethostname");
    if (setrlimit(RLIMIT_NOFILE, &j->nofile) < 0 || setrlimit(RLIMIT_NPROC, &j->nproc) < 0 ||
        setrlimit(RLIMIT_CORE, &no_core) < 0)
        return err_sys(err, errno, "set limits");
    if (j->small_pages)
        (void)prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0); /* no such pages here: as well */
    return become_user(j, err);
}

int jail_setup(void *arg, struct err *err)
{
    return set_up(arg, err) < 0 ? err_blame(err, REASON_JAIL_FAILED) : 0;
}
