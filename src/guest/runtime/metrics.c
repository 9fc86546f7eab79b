#include "guest/runtime/metrics.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "guest/runtime/cgroup.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
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

/* What version 1 calls it, twice -> what version 2's memory.stat calls it. */
static const struct {
    const char *to, *total, *from;
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
};

/* Finds all memory_keys in one pass, because the file has 50 lines and the CPU may be emulated. */
static void read_memory_keys(const char *text, uint64_t values[ARRAY_LEN(memory_keys)])
{
    for (const char *line = text; line && *line;) {
        const char *space = strchr(line, ' '), *end = strchr(line, '\n');

        for (size_t i = 0; space && i < ARRAY_LEN(memory_keys); i++) {
            const char *key = memory_keys[i].from;
            if (line[0] == key[0] && strncmp(line, key, (size_t)(space - line)) == 0 &&
                key[space - line] == '\0')
                values[i] = strtoull(space + 1, NULL, 10);
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

static void put_memory(struct jsw *w, const struct metrics_files *f)
{
    uint64_t limit = number(f->memory_max), swap_limit = number(f->swap_max);
    uint64_t values[ARRAY_LEN(memory_keys)] = { 0 };

    read_memory_keys(f->memory_stat, values);
    jsw_obj(w, "memory");
    for (size_t i = 0; i < ARRAY_LEN(memory_keys); i++)
        put(w, memory_keys[i].to, values[i]);
    put(w, "hierarchical_memory_limit", limit);
    put(w, "hierarchical_swap_limit", swap_limit);
    /* Version 2 counts with children: the same numbers under both names. */
    for (size_t i = 0; i < ARRAY_LEN(memory_keys); i++)
        put(w, memory_keys[i].total, values[i]);
    put_entry(w, "usage", limit, number(f->memory_current), number(f->memory_peak));
    put_entry(w, "swap", swap_limit, number(f->swap_current), number(f->swap_peak));
    put_entry(w, "kernel", 0, cgroup_keyed(f->memory_stat, "kernel_stack"), 0);
    put_entry(w, "kernel_tcp", 0, cgroup_keyed(f->memory_stat, "sock"), 0);
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

/* "some avg10=0.00 avg60=0.00 avg300=0.00 total=0", then "full …". */
static void put_pressure(struct jsw *w, const char *text)
{
    static const char *const lines[] = { "some", "full" };

    if (!text)
        return;
    jsw_obj(w, "psi");
    for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
        const char *line = strstr(text, lines[i]);
        double avg[3];
        uint64_t total;

        if (!line || sscanf(line + 4, " avg10=%lf avg60=%lf avg300=%lf total=%" SCNu64, &avg[0],
                            &avg[1], &avg[2], &total) != 4)
            continue;
        jsw_obj(w, lines[i]);
        jsw_f64(w, "avg10", avg[0]);
        jsw_f64(w, "avg60", avg[1]);
        jsw_f64(w, "avg300", avg[2]);
        put(w, "total", total);
        jsw_end_obj(w);
    }
    jsw_end_obj(w);
}

static void put_keys(struct jsw *w, const char *text, const char *const *keys, size_t n)
{
    for (size_t i = 0; i < n; i++)
        put(w, keys[i], cgroup_keyed(text, keys[i]));
}

static void put_v2(struct jsw *w, const struct metrics_files *f)
{
    static const char *const
        events[] = { "low", "high", "max", "oom", "oom_kill", "oom_group_kill" },
        *const of_memory[] = { "slab",   "shmem",   "slab_reclaimable", "slab_unreclaimable",
                               "pgscan", "pgsteal", "thp_fault_alloc",  "thp_collapse_alloc" },
        *const of_cpu[] = { "nr_bursts", "burst_usec" };

    if (!f->memory_events && !f->memory_pressure)
        return;
    jsw_obj(w, "v2");
    jsw_obj(w, "cpu");
    put_keys(w, f->cpu_stat, of_cpu, ARRAY_LEN(of_cpu));
    put_pressure(w, f->cpu_pressure);
    jsw_end_obj(w);
    jsw_obj(w, "memory");
    put_keys(w, f->memory_stat, of_memory, ARRAY_LEN(of_memory));
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

char *metrics_json(const struct metrics_files *f)
{
    struct jsw w;

    jsw_init(&w, JSW_HTML);
    jsw_obj(&w, NULL);
    jsw_obj(&w, "pids");
    put(&w, "current", number(f->pids_current));
    put(&w, "limit", number(f->pids_max));
    jsw_end_obj(&w);
    put_cpu(&w, f->cpu_stat);
    put_memory(&w, f);
    put_blkio(&w, f->io_stat);
    jsw_obj(&w, "rdma");
    jsw_end_obj(&w);
    jsw_obj(&w, "memory_oom_control");
    put(&w, "oom_kill", cgroup_keyed(f->memory_events, "oom_kill"));
    jsw_end_obj(&w);
    put_v2(&w, f);
    jsw_end_obj(&w);
    return jsw_take(&w, NULL);
}

/* Puts the file's text at texts + *used, of FILES_MAX. Each file is one record, which one read
 * yields. */
static const char *read_file(int dir, const char *name, char *texts, size_t *used)
{
    AUTO_FD int fd = openat(dir, name, O_RDONLY | O_CLOEXEC);
    size_t room = FILES_MAX - *used - 1;
    ssize_t n = fd < 0 ? -1 : read(fd, texts + *used, room);
    const char *text = texts + *used;

    if (n < 0 || (size_t)n == room)
        return NULL;
    texts[*used + (size_t)n] = '\0';
    *used += (size_t)n + 1;
    return text;
}

int metrics_read(const char *cgroup_dir, char **ret_json, struct err *err)
{
    struct metrics_files f = { 0 };
    const struct {
        const char *name, **to;
    } files[] = {
        { "memory.current", &f.memory_current },
        { "memory.max", &f.memory_max },
        { "memory.peak", &f.memory_peak },
        { "memory.stat", &f.memory_stat },
        { "memory.events", &f.memory_events },
        { "memory.swap.current", &f.swap_current },
        { "memory.swap.max", &f.swap_max },
        { "memory.swap.peak", &f.swap_peak },
        { "cpu.stat", &f.cpu_stat },
        { "pids.current", &f.pids_current },
        { "pids.max", &f.pids_max },
        { "io.stat", &f.io_stat },
        { "cpu.pressure", &f.cpu_pressure },
        { "memory.pressure", &f.memory_pressure },
        { "io.pressure", &f.io_pressure },
    };
    AUTO_FD int dir = open(cgroup_dir, O_PATH | O_DIRECTORY | O_CLOEXEC);

    if (dir < 0 && errno != ENOENT) /* a failure other than ENOENT: the container still exists */
        return err_sys(err, errno, "open cgroup %s", cgroup_dir);
    if (dir < 0)
        return err_set(err, ERR_NOT_FOUND, "cgroup %s is gone", cgroup_dir);
    AUTO_FREE char *texts = mem_alloc(FILES_MAX);
    size_t used = 0;
    /* A controller that the kernel lacks has no files; its numbers are left out. */
    for (size_t i = 0; i < ARRAY_LEN(files); i++)
        *files[i].to = read_file(dir, files[i].name, texts, &used);
    *ret_json = metrics_json(&f);
    return 0;
}
