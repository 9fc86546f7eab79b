/* cgroup.h - cgroups (version 2): the VM's own, and below them those of pods and containers.
 *
 * "gcs" holds the agent, "pods" all containers and "commands" what runs beside them in the VM
 * itself, both with limits that keep memory for the agent and the kernel: a command that uses up
 * all memory is killed at its own limit, before the VM runs out. Leaf code but for what takes a
 * ctx. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ctx;
struct err;

#define CGROUP_ROOT "/sys/fs/cgroup"

/* The pods' memory limit: total less 75 MiB, or less a quarter in a small VM. */
uint64_t cgroup_pods_limit(uint64_t total_bytes);
/* Makes them below root (CGROUP_ROOT) with all controllers, moves the caller into the first.
 * Repeatable. */
int cgroup_setup(const char *root, uint64_t total_bytes, struct err *err);
/* Sets the pods' memory limit again after the VM's memory has changed. */
int cgroup_limit_pods(const char *root, uint64_t total_bytes, struct err *err);

/* The commands' memory limit: what they hold and cannot give back, plus the available memory less
 * 32 MiB, or less a quarter in a small VM. */
uint64_t cgroup_commands_limit(uint64_t available_bytes, uint64_t held_bytes);
/* Sets the commands' memory limit from meminfo (/proc/meminfo). Called before a command starts. */
int cgroup_limit_commands(const char *root, const char *meminfo, struct err *err);
/* In the child: joins CGROUP_ROOT's commands. 0 or -errno. Allocates nothing. */
int cgroup_join_commands(void);

/* Of pods and containers; dir is always the cgroup's full path. */

/* "/sys/fs/cgroup" + cgroups_path. Caller frees. */
char *cgroup_dir(const char *cgroups_path);
/* Makes a pod's cgroup and applies the limits of OCI LinuxResources that a pod can have (memory,
 * cpu, pids). ERR_EXISTS if it is there. */
int cgroup_make_pod(const char *dir, const json_t *resources, struct err *err);
/* The same for the process that holds the pod. */
int cgroup_make_holder(const char *dir, const json_t *resources, struct err *err);
/* Changes the same limits: an absent one stays, -1 removes one. */
int cgroup_update_pod(const char *dir, const json_t *resources, struct err *err);
/* With all cgroups below; missing is fine. -EBUSY while processes are in it. */
int cgroup_remove(const char *dir);
/* The pids in it and below, at most max. Caller frees *ret. A missing one has none. */
#define CGROUP_PIDS_MAX 32768
void cgroup_pids(const char *dir, uint32_t **ret, size_t *ret_n);
/* Of a file with lines "key value"; 0 if there is none of that key. text may be NULL. */
uint64_t cgroup_keyed(const char *text, const char *key);
/* How often the kernel's OOM killer killed a process in it. */
uint64_t cgroup_oom_kills(const char *dir);
/* Waits until memory.events changes, or ctx ends. ERR_NOT_FOUND if there is no such file. */
int cgroup_wait_memory_event(struct ctx *ctx, const char *dir, uint64_t seen, struct err *err);
/* Waits until all processes are frozen, or thawed. On failure they are thawed again. */
int cgroup_freeze(struct ctx *ctx, const char *dir, bool frozen, struct err *err);
/* SIGKILL to all in it, at once (cgroup.kill). */
int cgroup_kill(const char *dir);
/* Removes it; if processes are in it, kills them first and waits for their end. Missing is fine. */
int cgroup_end(struct ctx *ctx, const char *dir, struct err *err);
