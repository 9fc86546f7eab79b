/* serve.c - the daemon: serves containerd until there is nothing left to serve. */
#include "base/clock.h"
#include "base/crash.h"
#include "base/ctx.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/saved.h"
#include "base/scrub.h"
#include "base/stall.h"
#include "base/waits.h"
#include "host/config/config.h"
#include "host/control/diag.h"
#include "host/control/events.h"
#include "host/control/forsaken.h"
#include "host/control/inspect.h"
#include "host/control/registry.h"
#include "host/control/run_file.h"
#include "host/jail/cgroup.h"
#include "host/ledger/journal.h"
#include "host/ledger/ledger.h"
#include "host/rpc/rpc_server.h"
#include "host/rpc/rpc_sock.h"
#include "host/service/service.h"
#include "host/shim/bootstrap.h"
#include "host/shim/group.h"
#include "host/shim/publisher.h"
#include "host/shim/serve_priv.h"
#include "host/shim/shim_priv.h"
#include "host/shim/tracer.h"
#include "host/shim/watch.h"
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define CLOSE_LIMIT (20 * NS_PER_S)
#define FLUSH_LIMIT (5 * NS_PER_S)
#define ANSWER_LIMIT (2 * NS_PER_S)
#define STOP_LIMIT (1 * NS_PER_S)
#define UNLINK_LIMIT (10 * NS_PER_S) /* a concurrent `start` may have the lock */
#define LOOK_LIMIT (5 * NS_PER_S)
#define STEPS_LIMIT (2 * NS_PER_S)
#define STUCK_LIMIT (5 * NS_PER_S)
#define STATE_DELAY (100 * NS_PER_MS)
#define SLOW_LIMIT (30 * NS_PER_S) /* a request that takes longer is logged */

/* True if the socket is still ours. If it was removed or replaced, the shim must not touch it. */
static bool has_socket(const struct shim *s)
{
    struct stat now;

    return s->socket.st_ino != 0 && stat(group_path(s->file.address), &now) == 0 &&
           now.st_ino == s->socket.st_ino && now.st_dev == s->socket.st_dev;
}

/* Must happen at once: the shutdown would kill a Create that arrives before it begins. From now on,
 * `start` sends no container to this shim, and waits until it has exited. */
static void stop(struct shim *s, const char *why)
{
    if (!s->stop.set)
        s->stop_why = why;
    if (s->service)
        service_refuse(s->service);
    if (has_socket(s)) {
        int r = group_mark_leaving(s->file.address);

        if (r < 0)
            log_warn(NULL, "could not mark the socket as closing; the shim refuses new containers",
                     F_I("errno", -r));
    }
    latch_set(&s->stop);
}

static void on_watch_end(void *arg, enum watch_end why)
{
    stop(arg, watch_end_text(why));
}

/* ---- signals */

static void on_term(void *arg, const struct signalfd_siginfo *info)
{
    stop(arg, "a signal was received");
}

/* Gets the guest's part from the guest, waiting a few seconds at most. */
static void dump_main(void *arg)
{
    struct shim *s = arg;
    struct ctx ctx = ctx_background(s->loop, LK_SANDBOX_ID, s->args->id);
    AUTO_FREE char *host = NULL, *guest = NULL;

    diag_stacks(&ctx, s->registry, &host, &guest);
    log_each_line(&ctx, LOG_WARN, "fiber", host);
    log_each_line(&ctx, LOG_WARN, "fiber of the guest", guest);
}

static void on_usr1(void *arg, const struct signalfd_siginfo *info)
{
    struct shim *s = arg;

    if (s->registry && !s->leaving)
        fiber_go(s->loop, dump_main, s, "dump");
}

/* `delete` has written a file for this shim. */
static void on_hup(void *arg, const struct signalfd_siginfo *info)
{
    struct shim *s = arg;

    if (!s->registry || s->leaving)
        return;
    forsaken_obey(s->registry);
    watch_poke(s->watch);
}

static int catch_signals(struct shim *s, struct err *err)
{
    const struct {
        int signo;
        void (*fn)(void *arg, const struct signalfd_siginfo *info);
    } wanted[] = {
        { SIGTERM, on_term }, { SIGINT, on_term }, { SIGUSR1, on_usr1 }, { SIGHUP, on_hup }
    };

    (void)signal(SIGPIPE, SIG_IGN);
    for (size_t i = 0; i < ARRAY_LEN(wanted); i++) {
        int r = loop_on_signal(s->loop, wanted[i].signo, wanted[i].fn, s);

        if (r < 0)
            return err_sys(err, -r, "watch signal %d", wanted[i].signo);
    }
    return 0;
}

/* ---- the journal */

static void on_line(void *arg, enum log_level level, const char *line, size_t len)
{
    struct shim *s = arg;

    s->erred = s->erred || level >= LOG_ERROR;
    journal_add(s->journal, line, len);
}

static void begin_journal(struct shim *s)
{
    struct err err = ERR_INIT;

    if (journal_open(s->config.run_root, s->args->ns, s->args->id, &s->journal, &err) < 0) {
        log_warn(NULL,
                 "could not open the journal; `lcow logs` and `lcow explain` will have little data",
                 F_ERR(&err));
        return;
    }
    log_tee(s->config.log_level < LOG_INFO ? s->config.log_level : LOG_INFO, on_line, s);
}

static void end_journal(struct shim *s)
{
    stall_free(TAKE_PTR(s->stall));
    crash_install(-1, s->loop);
    log_tee(LOG_OFF, NULL, NULL);
    journal_close(s->journal, s->erred);
    s->journal = NULL;
}

/* ---- a crash, or a main loop that is stuck */

/* Runs in the watcher's thread. */
static void on_stuck(void *arg, const struct stall_report *r)
{
    const struct shim *s = arg;
    char since[CLOCK_RFC3339_SIZE];

    clock_rfc3339(r->since_wall, since);
    log_aside(journal_fd(s->journal), LOG_ERROR, "the shim is stuck: its main loop does not run",
              (const struct log_field[]){ F_STR("fiber", r->who),
                                          F_STR("since", since),
                                          F_NS("age", r->for_ns),
                                          F_STR("syscall", r->syscall),
                                          F_STR("kernel", r->kernel),
                                          F_REASON(REASON_SHIM_STUCK),
                                          {} });
}

static void on_unstuck(void *arg, uint64_t for_ns)
{
    log_error(NULL, "the shim was stuck and continues", F_NS(LK_DURATION, for_ns),
              F_REASON(REASON_SHIM_STUCK));
}

static void begin_watching(struct shim *s)
{
    struct err err = ERR_INIT;

    crash_install(journal_fd(s->journal), s->loop);
    if (stall_new(&(struct stall_opts){ .loop = s->loop,
                                        .limit_ns = STUCK_LIMIT,
                                        .stuck = on_stuck,
                                        .over = on_unstuck,
                                        .arg = s },
                  &s->stall, &err) < 0)
        log_warn(NULL, "could not start the watcher; a stuck main loop will not be reported",
                 F_ERR(&err));
}

/* Once for all events that come at the same time: a VM that ends is the end of all its containers,
 * and their exits must not wait for this. An upgrade need not wait: it keeps the state, too. */
static void state_main(void *arg)
{
    struct shim *s = arg;
    struct ctx ctx = ctx_background(s->loop, LK_SANDBOX_ID, s->args->id);
    struct err ignored = ERR_INIT;

    (void)fiber_sleep(&ctx, STATE_DELAY, &ignored);
    s->keeps_state = false;
    if (!s->leaving)
        shim_keep_state(s);
}

static void keep_state_soon(struct shim *s)
{
    if (!s->keeps_state && !s->leaving)
        fiber_go(s->loop, state_main, s, FIBER_STATE);
    s->keeps_state = true;
}

void shim_keep_state(struct shim *s)
{
    AUTO_FREE char *text = registry_inspect(s->registry);

    journal_state(s->journal, text);
}

static void journal_event(const struct event *e)
{
    log_journal(NULL, "event",
                (const struct log_field[]){ F_STR("event", event_name(e->kind)),
                                            F_STR(LK_CID, e->container_id),
                                            F_STR(LK_EID, e->exec_id),
                                            F_U(LK_PID, e->pid),
                                            F_U("status", e->exit_status),
                                            {} });
}

/* ---- callbacks of the service */

static void on_change(void *arg)
{
    struct shim *s = arg;

    watch_poke(s->watch);
}

/* For a `delete` that runs after this shim has exited. */
static void write_file(const char *bundle, const char *id, const struct group_file *n)
{
    struct err err = ERR_INIT;

    if (group_write_file(bundle, n, &err) < 0)
        log_warn(NULL,
                 "cannot write the file for delete; a crash is reported without pid or exit status",
                 F_STR(LK_CID, id), F_ERR(&err));
}

static void on_created(void *arg, const char *id, const char *bundle, uint32_t pid)
{
    struct shim *s = arg;
    struct group_file n = s->file;

    n.pid = pid;
    write_file(bundle, id, &n);
}

/* Also records the exit for `delete`. A shim that exits on a signal does not publish the exits of
 * its containers: containerd does when the socket closes, with the answer of `delete`. Otherwise a
 * task would have two exits. */
static bool on_event(void *arg, const struct event *e)
{
    struct shim *s = arg;
    bool init_exit = e->kind == EVENT_EXIT && !e->exec_id[0];

    journal_event(e);
    if (forsaken_is(s->registry, e->container_id))
        return false; /* containerd has the exit from `delete`, and the bundle is gone */
    if (e->kind == EVENT_START)
        loop_trim(s->loop); /* frees memory that a create needed: the shim is idle from now on */
    if (init_exit) {
        struct group_file n = s->file;

        n.pid = e->pid;
        n.exit_status = e->exit_status;
        n.exited_wall_ns = e->exited_wall_ns;
        write_file(e->bundle, e->container_id, &n);
    }
    if (init_exit || (e->kind == EVENT_START && !e->exec_id[0]))
        keep_state_soon(s);
    return !s->leaving || !(init_exit || e->kind == EVENT_DELETE);
}

static bool are_bundles_gone(struct ctx *ctx, void *arg)
{
    struct shim *s = arg;
    struct ctx limit = ctx_with_timeout(ctx, LOOK_LIMIT);
    AUTO(strv_release) struct strv paths = { 0 };
    struct err err = ERR_INIT;
    bool gone = false;

    registry_bundles(s->registry, &paths);
    if (run_bundles_gone(&limit, &paths, &gone, &err) < 0 && err.code != ERR_CANCELLED)
        log_warn(ctx, "could not check whether the bundles exist", F_ERR(&err));
    return gone;
}

static unsigned clients(void *arg)
{
    const struct shim *s = arg;

    return rpc_server_stats(s->server).conns;
}

/* ---- start */

static struct vmm *make_vmm(void *arg)
{
    struct shim *s = arg;

    return s->backend->vmm_new(s->loop);
}

static struct guest *make_guest(void *arg, struct vmm *vmm)
{
    struct shim *s = arg;

    return s->backend->guest_new(s->loop, vmm, NULL);
}

static void want_template(void *arg, uint32_t memory_mib)
{
    struct shim *s = arg;

    template_spawn(s->loop, s->args, memory_mib, s->home);
}

static void want_layers(void *arg, struct ctx *ctx, const struct strv *dirs)
{
    struct shim *s = arg;

    layers_spawn(s->loop, ctx, s->args, dirs, s->home);
}

static int join_cgroup(struct ctx *ctx, const char *path, struct err *err)
{
    AUTO(cgroup_free) struct cgroup *c = NULL;

    if (cgroup_make(ctx, path, NULL, &c, err) < 0)
        return -1;
    return c ? cgroup_join(c, getpid(), err)
             : 0; /* the administrator's cgroup, which is not removed */
}

/* Logged once per shim, although each Create repeats the options. */
static void log_notes(const struct bootstrap *b)
{
    for (size_t i = 0; i < b->notes.n; i++)
        log_info(NULL, "runtime option ignored", F_STR("option", b->notes.v[i]));
}

static int load_config(struct ctx *ctx, struct shim *s, struct err *err)
{
    const struct bootstrap *b = &s->options;

    if (shim_load_config(ctx, s->args, &s->config, &s->options, err) < 0)
        return -1;
    if (s->args->debug && s->config.log_level > LOG_DEBUG)
        s->config.log_level = LOG_DEBUG;
    if (b->shim_cgroup) {
        if (join_cgroup(ctx, b->shim_cgroup, err) < 0)
            return err_wrap(err, "shim_cgroup of the runtime options");
    } else if (str_eq(s->config.shim_cgroup, "pod")) {
        if (cgroup_current(&s->home, err) < 0)
            return err_wrap(err, "shim_cgroup = pod");
    } else if (s->config.shim_cgroup[0] == '/' &&
               join_cgroup(ctx, s->config.shim_cgroup, err) < 0) {
        return err_wrap(err, "shim_cgroup");
    }
    log_init(STDERR_FILENO, s->config.log_level, LOG_LOGFMT);
    scrub_set(s->config.scrub_logs);
    log_notes(b);
    return 0;
}

static int on_options(void *arg, const Any *any, struct err *err)
{
    struct shim *s = arg;
    AUTO(bootstrap_release) struct bootstrap b = { 0 };

    enum log_level before = s->config.log_level;

    if (bootstrap_options(any, &b, err) < 0 ||
        bootstrap_merge(&s->options, &b, registry_idle(s->registry), &s->config, err) < 0)
        return -1;
    scrub_set(s->config.scrub_logs);
    if (s->config.log_level != before)
        log_init(STDERR_FILENO, s->config.log_level, LOG_LOGFMT);
    return 0;
}

static int on_upgrade(struct ctx *ctx, void *arg, const struct service_upgrade *u, struct err *err)
{
    return upgrade_run(ctx, arg, u, err);
}

/* The socket that `start` created; for `serve -socket …`, a new one. */
static int find_listener(struct shim *s, int *ret_fd, struct err *err)
{
    int accepting = 0;
    socklen_t len = sizeof(accepting);

    if (getsockopt(SHIM_FD_LISTENER, SOL_SOCKET, SO_ACCEPTCONN, &accepting, &len) == 0 &&
        accepting) {
        (void)fcntl(SHIM_FD_LISTENER, F_SETFD, FD_CLOEXEC);
        *ret_fd = SHIM_FD_LISTENER;
    } else {
        if (!s->args->socket[0])
            return err_set(err, ERR_INVALID, "no listening socket; use -socket unix:///PATH");
        if (rpc_sock_listen(s->args->socket, ret_fd, err) < 0)
            return -1;
    }
    if (stat(group_path(s->file.address), &s->socket) < 0)
        s->socket.st_ino = 0;
    /* Listens again, so that clients get this process's pid (SO_PEERCRED), not that of `start`. */
    (void)listen(*ret_fd, RPC_BACKLOG);
    s->address_fd = fcntl(*ret_fd, F_DUPFD_CLOEXEC, SHIM_FD_READY + 1);
    return 0;
}

static void begin(struct shim *s, bool stats_v2)
{
    const char *ttrpc = getenv("TTRPC_ADDRESS");
    struct err err = ERR_INIT;

    if (tracer_new(&(struct tracer_opts){ .loop = s->loop,
                                          .endpoint = s->config.trace_endpoint,
                                          .ns = s->args->ns,
                                          .id = s->args->id },
                   &s->tracer, &err) < 0)
        log_warn(NULL, "tracing is off: the settings are invalid", F_ERR(&err));
    s->events = events_new();
    events_filter(s->events, on_event, s);
    s->registry = registry_new(&(struct registry_opts){ .loop = s->loop,
                                                        .ns = s->args->ns,
                                                        .id = s->args->id,
                                                        .config = &s->config,
                                                        .events = s->events,
                                                        .spans = tracer_sink(s->tracer),
                                                        .make_vmm = make_vmm,
                                                        .make_guest = make_guest,
                                                        .want_template = want_template,
                                                        .want_layers = want_layers,
                                                        .home = s->home,
                                                        .arg = s,
                                                        .address = s->args->socket,
                                                        .bundle = s->file.home,
                                                        .on_forsaken = on_change });
    s->service = service_new(&(struct service_opts){ .loop = s->loop,
                                                     .registry = s->registry,
                                                     .stats_v2 = stats_v2,
                                                     .on_change = on_change,
                                                     .on_created = on_created,
                                                     .on_options = on_options,
                                                     .on_upgrade = on_upgrade,
                                                     .arg = s });
    s->publisher = publisher_new(&(struct publisher_opts){
        .loop = s->loop, .events = s->events, .ns = s->args->ns, .address = ttrpc ? ttrpc : "" });
    s->server = rpc_server_new(s->loop);
    service_add_to(s->service, s->server);
    rpc_server_trace(s->server, tracer_sink(s->tracer));
    rpc_server_watch(s->server, SLOW_LIMIT);
    s->watch = watch_new(&(struct watch_opts){ .loop = s->loop,
                                               .service = s->service,
                                               .leave = on_watch_end,
                                               .clients = clients,
                                               .bundles_gone = are_bundles_gone,
                                               .arg = s });
    rpc_server_on_alone(s->server, on_change, s);
}

/* ---- end */

/* Removes only the socket that this shim bound, as the last step: no new daemon may start before.
 */
static void remove_socket(struct ctx *ctx, struct shim *s)
{
    struct ctx limit = ctx_with_timeout(ctx, UNLINK_LIMIT);
    AUTO(group_unlock) struct group_lock lock = { 0 };
    struct err err = ERR_INIT;

    if (s->socket.st_ino == 0)
        return;
    if (group_lock(&limit, s->file.address, &lock, &err) < 0) {
        log_warn(ctx, "could not remove the socket", F_ERR(&err));
        return;
    }
    if (has_socket(s))
        (void)unlink(group_path(s->file.address));
}

/* Stops the VM first, since its exit causes events; then publishes the events; then closes the
 * connections. What does not end in time is logged and abandoned. Keeps the address. */
static int end(struct ctx *ctx, struct shim *s, struct err *err)
{
    struct ctx closing = ctx_with_timeout(ctx, CLOSE_LIMIT);
    struct err first = ERR_INIT;

    s->leaving = true;
    service_refuse(s->service);
    if (registry_close(&closing, s->registry, err) < 0) {
        log_error(ctx, "the VM did not stop in time", F_ERR(err));
        first = *err;
    }

    struct ctx flushing = ctx_with_timeout(ctx, FLUSH_LIMIT);

    if (events_flush(&flushing, s->events, err) < 0)
        log_warn(ctx, "the shim exits with unpublished events",
                 F_U("events", events_pending(s->events)));

    struct ctx answering = ctx_with_timeout(ctx, ANSWER_LIMIT);

    if (rpc_server_shutdown(&answering, s->server, err) < 0 && first.code == ERR_NONE)
        first = *err;

    struct ctx stopping = ctx_with_timeout(ctx, STOP_LIMIT);

    if ((publisher_stop(&stopping, s->publisher, err) < 0 ||
         watch_stop(&stopping, s->watch, err) < 0 || tracer_stop(&stopping, s->tracer, err) < 0) &&
        first.code == ERR_NONE)
        first = *err;
    if (first.code != ERR_NONE) {
        *err = first;
        return -1; /* nothing is freed, since a handler still uses it */
    }
    rpc_server_free(s->server);
    watch_free(s->watch);
    service_free(s->service);
    publisher_free(s->publisher);
    registry_free(s->registry);
    events_free(s->events);
    tracer_free(s->tracer);
    return 0;
}

static void say_ready(const char *text)
{
    struct stat st;

    if (fstat(SHIM_FD_READY, &st) < 0 || !S_ISFIFO(st.st_mode))
        return; /* not started by `start` */
    (void)fd_write_full(SHIM_FD_READY, text, strlen(text));
    fd_close(SHIM_FD_READY);
}

static int set_up(struct ctx *ctx, struct shim *s, int *ret_listener, bool *ret_stats_v2,
                  struct err *err)
{
    (void)fcntl(SHIM_FD_READY, F_SETFD, FD_CLOEXEC);
    (void)umask(0077);
    if (shim_args_check(s->args, err) < 0 || load_config(ctx, s, err) < 0 ||
        catch_signals(s, err) < 0 || cgroup_host_is_v2(ret_stats_v2, err) < 0)
        return -1;
    s->file = (struct group_file){ .group = str_dup(s->args->id),
                                   .address = str_dup(s->args->socket),
                                   .run_root = str_dup(s->config.run_root),
                                   .scratch_dir = str_dup(s->config.scratch_dir),
                                   .shim = ledger_process_name(getpid()),
                                   .home = getcwd(NULL, 0) };
    return find_listener(s, ret_listener, err);
}

/* A new shim: its listener is open. */
static int start_anew(struct ctx *ctx, struct shim *s, struct err *err)
{
    bool stats_v2 = true;
    int listener;

    if (set_up(ctx, s, &listener, &stats_v2, err) < 0) {
        say_ready(err->msg);
        return -1;
    }
    begin_journal(s);
    journal_state(s->journal, NULL); /* of an earlier sandbox with this id */
    begin_watching(s);
    begin(s, stats_v2);
    rpc_server_listen(s->server, listener);
    write_file(".", s->args->id, &s->file);
    log_info(ctx, "serving", F_STR(LK_SANDBOX_ID, s->args->id), F_STR("address", s->args->socket));
    say_ready(SHIM_READY);
    return 0;
}

/* --- a shim that another program has saved --- */

static int read_state(int fd, struct sbuf *ret, struct err *err)
{
    struct stat st;

    if (fstat(fd, &st) < 0 || st.st_size > SAVED_MAX_BYTES)
        return err_set(err, ERR_INVALID, "the descriptor of the saved state is invalid");

    ssize_t n = pread(fd, sbuf_room(ret, (size_t)st.st_size), (size_t)st.st_size, 0);

    if (n != st.st_size)
        return err_set(err, ERR_INVALID, "the saved state cannot be read");
    ret->len = (size_t)n;
    return 0;
}

/* No fiber runs before all of it has succeeded. */
static int build_again(struct shim *s, struct saved *sv, struct err *err)
{
    bool stats_v2 = true;

    (void)umask(0077);
    shim_saved_head(sv, s);
    if (saved_check(sv, err) < 0 || catch_signals(s, err) < 0 ||
        cgroup_host_is_v2(&stats_v2, err) < 0)
        return -1;
    log_init(STDERR_FILENO, s->config.log_level, LOG_LOGFMT);
    scrub_set(s->config.scrub_logs);
    begin_journal(s);
    begin(s, stats_v2);
    shim_saved_body(sv, s);
    return saved_check(sv, err);
}

/* Each fiber comes to a wait, while a crash still leads to the previous program: for that, nothing
 * may be read or sent yet. */
static void first_steps(struct shim *s)
{
    struct ctx limited = ctx_limited(s->loop, STEPS_LIMIT);
    struct err ignored = ERR_INIT;

    /* On a timeout the resume continues: the limit only bounds how long I/O is held. */
    (void)loop_wait_idle(&limited, "the first steps of all others", &ignored);
}

static int start_again(struct shim *s, struct err *err)
{
    AUTO(sbuf_release) struct sbuf state = { 0 };
    AUTO(saved_free) struct saved *sv = NULL;
    struct upgrade_handover h;

    if (shim_args_check(s->args, err) < 0 || upgrade_handover(s->args, &h, err) < 0)
        return -1;
    loop_hold_io(s->loop, true);
    if (read_state(h.state_fd, &state, err) < 0 ||
        saved_reader(state.data, state.len, &sv, err) < 0 || build_again(s, sv, err) < 0) {
        upgrade_go_back(err->msg);
        return -1;
    }
    upgrade_outcome(s, &h);
    first_steps(s);
    upgrade_settle(s, sv, &h);
    loop_hold_io(s->loop, false);
    registry_update_run_file(s->registry); /* it has the version */
    begin_watching(s);
    return 0;
}

int serve_run(struct ctx *ctx, const struct shim_args *a, const struct shim_backend *backend,
              struct err *err)
{
    struct shim *s = mem_new(struct shim);
    int r;

    mallopt(M_ARENA_MAX, 1); /* threads are few and short, and each would leave its own heap */
    s->loop = ctx->loop;
    s->args = a;
    s->backend = backend;
    config_init(&s->config);
    latch_init(&s->stop);
    s->address_fd = -1;
    r = str_eq(a->action, "resume") ? start_again(s, err) : start_anew(ctx, s, err);
    if (r == 0) {
        struct err ignored = ERR_INIT;

        (void)latch_wait(ctx, &s->stop, WAIT_SERVE, &ignored);
        log_info(ctx, "leaving", F_STR(LK_OPERATION, "leave"),
                 F_STR("why", s->stop_why ? s->stop_why : "unknown"));
        r = end(ctx, s, err);
        s->erred = s->erred || r < 0;
        end_journal(s);
        remove_socket(ctx, s);
        /* An unresponsive file system of a client keeps the process as a zombie. Connections and
         * the ledger's lock must be closed before. */
        if (r < 0 || fd_closing() > 0) {
            fd_close(TAKE_FD(s->address_fd));
            fd_close_ours(s->config.run_root);
        }
        if (r < 0)
            return -1;
    }
    fd_close(s->address_fd);
    group_file_release(&s->file);
    cgroup_free(s->home);
    bootstrap_release(&s->options);
    config_release(&s->config);
    free(s);
    return r;
}
