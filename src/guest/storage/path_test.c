#include "base/str.h"
#include "guest/storage/path.h"
#include "harness/tap.h"
#include <string.h>

TEST(only_clean_absolute_paths_pass)
{
    static const char *const bad[] = { "",        "a",   "/",  "/a/",   "//a",    "/a//b", "/a/./b",
                                       "/a/../b", "/..", "/.", "/a/..", "/a\n/b", NULL };
    static const char *const good[] = { "/a", "/a/b", "/a/..b", "/a/.b", "/a/b..", NULL };
    struct err err = ERR_INIT;

    for (const char *const *p = bad; *p; p++)
        ASSERT_FAIL(path_check(*p, "field", &err), err, ERR_INVALID);
    ASSERT_HAS(err.msg, "field");
    for (const char *const *p = good; *p; p++)
        ASSERT_OK(path_check(*p, "field", &err), err);
    ASSERT_FAIL(path_check(NULL, "field", &err), err, ERR_INVALID);
}

TEST(a_path_has_a_length)
{
    char path[PATH_BYTES_MAX + 2];
    struct err err = ERR_INIT;

    memset(path, 'a', sizeof(path));
    path[0] = '/';
    path[sizeof(path) - 1] = '\0';
    ASSERT_FAIL(path_check(path, "field", &err), err, ERR_INVALID);
    path[sizeof(path) - 2] = '\0';
    ASSERT_OK(path_check(path, "field", &err), err);
}

TEST(mounts_and_deletions_stay_below_run)
{
    struct err err = ERR_INIT;

    ASSERT_OK(path_check_run("/run/x", "field", &err), err);
    ASSERT_FAIL(path_check_run("/run", "field", &err), err, ERR_INVALID);
    ASSERT_FAIL(path_check_run("/running/x", "field", &err), err, ERR_INVALID);
    ASSERT_FAIL(path_check_run("/etc/run/x", "field", &err), err, ERR_INVALID);
}

TEST(no_option_can_be_smuggled_into_an_overlay)
{
    struct err err = ERR_INIT;

    ASSERT_OK(path_check_option("/run/a-b_c.d", "layer", &err), err);
    ASSERT_FAIL(path_check_option("/run/a:b", "layer", &err), err, ERR_INVALID);
    ASSERT_FAIL(path_check_option("/run/a,b", "layer", &err), err, ERR_INVALID);
    ASSERT_FAIL(path_check_option("/run/a\\b", "layer", &err), err, ERR_INVALID);
}

TEST(a_name_is_one_plain_component)
{
    char name[130];

    ASSERT(path_name_ok("a.B-_9") && path_name_ok("...") && path_name_ok(".a"));
    ASSERT(!path_name_ok("") && !path_name_ok(".") && !path_name_ok(".."));
    ASSERT(!path_name_ok("a/b") && !path_name_ok("a b") && !path_name_ok("a,b"));
    memset(name, 'a', sizeof(name));
    name[129] = '\0';
    ASSERT(!path_name_ok(name));
    name[128] = '\0';
    ASSERT(path_name_ok(name));
}

static void below(const char *relative, const char *want)
{
    AUTO_FREE char *got = NULL;
    struct err err = ERR_INIT;

    if (!want) {
        ASSERT_FAIL(path_below("/run/p", relative, &got, &err), err, ERR_INVALID);
        return;
    }
    ASSERT_OK(path_below("/run/p", relative, &got, &err), err);
    ASSERT_STR(got, want);
}

TEST(a_relative_path_stays_below_its_root)
{
    below("a", "/run/p/a");
    below("/a//b/./c/", "/run/p/a/b/c");
    below("a/../b", "/run/p/b");
    below("", NULL);
    below("..", NULL);
    below("a/../..", NULL);
    below("a/..", NULL);
    below("../p/a", NULL);
}

TEST(below_means_a_whole_component)
{
    ASSERT(path_is_below("/run/a", "/run/a") && path_is_below("/run/a/b", "/run/a"));
    ASSERT(!path_is_below("/run/ab", "/run/a") && !path_is_below("/run", "/run/a"));
}

TEST(the_parent_of_a_path)
{
    AUTO_FREE char *a = path_parent("/run/a/b"), *b = path_parent("/run"), *c = path_parent("x");

    ASSERT_STR(a, "/run/a");
    ASSERT_STR(b, "/");
    ASSERT_STR(c, "/");
}
