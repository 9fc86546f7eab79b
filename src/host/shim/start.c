/* start.c - `start`: finds or starts the group's daemon, and prints its address. The output is one
 * buffer for containerd: an answer, or an error text. */
#include "base/child.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/fd.h"
#include "base/loop.h"
#include "base/stream.h"
#include "host/config/config.h"
#include "host/rpc/rpc_sock.h"
#include "host/shim/bootstrap.h"
#include "host/shim/group.h"
#include "host/shim/shim_priv.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define STDIN_LIMIT (10 * NS_PER_S)
#define LOCK_LIMIT (20 * NS_PER_S)  /* another start of this group may hold the lock */
#define READY_LIMIT (15 * NS_PER_S) /* the daemon only reads some files before it is ready */
#define END_LIMIT (2 * NS_PER_S)
#define LEAVE_LIMIT (10 * NS_PER_S) /* for the group's previous daemon to stop its VM */
#define MESSAGE_MAX 400
#define OOM_SCORE_MAX 1000

extern char **environ;

int shim_read_stdin(struct ctx *ctx, struct sbuf *ret, struct err *err)
{
    struct ctx limit = ctx_with_timeout(ctx, STDIN_LIMIT);
    AUTO(stream_free) struct stream *in = stream_reopen(ctx->loop, STDIN_FILENO, O_RDONLY);
    size_t n = 1;

    if (!in)
        return 0; /* stdin is closed: no input */
    while (n > 0) {
        if (stream_read(&limit, in, sbuf_room(ret, 4096), 4096, &n, err) < 0)
            return err_wrap(err, "read stdin");
        ret->len += n;
        if (ret->len > BOOTSTRAP_MAX_BYTES)
            return err_set(err, ERR_INVALID, "the input on stdin exceeds %u bytes",
                           BOOTSTRAP_MAX_BYTES);
    }
    return 0;
}

int shim_load_config(struct ctx *ctx, const struct shim_args *a, struct config *c,
                     struct bootstrap *ret, struct err *err)
{
    AUTO(sbuf_release) struct sbuf in = { 0 };

    if (config_load(c, NULL, err) < 0 || shim_read_stdin(ctx, &in, err) < 0 ||
        bootstrap_parse(in.data, in.len, a->ns, a->id, ret, err) < 0)
        return -1;
    return bootstrap_apply(ret, c, err);
}

/* Sets the OOM score slightly above containerd's; child processes inherit it. A failure is ignored,
 * since the shim also works without it. */
static void set_oom_score(void)
{
    AUTO_FREE char *text = file_text(64, "/proc/%d/oom_score_adj", getppid());
    int adj = text ? atoi(text) + 1 : 0;
    AUTO_FREE char *value = str_format("%d", adj > OOM_SCORE_MAX ? OOM_SCORE_MAX : adj);

    if (text)
        (void)file_put("/proc/self/oom_score_adj", value);
}

static void set_core_scheduling(void)
{
    const char *wanted = getenv("SCHED_CORE");

    if (wanted && str_eq(wanted, "1")) /* optional: older kernels do not support it */
        (void)prctl(PR_SCHED_CORE, PR_SCHED_CORE_CREATE, 0, PR_SCHED_CORE_SCOPE_PROCESS_GROUP, 0);
}

/* Copies stdin's content, for the daemon to read it again. fd -1: it was empty. */
static int stdin_copy(const struct sbuf *bytes, int *ret_fd, struct err *err)
{
    AUTO_FD int fd = -1;

    if (bytes->len > 0) {
        fd = memfd_create("bootstrap", MFD_CLOEXEC);
        if (fd < 0)
            return err_sys(err, errno, "memfd_create");
        int r = fd_write_full(fd, bytes->data, bytes->len);
        if (r < 0 || lseek(fd, 0, SEEK_SET) < 0)
            return err_sys(err, r < 0 ? -r : errno, "copy stdin");
    }
    *ret_fd = TAKE_FD(fd);
    return 0;
}

static char *own_program(void)
{
    char path[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);

    path[n > 0 ? n : 0] = '\0';
    /* An upgrade has replaced the program: the running one is available by its descriptor. */
    return str_dup(n <= 0 || str_ends(path, " (deleted)") ? "/proc/self/exe" : path);
}

static void daemon_env(const struct bootstrap *b, struct strv *ret)
{
    bool has_ttrpc = false;

    for (char **e = environ; *e; e++) {
        if (str_starts(*e, "NOTIFY_SOCKET=") || str_starts(*e, "LISTEN_") ||
            (b->config_path && str_starts(*e, "LCOW_CONFIG=")))
            continue; /* for containerd's own service only */
        has_ttrpc = has_ttrpc || str_starts(*e, "TTRPC_ADDRESS=");
        strv_add(ret, *e);
    }
    if (!has_ttrpc && b->ttrpc_address)
        strv_addf(ret, "TTRPC_ADDRESS=%s", b->ttrpc_address);
    if (b->config_path)
        strv_addf(ret, "LCOW_CONFIG=%s", b->config_path);
}

/* Waits until the daemon is ready, has reported an error, or has exited. */
static int await_ready(struct ctx *ctx, struct child *daemon, struct stream *ready, struct err *err)
{
    struct ctx limit = ctx_with_timeout(ctx, READY_LIMIT), end = ctx_with_timeout(ctx, END_LIMIT);
    AUTO(sbuf_release) struct sbuf said = { 0 };
    struct err ignored = ERR_INIT;
    int status = 0;
    size_t n = 1;

    while (n > 0 && said.len < MESSAGE_MAX) {
        if (stream_read(&limit, ready, sbuf_room(&said, 256), 256, &n, err) < 0)
            return err_wrap(err, "the daemon did not become ready");
        said.len += n;
        sbuf_adds(&said, "");
        if (str_eq(said.data, SHIM_READY))
            return 0;
    }
    if (said.len > 0)
        return err_set(err, ERR_UNKNOWN, "%s", said.data);
    if (child_wait(&end, daemon, &status, &ignored) < 0)
        return err_set(err, ERR_UNKNOWN, "the daemon closed its end before it was ready");
    return err_set(err, ERR_UNKNOWN, "the daemon %s %d before it was ready",
                   WIFSIGNALED(status) ? "was killed by signal" : "exited with status",
                   WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

struct launch {
    const struct shim_args *args;
    const struct bootstrap *bootstrap;
    const struct sbuf *in;
    const char *group, *address;
    int listener;
};

static int launch_daemon(struct ctx *ctx, const struct launch *l, struct err *err)
{
    AUTO_FREE char *program = own_program();
    AUTO(strv_release) struct strv env = { 0 };
    AUTO(child_free) struct child *daemon = NULL;
    AUTO(stream_free) struct stream *ready = NULL;
    AUTO_FD int in = -1, log = open("log", O_RDWR | O_NONBLOCK | O_APPEND | O_CLOEXEC), to = -1;
    int pipe_fds[2];

    if (stdin_copy(l->in, &in, err) < 0)
        return -1;
    if (pipe2(pipe_fds, O_CLOEXEC) < 0)
        return err_sys(err, errno, "pipe");
    to = pipe_fds[1];
    ready = stream_from_fd(ctx->loop, pipe_fds[0]);
    daemon_env(l->bootstrap, &env);

    const char *argv[] = { SHIM_NAME,
                           "-namespace",
                           l->args->ns,
                           "-id",
                           l->group,
                           "-address",
                           l->args->address,
                           "-socket",
                           l->address,
                           l->args->debug ? "-debug" : "serve",
                           l->args->debug ? "serve" : NULL,
                           NULL };
    struct child_fd fds[4] = { { l->listener, SHIM_FD_LISTENER }, { to, SHIM_FD_READY } };
    size_t n_fds = 2;

    if (in >= 0)
        fds[n_fds++] = (struct child_fd){ in, STDIN_FILENO };
    if (log >= 0)
        fds[n_fds++] = (struct child_fd){ log, STDERR_FILENO };

    struct child_opts opts = { .path = program,
                               .argv = argv,
                               .envp = (const char *const *)env.v,
                               .fds = fds,
                               .n_fds = n_fds,
                               .new_session = true };

    if (child_spawn(ctx, &opts, &daemon, err) < 0)
        return err_wrap(err, "start the daemon");
    fd_close(TAKE_FD(to));
    if (await_ready(ctx, daemon, ready, err) < 0)
        return -1;
    child_leave(TAKE_PTR(daemon));
    return 0;
}

/* A listening socket at the group's address; or -1 in *ret_fd if a running daemon has it. In that
 * case *ret_leaver is a pidfd if that daemon is exiting, else -1. */
static int claim(struct ctx *ctx, const char *address, int *ret_fd, struct group_leaver *ret_leaver,
                 struct err *err)
{
    *ret_fd = -1;
    *ret_leaver = (struct group_leaver){ -1, 0 };
    if (rpc_sock_listen(address, ret_fd, err) == 0)
        return 0;
    if (err->sys != EADDRINUSE)
        return -1;
    err_clear(err);

    bool alive = !group_is_leaving(address) && group_join(ctx, address);

    /* The daemon may have decided to exit since its answer. */
    if (group_is_leaving(address)) {
        if (group_find_leaver(ctx, address, ret_leaver, err) < 0)
            return -1;
        alive = ret_leaver->pidfd >= 0;
    }
    if (alive)
        return 0;
    /* The socket of a dead daemon, which nothing else removes. */
    if (unlink(group_path(address)) < 0 && errno != ENOENT)
        return err_sys(err, errno, "remove the dead socket %s", group_path(address));
    return rpc_sock_listen(address, ret_fd, err);
}

static int make_socket_dir(const char *address, struct err *err)
{
    AUTO_FREE char *dir = str_dup(group_path(address));
    int r;

    *strrchr(dir, '/') = '\0';
    r = dir_make(dir, 0700);
    return r < 0 ? err_sys(err, -r, "create socket directory %s", dir) : 0;
}

/* 1: the group has a daemon. 0: its daemon is exiting; wait for *ret_leaver and retry. */
static int find_or_launch(struct ctx *ctx, struct launch *l, struct group_leaver *ret_leaver,
                          struct err *err)
{
    struct ctx limit = ctx_with_timeout(ctx, LOCK_LIMIT);
    AUTO(group_unlock) struct group_lock lock = { 0 };
    AUTO_FD int listener = -1;

    if (group_lock(&limit, l->address, &lock, err) < 0 ||
        claim(ctx, l->address, &listener, ret_leaver, err) < 0)
        return -1;
    if (ret_leaver->pidfd >= 0)
        return 0;
    if (listener >= 0) {
        l->listener = listener;
        if (launch_daemon(ctx, l, err) < 0) {
            (void)unlink(group_path(l->address)); /* it is ours, since we hold the lock */
            return -1;
        }
    }
    return 1;
}

/* Called without the lock, since the exiting daemon needs it to remove its socket. */
static int await_gone(struct ctx *ctx, struct group_leaver *l, struct err *err)
{
    AUTO_FD int pidfd = l->pidfd;

    if (loop_wait_fd(ctx, pidfd, POLLIN, "the exit of the previous shim", err) == 0)
        return 0;
    return err_set(
        err, err->code,
        "the previous shim of this sandbox, process %d, is shutting down, but has not "
        "exited within %d s: it is stopped, or its VM does not stop; see lcow logs, stop "
        "that process, then retry",
        l->pid, (int)(LEAVE_LIMIT / NS_PER_S));
}

static int start_group(struct ctx *ctx, struct launch *l, struct err *err)
{
    struct ctx limit = ctx_with_timeout(ctx, LEAVE_LIMIT);
    struct group_leaver leaver;
    int r;

    if (make_socket_dir(l->address, err) < 0)
        return -1;
    while ((r = find_or_launch(ctx, l, &leaver, err)) == 0)
        if (await_gone(&limit, &leaver, err) < 0)
            return -1;
    if (r < 0)
        return -1;
    /* This container's bundle gets the address, even if another start started the daemon. */
    return group_write_address(".", l->address, err);
}

int start_run(struct ctx *ctx, const struct shim_args *a, struct sbuf *out, struct err *err)
{
    AUTO(sbuf_release) struct sbuf in = { 0 };
    AUTO(bootstrap_release) struct bootstrap b = { 0 };
    AUTO_FREE char *group = NULL, *address = NULL;
    struct shim_args args = *a;
    char cwd[PATH_MAX];

    if (shim_args_check(a, err) < 0 || shim_read_stdin(ctx, &in, err) < 0 ||
        bootstrap_parse(in.data, in.len, a->ns, a->id, &b, err) < 0 ||
        group_of_bundle(".", a->id, &group, err) < 0)
        return -1;
    if (!args.address[0] && b.grpc_address)
        args.address = b.grpc_address;
    if (bootstrap_address(b.socket_dir, args.address, args.ns, group, &address, err) < 0)
        return -1;
    set_oom_score();
    set_core_scheduling();

    struct launch l = { &args, &b, &in, group, address, -1 };

    if (start_group(ctx, &l, err) < 0)
        return -1;
    bootstrap_answer(&b, getenv("MAX_SHIM_VERSION"), getcwd(cwd, sizeof(cwd)) ? cwd : "", address,
                     out);
    return 0;
}
