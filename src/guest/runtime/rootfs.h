/* rootfs.h - what the agent looks up and makes in a container's root before crun runs. */
#pragma once
#include <stdint.h>

struct ctx;
struct err;

/* Looks users up in a container's root (user "": nothing to look up). cwd: of a new container, made
 * if absent, and the root is checked for symlinks at /dev, /proc and /sys; NULL for an exec.
 * Waits. */
struct rootfs_owner {
    uint32_t uid, gid; /* in the VM, of the container's root */
};
int rootfs_prepare(struct ctx *ctx, const char *root, struct rootfs_owner owner, const char *user,
                   const char *cwd, uint32_t *ret_uid, uint32_t *ret_gid, struct err *err);

/* The user of an OCI image, "user|uid[:group|gid]". passwd and group: the texts of the image's own
 * files, "" if there is none. A name must have exactly one entry; a uid or gid without one is taken
 * as it is (a uid then with gid 0). ERR_INVALID names what is missing. Pure; never waits. */
int rootfs_find_user(const char *user, const char *passwd, const char *group, uint32_t *ret_uid,
                     uint32_t *ret_gid, struct err *err);
