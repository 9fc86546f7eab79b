#include "guest/runtime/cgroup.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/loop.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define RESERVE_BYTES (UINT64_C(75) << 20)
#define KEPT_BYTES                                                                                 \
    (UINT64_C(32) << 20) /* kept of the available memory, which the kernel overestimates */
#define FILE_MAX (1u << 20)
#define DEPTH_MAX 16 /* of cgroups below pods; trees are read and removed so far down */
#define FREEZE_NS (10 * NS_PER_S)
#define KILL_NS (30 * NS_PER_S)

static int put(const char *dir, const char *file, const char *text)
{
    AUTO_FREE char *path = str_format("%s/%s", dir, file);

    return file_put(path, text);
}

static int set(const char *dir, const char *file, const char *text, struct err *err)
{
    int r = put(dir, file, text);

    return r < 0 ? err_sys(err, -r, "write %s to %s/%s", text, dir, file) : 0;
}

/* All that the parent has, so that cgroups below can be limited. */
static int enable_controllers(const char *dir, struct err *err)
{
    AUTO_FREE char *path = str_format("%s/cgroup.controllers", dir), *list = NULL;
    AUTO(sbuf_release) struct sbuf words = { 0 };
    char *save = NULL;

    if (file_load(path, FILE_MAX, &list, err) < 0)
        return -1;
    for (char *name = strtok_r(list, " \n", &save); name; name = strtok_r(NULL, " \n", &save))
        sbuf_addf(&words, "+%s ", name);
    return set(dir, "cgroup.subtree_control", words.data ? words.data : "", err);
}

/* --- the VM's own --- */

/* How much stays free: reserve, or a quarter of the total if that is less. */
static uint64_t all_but(uint64_t bytes, uint64_t kept)
{
    return bytes - (bytes / 4 < kept ? bytes / 4 : kept);
}

uint64_t cgroup_pods_limit(uint64_t total_bytes)
{
    return all_but(total_bytes, RESERVE_BYTES);
}

uint64_t cgroup_commands_limit(uint64_t available_bytes, uint64_t held_bytes)
{
    return held_bytes + all_but(available_bytes, KEPT_BYTES);
}

int cgroup_limit_pods(const char *root, uint64_t total_bytes, struct err *err)
{
    AUTO_FREE char *limit = str_format("%lu", cgroup_pods_limit(total_bytes));

    return set(root, "pods/memory.max", limit, err);
}

int cgroup_setup(const char *root, uint64_t total_bytes, struct err *err)
{
    static const char *const names[] = { "gcs", "commands", "pods" };
    AUTO_FREE char *pods = str_format("%s/pods", root), *deep = str_format("%d", DEPTH_MAX);

    /* Made before anything that can fail: without limits the agent continues, but pods need these
     * directories. */
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        AUTO_FREE char *path = str_format("%s/%s", root, names[i]);
        if (mkdir(path, 0755) < 0 && errno != EEXIST)
            return err_sys(err, errno, "make cgroup %s", path);
    }
    if (enable_controllers(root, err) < 0)
        return -1;
    if (set(root, "gcs/cgroup.procs", "0", err) < 0 ||
        set(root, "pods/cgroup.max.depth", deep, err) < 0 ||
        cgroup_limit_pods(root, total_bytes, err) < 0)
        return -1;
    return enable_controllers(pods, err);
}

int cgroup_limit_commands(const char *root, const char *meminfo, struct err *err)
{
    AUTO_FREE char *path = str_format("%s/commands/memory.stat", root), *stat = NULL, *info = NULL;

    if (file_load(path, FILE_MAX, &stat, err) < 0 || file_load(meminfo, FILE_MAX, &info, err) < 0)
        return -1;
    /* A limit below the memory that cannot be reclaimed would kill processes at once. Cached files
     * can be reclaimed. */
    uint64_t held =
        cgroup_keyed(stat, "anon") + cgroup_keyed(stat, "shmem") + cgroup_keyed(stat, "kernel");
    AUTO_FREE char *limit =
        str_format("%lu", cgroup_commands_limit(cgroup_keyed(info, "MemAvailable:") * 1024, held));
    return set(root, "commands/memory.max", limit, err);
}

int cgroup_join_commands(void)
{
    AUTO_FD int fd = open(CGROUP_ROOT "/commands/cgroup.procs", O_WRONLY | O_CLOEXEC);

    return fd < 0 || write(fd, "0", 1) < 0 ? -errno : 0;
}

/* --- pods --- */

char *cgroup_dir(const char *cgroups_path)
{
    return str_format(CGROUP_ROOT "%s", cgroups_path);
}

/* A limit in the document: 0 or absent changes nothing, a negative one removes it. */
static int set_limit(const char *dir, const char *file, int64_t limit, const char *more,
                     struct err *err)
{
    AUTO_FREE char *text = limit > 0 ? str_format("%ld%s", limit, more) : str_format("max%s", more);

    return limit == 0 ? 0 : set(dir, file, text, err);
}

static int set_cpu(const char *dir, const json_t *cpu, struct err *err)
{
    uint64_t shares = 0, period = 0;
    int64_t quota = 0;

    if (js_u64(cpu, "shares", &shares, err) < 0 || js_u64(cpu, "period", &period, err) < 0 ||
        js_i64(cpu, "quota", &quota, err) < 0)
        return -1;
    /* The kernel's own conversion of shares (2 … 262144) to weights (1 … 10000). */
    int64_t weight =
        shares >= 2 && shares <= 262144 ? (int64_t)(1 + (shares - 2) * 9999 / 262142) : 0;
    AUTO_FREE char *of_period = str_format(" %lu", period ? period : 100000);
    if (set_limit(dir, "cpu.weight", weight, "", err) < 0)
        return -1;
    return set_limit(dir, "cpu.max", quota, of_period, err);
}

int cgroup_update_pod(const char *dir, const json_t *resources, struct err *err)
{
    const json_t *memory = NULL, *pids = NULL, *cpu = NULL;
    int64_t limit = 0, max = 0;

    if (js_obj(resources, "memory", &memory, err) < 0 ||
        js_obj(resources, "pids", &pids, err) < 0 || js_obj(resources, "cpu", &cpu, err) < 0 ||
        js_i64(memory, "limit", &limit, err) < 0 || js_i64(pids, "limit", &max, err) < 0 ||
        set_limit(dir, "memory.max", limit, "", err) < 0 ||
        set_limit(dir, "pids.max", max, "", err) < 0 || set_cpu(dir, cpu, err) < 0)
        return err_wrap(err, "pod's resources");
    return 0;
}

static int make(const char *dir, bool for_others, const json_t *resources, struct err *err)
{
    struct err ignored = ERR_INIT;

    if (mkdir(dir, 0755) < 0)
        return err_sys(err, errno, "make cgroup %s", dir);
    if (for_others) /* a limit that needs a missing controller fails later */
        (void)enable_controllers(dir, &ignored);
    if (cgroup_update_pod(dir, resources, err) < 0) {
        (void)rmdir(dir); /* just made, empty */
        return -1;
    }
    return 0;
}

int cgroup_make_pod(const char *dir, const json_t *resources, struct err *err)
{
    return make(dir, true, resources, err);
}

int cgroup_make_holder(const char *dir, const json_t *resources, struct err *err)
{
    return make(dir, false, resources, err);
}

/* --- trees --- */

static int each_child(const char *dir, unsigned depth,
                      int (*fn)(void *arg, const char *path, unsigned depth), void *arg)
{
    AUTO(closedir) DIR *d = depth < DEPTH_MAX ? opendir(dir) : NULL;
    int result = 0;

    for (struct dirent *e; d && result == 0 && (e = readdir(d));) {
        if (e->d_type != DT_DIR || e->d_name[0] == '.')
            continue;
        AUTO_FREE char *path = str_format("%s/%s", dir, e->d_name);
        result = fn(arg, path, depth + 1);
    }
    return result;
}

static int remove_one(void *arg, const char *path, unsigned depth)
{
    int r = each_child(path, depth, remove_one, arg);

    if (r == 0 && rmdir(path) < 0 && errno != ENOENT)
        r = -errno;
    return r;
}

int cgroup_remove(const char *dir)
{
    return remove_one(NULL, dir, 0);
}

struct pids {
    uint32_t *v;
    size_t n, cap;
};

static int collect(void *arg, const char *path, unsigned depth)
{
    struct pids *p = arg;
    AUTO_FREE char *text = file_text(FILE_MAX, "%s/cgroup.procs", path);

    if (!text)
        return 0; /* gone meanwhile */
    for (char *at = text; *at && p->n < CGROUP_PIDS_MAX;) {
        unsigned long pid = strtoul(at, &at, 10);
        at += strspn(at, "\n");
        if (pid == 0)
            break;
        p->v = mem_grow(p->v, p->n, &p->cap, sizeof(p->v[0]));
        p->v[p->n++] = (uint32_t)pid;
    }
    return each_child(path, depth, collect, arg);
}

void cgroup_pids(const char *dir, uint32_t **ret, size_t *ret_n)
{
    struct pids p = { 0 };

    (void)collect(&p, dir, 0);
    *ret = p.v;
    *ret_n = p.n;
}

/* --- events --- */

uint64_t cgroup_keyed(const char *text, const char *key)
{
    size_t len = strlen(key);

    for (const char *line = text; line && *line;) {
        if (strncmp(line, key, len) == 0 && line[len] == ' ')
            return strtoull(line + len + 1, NULL, 10);
        const char *end = strchr(line, '\n');
        line = end ? end + 1 : NULL;
    }
    return 0;
}

uint64_t cgroup_oom_kills(const char *dir)
{
    AUTO_FREE char *text = file_text(FILE_MAX, "%s/memory.events", dir);

    return cgroup_keyed(text, "oom_kill");
}

/* Reads one value of an events file; after that the fd reports the next change. */
static int read_event(int fd, const char *key, uint64_t *ret)
{
    char text[512];
    ssize_t n = pread(fd, text, sizeof(text) - 1, 0);

    if (n < 0)
        return -errno;
    text[n] = '\0';
    *ret = cgroup_keyed(text, key);
    return 0;
}

/* Waits until key in file is not `old` any more. */
static int wait_event(struct ctx *ctx, const char *dir, const char *file, const char *key,
                      uint64_t old, struct err *err)
{
    AUTO_FREE char *path = str_format("%s/%s", dir, file);
    AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
    uint64_t now = old;

    if (fd < 0)
        return err_sys(err, errno, "open %s", path);
    for (;;) {
        int r = read_event(fd, key, &now);
        if (r < 0)
            return err_sys(err, -r, "read %s", path);
        if (now != old)
            return 0;
        if (loop_wait_fd(ctx, fd, POLLPRI, "cgroup event", err) < 0)
            return -1;
    }
}

int cgroup_wait_memory_event(struct ctx *ctx, const char *dir, uint64_t seen, struct err *err)
{
    return wait_event(ctx, dir, "memory.events", "oom_kill", seen, err);
}

int cgroup_freeze(struct ctx *ctx, const char *dir, bool frozen, struct err *err)
{
    struct ctx bounded = ctx_with_timeout(ctx, FREEZE_NS);
    int r = put(dir, "cgroup.freeze", frozen ? "1" : "0");

    if (r < 0)
        return err_sys(err, -r, "write %s/cgroup.freeze", dir);
    if (wait_event(&bounded, dir, "cgroup.events", "frozen", !frozen, err) == 0)
        return 0;
    if (frozen)
        (void)put(dir, "cgroup.freeze", "0"); /* the first error is reported */
    return err_wrap(err, frozen ? "freeze" : "thaw");
}

int cgroup_kill(const char *dir)
{
    return put(dir, "cgroup.kill", "1");
}

int cgroup_end(struct ctx *ctx, const char *dir, struct err *err)
{
    struct ctx bounded = ctx_with_timeout(ctx, KILL_NS);
    int r = cgroup_remove(dir);

    if (r == -EBUSY) {
        r = cgroup_kill(dir);
        if (r == 0 && wait_event(&bounded, dir, "cgroup.events", "populated", 1, err) < 0)
            return err_wrap(err, "wait until the processes in cgroup %s have exited", dir);
        if (r == 0 || r == -ENOENT)
            r = cgroup_remove(dir);
    }
    return r < 0 ? err_sys(err, -r, "remove cgroup %s", dir) : 0;
}
