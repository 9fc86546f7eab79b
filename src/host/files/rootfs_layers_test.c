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

/* Of others nothing is known: they may change, and an image would show stale files. */
TEST_FIBER(only_committed_snapshots_have_images)
{
    static const struct {
        const char *path;
        bool good;
    } cases[] = {
        { "snapshots/12/fs", true },
        { "snapshots/12", true },
        { "snapshots/a/snapshots/7/fs", true },
        { "low", false },
        { "snapshots/12/work", false },
        { "snapshots/x12/fs", false },
        { "snapshots/12/fs/fs", false },
        { "snapshots/12/block/mountpoint", false },
        { "snapshots/fs", false },
        { "12/fs", false },
    };
    STORE(s);

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        AUTO_FREE char *path = str_format("%s/%s", s.p.dir, cases[i].path),
                       *lower = str_format("lowerdir=%s:%s", path, s.layer);
        const char *const ro[] = { "ro", "rbind", NULL }, *const options[] = { lower, NULL };
        const struct rootfs_mount mounts[] = { { "bind", path, ro },
                                               { "overlay", "overlay", options } };

        ASSERT_EQ(dir_make(path, 0755), 0);
        for (size_t k = 0; k < ARRAY_LEN(mounts); k++) {
            struct rootfs fs = { .tree = -1 };
            struct err err = ERR_INIT;

            ASSERT_OK(rootfs_open(ctx, &mounts[k], 1, NULL, 0, &s.o, &fs, &err), err);
            ASSERT(fs.tree >= 0);
            ASSERT_EQ(fs.unbuilt.n, (size_t)cases[i].good + k);
            rootfs_release(&fs);
        }
    }
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
    ASSERT_EQ(strlen(fs.disks[0].image_key), LAYERS_KEY_SIZE - 1);
    rootfs_release(&fs);
}

/* More than a VM takes stay a share, so their images would never be used. */
TEST_FIBER(layers_that_are_too_many_for_disks_are_not_built)
{
    STORE(s);
    AUTO(sbuf_release) struct sbuf lower = { 0 };
    struct rootfs fs = { .tree = -1 };
    struct err err = ERR_INIT;

    sbuf_adds(&lower, "lowerdir=");
    for (int i = 0; i <= ROOTFS_IMAGES_MAX; i++) {
        AUTO_FREE char *name = str_format("%s/snapshots/3%d/fs", s.p.dir, i);

        ASSERT_EQ(dir_make(name, 0755), 0);
        sbuf_addf(&lower, "%s%s", i ? ":" : "", name);
    }
    const char *const options[] = { lower.data, NULL };
    const struct rootfs_mount m = { "overlay", "overlay", options };
    ASSERT_OK(rootfs_open(ctx, &m, 1, NULL, 0, &s.o, &fs, &err), err);
    ASSERT(fs.tree >= 0);
    ASSERT_EQ(fs.unbuilt.n, 0);
    rootfs_release(&fs);
}
