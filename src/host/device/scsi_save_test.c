/* scsi_save_test.c - the disks of a VM, saved and read by another program: counted as before,
 * released as before. */
#include "base/err.h"
#include "base/str.h"
#include "fixture/device_fixture.h"
#include "fixture/files_fixture.h"
#include "fixture/saved_fixture.h"
#include "host/device/scsi_priv.h"

static uint64_t reserve_disk(struct ctx *ctx, struct scsi *c, int fd, uint64_t partition,
                             bool read_only)
{
    static const char *const options[] = { "noatime", "nodev", NULL };
    const struct scsi_disk disk = { .host_path = "/images/a", .fd = fd, .read_only = read_only };
    const struct guest_disk mount = { .partition = partition,
                                      .filesystem = "ext4",
                                      .options = options,
                                      .fs_group = 7,
                                      .fs_group_policy = "Always" };
    struct err err = ERR_INIT;
    uint64_t id = 0;

    ASSERT_OK(scsi_reserve(ctx, c, &disk, &mount, &id, &err), err);
    return id;
}

#define MOUNT_FIELDS(X)                                                                            \
    X(m->held.leaving)                                                                             \
    X(m->guest.read_only)                                                                          \
    X(m->guest.encrypted)                                                                          \
    X(m->guest.ensure_filesystem)                                                                  \
    X(m->guest.block_device)                                                                       \
    X(m->guest.verity)                                                                             \
    X(m->guest.fs_group)                                                                           \
    X(m->state)                                                                                    \
    X(d->leaving)                                                                                  \
    X(d->deserted)                                                                                 \
    X(d->image.bytes)                                                                              \
    X(d->state)                                                                                    \
    X(c->silent)                                                                                   \
    X(c->keeps_first)                                                                              \
    X(c->lost[5])                                                                                  \
    X(c->lost[70])
#define SET(field) (field) = (__typeof__(field))1;
#define EXPECT(field) ASSERT_EQ(field, 1);

static void map_disk(struct ctx *ctx, struct scsi *c, uint64_t id)
{
    AUTO_FREE char *path = NULL;
    struct err err = ERR_INIT;

    ASSERT_OK(scsi_map(ctx, c, id, &path, &err), err);
}

static void unmap_disk(struct ctx *ctx, struct scsi *c, uint64_t id)
{
    struct err err = ERR_INIT;

    ASSERT_OK(scsi_unmap(ctx, c, id, &err), err);
}

TEST_VIRTUAL(disks_and_their_mounts_are_continued)
{
    struct files_fixture f;
    struct scsi *old, *new;
    struct err err = ERR_INIT;
    uint64_t ids[4], id = 0;

    saved_begin();
    files_fixture_start(ctx, &f);
    old = scsi_new(f.vmm, &f.guest, SCSI_CONTROLLERS_MAX);
    scsi_keep_first(old);

    AUTO_FD int a = fixture_file(), b = fixture_file();

    ids[0] = reserve_disk(ctx, old, a, 1, true);
    ids[1] = reserve_disk(ctx, old, a, 2, true);
    ids[2] = reserve_disk(ctx, old, a, 2, true); /* the same mount again */
    ids[3] = reserve_disk(ctx, old, b, 0, false);
    for (int i = 0; i < 4; i++)
        map_disk(ctx, old, ids[i]);

    AUTO_FREE char *before = DEVICE_TEXT(scsi_describe, old), *after = NULL;

    new = scsi_new(f.vmm, &f.guest, SCSI_CONTROLLERS_MAX);
    SAVED_PASS_ON(w, scsi_saved(w, old), (void)0, s, scsi_saved(s, new), again,
                  scsi_saved(again, new));
    saved_end();
    after = DEVICE_TEXT(scsi_describe, new);
    ASSERT_STR(after, before);
    ASSERT_HAS(after, "\"holders\":2");
    /* The same file, mounted in another way, is refused as before. */
    const struct scsi_disk again = { .host_path = "/images/b", .fd = b };
    const struct guest_disk otherwise = { .filesystem = "xfs" };
    ASSERT_FAIL(scsi_reserve(ctx, new, &again, &otherwise, &id, &err), err, ERR_STATE);
    id = reserve_disk(ctx, new, b, 0, false);
    ASSERT(id > ids[3]); /* no id is used twice */
    unmap_disk(ctx, new, id);
    unmap_disk(ctx, new, ids[2]);
    ASSERT_EQ(scsi_used_slots(new), 2);
    for (int i = 0; i < 4; i++)
        if (i != 2)
            unmap_disk(ctx, new, ids[i]);
    ASSERT_EQ(scsi_used_slots(new), 0);
    files_fixture_clean(&f);
    scsi_free(new);
    files_fixture_finish(ctx, &f);
}

/* Also those that nothing above depends on. */
TEST_VIRTUAL(every_field_of_a_disk_is_the_same)
{
    struct files_fixture f;
    struct scsi *c, *new;

    saved_begin();
    files_fixture_start(ctx, &f);
    c = scsi_new(f.vmm, &f.guest, SCSI_CONTROLLERS_MAX);

    AUTO_FD int fd = fixture_file();
    uint64_t id = reserve_disk(ctx, c, fd, 3, true);
    struct disk *d = c->slots[0];
    struct mount *m = LIST_FIRST(&d->mounts, struct mount, node);

    m->guest.root_hash = str_dup("hash");
    d->slot = (struct scsi_slot){ 1, 1 };
    c->slots[SCSI_LUNS + 1] = TAKE_PTR(c->slots[0]);
    MOUNT_FIELDS(SET)
    new = scsi_new(f.vmm, &f.guest, SCSI_CONTROLLERS_MAX);
    SAVED_PASS_ON(w, scsi_saved(w, c), (void)0, s, scsi_saved(s, new), again,
                  scsi_saved(again, new));
    saved_end();
    c = new;
    d = c->slots[SCSI_LUNS + 1];
    m = LIST_FIRST(&d->mounts, struct mount, node);
    MOUNT_FIELDS(EXPECT)
    ASSERT_EQ(scsi_lost_slots(c), 2);
    ASSERT_STR(m->guest.root_hash, "hash");
    ASSERT_STR(m->guest.filesystem, "ext4");
    ASSERT_STR(m->guest.fs_group_policy, "Always");
    ASSERT_STR(m->guest.options[1], "nodev");
    ASSERT_STR(m->guest.mount_path, "/run/mounts/scsi/0_0_3");
    ASSERT(m->guest.partition == 3 && m->held.refs == 1 && m->disk == d);
    ASSERT(d->slot.controller == 1 && d->slot.lun == 1 && m->guest.controller == 1);
    ASSERT_STR(d->host_path, "/images/a");
    ASSERT(d->read_only && d->fd >= 0 && d->image.ino != 0 && id == 1);
    scsi_free(c);
    files_fixture_finish(ctx, &f);
}
