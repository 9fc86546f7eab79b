#include "base/fd.h"
#include "base/err.h"
#include "base/str.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

void fd_close(int fd)
{
    int saved = errno;

    if (fd >= 0)
        (void)close(fd); /* Linux frees the number whatever close says; nothing to repeat */
    errno = saved;
}

void fd_close_auto(int *fd)
{
    fd_close(*fd);
}

int fd_nonblock(int fd)
{
    int flags = fcntl(fd, F_GETFL);

    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
        return -errno;
    return 0;
}

int fd_ready_now(int fd, short events)
{
    struct pollfd p = { .fd = fd, .events = events };

    return poll(&p, 1, 0) > 0 ? p.revents : 0;
}

int fd_write_full(int fd, const void *data, size_t len)
{
    const char *p = data;

    while (len > 0) {
        ssize_t n = write(fd, p, len);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            return -EIO;
        p += n;
        len -= (size_t)n;
    }
    return 0;
}

ssize_t fd_read_full(int fd, void *data, size_t len)
{
    char *p = data;
    size_t got = 0;

    while (got < len) {
        ssize_t n = read(fd, p + got, len - got);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            break;
        got += (size_t)n;
    }
    return (ssize_t)got;
}

union fd_control {
    struct cmsghdr head;
    char bytes[CMSG_SPACE(sizeof(int))];
};

int fd_send(int sock, int fd)
{
    struct iovec iov = { (char[]){ " " }, 1 };
    union fd_control control = { .head = { .cmsg_len = CMSG_LEN(sizeof(int)),
                                           .cmsg_level = SOL_SOCKET,
                                           .cmsg_type = SCM_RIGHTS } };
    struct msghdr msg = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)
    };
    ssize_t n;

    memcpy(CMSG_DATA(&control.head), &fd, sizeof(fd));
    do
        n = sendmsg(sock, &msg, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : 0;
}

int fd_recv(int sock)
{
    char ignored[64];
    struct iovec iov = { ignored, sizeof(ignored) };
    union fd_control control = { 0 };
    /* Room for one fd: the kernel closes further ones and sets MSG_CTRUNC. */
    struct msghdr msg = { .msg_iov = &iov,
                          .msg_iovlen = 1,
                          .msg_control = &control,
                          .msg_controllen = CMSG_LEN(sizeof(int)) };
    ssize_t n;

    do
        n = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return -errno;

    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
    AUTO_FD int fd = -1;

    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
        c->cmsg_len == CMSG_LEN(sizeof(int)))
        memcpy(&fd, CMSG_DATA(c), sizeof(fd));
    if (fd < 0)
        return -ENOMSG;
    return msg.msg_flags & MSG_CTRUNC ? -EMSGSIZE : TAKE_FD(fd);
}

int file_read_all(const char *path, size_t max, char **ret_text, size_t *ret_len)
{
    AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
    AUTO(sbuf_release) struct sbuf b = { 0 };
    struct stat st;

    if (fd < 0)
        return -errno;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (S_ISREG(st.st_mode) && st.st_size > 0) {
        if ((uintmax_t)st.st_size > max)
            return -EFBIG;
        (void)sbuf_room(&b, (size_t)st.st_size + 1);
    }
    /* The size is a hint only: /proc says 0, and a file may grow meanwhile. */
    for (;;) {
        size_t left = max - b.len, chunk = left < 4096 ? left + 1 : 4096;
        ssize_t n;

        if (b.cap > b.len + 1 && b.cap - b.len - 1 < left)
            chunk = b.cap - b.len - 1;
        n = fd_read_full(fd, sbuf_room(&b, chunk), chunk);
        if (n < 0)
            return (int)n;
        b.len += (size_t)n;
        b.data[b.len] = '\0';
        if (b.len > max)
            return -EFBIG;
        if ((size_t)n < chunk)
            break;
    }
    if (ret_len)
        *ret_len = b.len;
    *ret_text = sbuf_take(&b);
    return 0;
}

int file_load(const char *path, size_t max, char **ret_text, struct err *err)
{
    int r = file_read_all(path, max, ret_text, NULL);

    return r < 0 ? err_sys(err, -r, "read %s", path) : 0;
}

char *file_text(size_t max, const char *path_fmt, ...)
{
    char *text = NULL;
    va_list ap;

    va_start(ap, path_fmt);
    AUTO_FREE char *path = str_vformat(path_fmt, ap);
    va_end(ap);
    (void)file_read_all(path, max, &text, NULL); /* leaves NULL */
    return text;
}

int file_put(const char *path, const char *text)
{
    AUTO_FD int fd = open(path, O_WRONLY | O_CLOEXEC);

    return fd < 0 ? -errno : fd_write_full(fd, text, strlen(text));
}

int file_write(const char *path, const void *data, size_t len, mode_t mode)
{
    AUTO_FD int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);

    if (fd < 0)
        return -errno;
    return fd_write_full(fd, data, len);
}

/* The directory that holds path. Caller frees. */
static char *parent_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    if (!slash)
        return str_dup(".");
    return slash == path ? str_dup("/") : str_ndup(path, (size_t)(slash - path));
}

static int write_and_sync(int fd, const void *data, size_t len, mode_t mode)
{
    int r = fd_write_full(fd, data, len);

    if (r < 0)
        return r;
    if (fchmod(fd, mode) < 0 || fsync(fd) < 0)
        return -errno;
    return 0;
}

int file_replace(const char *path, const void *data, size_t len, mode_t mode)
{
    AUTO_FREE char *tmp = str_format("%s.XXXXXX", path);
    AUTO_FREE char *parent = parent_of(path);
    AUTO_FD int fd = mkostemp(tmp, O_CLOEXEC), dir = -1;
    int r;

    if (fd < 0)
        return -errno;
    r = write_and_sync(fd, data, len, mode);
    if (r == 0 && rename(tmp, path) < 0)
        r = -errno;
    if (r < 0) {
        (void)unlink(tmp); /* the first error is reported */
        return r;
    }
    /* Without this the new name may be lost in a crash although the content is safe. */
    dir = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0 || fsync(dir) < 0)
        return -errno;
    return 0;
}

static int make_one(const char *path, mode_t mode)
{
    struct stat st;

    if (mkdir(path, mode) == 0)
        return 0;
    /* Read-only and forbidden parents hide that the directory is there already. */
    if (errno != EEXIST && errno != EROFS && errno != EACCES && errno != EPERM)
        return -errno;
    int why = errno;
    if (stat(path, &st) < 0)
        return -why;
    return S_ISDIR(st.st_mode) ? 0 : -ENOTDIR;
}

int dir_make(const char *path, mode_t mode)
{
    AUTO_FREE char *copy = str_dup(path);

    if (!*copy)
        return -ENOENT;
    for (char *p = copy + 1; *p; p++) {
        int r;

        if (*p != '/' || p[-1] == '/')
            continue;
        *p = '\0';
        r = make_one(copy, mode);
        *p = '/';
        if (r < 0)
            return r;
    }
    return make_one(copy, mode);
}

int dir_need(const char *path, mode_t mode, struct err *err)
{
    int r = dir_make(path, mode);

    return r < 0 ? err_sys(err, -r, "make %s", path) : 0;
}
