#include "host/vmm/vmm.h"
#include "base/ctx.h"
#include "base/err.h"

static const char *const stage_names[VM_STAGE_COUNT] = {
    [VM_STAGE_NONE] = "none", [VM_STAGE_SPAWNED] = "spawned", [VM_STAGE_KERNEL] = "kernel",
    [VM_STAGE_INIT] = "init", [VM_STAGE_AGENT] = "agent",     [VM_STAGE_NEGOTIATED] = "negotiated",
};

const char *vm_stage_name(enum vm_stage s)
{
    return (unsigned)s < VM_STAGE_COUNT ? stage_names[s] : "unknown";
}

int vmm_unsupported(const char *op, struct err *err)
{
    return err_set(err, ERR_UNIMPLEMENTED, "the VM's backend cannot %s", op);
}

int vmm_gone_is_done(int r, const struct ctx *ctx, struct err *err)
{
    struct err ended = ERR_INIT;

    if (r == 0 || err->code != ERR_UNAVAILABLE || ctx_check(ctx, &ended) < 0)
        return r;
    err_clear(err);
    return 0;
}
