/* container_devices.c - the PCI devices of a container: checked before its VM boots, added when it
 * takes calls, taken back when the container is gone in there. */
#include "base/str.h"
#include "host/config/devices.h"
#include "host/control/registry_priv.h"
#include "host/device/vpci.h"
#include "host/jail/pci.h"

static int find_pci(const char *name, struct pci_function *ret, struct err *err)
{
    return pci_find(PCI_SYS, name, ret, err);
}

int container_read_devices(struct container *c, const struct spec *spec, struct strv *ret,
                           struct err *err)
{
    return devices_read(c->r->o.config, spec, find_pci, ret, err);
}

static int add_device(struct ctx *ctx, struct container *c, const char *address,
                      struct strv *ret_places, struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, CONTAINER_DEVICE_LIMIT);
    AUTO(vm_leave) const struct vm_parts *in = vm_enter(c->r->vm, "add a PCI device", err);
    AUTO_FREE char *place = NULL;
    uint64_t id;

    if (!in || vpci_reserve(&limited, in->vpci, address, &id, err) < 0)
        return -1;
    c->devices[c->n_devices++] = id;
    if (vpci_add(&limited, in->vpci, id, &place, err) < 0)
        return -1;
    strv_add(ret_places, place);
    return 0;
}

int container_add_devices(struct ctx *ctx, struct container *c, const struct strv *addresses,
                          struct strv *ret_places, struct err *err)
{
    int span = addresses->n ? vm_span_begin(c->r->vm, "add devices") : -1, r = 0;

    if (addresses->n)
        c->devices = mem_zalloc(addresses->n * sizeof(*c->devices));
    for (size_t i = 0; i < addresses->n && r == 0; i++)
        r = add_device(ctx, c, addresses->v[i], ret_places, err);
    vm_span_end(c->r->vm, span);
    return r;
}

int container_remove_device(struct ctx *ctx, struct container *c, struct err *err)
{
    struct err gone = ERR_INIT;
    AUTO(vm_leave) const struct vm_parts *in = vm_enter(c->r->vm, "remove a PCI device", &gone);

    (void)in; /* NULL: it is only forgotten */
    return vpci_remove(ctx, vm_parts(c->r->vm)->vpci, c->devices[c->n_devices - 1], err);
}
