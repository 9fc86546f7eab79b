#include "base/err.h"
#include "base/str.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include "tool/lib/exec.h"
#include <string.h>

static void put_spec(struct tempdir *p, const char *text)
{
    ASSERT_EQ(file_write(tempdir_path(p, "config.json"), text, strlen(text), 0600), 0);
}

/* "Unlimited" is 2^64-1, which exceeds jansson's integers. */
TEST(an_unlimited_resource_of_the_container_is_unlimited_for_the_command)
{
    TEMPDIR(p);
    AUTO_FREE char *process = NULL;
    char *argv[] = { "id", "-u", NULL };
    struct err err = ERR_INIT;

    put_spec(&p, "{\"process\":{\"cwd\":\"/\",\"args\":[\"sh\"],\"rlimits\":[{\"type\":"
                 "\"RLIMIT_CORE\",\"hard\":18446744073709551615,\"soft\":0}]}}");
    ASSERT_OK(exec_process(p.dir, argv, "/tmp", false, &process, &err), err);
    ASSERT_HAS(process, "\"hard\":18446744073709551615,");
    ASSERT_HAS(process, "\"args\":[\"id\",\"-u\"]");
    ASSERT_HAS(process, "\"cwd\":\"/tmp\"");
}

TEST(a_word_that_is_not_utf8_is_refused)
{
    TEMPDIR(p);
    AUTO_FREE char *process = NULL;
    char *argv[] = { "rm", "\xff", "b", NULL };
    struct err err = ERR_INIT;

    put_spec(&p, "{\"process\":{}}");
    ASSERT_FAIL(exec_process(p.dir, argv, NULL, false, &process, &err), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "word 2 of the command");
    err_clear(&err);
    argv[1] = "a";
    ASSERT_FAIL(exec_process(p.dir, argv, "\xff", false, &process, &err), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "directory");
}
