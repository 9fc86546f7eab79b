#include "base/fd.h"
#include "base/str.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include "tool/lib/image.h"
#include <stdlib.h>
#include <string.h>

#define ABC "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
#define GOOD                                                                                       \
    "{\"schema\":1,\"kernel_release\":\"6.1.0-9\",\"files\":{\"vmlinux\":{\"sha256\":\"" ABC       \
    "\",\"size\":3},\"initrd.cpio\":{\"sha256\":\"" ABC "\",\"size\":3}}}"

static void put(const char *dir, const char *name, const char *text)
{
    AUTO_FREE char *path = str_format("%s/%s", dir, name);

    ASSERT_EQ(file_write(path, text, strlen(text), 0600), 0);
}

TEST(a_whole_image_opens_and_verifies)
{
    TEMPDIR(p);
    const char *dir = p.dir;
    AUTO(image_free) struct image *img = NULL;
    struct err err = ERR_INIT;

    put(dir, "manifest.json", GOOD);
    put(dir, "vmlinux", "abc");
    put(dir, "initrd.cpio", "abc");
    ASSERT_OK(image_open(dir, &img, &err), err);
    ASSERT_STR(img->release, "6.1.0-9");
    ASSERT_OK(image_verify(img, &err), err);
    put(dir, "initrd.cpio", "abd");
    ASSERT_FAIL(image_verify(img, &err), err, ERR_DATA_LOSS);
    ASSERT_MSG_HAS(err.msg, "/initrd.cpio does not match its hash in the manifest");
    ASSERT_MSG_HAS(err.msg, "make image");
}

TEST(missing_and_cut_files_are_named_with_the_remedy)
{
    TEMPDIR(p);
    const char *dir = p.dir;
    AUTO(image_free) struct image *img = NULL;
    struct err err = ERR_INIT;

    ASSERT_FAIL(image_open(dir, &img, &err), err, ERR_NOT_FOUND);
    ASSERT_MSG_HAS(err.msg, "no guest image in ");
    ASSERT_HAS(err.msg, dir);
    ASSERT_MSG_HAS(err.msg, "make image");
    put(dir, "manifest.json", GOOD);
    put(dir, "vmlinux", "ab");
    ASSERT_FAIL(image_open(dir, &img, &err), err, ERR_DATA_LOSS);
    ASSERT_MSG_HAS(err.msg, "/vmlinux has 2 bytes instead of 3");
    put(dir, "vmlinux", "abc");
    ASSERT_FAIL(image_open(dir, &img, &err), err, ERR_NOT_FOUND);
    ASSERT_HAS(err.msg, "/initrd.cpio: No such file");
}

TEST(damaged_manifests_are_refused)
{
    TEMPDIR(p);
    static const char *const bad[] = {
        "",
        "{",
        "[]",
        "{}",
        "{\"kernel_release\":\"x\"}",
        "{\"kernel_release\":\"x\",\"files\":{}}",
        "{\"kernel_release\":7,\"files\":{}}",
        "{\"kernel_release\":\"x\",\"files\":{\"vmlinux\":3}}",
        "{\"kernel_release\":\"x\",\"files\":{\"vmlinux\":{\"sha256\":\"12\",\"size\":1}}}",
        "{\"kernel_release\":\"x\",\"files\":{\"../vmlinux\":{\"sha256\":\"" ABC "\",\"size\":1}}}",
    };

    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        AUTO(image_free) struct image *img = NULL;
        struct err err = ERR_INIT;

        put(p.dir, "manifest.json", bad[i]);
        ASSERT(image_open(p.dir, &img, &err) < 0);
        ASSERT_MSG_HAS(err.msg, "manifest.json is damaged: ");
    }
}
