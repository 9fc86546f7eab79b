/* qemu_pci_make.c - the steps to a PCI device. One of the host comes as two descriptors, vfio's and
 * that of the IOMMU (QEMU 9.0): the jail needs neither /dev/vfio nor /sys. Those that QEMU emulates
 * are for tests of everything around them: edu, which has registers only, and nvme, a disk in
 * memory. */
#include "base/child.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "host/jail/pci.h"
#include "host/vmm/qemu/qemu.h"
#include "host/vmm/qemu/qemu_pci_priv.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define VFIO_MAJOR 9 /* of QEMU */
#define IOMMU "iommu0"
#define FDSET_BASE 2000
#define NVME_BYTES (16u << 20)
/* Beside the guest's memory, its devices' own is mapped for others to reach. */
#define MEMLOCK_MORE (UINT64_C(1) << 30)

/* --- words for QEMU: "pci-X" is the device, "pcidisk-X" its node, "pcifd-X" its descriptor --- */

static void put_name(struct jsw *w, const char *key, const char *what, const struct qemu_pci *p)
{
    AUTO_FREE char *name = str_format("%s-%s", what, p->id);

    jsw_str(w, key, name);
}

static void fd_args(struct jsw *w, const void *arg)
{
    put_name(w, "fdname", "pcifd", arg);
}

static void iommu_fd_args(struct jsw *w, const void *arg)
{
    jsw_str(w, "fdname", IOMMU);
}

static void iommu_args(struct jsw *w, const void *arg)
{
    jsw_str(w, "qom-type", "iommufd");
    jsw_str(w, "id", IOMMU);
    jsw_str(w, "fd", IOMMU);
}

static uint64_t fdset_id(const struct qemu_pci *p)
{
    return FDSET_BASE + p->port;
}

static void fdset_args(struct jsw *w, const void *arg)
{
    jsw_u64(w, "fdset-id", fdset_id(arg));
}

static void node_args(struct jsw *w, const void *arg)
{
    AUTO_FREE char *path = str_format("/dev/fdset/%llu", (unsigned long long)fdset_id(arg));

    jsw_str(w, "driver", "raw");
    put_name(w, "node-name", "pcidisk", arg);
    jsw_obj(w, "file");
    jsw_str(w, "driver", "file");
    jsw_str(w, "filename", path);
    jsw_end_obj(w);
}

static void node_name_args(struct jsw *w, const void *arg)
{
    put_name(w, "node-name", "pcidisk", arg);
}

void qemu_pci_id_args(struct jsw *w, const void *pci)
{
    put_name(w, "id", "pci", pci);
}

void qemu_pci_device_args(struct jsw *w, const void *pci)
{
    static const char *const drivers[] = {
        [QEMU_PCI_VFIO] = "vfio-pci", [QEMU_PCI_EDU] = "edu", [QEMU_PCI_NVME] = "nvme"
    };
    const struct qemu_pci *p = pci;
    AUTO_FREE char *bus = str_format("port%u", p->port);

    jsw_str(w, "driver", drivers[p->kind]);
    qemu_pci_id_args(w, p);
    jsw_str(w, "bus", bus);
    if (p->kind == QEMU_PCI_VFIO) {
        put_name(w, "fd", "pcifd", p);
        jsw_str(w, "iommufd", IOMMU);
    } else if (p->kind == QEMU_PCI_NVME) {
        put_name(w, "drive", "pcidisk", p);
        put_name(w, "serial", "lcow", p);
    }
}

/* --- a function of the host --- */

static int check_version(const struct qemu *q, struct err *err)
{
    unsigned major = 0;

    sscanf(q->version, "%u", &major);
    if (major >= VFIO_MAJOR)
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

static const char *sys_of(const struct qemu *q)
{
    return q->test_env && q->test_env->pci_sys ? q->test_env->pci_sys : PCI_SYS;
}

static const char *dev_of(const struct qemu *q)
{
    return q->test_env && q->test_env->pci_dev ? q->test_env->pci_dev : PCI_DEV;
}

static int make_iommu(struct ctx *ctx, struct qemu *q, struct err *err)
{
    AUTO_FD int fd = -1;

    if (q->has_iommu)
        return 0;
    if (pci_open_iommu(dev_of(q), &fd, err) < 0 ||
        qmp_client_call_fd(ctx, q->proc->qmp, "getfd", fd, iommu_fd_args, NULL, NULL, err) < 0)
        return -1;
    if (qmp_client_call(ctx, q->proc->qmp, "object-add", iommu_args, NULL, NULL, err) < 0) {
        /* Asked for before; its answer was lost. */
        if (err->code != ERR_UNKNOWN || !strstr(err->msg, "duplicate"))
            return -1;
        err_clear(err);
    }
    q->has_iommu = true; /* for all that come, until the VM ends */
    return 0;
}

static int make_vfio(struct ctx *ctx, struct qemu *q, struct qemu_pci *p, struct err *err)
{
    AUTO_FD int fd = -1;

    if (check_version(q, err) < 0 || pci_open(sys_of(q), dev_of(q), p->address, &fd, err) < 0)
        return -1;
    raise_memlock(q);
    if (make_iommu(ctx, q, err) < 0)
        return -1;
    p->has_fd = true;
    return qmp_client_call_fd(ctx, q->proc->qmp, "getfd", fd, fd_args, p, NULL, err);
}

/* --- one that QEMU emulates --- */

static int make_nvme(struct ctx *ctx, struct qemu *q, struct qemu_pci *p, struct err *err)
{
    AUTO_FD int fd = memfd_create("lcow-nvme", MFD_CLOEXEC);

    if (fd < 0 || ftruncate(fd, NVME_BYTES) < 0)
        return err_sys(err, errno, "make a disk in memory");
    p->has_fdset = true;
    if (qmp_client_call_fd(ctx, q->proc->qmp, "add-fd", fd, fdset_args, p, NULL, err) < 0)
        return -1;
    p->has_node = true;
    return qmp_client_call(ctx, q->proc->qmp, "blockdev-add", node_args, p, NULL, err);
}

/* --- both --- */

int qemu_pci_make(struct ctx *ctx, struct qemu *q, struct qemu_pci *p, struct err *err)
{
    if ((p->kind == QEMU_PCI_VFIO && make_vfio(ctx, q, p, err) < 0) ||
        (p->kind == QEMU_PCI_NVME && make_nvme(ctx, q, p, err) < 0))
        return -1;
    p->has_device = true;
    if (qmp_client_call(ctx, q->proc->qmp, "device_add", qemu_pci_device_args, p, NULL, err) < 0)
        return -1;
    p->has_fd = false; /* the device has taken it */
    return 0;
}

/* Each that is not there any more counts as gone. */
int qemu_pci_unmake(struct ctx *ctx, struct qemu *q, struct qemu_pci *p, struct err *err)
{
    if (p->has_node &&
        qmp_client_call(ctx, q->proc->qmp, "blockdev-del", node_name_args, p, NULL, err) < 0 &&
        !(err->code == ERR_UNKNOWN && strstr(err->msg, "find node")))
        return -1;
    p->has_node = false;
    if (p->has_fdset &&
        qmp_client_call(ctx, q->proc->qmp, "remove-fd", fdset_args, p, NULL, err) < 0 &&
        err->code != ERR_UNKNOWN)
        return -1;
    p->has_fdset = false;
    if (p->has_fd && qmp_client_call(ctx, q->proc->qmp, "closefd", fd_args, p, NULL, err) < 0 &&
        !(err->code == ERR_UNKNOWN && strstr(err->msg, "not found")))
        return -1;
    p->has_fd = false;
    err_clear(err);
    return 0;
}
