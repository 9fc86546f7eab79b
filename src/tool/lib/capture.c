#include "tool/lib/capture.h"
#include "base/child.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/str.h"
#include "base/stream.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The input is in a memfd, so that nothing has to write it while the program runs. */
static int input_fd(const char *text, struct err *err)
{
    AUTO_FD int fd = memfd_create("lcow-input", MFD_CLOEXEC);
    int r;

    if (fd < 0)
        return err_sys(err, errno, "memfd_create");
    r = fd_write_full(fd, text, strlen(text));
    if (r < 0)
        return err_sys(err, -r, "write input");
    if (lseek(fd, 0, SEEK_SET) < 0)
        return err_sys(err, errno, "rewind input");
    return TAKE_FD(fd);
}

static int read_all(struct ctx *ctx, struct stream *from, struct sbuf *out, struct err *err)
{
    size_t n;

    do {
        if (stream_read(ctx, from, sbuf_room(out, 8192), 8192, &n, err) < 0)
            return -1;
        out->len += n;
        if (out->len > CAPTURE_MAX_BYTES)
            return err_set(err, ERR_EXHAUSTED, "the output exceeds %d bytes", CAPTURE_MAX_BYTES);
    } while (n > 0);
    sbuf_addc(out, '\0');
    out->len--;
    return 0;
}

int capture_run(struct ctx *ctx, const struct capture *c, char **ret_text, int *ret_status,
                struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, c->limit_ns);
    AUTO(child_free) struct child *child = NULL;
    AUTO(stream_free) struct stream *output = NULL;
    AUTO(sbuf_release) struct sbuf text = { 0 };
    int pipe_fds[2];

    if (pipe2(pipe_fds, O_CLOEXEC) < 0)
        return err_sys(err, errno, "pipe");
    output = stream_from_fd(ctx->loop, pipe_fds[0]);
    AUTO_FD int writer = pipe_fds[1];
    AUTO_FD int input = c->input ? input_fd(c->input, err) : -1;

    if (c->input && input < 0)
        return -1;
    const struct child_fd fds[] = { { writer, 1 }, { writer, 2 }, { input, 0 } };
    struct child_opts opts = { .argv = c->argv,
                               .fds = fds,
                               .n_fds = c->input ? 3 : 2,
                               .clone_flags = c->clone_flags,
                               .die_with_us = true,
                               .setup = c->setup,
                               .setup_arg = c->setup_arg };

    if (child_spawn(&limited, &opts, &child, err) < 0)
        return -1;
    fd_close(TAKE_FD(writer));
    if (read_all(&limited, output, &text, err) < 0 ||
        child_wait(&limited, child, ret_status, err) < 0)
        return err_wrap(err, "run %s", c->argv[0]);
    *ret_text = sbuf_take(&text);
    return 0;
}
