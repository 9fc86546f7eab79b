#include "base/fd.h"
#include "base/str.h"
#include "guest/init/modules.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char order[] = "crc16: crc16\n"
                            "ext4: crc32c_generic crc16 jbd2 ext4\n"
                            "aesni_intel: cryptd aesni_intel\n"
                            "empty:\n"
                            "lost: crc16 other\n"
                            "evil: ../../etc/passwd evil\n"
                            "last: last";

static char *names_of(const char *root, struct err *err)
{
    AUTO(strv_release) struct strv names = { 0 };
    struct sbuf out = { 0 };

    if (modules_order(order, root, &names, err) < 0)
        return NULL;
    for (size_t i = 0; i < names.n; i++)
        sbuf_addf(&out, "%s%s", i ? " " : "", names.v[i]);
    return sbuf_take(&out);
}

TEST(the_order_of_a_module_is_its_line)
{
    struct err err = ERR_INIT;
    AUTO_FREE char *ext4 = names_of("ext4", &err), *one = names_of("crc16", &err),
                   *last = names_of("last", &err);

    ASSERT_STR(ext4, "crc32c_generic crc16 jbd2 ext4");
    ASSERT_STR(one, "crc16");
    ASSERT_STR(last, "last");
}

TEST(dashes_and_underscores_are_the_same)
{
    struct err err = ERR_INIT;
    AUTO_FREE char *names = names_of("aesni-intel", &err);

    ASSERT_STR(names, "cryptd aesni_intel");
}

TEST(a_module_that_is_not_there_is_named)
{
    struct err err = ERR_INIT;
    AUTO_FREE char *names = names_of("ext", &err);

    ASSERT(!names);
    ASSERT_EQ(err.code, ERR_NOT_FOUND);
    ASSERT_MSG_HAS(err.msg, "module ext ");
}

TEST(damaged_lines_are_refused)
{
    static const char *const bad[] = { "empty", "lost", "evil" };

    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct err err = ERR_INIT;
        AUTO_FREE char *names = names_of(bad[i], &err);
        ASSERT(!names);
        ASSERT_EQ(err.code, ERR_INVALID);
    }
}

/* --- with files --- */

struct world {
    struct tempdir temp;
    struct sbuf loaded;
    const char *fail;
    int failure;
};

static int insert(void *arg, int fd, const char *name)
{
    struct world *w = arg;

    if (str_eq(name, w->fail))
        return -w->failure;
    sbuf_addf(&w->loaded, "%s ", name);
    return 0;
}

static void world_init(struct world *w)
{
    static const char *const files[] = { "crc32c_generic", "crc16", "jbd2", "ext4" };

    *w = (struct world){ 0 };
    tempdir_init(&w->temp, "/tmp");
    AUTO_FREE char *list = str_format("%s/order", w->temp.dir);
    ASSERT_EQ(file_write(list, order, strlen(order), 0644), 0);
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        AUTO_FREE char *path = str_format("%s/%s.ko", w->temp.dir, files[i]);
        ASSERT_EQ(file_write(path, "x", 1, 0644), 0);
    }
}

static void world_release(struct world *w)
{
    tempdir_release_auto(&w->temp);
    sbuf_release(&w->loaded);
}

TEST(modules_are_inserted_in_order)
{
    struct err err = ERR_INIT;
    struct world w;

    world_init(&w);
    ASSERT_OK(modules_load_from(w.temp.dir, "ext4", insert, &w, &err), err);
    ASSERT_STR(w.loaded.data, "crc32c_generic crc16 jbd2 ext4 ");
    world_release(&w);
}

TEST(an_already_loaded_module_is_success)
{
    struct err err = ERR_INIT;
    struct world w;

    world_init(&w);
    w.fail = "jbd2";
    w.failure = EEXIST;
    ASSERT_OK(modules_load_from(w.temp.dir, "ext4", insert, &w, &err), err);
    ASSERT_STR(w.loaded.data, "crc32c_generic crc16 ext4 ");
    world_release(&w);
}

TEST(a_corrupt_module_is_named_with_its_errno)
{
    struct err err = ERR_INIT;
    struct world w;

    world_init(&w);
    w.fail = "crc16";
    w.failure = ENOEXEC;
    ASSERT(modules_load_from(w.temp.dir, "ext4", insert, &w, &err) < 0);
    ASSERT_EQ(err.sys, ENOEXEC);
    ASSERT_HAS(err.msg, "/crc16.ko");
    ASSERT_HAS(err.msg, "ext4");
    ASSERT_STR(w.loaded.data, "crc32c_generic ");
    world_release(&w);
}

TEST(a_missing_file_is_named_with_its_errno)
{
    struct err err = ERR_INIT;
    struct world w;

    world_init(&w);
    ASSERT(modules_load_from(w.temp.dir, "aesni_intel", insert, &w, &err) < 0);
    ASSERT_EQ(err.sys, ENOENT);
    ASSERT_HAS(err.msg, "/cryptd.ko");
    world_release(&w);
}

TEST(a_missing_order_file_is_named)
{
    struct err err = ERR_INIT;

    ASSERT_FAIL(modules_load_from("/nonexistent", "ext4", insert, NULL, &err), err, ERR_NOT_FOUND);
    ASSERT_HAS(err.msg, "/nonexistent/order");
}
