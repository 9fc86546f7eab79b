#include "base/fd.h"
#include "base/str.h"
#include "guest/runtime/crun.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void means(const char *text, enum err_code code, const char *message)
{
    struct err err = ERR_INIT;

    ASSERT_FAIL(crun_error(text, &err), err, code);
    ASSERT_MSG(err.msg, message ? message : text);
}

TEST(each_message_of_crun_has_its_reason)
{
    static const struct {
        const char *text;
        enum reason reason;
    } cases[] = {
        { "executable file `x` not found in $PATH: No such file or directory",
          REASON_COMMAND_NOT_FOUND },
        { "exec container process `/x`: Permission denied", REASON_COMMAND_NOT_EXECUTABLE },
        { "error opening file `/run/crun/c/status`: No such file or directory",
          REASON_CONTAINER_LOST },
        { "invalid seccomp action `SCMP_ACT_NO`", REASON_SECCOMP_PROFILE },
        { "write file `/proc/self/attr/apparmor/exec`: No such file", REASON_APPARMOR_PROFILE },
        { "mount `x` to `y`: Invalid argument", REASON_CRUN_FAILED },
    };

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct err err = ERR_INIT;

        ASSERT_EQ(crun_error(cases[i].text, &err), -1);
        ASSERT_EQ(err.reason, cases[i].reason);
    }
}

/* As crun 1.8.1 words them. */
TEST(a_missing_command_is_worded_as_runc_does)
{
    means("executable file `nonsense` not found in $PATH: No such file or directory", ERR_NOT_FOUND,
          "exec: \"nonsense\": executable file not found in $PATH");
    means("exec container process `/bin/x`: No such file or directory", ERR_NOT_FOUND,
          "exec: \"/bin/x\": no such file or directory");
}

TEST(a_command_that_may_not_be_run)
{
    struct err err = ERR_INIT;

    ASSERT_FAIL(crun_error("open executable: Permission denied", &err), err, ERR_PERMISSION);
    ASSERT_MSG_HAS(err.msg, "permission denied");
    ASSERT_FAIL(crun_error("exec container process `/x`: Permission denied", &err), err,
                ERR_PERMISSION);
}

TEST(states_of_containers_are_distinguished)
{
    means("container `a` does not exist", ERR_NOT_FOUND, NULL);
    means("container `a` already exists", ERR_EXISTS, NULL);
    means("the container `a` is not in `created` or `stopped` state", ERR_STATE, NULL);
    means("the container `a` is not running", ERR_UNAVAILABLE, NULL);
    means("container `a` is not running", ERR_UNAVAILABLE, NULL);
    means("mount `x` to `y`: Invalid argument", ERR_INTERNAL, NULL);
}

TEST(the_last_error_of_the_log_counts)
{
    static const char log[] = "{\"msg\":\"first\",\"level\":\"error\",\"time\":\"t\"}\n"
                              "rubbish\n"
                              "[1]\n"
                              "{\"msg\":\"a warning\",\"level\":\"warning\"}\n"
                              "{\"msg\":\"second \\\"x\\\"\",\"level\":\"error\"}\n"
                              "{\"level\":\"error\"}\n"
                              "{\"msg\":\"cut of";
    AUTO_FREE char *text = crun_log_error(log);

    ASSERT_STR(text, "second \"x\"");
    ASSERT(!crun_log_error(""));
    ASSERT(!crun_log_error("\n\n"));
}

TEST(init_is_released_through_its_fifo_once)
{
    struct err err = ERR_INIT;
    char byte = 'x';
    TEMPDIR(p);

    AUTO_FREE char *fifo = str_format("%s/c1/exec.fifo", p.dir);

    ASSERT_EQ(mkdir(tempdir_path(&p, "c1"), 0700), 0);
    ASSERT_EQ(mkfifo(fifo, 0600), 0);
    ASSERT_FAIL(crun_release(p.dir, "c1", &err), err, ERR_UNAVAILABLE); /* no init reads */
    ASSERT_EQ(err.reason, REASON_WRONG_STATE);

    AUTO_FD int init = open(fifo, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    ASSERT(init >= 0);
    err_clear(&err);
    ASSERT_OK(crun_release(p.dir, "c1", &err), err);
    ASSERT_EQ(read(init, &byte, 1), 1);
    ASSERT(access(fifo, F_OK) < 0);
    ASSERT(crun_release(p.dir, "c1", &err) < 0);
}

TEST(what_crun_knows_of_a_container_is_removed)
{
    struct err err = ERR_INIT;
    TEMPDIR(p);

    ASSERT_EQ(mkdir(tempdir_path(&p, "c1"), 0700), 0);
    ASSERT_EQ(file_write(tempdir_path(&p, "c1/status"), "{}", 2, 0600), 0);
    ASSERT_OK(crun_forget(p.dir, "c1", &err), err);
    ASSERT(access(tempdir_path(&p, "c1"), F_OK) < 0);
    ASSERT_OK(crun_forget(p.dir, "c1", &err), err);
}
