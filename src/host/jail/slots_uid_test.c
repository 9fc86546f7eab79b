#include "base/fd.h"
#include "base/str.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include "host/jail/slots.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

TEST(every_holder_has_its_own_number_and_a_released_one_comes_back)
{
    TEMPDIR(p);
    const char *path = tempdir_path(&p, "uids");
    struct uid_slot a, b, c;
    struct err err = ERR_INIT;

    ASSERT_OK(uid_slot_take(path, 60000, 2, &a, &err), err);
    ASSERT_OK(uid_slot_take(path, 60000, 2, &b, &err), err);
    ASSERT_EQ(a.uid, 60000);
    ASSERT_EQ(b.uid, 60001);
    ASSERT_FAIL(uid_slot_take(path, 60000, 2, &c, &err), err, ERR_EXHAUSTED);
    ASSERT_MSG_HAS(err.msg, "uid_count");
    ASSERT_EQ(err.reason, REASON_NO_VM_UID);
    uid_slot_release(&a);
    uid_slot_release(&a);
    ASSERT_OK(uid_slot_take(path, 60000, 2, &c, &err), err);
    ASSERT_EQ(c.uid, 60000);
    uid_slot_release(&b);
    uid_slot_release(&c);
}

TEST(ranges_that_overlap_do_not_share_a_number)
{
    TEMPDIR(p);
    const char *path = tempdir_path(&p, "uids");
    struct uid_slot a, b;
    struct err err = ERR_INIT;

    ASSERT_OK(uid_slot_take(path, 60001, 1, &a, &err), err);
    ASSERT_OK(uid_slot_take(path, 60000, 2, &b, &err), err);
    ASSERT_EQ(b.uid, 60000);
    uid_slot_release(&a);
    uid_slot_release(&b);
}

TEST(root_and_an_empty_range_are_refused)
{
    struct uid_slot a;
    struct err err = ERR_INIT;

    ASSERT_FAIL(uid_slot_take("/nonexistent", 0, 5, &a, &err), err, ERR_INVALID);
    ASSERT_FAIL(uid_slot_take("/nonexistent", 5, 0, &a, &err), err, ERR_INVALID);
    ASSERT_FAIL(uid_slot_take("/nonexistent", UINT32_MAX - 3, 10, &a, &err), err, ERR_INVALID);
    ASSERT_FAIL(uid_slot_take("/nonexistent/x", 5, 5, &a, &err), err, ERR_NOT_FOUND);
}
