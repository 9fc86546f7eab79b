/* volumes.h - volumes that are a disk with a file system. `lcow volume add` writes a record. A
 * container whose mount names the volume's path gets the disk instead of a share of that path. A
 * record is `<run_root>/.volumes/<SHA-256 of the path>`, accessible to root only. It does not
 * survive a reboot, after which node plugins publish their volumes again. Its format is that of
 * Kata's mountInfo.json plus the path. Leaf code on files of our own: never waits. */
#pragma once
#include "base/json.h"
#include <stdint.h>

struct err;

#define VOLUMES_PATH_MAX 4095
#define VOLUMES_OPTIONS_MAX 32
#define VOLUMES_INFO_MAX (64u << 10)

/* Strings are borrowed from doc. */
struct volumes_record {
    json_t *doc;
    const char *path, *device, *fstype;
    const char
        *options[VOLUMES_OPTIONS_MAX + 1]; /* NULL-terminated; each is known (oci/volume.h) */
    const char *group_policy;              /* "Always" or "OnRootMismatch"; NULL: no group is set */
    uint32_t group;
    bool read_only;
};
void volumes_release(struct volumes_record *v);
AUTO_VALUE(struct volumes_record, volumes_release);

/* Takes doc: Kata's mount info with "volume-path". ERR_INVALID names the invalid member. */
int volumes_read(json_t *doc, struct volumes_record *ret, struct err *err);
/* Atomic. Writing the same record again succeeds; another record for that path is ERR_EXISTS. */
int volumes_put(const char *run_root, const struct volumes_record *v, struct err *err);
/* *ret_there: a record for exactly this path exists. ERR_PERMISSION: others than root can write
 * it. */
int volumes_get(const char *run_root, const char *path, struct volumes_record *ret, bool *ret_there,
                struct err *err);
/* The volume that path is, or is below; *ret_below: which part, "" for all of it, borrowed from
 * path; NULL: path is the kubelet's bind mount of a part, see volume_is_csi_subpath(). */
int volumes_find(const char *run_root, const char *path, struct volumes_record *ret,
                 bool *ret_there, const char **ret_below, struct err *err);
/* Succeeds if the record does not exist. */
int volumes_drop(const char *run_root, const char *path, struct err *err);
/* Calls fn for each record. For an unreadable record, err is set and v is empty. */
int volumes_each(const char *run_root,
                 void (*fn)(void *arg, const struct volumes_record *v, const struct err *err),
                 void *arg, struct err *err);
