/* shim.c - which action, on which loop, and how its end is told. */
#include "host/shim/shim.h"
#include "base/ctx.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/log.h"
#include "base/loop.h"
#include "host/files/rootfs.h"
#include "host/shim/shim_priv.h"
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

struct run {
    struct loop *loop;
    const struct shim_args *args;
    const struct shim_backend *backend;
    struct sbuf out;
    struct err err;
    int result;
};

static int run_info(struct ctx *ctx, const struct shim_args *a, struct sbuf *out, struct err *err)
{
    AUTO(sbuf_release) struct sbuf in = { 0 };

    if (shim_read_stdin(ctx, &in, err) < 0)
        return -1;
    info_encode(&(struct info){ .version = LCOW_VERSION,
                                .revision = "",
                                .features = info_features,
                                .allow_mounts = ROOTFS_ALLOW_MOUNTS,
                                .options = in.data,
                                .options_len = in.len },
                out);
    return 0;
}

static void run_action(void *arg)
{
    struct run *r = arg;
    struct ctx ctx = ctx_root(r->loop);
    const struct shim_args *a = r->args;

    r->result =
        a->info                       ? run_info(&ctx, a, &r->out, &r->err)
        : str_eq(a->action, "start")  ? start_run(&ctx, a, &r->out, &r->err)
        : str_eq(a->action, "delete") ? delete_run(&ctx, a, &r->out, &r->err)
        : str_eq(a->action, "serve")  ? serve_run(&ctx, a, r->backend, &r->err)
        : str_eq(a->action, "template-build")
            ? template_run(&ctx, r->backend, &r->err)
            : err_set(&r->err, ERR_INVALID, "action \"%s\": start, delete or serve", a->action);
    loop_stop(r->loop);
}

static int fail(const struct err *err)
{
    (void)dprintf(STDERR_FILENO, "%s: %s\n", SHIM_NAME, err->msg);
    return 1;
}

int shim_main(const struct shim_backend *backend, char **argv)
{
    struct err err = ERR_INIT;
    struct shim_args args;

    if (shim_args_parse(argv, &args, &err) < 0)
        return fail(&err);
    if (args.version) {
        (void)dprintf(STDOUT_FILENO, "%s:\n  Version: %s\n  Runtime: %s\n", SHIM_NAME, LCOW_VERSION,
                      SHIM_RUNTIME);
        return 0;
    }
    /* start and delete print an answer or an error, nothing else; serve opens its log itself. */
    log_init(STDERR_FILENO, LOG_OFF, LOG_LOGFMT);

    struct loop *loop = loop_new(NULL);

    if (!loop) {
        (void)err_sys(&err, errno, "make an event loop");
        return fail(&err);
    }

    struct run r = { .loop = loop, .args = &args, .backend = backend, .err = ERR_INIT };

    fiber_go(loop, run_action, &r, "%s", args.info ? "info" : args.action);
    (void)loop_run(loop);
    loop_free(loop);
    if (r.result < 0) {
        sbuf_release(&r.out);
        return fail(&r.err);
    }

    int written = r.out.len > 0 ? fd_write_full(STDOUT_FILENO, r.out.data, r.out.len) : 0;

    sbuf_release(&r.out);
    if (written < 0) {
        (void)err_sys(&err, -written, "write to stdout");
        return fail(&err);
    }
    return 0;
}
