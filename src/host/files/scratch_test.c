#include "base/child.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/str.h"
#include "fixture/handover_fixture.h"
#include "fixture/ledger_fixture.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include "host/files/scratch_priv.h"
#include "host/ledger/ledger.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

struct fixture {
    struct tempdir temp;
    char *dir;
    struct ledger *ledger;
};

static void start(struct fixture *f)
{
    struct err err = ERR_INIT;

    *f = (struct fixture){ .ledger = NULL };
    tempdir_init(&f->temp, "/tmp");
    f->dir = str_format("%s/state", f->temp.dir);
    ASSERT_OK(ledger_create(tempdir_path(&f->temp, "run"), &f->ledger, &err), err);
}

static void finish(struct fixture *f)
{
    struct err err = ERR_INIT;

    ASSERT_EQ(ledger_fixture_open(f->ledger), 0);
    ASSERT_OK(ledger_finish(f->ledger, &err), err);
    ledger_close(f->ledger);
    free(f->dir);
    tempdir_release_auto(&f->temp);
}

static struct scratch_opts opts(const struct fixture *f, const char *id)
{
    return (struct scratch_opts){
        .dir = f->dir, .ns = "default", .id = id, .size_mib = 256, .ledger = f->ledger
    };
}

static struct scratch *make(struct ctx *ctx, struct fixture *f, const char *id)
{
    const struct scratch_opts o = opts(f, id);
    struct scratch *s = NULL;
    struct err err = ERR_INIT;

    ASSERT_OK(scratch_make(ctx, &o, &s, &err), err);
    return s;
}

static void drop(struct ctx *ctx, struct scratch *s)
{
    struct err err = ERR_INIT;

    ASSERT_OK(scratch_remove(ctx, s, &err), err);
    ASSERT_OK(scratch_remove(ctx, s, &err), err);
    scratch_free(s);
}

static unsigned entries(const char *path)
{
    DIR *d = opendir(path);
    unsigned n = 0;

    ASSERT(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n - 2;
}

TEST_FIBER(a_disk_is_an_empty_ext4_that_costs_next_to_nothing)
{
    struct fixture f;
    struct stat st;
    uint8_t magic[2];

    start(&f);
    struct scratch *s = make(ctx, &f, "box");
    AUTO_FREE char *want = str_format("%s/sandboxes/default/box/scratch.img", f.dir);

    ASSERT_EQ(access(want, F_OK), 0);
    ASSERT_EQ(fstat(scratch_fd(s), &st), 0);
    ASSERT_EQ(st.st_size, 256 << 20);
    ASSERT(st.st_blocks * 512 < 1 << 20);
    ASSERT_EQ(st.st_mode & 07777, 0600);
    ASSERT_EQ(pread(scratch_fd(s), magic, 2, 1024 + 56), 2);
    ASSERT_EQ(magic[0] | magic[1] << 8, 0xef53);
    ASSERT_EQ(pwrite(scratch_fd(s), "x", 1, 1 << 20), 1);
    ASSERT_EQ(ledger_fixture_open(f.ledger), 1);
    drop(ctx, s);
    ASSERT_EQ(access(want, F_OK), -1);
    AUTO_FREE char *ns = str_format("%s/sandboxes/default", f.dir);
    ASSERT_EQ(access(ns, F_OK), -1);
    finish(&f);
}

TEST_FIBER(e2fsck_finds_nothing_wrong_with_a_disk)
{
    struct fixture f;
    struct err err = ERR_INIT;
    int status;

    start(&f);
    struct scratch *s = make(ctx, &f, "box");
    AUTO_FREE char *path = str_format("/proc/%d/fd/%d", getpid(), scratch_fd(s));
    const char *const argv[] = { "/usr/sbin/e2fsck", "-fn", path, NULL };
    AUTO(child_free) struct child *c = NULL;
    ASSERT_OK(child_spawn(ctx, &(struct child_opts){ .argv = argv }, &c, &err), err);
    ASSERT_OK(child_wait(ctx, c, &status, &err), err);
    ASSERT(WIFEXITED(status));
    ASSERT_EQ(WEXITSTATUS(status), 0);
    drop(ctx, s);
    finish(&f);
}

struct maker {
    struct ctx *ctx;
    struct fixture *f;
    char id[8];
    struct scratch *s;
};

static void make_fiber(void *arg)
{
    struct maker *m = arg;

    m->s = make(m->ctx, m->f, m->id);
}

TEST_FIBER(many_at_once_do_not_disturb_each_other)
{
    struct fixture f;
    struct maker makers[6];
    struct fibers g;
    struct err err = ERR_INIT;

    start(&f);
    fibers_init(&g);
    for (int i = 0; i < 6; i++) {
        makers[i] = (struct maker){ .ctx = ctx, .f = &f };
        snprintf(makers[i].id, sizeof(makers[i].id), "m%d", i);
        fibers_go(&g, ctx->loop, make_fiber, &makers[i], "maker");
    }
    ASSERT_OK(fibers_wait(ctx, &g, "makers", &err), err);
    ASSERT_EQ(entries(f.dir), 1); /* sandboxes, and nothing temporary */
    for (int i = 0; i < 6; i++)
        drop(ctx, makers[i].s);
    finish(&f);
}

TEST_FIBER(a_sandbox_that_lives_is_neither_made_again_nor_swept)
{
    struct fixture f;
    struct err err = ERR_INIT;
    struct scratch *again = NULL;

    start(&f);
    struct scratch *s = make(ctx, &f, "box");
    const struct scratch_opts o = opts(&f, "box");

    ASSERT_FAIL(scratch_make(ctx, &o, &again, &err), err, ERR_EXISTS);
    ASSERT_EQ(ledger_fixture_open(f.ledger), 1);
    ASSERT_OK(scratch_sweep(f.dir, false, NULL, NULL, &err), err);
    AUTO_FREE char *path = str_format("%s/sandboxes/default/box/scratch.img", f.dir);
    ASSERT_EQ(access(path, F_OK), 0);
    drop(ctx, s);
    finish(&f);
}

static void add_swept(void *arg, const char *name, const char *path, int taken, const char *result)
{
    (void)path;
    sbuf_addf(arg, "%s %s;", name, result);
}

TEST_FIBER(what_the_dead_left_is_swept)
{
    struct fixture f;
    struct err err = ERR_INIT;
    AUTO(sbuf_release) struct sbuf said = { 0 };

    start(&f);
    struct scratch *s = make(ctx, &f, "alive");
    AUTO_FREE char *dead = str_format("%s/sandboxes/k8s.io/dead", f.dir);
    AUTO_FREE char *file = str_format("%s/scratch.img", dead);
    ASSERT_EQ(dir_make(dead, 0700), 0);
    ASSERT_EQ(file_write(file, "x", 1, 0600), 0);
    /* A formatted disk that an older version of lcow kept, and a file that is not one. */
    AUTO_FREE char *templates = str_format("%s/scratch", f.dir);
    AUTO_FREE char *old = str_format("%s/ext4-v1-64mib.img", templates);
    AUTO_FREE char *other = str_format("%s/ext4-v1-64mib.img.kept", templates);
    ASSERT_EQ(mkdir(templates, 0700), 0);
    ASSERT_EQ(file_write(old, "x", 1, 0600), 0);
    ASSERT_EQ(file_write(other, "x", 1, 0600), 0);

    ASSERT_OK(scratch_sweep(f.dir, true, add_swept, &said, &err), err);
    ASSERT(access(file, F_OK) == 0 && access(old, F_OK) == 0);
    ASSERT_OK(scratch_sweep(f.dir, false, add_swept, &said, &err), err);
    ASSERT_STR(said.data, "template/ext4-v1-64mib.img would be removed;"
                          "k8s.io/dead would be removed;template/ext4-v1-64mib.img removed;"
                          "k8s.io/dead removed;");
    ASSERT(access(old, F_OK) < 0 && access(other, F_OK) == 0);
    ASSERT_EQ(access(dead, F_OK), -1);
    ASSERT_OK(scratch_sweep("/nowhere/at/all", false, NULL, NULL, &err), err);
    drop(ctx, s);
    /* The directory itself stays: it may have been set up by an administrator. */
    AUTO_FREE char *sandboxes = str_format("%s/sandboxes", f.dir);
    ASSERT_OK(scratch_sweep(f.dir, false, NULL, NULL, &err), err);
    ASSERT_EQ(access(sandboxes, F_OK), 0);
    finish(&f);
}

TEST_FIBER(names_that_lead_elsewhere_and_impossible_sizes_are_refused)
{
    static const char *const bad[] = { "", ".", "..", "a/b", "../x" };
    struct fixture f;
    struct err err = ERR_INIT;
    struct scratch *s = NULL;

    start(&f);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct scratch_opts o = opts(&f, bad[i]);
        ASSERT_FAIL(scratch_make(ctx, &o, &s, &err), err, ERR_INVALID);
    }
    struct scratch_opts o = opts(&f, "box");
    o.size_mib = 1;
    ASSERT_FAIL(scratch_make(ctx, &o, &s, &err), err, ERR_INVALID);
    finish(&f);
}

TEST_FIBER(a_full_disk_is_reported_with_its_directory_and_leaves_nothing)
{
    struct fixture f;
    struct err err = ERR_INIT;
    struct scratch *s = NULL;

    if (geteuid() != 0)
        tap_skip("a small tmpfs needs root");
    start(&f);
    ASSERT_EQ(mkdir(f.dir, 0700), 0);
    if (mount("small", f.dir, "tmpfs", 0, "size=48k") < 0)
        tap_skip("no tmpfs can be mounted here: %s", strerror(errno));
    const struct scratch_opts o = opts(&f, "box");
    int r = scratch_make(ctx, &o, &s, &err);
    AUTO_FREE char *sandboxes = str_format("%s/sandboxes", f.dir);
    unsigned left = entries(sandboxes);

    ASSERT_EQ(umount2(f.dir, MNT_DETACH), 0);
    ASSERT_EQ(r, -1);
    ASSERT_EQ(err.code, ERR_EXHAUSTED);
    ASSERT_EQ(err.reason, REASON_DISK_FULL);
    ASSERT_HAS(err.msg, f.dir);
    ASSERT_EQ(left, 0);
    finish(&f);
}

TEST_FIBER(without_the_room_that_is_asked_for_no_disk_is_made)
{
    struct fixture f;
    struct err err = ERR_INIT;
    struct scratch *s = NULL;

    if (geteuid() != 0)
        tap_skip("a small tmpfs needs root");
    start(&f);
    ASSERT_EQ(mkdir(f.dir, 0700), 0);
    if (mount("small", f.dir, "tmpfs", 0, "size=100m") < 0)
        tap_skip("no tmpfs can be mounted here: %s", strerror(errno));
    struct scratch_opts o = opts(&f, "box");
    o.free_mib = 101;
    int refused = scratch_make(ctx, &o, &s, &err);
    AUTO_FREE char *sandboxes = str_format("%s/sandboxes", f.dir);
    bool made = access(sandboxes, F_OK) == 0;
    struct err second = ERR_INIT;
    o.free_mib = 50;
    int r = scratch_make(ctx, &o, &s, &second),
        removed = r < 0 ? -1 : scratch_remove(ctx, s, &second);

    scratch_free(s);
    ASSERT_EQ(umount2(f.dir, MNT_DETACH), 0);
    ASSERT_EQ(refused, -1);
    ASSERT_EQ(err.code, ERR_EXHAUSTED);
    ASSERT_HAS(err.msg, f.dir);
    ASSERT_MSG_HAS(err.msg, "101 MiB must be left");
    ASSERT_MSG_HAS(err.msg, "scratch_free_mib");
    ASSERT(!made);
    ASSERT_OK(r, second);
    ASSERT_OK(removed, second);
    finish(&f);
}

TEST_FIBER(a_saved_disk_is_still_locked_and_can_be_removed)
{
    AUTO(saved_free) struct saved *writer = saved_writer(), *reader = NULL;
    struct scratch *s, *again = NULL;
    struct fixture f;
    struct err err = ERR_INIT;

    start(&f);
    s = make(ctx, &f, "a");
    int fd = scratch_fd(s), lock = s->lock;
    AUTO_FREE char *dir = str_dup(s->dir), *ns_dir = str_dup(s->ns_dir);
    scratch_saved(writer, 1, f.ledger, &s);
    reader = saved_fixture_read(writer);
    s->fd = s->lock = -1; /* as an exec: the object goes, its descriptors stay */
    scratch_free(s);
    scratch_saved(reader, 1, f.ledger, &again);
    ASSERT_OK(saved_check(reader, &err), err);
    ASSERT_EQ(scratch_fd(again), fd);
    ASSERT_EQ(again->lock, lock); /* or it would never be closed */
    ASSERT_HAS(again->path, "/scratch.img");
    ASSERT_OK(scratch_sweep(f.dir, false, NULL, NULL, &err), err);
    ASSERT_EQ(access(dir, F_OK), 0); /* a living one */
    ASSERT_EQ(ledger_fixture_open(f.ledger), 1);
    drop(ctx, again);
    ASSERT_EQ(access(dir, F_OK), -1);
    ASSERT_EQ(access(ns_dir, F_OK), -1);
    finish(&f);
}
