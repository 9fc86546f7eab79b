/* rootfs.h - a container's root file system from containerd's mount list, as the VM gets it.
 *
 * Directories (overlay, bind, or the spec's root path): ONE detached mount (see tree.h) of the
 * merged tree. Single directories of an overlay are never shared, since QEMU cannot read overlay's
 * marks and deleted files would come back (docs/design.md §6).
 * overlay: not writable: upper directory and lower ones, all read only, so that writes of an
 *          earlier life are seen and nothing is ever written; writable: as containerd means it.
 *          With uidmap= and gidmap= its lower directories are mapped; what is in the upper one has
 *          the ids of outside already.
 * bind:    the directory (native snapshotter).
 *
 * Images: descriptors of files and devices that become disks of the VM.
 * ext4, xfs, erofs, squashfs: the file or device that is named (blockfile, devmapper): written to
 *          unless its options say "ro".
 * overlay: if each lower directory is the root of a read-only mount of an image (erofs), nothing
 *          is in its upper directory and it is not to be written: the images, topmost first.
 *
 * a list (containerd 2.2, if the runtime says that it takes it: ROOTFS_ALLOW_MOUNTS): the images
 * that its overlay combines, likewise.
 *
 * Layers that are directories (layers.h): if each lower directory, or the directory that a view
 * shows, is a committed snapshot with an image, those images under the same conditions.
 *
 * A read-only image with the option X-containerd.dmverity has a root hash (rootfs_verity.c).
 *
 * A file is never a symbolic link, and a device is used only if it was named below /dev: a process
 * that can replace a snapshot's file does not get a disk of the host. */
#pragma once
#include "base/idmap.h"
#include "base/str.h"
#include <stdbool.h>
#include <stddef.h>

struct ctx;
struct err;
struct layers_opts;

/* What containerd leaves to us (docs/reference/containerd-contract.md §5.2). */
#define ROOTFS_ALLOW_MOUNTS "mkdir/*,format/*,mkfs/*,erofs,loop"

struct rootfs_mount {
    const char *type, *source;
    const char *const *options; /* NULL-terminated; may be NULL */
};

struct rootfs_disk {
    int fd; /* for reading, and for writing if writable */
    char *path;
    const char *filesystem; /* static text, as guest.h knows it */
    char *root_hash;        /* of dm-verity; NULL: what it holds is not verified */
    char *image_key;        /* of the layer image (layers.h); NULL: another file */
    bool writable;
};

struct rootfs {
    int tree;                  /* -1: disks */
    bool tree_writable;        /* what is written to it is where the caller looks for it */
    struct rootfs_disk *disks; /* either one that is writable, or read-only ones, topmost first */
    size_t n_disks;
    bool has_tree; /* disks, and the host has them mounted: ROOTFS_TREE gives their tree instead */
    /* As which its files are to be seen (uidmap=, gidmap=), and mapped: the tree is so already.
     * Else the caller has to, a directory before it is shared, disks in the guest. */
    struct idmap ids;
    bool mapped;
    /* Layers without an image, for which layers_build should be called. Then it is a tree. */
    struct strv unbuilt;
    char *why_shared; /* why a layer has no image that can be used; NULL: not known */
};

enum {
    ROOTFS_WRITABLE = 1, /* the tree is written to */
    ROOTFS_TREE = 2,     /* no disks, where there is a choice */
    ROOTFS_KEPT = 4,     /* as ROOTFS_WRITABLE, but accepts images that do not make a tree */
};

/* Waits until ctx ends; the work is a thread's, in a mount namespace of its own. n == 0:
 * root_path, the directory that the spec names (else not used). What is missing is ERR_NOT_FOUND
 * and named. Options that overlay knows are passed on; unknown types and options are ERR_INVALID,
 * ids that the kernel cannot map ERR_UNIMPLEMENTED. layers: where images of directories are; NULL:
 * directories are shared. Caller releases *ret. */
int rootfs_open(struct ctx *ctx, const struct rootfs_mount *mounts, size_t n, const char *root_path,
                unsigned how, const struct layers_opts *layers, struct rootfs *ret,
                struct err *err);
/* A zeroed one with tree -1 is fine. */
void rootfs_release(struct rootfs *r);
