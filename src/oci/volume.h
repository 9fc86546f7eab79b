/* volume.h - a volume that lives in the VM: the pod's emptyDirs and its /dev/shm. The host says in
 * the mount, under a key of its own, what the guest is to make when the volume is first named; a
 * guest that does not know the key makes a plain directory (docs/decisions/0003). Pure. */
#pragma once
#include "base/json.h"
#include <stdint.h>

struct err;

#define VOLUME_DIRS_MAX 512

struct volume_dir {
    char *path; /* below the volume; "" is the volume itself */
    uint32_t mode, uid, gid;
};
struct volume {
    char *at;                /* "sandbox://…" or "sandbox-tmp://…" */
    bool tmpfs;              /* a file system of its own, in memory … */
    uint64_t bytes;          /* … of this size; 0: as the kernel likes */
    struct volume_dir *dirs; /* that are made where they are missing; those above come first */
    size_t n, cap;
};
void volume_release(struct volume *v);
AUTO_VALUE(struct volume, volume_release);
void volume_add_dir(struct volume *v, const char *path, uint32_t mode, uint32_t uid, uint32_t gid);

/* Into an entry of mounts, with its source; below: which part of the volume ("" is all). */
void volume_write(const struct volume *v, const char *below, json_t *mount);
/* Out of it, and the key is gone afterwards. *ret_there: there was one. ERR_INVALID. */
int volume_read(json_t *mount, struct volume *ret, bool *ret_there, struct err *err);
/* No client may say what only we say. */
void volume_clear(json_t *mount);

/* True for the kubelet's paths of an emptyDir and of a subPath in what may be one. *ret_dir: the
 * volume's own directory; caller frees. */
bool volume_is_empty_dir(const char *path, char **ret_dir);
