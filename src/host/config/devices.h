/* devices.h - which PCI devices of the host a container requests: by windows.devices, as in
 * hcsshim, by annotations io.lcow.device/NAME = ADDRESS, and by vfio nodes in linux.devices (CDI,
 * --device /dev/vfio/N). The vfio nodes are removed from the spec, since they do not exist in the
 * VM. A device that the administrator's allow_devices does not name is an error, because the
 * container relies on it. The device must be bound to vfio-pci already; the shim does not rebind
 * devices. Pure except for `find`. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct config;
struct err;
struct pci_function;
struct spec;
struct strv;

#define DEVICES_MAX 16
#define DEVICES_ANNOTATION "io.lcow.device/"

/* Each device once, in the form for vmm.h's pci_add. find, vfio: pci_find and pci_of_node here.
 * ERR_INVALID, ERR_NOT_FOUND, ERR_PERMISSION, ERR_STATE (with the remedy), ERR_EXHAUSTED. */
int devices_read(const struct config *c, const struct spec *s,
                 int (*find)(const char *name, struct pci_function *ret, struct err *err),
                 int (*vfio)(uint32_t major, uint32_t minor, struct strv *ret, struct err *err),
                 struct strv *ret, struct err *err);
/* True if allow_devices may contain it: an address, VENDOR:DEVICE, test:edu or test:nvme. */
bool devices_word_ok(const char *word, size_t len);
