/* scsi.h - the SCSI disks of one VM: slot, attachment, mounts in the guest.
 * Life of a reservation: reserve -> map -> unmap. map is idempotent; a failed unmap is repeated
 * and continues at the step that failed; unmap before map releases the slot. The same file (by
 * device and inode, not by path text) is attached once, each partition mounted once, both counted.
 * A guest has SCSI_GUEST_S to release a disk. If it does not answer, the disk is removed anyway,
 * which is logged, and its slot is not used again in this VM's life.
 * Gate: one changing call at a time; queries never wait. docs/reference/host.md §10, weak spot 16.
 */
#pragma once
#include "base/mem.h"
#include <stdbool.h>
#include <stdint.h>

struct ctx;
struct err;
struct fsm;
struct guest;
struct guest_disk;
struct jsw;
struct scsi;
struct saved;
struct vmm;

/* Controllers beyond the first are added to the VM when the first disk needs them. */
#define SCSI_CONTROLLERS_MAX 4
#define SCSI_LUNS 64
#define SCSI_DISKS_MAX (SCSI_CONTROLLERS_MAX * SCSI_LUNS)
#define SCSI_GUEST_S 30

extern const struct fsm scsi_disk_fsm;

struct scsi_disk {
    const char *host_path; /* for people and logs */
    int fd;                /* borrowed during reserve (dup'ed): what QEMU gets */
    bool read_only;
    bool first; /* for the slot that scsi_keep_first() keeps */
};
/* Borrows vmm and guest, which must outlive it. Caller frees with scsi_free(). */
struct scsi *scsi_new(struct vmm *vmm, struct guest *guest, unsigned n_controllers);
void scsi_free(struct scsi *c);
/* Slot 0:0 is for the disk that says so (struct vm_doc, disk_mib), whatever comes before it. */
void scsi_keep_first(struct scsi *c);
AUTO_DEFINE(struct scsi *, scsi_free);
/* mount: how the guest is to have it (guest.h), but for slot and path. A partition that does not
 * exist fails map; a read-only disk is mounted so anyway. ERR_EXHAUSTED without a free slot;
 * ERR_STATE if the file is already there in another way (once writable, once not), or is writable
 * and still being released; ERR_INVALID for options that do not go together. */
int scsi_reserve(struct ctx *ctx, struct scsi *c, const struct scsi_disk *disk,
                 const struct guest_disk *mount, uint64_t *ret_id, struct err *err);
/* The disk without its mount, which scsi_map adds: of several disks, the guest can look for one
 * while the next is attached. Blocks on the gate and the VM until ctx ends. */
int scsi_attach(struct ctx *ctx, struct scsi *c, uint64_t id, struct err *err);
/* Blocks on the gate, the VM and the guest until ctx ends. Caller frees *ret_path. */
int scsi_map(struct ctx *ctx, struct scsi *c, uint64_t id, char **ret_path, struct err *err);
/* A VM or guest that is gone counts as done. Unknown id: ERR_NOT_FOUND. */
int scsi_unmap(struct ctx *ctx, struct scsi *c, uint64_t id, struct err *err);
/* The disk's image has grown: the VM has the new size, *ret_bytes; the guest is not asked.
 * ERR_STATE: no disk of that path is attached. ERR_INVALID: it is smaller than before. */
int scsi_resize(struct ctx *ctx, struct scsi *c, const char *host_path, uint64_t *ret_bytes,
                struct err *err);
/* Slots whose guest did not release the disk. */
size_t scsi_lost_slots(const struct scsi *c);
/* An object for each disk, into the array that is open (inspect.h). Never waits. */
void scsi_describe(const struct scsi *c, struct jsw *w);
/* scsi_save.c, in a message that is open, inside no call. Reading: into one that is new. */
void scsi_saved(struct saved *s, struct scsi *c);
