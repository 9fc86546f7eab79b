/* registry_fake.h - for tests and simulation: a host without an OS. What it gave and did not get
 * back is counted; each operation that may wait can be late or fail. */
#pragma once
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/loop.h"
#include "base/str.h"
#include "base/stream.h"
#include "host/control/registry_host.h"
#include "host/own/ledger.h"
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

struct fake_host {
    struct loop *loop;
    unsigned anchors, ios, scratches; /* that there are */
    unsigned anchor_pids;
    bool io_stuck; /* nobody reads */
    bool rootfs_fails, anchor_fails, anchor_dies, io_fails, scratch_fails;
    uint64_t rootfs_ns;
    uint64_t cpu_quota, cpu_shares; /* of QEMU */
    /* Before each operation that may wait: may sleep, may fail it. May be NULL. */
    int (*step)(void *arg, struct ctx *ctx, const char *op, struct err *err);
    void *step_arg;
    struct anchor *last_anchor;
    struct waitq clock_q;  /* woken: the clock was set */
    const char *violation; /* NULL if none */
};

/* The operations have no argument of their own: one at a time. */
static struct fake_host *fake_host_now;

static inline void fake_host_init(struct fake_host *h, struct loop *loop)
{
    h->loop = loop;
    waitq_init(&h->clock_q);
    fake_host_now = h;
}

static inline int fake_host_step(struct ctx *ctx, const char *op, struct err *err)
{
    struct fake_host *h = fake_host_now;

    return h->step ? h->step(h->step_arg, ctx, op, err) : 0;
}

struct anchor {
    pid_t pid;
    bool ended, by_us;
    struct waitq q;
};

struct io {
    struct fake_host *host;
    unsigned refs;
    bool wants[3], closed;
    unsigned flowing;
    struct stream *streams[3];
    struct waitq q;
    struct cancel life;
};

static inline int fake_pause_open(struct ctx *ctx, int *ret_fd, struct err *err)
{
    if (fake_host_step(ctx, "rootfs", err) < 0)
        return -1;
    if (fake_host_now->rootfs_ns && fiber_sleep(ctx, fake_host_now->rootfs_ns, err) < 0)
        return -1;
    if (fake_host_now->rootfs_fails)
        return err_set(err, ERR_NOT_FOUND, "rootfs: no such directory");
    *ret_fd = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    return 0;
}

/* A mount of type ext4 or erofs: disks, each a file of its own; the others: a directory. */
static inline int fake_rootfs_open(struct ctx *ctx, const struct rootfs_mount *mounts, size_t n,
                                   const char *root_path, unsigned how, struct rootfs *ret,
                                   struct err *err)
{
    bool ext4 = n > 0 && str_eq(mounts[0].type, "ext4");

    if (fake_pause_open(ctx, &ret->tree, err) < 0)
        return -1;
    ret->tree_writable = how & (ROOTFS_WRITABLE | ROOTFS_KEPT);
    if (n == 0 || how & ROOTFS_TREE || (!ext4 && !str_eq(mounts[0].type, "erofs")))
        return 0;
    ret->tree_writable = false;
    fd_close(TAKE_FD(ret->tree));
    ret->has_tree = !ext4;
    ret->disks = mem_zalloc(n * sizeof(*ret->disks));
    for (size_t i = 0; i < n; i++)
        ret->disks[ret->n_disks++] =
            (struct rootfs_disk){ .fd = open(mounts[i].source, O_RDONLY | O_CLOEXEC),
                                  .path = str_dup(mounts[i].source),
                                  .filesystem = ext4 ? "ext4" : "erofs",
                                  .writable = ext4 };
    return 0;
}

static inline int fake_tree_open(struct ctx *ctx, const char *path, const struct tree_opts *opts,
                                 struct tree *ret, struct err *err)
{
    int fd;

    if (fake_host_step(ctx, "tree", err) < 0)
        return -1;
    fd = open(path, O_PATH | O_CLOEXEC);
    if (fd < 0)
        return err_set(err, ERR_NOT_FOUND, "%s does not exist", path);
    *ret = (struct tree){ .fd = fd };
    return 0;
}

static inline int fake_emptydir_look(struct ctx *ctx, const char *dir, const char *path,
                                     struct emptydir *ret, struct err *err)
{
    if (fake_host_step(ctx, "emptydir", err) < 0)
        return -1;
    *ret = (struct emptydir){ .kind = EMPTYDIR_PLAIN, .n = 1 };
    ret->dirs = mem_new(struct emptydir_dir);
    *ret->dirs = (struct emptydir_dir){ .path = str_dup(""), .mode = 0777 };
    return 0;
}

static inline int fake_blockimage_open_number(struct ctx *ctx, uint32_t major, uint32_t minor,
                                              bool read_only, int *ret_fd, struct err *err)
{
    if (fake_host_step(ctx, "disk", err) < 0)
        return -1;
    *ret_fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC); /* some file */
    return 0;
}

static inline int fake_blockimage_open(struct ctx *ctx, const char *path, enum blockimage_kind kind,
                                       bool read_only, int *ret_fd, struct err *err)
{
    return fake_blockimage_open_number(ctx, 0, 0, read_only, ret_fd, err);
}

/* As the real one is on record. */
struct scratch {
    int fd;
    struct ledger *ledger;
    uint64_t note;
    char *path;
};

static inline void fake_scratch_free(struct scratch *s)
{
    fd_close(s->fd);
    free(s->path);
    free(s);
    fake_host_now->scratches--;
}

static inline int fake_scratch_room(struct ctx *ctx, const char *dir, uint32_t free_mib,
                                    struct err *err)
{
    (void)ctx, (void)free_mib;
    return fake_host_now->scratch_fails ? err_set(err, ERR_EXHAUSTED, "%s is full", dir) : 0;
}

static inline int fake_scratch_make(struct ctx *ctx, const struct scratch_opts *opts,
                                    struct scratch **ret, struct err *err)
{
    struct scratch *s;
    int r;

    if (fake_host_step(ctx, "scratch", err) < 0)
        return -1;
    if (fake_host_now->scratch_fails)
        return err_set(err, ERR_EXHAUSTED, "no space for a scratch disk");
    s = mem_new(struct scratch);
    s->fd = -1;
    fake_host_now->scratches++;
    s->ledger = opts->ledger;
    s->path = str_format("%s/scratch", ledger_dir(opts->ledger));
    r = ledger_note(opts->ledger, LEDGER_FILE, s->path, &s->note, err);
    if (r == 0 && (r = file_write(s->path, "x", 1, 0600)) < 0) {
        (void)err_sys(err, -r, "write %s", s->path);
        (void)unlink(s->path);
        (void)ledger_forget(opts->ledger, s->note, &(struct err)ERR_INIT); /* gc finds it */
    }
    if (r < 0) {
        fake_scratch_free(s);
        return -1;
    }
    s->fd = open(s->path, O_RDWR | O_CLOEXEC);
    *ret = s;
    return 0;
}

static inline int fake_scratch_fd(const struct scratch *s)
{
    return s->fd;
}

static inline int fake_scratch_remove(struct ctx *ctx, struct scratch *s, struct err *err)
{
    (void)unlink(s->path);
    return ledger_forget(s->ledger, s->note, err);
}

static inline int fake_cgroup_make(const char *path, struct ledger *ledger, struct cgroup **ret,
                                   struct err *err)
{
    *ret = NULL;
    return 0;
}

static inline int fake_cgroup_set_cpu(struct cgroup *c, uint64_t quota, uint64_t period,
                                      uint64_t shares, struct err *err)
{
    fake_host_now->cpu_quota = quota;
    fake_host_now->cpu_shares = shares;
    return 0;
}

static inline int fake_anchor_spawn(struct ctx *ctx, const struct anchor_opts *o,
                                    struct anchor **ret, struct err *err)
{
    struct anchor *a;

    if (fake_host_step(ctx, "anchor", err) < 0)
        return -1;
    if (fake_host_now->anchor_fails)
        return err_set(err, ERR_EXHAUSTED, "no process for an anchor");
    a = mem_new(struct anchor);
    a->pid = (pid_t)(1000 + fake_host_now->anchor_pids++);
    a->ended = fake_host_now->anchor_dies; /* somebody kills it at once */
    waitq_init(&a->q);
    fake_host_now->anchors++;
    fake_host_now->last_anchor = a;
    *ret = a;
    return 0;
}

static inline pid_t fake_anchor_pid(const struct anchor *a)
{
    return a->pid;
}

static inline int fake_anchor_wait(struct ctx *ctx, struct anchor *a, bool *ret_by_us,
                                   struct err *err)
{
    while (!a->ended)
        if (waitq_wait(ctx, &a->q, "anchor", err) < 0)
            return -1;
    *ret_by_us = a->by_us;
    return 0;
}

static inline void fake_anchor_end(struct anchor *a)
{
    a->by_us = a->by_us || !a->ended;
    a->ended = true;
    waitq_wake_all(&a->q);
}

static inline void fake_anchor_free(struct anchor *a)
{
    if (!a->ended)
        fake_host_now->violation = "an anchor was freed before its end";
    fake_host_now->anchors--;
    if (fake_host_now->last_anchor == a)
        fake_host_now->last_anchor = NULL;
    free(a);
}

static inline int fake_io_open(struct ctx *ctx, struct loop *loop, const struct io_spec *spec,
                               struct io **ret, struct err *err)
{
    struct io *io;

    if (fake_host_step(ctx, "io", err) < 0)
        return -1;
    if (fake_host_now->io_fails)
        return err_set(err, ERR_INVALID, "stdout is no FIFO");
    io = mem_new(struct io);
    io->host = fake_host_now;
    io->refs = 1;
    io->wants[0] = spec->in && spec->in[0];
    io->wants[1] = spec->out && spec->out[0];
    io->wants[2] = spec->err && spec->err[0] && !spec->terminal;
    waitq_init(&io->q);
    cancel_init(&io->life, NULL);
    fake_host_now->ios++;
    *ret = io;
    return 0;
}

static inline void fake_io_unref(struct io *io)
{
    if (--io->refs > 0)
        return;
    cancel_release(&io->life);
    free(io);
}

struct fake_flow {
    struct io *io;
    int fd;
};

static inline void fake_flow_main(void *arg)
{
    struct fake_flow *f = arg;
    struct io *io = f->io;
    struct ctx root = ctx_root(io->host->loop), ctx = ctx_with_cancel(&root, &io->life);
    struct err err = ERR_INIT;
    char buf[256];
    size_t n = 1;

    while (io->host->io_stuck && waitq_wait(&ctx, &io->q, "a reader", &err) == 0)
        ;
    while (n > 0 && stream_read(&ctx, io->streams[f->fd], buf, sizeof(buf), &n, &err) == 0)
        ;
    stream_free(TAKE_PTR(io->streams[f->fd]));
    io->flowing--;
    waitq_wake_all(&io->q);
    fake_io_unref(io);
    free(f);
}

static inline void fake_io_attach(struct io *io, struct stream *in, struct stream *out,
                                  struct stream *err)
{
    struct stream *given[3] = { in, out, err };

    io->streams[0] = in;
    for (int i = 1; i < 3; i++) {
        struct fake_flow *f;

        if (!given[i])
            continue;
        if (io->closed) {
            stream_free(given[i]);
            continue;
        }
        f = mem_new(struct fake_flow);
        *f = (struct fake_flow){ io, i };
        io->streams[i] = given[i];
        io->flowing++;
        io->refs++;
        fiber_go(io->host->loop, fake_flow_main, f, "fake.io");
    }
}

static inline bool fake_io_wants(const struct io *io, int fd)
{
    return io->wants[fd];
}

static inline int fake_io_drain(struct ctx *ctx, struct io *io, struct err *err)
{
    while (io->flowing > 0)
        if (waitq_wait(ctx, &io->q, "output", err) < 0)
            return -1;
    return 0;
}

static inline void fake_io_close_stdin(struct io *io)
{
    stream_free(TAKE_PTR(io->streams[0]));
}

static inline void fake_io_close(struct io *io)
{
    io->closed = true;
    stream_free(TAKE_PTR(io->streams[0]));
    cancel_fire(&io->life, ERR_CANCELLED, "closed");
}

static inline void fake_io_free(struct io *io)
{
    fake_io_close(io);
    fake_host_now->ios--;
    fake_io_unref(io);
}

static inline int fake_clock_open(struct err *err)
{
    return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static inline int fake_clock_wait(struct ctx *ctx, int fd, struct err *err)
{
    return waitq_wait(ctx, &fake_host_now->clock_q, "clock", err);
}

static const struct registry_host fake_host_ops = {
    .clock_open = fake_clock_open,
    .clock_wait = fake_clock_wait,
    .rootfs_open = fake_rootfs_open,
    .pause_open = fake_pause_open,
    .tree_open = fake_tree_open,
    .emptydir_look = fake_emptydir_look,
    .blockimage_open = fake_blockimage_open,
    .blockimage_open_number = fake_blockimage_open_number,
    .scratch_make = fake_scratch_make,
    .scratch_room = fake_scratch_room,
    .scratch_fd = fake_scratch_fd,
    .scratch_remove = fake_scratch_remove,
    .scratch_free = fake_scratch_free,
    .cgroup_make = fake_cgroup_make,
    .cgroup_set_cpu = fake_cgroup_set_cpu,
    .anchor_spawn = fake_anchor_spawn,
    .anchor_pid = fake_anchor_pid,
    .anchor_wait = fake_anchor_wait,
    .anchor_end = fake_anchor_end,
    .anchor_free = fake_anchor_free,
    .io_open = fake_io_open,
    .io_attach = fake_io_attach,
    .io_wants = fake_io_wants,
    .io_drain = fake_io_drain,
    .io_close_stdin = fake_io_close_stdin,
    .io_close = fake_io_close,
    .io_free = fake_io_free,
};
