/* rootfs_priv.h - for rootfs*.c only. All of it blocks: called in the thread. */
#pragma once
#include "base/str.h"
#include "host/files/rootfs.h"

/* A VM takes 255 disks beside its scratch; more layers are shared as one tree. */
#define ROOTFS_IMAGES_MAX 200

/* An option of a mount of an image; false: it would change what is seen, and we do not know how.
 * It may say that it is not written to, or is no device. */
bool rootfs_disk_option(const char *option, bool *writable, bool *device);
/* Labels of SELinux, which the guest does not have. */
bool rootfs_is_context(const char *option);

/* rootfs_typed.c - images that an overlay in a list of mounts combines. */
struct rootfs_typed {
    struct strv images;       /* topmost first; none: this is no such list */
    const char **filesystems; /* of each */
    char *upper;              /* a directory of the host, or NULL */
};
bool rootfs_is_typed(const struct rootfs_mount *m, size_t n);
int rootfs_read_typed(const struct rootfs_mount *m, size_t n, struct rootfs_typed *ret,
                      struct err *err);
void rootfs_typed_release(struct rootfs_typed *t);

/* As the guest calls it, or NULL: the type is none that a disk can hold. */
const char *rootfs_filesystem(const char *type);
/* device: may be one (named below /dev). ERR_INVALID for what is neither file nor device. */
int rootfs_disk_open(const char *path, bool device, struct rootfs_disk *d, struct err *err);
void rootfs_disk_release(struct rootfs_disk *d);
/* The images behind directories that are roots of mounts. 1: all were found; 0: not all, and
 * nothing is in r; -1: a directory is missing. */
int rootfs_find_images(const struct strv *dirs, struct rootfs *r, struct err *err);
