/* devices.h - which PCI devices of the host a container asks for: windows.devices, as the original
 * has it, annotations io.lcow.device/NAME = ADDRESS, and vfio's nodes in linux.devices (CDI,
 * --device /dev/vfio/N), which are taken out of the spec: the VM has others. Taken is only what the
 * administrator's allow_devices names; anything else is refused, since somebody relies on it. The
 * host's driver must have let go of it (vfio-pci): we rebind nothing. Pure but for `find`. */
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

/* Each once, as vmm.h's pci_add takes them. find, vfio: pci_find and pci_of_node on this host.
 * ERR_INVALID, ERR_NOT_FOUND, ERR_PERMISSION, ERR_STATE (with the remedy), ERR_EXHAUSTED. */
int devices_read(const struct config *c, const struct spec *s,
                 int (*find)(const char *name, struct pci_function *ret, struct err *err),
                 int (*vfio)(uint32_t major, uint32_t minor, struct strv *ret, struct err *err),
                 struct strv *ret, struct err *err);
/* Is it a word that allow_devices may have: an address, VENDOR:DEVICE, test:edu, test:nvme? */
bool devices_word_ok(const char *word, size_t len);
