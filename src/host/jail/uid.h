/* uid.h - a user id of its own for each VM. The numbers of a range are shared by all shims of the
 * host through one file: who holds the lock on byte n has number base + n. The lock ends with its
 * holder, so nothing is left to clean up. Never waits. */
#pragma once
#include <stdint.h>

struct err;

struct uid_slot {
    int fd; /* holds the lock; -1: none */
    uint32_t uid;
};

/* path: made (0600) if it is missing. No number free: ERR_EXHAUSTED. */
int uid_slot_take(const char *path, uint32_t base, uint32_t count, struct uid_slot *ret,
                  struct err *err);
/* Repeatable. */
void uid_slot_release(struct uid_slot *slot);
