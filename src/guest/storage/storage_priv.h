/* storage_priv.h - for storage*.c only. */
#pragma once
#include "base/fiber.h"
#include "base/gate.h"
#include "base/list.h"
#include "guest/storage/storage.h"

struct storage {
    int (*load_module)(const char *name, struct err *err);
    struct gate share;
    bool share_mounted;
    struct list holds; /* of paths, in the order in which they were asked for */
    struct waitq holds_q;
    uint32_t last_project; /* project ids: one for each scratch directory, none is reused */
};

/* One path that a call works on. Waits for those that came before. NULL with err: ctx ended. */
struct storage_hold *storage_hold(struct ctx *ctx, struct storage *s, const char *path,
                                  struct err *err);
void storage_let_go(struct storage_hold *h); /* accepts NULL */
AUTO_DEFINE(struct storage_hold *, storage_let_go);

/* Module after module; NULL ends the list. What is built in is fine. */
int storage_load(struct ctx *ctx, struct storage *s, const char *const *names, struct err *err);

/* storage_dm.c - puts dm-verity or dm-crypt before the disk if that was asked for: *node, which is
 * owned, becomes the new device's. remove undoes both kinds. */
int storage_dm_add(struct ctx *ctx, struct storage *s, const struct storage_disk *d, char **node,
                   struct err *err);
int storage_dm_remove(struct ctx *ctx, const struct storage_disk *d, struct err *err);

/* fsgroup.c - gives a tree to a group, as the kubelet does for a pod's fsGroup. The group owns all
 * files and may read and write them; new files inherit the group. only_mismatch: does nothing if
 * the group owns the root already. Nothing else may use the tree meanwhile. Blocks. */
#define FSGROUP_DEPTH_MAX 256
int fsgroup_apply(const char *root, uint32_t gid, bool only_mismatch, struct err *err);
