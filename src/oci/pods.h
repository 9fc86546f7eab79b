/* pods.h - settings of a pod that assume the host's kernel: refused where a VM cannot provide them,
 * else mapped to the pod's VM. Pure JSON; never waits. */
#pragma once
#include "oci/spec.h"
#include <stdint.h>

struct err;

/* Of a pod's first container: the text of /etc/resolv.conf in its containers. From our host side to
 * our guest; see docs/decisions/0003. */
#define POD_RESOLV_CONF "io.lcow.resolv-conf"
/* Removes from a client's spec what only lcow may set. */
void pods_drop_ours(struct spec *s);

/* ERR_INVALID names what is unsupported, before a VM is created: the host's
 * network, processes or IPC, mounts that would propagate to the host, the host's interfaces and
 * cache classes.
 * (Not ERR_UNIMPLEMENTED: containerd would take the shim for an older one and retry.) */
int pods_check(const struct spec *s, enum spec_kind kind, struct err *err);

/* That refusal. type: network, pid or ipc. Always -1. */
int pods_refuse(const char *type, struct err *err);

/* The pod's /dev/shm becomes a tmpfs in the VM that all containers of the pod share, whether the
 * client describes it as a directory of the host (containerd's pause container) or as a tmpfs
 * beside a shared IPC namespace (containerd's sandboxer "shim"). Its size comes from the annotation
 * of the first container that has one, else from the tmpfs, else from containerd's default. A
 * volume on /dev/shm stays. ERR_INVALID: an invalid size. */
int pods_fit(struct spec *s, enum spec_kind kind, const char *pod_id, struct err *err);

/* The process does nothing but hold the pod's namespaces, as that of every usual pause image, and
 * lacks nothing without files: it is /pause, and the spec asks for no more than a CRI's sandbox
 * gets. After pods_fit. */
bool pods_can_hold(const struct spec *s);
/* Then: removes its mounts, except for what they make of the pod (its /dev/shm). */
void pods_drop_files(struct spec *s);

/* N of a namespace whose path is /proc/N/ns/..., which is a process on the host; 0 if none. */
uint32_t pods_namespace_pid(const struct spec *s, const char *type);
