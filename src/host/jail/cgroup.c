/* cgroup.c - a cgroup on the host: one directory per hierarchy. */
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "host/jail/cgroup_priv.h"
#include "host/jail/cgroup_scope.h"
#include "host/jail/mountinfo.h"
#include "host/ledger/ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOUNTINFO_MAX (8u << 20)
#define SMALL_FILE 4096
#define MAKE_TRIES 8 /* if a parent directory is removed while we create one below it */

/* --- what the host has --- */

static void hierarchy_release(struct cgroup_hierarchy *h)
{
    free(h->mount_point);
    free(h->device);
    free(h->own);
    free(h->controllers);
}

void cgroup_hierarchies_release_auto(struct cgroup_hierarchies *h)
{
    for (size_t i = 0; i < h->n; i++)
        hierarchy_release(&h->v[i]);
    h->n = 0;
}

/* One of a list with commas. */
static bool has_word(const char *list, const char *word, size_t len)
{
    for (const char *p = list; *p; p += strcspn(p, ","), p += *p == ',')
        if (strcspn(p, ",") == len && strncmp(p, word, len) == 0)
            return true;
    return false;
}

bool cgroup_has_controller(const struct cgroup_hierarchy *h, const char *name)
{
    return has_word(h->controllers, name, strlen(name));
}

/* Of "rw,cpu,cpuacct,release_agent=…" those words that /proc/self/cgroup knows. */
static char *controllers_of(const char *options)
{
    struct sbuf out = { 0 };

    for (const char *p = options; *p; p += strcspn(p, ","), p += *p == ',') {
        size_t len = strcspn(p, ",");

        if ((memchr(p, '=', len) && strncmp(p, "name=", 5) != 0) || (len == 2 && p[0] == 'r'))
            continue; /* rw, ro, and settings */
        sbuf_addf(&out, "%s%.*s", out.len ? "," : "", (int)len, p);
    }
    return sbuf_take(&out);
}

/* Our own cgroup as seen from the mount point, which may show only a part: lines are
 * "3:cpu,cpuacct:/path", "0::/path". Caller frees. */
static char *own_of(const char *self, const char *controllers, bool v2, const char *root)
{
    for (const char *line = self; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        const char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;
        size_t line_len = strcspn(line, "\n");

        if (!path || (size_t)(path - line) > line_len)
            continue;

        AUTO_FREE char *names = str_ndup(list + 1, (size_t)(path - list - 1));
        bool match = v2 ? !*names : *names && has_word(controllers, names, strcspn(names, ","));

        if (!match)
            continue;

        AUTO_FREE char *own = str_ndup(path + 1, line_len - (size_t)(path + 1 - line));
        size_t n = strlen(root);

        if (n > 1 && str_starts(own, root) && (own[n] == '/' || own[n] == '\0'))
            return str_dup(own[n] ? own + n : "/");
        return str_dup(str_starts(own, "/..") ? "/" : own);
    }
    return str_dup("/");
}

static void add_hierarchy(struct cgroup_hierarchies *h, const struct mountinfo *m, const char *self)
{
    bool v2 = str_eq(m->type, "cgroup2");

    if (!v2 && !str_eq(m->type, "cgroup"))
        return;
    for (size_t i = 0; i < h->n; i++)
        if (str_eq(h->v[i].device, m->device))
            return; /* the same one, mounted elsewhere too */
    if (h->n == CGROUP_HIERARCHIES_MAX)
        return;

    struct cgroup_hierarchy *to = &h->v[h->n++];

    *to = (struct cgroup_hierarchy){ .mount_point = str_dup(m->point),
                                     .device = str_dup(m->device),
                                     .controllers = v2 ? str_dup("") : controllers_of(m->options),
                                     .v2 = v2 };
    to->own = own_of(self, to->controllers, v2, m->root);
}

/* v1 with v2 beside it: v2 has no controllers to speak of and is left alone. */
static void choose(struct cgroup_hierarchies *h)
{
    size_t n_v1 = 0, kept = 0;

    for (size_t i = 0; i < h->n; i++)
        n_v1 += !h->v[i].v2;
    for (size_t i = 0; i < h->n; i++)
        if (h->v[i].v2 && n_v1 > 0)
            hierarchy_release(&h->v[i]);
        else
            h->v[kept++] = h->v[i];
    h->n = kept;
}

static int read_proc(const char *proc, const char *name, char **ret, struct err *err)
{
    AUTO_FREE char *path = str_format("%s/%s", proc, name);

    return file_load(path, MOUNTINFO_MAX, ret, err);
}

int cgroup_find(const char *proc, struct cgroup_hierarchies *ret, struct err *err)
{
    AUTO_FREE char *mounts = NULL, *self = NULL;
    struct mountinfo m;

    if (read_proc(proc, "mountinfo", &mounts, err) < 0 || read_proc(proc, "cgroup", &self, err) < 0)
        return -1;
    char *rest = mounts;
    for (char *line; (line = strsep(&rest, "\n"));)
        if (mountinfo_parse(line, &m))
            add_hierarchy(ret, &m, self);
    if (ret->n == 0)
        return err_because(err, REASON_CGROUP_FAILED, ERR_UNAVAILABLE,
                           "no cgroups are mounted on this host");
    choose(ret);
    return 0;
}

int cgroup_host_is_v2(bool *ret, struct err *err)
{
    AUTO(cgroup_hierarchies_release) struct cgroup_hierarchies h = { .n = 0 };

    if (cgroup_find(CGROUP_PROC, &h, err) < 0)
        return -1;
    *ret = h.v[0].v2;
    return 0;
}

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
            return err_sys(err, -r, "set %s as in the parent cgroup", to);
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

static int forget(struct cgroup *c, struct cgroup_made *m, struct err *err)
{
    if (m->record && ledger_forget(c->ledger, m->record, err) < 0)
        return -1;
    m->record = 0;
    return 0;
}

/* 0 also if it was there. -ENOENT: what is above has gone meanwhile. */
static int make_one(struct cgroup *c, const char *path, bool leaf, struct err *err)
{
    struct cgroup_made m = { .leaf = leaf };

    if (access(path, F_OK) == 0)
        return 0;
    if (c->ledger && ledger_add(c->ledger, LEDGER_CGROUP, path, &m.record, err) < 0)
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

/* Where path is in this hierarchy. Caller frees. */
static char *dir_of(const struct cgroup_hierarchy *h, const char *path)
{
    bool below_own = path[0] != '/' && !str_eq(h->own, "/");

    return str_eq(path, "/") ? str_dup(h->mount_point)
                             : str_format("%s%s%s%s", h->mount_point, below_own ? h->own : "",
                                          path[0] == '/' ? "" : "/", path);
}

static int make_in(struct cgroup *c, const struct cgroup_hierarchy *h, const char *path,
                   struct err *err)
{
    AUTO_FREE char *dir = dir_of(h, path);
    int r = c->scope ? 0 : -ENOENT;

    for (int i = 0; i < MAKE_TRIES && r == -ENOENT; i++)
        r = make_dirs(c, h, dir, err);
    if (r == -ENOENT)
        return err_because(err, REASON_CGROUP_FAILED, ERR_ABORTED,
                           "make cgroup %s: its parent is being removed", dir);
    if (r < 0 || add_procs(c, dir, err) < 0)
        return -1;
    c->v2 = c->v2 || h->v2;
    if (h->v2 || cgroup_has_controller(h, "cpuset"))
        c->cpuset_dir = str_dup(dir);
    if (h->v2 || cgroup_has_controller(h, "cpu"))
        c->cpu_dir = TAKE_PTR(dir);
    return 0;
}

/* The directory is recorded before systemd makes it. After a crash it is removed by its path: a
 * scope without a directory or without processes ends by itself. */
static int start_scope(struct ctx *ctx, struct cgroup *c, const char *path, const char *dir,
                       struct err *err)
{
    AUTO_FREE char *slice = NULL, *unit = NULL;
    struct cgroup_made m = { .leaf = true };

    if (cgroup_unit_of(path, &slice, &unit, err) < 0)
        return -1;
    if (!str_ends(unit, ".scope") || access(dir, F_OK) == 0)
        return 0; /* a slice, or a unit that another process has started: joined as it is */
    if (c->ledger && ledger_add(c->ledger, LEDGER_CGROUP, dir, &m.record, err) < 0)
        return -1;
    m.path = str_dup(dir);
    c->made = mem_grow(c->made, c->n_made, &c->made_cap, sizeof(*c->made));
    c->made[c->n_made++] = m;
    if (scope_start(ctx, &(struct scope_opts){ unit, slice, c->ledger }, &c->scope, err) == 0)
        return 0;
    if (access(dir, F_OK) < 0)
        return -1;
    /* Another process started the unit meanwhile: it is joined as it is. */
    err_clear(err);
    free(c->made[--c->n_made].path);
    return forget(c, &c->made[c->n_made], err);
}

/* On v2 with systemd as PID 1: a unit, which systemd knows and leaves alone. */
static int ask_systemd(struct ctx *ctx, const struct cgroup_host *host, struct cgroup *c,
                       const struct cgroup_hierarchies *h, const char *path, const char *plain,
                       struct err *err)
{
    AUTO_FREE char *dir = dir_of(&h->v[0], plain);

    if (!cgroup_path_is_systemd(path) || !h->v[0].v2 || access(host->systemd, F_OK) < 0)
        return 0;
    if (start_scope(ctx, c, path, dir, err) < 0)
        return err_wrap_because(err, REASON_CGROUP_FAILED, "cgroup path \"%.256s\"", path);
    return 0;
}

int cgroup_make_on(struct ctx *ctx, const struct cgroup_host *host, const char *path,
                   struct ledger *ledger, struct cgroup **ret, struct err *err)
{
    AUTO(cgroup_hierarchies_release) struct cgroup_hierarchies h = { .n = 0 };
    AUTO(cgroup_free) struct cgroup *c = NULL;
    AUTO_FREE char *plain = NULL;

    if (!path || !*path) {
        *ret = NULL;
        return 0;
    }
    if (cgroup_path_expand(path, &plain, err) < 0 || cgroup_find(host->proc, &h, err) < 0)
        return -1;
    c = mem_new(struct cgroup);
    c->ledger = ledger;
    int r = ask_systemd(ctx, host, c, &h, path, plain, err);
    for (size_t i = 0; i < h.n && r == 0; i++)
        r = make_in(c, &h.v[i], plain, err);
    if (r < 0) {
        (void)cgroup_remove(c, &(struct err)ERR_INIT); /* the ledger knows what is left */
        return -1;
    }
    *ret = TAKE_PTR(c);
    return 0;
}

int cgroup_make(struct ctx *ctx, const char *path, struct ledger *ledger, struct cgroup **ret,
                struct err *err)
{
    const struct cgroup_host host = { CGROUP_PROC, CGROUP_SYSTEMD };

    return cgroup_make_on(ctx, &host, path, ledger, ret, err);
}

void cgroup_settle(struct cgroup *c)
{
    if (c && c->scope)
        scope_settle(c->scope);
}

int cgroup_current_on(const char *proc, struct cgroup **ret, struct err *err)
{
    AUTO(cgroup_hierarchies_release) struct cgroup_hierarchies h = { .n = 0 };
    AUTO(cgroup_free) struct cgroup *c = mem_new(struct cgroup);

    if (cgroup_find(proc, &h, err) < 0)
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
    return cgroup_current_on(CGROUP_PROC, ret, err);
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
        return err_wrap_because(err, REASON_CGROUP_FAILED, "move process %d into a cgroup",
                                (int)pid);
    return 0;
}

/* "0" is the process that writes it, in every pid namespace. */
int cgroup_join_self(struct cgroup *c, struct err *err)
{
    return join(c, "0", 1, err);
}

/* ENOENT: v2 without the controller. */
static int put(const char *dir, const char *file, const char *text, bool must, struct err *err)
{
    AUTO_FREE char *path = str_format("%s/%s", dir ? dir : "", file);
    int r = dir ? file_put(path, text) : -ENOENT;

    if (r == -ENOENT)
        return must ? err_because(
                          err, REASON_CGROUP_FAILED, ERR_STATE,
                          "the VM's cgroup has no %s: the host does not offer that controller, "
                          "or the container's spec names no cgroup (linux.cgroupsPath)",
                          file)
                    : 0;
    return r < 0 ? err_sys(err, -r, "write %s to %s", text, path) : 0;
}

/* The kernel's own conversion of shares (2 … 262144) to weights (1 … 10000). */
static uint64_t weight_of(uint64_t shares)
{
    shares = shares < 2 ? 2 : shares > 262144 ? 262144 : shares;
    return 1 + (shares - 2) * 9999 / 262142;
}

static int put_cpu(struct cgroup *c, const struct cgroup_cpu *cpu, struct err *err)
{
    bool v2 = c && c->v2, weighs = cpu->shares || cpu->weight;
    const char *dir = c ? c->cpu_dir : NULL;
    uint64_t weight = cpu->weight ? cpu->weight : weight_of(cpu->shares),
             shares = cpu->weight ? cpu->weight * UINT64_C(1024) / 100 : cpu->shares;
    AUTO_FREE char *limit =
                       cpu->quota ? str_format("%" PRIu64, cpu->quota) : str_dup(v2 ? "max" : "-1"),
                   *both = str_format("%s %" PRIu64, limit, cpu->period),
                   *alone = str_format("%" PRIu64, cpu->period),
                   *part = str_format("%" PRIu64, v2 ? weight : shares);

    if (weighs && put(dir, v2 ? "cpu.weight" : "cpu.shares", part, cpu->must, err) < 0)
        return -1;
    if (v2)
        return put(dir, "cpu.max", both, cpu->must, err);
    return put(dir, "cpu.cfs_period_us", alone, cpu->must, err) < 0
               ? -1
               : put(dir, "cpu.cfs_quota_us", limit, cpu->must, err);
}

/* systemd writes its own values again at a daemon-reload: it must know ours. It keeps whole per
 * cents, so the quota is rounded up, as runc does. */
int cgroup_set_cpu(struct ctx *ctx, struct cgroup *c, const struct cgroup_cpu *cpu, struct err *err)
{
    uint64_t percent = (cpu->quota * 100 + cpu->period - 1) / cpu->period;
    AUTO_FREE char *quota = percent ? str_format("CPUQuota=%" PRIu64 "%%", percent)
                                    : str_dup("CPUQuota="),
                   *period = str_format("CPUQuotaPeriodSec=%" PRIu64 "us", cpu->period),
                   *weight = str_format("CPUWeight=%" PRIu64,
                                        cpu->weight ? cpu->weight : weight_of(cpu->shares));
    const char *const properties[] = { quota, period, cpu->shares || cpu->weight ? weight : NULL,
                                       NULL };

    if (put_cpu(c, cpu, err) < 0)
        return -1;
    return c && c->scope ? scope_set(ctx, c->scope, properties, err) : 0;
}

int cgroup_set_cpuset(struct ctx *ctx, struct cgroup *c, const char *cpus, struct err *err)
{
    AUTO_FREE char *allowed = str_format("AllowedCPUs=%s", cpus);
    const char *const properties[] = { allowed, NULL };

    if (put(c ? c->cpuset_dir : NULL, "cpuset.cpus", cpus, true, err) < 0)
        return -1;
    return c->scope ? scope_set(ctx, c->scope, properties, err) : 0;
}

/* --- removing --- */

/* Newest first. A directory above that others use by now is theirs. */
int cgroup_remove(struct cgroup *c, struct err *err)
{
    cgroup_settle(c);
    for (; c && c->n_made > 0; c->n_made--) {
        struct cgroup_made *m = &c->made[c->n_made - 1];

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
    scope_free(c->scope);
    for (size_t i = 0; i < c->n_procs; i++)
        free(c->procs[i]);
    for (size_t i = 0; i < c->n_made; i++)
        free(c->made[i].path);
    free(c->made);
    free(c->cpu_dir);
    free(c->cpuset_dir);
    free(c);
}
