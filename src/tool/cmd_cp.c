/* cmd_cp.c - `lcow cp`: copies files between the host and a container as a tar stream through the
 * VM. The VM's static tools work inside the container's root (gcs in-root), so the container needs
 * none. On the host, tar unpacks the guest's stream into a new directory, from which the files are
 * moved. tar refuses members that would leave this directory, as for any untrusted archive. No
 * set-uid bit and no device of a guest is created on the host. */
#include "base/child.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/fd.h"
#include "tool/lib/exec.h"
#include "tool/tool.h"
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TAR_LIMIT (60 * NS_PER_S) /* for the host's tar, after the VM's has exited */
#define STALL_S 30                /* bounds a tar that waits for a FIFO or a dead file system */

/* "$1": the pid of the container's init. Names are arguments, never part of the script. */
static const char script_out[] =
    "set -e; at() { /bin/gcs in-root \"/proc/$pid/root\" /bin/busybox \"$@\"; }; pid=$1;"
    " at tar -C \"$(dirname \"$2\")\" -cf - \"./$(basename \"$2\")\"";
static const char script_in[] =
    "set -e; at() { /bin/gcs in-root \"/proc/$pid/root\" /bin/busybox \"$@\"; }; pid=$1;"
    " if at test -d \"$2\"; then dir=$2; name=$3;"
    " else dir=$(dirname \"$2\"); name=$(basename \"$2\"); fi;"
    " new=$(at mktemp -d \"$dir/.lcow-cp.XXXXXX\");"
    " if at tar -C \"$new\" -xf - && at mv \"$new/$3\" \"$dir/$name\"; then at rmdir \"$new\";"
    " else at rm -rf \"$new\"; exit 1; fi";

struct end {
    char *id;         /* NULL: the host */
    const char *path; /* borrowed */
};

static void parse_end(const char *word, struct end *ret)
{
    const char *colon = strchr(word, ':');

    *ret = (struct end){ .path = word };
    if (colon && colon > word && word[0] != '/' && word[0] != '.') {
        ret->id = str_ndup(word, (size_t)(colon - word));
        ret->path = colon + 1;
    }
}

/* Connects to the container's shim, and gets the pid of the container's init in the VM. */
static int find_container(struct ctx *ctx, struct tool *t, const char *word, char **ret_pid,
                          struct err *err)
{
    if (tool_connect(ctx, t, word, err) < 0)
        return -1;

    const json_t *c = shims_container(t->shim, t->container ? t->container : t->shim->id);
    uint64_t pid = doc_number(c, "guest_pid");

    if (!c)
        return err_set(err, ERR_NOT_FOUND, "%s names a VM, not a container; see: lcow ps", word);
    if (pid == 0 || json_object_get(c, "exited_ns"))
        return err_set(err, ERR_STATE, "container %s is not running", word);
    *ret_pid = str_format("%" PRIu64, pid);
    return 0;
}

/* ---- the host's tar */

static int start_tar(struct ctx *ctx, const char *const *argv, bool reads, struct child **ret,
                     int *ret_ours, struct err *err)
{
    AUTO_FD int r = -1, w = -1;
    int p[2];

    if (pipe2(p, O_CLOEXEC) < 0)
        return err_sys(err, errno, "create a pipe for tar");
    r = p[0], w = p[1];

    const struct child_fd fds[] = { { reads ? r : w, reads ? 0 : 1 }, { STDERR_FILENO, 2 } };
    const struct child_opts opts = {
        .argv = argv, .fds = fds, .n_fds = ARRAY_LEN(fds), .die_with_us = true
    };

    if (child_spawn(ctx, &opts, ret, err) < 0)
        return -1;
    *ret_ours = reads ? TAKE_FD(w) : TAKE_FD(r);
    return 0;
}

static int run_in_vm(struct ctx *ctx, struct rpc_client *client, char *const *argv, int in, int out,
                     struct err *err)
{
    const struct exec_what what = { .argv = argv,
                                    .fds = { in, out, STDERR_FILENO },
                                    .stall_ns = STALL_S * NS_PER_S };
    int code = 0;

    if (exec_run(ctx, client, &what, &code, err) < 0)
        return err->code == ERR_DEADLINE
                   ? err_set(err, ERR_DEADLINE,
                             "no progress for %d s: a file is a FIFO, is on an unresponsive file "
                             "system, or the container blocks access to it",
                             STALL_S)
                   : -1;
    return code == 0 ? 0 : err_set(err, ERR_UNKNOWN, "tar in the VM failed (exit status %d)", code);
}

/* Connects the output of one tar to the input of the other. */
static int run_both(struct ctx *ctx, struct rpc_client *client, const char *const *local,
                    bool local_reads, char *const *remote, struct err *err)
{
    AUTO(child_free) struct child *tar = NULL;
    AUTO_FD int null = open("/dev/null", O_RDWR | O_CLOEXEC), ours = -1;
    int status = 0;

    if (start_tar(ctx, local, local_reads, &tar, &ours, err) < 0 ||
        run_in_vm(ctx, client, remote, local_reads ? null : ours, local_reads ? ours : null, err) <
            0)
        return -1;

    struct ctx limited = ctx_with_timeout(ctx, TAR_LIMIT);

    fd_close(TAKE_FD(ours));
    if (child_wait(&limited, tar, &status, err) < 0)
        return -1;
    return status == 0
               ? 0
               : err_set(err, ERR_UNKNOWN, "tar on this host failed (wait status 0x%x)", status);
}

/* ---- both directions */

static int copy_in(struct ctx *ctx, struct rpc_client *client, const char *pid, const char *from,
                   const char *to, struct err *err)
{
    AUTO_FREE char *real = realpath(from, NULL), *a = str_dup(real), *b = str_dup(real);

    if (!real)
        return err_sys(err, errno, "%s", from);

    const char *name = basename(b);
    const char *const local[] = { "tar", "-C", dirname(a), "-cf", "-", "--", name, NULL };
    char *const remote[] = { "sh",        "-c",       (char *)script_in, "cp",
                             (char *)pid, (char *)to, (char *)name,      NULL };

    return run_both(ctx, client, local, false, remote, err);
}

/* The path of the copy: in `to` if that is a directory. Caller frees. */
static char *target_of(const char *to, const char *name)
{
    struct stat st;

    if (stat(to, &st) == 0 && S_ISDIR(st.st_mode))
        return str_format("%s/%s", to, name);
    return str_dup(to);
}

static int is_node(const char *path, const struct stat *st, int type, struct FTW *at)
{
    return type == FTW_NS || S_ISCHR(st->st_mode) || S_ISBLK(st->st_mode);
}

static int copy_out(struct ctx *ctx, struct rpc_client *client, const char *pid, const char *from,
                    const char *to, struct err *err)
{
    AUTO_FREE char *copy = str_dup(from);
    const char *name = basename(copy);
    AUTO_FREE char *target = target_of(to, name), *above = str_dup(target);
    AUTO_FREE char *dir = str_format("%s/.lcow-cp.XXXXXX", dirname(above));
    int r;

    if (!mkdtemp(dir))
        return err_sys(err, errno, "create a directory beside %s", target);

    AUTO_FREE char *arrived = str_format("%s/%s", dir, name);
    const char *const local[] = {
        "tar", "-C", dir, "-xf", "-", "--no-same-owner", "--no-same-permissions", NULL
    };
    char *const remote[] = {
        "sh", "-c", (char *)script_out, "cp", (char *)pid, (char *)from, NULL
    };

    r = run_both(ctx, client, local, true, remote, err);
    if (r == 0 && access(arrived, F_OK) == 0 && nftw(arrived, is_node, 16, FTW_PHYS) != 0)
        r = err_set(err, ERR_INVALID,
                    "%s is or contains a device; lcow does not copy devices to the host", from);
    if (r == 0 && rename(arrived, target) < 0)
        r = err_sys(err, errno, "move the copy to %s", target);
    (void)dir_remove(dir);
    return r;
}

static int run(struct ctx *ctx, struct tool *t, struct err *err)
{
    AUTO_FREE char *pid = NULL;
    struct end from = { 0 }, to = { 0 };
    int r;

    if (t->rest.n == 2) {
        parse_end(t->rest.argv[0], &from);
        parse_end(t->rest.argv[1], &to);
    }
    if (t->rest.n != 2 || !from.id == !to.id || (from.id ? from.path : to.path)[0] != '/')
        r = tool_fail(TOOL_USAGE, "cp needs ID:/PATH and a path of the host, in either order");
    else
        r = find_container(ctx, t, from.id ? from.id : to.id, &pid, err);
    if (r == 0)
        r = (from.id ? copy_out : copy_in)(ctx, t->client, pid, from.path, to.path, err);
    free(from.id);
    free(to.id);
    return r;
}

const struct args_cmd cp_command = {
    .name = "cp",
    .summary = "Copy files between the host and a container.",
    .synopsis = "ID:PATH PATH | PATH ID:PATH",
    .text =
        "A PATH in a container must be absolute. If the target is a directory, the copy is created "
        "in it. The container needs no tools of its own. A copy without progress for 30 s fails.",
    .exits = "1 if it failed",
    .takes_words = true,
    .examples =
        ARGS_EXAMPLES({ "lcow cp 77b01:/var/log/app.log .", "copy a file out of a container" },
                      { "lcow cp ./fix.conf 77b01:/etc/app/", "copy a file into a container" }),
    .run = run,
};
