/* device_save_test.c - what a VM has of disks, shares and PCI devices, saved and read by another
 * program: counted as before, released as before. */
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "fixture/device_fixture.h"
#include "fixture/files_fixture.h"
#include "fixture/saved_fixture.h"
#include "host/device/plan9.h"
#include "host/device/scsi.h"
#include "host/device/vpci.h"

#define DESCRIBE(describe, c)                                                                      \
    ({                                                                                             \
        struct jsw w_;                                                                             \
        size_t len_;                                                                               \
        jsw_init(&w_, JSW_PLAIN);                                                                  \
        jsw_arr(&w_, NULL);                                                                        \
        describe(c, &w_);                                                                          \
        jsw_end_arr(&w_);                                                                          \
        jsw_take(&w_, &len_);                                                                      \
    })

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

    AUTO_FREE char *before = DESCRIBE(scsi_describe, old), *after = NULL;

    new = scsi_new(f.vmm, &f.guest, SCSI_CONTROLLERS_MAX);
    SAVED_PASS_ON(w, scsi_saved(w, old), (void)0, s, scsi_saved(s, new), again,
                  scsi_saved(again, new));
    saved_end();
    after = DESCRIBE(scsi_describe, new);
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

TEST_VIRTUAL(shares_are_continued_and_their_names_are_not_used_again)
{
    struct files_fixture f;
    struct plan9 *old, *new;
    struct err err = ERR_INIT;
    uint64_t ids[3], id = 0;

    saved_begin();
    files_fixture_start(ctx, &f);
    old = plan9_new(f.vmm, &f.guest);

    AUTO_FD int a = fixture_file(), b = fixture_file();
    const struct plan9_share share = { .host_path = "/a", .tree_fd = a, .read_only = true };
    const struct plan9_share other = {
        .host_path = "/b", .tree_fd = b, .follow = { "/b", 4, true, { 0 } }, .unique = true
    };

    ASSERT_OK(plan9_reserve(ctx, old, &share, &ids[0], &err), err);
    ASSERT_OK(plan9_reserve(ctx, old, &share, &ids[1], &err), err);
    ASSERT_OK(plan9_reserve(ctx, old, &other, &ids[2], &err), err);
    for (int i = 0; i < 3; i++) {
        AUTO_FREE char *path = NULL;

        ASSERT_OK(plan9_map(ctx, old, ids[i], &path, &err), err);
    }

    AUTO_FREE char *before = DESCRIBE(plan9_describe, old), *after = NULL;

    new = plan9_new(f.vmm, &f.guest);
    SAVED_PASS_ON(w, plan9_saved(w, old), (void)0, s, plan9_saved(s, new), again,
                  plan9_saved(again, new));
    saved_end();
    after = DESCRIBE(plan9_describe, new);
    ASSERT_STR(after, before);
    ASSERT_STR(plan9_name(new, ids[2]), "1");
    ASSERT_OK(plan9_reserve(ctx, new, &share, &id, &err), err); /* the one that is there */
    ASSERT_STR(plan9_name(new, id), "0");
    ASSERT_OK(plan9_unmap(ctx, new, id, &err), err);
    ASSERT_OK(plan9_reserve(ctx, new, &other, &id, &err), err);
    ASSERT_STR(plan9_name(new, id), "2");
    ASSERT_OK(plan9_unmap(ctx, new, id, &err), err);
    for (int i = 0; i < 3; i++)
        ASSERT_OK(plan9_unmap(ctx, new, ids[i], &err), err);
    ASSERT_EQ(plan9_used(new), 0);
    files_fixture_clean(&f);
    plan9_free(new);
    files_fixture_finish(ctx, &f);
}

TEST_VIRTUAL(pci_devices_are_continued)
{
    struct files_fixture f;
    struct vpci *old, *new;
    struct err err = ERR_INIT;
    uint64_t ids[2], id = 0;

    saved_begin();
    files_fixture_start(ctx, &f);
    old = vpci_new(f.vmm, &f.guest);
    for (int i = 0; i < 2; i++) {
        AUTO_FREE char *place = NULL;

        ASSERT_OK(vpci_reserve(ctx, old, "0000:03:00.0", &ids[i], &err), err);
        ASSERT_OK(vpci_add(ctx, old, ids[i], &place, &err), err);
    }

    AUTO_FREE char *before = DESCRIBE(vpci_describe, old), *after = NULL;

    new = vpci_new(f.vmm, &f.guest);
    SAVED_PASS_ON(w, vpci_saved(w, old), (void)0, s, vpci_saved(s, new), again,
                  vpci_saved(again, new));
    saved_end();
    after = DESCRIBE(vpci_describe, new);
    ASSERT_STR(after, before);
    ASSERT_OK(vpci_reserve(ctx, new, "0000:04:00.0", &id, &err), err);

    AUTO_FREE char *place = NULL;

    ASSERT_OK(vpci_add(ctx, new, id, &place, &err), err); /* its name is another one */
    ASSERT_OK(vpci_remove(ctx, new, id, &err), err);
    ASSERT_OK(vpci_remove(ctx, new, ids[0], &err), err);
    ASSERT(fake_vmm_has_device(f.vmm, "0000:03:00.0"));
    ASSERT_OK(vpci_remove(ctx, new, ids[1], &err), err);
    ASSERT(!fake_vmm_has_device(f.vmm, "0000:03:00.0"));
    ASSERT_EQ(vpci_used(new), 0);
    files_fixture_clean(&f);
    vpci_free(new);
    files_fixture_finish(ctx, &f);
}

/* A reservation of nothing, a disk without one: the document is damaged or of another program. */
TEST(a_reservation_of_what_is_not_there_is_refused)
{
    AUTO(saved_free) struct saved *w = saved_writer(), *s = NULL;
    struct vpci *c = vpci_new(NULL, NULL);
    uint64_t id = 1, at = 5;
    struct err err = ERR_INIT;
    const void *doc;
    size_t len;

    (void)saved_open(w, 3);
    (void)saved_open(w, 2);
    saved_u64(w, 1, &id);
    saved_u64(w, 2, &at);
    saved_close(w);
    saved_close(w);
    ASSERT_OK(saved_finish(w, &doc, &len, &err), err);
    ASSERT_OK(saved_reader(doc, len, &s, &err), err);
    saved_begin();
    vpci_saved(s, c);
    saved_end();
    ASSERT_FAIL(saved_check(s, &err), err, ERR_INVALID);
}
