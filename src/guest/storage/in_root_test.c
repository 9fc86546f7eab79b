#include "base/str.h"
#include "guest/storage/in_root.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A tree in p/root beside a secret in p/secret. */
static void make_tree(struct tempdir *p)
{
    ASSERT_EQ(dir_make(tempdir_path(p, "root/etc"), 0755), 0);
    ASSERT_EQ(file_write(tempdir_path(p, "root/etc/passwd"), "inside", 6, 0644), 0);
    ASSERT_EQ(file_write(tempdir_path(p, "passwd"), "outside", 7, 0644), 0);
}

static int read_path(struct tempdir *p, const char *path, char **ret)
{
    AUTO_FREE char *root = str_format("%s/root", p->dir);
    size_t len;

    return in_root_read(root, path, 100, ret, &len);
}

TEST(links_are_followed_but_never_out_of_the_root)
{
    AUTO_FREE char *a = NULL, *b = NULL, *c = NULL, *d = NULL;
    TEMPDIR(p);

    make_tree(&p);
    ASSERT_EQ(symlink("/etc/passwd", tempdir_path(&p, "root/absolute")), 0);
    ASSERT_EQ(symlink("../../../etc/passwd", tempdir_path(&p, "root/up")), 0);
    ASSERT_EQ(read_path(&p, "/etc/passwd", &a), 0);
    ASSERT_STR(a, "inside");
    ASSERT_EQ(read_path(&p, "absolute", &b), 0);
    ASSERT_STR(b, "inside");
    ASSERT_EQ(read_path(&p, "up", &c), 0);
    ASSERT_STR(c, "inside");
    ASSERT_EQ(read_path(&p, "../passwd", &d), -ENOENT);
}

TEST(only_regular_files_of_a_bounded_size_are_read)
{
    char *text = NULL, big[101] = { 0 };
    TEMPDIR(p);

    make_tree(&p);
    ASSERT_EQ(mkfifo(tempdir_path(&p, "root/fifo"), 0600), 0);
    ASSERT_EQ(read_path(&p, "fifo", &text), -EINVAL);
    ASSERT_EQ(read_path(&p, "etc", &text), -EINVAL);
    ASSERT_EQ(read_path(&p, "none", &text), -ENOENT);
    ASSERT_EQ(file_write(tempdir_path(&p, "root/big"), big, sizeof(big), 0600), 0);
    ASSERT_EQ(read_path(&p, "big", &text), -EFBIG);
    ASSERT(!text);
}

TEST(directories_are_made_inside_whatever_the_links_say)
{
    TEMPDIR(p);

    make_tree(&p);
    AUTO_FREE char *root = str_format("%s/root", p.dir);
    ASSERT_EQ(symlink("../..", tempdir_path(&p, "root/out")), 0);
    ASSERT_EQ(in_root_mkdir(root, "/a/b/c", 0755), 0);
    ASSERT_EQ(in_root_mkdir(root, "/a/b/c", 0755), 0);
    ASSERT_EQ(access(tempdir_path(&p, "root/a/b/c"), F_OK), 0);
    ASSERT_EQ(in_root_mkdir(root, "out/made", 0755), 0);
    ASSERT_EQ(access(tempdir_path(&p, "root/made"), F_OK), 0);
    ASSERT_EQ(access(tempdir_path(&p, "made"), F_OK), -1);
    ASSERT_EQ(in_root_mkdir(root, "../made2", 0755), 0);
    ASSERT_EQ(access(tempdir_path(&p, "made2"), F_OK), -1);
    ASSERT_EQ(in_root_mkdir(root, "etc/passwd/x", 0755), -ENOTDIR);
}

TEST(a_link_in_place_of_a_directory_is_reported_with_its_target)
{
    AUTO_FREE char *root = NULL, *absolute = NULL, *relative = NULL, *dangling = NULL, *none = NULL;
    TEMPDIR(p);

    make_tree(&p);
    root = str_format("%s/root", p.dir);
    ASSERT_EQ(symlink("/etc", tempdir_path(&p, "root/dev")), 0);
    ASSERT_EQ(symlink("etc", tempdir_path(&p, "root/proc")), 0);
    ASSERT_EQ(symlink("../../nowhere", tempdir_path(&p, "root/sys")), 0);
    ASSERT_EQ(file_write(tempdir_path(&p, "root/file"), "x", 1, 0644), 0);
    ASSERT_EQ(in_root_check_dir(root, "dev", &absolute), -ELOOP);
    ASSERT_STR(absolute, "/etc");
    ASSERT_EQ(in_root_check_dir(root, "proc", &relative), -ELOOP);
    ASSERT_STR(relative, "etc");
    ASSERT_EQ(in_root_check_dir(root, "sys", &dangling), -ELOOP);
    ASSERT_STR(dangling, "../../nowhere");
    ASSERT_EQ(in_root_check_dir(root, "file", &none), -ENOTDIR);
    ASSERT_EQ(in_root_check_dir(root, "etc", &none), 0);
    ASSERT_EQ(in_root_check_dir(root, "absent", &none), 0);
    ASSERT_EQ(in_root_check_dir(root, "..", &none), -EXDEV);
    ASSERT(!none);
}
