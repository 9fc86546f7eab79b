/* vpci_priv.h - the inside of the controller of PCI devices, for vpci*.c. */
#pragma once
#include "base/gate.h"
#include "host/device/reservations.h"
#include "host/device/vpci.h"

struct device {
    struct reserved held;
    struct list node;
    unsigned state; /* enum vpci_state */
    char *address, *id, *place;
};

struct vpci {
    struct vmm *vmm;
    struct guest *guest;
    struct gate gate;
    struct reservations reservations;
    struct list devices;
    uint64_t next_name;
};
