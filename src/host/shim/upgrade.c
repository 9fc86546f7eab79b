/* upgrade.c - another program takes over the shim's process, under running pods.
 *
 * The shim checks the new program, waits until it is settled (settled.h), writes its state into a
 * sealed memfd and executes the new program in the same process: QEMU and the anchors stay its
 * children, and the descriptors that the document names stay open. The new program reads the
 * document (`resume`) and continues. If it cannot, it executes the previous program, which it was
 * given as a descriptor, with the same document. */
#include "api/types.pb-c.h"
#include "base/child.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/offload.h"
#include "base/saved.h"
#include "base/stream.h"
#include "host/control/settled.h"
#include "host/rpc/rpc_server.h"
#include "host/shim/serve_priv.h"
#include "host/shim/shim_priv.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#define SETTLE_LIMIT (30 * NS_PER_S)  /* for requests and changes to end */
#define THREADS_LOOK (50 * NS_PER_MS) /* a thread that ends wakes no fiber */
#define INFO_LIMIT (10 * NS_PER_S)
#define INFO_MAX_BYTES (256u << 10)
#define RESUME_SECONDS 10
#define NUMBER_SIZE 16
#define BACK_WORDS_MAX 32

extern char **environ;

/* --- the new program --- */

/* Where the running one was installed; a package may have replaced it since. Caller frees. */
static char *own_path(void)
{
    static const char deleted[] = " (deleted)";
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);

    if (n < 0)
        return NULL;
    path[n] = '\0';
    if (str_ends(path, deleted))
        path[n - (ssize_t)strlen(deleted)] = '\0';
    return str_dup(path);
}

static int refuse(struct err *err, const char *program, const char *why)
{
    return err_because(err, REASON_UPGRADE_REFUSED, ERR_INVALID,
                       "upgrade to %s: %s; install lcow again, or name another program", program,
                       why);
}

/* In a directory with the sticky bit nobody else can replace what is ours. */
static bool is_ours_alone(const struct stat *st)
{
    return st->st_uid == geteuid() && (!(st->st_mode & (S_IWGRP | S_IWOTH)) ||
                                       (S_ISDIR(st->st_mode) && st->st_mode & S_ISVTX));
}

static bool are_dirs_safe(const char *program)
{
    AUTO_FREE char *path = str_dup(program);
    struct stat st;

    for (char *end = path; (end = strrchr(path, '/'));) {
        end[end == path] = '\0'; /* "/" stays */
        if (stat(path, &st) < 0 || !is_ours_alone(&st))
            return false;
        if (end == path)
            return true;
    }
    return false;
}

/* Follows symbolic links, once: what is checked is what is executed, even if another user changes a
 * link meanwhile. Caller frees *ret. */
static int find_program(const char *wanted, char **ret, struct err *err)
{
    AUTO_FREE char *path = wanted[0] ? str_dup(wanted) : own_path();

    if (!path)
        return err_sys(err, errno, "find the running program");
    if (path[0] != '/')
        return refuse(err, path, "the path is not absolute");
    *ret = realpath(path, NULL);
    return *ret ? 0 : refuse(err, path, strerror(errno));
}

static int check_file(const char *program, struct stat *ret, struct err *err)
{
    if (stat(program, ret) < 0)
        return refuse(err, program, strerror(errno));
    if (!S_ISREG(ret->st_mode))
        return refuse(err, program, "not a regular file");
    if (!is_ours_alone(ret) || !are_dirs_safe(program))
        return refuse(err, program, "another user could change it");
    if (access(program, X_OK) < 0)
        return refuse(err, program, "not executable");
    return 0;
}

/* While the shim settled, a package may have begun to replace it. */
static int check_same(const char *program, const struct stat *st, struct err *err)
{
    struct stat now;

    if (stat(program, &now) == 0 && now.st_dev == st->st_dev && now.st_ino == st->st_ino &&
        now.st_size == st->st_size && now.st_mtim.tv_sec == st->st_mtim.tv_sec &&
        now.st_mtim.tv_nsec == st->st_mtim.tv_nsec)
        return 0;
    return err_because(err, REASON_UPGRADE_REFUSED, ERR_UNAVAILABLE,
                       "upgrade: %s was replaced after it was checked; repeat the upgrade",
                       program);
}

/* Until it ends and nobody has its stdout any more. */
static int read_info(struct ctx *ctx, struct child *child, struct stream *from, struct sbuf *ret,
                     struct err *err)
{
    int status = 0;

    for (size_t n = 1; n > 0;) {
        char *to = sbuf_room(ret, 4096);

        if (stream_read(ctx, from, to, 4096, &n, err) < 0)
            return -1;
        ret->len += n;
        if (ret->len > INFO_MAX_BYTES)
            return err_set(err, ERR_INVALID, "-info does not stop printing");
    }
    if (child_wait(ctx, child, &status, err) < 0)
        return -1;
    return status == 0 ? 0 : err_set(err, ERR_INVALID, "-info exited with an error");
}

/* What it prints for -info. */
static int ask_info(struct ctx *ctx, const char *program, struct sbuf *ret, struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, INFO_LIMIT);
    const char *const argv[] = { SHIM_NAME, "-info", NULL };
    AUTO(child_free) struct child *child = NULL;
    int fds[2];

    if (pipe2(fds, O_CLOEXEC) < 0)
        return err_sys(err, errno, "pipe");

    AUTO(stream_free) struct stream *from = stream_from_fd(ctx->loop, fds[0]);
    const struct child_fd out = { fds[1], STDOUT_FILENO };
    int r = child_spawn(&limited,
                        &(struct child_opts){ .path = program,
                                              .argv = argv,
                                              .fds = &out,
                                              .n_fds = 1,
                                              .new_session = true,
                                              .die_with_us = true },
                        &child, err);

    fd_close(fds[1]);
    if (r == 0 && (r = read_info(&limited, child, from, ret, err)) < 0)
        (void)kill(-child_pid(child), SIGKILL); /* its session: what a script has started, too */
    return r;
}

static const char *annotation(const RuntimeInfo *m, const char *key)
{
    for (size_t i = 0; i < m->n_annotations; i++)
        if (str_eq(m->annotations[i]->key, key))
            return m->annotations[i]->value;
    return "";
}

/* It must be this runtime, and read what we write. */
static int check_info(const char *program, const struct sbuf *info, char *ret_version,
                      struct err *err)
{
    AUTO(pb_free) RuntimeInfo *m = NULL;
    unsigned oldest = 0, newest = 0;

    if (pb_unpack(&runtime_info__descriptor,
                  (struct pb_slice){ (const uint8_t *)info->data, info->len }, PB_MEM_MAX,
                  (void **)&m, NULL) < 0 ||
        !str_eq(m->name, SHIM_RUNTIME))
        return refuse(err, program, "-info does not say that it is a shim of lcow");
    if (sscanf(annotation(m, SHIM_SAVED_KEY), "%u-%u", &oldest, &newest) != 2)
        return refuse(err, program, "that version cannot continue a running shim");
    if (newest < SAVED_OLDEST || oldest > SAVED_VERSION)
        return refuse(err, program, "that version cannot read the state of this one");
    snprintf(ret_version, SERVICE_VERSION_SIZE, "%s", m->version ? m->version->version : "");
    return 0;
}

static int check_program(struct ctx *ctx, const char *program, struct stat *ret, char *ret_version,
                         struct err *err)
{
    AUTO(sbuf_release) struct sbuf info = { 0 };

    if (check_file(program, ret, err) < 0)
        return -1;
    if (ask_info(ctx, program, &info, err) < 0)
        return refuse(err, program, err->msg);
    return check_info(program, &info, ret_version, err);
}

/* --- saving --- */

/* A client may be in the middle of a request. */
static int check_settled(const struct shim *s, struct err *busy)
{
    if (settled_check(s->loop, busy) < 0)
        return -1;
    return rpc_server_receiving(s->server) ? err_set(busy, ERR_STATE, "a request is being received")
                                           : 0;
}

/* exec would wait without limit for a thread that is stuck in the kernel, and would lose what
 * another has still to write. */
static int check_threads(struct err *busy)
{
    if (offload_abandoned() == 0 && fd_closing() == 0)
        return 0;
    return err_set(busy, ERR_STATE, "a file system does not answer");
}

/* Until every other fiber is at a wait at which it can be saved. From then on nothing may wait. */
static int settle(struct ctx *ctx, struct shim *s, struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, SETTLE_LIMIT);
    struct err busy = ERR_INIT;

    for (;;) {
        bool settled = check_settled(s, &busy) == 0;

        if (settled && check_threads(&busy) == 0)
            break;
        if ((settled ? fiber_sleep(&limited, THREADS_LOOK, err)
                     : loop_wait_idle(&limited, "the shim to settle", err)) == 0)
            continue;
        if (err->code != ERR_DEADLINE)
            return -1;
        return err_because(err, REASON_UPGRADE_REFUSED, ERR_UNAVAILABLE,
                           "upgrade: the shim was busy for 30 s (%s); repeat the upgrade later",
                           busy.msg);
    }
    if (s->stop.set)
        return err_because(err, REASON_SHIM_LEAVING, ERR_UNAVAILABLE,
                           "upgrade: the shim is exiting");
    return 0;
}

static int write_state(struct saved *sv, int *ret_fd, struct err *err)
{
    AUTO_FD int fd = memfd_create("lcow-state", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    const void *data;
    size_t len;
    int r;

    if (saved_finish(sv, &data, &len, err) < 0)
        return -1;
    if (fd < 0)
        return err_sys(err, errno, "memfd_create");
    r = fd_write_full(fd, data, len);
    if (r < 0)
        return err_sys(err, -r, "write the state");
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) < 0)
        return err_sys(err, errno, "seal the state");
    *ret_fd = TAKE_FD(fd);
    return 0;
}

/* --- the switch --- */

/* The command line of `resume`. */
struct resume_argv {
    char state[NUMBER_SIZE], previous[NUMBER_SIZE];
    const char *v[16];
    const char **why; /* in v */
};

static void resume_argv(struct resume_argv *r, const struct shim_args *a, int state, int previous,
                        const char *why)
{
    size_t n = 0;

    snprintf(r->state, sizeof(r->state), "%d", state);
    snprintf(r->previous, sizeof(r->previous), "%d", previous);
    r->v[n++] = SHIM_NAME;
    r->v[n++] = "-namespace";
    r->v[n++] = a->ns;
    r->v[n++] = "-id";
    r->v[n++] = a->id;
    r->v[n++] = "-address";
    r->v[n++] = a->address;
    r->v[n++] = "-socket";
    r->v[n++] = a->socket;
    if (a->debug)
        r->v[n++] = "-debug";
    r->v[n++] = "resume";
    r->v[n++] = r->state;
    r->v[n++] = r->previous;
    r->why = &r->v[n];
    r->v[n++] = why;
    r->v[n] = NULL;
}

/* Returns only if it fails. */
static int execute(struct shim *s, struct saved *sv, int state, const char *program,
                   struct err *err)
{
    AUTO_FD int previous = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    struct resume_argv argv;

    if (previous < 0)
        return err_sys(err, errno, "open the running program");
    resume_argv(&argv, s->args, state, previous, "");
    if (saved_keep_fds(sv, true, err) < 0)
        return -1;
    (void)fcntl(state, F_SETFD, 0); /* both were opened here: it cannot fail */
    (void)fcntl(previous, F_SETFD, 0);
    (void)execve(program, (char **)argv.v, environ);
    (void)err_sys(err, errno, "execute %s", program);

    struct err ignored = ERR_INIT;

    (void)saved_keep_fds(sv, false, &ignored); /* they are still open: it cannot fail */
    return -1;
}

static int save_and_switch(struct ctx *ctx, struct shim *s, const struct service_upgrade *u,
                           const char *program, const struct stat *checked, struct err *err)
{
    AUTO(saved_free) struct saved *sv = saved_writer();
    AUTO_FD int state = -1;

    if (settle(ctx, s, err) < 0 || check_same(program, checked, err) < 0)
        return -1;
    s->upgrade.token = u->token;
    snprintf(s->upgrade.from, sizeof(s->upgrade.from), "%s", LCOW_VERSION);
    shim_saved_head(sv, s);
    shim_saved_body(sv, s);
    if (write_state(sv, &state, err) < 0)
        return err_wrap_because(err, REASON_UPGRADE_REFUSED, "upgrade");
    if (u->dry_run)
        return 0;
    shim_keep_state(s);
    log_info(ctx, "upgrade: executing the new program", F_STR("program", program));
    return execute(s, sv, state, program, err);
}

/* An upgrade that is over: this is the program that went on. */
static int answer(struct ctx *ctx, const struct upgrade *last, const struct service_upgrade *u,
                  struct err *err)
{
    if (loop_io(ctx, "the end of an upgrade", err) < 0) /* then the pause is known */
        return -1;
    if (last->failed.code != ERR_NONE) {
        *err = last->failed;
        return -1;
    }
    snprintf(u->ret_from, SERVICE_VERSION_SIZE, "%s", last->from);
    snprintf(u->ret_to, SERVICE_VERSION_SIZE, "%s", LCOW_VERSION);
    *u->ret_pause_ns = last->pause_ns;
    return 0;
}

int upgrade_run(struct ctx *ctx, struct shim *s, const struct service_upgrade *u, struct err *err)
{
    AUTO_FREE char *program = NULL;
    struct stat checked;
    int r;

    if (!u->token) /* the new program would take it for another upgrade, again and again */
        return err_because(err, REASON_UPGRADE_REFUSED, ERR_INVALID, "upgrade: no token");
    if (u->token == s->upgrade.token && !s->upgrade.under_way)
        return answer(ctx, &s->upgrade, u, err);
    if (s->upgrade.under_way)
        return err_because(err, REASON_UPGRADE_REFUSED, ERR_UNAVAILABLE,
                           "upgrade: another upgrade is under way");
    if (find_program(u->program, &program, err) < 0)
        return -1;
    snprintf(u->ret_from, SERVICE_VERSION_SIZE, "%s", LCOW_VERSION);
    s->upgrade.under_way = true;
    r = check_program(ctx, program, &checked, u->ret_to, err);
    if (r == 0) {
        s->upgrade.begun_ns = loop_now(s->loop);
        rpc_server_hold(s->server, true);
        r = save_and_switch(ctx, s, u, program, &checked, err);
        rpc_server_hold(s->server, false);
    }
    s->upgrade.under_way = false;
    s->upgrade.token = 0;
    return r;
}

/* --- the new program --- */

int upgrade_handover(const struct shim_args *a, struct upgrade_handover *ret, struct err *err)
{
    uint64_t state = 0, previous = 0;
    const char *const *v = a->rest;
    bool none = v[0] && v[1] && str_eq(v[1], "-1");

    if (!v[0] || !v[1] || !v[2] || str_to_u64(v[0], INT32_MAX, &state) < 0 ||
        (!none && str_to_u64(v[1], INT32_MAX, &previous) < 0))
        return err_set(err, ERR_INVALID, "resume is for lcow upgrade only");
    *ret = (struct upgrade_handover){ (int)state, none ? -1 : (int)previous, v[2] };
    return 0;
}

/* The way back, ready for a signal handler. */
static struct {
    int fd; /* the previous program; -1: nothing leads back */
    const char *argv[BACK_WORDS_MAX];
    size_t why; /* where the reason is in argv */
} back = { .fd = -1 };

void upgrade_go_back(const char *why)
{
    (void)alarm(0); /* it would outlive the exec */
    if (back.fd < 0)
        return;
    back.argv[back.why] = why;
    (void)execveat(back.fd, "", (char **)back.argv, environ, AT_EMPTY_PATH);
}

static void on_crash(int signo)
{
    upgrade_go_back(signo == SIGALRM ? "it took more than 10 s" : "it crashed");
    (void)signal(signo, SIG_DFL);
    (void)raise(signo);
}

static void on_exit_early(void)
{
    upgrade_go_back("it exited");
}

static const int guarded[] = { SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGALRM };

/* A fiber's stack may have overflowed. A sanitizer has a stack for its own handlers. */
static void guard_stack(void)
{
    static char bytes[16 * 1024] __attribute__((aligned(16)));
    const stack_t stack = { .ss_sp = bytes, .ss_size = sizeof(bytes) };
    stack_t old = { 0 };

    if (sigaltstack(NULL, &old) == 0 && old.ss_flags & SS_DISABLE)
        (void)sigaltstack(&stack, NULL);
}

/* Before the command line is parsed: what the previous program passed is what leads back to it, as
 * "resume STATE -1 WHY". */
static bool find_way_back(char **argv)
{
    uint64_t state, previous;
    size_t n = 0;

    while (argv[n])
        n++;
    if (n < 5 || n >= BACK_WORDS_MAX || !str_eq(argv[n - 4], "resume") ||
        str_to_u64(argv[n - 3], INT32_MAX, &state) < 0)
        return false;
    (void)prctl(PR_SET_NAME, SHIM_NAME); /* it was executed by a descriptor */
    (void)alarm(0);                      /* of the program in between */
    if (str_to_u64(argv[n - 2], INT32_MAX, &previous) < 0)
        return false;
    memcpy(back.argv, argv, n * sizeof(*argv));
    back.argv[n - 2] = "-1";
    back.why = n - 1;
    back.fd = (int)previous;
    return true;
}

void upgrade_guard(char **argv)
{
    /* An exec keeps the signal mask: the handler's signal must not stay blocked. */
    struct sigaction act = { .sa_handler = on_crash, .sa_flags = SA_NODEFER | SA_ONSTACK };

    if (!find_way_back(argv))
        return;
    (void)fcntl(back.fd, F_SETFD, FD_CLOEXEC); /* the previous program does not need it */
    guard_stack();
    for (size_t i = 0; i < ARRAY_LEN(guarded); i++)
        (void)sigaction(guarded[i], &act, NULL);
    (void)atexit(on_exit_early);
    (void)alarm(RESUME_SECONDS);
}

void upgrade_outcome(struct shim *s, const struct upgrade_handover *h)
{
    struct upgrade *u = &s->upgrade;

    if (h->why[0])
        (void)err_because(&u->failed, REASON_UPGRADE_FAILED, ERR_UNAVAILABLE,
                          "upgrade: the new program could not resume the shim: %s; the previous "
                          "program continues",
                          h->why);
}

void upgrade_settle(struct shim *s, struct saved *sv, struct upgrade_handover *h)
{
    struct upgrade *u = &s->upgrade;
    struct err err = ERR_INIT;

    (void)alarm(0);
    back.fd = -1;
    for (size_t i = 0; i < ARRAY_LEN(guarded); i++)
        (void)signal(guarded[i], SIG_DFL);
    if (saved_keep_fds(sv, false, &err) < 0)
        log_error(NULL, "descriptors may leak into child processes", F_ERR(&err));
    fd_close(TAKE_FD(h->state_fd));
    fd_close(TAKE_FD(h->previous_fd));
    u->pause_ns = loop_now(s->loop) - u->begun_ns;
    if (u->failed.code != ERR_NONE)
        log_error(NULL, "upgrade failed; the previous program continues", F_ERR(&u->failed));
    else
        log_info(NULL, "upgraded", F_STR("from", u->from), F_STR("to", LCOW_VERSION),
                 F_NS(LK_DURATION, u->pause_ns));
}
