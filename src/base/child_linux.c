/* child_linux.c - clone3, a sync socket, pidfd. The child reports a failure before exec as a struct
 * err through that socket; a successful exec closes it. */
#include "base/child_priv.h"
#include "base/fd.h"
#include "base/str.h"
#include "base/waits.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHILD_FDS_MAX 64
#define REAP_MS 50 /* the loop blocks at most this long */

/* What the child needs between clone and exec; no memory is allocated there. */
struct launch {
    const struct child_opts *opts;
    const char *path;
    const char *const *envp;
    int sync, parent_sync, parent_pidfd, null_fd;
};

static const char *const default_env[] = { "PATH=/usr/sbin:/usr/bin:/sbin:/bin", NULL };

uint64_t proc_start_time(pid_t pid)
{
    AUTO_FREE char *text = file_text(4096, "/proc/%d/stat", (int)pid);
    char *p = text ? strrchr(text, ')') : NULL; /* the name may hold anything */

    for (int field = 2; p && field < 22; field++)
        p = strchr(p + 1, ' ');
    return p ? strtoull(p + 1, NULL, 10) : 0;
}

/* --- in the child --- */

static void reset_signals(void)
{
    sigset_t none;

    for (int i = 1; i < NSIG; i++)
        (void)signal(i, SIG_DFL); /* KILL and STOP refuse; fine */
    sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Moves all fds up first, then into place: a target may be another entry's source. */
static int put_fds(struct launch *l, struct err *err)
{
    const struct child_opts *o = l->opts;
    int high[CHILD_FDS_MAX], *const ours[] = { &l->sync, &l->parent_pidfd, &l->null_fd };
    bool named[3] = { false };

    /* The sync socket must not be at the target of a named fd. */
    for (size_t i = 0; i < ARRAY_LEN(ours); i++) {
        int moved = fcntl(*ours[i], F_DUPFD_CLOEXEC, CHILD_SAFE_FD);
        if (moved < 0)
            return err_sys(err, errno, "move fd %d", *ours[i]);
        *ours[i] = moved;
    }
    for (size_t i = 0; i < o->n_fds; i++) {
        high[i] = fcntl(o->fds[i].from, F_DUPFD_CLOEXEC, CHILD_SAFE_FD);
        if (high[i] < 0)
            return err_sys(err, errno, "pass fd %d", o->fds[i].from);
        if (o->fds[i].to < 3)
            named[o->fds[i].to] = true;
    }
    if (close_range(3, ~0U, CLOSE_RANGE_CLOEXEC) < 0)
        return err_sys(err, errno, "close_range");
    for (int fd = 0; fd < 3; fd++)
        if (!named[fd] && dup2(l->null_fd, fd) < 0)
            return err_sys(err, errno, "open /dev/null as fd %d", fd);
    for (size_t i = 0; i < o->n_fds; i++)
        if (dup2(high[i], o->fds[i].to) < 0)
            return err_sys(err, errno, "place fd %d", o->fds[i].to);
    return 0;
}

static int die_with_parent(const struct launch *l, struct err *err)
{
    struct pollfd p = { .fd = l->parent_pidfd, .events = POLLIN };

    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
        return err_sys(err, errno, "PR_SET_PDEATHSIG");
    /* getppid() is 0 across a pid namespace: ask the pidfd whether we came too late. */
    if (poll(&p, 1, 0) != 0)
        return err_set(err, ERR_UNAVAILABLE, "the parent has exited");
    return 0;
}

static int child_prepare(struct launch *l, struct err *err)
{
    const struct child_opts *o = l->opts;
    char go;

    /* An open copy of the parent's end would hide that the parent died before it released the
     * child. */
    close(l->parent_sync);
    if (read(l->sync, &go, 1) != 1)
        return err_set(err, ERR_CANCELLED, "the parent gave up");
    reset_signals();
    if (put_fds(l, err) < 0)
        return -1;
    if (o->new_session && setsid() < 0)
        return err_sys(err, errno, "setsid");
    if (o->ctty > 0 && ioctl(o->ctty, TIOCSCTTY, 0) < 0)
        return err_sys(err, errno, "set the controlling terminal");
    if (o->setup && o->setup(o->setup_arg, err) < 0)
        return -1;
    if (o->cwd && chdir(o->cwd) < 0)
        return err_sys(err, errno, "change to directory %s", o->cwd);
    if (o->die_with_us && die_with_parent(l, err) < 0)
        return -1;
    return 0;
}

static _Noreturn void child_main(struct launch *l)
{
    struct err err = ERR_INIT;

    if (child_prepare(l, &err) == 0) {
        const struct child_opts *o = l->opts;

        if (o->exec_fd > 0)
            fexecve(o->exec_fd, (char *const *)o->argv, (char *const *)l->envp);
        else
            execve(l->path, (char *const *)o->argv, (char *const *)l->envp);
        err_sys(&err, errno, "execute %s", l->path ? l->path : o->argv[0]);
    }
    (void)send(l->sync, &err, sizeof(err), MSG_NOSIGNAL);
    _exit(127);
}

/* --- in the parent --- */

/* Caller frees. A name without '/' is looked up in PATH. */
char *child_find(const char *name)
{
    const char *path = getenv("PATH");

    if (strchr(name, '/'))
        return access(name, X_OK) == 0 ? str_dup(name) : NULL;
    if (!path || !*path)
        path = default_env[0] + strlen("PATH=");
    for (const char *p = path; *p; p += strcspn(p, ":"), p += *p == ':') {
        AUTO_FREE char *candidate = str_format("%.*s/%s", (int)strcspn(p, ":"), p, name);

        if (candidate[0] == '/' && access(candidate, X_OK) == 0)
            return TAKE_PTR(candidate);
    }
    return NULL;
}

static int find_program(const struct child_opts *o, char **ret, struct err *err)
{
    const char *name = o->path ? o->path : o->argv[0];

    if (!name || !*name)
        return err_set(err, ERR_INVALID, "no program to execute");
    *ret = strchr(name, '/') ? str_dup(name) : child_find(name);
    return *ret ? 0 : err_set(err, ERR_NOT_FOUND, "%s: not found in PATH", name);
}

static void child_ended(struct source *s, uint32_t events)
{
    struct child *c = CONTAINER_OF(s, struct child, source);
    siginfo_t info = { 0 };

    (void)events;
    if (c->loop->io_held)
        return; /* the previous program may have to reap it; the pidfd stays ready */
    if (waitid(P_PIDFD, (id_t)c->pidfd, &info, WEXITED | WNOHANG) < 0) {
        if (errno == EINTR)
            return; /* the pidfd stays ready */
        info.si_code = CLD_KILLED,
        info.si_status = SIGKILL; /* cannot happen: nothing else reaps the child */
    } else if (info.si_pid == 0) {
        return;
    }
    c->status = info.si_code == CLD_EXITED
                    ? (info.si_status & 0xff) << 8
                    : (info.si_status & 0x7f) | (info.si_code == CLD_DUMPED ? 0x80 : 0);
    source_remove(c->loop, s);
    latch_set(&c->done);
}

struct child *child_new(struct loop *loop, pid_t pid, int pidfd)
{
    struct child *c = mem_new(struct child);

    *c = (struct child){ .loop = loop, .pid = pid, .pidfd = pidfd, .source.fd = -1 };
    latch_init(&c->done);
    return c;
}

int child_watch(struct child *c)
{
    return source_add(c->loop, &c->source, c->pidfd, EPOLLIN, child_ended);
}

static pid_t clone_child(uint64_t flags, int *pidfd)
{
    struct clone_args args = { .flags = CLONE_PIDFD | flags,
                               .pidfd = (uintptr_t)pidfd,
                               .exit_signal = SIGCHLD };

    return (pid_t)syscall(SYS_clone3, &args, sizeof(args));
}

/* The child waits for our byte; then exec closes the socket, or an error comes. */
static int await_exec(struct ctx *ctx, const struct child_opts *o, struct child *c, int sync,
                      struct err *err)
{
    struct err from_child;

    if (o->on_pid && o->on_pid(o->on_pid_arg, c->pid, err) < 0)
        return -1;
    if (send(sync, "g", 1, MSG_NOSIGNAL) != 1)
        return err_sys(err, errno, "start %s", o->argv[0]);
    if (loop_wait_fd(ctx, sync, POLLIN, "exec", err) < 0)
        return err_wrap(err, "start %s", o->argv[0]);
    if (recv(sync, &from_child, sizeof(from_child), 0) == (ssize_t)sizeof(from_child)) {
        *err = from_child;
        return -1;
    }
    return 0;
}

static int check_opts(const struct child_opts *o, struct err *err)
{
    if (!o->argv || !o->argv[0])
        return err_set(err, ERR_INVALID, "no command given");
    if (o->n_fds > CHILD_FDS_MAX)
        return err_set(err, ERR_INVALID, "too many fds for a child: %zu, at most %d", o->n_fds,
                       CHILD_FDS_MAX);
    for (size_t i = 0; i < o->n_fds; i++)
        if (o->fds[i].to < 0 || o->fds[i].to >= CHILD_SAFE_FD)
            return err_set(err, ERR_INVALID, "invalid fd number %d for a child: at most %d",
                           o->fds[i].to, CHILD_SAFE_FD - 1);
    return 0;
}

/* NULL with err. In the child it does not return. */
static struct child *child_start(struct ctx *ctx, struct launch *l, struct err *err)
{
    struct child *c = child_new(ctx->loop, 0, -1);

    c->pid = clone_child(l->opts->clone_flags, &c->pidfd);
    if (c->pid == 0)
        child_main(l);
    if (c->pid > 0)
        return c;
    err_sys(err, errno, "create a process for %s", l->opts->argv[0]);
    free(c);
    return NULL;
}

int child_spawn(struct ctx *ctx, const struct child_opts *o, struct child **ret, struct err *err)
{
    AUTO(child_free) struct child *c = NULL;
    AUTO_FREE char *path = NULL;
    int sync[2], r;

    if (check_opts(o, err) < 0 || (o->exec_fd <= 0 && find_program(o, &path, err) < 0))
        return -1;

    AUTO_FD int parent = pidfd_open(getpid(), 0);
    AUTO_FD int null = parent < 0 ? -1 : open("/dev/null", O_RDWR | O_CLOEXEC);

    if (parent < 0 || null < 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sync) < 0)
        return err_sys(err, errno, "prepare a process for %s", o->argv[0]);

    AUTO_FD int ours = sync[0];
    struct launch l = { .opts = o,
                        .path = path,
                        .envp = o->envp ? o->envp : default_env,
                        .sync = sync[1],
                        .parent_sync = ours,
                        .parent_pidfd = parent,
                        .null_fd = null };

    c = child_start(ctx, &l, err);
    fd_close(sync[1]);
    if (!c || await_exec(ctx, o, c, ours, err) < 0)
        return -1;
    r = child_watch(c);
    if (r < 0) /* the exit would never be reported */
        return err_sys(err, -r, "watch %s", o->argv[0]);
    *ret = TAKE_PTR(c);
    return 0;
}

pid_t child_pid(const struct child *c)
{
    return c->pid;
}

int child_pidfd(const struct child *c)
{
    return c->pidfd;
}

int child_wait(struct ctx *ctx, struct child *c, int *ret_status, struct err *err)
{
    if (latch_wait(ctx, &c->done, WAIT_CHILD_END, err) < 0)
        return -1;
    *ret_status = c->status;
    return 0;
}

bool child_done(const struct child *c, int *ret_status)
{
    if (c->done.set && ret_status)
        *ret_status = c->status;
    return c->done.set;
}

int child_kill(struct child *c, int signo)
{
    if (c->done.set)
        return -ESRCH;
    return pidfd_send_signal(c->pidfd, signo, NULL, 0) < 0 ? -errno : 0;
}

void child_leave(struct child *c)
{
    if (!c)
        return;
    source_remove(c->loop, &c->source);
    fd_close(c->pidfd);
    free(c);
}

/* True if it is dead, and reaped now. */
static bool reap(int pidfd, int wait_ms)
{
    struct pollfd p = { .fd = pidfd, .events = POLLIN };
    siginfo_t info = { 0 };

    while (poll(&p, 1, wait_ms) < 0 && errno == EINTR)
        ;
    return waitid(P_PIDFD, (id_t)pidfd, &info, WEXITED | WNOHANG) < 0 || info.si_pid != 0;
}

void orphan_free(struct orphan *o)
{
    source_remove(o->loop, &o->source);
    list_remove(&o->node);
    fd_close(o->pidfd);
    free(o);
}

static void orphan_ended(struct source *s, uint32_t events)
{
    struct orphan *o = CONTAINER_OF(s, struct orphan, source);

    (void)events;
    if (reap(o->pidfd, 0))
        orphan_free(o);
}

static void orphan_leave(struct loop *loop, int pidfd)
{
    struct orphan *o = mem_new(struct orphan);

    *o = (struct orphan){ .loop = loop, .pidfd = pidfd };
    list_append(&loop->orphans, &o->node);
    if (source_add(loop, &o->source, pidfd, EPOLLIN, orphan_ended) < 0)
        orphan_free(o); /* stays a zombie until this process exits; then init reaps it */
}

void child_free(struct child *c)
{
    if (!c)
        return;
    source_remove(c->loop, &c->source);
    if (!c->done.set) {
        (void)pidfd_send_signal(c->pidfd, SIGKILL, NULL, 0);
        /* A process in an uninterruptible call (a dead file system) exits only when the call
         * returns. */
        if (!reap(c->pidfd, REAP_MS))
            orphan_leave(c->loop, TAKE_FD(c->pidfd));
    }
    fd_close(c->pidfd);
    free(c);
}
