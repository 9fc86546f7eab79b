#include "base/err.h"
#include "fixture/device_fixture.h"
#include "fixture/files_fixture.h"
#include "harness/fsm_table.h"
#include "host/device/scsi.h"
#include "host/device/scsi_priv.h"

struct fixture {
    struct files_fixture fixture;
    struct scsi *c;
    int a, b; /* two files */
};

static void start(struct ctx *ctx, struct fixture *f)
{
    files_fixture_start(ctx, &f->fixture);
    f->c = scsi_new(f->fixture.vmm, &f->fixture.guest, SCSI_CONTROLLERS_MAX);
    f->a = fixture_file();
    f->b = fixture_file();
}

static void finish(struct ctx *ctx, struct fixture *f)
{
    ASSERT_EQ(scsi_used_slots(f->c), 0);
    files_fixture_clean(&f->fixture);
    scsi_free(f->c);
    files_fixture_finish(ctx, &f->fixture);
    fd_close(f->a);
    fd_close(f->b);
}

static uint64_t reserve(struct ctx *ctx, struct fixture *f, int fd, uint64_t partition)
{
    const struct scsi_disk d = { .host_path = "/layers/x.img", .fd = fd, .read_only = true };
    const struct guest_disk m = { .partition = partition, .read_only = true };
    struct err err = ERR_INIT;
    uint64_t id = 0;

    ASSERT_OK(scsi_reserve(ctx, f->c, &d, &m, &id, &err), err);
    return id;
}

FILES_FIXTURE_CALLS(scsi)

TEST(every_step_of_a_disk_is_in_its_table)
{
    fsm_table_check(&scsi_disk_fsm);
}

TEST(an_ejected_or_invalid_disk_cannot_be_attached)
{
    struct err err = ERR_INIT;

    ASSERT_FAIL(fsm_check(&scsi_disk_fsm, DISK_EJECTED, DISK_EV_ATTACHED, &err), err, ERR_STATE);
    ASSERT_FAIL(fsm_check(&scsi_disk_fsm, DISK_INVALID, DISK_EV_ATTACHED, &err), err, ERR_STATE);
    ASSERT_FAIL(fsm_check(&scsi_disk_fsm, DISK_DETACHED, DISK_EV_ATTACHED, &err), err, ERR_STATE);
    ASSERT_FAIL(fsm_check(&part_fsm, PART_INVALID, PART_EV_ADDED, &err), err, ERR_STATE);
}

TEST_VIRTUAL(a_disk_is_attached_mounted_and_released)
{
    struct fixture f;

    start(ctx, &f);
    uint64_t id = reserve(ctx, &f, f.a, 0);
    ASSERT_EQ(f.fixture.calls[FIXTURE_MOUNT_DISK], 0);
    map(ctx, &f, id, "/run/mounts/scsi/0_0_0");
    map(ctx, &f, id, "/run/mounts/scsi/0_0_0"); /* idempotent */
    ASSERT_EQ(f.fixture.calls[FIXTURE_MOUNT_DISK], 1);
    ASSERT_EQ(scsi_used_slots(f.c), 1);
    unmap(ctx, &f, id);
    ASSERT_EQ(f.fixture.calls[FIXTURE_EJECT], 1);
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
    ASSERT_EQ(f.fixture.calls[FIXTURE_MOUNT_DISK], 3);
    unmap(ctx, &f, one);
    ASSERT_EQ(f.fixture.calls[FIXTURE_UNMOUNT_DISK], 0);
    unmap(ctx, &f, part);
    ASSERT_EQ(f.fixture.calls[FIXTURE_EJECT], 0);
    unmap(ctx, &f, two);
    ASSERT_EQ(f.fixture.calls[FIXTURE_EJECT], 1);
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
    const struct guest_disk m = { .read_only = true, .options = options };
    const struct guest_disk m2 = { .read_only = true, .options = turned };
    const struct guest_disk ext4 = { .read_only = true, .options = options, .filesystem = "ext4" };

    ASSERT_OK(scsi_reserve(ctx, f.c, &ro, &m, &id, &err), err);
    ASSERT_FAIL(scsi_reserve(ctx, f.c, &rw, &m, &same, &err), err, ERR_STATE);
    ASSERT_FAIL(scsi_reserve(ctx, f.c, &ro, &ext4, &same, &err), err, ERR_STATE);
    ASSERT_OK(scsi_reserve(ctx, f.c, &ro, &m2, &same, &err), err);
    unmap(ctx, &f, same);
    unmap(ctx, &f, id);
    finish(ctx, &f);
}

TEST_VIRTUAL(a_group_of_files_is_part_of_the_way_a_disk_is_mounted)
{
    struct fixture f;
    struct err err = ERR_INIT;
    uint64_t id = 0, same = 0;

    start(ctx, &f);
    const struct scsi_disk d = { .host_path = "/x", .fd = f.a };
    struct guest_disk m = { .fs_group = 2000, .fs_group_policy = "Always" };

    ASSERT_OK(scsi_reserve(ctx, f.c, &d, &m, &id, &err), err);
    ASSERT_OK(scsi_reserve(ctx, f.c, &d, &m, &same, &err), err);
    unmap(ctx, &f, same);
    m.fs_group = 2001;
    ASSERT_FAIL(scsi_reserve(ctx, f.c, &d, &m, &same, &err), err, ERR_STATE);
    m = (struct guest_disk){ .fs_group = 2000 };
    ASSERT_FAIL(scsi_reserve(ctx, f.c, &d, &m, &same, &err), err, ERR_STATE);
    unmap(ctx, &f, id);
    finish(ctx, &f);
}

TEST_VIRTUAL(a_disk_that_is_attached_can_grow_and_not_shrink)
{
    struct fixture f;
    struct err err = ERR_INIT;
    uint64_t id = 0, bytes = 0;

    start(ctx, &f);
    const struct scsi_disk d = { .host_path = "/x", .fd = f.a };

    ASSERT_EQ(ftruncate(f.a, 4096), 0);
    ASSERT_OK(scsi_reserve(ctx, f.c, &d, &(struct guest_disk){ 0 }, &id, &err), err);
    ASSERT_FAIL(scsi_resize(ctx, f.c, "/x", &bytes, &err), err, ERR_STATE);
    ASSERT_MSG_HAS(err.msg, "/x is not a disk of this VM");
    map(ctx, &f, id, "/run/mounts/scsi/0_0_0");
    ASSERT_EQ(ftruncate(f.a, 8192), 0);
    ASSERT_OK(scsi_resize(ctx, f.c, "/x", &bytes, &err), err);
    ASSERT_EQ(bytes, 8192);
    ASSERT_EQ(ftruncate(f.a, 4096), 0);
    ASSERT_FAIL(scsi_resize(ctx, f.c, "/x", &bytes, &err), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "/x has 4096 bytes, and had 8192: a disk in use cannot shrink");
    unmap(ctx, &f, id);
    finish(ctx, &f);
}

TEST_VIRTUAL(slots_are_given_lowest_first_on_four_controllers_and_run_out)
{
    struct fixture f;
    struct err err = ERR_INIT;
    uint64_t ids[SCSI_DISKS_MAX], more;

    start(ctx, &f);
    for (unsigned i = 0; i < SCSI_DISKS_MAX; i++) {
        AUTO_FD int fd = fixture_file();
        ids[i] = reserve(ctx, &f, fd, 0);
    }
    const struct scsi_disk d = { .host_path = "/one/too/many", .fd = f.a, .read_only = true };
    ASSERT_FAIL(scsi_reserve(ctx, f.c, &d, &(struct guest_disk){ 0 }, &more, &err), err,
                ERR_EXHAUSTED);
    ASSERT_HAS(err.msg, "/one/too/many");
    ASSERT_MSG_HAS(err.msg, "256 disks (4 controllers of 64)");
    map(ctx, &f, ids[255], "/run/mounts/scsi/3_63_0");
    unmap(ctx, &f, ids[70]);
    unmap(ctx, &f, ids[3]);
    ids[3] = reserve(ctx, &f, f.a, 0);
    map(ctx, &f, ids[3], "/run/mounts/scsi/0_3_0");
    ids[70] = reserve(ctx, &f, f.b, 0);
    map(ctx, &f, ids[70], "/run/mounts/scsi/1_6_0");
    for (unsigned i = 0; i < SCSI_DISKS_MAX; i++)
        unmap(ctx, &f, ids[i]);
    finish(ctx, &f);
}

static void refused(struct ctx *ctx, struct fixture *f, bool read_only, struct guest_disk m,
                    enum err_code code, const char *words)
{
    const struct scsi_disk d = { .host_path = "/x.img", .fd = f->a, .read_only = read_only };
    struct err err = ERR_INIT;
    uint64_t id;

    ASSERT_FAIL(scsi_reserve(ctx, f->c, &d, &m, &id, &err), err, code);
    ASSERT_MSG_HAS(err.msg, words);
    ASSERT_HAS(err.msg, "/x.img");
    ASSERT_EQ(scsi_used_slots(f->c), 0);
}

TEST_VIRTUAL(options_that_do_not_go_together_are_refused)
{
    struct fixture f;
    struct guest_disk verity = { .verity = true, .root_hash = "12" };

    start(ctx, &f);
    refused(ctx, &f, false, (struct guest_disk){ .verity = true }, ERR_INVALID, "read-only disks");
    refused(ctx, &f, true, verity, ERR_INVALID, "64 hex digits");
    verity.root_hash = "zz34567890123456789012345678901234567890123456789012345678901234";
    refused(ctx, &f, true, verity, ERR_INVALID, "64 hex digits");
    verity.verity = false;
    refused(ctx, &f, true, verity, ERR_INVALID, "without dm-verity");
    refused(ctx, &f, true, (struct guest_disk){ .encrypted = true, .ensure_filesystem = true },
            ERR_INVALID, "read-only");
    refused(ctx, &f, false, (struct guest_disk){ .encrypted = true }, ERR_INVALID,
            "ensure-filesystem");
    finish(ctx, &f);
}

TEST_VIRTUAL(what_was_asked_for_reaches_the_guest)
{
    static const char hash[] = "1234567890123456789012345678901234567890123456789012345678901234";
    struct fixture f;
    struct err err = ERR_INIT;
    uint64_t one = 0, two = 0, same = 0;

    start(ctx, &f);
    const struct scsi_disk ro = { .host_path = "/a", .fd = f.a, .read_only = true };
    const struct scsi_disk rw = { .host_path = "/b", .fd = f.b };
    const struct guest_disk layer = { .verity = true, .root_hash = hash };
    const struct guest_disk scratch = { .encrypted = true, .ensure_filesystem = true };

    ASSERT_OK(scsi_reserve(ctx, f.c, &ro, &layer, &one, &err), err);
    ASSERT_FAIL(scsi_reserve(ctx, f.c, &ro, &(struct guest_disk){ .verity = true }, &same, &err),
                err, ERR_STATE);
    ASSERT_FAIL(scsi_reserve(ctx, f.c, &ro, &(struct guest_disk){ 0 }, &same, &err), err,
                ERR_STATE);
    err_clear(&err);
    ASSERT_OK(scsi_reserve(ctx, f.c, &rw, &scratch, &two, &err), err);
    map(ctx, &f, one, "/run/mounts/scsi/0_0_0");
    ASSERT(f.fixture.last_disk.verity && f.fixture.last_disk.read_only); /* the disk is */
    ASSERT_STR(f.fixture.last_hash, hash);
    map(ctx, &f, two, "/run/mounts/scsi/0_1_0");
    ASSERT(f.fixture.last_disk.encrypted && f.fixture.last_disk.ensure_filesystem);
    unmap(ctx, &f, one);
    unmap(ctx, &f, two);
    finish(ctx, &f);
}

/* One that may be written by two would be destroyed. */
TEST_VIRTUAL(a_writable_file_that_is_being_released_is_not_attached_again)
{
    struct fixture f;
    struct err err = ERR_INIT;
    uint64_t id = 0, again = 0;

    start(ctx, &f);
    const struct scsi_disk rw = { .host_path = "/data.img", .fd = f.a };
    const struct scsi_disk ro = { .host_path = "/data.img", .fd = f.a, .read_only = true };
    const struct guest_disk m = { 0 };

    ASSERT_OK(scsi_reserve(ctx, f.c, &rw, &m, &id, &err), err);
    map(ctx, &f, id, "/run/mounts/scsi/0_0_0");
    f.fixture.faults[FIXTURE_EJECT] = FIXTURE_FAIL;
    unmap_fails(ctx, &f, id, ERR_INTERNAL);
    ASSERT_FAIL(scsi_reserve(ctx, f.c, &rw, &m, &again, &err), err, ERR_STATE);
    ASSERT_MSG_HAS(err.msg, "still disk 0:0, which is being released");
    ASSERT_EQ(err.reason, REASON_DISK_BUSY);
    ASSERT_FAIL(scsi_reserve(ctx, f.c, &ro, &m, &again, &err), err, ERR_STATE);
    ASSERT_MSG_HAS(err.msg, "writable: it cannot be both");
    ASSERT_EQ(err.reason, REASON_DISK_CONFLICT);
    err_clear(&err);
    unmap(ctx, &f, id);
    ASSERT_OK(scsi_reserve(ctx, f.c, &ro, &m, &again, &err), err);
    unmap(ctx, &f, again);
    finish(ctx, &f);
}

/* At either step. A slot that the guest may still use is never assigned again. */
TEST_VIRTUAL(a_disk_that_the_guest_does_not_release_is_removed)
{
    static const int steps[] = { FIXTURE_UNMOUNT_DISK, FIXTURE_EJECT };
    struct ctx root = ctx_root(ctx->loop); /* the test's own time is shorter than the guest's */
    struct fixture f;
    uint64_t before;

    start(&root, &f);
    for (unsigned i = 0; i < ARRAY_LEN(steps); i++) {
        uint64_t id = reserve(&root, &f, f.a, 0), part = reserve(&root, &f, f.a, 1);
        AUTO_FREE char *path = str_format("/run/mounts/scsi/0_%u_0", i);
        AUTO_FREE char *path1 = str_format("/run/mounts/scsi/0_%u_1", i);

        map(&root, &f, id, path);
        map(&root, &f, part, path1);
        f.fixture.faults[steps[i]] = FIXTURE_HANG;
        before = loop_now(ctx->loop);
        unmap(&root, &f, id);
        map(&root, &f, part, path1); /* its mount is not affected */
        unmap(&root, &f, part);
        ASSERT(loop_now(ctx->loop) - before <= (SCSI_GUEST_S + 1) * NS_PER_S);
        ASSERT_EQ(fake_vmm_disk(f.fixture.vmm, (struct scsi_slot){ 0, (uint8_t)i }), 0);
        ASSERT_EQ(scsi_lost_slots(f.c), i + 1);
        ASSERT_EQ(scsi_used_slots(f.c), 0);
        for (int j = 0; j < FIXTURE_PATHS; j++) /* went with the disk */
            f.fixture.paths[j][0] = '\0';
    }
    uint64_t id = reserve(&root, &f, f.a, 0);
    map(&root, &f, id, "/run/mounts/scsi/0_2_0");
    unmap(&root, &f, id);
    finish(&root, &f);
}

TEST_VIRTUAL(ws16_a_failed_mount_leaves_nothing_stuck)
{
    struct fixture f;

    start(ctx, &f);
    for (int lost = 0; lost < 2; lost++) {
        uint64_t one = reserve(ctx, &f, f.a, 0), two = reserve(ctx, &f, f.a, 0);

        f.fixture.faults[FIXTURE_MOUNT_DISK] = lost ? FIXTURE_LOST : FIXTURE_FAIL;
        map_fails(ctx, &f, one, ERR_INTERNAL);
        map_fails(ctx, &f, two, ERR_STATE);
        uint64_t three = reserve(ctx, &f, f.a, 0); /* need not wait for them */
        map(ctx, &f, three, "/run/mounts/scsi/0_1_0");
        unmap(ctx, &f, three);
        unmap(ctx, &f, one);
        unmap(ctx, &f, two);
        ASSERT_EQ(scsi_used_slots(f.c), 0);
        files_fixture_clean(&f.fixture);
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
    ASSERT_EQ(f.fixture.calls[FIXTURE_EJECT] + f.fixture.calls[FIXTURE_UNMOUNT_DISK], 0);
    finish(ctx, &f);
}

TEST_VIRTUAL(a_disk_that_is_attached_and_not_mounted_is_detached_or_mounted_later)
{
    struct fixture f;
    struct fake_facts facts;
    struct err err = ERR_INIT;

    start(ctx, &f);
    uint64_t one = reserve(ctx, &f, f.a, 0), two = reserve(ctx, &f, f.b, 0);
    ASSERT_OK(scsi_attach(ctx, f.c, one, &err), err);
    ASSERT_OK(scsi_attach(ctx, f.c, two, &err), err);
    ASSERT_OK(scsi_attach(ctx, f.c, two, &err), err); /* idempotent */
    fake_vmm_facts(f.fixture.vmm, &facts);
    ASSERT_EQ(facts.disks, 2);
    ASSERT_EQ(f.fixture.calls[FIXTURE_MOUNT_DISK], 0);
    map(ctx, &f, two, "/run/mounts/scsi/0_1_0");
    unmap(ctx, &f, one);
    ASSERT_EQ(f.fixture.calls[FIXTURE_UNMOUNT_DISK], 0);
    ASSERT_EQ(f.fixture.calls[FIXTURE_EJECT], 1);
    unmap(ctx, &f, two);
    fake_vmm_facts(f.fixture.vmm, &facts);
    ASSERT_EQ(facts.disks, 0);
    ASSERT_FAIL(scsi_attach(ctx, f.c, two, &err), err, ERR_NOT_FOUND);
    finish(ctx, &f);
}

TEST_VIRTUAL(ws16_a_failed_attach_with_two_holders_is_survived)
{
    struct fixture f;

    start(ctx, &f);
    uint64_t one = reserve(ctx, &f, f.a, 0), two = reserve(ctx, &f, f.a, 1);

    fake_vmm_tune(f.fixture.vmm)->scsi_add.how = FAKE_FAIL;
    map_fails(ctx, &f, one, ERR_INTERNAL);
    fake_vmm_tune(f.fixture.vmm)->scsi_add.how = FAKE_OK;
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

TEST_VIRTUAL(ws16_an_ejected_disk_is_never_used_again)
{
    struct fixture f;

    start(ctx, &f);
    uint64_t one = reserve(ctx, &f, f.a, 0);

    map(ctx, &f, one, "/run/mounts/scsi/0_0_0");
    fake_vmm_tune(f.fixture.vmm)->scsi_remove.how = FAKE_FAIL;
    unmap_fails(ctx, &f, one, ERR_INTERNAL);
    map_fails(ctx, &f, one, ERR_STATE);
    uint64_t two = reserve(ctx, &f, f.a, 0);
    map(ctx, &f, two, "/run/mounts/scsi/0_1_0");
    fake_vmm_tune(f.fixture.vmm)->scsi_remove.how = FAKE_OK;
    unmap(ctx, &f, one);
    unmap(ctx, &f, two);
    ASSERT_EQ(f.fixture.calls[FIXTURE_EJECT], 2); /* not repeated */
    finish(ctx, &f);
}

TEST_VIRTUAL(a_failed_unmap_continues_at_the_failed_step)
{
    struct fixture f;

    start(ctx, &f);
    uint64_t id = reserve(ctx, &f, f.a, 0);

    map(ctx, &f, id, "/run/mounts/scsi/0_0_0");
    f.fixture.faults[FIXTURE_UNMOUNT_DISK] = FIXTURE_FAIL;
    unmap_fails(ctx, &f, id, ERR_INTERNAL);
    f.fixture.faults[FIXTURE_EJECT] = FIXTURE_FAIL;
    unmap_fails(ctx, &f, id, ERR_INTERNAL);
    fake_vmm_tune(f.fixture.vmm)->scsi_remove.how = FAKE_FAIL;
    unmap_fails(ctx, &f, id, ERR_INTERNAL);
    fake_vmm_tune(f.fixture.vmm)->scsi_remove.how = FAKE_OK;
    unmap(ctx, &f, id);
    ASSERT_EQ(f.fixture.calls[FIXTURE_UNMOUNT_DISK], 2);
    ASSERT_EQ(f.fixture.calls[FIXTURE_EJECT], 2);
    finish(ctx, &f);
}

TEST_VIRTUAL(a_disk_whose_eject_failed_is_not_reserved_again)
{
    struct fixture f;

    start(ctx, &f);
    uint64_t one = reserve(ctx, &f, f.a, 0);

    map(ctx, &f, one, "/run/mounts/scsi/0_0_0");
    f.fixture.faults[FIXTURE_EJECT] = FIXTURE_FAIL;
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

    f.fixture.faults[FIXTURE_MOUNT_DISK] = FIXTURE_HANG;
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
    f.fixture.faults[FIXTURE_UNMOUNT_DISK] = f.fixture.faults[FIXTURE_EJECT] = FIXTURE_GONE;
    unmap(ctx, &f, one);
    f.fixture.paths[0][0] = '\0'; /* went with the guest */
    fake_vmm_die(f.fixture.vmm, FAKE_KILLED);
    f.fixture.faults[FIXTURE_UNMOUNT_DISK] = f.fixture.faults[FIXTURE_EJECT] = FIXTURE_GONE;
    unmap(ctx, &f, two);
    f.fixture.paths[1][0] = '\0';
    uint64_t three = reserve(ctx, &f, f.a, 0);
    map_fails(ctx, &f, three, ERR_UNAVAILABLE);
    unmap(ctx, &f, three);
    finish(ctx, &f);
}

/* --- images whose file system does not answer --- */

static unsigned looks;

static int hung_look(struct ctx *ctx, int fd, struct scsi_image *ret, struct err *err)
{
    looks++;
    return fiber_sleep(ctx, 1000 * NS_PER_S, err);
}

struct stuck {
    struct fixture *f;
    struct ctx *ctx;
};

static void reserve_stuck(void *arg)
{
    const struct stuck *s = arg;
    struct ctx limited = ctx_with_timeout(s->ctx, 4 * NS_PER_S);
    const struct scsi_disk d = { .host_path = "/nfs/x.img", .fd = s->f->b, .read_only = true };
    const struct guest_disk m = { .read_only = true };
    struct err err = ERR_INIT;
    uint64_t id;

    ASSERT_FAIL(scsi_reserve(&limited, s->f->c, &d, &m, &id, &err), err, ERR_DEADLINE);
    ASSERT_HAS(err.msg, "/nfs/x.img");
}

TEST_VIRTUAL(an_image_that_does_not_answer_delays_no_other_call)
{
    struct fixture f;
    struct fibers fibers;
    struct err err = ERR_INIT;

    start(ctx, &f);
    struct stuck s = { &f, ctx };
    uint64_t id = reserve(ctx, &f, f.a, 0), began = loop_now(ctx->loop);

    fibers_init(&fibers);
    f.c->look = hung_look;
    fibers_go(&fibers, ctx->loop, reserve_stuck, &s, "stuck");
    ASSERT_OK(fiber_sleep(ctx, NS_PER_S, &err), err);
    map(ctx, &f, id, "/run/mounts/scsi/0_0_0");
    ASSERT(loop_now(ctx->loop) - began < 2 * NS_PER_S);
    ASSERT_OK(fibers_wait(ctx, &fibers, "stuck", &err), err);
    f.c->look = scsi_image_look;
    unmap(ctx, &f, id);
    finish(ctx, &f);
}

TEST_VIRTUAL(images_that_do_not_answer_are_waited_for_once_not_one_by_one)
{
    struct fixture f;
    uint64_t ids[20], began;
    int fds[20];

    start(ctx, &f);
    for (size_t i = 0; i < ARRAY_LEN(ids); i++) {
        AUTO_FREE char *path = str_format("/run/mounts/scsi/0_%zu_0", i);

        fds[i] = fixture_file();
        ids[i] = reserve(ctx, &f, fds[i], 0);
        map(ctx, &f, ids[i], path);
    }
    looks = 0;
    f.c->look = hung_look;
    fake_vmm_die(f.fixture.vmm, FAKE_CRASHED);
    began = loop_now(ctx->loop);
    for (size_t i = 0; i < ARRAY_LEN(ids); i++) {
        unmap(ctx, &f, ids[i]);
        fd_close(fds[i]);
    }
    ASSERT_EQ(looks, 1);
    ASSERT(loop_now(ctx->loop) - began < 5 * NS_PER_S);
    finish(ctx, &f);
}
