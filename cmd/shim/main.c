/* containerd-shim-lcow-v2 - the shim. This file only selects its backend. */
#include "host/bridge/bridge.h"
#include "host/shim/shim.h"
#include "host/vmm/qemu/qemu.h"

int main(int argc, char **argv)
{
    static const struct shim_backend backend = { .vmm_new = qemu_vmm_new,
                                                 .guest_new = bridge_new,
                                                 .template_build = qemu_template_build };

    return argc > 0 ? shim_main(&backend, argv) : 1;
}
