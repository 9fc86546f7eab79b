/* lcow - the operator's tool. Here it gets its backend, nothing else. */
#include "host/bridge/bridge.h"
#include "host/vmm/qemu/qemu.h"
#include "tool/tool.h"

int main(int argc, char **argv)
{
    static const struct tool_backend backend = { .vmm_new = qemu_vmm_new,
                                                 .guest_new = bridge_new };

    return argc > 0 ? tool_main(&backend, argv) : TOOL_USAGE;
}
