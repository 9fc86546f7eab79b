/* cgroup.h - the VM's two top cgroups: "gcs" holds the agent, "pods" all containers, with a limit
 * that keeps memory for the agent and the kernel. Leaf code; never waits. */
#pragma once
#include <stdint.h>

struct err;

#define CGROUP_ROOT "/sys/fs/cgroup"

/* What pods may use of total: all but 75 MiB, or all but a quarter in a small VM. */
uint64_t cgroup_pods_limit(uint64_t total_bytes);
/* Makes both below root (CGROUP_ROOT), moves the caller into the first. Repeatable. */
int cgroup_setup(const char *root, uint64_t total_bytes, struct err *err);
/* The limit of pods anew, after the VM's memory has changed. */
int cgroup_limit_pods(const char *root, uint64_t total_bytes, struct err *err);
