/* qemu_nic.c - network devices: the tap's descriptor travels to QEMU over its monitor (getfd),
 * becomes a backend, then a virtio-net on the bridge that takes hot-added devices.
 *
 * A guest has to agree when a PCI device is pulled. One that does not is cut off (its link is down)
 * and keeps the device until it lets go or ends. Its backend stays as long: QEMU exits when a guest
 * resets a NIC whose tap was taken away (tried with 10.0). */
#include "base/clock.h"
#include "base/str.h"
#include "host/vmm/qemu/qemu_plug.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define ID_MAX 100
#define MTU_MIN 68

static int cut_link(struct ctx *ctx, struct qemu *q, struct plug *p, struct err *err)
{
    return qmp_client_call(ctx, q->proc->qmp, "set_link",
                           json_pack("{ss+,sb}", "name", "nic-", p->id, "up", 0), NULL, err);
}

static const struct plug_kind nic_kind = {
    .what = "NIC",
    .names = { [PLUG_FD] = "net-", [PLUG_NETDEV] = "net-", [PLUG_DEVICE] = "nic-" },
    .undo_ns = 15 * NS_PER_S,
    .release_ns = 3 * NS_PER_S, /* a guest that works needs a fifth of a second */
    .release_tries = 2,         /* while its kernel starts it does not hear us */
    .kept = "the guest does not let go of a NIC; its link is cut, going on",
    .on_kept = cut_link,
};

static int make_nic(struct ctx *ctx, struct qemu *q, struct plug *p, const void *arg,
                    struct err *err)
{
    const struct vmm_nic *nic = arg;
    char mac[18];

    if (plug_make(ctx, q, p, PLUG_FD, nic->tap_fd, NULL, err) < 0 ||
        plug_make(ctx, q, p, PLUG_NETDEV, -1,
                  json_pack("{ss,ss+}", "type", "tap", "fd", "net-", p->id), err) < 0)
        return -1;
    snprintf(mac, sizeof(mac), "%02x:%02x:%02x:%02x:%02x:%02x", nic->mac[0], nic->mac[1],
             nic->mac[2], nic->mac[3], nic->mac[4], nic->mac[5]);
    /* With legacy support each one takes I/O ports, of which there are few. */
    json_t *device = json_pack("{ss,ss+,ss,ss,si,ss,ss}", "driver", "virtio-net-pci", "netdev",
                               "net-", p->id, "bus", "hp", "mac", mac, "host_mtu", (int)nic->mtu,
                               "romfile", "", "disable-legacy", "on");
    return plug_make(ctx, q, p, PLUG_DEVICE, -1, device, err);
}

static int check(const struct qemu *q, const struct vmm_nic *nic, struct err *err)
{
    size_t len = strlen(nic->id);

    if (len == 0 || len > ID_MAX)
        return err_set(err, ERR_INVALID, "the name of a NIC has 1 to %d characters", ID_MAX);
    for (const char *c = nic->id; *c; c++)
        if (!isalnum((unsigned char)*c) && !strchr("-._", *c))
            return err_set(err, ERR_INVALID, "\"%s\" is no name of a NIC", nic->id);
    if (nic->mtu < MTU_MIN)
        return err_set(err, ERR_INVALID, "NIC %s: an MTU of %u is too small", nic->id, nic->mtu);
    if (nic->queues > 1)
        return err_set(err, ERR_UNIMPLEMENTED, "NIC %s: more than one queue", nic->id);
    return qemu_check_runs(q, "add a NIC", err);
}

int qemu_nic_add(struct ctx *ctx, struct vmm *v, const struct vmm_nic *nic, struct err *err)
{
    struct qemu *q = qemu_of(v);
    const struct plug what = { .kind = &nic_kind, .id = nic->id, .label = nic->id };

    if (check(q, nic, err) < 0)
        return err_wrap(err, "add a NIC");
    plug_sweep(ctx, q);
    if (plug_find(q, &nic_kind, nic->id))
        return err_set(err, ERR_EXISTS, "add a NIC: there is a NIC %s", nic->id);
    return plug_add(ctx, q, &what, make_nic, nic, err) < 0 ? err_wrap(err, "add a NIC") : 0;
}

int qemu_nic_remove(struct ctx *ctx, struct vmm *v, const char *id, struct err *err)
{
    return plug_remove(ctx, qemu_of(v), &nic_kind, id, err);
}
