#include "base/err.h"
#include "base/fd.h"
#include "base/idmap.h"
#include "base/str.h"
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

struct line {
    uint64_t inside, outside, size;
};

void idmap_release(struct idmap *m)
{
    free(m->uid);
    free(m->gid);
    *m = (struct idmap){ 0 };
}

struct idmap idmap_copy(const struct idmap *m)
{
    return (struct idmap){ str_dup(m->uid), str_dup(m->gid) };
}

bool idmap_eq(const struct idmap *a, const struct idmap *b)
{
    return (!a->uid && !b->uid) || (str_eq(a->uid, b->uid) && str_eq(a->gid, b->gid));
}

/* --- text --- */

static bool take_number(const char **at, uint64_t *ret)
{
    size_t n = strspn(*at, "0123456789");
    AUTO_FREE char *digits = str_ndup(*at, n);

    *at += n;
    return str_to_u64(digits, UINT32_MAX, ret) == 0;
}

/* The next line; *at moves on. */
static bool take_line(const char **at, struct line *ret)
{
    uint64_t *const fields[] = { &ret->inside, &ret->outside, &ret->size };

    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        if (!take_number(at, fields[i]) || (i < 2 ? **at != ':' : **at && **at != ','))
            return false;
        *at += **at ? 1 : 0;
    }
    return true;
}

static bool overlap(uint64_t a, uint64_t a_size, uint64_t b, uint64_t b_size)
{
    return a < b + b_size && b < a + a_size;
}

static int check_line(const struct line *lines, size_t n, const char *what, struct err *err)
{
    const struct line *l = &lines[n];

    if (l->size == 0)
        return err_set(err, ERR_INVALID, "%s[%zu] has size 0", what, n);
    if (l->inside + l->size > UINT32_MAX || l->outside + l->size > UINT32_MAX)
        return err_set(err, ERR_INVALID, "%s[%zu]: its ids exceed %u", what, n, UINT32_MAX - 1);
    for (size_t i = 0; i < n; i++)
        if (overlap(l->inside, l->size, lines[i].inside, lines[i].size) ||
            overlap(l->outside, l->size, lines[i].outside, lines[i].size))
            return err_set(err, ERR_INVALID, "%s[%zu] overlaps %s[%zu]", what, n, what, i);
    return 0;
}

int idmap_check(const char *map, const char *what, struct err *err)
{
    AUTO_FREE struct line *lines = mem_zalloc((IDMAP_LINES_MAX + 1) * sizeof(*lines));
    size_t n = 0;

    if (strlen(map) > IDMAP_TEXT_MAX)
        return err_set(err, ERR_INVALID, "%s has more than %d bytes of text", what, IDMAP_TEXT_MAX);
    for (; *map; n++) {
        if (n == IDMAP_LINES_MAX)
            return err_set(err, ERR_INVALID, "%s has more than %d lines", what, IDMAP_LINES_MAX);
        if (!take_line(&map, &lines[n]))
            return err_set(err, ERR_INVALID, "%s[%zu] is not CONTAINER:HOST:SIZE", what, n);
        if (check_line(lines, n, what, err) < 0)
            return -1;
    }
    return n ? 0 : err_set(err, ERR_INVALID, "%s is empty", what);
}

bool idmap_outside(const char *map, uint32_t id, uint32_t *ret)
{
    struct line l;

    while (map && *map && take_line(&map, &l))
        if (id >= l.inside && id - l.inside < l.size) {
            *ret = (uint32_t)(l.outside + (id - l.inside));
            return true;
        }
    return false;
}

/* Caller frees; NULL with err. */
static char *with_line(const char *map, uint32_t outside, uint32_t size, struct err *err)
{
    struct line l;
    uint64_t inside = 4000000000;
    bool again = true;

    for (const char *at = map; *at && take_line(&at, &l);)
        if (overlap(outside, size, l.outside, l.size)) {
            err_set(err, ERR_INVALID,
                    "the mapping %.200s overlaps the user ids of VMs, %u–%u: change vm_uid_base",
                    map, outside, outside + size - 1);
            return NULL;
        }
    while (again && inside > size) {
        again = false;
        for (const char *at = map; *at && take_line(&at, &l);)
            again = again || overlap(inside, size, l.inside, l.size);
        inside -= again ? size : 0;
    }
    if (again) {
        err_set(err, ERR_INVALID, "the mapping %.200s leaves fewer than %u ids for VMs", map, size);
        return NULL;
    }
    return str_format("%s,%llu:%u:%u", map, (unsigned long long)inside, outside, size);
}

int idmap_with(const struct idmap *m, uint32_t outside, uint32_t size, struct idmap *ret,
               struct err *err)
{
    AUTO(idmap_release) struct idmap both = { 0 };

    both.uid = with_line(m->uid, outside, size, err);
    both.gid = both.uid ? with_line(m->gid, outside, size, err) : NULL;
    if (!both.gid)
        return -1;
    *ret = both;
    both = (struct idmap){ 0 };
    return 0;
}

/* --- the kernel --- */

static int write_map(pid_t pid, const char *file, const char *map, struct err *err)
{
    AUTO_FREE char *path = str_format("/proc/%d/%s", (int)pid, file), *text = str_dup(map);
    AUTO_FD int fd = open(path, O_WRONLY | O_CLOEXEC);

    for (char *c = text; *c; c++)
        *c = *c == ',' ? '\n' : *c == ':' ? ' ' : *c;
    /* The kernel accepts it only as one write. */
    if (fd < 0 || write(fd, text, strlen(text)) < 0)
        return err_sys(err, errno, "write the %s %.200s of a user namespace", file, map);
    return 0;
}

static int open_userns(pid_t pid, const struct idmap *m, struct err *err)
{
    AUTO_FREE char *path = str_format("/proc/%d/ns/user", (int)pid);

    if (write_map(pid, "uid_map", m->uid, err) < 0 || write_map(pid, "gid_map", m->gid, err) < 0)
        return -1;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd < 0 ? err_sys(err, errno, "open a user namespace") : fd;
}

static void wait_to_be_killed(pid_t parent)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)close_range(0, ~0u, 0); /* locks and sockets of the parent */
    while (getppid() == parent)
        (void)pause();
    _exit(1);
}

/* Only a process with a single thread can create a user namespace: a child that does nothing else.
 * Its exit raises no signal, so no other wait sees it. */
int idmap_userns(const struct idmap *m, struct err *err)
{
    pid_t parent = getpid(), pid = (pid_t)syscall(SYS_clone, CLONE_NEWUSER, NULL, NULL, NULL, NULL);
    int fd;

    if (pid == 0)
        wait_to_be_killed(parent);
    if (pid < 0 && (errno == ENOSPC || errno == EPERM || errno == EINVAL || errno == EUSERS))
        return err_because(
            err, REASON_IDMAP_UNSUPPORTED, ERR_UNIMPLEMENTED,
            "the kernel cannot create a user namespace (%s): it needs CONFIG_USER_NS and "
            "user.max_user_namespaces above 0",
            strerrordesc_np(errno));
    if (pid < 0)
        return err_sys(err, errno, "make a user namespace");
    fd = open_userns(pid, m, err);
    (void)kill(pid, SIGKILL); /* not reaped yet, so the pid is still this child's */
    while (waitpid(pid, NULL, __WALL) < 0 && errno == EINTR)
        ;
    return fd;
}

int idmap_mount(int tree, int userns, bool recursive, const char *what, struct err *err)
{
    struct mount_attr attr = { .attr_set = MOUNT_ATTR_IDMAP, .userns_fd = (uint64_t)userns };

    if (mount_setattr(tree, "", AT_EMPTY_PATH | (recursive ? AT_RECURSIVE : 0), &attr,
                      sizeof(attr)) == 0)
        return 0;
    if (errno == EINVAL || errno == ENOSYS || errno == EPERM)
        return err_because(
            err, REASON_IDMAP_UNSUPPORTED, ERR_UNIMPLEMENTED,
            "%s cannot be id-mapped: the kernel cannot do this for its file system, or "
            "it is id-mapped already; use another file system, such as ext4, xfs or "
            "btrfs",
            what);
    return err_sys(err, errno, "map the ids of %s", what);
}
