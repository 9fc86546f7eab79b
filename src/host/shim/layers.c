/* layers.c - builds images of layers in a process of its own (builder.c). */
#include "host/files/layers.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/waits.h"
#include "host/config/config.h"
#include "host/shim/bootstrap.h"
#include "host/shim/shim_priv.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define LIST_MAX (2u << 20)

/* The action `layers-build`. Layers that cannot be turned are logged; the others are built. */
int layers_run(struct ctx *ctx, const struct shim_args *a, struct err *err)
{
    AUTO(config_release) struct config config = { 0 };
    AUTO(bootstrap_release) struct bootstrap b = { 0 };
    AUTO_FREE char *list = NULL;
    struct err first = ERR_INIT;
    size_t len = 0;

    config_init(&config);
    if (shim_args_check(a, err) < 0 || shim_load_config(ctx, a, &config, &b, err) < 0)
        return -1;
    /* Only root may read the store. The reader of our output may exit before we do. */
    (void)umask(0077);
    (void)signal(SIGPIPE, SIG_IGN);
    log_init(STDERR_FILENO, LOG_INFO, LOG_LOGFMT);
    AUTO_FREE char *path = str_format("/proc/self/fd/%d", SHIM_FD_LIST);
    int r = file_read_all(path, LIST_MAX, &list, &len);
    if (r < 0)
        return err_sys(err, -r, "read the list of layers");
    const struct layers_opts o = { .dir = config.layer_dir,
                                   .max_mib = config.layer_images_max_mib,
                                   .free_mib = config.scratch_free_mib,
                                   .verity = config.layer_verity };
    for (const char *dir = list; dir < list + len; dir += strlen(dir) + 1) {
        AUTO(layers_info_release) struct layers_info info = { 0 };
        struct err why = ERR_INIT;
        bool made;

        if (layers_build(ctx, &o, dir, &info, &made, &why) < 0 && first.code == ERR_NONE)
            first = why;
    }
    if (first.code == ERR_NONE)
        return 0;
    *err = first;
    return -1;
}

struct wanted {
    struct loop *loop;
    const struct shim_args *args;
    struct cgroup *home;
    int list;
};

static void run(struct ctx *ctx, const struct wanted *w, bool urgent)
{
    struct err err = ERR_INIT;
    const struct builder b = { .what = "layer image builder",
                               .action = "layers-build",
                               .args = w->args,
                               .home = w->home,
                               .list_fd = w->list,
                               .urgent = urgent };

    if (builder_run(ctx, &b, &err) < 0)
        log_warn(ctx, "could not make images of all layers; their containers use shares",
                 F_ERR(&err));
    else
        log_info(ctx, "layer images made; new containers of the image use them");
}

static void spawn_main(void *arg)
{
    AUTO_FREE struct wanted *w = arg;
    struct ctx ctx = ctx_root(w->loop);

    run(&ctx, w, false);
    fd_close(w->list);
}

void layers_spawn(struct loop *loop, struct ctx *ctx, const struct shim_args *a,
                  const struct strv *dirs, struct cgroup *home)
{
    AUTO_FD int list = memfd_create("layers", MFD_CLOEXEC);
    int r = list < 0 ? -errno : 0;

    for (size_t i = 0; i < dirs->n && r == 0; i++)
        r = fd_write_full(list, dirs->v[i], strlen(dirs->v[i]) + 1);
    if (r < 0) {
        log_warn(ctx, "could not list layers for a builder", F_STR(LK_ERROR, strerrordesc_np(-r)));
        return;
    }
    struct wanted w = { loop, a, home, list };
    if (ctx) {
        run(ctx, &w, true);
        return;
    }
    struct wanted *later = mem_new(struct wanted);
    *later = w;
    later->list = TAKE_FD(list);
    fiber_go(loop, spawn_main, later, FIBER_LAYERS);
}
