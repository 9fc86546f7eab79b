/* cgroup_oom.h - whether the host's OOM killer killed a process, and which limit was the cause: by
 * the counters of its memory cgroup and of those above it. */
#pragma once
#include "base/mem.h"
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define OOM_LEVELS 8 /* its own cgroup and those above it */

struct oom_watch {
    char *mount, *path; /* NULL: not known here */
    bool v2;
    struct oom_count {
        uint64_t kills; /* in it and below it, by whatever limit */
        uint64_t local; /* v2: how often its own limit was the cause */
        bool known;
    } before[OOM_LEVELS];
};
/* When the process has joined its cgroup, before it runs. Release with oom_watch_release(). */
void oom_watch_begin(struct oom_watch *w, pid_t pid);
/* The process has been killed: by the OOM killer? Then *ret_why says what had no memory left ("" if
 * that is not known); caller frees. A cgroup that has gone meanwhile is looked at in the one above.
 */
bool oom_watch_hit(const struct oom_watch *w, char **ret_why);
void oom_watch_release(struct oom_watch *w);
/* For saved.h: the counters of the beginning. */
struct saved;
void oom_watch_saved(struct saved *s, uint32_t field, struct oom_watch *w);

/* For the test: the root of the hierarchies, and what /proc/PID/cgroup says. */
void oom_watch_begin_on(struct oom_watch *w, const char *root, const char *cgroup);
