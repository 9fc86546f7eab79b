#include "base/err.h"
#include "harness/fsm_table.h"
#include "host/control/files_rig.h"
#include "host/control/scsi.h"
#include "host/control/scsi_priv.h"

struct fixture {
    struct files_rig rig;
    struct scsi *c;
    int a, b; /* two files */
};

static void start(struct ctx *ctx, struct fixture *f)
{
    files_rig_start(ctx, &f->rig);
    f->c = scsi_new(f->rig.vmm, &f->rig.guest, 1);
    f->a = rig_file();
    f->b = rig_file();
}

static void finish(struct ctx *ctx, struct fixture *f)
{
    ASSERT_EQ(scsi_used_slots(f->c), 0);
    files_rig_clean(&f->rig);
    scsi_free(f->c);
    files_rig_finish(ctx, &f->rig);
    fd_close(f->a);
    fd_close(f->b);
}

static uint64_t reserve(struct ctx *ctx, struct fixture *f, int fd, uint64_t partition)
{
    const struct scsi_disk d = { .host_path = "/layers/x.img", .fd = fd, .read_only = true };
    const struct scsi_mount m = { .partition = partition, .read_only = true };
    struct err err = ERR_INIT;
    uint64_t id = 0;

    ASSERT_OK(scsi_reserve(ctx, f->c, &d, &m, &id, &err), err);
    return id;
}

FILES_RIG_CALLS(scsi)

TEST(every_step_of_a_disk_and_of_a_mount_is_in_its_table)
{
    fsm_table_check(&scsi_disk_fsm);
    fsm_table_check(&scsi_mount_fsm);
}

TEST(an_ejected_or_invalid_disk_cannot_be_attached)
{
    struct err err = ERR_INIT;

    ASSERT_FAIL(fsm_check(&scsi_disk_fsm, DISK_EJECTED, DISK_EV_ATTACHED, &err), err, ERR_STATE);
    ASSERT_FAIL(fsm_check(&scsi_disk_fsm, DISK_INVALID, DISK_EV_ATTACHED, &err), err, ERR_STATE);
    ASSERT_FAIL(fsm_check(&scsi_disk_fsm, DISK_DETACHED, DISK_EV_ATTACHED, &err), err, ERR_STATE);
    ASSERT_FAIL(fsm_check(&scsi_mount_fsm, MOUNT_INVALID, MOUNT_EV_MOUNTED, &err), err, ERR_STATE);
}

TEST_VIRTUAL(a_disk_is_attached_mounted_and_taken_back)
{
    struct fixture f;

    start(ctx, &f);
    uint64_t id = reserve(ctx, &f, f.a, 0);
    ASSERT_EQ(f.rig.calls[RIG_MOUNT_DISK], 0);
    map(ctx, &f, id, "/run/mounts/scsi/0_0_0");
    map(ctx, &f, id, "/run/mounts/scsi/0_0_0"); /* idempotent */
    ASSERT_EQ(f.rig.calls[RIG_MOUNT_DISK], 1);
    ASSERT_EQ(scsi_used_slots(f.c), 1);
    unmap(ctx, &f, id);
    ASSERT_EQ(f.rig.calls[RIG_EJECT], 1);
    finish(ctx, &f);
}

TEST_VIRTUAL(one_file_is_one_disk_whatever_its_path_says)
{
    struct fixture f;

    start(ctx, &f);
    AUTO_FREE char *again = str_format("/proc/self/fd/%d", f.a);
    AUTO_FD int same = open(again, O_RDONLY | O_CLOEXEC);
    uint64_t one = reserve(ctx, &f, f.a, 0), two = reserve(ctx, &f, same, 0);
    uint64_t part = reserve(ctx, &f, same, 2), other = reserve(ctx, &f, f.b, 0);

    map(ctx, &f, one, "/run/mounts/scsi/0_0_0");
    map(ctx, &f, two, "/run/mounts/scsi/0_0_0");
    map(ctx, &f, part, "/run/mounts/scsi/0_0_2");
    map(ctx, &f, other, "/run/mounts/scsi/0_1_0");
    ASSERT_EQ(scsi_used_slots(f.c), 2);
    ASSERT_EQ(f.rig.calls[RIG_MOUNT_DISK], 3);
    unmap(ctx, &f, one);
    ASSERT_EQ(f.rig.calls[RIG_UNMOUNT_DISK], 0);
    unmap(ctx, &f, part);
    ASSERT_EQ(f.rig.calls[RIG_EJECT], 0);
    unmap(ctx, &f, two);
    ASSERT_EQ(f.rig.calls[RIG_EJECT], 1);
    unmap(ctx, &f, other);
    finish(ctx, &f);
}

TEST_VIRTUAL(a_file_in_another_way_is_refused)
{
    static const char *const options[] = { "noatime", "ro", NULL };
    static const char *const turned[] = { "RO", "noatime", NULL };
    struct fixture f;
    struct err err = ERR_INIT;
    uint64_t id = 0, same = 0;

    start(ctx, &f);
    const struct scsi_disk ro = { .host_path = "/x", .fd = f.a, .read_only = true };
    const struct scsi_disk rw = { .host_path = "/x", .fd = f.a };
    const struct scsi_mount m = { .read_only = true, .options = options };
    const struct scsi_mount m2 = { .read_only = true, .options = turned };
    const struct scsi_mount ext4 = { .read_only = true, .options = options, .filesystem = "ext4" };

    ASSERT_OK(scsi_reserve(ctx, f.c, &ro, &m, &id, &err), err);
    ASSERT_FAIL(scsi_reserve(ctx, f.c, &rw, &m, &same, &err), err, ERR_STATE);
    ASSERT_FAIL(scsi_reserve(ctx, f.c, &ro, &ext4, &same, &err), err, ERR_STATE);
    ASSERT_OK(scsi_reserve(ctx, f.c, &ro, &m2, &same, &err), err);
    unmap(ctx, &f, same);
    unmap(ctx, &f, id);
    finish(ctx, &f);
}

TEST_VIRTUAL(slots_are_given_lowest_first_and_run_out)
{
    struct fixture f;
    struct err err = ERR_INIT;
    uint64_t ids[SCSI_LUNS], more;

    start(ctx, &f);
    for (unsigned i = 0; i < SCSI_LUNS; i++) {
        AUTO_FD int fd = rig_file();
        ids[i] = reserve(ctx, &f, fd, 0);
    }
    const struct scsi_disk d = { .host_path = "/one/too/many", .fd = f.a, .read_only = true };
    ASSERT_FAIL(scsi_reserve(ctx, f.c, &d, &(struct scsi_mount){ 0 }, &more, &err), err,
                ERR_EXHAUSTED);
    ASSERT_HAS(err.msg, "/one/too/many");
    unmap(ctx, &f, ids[5]);
    unmap(ctx, &f, ids[3]);
    ids[3] = reserve(ctx, &f, f.a, 0);
    map(ctx, &f, ids[3], "/run/mounts/scsi/0_3_0");
    for (unsigned i = 0; i < SCSI_LUNS; i++)
        if (i != 5)
            unmap(ctx, &f, ids[i]);
    finish(ctx, &f);
}

TEST_VIRTUAL(ws16_a_failed_mount_leaves_nothing_stuck)
{
    struct fixture f;

    start(ctx, &f);
    for (int lost = 0; lost < 2; lost++) {
        uint64_t one = reserve(ctx, &f, f.a, 0), two = reserve(ctx, &f, f.a, 0);

        f.rig.faults[RIG_MOUNT_DISK] = lost ? RIG_LOST : RIG_FAIL;
        map_fails(ctx, &f, one, ERR_INTERNAL);
        map_fails(ctx, &f, two, ERR_STATE);
        uint64_t three = reserve(ctx, &f, f.a, 0); /* need not wait for them */
        map(ctx, &f, three, "/run/mounts/scsi/0_1_0");
        unmap(ctx, &f, three);
        unmap(ctx, &f, one);
        unmap(ctx, &f, two);
        ASSERT_EQ(scsi_used_slots(f.c), 0);
        files_rig_clean(&f.rig);
    }
    uint64_t again = reserve(ctx, &f, f.a, 0);
    map(ctx, &f, again, "/run/mounts/scsi/0_0_0");
    unmap(ctx, &f, again);
    finish(ctx, &f);
}

TEST_VIRTUAL(ws16_a_reservation_released_before_map_gives_its_slot_back)
{
    struct fixture f;

    start(ctx, &f);
    uint64_t one = reserve(ctx, &f, f.a, 0), two = reserve(ctx, &f, f.a, 0);

    unmap(ctx, &f, one);
    ASSERT_EQ(scsi_used_slots(f.c), 1);
    unmap(ctx, &f, two);
    ASSERT_EQ(scsi_used_slots(f.c), 0);
    ASSERT_EQ(f.rig.calls[RIG_EJECT] + f.rig.calls[RIG_UNMOUNT_DISK], 0);
    finish(ctx, &f);
}

TEST_VIRTUAL(ws16_a_failed_attach_with_two_holders_is_survived)
{
    struct fixture f;

    start(ctx, &f);
    uint64_t one = reserve(ctx, &f, f.a, 0), two = reserve(ctx, &f, f.a, 1);

    fake_vmm_tune(f.rig.vmm)->scsi_add.how = FAKE_FAIL;
    map_fails(ctx, &f, one, ERR_INTERNAL);
    fake_vmm_tune(f.rig.vmm)->scsi_add.how = FAKE_OK;
    map_fails(ctx, &f, two, ERR_STATE);
    /* A third who comes now gets a disk that works. */
    uint64_t three = reserve(ctx, &f, f.a, 0);
    map(ctx, &f, three, "/run/mounts/scsi/0_1_0");
    unmap(ctx, &f, one);
    ASSERT_EQ(scsi_used_slots(f.c), 2);
    unmap(ctx, &f, two);
    ASSERT_EQ(scsi_used_slots(f.c), 1);
    unmap(ctx, &f, three);
    finish(ctx, &f);
}

TEST_VIRTUAL(ws16_nobody_gets_a_disk_that_was_ejected)
{
    struct fixture f;

    start(ctx, &f);
    uint64_t one = reserve(ctx, &f, f.a, 0);

    map(ctx, &f, one, "/run/mounts/scsi/0_0_0");
    fake_vmm_tune(f.rig.vmm)->scsi_remove.how = FAKE_FAIL;
    unmap_fails(ctx, &f, one, ERR_INTERNAL);
    map_fails(ctx, &f, one, ERR_STATE);
    uint64_t two = reserve(ctx, &f, f.a, 0);
    map(ctx, &f, two, "/run/mounts/scsi/0_1_0");
    fake_vmm_tune(f.rig.vmm)->scsi_remove.how = FAKE_OK;
    unmap(ctx, &f, one);
    unmap(ctx, &f, two);
    ASSERT_EQ(f.rig.calls[RIG_EJECT], 2); /* not repeated */
    finish(ctx, &f);
}

TEST_VIRTUAL(a_failed_unmap_goes_on_where_it_stopped)
{
    struct fixture f;

    start(ctx, &f);
    uint64_t id = reserve(ctx, &f, f.a, 0);

    map(ctx, &f, id, "/run/mounts/scsi/0_0_0");
    f.rig.faults[RIG_UNMOUNT_DISK] = RIG_FAIL;
    unmap_fails(ctx, &f, id, ERR_INTERNAL);
    f.rig.faults[RIG_EJECT] = RIG_FAIL;
    unmap_fails(ctx, &f, id, ERR_INTERNAL);
    fake_vmm_tune(f.rig.vmm)->scsi_remove.how = FAKE_FAIL;
    unmap_fails(ctx, &f, id, ERR_INTERNAL);
    fake_vmm_tune(f.rig.vmm)->scsi_remove.how = FAKE_OK;
    unmap(ctx, &f, id);
    ASSERT_EQ(f.rig.calls[RIG_UNMOUNT_DISK], 2);
    ASSERT_EQ(f.rig.calls[RIG_EJECT], 2);
    finish(ctx, &f);
}

TEST_VIRTUAL(somebody_new_does_not_get_a_disk_whose_eject_failed)
{
    struct fixture f;

    start(ctx, &f);
    uint64_t one = reserve(ctx, &f, f.a, 0);

    map(ctx, &f, one, "/run/mounts/scsi/0_0_0");
    f.rig.faults[RIG_EJECT] = RIG_FAIL;
    unmap_fails(ctx, &f, one, ERR_INTERNAL);
    uint64_t two = reserve(ctx, &f, f.a, 0); /* the guest may have ejected it all the same */
    map(ctx, &f, two, "/run/mounts/scsi/0_1_0");
    unmap(ctx, &f, one);
    unmap(ctx, &f, two);
    finish(ctx, &f);
}

TEST_VIRTUAL(a_silent_guest_costs_the_deadline_and_no_slot)
{
    struct fixture f;
    struct ctx limited = ctx_with_timeout(ctx, NS_PER_S);

    start(ctx, &f);
    uint64_t id = reserve(ctx, &f, f.a, 0);

    f.rig.faults[RIG_MOUNT_DISK] = RIG_HANG;
    map_fails(&limited, &f, id, ERR_DEADLINE);
    unmap_fails(&limited, &f, id, ERR_DEADLINE); /* its time is over too */
    unmap(ctx, &f, id);
    finish(ctx, &f);
}

TEST_VIRTUAL(a_guest_or_vm_that_is_gone_counts_as_done)
{
    struct fixture f;

    start(ctx, &f);
    uint64_t one = reserve(ctx, &f, f.a, 0), two = reserve(ctx, &f, f.b, 0);

    map(ctx, &f, one, "/run/mounts/scsi/0_0_0");
    map(ctx, &f, two, "/run/mounts/scsi/0_1_0");
    f.rig.faults[RIG_UNMOUNT_DISK] = f.rig.faults[RIG_EJECT] = RIG_GONE;
    unmap(ctx, &f, one);
    f.rig.paths[0][0] = '\0'; /* went with the guest */
    fake_vmm_die(f.rig.vmm, FAKE_KILLED);
    f.rig.faults[RIG_UNMOUNT_DISK] = f.rig.faults[RIG_EJECT] = RIG_GONE;
    unmap(ctx, &f, two);
    f.rig.paths[1][0] = '\0';
    uint64_t three = reserve(ctx, &f, f.a, 0);
    map_fails(ctx, &f, three, ERR_UNAVAILABLE);
    unmap(ctx, &f, three);
    finish(ctx, &f);
}
