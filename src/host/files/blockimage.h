/* blockimage.h - a file or a block device of the host that is to be a disk of a VM: opened in a
 * thread with a deadline, and only as what the client said that it is. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct ctx;
struct err;

enum blockimage_kind {
    BLOCKIMAGE_FILE,
    BLOCKIMAGE_DEVICE,
    /* Either. While a copy of the descriptor is open, no other process can open it with this flag,
     * unless both only read; nor can the host mount a device that is written to. */
    BLOCKIMAGE_HELD
};

/* Waits until ctx ends. path: absolute; symlinks are followed. ERR_INVALID: it is something else,
 * or empty; ERR_STATE: a device that the host itself uses (mounted, part of a RAID, swap), or held.
 * Caller closes *ret_fd. */
int blockimage_open(struct ctx *ctx, const char *path, enum blockimage_kind kind, bool read_only,
                    int *ret_fd, struct err *err);
/* The block device of that number, by whatever name the kernel calls it. */
int blockimage_open_number(struct ctx *ctx, uint32_t major, uint32_t minor, bool read_only,
                           int *ret_fd, struct err *err);
