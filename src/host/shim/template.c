/* template.c - builds a template in a process of its own (builder.c). */
#include "host/template/template.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/log.h"
#include "base/str.h"
#include "host/config/config.h"
#include "host/control/template_build.h"
#include "host/shim/bootstrap.h"
#include "host/shim/shim_priv.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB_ENV "LCOW_TEMPLATE_MIB" /* memory of the VM that needs the template */

/* The action `template-build`. Succeeds if another process is already building. */
int template_run(struct ctx *ctx, const struct shim_args *a, const struct shim_backend *backend,
                 struct err *err)
{
    AUTO(config_release) struct config config = { 0 };
    AUTO(bootstrap_release) struct bootstrap b = { 0 };
    AUTO(template_info_release) struct template_info info = { 0 };
    const char *mib = getenv(MIB_ENV);
    uint64_t memory_mib = 0; /* as configured */
    bool made;

    if (mib && str_to_u64(mib, UINT32_MAX, &memory_mib) < 0)
        return err_set(err, ERR_INVALID, MIB_ENV "=%s is not a number", mib);
    config_init(&config);
    if (shim_load_config(ctx, a, &config, &b, err) < 0)
        return -1;
    /* The shim that reads our output may exit before we do. */
    (void)signal(SIGPIPE, SIG_IGN);
    log_init(STDERR_FILENO, LOG_WARN, LOG_LOGFMT);
    const struct template_build t = {
        .loop = ctx->loop,
        .config = &config,
        .build = backend->template_build,
        .vmm_new = backend->vmm_new,
        .guest_new = backend->guest_new,
        .memory_mib = (uint32_t)memory_mib,
        /* The VM that needs it runs, so its accelerator is allowed. */
        .allow_emulation = true
    };
    if (template_build(ctx, &t, &info, &made, err) == 0 || err->code == ERR_EXISTS)
        return 0;
    return -1;
}

struct wanted {
    struct loop *loop;
    const struct shim_args *args;
    uint32_t memory_mib;
    struct cgroup *home;
};

static void build_main(void *arg)
{
    AUTO_FREE struct wanted *wanted = arg;
    struct ctx ctx = ctx_root(wanted->loop);
    struct err err = ERR_INIT;
    AUTO_FREE char *mib = str_format(MIB_ENV "=%u", wanted->memory_mib);
    const struct builder b = { .what = "template builder",
                               .action = "template-build",
                               .args = wanted->args,
                               .home = wanted->home,
                               .env = mib,
                               .list_fd = -1 };

    if (builder_run(&ctx, &b, &err) < 0)
        log_warn(&ctx, "could not build a template; VMs start cold", F_ERR(&err));
    else
        log_info(&ctx, "template built; VMs are cloned from now on");
}

void template_spawn(struct loop *loop, const struct shim_args *a, uint32_t memory_mib,
                    struct cgroup *home)
{
    struct wanted *wanted = mem_new(struct wanted);

    *wanted = (struct wanted){ loop, a, memory_mib, home };
    fiber_go(loop, build_main, wanted, "template build");
}
