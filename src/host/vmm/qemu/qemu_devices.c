/* qemu_devices.c - disks, NICs and PCI devices, by the hot-plug walk of qemu_plug.c.
 *
 * A disk: the image's descriptor travels to QEMU over its monitor (add-fd), becomes a block node,
 * then a disk on a controller, which is added if need be; or it is put below the disk that was
 * there from the beginning, of which the guest notices nothing.
 *
 * A NIC: the tap's descriptors, and those of vhost-net, travel to QEMU over its monitor (getfd: one
 * of each for a queue), become a backend, then a virtio-net on the bridge for hot-added devices. A
 * PCI device has a root port of its own. One of the host comes as two descriptors, vfio's and that
 * of the IOMMU, where host and QEMU (9.0) have iommufd. Elsewhere QEMU opens the nodes of the
 * device's group itself: they are in its jail while device_add runs. Devices that QEMU emulates are
 * for tests of everything around them: edu, which has registers only, and nvme, a disk in memory.
 *
 * A guest has to agree when a device is pulled; QEMU knows no force. One that does not keeps the
 * device, and with it the port, until it releases it or its VM ends; the log says so. The link of a
 * NIC is cut then, and its backend stays: QEMU exits when a guest resets a NIC whose tap was taken
 * away (tried with 10.0). */
#include "base/child.h"
#include "base/offload.h"
#include "host/jail/jail.h"
#include "host/jail/pci.h"
#include "host/vmm/qemu/qemu.h"
#include "host/vmm/qemu/qemu_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define LUNS 64
#define THROTTLE "disks"

/* Controller 1 is 0x1d, 3 the last place. Devices that do not ask for one take the first. */
#define PLACE_BASE 0x1c

static const struct plug_kind disk_kind = {
    .what = "disk",
    .names = { [PLUG_FILE] = "file-", [PLUG_NODE] = "disk-", [PLUG_DEVICE] = "sd-" },
    .fdset_base = 1000,
    .undo_ns = 10 * NS_PER_S,
    .release_ns = 5 * NS_PER_S, /* the guest need not agree; QEMU waits for its own I/O */
};

/* "0-7", as in QEMU's "disk-0-7", or "0:7". */
static const char *slot_name(struct scsi_slot slot, char between, char ret[16])
{
    snprintf(ret, 16, "%u%c%u", slot.controller, between, slot.lun);
    return ret;
}

/* --- controllers beyond those of boot, which cost time there --- */

/* Each is added when its first disk comes, on the bridge that takes hot-added devices, and stays.
 * Its place there shows the guest which one it is (guest/storage/scsi.c), whatever came and went
 * before. */
static int add_controller(struct ctx *ctx, struct qemu *q, unsigned n, struct err *err)
{
    char id[16], addr[16];

    snprintf(id, sizeof(id), "scsi%u", n);
    snprintf(addr, sizeof(addr), "%x", PLACE_BASE + n);
    /* With legacy support each one takes I/O ports, of which there are few. */
    json_t *args = json_pack("{ss,ss,ss,ss,ss}", "driver", "virtio-scsi-pci", "id", id, "bus", "hp",
                             "addr", addr, "disable-legacy", "on");
    if (qmp_client_call(ctx, q->proc->qmp, "device_add", args, NULL, err) < 0) {
        /* Asked for before; its answer was lost. */
        if (err->code != ERR_EXISTS)
            return err_wrap(err, "add SCSI controller %u", n);
        err_clear(err);
    }
    q->n_controllers = n + 1;
    log_info(&q->life, "SCSI controller added", F_U(LK_CONTROLLER, n));
    return 0;
}

static int need_controller(struct ctx *ctx, struct qemu *q, unsigned controller, struct err *err)
{
    AUTO(gate_leave) struct gate *held = gate_enter(&q->controllers, ctx, "qemu.controller", err);

    if (!held)
        return -1;
    if (q->n_controllers < q->doc.scsi_controllers)
        q->n_controllers = q->doc.scsi_controllers;
    while (q->n_controllers <= controller) {
        /* Others were waited for: look again. */
        if (qemu_check_runs(q, "add a SCSI controller", err) < 0 ||
            add_controller(ctx, q, q->n_controllers, err) < 0)
            return -1;
    }
    return 0;
}

/* --- the descriptor that QEMU gets --- */

struct image {
    int given; /* ours, a copy */
    int fd;    /* out */
    bool read_only, is_block;
    uint64_t bytes; /* of a file */
};

static void image_close(void *job)
{
    struct image *i = job;

    fd_close_later(i->given);
    fd_close_later(i->fd);
}

/* In a thread: the image may be on a file system that does not answer. QEMU can open its
 * descriptors anew (jail.h, fd_links), so a file that it may only read comes from a read-only
 * mount, and a device is one that cannot be opened again. */
static int image_prepare(void *job, struct err *err)
{
    struct image *i = job;
    struct stat st;
    int flags = fcntl(i->given, F_GETFL);

    if (flags < 0 || fstat(i->given, &st) < 0)
        return err_sys(err, errno, "look at the image");
    if ((flags & O_ACCMODE) != (i->read_only ? O_RDONLY : O_RDWR))
        return err_set(err, ERR_INVALID, "the image is not opened for %s",
                       i->read_only ? "reading alone" : "reading and writing");
    i->is_block = S_ISBLK(st.st_mode);
    i->bytes = (uint64_t)st.st_size;
    if (i->is_block) {
        i->fd = jail_device(i->given, flags & O_ACCMODE);
        return i->fd < 0 ? err_sys(err, -i->fd, "open the device for qemu") : 0;
    }
    if (!i->read_only) {
        i->fd = TAKE_FD(i->given);
        return 0;
    }
    AUTO_FD int tree = jail_tree(i->given);
    if (tree < 0)
        return err_sys(err, -tree, "make a read-only mount of the image");
    AUTO_FREE char *path = str_format("/proc/self/fd/%d", tree);
    i->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    return i->fd < 0 ? err_sys(err, errno, "open the image for reading") : 0;
}

/* --- forwards --- */

/* The guest already knows the spare disk as writable and with this size. */
static bool fits_spare(const struct qemu *q, const struct image *i)
{
    return !i->read_only && !i->is_block && i->bytes == (uint64_t)q->doc.disk_mib << 20;
}

static bool is_throttled(const struct qemu *q)
{
    return q->doc.shape.disk_iops || q->doc.shape.disk_bytes_per_s;
}

static json_t *file_args(const struct qemu *q, const struct plug *p, const struct image *i)
{
    AUTO_FREE char *path = plug_fdset(p);
    json_t *file = json_pack("{ss,sb,ss,ss}", "driver", i->is_block ? "host_device" : "file",
                             "read-only", i->read_only, "discard", "unmap", "filename", path);

    if (!is_throttled(q))
        return file;
    return json_pack("{ss,ss,sb,ss,so}", "driver", "throttle", "throttle-group", THROTTLE,
                     "read-only", i->read_only, "discard", "unmap", "file", file);
}

/* One group for all disks: what the VM may do to the host's, however many it has. */
static int need_throttle(struct ctx *ctx, struct qemu *q, struct err *err)
{
    const struct vm_shape *s = &q->doc.shape;

    if (!is_throttled(q) || q->has_throttle)
        return 0;
    json_t *args = json_pack("{ss,ss,s{sI,sI}}", "qom-type", "throttle-group", "id", THROTTLE,
                             "limits", "iops-total", (json_int_t)s->disk_iops, "bps-total",
                             (json_int_t)s->disk_bytes_per_s);
    if (qmp_client_call(ctx, q->proc->qmp, "object-add", args, NULL, err) < 0) {
        /* Asked for before; its answer was lost. */
        if (err->code != ERR_EXISTS)
            return err_wrap(err, "limit the disks");
        err_clear(err);
    }
    q->has_throttle = true;
    return 0;
}

/* The file by itself, then below the node that is there. */
static int fill_spare(struct ctx *ctx, struct qemu *q, struct plug *p, const struct image *i,
                      struct err *err)
{
    if (plug_make(ctx, q, p, PLUG_FILE, -1, file_args(q, p, i), err) < 0)
        return -1;
    json_t *args =
        json_pack("{s[{ss,sb,ss,ss+,ss+}]}", "options", "driver", "raw", "read-only", i->read_only,
                  "discard", "unmap", "node-name", "disk-", p->id, "file", "file-", p->id);
    return qmp_client_call(ctx, q->proc->qmp, "blockdev-reopen", args, NULL, err);
}

static int make_parts(struct ctx *ctx, struct qemu *q, struct plug *p, const struct image *i,
                      struct err *err)
{
    bool spare = q->has_spare && p->number == 0;
    char bus[16];

    if (spare) {
        q->has_spare = false;
        p->parts = 1u << PLUG_NODE | 1u << PLUG_DEVICE;
        spare = fits_spare(q, i);
        if (!spare && plug_unmake(ctx, q, p, err) < 0)
            return -1;
    }
    if (plug_make(ctx, q, p, PLUG_FDSET, i->fd, NULL, err) < 0)
        return -1;
    if (spare)
        return fill_spare(ctx, q, p, i, err);
    json_t *node = json_pack("{ss,sb,ss,so}", "driver", "raw", "read-only", i->read_only, "discard",
                             "unmap", "file", file_args(q, p, i));
    if (plug_make(ctx, q, p, PLUG_NODE, -1, node, err) < 0)
        return -1;
    snprintf(bus, sizeof(bus), "scsi%u.0", p->number / LUNS);
    /* rotation_rate 1: no seeks, so the guest need not sort. A full host disk is an I/O error in
     * the guest; QEMU's default stops the whole VM. */
    json_t *device = json_pack("{ss,ss,si,si,si,ss+,ss+,si,ss,ss}", "driver", "scsi-hd", "bus", bus,
                               "channel", 0, "scsi-id", 0, "lun", (int)(p->number % LUNS), "drive",
                               "disk-", p->id, "serial", "sd-", p->id, "rotation_rate", 1, "werror",
                               "report", "rerror", "report");
    return plug_make(ctx, q, p, PLUG_DEVICE, -1, device, err);
}

struct wanted {
    int image_fd;
    bool read_only;
};

static int make_disk(struct ctx *ctx, struct qemu *q, struct plug *p, const void *arg,
                     struct err *err)
{
    const struct wanted *w = arg;
    struct image image = { .given = fcntl(w->image_fd, F_DUPFD_CLOEXEC, 3),
                           .fd = -1,
                           .read_only = w->read_only };

    if (OFFLOAD(ctx, image_prepare, &image, 0, image_close, "qemu: open a disk's image", err) < 0)
        return -1;
    int r = qemu_check_runs(q, "attach", err);
    if (r == 0)
        r = need_controller(ctx, q, p->number / LUNS, err);
    if (r == 0)
        r = need_throttle(ctx, q, err);
    if (r == 0)
        r = make_parts(ctx, q, p, &image, err);
    image_close(&image);
    return r;
}

static int add_disk(struct ctx *ctx, struct qemu *q, const struct plug *what,
                    const struct wanted *w, struct err *err)
{
    if (qemu_check_runs(q, "attach", err) < 0)
        return -1;
    const struct plug *old = plug_find(q, &disk_kind, what->id);
    if (old && (old->inside || old->attached))
        return err_set(err, ERR_STATE, "the slot is in use");
    /* What an undo could not finish is finished now. */
    if (old && plug_remove(ctx, q, &disk_kind, what->id, err) < 0)
        return -1;
    return plug_add(ctx, q, what, make_disk, w, err);
}

int qemu_scsi_add(struct ctx *ctx, struct vmm *v, struct scsi_slot slot, int image_fd,
                  bool read_only, struct err *err)
{
    char id[16], label[16];
    const struct plug what = {
        .kind = &disk_kind, .id = id, .label = label, .number = slot.controller * LUNS + slot.lun
    };

    slot_name(slot, '-', id);
    slot_name(slot, ':', label);
    if (slot.controller >= QEMU_SCSI_MAX || slot.lun >= LUNS)
        return err_because(err, REASON_DISK_FAILED, ERR_INVALID,
                           "disk %s: a VM has %d SCSI controllers of %d disks", label,
                           QEMU_SCSI_MAX, LUNS);
    if (add_disk(ctx, qemu_of(v), &what, &(struct wanted){ image_fd, read_only }, err) < 0)
        return err_wrap_because(err, REASON_DISK_FAILED, "disk %s", label);
    return 0;
}

int qemu_scsi_remove(struct ctx *ctx, struct vmm *v, struct scsi_slot slot, struct err *err)
{
    char id[16];

    return plug_remove(ctx, qemu_of(v), &disk_kind, slot_name(slot, '-', id), err);
}

int qemu_scsi_resize(struct ctx *ctx, struct vmm *v, struct scsi_slot slot, uint64_t bytes,
                     struct err *err)
{
    struct qemu *q = qemu_of(v);
    char id[16];

    if (qemu_check_runs(q, "resize", err) < 0)
        return -1;
    return qmp_client_call(ctx, q->proc->qmp, "block_resize",
                           json_pack("{ss+,sI}", "node-name", "disk-", slot_name(slot, '-', id),
                                     "size", (json_int_t)bytes),
                           NULL, err);
}

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
    .kept = "the guest did not release a NIC; its link is cut, and the removal continues",
    .on_kept = cut_link,
    .many_fds = true,
};

/* Gives QEMU n descriptors by name. *ret_names: as QEMU lists them. Caller frees. */
static int give(struct ctx *ctx, struct qemu *q, struct plug *p, const int *fds, unsigned n,
                char **ret_names, struct err *err)
{
    struct sbuf names = { 0 };
    int r = 0;

    for (unsigned i = 0; i < n && r == 0; i++) {
        AUTO_FREE char *name = plug_fd_name(p, p->number);

        sbuf_addf(&names, "%s%s", i ? ":" : "", name);
        r = plug_make(ctx, q, p, PLUG_FD, fds[i], NULL, err);
    }
    *ret_names = sbuf_take(&names);
    return r;
}

static int make_backend(struct ctx *ctx, struct qemu *q, struct plug *p, const struct vmm_nic *nic,
                        struct err *err)
{
    AUTO_FREE char *taps = NULL, *vhost = NULL;

    if (give(ctx, q, p, nic->taps, nic->queues, &taps, err) < 0 ||
        (nic->vhost && give(ctx, q, p, nic->vhost, nic->queues, &vhost, err) < 0))
        return -1;
    json_t *args = json_pack("{ss,ss,sb}", "type", "tap", "fds", taps, "vhost", nic->vhost != NULL);
    if (vhost)
        json_object_set_new(args, "vhostfds", json_string(vhost));
    return plug_make(ctx, q, p, PLUG_NETDEV, -1, args, err);
}

static int make_nic(struct ctx *ctx, struct qemu *q, struct plug *p, const void *arg,
                    struct err *err)
{
    const struct vmm_nic *nic = arg;
    char mac[18];

    if (make_backend(ctx, q, p, nic, err) < 0)
        return -1;
    snprintf(mac, sizeof(mac), "%02x:%02x:%02x:%02x:%02x:%02x", nic->mac[0], nic->mac[1],
             nic->mac[2], nic->mac[3], nic->mac[4], nic->mac[5]);
    /* With legacy support each one takes I/O ports, of which there are few. */
    json_t *device = json_pack("{ss,ss+,ss,ss,si,ss,ss,sb}", "driver", "virtio-net-pci", "netdev",
                               "net-", p->id, "bus", "hp", "mac", mac, "host_mtu", (int)nic->mtu,
                               "romfile", "", "disable-legacy", "on", "mq", nic->queues > 1);
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
        return err_set(err, ERR_EXISTS, "add a NIC: %s already exists", nic->id);
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
    .kept = "the guest did not release a PCI device; the device stays in the VM until the VM ends",
};

const struct plug_kind *const plug_kinds[PLUG_KINDS] = { &disk_kind, &nic_kind, &pci_kind };

/* --- a function of the host --- */

/* The guest's memory stays where it is: the device reaches it by itself. A limit that cannot be
 * raised may be high enough; else QEMU reports an error. */
static void raise_memlock(const struct qemu *q)
{
    uint32_t mib =
        q->doc.memory_mib > q->doc.max_memory_mib ? q->doc.memory_mib : q->doc.max_memory_mib;
    rlim_t bytes = ((rlim_t)mib << 20) + MEMLOCK_MORE;
    const struct rlimit limit = { bytes, bytes };

    if (prlimit(child_pid(q->proc->child), RLIMIT_MEMLOCK, &limit, NULL) < 0)
        log_warn(&q->life, "cannot raise QEMU's locked-memory limit (LimitMEMLOCK); continuing",
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
        if (err->code != ERR_EXISTS)
            return -1;
        err_clear(err);
    }
    q->has_iommu = true; /* for all that come, until the VM ends */
    return 0;
}

static int by_descriptors(struct ctx *ctx, struct qemu *q, struct plug *p, json_t *device,
                          const char *sys, const char *dev, struct err *err)
{
    AUTO_FD int fd = -1;

    if (pci_open(sys, dev, p->label, &fd, err) < 0 || make_iommu(ctx, q, dev, err) < 0)
        return -1;
    json_object_update_new(device, json_pack("{ss+,ss}", "fd", "pcifd-", p->id, "iommufd", IOMMU));
    return plug_make(ctx, q, p, PLUG_FD, fd, NULL, err);
}

/* The nodes stay until the caller hides them. */
static int by_group(struct qemu *q, struct plug *p, json_t *device, int *nodes, const char *sys,
                    const char *dev, struct err *err)
{
    AUTO_FD int dir = -1;

    if (qemu_jail_dir(q, QEMU_JAIL_VFIO, &dir, err) < 0 ||
        pci_show(dir, sys, dev, p->label, q->uid.uid, err) < 0)
        return -1;
    json_object_update_new(device, json_pack("{ss++}", "sysfsdev", QEMU_JAIL_VFIO, "/", p->label));
    *nodes = TAKE_FD(dir);
    return 0;
}

static int make_vfio(struct ctx *ctx, struct qemu *q, struct plug *p, json_t *device, int *nodes,
                     struct err *err)
{
    bool test = q->test_env && q->test_env->pci_sys;
    const char *sys = test ? q->test_env->pci_sys : PCI_SYS,
               *dev = test ? q->test_env->pci_dev : PCI_DEV;
    unsigned ways = pci_ways(sys, dev, p->label);
    bool takes_fds = qemu_version_is(q->version, VFIO_MAJOR, 0);

    raise_memlock(q);
    if (ways & PCI_IOMMUFD && takes_fds)
        return by_descriptors(ctx, q, p, device, sys, dev, err);
    if (ways & PCI_IOMMUFD && !(ways & PCI_GROUPS))
        return err_because(err, REASON_QEMU_TOO_OLD, ERR_STATE,
                           "this host has only iommufd, which needs QEMU %d.0 or later; this is "
                           "%s: " QEMU_REMEDY,
                           VFIO_MAJOR, q->version);
    return by_group(q, p, device, nodes, sys, dev, err);
}

/* --- one that QEMU emulates --- */

static int make_nvme(struct ctx *ctx, struct qemu *q, struct plug *p, json_t *device, int *nodes,
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
    /* What the device needs first, which it adds to the device's arguments; may be NULL. nodes: of
     * pci_show, for the time of device_add; -1 if there are none. */
    int (*prepare)(struct ctx *ctx, struct qemu *q, struct plug *p, json_t *device, int *nodes,
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
        return err_because(err, REASON_DEVICE_ADDRESS, ERR_INVALID, "\"%.64s\" is not a PCI device",
                           address);
    *ret = t;
    return 0;
}

/* Why QEMU was refused a device by the kernel. */
static int explain_vfio(struct err *err)
{
    if (err->code == ERR_STATE)
        return err_wrap_because(err, REASON_DEVICE_IN_USE,
                                "another VM or program has a device of its IOMMU group");
    if (err->code == ERR_EXHAUSTED)
        return err_wrap_because(err, REASON_NO_MEMORY,
                                "the VM's memory cannot be locked (free memory of the host, "
                                "LimitMEMLOCK of containerd's unit)");
    return -1;
}

static int make_pci(struct ctx *ctx, struct qemu *q, struct plug *p, const void *arg,
                    struct err *err)
{
    const struct type *t = arg;
    AUTO_FD int nodes = -1;
    char bus[16];

    snprintf(bus, sizeof(bus), "port%u", p->number);
    AUTO(json_decref) json_t *device = json_pack("{ss,ss}", "driver", t->driver, "bus", bus);
    if (t->prepare && t->prepare(ctx, q, p, device, &nodes, err) < 0)
        return -1;
    int r = plug_make(ctx, q, p, PLUG_DEVICE, -1, TAKE_PTR(device), err);
    if (nodes >= 0)
        pci_hide(nodes, p->label); /* QEMU has opened them, or never will */
    return r < 0 ? explain_vfio(err) : 0;
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
    return err_because(err, REASON_DEVICE_NO_SLOT, ERR_EXHAUSTED,
                       "all %u PCI ports of the VM are in use (device_slots)", q->doc.pci_ports);
}

static int check_pci(struct qemu *q, const char *address, const char *id, struct err *err)
{
    if (qemu_check_name("device", id, PCI_ID_MAX, err) < 0 ||
        qemu_check_runs(q, "add a PCI device", err) < 0)
        return -1;
    if (plug_find(q, &pci_kind, id))
        return err_set(err, ERR_EXISTS, "device %s already exists", id);
    LIST_FOR (const struct plug, p, &q->plugs, node) {
        if (p->kind != &pci_kind || !str_eq(p->label, address))
            continue;
        if (p->deserted)
            return err_because(err, REASON_DEVICE_FAILED, ERR_STATE,
                               "the guest did not release %s; end its VM to use the device again",
                               address);
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
