#include "guest/bridge/logport.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/loop.h"
#include "base/stream.h"
#include "guest/stdio/dial.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHUNK 8192

struct logport {
    struct loop *loop;
    int read_fd, write_fd;
    struct dialer *dialer;
    uint32_t port;
    struct stream *host; /* NULL: not connected */
    bool running;        /* the relay fiber exists */
    bool mid_line;       /* the last connection broke inside a line */
    uint64_t told;       /* dropped lines reported to the host */
    struct cancel stop;
    struct fibers relay;
};

void logport_level(struct logport *p, enum log_level level)
{
    log_init(p->write_fd, level, LOG_JSON);
}

int logport_new(struct loop *loop, enum log_level level, struct logport **ret, struct err *err)
{
    int fds[2];

    if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0)
        return err_sys(err, errno, "log pipe");
    struct logport *p = mem_new(struct logport);
    p->loop = loop;
    p->read_fd = fds[0];
    p->write_fd = fds[1];
    p->told = log_dropped();
    cancel_init(&p->stop, NULL);
    fibers_init(&p->relay);
    log_init(p->write_fd, level, LOG_JSON);
    *ret = p;
    return 0;
}

void logport_free(struct logport *p)
{
    if (!p)
        return;
    struct ctx ctx = ctx_root(p->loop);
    struct err ignored = ERR_INIT;

    cancel_fire(&p->stop, ERR_CANCELLED, "log is closing");
    if (p->relay.running > 0)
        (void)fibers_wait(&ctx, &p->relay, "log relay to end", &ignored);
    log_init(STDERR_FILENO, LOG_WARN, LOG_LOGFMT);
    stream_free(p->host);
    cancel_release(&p->stop);
    fd_close(p->read_fd);
    fd_close(p->write_fd);
    free(p);
}

/* Where the lines begin again after a broken connection; len if not in this chunk. */
static size_t skip_broken(struct logport *p, const char *data, size_t len)
{
    if (!p->mid_line)
        return 0;
    const char *end = memchr(data, '\n', len);
    p->mid_line = !end;
    return end ? (size_t)(end - data) + 1 : len;
}

static int relay_chunk(struct ctx *ctx, struct logport *p, struct err *err)
{
    AUTO_FREE char *data = mem_alloc(CHUNK);
    ssize_t n = read(p->read_fd, data, CHUNK);

    if (n <= 0)
        return n < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : err_sys(err, errno, "log pipe");
    size_t from = skip_broken(p, data, (size_t)n);
    if (from == (size_t)n)
        return 0;
    bool whole = data[n - 1] == '\n';
    if (stream_write_full(ctx, p->host, data + from, (size_t)n - from, err) < 0) {
        p->mid_line = !whole;
        return -1;
    }
    return 0;
}

/* Reports, once there is room again, how many lines are missing. */
static void tell_dropped(struct ctx *ctx, struct logport *p)
{
    uint64_t dropped = log_dropped();

    if (dropped == p->told)
        return;
    log_warn(ctx, "log lines were dropped", F_U("lines", dropped - p->told));
    p->told = log_dropped();
}

static void relay(void *arg)
{
    struct logport *p = arg;
    struct ctx ctx = ctx_until(p->loop, &p->stop);
    struct err err = ERR_INIT;

    while (loop_wait_fd(&ctx, p->read_fd, POLLIN, "log line", &err) == 0 &&
           relay_chunk(&ctx, p, &err) == 0)
        tell_dropped(&ctx, p);
    stream_free(TAKE_PTR(p->host));
    p->running = false;
}

int logport_connect(struct ctx *ctx, struct logport *p, struct dialer *d, uint32_t port,
                    struct err *err)
{
    int fd;

    p->dialer = d;
    p->port = port;
    if (p->running)
        return 0;
    p->running = true;
    if (dialer_dial(ctx, d, port, &fd, err) < 0) {
        p->running = false;
        return -1;
    }
    p->host = stream_from_fd(p->loop, fd);
    fibers_go(&p->relay, p->loop, relay, p, "log relay");
    return 0;
}

static void retry(void *arg)
{
    struct logport *p = arg;
    struct ctx ctx = ctx_until(p->loop, &p->stop);
    struct err err = ERR_INIT;

    if (logport_connect(&ctx, p, p->dialer, p->port, &err) < 0)
        log_debug(&ctx, "cannot connect to the host's log port", F_ERR(&err));
}

void logport_retry(struct logport *p)
{
    if (p->dialer && !p->running)
        fibers_go(&p->relay, p->loop, retry, p, "log redial");
}

void logport_forget(struct logport *p)
{
    char data[512];

    if (p->running)
        return; /* the relay has it */
    while (read(p->read_fd, data, sizeof(data)) > 0)
        ;
    p->told = log_dropped();
}

void logport_line(struct logport *p, const char *line, size_t len)
{
    (void)!write(p->write_fd, line, len); /* shorter than PIPE_BUF: whole or not at all */
}
