/* Disks and shares of the backend with a peer in QEMU's place: everything is real but the
 * program in the jail, which misbehaves as its name says. */
#include "base/clock.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/str.h"
#include "fixture/qemu_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#define AMPLE (30 * NS_PER_S) /* for what succeeds, on a machine that has other things to do */
#define ENOUGH NS_PER_S       /* for what never comes, once all before it has */

struct fixture {
    struct qemu_fixture fixture;
    int image;
};

static void start_limited(struct ctx *ctx, struct fixture *f, const char *part, uint32_t disk_mib,
                          uint32_t iops)
{
    fixture_prepare(ctx, &f->fixture, part, "", 61100);
    f->fixture.doc.scsi_controllers = 1;
    f->fixture.doc.shape.disk_iops = iops;
    f->fixture.doc.disk_mib = disk_mib;
    fixture_start(&f->fixture);
    f->image = open(f->fixture.initrd, O_RDWR | O_CLOEXEC);
    ASSERT(f->image >= 0);
}

static void start_with(struct ctx *ctx, struct fixture *f, const char *part, uint32_t disk_mib)
{
    start_limited(ctx, f, part, disk_mib, 0);
}

static void start(struct ctx *ctx, struct fixture *f, const char *part)
{
    start_with(ctx, f, part, 0);
}

static void finish(struct fixture *f)
{
    fixture_quit(&f->fixture);
    fd_close(f->image);
}

static int add_at(struct fixture *f, struct scsi_slot slot, uint64_t timeout, struct err *err)
{
    struct ctx limited = ctx_with_timeout(f->fixture.ctx, timeout);

    return f->fixture.v->ops->scsi_add(&limited, f->fixture.v, slot, f->image, false, err);
}

static int add(struct fixture *f, uint8_t lun, uint64_t timeout, struct err *err)
{
    return add_at(f, (struct scsi_slot){ 0, lun }, timeout, err);
}

static int take_at(struct fixture *f, struct scsi_slot slot, uint64_t timeout, struct err *err)
{
    struct ctx limited = ctx_with_timeout(f->fixture.ctx, timeout);

    return f->fixture.v->ops->scsi_remove(&limited, f->fixture.v, slot, err);
}

static int take(struct fixture *f, uint8_t lun, uint64_t timeout, struct err *err)
{
    return take_at(f, (struct scsi_slot){ 0, lun }, timeout, err);
}

/* A real QEMU takes these in tests/integration and by each clone in tests/e2e. */
TEST_FIBER(an_image_of_the_right_size_fills_the_disk_of_boot)
{
    struct fixture f;
    struct err err = ERR_INIT;

    start_with(ctx, &f, "spare", 1);
    ASSERT_EQ(ftruncate(f.image, 1 << 20), 0);
    ASSERT_OK(add(&f, 1, AMPLE, &err), err); /* another slot is another disk */
    ASSERT_OK(add(&f, 0, AMPLE, &err), err);
    ASSERT_FAIL(add(&f, 0, AMPLE, &err), err, ERR_STATE);
    ASSERT_EQ(err.reason, REASON_DISK_FAILED);
    for (uint8_t lun = 0; lun < 2; lun++)
        ASSERT_OK(take(&f, lun, AMPLE, &err), err);
    ASSERT_OK(add(&f, 0, AMPLE, &err), err); /* it was there once */
    ASSERT_OK(take(&f, 0, AMPLE, &err), err);
    finish(&f);
}

TEST_FIBER(an_image_of_another_size_takes_the_place_of_the_disk_of_boot)
{
    struct fixture f;
    struct err err = ERR_INIT;

    start_with(ctx, &f, "spare", 1);
    ASSERT_OK(add(&f, 0, AMPLE, &err), err);
    ASSERT_OK(take(&f, 0, AMPLE, &err), err);
    finish(&f);
}

TEST_FIBER(a_disk_of_boot_that_is_not_filled_leaves_nothing)
{
    static const char *const steps[] = { "add-fd", "blockdev-add", "blockdev-reopen" };

    /* A descriptor whose answer is lost is the business of all disks. */
    for (size_t i = 0; i < 2 * ARRAY_LEN(steps) - 1; i++) {
        bool lost = i >= ARRAY_LEN(steps);
        AUTO_FREE char *part =
            str_format("%s.%s", lost ? "lost" : "error", steps[lost ? i - 2 : i]);
        struct fixture f;
        struct err err = ERR_INIT;

        start_with(ctx, &f, part, 1);
        ASSERT_EQ(ftruncate(f.image, 1 << 20), 0);
        ASSERT_FAIL(add(&f, 0, lost ? ENOUGH : AMPLE, &err), err,
                    lost ? ERR_DEADLINE : ERR_UNKNOWN);
        ASSERT_OK(add(&f, 0, AMPLE, &err), err);
        ASSERT_OK(take(&f, 0, AMPLE, &err), err);
        finish(&f);
    }
}

TEST_FIBER(disks_with_a_limit_are_in_one_group)
{
    static const char *const parts[] = { "error.object-add", "lost.object-add" };

    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        struct fixture f;
        struct err err = ERR_INIT;

        start_limited(ctx, &f, parts[i], 0, 100);
        ASSERT_FAIL(add(&f, 3, i ? ENOUGH : AMPLE, &err), err, i ? ERR_DEADLINE : ERR_UNKNOWN);
        ASSERT_MSG_HAS(err.msg, "disk 0:3: limit the disks");
        for (uint8_t lun = 3; lun < 5; lun++)
            ASSERT_OK(add(&f, lun, AMPLE, &err), err);
        for (uint8_t lun = 3; lun < 5; lun++)
            ASSERT_OK(take(&f, lun, AMPLE, &err), err);
        finish(&f);
    }
}

TEST_FIBER(a_spare_disk_that_is_never_used_causes_no_error)
{
    struct fixture f;

    start_with(ctx, &f, "spare", 1);
    finish(&f);
}

TEST_FIBER(a_disk_that_qemu_refuses_at_any_step_leaves_nothing)
{
    static const char *const steps[] = { "add-fd", "blockdev-add", "device_add" };

    for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
        AUTO_FREE char *part = str_format("error.%s", steps[i]);
        struct fixture f;
        struct err err = ERR_INIT;

        start(ctx, &f, part);
        ASSERT_FAIL(add(&f, 3, AMPLE, &err), err, ERR_UNKNOWN);
        ASSERT_HAS(err.msg, steps[i]);
        ASSERT_OK(add(&f, 3, AMPLE, &err), err);
        ASSERT_OK(take(&f, 3, AMPLE, &err), err);
        ASSERT_FAIL(add(&f, 3, 0, &err), err, ERR_DEADLINE);
        finish(&f);
    }
}

TEST_FIBER(a_step_whose_answer_is_lost_is_undone_all_the_same)
{
    static const char *const steps[] = { "add-fd", "blockdev-add", "device_add" };

    for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
        AUTO_FREE char *part = str_format("lost.%s", steps[i]);
        struct fixture f;
        struct err err = ERR_INIT;

        start(ctx, &f, part);
        ASSERT_FAIL(add(&f, 3, 200 * NS_PER_MS, &err), err, ERR_DEADLINE);
        finish(&f);
    }
}

TEST_FIBER(a_removal_that_fails_at_any_step_continues_there)
{
    static const char *const steps[] = { "device_del", "blockdev-del" };

    for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
        for (int lost = 0; lost < 2; lost++) {
            AUTO_FREE char *part = str_format("%s.%s", lost ? "lost" : "error", steps[i]);
            struct fixture f;
            struct err err = ERR_INIT;

            start(ctx, &f, part);
            ASSERT_OK(add(&f, 0, AMPLE, &err), err);
            ASSERT_FAIL(take(&f, 0, lost ? ENOUGH : AMPLE, &err), err,
                        lost ? ERR_DEADLINE : ERR_UNKNOWN);
            ASSERT_OK(take(&f, 0, AMPLE, &err), err);
            ASSERT_OK(take(&f, 0, AMPLE, &err), err);
            finish(&f);
        }
    }
}

TEST_FIBER(a_missing_event_is_asked_for_again)
{
    struct fixture f;
    struct err err = ERR_INIT;

    start(ctx, &f, "quiet.device_del");
    ASSERT_OK(add(&f, 0, AMPLE, &err), err);
    ASSERT_OK(take(&f, 0, AMPLE, &err), err);
    finish(&f);
}

struct adder {
    struct fixture *f;
    uint8_t lun;
};

static void add_fiber(void *arg)
{
    struct adder *a = arg;
    struct err err = ERR_INIT;

    ASSERT_OK(add(a->f, a->lun, AMPLE, &err), err);
}

TEST_FIBER(many_disks_at_once_each_get_their_own_descriptor)
{
    struct fixture f;
    struct adder adders[16];
    struct fibers g;
    struct err err = ERR_INIT;

    start(ctx, &f, "plain");
    fibers_init(&g);
    for (uint8_t i = 0; i < 16; i++) {
        adders[i] = (struct adder){ &f, i };
        fibers_go(&g, ctx->loop, add_fiber, &adders[i], "adder");
    }
    ASSERT_OK(fibers_wait(ctx, &g, "adders", &err), err);
    for (uint8_t i = 0; i < 16; i++)
        ASSERT_OK(take(&f, i, AMPLE, &err), err);
    finish(&f);
}

/* The peer chokes on a controller that comes before those below it or in another's place. */
TEST_FIBER(controllers_come_with_their_first_disk_and_in_order)
{
    struct fixture f;
    struct err err = ERR_INIT;
    const struct scsi_slot third = { 3, 5 }, first = { 1, 0 };

    start(ctx, &f, "plain");
    ASSERT_OK(add_at(&f, third, AMPLE, &err), err);
    ASSERT_OK(add_at(&f, first, AMPLE, &err), err);
    ASSERT_FAIL(add_at(&f, (struct scsi_slot){ 4, 0 }, NS_PER_S, &err), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "a VM has 4 SCSI controllers of 64");
    err_clear(&err);
    /* Not the first one of the next controller. */
    ASSERT_FAIL(add_at(&f, (struct scsi_slot){ 0, 64 }, NS_PER_S, &err), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "disk 0:64: a VM has 4 SCSI controllers of 64");
    err_clear(&err);
    ASSERT_OK(take_at(&f, third, AMPLE, &err), err);
    ASSERT_OK(take_at(&f, first, AMPLE, &err), err);
    finish(&f);
}

TEST_FIBER(a_controller_that_is_refused_or_whose_answer_is_lost_is_asked_for_again)
{
    for (int lost = 0; lost < 2; lost++) {
        const struct scsi_slot slot = { 2, 63 };
        struct fixture f;
        struct err err = ERR_INIT;

        start(ctx, &f, lost ? "lost.controller" : "error.controller");
        ASSERT_FAIL(add_at(&f, slot, lost ? ENOUGH : AMPLE, &err), err,
                    lost ? ERR_DEADLINE : ERR_UNKNOWN);
        ASSERT_MSG_HAS(err.msg, "add SCSI controller 1");
        err_clear(&err);
        ASSERT_OK(add_at(&f, slot, AMPLE, &err), err);
        ASSERT_OK(take_at(&f, slot, AMPLE, &err), err);
        finish(&f);
    }
}

static char *in_jail(struct fixture *f, const char *path)
{
    struct vmm_info info;

    f->fixture.v->ops->info(f->fixture.v, &info);
    return str_format("/proc/%d/root/shares/%s", info.pid, path);
}

/* With a mount below it, and the guest still inside: both go, and the host's own stay. */
TEST_FIBER(a_share_is_seen_in_the_jail_alone_and_goes_with_all_below_it)
{
    struct fixture f;
    struct err err = ERR_INIT;

    start(ctx, &f, "plain");
    AUTO_FREE char *dir = str_format("%s/dir", f.fixture.temp.dir),
                   *sub = str_format("%s/sub", dir);
    AUTO_FREE char *file = str_format("%s/f", sub);
    ASSERT_EQ(dir_make(sub, 0755), 0);
    ASSERT_EQ(mount("below", sub, "tmpfs", 0, "size=64k"), 0);
    int made = file_write(file, "one", 3, 0644);
    AUTO_FD int tree = open_tree(AT_FDCWD, dir, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE);
    int added = f.fixture.v->ops->share_add(ctx, f.fixture.v, "5", tree, true, &err);
    AUTO_FREE char *seen = in_jail(&f, "5/sub/f"), *top = in_jail(&f, "5"), *new = in_jail(&f, "x");
    AUTO_FD int fd = open(seen, O_RDONLY | O_CLOEXEC);
    int wrote = open(seen, O_WRONLY | O_CLOEXEC), why = errno;
    int outside = mkdir(new, 0755), why_outside = errno;
    fd_close(TAKE_FD(tree));
    int removed = f.fixture.v->ops->share_remove(ctx, f.fixture.v, "5", &err);
    int left = access(top, F_OK), still = access(file, F_OK);
    int cleaned = umount2(sub, MNT_DETACH);

    ASSERT_EQ(made, 0);
    ASSERT_OK(added, err);
    ASSERT(fd >= 0);
    ASSERT_EQ(wrote, -1);
    ASSERT_EQ(why, EROFS);
    ASSERT_EQ(outside, -1);
    ASSERT_EQ(why_outside, EROFS);
    ASSERT_OK(removed, err);
    ASSERT_EQ(left, -1);
    ASSERT_EQ(still, 0);
    ASSERT_EQ(cleaned, 0);
    finish(&f);
}

/* Somebody's mistake: a mount of the host itself. It stays as it is. */
TEST_FIBER(a_mount_of_the_host_is_refused_and_not_touched)
{
    struct fixture f;
    struct err err = ERR_INIT;

    start(ctx, &f, "plain");
    AUTO_FREE char *dir = str_format("%s/host", f.fixture.temp.dir),
                   *file = str_format("%s/new", dir);
    ASSERT_EQ(mkdir(dir, 0755), 0);
    ASSERT_EQ(mount("host", dir, "tmpfs", 0, "size=64k"), 0);
    AUTO_FD int no_tree = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int r = f.fixture.v->ops->share_add(ctx, f.fixture.v, "6", no_tree, true, &err);
    int wrote = file_write(file, "x", 1, 0600);

    fd_close(TAKE_FD(no_tree));
    ASSERT_EQ(umount2(dir, MNT_DETACH), 0);
    ASSERT_EQ(r, -1);
    ASSERT_MSG_HAS(err.msg, "share 6");
    ASSERT_EQ(wrote, 0);
    AUTO_FREE char *top = in_jail(&f, "6");
    ASSERT_EQ(access(top, F_OK), -1);
    ASSERT_OK(f.fixture.v->ops->share_remove(ctx, f.fixture.v, "6", &err), err);
    finish(&f);
}

TEST_FIBER(hundreds_of_shares_fit_and_go)
{
    struct fixture f;
    struct err err = ERR_INIT;
    unsigned there = 0;

    start(ctx, &f, "plain");
    for (unsigned i = 0; i < 400; i++) {
        AUTO_FREE char *name = str_format("%u", i);
        AUTO_FD int tree =
            open_tree(AT_FDCWD, f.fixture.temp.dir, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
        ASSERT_OK(f.fixture.v->ops->share_add(ctx, f.fixture.v, name, tree, true, &err), err);
    }
    for (unsigned i = 0; i < 400; i++) {
        AUTO_FREE char *name = str_format("%u", i), *seen = in_jail(&f, name);
        there += access(seen, F_OK) == 0;
        ASSERT_OK(f.fixture.v->ops->share_remove(ctx, f.fixture.v, name, &err), err);
    }
    ASSERT_EQ(there, 400);
    finish(&f);
}

/* A loop device over the fixture's initrd; gone with its last descriptor. -1: none here. */
static int loop_device(struct fixture *f, char *path, size_t size)
{
    AUTO_FD int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
    AUTO_FD int file = open(f->fixture.initrd, O_RDWR | O_CLOEXEC);
    struct loop_info64 info = { .lo_flags = LO_FLAGS_AUTOCLEAR };
    int n = control < 0 || ftruncate(file, 4096) < 0 ? -1 : ioctl(control, LOOP_CTL_GET_FREE);

    snprintf(path, size, "/dev/loop%d", n);
    AUTO_FD int fd = n < 0 ? -1 : open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || ioctl(fd, LOOP_SET_FD, file) < 0)
        return -1;
    if (ioctl(fd, LOOP_SET_STATUS64, &info) < 0) {
        ioctl(fd, LOOP_CLR_FD);
        return -1;
    }
    return TAKE_FD(fd);
}

/* Opens each block device that the VMM holds anew, for writing. Their number; *ret_why: errno. */
static unsigned write_devices(struct fixture *f, int *ret_why)
{
    struct vmm_info info;
    unsigned found = 0;

    f->fixture.v->ops->info(f->fixture.v, &info);
    for (int i = 3; i < 64; i++) {
        AUTO_FREE char *path = str_format("/proc/%d/fd/%d", info.pid, i);
        struct stat st;

        if (stat(path, &st) < 0 || !S_ISBLK(st.st_mode))
            continue;
        found++;
        AUTO_FD int fd = open(path, O_RDWR | O_CLOEXEC);
        *ret_why = fd < 0 ? errno : 0;
    }
    return found;
}

TEST_FIBER(a_device_to_be_read_cannot_be_opened_for_writing_by_the_vmm)
{
    struct fixture f;
    struct err err = ERR_INIT;
    char path[32];
    int why = 0;

    start(ctx, &f, "plain");
    AUTO_FD int loop = loop_device(&f, path, sizeof(path));
    if (loop < 0) {
        finish(&f);
        tap_skip("no loop devices here");
    }
    AUTO_FD int device = open(path, O_RDONLY | O_CLOEXEC);
    int added = f.fixture.v->ops->scsi_add(ctx, f.fixture.v, (struct scsi_slot){ 0, 1 }, device,
                                           true, &err);
    unsigned found = write_devices(&f, &why);
    int taken = take(&f, 1, AMPLE, &err);

    fd_close(TAKE_FD(device));
    fd_close(TAKE_FD(loop));
    finish(&f);
    ASSERT_OK(added, err);
    ASSERT_OK(taken, err);
    ASSERT_EQ(found, 1);
    ASSERT_EQ(why, EACCES);
}
