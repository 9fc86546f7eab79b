#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"
#include "fixture/rootfs_fixture.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include "host/files/rootfs.h"
#include "host/files/tree.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

static void need_root(void)
{
    if (geteuid() != 0)
        tap_skip("mounts need root");
}

/* Of directories. */
static int open_dirs(struct ctx *ctx, const struct rootfs_mount *m, size_t n, const char *path,
                     bool writable, int *ret_tree, struct err *err)
{
    struct rootfs fs;

    if (rootfs_open(ctx, m, n, path, writable, NULL, &fs, err) < 0)
        return -1;
    ASSERT_EQ(fs.n_disks, 0);
    *ret_tree = fs.tree;
    return 0;
}

/* A layer directory with a file of its own name in it. */
static void layer(struct tempdir *p, const char *name)
{
    AUTO_FREE char *file = str_format("%s/in-%s", name, name);

    ASSERT_EQ(mkdir(tempdir_path(p, name), 0755), 0);
    ASSERT_EQ(file_write(tempdir_path(p, file), name, strlen(name), 0644), 0);
}

struct overlay {
    char *lower, *upper, *work;
    const char *options[5];
    struct rootfs_mount m;
};

static void overlay_init(struct overlay *o, struct tempdir *p, const char *lower, bool upper)
{
    size_t n = 0;

    *o = (struct overlay){ .lower = str_format("lowerdir=%s", lower),
                           .upper = str_format("upperdir=%s/up", p->dir),
                           .work = str_format("workdir=%s/work", p->dir) };
    o->options[n++] = "index=off";
    if (upper) {
        o->options[n++] = o->work;
        o->options[n++] = o->upper;
    }
    o->options[n++] = o->lower;
    o->m = (struct rootfs_mount){ "overlay", "overlay", o->options };
}

static void overlay_release_auto(struct overlay *o)
{
    free(o->lower);
    free(o->upper);
    free(o->work);
}

static bool is_there(int tree, const char *name)
{
    return faccessat(tree, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

TEST_FIBER(a_deleted_file_stays_deleted_and_an_opaque_directory_hides)
{
    need_root();
    TEMPDIR(p);
    struct err err = ERR_INIT;
    int tree = -1;

    layer(&p, "low");
    layer(&p, "up");
    ASSERT_EQ(mkdir(tempdir_path(&p, "work"), 0755), 0);
    ASSERT_EQ(mkdir(tempdir_path(&p, "low/d"), 0755), 0);
    ASSERT_EQ(mkdir(tempdir_path(&p, "up/d"), 0755), 0);
    ASSERT_EQ(file_write(tempdir_path(&p, "low/d/hidden"), "", 0, 0644), 0);
    ASSERT_EQ(file_write(tempdir_path(&p, "up/d/new"), "", 0, 0644), 0);
    ASSERT_EQ(file_write(tempdir_path(&p, "low/gone"), "", 0, 0644), 0);
    ASSERT_EQ(mknod(tempdir_path(&p, "up/gone"), S_IFCHR, makedev(0, 0)), 0);
    ASSERT_EQ(setxattr(tempdir_path(&p, "up/d"), "trusted.overlay.opaque", "y", 1, 0), 0);
    AUTO_FREE char *low = str_format("%s/low", p.dir);
    AUTO(overlay_release) struct overlay o;
    overlay_init(&o, &p, low, true);

    ASSERT_OK(open_dirs(ctx, &o.m, 1, NULL, false, &tree, &err), err);
    AUTO_FD int fd = tree;
    ASSERT(is_there(fd, "in-low") && is_there(fd, "in-up") && is_there(fd, "d/new"));
    ASSERT(!is_there(fd, "gone") && !is_there(fd, "d/hidden"));
    ASSERT_EQ(mkdirat(fd, "x", 0755), -1);
    ASSERT_EQ(errno, EROFS);
    ASSERT_EQ(unlinkat(fd, "in-up", 0), -1);
    ASSERT_EQ(errno, EROFS);
    ASSERT_EQ(openat(fd, "in-low", O_WRONLY | O_CLOEXEC), -1);
    ASSERT_EQ(errno, EROFS);
    ASSERT_EQ(rmdir(tempdir_path(&p, "work")), 0); /* nothing was ever made in it */
}

TEST_FIBER(a_writable_one_writes_to_its_upper_directory)
{
    need_root();
    TEMPDIR(p);
    struct err err = ERR_INIT;
    int tree = -1;

    layer(&p, "low");
    layer(&p, "up");
    ASSERT_EQ(mkdir(tempdir_path(&p, "work"), 0755), 0);
    AUTO_FREE char *low = str_format("%s/low", p.dir);
    AUTO(overlay_release) struct overlay o;
    overlay_init(&o, &p, low, true);

    ASSERT_OK(open_dirs(ctx, &o.m, 1, NULL, true, &tree, &err), err);
    AUTO_FD int fd = tree;
    ASSERT_EQ(mkdirat(fd, "made", 0755), 0);
    ASSERT_EQ(unlinkat(fd, "in-low", 0), 0);
    fd_close(TAKE_FD(fd));
    ASSERT_EQ(access(tempdir_path(&p, "up/made"), F_OK), 0);
    ASSERT_EQ(access(tempdir_path(&p, "low/in-low"), F_OK), 0);
    struct stat st;
    ASSERT_EQ(lstat(tempdir_path(&p, "up/in-low"), &st), 0);
    ASSERT(S_ISCHR(st.st_mode)); /* a whiteout */
}

TEST_FIBER(what_can_be_kept_is_written_to_and_the_rest_is_read_only)
{
    static const char *const rw[] = { "rw", NULL }, *const ro[] = { "ro", NULL };
    need_root();
    TEMPDIR(p);
    struct err err = ERR_INIT;

    layer(&p, "low");
    layer(&p, "up");
    ASSERT_EQ(mkdir(tempdir_path(&p, "work"), 0755), 0);
    AUTO_FREE char *low = str_format("%s/low", p.dir);
    AUTO(overlay_release) struct overlay writable, view;
    overlay_init(&writable, &p, low, true);
    overlay_init(&view, &p, low, false);
    const struct {
        struct rootfs_mount m;
        unsigned how;
        bool kept;
    } cases[] = {
        { writable.m, ROOTFS_KEPT, true },
        { writable.m, 0, false },
        { view.m, ROOTFS_KEPT, false },
        { { "bind", low, rw }, ROOTFS_KEPT, true },
        { { "bind", low, ro }, ROOTFS_KEPT, false },
        { { "bind", low, rw }, 0, false },
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct rootfs fs;

        ASSERT_OK(rootfs_open(ctx, &cases[i].m, 1, NULL, cases[i].how, NULL, &fs, &err), err);
        ASSERT_EQ(fs.tree_writable, cases[i].kept);
        ASSERT_EQ(mkdirat(fs.tree, "made", 0755), cases[i].kept ? 0 : -1);
        if (cases[i].kept)
            ASSERT_EQ(unlinkat(fs.tree, "made", AT_REMOVEDIR), 0);
        else
            ASSERT_EQ(errno, EROFS);
        rootfs_release(&fs);
    }
}

TEST_FIBER(two_hundred_layers_with_long_names_are_merged)
{
    need_root();
    TEMPDIR_IN_MEMORY(p);
    AUTO(sbuf_release) struct sbuf lower = { 0 };
    char deep[181];
    struct err err = ERR_INIT;
    int tree = -1;

    memset(deep, 'x', sizeof(deep) - 1);
    deep[sizeof(deep) - 1] = '\0';
    for (int i = 0; i < 200; i++) {
        AUTO_FREE char *dir = str_format("%s/%s/%d", p.dir, deep, i);
        AUTO_FREE char *file = str_format("%s/in-%d", dir, i);
        AUTO_FREE char *same = str_format("%s/same", dir);
        AUTO_FREE char *text = str_format("%d", i);

        ASSERT_EQ(dir_make(dir, 0755), 0);
        ASSERT_EQ(file_write(file, "", 0, 0644), 0);
        ASSERT_EQ(file_write(same, text, strlen(text), 0644), 0);
        sbuf_addf(&lower, "%s%s", i ? ":" : "", dir);
    }
    ASSERT(lower.len > 40000); /* ten pages */
    AUTO(overlay_release) struct overlay o;
    overlay_init(&o, &p, lower.data, false);
    ASSERT_OK(open_dirs(ctx, &o.m, 1, NULL, false, &tree, &err), err);
    AUTO_FD int fd = tree;
    for (int i = 0; i < 200; i++) {
        AUTO_FREE char *file = str_format("in-%d", i);
        ASSERT(is_there(fd, file));
    }
    AUTO_FD int same = openat(fd, "same", O_RDONLY | O_CLOEXEC);
    char text[8] = "";
    ASSERT_EQ(read(same, text, sizeof(text) - 1), 1);
    ASSERT_STR(text, "0"); /* the first named is on top */
}

TEST_FIBER(odd_names_and_a_single_layer_work)
{
    need_root();
    TEMPDIR(p);
    struct err err = ERR_INIT;
    int tree = -1;

    layer(&p, "a,b c");
    layer(&p, "with:colon");
    AUTO_FREE char *two = str_format("%s/a,b c:%s/with\\:colon", p.dir, p.dir);
    AUTO(overlay_release) struct overlay o;
    overlay_init(&o, &p, two, false);
    ASSERT_OK(open_dirs(ctx, &o.m, 1, NULL, false, &tree, &err), err);
    ASSERT(is_there(tree, "in-a,b c") && is_there(tree, "in-with:colon"));
    fd_close(tree);

    AUTO_FREE char *one = str_format("%s/a,b c", p.dir);
    AUTO(overlay_release) struct overlay single;
    overlay_init(&single, &p, one, false);
    ASSERT_OK(open_dirs(ctx, &single.m, 1, NULL, true, &tree, &err), err);
    ASSERT(is_there(tree, "in-a,b c"));
    /* Without an upper directory nothing is writable, whatever is wanted. */
    ASSERT_EQ(mkdirat(tree, "x", 0755), -1);
    fd_close(tree);
}

TEST_FIBER(a_missing_layer_is_named)
{
    need_root();
    TEMPDIR(p);
    struct err err = ERR_INIT;
    int tree = -1;

    layer(&p, "low");
    AUTO_FREE char *two = str_format("%s/low:%s/not-here", p.dir, p.dir);
    AUTO(overlay_release) struct overlay o;
    overlay_init(&o, &p, two, false);
    ASSERT_FAIL(open_dirs(ctx, &o.m, 1, NULL, false, &tree, &err), err, ERR_NOT_FOUND);
    ASSERT_HAS(err.msg, "/not-here");
    ASSERT_EQ(err.reason, REASON_ROOTFS_FAILED);
    ASSERT_FAIL(open_dirs(ctx, NULL, 0, "/no/such/root", false, &tree, &err), err, ERR_NOT_FOUND);
    ASSERT_HAS(err.msg, "/no/such/root");
    ASSERT_EQ(tree, -1);
}

TEST_FIBER(binds_and_the_root_path_are_taken_as_they_are)
{
    static const char *const rw[] = { "rbind", "rw", NULL }, *const ro[] = { "rbind", "ro", NULL };
    need_root();
    TEMPDIR(p);
    struct err err = ERR_INIT;
    int tree = -1;

    layer(&p, "root");
    AUTO_FREE char *root = str_format("%s/root", p.dir);
    const struct rootfs_mount bind = { "bind", root, rw }, fixed = { "bind", root, ro };

    ASSERT_OK(open_dirs(ctx, &bind, 1, NULL, false, &tree, &err), err);
    ASSERT(is_there(tree, "in-root"));
    ASSERT_EQ(mkdirat(tree, "x", 0755), -1);
    fd_close(tree);
    ASSERT_OK(open_dirs(ctx, &fixed, 1, NULL, true, &tree, &err), err);
    ASSERT_EQ(mkdirat(tree, "x", 0755), -1);
    fd_close(tree);
    ASSERT_OK(open_dirs(ctx, &bind, 1, NULL, true, &tree, &err), err);
    ASSERT_EQ(mkdirat(tree, "x", 0755), 0);
    fd_close(tree);
    ASSERT_OK(open_dirs(ctx, NULL, 0, root, false, &tree, &err), err);
    ASSERT(is_there(tree, "x"));
    fd_close(tree);
}

TEST_FIBER(lower_directories_are_id_mapped_and_the_upper_one_is_not)
{
    need_root();
    TEMPDIR(p);
    struct rootfs fs = { .tree = -1 };
    struct err err = ERR_INIT;
    struct stat st;

    layer(&p, "one");
    layer(&p, "two");
    layer(&p, "up");
    ASSERT_EQ(mkdir(tempdir_path(&p, "work"), 0755), 0);
    AUTO_FREE char *low = str_format("lowerdir=%s/one:%s/two", p.dir, p.dir);
    AUTO_FREE char *up = str_format("upperdir=%s/up", p.dir);
    AUTO_FREE char *work = str_format("workdir=%s/work", p.dir), *dir = str_format("%s/one", p.dir);
    const char *const options[] = { work, up, low, "uidmap=0:100000:65536", "gidmap=0:200000:9",
                                    NULL };
    const struct rootfs_mount overlay = { "overlay", "overlay", options },
                              bind = { "bind", dir, options + 3 };

    ASSERT_OK(rootfs_open(ctx, &overlay, 1, NULL, ROOTFS_WRITABLE, NULL, &fs, &err), err);
    ASSERT_EQ(fstatat(fs.tree, "in-one", &st, 0), 0);
    ASSERT_EQ(st.st_uid, 100000);
    ASSERT_EQ(st.st_gid, 200000);
    ASSERT_EQ(fstatat(fs.tree, "in-two", &st, 0), 0);
    ASSERT_EQ(st.st_uid, 100000);
    ASSERT_EQ(fstatat(fs.tree, "in-up", &st, 0), 0);
    ASSERT_EQ(st.st_uid, 0);
    /* A copy goes up with the ids of outside; below nothing changes. */
    ASSERT_EQ(fchmodat(fs.tree, "in-one", 0600, 0), 0);
    ASSERT_EQ(stat(tempdir_path(&p, "up/in-one"), &st), 0);
    ASSERT_EQ(st.st_uid, 100000);
    ASSERT_EQ(stat(tempdir_path(&p, "one/in-one"), &st), 0);
    ASSERT_EQ(st.st_uid, 0);
    ASSERT(fs.mapped);
    ASSERT_STR(fs.ids.gid, "0:200000:9");
    rootfs_release(&fs);
    ASSERT_OK(rootfs_open(ctx, &bind, 1, NULL, 0, NULL, &fs, &err), err);
    ASSERT(fs.tree >= 0 && !fs.mapped);
    ASSERT_OK(tree_map(ctx, fs.tree, &fs.ids, "the root", &err), err);
    ASSERT_EQ(fstatat(fs.tree, "in-one", &st, 0), 0);
    ASSERT_EQ(st.st_uid, 100000);
    rootfs_release(&fs);
}

TEST_FIBER(what_is_not_supported_says_so)
{
    static const char *const mapped[] = { "lowerdir=/a:/b", "uidmap=0:1000:1", NULL };
    static const char *const unknown[] = { "lowerdir=/a:/b", "frobnicate=on", NULL };
    static const char *const none[] = { "index=off", NULL };
    static const char *const data_only[] = { "lowerdir=/a::/b", NULL };
    static const char *const no_work[] = { "lowerdir=/a", "upperdir=/b", NULL };
    static const struct {
        struct rootfs_mount m;
        enum err_code code;
        const char *part;
    } cases[] = {
        { { "btrfs", "/dev/loop0", none }, ERR_INVALID, "\"btrfs\"" },
        { { "ext4", "/layer", none }, ERR_INVALID, "index=off" },
        { { "ext4", "", none }, ERR_INVALID, "source" },
        { { "overlay", "overlay", mapped }, ERR_INVALID, "uidmap= and gidmap= need each other" },
        { { "overlay", "overlay", unknown }, ERR_INVALID, "frobnicate" },
        { { "overlay", "overlay", none }, ERR_INVALID, "lowerdir" },
        { { "overlay", "overlay", data_only }, ERR_UNIMPLEMENTED, "data-only" },
        { { "overlay", "overlay", no_work }, ERR_INVALID, "workdir" },
        { { "bind", "", none }, ERR_INVALID, "source" },
    };
    struct err err = ERR_INIT;
    int tree = -1;

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        ASSERT_FAIL(open_dirs(ctx, &cases[i].m, 1, NULL, true, &tree, &err), err, cases[i].code);
        ASSERT_MSG_HAS(err.msg, cases[i].part);
    }
    const struct rootfs_mount two[] = { { "erofs", "/a", none }, { "overlay", "o", none } };
    ASSERT_FAIL(open_dirs(ctx, two, 2, NULL, false, &tree, &err), err, ERR_INVALID);
    ASSERT_HAS(err.msg, "index=off");
    ASSERT_FAIL(open_dirs(ctx, NULL, 0, NULL, false, &tree, &err), err, ERR_INVALID);
}

/* --- images --- */

static const char *const plain[] = { "loop", "rw", NULL };
static const char *const fixed_image[] = { "loop", "ro", NULL };

TEST_FIBER(an_image_is_a_disk_and_written_to_unless_it_says_otherwise)
{
    static const char *const none[] = { NULL };
    TEMPDIR(p);
    struct err err = ERR_INIT;

    fixture_image(&p, "img");
    AUTO_FREE char *path = str_format("%s/img", p.dir);
    const struct {
        struct rootfs_mount m;
        const char *filesystem;
        bool writable;
    } cases[] = {
        { { "ext4", path, plain }, "ext4", true },
        { { "ext2", path, none }, "ext4", true },
        { { "xfs", path, plain }, "xfs", true },
        { { "ext4", path, fixed_image }, "ext4", false },
        { { "erofs", path, none }, "erofs", false },
        { { "squashfs", path, plain }, "squashfs", false },
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct rootfs fs;
        ASSERT_OK(rootfs_open(ctx, &cases[i].m, 1, NULL, i % 2, NULL, &fs, &err), err);
        ASSERT_EQ(fs.tree, -1);
        ASSERT_EQ(fs.n_disks, 1);
        ASSERT_STR(fs.disks[0].filesystem, cases[i].filesystem);
        ASSERT_STR(fs.disks[0].path, path);
        ASSERT_EQ(fs.disks[0].writable, cases[i].writable);
        ASSERT_EQ(fixture_mode_of(&fs, 0), cases[i].writable ? O_RDWR : O_RDONLY);
        rootfs_release(&fs);
    }
}

/* A process that can replace a snapshot's file can put any kind of file in its place. */
TEST_FIBER(a_layer_that_is_not_a_file_is_refused_and_never_opened)
{
    need_root();
    TEMPDIR(p);
    struct err err = ERR_INIT;
    struct rootfs fs;

    fixture_image(&p, "img");
    ASSERT_EQ(mkdir(tempdir_path(&p, "dir"), 0755), 0);
    ASSERT_EQ(mkfifo(tempdir_path(&p, "fifo"), 0600), 0);
    ASSERT_EQ(symlink("img", tempdir_path(&p, "link")), 0);
    ASSERT_EQ(symlink("/dev/loop0", tempdir_path(&p, "out")), 0);
    ASSERT_EQ(mknod(tempdir_path(&p, "block"), S_IFBLK | 0600, makedev(7, 0)), 0);
    ASSERT_EQ(mknod(tempdir_path(&p, "char"), S_IFCHR | 0600, makedev(1, 3)), 0);
    static const struct {
        const char *name, *part;
    } cases[] = {
        { "dir", "a directory" },   { "fifo", "a fifo" },       { "link", "symbolic link" },
        { "out", "symbolic link" }, { "block", "is a device" }, { "char", "character device" },
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        AUTO_FREE char *path = str_format("%s/%s", p.dir, cases[i].name);
        const struct rootfs_mount loop = { "ext4", path, plain }, bare = { "ext4", path, NULL };
        ASSERT_FAIL(rootfs_open(ctx, &loop, 1, NULL, false, NULL, &fs, &err), err, ERR_INVALID);
        ASSERT_MSG_HAS(err.msg, cases[i].part);
        ASSERT_HAS(err.msg, path);
        ASSERT_FAIL(rootfs_open(ctx, &bare, 1, NULL, false, NULL, &fs, &err), err, ERR_INVALID);
    }
    /* A way out of /dev, a device that is to be looped, and nothing at all. */
    AUTO_FREE char *around = str_format("/dev/../%s/block", p.dir),
                   *no = str_format("%s/no", p.dir);
    const struct rootfs_mount dots = { "ext4", around, NULL }, missing = { "ext4", no, plain },
                              looped = { "ext4", "/dev/loop0", plain },
                              relative = { "ext4", "img", plain };
    ASSERT_FAIL(rootfs_open(ctx, &dots, 1, NULL, false, NULL, &fs, &err), err, ERR_INVALID);
    ASSERT_FAIL(rootfs_open(ctx, &missing, 1, NULL, false, NULL, &fs, &err), err, ERR_NOT_FOUND);
    ASSERT_HAS(err.msg, no);
    ASSERT_FAIL(rootfs_open(ctx, &relative, 1, NULL, false, NULL, &fs, &err), err, ERR_INVALID);
    if (access("/dev/loop0", F_OK) == 0)
        ASSERT_FAIL(rootfs_open(ctx, &looped, 1, NULL, false, NULL, &fs, &err), err, ERR_INVALID);
}

static void sh(const char *command)
{
    ASSERT_EQ(system(command), 0);
}

/* Two directories on which images are mounted by loop devices, as an older kernel has erofs. */
TEST_FIBER(an_overlay_of_mounted_images_is_their_files)
{
    need_root();
    if (access("/dev/loop-control", F_OK) < 0)
        tap_skip("no loop devices");
    TEMPDIR(p);
    struct err err = ERR_INIT;
    struct rootfs fs = { .tree = -1 };

    ASSERT_EQ(unshare(CLONE_NEWNS), 0); /* keeps these mounts private */
    AUTO_FREE char *make = str_format(
        "PATH=$PATH:/usr/sbin:/sbin; cd %s && mount --make-rprivate / && for i in 1 2; do mkdir $i "
        "&& truncate -s 1M $i.img && "
        "mke2fs -q -F $i.img && mount -n -o loop,ro $i.img $i; done && mkdir up work plain",
        p.dir);
    sh(make);
    AUTO_FREE char *lower = str_format("%s/2:%s/1", p.dir, p.dir);
    AUTO_FREE char *mixed = str_format("%s/2:%s/plain", p.dir, p.dir);
    AUTO_FREE char *inner = str_format("%s/2:%s/1/lost+found", p.dir, p.dir);
    const char *const trees[] = { mixed, inner };
    AUTO(overlay_release) struct overlay o;
    overlay_init(&o, &p, lower, true);

    ASSERT_OK(rootfs_open(ctx, &o.m, 1, NULL, false, NULL, &fs, &err), err);
    ASSERT_EQ(fs.n_disks, 2);
    ASSERT_HAS(fs.disks[0].path, "/2.img"); /* topmost first */
    ASSERT_HAS(fs.disks[1].path, "/1.img");
    ASSERT(!fs.disks[0].writable && fixture_mode_of(&fs, 0) == O_RDONLY);
    ASSERT_STR(fs.disks[0].filesystem, "ext4");
    ASSERT(fs.has_tree);
    rootfs_release(&fs);
    ASSERT_OK(rootfs_open(ctx, &o.m, 1, NULL, ROOTFS_TREE, NULL, &fs, &err), err);
    ASSERT(fs.n_disks == 0 && is_there(fs.tree, "lost+found"));
    rootfs_release(&fs);

    /* Not a disk: the files of the upper directory would be lost. Nor is a part of an image. */
    ASSERT_EQ(file_write(tempdir_path(&p, "up/x"), "", 0, 0644), 0);
    ASSERT_OK(rootfs_open(ctx, &o.m, 1, NULL, false, NULL, &fs, &err), err);
    ASSERT(fs.n_disks == 0 && is_there(fs.tree, "x") && is_there(fs.tree, "lost+found"));
    rootfs_release(&fs);
    for (size_t i = 0; i < ARRAY_LEN(trees); i++) {
        AUTO(overlay_release) struct overlay other;
        overlay_init(&other, &p, trees[i], false);
        ASSERT_OK(rootfs_open(ctx, &other.m, 1, NULL, false, NULL, &fs, &err), err);
        ASSERT_EQ(fs.n_disks, 0);
        rootfs_release(&fs);
    }
    /* Another file in the place of the one that is mounted. */
    AUTO_FREE char *exchange = str_format("cd %s && rm up/x && cp 1.img 3 && mv 3 1.img", p.dir);
    sh(exchange);
    ASSERT_OK(rootfs_open(ctx, &o.m, 1, NULL, false, NULL, &fs, &err), err);
    ASSERT_EQ(fs.n_disks, 0);
    rootfs_release(&fs);
    AUTO_FREE char *end = str_format("umount -n %s/1 %s/2", p.dir, p.dir);
    sh(end);
}
