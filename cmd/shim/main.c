/* containerd-shim-lcow-v2 - the shim. Here it gets its backend, nothing else. */
#include "host/bridge/bridge.h"
#include "host/shim/shim.h"
#include "host/vmm/qemu/qemu.h"

static int build_template(struct ctx *ctx, struct loop *loop, const struct vm_doc *doc, bool wait,
                          bool again, struct template_info *ret, bool *ret_made, struct err *err)
{
    const struct qemu_build_opts opts = { .wait = wait, .again = again };

    return qemu_template_build(ctx, loop, doc, &opts, ret, ret_made, err);
}

int main(int argc, char **argv)
{
    static const struct shim_backend backend = { .vmm_new = qemu_vmm_new,
                                                 .guest_new = bridge_new,
                                                 .template_build = build_template };

    return argc > 0 ? shim_main(&backend, argv) : 1;
}
