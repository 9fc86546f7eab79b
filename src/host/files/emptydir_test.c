#include "base/fd.h"
#include "base/fiber.h"
#include "base/loop.h"
#include "base/str.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include "host/files/emptydir.h"

#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

static struct emptydir look(struct ctx *ctx, struct tempdir *p, const char *name, const char *path)
{
    AUTO_FREE char *dir = str_dup(tempdir_path(p, name));
    struct emptydir e = { 0 };
    struct err err = ERR_INIT;

    ASSERT_OK(emptydir_look(ctx, dir, path ? path : dir, &e, &err), err);
    return e;
}

TEST_FIBER(an_empty_directory_with_its_owner_and_mode)
{
    TEMPDIR(p);

    ASSERT_EQ(mkdir(tempdir_path(&p, "v"), 0700), 0);
    ASSERT_EQ(chmod(tempdir_path(&p, "v"), 02775), 0);
    struct emptydir e = look(ctx, &p, "v", NULL);
    ASSERT(e.kind == EMPTYDIR_PLAIN && !e.has_files);
    ASSERT_EQ(e.n, 1);
    ASSERT_STR(e.dirs[0].path, "");
    ASSERT_EQ(e.dirs[0].mode, 02775);
    ASSERT_EQ(e.dirs[0].uid, geteuid());
    emptydir_release(&e);
}

TEST_FIBER(directories_in_it_are_listed_and_the_requested_one_is_found)
{
    TEMPDIR(p);

    ASSERT_EQ(dir_make(tempdir_path(&p, "v/a/b"), 0750), 0);
    AUTO_FREE char *asked = str_dup(tempdir_path(&p, "v/a/b"));
    struct emptydir e = look(ctx, &p, "v", asked);
    ASSERT_EQ(e.n, 3);
    ASSERT_STR(e.dirs[1].path, "a");
    ASSERT_STR(e.dirs[2].path, "a/b");
    ASSERT_EQ(e.at, 2);
    ASSERT(!e.has_files);
    emptydir_release(&e);
}

TEST_FIBER(files_links_and_other_directories_are_reported)
{
    TEMPDIR(p);

    ASSERT_EQ(dir_make(tempdir_path(&p, "v/a"), 0750), 0);
    ASSERT_EQ(dir_make(tempdir_path(&p, "other"), 0750), 0);
    AUTO_FREE char *other = str_dup(tempdir_path(&p, "other"));
    struct emptydir e = look(ctx, &p, "v", other);
    ASSERT(e.has_files && e.elsewhere); /* not a part of it */
    emptydir_release(&e);
    ASSERT_EQ(symlink("/etc", tempdir_path(&p, "v/a/link")), 0);
    e = look(ctx, &p, "v", NULL);
    ASSERT(e.has_files);
    ASSERT_EQ(e.n, 2); /* nothing behind the link */
    emptydir_release(&e);
}

TEST_FIBER(a_missing_directory_is_not_an_emptydir)
{
    TEMPDIR(p);
    struct emptydir e = look(ctx, &p, "v", "/");

    ASSERT(e.kind == EMPTYDIR_NONE);
    emptydir_release(&e);
}

TEST_FIBER(a_tmpfs_is_memory_of_its_size)
{
    TEMPDIR(p);

    if (geteuid() != 0)
        tap_skip("mounts need root");
    ASSERT_EQ(mkdir(tempdir_path(&p, "v"), 0700), 0);
    ASSERT_EQ(mount("t", tempdir_path(&p, "v"), "tmpfs", 0, "size=1m,mode=0777"), 0);
    struct emptydir e = look(ctx, &p, "v", NULL);
    ASSERT_EQ(umount(tempdir_path(&p, "v")), 0);
    ASSERT(e.kind == EMPTYDIR_MEMORY);
    ASSERT_EQ(e.bytes, 1 << 20);
    ASSERT_EQ(e.dirs[0].mode, 0777);
    emptydir_release(&e);
}
