/* scsi.h - finds a disk of the VM by controller and LUN (docs/reference/gcs-protocol.md §4.1): the
 * controller is the vmbus device with the fixed GUID where there is a vmbus; else a virtio-scsi
 * host: of those that were there at boot, on the root bus, the i-th in the order of PCI addresses;
 * one that was added later, behind a bridge, by its slot there (0x1d for controller 1 and so on),
 * so that it does not matter which of them the kernel finds first. sys is "/sys" but for tests.
 * Leaf code: 0, or -errno. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define SCSI_CONTROLLERS 4

/* The kernel's number of the controller's host. -ENXIO: there is none (yet). */
int scsi_host(const char *sys, unsigned controller, unsigned *ret_host);
/* The name of the block device or its partition (0: the whole): "sdb", "sdb1". Caller frees.
 * -ENXIO: not there yet; -EEXIST: more than one. */
int scsi_block(const char *sys, unsigned host, unsigned lun, uint64_t partition, char **ret_name);
/* True if the kernel knows the disk's capacity. It gives up after three unit attentions in a row,
 * and each disk that is attached causes one for the others; then the disk has no bytes. */
bool scsi_has_capacity(const char *sys, unsigned host, unsigned lun, const char *disk);
/* Makes the kernel read the capacity again. Blocks until the disk has answered. */
int scsi_reread(const char *sys, unsigned host, unsigned lun);
/* Makes the kernel scan for this LUN, in case the announcement was lost. Blocks during the scan. */
int scsi_scan(const char *sys, unsigned host, unsigned lun);
/* Removes the disk from the kernel. Success if it is missing. Blocks while its cache is written. */
int scsi_forget(const char *sys, unsigned host, unsigned lun);
