#include "base/err.h"
#include "guest/storage/storage_priv.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include <sys/stat.h>
#include <unistd.h>

/* Another group needs root. */
static gid_t other_group(void)
{
    return geteuid() == 0 ? 2000 : getegid();
}

static struct stat look(struct tempdir *p, const char *name)
{
    struct stat st;

    ASSERT_EQ(lstat(tempdir_path(p, name), &st), 0);
    return st;
}

static void fill(struct tempdir *p)
{
    ASSERT_EQ(mkdir(tempdir_path(p, "d"), 0700), 0);
    ASSERT_EQ(file_write(tempdir_path(p, "d/f"), "", 0, 0600), 0);
    ASSERT_EQ(file_write(tempdir_path(p, "suid"), "", 0, 0600), 0);
    ASSERT_EQ(chmod(tempdir_path(p, "suid"), 04711), 0);
    ASSERT_EQ(symlink("/etc/passwd", tempdir_path(p, "link")), 0);
    ASSERT_EQ(chmod(p->dir, 0755), 0);
}

TEST(a_tree_becomes_the_groups_as_the_kubelet_does_it)
{
    struct err err = ERR_INIT;
    struct stat before, after;
    TEMPDIR(p);

    fill(&p);
    ASSERT_EQ(stat("/etc/passwd", &before), 0);
    ASSERT_OK(fsgroup_apply(p.dir, other_group(), false, &err), err);
    ASSERT_EQ(look(&p, "").st_mode & 07777, 02775);
    ASSERT_EQ(look(&p, "d").st_mode & 07777, 02770);
    ASSERT_EQ(look(&p, "d/f").st_mode & 07777, 0660);
    ASSERT_EQ(look(&p, "suid").st_mode & 07777, 04771);
    ASSERT_EQ(look(&p, "d/f").st_gid, other_group());
    ASSERT_EQ(look(&p, "link").st_gid, other_group());
    ASSERT_EQ(stat("/etc/passwd", &after), 0);
    ASSERT(after.st_gid == before.st_gid && after.st_mode == before.st_mode);
}

TEST(a_root_that_fits_is_enough_if_only_a_mismatch_counts)
{
    struct err err = ERR_INIT;
    TEMPDIR(p);

    fill(&p);
    ASSERT_EQ(chown(p.dir, (uid_t)-1, other_group()), 0);
    ASSERT_EQ(chmod(p.dir, 02775), 0);
    ASSERT_OK(fsgroup_apply(p.dir, other_group(), true, &err), err);
    ASSERT_EQ(look(&p, "d/f").st_mode & 07777, 0600);
    ASSERT_EQ(chmod(p.dir, 0775), 0);
    ASSERT_OK(fsgroup_apply(p.dir, other_group(), true, &err), err);
    ASSERT_EQ(look(&p, "d/f").st_mode & 07777, 0660);
}

TEST(a_tree_that_is_too_deep_is_refused_before_its_root_is_changed)
{
    AUTO(sbuf_release) struct sbuf path = { 0 };
    struct err err = ERR_INIT;
    TEMPDIR(p);

    ASSERT_EQ(chmod(p.dir, 0755), 0);
    sbuf_adds(&path, p.dir);
    for (int i = 0; i <= FSGROUP_DEPTH_MAX; i++) {
        sbuf_adds(&path, "/d");
        ASSERT_EQ(mkdir(path.data, 0700), 0);
    }
    ASSERT_FAIL(fsgroup_apply(p.dir, other_group(), false, &err), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "directories are more than 256 deep");
    ASSERT_EQ(look(&p, "").st_mode & 07777, 0755);
}
