/* cgroup.h - the VM's top cgroups: "gcs" holds the agent, "pods" all containers and "commands" what
 * runs beside them in the VM itself, both with limits that keep memory for the agent and the
 * kernel: a command that eats all of it dies of its own limit, before the kernel is at its end.
 * Leaf code; never waits. */
#pragma once
#include <stdint.h>

struct err;

#define CGROUP_ROOT "/sys/fs/cgroup"

/* What pods may use of total: all but 75 MiB, or all but a quarter in a small VM. */
uint64_t cgroup_pods_limit(uint64_t total_bytes);
/* Makes them below root (CGROUP_ROOT), moves the caller into the first. Repeatable. */
int cgroup_setup(const char *root, uint64_t total_bytes, struct err *err);
/* The limit of pods anew, after the VM's memory has changed. */
int cgroup_limit_pods(const char *root, uint64_t total_bytes, struct err *err);

/* What commands may use: what they hold and cannot give back, and of what is available all but
 * 32 MiB, or all but a quarter in a small VM. */
uint64_t cgroup_commands_limit(uint64_t available_bytes, uint64_t held_bytes);
/* Before a command starts: their limit anew, from meminfo (/proc/meminfo). */
int cgroup_limit_commands(const char *root, const char *meminfo, struct err *err);
/* In the child: joins CGROUP_ROOT's commands. 0 or -errno. Allocates nothing. */
int cgroup_join_commands(void);
