/* container_hooks.c - the hooks of a container's spec, run on the host (docs/decisions/0028). The
 * pid in their state is the anchor's: CNI and Docker find the pod's network namespace by it. */
#include "base/log.h"
#include "host/control/container_priv.h"
#include "host/jail/hook.h"
#include "oci/hooks.h"
#include <string.h>

static int run_one(struct ctx *ctx, struct container *c, const struct hook *hook,
                   const char *status, struct err *err)
{
    bool there = !str_eq(status, "stopped");
    AUTO_FREE char *state =
        hooks_state(c->hooks, c->p.id, c->p.bundle, status, there ? c->p.pid : 0);
    const struct hook_opts o = { .path = hook->path,
                                 .cwd = c->p.bundle,
                                 .argv = (const char *const *)hook->argv.v,
                                 .env = hook->env.n ? (const char *const *)hook->env.v : NULL,
                                 .input = state,
                                 .limit_ns = hook->timeout_s ? hook->timeout_s * NS_PER_S
                                                             : CONTAINER_HOOK_LIMIT,
                                 .ledger = vm_parts(c->p.pod->vm)->ledger };

    return hook_run(ctx, &o, err);
}

/* Until one fails; lenient: all of them, and what fails is logged. */
static int run_kind(struct ctx *ctx, struct container *c, const char *kind, const char *status,
                    bool lenient, struct err *err)
{
    struct hook hook;

    for (size_t i = 0; hooks_get(c->hooks, kind, i, &hook); i++) {
        int r = run_one(ctx, c, &hook, status, err);

        if (r < 0)
            err_wrap_because(err, REASON_HOOK_FAILED, "hook %s[%zu] (%.200s)", kind, i, hook.path);
        hook_release(&hook);
        if (r < 0 && !lenient)
            return -1;
        if (r < 0)
            log_warn(ctx, "a hook failed; continuing without it", F_ERR(err));
        err_clear(err);
    }
    return 0;
}

int container_run_create_hooks(struct ctx *ctx, struct container *c, struct err *err)
{
    c->hooks_begun = c->hooks != NULL; /* before they run: what they made poststop cleans up */
    return run_kind(ctx, c, "prestart", "creating", false, err) < 0
               ? -1
               : run_kind(ctx, c, "createRuntime", "creating", false, err);
}

void container_run_poststart_hooks(struct ctx *ctx, struct container *c)
{
    struct err ignored = ERR_INIT;

    (void)run_kind(ctx, c, "poststart", "running", true, &ignored);
}

void container_run_poststop_hooks(struct ctx *ctx, struct container *c)
{
    struct err ignored = ERR_INIT;

    if (!c->hooks_begun)
        return;
    c->hooks_begun = false;
    (void)run_kind(ctx, c, "poststop", "stopped", true, &ignored);
}
