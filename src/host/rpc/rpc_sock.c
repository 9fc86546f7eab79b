/* rpc_sock.c - unix sockets. */
#include "host/rpc/rpc_sock.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/str.h"
#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define QUEUE_FULL_RETRY (10 * NS_PER_MS) /* a unix socket cannot be polled for its queue */

/* Opens a socket for this kind of address. */
static int open_socket(const char *address, struct sockaddr_un *sa, socklen_t *ret_len, int *ret_fd,
                       struct err *err)
{
    const char *path = str_starts(address, "unix://") ? address + strlen("unix://") : address;
    size_t len = strlen(path);

    if (path[0] != '/' && path[0] != '@')
        return err_set(err, ERR_INVALID, "socket address \"%s\" is not an absolute path", address);
    if (len > RPC_PATH_MAX)
        return err_set(err, ERR_INVALID, "the socket path has %zu bytes; the maximum is %d: %s",
                       len, RPC_PATH_MAX, path);
    *sa = (struct sockaddr_un){ .sun_family = AF_UNIX };
    memcpy(sa->sun_path, path, len + 1);
    *ret_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len + 1);
    if (path[0] == '@') {
        sa->sun_path[0] = '\0';
        *ret_len -= 1; /* an abstract name has no NUL at its end */
    }
    *ret_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    return *ret_fd < 0 ? err_sys(err, errno, "socket for %s", address) : 0;
}

int rpc_sock_listen(const char *address, int *ret_fd, struct err *err)
{
    struct sockaddr_un sa;
    socklen_t len;
    AUTO_FD int fd = -1;

    if (open_socket(address, &sa, &len, &fd, err) < 0)
        return -1;

    /* The mode is set before bind, so that other users cannot connect at any time. */
    mode_t mask = umask(0177);
    int r = bind(fd, (struct sockaddr *)&sa, len), bind_errno = errno;

    umask(mask);
    if (r < 0)
        return err_sys(err, bind_errno, "bind %s", address);
    if (listen(fd, RPC_BACKLOG) < 0) {
        (void)err_sys(err, errno, "listen on %s", address);
        if (sa.sun_path[0])
            (void)unlink(sa.sun_path); /* no client knows it yet */
        return -1;
    }
    *ret_fd = TAKE_FD(fd);
    return 0;
}

int rpc_sock_connect(struct ctx *ctx, const char *address, int *ret_fd, struct err *err)
{
    struct sockaddr_un sa;
    socklen_t len;
    AUTO_FD int fd = -1;

    if (open_socket(address, &sa, &len, &fd, err) < 0)
        return -1;
    while (connect(fd, (struct sockaddr *)&sa, len) < 0) {
        if (errno == ENOENT || errno == ECONNREFUSED) {
            (void)err_sys(err, errno, "connect to %s", address);
            err->code = ERR_UNAVAILABLE;
            return -1;
        }
        if (errno != EAGAIN && errno != EINTR)
            return err_sys(err, errno, "connect to %s", address);
        if (fiber_sleep(ctx, QUEUE_FULL_RETRY, err) < 0)
            return err_wrap(err, "connect to %s", address);
    }
    *ret_fd = TAKE_FD(fd);
    return 0;
}
