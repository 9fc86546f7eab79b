/* delete.c - `delete`: takes back what a dead shim left, from its ledger alone; of a live one
 * nothing but the mounts of this container. Runs after every normal deletion too. */
#include "api/task.pb-c.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/fiber.h"
#include "base/loop.h"
#include "host/control/config.h"
#include "host/own/ledger.h"
#include "host/own/scratch.h"
#include "host/shim/group.h"
#include "host/shim/shim_priv.h"
#include "proto/pb.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <unistd.h>

#define DELETE_LIMIT (4 * NS_PER_S) /* containerd kills it after 5 */
#define OWNER_PAUSE (20 * NS_PER_MS)
#define STACKED_MOUNTS_MAX 64
#define KILLED 137

static char *run_root_of(const struct group_note *n)
{
    AUTO(config_release) struct config config = { 0 };
    struct err err = ERR_INIT;

    if (n->run_root)
        return str_dup(n->run_root);
    config_init(&config);
    /* What cannot be read now could be read when the shim started: its default it is. */
    if (config_load(&config, NULL, &err) < 0) {
        config_release(&config);
        config_init(&config);
    }
    return str_dup(config.run_root);
}

/* The group's daemon is gone: everything it had goes too. */
static int take_back(struct ctx *ctx, const struct shim_args *a, const struct group_note *n,
                     struct err *err)
{
    AUTO_FREE char *run_root = run_root_of(n);
    AUTO_FREE char *dir = str_format("%s/%s/%s", run_root, a->ns, n->group);
    AUTO(group_unlock) struct group_lock *lock = NULL;

    if (group_lock(ctx, n->address, &lock, err) < 0) {
        if (err->sys != ENOENT) /* without a socket directory there is no socket to fight for */
            return err_wrap(err, "another start or delete of %s is under way", n->group);
        err_clear(err);
    }
    if (group_alive(ctx, n->address))
        return 0; /* a new one, started in between */
    /* It does not serve, but lives: on its way out it takes back what it can by itself. A child
     * between fork and exec holds the ledger for a moment longer than a shim that was killed. */
    while (ledger_reclaim(ctx, dir, false, NULL, NULL, err) < 0) {
        if (err->code != ERR_STATE)
            return err_wrap(err, "take back what %s left", dir);
        err_clear(err);
        if (fiber_sleep(ctx, OWNER_PAUSE, err) < 0)
            return err_wrap(err, "wait for the owner of %s", dir);
    }
    if (n->scratch_dir)
        scratch_drop_empty(n->scratch_dir, a->ns);
    if (unlink(group_path(n->address)) < 0 && errno != ENOENT)
        return err_sys(err, errno, "remove %s", group_path(n->address));
    return 0;
}

/* containerd removes the bundle next, with rmdir for rootfs: nothing may be mounted there. */
static int unmount_rootfs(const char *bundle, struct err *err)
{
    AUTO_FREE char *rootfs = str_format("%s/rootfs", bundle);

    for (int i = 0; i < STACKED_MOUNTS_MAX; i++)
        if (umount2(rootfs, MNT_DETACH | UMOUNT_NOFOLLOW) < 0)
            return errno == EINVAL || errno == ENOENT || errno == ENOTDIR
                       ? 0
                       : err_sys(err, errno, "unmount %s", rootfs);
    return err_set(err, ERR_EXHAUSTED, "more than %d mounts on %s", STACKED_MOUNTS_MAX, rootfs);
}

int delete_run(struct ctx *ctx, const struct shim_args *a, struct sbuf *out, struct err *err)
{
    struct ctx limit = ctx_with_timeout(ctx, DELETE_LIMIT);
    AUTO(group_note_release) struct group_note n = { 0 };
    const char *bundle = a->bundle[0] ? a->bundle : ".";
    struct err first = ERR_INIT;

    if (shim_args_check(a, err) < 0 ||
        group_read_note(bundle, a->address, a->ns, a->id, &n, err) < 0)
        return -1;
    if (!group_alive(&limit, n.address) && take_back(&limit, a, &n, err) < 0)
        first = *err;
    if (unmount_rootfs(bundle, err) < 0 && first.code == ERR_NONE)
        first = *err;
    if (first.code != ERR_NONE) {
        *err = first;
        return -1;
    }

    DeleteResponse resp = DELETE_RESPONSE__INIT;
    Timestamp at = pb_time_of(n.exited ? n.exited_wall_ns : loop_wall(ctx->loop));

    /* containerd tells this as the exit, if the shim has gone before the task was deleted. */
    resp.pid = n.pid;
    resp.exit_status = n.exited ? n.exit_status : KILLED;
    resp.exited_at = &at;
    (void)pb_pack(&resp, out); /* it has no strings */
    return 0;
}
