#include "base/clock.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/str.h"
#include "harness/tap.h"
#include "host/files/tree.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

TEST_FIBER(a_pods_root_has_one_program_and_is_read_only)
{
    struct err err = ERR_INIT;
    AUTO_FD int root = -1;
    struct stat st;

    if (geteuid() != 0)
        tap_skip("mounts need root");
    ASSERT_OK(tree_open_pause(ctx, &root, &err), err);
    ASSERT_EQ(fstatat(root, TREE_PAUSE_NAME, &st, 0), 0);
    ASSERT_EQ(st.st_mode & 07777, 0555);
    ASSERT_EQ(openat(root, "x", O_CREAT | O_WRONLY | O_CLOEXEC, 0600), -1);
    ASSERT_EQ(fstat(root, &st), 0);
    ASSERT_EQ(st.st_mode & 07777, 0755);
}

static void await_text(struct ctx *ctx, const char *path, const char *wanted)
{
    struct err err = ERR_INIT;

    for (bool seen = false; !seen;) {
        AUTO_FREE char *text = NULL;
        size_t len;

        ASSERT_EQ(file_read_all(path, 4096, &text, &len), 0);
        seen = str_eq(text, wanted);
        ASSERT_OK(fiber_sleep(ctx, NS_PER_MS, &err), err);
    }
}

/* As the first process of a pid namespace it is who orphans become children of. */
TEST_FIBER(the_program_waits_and_leaves_no_zombies)
{
    struct err err = ERR_INIT;
    AUTO_FD int root = -1, program = -1;
    int status;

    if (geteuid() != 0)
        tap_skip("mounts need root");
    ASSERT_OK(tree_open_pause(ctx, &root, &err), err);
    program = openat(root, TREE_PAUSE_NAME, O_RDONLY | O_CLOEXEC);
    ASSERT(program >= 0);

    pid_t pid = fork(); /* the test's own: check-rooms looks at rooms only */
    if (pid == 0) {
        char *argv[] = { "pause", NULL };
        if (fork() == 0) { /* a child of what becomes the program; ends later */
            usleep(50000);
            _exit(0);
        }
        fexecve(program, argv, argv + 1);
        _exit(127);
    }
    AUTO_FREE char *name = str_format("/proc/%d/cmdline", pid);
    AUTO_FREE char *children = str_format("/proc/%d/task/%d/children", pid, pid);

    await_text(ctx, name, "pause"); /* now it has the child */
    await_text(ctx, children, "");
    ASSERT_EQ(waitpid(pid, &status, WNOHANG), 0);
    ASSERT_EQ(kill(pid, SIGKILL), 0);
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
}
