/* qemu_pci.c - PCI devices: which are there, on which port, and how they go. Undoing and removing
 * are the same walk backwards, which can stop anywhere and be repeated.
 *
 * A guest has to agree when a PCI device is pulled; QEMU knows no force. One that does not keeps
 * the device, and with it the port, until it lets go or its VM ends; that is told. */
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "host/jail/pci.h"
#include "host/vmm/qemu/qemu_pci_priv.h"

#include <stdlib.h>
#include <string.h>

#define UNDO_NS (15 * NS_PER_S)
#define DELETED_NS (5 * NS_PER_S) /* a guest that works needs a fifth of a second */
#define DELETED_TRIES 2           /* while its kernel starts it does not hear us */

/* --- records --- */

static struct qemu_pci *find_pci(struct qemu *q, const char *id)
{
    LIST_EACH (&q->pcis, pos) {
        struct qemu_pci *p = LIST_ENTRY(pos, struct qemu_pci, node);
        if (str_eq(p->id, id))
            return p;
    }
    return NULL;
}

static struct qemu_pci *find_address(struct qemu *q, const char *address)
{
    LIST_EACH (&q->pcis, pos) {
        struct qemu_pci *p = LIST_ENTRY(pos, struct qemu_pci, node);
        if (str_eq(p->address, address))
            return p;
    }
    return NULL;
}

static void drop_pci(struct qemu_pci *p)
{
    list_remove(&p->node);
    free(p->address);
    free(p);
}

void qemu_pcis_forget(struct qemu *q)
{
    while (!list_empty(&q->pcis))
        drop_pci(LIST_FIRST(&q->pcis, struct qemu_pci, node));
    q->has_iommu = false;
}

void qemu_pci_deleted(struct qemu *q, const char *device)
{
    LIST_EACH (&q->pcis, pos) {
        struct qemu_pci *p = LIST_ENTRY(pos, struct qemu_pci, node);
        if (!str_starts(device, "pci-") || !str_eq(p->id, device + strlen("pci-")))
            continue;
        p->deleted = true; /* also of one that we had given up: sweep takes the rest */
        waitq_wake_all(&p->deleted_q);
    }
}

/* QEMU does not refuse a second device on a port: the books are ours. */
static int free_port(struct qemu *q, unsigned *ret, struct err *err)
{
    bool used[QEMU_PORTS_MAX] = { 0 };

    LIST_EACH (&q->pcis, pos)
        used[LIST_ENTRY(pos, struct qemu_pci, node)->port] = true;
    for (unsigned i = 0; i < q->doc.pci_ports; i++) {
        if (used[i])
            continue;
        *ret = i;
        return 0;
    }
    return err_set(err, ERR_EXHAUSTED, "all %u PCI ports of the VM are in use (device_slots)",
                   q->doc.pci_ports);
}

/* --- backwards --- */

/* 0 when QEMU has taken the request, or has it already; 1 when there is no such device. */
static int ask_delete(struct ctx *ctx, struct qemu *q, struct qemu_pci *p, struct err *err)
{
    if (qmp_client_call(ctx, q->proc->qmp, "device_del", qemu_pci_id_args, p, NULL, err) == 0)
        return 0;
    if (err->code == ERR_NOT_FOUND)
        return 1;
    return err->code == ERR_UNKNOWN && strstr(err->msg, "unplug") ? 0 : -1;
}

/* 0 gone, 1 the guest does not let go. */
static int remove_device(struct ctx *ctx, struct qemu *q, struct qemu_pci *p, struct err *err)
{
    for (int i = 0; i < DELETED_TRIES; i++) {
        p->deleted = false;
        int r = ask_delete(ctx, q, p, err);
        if (r != 0)
            return r < 0 ? -1 : 0;
        struct ctx limited = ctx_with_timeout(ctx, DELETED_NS);

        while (!p->deleted && r == 0)
            r = waitq_wait(&limited, &p->deleted_q, "qemu: PCI device to be removed", err);
        if (p->deleted)
            return 0;
        if (err->code != ERR_DEADLINE || ctx_check(ctx, err) < 0)
            return -1;
    }
    return 1;
}

static int walk_back(struct ctx *ctx, struct qemu *q, struct qemu_pci *p, struct err *err)
{
    int left = p->has_device ? remove_device(ctx, q, p, err) : 0;

    if (left < 0)
        return -1;
    p->has_device = left > 0;
    err_clear(err);
    return left > 0 ? 0 : qemu_pci_unmake(ctx, q, p, err);
}

static void settle(struct qemu *q, struct qemu_pci *p)
{
    if (!p->has_device || qemu_is_gone(q)) {
        drop_pci(p);
        return;
    }
    p->deserted = true;
    log_warn(&q->life, "the guest does not let go of a PCI device; it keeps it until its VM ends",
             F_STR("device", p->address));
}

/* Takes the record with it when nothing is left. */
static int take_back(struct ctx *ctx, struct qemu *q, struct qemu_pci *p, struct err *err)
{
    struct qemu_op op;
    struct ctx inner = qemu_op_begin(ctx, q, &op);

    p->inside = true;
    p->attached = false;
    int r = qemu_is_gone(q) ? 0 : walk_back(&inner, q, p, err);
    p->inside = false;
    if (r < 0 && qemu_is_gone(q))
        r = 0;
    if (r == 0)
        settle(q, p);
    qemu_op_end(&op);
    return r;
}

/* Those whose guest has let go at last. What fails is tried again with the next device. */
static void sweep(struct ctx *ctx, struct qemu *q)
{
    LIST_EACH (&q->pcis, pos) {
        struct qemu_pci *p = LIST_ENTRY(pos, struct qemu_pci, node);
        struct err err = ERR_INIT;

        if (!p->deserted || !p->deleted || p->inside)
            continue;
        p->deserted = p->has_device = false;
        if (take_back(ctx, q, p, &err) < 0) {
            p->deserted = true;
            log_warn(&q->life, "a PCI device is not taken back yet", F_STR("device", p->address),
                     F_ERR(&err));
        }
        return; /* the list may have changed while we waited */
    }
}

/* --- forwards --- */

static void undo(struct qemu *q, struct qemu_pci *p)
{
    struct ctx limited = ctx_with_timeout(&q->root, UNDO_NS);
    struct err err = ERR_INIT;

    if (take_back(&limited, q, p, &err) < 0)
        log_warn(&q->life, "a PCI device that was not added is not taken back yet",
                 F_STR("device", p->address), F_ERR(&err));
}

static int kind_of(const char *address, enum qemu_pci_kind *ret, struct err *err)
{
    char form[PCI_ADDRESS_MAX];

    if (str_eq(address, "test:edu"))
        *ret = QEMU_PCI_EDU;
    else if (str_eq(address, "test:nvme"))
        *ret = QEMU_PCI_NVME;
    else if (pci_address(address, form) == 0 && str_eq(address, form))
        *ret = QEMU_PCI_VFIO;
    else
        return err_set(err, ERR_INVALID, "\"%.64s\" is no PCI device", address);
    return 0;
}

static int check(struct qemu *q, const char *address, const char *id, struct err *err)
{
    size_t n = strspn(id, "0123456789abcdefghijklmnopqrstuvwxyz");

    if (n == 0 || n > QEMU_PCI_ID_MAX || id[n])
        return err_set(err, ERR_INVALID, "\"%.64s\" is no name of a device", id);
    if (qemu_check_runs(q, "add a PCI device", err) < 0)
        return -1;
    if (find_pci(q, id))
        return err_set(err, ERR_EXISTS, "there is a device %s", id);
    struct qemu_pci *old = find_address(q, address);
    if (old && old->deserted)
        return err_set(err, ERR_STATE,
                       "the guest has not let go of %s; end its VM to have it again", address);
    if (old)
        return err_set(err, ERR_EXISTS, "the VM has %s already", address);
    return 0;
}

static int add(struct ctx *ctx, struct qemu *q, const char *address, const char *id,
               char **ret_place, struct err *err)
{
    enum qemu_pci_kind kind = QEMU_PCI_VFIO;
    struct qemu_op op;
    unsigned port = 0;

    sweep(ctx, q);
    if (kind_of(address, &kind, err) < 0 || check(q, address, id, err) < 0 ||
        free_port(q, &port, err) < 0)
        return -1;
    struct qemu_pci *p = mem_new(struct qemu_pci);

    strcpy(p->id, id); /* its length was checked */
    p->address = str_dup(address);
    p->kind = kind;
    p->port = port;
    p->inside = true;
    waitq_init(&p->deleted_q);
    list_append(&q->pcis, &p->node);
    struct ctx inner = qemu_op_begin(ctx, q, &op);
    int r = qemu_pci_make(&inner, q, p, err);

    p->inside = false;
    p->attached = r == 0;
    if (r < 0)
        undo(q, p);
    else
        *ret_place = str_format("0000:00:%02x.0/00.0", QEMU_PORT_SLOT + port);
    qemu_op_end(&op);
    return r;
}

int qemu_pci_add(struct ctx *ctx, struct vmm *v, const char *address, const char *id,
                 char **ret_place, struct err *err)
{
    if (add(ctx, qemu_of(v), address, id, ret_place, err) < 0)
        return err_wrap(err, "add PCI device %.64s", address);
    return 0;
}

int qemu_pci_remove(struct ctx *ctx, struct vmm *v, const char *id, struct err *err)
{
    struct qemu *q = qemu_of(v);
    struct qemu_pci *p;

    sweep(ctx, q);
    p = find_pci(q, id);
    if (!p || p->deserted)
        return 0;
    if (p->inside)
        return err_set(err, ERR_STATE, "PCI device %s: another call works on it", p->address);
    AUTO_FREE char *address = str_dup(p->address);
    if (take_back(ctx, q, p, err) < 0)
        return err_wrap(err, "remove PCI device %s", address);
    return 0;
}
