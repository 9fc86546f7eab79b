/* vpci.h - the PCI functions of the host that a VM was given: one device for each, counted.
 * Reserve -> add -> remove as in scsi.h. Reservations are counted, not only what was added (weak
 * spot 19): a function goes with its last reservation, never under one that has just been made.
 * A function whose add failed half-way cannot be used until all its reservations are dropped; then
 * it can be reserved again.
 * Gate: one changing call at a time; queries never wait. docs/reference/host.md §12. */
#pragma once
#include "base/mem.h"
#include <stdint.h>

struct ctx;
struct err;
struct fsm;
struct guest;
struct jsw;
struct saved;
struct vmm;
struct vpci;

enum vpci_state {
    VPCI_RESERVED,
    VPCI_ASSIGNED, /* the VM has it, the guest was not asked yet */
    VPCI_READY,
    VPCI_INVALID, /* a step failed: it may be in the VM, but cannot be used */
    VPCI_REMOVED,
    VPCI_STATE_COUNT
};
enum vpci_event {
    VPCI_EV_ASSIGNED,
    VPCI_EV_CONFIRMED,
    VPCI_EV_FAILED,
    VPCI_EV_REMOVED,
    VPCI_EV_DROPPED, /* never was in the VM */
    VPCI_EV_COUNT
};
extern const struct fsm vpci_fsm;

/* Borrows vmm and guest, which must outlive it. Caller frees. */
struct vpci *vpci_new(struct vmm *vmm, struct guest *guest);
void vpci_free(struct vpci *c);
AUTO_DEFINE(struct vpci *, vpci_free);

/* address: as vmm.h's pci_add takes it, always in the same form. */
int vpci_reserve(struct ctx *ctx, struct vpci *c, const char *address, uint64_t *ret_id,
                 struct err *err);
/* Into the VM, and known to the guest. Idempotent. *ret_place: how the guest names it; caller
 * frees. */
int vpci_add(struct ctx *ctx, struct vpci *c, uint64_t id, char **ret_place, struct err *err);
/* Of a reservation, added or not. After a failure it can be repeated. */
int vpci_remove(struct ctx *ctx, struct vpci *c, uint64_t id, struct err *err);
/* Of a reservation, for people; "" if it is not known. Borrowed. */
const char *vpci_address(const struct vpci *c, uint64_t id);
/* An object for each, into the array that is open (inspect.h). Never waits. */
void vpci_describe(const struct vpci *c, struct jsw *w);
/* vpci_save.c, in a message that is open, inside no call. Reading: into one that is new. */
void vpci_saved(struct saved *s, struct vpci *c);
