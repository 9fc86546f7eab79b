#include "guest/runtime/metrics.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "guest/runtime/cgroup.h"
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILES_MAX (16 * 1024) /* together; memory.stat, the largest, has 1.5 KiB */
#define NS_PER_USEC 1000u

/* A file with one number; "max" is the largest. */
static uint64_t number(const char *text)
{
    if (!text)
        return 0;
    return strncmp(text, "max", 3) == 0 ? UINT64_MAX : strtoull(text, NULL, 10);
}

static void put(struct jsw *w, const char *key, uint64_t value)
{
    if (value)
        jsw_u64(w, key, value);
}

static uint64_t usec(const char *text, const char *key)
{
    uint64_t n = cgroup_keyed(text, key);

    return n > UINT64_MAX / NS_PER_USEC ? UINT64_MAX : n * NS_PER_USEC;
}

static void put_cpu(struct jsw *w, const char *stat)
{
    jsw_obj(w, "cpu");
    jsw_obj(w, "usage");
    put(w, "total", usec(stat, "usage_usec"));
    put(w, "kernel", usec(stat, "system_usec"));
    put(w, "user", usec(stat, "user_usec"));
    jsw_end_obj(w);
    jsw_obj(w, "throttling");
    put(w, "periods", cgroup_keyed(stat, "nr_periods"));
    put(w, "throttled_periods", cgroup_keyed(stat, "nr_throttled"));
    put(w, "throttled_time", usec(stat, "throttled_usec"));
    jsw_end_obj(w);
    jsw_end_obj(w);
}

/* What version 1 calls it, twice -> what version 2's memory.stat calls it; where version 1 lacks
 * it, what containerd's version 2 metrics call it. */
static const struct {
    const char *to, *total, *from, *v2;
} memory_keys[] = {
    { "cache", "total_cache", "file" },
    { "rss", "total_rss", "anon" },
    { "rss_huge", "total_rss_huge", "anon_thp" },
    { "mapped_file", "total_mapped_file", "file_mapped" },
    { "dirty", "total_dirty", "file_dirty" },
    { "writeback", "total_writeback", "file_writeback" },
    { "pg_fault", "total_pg_fault", "pgfault" },
    { "pg_maj_fault", "total_pg_maj_fault", "pgmajfault" },
    { "inactive_anon", "total_inactive_anon", "inactive_anon" },
    { "active_anon", "total_active_anon", "active_anon" },
    { "inactive_file", "total_inactive_file", "inactive_file" },
    { "active_file", "total_active_file", "active_file" },
    { "unevictable", "total_unevictable", "unevictable" },
    { .from = "kernel_stack" }, /* version 1 has these two elsewhere */
    { .from = "sock" },
    { .v2 = "slab", .from = "slab" },
    { .v2 = "shmem", .from = "shmem" },
    { .v2 = "slab_reclaimable", .from = "slab_reclaimable" },
    { .v2 = "slab_unreclaimable", .from = "slab_unreclaimable" },
    { .v2 = "pgscan", .from = "pgscan" },
    { .v2 = "pgsteal", .from = "pgsteal" },
    { .v2 = "thp_fault_alloc", .from = "thp_fault_alloc" },
    { .v2 = "thp_collapse_alloc", .from = "thp_collapse_alloc" },
};
enum { KERNEL_STACK = 13, SOCK, MEMORY_KEYS = ARRAY_LEN(memory_keys) };

/* Finds all memory_keys in one pass, because the file has 50 lines and the CPU may be emulated. */
static void read_memory_keys(const char *text, uint64_t values[MEMORY_KEYS])
{
    for (const char *line = text; line && *line;) {
        const char *space = strchr(line, ' '), *end = space ? strchr(space, '\n') : NULL;
        size_t len = space ? (size_t)(space - line) : 0;

        for (size_t i = 0; i < MEMORY_KEYS && len > 0; i++) {
            const char *key = memory_keys[i].from;
            if (line[0] == key[0] && strncmp(line, key, len) == 0 && key[len] == '\0') {
                values[i] = strtoull(space + 1, NULL, 10);
                break;
            }
        }
        line = end ? end + 1 : NULL;
    }
}

static void put_entry(struct jsw *w, const char *key, uint64_t limit, uint64_t usage, uint64_t max)
{
    jsw_obj(w, key);
    put(w, "limit", limit);
    put(w, "usage", usage);
    put(w, "max", max);
    jsw_end_obj(w);
}

static void put_memory(struct jsw *w, const struct metrics_files *f,
                       const uint64_t values[MEMORY_KEYS], bool totals)
{
    uint64_t limit = number(f->memory_max), swap_limit = number(f->swap_max);

    jsw_obj(w, "memory");
    for (size_t i = 0; i < KERNEL_STACK; i++)
        put(w, memory_keys[i].to, values[i]);
    put(w, "hierarchical_memory_limit", limit);
    put(w, "hierarchical_swap_limit", swap_limit);
    /* Version 2 counts with children: the same numbers under both names. */
    for (size_t i = 0; i < KERNEL_STACK && totals; i++)
        put(w, memory_keys[i].total, values[i]);
    put_entry(w, "usage", limit, number(f->memory_current), number(f->memory_peak));
    put_entry(w, "swap", swap_limit, number(f->swap_current), number(f->swap_peak));
    put_entry(w, "kernel", 0, values[KERNEL_STACK], 0);
    put_entry(w, "kernel_tcp", 0, values[SOCK], 0);
    jsw_end_obj(w);
}

/* One list of version 1: of each device reads and writes, by two keys of a line such as
 * "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0". */
static void put_devices(struct jsw *w, const char *list, const char *stat,
                        const char *const keys[2])
{
    static const char *const ops[] = { "Read", "Write" };

    jsw_arr(w, list);
    for (const char *line = stat; line && *line;) {
        char *end;
        unsigned long major = strtoul(line, &end, 10),
                      minor = *end == ':' ? strtoul(end + 1, &end, 10) : 0;
        size_t len = strcspn(line, "\n");

        for (int i = 0; i < 2; i++) {
            const char *at = strstr(end, keys[i]);

            if (!at || at > line + len)
                continue;
            jsw_obj(w, NULL);
            jsw_str(w, "op", ops[i]);
            put(w, "major", major);
            put(w, "minor", minor);
            put(w, "value", strtoull(at + strlen(keys[i]), NULL, 10));
            jsw_end_obj(w);
        }
        line += len + (line[len] == '\n');
    }
    jsw_end_arr(w);
}

static void put_blkio(struct jsw *w, const char *stat)
{
    static const char *const bytes[] = { " rbytes=", " wbytes=" }, *const ios[] = { " rios=",
                                                                                    " wios=" };

    jsw_obj(w, "blkio");
    if (stat && *stat) {
        put_devices(w, "io_service_bytes_recursive", stat, bytes);
        put_devices(w, "io_serviced_recursive", stat, ios);
    }
    jsw_end_obj(w);
}

/* " KEY=1.50": without its last zeros it is a JSON number. As a double it would be read and printed
 * by the C library's slow paths, for 18 numbers of each answer. Its end, or NULL: not such a
 * number. */
static const char *put_average(struct jsw *w, const char *at, const char *key)
{
    size_t len = strlen(key), digits, all;
    char text[24];

    if (*at != ' ' || strncmp(at + 1, key, len) != 0 || at[len + 1] != '=')
        return NULL;
    at += len + 2;
    digits = strspn(at, "0123456789");
    all = digits;
    if (digits > 0 && at[digits] == '.')
        all += 1 + strspn(at + digits + 1, "0123456789");
    if (digits == 0 || all >= sizeof(text) || (at[0] == '0' && digits > 1))
        return NULL;
    memcpy(text, at, all);
    len = all;
    while (all > digits && text[len - 1] == '0')
        len--;
    len -= all > digits && text[len - 1] == '.';
    text[len] = '\0';
    jsw_raw(w, key, text);
    return at + all;
}

/* "some avg10=0.00 avg60=0.00 avg300=0.00 total=0", then "full …". */
static void put_pressure(struct jsw *w, const char *text)
{
    static const char *const lines[] = { "some", "full" }, *const averages[] = { "avg10", "avg60",
                                                                                 "avg300" };

    if (!text)
        return;
    jsw_obj(w, "psi");
    for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
        const char *at = strstr(text, lines[i]);

        if (!at)
            continue;
        jsw_obj(w, lines[i]);
        at += strlen(lines[i]);
        for (size_t k = 0; k < ARRAY_LEN(averages) && at; k++)
            at = put_average(w, at, averages[k]);
        if (at && strncmp(at, " total=", 7) == 0)
            put(w, "total", strtoull(at + 7, NULL, 10));
        jsw_end_obj(w);
    }
    jsw_end_obj(w);
}

static void put_keys(struct jsw *w, const char *text, const char *const *keys, size_t n)
{
    for (size_t i = 0; i < n; i++)
        put(w, keys[i], cgroup_keyed(text, keys[i]));
}

static void put_v2(struct jsw *w, const struct metrics_files *f, const uint64_t values[MEMORY_KEYS])
{
    static const char
        *const events[] = { "low", "high", "max", "oom", "oom_kill", "oom_group_kill" },
               *const of_cpu[] = { "nr_bursts", "burst_usec" };

    if (!f->memory_events && !f->memory_pressure)
        return;
    jsw_obj(w, "v2");
    jsw_obj(w, "cpu");
    put_keys(w, f->cpu_stat, of_cpu, ARRAY_LEN(of_cpu));
    put_pressure(w, f->cpu_pressure);
    jsw_end_obj(w);
    jsw_obj(w, "memory");
    for (size_t i = SOCK + 1; i < MEMORY_KEYS; i++)
        put(w, memory_keys[i].v2, values[i]);
    put_pressure(w, f->memory_pressure);
    jsw_end_obj(w);
    jsw_obj(w, "io");
    put_pressure(w, f->io_pressure);
    jsw_end_obj(w);
    jsw_obj(w, "memory_events");
    put_keys(w, f->memory_events, events, ARRAY_LEN(events));
    jsw_end_obj(w);
    jsw_end_obj(w);
}

char *metrics_json(const struct metrics_files *f, bool totals)
{
    uint64_t values[MEMORY_KEYS] = { 0 };
    struct jsw w;

    read_memory_keys(f->memory_stat, values);
    jsw_init(&w, JSW_HTML);
    jsw_obj(&w, NULL);
    jsw_obj(&w, "pids");
    put(&w, "current", number(f->pids_current));
    put(&w, "limit", number(f->pids_max));
    jsw_end_obj(&w);
    put_cpu(&w, f->cpu_stat);
    put_memory(&w, f, values, totals);
    put_blkio(&w, f->io_stat);
    jsw_obj(&w, "rdma");
    jsw_end_obj(&w);
    jsw_obj(&w, "memory_oom_control");
    put(&w, "oom_kill", cgroup_keyed(f->memory_events, "oom_kill"));
    jsw_end_obj(&w);
    put_v2(&w, f, values);
    jsw_end_obj(&w);
    return jsw_take(&w, NULL);
}

/* --- the files --- */

static const struct {
    const char *name;
    size_t offset; /* in struct metrics_files */
} files[] = {
    { "memory.current", offsetof(struct metrics_files, memory_current) },
    { "memory.max", offsetof(struct metrics_files, memory_max) },
    { "memory.peak", offsetof(struct metrics_files, memory_peak) },
    { "memory.stat", offsetof(struct metrics_files, memory_stat) },
    { "memory.events", offsetof(struct metrics_files, memory_events) },
    { "memory.swap.current", offsetof(struct metrics_files, swap_current) },
    { "memory.swap.max", offsetof(struct metrics_files, swap_max) },
    { "memory.swap.peak", offsetof(struct metrics_files, swap_peak) },
    { "cpu.stat", offsetof(struct metrics_files, cpu_stat) },
    { "pids.current", offsetof(struct metrics_files, pids_current) },
    { "pids.max", offsetof(struct metrics_files, pids_max) },
    { "io.stat", offsetof(struct metrics_files, io_stat) },
    { "cpu.pressure", offsetof(struct metrics_files, cpu_pressure) },
    { "memory.pressure", offsetof(struct metrics_files, memory_pressure) },
    { "io.pressure", offsetof(struct metrics_files, io_pressure) },
};

struct metrics {
    int fds[ARRAY_LEN(files)]; /* -1: there is no such file */
};

int metrics_open(const char *cgroup_dir, struct metrics **ret, struct err *err)
{
    AUTO_FD int dir = open(cgroup_dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    AUTO(metrics_close) struct metrics *m = mem_new(struct metrics);

    memset(m->fds, -1, sizeof(m->fds));
    if (dir < 0 && errno == ENOENT)
        return err_set(err, ERR_NOT_FOUND, "cgroup %s is gone", cgroup_dir);
    if (dir < 0)
        return err_sys(err, errno, "open cgroup %s", cgroup_dir);
    /* A controller that the kernel lacks has no files; its numbers are left out. */
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        m->fds[i] = openat(dir, files[i].name, O_RDONLY | O_CLOEXEC);
        if (m->fds[i] < 0 && errno != ENOENT)
            return err_sys(err, errno, "open cgroup %s: %s", cgroup_dir, files[i].name);
    }
    *ret = TAKE_PTR(m);
    return 0;
}

void metrics_close(struct metrics *m)
{
    for (size_t i = 0; m && i < ARRAY_LEN(files); i++)
        fd_close(m->fds[i]);
    free(m);
}

int metrics_read(const struct metrics *m, bool totals, char **ret_json, struct err *err)
{
    AUTO_FREE char *texts = mem_alloc(FILES_MAX);
    struct metrics_files f = { 0 };
    size_t used = 0;

    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        size_t room = FILES_MAX - used - 1;
        /* Each file is one record, which one read yields. Some cannot be read (EOPNOTSUPP). */
        ssize_t n = m->fds[i] < 0 ? -1 : pread(m->fds[i], texts + used, room, 0);

        if (m->fds[i] >= 0 && n < 0 && errno == ENODEV)
            return err_set(err, ERR_NOT_FOUND, "the cgroup is gone");
        if (n < 0 || (size_t)n == room)
            continue;
        *(const char **)((char *)&f + files[i].offset) = texts + used;
        used += (size_t)n;
        texts[used++] = '\0';
    }
    *ret_json = metrics_json(&f, totals);
    return 0;
}
