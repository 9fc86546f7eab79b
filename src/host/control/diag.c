#include "host/control/diag.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/str.h"
#include "base/stream.h"
#include "host/control/container.h"
#include "host/control/registry.h"
#include "host/control/vm.h"
#include "host/device/plan9.h"
#include "host/device/scsi.h"
#include "host/files/tree.h"
#include "host/io/io.h"
#include <errno.h>
#include <signal.h>
#include <stdlib.h>

#define KILL_LIMIT (5 * NS_PER_S)   /* for the guest to kill a process whose client left */
#define START_LIMIT (30 * NS_PER_S) /* a guest that hangs is reported to the client */
#define BIND_LIMIT (10 * NS_PER_S)  /* mount(8) in the guest */
#define OPEN_LIMIT (30 * NS_PER_S)  /* a path of the client, which may be on a dead NFS */
#define CONSOLE_MAX (64u << 10)     /* more than a backend keeps */

static const char *const environment[] = {
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "TERM=xterm",
    NULL
};

/* The VM that runs, entered: nothing of it goes before vm_leave. */
static const struct vm_parts *enter(struct registry *r, const char *what, struct err *err)
{
    if (r->vm && vm_state(r->vm) == VM_RUNNING)
        return vm_enter(r->vm, what, err);
    err_because(err, REASON_VM_ENDED, ERR_STATE, "%s: sandbox %s has no running VM", what, r->id);
    return NULL;
}

/* Bounded by time alone: the caller has gone. */
static struct ctx own_ctx(const struct ctx *ctx, uint64_t ns)
{
    struct ctx own = *ctx;

    own.cancel = NULL;
    own.deadline = loop_now(ctx->loop) + ns;
    return own;
}

static int wait_or_kill(struct ctx *ctx, struct vm_process *p, uint32_t *ret_code, struct err *err)
{
    struct ctx own;
    struct err ignored = ERR_INIT;
    uint32_t code;

    if (vm_process_wait(ctx, p, ret_code, err) == 0)
        return 0;
    own = own_ctx(ctx, KILL_LIMIT);
    if (vm_process_signal(&own, p, SIGKILL, &ignored) == 0)
        (void)vm_process_wait(&own, p, &code, &ignored);
    return -1;
}

static int exec_with_io(struct ctx *ctx, struct vm *vm, struct diag_live *live,
                        const struct diag_exec *e, uint32_t *ret_code, struct err *err)
{
    struct io *io = live->io;
    const struct vm_exec exec = { .argv = e->argv,
                                  .env = environment,
                                  .cwd = e->cwd[0] ? e->cwd : NULL,
                                  .terminal = e->stdio.terminal,
                                  .want_stdin = io_wants(io, 0),
                                  .want_stdout = io_wants(io, 1),
                                  .want_stderr = io_wants(io, 2) };
    AUTO(vm_process_free) struct vm_process *p = NULL;
    struct ctx starting = ctx_with_timeout(ctx, START_LIMIT), draining;
    struct err lost = ERR_INIT;

    if (vm_exec(&starting, vm, &exec, &p, err) < 0)
        return -1;
    io_attach(io, vm_process_take_stream(p, 0), vm_process_take_stream(p, 1),
              vm_process_take_stream(p, 2));
    live->process = p;

    int result = wait_or_kill(ctx, p, ret_code, err);

    live->process = NULL;
    if (result < 0)
        return -1;
    draining = ctx_with_timeout(ctx, PROCESS_DRAIN_LIMIT);
    if (io_drain(&draining, io, &lost) < 0)
        log_warn(ctx, "output of a process in the VM was not read to its end", F_ERR(&lost));
    return 0;
}

int diag_exec(struct ctx *ctx, struct registry *r, const struct diag_exec *e,
              struct diag_live *live, uint32_t *ret_code, struct err *err)
{
    int result = -1;

    if (!e->argv || !e->argv[0])
        return err_set(err, ERR_INVALID, "exec in the VM: no command");
    if (e->stdio.terminal && e->stdio.err[0])
        return err_set(err, ERR_STATE, "exec in the VM: a terminal has no separate stderr");

    struct vm *vm = r->vm; /* r may have another one after a wait; the one entered stays */
    AUTO(vm_leave) const struct vm_parts *in = enter(r, "exec in the VM", err);

    if (!in)
        return -1;

    const struct io_spec spec = { .in = e->stdio.in,
                                  .out = e->stdio.out,
                                  .err = e->stdio.err,
                                  .terminal = e->stdio.terminal,
                                  .container_id = r->id,
                                  .ns = r->ns,
                                  .ledger = in->ledger,
                                  .drivers = &r->drivers,
                                  .hub = r->hub };

    live->r = r;
    if (io_open(ctx, r->o.loop, &spec, &live->io, err) < 0) {
        (void)err_wrap(err, "stdio of a process in the VM");
    } else {
        if (live->stdin_closed)
            io_close_stdin(live->io);
        result = exec_with_io(ctx, vm, live, e, ret_code, err);
        io_free(TAKE_PTR(live->io));
    }
    return result;
}

void diag_close_stdin(struct diag_live *l)
{
    l->stdin_closed = true;
    if (l->io)
        io_close_stdin(l->io);
}

int diag_resize(struct ctx *ctx, struct diag_live *l, uint16_t rows, uint16_t cols, struct err *err)
{
    if (!l->process)
        return err_set(err, ERR_STATE, "resize: the process is not running");
    return vm_process_resize(ctx, l->process, rows, cols, err);
}

/* --- shares --- */

/* "$1" is seen at "$2" too. Names never become part of the script. */
static int bind_in_vm(struct ctx *ctx, struct vm *vm, const char *from, const char *to,
                      struct err *err)
{
    static const char script[] = "if [ -d \"$1\" ]; then mkdir -p \"$2\"; else"
                                 " mkdir -p \"${2%/*}/\" && touch \"$2\"; fi &&"
                                 " exec mount --bind \"$1\" \"$2\"";
    const char *const argv[] = { "/bin/sh", "-c", script, "share", from, to, NULL };
    const struct vm_exec exec = { .argv = argv, .env = environment };
    struct ctx limited = ctx_with_timeout(ctx, BIND_LIMIT);
    AUTO(vm_process_free) struct vm_process *p = NULL;
    uint32_t code = 0;

    if (vm_exec(&limited, vm, &exec, &p, err) < 0 || wait_or_kill(&limited, p, &code, err) < 0)
        return -1;
    return code ? err_set(err, ERR_STATE,
                          "the VM cannot mount it at %s (status %u); choose a path below /mnt: the "
                          "VM's own files are read-only",
                          to, code)
                : 0;
}

static int share_tree(struct ctx *ctx, struct vm *vm, const struct plan9_share *share,
                      const struct tree *tree, const char *vm_path, char **ret_path,
                      struct err *err)
{
    struct plan9 *plan9 = vm_parts(vm)->plan9;
    AUTO_FREE char *mounted = NULL, *seen = NULL;
    uint64_t id;

    if (plan9_reserve(ctx, plan9, share, &id, err) < 0)
        return -1;
    if (plan9_map(ctx, plan9, id, &mounted, err) == 0) {
        seen = tree->name[0] ? str_format("%s/%s", mounted, tree->name) : TAKE_PTR(mounted);
        if (!vm_path[0] || bind_in_vm(ctx, vm, seen, vm_path, err) == 0) {
            *ret_path = vm_path[0] ? str_dup(vm_path) : TAKE_PTR(seen);
            return 0;
        }
    }

    struct ctx own = own_ctx(ctx, KILL_LIMIT);
    struct err ignored = ERR_INIT;

    if (plan9_unmap(&own, plan9, id, &ignored) < 0)
        log_warn(ctx, "a share stays until the VM ends", F_ERR(&ignored));
    return -1;
}

int diag_share(struct ctx *ctx, struct registry *r, const char *host_path, const char *vm_path,
               bool read_only, char **ret_path, struct err *err)
{
    const struct tree_opts opts = { .read_only = read_only, .recursive = true };
    struct ctx opening = ctx_with_timeout(ctx, OPEN_LIMIT);
    struct tree tree = { .fd = -1 };
    int result = -1;

    if (host_path[0] != '/' || (vm_path[0] && vm_path[0] != '/'))
        return err_set(err, ERR_INVALID, "share: \"%s\" is not an absolute path",
                       host_path[0] != '/' ? host_path : vm_path);

    /* Before the VM is entered, because opening a client's path may hang. */
    if (tree_open(&opening, host_path, &opts, &tree, err) == 0) {
        const struct plan9_share share = {
            .host_path = host_path, .tree_fd = tree.fd, .read_only = read_only, .unique = true
        };
        struct vm *vm = r->vm;
        AUTO(vm_leave) const struct vm_parts *in = enter(r, "share", err);

        if (in && !in->plan9)
            err_set(err, ERR_STATE, "a VM of `lcow boot` has no shares");
        else if (in)
            result = share_tree(ctx, vm, &share, &tree, vm_path, ret_path, err);
        fd_close_later(tree.fd);
    }
    return result < 0
               ? err_wrap_because(err, REASON_SHARE_FAILED, "share %s with the VM", host_path)
               : 0;
}

int diag_resize_disk(struct ctx *ctx, struct registry *r, const char *host_path,
                     uint64_t *ret_bytes, struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, OPEN_LIMIT);
    AUTO(vm_leave) const struct vm_parts *in = enter(r, "resize a disk", err);

    if (in && !in->scsi) /* a VM of `lcow boot` */
        return err_set(err, ERR_STATE, "%s is not a disk of this VM", host_path);
    return in ? scsi_resize(&limited, in->scsi, host_path, ret_bytes, err) : -1;
}

/* --- queries --- */

void diag_each(struct registry *r, void (*fn)(void *arg, const struct process_view *v), void *arg)
{
    for (size_t i = 0; i < r->n_containers; i++)
        container_each(r->containers[i], fn, arg);
}

static char *guest_stacks(struct ctx *ctx, struct registry *r)
{
    struct err err = ERR_INIT;
    char *text = NULL;

    if (!r->vm || vm_state(r->vm) != VM_RUNNING)
        return str_format("stacks: sandbox %s has no running VM", r->id);
    if (vm_dump_stacks(ctx, r->vm, &text, &err) < 0) /* which bounds itself */
        text = str_format("the guest did not answer: %s", err.msg);
    return text;
}

void diag_stacks(struct ctx *ctx, struct registry *r, char **ret_host, char **ret_guest)
{
    struct sbuf host = { 0 };

    loop_dump(ctx->loop, &host);
    *ret_host = sbuf_take(&host);
    *ret_guest = guest_stacks(ctx, r);
}

int diag_console(struct registry *r, char **ret_text, struct err *err)
{
    struct sbuf out = { 0 };

    if (!r->vm)
        return err_because(err, REASON_VM_ENDED, ERR_STATE, "console: sandbox %s has no VM", r->id);
    vm_console_tail(r->vm, CONSOLE_MAX, &out);
    *ret_text = sbuf_take(&out);
    return 0;
}
