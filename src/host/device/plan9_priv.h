/* plan9_priv.h - the inside of the controller of shares, for plan9*.c. */
#pragma once
#include "base/gate.h"
#include "host/device/plan9.h"
#include "host/device/reservations.h"

#include <sys/types.h>

struct share {
    struct reserved held;
    struct list node;
    unsigned state, mount; /* enum part_state: of it in the VM, and in the guest */
    char *name, *host_path, *path;
    dev_t dev; /* of the tree's root: the path may lead elsewhere by now */
    ino_t ino;
    int tree_fd;              /* until it is added */
    struct vmm_follow follow; /* source, ids: owned */
    bool read_only, unique;
};

struct plan9 {
    struct vmm *vmm;
    struct guest *guest;
    struct gate gate;
    struct reservations reservations;
    struct list shares;
    uint64_t next_name;
};
