/* rootfs_priv.h - between rootfs_list.c, which reads a list of mounts, and rootfs.c, which opens
 * what it names. */
#pragma once
#include "base/str.h"
#include "host/files/rootfs.h"

#define ROOTFS_LAYERS_MAX 500 /* overlay's own limit */
/* A VM takes 255 disks beside its scratch; more layers are shared as one tree. */
#define ROOTFS_IMAGES_MAX 200

/* One of: a directory, an overlay of directories, images. */
struct rootfs_plan {
    char *dir;            /* of a bind mount, or the spec's */
    bool recursive, view; /* view: the bind mount is read-only */
    struct strv lower;
    char *upper, *work;       /* upper with images: must be empty */
    struct sbuf other;        /* of the overlay: ",name=value" … */
    bool plain;               /* other says nothing that the guest's overlay would have to know */
    struct strv images;       /* topmost first */
    const char **filesystems; /* of each */
    struct strv verity;       /* of each: rootfs_verity_option(), "": not verified */
    bool device;              /* the image may be one (named below /dev) */
    bool writable;
    bool must_write; /* or be refused */
    bool as_tree;    /* though images are behind it */
    struct idmap ids;
};
/* Release it also after a failure. */
int rootfs_plan_read(struct rootfs_plan *plan, const struct rootfs_mount *m, size_t n,
                     const char *root_path, struct err *err);
void rootfs_plan_release(struct rootfs_plan *plan);
/* rootfs_verity.c. What the option, which begins with ROOTFS_VERITY, asks for; "": nothing. *ret is
 * borrowed from option. */
#define ROOTFS_VERITY "X-containerd.dmverity="
int rootfs_verity_option(const char *option, const char **ret, struct err *err);
/* The root hash of a disk that is open, by such a value that is not "". Without a metadata file
 * "auto" means none. */
int rootfs_verity_read(const char *value, struct rootfs_disk *d, struct err *err);
/* As the guest calls it, or NULL: a disk cannot hold this type. */
const char *rootfs_filesystem(const char *type);
