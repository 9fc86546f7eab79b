#include "base/fd.h"
#include "base/str.h"
#include "fixture/fd_fixture.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void fill(struct tempdir *p, const char *top)
{
    AUTO_FREE char *dir = str_dup(tempdir_path(p, top)), *path = NULL;

    for (int i = 0; i < 3; i++) {
        AUTO_FREE char *sub = str_format("%s/d%d/e", dir, i);

        ASSERT_EQ(dir_make(sub, 0700), 0);
        for (int k = 0; k < 5; k++) {
            AUTO_FREE char *file = str_format("%s/f%d", sub, k);

            ASSERT_EQ(file_write(file, "x", 1, 0600), 0);
        }
    }
    path = str_format("%s/fifo", dir);
    ASSERT_EQ(mkfifo(path, 0600), 0);
}

TEST(remove_takes_a_whole_tree)
{
    TEMPDIR(p);
    size_t before;

    fill(&p, "t");
    before = count_fds();
    ASSERT_EQ(dir_remove(tempdir_path(&p, "t")), 0);
    ASSERT(!exists(tempdir_path(&p, "t")));
    ASSERT_EQ(count_fds(), before);
}

TEST(remove_of_what_is_missing_is_fine)
{
    TEMPDIR(p);

    ASSERT_EQ(dir_remove(tempdir_path(&p, "none")), 0);
    ASSERT_EQ(dir_remove(tempdir_path(&p, "none/deeper")), 0);
}

TEST(remove_takes_a_plain_file)
{
    TEMPDIR(p);

    ASSERT_EQ(file_write(tempdir_path(&p, "f"), "", 0, 0600), 0);
    ASSERT_EQ(dir_remove(tempdir_path(&p, "f")), 0);
    ASSERT(!exists(tempdir_path(&p, "f")));
}

TEST(remove_refuses_paths_that_name_no_entry)
{
    ASSERT_EQ(dir_remove(""), -EINVAL);
    ASSERT_EQ(dir_remove("/"), -EINVAL);
    ASSERT_EQ(dir_remove("//"), -EINVAL);
    ASSERT_EQ(dir_remove("."), -EINVAL);
    ASSERT_EQ(dir_remove("/tmp/.."), -EINVAL);
    ASSERT_EQ(dir_remove("/tmp/./"), -EINVAL);
}

TEST(remove_never_follows_a_symlink)
{
    TEMPDIR(p);
    AUTO_FREE char *outside = str_dup(tempdir_path(&p, "outside"));

    fill(&p, "outside");
    ASSERT_EQ(dir_make(tempdir_path(&p, "t/sub"), 0700), 0);
    ASSERT_EQ(symlink(outside, tempdir_path(&p, "t/link")), 0);
    ASSERT_EQ(symlink(outside, tempdir_path(&p, "t/sub/link")), 0);
    ASSERT_EQ(symlink("/nonexistent", tempdir_path(&p, "t/dangling")), 0);
    ASSERT_EQ(dir_remove(tempdir_path(&p, "t")), 0);
    ASSERT(!exists(tempdir_path(&p, "t")));
    ASSERT(exists(tempdir_path(&p, "outside/d0/e/f0")));
}

TEST(remove_of_a_symlink_removes_the_link_only)
{
    TEMPDIR(p);
    AUTO_FREE char *outside = str_dup(tempdir_path(&p, "outside"));

    fill(&p, "outside");
    ASSERT_EQ(symlink(outside, tempdir_path(&p, "a")), 0);
    ASSERT_EQ(symlink(outside, tempdir_path(&p, "b")), 0);
    ASSERT_EQ(dir_remove(tempdir_path(&p, "a")), 0);
    ASSERT_EQ(dir_remove(tempdir_path(&p, "b/")), 0);
    ASSERT(!exists(tempdir_path(&p, "a")) && !exists(tempdir_path(&p, "b")));
    ASSERT(exists(tempdir_path(&p, "outside/d2/e/f4")));
}

TEST(remove_takes_a_directory_with_very_many_entries)
{
    TEMPDIR_IN_MEMORY(p);
    AUTO_FREE char *dir = str_dup(tempdir_path(&p, "t"));

    for (int i = 0; i < 3000; i++) {
        AUTO_FREE char *path = str_format("%s/%s%d", dir, i % 10 ? "a-rather-long-name-" : "d", i);

        if (i % 10)
            ASSERT_EQ(file_write(path, "", 0, 0600), 0);
        else
            ASSERT_EQ(dir_make(path, 0700), 0);
    }
    ASSERT_EQ(dir_remove(dir), 0);
    ASSERT(!exists(dir));
}

/* Deeper than PATH_MAX allows to name, made with relative paths. */
static void make_deep(const char *dir, int depth)
{
    AUTO_FD int fd = open(dir, O_DIRECTORY | O_CLOEXEC);

    for (int i = 0; i < depth; i++) {
        int next;

        ASSERT_EQ(mkdirat(fd, "dddddddd", 0700), 0);
        next = openat(fd, "dddddddd", O_DIRECTORY | O_CLOEXEC);
        ASSERT(next >= 0);
        fd_close(fd);
        fd = next;
    }
}

/* On the small stack of a fiber. */
TEST_FIBER(remove_goes_deeper_than_a_path_can_name)
{
    TEMPDIR(p);
    size_t before = count_fds();

    make_deep(p.dir, 1000);
    ASSERT_EQ(dir_remove(p.dir), 0);
    ASSERT(!exists(p.dir));
    ASSERT_EQ(count_fds(), before);
}

TEST(remove_has_no_limit_of_depth)
{
    TEMPDIR_IN_MEMORY(p);

    make_deep(p.dir, 10000);
    ASSERT_EQ(file_write(tempdir_path(&p, "dddddddd/f"), "", 0, 0600), 0);
    ASSERT_EQ(dir_remove(p.dir), 0);
    ASSERT(!exists(p.dir));
}

/* Skips the test where the file system has no such marks, or we have no right to set them. */
static void mark(struct tempdir *p, const char *name, int flag)
{
    AUTO_FD int fd = open(tempdir_path(p, name), O_RDONLY | O_CLOEXEC);
    int flags = 0;

    ASSERT(fd >= 0);
    if (ioctl(fd, FS_IOC_GETFLAGS, &flags) == 0) {
        flags |= flag;
        if (ioctl(fd, FS_IOC_SETFLAGS, &flags) == 0)
            return;
    }
    (void)dir_remove_marked(p->dir);
    tap_skip("files cannot be marked here");
}

TEST(remove_takes_marked_files_only_with_its_flag)
{
    TEMPDIR(p);

    fill(&p, "t");
    mark(&p, "t/d0/e/f0", FS_IMMUTABLE_FL);
    mark(&p, "t/d1/e/f1", FS_APPEND_FL);
    mark(&p, "t/d1/e", FS_APPEND_FL);
    mark(&p, "t/d2", FS_IMMUTABLE_FL);
    mark(&p, "t", FS_IMMUTABLE_FL);
    ASSERT_EQ(dir_remove(tempdir_path(&p, "t")), -EPERM);
    ASSERT(exists(tempdir_path(&p, "t/d0/e/f0")));
    ASSERT_EQ(dir_remove_marked(tempdir_path(&p, "t")), 0);
    ASSERT(!exists(tempdir_path(&p, "t")));
}

TEST(remove_takes_an_empty_directory_that_is_marked)
{
    TEMPDIR(p);

    ASSERT_EQ(dir_make(tempdir_path(&p, "t/sub"), 0700), 0);
    mark(&p, "t/sub", FS_IMMUTABLE_FL);
    ASSERT_EQ(dir_remove_marked(tempdir_path(&p, "t/sub")), 0);
    ASSERT(!exists(tempdir_path(&p, "t/sub")));
}

TEST(remove_reports_a_directory_it_may_not_read)
{
    if (geteuid() == 0)
        tap_skip("root may read everything");
    TEMPDIR(p);
    ASSERT_EQ(dir_make(tempdir_path(&p, "t/closed/x"), 0700), 0);
    ASSERT_EQ(chmod(tempdir_path(&p, "t/closed"), 0), 0);
    ASSERT_EQ(dir_remove(tempdir_path(&p, "t")), -EACCES);
    ASSERT_EQ(chmod(tempdir_path(&p, "t/closed"), 0700), 0);
}

/* In a mount namespace of its own; the exit code is the line that failed, 0 or 77 for "not
 * allowed here". */
#define CHILD_ASSERT(cond)                                                                         \
    do {                                                                                           \
        if (!(cond))                                                                               \
            _exit(1 + __LINE__ % 64);                                                              \
    } while (0)

static void in_own_mounts(struct tempdir *p, void (*fn)(struct tempdir *p))
{
    pid_t pid = fork();
    int status = 0;

    ASSERT(pid >= 0);
    if (pid == 0) {
        if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
            _exit(77);
        fn(p);
        _exit(0);
    }
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
        tempdir_release_auto(p);
        tap_skip("needs the right to mount");
    }
    ASSERT(WIFEXITED(status));
    ASSERT_EQ(WEXITSTATUS(status), 0);
}

static void bind_mount(struct tempdir *p, const char *from, const char *to)
{
    AUTO_FREE char *source = str_dup(tempdir_path(p, from));

    if (mount(source, tempdir_path(p, to), NULL, MS_BIND, NULL) < 0)
        _exit(77);
}

static void remove_over_bind_mount(struct tempdir *p)
{
    bind_mount(p, "outside", "t/sub/mnt");
    CHILD_ASSERT(dir_remove(tempdir_path(p, "t")) == -EBUSY);
    CHILD_ASSERT(exists(tempdir_path(p, "outside/d0/e/f0")));
}

TEST(remove_stops_at_a_bind_mount_of_the_same_file_system)
{
    TEMPDIR(p);

    fill(&p, "outside");
    ASSERT_EQ(dir_make(tempdir_path(&p, "t/sub/mnt"), 0700), 0);
    in_own_mounts(&p, remove_over_bind_mount);
    ASSERT(exists(tempdir_path(&p, "outside/d0/e/f0")));
}

static void remove_mounted_top(struct tempdir *p)
{
    bind_mount(p, "outside", "t");
    CHILD_ASSERT(dir_remove(tempdir_path(p, "t")) == -EBUSY);
    CHILD_ASSERT(exists(tempdir_path(p, "outside/d0/e/f0")));
}

TEST(remove_refuses_a_path_that_is_a_mount_itself)
{
    TEMPDIR(p);

    fill(&p, "outside");
    ASSERT_EQ(dir_make(tempdir_path(&p, "t"), 0700), 0);
    in_own_mounts(&p, remove_mounted_top);
}

static void remove_over_tmpfs(struct tempdir *p)
{
    if (mount("tmpfs", tempdir_path(p, "t/mnt"), "tmpfs", 0, NULL) < 0)
        _exit(77);
    CHILD_ASSERT(file_write(tempdir_path(p, "t/mnt/keep"), "", 0, 0600) == 0);
    CHILD_ASSERT(dir_remove(tempdir_path(p, "t")) == -EBUSY);
    CHILD_ASSERT(exists(tempdir_path(p, "t/mnt/keep")));
}

TEST(remove_stops_at_another_file_system)
{
    TEMPDIR(p);

    ASSERT_EQ(dir_make(tempdir_path(&p, "t/mnt"), 0700), 0);
    in_own_mounts(&p, remove_over_tmpfs);
}

static void remove_over_file_mount(struct tempdir *p)
{
    bind_mount(p, "outside/d0/e/f0", "t/file");
    CHILD_ASSERT(dir_remove(tempdir_path(p, "t")) == -EBUSY);
    CHILD_ASSERT(exists(tempdir_path(p, "outside/d0/e/f0")));
}

TEST(remove_stops_at_a_file_that_is_mounted)
{
    TEMPDIR(p);

    fill(&p, "outside");
    ASSERT_EQ(dir_make(tempdir_path(&p, "t"), 0700), 0);
    ASSERT_EQ(file_write(tempdir_path(&p, "t/file"), "", 0, 0600), 0);
    in_own_mounts(&p, remove_over_file_mount);
}
