#include "host/device/vpci.h"
#include "base/err.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "host/bridge/guest.h"
#include "host/device/vpci_priv.h"
#include "host/vmm/vmm.h"

#include <stdlib.h>

static const char *const states[] = { "Reserved", "Assigned", "Ready", "Invalid", "Removed" };
static const char *const events[] = { "be assigned", "be confirmed", "fail", "be removed",
                                      "be dropped" };

static const struct fsm_edge edges[] = {
    { VPCI_RESERVED, VPCI_EV_ASSIGNED, VPCI_ASSIGNED },
    { VPCI_RESERVED, VPCI_EV_FAILED, VPCI_INVALID },
    { VPCI_RESERVED, VPCI_EV_DROPPED, VPCI_REMOVED },
    { VPCI_ASSIGNED, VPCI_EV_CONFIRMED, VPCI_READY },
    { VPCI_ASSIGNED, VPCI_EV_FAILED, VPCI_INVALID },
    { VPCI_READY, VPCI_EV_REMOVED, VPCI_REMOVED },
    { VPCI_INVALID, VPCI_EV_REMOVED, VPCI_REMOVED },
};
FSM_DEFINE(vpci_fsm, "vPCI device", states, VPCI_STATE_COUNT, events, VPCI_EV_COUNT, edges);

/* --- one device --- */

static struct device *device_of(struct reserved *t)
{
    return t ? CONTAINER_OF(t, struct device, held) : NULL;
}

static void device_free(struct reserved *t)
{
    struct device *d = device_of(t);

    list_remove(&d->node);
    free(d->address);
    free(d->id);
    free(d->place);
    free(d);
}

static int bring(struct ctx *ctx, struct vpci *c, struct device *d, struct err *err)
{
    struct vmm *vmm = c->vmm;

    if (d->state == VPCI_READY)
        return 0;
    if (fsm_check(&vpci_fsm, d->state, VPCI_EV_ASSIGNED, err) < 0)
        return -1;
    int r = vmm->ops->pci_add ? vmm->ops->pci_add(ctx, vmm, d->address, d->id, &d->place, err)
                              : vmm_unsupported("pci_add", err);
    fsm_step(&vpci_fsm, &d->state, r < 0 ? VPCI_EV_FAILED : VPCI_EV_ASSIGNED);
    if (r < 0)
        return err_wrap(err, "attach it to the VM");
    r = c->guest->ops->add_device(ctx, c->guest, d->place, err);
    fsm_step(&vpci_fsm, &d->state, r < 0 ? VPCI_EV_FAILED : VPCI_EV_CONFIRMED);
    if (r < 0)
        return err_wrap(err, "find it in the guest");
    log_info(ctx, "PCI device added", F_STR("device", d->address), F_STR(LK_UVM_PATH, d->place));
    return 0;
}

static int take_back(struct ctx *ctx, struct device *d, struct vmm *vmm, struct err *err)
{
    if (d->state == VPCI_RESERVED)
        fsm_step(&vpci_fsm, &d->state, VPCI_EV_DROPPED);
    if (d->state == VPCI_REMOVED)
        return 0;
    /* After a failed add too: its answer may have been lost. */
    int r = vmm->ops->pci_remove ? vmm->ops->pci_remove(ctx, vmm, d->id, err) : 0;
    if (vmm_gone_is_done(r, ctx, err) < 0)
        return err_wrap_because(err, REASON_DEVICE_FAILED, "detach PCI device %s from the VM",
                                d->address);
    fsm_step(&vpci_fsm, &d->state, VPCI_EV_REMOVED);
    log_info(ctx, "PCI device removed", F_STR("device", d->address));
    return 0;
}

/* --- the controller --- */

struct vpci *vpci_new(struct vmm *vmm, struct guest *guest)
{
    struct vpci *c = mem_new(struct vpci);

    c->vmm = vmm;
    c->guest = guest;
    gate_init(&c->gate, "vpci");
    list_init(&c->devices);
    reservations_init(&c->reservations, "device", device_free);
    return c;
}

void vpci_free(struct vpci *c)
{
    if (!c)
        return;
    reservations_release(&c->reservations);
    free(c);
}

static struct device *find_device(struct vpci *c, const char *address)
{
    LIST_FOR (struct device, d, &c->devices, node)
        if (str_eq(d->address, address))
            return d;
    return NULL;
}

static struct device *new_device(struct vpci *c, const char *address)
{
    struct device *d = mem_new(struct device);

    d->address = str_dup(address);
    d->id = str_format("%llu", (unsigned long long)c->next_name++); /* never used twice */
    list_append(&c->devices, &d->node);
    return d;
}

int vpci_reserve(struct ctx *ctx, struct vpci *c, const char *address, uint64_t *ret_id,
                 struct err *err)
{
    AUTO(gate_leave) struct gate *held = gate_enter(&c->gate, ctx, "vpci.reserve", err);

    if (!held)
        return -1;
    struct device *d = find_device(c, address);
    /* A second record of the same function would be attached twice. */
    if (d && (d->held.leaving || d->state == VPCI_INVALID))
        return err_because(
            err, REASON_DEVICE_FAILED, ERR_STATE,
            "PCI device %s failed or is being released: delete the containers that use it first",
            address);
    if (!d)
        d = new_device(c, address);
    *ret_id = reservations_take(&c->reservations, &d->held);
    return 0;
}

int vpci_add(struct ctx *ctx, struct vpci *c, uint64_t id, char **ret_place, struct err *err)
{
    AUTO(gate_leave) struct gate *held = gate_enter(&c->gate, ctx, "vpci.add", err);
    struct device *d = held ? device_of(reservations_use(&c->reservations, id, err)) : NULL;

    if (!d)
        return -1;
    if (bring(ctx, c, d, err) < 0)
        return err_wrap_because(err, REASON_DEVICE_FAILED, "PCI device %s", d->address);
    *ret_place = str_dup(d->place);
    return 0;
}

int vpci_remove(struct ctx *ctx, struct vpci *c, uint64_t id, struct err *err)
{
    AUTO(gate_leave) struct gate *held = gate_enter(&c->gate, ctx, "vpci.remove", err);
    struct device *d = held ? device_of(reservations_find(&c->reservations, id, err)) : NULL;

    if (!d)
        return -1;
    if (d->held.refs == 1) {
        d->held.leaving = true;
        if (take_back(ctx, d, c->vmm, err) < 0)
            return -1;
    }
    reservations_drop(&c->reservations, id);
    return 0;
}

const char *vpci_address(const struct vpci *c, uint64_t id)
{
    struct err unknown = ERR_INIT;
    const struct device *d = device_of(reservations_find(&c->reservations, id, &unknown));

    return d ? d->address : "";
}

void vpci_describe(const struct vpci *c, struct jsw *w)
{
    LIST_FOR (const struct device, d, &c->devices, node) {
        jsw_obj(w, NULL);
        jsw_str(w, "device", d->address);
        jsw_str(w, "place", d->place ? d->place : "");
        jsw_str(w, "state", fsm_state_name(&vpci_fsm, d->state));
        jsw_u64(w, "holders", d->held.refs);
        jsw_end_obj(w);
    }
}
