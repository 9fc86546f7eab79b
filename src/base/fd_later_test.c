/* fd_later_test.c - a close that blocks delays no other code. It really blocks: a TCP socket
 * with SO_LINGER whose peer does not read. */
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"
#include "harness/tap.h"
#include "harness/tempdir.h"
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* ret[0]: its close waits until ret[1] is closed, a minute at most. */
static void stuck_pair(int ret[2])
{
    static const char data[64 * 1024];
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof(at);
    AUTO_FD int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    ASSERT(bind(listener, (struct sockaddr *)&at, len) == 0 && listen(listener, 1) == 0);
    ASSERT(getsockname(listener, (struct sockaddr *)&at, &len) == 0);
    ret[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ASSERT(connect(ret[0], (struct sockaddr *)&at, len) == 0);
    ret[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    ASSERT(ret[1] >= 0 && fd_nonblock(ret[0]) == 0);
    ASSERT(setsockopt(ret[0], SOL_SOCKET, SO_LINGER, &(struct linger){ 1, 60 },
                      sizeof(struct linger)) == 0);
    while (write(ret[0], data, sizeof(data)) > 0)
        ;
    ASSERT_EQ(errno, EAGAIN);
}

/* Unread data: the peer's end resets the connection. */
static void let_go(int peer)
{
    fd_close(peer);
    for (uint64_t until = clock_mono() + 10 * NS_PER_S; fd_closing() > 0;) {
        ASSERT(clock_mono() < until);
        (void)poll(NULL, 0, 1);
    }
}

static bool is_open(int fd)
{
    return fcntl(fd, F_GETFD) >= 0;
}

/* In a child: it has no thread. */
static void close_without_threads(void *arg)
{
    struct rlimit none = { 0, 0 };
    int fds[2];

    (void)arg;
    if (pipe2(fds, O_CLOEXEC) < 0 || setrlimit(RLIMIT_AS, &none) < 0)
        return;
    fd_close_later(fds[0]);
    if (!is_open(fds[0])) {
        fputs("closed by the caller", stderr);
        abort();
    }
}

/* The first test: the C library has no stack at hand that an earlier thread left. */
TEST(without_a_thread_the_caller_closes)
{
#ifdef __SANITIZE_ADDRESS__
    tap_skip("ASan itself needs memory for a thread");
#endif
    ASSERT_ABORTS(close_without_threads, NULL, "closed by the caller");
}

TEST(a_close_that_is_done_at_once_is_done_on_return)
{
    int fds[2];

    ASSERT(pipe2(fds, O_CLOEXEC) == 0);
    errno = ENOENT;
    fd_close_later(fds[1]);
    ASSERT_EQ(errno, ENOENT);
    ASSERT(!is_open(fds[1]));
    ASSERT_EQ(fd_closing(), 0);
    fd_close_later(fds[0]);
    fd_close_later(-1);
}

TEST(a_close_that_waits_does_not_hold_up_the_caller_nor_the_next_close)
{
    int stuck[2], fds[2];

    stuck_pair(stuck);
    ASSERT(pipe2(fds, O_CLOEXEC) == 0);

    uint64_t begin = clock_mono();

    fd_close_later(stuck[0]);
    ASSERT(clock_mono() - begin < 2 * NS_PER_S);
    ASSERT_EQ(fd_closing(), 1);
    fd_close_later(fds[0]);
    /* Without waiting, since one has just hung: another thread closes it in a moment. */
    struct pollfd p = { .fd = fds[1] };
    ASSERT_EQ(poll(&p, 1, 10000), 1);
    ASSERT(p.revents & POLLERR);
    fd_close(fds[1]);
    let_go(stuck[1]);
}

TEST(more_closes_that_wait_than_threads_are_all_done_in_the_end)
{
    enum { N = 70 }; /* of 64 threads */
    int stuck[N][2];

    for (int i = 0; i < N; i++) {
        stuck_pair(stuck[i]);
        fd_close_later(stuck[i][0]);
    }
    ASSERT(fd_closing() <= 64);
    ASSERT(is_open(stuck[N - 1][0]));
    for (int i = 0; i < N - 1; i++)
        fd_close(stuck[i][1]);
    let_go(stuck[N - 1][1]);
    for (int i = 0; i < N; i++)
        ASSERT(!is_open(stuck[i][0]));
}

/* In a child: closes what the others use. */
static void close_ours(void *arg)
{
    const char *dir = arg;
    AUTO_FREE char *ours_dir = str_format("%s/ours", dir),
                   *inside = str_format("%s/file", ours_dir), *beside = str_format("%s/ours2", dir);
    int pipes[2], sockets[2], ours, others;

    if (dir_make(ours_dir, 0700) < 0 || pipe2(pipes, 0) < 0 ||
        socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) < 0 ||
        (ours = open(inside, O_RDWR | O_CREAT, 0600)) < 0 ||
        (others = open(beside, O_RDWR | O_CREAT, 0600)) < 0)
        return;
    fd_close_ours(ours_dir);
    if (!is_open(pipes[0]) && !is_open(pipes[1]) && !is_open(sockets[0]) && !is_open(sockets[1]) &&
        !is_open(ours) && is_open(others) && is_open(2)) {
        fputs("ours are closed", stderr);
        abort();
    }
}

TEST(at_the_end_own_files_are_closed_and_clients_files_are_left)
{
    TEMPDIR(p);

    ASSERT_ABORTS(close_ours, p.dir, "ours are closed");
}
