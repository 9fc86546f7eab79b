/* rootfs.h - a container's root file system from containerd's mount list: ONE detached mount (see
 * tree.h) of the merged tree. Single layers are never shared, since QEMU cannot read overlay's
 * marks and deleted files would come back (design.md §6).
 *
 * overlay: not writable: upper directory and lower ones, all read only, so that writes of an
 *          earlier life are seen and nothing is ever written; writable: as containerd means it.
 * bind:    the directory (native snapshotter).
 * Everything else, and lists of several mounts, are block snapshots: ERR_UNIMPLEMENTED, naming the
 * type and the remedy. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

struct ctx;
struct err;

struct rootfs_mount {
    const char *type, *source;
    const char *const *options; /* NULL-terminated; may be NULL */
};

/* Waits until ctx ends; the work is a thread's, in a mount namespace of its own. n == 0:
 * root_path, the directory that the spec names (else not used). A directory that is missing is
 * ERR_NOT_FOUND and named. Options that overlay knows are passed on; id-mapped mounts (uidmap=,
 * gidmap=) are ERR_UNIMPLEMENTED, unknown options ERR_INVALID. Caller closes *ret_fd. */
int rootfs_open(struct ctx *ctx, const struct rootfs_mount *mounts, size_t n, const char *root_path,
                bool writable, int *ret_fd, struct err *err);
