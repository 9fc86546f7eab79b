/* registry_rig.h - for tests: the registry over the fake VMM, the real bridge, a scripted guest and
 * a host without an OS. What the host gave and did not get back is counted. */
#pragma once
#include "base/clock.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/loop.h"
#include "base/str.h"
#include "base/stream.h"
#include "harness/tap.h"
#include "host/bridge/bridge.h"
#include "host/bridge/fake_guest.h"
#include "host/bridge/guest.h"
#include "host/control/config.h"
#include "host/control/registry_priv.h"
#include "host/control/vm.h"
#include "host/vmm/fake/fake_vmm.h"
#include "proto/bridge.h"
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct anchor {
    pid_t pid;
    bool ended, by_us;
    struct waitq q;
};

struct io {
    struct rig *rig;
    unsigned refs;
    bool wants[3], closed;
    unsigned flowing;
    struct stream *streams[3];
    struct waitq q;
    struct cancel life;
};

struct rig {
    struct loop *loop;
    struct registry *registry;
    struct events *events;
    struct config config;
    struct fake_vmm_opts vmm_opts;
    struct fake_guest_opts guest_opts;
    struct fake_guest_facts guest;
    struct timeline timeline;
    struct vmm *vmm; /* the last one made */
    unsigned vms;
    char dir[64];
    struct group clients;
    /* The host. */
    unsigned anchors, ios, scratches, anchor_pids, fds_of_trees;
    bool io_stuck, rootfs_fails, anchor_fails, io_fails, scratch_fails;
    uint64_t rootfs_ns;
    struct anchor *last_anchor;
    struct waitq clock_q; /* woken: the clock was set */
    struct sbuf told;     /* events so far, one a line */
};

static struct rig *rig_now;

/* --- the host --- */

static inline int rig_rootfs_open(struct ctx *ctx, const struct rootfs_mount *mounts, size_t n,
                                  const char *root_path, bool writable, int *ret_fd,
                                  struct err *err)
{
    if (rig_now->rootfs_ns && fiber_sleep(ctx, rig_now->rootfs_ns, err) < 0)
        return -1;
    if (rig_now->rootfs_fails)
        return err_set(err, ERR_NOT_FOUND, "rootfs: no such directory");
    *ret_fd = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    return 0;
}

static inline int rig_tree_open(struct ctx *ctx, const char *path, const struct tree_opts *opts,
                                struct tree *ret, struct err *err)
{
    int fd = open(path, O_PATH | O_CLOEXEC);

    if (fd < 0)
        return err_set(err, ERR_NOT_FOUND, "%s does not exist", path);
    *ret = (struct tree){ .fd = fd };
    return 0;
}

struct scratch {
    int fd;
};

static inline int rig_scratch_make(struct ctx *ctx, const struct scratch_opts *opts,
                                   struct scratch **ret, struct err *err)
{
    if (rig_now->scratch_fails)
        return err_set(err, ERR_EXHAUSTED, "no space for a scratch disk");
    *ret = mem_new(struct scratch);
    (*ret)->fd = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    rig_now->scratches++;
    return 0;
}

static inline int rig_scratch_fd(const struct scratch *s)
{
    return s->fd;
}

static inline int rig_scratch_remove(struct ctx *ctx, struct scratch *s, struct err *err)
{
    return 0;
}

static inline void rig_scratch_free(struct scratch *s)
{
    fd_close(s->fd);
    free(s);
    rig_now->scratches--;
}

static inline int rig_cgroup_make(const char *path, struct ledger *ledger, struct cgroup **ret,
                                  struct err *err)
{
    *ret = NULL;
    return 0;
}

static inline int rig_anchor_spawn(struct ctx *ctx, const struct anchor_opts *o,
                                   struct anchor **ret, struct err *err)
{
    struct anchor *a;

    if (rig_now->anchor_fails)
        return err_set(err, ERR_EXHAUSTED, "no process for an anchor");
    a = mem_new(struct anchor);
    a->pid = (pid_t)(1000 + rig_now->anchor_pids++);
    waitq_init(&a->q);
    rig_now->anchors++;
    rig_now->last_anchor = a;
    *ret = a;
    return 0;
}

static inline pid_t rig_anchor_pid(const struct anchor *a)
{
    return a->pid;
}

static inline int rig_anchor_wait(struct ctx *ctx, struct anchor *a, bool *ret_by_us,
                                  struct err *err)
{
    while (!a->ended)
        if (waitq_wait(ctx, &a->q, "anchor", err) < 0)
            return -1;
    *ret_by_us = a->by_us;
    return 0;
}

static inline void rig_anchor_end(struct anchor *a)
{
    a->by_us = a->by_us || !a->ended;
    a->ended = true;
    waitq_wake_all(&a->q);
}

static inline void rig_anchor_free(struct anchor *a)
{
    ASSERT(a->ended);
    rig_now->anchors--;
    if (rig_now->last_anchor == a)
        rig_now->last_anchor = NULL;
    free(a);
}

static inline int rig_io_open(struct ctx *ctx, struct loop *loop, const struct io_spec *spec,
                              struct io **ret, struct err *err)
{
    struct io *io;

    if (rig_now->io_fails)
        return err_set(err, ERR_INVALID, "stdout is no FIFO");
    io = mem_new(struct io);
    io->rig = rig_now;
    io->refs = 1;
    io->wants[0] = spec->in && spec->in[0];
    io->wants[1] = spec->out && spec->out[0];
    io->wants[2] = spec->err && spec->err[0] && !spec->terminal;
    waitq_init(&io->q);
    cancel_init(&io->life, NULL);
    rig_now->ios++;
    *ret = io;
    return 0;
}

static inline void rig_io_unref(struct io *io)
{
    if (--io->refs > 0)
        return;
    cancel_release(&io->life);
    free(io);
}

struct rig_flow {
    struct io *io;
    int fd;
};

static inline void rig_flow_main(void *arg)
{
    struct rig_flow *f = arg;
    struct io *io = f->io;
    struct ctx root = ctx_root(io->rig->loop), ctx = ctx_with_cancel(&root, &io->life);
    struct err err = ERR_INIT;
    char buf[256];
    size_t n = 1;

    while (io->rig->io_stuck && waitq_wait(&ctx, &io->q, "a reader", &err) == 0)
        ;
    while (n > 0 && stream_read(&ctx, io->streams[f->fd], buf, sizeof(buf), &n, &err) == 0)
        ;
    stream_free(TAKE_PTR(io->streams[f->fd]));
    io->flowing--;
    waitq_wake_all(&io->q);
    rig_io_unref(io);
    free(f);
}

static inline void rig_io_attach(struct io *io, struct stream *in, struct stream *out,
                                 struct stream *err)
{
    struct stream *given[3] = { in, out, err };

    io->streams[0] = in;
    for (int i = 1; i < 3; i++) {
        struct rig_flow *f;

        if (!given[i])
            continue;
        if (io->closed) {
            stream_free(given[i]);
            continue;
        }
        f = mem_new(struct rig_flow);
        *f = (struct rig_flow){ io, i };
        io->streams[i] = given[i];
        io->flowing++;
        io->refs++;
        fiber_go(io->rig->loop, rig_flow_main, f, "rig.io");
    }
}

static inline bool rig_io_wants(const struct io *io, int fd)
{
    return io->wants[fd];
}

static inline int rig_io_drain(struct ctx *ctx, struct io *io, struct err *err)
{
    while (io->flowing > 0)
        if (waitq_wait(ctx, &io->q, "output", err) < 0)
            return -1;
    return 0;
}

static inline void rig_io_close_stdin(struct io *io)
{
    stream_free(TAKE_PTR(io->streams[0]));
}

static inline void rig_io_close(struct io *io)
{
    io->closed = true;
    stream_free(TAKE_PTR(io->streams[0]));
    cancel_fire(&io->life, ERR_CANCELLED, "closed");
}

static inline void rig_io_free(struct io *io)
{
    rig_io_close(io);
    rig_now->ios--;
    rig_io_unref(io);
}

static inline int rig_clock_open(struct err *err)
{
    return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static inline int rig_clock_wait(struct ctx *ctx, int fd, struct err *err)
{
    return waitq_wait(ctx, &rig_now->clock_q, "clock", err);
}

static const struct registry_host rig_host = {
    .clock_open = rig_clock_open,
    .clock_wait = rig_clock_wait,
    .rootfs_open = rig_rootfs_open,
    .tree_open = rig_tree_open,
    .scratch_make = rig_scratch_make,
    .scratch_fd = rig_scratch_fd,
    .scratch_remove = rig_scratch_remove,
    .scratch_free = rig_scratch_free,
    .cgroup_make = rig_cgroup_make,
    .anchor_spawn = rig_anchor_spawn,
    .anchor_pid = rig_anchor_pid,
    .anchor_wait = rig_anchor_wait,
    .anchor_end = rig_anchor_end,
    .anchor_free = rig_anchor_free,
    .io_open = rig_io_open,
    .io_attach = rig_io_attach,
    .io_wants = rig_io_wants,
    .io_drain = rig_io_drain,
    .io_close_stdin = rig_io_close_stdin,
    .io_close = rig_io_close,
    .io_free = rig_io_free,
};

/* --- VM and guest --- */

static inline int rig_dial(void *arg, uint32_t port, struct stream **ret)
{
    return fake_vmm_dial(arg, port, ret);
}

static inline void rig_power_off(void *arg)
{
    fake_vmm_die(arg, FAKE_POWERED_OFF);
}

static inline void rig_power(void *arg, struct vmm *v, struct cancel *power)
{
    struct rig *r = arg;

    r->guest_opts.loop = r->loop;
    r->guest_opts.dial = rig_dial;
    r->guest_opts.dial_arg = v;
    r->guest_opts.power = power;
    r->guest_opts.power_off = rig_power_off;
    r->guest_opts.power_off_arg = v;
    r->guest_opts.facts = &r->guest;
    fake_guest_boot(&r->guest_opts);
}

static inline struct vmm *rig_make_vmm(void *arg)
{
    struct rig *r = arg;

    r->vmm_opts.loop = r->loop;
    r->vmm_opts.on_power = rig_power;
    r->vmm_opts.on_power_arg = r;
    if (r->vmm_opts.kill_ns == 0)
        r->vmm_opts.kill_ns = 5 * NS_PER_MS;
    r->vmm = fake_vmm_new(&r->vmm_opts);
    r->vmm->timeline = &r->timeline;
    r->vms++;
    return r->vmm;
}

static inline struct guest *rig_make_guest(void *arg, struct vmm *vmm)
{
    struct rig *r = arg;

    return bridge_new(r->loop, vmm, &r->timeline);
}

/* --- life --- */

#define RIG_SPEC                                                                                   \
    "{\"ociVersion\":\"1.0.2\",\"process\":{\"args\":[\"/bin/true\"],\"cwd\":\"/\"},"              \
    "\"root\":{\"path\":\"rootfs\"},\"linux\":{\"namespaces\":[{\"type\":\"pid\"}]}%s}"

static inline void rig_write_spec(struct rig *r, const char *id, const char *more)
{
    AUTO_FREE char *dir = str_format("%s/%s", r->dir, id);
    AUTO_FREE char *path = str_format("%s/config.json", dir);
    AUTO_FREE char *text = str_format(RIG_SPEC, more);

    ASSERT_EQ(dir_make(dir, 0700), 0);
    ASSERT_EQ(file_write(path, text, strlen(text), 0600), 0);
}

static inline void rig_open(struct rig *r, struct ctx *ctx)
{
    rig_now = r;
    r->loop = ctx->loop;
    strcpy(r->dir, "/tmp/registry.XXXXXX");
    ASSERT(mkdtemp(r->dir) != NULL);
    config_init(&r->config);
    free(r->config.run_root);
    r->config.run_root = str_format("%s/run", r->dir);
    r->events = events_new();
    group_init(&r->clients);
    waitq_init(&r->clock_q);
    if (r->guest_opts.process_ns == 0)
        r->guest_opts.process_ns = NS_PER_S;
    r->registry = registry_new(&(struct registry_opts){ .loop = ctx->loop,
                                                        .ns = "test",
                                                        .id = "box",
                                                        .config = &r->config,
                                                        .events = r->events,
                                                        .make_vmm = rig_make_vmm,
                                                        .make_guest = rig_make_guest,
                                                        .arg = r,
                                                        .host = &rig_host });
}

static inline const char *rig_event_name(enum event_kind k)
{
    static const char *const names[EVENT_KIND_COUNT] = {
        [EVENT_CREATE] = "create",
        [EVENT_START] = "start",
        [EVENT_EXEC_ADDED] = "exec-added",
        [EVENT_EXEC_STARTED] = "exec-started",
        [EVENT_OOM] = "oom",
        [EVENT_EXIT] = "exit",
        [EVENT_DELETE] = "delete",
        [EVENT_PAUSED] = "paused",
        [EVENT_RESUMED] = "resumed",
    };

    return names[k];
}

/* All that was told up to now: "create a;start a;exit a/e 7". */
static inline const char *rig_told(struct rig *r, struct ctx *ctx)
{
    const struct event *e;
    struct err err = ERR_INIT;

    while (events_pending(r->events) > 0) {
        ASSERT_OK(events_next(ctx, r->events, &e, &err), err);
        sbuf_addf(&r->told, "%s%s %s%s%s", r->told.len ? ";" : "", rig_event_name(e->kind),
                  e->container_id, e->exec_id[0] ? "/" : "", e->exec_id);
        if (e->kind == EVENT_EXIT || e->kind == EVENT_DELETE)
            sbuf_addf(&r->told, " %u", e->exit_status);
        if (e->kind == EVENT_EXIT)
            ASSERT(e->exited_wall_ns > 0);
        events_done(r->events);
    }
    return r->told.len ? r->told.data : "";
}

static inline unsigned rig_entries(const char *path)
{
    DIR *d = opendir(path);
    unsigned n = 0;

    for (struct dirent *e; d && (e = readdir(d));)
        n += e->d_name[0] != '.';
    if (d)
        closedir(d);
    return n;
}

/* Ends all there is, and looks for what was left. */
static inline void rig_close(struct rig *r, struct ctx *ctx)
{
    struct ctx root = ctx_root(ctx->loop), limited = ctx_with_timeout(&root, 900 * NS_PER_S);
    struct err err = ERR_INIT;

    ASSERT_OK(group_wait(&limited, &r->clients, "clients", &err), err);
    ASSERT_OK(registry_close(&limited, r->registry, &err), err);
    ASSERT(registry_idle(r->registry));
    (void)rig_told(r, &limited);
    registry_free(r->registry);
    events_free(r->events);
    ASSERT_EQ(r->anchors, 0);
    ASSERT_EQ(r->ios, 0);
    ASSERT_EQ(r->scratches, 0);
    ASSERT_EQ(r->guest.containers, 0);
    ASSERT_EQ(r->guest.layers, 0);
    ASSERT_EQ(r->guest.shares, 0);

    AUTO_FREE char *run = str_format("%s/run", r->dir);

    ASSERT_EQ(rig_entries(run), 0);
    config_release(&r->config);
    sbuf_release(&r->told);
    ASSERT_EQ(dir_remove(r->dir), 0);
}

/* --- calls --- */

static inline int rig_try_create(struct rig *r, struct ctx *ctx, const char *id, struct err *err)
{
    AUTO_FREE char *bundle = str_format("%s/%s", r->dir, id);
    const struct registry_create c = { .id = id, .bundle = bundle, .out = "/fifo/out" };
    uint32_t pid;

    return registry_create(ctx, r->registry, &c, &pid, err);
}

static inline void rig_create(struct rig *r, struct ctx *ctx, const char *id)
{
    struct err err = ERR_INIT;

    rig_write_spec(r, id, "");
    ASSERT_OK(rig_try_create(r, ctx, id, &err), err);
}

static inline struct container *rig_find(struct rig *r, const char *id)
{
    struct err err = ERR_INIT;
    struct container *c = registry_find(r->registry, id, &err);

    ASSERT(c != NULL);
    return c;
}

static inline int rig_try_start(struct rig *r, struct ctx *ctx, const char *id, const char *exec,
                                struct err *err)
{
    struct container *c = registry_find(r->registry, id, err);
    uint32_t pid;

    return c ? container_start(ctx, c, exec, &pid, err) : -1;
}

static inline void rig_start(struct rig *r, struct ctx *ctx, const char *id, const char *exec)
{
    struct err err = ERR_INIT;

    ASSERT_OK(rig_try_start(r, ctx, id, exec, &err), err);
}

static inline int rig_try_exec(struct rig *r, struct ctx *ctx, const char *id, const char *exec,
                               struct err *err)
{
    static const char process[] = "{\"args\":[\"/bin/sh\"],\"cwd\":\"/\"}";
    const struct container_exec e = { .exec_id = exec,
                                      .out = "/fifo/out",
                                      .process_json = process,
                                      .process_len = sizeof(process) - 1 };
    struct container *c = registry_find(r->registry, id, err);

    return c ? container_exec(ctx, c, &e, err) : -1;
}

static inline void rig_exec(struct rig *r, struct ctx *ctx, const char *id, const char *exec)
{
    struct err err = ERR_INIT;

    ASSERT_OK(rig_try_exec(r, ctx, id, exec, &err), err);
}

static inline int rig_try_kill(struct rig *r, struct ctx *ctx, const char *id, const char *exec,
                               uint32_t signo, bool all, struct err *err)
{
    struct container *c = registry_find(r->registry, id, err);

    return c ? container_kill(ctx, c, exec, signo, all, err) : -1;
}

static inline int rig_try_wait(struct rig *r, struct ctx *ctx, const char *id, const char *exec,
                               struct process_view *ret, struct err *err)
{
    struct container *c = registry_find(r->registry, id, err);
    struct process *p = c ? container_process(c, exec, err) : NULL;

    return p ? process_wait(ctx, p, ret, err) : -1;
}

static inline uint32_t rig_wait(struct rig *r, struct ctx *ctx, const char *id, const char *exec)
{
    struct process_view v;
    struct err err = ERR_INIT;

    ASSERT_OK(rig_try_wait(r, ctx, id, exec, &v, &err), err);
    return v.exit_status;
}

static inline int rig_try_delete(struct rig *r, struct ctx *ctx, const char *id, const char *exec,
                                 struct err *err)
{
    struct registry_deleted d;

    return registry_delete(ctx, r->registry, id, exec, &d, err);
}

static inline void rig_delete(struct rig *r, struct ctx *ctx, const char *id, const char *exec)
{
    struct err err = ERR_INIT;

    ASSERT_OK(rig_try_delete(r, ctx, id, exec, &err), err);
}
