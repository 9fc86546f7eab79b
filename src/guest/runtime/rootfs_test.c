#include "base/str.h"
#include "guest/runtime/rootfs.h"
#include "harness/tap.h"

static const char passwd[] = "root:x:0:0:root:/root:/bin/sh\n"
                             "# a comment\n"
                             "broken\n"
                             "nogid:x:7:\n"
                             "twin:x:8:8::/:\n"
                             "twin:x:9:9::/:\n"
                             "app:x:1000:1001:a:b:c\n"
                             "other:x:1000:1002::/:"; /* no line feed at the end */
static const char group[] = "root:x:0:\nstaff:x:50:app,other\nbad:x:word:\n1234:x:77:\n";

static void gives(const char *user, uint32_t uid, uint32_t gid)
{
    uint32_t got_uid = 99999, got_gid = 99999;
    struct err err = ERR_INIT;

    ASSERT_OK(rootfs_find_user(user, passwd, group, &got_uid, &got_gid, &err), err);
    ASSERT_EQ(got_uid, uid);
    ASSERT_EQ(got_gid, gid);
}

static void refused(const char *user, const char *why)
{
    uint32_t uid = 5, gid = 6;
    struct err err = ERR_INIT;

    ASSERT_FAIL(rootfs_find_user(user, passwd, group, &uid, &gid, &err), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, why);
    ASSERT_EQ(uid, 5);
    ASSERT_EQ(gid, 6);
}

TEST(a_name_has_the_ids_of_its_entry)
{
    gives("root", 0, 0);
    gives("app", 1000, 1001);
    gives("nogid", 7, 0);
}

TEST(a_number_needs_no_entry)
{
    gives("4711", 4711, 0);
    gives("0", 0, 0);
    gives("4711:4712", 4711, 4712);
}

TEST(a_number_with_one_entry_has_its_group)
{
    gives("7", 7, 0);
    gives("9", 9, 9);
}

TEST(a_group_wins_over_the_entrys)
{
    gives("app:staff", 1000, 50);
    gives("app:50", 1000, 50);
    gives("root:1234", 0, 77); /* a group that is called like a number */
}

TEST(what_the_image_does_not_know_is_named)
{
    refused("who", "no user \"who\"");
    refused("app:who", "no group \"who\"");
    refused("twin", "more than one user");
    refused("app:bad", "no group \"bad\"");
}

TEST(malformed_users_are_refused)
{
    refused("", "must be user");
    refused(":staff", "must be user");
    refused("app:", "must be user");
    refused("app:staff:x", "must be user");
    refused("-1", "no user");
    refused("4294967295", "no user"); /* (uid_t)-1 means "leave it" */
}

TEST(an_image_without_files_takes_numbers_only)
{
    uint32_t uid = 0, gid = 0;
    struct err err = ERR_INIT;

    ASSERT_OK(rootfs_find_user("12:34", "", "", &uid, &gid, &err), err);
    ASSERT_EQ(uid, 12);
    ASSERT_EQ(gid, 34);
    ASSERT_FAIL(rootfs_find_user("root", "", "", &uid, &gid, &err), err, ERR_INVALID);
    ASSERT_EQ(err.reason, REASON_USER_UNKNOWN);
}
