/* rootfs_layers_test.c - root file systems of layers that have images. */
#include "base/fd.h"
#include "fixture/layers_fixture.h"
#include "host/files/rootfs_priv.h"

#include <string.h>
#include <sys/stat.h>

TEST_FIBER(a_root_file_system_is_disks_when_all_its_layers_have_images_and_it_may)
{
    STORE(s);
    AUTO_FREE char *lower = str_format("lowerdir=%s:%s/snapshots/2/fs", s.layer, s.p.dir),
                   *upper = str_format("upperdir=%s/up", s.p.dir),
                   *work = str_format("workdir=%s/work", s.p.dir),
                   *low = str_format("%s/snapshots/2/fs", s.p.dir);
    const char *const options[] = { "index=off", work, upper, lower, NULL };
    const struct rootfs_mount m = { "overlay", "overlay", options };
    struct rootfs fs = { .tree = -1 };
    struct err err = ERR_INIT;

    tempdir_put(&s.p, "snapshots/2/fs/hello", "");
    ASSERT_EQ(mkdir(tempdir_path(&s.p, "up"), 0755), 0);
    ASSERT_EQ(mkdir(tempdir_path(&s.p, "work"), 0755), 0);
    ASSERT(make(ctx, &s, s.layer));
    ASSERT_OK(rootfs_open(ctx, &m, 1, NULL, 0, &s.o, &fs, &err), err);
    ASSERT(fs.tree >= 0 && fs.n_disks == 0);
    ASSERT_EQ(fs.unbuilt.n, 1);
    ASSERT_STR(fs.unbuilt.v[0], low);
    ASSERT(fs.why_shared != NULL);
    rootfs_release(&fs);

    ASSERT(make(ctx, &s, low));
    ASSERT_OK(rootfs_open(ctx, &m, 1, NULL, 0, &s.o, &fs, &err), err);
    ASSERT(fs.tree < 0 && fs.n_disks == 2 && fs.has_tree && fs.unbuilt.n == 0);
    ASSERT_STR(fs.disks[0].filesystem, "erofs");
    ASSERT(!fs.disks[0].writable && fs.disks[0].fd >= 0);
    rootfs_release(&fs);

    s.o.worth = 50; /* it has 6 files */
    ASSERT_OK(rootfs_open(ctx, &m, 1, NULL, 0, &s.o, &fs, &err), err);
    ASSERT(fs.tree >= 0 && fs.n_disks == 0 && fs.unbuilt.n == 0);
    ASSERT_HAS(fs.why_shared, "2 layers have only 6 files");
    rootfs_release(&fs);
    s.o.worth = 0;

    /* Not for one that is kept, not as a tree, not without a store, not with files in upper. */
    ASSERT_OK(rootfs_open(ctx, &m, 1, NULL, ROOTFS_KEPT, &s.o, &fs, &err), err);
    ASSERT(fs.tree >= 0 && fs.unbuilt.n == 0);
    rootfs_release(&fs);
    ASSERT_OK(rootfs_open(ctx, &m, 1, NULL, ROOTFS_TREE, &s.o, &fs, &err), err);
    ASSERT(fs.tree >= 0);
    rootfs_release(&fs);
    ASSERT_OK(rootfs_open(ctx, &m, 1, NULL, 0, NULL, &fs, &err), err);
    ASSERT(fs.tree >= 0);
    rootfs_release(&fs);
    tempdir_put(&s.p, "up/mine", "");
    ASSERT_OK(rootfs_open(ctx, &m, 1, NULL, 0, &s.o, &fs, &err), err);
    ASSERT(fs.tree >= 0 && fs.unbuilt.n == 0);
    rootfs_release(&fs);
}

TEST_FIBER(a_view_of_a_committed_snapshot_is_a_disk)
{
    STORE(s);
    const char *const options[] = { "ro", "rbind", NULL };
    const struct rootfs_mount view = { "bind", s.layer, options };
    struct rootfs fs = { .tree = -1 };
    struct err err = ERR_INIT;

    ASSERT(make(ctx, &s, s.layer));
    ASSERT_OK(rootfs_open(ctx, &view, 1, NULL, 0, &s.o, &fs, &err), err);
    ASSERT(fs.tree < 0 && fs.n_disks == 1);
    rootfs_release(&fs);
}
