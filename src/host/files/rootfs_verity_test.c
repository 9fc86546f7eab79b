/* Layers with X-containerd.dmverity, as containerd's erofs snapshotter gives them. */
#include "base/str.h"
#include "fixture/rootfs_fixture.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include "host/files/rootfs.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HASH "00112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF"
#define IMAGE_BYTES 16384
#define GOOD "{\"roothash\": \"" HASH "\", \"hashoffset\": 12288}"

/* An image, and beside it what says how it is verified; NULL: nothing. */
static char *layer(struct tempdir *p, const char *metadata)
{
    char *path = str_dup(tempdir_path(p, "layer.erofs"));
    AUTO_FREE char *beside = str_format("%s.dmverity", path);

    fixture_image(p, "layer.erofs");
    ASSERT_EQ(truncate(path, IMAGE_BYTES), 0);
    (void)unlink(beside); /* of the case before */
    if (metadata)
        ASSERT_EQ(file_write(beside, metadata, strlen(metadata), 0644), 0);
    return path;
}

static int open_layer(struct ctx *ctx, const char *path, const char *value, bool in_list,
                      struct rootfs *fs, struct err *err)
{
    static const char *const overlay[] = { "lowerdir={{ mount 0 }}", NULL };
    AUTO_FREE char *option = str_format("X-containerd.dmverity=%s", value);
    const char *const options[] = { "ro", "loop", option, NULL };
    const struct rootfs_mount m[] = { { "erofs", path, options },
                                      { "format/overlay", "overlay", overlay } };

    return rootfs_open(ctx, m, in_list ? 2 : 1, NULL, 0, NULL, fs, err);
}

TEST_FIBER(a_layer_has_the_root_hash_of_its_metadata_file)
{
    TEMPDIR(p);
    AUTO_FREE char *path = layer(&p, GOOD), *named = str_format("%s.dmverity", path);
    const struct {
        const char *value;
        bool verified;
    } cases[] = { { named, true }, { "on", true }, { "auto", true }, { "off", false } };
    struct rootfs fs = { .tree = -1 };
    struct err err = ERR_INIT;

    for (size_t i = 0; i < 2 * ARRAY_LEN(cases); i++) {
        ASSERT_OK(open_layer(ctx, path, cases[i / 2].value, i % 2, &fs, &err), err);
        ASSERT_EQ(fs.n_disks, 1);
        ASSERT(!fs.disks[0].writable);
        if (cases[i / 2].verified)
            ASSERT_STR(fs.disks[0].root_hash, HASH);
        else
            ASSERT(!fs.disks[0].root_hash);
        rootfs_release(&fs);
    }
}

TEST_FIBER(without_a_metadata_file_only_auto_continues)
{
    TEMPDIR(p);
    AUTO_FREE char *path = layer(&p, NULL), *named = str_format("%s.dmverity", path);
    struct rootfs fs = { .tree = -1 };
    struct err err = ERR_INIT;

    ASSERT_OK(open_layer(ctx, path, "auto", false, &fs, &err), err);
    ASSERT(!fs.disks[0].root_hash);
    rootfs_release(&fs);
    ASSERT_FAIL(open_layer(ctx, path, "on", false, &fs, &err), err, ERR_NOT_FOUND);
    ASSERT_HAS(err.msg, named);
    ASSERT_FAIL(open_layer(ctx, path, named, true, &fs, &err), err, ERR_NOT_FOUND);
    ASSERT_EQ(symlink("/etc/passwd", named), 0); /* is not followed, whatever is there */
    ASSERT_EQ(open_layer(ctx, path, "auto", false, &fs, &err), -1);
    err_clear(&err);
    ASSERT_EQ(unlink(named), 0);
    ASSERT_EQ(mkfifo(named, 0600), 0);
    ASSERT_FAIL(open_layer(ctx, path, "auto", false, &fs, &err), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "not a regular file");
    ASSERT_EQ(err.reason, REASON_VERITY_MISSING);
}

TEST_FIBER(metadata_that_cannot_be_used_refuses_the_layer_and_says_why)
{
    static const struct {
        const char *text;
        enum err_code code;
        const char *why;
    } cases[] = {
        { "", ERR_INVALID, "" },
        { "{\"roothash\": ", ERR_INVALID, "" },
        { "{}", ERR_INVALID, "the roothash \"\" is not 64 hex digits" },
        { "{\"roothash\": 12}", ERR_INVALID, "roothash" },
        { "{\"roothash\": \"12\", \"hashoffset\": 12288}", ERR_INVALID, "64 hex digits" },
        { "{\"roothash\": \"zz" HASH "\"}", ERR_INVALID, "64 hex digits" },
        { "{\"roothash\": \"" HASH "00\"}", ERR_INVALID, "64 hex digits" },
        { "{\"roothash\": \"" HASH "\"}", ERR_INVALID, "invalid hashoffset 0" },
        { "{\"roothash\": \"" HASH "\", \"hashoffset\": -1}", ERR_INVALID, "hashoffset" },
        { "{\"roothash\": \"" HASH "\", \"hashoffset\": 12289}", ERR_INVALID, "multiple of 4096" },
        { "{\"roothash\": \"" HASH "\", \"hashoffset\": 16384}", ERR_INVALID, "has 16384 bytes" },
        { "{\"roothash\": \"" HASH "\", \"hashoffset\": 18446744073709547520}", ERR_INVALID,
          "has 16384 bytes" },
        { "{\"roothash\": \"" HASH "\", \"hashoffset\": 12288, \"hashdevice\": \"x.hashtree\"}",
          ERR_UNIMPLEMENTED, "hashdevice x.hashtree" },
    };
    TEMPDIR(p);
    struct rootfs fs = { .tree = -1 };
    struct err err = ERR_INIT;

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        AUTO_FREE char *path = layer(&p, cases[i].text);

        ASSERT_FAIL(open_layer(ctx, path, "on", i % 2, &fs, &err), err, cases[i].code);
        ASSERT_HAS(err.msg, "layer.erofs.dmverity");
        ASSERT_MSG_HAS(err.msg, cases[i].why);
        err_clear(&err);
    }
    AUTO_FREE char *blanks = mem_zalloc(5000);
    memset(blanks, ' ', 4999);
    AUTO_FREE char *path = layer(&p, blanks);
    ASSERT_FAIL(open_layer(ctx, path, "auto", false, &fs, &err), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "more than 4096 bytes");
}

TEST_FIBER(a_value_that_is_not_known_is_refused)
{
    static const char *const values[] = { "", "ON", "yes", "layer.erofs.dmverity", "off " };
    TEMPDIR(p);
    AUTO_FREE char *path = layer(&p, GOOD);
    struct rootfs fs = { .tree = -1 };
    struct err err = ERR_INIT;

    for (size_t i = 0; i < 2 * ARRAY_LEN(values); i++) {
        ASSERT_FAIL(open_layer(ctx, path, values[i / 2], i % 2, &fs, &err), err, ERR_INVALID);
        ASSERT_MSG_HAS(err.msg, "metadata file, on, auto or off");
        ASSERT_HAS(err.msg, path);
    }
}
