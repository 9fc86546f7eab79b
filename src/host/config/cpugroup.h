/* cpugroup.h - groups of host CPUs that VMs run on, as hcsshim's CPU groups: a file below
 * cpu_group_dir for each, with its name, that holds a list of CPUs ("0-3,8"). The administrator
 * makes them (lcow cpugroup). Reads the administrator's files, blocking; never waits otherwise. */
#pragma once

struct err;
struct strv;

#define CPUGROUP_NAME_MAX 64
#define CPUGROUP_CPUS_MAX 512 /* bytes */

/* [A-Za-z0-9][A-Za-z0-9._-]*: ERR_INVALID. */
int cpugroup_check_name(const char *name, struct err *err);
/* Digits, commas and dashes; the kernel knows the rest. */
int cpugroup_check_cpus(const char *cpus, struct err *err);
/* Caller frees. ERR_NOT_FOUND has the remedy. */
int cpugroup_read(const char *dir, const char *name, char **ret_cpus, struct err *err);
/* Names, sorted. A directory that is missing has none. */
int cpugroup_list(const char *dir, struct strv *ret, struct err *err);
/* Writes it; there may be one. */
int cpugroup_write(const char *dir, const char *name, const char *cpus, struct err *err);
