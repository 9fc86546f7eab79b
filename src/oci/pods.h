/* pods.h - what a pod asks of a kernel that it believes to share with the host: refused where a VM
 * cannot give it, made the pod's own where it can. Pure JSON; never waits. */
#pragma once
#include "oci/spec.h"
#include <stdint.h>

struct err;

/* Of a pod's first container: the text of /etc/resolv.conf in its containers. From our host side to
 * our guest; see docs/decisions/0003. */
#define POD_RESOLV_CONF "io.lcow.resolv-conf"
/* Of a spec that a client wrote: takes away what only we may say. */
void pods_drop_ours(struct spec *s);

/* ERR_INVALID says in so many words what is not possible, before any VM is made: the host's
 * network, processes or IPC, mounts that are to reach back to the host, the host's interfaces and
 * cache classes.
 * (Not ERR_UNIMPLEMENTED: containerd would take that for an older shim and ask again.) */
int pods_check(const struct spec *s, enum spec_kind kind, struct err *err);

/* That refusal. type: network, pid or ipc. Always -1. */
int pods_refuse(const char *type, struct err *err);

/* The pod's /dev/shm becomes a tmpfs in the VM that all containers of the pod share, whether the
 * client describes it as a directory of the host (containerd's pause container) or as a tmpfs
 * beside a shared IPC namespace (containerd's sandboxer "shim"). Its size is that of the annotation
 * (of whoever names it first), else of the tmpfs, else containerd's. A volume on /dev/shm stays.
 * ERR_INVALID: a size that is none. */
int pods_fit(struct spec *s, enum spec_kind kind, const char *pod_id, struct err *err);

/* N of a namespace whose path is /proc/N/ns/..., which is a process on the host; 0 if none. */
uint32_t pods_namespace_pid(const struct spec *s, const char *type);
