/* volume.h - a volume that lives in the VM: the pod's emptyDirs and its /dev/shm. The host
 * describes in the mount, under a key of its own, what the guest makes when a container first names
 * the volume; a guest that does not know the key makes a plain directory (docs/decisions/0003).
 * Pure. */
#pragma once
#include "base/json.h"
#include <stdint.h>

struct err;

#define VOLUME_DIRS_MAX 512
/* The same of a disk of the VM that is mounted there: for a part of it. */
#define VOLUME_DISK "disk://"
#define VOLUME_DISK_DIR "/run/mounts/scsi"

struct volume_dir {
    char *path; /* below the volume; "" is the volume itself */
    uint32_t mode, uid, gid;
};
struct volume {
    char *at;                /* "sandbox://…", "sandbox-tmp://…" or "disk://…" */
    bool tmpfs;              /* a file system of its own, in memory … */
    uint64_t bytes;          /* … of this size; 0: the kernel's default */
    struct volume_dir *dirs; /* created if missing; parents come first */
    size_t n, cap;
};
void volume_release(struct volume *v);
AUTO_VALUE(struct volume, volume_release);
void volume_add_dir(struct volume *v, const char *path, uint32_t mode, uint32_t uid, uint32_t gid);

/* Into an entry of mounts, with its source; below: which part of the volume ("" is all). */
void volume_write(const struct volume *v, const char *below, json_t *mount);
/* Reads and removes the key. *ret_there: it was there. ERR_INVALID. */
int volume_read(json_t *mount, struct volume *ret, bool *ret_there, struct err *err);
/* Removes such keys from a client's spec. */
void volume_clear(json_t *mount);

/* True for the kubelet's paths of an emptyDir and of a subPath in what may be one. *ret_dir: the
 * volume's own directory; caller frees. */
bool volume_is_empty_dir(const char *path, char **ret_dir);
/* The same for a subPath of a CSI driver's volume: *ret_dir is the path that the driver published.
 */
bool volume_is_csi_subpath(const char *path, char **ret_dir);
/* Absolute, without empty, "." and ".." components. */
bool volume_path_is_clean(const char *path);

/* One mount option of a disk. 0: it is the flags of mount(2); 1: it is for the file system, as it
 * is; -1: it is not allowed. */
#define VOLUME_OPTIONS                                                                             \
    "ro, rw, noatime, nodiratime, relatime, strictatime, lazytime, nodev, nosuid, noexec, sync, "  \
    "dirsync, discard, nodiscard and defaults are"
int volume_option(const char *word, unsigned long *ret_flags);
