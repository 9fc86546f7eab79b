#include "guest/stdio/relay.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/stream.h"
#include "guest/stdio/dial.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define CHUNK 16384
/* Larger than the default, because switches between the process and the relay are expensive in a
 * VM. A pipe uses memory only while a reader is slow; that of output is the container's own. */
#define INPUT_BYTES (256 * 1024)
#define OUTPUT_BYTES (1024 * 1024)

/* One of the three streams; input and output differ in direction. */
struct half {
    struct relay *relay;
    struct stream *pipe, *host;
};

struct relay {
    struct loop *loop;
    struct half halves[3];
    struct cancel input; /* the process has exited */
    struct cancel cut;   /* other holders of its pipes have had their grace time */
    struct cancel drop;  /* the rest of the output is dropped */
    struct fibers running;
};

int relay_open(struct loop *loop, struct relay **ret, struct stdio_fds *ret_ends, struct err *err)
{
    AUTO(stdio_fds_release) struct stdio_fds ours = STDIO_FDS_NONE, theirs = STDIO_FDS_NONE;

    for (int i = 0; i < 3; i++) {
        int fds[2];

        if (pipe2(fds, O_CLOEXEC) < 0)
            return err_sys(err, errno, "pipe");
        /* On failure it keeps the default size. */
        (void)fcntl(fds[0], F_SETPIPE_SZ, i == 0 ? INPUT_BYTES : OUTPUT_BYTES);
        ours.fd[i] = fds[i == 0];
        theirs.fd[i] = fds[i != 0];
    }
    struct relay *r = mem_new(struct relay);
    r->loop = loop;
    for (int i = 0; i < 3; i++) {
        r->halves[i].relay = r;
        r->halves[i].pipe = stream_from_fd(loop, TAKE_FD(ours.fd[i]));
        ret_ends->fd[i] = TAKE_FD(theirs.fd[i]);
    }
    cancel_init(&r->input, NULL);
    cancel_init(&r->cut, NULL);
    cancel_init(&r->drop, NULL);
    fibers_init(&r->running);
    *ret = r;
    return 0;
}

/* --- input --- */

static void run_in(void *arg)
{
    struct half *h = arg;
    struct ctx ctx = ctx_until(h->relay->loop, &h->relay->input);
    struct err err = ERR_INIT;
    char side;

    /* After an error, too, the process reads the end of its input. */
    (void)stream_copy(&ctx, h->host, h->pipe, NULL, &side, &err);
    (void)stream_shutdown(h->pipe, SHUT_RDWR);
}

/* --- output --- */

/* The process has exited, so the pipe now holds all that it wrote. */
static int copy_rest(struct half *h, struct err *err)
{
    struct ctx ctx = ctx_until(h->relay->loop, &h->relay->drop);
    int left = 0;

    if (h->pipe->fd < 0 || ioctl(h->pipe->fd, FIONREAD, &left) < 0 || left <= 0)
        return 0;
    AUTO_FREE char *data = mem_alloc(CHUNK);
    while (left > 0) {
        ssize_t n = read(h->pipe->fd, data, left < CHUNK ? (size_t)left : CHUNK);
        if (n <= 0)
            break;
        if (stream_write_full(&ctx, h->host, data, (size_t)n, err) < 0)
            return -1;
        left -= (int)n;
    }
    return 0;
}

static void run_out(void *arg)
{
    struct half *h = arg;
    struct relay *r = h->relay;
    struct ctx ctx = ctx_until(r->loop, &r->cut), last = ctx_until(r->loop, &r->drop);
    struct err err = ERR_INIT;
    char side = 'r';
    bool lost = false; /* the host opens each port once, so the relay cannot reconnect */

    if (stream_copy(&ctx, h->pipe, h->host, NULL, &side, &err) < 0)
        lost = r->cut.fired ? copy_rest(h, &err) < 0 : side != 'r';
    (void)stream_shutdown(h->pipe, SHUT_RDWR); /* later writers get EPIPE */
    if (!lost)
        dialer_finish(&last, h->host);
}

/* --- life --- */

void relay_attach(struct relay *r, struct stdio_fds *host)
{
    static const char *const names[] = { "stdin", "stdout", "stderr" };

    for (int i = 0; i < 3; i++) {
        struct half *h = &r->halves[i];
        int fd = TAKE_FD(host->fd[i]);

        if (fd < 0 && i > 0)
            fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
        if (fd < 0) { /* no input: the end at once */
            (void)stream_shutdown(h->pipe, SHUT_RDWR);
            continue;
        }
        h->host = stream_from_fd(r->loop, fd);
        fibers_go(&r->running, r->loop, i == 0 ? run_in : run_out, h, "relay %s", names[i]);
    }
}

int relay_drain(struct ctx *ctx, struct relay *r, uint64_t grace_ns, struct err *err)
{
    struct ctx grace = ctx_with_timeout(ctx, grace_ns), root = ctx_root(r->loop);
    struct err ignored = ERR_INIT;
    int result = 0;

    cancel_fire(&r->input, ERR_CANCELLED, "process has exited");
    if (fibers_wait(&grace, &r->running, "output to drain", &ignored) < 0) {
        cancel_fire(&r->cut, ERR_CANCELLED, "other processes hold the output open");
        result = fibers_wait(ctx, &r->running, "output to drain", err);
    }
    if (result < 0) {
        cancel_fire(&r->drop, ERR_CANCELLED, "output is dropped");
        (void)fibers_wait(&root, &r->running, "relays to end", &ignored);
    }
    return result;
}

void relay_free(struct relay *r)
{
    if (!r)
        return;
    for (int i = 0; i < 3; i++) {
        stream_free(r->halves[i].pipe);
        stream_free(r->halves[i].host);
    }
    cancel_release(&r->input);
    cancel_release(&r->cut);
    cancel_release(&r->drop);
    free(r);
}
