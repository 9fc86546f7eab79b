/* reservations.h - what the controllers of disks, shares and PCI devices have in common: who holds
 * which thing, and the states of what is mounted in the guest. A thing lives while a reservation
 * refers to it; the number of its reservations is in it. The controller's gate orders the calls.
 * Never waits. */
#pragma once
#include "base/fsm.h"
#include "base/list.h"

struct err;
struct saved;

/* A member of the thing. */
struct reserved {
    unsigned refs;
    bool leaving; /* its last reservation is being released: not for new ones */
};

struct reservation {
    struct list node;
    uint64_t id;
    struct reserved *thing;
};

struct reservations {
    const char *what; /* for errors: "disk" */
    void (*free_thing)(struct reserved *t);
    struct list list;
    uint64_t last_id;
};

void reservations_init(struct reservations *r, const char *what,
                       void (*free_thing)(struct reserved *t));
/* Drops all. */
void reservations_release(struct reservations *r);
/* Returns the id of another reservation for the thing, which is never used twice. */
uint64_t reservations_take(struct reservations *r, struct reserved *t);
/* NULL: ERR_NOT_FOUND. */
struct reserved *reservations_find(const struct reservations *r, uint64_t id, struct err *err);
/* The same, before the thing is used. NULL with ERR_STATE: it is being released. */
struct reserved *reservations_use(const struct reservations *r, uint64_t id, struct err *err);
/* With its last reservation the thing is freed. An unknown id is fine. */
void reservations_drop(struct reservations *r, uint64_t id);
/* reservations_save.c, in a message that is open: fields 1 and 2. things: all of them, in an order
 * of the caller's that is the same when it reads; the number of reservations of each is set then.
 */
void reservations_saved(struct saved *s, struct reservations *r, struct reserved *const *things,
                        size_t n);

/* A share in the VM, or a mount in the guest: of a disk's partition or of a share. */
enum part_state {
    PART_RESERVED,
    PART_ADDED,
    PART_INVALID, /* it failed, or its answer was lost: only to be removed */
    PART_REMOVED,
    PART_STATE_COUNT
};
enum part_event {
    PART_EV_ADDED,
    PART_EV_ADD_FAILED,
    PART_EV_REMOVED,
    PART_EV_DROPPED, /* never added */
    PART_EV_COUNT
};
extern const struct fsm part_fsm;
