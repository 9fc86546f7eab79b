#include "guest/storage/blockfs.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include <errno.h>
#include <string.h>

static char head[BLOCKFS_HEAD_BYTES];

static const char *with(size_t offset, const char *magic, size_t len)
{
    memset(head, 0, sizeof(head));
    memcpy(head + offset, magic, len);
    return blockfs_detect(head, sizeof(head));
}

TEST(each_file_system_is_known_by_its_magic)
{
    ASSERT_STR(with(1080, "\x53\xef", 2), "ext4");
    ASSERT_STR(with(0, "XFSB", 4), "xfs");
    ASSERT_STR(with(1024, "\xe2\xe1\xf5\xe0", 4), "erofs");
    ASSERT_STR(with(0, "hsqs", 4), "squashfs");
}

TEST(anything_else_is_unknown)
{
    ASSERT(!with(0, "", 0));
    ASSERT(!with(1081, "\x53\xef", 2));
    ASSERT(!blockfs_detect(head, 0));
    with(1080, "\x53\xef", 2);
    ASSERT(!blockfs_detect(head, 1081)); /* cut off in the middle of the magic */
}

TEST(a_short_or_missing_device_is_reported)
{
    const char *found = "untouched";
    TEMPDIR(p);

    ASSERT_EQ(blockfs_of(tempdir_path(&p, "none"), &found), -ENOENT);
    ASSERT_EQ(file_write(tempdir_path(&p, "f"), "hsqs", 4, 0600), 0);
    ASSERT_EQ(blockfs_of(tempdir_path(&p, "f"), &found), 0);
    ASSERT_STR(found, "squashfs");
}
