/* Mounts of the host that come and go below a share, with a peer in QEMU's place: jail, mounts and
 * table are real. What the guest would see is looked at through the peer's root. */
#include "base/clock.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/str.h"
#include "fixture/qemu_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#define AMPLE (30 * NS_PER_S)

struct fixture {
    struct qemu_fixture fixture;
    char *dir, *jail; /* of the host; the same in the jail */
};

static void follow_as(struct fixture *f, bool read_only, bool late, struct idmap ids)
{
    AUTO_FD int fd = open(f->dir, O_PATH | O_CLOEXEC),
                tree = open_tree(fd, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);
    struct vmm *v = f->fixture.v;
    struct err err = ERR_INIT;
    struct statx x;

    ASSERT_EQ(statx(fd, "", AT_EMPTY_PATH, STATX_MNT_ID, &x), 0);
    const struct vmm_follow what = { f->dir, x.stx_mnt_id, late, ids };
    ASSERT_OK(v->ops->share_add(f->fixture.ctx, v, "1", tree, read_only, &err), err);
    ASSERT_OK(v->ops->share_follow(f->fixture.ctx, v, "1", &what, read_only, &err), err);
}

static void follow(struct fixture *f, bool read_only, bool late)
{
    follow_as(f, read_only, late, (struct idmap){ 0 });
}

static char *host(const struct fixture *f, const char *path)
{
    return str_format("%s/%s", f->dir, path);
}

/* The content is its name. */
static void mount_on(const struct fixture *f, const char *path, const char *name)
{
    AUTO_FREE char *point = host(f, path), *file = str_format("%s/%s", point, name);

    ASSERT(mkdir(point, 0755) == 0 || errno == EEXIST);
    ASSERT_EQ(mount(name, point, "tmpfs", 0, "size=64k"), 0);
    ASSERT_EQ(file_write(file, name, strlen(name), 0644), 0);
}

static void unmount(const struct fixture *f, const char *path)
{
    AUTO_FREE char *point = host(f, path);

    ASSERT_EQ(umount2(point, UMOUNT_NOFOLLOW), 0); /* never EBUSY */
}

static bool sees(const struct fixture *f, const char *path)
{
    AUTO_FREE char *full = str_format("%s/%s", f->jail, path);

    return access(full, F_OK) == 0;
}

/* Waits until the path is there in the jail, or no longer is. */
static void await(const struct fixture *f, const char *path, bool there)
{
    struct ctx limited = ctx_with_timeout(f->fixture.ctx, AMPLE);
    struct err err = ERR_INIT;

    while (sees(f, path) != there)
        ASSERT_OK(fiber_sleep(&limited, NS_PER_MS, &err), err);
}

static void start(struct ctx *ctx, struct fixture *f)
{
    struct vmm_info info;

    fixture_prepare(ctx, &f->fixture, "plain", "", 61700);
    fixture_start(&f->fixture);
    f->fixture.v->ops->info(f->fixture.v, &info);
    f->dir = str_format("%s/dir", f->fixture.temp.dir);
    f->jail = str_format("/proc/%d/root/shares/1", info.pid);
    ASSERT_EQ(mkdir(f->dir, 0755), 0);
    ASSERT_EQ(mount("vol", f->dir, "tmpfs", 0, "size=64k"), 0);
}

static void finish(struct fixture *f)
{
    struct err err = ERR_INIT;

    ASSERT_OK(f->fixture.v->ops->share_remove(f->fixture.ctx, f->fixture.v, "1", &err), err);
    ASSERT(!sees(f, ""));
    ASSERT_EQ(umount2(f->dir, MNT_DETACH), 0);
    fixture_quit(&f->fixture);
    free(f->dir);
    free(f->jail);
}

TEST_FIBER(mounts_show_when_they_are_made_and_leave_when_they_are_unmounted)
{
    struct fixture f;

    start(ctx, &f);
    mount_on(&f, "before", "one");
    follow(&f, false, false);
    ASSERT(sees(&f, "before/one")); /* at once */
    mount_on(&f, "later", "two");
    mount_on(&f, "later/nested", "three");
    await(&f, "later/nested/three", true);
    AUTO_FREE char *path = str_format("%s/later/nested/three", f.jail);
    AUTO_FD int open_file = open(path, O_RDONLY | O_CLOEXEC);
    char byte;
    ASSERT(open_file >= 0);
    unmount(&f, "later/nested"); /* though the file is open */
    await(&f, "later/nested/three", false);
    ASSERT(sees(&f, "later/two"));
    ASSERT_EQ(read(open_file, &byte, 1), 1);
    unmount(&f, "later");
    unmount(&f, "before");
    await(&f, "later/two", false);
    await(&f, "before/one", false);
    finish(&f);
}

TEST_FIBER(later_mounts_have_the_ids_of_their_share)
{
    struct fixture f;
    struct stat st;

    start(ctx, &f);
    follow_as(&f, false, false, (struct idmap){ (char *)"0:100000:9", (char *)"0:200000:9" });
    mount_on(&f, "later", "one");
    await(&f, "later/one", true);
    AUTO_FREE char *path = str_format("%s/later/one", f.jail);
    ASSERT_EQ(stat(path, &st), 0);
    ASSERT_EQ(st.st_uid, 100000);
    ASSERT_EQ(st.st_gid, 200000);
    unmount(&f, "later");
    await(&f, "later/one", false);
    finish(&f);
}

TEST_FIBER(in_a_read_only_share_later_mounts_are_read_only_and_restricted)
{
    struct fixture f;

    start(ctx, &f);
    follow(&f, true, false);
    mount_on(&f, "later", "one");
    await(&f, "later/one", true);
    AUTO_FREE char *path = str_format("%s/later/one", f.jail), *link = host(&f, "later/link"),
                   *through = str_format("%s/later/link", f.jail), *node = host(&f, "later/null"),
                   *device = str_format("%s/later/null", f.jail), *own = host(&f, "later/one");
    ASSERT_EQ(open(path, O_WRONLY | O_CLOEXEC), -1);
    ASSERT_EQ(errno, EROFS);
    ASSERT_EQ(symlink("one", link), 0);
    ASSERT_EQ(open(through, O_RDONLY | O_CLOEXEC), -1);
    ASSERT_EQ(errno, ELOOP);
    ASSERT_EQ(mknod(node, S_IFCHR | 0666, (1 << 8) + 3), 0);
    ASSERT_EQ(open(device, O_RDONLY | O_CLOEXEC), -1);
    ASSERT_EQ(errno, EACCES);
    ASSERT_EQ(file_put(own, "the host's own stays writable"), 0);
    finish(&f); /* with the mount still there */
}

TEST_FIBER(stacked_mounts_the_source_itself_and_a_mount_under_another)
{
    struct fixture f;

    start(ctx, &f);
    mount_on(&f, "p", "low");
    mount_on(&f, "p", "high");
    follow(&f, false, false); /* "low" cannot be reached now */
    ASSERT(sees(&f, "p/high"));
    unmount(&f, "p");
    await(&f, "p/low", true);
    mount_on(&f, "p", "again");
    await(&f, "p/again", true);
    unmount(&f, "p");
    await(&f, "p/low", true);
    ASSERT(!sees(&f, "p/again"));
    /* Gone and another in its place between two looks: the kernel reuses the id. */
    unmount(&f, "p");
    mount_on(&f, "p", "other");
    await(&f, "p/other", true);
    ASSERT(!sees(&f, "p/low"));
    mount_on(&f, "", "over");
    await(&f, "over", true);
    unmount(&f, "");
    await(&f, "p/other", true);
    ASSERT(!sees(&f, "over"));
    finish(&f);
}

TEST_FIBER(late_leaves_out_what_is_there_already_and_many_come_at_once)
{
    struct fixture f;

    start(ctx, &f);
    mount_on(&f, "before", "one");
    follow(&f, false, true);
    ASSERT(!sees(&f, "before/one"));
    for (unsigned i = 0; i < 60; i++) {
        AUTO_FREE char *name = str_format("m%u", i);
        mount_on(&f, name, "x");
    }
    for (unsigned i = 0; i < 60; i++) {
        AUTO_FREE char *name = str_format("m%u/x", i);
        await(&f, name, true);
    }
    ASSERT(!sees(&f, "before/one"));
    finish(&f);
}

TEST_FIBER(the_end_of_the_vm_ends_it)
{
    struct fixture f;

    start(ctx, &f);
    follow(&f, false, false);
    mount_on(&f, "later", "one");
    await(&f, "later/one", true);
    ASSERT_EQ(umount2(f.dir, MNT_DETACH), 0);
    fixture_quit(&f.fixture); /* no share_remove */
    free(f.dir);
    free(f.jail);
}
