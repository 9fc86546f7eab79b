/* container_run.c - starting what runs in a container, and changing it while it does. */
#include "base/clock.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/log.h"
#include "base/span.h"
#include "base/str.h"
#include "guest/runtime/cgroup.h"
#include "guest/runtime/container_priv.h"
#include "guest/runtime/crun.h"
#include "guest/runtime/holder.h"
#include "guest/runtime/pod_files.h"
#include "guest/runtime/rewrite.h"
#include "guest/runtime/rootfs.h"
#include "guest/stdio/dial.h"
#include "guest/stdio/relay.h"
#include "guest/stdio/tty.h"
#include "guest/storage/path.h"
#include "guest/storage/storage.h"
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#define OOM_ANSWER_NS (2 * NS_PER_S)
#define KILLED_MS 30000

/* --- out of memory --- */

/* Wakes the waiters whenever the kernel has killed, until the container has exited. */
static void watch_oom(void *arg)
{
    struct container *c = arg;
    struct ctx ctx = ctx_until(c->table->opts.loop, &c->oom_stop);
    struct err err = ERR_INIT;
    uint64_t seen = cgroup_oom_kills(c->cgroup);

    waitq_wake_all(&c->oom);
    while (cgroup_wait_memory_event(&ctx, c->cgroup, seen, &err) == 0) {
        seen = cgroup_oom_kills(c->cgroup);
        waitq_wake_all(&c->oom);
    }
    container_unref(c);
}

static void need_oom_watch(struct container *c)
{
    if (c->oom_watched || process_exited(c->init))
        return;
    c->oom_watched = true;
    fiber_go(c->table->opts.loop, watch_oom, container_ref(c), "oom %s", c->id);
}

int container_wait_oom(struct ctx *ctx, struct container *c, bool *ret_oom, struct err *err)
{
    uint64_t kills;

    need_oom_watch(c);
    c->oom_waits++;
    while ((kills = cgroup_oom_kills(c->cgroup)) <= c->oom_told && !process_exited(c->init)) {
        if (waitq_wait(ctx, &c->oom, "memory to run out", err) < 0) {
            c->oom_waits--;
            return -1;
        }
    }
    *ret_oom = kills > c->oom_told;
    if (*ret_oom)
        c->oom_told = kills;
    return 0;
}

void container_oom_answered(void *container, bool sent)
{
    struct container *c = container;

    c->oom_waits--;
    waitq_wake_all(&c->oom);
    container_unref(c);
}

/* Waits for OOM events are answered before the exit is reported. */
static void settle_oom(struct container *c)
{
    struct ctx ctx = ctx_limited(c->table->opts.loop, OOM_ANSWER_NS);
    struct err ignored = ERR_INIT;

    cancel_fire(&c->oom_stop, ERR_CANCELLED, "container has exited");
    waitq_wake_all(&c->oom);
    while (c->oom_waits > 0)
        if (waitq_wait(&ctx, &c->oom, "answers about memory", &ignored) < 0)
            return;
}

/* --- exit --- */

/* Init has been reaped. In a shared pid namespace its other processes survive it, so they are
 * killed here. */
void container_on_exit(void *arg)
{
    struct container *c = arg;

    if (!c->own_pid_ns) {
        int r = cgroup_kill(c->cgroup);
        if (r < 0 && r != -ENOENT)
            log_warn(NULL, "cannot kill the processes that a container left behind",
                     F_STR(LK_CID, c->id), F_STR(LK_ERROR, strerror(-r)));
    }
    settle_oom(c);
}

void container_on_done(void *arg)
{
    struct container *c = arg;
    uint32_t code = 0;

    /* While it is being created, create does this step itself. */
    if (c->state != CONTAINER_CREATING && c->state != CONTAINER_GONE)
        fsm_step(&container_fsm, &c->state, CONTAINER_EV_EXITED);
    (void)process_done(c->init, &code);
    log_info(NULL, "container exited", F_STR(LK_CID, c->id), F_U("code", code));
    waitq_wake_all(&c->table->changed);
    container_unref(c);
}

/* --- deletion --- */

/* Kills a container that was created and never started. */
static int end_init(struct ctx *ctx, struct container *c, struct err *err)
{
    uint32_t code;

    process_kill(c->init);
    if (process_wait(ctx, c->init, KILLED_MS, &code, err) < 0)
        return err_wrap(err, "container %s did not exit after SIGKILL", c->id);
    return 0;
}

/* Each step may be repeated, so that a failed delete can be retried. */
static int take_down(struct ctx *ctx, struct container *c, struct err *err)
{
    processes_each(&c->execs, process_drop_output);
    if (c->crun_made && c->has_hooks && crun_delete(ctx, c->table->crun, c->id, false, err) < 0)
        return -1;
    if (cgroup_end(ctx, c->cgroup, err) < 0 || crun_forget(CRUN_STATE, c->id, err) < 0)
        return -1;
    c->crun_made = false;
    container_leave_network(c);
    if (c->files_made && pod_files_remove(ctx, c->bundle, err) < 0)
        return -1;
    c->files_made = false;
    /* The bundle is a directory of the scratch disk, bound (storage_combine), unless the disk
     * itself is mounted there. */
    if (c->scratch[0] && !path_is_below(c->scratch, c->bundle) &&
        storage_unmount(ctx, c->bundle, err) < 0)
        return -1;
    if (storage_remove_tree(ctx, c->scratch, err) < 0)
        return -1;
    return storage_remove_tree(ctx, c->bundle, err);
}

/* Waits while the container is being created: its create may belong to a lost connection, and
 * undoes it. */
static struct container *get_when_made(struct ctx *ctx, struct containers *cs, const char *id,
                                       struct err *err)
{
    struct container *c;

    while ((c = containers_find(cs, id, err)) && c->state == CONTAINER_CREATING)
        if (waitq_wait(ctx, &cs->changed, "the container to be created", err) < 0)
            return NULL;
    return c ? container_ref(c) : NULL;
}

int container_delete(struct ctx *ctx, struct containers *cs, const char *id, struct err *err)
{
    AUTO(container_unref) struct container *c = get_when_made(ctx, cs, id, err);

    if (!c)
        return -1;
    AUTO(gate_leave) struct gate *held = gate_enter(&c->gate, ctx, "container.delete", err);
    if (!held)
        return -1;
    if (list_empty(&c->in_table)) /* deleted by another call during the wait */
        return err_because(err, REASON_NOT_FOUND, ERR_NOT_FOUND, "no container %s", id);
    if (c->state == CONTAINER_CREATED && end_init(ctx, c, err) < 0)
        return -1;
    if (fsm_check(&container_fsm, c->state, CONTAINER_EV_DELETED, err) < 0)
        return err_wrap(err, "cannot delete container %s: it has not exited", id);
    if (take_down(ctx, c, err) < 0)
        return err_wrap(err, "delete container %s", id);

    AUTO_FREE char *parent = path_parent(c->bundle);
    if (str_starts(parent, "/run/gcs/pods/"))
        (void)rmdir(parent); /* the pod's, once it is empty */
    fsm_step(&container_fsm, &c->state, CONTAINER_EV_DELETED);
    container_forget(c);
    log_info(ctx, "container deleted", F_STR(LK_CID, id));
    return 0;
}

enum kind { SIGNED, UNSIGNED, CPU_SET };

static const struct {
    const char *part, *key;
    enum kind kind;
} fields[] = {
    { "memory", "limit", SIGNED }, { "memory", "reservation", SIGNED },
    { "memory", "swap", SIGNED },  { "cpu", "shares", UNSIGNED },
    { "cpu", "quota", SIGNED },    { "cpu", "period", UNSIGNED },
    { "cpu", "cpus", CPU_SET },    { "cpu", "mems", CPU_SET },
    { "pids", "limit", SIGNED },
};

static int check_field(const json_t *part, const char *key, enum kind kind, struct err *err)
{
    const char *text = "";
    uint64_t u;
    int64_t i = 0;

    switch (kind) {
    case UNSIGNED:
        return js_u64(part, key, &u, err);
    case SIGNED:
        if (js_i64(part, key, &i, err) < 0)
            return -1;
        return i < -1 ? err_set(err, ERR_INVALID, "invalid %s: %ld", key, i) : 0;
    case CPU_SET:
        if (js_str(part, key, &text, err) < 0)
            return -1;
        if (strspn(text, "0123456789,-") != strlen(text))
            return err_set(err, ERR_INVALID, "invalid %s \"%.32s\": not a set of numbers", key,
                           text);
        return 0;
    }
    return 0;
}

int resources_check(const json_t *resources, struct err *err)
{
    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        const json_t *part = NULL;

        if (js_obj(resources, fields[i].part, &part, err) < 0)
            return err_wrap(err, "resources");
        if (part && check_field(part, fields[i].key, fields[i].kind, err) < 0)
            return err_wrap(err, "resources: %s", fields[i].part);
    }
    return 0;
}

static int start_by_crun(struct ctx *ctx, struct container *c, const struct crun_start *start,
                         pid_t *ret_pid, int *ret_master, struct err *err)
{
    struct crun *crun = containers_crun(c->table, err);

    return crun ? crun_start_process(ctx, crun, start, ret_pid, ret_master, err) : -1;
}

static int start_holder(struct ctx *ctx, const struct container *c, const struct spec *spec,
                        const struct stdio_fds *ends, pid_t *ret_pid, struct err *err)
{
    const struct holder_opts o = { .spec = spec, .cgroup = c->cgroup, .fds = ends->fd };

    SPAN(step, ctx, NULL, TRACK_GUEST, "start holder", err);

    return holder_spawn(step.ctx, &o, ret_pid, err);
}

int container_run(struct ctx *ctx, struct container *c, const struct spec *spec,
                  const char *process, bool terminal, void (*on_exit)(void *arg),
                  void (*on_done)(void *arg), struct process **ret, struct err *err)
{
    AUTO(stdio_fds_release) struct stdio_fds ends = STDIO_FDS_NONE;
    AUTO(relay_free) struct relay *relay = NULL;
    AUTO_FD int master = -1;
    pid_t pid;

    if (!terminal && relay_open(ctx->loop, &relay, &ends, err) < 0)
        return -1;
    /* Else /dev/stdout could not be opened in the container. */
    for (int i = 0; i < 3 && c->ids.uid; i++)
        if (ends.fd[i] >= 0 && fchown(ends.fd[i], c->owner.uid, c->owner.gid) < 0)
            return err_sys(err, errno, "change the owner of stdio to the container's root");
    const struct crun_start start = {
        .id = c->id,
        .bundle = c->bundle,
        .process = process,
        .terminal = terminal,
        .fds = ends,
    };
    if ((spec ? start_holder(ctx, c, spec, &ends, &pid, err)
              : start_by_crun(ctx, c, &start, &pid, &master, err)) < 0)
        return -1;
    const struct process_opts opts = {
        .loop = ctx->loop,
        .pid = pid,
        .relay = TAKE_PTR(relay),
        .tty = terminal ? tty_adopt(ctx->loop, TAKE_FD(master)) : NULL,
        .on_exit = on_exit,
        .on_done = on_done,
        .arg = container_ref(c),
    };
    if (process_adopt(&opts, ret, err) == 0)
        return 0;
    container_unref(c);
    return -1;
}

/* --- init --- */

static int start(struct ctx *ctx, struct container *c, const struct stdio_ports *io,
                 struct err *err)
{
    AUTO(stdio_fds_release) struct stdio_fds fds = STDIO_FDS_NONE;

    if (fsm_check(&container_fsm, c->state, CONTAINER_EV_STARTED, err) < 0)
        return err_wrap(err, "container %s", c->id);
    if (c->attached)
        return err_set(err, ERR_STATE,
                       "cannot start container %s: an earlier start failed; create it again",
                       c->id);
    if (dialer_dial_stdio(ctx, c->table->opts.dialer, io, &fds, err) < 0)
        return -1;
    if (process_exited(c->init)) /* while the streams were dialled; its waiters get the exit */
        return err_set(err, ERR_UNAVAILABLE, "cannot start container %s: it has already exited",
                       c->id);
    c->attached = true;
    process_attach(c->init, &fds);
    if (!c->holder && /* which waits for nothing but its end */
        (c->has_hooks ? crun_start(ctx, c->table->crun, c->id, err)
                      : crun_release(CRUN_STATE, c->id, err)) < 0)
        return err_wrap(err, "start container %s", c->id);
    /* A short-lived container may have exited before crun returned. */
    if (c->state == CONTAINER_CREATED)
        fsm_step(&container_fsm, &c->state, CONTAINER_EV_STARTED);
    return 0;
}

int container_start(struct ctx *ctx, struct container *c, const struct stdio_ports *io,
                    uint32_t *ret_pid, struct err *err)
{
    AUTO(gate_leave) struct gate *held = gate_enter(&c->gate, ctx, "container.start", err);

    if (!held)
        return -1;
    if (c->terminal && io->want[2])
        return err_set(err, ERR_INVALID,
                       "invalid process: a terminal cannot have a separate stderr");
    if (start(ctx, c, io, err) < 0)
        return -1;
    *ret_pid = process_pid(c->init);
    log_info(ctx, "container started", F_STR(LK_CID, c->id), F_U(LK_PID, *ret_pid));
    return 0;
}

/* --- exec --- */

/* The document for crun. Caller frees. */
static int make_process(struct ctx *ctx, const struct container *c, json_t *process,
                        char **ret_text, struct err *err)
{
    uint32_t uid = 0, gid = 0;

    if (spec_process_check(process, err) < 0)
        return -1;
    AUTO_FREE char *user = str_dup(rewrite_username(process));
    rewrite_exec(process, c->rlimits, c->user);
    if (rootfs_prepare(ctx, c->root, c->owner, user, NULL, &uid, &gid, err) < 0)
        return -1;
    if (user[0])
        rewrite_set_user(process, uid, gid);
    *ret_text = js_text(process, 0);
    return 0;
}

static void exec_done(void *arg)
{
    struct container *c = arg;

    waitq_wake_all(&c->table->changed);
    container_unref(c);
}

static const char *first_word(const json_t *process)
{
    const char *word = json_string_value(json_array_get(js_get(process, "args"), 0));

    return word ? word : "";
}

static int run_in(struct ctx *ctx, struct container *c, json_t *process,
                  const struct stdio_ports *io, uint32_t *ret_pid, struct err *err)
{
    AUTO(stdio_fds_release) struct stdio_fds fds = STDIO_FDS_NONE;
    AUTO_FREE char *text = NULL;
    struct process *p;
    bool terminal = json_is_true(js_get(process, "terminal"));

    if (c->state != CONTAINER_CREATED && c->state != CONTAINER_RUNNING)
        return err_because(err, REASON_WRONG_STATE,
                           c->state == CONTAINER_STOPPED ? ERR_UNAVAILABLE : ERR_STATE,
                           "cannot exec in container %s: it is %s", c->id,
                           fsm_state_name(&container_fsm, c->state));
    if (c->holder)
        return err_because(err, REASON_COMMAND_NOT_FOUND, ERR_NOT_FOUND,
                           "exec: \"%.128s\": executable file not found in $PATH: the pod's own "
                           "container has no files; use another container of the pod",
                           first_word(process));
    if (processes_make_room(&c->execs, CONTAINER_EXECS_MAX, err) < 0 ||
        make_process(ctx, c, process, &text, err) < 0)
        return -1;
    if (terminal && io->want[2])
        return err_set(err, ERR_INVALID,
                       "invalid process: a terminal cannot have a separate stderr");
    if (dialer_dial_stdio(ctx, c->table->opts.dialer, io, &fds, err) < 0 ||
        container_run(ctx, c, NULL, text, terminal, NULL, exec_done, &p, err) < 0)
        return -1;
    process_attach(p, &fds);
    processes_add(&c->execs, p);
    *ret_pid = process_pid(p);
    return 0;
}

int container_exec(struct ctx *ctx, struct container *c, json_t *process,
                   const struct stdio_ports *io, uint32_t *ret_pid, struct err *err)
{
    if (run_in(ctx, c, process, io, ret_pid, err) < 0)
        return err_wrap(err, "exec in container %s", c->id);
    return 0;
}

/* --- changes --- */

int container_update(struct ctx *ctx, struct container *c, const json_t *resources, struct err *err)
{
    if (resources_check(resources, err) < 0)
        return -1;
    AUTO(gate_leave) struct gate *held = gate_enter(&c->gate, ctx, "container.update", err);
    if (!held)
        return -1;
    if (c->state == CONTAINER_STOPPED)
        return err_because(err, REASON_WRONG_STATE, ERR_UNAVAILABLE, "container %s is not running",
                           c->id);
    AUTO_FREE char *text = js_text(resources, 0);
    /* An update of the pod's sandbox container applies to the pod. */
    if ((c->kind == SPEC_SANDBOX && cgroup_update_pod(c->pod->cgroup, resources, err) < 0) ||
        (c->holder ? cgroup_update_pod(c->cgroup, resources, err)
                   : crun_update(ctx, c->table->crun, c->id, text, err)) < 0)
        return err_wrap(err, "update container %s", c->id);
    return 0;
}

static int freeze(struct ctx *ctx, struct container *c, bool frozen, struct err *err)
{
    unsigned event = frozen ? CONTAINER_EV_FROZEN : CONTAINER_EV_THAWED;

    if (c->state == (frozen ? CONTAINER_PAUSED : CONTAINER_RUNNING))
        return 0;
    if (fsm_check(&container_fsm, c->state, event, err) < 0 ||
        cgroup_freeze(ctx, c->cgroup, frozen, err) < 0 ||
        fsm_check(&container_fsm, c->state, event, err) < 0) /* it may have been killed */
        return -1;
    fsm_step(&container_fsm, &c->state, event);
    return 0;
}

int container_freeze(struct ctx *ctx, struct container *c, bool frozen, struct err *err)
{
    AUTO(gate_leave) struct gate *held = gate_enter(&c->gate, ctx, "container.freeze", err);

    if (!held)
        return -1;
    return freeze(ctx, c, frozen, err) < 0 ? err_wrap(err, "container %s", c->id) : 0;
}
