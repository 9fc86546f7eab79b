/* cg.h - the cgroups (version 2) of pods and containers. dir is always the cgroup's full path. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ctx;
struct err;

/* "/sys/fs/cgroup" + cgroups_path. Caller frees. */
char *cg_dir(const char *cgroups_path);
/* Makes a pod's cgroup and applies the limits of OCI LinuxResources that a pod can have (memory,
 * cpu, pids). ERR_EXISTS if it is there. */
int cg_make_pod(const char *dir, const json_t *resources, struct err *err);
/* The same limits anew: what is not said stays, -1 takes one away. */
int cg_update_pod(const char *dir, const json_t *resources, struct err *err);
/* With all cgroups below; missing is fine. -EBUSY while processes are in it. */
int cg_remove(const char *dir);
/* The pids in it and below, at most max. Caller frees *ret. A missing one has none. */
#define CG_PIDS_MAX 32768
void cg_pids(const char *dir, uint32_t **ret, size_t *ret_n);
/* Of a file with lines "key value"; 0 if there is none of that key. text may be NULL. */
uint64_t cg_keyed(const char *text, const char *key);
/* How often the kernel killed in it for want of memory. */
uint64_t cg_oom_kills(const char *dir);
/* Waits until memory.events changes, or ctx ends. ERR_NOT_FOUND if there is no such file. */
int cg_wait_memory_event(struct ctx *ctx, const char *dir, uint64_t seen, struct err *err);
/* Waits until all processes are frozen, or thawed. On failure they are thawed again. */
int cg_freeze(struct ctx *ctx, const char *dir, bool frozen, struct err *err);
/* SIGKILL to all in it, at once (cgroup.kill). */
int cg_kill(const char *dir);
