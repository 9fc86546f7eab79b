#include "base/err.h"
#include "base/str.h"
#include "fixture/device_fixture.h"
#include "fixture/files_fixture.h"
#include "harness/fsm_table.h"
#include "harness/tempdir.h"
#include "host/device/plan9.h"
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

struct fixture {
    struct files_fixture fixture;
    struct plan9 *c;
    int a, b;
};

static void start(struct ctx *ctx, struct fixture *f)
{
    files_fixture_start(ctx, &f->fixture);
    f->c = plan9_new(f->fixture.vmm, &f->fixture.guest);
    f->a = fixture_file();
    f->b = fixture_file();
}

static void finish(struct ctx *ctx, struct fixture *f)
{
    ASSERT_EQ(plan9_used(f->c), 0);
    files_fixture_clean(&f->fixture);
    plan9_free(f->c);
    files_fixture_finish(ctx, &f->fixture);
    fd_close(f->a);
    fd_close(f->b);
}

static uint64_t reserve(struct ctx *ctx, struct fixture *f, const char *path, int fd,
                        bool read_only)
{
    const struct plan9_share s = { .host_path = path, .tree_fd = fd, .read_only = read_only };
    struct err err = ERR_INIT;
    uint64_t id = 0;

    ASSERT_OK(plan9_reserve(ctx, f->c, &s, &id, &err), err);
    return id;
}

FILES_FIXTURE_CALLS(plan9)

TEST_VIRTUAL(a_directory_is_shared_once_and_counted)
{
    struct fixture f;

    start(ctx, &f);
    uint64_t one = reserve(ctx, &f, "/data", f.a, true);
    uint64_t two = reserve(ctx, &f, "/data", f.a, true);

    map(ctx, &f, one, "/run/mounts/plan9/0");
    map(ctx, &f, two, "/run/mounts/plan9/0");
    map(ctx, &f, two, "/run/mounts/plan9/0");
    ASSERT_EQ(f.fixture.calls[FIXTURE_MOUNT_SHARE], 1);
    unmap(ctx, &f, one);
    ASSERT_EQ(f.fixture.calls[FIXTURE_UNMOUNT_SHARE], 0);
    unmap(ctx, &f, two);
    ASSERT_EQ(f.fixture.calls[FIXTURE_UNMOUNT_SHARE], 1);
    finish(ctx, &f);
}

TEST_VIRTUAL(another_mode_another_directory_or_a_rootfs_is_another_share)
{
    struct fixture f;
    struct err err = ERR_INIT;
    uint64_t own;

    start(ctx, &f);
    uint64_t ro = reserve(ctx, &f, "/data", f.a, true), rw = reserve(ctx, &f, "/data", f.a, false);
    uint64_t moved = reserve(ctx, &f, "/data", f.b, true); /* the path leads elsewhere now */
    const struct plan9_share s = { "/data", f.a, true, .unique = true };

    ASSERT_OK(plan9_reserve(ctx, f.c, &s, &own, &err), err);
    map(ctx, &f, ro, "/run/mounts/plan9/0");
    map(ctx, &f, rw, "/run/mounts/plan9/1");
    map(ctx, &f, moved, "/run/mounts/plan9/2");
    map(ctx, &f, own, "/run/mounts/plan9/3");
    ASSERT_EQ(plan9_used(f.c), 4);
    unmap(ctx, &f, ro);
    unmap(ctx, &f, rw);
    unmap(ctx, &f, moved);
    unmap(ctx, &f, own);
    uint64_t again = reserve(ctx, &f, "/data", f.a, true); /* names are never used again */
    map(ctx, &f, again, "/run/mounts/plan9/4");
    unmap(ctx, &f, again);
    finish(ctx, &f);
}

TEST_VIRTUAL(ws17_releasing_one_of_two_unmapped_reservations_keeps_the_share)
{
    struct fixture f;

    start(ctx, &f);
    uint64_t one = reserve(ctx, &f, "/data", f.a, true);
    uint64_t two = reserve(ctx, &f, "/data", f.a, true);

    unmap(ctx, &f, one);
    ASSERT_EQ(plan9_used(f.c), 1);
    map(ctx, &f, two, "/run/mounts/plan9/0");
    unmap(ctx, &f, two);
    uint64_t three = reserve(ctx, &f, "/data", f.a, true);
    unmap(ctx, &f, three);
    ASSERT_EQ(f.fixture.calls[FIXTURE_UNMOUNT_SHARE], 1);
    finish(ctx, &f);
}

TEST_VIRTUAL(ws18_two_files_of_one_directory_are_two_shares)
{
    struct fixture f;

    start(ctx, &f);
    uint64_t one = reserve(ctx, &f, "/etc/hosts", f.a, true);
    uint64_t two = reserve(ctx, &f, "/etc/resolv.conf", f.b, true);

    map(ctx, &f, one, "/run/mounts/plan9/0");
    map(ctx, &f, two, "/run/mounts/plan9/1");
    unmap(ctx, &f, one);
    unmap(ctx, &f, two);
    finish(ctx, &f);
}

TEST_VIRTUAL(a_share_that_failed_is_released_and_not_used_again)
{
    struct fixture f;

    start(ctx, &f);
    uint64_t one = reserve(ctx, &f, "/data", f.a, true);
    uint64_t two = reserve(ctx, &f, "/data", f.a, true);

    fake_vmm_tune(f.fixture.vmm)->share_add.how = FAKE_FAIL;
    map_fails(ctx, &f, one, ERR_INTERNAL);
    fake_vmm_tune(f.fixture.vmm)->share_add.how = FAKE_OK;
    map_fails(ctx, &f, two, ERR_STATE);
    uint64_t three = reserve(ctx, &f, "/data", f.a, true);
    map(ctx, &f, three, "/run/mounts/plan9/1");
    unmap(ctx, &f, one);
    unmap(ctx, &f, two);
    for (int lost = 0; lost < 2; lost++) {
        uint64_t four = reserve(ctx, &f, "/other", f.b, true);
        f.fixture.faults[FIXTURE_MOUNT_SHARE] = lost ? FIXTURE_LOST : FIXTURE_FAIL;
        map_fails(ctx, &f, four, ERR_INTERNAL);
        map_fails(ctx, &f, four, ERR_STATE);
        unmap(ctx, &f, four);
    }
    unmap(ctx, &f, three);
    finish(ctx, &f);
}

TEST_VIRTUAL(a_share_that_cannot_follow_the_host_is_removed_again)
{
    struct plan9_share share = { "/data", .follow = { "/data", 7 }, .unique = true };
    struct fixture f;
    struct err err = ERR_INIT;
    uint64_t one, two;

    start(ctx, &f);
    share.tree_fd = f.a;
    ASSERT_OK(plan9_reserve(ctx, f.c, &share, &one, &err), err);
    ASSERT_OK(plan9_reserve(ctx, f.c, &share, &two, &err), err);
    map(ctx, &f, one, "/run/mounts/plan9/0");
    fake_vmm_tune(f.fixture.vmm)->share_follow.how = FAKE_FAIL;
    map_fails(ctx, &f, two, ERR_INTERNAL);
    ASSERT(fake_vmm_has_share(f.fixture.vmm, "1"));
    unmap(ctx, &f, two);
    ASSERT(!fake_vmm_has_share(f.fixture.vmm, "1"));
    unmap(ctx, &f, one);
    finish(ctx, &f);
}

TEST_VIRTUAL(a_failed_unmap_continues_at_the_failed_step)
{
    struct fixture f;

    start(ctx, &f);
    uint64_t one = reserve(ctx, &f, "/data", f.a, true);

    map(ctx, &f, one, "/run/mounts/plan9/0");
    f.fixture.faults[FIXTURE_UNMOUNT_SHARE] = FIXTURE_FAIL;
    unmap_fails(ctx, &f, one, ERR_INTERNAL);
    map_fails(ctx, &f, one, ERR_STATE);
    fake_vmm_tune(f.fixture.vmm)->share_remove.how = FAKE_FAIL;
    unmap_fails(ctx, &f, one, ERR_INTERNAL);
    /* Somebody new does not get what is on its way out. */
    uint64_t two = reserve(ctx, &f, "/data", f.a, true);
    map(ctx, &f, two, "/run/mounts/plan9/1");
    fake_vmm_tune(f.fixture.vmm)->share_remove.how = FAKE_OK;
    unmap(ctx, &f, one);
    ASSERT_EQ(f.fixture.calls[FIXTURE_UNMOUNT_SHARE], 2);
    unmap(ctx, &f, two);
    finish(ctx, &f);
}

TEST_VIRTUAL(a_guest_or_vm_that_is_gone_counts_as_done)
{
    struct fixture f;

    start(ctx, &f);
    uint64_t one = reserve(ctx, &f, "/data", f.a, true);
    uint64_t two = reserve(ctx, &f, "/more", f.b, true);

    map(ctx, &f, one, "/run/mounts/plan9/0");
    map(ctx, &f, two, "/run/mounts/plan9/1");
    f.fixture.faults[FIXTURE_UNMOUNT_SHARE] = FIXTURE_GONE;
    unmap(ctx, &f, one);
    ASSERT(!fake_vmm_has_share(f.fixture.vmm, "0")); /* the VM is still there */
    fake_vmm_die(f.fixture.vmm, FAKE_CRASHED);
    f.fixture.faults[FIXTURE_UNMOUNT_SHARE] = FIXTURE_GONE;
    unmap(ctx, &f, two);
    memset(f.fixture.paths, 0, sizeof(f.fixture.paths)); /* went with the guest */
    finish(ctx, &f);
}

/* It answered when it was opened, and does not now: the shim has one thread, and this has a gate.
 */
TEST_VIRTUAL(a_file_system_that_does_not_answer_is_not_asked)
{
    struct fixture f;
    TEMPDIR(p);
    AUTO_FD int fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    AUTO_FREE char *options = str_format("fd=%d,rootmode=40000,user_id=0,group_id=0", fuse);
    AUTO_FREE char *dead = str_dup(tempdir_path(&p, "dead"));

    if (fuse < 0 || unshare(CLONE_NEWNS) < 0 ||
        mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        tap_skip("no FUSE here: %s", strerror(errno));
    ASSERT_EQ(mkdir(dead, 0755), 0);
    if (mount("dead", dead, "fuse", 0, options) < 0)
        tap_skip("no FUSE here: %s", strerror(errno));
    AUTO_FD int tree = open(dead, O_PATH | O_CLOEXEC);
    ASSERT(tree >= 0);
    alarm(30); /* ends the test if it hangs */
    start(ctx, &f);
    uint64_t one = reserve(ctx, &f, "/data", tree, true),
             two = reserve(ctx, &f, "/data", tree, true);
    unmap(ctx, &f, one);
    unmap(ctx, &f, two);
    finish(ctx, &f);
    alarm(0);
    ASSERT_EQ(umount2(dead, MNT_DETACH), 0);
}
