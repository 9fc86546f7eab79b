/* document.h - what the guest gets to make a container of: the client's OCI spec, made fit for
 * another kernel (docs/reference/host.md §15.3). Pure JSON; never waits. */
#pragma once
#include "oci/spec.h"
#include <stdint.h>

struct err;

struct document_opts {
    const char *root_path; /* in the guest */
    enum spec_kind kind;
    const char *pod_id;
    /* Of the pod's first process in the guest: whose namespaces a workload shares. 0: none runs. */
    uint32_t pod_pid;
    /* Of the container whose processes this one is to see, if not the pod's. 0: none. */
    uint32_t target_pid;
    /* The pod's network namespace in the guest (network_opts.guest_ns): all of its containers name
     * the same, and the first one makes it. NULL: one of its own with loopback only, or pod_pid's.
     */
    const char *network_namespace;
    /* No seccomp filter, and every device of the VM. An annotation sets it only if the
     * administrator's allow-list permits; the guest checks this field alone. */
    bool privileged;
    /* PCI devices, as the guest names them. NULL: none. */
    const struct strv *devices;
};

/* Rewrites spec in place for the guest.
 * Hooks (hooks.h), the host's cgroup and its limits on devices, block I/O, huge pages and network
 * are left out. Paths of namespaces mean nothing in the guest: a workload's become its pod's,
 * others become new ones. A container never gets the VM's own network, which holds the link to the
 * host, and sees only its own cgroup, with its limits. Of its annotations the guest sees those that
 * the agent reads: crun has some of its own (run.oci.*) which would replace the seccomp filter. */
void document_fit(struct spec *spec, const struct document_opts *o);

/* One entry of mounts. Strings are borrowed. */
struct document_mount {
    enum {
        DOCUMENT_MOUNT_HOST,   /* a bind of a host path: to be shared */
        DOCUMENT_MOUNT_GUEST,  /* passed on */
        DOCUMENT_MOUNT_IMAGE,  /* virtual-disk: a file of the host is to be a disk of the VM */
        DOCUMENT_MOUNT_DEVICE, /* physical-disk: the same of a block device */
    } kind;
    const char *source, *destination;
    bool read_only, recursive;
    bool top_only; /* read-only, but not what is mounted below it: "ro" without "rro" */
    bool follow;   /* what the host mounts below it later shows too: "rslave", "slave" */
    bool raw;      /* a disk: not mounted, but a device node in the container */
};
/* ERR_INVALID names a type that the guest cannot mount, or a source that is not an absolute path.
 * (Not ERR_UNIMPLEMENTED: containerd would take the shim for an older one and retry.) */
int document_mount(const json_t *mount, struct document_mount *ret, struct err *err);
/* What the guest is to bind instead, once the host's part is done. */
void document_mount_set(json_t *mount, const char *guest_path);
/* For a directory that is read-only on the host but for what is mounted below it: in the guest both
 * are one mount. */
void document_mount_writable(json_t *mount);
/* Follows that mount: a device node on it cannot be opened. crun does not keep the flags of the
 * guest's own mount. */
void document_mount_nodev(json_t *mount);

/* One entry of linux.devices, which names a device of the host. */
struct document_device {
    char type;        /* 'c', 'b', 'p' … */
    const char *path; /* in the container */
    uint32_t major, minor;
    bool asked;    /* by number in linux.resources.devices; else it came with all others of the host
                      (a privileged container) */
    bool writable; /* by the same rule */
};
int document_device(const struct spec *spec, const json_t *device, struct document_device *ret,
                    struct err *err);
