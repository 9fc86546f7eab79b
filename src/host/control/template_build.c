#include "host/control/template_build.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/err.h"
#include "base/loop.h"
#include "base/str.h"
#include "host/control/config.h"
#include "host/vmm/vmm.h"

int template_build(struct ctx *ctx, const struct template_build *b, struct template_info *ret,
                   bool *ret_made, struct err *err)
{
    const struct config *c = b->config;
    struct ctx limited = ctx_with_timeout(ctx, 2 * c->boot_timeout_s * NS_PER_S);
    AUTO_FREE char *kernel = str_format("%s/vmlinux", c->image_dir);
    AUTO_FREE char *initrd = str_format("%s/initrd.cpio", c->image_dir);
    uint32_t number;

    if (!b->build)
        return err_set(err, ERR_UNIMPLEMENTED, "this backend has no templates");
    loop_rand(b->loop, &number, sizeof(number));
    AUTO_FREE char *id = str_format("t-%08x@vm", number);
    AUTO_FREE char *dir = str_format("%s/template/t-%08x", c->run_root, number);
    const struct vm_doc doc = {
        .id = id,
        .run_dir = dir,
        .vmm_path = c->qemu,
        .kernel = kernel,
        .initrd = initrd,
        .memory_mib = b->memory_mib ? b->memory_mib : c->memory_mib,
        .cpus = 1,
        .max_cpus = 1,
        .accel = VM_ACCEL_AUTO,
        .allow_emulation = b->allow_emulation || c->allow_emulation,
        .nested = c->nested_virtualization,
        .uid_base = c->vm_uid_base,
        .uid_count = c->vm_uid_count,
        .pci_ports = config_pci_ports(c),
        .disk_mib = c->scratch_mib,
        .template_dir = c->template_dir,
    };
    return b->build(&limited, b->loop, &doc, b->wait, b->again, ret, ret_made, err);
}
