/* fsm_docs.c - prints every state table of the product as Markdown, for `make fsm-docs`. */
#include "base/fsm.h"
#include "fixture/fsm_verify.h"
#include "host/control/container.h"
#include "host/control/sandbox.h"
#include "host/control/vm.h"
#include "host/device/network.h"
#include "host/device/plan9.h"
#include "host/device/reservations.h"
#include "host/device/scsi.h"
#include "host/device/vpci.h"
#include "host/vmm/qemu/qemu.h"
#include <stdio.h>

int main(void)
{
    static const struct fsm *const tables[] = { &vm_fsm,        &container_fsm, &process_fsm,
                                                &scsi_disk_fsm, &part_fsm,      &vpci_fsm,
                                                &sandbox_fsm,   &network_fsm,   &qemu_fsm };

    for (size_t i = 0; i < ARRAY_LEN(tables); i++) {
        AUTO_FREE char *text = fsm_markdown(tables[i]);

        printf("%s\n", text);
    }
    return 0;
}
