/* storage.h - the file systems that the host gives to the VM: disks, shares of host directories,
 * and overlays of both (docs/reference/gcs-protocol.md §4.1, §4.3, §4.5). Every call may wait for
 * devices and for the kernel, until ctx ends; what blocks runs beside the loop (base/offload).
 *
 * Paths come from the host and are checked (path.h): ERR_INVALID names the field. A failed add
 * leaves nothing behind. Removing what is not there is success, so that a removal can be
 * repeated. Calls on the same path wait for each other: a call that the host gave up may still run
 * when the host requests the reverse. */
#pragma once
#include "base/idmap.h"
#include <stdbool.h>
#include <stdint.h>

struct ctx;
struct err;
struct storage;

/* load_module: as modules_load(). Caller frees. */
struct storage *storage_new(int (*load_module)(const char *name, struct err *err));
void storage_free(struct storage *s);
AUTO_DEFINE(struct storage *, storage_free);

struct storage_disk {
    const char *mount_path; /* "": nothing is mounted */
    unsigned controller, lun;
    uint64_t partition;
    bool read_only, block_device, ensure_filesystem, encrypted, verity;
    const char *root_hash;  /* of verity; "": the one found on the disk */
    const char *filesystem; /* "": found on the disk */
    /* Propagation and the options of volume_option() are used, others ignored; may be NULL. */
    const char *const *options;
    uint32_t fs_group;           /* the group of all files on it, set as the kubelet does … */
    const char *fs_group_policy; /* … always, or unless the root has it already; "": no */
};
/* ERR_UNAVAILABLE: the disk did not appear in time. */
int storage_add_disk(struct ctx *ctx, struct storage *s, const struct storage_disk *d,
                     struct err *err);
int storage_remove_disk(struct ctx *ctx, struct storage *s, const struct storage_disk *d,
                        struct err *err);
/* The disk may be detached afterwards. */
int storage_eject_disk(struct ctx *ctx, struct storage *s, unsigned controller, unsigned lun,
                       struct err *err);

/* A host directory or file, by the name that the host gave it on the VM's one 9p device. */
int storage_add_share(struct ctx *ctx, struct storage *s, const char *name, const char *mount_path,
                      bool read_only, struct err *err);
int storage_remove_share(struct ctx *ctx, struct storage *s, const char *mount_path,
                         struct err *err);

/* A PCI device of the VM: waits until it is there, loads its driver if the image has one, and waits
 * for what that makes of it. ERR_UNAVAILABLE: it did not appear in time. There is no call for its
 * removal: the host unplugs it. */
int storage_add_device(struct ctx *ctx, struct storage *s, const char *place, struct err *err);

/* layers: topmost first, NULL-terminated; none (with a scratch_path): only the bundle is made, a
 * directory of the scratch disk. scratch_path "": read-only. scratch_quota: bytes that may
 * be written there; 0: as many as there are. ids: of the container's user namespace, whose root
 * owns what is written; borrowed, "" or NULL: none. map_layers: the layers do not have them yet.
 * ERR_UNIMPLEMENTED: the disk does not support quotas, or the kernel cannot map a layer's ids. */
struct storage_layers {
    const char *root_path, *scratch_path;
    uint64_t scratch_quota;
    const char *const *layers;
    struct idmap ids;
    bool map_layers;
};
int storage_combine(struct ctx *ctx, struct storage *s, const struct storage_layers *l,
                    struct err *err);
/* keep_bundle: a container lives in the root's parent directory; else its bind mount (§4.5) is
 * undone too, and what combine made on the scratch disk is removed. */
int storage_uncombine(struct ctx *ctx, struct storage *s, const struct storage_layers *l,
                      bool keep_bundle, struct err *err);
/* Bytes that a container's scratch directory uses. ERR_NOT_FOUND: its disk has no quotas. */
int storage_used(struct ctx *ctx, const char *scratch_path, uint64_t *ret, struct err *err);
/* Removes a directory with all that is in it, but nothing that is mounted there (ERR_STATE). Below
 * /run only. "" is fine. */
int storage_remove_tree(struct ctx *ctx, const char *path, struct err *err);
/* Unmounts it and removes the directory or file that it was mounted on; a directory that is not
 * empty stays. */
int storage_unmount(struct ctx *ctx, const char *path, struct err *err);

/* storage_grow.c - `gcs grow PATH`: grows the file system that is mounted there to the size of its
 * disk. Blocks. Returns the exit status, after a message on stderr. */
int storage_grow_main(const char *path);
