#include "base/child.h"
#include "base/fd.h"
#include "base/loop.h"
#include "base/str.h"
#include "base/stream.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include "host/jail/jail.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/keyctl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define JAIL_UID 60123

static char *said; /* all that the probe printed */

static char *value_of(const char *key)
{
    static char value[256];
    AUTO_FREE char *head = str_format("\n%s=", key);
    const char *at = said ? strstr(said, head) : NULL;

    if (!at)
        tap_fail(__FILE__, __LINE__, "the probe did not tell \"%s\": %s", key, said ? said : "");
    at += strlen(head);
    snprintf(value, sizeof(value), "%.*s", (int)strcspn(at, "\n"), at);
    return value;
}

static void probe(struct ctx *ctx)
{
    const char *program = getenv("JAIL_PROBE");
    static const char *const dirs[] = { "/shares", NULL };
    static const char *const devices[] = { "/dev/null", "/dev/urandom", NULL };
    const struct jail_file files[] = { { 40, "/boot/kernel" } };
    const struct jail_blob blobs[] = { { "/boot/blob", "secret", 6 } };
    struct err err = ERR_INIT;
    struct sbuf text = { 0 };
    int pipe_fds[2], status;

    if (said)
        return;
    if (geteuid() != 0)
        tap_skip("a jail needs root");
    if (!program)
        tap_skip("JAIL_PROBE does not name the probe");
    TEMPDIR(p);
    AUTO_FREE char *at = str_format("%s/jail", p.dir);
    ASSERT_EQ(mkdir(at, 0700), 0);
    AUTO_FD int kernel = open(tempdir_path(&p, "image"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ASSERT_EQ(fd_write_full(kernel, "vmlinux", 7), 0);
    AUTO_FD int tree = jail_tree(kernel);
    ASSERT(tree >= 0);
    ASSERT_EQ(pipe2(pipe_fds, O_CLOEXEC), 0);
    AUTO_FD int write_end = pipe_fds[1];
    AUTO(stream_free) struct stream *out = stream_from_fd(ctx->loop, pipe_fds[0]);

    AUTO(jail_free) struct jail *jail = NULL;
    ASSERT_OK(jail_new(&(struct jail_opts){ .mount_point = at,
                                            .program = program,
                                            .uid = JAIL_UID,
                                            .caps = JAIL_CAPS_SHARES,
                                            .dirs = dirs,
                                            .devices = devices,
                                            .files = files,
                                            .n_files = 1,
                                            .blobs = blobs,
                                            .n_blobs = 1,
                                            .max_fds = 512,
                                            .small_pages = true },
                       &jail, &err),
              err);
    /* A secret of ours that children inherit. */
    (void)syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL, 0, 0, 0);
    (void)syscall(SYS_add_key, "user", "lcow-jail-test", "secret", 6, KEY_SPEC_SESSION_KEYRING);

    const char *const argv[] = { program, NULL };
    const struct child_fd fds[] = { { write_end, 1 }, { tree, 40 } };
    AUTO(child_free) struct child *c = NULL;
    ASSERT_OK(child_spawn(ctx,
                          &(struct child_opts){ .argv = argv,
                                                .fds = fds,
                                                .n_fds = 2,
                                                .clone_flags = JAIL_CLONE_FLAGS,
                                                .new_session = true,
                                                .die_with_us = true,
                                                .setup = jail_setup,
                                                .setup_arg = jail },
                          &c, &err),
              err);
    fd_close(TAKE_FD(write_end));
    sbuf_addc(&text, '\n');
    for (size_t n = 1; n > 0;) {
        ASSERT_OK(stream_read(ctx, out, sbuf_room(&text, 4096), 4096, &n, &err), err);
        text.len += n;
    }
    sbuf_addc(&text, '\n');
    ASSERT_OK(child_wait(ctx, c, &status, &err), err);
    ASSERT_EQ(status, 0);
    said = sbuf_take(&text);
    ASSERT_EQ(rmdir(at), 0); /* nothing of it is seen out here */
}

TEST_FIBER(the_user_is_its_own_and_has_four_capabilities)
{
    probe(ctx);
    ASSERT_STR(value_of("uid"), "60123");
    ASSERT_STR(value_of("gid"), "60123");
    ASSERT_STR(value_of("groups"), "0");
    ASSERT_STR(value_of("effective"), "00000001b");
    ASSERT_STR(value_of("permitted"), "00000001b");
    ASSERT_STR(value_of("ambient"), "1b");
    ASSERT_STR(value_of("bounding"), "1b");
    ASSERT_STR(value_of("no_new_privs"), "1");
    ASSERT_STR(value_of("mknod"), "EROFS");
}

TEST_FIBER(no_other_process_and_no_network_is_there)
{
    probe(ctx);
    ASSERT_STR(value_of("pid"), "1");
    ASSERT_STR(value_of("sid"), "1");
    ASSERT_STR(value_of("if"), "lo ");
    ASSERT_STR(value_of("host"), "vm");
    ASSERT_STR(value_of("proc"), "ENOENT");
}

TEST_FIBER(it_dies_with_us_and_leaves_no_core)
{
    probe(ctx);
    ASSERT_STR(value_of("pdeathsig"), "9");
    ASSERT_STR(value_of("core"), "0");
    ASSERT_STR(value_of("nofile"), "512");
    ASSERT_STR(value_of("small_pages"), "1");
}

TEST_FIBER(only_the_named_fds_are_open)
{
    probe(ctx);
    ASSERT_STR(value_of("fds"), "0 1 2 ");
}

/* The way to the program itself is there too: /usr when installed, here wherever the build is. */
static bool may_be_in_the_root(const char *name, const char *program)
{
    static const char *const always[] = { "boot",  "dev",    "lib",    "lib32",
                                          "lib64", "libx32", "shares", "usr" };
    size_t len = strlen(name);

    for (size_t i = 0; i < sizeof(always) / sizeof(*always); i++)
        if (str_eq(name, always[i]))
            return true;
    return strncmp(program + 1, name, len) == 0 && program[1 + len] == '/';
}

TEST_FIBER(no_file_of_the_host_but_libraries_is_seen_and_nothing_can_be_written)
{
    probe(ctx);
    for (char *word = strtok(value_of("root"), " "); word; word = strtok(NULL, " "))
        if (!may_be_in_the_root(word, getenv("JAIL_PROBE")))
            tap_fail(__FILE__, __LINE__, "/%s is in the jail", word);
    ASSERT_STR(value_of("dev"), "null urandom ");
    ASSERT_STR(value_of("shares"), "");
    ASSERT_STR(value_of("passwd"), "ENOENT");
    ASSERT_STR(value_of("outside"), "ENOENT");
    ASSERT_STR(value_of("new"), "EROFS");
    ASSERT_STR(value_of("share"), "EROFS");
    ASSERT_STR(value_of("lib"), "EROFS");
    ASSERT_STR(value_of("null"), "open");
}

TEST_FIBER(files_come_by_fd_read_only_and_blobs_for_the_user_alone)
{
    probe(ctx);
    ASSERT_STR(value_of("kernel"), "vmlinux");
    ASSERT_STR(value_of("kernel-write"), "EROFS");
    ASSERT_STR(value_of("blob"), "secret");
    ASSERT_STR(value_of("blob-mode"), "400");
}

/* It has the capabilities to do so: a device's owner and mode are everybody's. */
TEST_FIBER(no_device_node_of_the_host_can_be_changed)
{
    probe(ctx);
    ASSERT_STR(value_of("chmod-null"), "EROFS");
    ASSERT_STR(value_of("chmod-stdin"), "EROFS");
}

TEST_FIBER(our_keys_are_out_of_reach)
{
    probe(ctx);
    if (str_eq(value_of("key"), "ENOSYS") || str_eq(value_of("key"), "EPERM"))
        tap_skip("no keyrings here");
    ASSERT_STR(value_of("key"), "ENOKEY");
}

TEST(a_device_that_is_passed_on_can_be_used_but_not_changed_or_opened_anew)
{
    AUTO_FD int path = open("/dev/null", O_PATH | O_CLOEXEC);

    if (geteuid() != 0)
        tap_skip("a mount needs root");
    AUTO_FD int fd = jail_device(path, O_RDONLY);
    AUTO_FREE char *again = str_format("/proc/self/fd/%d", fd);
    ASSERT(fd >= 0);
    ASSERT_EQ(read(fd, (char[1]){ 0 }, 1), 0);
    ASSERT_EQ(fchmod(fd, 0666), -1);
    ASSERT_EQ(errno, EROFS);
    ASSERT_EQ(open(again, O_RDWR), -1);
    ASSERT_EQ(errno, EACCES);
}

TEST(a_jail_for_root_is_refused)
{
    struct jail *jail;
    struct err err = ERR_INIT;

    ASSERT_FAIL(
        jail_new(&(struct jail_opts){ .mount_point = "/x", .program = "/bin/true" }, &jail, &err),
        err, ERR_INVALID);
}

TEST(a_program_that_is_not_there_is_named)
{
    struct jail *jail;
    struct err err = ERR_INIT;

    ASSERT_FAIL(jail_new(&(struct jail_opts){ .mount_point = "/x",
                                              .program = "/usr/bin/no-such-vmm",
                                              .uid = JAIL_UID },
                         &jail, &err),
                err, ERR_NOT_FOUND);
    ASSERT_HAS(err.msg, "/usr/bin/no-such-vmm");
}

TEST_FIBER(a_step_that_fails_ends_the_child_and_is_named)
{
    static const char *const missing[] = { "/dev/lcow-not-there", NULL };
    static const struct jail_file closed[] = { { 99, "/boot/kernel" } };
    static const struct jail_blob twice[] = { { "/b", "x", 1 }, { "/b", "y", 1 } };
    const struct {
        struct jail_opts opts;
        const char *want;
    } cases[] = {
        { { .devices = missing }, "show /dev/lcow-not-there in the jail" },
        { { .files = closed, .n_files = 1 }, "show /boot/kernel in the jail" },
        { { .blobs = twice, .n_blobs = 2 }, "write /b in the jail" },
    };
    const char *const argv[] = { "/bin/true", NULL };

    if (geteuid() != 0)
        tap_skip("a jail needs root");
    TEMPDIR(p);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        AUTO(jail_free) struct jail *jail = NULL;
        AUTO(child_free) struct child *c = NULL;
        struct jail_opts opts = cases[i].opts;
        struct err err = ERR_INIT;

        opts.mount_point = p.dir;
        opts.program = argv[0];
        opts.uid = JAIL_UID;
        ASSERT_OK(jail_new(&opts, &jail, &err), err);
        ASSERT_EQ(child_spawn(ctx,
                              &(struct child_opts){ .argv = argv,
                                                    .clone_flags = JAIL_CLONE_FLAGS,
                                                    .setup = jail_setup,
                                                    .setup_arg = jail },
                              &c, &err),
                  -1);
        ASSERT_EQ(err.reason, REASON_JAIL_FAILED);
        ASSERT_MSG_HAS(err.msg, cases[i].want);
    }
}
