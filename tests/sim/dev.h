/* dev.h - one simulated life of a VM's disks and shares: their controllers as they are, several
 * callers at once, a fake VMM and a guest that keeps account of what is mounted. */
#pragma once
#include "cli.h"

/* The class of a schedule is seed % DEV_FAULT_COUNT. */
enum dev_fault {
    DEV_NONE,
    DEV_GUEST,     /* mounts and unmounts fail, or are done and said to have failed */
    DEV_VMM,       /* attaching and detaching fail */
    DEV_HANG,      /* a step takes longer than its caller waits */
    DEV_CANCELLED, /* callers give up early */
    DEV_DEATH,     /* the VM dies */
    DEV_EVERYTHING,
    DEV_FAULT_COUNT
};
extern const char *const dev_fault_names[];

enum { DEV_FIG_CALLS, DEV_FIG_FAILED, DEV_FIG_MAPPED };

void dev_run(uint64_t seed, const char *dir, struct cli_result *ret);
