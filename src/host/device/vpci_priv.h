/* vpci_priv.h - the states of a device, for vpci.c and its tests. */
#pragma once
#include "base/fsm.h"

enum vpci_state {
    VPCI_RESERVED,
    VPCI_ASSIGNED, /* the VM has it, the guest was not asked yet */
    VPCI_READY,
    VPCI_INVALID, /* a step failed: it may be in the VM, but nobody can use it */
    VPCI_REMOVED,
    VPCI_STATE_COUNT
};
enum vpci_event {
    VPCI_EV_ASSIGNED,
    VPCI_EV_CONFIRMED,
    VPCI_EV_FAILED,
    VPCI_EV_REMOVED,
    VPCI_EV_DROPPED, /* never was in the VM */
    VPCI_EV_COUNT
};
