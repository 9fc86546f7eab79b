#include "base/fd.h"
#include "guest/bridge/fw_cfg.h"
#include "harness/tap.h"
#include "harness/tempdir.h"

TEST(a_file_is_read_again_through_the_same_descriptor)
{
    TEMPDIR(p);
    AUTO_FD int fd = -1;
    struct err err = ERR_INIT;
    char buf[9] = "";

    tempdir_put(&p, "opt/boot/raw", "secret!!");
    ASSERT_OK(fw_cfg_read(p.dir, "opt/boot", &fd, buf, 8, &err), err);
    ASSERT_STR(buf, "secret!!");
    int first = fd;
    tempdir_put(&p, "opt/boot/raw", "anew!!!!");
    ASSERT_OK(fw_cfg_read(p.dir, "opt/boot", &fd, buf, 8, &err), err);
    ASSERT_STR(buf, "anew!!!!");
    ASSERT_EQ(fd, first);
}

TEST(another_machine_has_no_such_device)
{
    AUTO_FD int fd = -1;
    struct err err = ERR_INIT;
    char buf[8];

    ASSERT_FAIL(fw_cfg_read("/nowhere", "opt/boot", &fd, buf, 8, &err), err, ERR_UNAVAILABLE);
}

TEST(a_missing_file_is_named)
{
    TEMPDIR(p);
    AUTO_FD int fd = -1;
    struct err err = ERR_INIT;
    char buf[8];

    ASSERT_FAIL(fw_cfg_read(p.dir, "opt/boot", &fd, buf, 8, &err), err, ERR_NOT_FOUND);
    ASSERT_HAS(err.msg, "opt/boot");
}

TEST(a_file_of_another_size_is_refused)
{
    TEMPDIR(p);
    struct err err = ERR_INIT;
    char buf[16];

    tempdir_put(&p, "opt/boot/raw", "secret!!");
    for (size_t len = 7; len <= 9; len += 2) {
        AUTO_FD int fd = -1;
        ASSERT_FAIL(fw_cfg_read(p.dir, "opt/boot", &fd, buf, len, &err), err, ERR_INVALID);
    }
}
