#include "base/fd.h"
#include "base/fiber.h"
#include "base/loop.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include "host/files/blockimage.h"

#include <fcntl.h>
#include <unistd.h>

TEST_FIBER(an_image_is_opened_as_asked_for)
{
    static const char sector[512] = "x";
    struct err err = ERR_INIT;
    char byte;
    TEMPDIR(p);

    ASSERT_EQ(file_write(tempdir_path(&p, "i"), sector, sizeof(sector), 0600), 0);
    AUTO_FD int fd = -1;
    ASSERT_OK(blockimage_open(ctx, tempdir_path(&p, "i"), BLOCKIMAGE_FILE, true, &fd, &err), err);
    ASSERT_EQ(pread(fd, &byte, 1, 0), 1);
    ASSERT_EQ(byte, 'x');
    ASSERT_EQ(pwrite(fd, &byte, 1, 0), -1);
    AUTO_FD int writable = -1;
    ASSERT_OK(blockimage_open(ctx, tempdir_path(&p, "i"), BLOCKIMAGE_FILE, false, &writable, &err),
              err);
    ASSERT_EQ(pwrite(writable, &byte, 1, 0), 1);
}

TEST_FIBER(what_is_something_else_is_refused_with_the_remedy)
{
    struct err err = ERR_INIT;
    int fd = -1;
    TEMPDIR(p);

    ASSERT_FAIL(blockimage_open(ctx, p.dir, BLOCKIMAGE_FILE, true, &fd, &err), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "physical-disk");
    ASSERT_EQ(err.reason, REASON_MOUNT_SOURCE_INVALID);
    ASSERT_FAIL(blockimage_open(ctx, "/dev/null", BLOCKIMAGE_DEVICE, true, &fd, &err), err,
                ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "virtual-disk");
    ASSERT_EQ(file_write(tempdir_path(&p, "short"), "x", 1, 0600), 0);
    ASSERT_FAIL(blockimage_open(ctx, tempdir_path(&p, "short"), BLOCKIMAGE_FILE, true, &fd, &err),
                err, ERR_INVALID);
    ASSERT_FAIL(blockimage_open(ctx, tempdir_path(&p, "none"), BLOCKIMAGE_FILE, true, &fd, &err),
                err, ERR_NOT_FOUND);
    ASSERT_HAS(err.msg, "none");
    ASSERT_FAIL(blockimage_open_number(ctx, 4000, 7, true, &fd, &err), err, ERR_NOT_FOUND);
    ASSERT_HAS(err.msg, "4000:7");
    ASSERT_EQ(err.reason, REASON_MOUNT_SOURCE_MISSING);
    ASSERT_EQ(fd, -1);
}

TEST_FIBER(a_held_image_is_one_writers_or_many_readers)
{
    static const char sector[512] = "x";
    struct err err = ERR_INIT;
    int none = -1;
    TEMPDIR(p);

    ASSERT_EQ(file_write(tempdir_path(&p, "i"), sector, sizeof(sector), 0600), 0);
    const char *path = tempdir_path(&p, "i");
    AUTO_FD int one = -1, two = -1, writer = -1;
    ASSERT_OK(blockimage_open(ctx, path, BLOCKIMAGE_HELD, true, &one, &err), err);
    ASSERT_OK(blockimage_open(ctx, path, BLOCKIMAGE_HELD, true, &two, &err), err);
    ASSERT_FAIL(blockimage_open(ctx, path, BLOCKIMAGE_HELD, false, &none, &err), err, ERR_STATE);
    ASSERT_MSG_HAS(err.msg,
                   "is in use by another pod: a device that one of them writes to is in one "
                   "VM at a time; see: lcow volume ls");
    fd_close(TAKE_FD(one));
    fd_close(TAKE_FD(two));
    ASSERT_OK(blockimage_open(ctx, path, BLOCKIMAGE_HELD, false, &writer, &err), err);
    ASSERT_FAIL(blockimage_open(ctx, path, BLOCKIMAGE_HELD, true, &none, &err), err, ERR_STATE);
    ASSERT_FAIL(blockimage_open(ctx, "/dev/null", BLOCKIMAGE_HELD, true, &none, &err), err,
                ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "/dev/null is neither a block device nor an image file");
}
