/* cgroup.c - a cgroup on the host: one directory per hierarchy. */
#include "host/jail/cgroup.h"
#include "base/err.h"
#include "base/fd.h"
#include "host/jail/cgroup_priv.h"
#include "host/ledger/ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SMALL_FILE 4096
#define MAKE_TRIES 8 /* somebody removes a directory above as we make one below */

/* What we made. */
struct made {
    char *path;
    bool leaf;
    uint64_t note; /* 0: none */
};

struct cgroup {
    struct ledger *ledger;
    struct made *made;
    size_t n_made, made_cap;
    char *procs[CGROUP_HIERARCHIES_MAX]; /* paths of cgroup.procs */
    size_t n_procs;
    char *oom_file; /* NULL: unknown */
    char *cpu_dir;  /* NULL: there is no such controller */
    bool v2;
};

/* --- making --- */

/* A v1 cpuset that has no CPUs or no memory takes no process. */
static int inherit_cpuset(const char *dir, struct err *err)
{
    static const char *const files[] = { "cpuset.cpus", "cpuset.mems" };
    const char *slash = strrchr(dir, '/');

    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        AUTO_FREE char *to = str_format("%s/%s", dir, files[i]),
                       *from = str_format("%.*s/%s", (int)(slash - dir), dir, files[i]),
                       *value = NULL, *set = NULL;
        size_t len;
        int r = file_read_all(to, SMALL_FILE, &set, &len);

        if (r == 0 && set[strspn(set, " \n")])
            continue;
        if (r == 0)
            r = file_read_all(from, SMALL_FILE, &value, &len);
        if (r == 0)
            r = file_write(to, value, len, 0644);
        if (r < 0)
            return err_sys(err, -r, "set %s as above it", to);
    }
    return 0;
}

/* v2: what a cgroup may count and limit is decided in the one above. What is not there, or not to
 * be had, is left out. */
static void enable_controllers(const char *dir)
{
    AUTO_FREE char *from = str_format("%s/cgroup.controllers", dir),
                   *to = str_format("%s/cgroup.subtree_control", dir), *names = NULL;
    size_t len;
    char *save = NULL;

    if (file_read_all(from, SMALL_FILE, &names, &len) < 0)
        return;

    AUTO_FD int fd = open(to, O_WRONLY | O_CLOEXEC);

    for (char *name = strtok_r(names, " \n", &save); name && fd >= 0;
         name = strtok_r(NULL, " \n", &save)) {
        AUTO_FREE char *word = str_format("+%s", name);

        (void)!write(fd, word, strlen(word)); /* one by one: each fails for itself */
    }
}

static int forget(struct cgroup *c, struct made *m, struct err *err)
{
    if (m->note && ledger_forget(c->ledger, m->note, err) < 0)
        return -1;
    m->note = 0;
    return 0;
}

/* 0 also if it was there. -ENOENT: what is above has gone meanwhile. */
static int make_one(struct cgroup *c, const char *path, bool leaf, struct err *err)
{
    struct made m = { .leaf = leaf };

    if (access(path, F_OK) == 0)
        return 0;
    if (c->ledger && ledger_note(c->ledger, LEDGER_CGROUP, path, &m.note, err) < 0)
        return -1;
    if (mkdir(path, 0755) < 0) {
        int e = errno;

        if (forget(c, &m, err) < 0)
            return -1;
        return e == EEXIST ? 0 : e == ENOENT ? -ENOENT : err_sys(err, e, "make cgroup %s", path);
    }
    m.path = str_dup(path);
    c->made = mem_grow(c->made, c->n_made, &c->made_cap, sizeof(*c->made));
    c->made[c->n_made++] = m;
    return 0;
}

/* All directories from the mount point down. */
static int make_dirs(struct cgroup *c, const struct cgroup_hierarchy *h, const char *dir,
                     struct err *err)
{
    size_t top = strlen(h->mount_point);
    bool cpuset = cgroup_has_controller(h, "cpuset");

    for (size_t end = top; dir[end];) {
        AUTO_FREE char *above = str_ndup(dir, end), *path = NULL;
        int r;

        end += 1 + strcspn(dir + end + 1, "/");
        path = str_ndup(dir, end);
        if (h->v2)
            enable_controllers(above);
        r = make_one(c, path, dir[end] == '\0', err);
        if (r < 0)
            return r;
        if (cpuset && inherit_cpuset(path, err) < 0)
            return -1;
    }
    return 0;
}

static int add_procs(struct cgroup *c, const char *dir, struct err *err)
{
    AUTO_FREE char *path = str_format("%s/cgroup.procs", dir);

    if (access(path, W_OK) < 0)
        return err_sys(err, errno, "write to %s", path);
    c->procs[c->n_procs++] = TAKE_PTR(path);
    return 0;
}

static int make_in(struct cgroup *c, const struct cgroup_hierarchy *h, const char *path,
                   struct err *err)
{
    bool below_own = path[0] != '/' && !str_eq(h->own, "/");
    AUTO_FREE char *dir = str_eq(path, "/")
                              ? str_dup(h->mount_point)
                              : str_format("%s%s%s%s", h->mount_point, below_own ? h->own : "",
                                           path[0] == '/' ? "" : "/", path);
    int r = -ENOENT;

    for (int i = 0; i < MAKE_TRIES && r == -ENOENT; i++)
        r = make_dirs(c, h, dir, err);
    if (r == -ENOENT)
        return err_set(err, ERR_ABORTED, "make cgroup %s: what is above it is being removed", dir);
    if (r < 0 || add_procs(c, dir, err) < 0)
        return -1;
    if (h->v2 || cgroup_has_controller(h, "memory"))
        c->oom_file = str_format("%s/%s", dir, h->v2 ? "memory.events" : "memory.oom_control");
    if (h->v2 || cgroup_has_controller(h, "cpu")) {
        c->cpu_dir = TAKE_PTR(dir);
        c->v2 = h->v2;
    }
    return 0;
}

int cgroup_make_on(const struct cgroup_host *host, const char *path, struct ledger *ledger,
                   struct cgroup **ret, struct err *err)
{
    AUTO(cgroup_hierarchies_release) struct cgroup_hierarchies h = { .n = 0 };
    AUTO(cgroup_free) struct cgroup *c = NULL;
    AUTO_FREE char *plain = NULL;

    if (!path || !*path) {
        *ret = NULL;
        return 0;
    }
    if (cgroup_path_expand(path, &plain, err) < 0 || cgroup_find(host, &h, err) < 0)
        return -1;
    c = mem_new(struct cgroup);
    c->ledger = ledger;
    for (size_t i = 0; i < h.n; i++)
        if (make_in(c, &h.v[i], plain, err) < 0) {
            (void)cgroup_remove(c, &(struct err)ERR_INIT); /* the ledger knows what is left */
            return -1;
        }
    *ret = TAKE_PTR(c);
    return 0;
}

int cgroup_make(const char *path, struct ledger *ledger, struct cgroup **ret, struct err *err)
{
    return cgroup_make_on(&cgroup_this_host, path, ledger, ret, err);
}

int cgroup_current_on(const struct cgroup_host *host, struct cgroup **ret, struct err *err)
{
    AUTO(cgroup_hierarchies_release) struct cgroup_hierarchies h = { .n = 0 };
    AUTO(cgroup_free) struct cgroup *c = mem_new(struct cgroup);

    if (cgroup_find(host, &h, err) < 0)
        return -1;
    for (size_t i = 0; i < h.n; i++) {
        AUTO_FREE char *dir =
            str_format("%s%s", h.v[i].mount_point, str_eq(h.v[i].own, "/") ? "" : h.v[i].own);

        if (add_procs(c, dir, err) < 0)
            return -1;
    }
    *ret = TAKE_PTR(c);
    return 0;
}

int cgroup_current(struct cgroup **ret, struct err *err)
{
    return cgroup_current_on(&cgroup_this_host, ret, err);
}

/* --- using --- */

/* System calls only: it runs between clone and exec, too. */
static int join(const struct cgroup *c, const char *pid, size_t len, struct err *err)
{
    for (size_t i = 0; i < c->n_procs; i++) {
        AUTO_FD int fd = open(c->procs[i], O_WRONLY | O_CLOEXEC);

        if (fd < 0 || write(fd, pid, len) != (ssize_t)len)
            return err_sys(err, errno, "write to %s", c->procs[i]);
    }
    return 0;
}

int cgroup_join(struct cgroup *c, pid_t pid, struct err *err)
{
    char text[16];
    int len = snprintf(text, sizeof(text), "%d", (int)pid);

    if (join(c, text, (size_t)len, err) < 0)
        return err_wrap(err, "move process %d into a cgroup", (int)pid);
    return 0;
}

/* "0" is whoever writes it, in every pid namespace. */
int cgroup_join_self(struct cgroup *c, struct err *err)
{
    return join(c, "0", 1, err);
}

static int put_cpu(const struct cgroup *c, const char *file, const char *text, struct err *err)
{
    AUTO_FREE char *path = str_format("%s/%s", c->cpu_dir, file);
    AUTO_FD int fd = open(path, O_WRONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : write(fd, text, strlen(text));

    if (n < 0 && errno == ENOENT)
        return 0; /* v2 without the controller */
    return n < 0 ? err_sys(err, errno, "write %s to %s", text, path) : 0;
}

/* The kernel's own conversion of shares (2 … 262144) to weights (1 … 10000). */
static uint64_t weight_of(uint64_t shares)
{
    shares = shares < 2 ? 2 : shares > 262144 ? 262144 : shares;
    return 1 + (shares - 2) * 9999 / 262142;
}

int cgroup_set_cpu(struct cgroup *c, uint64_t quota, uint64_t period, uint64_t shares,
                   struct err *err)
{
    if (!c || !c->cpu_dir)
        return 0;
    AUTO_FREE char *limit = quota ? str_format("%" PRIu64, quota) : str_dup(c->v2 ? "max" : "-1"),
                   *both = str_format("%s %" PRIu64, limit, period),
                   *alone = str_format("%" PRIu64, period),
                   *weight = str_format("%" PRIu64, c->v2 ? weight_of(shares) : shares);

    if (shares && put_cpu(c, c->v2 ? "cpu.weight" : "cpu.shares", weight, err) < 0)
        return -1;
    if (c->v2)
        return put_cpu(c, "cpu.max", both, err);
    return put_cpu(c, "cpu.cfs_period_us", alone, err) < 0
               ? -1
               : put_cpu(c, "cpu.cfs_quota_us", limit, err);
}

uint64_t cgroup_oom_kills(const struct cgroup *c)
{
    AUTO_FREE char *text = NULL;
    size_t len;
    uint64_t n = 0;

    if (!c || !c->oom_file || file_read_all(c->oom_file, SMALL_FILE, &text, &len) < 0)
        return 0;
    for (const char *p = text; *p; p += strcspn(p, "\n"), p += *p == '\n')
        if (sscanf(p, "oom_kill %" SCNu64, &n) == 1)
            return n;
    return 0;
}

/* --- taking back --- */

/* Newest first. A directory above that others use by now is theirs. */
int cgroup_remove(struct cgroup *c, struct err *err)
{
    for (; c && c->n_made > 0; c->n_made--) {
        struct made *m = &c->made[c->n_made - 1];

        if (rmdir(m->path) < 0 && errno != ENOENT &&
            (m->leaf || (errno != EBUSY && errno != ENOTEMPTY)))
            return err_sys(err, errno, "remove cgroup %s", m->path);
        if (forget(c, m, err) < 0)
            return -1;
        free(m->path);
    }
    return 0;
}

void cgroup_free(struct cgroup *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < c->n_procs; i++)
        free(c->procs[i]);
    for (size_t i = 0; i < c->n_made; i++)
        free(c->made[i].path);
    free(c->made);
    free(c->oom_file);
    free(c->cpu_dir);
    free(c);
}
