/* rootfs_priv.h - for rootfs*.c only. All of it blocks: called in the thread. */
#pragma once
#include "host/own/rootfs.h"

struct sbuf;
struct strv;

/* As the guest calls it, or NULL: the type is none that a disk can hold. */
const char *rootfs_filesystem(const char *type);
/* device: may be one (named below /dev). ERR_INVALID for what is neither file nor device. */
int rootfs_disk_open(const char *path, bool device, struct rootfs_disk *d, struct err *err);
void rootfs_disk_release(struct rootfs_disk *d);
/* The images behind directories that are roots of mounts. 1: all were found; 0: not all, and
 * nothing is in r; -1: a directory is missing. */
int rootfs_find_images(const struct strv *dirs, struct rootfs *r, struct err *err);
