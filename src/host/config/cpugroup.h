/* cpugroup.h - groups of host CPUs that VMs run on, like hcsshim's CPU groups. Each group is a file
 * in cpu_group_dir with the group's name, and holds a list of CPUs ("0-3,8"). The administrator
 * creates them (lcow cpugroup). Reads these files, blocking; never waits otherwise. */
#pragma once

struct err;
struct strv;

#define CPUGROUP_NAME_MAX 64
#define CPUGROUP_CPUS_MAX 512 /* bytes */

/* [A-Za-z0-9][A-Za-z0-9._-]*: ERR_INVALID. */
int cpugroup_check_name(const char *name, struct err *err);
/* Checks for digits, commas and dashes only; the kernel checks the rest. */
int cpugroup_check_cpus(const char *cpus, struct err *err);
/* Caller frees. The message of ERR_NOT_FOUND says how to create the group. */
int cpugroup_read(const char *dir, const char *name, char **ret_cpus, struct err *err);
/* Sorted names; none if the directory is missing. */
int cpugroup_list(const char *dir, struct strv *ret, struct err *err);
/* Creates or replaces the group. */
int cpugroup_write(const char *dir, const char *name, const char *cpus, struct err *err);
