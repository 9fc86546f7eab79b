#include "guest/runtime/process_rig.h"
#include "base/ctx.h"
#include "base/str.h"
#include "harness/tap.h"
#include <string.h>

void rig_init(struct rig *w, struct ctx *ctx)
{
    *w = (struct rig){ .host = dial_pair_new() };
    w->t = process_table_new(ctx->loop, dial_pair_dialer(w->host));
}

void rig_release(struct rig *w)
{
    stream_free(w->in);
    stream_free(w->out);
    stream_free(w->err);
    process_table_free(w->t);
    dial_pair_free(w->host);
}

static struct stream *accept_stream(struct ctx *ctx, struct rig *w, uint32_t port)
{
    struct err err = ERR_INIT;
    int fd = -1;

    ASSERT_OK(dial_pair_accept(ctx, w->host, port, &fd, &err), err);
    return stream_from_fd(ctx->loop, fd);
}

uint32_t rig_start(struct ctx *ctx, struct rig *w, struct process_spec spec)
{
    struct err err = ERR_INIT;
    uint32_t pid = 0;

    spec.port[0] = 10;
    spec.port[1] = 11;
    spec.port[2] = 12;
    ASSERT_OK(process_exec(ctx, w->t, &spec, &pid, &err), err);
    if (spec.want[0])
        w->in = accept_stream(ctx, w, 10);
    if (spec.want[1])
        w->out = accept_stream(ctx, w, 11);
    if (spec.want[2])
        w->err = accept_stream(ctx, w, 12);
    return pid;
}

uint32_t rig_wait(struct ctx *ctx, struct rig *w, uint32_t pid)
{
    struct err err = ERR_INIT;
    uint32_t code = 9999;

    ASSERT_OK(process_wait(ctx, w->t, pid, PROCESS_WAIT_FOREVER, &code, &err), err);
    return code;
}

char *rig_read_all(struct ctx *ctx, struct stream *s)
{
    struct sbuf out = { 0 };
    struct err err = ERR_INIT;
    char buf[4096];
    size_t n;

    while (stream_read(ctx, s, buf, sizeof(buf), &n, &err) == 0 && n > 0)
        sbuf_add(&out, buf, n);
    if (err.code != ERR_NONE && err.code != ERR_UNAVAILABLE)
        tap_fail(__FILE__, __LINE__, "reading output: %s", err.msg);
    return sbuf_take(&out);
}

char *rig_read_until(struct ctx *ctx, struct stream *s, const char *text)
{
    struct sbuf out = { 0 };
    struct err err = ERR_INIT;
    char buf[256];
    size_t n;

    do {
        ASSERT_OK(stream_read(ctx, s, buf, sizeof(buf), &n, &err), err);
        ASSERT(n > 0);
        sbuf_add(&out, buf, n);
    } while (!strstr(out.data, text));
    return sbuf_take(&out);
}

void rig_say(struct ctx *ctx, struct stream *s, const char *text)
{
    struct err err = ERR_INIT;

    ASSERT_OK(stream_write_full(ctx, s, text, strlen(text), &err), err);
}
