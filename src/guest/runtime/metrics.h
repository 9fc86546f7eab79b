/* metrics.h - resource usage of a container, read from its cgroup (version 2) and written as the
 * host expects it: the version 1 metrics of containerd with their Go JSON keys
 * (docs/reference/gcs-protocol.md §4.9). Values that version 1 lacks are in "v2", with the names of
 * containerd's version 2 metrics. Never waits. */
#pragma once
#include "base/mem.h"
#include <stdbool.h>

struct err;
struct metrics;

/* The texts of the cgroup's files; NULL or "" for one that is missing. */
struct metrics_files {
    const char *memory_current, *memory_max, *memory_peak, *memory_stat, *memory_events;
    const char *swap_current, *swap_max, *swap_peak;
    const char *cpu_stat, *pids_current, *pids_max;
    const char *io_stat, *cpu_pressure, *memory_pressure, *io_pressure;
};

/* JSON text of LCOWMetrics; zero fields are left out, as Go does, and with totals false the values
 * "total_…", which are the same as those without it. Caller frees. */
char *metrics_json(const struct metrics_files *f, bool totals);

/* The open files of a cgroup: to open them again for each read would take most of its time. The
 * kernel keeps about 60 KiB for them. ERR_NOT_FOUND if the cgroup is gone. Caller closes. */
int metrics_open(const char *cgroup_dir, struct metrics **ret, struct err *err);
void metrics_close(struct metrics *m);
AUTO_DEFINE(struct metrics *, metrics_close);
/* The same JSON text of them, as they are now. ERR_NOT_FOUND if the cgroup is gone. Caller frees.
 */
int metrics_read(const struct metrics *m, bool totals, char **ret_json, struct err *err);
