/* dm.h - device mapper by its ioctls (gcs-protocol.md §4.4): one device with one target each, known
 * by name. Leaf code that blocks in the kernel (call it through base/offload). */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct err;

#define DM_PARAMS_MAX 1024

/* Makes the device and resumes it. *ret_node: "/dev/dm-0", caller frees. secret: the kernel wipes
 * its copies of params. A failure leaves nothing behind. */
int dm_create(const char *name, const char *target, const char *params, uint64_t sectors,
              bool read_only, bool secret, char **ret_node, struct err *err);
/* No such device, or no device mapper at all, is fine. EBUSY while somebody has it open. */
int dm_remove(const char *name, struct err *err);
