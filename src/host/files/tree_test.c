#include "base/clock.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/loop.h"
#include "base/str.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include "host/files/tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

static void need_root(void)
{
    if (geteuid() != 0)
        tap_skip("mounts need root");
}

static int open_tree_of(struct ctx *ctx, const char *path, bool read_only, struct tree *ret)
{
    struct err err = ERR_INIT;

    ASSERT_OK(tree_open(ctx, path, &(struct tree_opts){ .read_only = read_only }, ret, &err), err);
    return ret->fd;
}

static void expect_file(int dir, const char *name, const char *want)
{
    AUTO_FD int fd = openat(dir, name, O_RDONLY | O_CLOEXEC);
    char text[64] = "";

    ASSERT(fd >= 0);
    ASSERT(read(fd, text, sizeof(text) - 1) >= 0);
    ASSERT_STR(text, want);
}

TEST_FIBER(a_directory_is_seen_and_writable_if_asked_for)
{
    need_root();
    TEMPDIR(p);
    struct tree t;

    ASSERT_EQ(file_write(tempdir_path(&p, "f"), "one", 3, 0644), 0);
    AUTO_FD int fd = open_tree_of(ctx, p.dir, false, &t);
    ASSERT_STR(t.name, "");
    expect_file(fd, "f", "one");
    ASSERT_EQ(mkdirat(fd, "new", 0700), 0);
    ASSERT_EQ(access(tempdir_path(&p, "new"), F_OK), 0);
}

TEST_FIBER(a_read_only_directory_refuses_every_way_of_writing)
{
    need_root();
    TEMPDIR(p);
    struct tree t;

    ASSERT_EQ(file_write(tempdir_path(&p, "f"), "one", 3, 0644), 0);
    ASSERT_EQ(mkdir(tempdir_path(&p, "d"), 0755), 0);
    AUTO_FD int fd = open_tree_of(ctx, p.dir, true, &t);
    AUTO_FD int file = openat(fd, "f", O_RDONLY | O_CLOEXEC);
    AUTO_FREE char *link = str_format("/proc/self/fd/%d", file);
    const struct timespec times[2] = { { 1, 0 }, { 1, 0 } };

#define READ_ONLY(call)                                                                            \
    do {                                                                                           \
        errno = 0;                                                                                 \
        ASSERT_EQ((call), -1);                                                                     \
        ASSERT_EQ(errno, EROFS);                                                                   \
    } while (0)
    READ_ONLY(openat(fd, "new", O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    READ_ONLY(openat(fd, "f", O_WRONLY | O_CLOEXEC));
    READ_ONLY(openat(fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    READ_ONLY(open(link, O_RDWR | O_CLOEXEC)); /* the descriptor opened anew */
    READ_ONLY(mkdirat(fd, "new", 0700));
    READ_ONLY(mknodat(fd, "new", S_IFIFO | 0600, 0));
    READ_ONLY(symlinkat("x", fd, "new"));
    READ_ONLY(linkat(fd, "f", fd, "new", 0));
    READ_ONLY(renameat(fd, "f", fd, "g"));
    READ_ONLY(unlinkat(fd, "f", 0));
    READ_ONLY(unlinkat(fd, "d", AT_REMOVEDIR));
    READ_ONLY(fchmodat(fd, "f", 0600, 0));
    READ_ONLY(fchownat(fd, "f", 1, 1, 0));
    READ_ONLY(utimensat(fd, "f", times, 0));
    READ_ONLY(fsetxattr(file, "user.x", "1", 1, 0));
    READ_ONLY(fchmod(file, 0600));
    READ_ONLY(truncate(link, 0));
#undef READ_ONLY
    expect_file(fd, "f", "one");
}

static unsigned count_names(int dir, const char *only)
{
    int copy = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fdopendir(copy);
    unsigned n = 0;

    ASSERT(d);
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.')
            continue;
        ASSERT_STR(e->d_name, only);
        n++;
    }
    closedir(d);
    return n;
}

TEST_FIBER(ws18_a_single_file_shows_its_own_name_and_nothing_else)
{
    need_root();
    TEMPDIR(p);
    struct tree a, b, w;

    ASSERT_EQ(file_write(tempdir_path(&p, "hosts"), "one", 3, 0644), 0);
    ASSERT_EQ(file_write(tempdir_path(&p, "resolv.conf"), "two", 3, 0600), 0);
    AUTO_FD int one = open_tree_of(ctx, tempdir_path(&p, "hosts"), true, &a);
    AUTO_FD int two = open_tree_of(ctx, tempdir_path(&p, "resolv.conf"), true, &b);
    AUTO_FD int rw = open_tree_of(ctx, tempdir_path(&p, "hosts"), false, &w);

    ASSERT_STR(a.name, "hosts");
    ASSERT_STR(b.name, "resolv.conf");
    ASSERT_EQ(count_names(one, "hosts"), 1);
    ASSERT_EQ(count_names(two, "resolv.conf"), 1);
    expect_file(one, "hosts", "one");
    expect_file(two, "resolv.conf", "two");
    ASSERT_EQ(openat(one, "hosts", O_WRONLY | O_CLOEXEC), -1);
    ASSERT_EQ(errno, EROFS);
    /* Writable: the file, but no other name. */
    AUTO_FD int file = openat(rw, "hosts", O_WRONLY | O_TRUNC | O_CLOEXEC);
    ASSERT(file >= 0);
    ASSERT_EQ(write(file, "new", 3), 3);
    expect_file(one, "hosts", "new");
    ASSERT_EQ(openat(rw, "other", O_CREAT | O_WRONLY | O_CLOEXEC, 0600), -1);
    ASSERT_EQ(errno, EROFS);
    struct stat st;
    ASSERT_EQ(fstatat(two, "resolv.conf", &st, 0), 0);
    ASSERT_EQ(st.st_mode & 0777, 0600);
}

TEST_FIBER(a_link_is_followed_and_a_missing_path_is_named)
{
    need_root();
    TEMPDIR(p);
    struct tree t;
    struct err err = ERR_INIT;
    const struct tree_opts o = { .read_only = true };

    ASSERT_EQ(mkdir(tempdir_path(&p, "real"), 0755), 0);
    ASSERT_EQ(file_write(tempdir_path(&p, "real/f"), "one", 3, 0644), 0);
    ASSERT_EQ(symlink("real", tempdir_path(&p, "link")), 0);
    AUTO_FD int fd = open_tree_of(ctx, tempdir_path(&p, "link"), true, &t);
    expect_file(fd, "f", "one");
    ASSERT_FAIL(tree_open(ctx, tempdir_path(&p, "nothing"), &o, &t, &err), err, ERR_NOT_FOUND);
    ASSERT_HAS(err.msg, "/nothing");
    ASSERT_FAIL(tree_open(ctx, "relative", &o, &t, &err), err, ERR_INVALID);
}

TEST_FIBER(what_no_other_kernel_can_use_is_refused)
{
    need_root();
    TEMPDIR(p);
    struct tree t;
    struct err err = ERR_INIT;
    const struct tree_opts o = { .read_only = true };

    ASSERT_EQ(mkfifo(tempdir_path(&p, "fifo"), 0600), 0);
    ASSERT_FAIL(tree_open(ctx, tempdir_path(&p, "fifo"), &o, &t, &err), err, ERR_UNIMPLEMENTED);
    ASSERT_HAS(err.msg, "/fifo");
    ASSERT_EQ(err.reason, REASON_MOUNT_SOURCE_INVALID);
    ASSERT_FAIL(tree_open(ctx, "/dev/null", &o, &t, &err), err, ERR_UNIMPLEMENTED);
}

/* A file system whose server never answers: a FUSE mount without a server. */
TEST_FIBER(a_dead_file_system_costs_the_deadline_and_nothing_else)
{
    need_root();
    TEMPDIR(p);
    struct tree t;
    struct err err = ERR_INIT;
    AUTO_FD int fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    AUTO_FREE char *options = str_format("fd=%d,rootmode=40000,user_id=0,group_id=0", fuse);

    if (fuse < 0)
        tap_skip("no /dev/fuse here: %s", strerror(errno));
    ASSERT_EQ(mkdir(tempdir_path(&p, "dead"), 0755), 0);
    if (mount("dead", tempdir_path(&p, "dead"), "fuse", 0, options) < 0)
        tap_skip("no FUSE here: %s", strerror(errno));
    struct ctx limited = ctx_with_timeout(ctx, 200 * NS_PER_MS);
    AUTO_FREE char *path = str_dup(tempdir_path(&p, "dead/x"));
    uint64_t before = loop_now(ctx->loop);
    int r = tree_open(&limited, path, &(struct tree_opts){ .read_only = true }, &t, &err);
    uint64_t took = loop_now(ctx->loop) - before;

    ASSERT_EQ(umount2(tempdir_path(&p, "dead"), MNT_DETACH), 0);
    fd_close(TAKE_FD(fuse)); /* now the thread comes back and tidies up */
    struct err ignored = ERR_INIT;
    ASSERT_OK(fiber_sleep(ctx, 200 * NS_PER_MS, &ignored), ignored);
    ASSERT_EQ(r, -1);
    ASSERT_EQ(err.code, ERR_DEADLINE);
    ASSERT_HAS(err.msg, path);
    ASSERT(took < 30 * NS_PER_S);
}

static bool can_write(int dir, const char *name)
{
    AUTO_FD int fd = openat(dir, name, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);

    return fd >= 0;
}

/* Twice: with nothing mounted below it, and with a tmpfs. */
TEST_FIBER(ro_is_for_the_top_and_rro_for_all)
{
    need_root();
    TEMPDIR(p);
    AUTO_FREE char *sub = str_dup(tempdir_path(&p, "sub"));
    struct err err = ERR_INIT;

    ASSERT_EQ(mkdir(sub, 0755), 0);
    for (int below = 0; below < 2; below++) {
        ASSERT(!below || mount("below", sub, "tmpfs", 0, "size=64k") == 0);
        for (int top_only = 0; top_only < 2; top_only++) {
            const struct tree_opts o = { true, true, top_only };
            struct tree t;

            ASSERT_OK(tree_open(ctx, p.dir, &o, &t, &err), err);
            ASSERT_EQ(t.writable, below && top_only);
            ASSERT(!can_write(t.fd, "x"));
            ASSERT_EQ(can_write(t.fd, "sub/x"), below && top_only);
            fd_close(t.fd);
        }
    }
    ASSERT_EQ(umount2(sub, MNT_DETACH), 0);
}

/* Its mounts come one by one, from who watches them. */
TEST_FIBER(a_directory_that_is_followed_comes_alone_and_says_where_it_is)
{
    need_root();
    TEMPDIR(p);
    AUTO_FREE char *sub = str_dup(tempdir_path(&p, "sub")), *file = str_format("%s/f", sub);
    AUTO_FREE char *link = str_dup(tempdir_path(&p, "link"));
    struct err err = ERR_INIT;
    struct statx x;
    struct tree t;

    ASSERT_EQ(mkdir(sub, 0755), 0);
    ASSERT_EQ(symlink(".", link), 0);
    ASSERT_EQ(mount("below", sub, "tmpfs", 0, "size=64k"), 0);
    ASSERT_EQ(file_write(file, "x", 1, 0600), 0);
    const struct tree_opts o = { .recursive = true, .follow = true };
    ASSERT_OK(tree_open(ctx, link, &o, &t, &err), err);
    ASSERT_EQ(faccessat(t.fd, "sub/f", F_OK, 0), -1);
    ASSERT_STR(t.followed, p.dir);
    ASSERT_EQ(statx(AT_FDCWD, p.dir, 0, STATX_MNT_ID, &x), 0);
    ASSERT_EQ(t.mount, x.stx_mnt_id);
    fd_close(t.fd);
    free(t.followed);
    ASSERT_EQ(umount2(sub, MNT_DETACH), 0);
}
