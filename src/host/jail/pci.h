/* pci.h - a PCI function of the host, as sysfs tells of it, and the descriptors through which vfio
 * hands it out. Reads the kernel's own memory only; never waits. */
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
};

/* "3:0.1" and "0000:03:00.1" are the same. -EINVAL if it is no address. */
int pci_address(const char *text, char ret[static PCI_ADDRESS_MAX]);

/* name: an address, or an address and "/N", its N-th virtual function. ERR_INVALID, or
 * ERR_NOT_FOUND if there is no such thing. */
int pci_find(const char *sys, const char *name, struct pci_function *ret, struct err *err);

/* A character device of vfio, by its number: 1 and the PCI functions that it stands for, each once,
 * in order: a group's (/dev/vfio/N) without its bridges, or one (/dev/vfio/devices/vfioN); none of
 * /dev/vfio/vfio and /dev/iommu. 0: it is another device. ERR_INVALID, ERR_NOT_FOUND. */
int pci_of_node(const char *sys, uint32_t major, uint32_t minor, struct strv *ret, struct err *err);

/* Whoever has these two can use the function and nothing else of the host. Caller closes. ERR_STATE
 * tells what the host lacks. */
int pci_open(const char *sys, const char *dev, const char *address, int *ret_device,
             struct err *err);
int pci_open_iommu(const char *dev, int *ret_fd, struct err *err);
