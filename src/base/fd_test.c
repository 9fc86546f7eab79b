#include "base/fd.h"
#include "fixture/fd_fixture.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

TEST(close_keeps_errno_and_takes_minus_one)
{
    errno = ENOENT;
    fd_close(-1);
    fd_close(9999);
    ASSERT_EQ(errno, ENOENT);
}

TEST(take_fd_gives_away)
{
    AUTO_FD int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    AUTO_FD int other = TAKE_FD(fd);

    ASSERT_EQ(fd, -1);
    ASSERT(other >= 0);
}

TEST(nonblock_sets_the_flag_and_keeps_the_others)
{
    AUTO_FD int fd = open("/dev/null", O_WRONLY | O_APPEND | O_CLOEXEC);

    ASSERT_EQ(fd_nonblock(fd), 0);
    ASSERT_EQ(fcntl(fd, F_GETFL) & (O_NONBLOCK | O_APPEND), O_NONBLOCK | O_APPEND);
    ASSERT_EQ(fd_nonblock(-1), -EBADF);
}

TEST(full_read_stops_at_the_end_only)
{
    AUTO_FD int a = -1, b = -1;
    int p[2];
    char buf[8];

    ASSERT_EQ(pipe2(p, O_CLOEXEC), 0);
    a = p[0], b = p[1];
    ASSERT_EQ(fd_write_full(b, "abcde", 5), 0);
    ASSERT_EQ(fd_read_full(a, buf, 3), 3);
    fd_close(TAKE_FD(b));
    ASSERT_EQ(fd_read_full(a, buf, 8), 2);
    ASSERT_EQ(fd_read_full(a, buf, 8), 0);
    ASSERT_EQ(fd_read_full(-1, buf, 8), -EBADF);
}

TEST(full_write_reports_a_broken_pipe)
{
    AUTO_FD int b = -1;
    int p[2];

    ASSERT_EQ(pipe2(p, O_CLOEXEC), 0);
    close(p[0]);
    b = p[1];
    ASSERT_EQ(fd_write_full(b, "x", 1), -EPIPE);
    ASSERT_EQ(fd_write_full(b, NULL, 0), 0);
}

static void make_pair(int *a, int *b, int type)
{
    int s[2];

    ASSERT_EQ(socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, s), 0);
    *a = s[0];
    *b = s[1];
}

TEST(a_descriptor_travels_and_arrives_cloexec)
{
    AUTO_FD int a = -1, b = -1, null = open("/dev/null", O_RDONLY), got = -1;
    struct stat sent, came;

    make_pair(&a, &b, SOCK_STREAM);
    ASSERT_EQ(fd_send(a, null), 0);
    got = fd_recv(b);
    ASSERT_EQ(fcntl(got, F_GETFD), FD_CLOEXEC);
    ASSERT(fstat(null, &sent) == 0 && fstat(got, &came) == 0 && sent.st_ino == came.st_ino);
}

TEST(a_message_without_a_descriptor_has_none)
{
    AUTO_FD int a = -1, b = -1;

    make_pair(&a, &b, SOCK_STREAM);
    ASSERT_EQ(write(a, "hey", 3), 3);
    ASSERT_EQ(fd_recv(b), -ENOMSG);
}

static void send_many(int from, int n)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * 64)];
    } control = { 0 };
    struct iovec iov = { "x", 1 };
    struct msghdr msg = { .msg_iov = &iov,
                          .msg_iovlen = 1,
                          .msg_control = control.bytes,
                          .msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)n) };

    control.align.cmsg_level = SOL_SOCKET;
    control.align.cmsg_type = SCM_RIGHTS;
    control.align.cmsg_len = CMSG_LEN(sizeof(int) * (size_t)n);
    for (int i = 0; i < n; i++)
        memcpy(CMSG_DATA(&control.align) + (size_t)i * sizeof(int), &from, sizeof(int));
    ASSERT_EQ(sendmsg(from, &msg, MSG_NOSIGNAL), 1);
}

TEST(more_descriptors_than_one_leave_none_behind)
{
    AUTO_FD int a = -1, b = -1;
    size_t before;

    make_pair(&a, &b, SOCK_STREAM);
    before = count_fds();
    for (int n = 2; n <= 64; n *= 2) {
        send_many(a, n);
        ASSERT_EQ(fd_recv(b), -EMSGSIZE);
        ASSERT_EQ(count_fds(), before);
    }
}

TEST(a_closed_peer_is_an_error)
{
    AUTO_FD int a = -1, b = -1;

    make_pair(&a, &b, SOCK_STREAM);
    fd_close(TAKE_FD(b));
    ASSERT_EQ(fd_recv(a), -ENOMSG);
    ASSERT_EQ(fd_send(a, a), -EPIPE);
}

TEST(read_all_reads_and_terminates)
{
    TEMPDIR(p);
    AUTO_FREE char *text = NULL;
    size_t len = 0;

    ASSERT_EQ(file_write(tempdir_path(&p, "f"), "ab\0c", 4, 0600), 0);
    ASSERT_EQ(file_read_all(tempdir_path(&p, "f"), 100, &text, &len), 0);
    ASSERT_EQ(len, 4);
    ASSERT(memcmp(text, "ab\0c", 5) == 0);
}

TEST(read_all_takes_exactly_the_maximum)
{
    TEMPDIR(p);
    char data[10000];

    memset(data, 'x', sizeof(data));
    for (size_t size = 4090; size < 4100; size++) {
        AUTO_FREE char *text = NULL, *other = NULL;
        size_t len = 0;

        ASSERT_EQ(file_write(tempdir_path(&p, "f"), data, size, 0600), 0);
        ASSERT_EQ(file_read_all(tempdir_path(&p, "f"), size, &text, &len), 0);
        ASSERT_EQ(len, size);
        ASSERT_EQ(file_read_all(tempdir_path(&p, "f"), size - 1, &other, &len), -EFBIG);
        ASSERT(!other);
    }
}

TEST(read_all_of_proc_has_no_size_to_trust)
{
    AUTO_FREE char *text = NULL, *none = NULL;
    size_t len = 0;

    ASSERT_EQ(file_read_all("/proc/self/status", 1 << 20, &text, &len), 0);
    ASSERT_EQ(strlen(text), len);
    ASSERT_HAS(text, "VmRSS");
    ASSERT_EQ(file_read_all("/proc/self/status", 10, &none, &len), -EFBIG);
    ASSERT_EQ(file_read_all("/dev/zero", 100000, &none, &len), -EFBIG);
}

TEST(read_all_of_an_empty_file_is_an_empty_string)
{
    AUTO_FREE char *text = NULL;
    size_t len = 1;

    ASSERT_EQ(file_read_all("/dev/null", 0, &text, &len), 0);
    ASSERT_STR(text, "");
    ASSERT_EQ(len, 0);
}

TEST(read_all_reports_the_reason)
{
    char *text = NULL;

    ASSERT_EQ(file_read_all("/nonexistent", 10, &text, NULL), -ENOENT);
    ASSERT_EQ(file_read_all("/tmp", 10, &text, NULL), -EISDIR);
    ASSERT(!text);
}

TEST(write_truncates_what_was_there)
{
    TEMPDIR(p);
    AUTO_FREE char *text = NULL;

    ASSERT_EQ(file_write(tempdir_path(&p, "f"), "long text", 9, 0600), 0);
    ASSERT_EQ(file_write(tempdir_path(&p, "f"), "x", 1, 0600), 0);
    ASSERT_EQ(file_read_all(tempdir_path(&p, "f"), 10, &text, NULL), 0);
    ASSERT_STR(text, "x");
    ASSERT_EQ(file_write(tempdir_path(&p, "no/f"), "x", 1, 0600), -ENOENT);
    ASSERT_EQ(file_write("/dev/full", "x", 1, 0600), -ENOSPC);
}

TEST(replace_sets_content_and_mode_and_leaves_nothing_beside)
{
    TEMPDIR(p);
    AUTO_FREE char *text = NULL;
    struct stat st;

    ASSERT_EQ(file_replace(tempdir_path(&p, "f"), "one", 3, 0644), 0);
    ASSERT_EQ(file_replace(tempdir_path(&p, "f"), "two!", 4, 0640), 0);
    ASSERT_EQ(file_read_all(tempdir_path(&p, "f"), 10, &text, NULL), 0);
    ASSERT_STR(text, "two!");
    ASSERT_EQ(stat(tempdir_path(&p, "f"), &st), 0);
    ASSERT_EQ(st.st_mode & 07777, 0640);
    ASSERT_EQ(count_entries(p.dir), 1);
}

TEST(replace_replaces_a_symlink_not_its_target)
{
    TEMPDIR(p);
    AUTO_FREE char *text = NULL;
    char target[128];

    snprintf(target, sizeof(target), "%s/target", p.dir);
    ASSERT_EQ(file_write(target, "old", 3, 0600), 0);
    ASSERT_EQ(symlink(target, tempdir_path(&p, "link")), 0);
    ASSERT_EQ(file_replace(tempdir_path(&p, "link"), "new", 3, 0600), 0);
    ASSERT_EQ(file_read_all(target, 10, &text, NULL), 0);
    ASSERT_STR(text, "old");
}

TEST(replace_that_fails_leaves_old_content_and_no_temporary)
{
    TEMPDIR(p);

    ASSERT_EQ(mkdir(tempdir_path(&p, "d"), 0700), 0);
    ASSERT_EQ(file_replace(tempdir_path(&p, "d"), "x", 1, 0600), -EISDIR);
    ASSERT_EQ(count_entries(p.dir), 1);
    ASSERT_EQ(file_replace(tempdir_path(&p, "no/f"), "x", 1, 0600), -ENOENT);
    ASSERT_EQ(count_entries(p.dir), 1);
}

TEST(replace_works_without_a_slash_in_the_path)
{
    TEMPDIR(p);
    AUTO_FD int old = open(".", O_DIRECTORY | O_CLOEXEC);
    int r;

    ASSERT_EQ(chdir(p.dir), 0);
    r = file_replace("f", "x", 1, 0600);
    ASSERT_EQ(fchdir(old), 0);
    ASSERT_EQ(r, 0);
    ASSERT(exists(tempdir_path(&p, "f")));
}

TEST(dir_make_makes_all_parents_and_can_be_repeated)
{
    TEMPDIR(p);
    struct stat st;

    ASSERT_EQ(dir_make(tempdir_path(&p, "a//b/c/"), 0700), 0);
    ASSERT_EQ(dir_make(tempdir_path(&p, "a/b/c"), 0700), 0);
    ASSERT_EQ(stat(tempdir_path(&p, "a/b/c"), &st), 0);
    ASSERT(S_ISDIR(st.st_mode));
    ASSERT_EQ(dir_make("/", 0700), 0);
    ASSERT_EQ(dir_make("", 0700), -ENOENT);
}

TEST(dir_make_refuses_a_file_in_the_way)
{
    TEMPDIR(p);

    ASSERT_EQ(file_write(tempdir_path(&p, "f"), "", 0, 0600), 0);
    ASSERT_EQ(dir_make(tempdir_path(&p, "f"), 0700), -ENOTDIR);
    ASSERT_EQ(dir_make(tempdir_path(&p, "f/x"), 0700), -ENOTDIR);
}

TEST(readiness_is_reported_without_waiting)
{
    int fds[2];

    ASSERT_EQ(pipe2(fds, O_CLOEXEC), 0);
    ASSERT_EQ(fd_ready_now(fds[0], POLLIN), 0);
    ASSERT_EQ(fd_ready_now(fds[1], POLLOUT), POLLOUT);
    ASSERT_EQ(fd_ready_now(fds[1], 0), 0);
    close(fds[0]);
    ASSERT_EQ(fd_ready_now(fds[1], 0), POLLERR);
    close(fds[1]);
}

TEST(files_and_directories_with_an_error_name_the_path)
{
    TEMPDIR(p);
    AUTO_FREE char *text = NULL, *sub = str_format("%s/a/b", p.dir);
    const char *file = tempdir_path(&p, "file");
    struct err err = ERR_INIT;

    ASSERT_FAIL(file_load(file, 10, &text, &err), err, ERR_NOT_FOUND);
    ASSERT_MSG_HAS(err.msg, "read ");
    ASSERT_HAS(err.msg, file);
    ASSERT_EQ(file_write(file, "abc", 3, 0600), 0);
    ASSERT_OK(file_load(file, 10, &text, &err), err);
    ASSERT_STR(text, "abc");
    ASSERT_OK(dir_need(sub, 0700, &err), err);
    ASSERT_OK(dir_need(sub, 0700, &err), err);
    ASSERT(dir_need(file, 0700, &err) < 0);
    ASSERT_MSG_HAS(err.msg, "make ");
}
