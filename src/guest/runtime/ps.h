/* ps.h - reads processes from /proc, for a container's process list. Escapes everything that a
 * process can choose, above all its name. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct loop;

#define PS_MAX 4096        /* processes in a list */
#define PS_DETAILS_MAX 256 /* longer lists have no details: they would not fit into an answer */

struct ps_entry {
    uint32_t pid, parent;
    uint32_t leader; /* the nearest of the leaders that it descends from, or is; 0: none */
    char name[16];   /* printable ASCII; this and all below: "" and 0 in a long list */
    uint64_t age_ms, user_ms, kernel_ms, data_kib, private_kib, shared_kib;
};

struct ps_opts {
    struct loop *loop; /* others run from time to time; NULL: they do not */
    const char *proc;  /* "/proc" */
    bool (*is_leader)(const void *arg, uint32_t pid);
    const void *arg;
};
/* Those of pids that still exist, by pid. pids is sorted. Caller frees *ret. */
void ps_list(const struct ps_opts *o, uint32_t *pids, size_t n_pids, struct ps_entry **ret,
             size_t *ret_n);
