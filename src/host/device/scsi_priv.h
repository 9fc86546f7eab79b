/* scsi_priv.h - the states of disks and of their mounts, and the inside of the controller. */
#pragma once
#include "base/fsm.h"
#include "base/gate.h"
#include "base/list.h"
#include "host/device/scsi.h"
#include "host/vmm/vmm.h"

#include <sys/types.h>

#define SCSI_ROOT_HASH_LEN 64 /* SHA-256 in hex */

enum disk_state {
    DISK_RESERVED,
    DISK_ATTACHED,
    DISK_EJECTED,  /* the guest has let go; QEMU has it still */
    DISK_INVALID,  /* the attach failed: only to be taken back */
    DISK_DETACHED, /* the slot is free */
    DISK_STATE_COUNT
};
enum disk_event {
    DISK_EV_ATTACHED,
    DISK_EV_ATTACH_FAILED,
    DISK_EV_EJECTED,
    DISK_EV_REMOVED,
    DISK_EV_DROPPED, /* never attached, and nobody wants it any more */
    DISK_EV_COUNT
};

enum mount_state {
    MOUNT_RESERVED,
    MOUNT_MOUNTED,
    MOUNT_INVALID, /* the mount failed, or nobody knows: only to be unmounted */
    MOUNT_UNMOUNTED,
    MOUNT_STATE_COUNT
};
enum mount_event {
    MOUNT_EV_MOUNTED,
    MOUNT_EV_MOUNT_FAILED,
    MOUNT_EV_UNMOUNTED,
    MOUNT_EV_DROPPED, /* never mounted */
    MOUNT_EV_COUNT
};

/* A partition in the guest. Owned by its disk; lives while refs > 0. */
struct mount {
    struct list node;
    unsigned state; /* enum mount_state */
    unsigned refs;  /* reservations */
    bool leaving;   /* an unmount was tried: who knows what the guest has */
    uint64_t partition;
    bool read_only, encrypted, ensure_filesystem, block_device, verity;
    char *root_hash, *filesystem; /* NULL: found */
    char **options;               /* NULL-terminated */
    char *path;                   /* in the guest */
};

/* scsi_image.c - what a descriptor is; in a thread, since its file system may not answer. */
struct scsi_image {
    dev_t dev; /* with ino the identity of the file; ino 0 and rdev for a device */
    ino_t ino;
    uint64_t bytes; /* 0 for a device */
};
int scsi_image_look(struct ctx *ctx, int fd, struct scsi_image *ret, struct err *err);

struct disk {
    unsigned state; /* enum disk_state */
    unsigned refs;  /* reservations */
    bool leaving;   /* a detach was tried */
    bool deserted;  /* its guest does not answer: it is not asked any more */
    struct scsi_slot slot;
    struct scsi_image image; /* when it was reserved */
    char *host_path;
    int fd;
    bool read_only;
    struct list mounts;
};

struct reservation {
    struct list node;
    uint64_t id;
    struct disk *disk;
    struct mount *mount; /* NULL when it was given back already */
};

struct scsi {
    struct vmm *vmm;
    struct guest *guest;
    struct gate gate;
    unsigned n_slots;
    bool keeps_first;
    struct disk *slots[SCSI_DISKS_MAX];
    bool lost[SCSI_DISKS_MAX]; /* the guest may still have something there */
    struct list reservations;
    uint64_t last_id;
    /* scsi_image_look(), unless a test has another. */
    int (*look)(struct ctx *ctx, int fd, struct scsi_image *ret, struct err *err);
    bool silent; /* an image did not answer when it was looked at: those that follow are not */
};

/* scsi_mount.c */
struct mount *scsi_mount_new(struct scsi_slot slot, const struct scsi_mount *m);
void scsi_mount_free(struct mount *m);
/* ERR_INVALID for what does not go together. */
int scsi_mount_check(const struct scsi_disk *disk, const struct scsi_mount *m, struct err *err);
/* The same way of mounting; the partition is not compared. */
bool scsi_mount_same(const struct mount *a, const struct scsi_mount *b);
int scsi_mount_mount(struct ctx *ctx, struct mount *m, struct scsi_slot slot, struct guest *guest,
                     struct err *err);
int scsi_mount_unmount(struct ctx *ctx, struct mount *m, struct scsi_slot slot, struct guest *guest,
                       struct err *err);
/* A call failed for want of an answer, and whoever asked still has time. */
bool scsi_silent(struct ctx *ctx, const struct err *err);
