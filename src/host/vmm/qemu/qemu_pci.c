/* qemu_pci.c - NICs and PCI devices.
 *
 * A NIC: the tap's descriptor travels to QEMU over its monitor (getfd), becomes a backend, then a
 * virtio-net on the bridge for hot-added devices. A PCI device has a root port of its own. One of
 * the host comes as two descriptors, vfio's and that of the IOMMU (QEMU 9.0): the jail needs
 * neither /dev/vfio nor /sys. Those that QEMU emulates are for tests of everything around them:
 * edu, which has registers only, and nvme, a disk in memory.
 *
 * A guest has to agree when a device is pulled; QEMU knows no force. One that does not keeps the
 * device, and with it the port, until it releases it or its VM ends; the log says so. The link of a
 * NIC is cut then, and its backend stays: QEMU exits when a guest resets a NIC whose tap was taken
 * away (tried with 10.0). */
#include "base/child.h"
#include "host/jail/pci.h"
#include "host/vmm/qemu/qemu.h"
#include "host/vmm/qemu/qemu_priv.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define NIC_ID_MAX 100
#define MTU_MIN 68
#define PCI_ID_MAX 32
#define VFIO_MAJOR 9 /* of QEMU */
#define IOMMU "iommu0"
#define NVME_BYTES (16u << 20)
/* Beside the guest's memory, its devices' own is mapped for others to reach. */
#define MEMLOCK_MORE (UINT64_C(1) << 30)

/* --- NICs --- */

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

static int check_nic(const struct qemu *q, const struct vmm_nic *nic, struct err *err)
{
    if (qemu_check_name("NIC", nic->id, NIC_ID_MAX, err) < 0)
        return -1;
    if (nic->mtu < MTU_MIN)
        return err_set(err, ERR_INVALID, "NIC %s: an MTU of %u is too small", nic->id, nic->mtu);
    return qemu_check_runs(q, "add a NIC", err);
}

int qemu_nic_add(struct ctx *ctx, struct vmm *v, const struct vmm_nic *nic, struct err *err)
{
    struct qemu *q = qemu_of(v);
    const struct plug what = { .kind = &nic_kind, .id = nic->id, .label = nic->id };

    if (check_nic(q, nic, err) < 0)
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

static const struct plug_kind pci_kind = {
    .what = "PCI device",
    .names = { [PLUG_FD] = "pcifd-", [PLUG_NODE] = "pcidisk-", [PLUG_DEVICE] = "pci-" },
    .fdset_base = 2000,
    .undo_ns = 15 * NS_PER_S,
    .release_ns = 5 * NS_PER_S, /* a guest that works needs a fifth of a second */
    .release_tries = 2,         /* while its kernel starts it does not hear us */
    .kept = "the guest does not let go of a PCI device; it keeps it until its VM ends",
};

/* --- a function of the host --- */

static int check_version(const struct qemu *q, struct err *err)
{
    if (qemu_version_is(q->version, VFIO_MAJOR, 0))
        return 0;
    return err_set(err, ERR_STATE,
                   "QEMU %s takes no host devices by descriptor; %d.0 or later does: " QEMU_REMEDY,
                   q->version, VFIO_MAJOR);
}

/* The guest's memory stays where it is: the device reaches it by itself. A limit that cannot be
 * raised may be high enough; else QEMU tells. */
static void raise_memlock(const struct qemu *q)
{
    uint32_t mib =
        q->doc.memory_mib > q->doc.max_memory_mib ? q->doc.memory_mib : q->doc.max_memory_mib;
    rlim_t bytes = ((rlim_t)mib << 20) + MEMLOCK_MORE;
    const struct rlimit limit = { bytes, bytes };

    if (prlimit(child_pid(q->proc->child), RLIMIT_MEMLOCK, &limit, NULL) < 0)
        log_warn(&q->life, "qemu's limit of locked memory (LimitMEMLOCK) stays as it is, going on",
                 F_U("wanted", bytes), F_I("errno", errno));
}

static int make_iommu(struct ctx *ctx, struct qemu *q, const char *dev, struct err *err)
{
    AUTO_FD int fd = -1;

    if (q->has_iommu)
        return 0;
    if (pci_open_iommu(dev, &fd, err) < 0 ||
        qmp_client_call_fd(ctx, q->proc->qmp, "getfd", fd, json_pack("{ss}", "fdname", IOMMU), NULL,
                           err) < 0)
        return -1;
    json_t *args = json_pack("{ss,ss,ss}", "qom-type", "iommufd", "id", IOMMU, "fd", IOMMU);
    if (qmp_client_call(ctx, q->proc->qmp, "object-add", args, NULL, err) < 0) {
        /* Asked for before; its answer was lost. */
        if (err->code != ERR_UNKNOWN || !strstr(err->msg, "duplicate"))
            return -1;
        err_clear(err);
    }
    q->has_iommu = true; /* for all that come, until the VM ends */
    return 0;
}

static int make_vfio(struct ctx *ctx, struct qemu *q, struct plug *p, json_t *device,
                     struct err *err)
{
    bool test = q->test_env && q->test_env->pci_sys;
    const char *sys = test ? q->test_env->pci_sys : PCI_SYS,
               *dev = test ? q->test_env->pci_dev : PCI_DEV;
    AUTO_FD int fd = -1;

    if (check_version(q, err) < 0 || pci_open(sys, dev, p->label, &fd, err) < 0)
        return -1;
    raise_memlock(q);
    if (make_iommu(ctx, q, dev, err) < 0)
        return -1;
    json_object_update_new(device, json_pack("{ss+,ss}", "fd", "pcifd-", p->id, "iommufd", IOMMU));
    return plug_make(ctx, q, p, PLUG_FD, fd, NULL, err);
}

/* --- one that QEMU emulates --- */

static int make_nvme(struct ctx *ctx, struct qemu *q, struct plug *p, json_t *device,
                     struct err *err)
{
    AUTO_FD int fd = memfd_create("lcow-nvme", MFD_CLOEXEC);
    AUTO_FREE char *path = plug_fdset(p);

    if (fd < 0 || ftruncate(fd, NVME_BYTES) < 0)
        return err_sys(err, errno, "make a disk in memory");
    json_object_update_new(
        device, json_pack("{ss+,ss+}", "drive", "pcidisk-", p->id, "serial", "lcow-", p->id));
    if (plug_make(ctx, q, p, PLUG_FDSET, fd, NULL, err) < 0)
        return -1;
    return plug_make(
        ctx, q, p, PLUG_NODE, -1,
        json_pack("{ss,s{ss,ss}}", "driver", "raw", "file", "driver", "file", "filename", path),
        err);
}

/* --- both --- */

/* The last is that of the host's own functions. */
static const struct type {
    const char *address, *driver;
    /* What the device needs first, which it adds to the device's arguments; may be NULL. */
    int (*prepare)(struct ctx *ctx, struct qemu *q, struct plug *p, json_t *device,
                   struct err *err);
} types[] = { { "test:edu", "edu", NULL },
              { "test:nvme", "nvme", make_nvme },
              { NULL, "vfio-pci", make_vfio } };

static int find_type(const char *address, const struct type **ret, struct err *err)
{
    char form[PCI_ADDRESS_MAX];
    const struct type *t = types;

    while (t->address && !str_eq(address, t->address))
        t++;
    if (!t->address && (pci_address(address, form) < 0 || !str_eq(address, form)))
        return err_set(err, ERR_INVALID, "\"%.64s\" is not a PCI device", address);
    *ret = t;
    return 0;
}

static int make_pci(struct ctx *ctx, struct qemu *q, struct plug *p, const void *arg,
                    struct err *err)
{
    const struct type *t = arg;
    char bus[16];

    snprintf(bus, sizeof(bus), "port%u", p->number);
    AUTO(json_decref) json_t *device = json_pack("{ss,ss}", "driver", t->driver, "bus", bus);
    if (t->prepare && t->prepare(ctx, q, p, device, err) < 0)
        return -1;
    return plug_make(ctx, q, p, PLUG_DEVICE, -1, TAKE_PTR(device), err);
}

/* QEMU does not refuse a second device on a port: the books are ours. */
static int free_port(struct qemu *q, unsigned *ret, struct err *err)
{
    uint32_t used = 0;

    LIST_FOR (const struct plug, p, &q->plugs, node)
        if (p->kind == &pci_kind)
            used |= 1u << p->number;
    *ret = (unsigned)__builtin_ctz(~used);
    if (*ret < q->doc.pci_ports)
        return 0;
    return err_set(err, ERR_EXHAUSTED, "all %u PCI ports of the VM are in use (device_slots)",
                   q->doc.pci_ports);
}

static int check_pci(struct qemu *q, const char *address, const char *id, struct err *err)
{
    if (qemu_check_name("device", id, PCI_ID_MAX, err) < 0 ||
        qemu_check_runs(q, "add a PCI device", err) < 0)
        return -1;
    if (plug_find(q, &pci_kind, id))
        return err_set(err, ERR_EXISTS, "there is a device %s", id);
    LIST_FOR (const struct plug, p, &q->plugs, node) {
        if (p->kind != &pci_kind || !str_eq(p->label, address))
            continue;
        if (p->deserted)
            return err_set(err, ERR_STATE,
                           "the guest has not let go of %s; end its VM to have it again", address);
        return err_set(err, ERR_EXISTS, "the VM has %s already", address);
    }
    return 0;
}

int qemu_pci_add(struct ctx *ctx, struct vmm *v, const char *address, const char *id,
                 char **ret_place, struct err *err)
{
    struct qemu *q = qemu_of(v);
    struct plug what = { .kind = &pci_kind, .id = id, .label = address };
    const struct type *type = NULL;

    plug_sweep(ctx, q);
    if (find_type(address, &type, err) < 0 || check_pci(q, address, id, err) < 0 ||
        free_port(q, &what.number, err) < 0 || plug_add(ctx, q, &what, make_pci, type, err) < 0)
        return err_wrap(err, "add PCI device %.64s", address);
    *ret_place = str_format("0000:00:%02x.0/00.0", QEMU_PORT_SLOT + what.number);
    return 0;
}

int qemu_pci_remove(struct ctx *ctx, struct vmm *v, const char *id, struct err *err)
{
    return plug_remove(ctx, qemu_of(v), &pci_kind, id, err);
}
