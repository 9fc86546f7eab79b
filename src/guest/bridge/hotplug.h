/* hotplug.h - what the host adds while the VM runs: vCPUs are brought online, since the kernel
 * leaves that to user space, and more memory raises the pods' memory limit. Listens to the kernel's
 * own events; does not poll. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct err;
struct loop;

/* Handles what is there, then listens in a fiber for the life of the VM. */
int hotplug_start(struct loop *loop, struct err *err);

/* Whether the VM has a virtio-mem device, below root (/sys/bus/virtio/devices). */
bool hotplug_has_memory(const char *root);

/* One event of the kernel: "ACTION@/devices/…". */
enum hotplug_news { HOTPLUG_NOTHING = 0, HOTPLUG_CPU = 1, HOTPLUG_MEMORY = 2 };
enum hotplug_news hotplug_read(const char *text);
/* Brings every offline vCPU below root (/sys/devices/system/cpu) online; returns how many. */
unsigned hotplug_online(const char *root);

/* What the kernel derived from the memory it found when it booted, and does not derive
 * again when more is plugged: a VM that began with 128 MiB and has 8 GiB now could have a thousand
 * threads and 6 MB of TCP buffers. Leaf code; never waits. */
/* Raises what is lower than the kernel would have set it for so much memory; never lowers. root is
 * /proc/sys. */
void limits_raise(const char *root, uint64_t total_bytes);
