/* slots.h - what all shims of a host share through a file: who holds the lock on a byte of it has
 * what the byte stands for. Locks end with their holders, so nothing is left to clean up. The files
 * are made (0600) if they are missing. */
#pragma once
#include "base/clock.h"
#include <stdint.h>

struct ctx;
struct err;
struct turn;

/* A user id of its own for each VM: byte n is number n. */
struct uid_slot {
    int fd; /* holds the lock; -1: none */
    uint32_t uid;
};
/* Never waits. No number free: ERR_EXHAUSTED. */
int uid_slot_take(const char *path, uint32_t base, uint32_t count, struct uid_slot *ret,
                  struct err *err);
/* Repeatable. */
void uid_slot_release(struct uid_slot *slot);

/* How many VMs start at one time. The first bytes are the turns, one more byte is the queue before
 * them. A shim that is first in the queue and does nothing for some seconds (it is stopped, or
 * hangs) is overtaken, in order, by way of a second queue; there are a few of them.
 *
 * Waits until one of n turns is free, in the order of coming, until ctx ends. */
int turn_take(struct ctx *ctx, const char *path, unsigned n, struct turn **ret, struct err *err);
/* Accepts NULL. Never waits. */
void turn_give(struct turn *t);

/* The bytes whose locks are the queues: behind all turns. */
#define TURN_QUEUE_BYTE (INT64_C(1) << 30)
#define TURN_QUEUES 4u

/* A waiting shim looks this often whether the first one has moved. If it has not for so many looks,
 * the waiting shim enters the next queue. Looks are counted, not the time: after the whole host was
 * suspended, the first may be the last to run again. */
#define TURN_WATCH_NS (500 * NS_PER_MS)
#define TURN_WATCH_LOOKS 6u
