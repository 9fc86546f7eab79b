/* delete.c - `delete`, containerd's last call for a container: when it returns, the container does
 * not run.
 *
 *     the shim is dead             cleans up everything from the shim's ledger
 *     it does not know the id      nothing to do: the case after every normal deletion
 *     it knows the id              Kill, Wait, Delete by RPC
 *     it does not answer or        kills the container's anchor, and writes a file (run_file.h), by
 *     refuses, or takes too long   which the shim kills the container once it can. If containerd
 * has given up all containers of the shim, kills the shim as well and cleans up everything */
#include "api/task.pb-c.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/exit_code.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/loop.h"
#include "host/config/config.h"
#include "host/control/run_file.h"
#include "host/files/scratch.h"
#include "host/ledger/ledger.h"
#include "host/rpc/rpc_client.h"
#include "host/service/service.h"
#include "host/shim/group.h"
#include "host/shim/shim_priv.h"
#include "proto/pb.h"
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/pidfd.h>
#include <unistd.h>

#define DELETE_LIMIT (4200 * NS_PER_MS) /* containerd kills it after 5 s */
#define CONNECT_LIMIT (100 * NS_PER_MS)
#define ANSWER_LIMIT (1200 * NS_PER_MS)
#define KILL_RESERVE (1200 * NS_PER_MS) /* reserved for the steps after Kill, Wait and Delete */
#define SHUTDOWN_LIMIT (100 * NS_PER_MS)
/* Time for a shim that no longer serves to exit. */
#define OWNER_PATIENCE (2 * NS_PER_S)
#define OWNER_PAUSE (20 * NS_PER_MS)
#define STACKED_MOUNTS_MAX 64

static char *run_root_of(const struct group_file *n)
{
    AUTO(config_release) struct config config = { 0 };
    struct err err = ERR_INIT;

    if (n->run_root)
        return str_dup(n->run_root);
    config_init(&config);
    /* On failure the default is used: the shim could read the file when it started. */
    if (config_load(&config, NULL, &err) < 0) {
        config_release(&config);
        config_init(&config);
    }
    return str_dup(config.run_root);
}

struct deletion {
    const struct shim_args *args;
    const struct group_file *file;
    char *dir;                 /* of the group's VM, with its ledger and run file */
    struct run_file run;       /* as the shim wrote it; empty if it has no VM */
    struct rpc_client *client; /* to a shim that answered */
    DeleteResponse resp;
    Timestamp exited_at;
};

static void deletion_release_auto(struct deletion *d)
{
    free(d->dir);
    run_file_release(&d->run);
    rpc_client_free(d->client);
}

/* --- the shim's state --- */

enum standing { SHIM_DEAD, SHIM_SILENT, SHIM_UNAWARE, SHIM_HAS_IT };

static enum standing ask(struct ctx *ctx, struct deletion *d)
{
    struct ctx connecting = ctx_with_timeout(ctx, CONNECT_LIMIT);
    struct ctx answering = ctx_with_timeout(ctx, ANSWER_LIMIT);
    ConnectRequest req = CONNECT_REQUEST__INIT;
    AUTO(pb_free) ConnectResponse *resp = NULL;
    struct err err = ERR_INIT;

    rpc_client_free(TAKE_PTR(d->client));
    /* A full queue belongs to a running server. But the kernel may close the listener of a killed
     * process late: then the connection closes without an answer. */
    if (rpc_client_connect(&connecting, d->file->address, &d->client, &err) < 0)
        return err.code == ERR_DEADLINE ? SHIM_SILENT : SHIM_DEAD;
    req.id = (char *)d->args->id;
    if (rpc_client_call(&answering, d->client, SERVICE_TASK_V2, "Connect", &req,
                        &connect_response__descriptor, (void **)&resp, &err) == 0)
        return resp->task_pid ? SHIM_HAS_IT : SHIM_UNAWARE;
    /* After any other error (ERR_EXHAUSTED) the container may be running. */
    return err.code == ERR_UNAVAILABLE ? SHIM_DEAD : SHIM_SILENT;
}

/* --- an unresponsive shim --- */

/* True if containerd has given up all containers of this shim, including this one. */
static int is_given_up(struct ctx *ctx, struct deletion *d, bool *ret, struct err *err)
{
    const struct group_file *n = d->file;
    AUTO(strv_release) struct strv home = { 0 };
    const char *name = n->home ? strrchr(n->home, '/') : NULL;

    if (d->run.address)
        return run_given_up(ctx, d->dir, &d->run, ret, err);
    /* It has no VM, but may be about to start one for a container whose `start` found it. */
    *ret = name && str_eq(name + 1, d->args->id);
    if (*ret || !name)
        return 0;
    strv_add(&home, n->home);
    return run_bundles_gone(ctx, &home, ret, err);
}

/* 1: the shim's process is running. */
static int open_shim(struct deletion *d, pid_t *ret_pid, int *ret_pidfd, struct err *err)
{
    const char *name = d->run.process && d->run.process[0] ? d->run.process : d->file->shim;

    if (name)
        return ledger_process_open(name, ret_pid, ret_pidfd, err);
    if (!d->run.address)
        return 0;
    return err_set(
        err, ERR_STATE,
        "the shim of %s, process %d, does not answer, and its version did not record its "
        "start time; stop that process, then run: lcow gc",
        d->file->group, (int)d->run.pid);
}

static int kill_anchor(struct ctx *ctx, const struct run_member *m, struct err *err)
{
    AUTO_FD int pidfd = -1;
    pid_t pid;
    int r = m->anchor[0] ? ledger_process_open(m->anchor, &pid, &pidfd, err) : 0;

    return r > 0 ? ledger_process_kill(ctx, pid, pidfd, err) : r;
}

/* Writes the file first: concurrent deletes of the group's other containers see it, and the last of
 * them kills the shim. */
static int leave_file(struct deletion *d, const struct run_member *m, struct err *err)
{
    bool alive = false;

    if (!d->run.address || run_forsake(d->dir, d->args->id, m ? m->anchor : "", err) < 0) {
        if (err->code != ERR_NONE && err->sys != ENOENT)
            return -1;
        err_clear(err);
        return 0; /* the VM has stopped, and the container with it */
    }
    if (ledger_owner_alive(d->dir, &alive, err) < 0)
        return -1;
    if (!alive) { /* the shim exited meanwhile: its leftovers are cleaned up or gone */
        run_unforsake(d->dir, d->args->id);
        (void)rmdir(d->dir);
    }
    return 0;
}

/* *ret_killed: the shim is dead, and its leftovers must be cleaned up. */
static int forsake(struct ctx *ctx, struct deletion *d, bool *ret_killed, struct err *err)
{
    const struct run_member *m = run_file_find(&d->run, d->args->id);
    AUTO_FD int shim = -1;
    bool all = false;
    pid_t pid;
    int r;

    if (leave_file(d, m, err) < 0 || is_given_up(ctx, d, &all, err) < 0)
        return -1;
    /* Killing the sandbox's own container would stop the VM and all other containers in it. */
    if (m && !m->hidden && kill_anchor(ctx, m, err) < 0)
        return -1;
    r = open_shim(d, &pid, &shim, err);
    if (r <= 0)
        return r;
    if (!all)
        return pidfd_send_signal(shim, SIGHUP, NULL, 0) < 0 && errno != ESRCH
                   ? err_sys(err, errno, "signal process %d to read the file", pid)
                   : 0;
    *ret_killed = true;
    return ledger_process_kill(ctx, pid, shim, err);
}

/* --- a dead shim --- */

/* The group's daemon is dead: cleans up everything that it had. */
static int take_back(struct ctx *ctx, struct deletion *d, struct err *err)
{
    const struct group_file *n = d->file;
    uint64_t began = loop_now(ctx->loop);
    AUTO(group_unlock) struct group_lock lock = { 0 };
    bool killed = false;

    if (group_lock(ctx, n->address, &lock, err) < 0) {
        if (err->sys != ENOENT) /* without a socket directory there is no socket to protect */
            return err_wrap(err, "another start or delete of %s is in progress", n->group);
        err_clear(err);
    }
    if (ask(ctx, d) != SHIM_DEAD)
        return 0; /* a new daemon was started in between */
    /* A shim that no longer serves but still runs is exiting and cleans up by itself. A child
     * between fork and exec may hold the ledger's lock slightly longer than a killed shim. */
    while (ledger_reclaim(ctx, d->dir, false, NULL, NULL, err) < 0) {
        if (err->code != ERR_STATE)
            return err_wrap(err, "clean up what %s left", d->dir);
        err_clear(err);
        if (fiber_sleep(ctx, OWNER_PAUSE, err) < 0)
            return err_wrap(err, "wait for the owner of %s", d->dir);
        if (!killed && loop_now(ctx->loop) - began > OWNER_PATIENCE &&
            forsake(ctx, d, &killed, err) < 0)
            return -1;
    }
    if (n->scratch_dir)
        scratch_drop_empty(n->scratch_dir, d->args->ns);
    if (unlink(group_path(n->address)) < 0 && errno != ENOENT)
        return err_sys(err, errno, "remove %s", group_path(n->address));
    return 0;
}

/* --- a shim that answers --- */

static void told(struct deletion *d, uint32_t pid, uint32_t status, const Timestamp *at)
{
    if (pid)
        d->resp.pid = pid;
    d->resp.exit_status = status;
    if (at)
        d->exited_at = *at;
}

#define CALL(ctx, d, method, req, type, resp, err)                                                 \
    rpc_client_call(ctx, (d)->client, SERVICE_TASK_V2, method, req, type, (void **)(resp), err)

/* 0: the container is killed and deleted. The shim reports its exit to containerd as usual. */
static int end_by_calls(struct ctx *ctx, struct deletion *d, struct err *err)
{
    uint64_t left = ctx_left(ctx);
    struct ctx limit = ctx_with_timeout(ctx, left > KILL_RESERVE ? left - KILL_RESERVE : 1);
    struct ctx last = ctx_with_timeout(ctx, SHUTDOWN_LIMIT);
    char *id = (char *)d->args->id;
    KillRequest kill = KILL_REQUEST__INIT;
    WaitRequest wait = WAIT_REQUEST__INIT;
    DeleteRequest delete = DELETE_REQUEST__INIT;
    ShutdownRequest shutdown = SHUTDOWN_REQUEST__INIT;
    AUTO(pb_free) WaitResponse *ended = NULL;
    AUTO(pb_free) DeleteResponse *gone = NULL;
    struct err ignored = ERR_INIT;

    kill.id = wait.id = delete.id = shutdown.id = id;
    /* Without `all`: for the holder of a pod this would kill the whole pod, of which containerd may
     * still need other containers. forsake() kills execs that outlive init. */
    kill.signal = SIGKILL;
    if (CALL(&limit, d, "Kill", &kill, &empty__descriptor, NULL, err) < 0 &&
        err->code != ERR_NOT_FOUND)
        return -1;
    err_clear(err);
    if (CALL(&limit, d, "Wait", &wait, &wait_response__descriptor, &ended, err) < 0)
        return -1;
    told(d, 0, ended->exit_status, ended->exited_at);
    if (CALL(&limit, d, "Delete", &delete, &delete_response__descriptor, &gone, err) < 0)
        return -1;
    told(d, gone->pid, gone->exit_status, gone->exited_at);
    /* containerd sends no Shutdown after this. It takes effect only if nothing is left to serve. */
    (void)CALL(&last, d, "Shutdown", &shutdown, &empty__descriptor, NULL, &ignored);
    return 0;
}

static int end_container(struct ctx *ctx, struct deletion *d, struct err *err)
{
    enum standing shim = ask(ctx, d);
    bool killed = false;

    if (shim == SHIM_UNAWARE || (shim == SHIM_HAS_IT && end_by_calls(ctx, d, err) == 0))
        return 0;
    err_clear(err);
    if (run_file_read(d->dir, &d->run, err) < 0 && shim != SHIM_DEAD && err->code != ERR_NOT_FOUND)
        return err_wrap(err, "the shim of %s does not answer", d->file->group);
    err_clear(err); /* for a dead shim the ledger alone is sufficient */
    if (shim != SHIM_DEAD && forsake(ctx, d, &killed, err) < 0)
        return err_wrap(err, "kill container %s, whose shim does not answer", d->args->id);
    return shim == SHIM_DEAD || killed ? take_back(ctx, d, err) : 0;
}

/* containerd removes the bundle next, with rmdir for rootfs, so nothing may be mounted there. */
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
    AUTO(group_file_release) struct group_file n = { 0 };
    const char *bundle = a->bundle[0] ? a->bundle : ".";
    struct err first = ERR_INIT;

    if (shim_args_check(a, err) < 0 ||
        group_read_file(bundle, a->address, a->ns, a->id, &n, err) < 0)
        return -1;

    AUTO_FREE char *run_root = run_root_of(&n);
    __attribute__((cleanup(deletion_release_auto))) struct deletion d = {
        .args = a,
        .file = &n,
        .dir = str_format("%s/%s/%s", run_root, a->ns, n.group),
        .resp = DELETE_RESPONSE__INIT,
        .exited_at = pb_time_of(n.exited_wall_ns ? n.exited_wall_ns : loop_wall(ctx->loop)),
    };

    /* containerd reports this as the exit if the shim exited before the task was deleted. */
    d.resp.pid = n.pid;
    d.resp.exit_status = n.exited_wall_ns ? n.exit_status : EXIT_KILLED;
    d.resp.exited_at = &d.exited_at;
    if (end_container(&limit, &d, err) < 0)
        first = *err;
    rpc_client_free(TAKE_PTR(d.client));
    fiber_yield(ctx->loop); /* lets the client's reader fiber end before the loop stops */
    if (unmount_rootfs(bundle, err) < 0 && first.code == ERR_NONE)
        first = *err;
    if (first.code != ERR_NONE) {
        *err = first;
        return -1;
    }
    (void)pb_pack(&d.resp, out); /* cannot fail: the message has no strings */
    return 0;
}
