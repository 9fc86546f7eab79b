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
    uint32_t last_project; /* of quotas: one for each scratch directory, none is used twice */
};

/* One path that a call works on. Waits for those that came before. NULL with err: ctx ended. */
struct storage_hold *storage_hold(struct ctx *ctx, struct storage *s, const char *path,
                                  struct err *err);
void storage_let_go(struct storage_hold *h); /* accepts NULL */
AUTO_DEFINE(struct storage_hold *, storage_let_go);

/* What one piece of blocking work may see: copies, since it may outlive its caller. */
struct storage_work {
    char *a, *b, *c, *d;
    unsigned long flags;
    unsigned host, lun;
    uint32_t project;
    bool yes;
    uint64_t bytes;    /* in or out */
    const char *found; /* out: static text */
    char *made;        /* out: owned */
    int (*load_module)(const char *name, struct err *err);
};

/* Runs fn beside the loop with copies of in's strings. *ret_found may be NULL. */
int storage_block(struct ctx *ctx, int (*fn)(struct storage_work *w, struct err *err),
                  const struct storage_work *in, const char *why, const char **ret_found,
                  struct err *err);
/* The same; *ret_made is the caller's to free. */
int storage_block_made(struct ctx *ctx, int (*fn)(struct storage_work *w, struct err *err),
                       const struct storage_work *in, const char *why, char **ret_made,
                       struct err *err);
/* The same; *ret_bytes is what fn left there. */
int storage_block_bytes(struct ctx *ctx, int (*fn)(struct storage_work *w, struct err *err),
                        const struct storage_work *in, const char *why, uint64_t *ret_bytes,
                        struct err *err);
/* Module after module; NULL ends the list. What is built in is fine. */
int storage_load(struct ctx *ctx, struct storage *s, const char *const *names, struct err *err);

/* storage_dm.c - puts dm-verity or dm-crypt before the disk if that was asked for: *node, which is
 * owned, becomes the new device's. remove takes back whichever there is. */
int storage_dm_add(struct ctx *ctx, struct storage *s, const struct storage_disk *d, char **node,
                   struct err *err);
int storage_dm_remove(struct ctx *ctx, const struct storage_disk *d, struct err *err);
