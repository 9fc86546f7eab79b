#include "guest/runtime/cg.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/loop.h"
#include "base/str.h"
#include "guest/runtime/cgroup.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_MAX (1u << 20)
#define DEPTH_MAX 16
#define FREEZE_NS (10 * NS_PER_S)
#define CONTROLLERS_MAX 1024

char *cg_dir(const char *cgroups_path)
{
    return str_format(CGROUP_ROOT "%s", cgroups_path);
}

/* Attributes of a cgroup are there or not: never made. */
static int put(const char *dir, const char *file, const char *text)
{
    AUTO_FREE char *path = str_format("%s/%s", dir, file);
    AUTO_FD int fd = open(path, O_WRONLY | O_CLOEXEC);

    return fd < 0 ? -errno : fd_write_full(fd, text, strlen(text));
}

/* --- pods --- */

static int put_limit(const char *dir, const char *file, const char *text, struct err *err)
{
    int r = put(dir, file, text);

    return r < 0 ? err_sys(err, -r, "write %s to %s/%s", text, dir, file) : 0;
}

/* 0 is nothing, less is no limit. Caller frees. */
static char *text_of(int64_t limit)
{
    return limit > 0 ? str_format("%ld", limit) : str_dup("max");
}

static int apply_memory(const char *dir, const json_t *resources, struct err *err)
{
    const json_t *memory = NULL, *pids = NULL;
    int64_t limit = 0, max = 0;

    if (js_obj(resources, "memory", &memory, err) < 0 || js_obj(resources, "pids", &pids, err) < 0)
        return -1;
    if (memory && js_i64(memory, "limit", &limit, err) < 0)
        return -1;
    if (pids && js_i64(pids, "limit", &max, err) < 0)
        return -1;
    AUTO_FREE char *limit_text = text_of(limit), *max_text = text_of(max);
    if (limit != 0 && put_limit(dir, "memory.max", limit_text, err) < 0)
        return -1;
    return max != 0 ? put_limit(dir, "pids.max", max_text, err) : 0;
}

static int apply_cpu(const char *dir, const json_t *resources, struct err *err)
{
    const json_t *cpu = NULL;
    uint64_t shares = 0, period = 0;
    int64_t quota = 0;

    if (js_obj(resources, "cpu", &cpu, err) < 0)
        return -1;
    if (!cpu)
        return 0;
    if (js_u64(cpu, "shares", &shares, err) < 0 || js_u64(cpu, "period", &period, err) < 0 ||
        js_i64(cpu, "quota", &quota, err) < 0)
        return -1;
    /* The kernel's own conversion of shares (2 … 262144) to weights (1 … 10000). */
    if (shares >= 2 && shares <= 262144) {
        AUTO_FREE char *weight = str_format("%lu", 1 + (shares - 2) * 9999 / 262142);
        if (put_limit(dir, "cpu.weight", weight, err) < 0)
            return -1;
    }
    AUTO_FREE char *quota_text = text_of(quota),
                   *max = str_format("%s %lu", quota_text, period ? period : 100000);
    return quota != 0 ? put_limit(dir, "cpu.max", max, err) : 0;
}

/* What the parent has, so that containers can be limited. */
static void enable_controllers(const char *dir)
{
    AUTO_FREE char *path = str_format("%s/cgroup.controllers", dir), *list = NULL;
    char *save = NULL;
    size_t len;

    if (file_read_all(path, CONTROLLERS_MAX, &list, &len) < 0)
        return;
    for (char *name = strtok_r(list, " \n", &save); name; name = strtok_r(NULL, " \n", &save)) {
        AUTO_FREE char *word = str_format("+%s", name);
        (void)put(dir, "cgroup.subtree_control", word); /* a limit that needs it will fail */
    }
}

int cg_make_pod(const char *dir, const json_t *resources, struct err *err)
{
    if (mkdir(dir, 0755) < 0)
        return err_sys(err, errno, "make cgroup %s", dir);
    enable_controllers(dir);
    if (resources &&
        (apply_memory(dir, resources, err) < 0 || apply_cpu(dir, resources, err) < 0)) {
        (void)rmdir(dir); /* just made, empty */
        return err_wrap(err, "pod's resources");
    }
    return 0;
}

int cg_update_pod(const char *dir, const json_t *resources, struct err *err)
{
    if (apply_memory(dir, resources, err) < 0 || apply_cpu(dir, resources, err) < 0)
        return err_wrap(err, "pod's resources");
    return 0;
}

/* --- trees --- */

static int each_child(const char *dir, unsigned depth,
                      int (*fn)(void *arg, const char *path, unsigned depth), void *arg)
{
    DIR *d = depth < DEPTH_MAX ? opendir(dir) : NULL;
    int result = 0;

    for (struct dirent *e; d && result == 0 && (e = readdir(d));) {
        if (e->d_type != DT_DIR || e->d_name[0] == '.')
            continue;
        AUTO_FREE char *path = str_format("%s/%s", dir, e->d_name);
        result = fn(arg, path, depth + 1);
    }
    if (d)
        closedir(d);
    return result;
}

static int remove_one(void *arg, const char *path, unsigned depth)
{
    int r = each_child(path, depth, remove_one, arg);

    if (r == 0 && rmdir(path) < 0 && errno != ENOENT)
        r = -errno;
    return r;
}

int cg_remove(const char *dir)
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
    AUTO_FREE char *file = str_format("%s/cgroup.procs", path), *text = NULL;
    size_t len;

    if (file_read_all(file, FILE_MAX, &text, &len) < 0)
        return 0; /* gone meanwhile */
    for (char *at = text; *at && p->n < CG_PIDS_MAX;) {
        unsigned long pid = strtoul(at, &at, 10);
        at += strspn(at, "\n");
        if (pid == 0)
            break;
        p->v = mem_grow(p->v, p->n, &p->cap, sizeof(p->v[0]));
        p->v[p->n++] = (uint32_t)pid;
    }
    return each_child(path, depth, collect, arg);
}

void cg_pids(const char *dir, uint32_t **ret, size_t *ret_n)
{
    struct pids p = { 0 };

    (void)collect(&p, dir, 0);
    *ret = p.v;
    *ret_n = p.n;
}

/* --- events --- */

uint64_t cg_keyed(const char *text, const char *key)
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

uint64_t cg_oom_kills(const char *dir)
{
    AUTO_FREE char *path = str_format("%s/memory.events", dir), *text = NULL;
    size_t len;

    return file_read_all(path, FILE_MAX, &text, &len) < 0 ? 0 : cg_keyed(text, "oom_kill");
}

/* One value of an events file, and ready for the next change from now on. */
static int read_event(int fd, const char *key, uint64_t *ret)
{
    char text[512];
    ssize_t n = pread(fd, text, sizeof(text) - 1, 0);

    if (n < 0)
        return -errno;
    text[n] = '\0';
    *ret = cg_keyed(text, key);
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

int cg_wait_memory_event(struct ctx *ctx, const char *dir, uint64_t seen, struct err *err)
{
    return wait_event(ctx, dir, "memory.events", "oom_kill", seen, err);
}

int cg_freeze(struct ctx *ctx, const char *dir, bool frozen, struct err *err)
{
    struct ctx bounded = ctx_with_timeout(ctx, FREEZE_NS);
    int r = put(dir, "cgroup.freeze", frozen ? "1" : "0");

    if (r < 0)
        return err_sys(err, -r, "write %s/cgroup.freeze", dir);
    if (wait_event(&bounded, dir, "cgroup.events", "frozen", !frozen, err) == 0)
        return 0;
    if (frozen)
        (void)put(dir, "cgroup.freeze", "0"); /* the first error is the one to tell */
    return err_wrap(err, frozen ? "freeze" : "thaw");
}

int cg_kill(const char *dir)
{
    return put(dir, "cgroup.kill", "1");
}
