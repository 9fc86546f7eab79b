/* pci.h - a PCI function of the host, as sysfs describes it, and the descriptors through which vfio
 * assigns it. Reads only files of the kernel; never waits. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct err;
struct strv;

#define PCI_ADDRESS_MAX 24
#define PCI_SYS "/sys"
#define PCI_DEV "/dev"
#define PCI_DRIVER "vfio-pci"

struct pci_function {
    char address[PCI_ADDRESS_MAX]; /* "0000:03:00.0" */
    uint16_t vendor, device;
    char driver[32]; /* "" if it has none */
    char group[12];  /* "12": of the IOMMU; "" if the IOMMU is off */
    /* A function of the same group that belongs to a driver of the host, and that driver: the
     * kernel gives away whole groups only. "" if there is none. */
    char rival[PCI_ADDRESS_MAX], rival_driver[32];
};

/* "3:0.1" and "0000:03:00.1" are the same. -EINVAL if it is not an address. */
int pci_address(const char *text, char ret[static PCI_ADDRESS_MAX]);

/* name: an address, or an address and "/N", its N-th virtual function. ERR_INVALID, or
 * ERR_NOT_FOUND if there is no such thing. */
int pci_find(const char *sys, const char *name, struct pci_function *ret, struct err *err);

/* A character device of vfio, by its number: 1 and the PCI functions that it stands for, each once,
 * in order: a group's (/dev/vfio/N) without its bridges, or one (/dev/vfio/devices/vfioN); none of
 * /dev/vfio/vfio and /dev/iommu. 0: it is another device. ERR_INVALID, ERR_NOT_FOUND. */
int pci_of_node(const char *sys, uint32_t major, uint32_t minor, struct strv *ret, struct err *err);

/* How the host gives functions to a process: by descriptors of the function and of /dev/iommu, or
 * by the nodes of its group (legacy vfio). A mask. address NULL: what the host supports in general.
 */
enum pci_way { PCI_IOMMUFD = 1, PCI_GROUPS = 2 };
unsigned pci_ways(const char *sys, const char *dev, const char *address);

/* PCI_IOMMUFD: a process that has these two can use the function and nothing else of the host.
 * Caller closes. ERR_STATE names what the host lacks. */
int pci_open(const char *sys, const char *dev, const char *address, int *ret_device,
             struct err *err);
int pci_open_iommu(const char *dev, int *ret_fd, struct err *err);

/* PCI_GROUPS: what QEMU looks for, in a directory that it knows as /dev/vfio: the nodes "vfio" and
 * "12", which belong to uid, and for sysfsdev= a directory with the name of the function, in which
 * iommu_group leads to its group. Nodes of our own: the host's stay as they are. Needs CAP_MKNOD.
 * ERR_STATE names what the host lacks. After a failure nothing is left there. */
int pci_show(int dir, const char *sys, const char *dev, const char *address, uint32_t uid,
             struct err *err);
/* Removes all that. What QEMU has open stays open; it opens nothing more for this function. */
void pci_hide(int dir, const char *address);
