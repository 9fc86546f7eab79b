/* scsi_priv.h - the states of disks, and the inside of the controller. */
#pragma once
#include "base/gate.h"
#include "base/str.h"
#include "host/bridge/guest.h"
#include "host/device/reservations.h"
#include "host/device/scsi.h"
#include "host/vmm/vmm.h"

#include <sys/types.h>

#define SCSI_ROOT_HASH_LEN 64 /* SHA-256 in hex */

enum disk_state {
    DISK_RESERVED,
    DISK_ATTACHED,
    DISK_EJECTED,  /* the guest has released it; it is still attached in QEMU */
    DISK_INVALID,  /* the attach failed: can only be removed */
    DISK_DETACHED, /* the slot is free */
    DISK_STATE_COUNT
};
enum disk_event {
    DISK_EV_ATTACHED,
    DISK_EV_ATTACH_FAILED,
    DISK_EV_EJECTED,
    DISK_EV_REMOVED,
    DISK_EV_DROPPED, /* never attached, and not reserved any more */
    DISK_EV_COUNT
};

/* A partition in the guest, which reservations refer to. Its disk lives while it has mounts. */
struct mount {
    struct reserved held;
    struct list node; /* of the disk's mounts */
    struct disk *disk;
    unsigned state;          /* enum part_state */
    struct guest_disk guest; /* strings are owned, options by the next */
    struct strv options;
};

/* What a descriptor is; in a thread, since its file system may not answer. */
struct scsi_image {
    dev_t dev; /* with ino the identity of the file; ino 0 and rdev for a device */
    ino_t ino;
    uint64_t bytes;
};
int scsi_image_look(struct ctx *ctx, int fd, struct scsi_image *ret, struct err *err);

struct disk {
    unsigned state; /* enum disk_state */
    bool leaving;   /* a detach was tried */
    bool deserted;  /* its guest does not answer: it is not asked any more */
    struct scsi_slot slot;
    struct scsi_image image; /* when it was reserved */
    char *host_path;
    int fd;
    bool read_only;
    struct list mounts;
};

struct scsi {
    struct vmm *vmm;
    struct guest *guest;
    struct gate gate;
    unsigned n_slots;
    bool keeps_first;
    struct disk *slots[SCSI_DISKS_MAX];
    bool lost[SCSI_DISKS_MAX];        /* the guest may still have something there */
    struct reservations reservations; /* of mounts */
    /* scsi_image_look(), unless a test has another. */
    int (*look)(struct ctx *ctx, int fd, struct scsi_image *ret, struct err *err);
    bool silent; /* an image did not answer when it was looked at: those that follow are not */
};
