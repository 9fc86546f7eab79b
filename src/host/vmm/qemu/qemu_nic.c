/* qemu_nic.c - network devices: the tap's descriptor goes to QEMU over its monitor (getfd), becomes
 * a backend, then a virtio-net on the bridge that takes hot-added devices. A step is noted before
 * it is asked for: an answer that was never read does not lose the thing. Undoing and removing are
 * the same walk backwards, which can stop anywhere and be repeated.
 *
 * A guest has to agree when a PCI device is pulled. One that does not is cut off (its link is down)
 * and keeps the device until it lets go or ends. Its backend stays as long: QEMU exits when a guest
 * resets a NIC whose tap was taken away (tried with 10.0). */
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "host/vmm/qemu/qemu_priv.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNDO_NS (15 * NS_PER_S)
#define DELETED_NS (3 * NS_PER_S) /* a guest that works needs a fifth of a second */
#define DELETED_TRIES 2           /* while its kernel starts it does not hear us */
#define ID_MAX 100
#define MTU_MIN 68

struct qemu_nic {
    struct list node;
    char id[ID_MAX + 1];
    uint8_t mac[6];
    uint16_t mtu;
    bool inside;   /* an add or a remove works on it */
    bool attached; /* all of it is there */
    bool has_fd, has_netdev, has_device;
    bool deserted; /* the guest has not let go; only the device is left */
    bool deleted;  /* the event came */
    struct waitq deleted_q;
};

/* --- words for QEMU: "nic-X" is the device, "net-X" its backend and the descriptor --- */

static void put_name(struct jsw *w, const char *key, const char *what, const struct qemu_nic *n)
{
    AUTO_FREE char *name = str_format("%s-%s", what, n->id);

    jsw_str(w, key, name);
}

static void fd_args(struct jsw *w, const void *arg)
{
    put_name(w, "fdname", "net", arg);
}

static void netdev_args(struct jsw *w, const void *arg)
{
    jsw_str(w, "type", "tap");
    put_name(w, "id", "net", arg);
    put_name(w, "fd", "net", arg);
}

static void device_args(struct jsw *w, const void *arg)
{
    const struct qemu_nic *n = arg;
    char mac[18];

    snprintf(mac, sizeof(mac), "%02x:%02x:%02x:%02x:%02x:%02x", n->mac[0], n->mac[1], n->mac[2],
             n->mac[3], n->mac[4], n->mac[5]);
    jsw_str(w, "driver", "virtio-net-pci");
    put_name(w, "id", "nic", n);
    put_name(w, "netdev", "net", n);
    jsw_str(w, "bus", "hp");
    jsw_str(w, "mac", mac);
    jsw_u64(w, "host_mtu", n->mtu);
    jsw_str(w, "romfile", "");
    jsw_str(w, "disable-legacy", "on"); /* or each one takes I/O ports, of which there are few */
}

static void device_id_args(struct jsw *w, const void *arg)
{
    put_name(w, "id", "nic", arg);
}

static void link_args(struct jsw *w, const void *arg)
{
    put_name(w, "name", "nic", arg);
    jsw_bool(w, "up", false);
}

static void netdev_id_args(struct jsw *w, const void *arg)
{
    put_name(w, "id", "net", arg);
}

/* --- records --- */

static struct qemu_nic *find_nic(struct qemu *q, const char *id)
{
    LIST_EACH (&q->nics, pos) {
        struct qemu_nic *n = LIST_ENTRY(pos, struct qemu_nic, node);
        if (str_eq(n->id, id))
            return n;
    }
    return NULL;
}

static void drop_nic(struct qemu_nic *n)
{
    list_remove(&n->node);
    free(n);
}

void qemu_nics_forget(struct qemu *q)
{
    while (!list_empty(&q->nics))
        drop_nic(LIST_FIRST(&q->nics, struct qemu_nic, node));
}

void qemu_nic_deleted(struct qemu *q, const char *device)
{
    LIST_EACH (&q->nics, pos) {
        struct qemu_nic *n = LIST_ENTRY(pos, struct qemu_nic, node);
        if (!str_starts(device, "nic-") || !str_eq(n->id, device + strlen("nic-")))
            continue;
        n->deleted = true; /* also of one that we had given up: sweep takes the rest */
        waitq_wake_all(&n->deleted_q);
    }
}

/* --- backwards --- */

/* 0 when QEMU has taken the request, or has it already; 1 when there is no such device. */
static int ask_delete(struct ctx *ctx, struct qemu *q, struct qemu_nic *n, struct err *err)
{
    if (qmp_client_call(ctx, q->proc->qmp, "device_del", device_id_args, n, NULL, err) == 0)
        return 0;
    if (err->code == ERR_NOT_FOUND)
        return 1;
    return err->code == ERR_UNKNOWN && strstr(err->msg, "unplug") ? 0 : -1;
}

/* 0 gone, 1 the guest does not let go. */
static int remove_device(struct ctx *ctx, struct qemu *q, struct qemu_nic *n, struct err *err)
{
    for (int i = 0; i < DELETED_TRIES; i++) {
        n->deleted = false;
        int r = ask_delete(ctx, q, n, err);
        if (r != 0)
            return r < 0 ? -1 : 0;
        struct ctx limited = ctx_with_timeout(ctx, DELETED_NS);

        while (!n->deleted && r == 0)
            r = waitq_wait(&limited, &n->deleted_q, "qemu: NIC to be removed", err);
        if (n->deleted)
            return 0;
        if (err->code != ERR_DEADLINE || ctx_check(ctx, err) < 0)
            return -1;
    }
    return 1;
}

/* Each that is not there any more counts as gone. */
static int walk_back(struct ctx *ctx, struct qemu *q, struct qemu_nic *n, struct err *err)
{
    int left = n->has_device ? remove_device(ctx, q, n, err) : 0;

    if (left < 0)
        return -1;
    n->has_device = left > 0;
    if (left > 0)
        return qmp_client_call(ctx, q->proc->qmp, "set_link", link_args, n, NULL, err);
    if (n->has_netdev &&
        qmp_client_call(ctx, q->proc->qmp, "netdev_del", netdev_id_args, n, NULL, err) < 0 &&
        err->code != ERR_NOT_FOUND)
        return -1;
    n->has_netdev = false;
    /* The backend has taken it, unless that failed. */
    if (n->has_fd && qmp_client_call(ctx, q->proc->qmp, "closefd", fd_args, n, NULL, err) < 0 &&
        !(err->code == ERR_UNKNOWN && strstr(err->msg, "not found")))
        return -1;
    n->has_fd = false;
    err_clear(err);
    return 0;
}

static void settle(struct qemu *q, struct qemu_nic *n)
{
    if (!n->has_device || qemu_is_gone(q)) {
        drop_nic(n);
        return;
    }
    n->deserted = true;
    log_warn(&q->life, "the guest does not let go of a NIC; its link is cut, going on",
             F_STR("nic", n->id));
}

/* Takes the record with it when nothing is left. */
static int take_back(struct ctx *ctx, struct qemu *q, struct qemu_nic *n, struct err *err)
{
    struct qemu_op op;
    struct ctx inner = qemu_op_begin(ctx, q, &op);

    n->inside = true;
    n->attached = false;
    int r = qemu_is_gone(q) ? 0 : walk_back(&inner, q, n, err);
    n->inside = false;
    if (r < 0 && qemu_is_gone(q))
        r = 0;
    if (r == 0)
        settle(q, n);
    qemu_op_end(&op);
    return r;
}

/* Those whose guest has let go at last. What fails is tried again with the next NIC. */
static void sweep(struct ctx *ctx, struct qemu *q)
{
    LIST_EACH (&q->nics, pos) {
        struct qemu_nic *n = LIST_ENTRY(pos, struct qemu_nic, node);
        struct err err = ERR_INIT;

        if (!n->deserted || !n->deleted || n->inside)
            continue;
        n->deserted = n->has_device = false;
        if (take_back(ctx, q, n, &err) < 0) {
            n->deserted = true;
            log_warn(&q->life, "a NIC is not taken back yet", F_STR("nic", n->id), F_ERR(&err));
        }
        return; /* the list may have changed while we waited */
    }
}

/* --- forwards --- */

static int walk_on(struct ctx *ctx, struct qemu *q, struct qemu_nic *n, int tap, struct err *err)
{
    n->has_fd = true;
    if (qmp_client_call_fd(ctx, q->proc->qmp, "getfd", tap, fd_args, n, NULL, err) < 0)
        return -1;
    n->has_netdev = true;
    if (qmp_client_call(ctx, q->proc->qmp, "netdev_add", netdev_args, n, NULL, err) < 0)
        return -1;
    n->has_fd = false;
    n->has_device = true;
    return qmp_client_call(ctx, q->proc->qmp, "device_add", device_args, n, NULL, err);
}

static void undo(struct qemu *q, struct qemu_nic *n)
{
    struct ctx limited = ctx_with_timeout(&q->root, UNDO_NS);
    struct err err = ERR_INIT;

    if (take_back(&limited, q, n, &err) < 0)
        log_warn(&q->life, "a NIC that was not attached is not taken back yet", F_STR("nic", n->id),
                 F_ERR(&err));
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

static int add_nic(struct ctx *ctx, struct qemu *q, const struct vmm_nic *nic, struct err *err)
{
    if (check(q, nic, err) < 0)
        return -1;
    sweep(ctx, q);
    if (find_nic(q, nic->id))
        return err_set(err, ERR_EXISTS, "there is a NIC %s", nic->id);
    struct qemu_nic *n = mem_new(struct qemu_nic);
    struct qemu_op op;

    strcpy(n->id, nic->id); /* its length was checked */
    memcpy(n->mac, nic->mac, sizeof(n->mac));
    n->mtu = nic->mtu;
    n->inside = true;
    waitq_init(&n->deleted_q);
    list_append(&q->nics, &n->node);
    struct ctx inner = qemu_op_begin(ctx, q, &op);
    int r = walk_on(&inner, q, n, nic->tap_fd, err);

    n->inside = false;
    n->attached = r == 0;
    if (r < 0)
        undo(q, n);
    qemu_op_end(&op);
    return r;
}

int qemu_nic_add(struct ctx *ctx, struct vmm *v, const struct vmm_nic *nic, struct err *err)
{
    if (add_nic(ctx, qemu_of(v), nic, err) < 0)
        return err_wrap(err, "add a NIC");
    return 0;
}

int qemu_nic_remove(struct ctx *ctx, struct vmm *v, const char *id, struct err *err)
{
    struct qemu *q = qemu_of(v);
    struct qemu_nic *n;

    sweep(ctx, q);
    n = find_nic(q, id);
    if (!n || n->deserted)
        return 0;
    if (n->inside)
        return err_set(err, ERR_STATE, "NIC %s: another call works on it", id);
    if (take_back(ctx, q, n, err) < 0)
        return err_wrap(err, "remove NIC %s", id);
    return 0;
}
