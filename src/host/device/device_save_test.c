/* device_save_test.c - what a VM has of shares and PCI devices, saved and read by another
 * program: counted as before, released as before. */
#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "fixture/device_fixture.h"
#include "fixture/files_fixture.h"
#include "fixture/saved_fixture.h"
#include "host/device/plan9.h"
#include "host/device/vpci.h"

TEST_VIRTUAL(shares_are_continued_and_their_names_are_not_used_again)
{
    struct files_fixture f;
    struct plan9 *old, *new;
    struct err err = ERR_INIT;
    uint64_t ids[4], id = 0;

    saved_begin();
    files_fixture_start(ctx, &f);
    old = plan9_new(f.vmm, &f.guest);

    AUTO_FD int a = fixture_file(), b = fixture_file();
    const struct plan9_share share = { .host_path = "/a", .tree_fd = a, .read_only = true };
    const struct plan9_share third = { .host_path = "/c", .tree_fd = a };
    const struct plan9_share other = {
        .host_path = "/b", .tree_fd = b, .follow = { "/b", 4, true, { 0 } }, .unique = true
    };

    ASSERT_OK(plan9_reserve(ctx, old, &share, &ids[0], &err), err);
    ASSERT_OK(plan9_reserve(ctx, old, &share, &ids[1], &err), err);
    ASSERT_OK(plan9_reserve(ctx, old, &other, &ids[2], &err), err);
    ASSERT_OK(plan9_reserve(ctx, old, &third, &ids[3], &err), err);
    for (int i = 0; i < 4; i++) {
        AUTO_FREE char *path = NULL;

        ASSERT_OK(plan9_map(ctx, old, ids[i], &path, &err), err);
    }
    f.faults[FIXTURE_UNMOUNT_SHARE] = FIXTURE_FAIL;
    ASSERT_FAIL(plan9_unmap(ctx, old, ids[3], &err), err, ERR_INTERNAL);
    err_clear(&err);

    AUTO_FREE char *before = DEVICE_TEXT(plan9_describe, old), *after = NULL;

    new = plan9_new(f.vmm, &f.guest);
    SAVED_PASS_ON(w, plan9_saved(w, old), (void)0, s, plan9_saved(s, new), again,
                  plan9_saved(again, new));
    saved_end();
    after = DEVICE_TEXT(plan9_describe, new);
    ASSERT_STR(after, before);
    ASSERT_STR(plan9_name(new, ids[2]), "1");
    ASSERT_OK(plan9_reserve(ctx, new, &share, &id, &err), err); /* the one that is there */
    ASSERT_STR(plan9_name(new, id), "0");
    ASSERT_OK(plan9_unmap(ctx, new, id, &err), err);
    /* Neither the one that is nobody else's nor the one that is being removed. */
    const struct plan9_share same = { .host_path = "/b", .tree_fd = b };
    ASSERT_OK(plan9_reserve(ctx, new, &same, &id, &err), err);
    ASSERT_STR(plan9_name(new, id), "3");
    ASSERT_OK(plan9_unmap(ctx, new, id, &err), err);
    ASSERT_OK(plan9_reserve(ctx, new, &third, &id, &err), err);
    ASSERT_STR(plan9_name(new, id), "4");
    ASSERT_OK(plan9_unmap(ctx, new, id, &err), err);
    for (int i = 0; i < 4; i++)
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
    uint64_t ids[2], last, id = 0;

    saved_begin();
    files_fixture_start(ctx, &f);
    old = vpci_new(f.vmm, &f.guest);
    for (int i = 0; i < 2; i++) {
        AUTO_FREE char *place = NULL;

        ASSERT_OK(vpci_reserve(ctx, old, "0000:03:00.0", &ids[i], &err), err);
        ASSERT_OK(vpci_add(ctx, old, ids[i], &place, &err), err);
    }

    ASSERT_OK(vpci_reserve(ctx, old, "0000:05:00.0", &last, &err), err);

    AUTO_FREE char *at = NULL;

    ASSERT_OK(vpci_add(ctx, old, last, &at, &err), err);
    fake_vmm_tune(f.vmm)->pci_remove.how = FAKE_FAIL;
    ASSERT_FAIL(vpci_remove(ctx, old, last, &err), err, ERR_INTERNAL);
    fake_vmm_tune(f.vmm)->pci_remove.how = FAKE_OK;
    err_clear(&err);

    AUTO_FREE char *before = DEVICE_TEXT(vpci_describe, old), *after = NULL;

    new = vpci_new(f.vmm, &f.guest);
    SAVED_PASS_ON(w, vpci_saved(w, old), (void)0, s, vpci_saved(s, new), again,
                  vpci_saved(again, new));
    saved_end();
    after = DEVICE_TEXT(vpci_describe, new);
    ASSERT_STR(after, before);
    ASSERT_OK(vpci_reserve(ctx, new, "0000:04:00.0", &id, &err), err);

    AUTO_FREE char *place = NULL;

    ASSERT_OK(vpci_add(ctx, new, id, &place, &err), err); /* its name is another one */
    ASSERT_OK(vpci_remove(ctx, new, id, &err), err);
    /* It is being removed. */
    ASSERT_FAIL(vpci_reserve(ctx, new, "0000:05:00.0", &id, &err), err, ERR_STATE);
    err_clear(&err);
    ASSERT_OK(vpci_remove(ctx, new, last, &err), err);
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
