/* vpci_save.c - the PCI devices of a VM. Not saved: the holders of a device, which its reservations
 * count. */
#include "base/saved.h"
#include "host/device/vpci_priv.h"

#include <stdlib.h>

static void device_saved(struct saved *s, struct device *d)
{
    SAVED_ENUM(s, 1, d->state, VPCI_STATE_COUNT);
    saved_bool(s, 2, &d->held.leaving);
    saved_str(s, 3, &d->address);
    saved_str(s, 4, &d->id);
    saved_str(s, 5, &d->place);
    if (!d->address || !d->id)
        saved_fail(s, "a PCI device has no address");
}

void vpci_saved(struct saved *s, struct vpci *c)
{
    struct reserved **things = NULL;
    size_t n = 0, cap = 0;

    saved_u64(s, 1, &c->next_name);
    for (size_t i = saved_count(s, 2, 0); i > 0; i--)
        list_append(&c->devices, &mem_new(struct device)->node);
    LIST_FOR (struct device, d, &c->devices, node) {
        if (!saved_open(s, 2))
            break;
        device_saved(s, d);
        saved_close(s);
        things = mem_grow(things, n, &cap, sizeof(struct reserved *));
        things[n++] = &d->held;
    }
    if (saved_open(s, 3)) {
        reservations_saved(s, &c->reservations, things, n);
        saved_close(s);
    }
    free(things);
}
