/* qemu_hba.c - SCSI controllers beyond those of boot, which cost time there: each is added when its
 * first disk comes, on the bridge that takes hot-added devices, and stays. Its place there tells
 * the guest which one it is (guest/storage/scsi.c), whatever came and went before. */
#include "base/gate.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "host/vmm/qemu/qemu_priv.h"

#include <string.h>

/* Controller 1 is 0x1d, 3 the last place. Devices that do not ask for one take the first. */
#define PLACE_BASE 0x1c

static void controller_args(struct jsw *w, const void *arg)
{
    const unsigned *n = arg;
    AUTO_FREE char *id = str_format("scsi%u", *n), *addr = str_format("%x", PLACE_BASE + *n);

    jsw_str(w, "driver", "virtio-scsi-pci");
    jsw_str(w, "id", id);
    jsw_str(w, "bus", "hp");
    jsw_str(w, "addr", addr);
    jsw_str(w, "disable-legacy", "on"); /* or each one takes I/O ports, of which there are few */
}

static int add(struct ctx *ctx, struct qemu *q, unsigned n, struct err *err)
{
    if (qmp_client_call(ctx, q->proc->qmp, "device_add", controller_args, &n, NULL, err) < 0) {
        /* Asked for before; its answer was lost. */
        if (err->code != ERR_UNKNOWN || !strstr(err->msg, "Duplicate"))
            return err_wrap(err, "add SCSI controller %u", n);
        err_clear(err);
    }
    q->n_controllers = n + 1;
    log_info(&q->life, "SCSI controller added", F_U("controller", n));
    return 0;
}

int qemu_need_controller(struct ctx *ctx, struct qemu *q, unsigned controller, struct err *err)
{
    AUTO(gate_leave) struct gate *held = gate_enter(&q->controllers, ctx, "qemu.controller", err);

    if (!held)
        return -1;
    if (q->n_controllers < q->doc.scsi_controllers)
        q->n_controllers = q->doc.scsi_controllers;
    while (q->n_controllers <= controller) {
        /* Others were waited for: look again. */
        if (qemu_check_runs(q, "add a SCSI controller", err) < 0 ||
            add(ctx, q, q->n_controllers, err) < 0)
            return -1;
    }
    return 0;
}
