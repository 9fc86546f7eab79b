#include "base/child.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "host/jail/anchor_priv.h"
#include "host/jail/cgroup.h"
#include "host/jail/jail.h"
#include "host/ledger/ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NETNS_OPEN_NS (10 * NS_PER_S)
#define ANCHOR_ID_SHOWN 128
#define APART (CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC)

#ifndef MFD_EXEC
#define MFD_EXEC 0x10U
#endif

/* An fd that is the same in the child. */
static int find_netns(struct ctx *ctx, const char *path, int *ret, struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, NETNS_OPEN_NS);
    AUTO_FD int fd = -1;

    if (jail_netns(&limited, path, &fd, err) < 0)
        return -1;
    *ret = fcntl(fd, F_DUPFD_CLOEXEC, CHILD_SAFE_FD);
    return *ret < 0 ? err_sys(err, errno, "dup") : 0;
}

/* --- the program --- */

static int make_program(int *ret, struct err *err)
{
    AUTO_FD int fd = memfd_create("lcow-anchor", MFD_CLOEXEC | MFD_EXEC);
    int r;

    if (fd < 0 && errno == EINVAL) /* before 6.3 there was no other kind */
        fd = memfd_create("lcow-anchor", MFD_CLOEXEC);
    if (fd < 0) {
        err_sys(err, errno, "create the anchor's program (sysctl vm.memfd_noexec must be 0 or 1)");
        return err_blame(err, REASON_JAIL_FAILED);
    }
    r = fd_write_full(fd, anchor_blob, anchor_blob_len);
    if (r < 0)
        return err_sys(err, -r, "write the anchor's program");
    *ret = TAKE_FD(fd);
    return 0;
}

/* --- the process --- */

struct launch {
    struct ctx *ctx;
    const struct anchor_opts *opts;
    struct anchor *anchor;
    int netns; /* -1: none to join */
};

/* In the parent, before anything runs. */
static int on_pid(void *arg, pid_t pid, struct err *err)
{
    struct launch *l = arg;

    AUTO_FREE char *score = str_format("/proc/%d/oom_score_adj", (int)pid);

    if (l->opts->ledger && ledger_add_process(l->opts->ledger, pid, &l->anchor->record, err) < 0)
        return -1;
    /* Its end would be the container's and free 8 KiB: the OOM killer must choose QEMU. Without the
     * right to say so it stays as it is. */
    (void)file_put(score, "-1000");
    return 0;
}

/* In the child: its mount namespace has nothing of the host's, and keeps nothing mounted. */
static int leave_files(struct err *err)
{
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("none", "/proc", "tmpfs", MS_RDONLY, "size=4k") < 0 || chdir("/proc") < 0 ||
        syscall(SYS_pivot_root, ".", ".") < 0 || umount2(".", MNT_DETACH) < 0)
        return err_sys(err, errno, "make an empty mount namespace");
    return 0;
}

/* In the child. */
static int enter(void *arg, struct err *err)
{
    const struct launch *l = arg;

    if (l->netns >= 0 && setns(l->netns, CLONE_NEWNET) < 0)
        return err_sys(err, errno, "join network namespace %.256s", l->opts->netns);
    if (l->opts->cgroup && cgroup_join_self(l->opts->cgroup, err) < 0)
        return -1;
    return l->opts->apart ? leave_files(err) : 0;
}

static int spawn(struct ctx *ctx, struct anchor *a, const struct anchor_opts *o, int program,
                 int netns, struct err *err)
{
    struct launch l = { .ctx = ctx, .opts = o, .anchor = a, .netns = netns };
    AUTO_FREE char *id = str_format("%.*s", ANCHOR_ID_SHOWN, o->id ? o->id : "");
    const char *const argv[] = { "lcow-anchor", id, NULL }, *const no_env[] = { NULL };

    return child_spawn(
        ctx,
        &(struct child_opts){ .exec_fd = program,
                              .argv = argv,
                              .envp = no_env,
                              .cwd = "/",
                              .clone_flags = (netns < 0 && o->own_netns ? CLONE_NEWNET : 0) |
                                             (o->apart ? APART : 0),
                              .new_session = true,
                              .die_with_us = true,
                              .setup = enter,
                              .setup_arg = &l,
                              .on_pid = on_pid,
                              .on_pid_arg = &l },
        &a->child, err);
}

int anchor_spawn(struct ctx *ctx, const struct anchor_opts *o, struct anchor **ret, struct err *err)
{
    AUTO(anchor_free) struct anchor *a = mem_new(struct anchor);
    AUTO_FD int program = -1, netns = -1;

    a->ledger = o->ledger;
    if (o->netns && *o->netns && find_netns(ctx, o->netns, &netns, err) < 0)
        return err_wrap(err, "anchor of %.64s", o->id);
    if (make_program(&program, err) < 0 || spawn(ctx, a, o, program, netns, err) < 0)
        return err_wrap(err, "anchor of %.64s", o->id);
    *ret = TAKE_PTR(a);
    return 0;
}

pid_t anchor_pid(const struct anchor *a)
{
    return child_pid(a->child);
}

int anchor_wait(struct ctx *ctx, struct anchor *a, bool *ret_by_us, struct err *err)
{
    int status;

    if (child_wait(ctx, a->child, &status, err) < 0)
        return -1;
    *ret_by_us = a->by_us;
    return 0;
}

void anchor_end(struct anchor *a)
{
    /* Ended already: then another process killed it. */
    if (child_kill(a->child, SIGKILL) == 0)
        a->by_us = true;
}

void anchor_free(struct anchor *a)
{
    struct err err = ERR_INIT;

    if (!a)
        return;
    child_free(a->child);
    if (a->record && ledger_forget(a->ledger, a->record, &err) < 0)
        log_warn(NULL, "could not remove the ledger record of an anchor", F_ERR(&err));
    free(a);
}
