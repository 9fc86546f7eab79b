/* layers_test.c - the store of layer images, with the real mkfs.erofs. */
#include "base/child.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/loop.h"
#include "fixture/layers_fixture.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include "host/files/layers_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

static int make_fails(struct ctx *ctx, const struct store *s, struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, 60 * NS_PER_S);
    AUTO(layers_info_release) struct layers_info info = { 0 };
    bool made = false;

    *err = (struct err)ERR_INIT;
    return layers_build(&limited, &s->o, s->layer, &info, &made, err);
}

static int look_for(const struct store *s, const char *layer, struct err *err)
{
    AUTO(layers_close) struct layers_image i = { .fd = -1 };

    *err = (struct err)ERR_INIT;
    return layers_open(&s->o, layer, &i, err);
}

static size_t count(const struct store *s)
{
    AUTO(strv_release) struct strv keys = { 0 };
    struct err err = ERR_INIT;

    ASSERT_OK(layers_list(s->dir, &keys, &err), err);
    return keys.n;
}

/* Everything in the store, failures and what is incomplete too. */
static size_t names(const struct store *s)
{
    AUTO(closedir) DIR *d = opendir(s->dir);
    size_t n = 0;

    while (d && readdir(d))
        n++;
    return d ? n - 2 : 0;
}

static char *path_in(const struct store *s, const char *name)
{
    AUTO(strv_release) struct strv keys = { 0 };
    struct err err = ERR_INIT;

    ASSERT_OK(layers_list(s->dir, &keys, &err), err);
    ASSERT_EQ(keys.n, 1);
    return str_format("%s/%s/%s", s->dir, keys.v[0], name);
}

TEST_FIBER(an_image_is_made_once_and_found_by_its_directory)
{
    STORE(s);
    AUTO(layers_close) struct layers_image i = { .fd = -1 };
    struct err err = ERR_INIT;
    unsigned char magic[4];

    ASSERT_FAIL(look_for(&s, s.layer, &err), err, ERR_NOT_FOUND);
    ASSERT(layers_wanted(&s.o, s.layer, 0));
    ASSERT(make(ctx, &s, s.layer));
    ASSERT(!make(ctx, &s, s.layer));
    ASSERT_OK(layers_open(&s.o, s.layer, &i, &err), err);
    ASSERT_EQ(pread(i.fd, magic, 4, 1024), 4);
    ASSERT_EQ(memcmp(magic, "\xe2\xe1\xf5\xe0", 4), 0);
    ASSERT_STR(i.info.path, s.layer);
    ASSERT_EQ(i.info.entries, 4); /* itself, etc, etc/name, hello */
    ASSERT(i.info.tool[0] >= '1');
    ASSERT_STR(i.info.root_hash, "");
    ASSERT_EQ(names(&s), 1);
}

TEST_FIBER(another_directory_in_its_place_or_another_kind_of_image_has_another_key)
{
    STORE(s);
    struct err err = ERR_INIT;

    ASSERT(make(ctx, &s, s.layer));
    s.o.verity = true;
    ASSERT_FAIL(look_for(&s, s.layer, &err), err, ERR_NOT_FOUND);
    ASSERT(make(ctx, &s, s.layer));
    ASSERT_OK(look_for(&s, s.layer, &err), err);
    ASSERT_EQ(rename(s.layer, tempdir_path(&s.p, "away")), 0);
    tempdir_put(&s.p, LAYER "/hello", "hello\n");
    ASSERT_FAIL(look_for(&s, s.layer, &err), err, ERR_NOT_FOUND);
    /* Both images are of a directory that is not there any more. */
    ASSERT_OK(layers_prune(&s.o, false, NULL, NULL, &err), err);
    ASSERT_EQ(names(&s), 0);
}

TEST_FIBER(a_directory_that_is_gone_takes_its_image_along)
{
    STORE(s);
    struct err err = ERR_INIT;

    ASSERT(make(ctx, &s, s.layer));
    ASSERT_EQ(dir_remove(s.layer), 0);
    ASSERT_FAIL(look_for(&s, s.layer, &err), err, ERR_NOT_FOUND);
    ASSERT_OK(layers_prune(&s.o, false, NULL, NULL, &err), err);
    ASSERT_EQ(names(&s), 0);
}

TEST_FIBER(a_damaged_image_is_refused_and_made_again)
{
    for (int kind = 0; kind < 7; kind++) {
        STORE(s);
        struct err err = ERR_INIT;

        ASSERT(make(ctx, &s, s.layer));
        AUTO_FREE char *image = path_in(&s, "image"), *header = path_in(&s, "header");
        switch (kind) {
        case 0:
            ASSERT_EQ(truncate(image, 4096), 0);
            break;
        case 1:
            ASSERT_EQ(file_write(image, "x", 1, 0600), 0);
            break;
        case 2:
            ASSERT_EQ(chmod(image, 0666), 0);
            break;
        case 3:
            ASSERT_EQ(unlink(image), 0);
            break;
        case 4:
            ASSERT_EQ(unlink(image), 0);
            ASSERT_EQ(symlink("/etc/passwd", image), 0);
            break;
        case 5:
            ASSERT_EQ(unlink(header), 0);
            break;
        default:
            ASSERT_EQ(truncate(header, 100), 0);
        }
        ASSERT_EQ(look_for(&s, s.layer, &err), -1);
        ASSERT(err.code == ERR_DATA_LOSS || err.code == ERR_PERMISSION);
        ASSERT(make(ctx, &s, s.layer));
        ASSERT_OK(look_for(&s, s.layer, &err), err);
        ASSERT_EQ(names(&s), 1);
    }
}

TEST_FIBER(verify_finds_a_changed_bit_and_a_changed_file)
{
    STORE(s);
    AUTO(layers_info_release) struct layers_info info = { 0 };
    struct err err = ERR_INIT;
    struct stat st;

    ASSERT(make(ctx, &s, s.layer));
    AUTO_FREE char *image = path_in(&s, "image");
    AUTO(strv_release) struct strv keys = { 0 };
    ASSERT_OK(layers_list(s.dir, &keys, &err), err);
    ASSERT_OK(layers_verify(s.dir, keys.v[0], &info, &err), err);
    layers_info_release(&info);

    /* One bit, and the times as before: the disk's doing. */
    ASSERT_EQ(stat(image, &st), 0);
    AUTO_FD int fd = open(image, O_RDWR | O_CLOEXEC);
    char byte;
    ASSERT_EQ(pread(fd, &byte, 1, 2000), 1);
    byte ^= 1;
    ASSERT_EQ(pwrite(fd, &byte, 1, 2000), 1);
    ASSERT_EQ(futimens(fd, (struct timespec[]){ st.st_atim, st.st_mtim }), 0);
    ASSERT_OK(look_for(&s, s.layer, &err), err);
    ASSERT_FAIL(layers_verify(s.dir, keys.v[0], &info, &err), err, ERR_DATA_LOSS);
    err_clear(&err);
    byte ^= 1;
    ASSERT_EQ(pwrite(fd, &byte, 1, 2000), 1);
    ASSERT_EQ(futimens(fd, (struct timespec[]){ st.st_atim, st.st_mtim }), 0);
    ASSERT_OK(layers_verify(s.dir, keys.v[0], &info, &err), err);

    tempdir_put(&s.p, LAYER "/etc/name", "two\n"); /* deep inside: the quick check cannot see it */
    ASSERT_FAIL(layers_verify(s.dir, keys.v[0], &info, &err), err, ERR_STATE);
}

/* A layer that failed and is never used again must not leave its record without limit. */
TEST_FIBER(a_failure_is_forgotten_a_week_after_the_last_attempt)
{
    STORE(s);
    struct err err = ERR_INIT;

    s.o.free_mib = 1u << 30;
    ASSERT_FAIL(make_fails(ctx, &s, &err), err, ERR_EXHAUSTED);
    for (int day = 6; day <= 8; day += 2) {
        s.o.now_ns = loop_wall(ctx->loop) + (uint64_t)day * 24 * 3600 * NS_PER_S;
        err_clear(&err);
        ASSERT_OK(layers_prune(&s.o, false, NULL, NULL, &err), err);
        ASSERT_EQ(names(&s), day < 7 ? 1 : 0);
    }
}

/* Layers of 700 KiB each, of which two fit. */
static void put_big_layers(struct store *s, char (*layers)[160], int n)
{
    AUTO_FREE char *big = mem_zalloc(700 << 10);

    s->o.max_mib = 2;
    memset(big, 'x', (700 << 10) - 1);
    for (int i = 0; i < n; i++) {
        AUTO_FREE char *name = str_format("snapshots/10%d/fs/file", i);

        tempdir_put(&s->p, name, big);
        snprintf(layers[i], sizeof(layers[i]), "%s/snapshots/10%d/fs", s->p.dir, i);
    }
}

/* As if all images had been used last two hours ago, but those that were used already then. */
static void let_hours_pass(struct ctx *ctx, const struct store *s)
{
    AUTO(strv_release) struct strv keys = { 0 };
    struct err err = ERR_INIT;
    struct timespec then = { .tv_nsec = UTIME_OMIT };
    struct stat st;

    ASSERT_OK(layers_list(s->dir, &keys, &err), err);
    for (size_t i = 0; i < keys.n; i++) {
        AUTO_FREE char *path = str_format("%s/%s", s->dir, keys.v[i]);

        ASSERT_EQ(stat(path, &st), 0);
        then.tv_sec = st.st_mtim.tv_sec - 7200;
        then.tv_nsec = st.st_mtim.tv_nsec;
        ASSERT_EQ(utimensat(AT_FDCWD, path, (struct timespec[]){ then, then }, 0), 0);
    }
}

TEST_FIBER(the_longest_unused_are_removed_beyond_the_limit)
{
    STORE(s);
    struct err err = ERR_INIT;
    char layers[3][160];

    put_big_layers(&s, layers, 3);
    ASSERT(make(ctx, &s, layers[0]));
    ASSERT(make(ctx, &s, layers[1]));
    ASSERT_EQ(count(&s), 2);
    let_hours_pass(ctx, &s);
    ASSERT_OK(look_for(&s, layers[0], &err), err); /* used: now the other one is the oldest */
    let_hours_pass(ctx, &s);
    ASSERT(make(ctx, &s, layers[2]));
    ASSERT_EQ(count(&s), 2);
    ASSERT_OK(look_for(&s, layers[0], &err), err);
    ASSERT_FAIL(look_for(&s, layers[1], &err), err, ERR_NOT_FOUND);
    ASSERT_OK(look_for(&s, layers[2], &err), err);
}

/* Else each build of the last layer would evict the first, and each start build it again. */
TEST_FIBER(layers_that_do_not_fit_together_do_not_evict_each_other)
{
    STORE(s);
    struct err err = ERR_INIT;
    char layers[3][160];

    put_big_layers(&s, layers, 3);
    ASSERT(make(ctx, &s, layers[0]));
    ASSERT(make(ctx, &s, layers[1]));
    snprintf(s.layer, sizeof(s.layer), "%s", layers[2]);
    ASSERT_FAIL(make_fails(ctx, &s, &err), err, ERR_EXHAUSTED);
    ASSERT_MSG_HAS(err.msg, "layer_images_max_mib");
    ASSERT(!layers_wanted(&s.o, layers[2], loop_wall(ctx->loop)));
    ASSERT_OK(look_for(&s, layers[0], &err), err);
    ASSERT_OK(look_for(&s, layers[1], &err), err);
    /* An operator may reduce the store at once. */
    s.o.max_mib = 1;
    ASSERT_OK(layers_prune(&s.o, false, NULL, NULL, &err), err);
    ASSERT_EQ(count(&s), 1);
}

/* QEMU has the descriptor: the time of the last use is that of the start. */
TEST_FIBER(an_image_that_a_vm_has_open_is_not_evicted)
{
    STORE(s);
    AUTO(layers_close) struct layers_image i = { .fd = -1 };
    struct err err = ERR_INIT;
    char layers[3][160];

    put_big_layers(&s, layers, 3);
    ASSERT(make(ctx, &s, layers[0]));
    ASSERT(make(ctx, &s, layers[1]));
    ASSERT_OK(layers_open(&s.o, layers[0], &i, &err), err);
    let_hours_pass(ctx, &s);
    ASSERT_OK(look_for(&s, layers[1], &err), err); /* used since then */
    let_hours_pass(ctx, &s);
    AUTO_FD int in_qemu = fcntl(i.fd, F_DUPFD_CLOEXEC, 3);
    ASSERT(in_qemu >= 0);
    layers_close(&i);
    ASSERT(make(ctx, &s, layers[2]));
    ASSERT_OK(look_for(&s, layers[0], &err), err);
    ASSERT_FAIL(look_for(&s, layers[1], &err), err, ERR_NOT_FOUND);
    fd_close(TAKE_FD(in_qemu));
    err_clear(&err);
    let_hours_pass(ctx, &s);
    ASSERT(make(ctx, &s, layers[1]));
    ASSERT_EQ(count(&s), 2);
}

/* A file of 900 KiB with a second name has its data once. */
TEST_FIBER(a_file_with_many_names_counts_once)
{
    STORE(s);
    AUTO_FREE char *text = mem_zalloc(900 << 10);
    AUTO_FD int dir = -1;

    memset(text, 'x', (900 << 10) - 1);
    tempdir_put(&s.p, LAYER "/file", text);
    dir = open(s.layer, O_PATH | O_CLOEXEC);
    for (int i = 0; i < 9; i++) {
        AUTO_FREE char *name = str_format("name%d", i);

        ASSERT_EQ(linkat(dir, "file", dir, name, 0), 0);
    }
    s.o.max_mib = 2;
    ASSERT(make(ctx, &s, s.layer));
}

static void say(void *arg, const char *name, const char *why)
{
    sbuf_addf(arg, "%.5s %s;", name, why);
}

TEST_FIBER(a_dry_run_says_the_same_as_a_prune_and_removes_nothing)
{
    STORE(s);
    AUTO(sbuf_release) struct sbuf dry = { 0 }, wet = { 0 };
    struct err err = ERR_INIT;

    ASSERT(make(ctx, &s, s.layer));
    ASSERT_EQ(dir_remove(s.layer), 0);
    tempdir_put(&s.p, "layers/" LAYERS_NEW "x/image", "");
    ASSERT_OK(layers_prune(&s.o, true, say, &dry, &err), err);
    ASSERT_EQ(names(&s), 2);
    ASSERT_HAS(dry.data, LAYERS_NEW " incomplete;");
    ASSERT_HAS(dry.data, " its directory is gone;");
    ASSERT_OK(layers_prune(&s.o, false, say, &wet, &err), err);
    ASSERT_EQ(names(&s), 0);
    ASSERT_STR(wet.data, dry.data);
}

TEST_FIBER(without_space_nothing_is_made_and_the_failure_is_remembered_for_a_while)
{
    STORE(s);
    struct err err = ERR_INIT;
    uint64_t now = loop_wall(ctx->loop);

    s.o.free_mib = 1u << 30; /* a PiB */
    ASSERT_FAIL(make_fails(ctx, &s, &err), err, ERR_EXHAUSTED);
    ASSERT_EQ(err.reason, REASON_DISK_FULL);
    ASSERT_EQ(names(&s), 1); /* what is remembered */
    ASSERT(!layers_wanted(&s.o, s.layer, now + 60 * NS_PER_S));
    ASSERT(layers_wanted(&s.o, s.layer, now + 700 * NS_PER_S));
    ASSERT_FAIL(make_fails(ctx, &s, &err), err, ERR_EXHAUSTED);
    ASSERT(!layers_wanted(&s.o, s.layer, now + 700 * NS_PER_S));
    s.o.free_mib = 0;
    ASSERT(make(ctx, &s, s.layer));
    ASSERT_EQ(names(&s), 2); /* with what is remembered: if it fails again, it waits longer */
}

/* Else an image that no guest can mount would be made and fail without end. */
TEST_FIBER(an_image_that_a_vm_could_not_use_is_made_again_later_and_ever_later)
{
    STORE(s);
    struct err err = ERR_INIT;
    uint64_t now = loop_wall(ctx->loop);

    for (unsigned n = 1; n <= 3; n++) {
        ASSERT(make(ctx, &s, s.layer));
        AUTO_FREE char *image = path_in(&s, "image"), *entry = str_dup(image);
        strrchr(entry, '/')[0] = '\0';
        ASSERT_OK(layers_discard(ctx, s.dir, strrchr(entry, '/') + 1, "no superblock", &err), err);
        ASSERT_FAIL(look_for(&s, s.layer, &err), err, ERR_NOT_FOUND);
        ASSERT(!layers_wanted(&s.o, s.layer, now + (n * 600 - 60) * NS_PER_S));
        ASSERT(layers_wanted(&s.o, s.layer, now + (n * 600 + (n > 2) * 600 + 60) * NS_PER_S));
        err_clear(&err);
    }
}

/* One file in a block that it does not fill: more than the estimate. */
TEST_FIBER(a_disk_that_gets_full_meanwhile_leaves_nothing_but_the_failure)
{
    STORE(s);
    struct err err = ERR_INIT;
    AUTO_FREE char *text = mem_zalloc(2201);

    memset(text, 'y', 2200);
    for (int i = 0; i < 400; i++) {
        AUTO_FREE char *name = str_format(LAYER "/f%d", i);

        tempdir_put(&s.p, name, text);
    }
    s.o.max_mib = 1; /* which mkfs.erofs has as its limit */
    ASSERT_FAIL(make_fails(ctx, &s, &err), err, ERR_EXHAUSTED);
    ASSERT_EQ(err.reason, REASON_DISK_FULL);
    ASSERT_EQ(count(&s), 0);
    ASSERT_EQ(names(&s), 1);
}

TEST_FIBER(there_is_one_builder_at_a_time_in_a_store)
{
    STORE(s);
    struct ctx limited = ctx_with_timeout(ctx, 50 * NS_PER_MS);
    AUTO(layers_info_release) struct layers_info info = { 0 };
    struct err err = ERR_INIT;
    AUTO_FD int other = -1;
    bool made;

    ASSERT_EQ(dir_make(s.dir, 0700), 0);
    ASSERT_OK(layers_lock(ctx, s.dir, &other, &err), err);
    ASSERT_FAIL(layers_build(&limited, &s.o, s.layer, &info, &made, &err), err, ERR_DEADLINE);
    ASSERT_EQ(names(&s), 0); /* it was not its fault */
    ASSERT(layers_wanted(&s.o, s.layer, loop_wall(ctx->loop)));
    fd_close(TAKE_FD(other));
    ASSERT(make(ctx, &s, s.layer));
    ASSERT_EQ(names(&s), 1);
}

/* Together they have fewer bytes than each, in 64 bits. */
TEST_FIBER(sparse_files_of_exabytes_are_refused_before_anything_is_written)
{
    STORE_IN(s, "/dev/shm");
    struct err err = ERR_INIT;

    for (int n = 1; n <= 2; n++) {
        for (int i = 0; i < n; i++) {
            AUTO_FREE char *name = str_format(LAYER "/sparse%d", i);

            tempdir_put(&s.p, name, "");
            ASSERT_EQ(truncate(tempdir_path(&s.p, name), INT64_MAX), 0);
        }
        ASSERT_EQ(make_fails(ctx, &s, &err), -1);
        ASSERT(err.code == (n == 1 ? ERR_EXHAUSTED : ERR_UNIMPLEMENTED));
        ASSERT_MSG_HAS(err.msg, n == 1 ? "layer_images_max_mib" : "too large");
    }
}

/* --- changes meanwhile --- */

static const struct store *changing;

static void change_a_file(enum layers_step step)
{
    AUTO_FREE char *path = str_format("%s/etc/name", changing->layer);

    if (step == LAYERS_SCANNED)
        ASSERT_EQ(file_write(path, "changed\n", 8, 0644), 0);
}

static enum layers_step when_removed;

static void remove_it(enum layers_step step)
{
    if (step == when_removed)
        ASSERT_EQ(dir_remove(changing->layer), 0);
}

TEST_FIBER(a_directory_that_changes_or_vanishes_meanwhile_gets_no_image)
{
    STORE(s);
    struct err err = ERR_INIT;

    changing = &s;
    s.o.on_step = change_a_file;
    ASSERT_FAIL(make_fails(ctx, &s, &err), err, ERR_STATE);
    ASSERT_EQ(count(&s), 0);
    s.o.on_step = NULL;
    ASSERT(make(ctx, &s, s.layer));

    for (when_removed = LAYERS_SCANNED; when_removed <= LAYERS_PACKED; when_removed++) {
        tempdir_put(&s.p, LAYER "/more", "");
        s.o.on_step = remove_it;
        ASSERT_FAIL(make_fails(ctx, &s, &err), err, ERR_NOT_FOUND);
        err_clear(&err);
    }
    ASSERT_OK(layers_prune(&s.o, false, NULL, NULL, &err), err);
    ASSERT_EQ(count(&s), 0);
}

/* --- kill -9 --- */

static enum layers_step last_step;

static void die(enum layers_step step)
{
    if (step == last_step)
        (void)kill(getpid(), SIGKILL);
}

/* A process that builds; exits with MADE, KEPT or FAILED + the error's code. */
enum { MADE, KEPT, FAILED };

struct builder {
    const struct store *s;
    struct loop *loop;
};

static void builder_main(void *arg)
{
    struct builder *b = arg;
    struct ctx root = ctx_root(b->loop), ctx = ctx_with_timeout(&root, 60 * NS_PER_S);
    AUTO(layers_info_release) struct layers_info info = { 0 };
    struct err err = ERR_INIT;
    bool made = false;

    int r = layers_build(&ctx, &b->s->o, b->s->layer, &info, &made, &err);
    _exit(r < 0 ? FAILED + (int)err.code : made ? MADE : KEPT);
}

/* setup, which may be NULL, runs in the process first. */
static pid_t builder_start(const struct store *s, void (*setup)(const struct store *s))
{
    pid_t pid = fork();

    ASSERT(pid >= 0);
    if (pid > 0)
        return pid;
    if (setup)
        setup(s);
    struct builder b = { s, loop_new(NULL) };
    fiber_go(b.loop, builder_main, &b, "builder");
    (void)loop_run(b.loop);
    _exit(99);
}

static int builder_wait(pid_t pid)
{
    int status = 0;

    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    return status;
}

/* Everything below, and what was killed while it wrote a header. */
static size_t count_all(const char *dir)
{
    AUTO(closedir) DIR *d = opendir(dir);
    size_t n = 0;

    for (struct dirent *e; d && (e = readdir(d));) {
        AUTO_FREE char *path = str_format("%s/%s", dir, e->d_name),
                       *left = str_format("%s/header.abcdef", path);

        if (str_eq(e->d_name, ".") || str_eq(e->d_name, ".."))
            continue;
        if (str_starts(e->d_name, LAYERS_NEW))
            ASSERT_EQ(file_write(left, "", 0, 0600), 0);
        n += 1 + count_all(path);
    }
    return n;
}

TEST(a_builder_that_is_killed_at_any_step_leaves_nothing_that_counts)
{
    for (int step = 0; step < LAYERS_STEP_COUNT; step++) {
        STORE(s);
        struct err err = ERR_INIT;

        s.o.on_step = die;
        last_step = (enum layers_step)step;
        int status = builder_wait(builder_start(&s, NULL));
        ASSERT(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        s.o.on_step = NULL;
        if (step == LAYERS_RENAMED)
            ASSERT_OK(look_for(&s, s.layer, &err), err);
        else
            ASSERT_FAIL(look_for(&s, s.layer, &err), err, ERR_NOT_FOUND);
        /* The image, or what the builder was at. */
        ASSERT_EQ(names(&s), step == LAYERS_LOCKED ? 0 : 1);
        ASSERT(layers_wanted(&s.o, s.layer, 0));
        err_clear(&err);
        if (step == LAYERS_SEALED) { /* the next builder begins anew */
            size_t all = count_all(s.dir);

            ASSERT_EQ(builder_wait(builder_start(&s, NULL)), MADE << 8);
            ASSERT(all > 4);
            ASSERT_EQ(count_all(s.dir), 3); /* the image's directory, image, header */
            ASSERT_OK(layers_prune(&s.o, false, NULL, NULL, &err), err);
            ASSERT_EQ(names(&s), 1);
            continue;
        }
        ASSERT_OK(layers_prune(&s.o, false, NULL, NULL, &err), err);
        ASSERT_EQ(names(&s), step == LAYERS_RENAMED ? 1 : 0);
    }
}

/* A mkfs.erofs of our own (tests/fixture/fake_mkfs.c), which does what mode says. */
static void put_program(struct store *s, const char *mode)
{
    const char *program = getenv("FAKE_MKFS");
    AUTO_FREE char *text = NULL;
    size_t len;

    if (!program)
        tap_skip("FAKE_MKFS does not name it");
    ASSERT_EQ(file_read_all(program, 8 << 20, &text, &len), 0);
    tempdir_put(&s->p, "bin/" LAYERS_PROGRAM, "");
    ASSERT_EQ(file_write(tempdir_path(&s->p, "bin/" LAYERS_PROGRAM), text, len, 0755), 0);
    ASSERT_EQ(chmod(tempdir_path(&s->p, "bin/" LAYERS_PROGRAM), 0755), 0);
    tempdir_put(&s->p, LAYER "/mode", mode);
}

static void use_it(const struct store *s)
{
    AUTO_FREE char *path = str_format("%s/bin:/usr/bin:/bin", s->p.dir);

    ASSERT_EQ(setenv("PATH", path, 1), 0);
}

/* A pidfd of the child that the process has, as soon as it runs mkfs.erofs on a layer. */
static int await_endless(pid_t builder)
{
    int fd = -1;

    for (int i = 0; i < 3000 && fd < 0; i++) {
        AUTO_FREE char *child = file_text(64, "/proc/%d/task/%d/children", builder, builder);
        long pid = child ? atol(child) : 0;
        AUTO_FREE char *args = pid > 0 ? file_text(256, "/proc/%ld/cmdline", pid) : NULL;

        if (args && str_eq(args, LAYERS_PROGRAM) && str_eq(args + strlen(args) + 1, "--quiet"))
            fd = (int)syscall(SYS_pidfd_open, pid, 0);
        else
            ASSERT_EQ(poll(NULL, 0, 10), 0);
    }
    ASSERT(fd >= 0);
    return fd;
}

static bool has_ended(int pidfd)
{
    return poll(&(struct pollfd){ .fd = pidfd, .events = POLLIN }, 1, 30000) == 1;
}

TEST(mkfs_erofs_dies_with_its_builder)
{
    STORE(s);
    struct err err = ERR_INIT;

    put_program(&s, "endless");
    pid_t pid = builder_start(&s, use_it);
    AUTO_FD int program = await_endless(pid);
    ASSERT_EQ(kill(pid, SIGKILL), 0);
    ASSERT(WIFSIGNALED(builder_wait(pid)));
    ASSERT(has_ended(program));
    ASSERT_EQ(names(&s), 1);
    ASSERT_OK(layers_prune(&s.o, false, NULL, NULL, &err), err);
    ASSERT_EQ(names(&s), 0);
}

TEST_FIBER(a_mkfs_erofs_that_never_ends_is_killed_at_the_deadline_and_remembered)
{
    STORE(s);
    struct ctx limited = ctx_with_timeout(ctx, 2 * NS_PER_S);
    AUTO(layers_info_release) struct layers_info info = { 0 };
    AUTO_FREE char *path = str_dup(getenv("PATH"));
    struct err err = ERR_INIT;
    bool made;

    put_program(&s, "endless");
    use_it(&s);
    int r = layers_build(&limited, &s.o, s.layer, &info, &made, &err);
    bool wanted = layers_wanted(&s.o, s.layer, loop_wall(ctx->loop));
    ASSERT_EQ(setenv("PATH", path, 1), 0);
    ASSERT_FAIL(r, err, ERR_DEADLINE);
    ASSERT(!wanted);
    AUTO_FREE char *child = file_text(64, "/proc/self/task/%d/children", getpid());
    ASSERT(!child || child[0] == '\0');
    ASSERT_EQ(names(&s), 1); /* the failure */
}

TEST_FIBER(mkfs_erofs_reads_the_layer_and_reaches_nothing_else)
{
    STORE_IN(s, "/dev/shm"); /* which has trusted attributes everywhere */
    AUTO_FREE char *path = str_dup(getenv("PATH")), *secret = str_format("%s/secret", s.layer);
    struct err err = ERR_INIT;

    put_program(&s, "probe");
    tempdir_put(&s.p, LAYER "/secret", "x");
    ASSERT_EQ(setxattr(secret, "trusted.mark", "1", 1, 0), 0);
    ASSERT_EQ(chown(secret, 1234, 1234), 0);
    ASSERT_EQ(chmod(secret, 0), 0);
    use_it(&s);
    int r = make_fails(ctx, &s, &err);
    ASSERT_EQ(setenv("PATH", path, 1), 0);
    ASSERT_FAIL(r, err, ERR_UNAVAILABLE);
    ASSERT_HAS(err.msg, "<E> it may: read a file that is another user's; read trusted attributes; "
                        "start threads; and no more");
}

TEST(of_builders_at_the_same_time_one_makes_the_image_and_the_others_wait)
{
    STORE(s);
    struct err err = ERR_INIT;
    pid_t pids[6];
    int made = 0;

    for (size_t i = 0; i < ARRAY_LEN(pids); i++)
        pids[i] = builder_start(&s, NULL);
    for (size_t i = 0; i < ARRAY_LEN(pids); i++) {
        int status = builder_wait(pids[i]);

        ASSERT(WIFEXITED(status));
        ASSERT(WEXITSTATUS(status) == MADE || WEXITSTATUS(status) == KEPT);
        made += WEXITSTATUS(status) == MADE;
    }
    ASSERT_EQ(made, 1);
    ASSERT_OK(look_for(&s, s.layer, &err), err);
    ASSERT_EQ(names(&s), 1);
}

static size_t space; /* bytes */

static void mount_little_space(const struct store *s)
{
    AUTO_FREE char *options = str_format("size=%zu,mode=0700", space);

    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("tmpfs", s->dir, "tmpfs", 0, options) < 0)
        _exit(98);
}

/* Image, hash tree and header need more than was estimated, and the file system is full. */
TEST_FIBER(a_file_system_that_gets_full_meanwhile_ends_the_build)
{
    STORE(s);
    AUTO_FREE char *text = mem_zalloc(2201);
    struct stat st;

    memset(text, 'y', 2200);
    for (int i = 0; i < 400; i++) {
        AUTO_FREE char *name = str_format(LAYER "/f%d", i);

        tempdir_put(&s.p, name, text);
    }
    ASSERT(make(ctx, &s, s.layer));
    AUTO_FREE char *image = path_in(&s, "image");
    ASSERT_EQ(stat(image, &st), 0);
    size_t size = (size_t)st.st_size;
    const size_t spaces[] = { size - (64 << 10), size, size + (8 << 10) };
    for (size_t i = 0; i < ARRAY_LEN(spaces); i++) {
        space = spaces[i];
        s.o.verity = i == 2;
        int status = builder_wait(builder_start(&s, mount_little_space));
        ASSERT(WIFEXITED(status));
        ASSERT_EQ(WEXITSTATUS(status), FAILED + ERR_EXHAUSTED);
    }
    /* There would be space, but it is to be left free. */
    s.o.verity = false;
    s.o.free_mib = 1;
    for (int enough = 0; enough < 2; enough++) {
        space = size + (enough ? 3 << 19 : (1 << 20) - (64 << 10));
        int status = builder_wait(builder_start(&s, mount_little_space));
        ASSERT(WIFEXITED(status));
        ASSERT_EQ(WEXITSTATUS(status), enough ? MADE : FAILED + ERR_EXHAUSTED);
    }
}

/* As mkfs.erofs 1.5 does if there is space again at the end. */
TEST_FIBER(an_image_in_spite_of_an_error_message_is_discarded)
{
    STORE(s);
    AUTO_FREE char *path = str_dup(getenv("PATH"));
    struct err err = ERR_INIT;

    put_program(&s, "complain");
    use_it(&s);
    int r = make_fails(ctx, &s, &err);
    ASSERT_EQ(setenv("PATH", path, 1), 0);
    ASSERT_FAIL(r, err, ERR_EXHAUSTED);
    ASSERT_EQ(count(&s), 0);
}

/* --- what an image cannot hold --- */

TEST_FIBER(a_file_with_its_data_in_another_layer_and_a_large_attribute_are_refused)
{
    STORE_IN(s, "/dev/shm");
    struct err err = ERR_INIT;
    AUTO_FREE char *file = str_format("%s/hello", s.layer), *value = mem_zalloc(65536);

    ASSERT_EQ(setxattr(file, "trusted.overlay.metacopy", "", 0, 0), 0);
    ASSERT_FAIL(make_fails(ctx, &s, &err), err, ERR_UNIMPLEMENTED);
    ASSERT_MSG_HAS(err.msg, "metacopy");
    ASSERT_EQ(removexattr(file, "trusted.overlay.metacopy"), 0);
    ASSERT_EQ(setxattr(file, "trusted.big", value, 65536, 0), 0);
    ASSERT_FAIL(make_fails(ctx, &s, &err), err, ERR_UNIMPLEMENTED);
    ASSERT_HAS(err.msg, "65535");
    ASSERT_EQ(setxattr(file, "trusted.big", value, LAYERS_XATTR_MAX, 0), 0);
    ASSERT(make(ctx, &s, s.layer));
}

TEST_FIBER(a_layer_of_more_than_a_quarter_of_a_million_files_is_refused)
{
    STORE_IN(s, "/dev/shm");
    struct err err = ERR_INIT;
    AUTO_FD int dir = open(s.layer, O_PATH | O_CLOEXEC);

    for (int i = 0; i < LAYERS_ENTRIES_MAX; i++) {
        char name[16];

        snprintf(name, sizeof(name), "n%d", i);
        ASSERT_EQ(linkat(dir, "hello", dir, name, 0), 0);
    }
    ASSERT_FAIL(make_fails(ctx, &s, &err), err, ERR_UNIMPLEMENTED);
    ASSERT_HAS(err.msg, "250000");
    ASSERT_EQ(names(&s), 1);
    ASSERT(!layers_wanted(&s.o, s.layer, loop_wall(ctx->loop)));
}

/* mkfs.erofs 1.5 fails, later ones do not. */
TEST_FIBER(a_name_of_255_bytes_is_in_the_image_or_there_is_none)
{
    STORE(s);
    struct err err = ERR_INIT;
    char name[256];

    memset(name, 'n', 255);
    name[255] = '\0';
    AUTO_FREE char *path = str_format(LAYER "/%s", name);
    tempdir_put(&s.p, path, "");
    if (make_fails(ctx, &s, &err) == 0) {
        ASSERT_OK(look_for(&s, s.layer, &err), err);
    } else {
        ASSERT_EQ(err.code, ERR_UNAVAILABLE);
        ASSERT_EQ(count(&s), 0);
        ASSERT(!layers_wanted(&s.o, s.layer, loop_wall(ctx->loop)));
    }
    ASSERT_EQ(names(&s), 1);
}

/* As those of snapshotters that pull lazily are. */
static void mount_on_layer(const struct store *s)
{
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("tmpfs", s->layer, "tmpfs", 0, NULL) < 0)
        _exit(98);
}

TEST_FIBER(a_directory_that_is_a_mount_of_its_own_has_no_image)
{
    STORE(s);

    int status = builder_wait(builder_start(&s, mount_on_layer));
    ASSERT(WIFEXITED(status));
    ASSERT_EQ(WEXITSTATUS(status), FAILED + ERR_UNIMPLEMENTED);
    ASSERT(make(ctx, &s, s.layer));
}
