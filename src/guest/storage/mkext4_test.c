/* Checks a new file system with e2fsck. */
#include "base/child.h"
#include "base/fd.h"
#include "base/str.h"
#include "guest/storage/blockfs.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)

static const uint8_t uuid[16] = { 1, 2, 3, 4, 5, 6, 0x47, 8, 0x89 };

static const char *find_e2fsck(void)
{
    return access("/usr/sbin/e2fsck", X_OK) == 0 ? "/usr/sbin/e2fsck" : "/sbin/e2fsck";
}

static void check(struct ctx *ctx, const char *path)
{
    const char *const argv[] = { find_e2fsck(), "-fn", path, NULL };
    AUTO(child_free) struct child *c = NULL;
    struct err err = ERR_INIT;
    int status;

    ASSERT_OK(child_spawn(ctx, &(struct child_opts){ .argv = argv }, &c, &err), err);
    ASSERT_OK(child_wait(ctx, c, &status, &err), err);
    ASSERT(WIFEXITED(status));
    ASSERT_EQ(WEXITSTATUS(status), 0);
}

TEST_FIBER(e2fsck_finds_no_fault_at_any_size)
{
    /* 16385 MiB: with the group that is left out goes a block of descriptors. */
    static const uint64_t sizes[] = {
        MKEXT4_MIN_BYTES, MIB + 4097,    64 * MIB,        128 * MIB,   128 * MIB + 4096,
        131 * MIB,        200 * MIB + 3, 10 * 1024 * MIB, 16385 * MIB, 300 * 1024 * MIB,
    };
    TEMPDIR(p);

    if (access(find_e2fsck(), X_OK) < 0)
        tap_skip("no e2fsck here");
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        AUTO_FREE char *name = str_format("%zu.img", i);
        const char *found = NULL, *path = tempdir_path(&p, name);
        AUTO_FD int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        struct err err = ERR_INIT;
        struct stat st;

        ASSERT(fd >= 0 && ftruncate(fd, (off_t)sizes[i]) == 0);
        ASSERT_OK(mkext4(fd, sizes[i], uuid, &err), err);
        ASSERT_EQ(blockfs_of(path, &found), 0);
        ASSERT_STR(found, "ext4");
        ASSERT_EQ(fstat(fd, &st), 0);
        ASSERT((uint64_t)st.st_blocks * 512 <= (sizes[i] > 1024 * MIB ? 4 * MIB : MIB / 4));
        check(ctx, path);
    }
}

TEST(a_disk_that_is_too_small_is_refused)
{
    struct err err = ERR_INIT;

    ASSERT_FAIL(mkext4(-1, MKEXT4_MIN_BYTES - 1, uuid, &err), err, ERR_INVALID);
    ASSERT_FAIL(mkext4(-1, MKEXT4_MIN_BYTES, uuid, &err), err, ERR_UNKNOWN);
}
