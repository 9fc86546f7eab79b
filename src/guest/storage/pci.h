/* pci.h - PCI devices that the host gave to the VM, in sysfs. A place is the port of the root
 * complex and the function behind it, "0000:00:10.0/00.0": the guest chooses the number of the bus
 * in between, so the host cannot know it. Leaf code: 0, or -errno; never waits. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct strv;

#define PCI_PLACE_MAX 24

/* -EINVAL: the text is not a place. -ENXIO: nothing is there (yet). Caller frees. */
int pci_find(const char *sys, const char *place, char **ret_dir);
/* Returns when the kernel has added all that is behind the port: a directory is there before its
 * files are, and before a driver is looked for. Blocks for that long. */
int pci_settle(const char *sys, const char *place);
/* Modules of the image that are for it: names from the text of modules.alias, each once. */
int pci_modules(const char *dir, const char *aliases, struct strv *ret);
bool pci_has_driver(const char *dir);

struct pci_node {
    char *path; /* "/dev/nvme0n1" */
    char type;  /* 'c' or 'b' */
    unsigned major, minor;
};
/* What the kernel made in /dev for the device and all below it. */
int pci_nodes(const char *sys, const char *dir, void (*fn)(void *arg, const struct pci_node *n),
              void *arg);
/* A disk controller with a driver whose disk is not there: the driver looks for it in the
 * background. */
bool pci_lacks_disk(const char *sys, const char *dir);
